//! Threads for calls that may never return.
//!
//! A hanging call into storage cannot be cancelled, so it keeps its thread. The runtime's threads are too
//! few for such calls. A thread is started here whenever a call finds none idle, and ends after some idle
//! time. The threads' stacks are small, and the number of hanging calls is bounded ([`super::hanging`]).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Stack of a thread, in bytes of address space. Only the pages that a call touches take memory: some 16
/// KiB, and as much for the kernel's own stack.
const STACK_BYTES: usize = 256 << 10;
/// How long an idle thread waits for a job before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Threads(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Locked for an operation on the queue and the count.
    work: Mutex<Work>,
    /// Notified of each job.
    arrived: Condvar,
}

#[derive(Default)]
struct Work {
    /// Jobs that idle threads are about to take: at most one for each idle thread.
    jobs: VecDeque<Job>,
    idle: usize,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

impl Threads {
    /// Runs `job` at once on a thread that it does not share.
    ///
    /// # Errors
    /// The kernel grants no further thread. The job is dropped.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        {
            let mut work = self.0.lock();
            if work.jobs.len() < work.idle {
                work.jobs.push_back(Box::new(job));
                drop(work);
                self.0.arrived.notify_one();
                return Ok(());
            }
        }
        let inner = Arc::clone(&self.0);
        let started = std::thread::Builder::new()
            .name("copperfs-posix".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                job();
                inner.serve();
            });
        started.map(drop)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until none has arrived for [`IDLE`].
    fn serve(&self) {
        loop {
            let mut work = self.lock();
            work.idle += 1;
            let (mut work, _elapsed) = self
                .arrived
                .wait_timeout_while(work, IDLE, |work| work.jobs.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            work.idle -= 1;
            let Some(job) = work.jobs.pop_front() else {
                return;
            };
            drop(work);
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A thousand hanging jobs take a thousand threads, and the next job still gets its own.
    #[test]
    fn a_job_never_waits_for_those_that_hang() {
        let threads = Threads::default();
        let (release, hang) = mpsc::sync_channel::<()>(1);
        let hang = Arc::new(Mutex::new(hang));
        let (begun, seen) = mpsc::sync_channel(1001);
        for _ in 0..1000 {
            let (hang, begun) = (Arc::clone(&hang), begun.clone());
            threads
                .run(move || {
                    begun.send(()).unwrap();
                    // Ends when the test drops its sender.
                    drop(hang.lock().map(|hang| hang.recv()));
                })
                .unwrap();
        }
        threads.run(move || begun.send(()).unwrap()).unwrap();
        for _ in 0..1001 {
            seen.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(release);
    }

    /// An idle thread takes the next job.
    #[test]
    fn idle_threads_are_used_again() {
        let threads = Threads::default();
        let mut names = std::collections::HashSet::new();
        for _ in 0..20 {
            let (done, seen) = mpsc::sync_channel(1001);
            let run = move || done.send(std::thread::current().id()).unwrap();
            threads.run(run).unwrap();
            names.insert(seen.recv_timeout(Duration::from_secs(60)).unwrap());
            // The thread reports itself just before it becomes idle.
            while threads.0.lock().idle == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(names.len(), 1);
    }
}
