//! Answers that wait for nothing: of items that are held in memory.

use super::Home;
use crate::dataset::fetch::WantedItem;
use copperfs_overlay::{ItemRequest, RangeAnswer};

impl Home {
    /// Returns the requested bytes, by block, if the item is held in memory and only whole blocks are requested. Otherwise,
    /// also for a request with a fault, [`Home::item`] has the answer. Takes microseconds.
    #[must_use]
    pub fn try_item(&self, request: &ItemRequest) -> Option<Vec<RangeAnswer>> {
        if request.is_uncached {
            return None;
        }
        let share = self.share_for(request).ok()?;
        let wanted = WantedItem::of(request, share.has_manifest()).ok()?;
        // No lock of other datasets: what this one holds is right, whatever they decide.
        self.touch(&share, wanted.id, wanted.extent.len, 0);
        share.try_get(&wanted)
    }
}
