//! The header, and the sections' places, which follow from its counts.

use super::{
    FORMAT, FormatError, HEADER_BYTES, MAGIC, MANIFEST_BYTES_MAX, SECTION_ALIGN, TRAILER_BYTES,
};
use std::ops::Range;

/// Position of the header's own hash.
const SUM_AT: usize = HEADER_BYTES - 32;
/// Bytes of the header before those that are 0.
const USED_BYTES: usize = 112;

/// The number of items in a manifest. They determine its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Entries.
    pub entries: u64,
    /// Files.
    pub files: u64,
    /// Entries above [`super::PART_BYTES`].
    pub long: u64,
    /// Parts of all these entries.
    pub parts: u64,
    /// Bytes of all paths.
    pub path_bytes: u64,
}

impl Counts {
    /// Checks the limits of a manifest.
    ///
    /// # Errors
    /// `Empty`; `TooLarge`.
    pub fn check(&self) -> Result<(), FormatError> {
        if self.entries == 0 {
            return Err(FormatError::Empty);
        }
        // Numbers of entries and files have 32 bits.
        let most = u64::from(u32::MAX);
        for (counted, count) in [("entries", self.entries), ("files", self.files)] {
            if count > most {
                return Err(FormatError::TooLarge {
                    counted,
                    count,
                    max: most,
                });
            }
        }
        let bytes = Layout::of(self).map_or(u64::MAX, |layout| layout.file_bytes);
        if bytes > MANIFEST_BYTES_MAX {
            return Err(FormatError::TooLarge {
                counted: "bytes",
                count: bytes,
                max: MANIFEST_BYTES_MAX,
            });
        }
        Ok(())
    }
}

/// The header of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Length of the whole manifest.
    pub file_bytes: u64,
    /// The number of items.
    pub counts: Counts,
    /// The sum of the entries' lengths.
    pub entry_bytes: u64,
    /// BLAKE3 over the hash and the length of every entry in order.
    pub identity: [u8; 32],
    /// When it was finished, in seconds since 1970.
    pub made_at: i64,
}

impl Header {
    /// The encoded header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let Counts {
            entries,
            files,
            long,
            parts,
            path_bytes,
        } = self.counts;
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        // No flags are defined.
        out.extend_from_slice(&0_u32.to_le_bytes());
        for number in [self.file_bytes, entries, files, self.entry_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.identity);
        out.extend_from_slice(&self.made_at.to_le_bytes());
        for number in [long, parts, path_bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(SUM_AT, 0);
        let sum = blake3::hash(&out);
        out.extend_from_slice(sum.as_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes the header of a file of `file_bytes` bytes that begins with `bytes`.
    ///
    /// # Errors
    /// It is not a manifest, has another format, is incomplete, damaged, empty or too large.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let torn = |expected| FormatError::Torn {
            expected,
            found: file_bytes,
        };
        let Some(mut rest) = bytes.strip_prefix(&MAGIC) else {
            return Err(FormatError::NotAManifest);
        };
        let short = || torn(HEADER_BYTES as u64);
        let format = u32::from_le_bytes(take(&mut rest).ok_or_else(short)?);
        if format != FORMAT {
            return Err(FormatError::Version(format));
        }
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
        let (summed, sum) = header.split_at(SUM_AT);
        if blake3::hash(summed).as_bytes() != sum {
            return Err(FormatError::Damaged("its header's checksum"));
        }
        let flags = u32::from_le_bytes(take(&mut rest).ok_or_else(short)?);
        let mut number = || take(&mut rest).map(u64::from_le_bytes).ok_or_else(short);
        let (expected, entries, files, entry_bytes) = (number()?, number()?, number()?, number()?);
        let identity = take(&mut rest).ok_or_else(short)?;
        let mut number = || take(&mut rest).map(u64::from_le_bytes).ok_or_else(short);
        let (made_at, long, parts, path_bytes) = (number()?, number()?, number()?, number()?);
        let counts = Counts {
            entries,
            files,
            long,
            parts,
            path_bytes,
        };
        if flags != 0 || summed[USED_BYTES..].iter().any(|byte| *byte != 0) {
            return Err(invalid("has flags or fields that format 1 does not have"));
        }
        if expected != file_bytes {
            return Err(torn(expected));
        }
        counts.check()?;
        if Layout::of(&counts).is_none_or(|layout| layout.file_bytes != expected) {
            return Err(invalid("has counts that do not make up its length"));
        }
        Ok(Self {
            file_bytes,
            counts,
            entry_bytes,
            identity,
            made_at: made_at.cast_signed(),
        })
    }
}

fn invalid(fault: &'static str) -> FormatError {
    FormatError::Invalid {
        item: "header",
        number: 0,
        fault,
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (array, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*array)
}

/// The sections of a manifest, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Section {
    Hashes,
    Lengths,
    Offsets,
    Files,
    Long,
    PartsAt,
    Parts,
    Sizes,
    Versions,
    PathEnds,
    Paths,
}

impl Section {
    /// The number of sections.
    pub(super) const COUNT: usize = Self::Paths as usize + 1;
}

/// The places of the sections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    ranges: [(u64, u64); Section::COUNT],
    /// Length of the whole manifest.
    pub(super) file_bytes: u64,
}

impl Layout {
    /// The layout of a manifest with `counts`. Returns `None` if its length does not fit into 64 bits.
    pub(super) fn of(counts: &Counts) -> Option<Self> {
        let Counts {
            entries,
            files,
            long,
            parts,
            path_bytes,
        } = *counts;
        let items = [
            (entries, 32),
            (entries, 8),
            (entries, 8),
            (entries, 4),
            (long, 8),
            (long, 8),
            (parts, 32),
            (files, 8),
            (files, 32),
            (files, 8),
            (path_bytes, 1),
        ];
        let mut ranges = [(0, 0); Section::COUNT];
        let mut at = HEADER_BYTES as u64;
        for (range, (count, bytes)) in ranges.iter_mut().zip(items) {
            let start = at.checked_next_multiple_of(SECTION_ALIGN)?;
            at = start.checked_add(count.checked_mul(bytes)?)?;
            *range = (start, at);
        }
        let file_bytes = at.checked_add(TRAILER_BYTES as u64)?;
        Some(Self { ranges, file_bytes })
    }

    /// Where each section begins.
    pub(super) fn starts(&self) -> [u64; Section::COUNT] {
        self.ranges.map(|(start, _)| start)
    }

    /// The bytes of `section`.
    pub(super) fn range(&self, section: Section) -> Range<u64> {
        let (start, end) = self.ranges[section as usize];
        start..end
    }

    /// The bytes between the sections, which are 0.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let pairs = self.ranges.windows(2);
        pairs.map(|pair| pair[0].1..pair[1].0)
    }
}
