//! Reads that wait for nothing: of bytes in the memory of this node, in the open file or at the home here.

use super::super::held::{HeldItem, cuts};
use super::{Open, OpenDatasetFile, Run, held_blocks};
use crate::read::{Cut, FileRef};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

impl OpenDatasetFile {
    /// Returns the bytes from `offset` on, `size` of them or up to the file's end, of the version that was opened, if
    /// they are part of one item that is in this node's memory. Takes microseconds, and waits for nothing.
    #[must_use]
    pub fn try_read(&self, offset: u64, size: u32) -> Option<Cut> {
        let open = &self.0;
        let mut runs = open.runs(offset, size);
        let only = runs.next().filter(|_| runs.next().is_none())?;
        let held = open.held(&open.file, only);
        held.or_else(|| open.at_home(only))
    }
}

impl Open {
    /// Returns the bytes of a run of `file`, the open file in any version, if the item is held.
    pub(super) fn held(&self, file: &FileRef, run: Run) -> Option<Cut> {
        let mut state = self.state.lock();
        let extent = run.piece.extent;
        let same = |held: &&Arc<HeldItem>| (held.extent, held.version) == (extent, file.version);
        let held = state.held.as_ref().filter(same)?;
        let cut = Cut::joined(cuts(&held.blocks, run.offset, run.len).collect());
        let was_last = held.returned(run.len);
        self.give(&mut state, run);
        drop(state);
        if was_last {
            self.reader.held.forget(file, extent);
        }
        Some(cut)
    }

    /// Returns the bytes of a run if this node is the home of the item and has it in memory. The whole item is held then
    /// for the reads to come, if there is enough memory.
    fn at_home(&self, run: Run) -> Option<Cut> {
        let (reader, file) = (&self.reader, &self.file);
        // Homes keep nothing of an unsettled version, and give nothing that they keep to a probed job.
        if self.is_uncached || !file.version.is_settled() {
            return None;
        }
        if !self.is_small(run.piece) && !self.is_sequential(run) {
            return None;
        }
        let home = reader.view().home(self.slot_of(run.piece))?;
        let whole = Run::whole(run.piece);
        let blocks = reader.homes.try_ask(home, &self.request(file, whole, 0))?;
        reader.counters.requests.increment();
        let extent = run.piece.extent;
        let blocks = held_blocks(file, extent.start, blocks);
        let cut = Cut::joined(cuts(&blocks, run.offset, run.len).collect());
        let mut state = self.state.lock();
        state.held = None;
        // Most small files are read by one READ.
        if run.len < extent.len
            && let Some(room) = reader.held.room(extent.len)
        {
            state.held = Some(Arc::new(HeldItem {
                version: file.version,
                extent,
                blocks,
                // Further opens ask the home again.
                left: AtomicU64::new(0),
                _room: room,
            }));
        }
        self.give(&mut state, run);
        Some(cut)
    }
}
