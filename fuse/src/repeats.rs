//! Requests that timed out and that the kernel then repeats.
//!
//! After a failed READ of its read-ahead, the kernel sends a READ for the page that the reader waits for.
//! After a failed LOOKUP that revalidates a name, it looks the name up again. The reader would then wait
//! for two timeouts. The kernel sends the repetition at once, for the same thread and the same object, so
//! it gets the recorded error without waiting. Each recorded error answers one repetition; later requests
//! are served normally.

use crate::backend::{FsError, Ino};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long after a failure a request counts as the kernel's repetition.
const REPEAT_WINDOW: Duration = Duration::from_secs(1);
/// Recorded failures at most. When it is reached the oldest is dropped, and its reader waits twice.
const FAILURES_MAX: usize = 4096;

/// The object of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RequestKey {
    /// Bytes of a file.
    Read(Ino, Range<u64>),
    /// A name in a directory.
    Lookup(Ino, Bytes),
}

impl RequestKey {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Read(ino, range), Self::Read(other, part)) => {
                ino == other && range.contains(&part.start)
            }
            (one, other) => one == other,
        }
    }
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    thread: u32,
    key: RequestKey,
    error: FsError,
}

/// The requests that failed recently after a long wait.
#[derive(Debug, Default)]
pub(crate) struct TimedOutRequests {
    /// Oldest first. The lock is held for one scan, which [`FAILURES_MAX`] bounds.
    failures: Mutex<VecDeque<Failure>>,
}

impl TimedOutRequests {
    /// Records that the request `key` of `thread` failed after a long wait.
    pub(crate) fn record(&self, thread: u32, key: RequestKey, error: FsError, now: Instant) {
        let mut failures = self.failures.lock();
        drop_old(&mut failures, now);
        if failures.len() >= FAILURES_MAX {
            failures.pop_front();
        }
        failures.push_back(Failure {
            at: now,
            thread,
            key,
            error,
        });
    }

    /// Returns the recorded error and removes it, if this request repeats one that failed recently.
    pub(crate) fn take_error(
        &self,
        thread: u32,
        key: &RequestKey,
        now: Instant,
    ) -> Option<FsError> {
        let mut failures = self.failures.lock();
        drop_old(&mut failures, now);
        let repeated = |failure: &Failure| failure.thread == thread && failure.key.covers(key);
        let index = failures.iter().position(repeated)?;
        failures.remove(index).map(|failure| failure.error)
    }
}

fn drop_old(failures: &mut VecDeque<Failure>, now: Instant) {
    let old = |failure: &Failure| now.saturating_duration_since(failure.at) > REPEAT_WINDOW;
    while failures.front().is_some_and(old) {
        failures.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_repetition_gets_the_same_error_once() {
        let (requests, now) = (TimedOutRequests::default(), Instant::now());
        let page = RequestKey::Read(Ino(7), 4096..8192);
        assert_eq!(requests.take_error(1, &page, now), None);
        requests.record(1, RequestKey::Read(Ino(7), 0..131_072), FsError::Io, now);
        assert_eq!(requests.take_error(2, &page, now), None, "another reader");
        let beyond = RequestKey::Read(Ino(7), 131_072..135_168);
        assert_eq!(requests.take_error(1, &beyond, now), None, "other bytes");
        assert_eq!(requests.take_error(1, &page, now), Some(FsError::Io));
        assert_eq!(
            requests.take_error(1, &page, now),
            None,
            "the error is used up"
        );
    }

    #[test]
    fn a_later_request_is_no_repetition() {
        let (requests, now) = (TimedOutRequests::default(), Instant::now());
        let name = RequestKey::Lookup(Ino(1), Bytes::from_static(b"a"));
        requests.record(1, name.clone(), FsError::Io, now);
        assert_eq!(requests.take_error(1, &name, now + REPEAT_WINDOW * 2), None);
        requests.record(1, name.clone(), FsError::Io, now);
        let other = RequestKey::Lookup(Ino(1), Bytes::from_static(b"b"));
        assert_eq!(requests.take_error(1, &other, now), None);
        assert_eq!(requests.take_error(1, &name, now), Some(FsError::Io));
    }

    #[test]
    fn recorded_failures_are_bounded() {
        let (requests, now) = (TimedOutRequests::default(), Instant::now());
        for ino in 0..2 * FAILURES_MAX as u64 {
            requests.record(1, RequestKey::Read(Ino(ino), 0..1), FsError::Io, now);
        }
        assert_eq!(requests.failures.lock().len(), FAILURES_MAX);
    }
}
