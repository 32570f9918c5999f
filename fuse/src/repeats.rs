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
const SOON: Duration = Duration::from_secs(1);
/// Failures that are remembered. Beyond it the oldest is forgotten, and its reader waits twice.
const FAILED_MAX: usize = 4096;

/// The object of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Bytes of a file.
    Read(Ino, Range<u64>),
    /// A name in a directory.
    Lookup(Ino, Bytes),
}

impl What {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Read(ino, all), Self::Read(other, part)) => {
                ino == other && all.start <= part.start && part.start < all.end
            }
            (one, other) => one == other,
        }
    }
}

#[derive(Debug)]
struct Failed {
    at: Instant,
    reader: u32,
    what: What,
    error: FsError,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Oldest first. The lock is held for a scan of the failures within [`SOON`].
    failed: Mutex<VecDeque<Failed>>,
}

impl Repeats {
    /// Records that the request for `what` by thread `reader` failed after a long wait.
    pub(crate) fn failed(&self, reader: u32, what: What, error: FsError, now: Instant) {
        let mut failed = self.failed.lock();
        forget(&mut failed, now);
        if failed.len() >= FAILED_MAX {
            failed.pop_front();
        }
        failed.push_back(Failed {
            at: now,
            reader,
            what,
            error,
        });
    }

    /// The answer to a request that repeats a recent failure; `None` if it repeats none.
    pub(crate) fn answer(&self, reader: u32, what: &What, now: Instant) -> Option<FsError> {
        let mut failed = self.failed.lock();
        if failed.is_empty() {
            return None;
        }
        forget(&mut failed, now);
        let same = |one: &Failed| one.reader == reader && one.what.covers(what);
        let at = failed.iter().position(same)?;
        failed.remove(at).map(|one| one.error)
    }
}

fn forget(failed: &mut VecDeque<Failed>, now: Instant) {
    while (failed.front()).is_some_and(|one| now.saturating_duration_since(one.at) > SOON) {
        failed.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_repetition_gets_the_same_answer_once() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        let page = What::Read(Ino(7), 4096..8192);
        assert_eq!(repeats.answer(1, &page, now), None);
        repeats.failed(1, What::Read(Ino(7), 0..131_072), FsError::Io, now);
        assert_eq!(repeats.answer(2, &page, now), None, "another reader");
        let beyond = What::Read(Ino(7), 131_072..135_168);
        assert_eq!(repeats.answer(1, &beyond, now), None, "other bytes");
        assert_eq!(repeats.answer(1, &page, now), Some(FsError::Io));
        assert_eq!(repeats.answer(1, &page, now), None, "a try of its own");
    }

    #[test]
    fn what_comes_later_is_no_repetition() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        let name = What::Lookup(Ino(1), Bytes::from_static(b"a"));
        repeats.failed(1, name.clone(), FsError::Io, now);
        assert_eq!(repeats.answer(1, &name, now + SOON * 2), None);
        repeats.failed(1, name.clone(), FsError::Io, now);
        let other = What::Lookup(Ino(1), Bytes::from_static(b"b"));
        assert_eq!(repeats.answer(1, &other, now), None);
        assert_eq!(repeats.answer(1, &name, now), Some(FsError::Io));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (repeats, now) = (Repeats::default(), Instant::now());
        for ino in 0..2 * FAILED_MAX as u64 {
            repeats.failed(1, What::Read(Ino(ino), 0..1), FsError::Io, now);
        }
        assert_eq!(repeats.failed.lock().len(), FAILED_MAX);
    }
}
