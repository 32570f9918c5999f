//! The parts of a job's progress that may be long: records of a journal have a maximum length.

use super::{ENDED_MAX, EpochCounts, Progress};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The maximum number of ended epochs in a part.
const PART_EPOCHS: usize = 256;

/// A part of a job's progress.
#[derive(Debug, Serialize, Deserialize)]
pub enum ProgressPart<'a> {
    /// Items of a set: a bit for each in words of 64, from word number `first` on.
    Items {
        /// The set.
        set: ItemSet,
        /// The number of the first word.
        first: u32,
        /// The words.
        words: Cow<'a, [u64]>,
    },
    /// Ended epochs, after those of earlier parts.
    Ended(Cow<'a, [EpochCounts]>),
}

/// A set of items in a job's progress.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum ItemSet {
    /// Read in this epoch.
    Seen,
    /// Read for the next one.
    Ahead,
    /// Read in the previous epoch, which ended early.
    BeforeLate,
}

impl Progress {
    /// Passes on all of its parts.
    pub(in crate::job) fn parts(&mut self, mut pass: impl FnMut(ProgressPart<'_>)) {
        let sets = [
            (ItemSet::Seen, Some(&self.seen)),
            (ItemSet::Ahead, Some(&self.ahead)),
            (ItemSet::BeforeLate, self.before_late.as_ref()),
        ];
        for (set, bits) in sets {
            let Some(bits) = bits else { continue };
            // It matters whether the last set is there, also without an item.
            let none = (bits.parts().next().is_none()).then_some((0, &[][..]));
            for (first, words) in bits.parts().chain(none) {
                let words = Cow::Borrowed(words);
                pass(ProgressPart::Items { set, first, words });
            }
        }
        for epochs in self.ended.make_contiguous().chunks(PART_EPOCHS) {
            pass(ProgressPart::Ended(Cow::Borrowed(epochs)));
        }
    }

    /// Adds a part to a progress that has none of them yet.
    pub(in crate::job) fn add_part(&mut self, part: ProgressPart<'_>) {
        match part {
            ProgressPart::Items { set, first, words } => {
                let bits = match set {
                    ItemSet::Seen => &mut self.seen,
                    ItemSet::Ahead => &mut self.ahead,
                    ItemSet::BeforeLate => self.before_late.get_or_insert_default(),
                };
                bits.add_part(first, &words);
            }
            ProgressPart::Ended(epochs) => {
                let room = ENDED_MAX.saturating_sub(self.ended.len());
                self.ended.extend(epochs.iter().take(room));
            }
        }
    }
}
