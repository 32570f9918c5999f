//! Which bytes behind a data file its reader wants next.
//!
//! The kernel reads a data file ahead of programs, but only a little: it does not know that each byte comes from far away.
//! A program that reads what a profile names is probably the recorded one. So a node requests the next steps of the profile
//! ahead: exactly the parts of files that the recorded program has read, in its order.

use super::extents::{Damaged, Extents, Piece, Step};
use copperfs_overlay::BLOCK_BYTES;
use std::collections::HashMap;

/// The bytes that are requested ahead of a reader …
const AHEAD_BYTES: u64 = 8 << 20;
/// … as soon as fewer than these are on their way.
const AHEAD_BYTES_MIN: u64 = 6 << 20;
/// Steps that a reader has passed by are requested too, because the kernel reads small files ahead of a program, past large
/// ones that it wants before. After more bytes than these the reader is elsewhere, and they are not wanted.
const PASSED_BYTES_MAX: u64 = 64 << 20;

/// The readers of one data file.
#[derive(Debug)]
pub struct Ahead {
    /// The steps of the profile, in its order.
    steps: Vec<Step<usize>>,
    /// Of each step the number of bytes before it, and those of all of them at the end.
    before: Vec<u64>,
    /// The place of each step.
    places: HashMap<Step<usize>, usize>,
    /// The first step that was not requested.
    next: usize,
}

impl Ahead {
    /// For the files of `extents`.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn new<B: AsRef<[u8]>>(extents: &Extents<B>) -> Result<Self, Damaged> {
        let steps: Vec<_> = extents.steps().collect();
        let mut before = vec![0];
        let mut end = 0_u64;
        for step in &steps {
            let begin = u64::from(step.part) * BLOCK_BYTES;
            let rest = extents.file_size(step.file)?.saturating_sub(begin);
            end = end.saturating_add(rest.min(BLOCK_BYTES));
            before.push(end);
        }
        let places = steps.iter().copied().zip(0..).collect();
        Ok(Self {
            steps,
            before,
            places,
            next: 0,
        })
    }

    /// Called when `pieces` of the data file are read. Returns the steps to request now, in their order.
    pub fn on_read(&mut self, pieces: &[Piece]) -> &[Step<usize>] {
        let Some(last) = pieces.iter().filter_map(|piece| self.place(piece)).max() else {
            return &[];
        };
        let reached = self.before[last];
        let passed = reached.saturating_sub(self.before[self.next]);
        let first = match passed > PASSED_BYTES_MAX {
            true => last + 1,
            false => self.next,
        };
        if self.before[first] >= reached.saturating_add(AHEAD_BYTES_MIN) {
            return &[];
        }
        let limit = reached.saturating_add(AHEAD_BYTES);
        let begins = &self.before[first..self.steps.len()];
        self.next = first + begins.partition_point(|begin| *begin < limit);
        &self.steps[first..self.next]
    }

    /// The place of the last part that `piece` is about.
    fn place(&self, piece: &Piece) -> Option<usize> {
        let Piece::File { file, offset, len } = *piece else {
            return None;
        };
        let parts = offset / BLOCK_BYTES..offset.saturating_add(len).div_ceil(BLOCK_BYTES);
        let places = parts.filter_map(|part| {
            let part = u32::try_from(part).ok()?;
            self.places.get(&Step { file, part }).copied()
        });
        places.max()
    }
}
