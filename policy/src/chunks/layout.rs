//! Which entries form a chunk.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The number of partitions of a dataset: consecutive tenths. Each chunk has a part of every partition,
/// so that a chunk of a dataset in order of length has entries of every length (Quiver, section 5.1).
pub const PARTITIONS: u32 = 10;
/// The minimum number of stripes: a chunk is at most a tenth of its dataset.
pub const STRIPES_MIN: u32 = 10;
/// The maximum number of stripes. It bounds the chunks that a report can name; a dataset of a petabyte
/// has as many chunks of [`CHUNK_BYTES`].
pub const STRIPES_MAX: u32 = 1 << 16;
/// The default size of a chunk in bytes (Quiver, section 7).
pub const CHUNK_BYTES: u64 = 15_000_000_000;

/// The chunks of a dataset.
///
/// With `P` partitions, `S` stripes and `N` entries, unit `u` of `P·S` is the entries `⌊u·N/(P·S)⌋` to
/// `⌊(u+1)·N/(P·S)⌋`. Chunk `c` is all units with `u mod S = c`, one in each partition. There is no table:
/// everything is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkLayout {
    entries: u64,
    stripes: u32,
}

/// Why a dataset has no chunks. Its `Display` says what to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LayoutError {
    /// The size of a chunk is zero.
    #[error("a chunk of 0 bytes holds nothing. Set the size of chunks (15GB by default)")]
    EmptyChunks,
    /// There are more stripes than [`STRIPES_MAX`].
    #[error(
        "{bytes} bytes in chunks of {chunk_bytes} are more than {STRIPES_MAX} stripes. Use larger \
         chunks, or keep the dataset uniform"
    )]
    TooManyStripes {
        /// Bytes of the dataset.
        bytes: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
    },
    /// A unit would have no entry.
    #[error(
        "{entries} entries cannot be divided into {PARTITIONS} partitions of {stripes} stripes: there \
         must be at least {} entries. Use larger chunks, or keep the dataset uniform",
        u64::from(*stripes) * u64::from(PARTITIONS)
    )]
    TooFewEntries {
        /// Entries of the dataset.
        entries: u64,
        /// Stripes that its size requires.
        stripes: u32,
    },
}

impl ChunkLayout {
    /// Returns the layout of a dataset of `entries` entries and `bytes` bytes, in
    /// `max(10, ⌈bytes / chunk_bytes⌉)` stripes.
    ///
    /// # Errors
    /// There are more units than entries, or more stripes than [`STRIPES_MAX`], or `chunk_bytes` is 0.
    pub fn new(entries: u64, bytes: u64, chunk_bytes: u64) -> Result<Self, LayoutError> {
        if chunk_bytes == 0 {
            return Err(LayoutError::EmptyChunks);
        }
        let stripes = u32::try_from(bytes.div_ceil(chunk_bytes)).unwrap_or(u32::MAX);
        let stripes = stripes.max(STRIPES_MIN);
        if stripes > STRIPES_MAX {
            return Err(LayoutError::TooManyStripes { bytes, chunk_bytes });
        }
        let layout = Self { entries, stripes };
        if layout.units() > entries {
            return Err(LayoutError::TooFewEntries { entries, stripes });
        }
        Ok(layout)
    }

    /// Returns the number of entries of the dataset.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the number of stripes, which is the number of chunks.
    #[must_use]
    pub const fn stripes(&self) -> u32 {
        self.stripes
    }

    /// Returns the number of units.
    #[must_use]
    pub fn units(&self) -> u64 {
        u64::from(PARTITIONS) * u64::from(self.stripes)
    }

    /// Returns the entries of a unit; none for a unit that does not exist.
    #[must_use]
    pub fn unit(&self, unit: u64) -> Range<u64> {
        if unit >= self.units() {
            return self.entries..self.entries;
        }
        self.first_of(unit)..self.first_of(unit + 1)
    }

    /// Returns the unit of an entry; `None` for an entry that does not exist.
    #[must_use]
    pub fn unit_of(&self, entry: u64) -> Option<u64> {
        if entry >= self.entries {
            return None;
        }
        // The largest `u` with `⌊u·N/units⌋ ≤ entry`, which is the largest one with
        // `u·N < (entry + 1)·units`.
        let end = (u128::from(entry) + 1) * u128::from(self.units());
        u64::try_from(end.div_ceil(u128::from(self.entries)) - 1).ok()
    }

    /// Returns the chunk of an entry; `None` for an entry that does not exist.
    #[must_use]
    pub fn chunk_of(&self, entry: u64) -> Option<u32> {
        let unit = self.unit_of(entry)?;
        u32::try_from(unit % u64::from(self.stripes)).ok()
    }

    /// Returns the entries of a chunk: one range in each partition, in order. A chunk that does not exist
    /// has none.
    pub fn ranges(self, chunk: u32) -> impl Iterator<Item = Range<u64>> {
        let partitions = if chunk < self.stripes { PARTITIONS } else { 0 };
        (0..partitions).map(move |partition| {
            self.unit(u64::from(partition) * u64::from(self.stripes) + u64::from(chunk))
        })
    }

    /// Returns the number of entries of a chunk.
    #[must_use]
    pub fn chunk_entries(self, chunk: u32) -> u64 {
        self.ranges(chunk)
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Returns the first entry of a unit, or the number of entries for the unit after the last one.
    fn first_of(&self, unit: u64) -> u64 {
        // The product can exceed 64 bits. The quotient is at most the number of entries.
        let first = u128::from(unit) * u128::from(self.entries) / u128::from(self.units());
        u64::try_from(first).unwrap_or(self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stripes_follow_from_the_size() {
        const GB: u64 = 1_000_000_000;
        let stripes = |bytes| {
            ChunkLayout::new(1 << 20, bytes, CHUNK_BYTES)
                .unwrap()
                .stripes()
        };
        assert_eq!(stripes(1), 10);
        assert_eq!(stripes(150 * GB), 10);
        assert_eq!(stripes(150 * GB + 1), 11);
        assert_eq!(stripes(531 * GB), 36);
    }

    #[test]
    fn a_hundred_units_of_a_hundred_and_five_entries() {
        let layout = ChunkLayout::new(105, 105, CHUNK_BYTES).unwrap();
        // Unit 19 begins at ⌊19 · 1.05⌋ = 19 and ends at ⌊20 · 1.05⌋ = 21.
        assert_eq!(layout.unit(19), 19..21);
        assert_eq!(
            (layout.unit_of(19), layout.unit_of(20), layout.unit_of(21)),
            (Some(19), Some(19), Some(20))
        );
        assert_eq!(layout.chunk_of(20), Some(9));
        assert_eq!(layout.ranges(9).next(), Some(9..10));
        assert_eq!(layout.ranges(9).nth(1), Some(19..21));
    }

    #[test]
    fn what_cannot_be_divided_is_refused_with_advice() {
        let refused = |entries, bytes, chunk| {
            ChunkLayout::new(entries, bytes, chunk)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(109, 110, 10),
            "109 entries cannot be divided into 10 partitions of 11 stripes: there must be at least \
             110 entries. Use larger chunks, or keep the dataset uniform"
        );
        assert!(ChunkLayout::new(110, 110, 10).is_ok());
        assert!(refused(0, 0, 1).starts_with("0 entries cannot be divided"));
        assert!(refused(u64::MAX, u64::MAX, 1).contains("more than 65536 stripes"));
        assert!(refused(1000, 1000, 0).contains("0 bytes"));
    }

    fn layouts() -> impl Strategy<Value = ChunkLayout> {
        let entries = prop_oneof![100..5_000_u64, 1_000_000..u64::MAX];
        (entries, 1..200_u64).prop_filter_map("too few entries", |(entries, stripes)| {
            ChunkLayout::new(entries, stripes, 1).ok()
        })
    }

    proptest! {
        #[test]
        fn an_entry_is_in_the_unit_and_in_the_chunk_that_are_computed_for_it(
            layout in layouts(), at in 0.0..1.0_f64,
        ) {
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "any entry will do")]
            let entry = ((layout.entries() as f64 * at) as u64).min(layout.entries() - 1);
            let unit = layout.unit_of(entry).unwrap();
            prop_assert!(layout.unit(unit).contains(&entry));
            let chunk = layout.chunk_of(entry).unwrap();
            prop_assert_eq!(layout.ranges(chunk).filter(|range| range.contains(&entry)).count(), 1);
            prop_assert_eq!(layout.chunk_of(layout.entries()), None);
        }

        #[test]
        fn units_and_chunks_divide_all_entries_almost_evenly(layout in layouts()) {
            let mut end = 0;
            let length = layout.entries() / layout.units();
            for unit in 0..layout.units() {
                let range = layout.unit(unit);
                prop_assert_eq!(range.start, end);
                prop_assert!((length..=length + 1).contains(&(range.end - range.start)));
                end = range.end;
            }
            prop_assert_eq!(end, layout.entries());
            prop_assert!(layout.unit(layout.units()).is_empty());
            let chunks = (0..layout.stripes()).map(|chunk| layout.chunk_entries(chunk));
            prop_assert_eq!(chunks.sum::<u64>(), layout.entries());
            prop_assert_eq!(layout.chunk_entries(layout.stripes()), 0);
        }
    }
}
