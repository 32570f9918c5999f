//! Sets of items.

use crate::num::to_usize;

/// A set of ordinals with a bit for each. At most 3 MiB, because [`super::Ordinals`] has at most 22
/// million.
#[derive(Debug, Default, Clone)]
pub(super) struct Bits(Vec<u64>);

/// The number of words of a part: 32 KiB.
const PART_WORDS: usize = 4096;

impl Bits {
    /// Adds an ordinal. Returns whether it is new.
    pub(super) fn insert(&mut self, ordinal: u32) -> bool {
        let word = to_usize(u64::from(ordinal / 64));
        let bit = 1 << (ordinal % 64);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Returns the words in parts, each with the index of its first word. Parts without an ordinal are left out.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u32, &[u64])> {
        let parts = (0..).step_by(PART_WORDS).zip(self.0.chunks(PART_WORDS));
        parts.filter(|(_, words)| words.iter().any(|word| *word != 0))
    }

    /// Adds the ordinals of a part. Words that no ordinal can be in are left out.
    pub(super) fn add_part(&mut self, first: u32, words: &[u64]) {
        let first = to_usize(first.into());
        let end = first + words.len();
        if end > WORDS_MAX {
            return;
        }
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        for (word, more) in self.0[first..end].iter_mut().zip(words) {
            *word |= more;
        }
    }
}

/// The number of words for all ordinals, which are below 2^25.
const WORDS_MAX: usize = 1 << (25 - 6);

impl PartialEq for Bits {
    fn eq(&self, other: &Self) -> bool {
        let (short, long) = match self.0.len() <= other.0.len() {
            true => (&self.0, &other.0),
            false => (&other.0, &self.0),
        };
        // Words beyond the end have no ordinals.
        let (same, rest) = long.split_at(short.len());
        same == short && rest.iter().all(|word| *word == 0)
    }
}

impl Eq for Bits {}
