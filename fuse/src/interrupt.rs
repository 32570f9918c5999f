//! Requests whose answers are pending, and the cancellation of those whose readers are killed.
//!
//! A process that is killed while the daemon handles its request cannot exit before the daemon answers:
//! the kernel waits without accepting signals. The kernel reports the signal with FUSE_INTERRUPT, which
//! fuser drops, so this module polls. For each request that is older than [`CHECK_AGE`] it reads the
//! reader's pending signals from `/proc/<thread>/status`. If SIGKILL is among them (the kernel turns every
//! fatal signal, such as Ctrl-C and SIGTERM, into SIGKILL), the request is cancelled: its future is dropped,
//! and the reply is EINTR, which no program sees.
//!
//! Processes that look up the same name wait inside the kernel for the first request. When that one is
//! cancelled the kernel sends the request of the next process, or drops it if that process was killed too.
//!
//! Cost: no wake-ups while no request is pending (the task that checks ends then); otherwise one small file per
//! pending request every [`CHECK_INTERVAL`], at most [`CHECKS_MAX`] of them, in turn. A reader outside the
//! daemon's pid namespace has pid 0 and cannot be checked: it is freed when its request is answered.

use crate::backend::{FsError, Ino};
use crate::counters::Counters;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The readers of requests younger than this are not checked.
const CHECK_AGE: Duration = Duration::from_millis(100);
/// Time between two checks while requests are pending.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Readers checked per interval: 1,000 pending requests are checked in less than a second.
const CHECKS_MAX: usize = 200;

/// READs of this many bytes of a file wait on one lane, because they often wait for the same answer.
const LANE_BYTES: u64 = 4 << 20;

/// The pending requests of a mount, divided among the runtimes that wait for them.
#[derive(Debug)]
pub(crate) struct Pending {
    /// All but READs, and these too if there are no lanes.
    all: Arc<PendingRequests>,
    lanes: Vec<Arc<PendingRequests>>,
}

impl Pending {
    /// Creates empty tables, for requests that wait on `runtime`, and READs that wait on `lanes`.
    pub(crate) fn start(runtime: &Handle, lanes: &[Handle], counters: &Arc<Counters>) -> Self {
        let start = |runtime| PendingRequests::start(runtime, Arc::clone(counters));
        Self {
            all: start(runtime),
            lanes: lanes.iter().map(start).collect(),
        }
    }

    /// The requests other than READs.
    pub(crate) fn all(&self) -> &Arc<PendingRequests> {
        &self.all
    }

    /// The READs of `ino` around `offset`.
    pub(crate) fn reads(&self, ino: Ino, offset: u64) -> &Arc<PendingRequests> {
        let part = ino.0 ^ (offset / LANE_BYTES);
        let spread = part.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let count = u64::try_from(self.lanes.len().max(1)).unwrap_or(1);
        let lane = usize::try_from(spread % count).unwrap_or(0);
        self.lanes.get(lane).unwrap_or(&self.all)
    }

    fn tables(&self) -> impl Iterator<Item = &Arc<PendingRequests>> {
        self.lanes.iter().chain([&self.all])
    }

    /// Returns the lowest number of a pending request.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.tables().filter_map(|table| table.oldest()).min()
    }

    /// Cancels every pending request, and from now on every new one.
    pub(crate) fn close(&self) {
        self.tables().for_each(|table| table.close());
    }
}

#[derive(Debug)]
struct PendingRequest {
    /// Thread id of the reader.
    reader: u32,
    since: Instant,
    cancel: AbortHandle,
}

#[derive(Debug, Default)]
struct Table {
    /// By their numbers. Bounded by the kernel: one per waiting thread, and `max_background`.
    requests: BTreeMap<u64, PendingRequest>,
    /// A task checks the requests. It ends when it finds none.
    watched: bool,
    closed: bool,
}

/// The pending requests of one runtime.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    runtime: Handle,
    /// Guards the table; held for a map operation, never across an await or a system call.
    table: Mutex<Table>,
    counters: Arc<Counters>,
}

impl PendingRequests {
    /// Creates an empty table, whose requests run on `runtime`.
    fn start(runtime: &Handle, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self {
            runtime: runtime.clone(),
            table: Mutex::default(),
            counters,
        })
    }

    /// Awaits the answer to request `unique` of thread `reader` on the runtime and passes it to `finish`: `Io`
    /// after `timeout`, if there is one, and `Interrupted` if the reader is killed or the mount ends earlier.
    pub(crate) fn wait<T, F>(
        self: &Arc<Self>,
        unique: u64,
        reader: u32,
        timeout: Option<Duration>,
        future: BoxFuture<'static, Result<T, FsError>>,
        finish: F,
    ) where
        T: Send + 'static,
        F: FnOnce(Result<T, FsError>) + Send + 'static,
    {
        let (cancel, registration) = AbortHandle::new_pair();
        let Some(entry) = self.enter(unique, reader, cancel) else {
            return finish(Err(FsError::Interrupted));
        };
        let future = async move {
            match timeout {
                Some(timeout) => within(timeout, future).await,
                None => future.await,
            }
        };
        let counters = Arc::clone(&self.counters);
        self.runtime.spawn(async move {
            let result = Abortable::new(future, registration).await;
            // Removed before the reply, so that no check reads the status of a thread that continues.
            drop(entry);
            finish(result.unwrap_or_else(|_aborted| {
                counters.interrupted.increment();
                Err(FsError::Interrupted)
            }));
        });
    }

    /// Returns the value of `future` if it has to wait for nothing. Otherwise [`PendingRequests::wait`] continues it.
    pub(crate) fn try_now<T>(&self, future: &mut BoxFuture<'static, T>) -> Option<T> {
        // For its timers and tasks.
        let _runtime = self.runtime.enter();
        future.now_or_never()
    }

    /// Cancels every pending request, and from now on every new one.
    fn close(&self) {
        let requests = {
            let mut table = self.table.lock();
            table.closed = true;
            std::mem::take(&mut table.requests)
        };
        for request in requests.values() {
            request.cancel.abort();
        }
    }

    /// Adds a request to the table, unless the table is closed.
    fn enter(
        self: &Arc<Self>,
        unique: u64,
        reader: u32,
        cancel: AbortHandle,
    ) -> Option<TableEntry> {
        let mut table = self.table.lock();
        if table.closed {
            return None;
        }
        let request = PendingRequest {
            reader,
            since: Instant::now(),
            cancel,
        };
        table.requests.insert(unique, request);
        let watched = std::mem::replace(&mut table.watched, true);
        drop(table);
        if !watched {
            self.runtime.spawn(watch(Arc::clone(self)));
        }
        Some(TableEntry {
            pending: Arc::clone(self),
            unique,
        })
    }

    /// Returns the lowest number of a pending request.
    fn oldest(&self) -> Option<u64> {
        self.table.lock().requests.keys().next().copied()
    }

    /// Returns the next readers to check, from request `from` on, and the request to continue with.
    fn due(&self, from: u64, now: Instant) -> (Vec<(u32, AbortHandle)>, u64) {
        let table = self.table.lock();
        let mut due = Vec::new();
        for (&unique, request) in table.requests.range(from..) {
            if due.len() == CHECKS_MAX {
                return (due, unique);
            }
            if request.reader != 0 && now.duration_since(request.since) >= CHECK_AGE {
                due.push((request.reader, request.cancel.clone()));
            }
        }
        (due, 0)
    }
}

/// Awaits the answer to a request: `Io` after `timeout`.
pub(crate) async fn within<T>(
    timeout: Duration,
    future: BoxFuture<'static, Result<T, FsError>>,
) -> Result<T, FsError> {
    let result = tokio::time::timeout(timeout, future).await;
    result.unwrap_or_else(|_elapsed| {
        tracing::warn!("a request had no answer within {timeout:?}: its reader gets EIO");
        Err(FsError::Io)
    })
}

/// Removes a request from the table when dropped, even if its future panics.
struct TableEntry {
    pending: Arc<PendingRequests>,
    unique: u64,
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        self.pending.table.lock().requests.remove(&self.unique);
    }
}

/// Cancels the requests of killed readers, until there are no requests.
async fn watch(pending: Arc<PendingRequests>) {
    let mut from = 0;
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let (due, next) = pending.due(from, Instant::now());
        from = next;
        for (reader, cancel) in due {
            if is_being_killed(reader) {
                tracing::debug!(reader, "a reader was killed: its request is cancelled");
                cancel.abort();
            }
        }
        let mut table = pending.table.lock();
        if table.requests.is_empty() {
            table.watched = false;
            return;
        }
    }
}

/// Whether SIGKILL is pending for the thread. Returns false if its status cannot be read: the thread is
/// gone (a reader does not wait for read-ahead) or hidden.
fn is_being_killed(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .is_ok_and(|status| has_pending_sigkill(&status))
}

fn has_pending_sigkill(status: &str) -> bool {
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
        assert!(has_pending_sigkill(&status(
            "0000000000000100",
            "0000000000000000"
        )));
        assert!(has_pending_sigkill(&status(
            "0000000000000000",
            "0000000000004102"
        )));
        assert!(!has_pending_sigkill(&status(
            "0000000000000002",
            "0000000000004000"
        )));
        assert!(!has_pending_sigkill(""));
        assert!(!is_being_killed(std::process::id()));
        assert!(!is_being_killed(u32::MAX));
    }

    #[tokio::test]
    async fn pending_requests_are_cancelled_at_the_end() {
        let pending = PendingRequests::start(&Handle::current(), Arc::default());
        let (done, outcome) = tokio::sync::oneshot::channel();
        let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
        pending.wait(2, 0, None, future, move |result| done.send(result).unwrap());
        assert_eq!(pending.table.lock().requests.len(), 1);
        pending.close();
        assert_eq!(outcome.await.unwrap(), Err(FsError::Interrupted));
        assert!(pending.table.lock().requests.is_empty());
        let (done, outcome) = tokio::sync::oneshot::channel();
        let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
        pending.wait(2, 0, None, future, move |result| done.send(result).unwrap());
        assert_eq!(outcome.await.unwrap(), Err(FsError::Interrupted));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_request_fails_at_its_timeout() {
        let pending = PendingRequests::start(&Handle::current(), Arc::default());
        let start = tokio::time::Instant::now();
        for timeout in [Duration::from_secs(5), Duration::from_secs(30)] {
            let (done, outcome) = tokio::sync::oneshot::channel();
            let future: BoxFuture<'static, Result<(), FsError>> = Box::pin(std::future::pending());
            pending.wait(2, 0, Some(timeout), future, move |result| {
                done.send(result).unwrap();
            });
            assert_eq!(outcome.await.unwrap(), Err(FsError::Io));
        }
        assert_eq!(start.elapsed().as_secs(), 35);
        assert!(pending.table.lock().requests.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_watched_again_after_a_time_without_any() {
        let pending = PendingRequests::start(&Handle::current(), Arc::default());
        assert!(!pending.table.lock().watched);
        for _ in 0..3 {
            let (cancel, _registration) = AbortHandle::new_pair();
            let entry = pending.enter(2, 0, cancel).unwrap();
            assert!(pending.table.lock().watched);
            tokio::time::sleep(CHECK_INTERVAL * 3).await;
            assert!(pending.table.lock().watched, "the request is still pending");
            drop(entry);
            tokio::time::sleep(CHECK_INTERVAL * 2).await;
            assert!(!pending.table.lock().watched);
        }
        assert_eq!(Arc::strong_count(&pending), 1, "the task has ended");
    }

    #[tokio::test]
    async fn reads_wait_on_lanes_by_the_part_of_the_file() {
        let current = Handle::current();
        let counters = Arc::default();
        let none = Pending::start(&current, &[], &counters);
        assert!(Arc::ptr_eq(none.reads(Ino(7), 0), none.all()));
        let lanes = vec![current.clone(); 3];
        let pending = Pending::start(&current, &lanes, &counters);
        let at = |ino, offset| {
            let found = pending.reads(Ino(ino), offset);
            let lane = pending
                .lanes
                .iter()
                .position(|lane| Arc::ptr_eq(lane, found));
            lane.unwrap()
        };
        assert_eq!(at(7, 0), at(7, LANE_BYTES - 1));
        let mut counts = [[0; 3]; 2];
        for part in 0..300 {
            counts[0][at(part, 0)] += 1;
            counts[1][at(7, part * LANE_BYTES)] += 1;
        }
        assert!(
            counts.as_flattened().iter().all(|count| *count > 60),
            "{counts:?}"
        );
        let mut entries = Vec::new();
        for (number, table) in [(9, pending.reads(Ino(1), 0)), (8, pending.all())] {
            let (cancel, _registration) = AbortHandle::new_pair();
            entries.push(table.enter(number, 1, cancel));
        }
        assert_eq!(pending.oldest(), Some(8));
        pending.close();
        assert_eq!(pending.oldest(), None);
        let (cancel, _registration) = AbortHandle::new_pair();
        assert!(pending.reads(Ino(1), 0).enter(10, 1, cancel).is_none());
    }

    #[tokio::test]
    async fn readers_are_checked_in_turn() {
        let pending = PendingRequests::start(&Handle::current(), Arc::default());
        let later = Instant::now() + CHECK_AGE * 2;
        let mut entries = Vec::new();
        for reader in 0..=500 {
            let (cancel, _registration) = AbortHandle::new_pair();
            let unique = u64::from(reader) + 7;
            entries.push(pending.enter(unique, reader, cancel).unwrap());
        }
        assert_eq!(pending.oldest(), Some(7));
        let mut checked = Vec::new();
        let mut from = 0;
        for _ in 0..3 {
            let (due, next) = pending.due(from, later);
            checked.extend(due.into_iter().map(|(reader, _)| reader));
            from = next;
        }
        assert_eq!(checked, (1..=500).collect::<Vec<_>>());
        assert_eq!(from, 0);
        let (due, _) = pending.due(0, Instant::now());
        assert!(due.is_empty(), "every request is too young");
        entries.clear();
        assert!(pending.table.lock().requests.is_empty());
    }

    /// The FUSE thread is no thread of the runtime, and a future may need its timers.
    #[test]
    fn a_future_that_waits_for_nothing_needs_no_other_thread() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let pending = PendingRequests::start(runtime.handle(), Arc::default());
        let mut ready: BoxFuture<'static, u8> = Box::pin(async { 7 });
        assert_eq!(pending.try_now(&mut ready), Some(7));
        let mut later: BoxFuture<'static, Result<u8, FsError>> = Box::pin(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(8)
        });
        assert_eq!(pending.try_now(&mut later), None);
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        pending.wait(1, 0, None, later, move |result| send.send(result).unwrap());
        assert_eq!(receive.recv(), Ok(Ok(8)));
    }
}
