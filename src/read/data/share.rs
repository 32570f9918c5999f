//! A part of the memory for reads in progress, and its holders.

use crate::num::to_usize;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The minimum of each share, which is enough for one block.
const SHARE_BYTES_MIN: u64 = 1 << 20;
/// The unit of room.
const UNIT_BYTES: u64 = 4096;

/// MemoryBudget that is released on drop.
pub(super) type Held = OwnedSemaphorePermit;

/// The room for one kind of holders.
#[derive(Clone, Debug)]
pub(super) struct Share {
    units: Arc<Semaphore>,
    units_max: u64,
}

impl Share {
    pub(super) fn new(bytes: u64) -> Self {
        let units_max = bytes.max(SHARE_BYTES_MIN) / UNIT_BYTES;
        Self {
            units: Arc::new(Semaphore::new(to_usize(units_max))),
            units_max,
        }
    }

    pub(super) fn units(&self, bytes: u64) -> u32 {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.units_max);
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    pub(super) async fn take(&self, bytes: u64) -> Option<Held> {
        // The semaphore is never closed.
        let units = Arc::clone(&self.units);
        units.acquire_many_owned(self.units(bytes)).await.ok()
    }

    pub(super) fn take_now(&self, bytes: u64) -> Option<Held> {
        let units = Arc::clone(&self.units);
        units.try_acquire_many_owned(self.units(bytes)).ok()
    }

    /// Whether at least half of the room is free.
    pub(super) fn is_half_free(&self) -> bool {
        self.units.available_permits() >= to_usize(self.units_max).div_ceil(2)
    }
}
