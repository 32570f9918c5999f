//! Hashes content as its bytes come by, whole and in parts. Pure.

use crate::num::to_usize;
use copperfs_overlay::{ContentHash, ITEM_BYTES_MAX, parts_of};

/// Hashes content of a known length. Needs no memory for bytes.
#[derive(Debug)]
pub struct ContentHasher {
    whole: blake3::Hasher,
    /// The bytes that are still to come.
    left: u64,
    /// The current part, if the content has parts.
    part: Option<Box<blake3::Hasher>>,
    /// The bytes that the current part lacks, if it is not the last one.
    part_left: u64,
    parts: Vec<[u8; 32]>,
}

impl ContentHasher {
    /// A hasher of `length` bytes.
    #[must_use]
    pub fn new(length: u64) -> Self {
        Self {
            whole: blake3::Hasher::new(),
            left: length,
            part: (parts_of(length) > 0).then(Box::default),
            part_left: ITEM_BYTES_MAX,
            parts: Vec::new(),
        }
    }

    /// The number of bytes that are still to come.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Takes the next bytes of the content from the beginning of `bytes`, and returns the rest, which is not empty only
    /// if the content is complete.
    pub fn feed<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (mut own, rest) = bytes.split_at(to_usize(self.left).min(bytes.len()));
        self.whole.update(own);
        self.left -= own.len() as u64;
        while let Some(part) = &mut self.part
            && !own.is_empty()
        {
            let (of_part, more) = own.split_at(to_usize(self.part_left).min(own.len()));
            part.update(of_part);
            own = more;
            self.part_left -= of_part.len() as u64;
            if self.part_left == 0 || (own.is_empty() && self.left == 0) {
                self.parts.push(*part.finalize().as_bytes());
                part.reset();
                self.part_left = ITEM_BYTES_MAX;
            }
        }
        rest
    }

    /// The hash of the content, and those of its parts if it has parts. Returns `None` if bytes are missing.
    #[must_use]
    pub fn finish(self) -> Option<(ContentHash, Vec<[u8; 32]>)> {
        let hash = ContentHash(*self.whole.finalize().as_bytes());
        (self.left == 0).then_some((hash, self.parts))
    }
}
