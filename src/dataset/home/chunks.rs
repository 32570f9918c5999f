//! The resident chunks of a dataset, as far as their items are at home here. Pure.
//!
//! An entry is counted by the home of its first item, so that all homes together count each entry once.
//! An entry without bytes has no item; the home of the first slot counts it. The homes of the further items of a long
//! entry report those that they lack.

use crate::dataset::catalog::Catalog;
use crate::dataset::item::ItemId;
use copperfs_policy::chunks::{ChunkLayout, ChunkReport};
use std::collections::HashSet;

/// See the module.
#[derive(Debug)]
pub(super) struct HomeChunks {
    chunks: Vec<HomeChunk>,
    /// The bytes of all items of these chunks that are at home here.
    bytes: u64,
}

/// One of the chunks.
#[derive(Debug)]
struct HomeChunk {
    chunk: u32,
    /// The first item of each of its entries that this home counts.
    entries: Vec<ItemId>,
    /// Further items of entries, which are at home here.
    further: Vec<ItemId>,
    /// The number of entries without bytes that this home counts.
    empty: u64,
}

/// The entries of a chunk that are counted here.
#[derive(Debug)]
pub(super) struct ChunkCount {
    report: ChunkReport,
    /// The first items of those that are not known to be held.
    missing: Vec<ItemId>,
    /// Further items that are not known to be held.
    pending: Vec<ItemId>,
}

impl HomeChunks {
    /// Finds the items of `chunks` for which `is_at_home` is true.
    pub(super) fn new(
        catalog: &Catalog,
        layout: ChunkLayout,
        chunks: &[u32],
        is_at_home: impl Fn(u16) -> bool,
    ) -> Self {
        // Entries of equal content share an item, which takes room once.
        let mut counted: HashSet<ItemId> = HashSet::new();
        let mut bytes = 0;
        let mut find = |chunk: u32| {
            let mut found = HomeChunk {
                chunk,
                entries: Vec::new(),
                further: Vec::new(),
                empty: 0,
            };
            for entry in layout.ranges(chunk).flatten() {
                let mut pieces = catalog.pieces_of(crate::num::to_usize(entry)).peekable();
                match pieces.peek() {
                    None => found.empty += u64::from(is_at_home(0)),
                    Some((first, _)) if is_at_home(first.slot()) => found.entries.push(*first),
                    Some(_) => {}
                }
                for (at, (item, len)) in pieces.enumerate() {
                    if is_at_home(item.slot()) {
                        bytes += if counted.insert(item) { len } else { 0 };
                        found.further.extend((at > 0).then_some(item));
                    }
                }
            }
            found
        };
        let chunks = chunks.iter().map(|chunk| find(*chunk)).collect();
        Self { chunks, bytes }
    }

    /// Returns the bytes of the items at home here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of chunks of which all entries that this home counts are loaded, and all further items.
    pub(super) fn loaded(&self, reports: &[ChunkReport]) -> usize {
        let is_loaded = |(chunk, report): (&HomeChunk, &ChunkReport)| {
            let counted = chunk.entries.len() as u64 + chunk.empty;
            report.held + report.lost >= counted && report.pending == 0
        };
        let chunks = self.chunks.iter().zip(reports);
        chunks.filter(|pair| is_loaded(*pair)).count()
    }

    /// Counts the entries for which `is_held` is true.
    pub(super) fn count(&self, is_held: impl Fn(&ItemId) -> bool) -> Vec<ChunkCount> {
        let count = |chunk: &HomeChunk| {
            let missing = |items: &[ItemId]| -> Vec<ItemId> {
                let missing = items.iter().filter(|item| !is_held(item));
                missing.copied().collect()
            };
            let (missing, pending) = (missing(&chunk.entries), missing(&chunk.further));
            let held = chunk.entries.len().saturating_sub(missing.len()) as u64;
            ChunkCount {
                report: ChunkReport {
                    chunk: chunk.chunk,
                    held: held + chunk.empty,
                    lost: 0,
                    pending: 0,
                },
                missing,
                pending,
            }
        };
        self.chunks.iter().map(count).collect()
    }
}

impl ChunkCount {
    /// Adds the entries for which `is_held` is true.
    pub(super) fn add_held(&mut self, is_held: impl Fn(&ItemId) -> bool) {
        let before = self.missing.len();
        self.missing.retain(|item| !is_held(item));
        self.pending.retain(|item| !is_held(item));
        self.report.held += before.saturating_sub(self.missing.len()) as u64;
    }

    /// Counts the rest of the entries for which `is_lost` is true as lost.
    pub(super) fn finish(self, is_lost: impl Fn(&ItemId) -> bool) -> ChunkReport {
        let lost = self.missing.iter().filter(|item| is_lost(item)).count();
        let pending = self.pending.iter().filter(|item| !is_lost(item)).count();
        ChunkReport {
            lost: lost as u64,
            pending: pending as u64,
            ..self.report
        }
    }
}
