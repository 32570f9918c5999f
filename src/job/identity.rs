//! Who reads: from a thread to its process, and from that to its job.
//!
//! A process belongs to the job that `rules` find in its environment or its cgroup; one that has
//! none, to that of its nearest ancestor with one; else to none. Other users' environments, and with
//! `hidepid` their whole `/proc` entries, cannot be read: then the cgroup alone decides, or nothing.
//! Nothing here fails: whoever cannot be recognised is unattributed.
//!
//! I/O: reads the `/proc` that it is given. The clock is the caller's.

mod proc;
mod rules;
#[cfg(test)]
mod tests;

pub use proc::{Proc, Process};

use super::name::JobName;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
/// Locks: one mutex for each table, never held while `/proc` is read.
#[derive(Debug)]
pub struct Readers {
    proc: Proc,
    /// By thread id.
    threads: Mutex<LruCache<u32, Known>>,
    /// What a process itself says, without its ancestors.
    own: Mutex<LruCache<Process, (Instant, Option<JobName>)>>,
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
        }
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
    /// About a microsecond if the thread is known; else it reads `/proc`, a millisecond at most.
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
        let known = lock(&self.threads).get(&pid).cloned();
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
        lock(&self.threads).put(pid, known);
        Some(reader)
    }

    fn resolve(&self, thread: u32, now: Instant) -> Option<Reader> {
        let (process, mut parent) = self.proc.process(self.proc.process_of(thread)?)?;
        let mut job = self.own(process, now);
        let mut anchor = process;
        for _ in 0..ANCESTORS_MAX {
            let Some((ancestor, above)) = self.proc.process(parent) else {
                break;
            };
            let theirs = self.own(ancestor, now);
            if job.is_some() && theirs != job {
                break;
            }
            if theirs.is_some() {
                job = theirs;
                anchor = ancestor;
            }
            parent = above;
        }
        Some(Reader {
            process,
            anchor,
            job,
        })
    }

    /// What a process says itself.
    fn own(&self, process: Process, now: Instant) -> Option<JobName> {
        if let Some((when, job)) = lock(&self.own).get(&process)
            && now.saturating_duration_since(*when) < FRESH
        {
            return job.clone();
        }
        let environment = self.proc.environment(process.pid);
        let cgroup = self.proc.cgroup(process.pid);
        let job = rules::job(&environment, &cgroup);
        lock(&self.own).put(process, (now, job.clone()));
        job
    }
}

fn lock<T>(table: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
