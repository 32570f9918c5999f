//! Finds the job of a reader: from a thread to its process, and from that to its job.
//!
//! A process belongs to the job that `rules` finds in its environment or its cgroup, if it may name
//! that job (`owners`). A process without one belongs to the job of its nearest ancestor with one,
//! or to no job. The environments of other users cannot be read, and with `hidepid` neither can
//! their whole `/proc` entries. Then only the cgroup decides, or the reader is unattributed.
//! Nothing here fails.
//!
//! Reading another process's environment waits for the lock of its memory map, which a large
//! process holds while it forks. So `/proc` is never read on a thread that answers requests:
//! [`Readers::cached`] answers from memory, and [`Readers::find`] reads `/proc` on another thread,
//! for a bounded time.
//!
//! I/O: reads the given `/proc`. The caller supplies the time, except for the time limit of a
//! look-up.

mod owners;
mod proc;
mod rules;
#[cfg(test)]
mod tests;

pub use proc::{Proc, Process};

use super::name::JobName;
use lru::LruCache;
use owners::Owners;
use parking_lot::Mutex;
use rules::Claim;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long an open waits for the look-up of its reader. A fork of a process with 100 GB takes about that
/// long. After it the open continues unattributed. The look-up goes on, and the reader's next open uses its
/// result.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// Concurrent look-ups, each on its own thread: enough for all loaders of a node that wait for one
/// trainer's memory map. Further look-ups wait for a slot within [`LOOK_TIMEOUT`].
const LOOKS_MAX: usize = 64;

/// Threads and processes in memory: more than the readers of a node with 256 cores that runs 16
/// loaders on each. A thread that was dropped is looked up again.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// How long a thread's number is assumed to denote the same thread. Linux reuses a number only
/// after all others: even with 32,768 numbers a node would have to start as many processes in this
/// time.
const TRUSTED: Duration = Duration::from_secs(1);

/// How long a result is used. `exec` changes an environment, and schedulers move processes into
/// cgroups after they have started.
const FRESH: Duration = Duration::from_secs(10);

/// The maximum number of ancestors that are examined. A loader's worker below a trainer below
/// `torchrun` below a script below a scheduler's step has five. Bounds the cost of a reader without
/// a job.
const ANCESTORS_MAX: usize = 16;

/// A process that reads, and its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// The process of the reading thread.
    pub process: Process,
    /// Its outermost ancestor of the same job, over an unbroken line. It lives as long as the job's
    /// script, while loaders come and go. The process itself if it has no job.
    pub anchor: Process,
    /// Its job, if it has one.
    pub job: Option<JobName>,
    /// The task of a pipeline that it is, if it or an ancestor says so.
    pub task: Option<Task>,
}

/// A task of a pipeline, as the variable `COPPERFS_TASK` of a process names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    /// The user of that process.
    pub user: u32,
    /// `job/task`.
    pub name: Arc<str>,
}

/// Finds readers, and caches the results.
///
/// Locks: one mutex for each table. None is held while an environment is read, or while another is taken.
#[derive(Debug)]
pub struct Readers {
    /// The `/proc` that is read.
    pub(crate) proc: Proc,
    /// By thread id.
    threads: Mutex<LruCache<u32, KnownThread>>,
    /// The claims of each process, and when they were read.
    own: Mutex<LruCache<Process, (Instant, ProcessClaims)>>,
    owners: Mutex<Owners>,
    looks: Arc<Semaphore>,
}

/// The result of a look-up in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedReader {
    /// The reader for the thread, or `None` if the thread cannot be seen.
    Known(Option<Arc<Reader>>),
    /// The thread has to be looked up with [`Readers::find`].
    Unknown,
}

/// The jobs that a process names itself, without its ancestors.
#[derive(Debug, Clone)]
struct ProcessClaims {
    /// The user of the process, if visible.
    user: Option<u32>,
    /// The jobs that it names, in order of preference.
    claims: Arc<[Claim]>,
    /// The task that it names.
    task: Option<Task>,
}

#[derive(Debug, Clone)]
struct KnownThread {
    thread: Process,
    /// When the thread was last verified to be the same.
    checked: Instant,
    /// When the reader was looked up.
    resolved: Instant,
    reader: Arc<Reader>,
}

impl Readers {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(proc: Proc) -> Self {
        Self::remembering(proc, REMEMBERED_MAX)
    }

    fn remembering(proc: Proc, max: NonZeroUsize) -> Self {
        Self {
            proc,
            threads: Mutex::new(LruCache::new(max)),
            own: Mutex::new(LruCache::new(max)),
            owners: Mutex::new(Owners::new()),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
        }
    }

    /// Sets the owners of declared jobs to `declared`.
    pub fn declare(&self, declared: HashMap<JobName, u32>) {
        if self.owners.lock().declare(declared) {
            // The claims of some readers may no longer be believed.
            self.threads.lock().clear();
        }
    }

    /// Returns whether `user` may speak for `job`, as a request over the users' socket does: it is no other user's.
    /// From then on the job is the user's while `process` runs.
    #[must_use]
    pub fn may_speak(
        &self,
        job: &JobName,
        user: u32,
        process: Option<Process>,
        now: Instant,
    ) -> bool {
        let mut owners = self.owners.lock();
        let allowed = owners.may_name(job, user, now, |process| self.proc.runs(process));
        if let Some(process) = process.filter(|_| allowed) {
            owners.saw(job, user, process, false, now);
        }
        allowed
    }

    /// Returns the reader for the thread `pid` from memory only.
    #[must_use]
    pub fn cached(&self, pid: u32, now: Instant) -> CachedReader {
        if pid == 0 {
            return CachedReader::Known(None);
        }
        match self.threads.lock().get(&pid) {
            Some(known) if now.saturating_duration_since(known.checked) < TRUSTED => {
                CachedReader::Known(Some(Arc::clone(&known.reader)))
            }
            _ => CachedReader::Unknown,
        }
    }

    /// Like [`reader`](Self::reader), but on another thread and for at most a second, after which
    /// it returns `None`. May be cancelled; the result is cached anyway.
    pub async fn find(self: Arc<Self>, pid: u32) -> Option<Arc<Reader>> {
        let looking = async {
            // The permit belongs to the thread and not to this future: a thread that hangs in
            // `/proc` keeps its slot even if the open is cancelled.
            let place = Arc::clone(&self.looks).acquire_owned().await.ok()?;
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || {
                let found = this.reader(pid, Instant::now());
                drop(place);
                found
            });
            looked.await.ok()?
        };
        let found = tokio::time::timeout(LOOK_TIMEOUT, looking).await;
        found.unwrap_or_else(|_elapsed| {
            tracing::debug!(
                pid,
                "a reader cannot be looked at now: it counts as unattributed"
            );
            None
        })
    }

    /// Returns the reader for the thread `pid` (OPEN and READ carry a thread's id; the id of a process
    /// is valid, too). `None`: the thread does not exist, cannot be seen, or is outside of the daemon's
    /// pid namespace (0).
    ///
    /// Takes about a microsecond if the thread is known. Otherwise it reads `/proc`, which takes a
    /// millisecond, or as long as a fork of the process or an ancestor. Must not run on a thread that
    /// answers requests.
    #[must_use]
    pub fn reader(&self, pid: u32, now: Instant) -> Option<Arc<Reader>> {
        if let CachedReader::Known(reader) = self.cached(pid, now) {
            return reader;
        }
        let (thread, _) = self.proc.process(pid)?;
        // The lock is released before `/proc` is read.
        let known = self.threads.lock().get(&pid).cloned();
        let (resolved, reader) = match known {
            Some(known)
                if known.thread == thread
                    && now.saturating_duration_since(known.resolved) < FRESH =>
            {
                (known.resolved, known.reader)
            }
            _ => (now, Arc::new(self.resolve(pid, now)?)),
        };
        let known = KnownThread {
            thread,
            checked: now,
            resolved,
            reader: Arc::clone(&reader),
        };
        self.threads.lock().put(pid, known);
        Some(reader)
    }

    fn resolve(&self, thread: u32, now: Instant) -> Option<Reader> {
        let (process, mut parent) = self.proc.process(self.proc.process_of(thread)?)?;
        // The process and its ancestors, as far as they are examined.
        let mut line = vec![(process, self.claims_of(process, now))];
        for _ in 0..ANCESTORS_MAX {
            let Some((ancestor, above)) = self.proc.process(parent) else {
                break;
            };
            line.push((ancestor, self.claims_of(ancestor, now)));
            parent = above;
        }
        let found = (0..line.len()).find_map(|at| self.believed(line.get(at..)?, now));
        let (job, anchor) = found.unzip();
        let mut named = line.iter().filter_map(|(_, own)| own.task.clone());
        Some(Reader {
            task: named.next(),
            process,
            anchor: anchor.unwrap_or(process),
            job,
        })
    }

    /// Given a process and its ancestors, returns the job of the first one, and the outermost process of
    /// that job.
    ///
    /// A claim is believed if it comes from a cgroup, if the process's user may name the job, or if
    /// an unbroken line of ancestors names the job and the user of one of them may name it. The
    /// last rule is safe because no user can make a process the child of another user's process.
    fn believed(
        &self,
        line: &[(Process, ProcessClaims)],
        now: Instant,
    ) -> Option<(JobName, Process)> {
        let (_, first) = line.first()?;
        for Claim { job, by_cgroup } in &*first.claims {
            let names = |claims: &[Claim]| claims.iter().any(|claim| claim.job == *job);
            let of_job = line.iter().take_while(|(_, own)| names(&own.claims));
            // The line ends at the first process that does not name the job.
            let anchor = of_job.clone().last().map(|(process, _)| *process)?;
            let users = of_job.filter_map(|(_, own)| own.user);
            let mut owners = self.owners.lock();
            let runs = |process| self.proc.runs(process);
            if *by_cgroup || { users }.any(|user| owners.may_name(job, user, now, runs)) {
                if let Some(user) = first.user {
                    owners.saw(job, user, anchor, *by_cgroup, now);
                }
                return Some((job.clone(), anchor));
            }
            drop(owners);
            tracing::debug!(%job, user = first.user, "names a job that is another user's");
        }
        None
    }

    /// Returns the claims of a process itself.
    fn claims_of(&self, process: Process, now: Instant) -> ProcessClaims {
        if let Some((when, own)) = self.own.lock().get(&process)
            && now.saturating_duration_since(*when) < FRESH
        {
            return own.clone();
        }
        let environment = self.proc.environment(process.pid);
        let cgroup = self.proc.cgroup(process.pid);
        let user = self.proc.user(process.pid);
        let task = rules::task(&environment).map(Arc::from);
        let own = ProcessClaims {
            user,
            claims: rules::claims(&environment, &cgroup).into(),
            // Without its user the task could be another user's.
            task: task.zip(user).map(|(name, user)| Task { user, name }),
        };
        self.own.lock().put(process, (now, own.clone()));
        own
    }
}
