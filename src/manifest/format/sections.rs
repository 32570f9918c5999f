//! The sections of a manifest as arrays.

use super::header::{Layout, Section};
use super::{Entry, parts_of, to_usize};
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use std::ops::Range;

/// The bytes of a whole manifest, and the places of its sections.
pub(super) struct Sections {
    pub(super) bytes: Bytes,
    pub(super) layout: Layout,
}

impl Sections {
    fn slice(&self, section: Section) -> &[u8] {
        let Range { start, end } = self.layout.range(section);
        let found = self.bytes.get(to_usize(start)..to_usize(end));
        found.unwrap_or_default()
    }

    fn array<const N: usize>(&self, section: Section) -> &[[u8; N]] {
        self.slice(section).as_chunks().0
    }

    fn number(&self, section: Section, at: usize) -> Option<u64> {
        let number = self.array(section).get(at)?;
        Some(u64::from_le_bytes(*number))
    }

    pub(super) fn hashes(&self) -> &[[u8; 32]] {
        self.array(Section::Hashes)
    }

    /// The files' numbers of all entries.
    pub(super) fn file_numbers(&self) -> impl ExactSizeIterator<Item = u32> + Clone + '_ {
        let files = self.array(Section::Files).iter();
        files.map(|file| u32::from_le_bytes(*file))
    }

    pub(super) fn entry(&self, number: usize) -> Option<Entry> {
        let file = self.array(Section::Files).get(number)?;
        Some(Entry {
            hash: ContentHash(*self.hashes().get(number)?),
            file: u32::from_le_bytes(*file),
            offset: self.number(Section::Offsets, number)?,
            length: self.number(Section::Lengths, number)?,
        })
    }

    /// The offset of an entry, and its end.
    pub(super) fn extent(&self, number: usize) -> Option<(u64, u64)> {
        let offset = self.number(Section::Offsets, number)?;
        let length = self.number(Section::Lengths, number)?;
        Some((offset, offset.saturating_add(length)))
    }

    /// The entry with the long number `at`, and the index of its first part.
    pub(super) fn long(&self, at: usize) -> Option<(u64, u64)> {
        Some((
            self.number(Section::Long, at)?,
            self.number(Section::PartsAt, at)?,
        ))
    }

    /// The parts of entry `number`, which is `length` bytes long.
    pub(super) fn parts(&self, number: usize, length: u64) -> &[[u8; 32]] {
        let count = parts_of(length);
        if count == 0 {
            return &[];
        }
        let numbers = self.array(Section::Long);
        let at = numbers.binary_search_by_key(&(number as u64), |long| u64::from_le_bytes(*long));
        let first = at.ok().and_then(|at| self.number(Section::PartsAt, at));
        let range = first.map(|first| to_usize(first)..to_usize(first.saturating_add(count)));
        let parts = range.and_then(|range| self.array(Section::Parts).get(range));
        parts.unwrap_or_default()
    }

    pub(super) fn size(&self, file: usize) -> Option<u64> {
        self.number(Section::Sizes, file)
    }

    pub(super) fn version(&self, file: usize) -> Option<&[u8; 32]> {
        self.array(Section::Versions).get(file)
    }

    /// The place of the path of `file` in the section of paths.
    pub(super) fn path_range(&self, file: usize) -> Option<Range<u64>> {
        let end = self.number(Section::PathEnds, file)?;
        let start = match file.checked_sub(1) {
            Some(before) => self.number(Section::PathEnds, before)?,
            None => 0,
        };
        Some(start..end)
    }

    pub(super) fn path(&self, file: usize) -> Option<&[u8]> {
        let Range { start, end } = self.path_range(file)?;
        self.slice(Section::Paths)
            .get(to_usize(start)..to_usize(end))
    }
}
