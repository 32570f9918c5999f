//! Hashes the entries of one file as its bytes come by. Pure.

use crate::index::content::ContentHasher;
use crate::manifest::journal::Hashed;
use crate::num::to_usize;
use std::collections::VecDeque;

/// The bytes of an entry in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSpan {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes, at least 1.
    pub length: u64,
}

impl ByteSpan {
    /// The position after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Cuts the bytes of one file into entries, and hashes each. Needs no memory for bytes.
pub struct Cutter {
    /// The entries that are not complete, in the order of their offsets.
    spans: VecDeque<ByteSpan>,
    /// The position of the next byte.
    position: u64,
    /// The first of `spans`, once it has begun.
    current: Option<ContentHasher>,
    done: Vec<Hashed>,
}

impl Cutter {
    /// A cutter for `spans`, which are in order and do not overlap.
    #[must_use]
    pub fn new(spans: VecDeque<ByteSpan>) -> Self {
        Self {
            spans,
            position: 0,
            current: None,
            done: Vec::new(),
        }
    }

    /// Continues at `position`. No entry that has begun may lie between.
    pub fn skip_to(&mut self, position: u64) {
        self.position = position;
    }

    /// The next `bytes` of the file. Bytes of no entry are ignored.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(span) = self.spans.front().copied()
            && !bytes.is_empty()
        {
            let before = to_usize(span.offset.saturating_sub(self.position)).min(bytes.len());
            let (_between, own) = bytes.split_at(before);
            let new = || ContentHasher::new(span.length);
            let mut hasher = self.current.take().unwrap_or_else(new);
            let rest = hasher.feed(own);
            self.position += (bytes.len() - rest.len()) as u64;
            bytes = rest;
            if hasher.left() > 0 {
                self.current = Some(hasher);
            } else if let Some((hash, parts)) = hasher.finish() {
                self.spans.pop_front();
                self.done.push(Hashed {
                    offset: span.offset,
                    length: span.length,
                    hash,
                    parts,
                });
            }
        }
        self.position += bytes.len() as u64;
    }

    /// The number of complete entries that were not taken yet.
    #[must_use]
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// Takes the entries that are complete.
    pub fn take(&mut self) -> Vec<Hashed> {
        std::mem::take(&mut self.done)
    }

    /// Whether all entries are complete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.spans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::format::{PART_BYTES, parts_of};
    use crate::testing::noise;
    use copperfs_overlay::ContentHash;
    use proptest::prelude::*;

    fn expected(bytes: &[u8], span: &ByteSpan) -> Hashed {
        let bytes = &bytes[to_usize(span.offset)..to_usize(span.end())];
        let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
        let parts = bytes.chunks(to_usize(PART_BYTES)).map(hash);
        Hashed {
            offset: span.offset,
            length: span.length,
            hash: ContentHash(hash(bytes)),
            parts: match parts_of(span.length) {
                0 => Vec::new(),
                _ => parts.collect(),
            },
        }
    }

    fn cut(bytes: &[u8], spans: &[ByteSpan], pieces: &[usize]) -> Vec<Hashed> {
        let mut cutter = Cutter::new(spans.iter().copied().collect());
        let (mut rest, mut hashed) = (bytes, Vec::new());
        for piece in pieces.iter().cycle() {
            let (piece, tail) = rest.split_at((*piece).min(rest.len()));
            cutter.feed(piece);
            hashed.extend(cutter.take());
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        assert!(cutter.is_finished());
        hashed
    }

    /// Spans with these gaps before them and these lengths.
    fn spans(lengths: &[(u64, u64)]) -> Vec<ByteSpan> {
        let mut at = 0;
        let place = |(gap, length): &(u64, u64)| {
            let offset = at + gap;
            at = offset + length;
            ByteSpan {
                offset,
                length: *length,
            }
        };
        lengths.iter().map(place).collect()
    }

    #[test]
    fn long_entries_are_hashed_whole_and_by_parts() {
        let lengths = [
            PART_BYTES,
            PART_BYTES + 1,
            3 * PART_BYTES,
            1,
            2 * PART_BYTES - 1,
        ];
        let spans = spans(&lengths.map(|length| (5, length)));
        let bytes = noise("long", spans.last().unwrap().end() + 7);
        let wanted: Vec<Hashed> = spans.iter().map(|span| expected(&bytes, span)).collect();
        assert_eq!(
            wanted.iter().map(|one| one.parts.len()).collect::<Vec<_>>(),
            [0, 2, 3, 0, 2]
        );
        for piece in [1 << 20, 999_983, usize::MAX] {
            assert!(cut(&bytes, &spans, &[piece]) == wanted, "pieces of {piece}");
        }
    }

    #[test]
    fn bytes_between_two_requests_are_skipped() {
        let spans = spans(&[(10, 20), (1000, 30)]);
        let bytes = noise("skipped", 1100);
        let mut cutter = Cutter::new(spans.iter().copied().collect());
        cutter.skip_to(5);
        cutter.feed(&bytes[5..40]);
        cutter.skip_to(1024);
        cutter.feed(&bytes[1024..]);
        let wanted: Vec<Hashed> = spans.iter().map(|span| expected(&bytes, span)).collect();
        assert_eq!(cutter.take(), wanted);
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_hashes(
            lengths in prop::collection::vec((0..50u64, 1..300u64), 1..20),
            pieces in prop::collection::vec(1..400usize, 1..10),
        ) {
            let spans = spans(&lengths);
            let bytes = noise("pieces", spans.last().unwrap().end() + 3);
            let wanted: Vec<Hashed> = spans.iter().map(|span| expected(&bytes, span)).collect();
            prop_assert_eq!(cut(&bytes, &spans, &pieces), wanted);
        }
    }
}
