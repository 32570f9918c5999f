//! Gives out the space of an image's metadata.

use super::format::{BLOCK, FIRST_FREE, SLOT_BYTES};

/// The number of blocks whose rest is kept for small pieces. More fill the blocks better, and take longer.
const OPEN_BLOCKS: usize = 8;

/// The space that is used so far.
#[derive(Debug)]
pub(super) struct Space {
    blocks: usize,
    /// Blocks that are not full: their numbers, and their used bytes.
    open: Vec<(usize, usize)>,
}

impl Space {
    /// The space behind the superblock.
    pub(super) fn new() -> Self {
        Self {
            blocks: 1,
            open: vec![(0, FIRST_FREE)],
        }
    }

    /// Takes `bytes`, at most a block, for an inode and its tail, which must lie in one block. Returns their position.
    pub(super) fn inode(&mut self, bytes: usize) -> usize {
        let needed = bytes.next_multiple_of(SLOT_BYTES);
        let mut open = self.open.iter();
        let found = open.position(|(_, used)| used + needed <= BLOCK);
        let at = found.unwrap_or_else(|| {
            if self.open.len() == OPEN_BLOCKS {
                let fullest = (0..OPEN_BLOCKS).max_by_key(|at| self.open[*at].1);
                self.open.remove(fullest.unwrap_or(0));
            }
            self.open.push((self.blocks, 0));
            self.blocks += 1;
            self.open.len() - 1
        });
        let (block, used) = &mut self.open[at];
        let position = *block * BLOCK + *used;
        *used += needed;
        if *used + SLOT_BYTES > BLOCK {
            self.open.remove(at);
        }
        position
    }

    /// Takes whole blocks. Returns the number of the first.
    pub(super) fn whole(&mut self, count: usize) -> usize {
        let first = self.blocks;
        self.blocks += count;
        first
    }

    /// The number of all blocks.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }
}
