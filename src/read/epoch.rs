//! Invalidates answers to questions that were asked before a `clear`.
//!
//! Each question records its moment. [`Epoch::keep`] compares that moment and inserts the answer under one
//! lock. `clear` raises the epoch under the same lock before it removes cached data. So an answer is either
//! in the cache when `clear` removes it, or is found to be void. No answer to a question from before a
//! `clear` is found after it, in any thread.

use copperfs_overlay::ItemPath;
use parking_lot::RwLock;

/// Clears that are remembered with their paths; older ones are treated as clears of everything.
const CLEARS_MAX: usize = 64;

/// The moment of a question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment(u64);

#[derive(Debug, Default)]
struct State {
    now: u64,
    /// The moments and paths of clears, newest last.
    clears: Vec<(u64, ItemPath)>,
    /// Answers to questions from before this moment are void for all paths.
    all_before: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    /// Read-locked for one insertion, write-locked by `clear` for a few steps. Taken before a cache's
    /// locks, never after.
    state: RwLock<State>,
}

impl Epoch {
    /// The moment of a question that is asked now.
    pub(super) fn now(&self) -> Moment {
        Moment(self.state.read().now)
    }

    /// Calls `keep` to store an answer about `path` to a question asked at `asked`, unless it is void.
    pub(super) fn keep<R>(
        &self,
        asked: Moment,
        path: &ItemPath,
        keep: impl FnOnce() -> R,
    ) -> Option<R> {
        let state = self.state.read();
        let void = |(at, cleared): &(u64, ItemPath)| asked.0 < *at && path.is_within(cleared);
        if asked.0 < state.all_before || state.clears.iter().any(void) {
            return None;
        }
        Some(keep())
    }

    /// Voids the answers to all earlier questions about `path` and below.
    pub(super) fn clear(&self, path: &ItemPath) {
        let mut state = self.state.write();
        state.now += 1;
        let now = state.now;
        state.clears.retain(|(_, older)| !older.is_within(path));
        state.clears.push((now, path.clone()));
        if state.clears.len() > CLEARS_MAX {
            let (forgotten, _) = state.clears.remove(0);
            state.all_before = forgotten;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn an_answer_to_a_question_from_before_a_clear_is_not_cached() {
        let epoch = Epoch::default();
        let before = epoch.now();
        epoch.clear(&path("d"));
        assert!(epoch.keep(before, &path("d/f"), || ()).is_none());
        assert!(epoch.keep(before, &path("dd"), || ()).is_some());
        assert!(epoch.keep(epoch.now(), &path("d/f"), || ()).is_some());
        for i in 0..CLEARS_MAX {
            epoch.clear(&path(&format!("other/{i}")));
        }
        assert!(
            epoch.keep(before, &path("d/f"), || ()).is_none(),
            "for ever"
        );
        let between = epoch.now();
        epoch.clear(&ItemPath::root());
        assert!(epoch.keep(between, &path("x"), || ()).is_none());
        assert!(epoch.keep(epoch.now(), &path("x"), || ()).is_some());
    }

    /// The race: the answer is found valid, and everything is cleared before it is stored. Such a clear
    /// waits, and then removes the stored answer.
    #[test]
    fn a_clear_does_not_come_between_the_look_and_the_keeping() {
        let epoch = Arc::new(Epoch::default());
        let asked = epoch.now();
        let cleared = Arc::new(AtomicBool::new(false));
        let mut clearing = None;
        let kept = epoch.keep(asked, &path("f"), || {
            let (clears, done) = (Arc::clone(&epoch), Arc::clone(&cleared));
            clearing = Some(std::thread::spawn(move || {
                clears.clear(&ItemPath::root());
                done.store(true, Ordering::SeqCst);
            }));
            // Long enough for a clear that does not wait.
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            !cleared.load(Ordering::SeqCst)
        });
        assert_eq!(kept, Some(true), "it waits for what is being kept");
        clearing.unwrap().join().unwrap();
        assert!(epoch.keep(asked, &path("f"), || ()).is_none());
    }
}
