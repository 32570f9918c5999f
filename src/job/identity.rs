//! Who reads: from a thread to its process, and from that to its job.
//!
//! A process belongs to the job that `rules` find in its environment or its cgroup, if it may name that job
//! (`owners`). A process without one belongs to the job of its nearest ancestor that has one, else to none.
//! The environments of other users, and with `hidepid` their whole `/proc` entries, cannot be read: then
//! only the cgroup decides, or the reader is unattributed. Nothing here fails.
//!
//! Reading another process's environment waits for the lock of its memory map, which a large process holds
//! while it forks. So `/proc` is never read on a thread that answers requests: [`Readers::known`] answers
//! from memory, and [`Readers::find`] reads `/proc` on another thread, for a bounded time.
//!
//! I/O: reads the given `/proc`. The caller supplies the time, except for the time limit of a look-up.

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
/// trainer's memory map. Further look-ups wait for a place within [`LOOK_TIMEOUT`].
const LOOKS_MAX: usize = 64;

/// Threads and processes remembered: more than the readers of a node with 256 cores that runs 16
/// loaders on each. A thread that was dropped is looked up again.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// How long a thread's number is taken for the same thread without a look. Numbers are given anew
/// only after all others were used: even with 32,768 of them a node would have to start as many
/// processes in this time.
const TRUSTED: Duration = Duration::from_secs(1);

/// How long an answer is used. `exec` changes an environment, and schedulers move processes into
/// cgroups after they have begun.
const FRESH: Duration = Duration::from_secs(10);

/// How many ancestors are asked: a loader's worker below a trainer below `torchrun` below a script
/// below a scheduler's step is six. Bounds the cost of a reader who belongs to no job.
const ANCESTORS_MAX: usize = 16;

/// A process that reads, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reader {
    /// The process of the thread that asked.
    pub process: Process,
    /// Its furthest ancestor of the same job, found over an unbroken line: it is there as long as
    /// the job's script is, while loaders come and go. The process itself if it has no job.
    pub anchor: Process,
    /// Its job, if it has one.
    pub job: Option<JobName>,
}

/// Finds out who reads, and remembers it.
///
/// Locks: one mutex for each table. None is held while an environment is read, or while another is taken.
#[derive(Debug)]
pub struct Readers {
    proc: Proc,
    /// By thread id.
    threads: Mutex<LruCache<u32, Known>>,
    /// What a process itself says, without its ancestors.
    own: Mutex<LruCache<Process, (Instant, Own)>>,
    owners: Mutex<Owners>,
    looks: Arc<Semaphore>,
}

/// What a process itself shows, without its ancestors.
#[derive(Debug, Clone)]
struct Own {
    /// The user of the process, if visible.
    user: Option<u32>,
    /// The jobs that it names, in order of preference.
    claims: Arc<[Claim]>,
}

impl Own {
    fn names(&self, job: &JobName) -> bool {
        self.claims.iter().any(|claim| claim.job == *job)
    }
}

#[derive(Debug, Clone)]
struct Known {
    thread: Process,
    /// When the thread was last seen to be the same.
    checked: Instant,
    /// When all of it was looked up.
    resolved: Instant,
    reader: Arc<Reader>,
}

impl Readers {
    /// Knows nobody yet.
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

    /// The reader for thread `pid`, from memory only; `Some(None)` if it has none. `None`: it has to be
    /// looked up with [`find`](Self::find).
    #[must_use]
    pub fn known(&self, pid: u32, now: Instant) -> Option<Option<Arc<Reader>>> {
        if pid == 0 {
            return Some(None);
        }
        let mut threads = self.threads.lock();
        let known = threads.get(&pid)?;
        let trusted = now.saturating_duration_since(known.checked) < TRUSTED;
        trusted.then(|| Some(Arc::clone(&known.reader)))
    }

    /// Like [`reader`](Self::reader), on another thread, for at most a second; after that returns `None`.
    /// May be cancelled; the result is remembered anyway.
    pub async fn find(self: Arc<Self>, pid: u32) -> Option<Arc<Reader>> {
        let looking = async {
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

    /// The `/proc` that is asked.
    #[must_use]
    pub fn proc(&self) -> &Proc {
        &self.proc
    }

    /// The job of the process that the thread `pid` belongs to (OPEN and READ carry a thread's id; a
    /// process's own will do). `None`: no job, no such thread, or one outside of the daemon's pid
    /// namespace (0).
    ///
    /// Takes about a microsecond if the thread is known. Otherwise it reads `/proc`, which takes a
    /// millisecond, or as long as a fork of the process or an ancestor. Must not run on a thread that
    /// answers requests.
    #[must_use]
    pub fn job_of(&self, pid: u32, now: Instant) -> Option<JobName> {
        self.reader(pid, now)?.job.clone()
    }

    /// As [`job_of`](Self::job_of), with the process and the job's outermost one. `None`: no such
    /// thread, or one that cannot be seen.
    #[must_use]
    pub fn reader(&self, pid: u32, now: Instant) -> Option<Arc<Reader>> {
        if pid == 0 {
            return None;
        }
        let known = self.threads.lock().get(&pid).cloned();
        if let Some(known) = &known
            && now.saturating_duration_since(known.checked) < TRUSTED
        {
            return Some(Arc::clone(&known.reader));
        }
        let thread = self.proc.thread(pid)?;
        let (resolved, reader) = match known {
            Some(known)
                if known.thread == thread
                    && now.saturating_duration_since(known.resolved) < FRESH =>
            {
                (known.resolved, known.reader)
            }
            _ => (now, Arc::new(self.resolve(pid, now)?)),
        };
        let known = Known {
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
        let mut line = vec![(process, self.own(process, now))];
        for _ in 0..ANCESTORS_MAX {
            let Some((ancestor, above)) = self.proc.process(parent) else {
                break;
            };
            line.push((ancestor, self.own(ancestor, now)));
            parent = above;
        }
        let found = (0..line.len()).find_map(|at| self.believed(line.get(at..)?, now));
        let (job, anchor) = match found {
            Some((job, anchor)) => (Some(job), anchor),
            None => (None, process),
        };
        Some(Reader {
            process,
            anchor,
            job,
        })
    }

    /// Given a process and its ancestors, returns the job of the first one, and the outermost process of
    /// that job.
    ///
    /// A claim is believed if it comes from a cgroup, if the process's user may name the job, or if an
    /// unbroken line of ancestors names the job and the user of one of them may name it: nobody can make a
    /// process the child of another user's process.
    fn believed(&self, line: &[(Process, Own)], now: Instant) -> Option<(JobName, Process)> {
        let (_, first) = line.first()?;
        for Claim { job, by_cgroup } in &*first.claims {
            let of_job = line.iter().take_while(|(_, own)| own.names(job));
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

    /// What a process says itself.
    fn own(&self, process: Process, now: Instant) -> Own {
        if let Some((when, own)) = self.own.lock().get(&process)
            && now.saturating_duration_since(*when) < FRESH
        {
            return own.clone();
        }
        let environment = self.proc.environment(process.pid);
        let cgroup = self.proc.cgroup(process.pid);
        let own = Own {
            user: self.proc.user(process.pid),
            claims: rules::claims(&environment, &cgroup).into(),
        };
        self.own.lock().put(process, (now, own.clone()));
        own
    }
}
