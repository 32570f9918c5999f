//! Requests that wait, and readers that die while they do.
//!
//! A process that is killed while its request is in the daemon's hands cannot die before the daemon
//! answers: the kernel waits without listening to signals. The kernel would say so by FUSE_INTERRUPT,
//! which fuser drops; so we look ourselves. While a request has waited for longer than [`PATIENCE`],
//! its reader's pending signals are read from `/proc/<thread>/status`; SIGKILL among them (every
//! deadly signal becomes one: Ctrl-C, SIGTERM) cancels the request: its future is dropped and the
//! answer is EINTR, which nobody sees.
//!
//! Several processes that look up the same name wait for the first one's request inside the kernel;
//! when that is cancelled the next one asks, and if it has been killed too, gives up by itself.
//!
//! Cost: nothing wakes up while nothing waits; one small file per waiting request every [`TICK`], at
//! most [`CHECKS_MAX`] of them, in turn. A reader outside the daemon's pid namespace has pid 0 and
//! cannot be looked at: it is freed when its request is answered.

use crate::backend::FsError;
use crate::counters::Counters;
use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// A request that has waited for less is not looked at.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often the readers are looked at while requests wait.
const TICK: Duration = Duration::from_millis(100);
/// Readers looked at per tick: 1,000 waiting requests are gone through in less than a second.
const CHECKS_MAX: usize = 200;

#[derive(Debug)]
struct Waiting {
    /// Thread id of the reader.
    reader: u32,
    since: Instant,
    cancel: AbortHandle,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Bounded by the kernel: one per thread that waits, and `max_background`.
    waiting: BTreeMap<u64, Waiting>,
    closed: bool,
}

/// The requests of one mount that wait for an answer.
#[derive(Debug)]
pub(crate) struct Pending {
    runtime: Handle,
    /// Guards the table; held for a map operation, never across an await or a system call.
    table: Mutex<Table>,
    /// Something waits now where nothing did, or all is over.
    stirred: Arc<Notify>,
    counters: Arc<Counters>,
}

impl Pending {
    /// An empty table, and the task that watches it until [`close`](Self::close).
    pub(crate) fn start(runtime: &Handle, counters: Arc<Counters>) -> Arc<Self> {
        let stirred = Arc::new(Notify::new());
        let pending = Arc::new(Self {
            runtime: runtime.clone(),
            table: Mutex::default(),
            stirred: Arc::clone(&stirred),
            counters,
        });
        runtime.spawn(watch(Arc::downgrade(&pending), stirred));
        pending
    }

    /// Waits for `future` on the runtime and passes its outcome to `finish`: `Io` after `ceiling`, if there
    /// is one, and `Interrupted` if the reader is killed or the mount ends earlier.
    pub(crate) fn wait<T, F>(
        self: &Arc<Self>,
        reader: u32,
        ceiling: Option<Duration>,
        future: BoxFuture<'static, Result<T, FsError>>,
        finish: F,
    ) where
        T: Send + 'static,
        F: FnOnce(Result<T, FsError>) + Send + 'static,
    {
        let (cancel, registration) = AbortHandle::new_pair();
        let Some(place) = self.enter(reader, cancel) else {
            finish(Err(FsError::Interrupted));
            return;
        };
        let counters = Arc::clone(&self.counters);
        self.runtime.spawn(async move {
            let outcome = Abortable::new(within(ceiling, future), registration).await;
            drop(place);
            finish(outcome.unwrap_or_else(|_aborted| {
                counters.interrupted.increment();
                Err(FsError::Interrupted)
            }));
        });
    }

    /// Cancels everything, now and from now on.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut table = self.table.lock();
            table.closed = true;
            std::mem::take(&mut table.waiting)
        };
        for request in waiting.values() {
            request.cancel.abort();
        }
        self.stirred.notify_one();
    }

    fn enter(self: &Arc<Self>, reader: u32, cancel: AbortHandle) -> Option<Place> {
        let mut table = self.table.lock();
        if table.closed {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let first = table.waiting.is_empty();
        let since = Instant::now();
        table.waiting.insert(
            id,
            Waiting {
                reader,
                since,
                cancel,
            },
        );
        drop(table);
        if first {
            self.stirred.notify_one();
        }
        Some(Place {
            pending: Arc::clone(self),
            id,
        })
    }

    /// The next readers to look at, from request `from` on, and where to go on afterwards.
    fn due(&self, from: u64, now: Instant) -> (Vec<(u32, AbortHandle)>, u64) {
        let table = self.table.lock();
        let mut next = 0;
        let mut due = Vec::new();
        for (&id, request) in table.waiting.range(from..) {
            if due.len() == CHECKS_MAX {
                next = id;
                break;
            }
            if request.reader != 0 && now.duration_since(request.since) >= PATIENCE {
                due.push((request.reader, request.cancel.clone()));
            }
        }
        (due, next)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The watching task holds no reference: it sees that there is nothing left.
        self.stirred.notify_one();
    }
}

/// The output of `future`, or `Io` if `ceiling` elapses first.
async fn within<T>(
    ceiling: Option<Duration>,
    future: BoxFuture<'static, Result<T, FsError>>,
) -> Result<T, FsError> {
    let Some(ceiling) = ceiling else {
        return future.await;
    };
    let outcome = tokio::time::timeout(ceiling, future).await;
    outcome.unwrap_or_else(|_elapsed| {
        tracing::warn!("a request had no answer within {ceiling:?}: its reader gets EIO");
        Err(FsError::Io)
    })
}

/// A request's place in the table; leaves it when dropped, also if its future panics.
struct Place {
    pending: Arc<Pending>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pending.table.lock().waiting.remove(&self.id);
    }
}

async fn watch(pending: Weak<Pending>, stirred: Arc<Notify>) {
    let mut from = 0;
    loop {
        let Some(table) = pending.upgrade() else {
            return;
        };
        let (idle, closed) = {
            let table = table.table.lock();
            (table.waiting.is_empty(), table.closed)
        };
        drop(table);
        if closed {
            return;
        }
        if idle {
            stirred.notified().await;
        }
        tokio::time::sleep(TICK).await;
        let Some(table) = pending.upgrade() else {
            return;
        };
        let (due, next) = table.due(from, Instant::now());
        from = next;
        for (reader, cancel) in due {
            if is_being_killed(reader) {
                tracing::debug!(reader, "a reader was killed: its request is cancelled");
                cancel.abort();
            }
        }
    }
}

/// Whether SIGKILL is pending for the thread. Not if it cannot be looked at: gone (it did not wait,
/// as in read-ahead), or hidden.
fn is_being_killed(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|text| sigkill_in(&text))
}

fn sigkill_in(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_sigkill_counts() {
        let status = |thread, group| {
            format!(
                "Name:\tx\nSigQ:\t0/1\nSigPnd:\t{thread}\nShdPnd:\t{group}\nSigBlk:\t0000000000000100\n"
            )
        };
        assert!(sigkill_in(&status("0000000000000100", "0000000000000000")));
        assert!(sigkill_in(&status("0000000000000000", "0000000000004102")));
        assert!(!sigkill_in(&status("0000000000000002", "0000000000004000")));
        assert!(!sigkill_in(""));
        assert!(!is_being_killed(std::process::id()));
        assert!(!is_being_killed(u32::MAX));
    }

    #[tokio::test]
    async fn what_waits_is_cancelled_at_the_end() {
        let pending = Pending::start(&Handle::current(), Arc::default());
        let (done, outcome) = tokio::sync::oneshot::channel();
        let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
        pending.wait(0, None, future, move |result| done.send(result).unwrap());
        assert_eq!(pending.table.lock().waiting.len(), 1);
        pending.close();
        assert_eq!(outcome.await.unwrap(), Err(FsError::Interrupted));
        assert!(pending.table.lock().waiting.is_empty());
        let (done, outcome) = tokio::sync::oneshot::channel();
        let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
        pending.wait(0, None, future, move |result| done.send(result).unwrap());
        assert_eq!(outcome.await.unwrap(), Err(FsError::Interrupted));
    }

    /// Every reader is answered within its ceiling, even if the future never completes.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_nothing_answers_fails_at_its_ceiling() {
        let pending = Pending::start(&Handle::current(), Arc::default());
        let begun = tokio::time::Instant::now();
        for ceiling in [Duration::from_secs(5), Duration::from_secs(30)] {
            let (done, outcome) = tokio::sync::oneshot::channel();
            let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
            pending.wait(0, Some(ceiling), future, move |result| {
                done.send(result).unwrap();
            });
            assert_eq!(outcome.await.unwrap(), Err(FsError::Io));
        }
        assert_eq!(begun.elapsed().as_secs(), 35);
        assert!(pending.table.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn readers_are_looked_at_in_turn() {
        let pending = Pending::start(&Handle::current(), Arc::default());
        let later = Instant::now() + PATIENCE * 2;
        let mut places = Vec::new();
        for reader in 0..=500 {
            let (cancel, _registration) = AbortHandle::new_pair();
            places.push(pending.enter(reader, cancel).unwrap());
        }
        let mut seen = Vec::new();
        let mut from = 0;
        for _ in 0..3 {
            let (due, next) = pending.due(from, later);
            seen.extend(due.into_iter().map(|(reader, _)| reader));
            from = next;
        }
        assert_eq!(seen, (1..=500).collect::<Vec<_>>());
        assert_eq!(from, 0);
        let (due, _) = pending.due(0, Instant::now());
        assert!(due.is_empty(), "nothing has waited for long yet");
        places.clear();
        assert!(pending.table.lock().waiting.is_empty());
    }
}
