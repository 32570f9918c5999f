//! Threads for calls that may never return.
//!
//! A hanging call into storage cannot be cancelled, so it keeps its thread. The runtime's threads are too
//! few for such calls. A thread is started here whenever a call finds none idle, and ends after some idle
//! time. The threads' stacks are small, and the number of hanging calls is bounded ([`super::hanging`]).

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Stack of a thread, in bytes of address space. Only the pages that a call touches take memory: some 16
/// KiB, and as much for the kernel's own stack.
const STACK_BYTES: usize = 256 << 10;
/// How long an idle thread waits for a job before it ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of each thread, which may hang in the kernel after its process was killed.
pub const POSIX_THREADS: &str = "copperfs-posix";

type Job = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub(super) struct Threads {
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

impl Threads {
    /// Runs `job` at once on a thread that it does not share.
    ///
    /// # Errors
    /// The kernel grants no further thread. The job is dropped.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        {
            let mut work = self.work.lock();
            // Never queued behind another job, which may hang.
            if work.jobs.len() < work.idle {
                work.jobs.push_back(Box::new(job));
                drop(work);
                self.arrived.notify_one();
                return Ok(());
            }
        }
        let threads = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name(POSIX_THREADS.into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                job();
                threads.serve();
            });
        started.map(drop)
    }

    /// Runs jobs until none has arrived for [`IDLE_TIMEOUT`].
    fn serve(&self) {
        loop {
            let mut work = self.work.lock();
            work.idle += 1;
            // The queue decides, not the time-out: a job may arrive just as the wait ends.
            self.arrived
                .wait_while_for(&mut work, |work| work.jobs.is_empty(), IDLE_TIMEOUT);
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
    fn a_job_never_waits_for_hanging_jobs() {
        let threads = Arc::new(Threads::default());
        let (release, hang) = mpsc::sync_channel::<()>(1);
        let hang = Arc::new(Mutex::new(hang));
        let (begun, seen) = mpsc::sync_channel(1001);
        for _ in 0..1000 {
            let (hang, begun) = (Arc::clone(&hang), begun.clone());
            threads
                .run(move || {
                    begun.send(()).unwrap();
                    // Ends when the test drops its sender.
                    hang.lock().recv().ok();
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
        let threads = Arc::new(Threads::default());
        let mut names = std::collections::HashSet::new();
        for _ in 0..20 {
            let (done, seen) = mpsc::sync_channel(1001);
            let run = move || done.send(std::thread::current().id()).unwrap();
            threads.run(run).unwrap();
            names.insert(seen.recv_timeout(Duration::from_secs(60)).unwrap());
            // The thread reports itself just before it becomes idle.
            while threads.work.lock().idle == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(names.len(), 1);
    }
}
