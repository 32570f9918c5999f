//! Requests that failed after they had waited for as long as they may, and that the kernel repeats.
//!
//! After a READ that read-ahead has sent fails, the kernel sends one for the page that its reader waits
//! for; after a LOOKUP that was to renew a name fails, it looks the name up. So a reader would wait
//! twice. The repetition comes at once, from the same thread, for the same thing: it gets the same
//! answer, once. Whatever comes later or again is a request like any other.

use crate::backend::{FsError, Ino};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after a failure the kernel's own repetition may come: its reader is woken and asks.
const SOON: Duration = Duration::from_secs(1);
/// Failures that are remembered; with more the oldest are forgotten, and their readers wait twice.
const FAILED_MAX: usize = 4096;

/// What a request asks for.
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
    /// Oldest first. Guards itself; held for a walk through what failed within [`SOON`].
    failed: Mutex<VecDeque<Failed>>,
}

impl Repeats {
    /// `what` has failed for thread `reader` after a long wait.
    pub(crate) fn failed(&self, reader: u32, what: What, error: FsError, now: Instant) {
        let mut failed = self.lock();
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

    /// The answer to a request that repeats one which has just failed.
    pub(crate) fn answer(&self, reader: u32, what: &What, now: Instant) -> Option<FsError> {
        let mut failed = self.lock();
        if failed.is_empty() {
            return None;
        }
        forget(&mut failed, now);
        let same = |one: &Failed| one.reader == reader && one.what.covers(what);
        let at = failed.iter().position(same)?;
        failed.remove(at).map(|one| one.error)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Failed>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(repeats.lock().len(), FAILED_MAX);
    }
}
