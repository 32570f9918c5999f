//! An account in entries, for a journal: what was returned is known after the daemon has died.
//!
//! An entry replaces an earlier one about the same place, so entries may be repeated, and their order does not matter.

use super::{
    BLOCKS_MAX, PIECED_BLOCKS_MAX, PartRange, RUNS_MAX, Returned, ReturnedParts, ReturnedPieces,
    Short, noted, short, split,
};
use crate::read::slices::{BLOCK_PIECES, Part};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReturnedEntry {
    /// A block, by its index.
    Block(u64, Short),
    /// All returned pieces of a block.
    Pieces {
        /// Its index.
        block: u64,
        /// Which pieces, one bit each.
        pieces: [u64; BLOCK_PIECES / 64],
        /// See [`ReturnedPieces`].
        sum: Short,
    },
    /// A run of bytes.
    Run {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// Their hash.
        hash: Short,
    },
    /// More was returned than is noted.
    Full,
}

impl From<&ReturnedPieces> for ReturnedEntry {
    fn from(row: &ReturnedPieces) -> Self {
        Self::Pieces {
            block: row.block,
            pieces: row.pieces,
            sum: row.sum,
        }
    }
}

impl Returned {
    /// Returns the entries about `parts`, which are noted, without [`Returned::only_block`].
    pub fn entries_about<'a>(
        &self,
        parts: impl IntoIterator<Item = &'a Part>,
    ) -> Vec<ReturnedEntry> {
        let Some(state) = &self.0 else {
            return Vec::new();
        };
        let parts = parts.into_iter().map(|part| match part.range {
            PartRange::Block(0) if state.single => None,
            _ => state.ledger().account.entry_about(part),
        });
        parts.flatten().collect()
    }

    /// Returns the entries of everything that was returned, without [`Returned::only_block`].
    #[must_use]
    pub fn entries(&self) -> Vec<ReturnedEntry> {
        let Some(state) = &self.0 else {
            return Vec::new();
        };
        match state.more.get() {
            Some(ledger) => ledger.lock().account.entries(),
            None => Vec::new(),
        }
    }
}

impl ReturnedParts {
    /// Returns the entries of this account.
    #[must_use]
    pub fn entries(&self) -> Vec<ReturnedEntry> {
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|(index, hash)| ReturnedEntry::Block(*index, *hash));
        let whole = (0..).zip(self.whole.iter().flat_map(|whole| whole.iter()));
        let whole = whole.map(|(index, hash)| ReturnedEntry::Block(index, short(hash)));
        let runs = self
            .runs
            .iter()
            .map(|((offset, len), hash)| run(*offset, *len, *hash));
        blocks
            .chain(whole)
            .chain(self.pieces.iter().map(ReturnedEntry::from))
            .chain(runs)
            .chain(self.full.then_some(ReturnedEntry::Full))
            .collect()
    }

    fn entry_about(&self, part: &Part) -> Option<ReturnedEntry> {
        let found = match part.range {
            PartRange::Block(index) => {
                let hash = self.block(index);
                hash.map(|hash| ReturnedEntry::Block(index, hash))
            }
            PartRange::Piece(piece) => {
                let (block, _) = split(piece);
                let at = self.pieces.binary_search_by_key(&block, |row| row.block);
                at.ok().map(|at| ReturnedEntry::from(&self.pieces[at]))
            }
            PartRange::Run { offset, len } => {
                let hash = noted(&self.runs, (offset, len));
                hash.map(|hash| run(offset, len, hash))
            }
        };
        found.or_else(|| self.full.then_some(ReturnedEntry::Full))
    }

    /// Takes an entry of the same account.
    pub fn restore(&mut self, entry: ReturnedEntry) {
        let fits = match entry {
            ReturnedEntry::Block(index, hash) => put(&mut self.blocks, BLOCKS_MAX, index, hash),
            ReturnedEntry::Run { offset, len, hash } => {
                put(&mut self.runs, RUNS_MAX, (offset, len), hash)
            }
            ReturnedEntry::Pieces { block, pieces, sum } => {
                let row = ReturnedPieces { block, pieces, sum };
                match self.pieces.binary_search_by_key(&block, |row| row.block) {
                    // Pieces are only added, so the entry with more of them is the later one.
                    Ok(at) if row.pieces().count() > self.pieces[at].pieces().count() => {
                        self.pieces[at] = row;
                        true
                    }
                    Ok(_) => true,
                    Err(at) => {
                        let fits = self.pieces.len() < PIECED_BLOCKS_MAX;
                        if fits {
                            self.pieces.insert(at, row);
                        }
                        fits
                    }
                }
            }
            ReturnedEntry::Full => false,
        };
        self.full |= !fits;
    }
}

fn run(offset: u64, len: u64, hash: Short) -> ReturnedEntry {
    ReturnedEntry::Run { offset, len, hash }
}

/// Puts the hash of `place` into `list`, which is in order. Returns `false` if the list is full.
fn put<P: Ord + Copy>(list: &mut Vec<(P, Short)>, max: usize, place: P, hash: Short) -> bool {
    match list.binary_search_by_key(&place, |(place, _)| *place) {
        Ok(at) => list[at].1 = hash,
        Err(_) if list.len() >= max => return false,
        Err(at) => list.insert(at, (place, hash)),
    }
    true
}
