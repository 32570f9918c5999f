//! A part of the memory for reads in progress, and its holders.
//!
//! The size can change while there are holders. They keep their room: if there is less room than they hold, what they
//! release is *owed*, and taken out of use.

use crate::num::to_usize;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The minimum of each share, which is enough for one block.
const SHARE_BYTES_MIN: u64 = 1 << 20;
/// The unit of room.
const UNIT_BYTES: u64 = 4096;

/// The room for one kind of holders.
#[derive(Clone, Debug)]
pub(super) struct Share(Arc<Room>);

#[derive(Debug)]
struct Room {
    units: Arc<Semaphore>,
    units_max: AtomicU64,
    /// Units that are to be taken out of use when they are released.
    owed: AtomicUsize,
    /// Guards the order of two resizes.
    resizing: Mutex<()>,
    resized: Notify,
}

/// Room that is released on drop.
#[derive(Debug)]
pub(super) struct Held {
    permit: OwnedSemaphorePermit,
    room: Arc<Room>,
}

impl Share {
    pub(super) fn new(bytes: u64) -> Self {
        let units_max = units_max(bytes);
        Self(Arc::new(Room {
            units: Arc::new(Semaphore::new(to_usize(units_max))),
            units_max: AtomicU64::new(units_max),
            owed: AtomicUsize::new(0),
            resizing: Mutex::new(()),
            resized: Notify::new(),
        }))
    }

    /// Changes the size.
    pub(super) fn resize(&self, bytes: u64) {
        let room = &self.0;
        let _resizing = room.resizing.lock();
        let now = units_max(bytes);
        let before = room.units_max.swap(now, Ordering::Relaxed);
        if now >= before {
            let more = to_usize(now - before);
            room.units.add_permits(more - room.pay(more));
        } else {
            let fewer = to_usize(before - now);
            let owed = fewer - room.units.forget_permits(fewer);
            room.owed.fetch_add(owed, Ordering::Relaxed);
            // One that waits for more than there will ever be would wait for ever.
            room.resized.notify_waiters();
        }
    }

    pub(super) fn units(&self, bytes: u64) -> u32 {
        let units_max = self.0.units_max.load(Ordering::Relaxed);
        let units = bytes.div_ceil(UNIT_BYTES).min(units_max);
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    pub(super) async fn take(&self, bytes: u64) -> Option<Held> {
        loop {
            // Created before the look at the size, so that it misses no change.
            let resized = self.0.resized.notified();
            let units = Arc::clone(&self.0.units);
            tokio::select! {
                biased;
                // The semaphore is never closed.
                permit = units.acquire_many_owned(self.units(bytes)) => {
                    return permit.ok().map(|permit| self.held(permit));
                }
                () = resized => {}
            }
        }
    }

    pub(super) fn take_now(&self, bytes: u64) -> Option<Held> {
        let units = Arc::clone(&self.0.units);
        let permit = units.try_acquire_many_owned(self.units(bytes)).ok();
        permit.map(|permit| self.held(permit))
    }

    /// Whether at least half of the room is free.
    pub(super) fn is_half_free(&self) -> bool {
        let units_max = to_usize(self.0.units_max.load(Ordering::Relaxed));
        self.0.units.available_permits() >= units_max.div_ceil(2)
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        Held {
            permit,
            room: Arc::clone(&self.0),
        }
    }
}

impl Room {
    /// Pays up to `units` of those that are owed. Returns how many.
    fn pay(&self, units: usize) -> usize {
        let less = |owed: usize| Some(owed - owed.min(units));
        let owed = (self.owed).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        owed.unwrap_or(0).min(units)
    }
}

impl Held {
    /// The units of room.
    pub(super) fn units(&self) -> usize {
        self.permit.num_permits()
    }

    /// Takes the room of `other`, which is of the same share.
    pub(super) fn merge(&mut self, mut other: Self) {
        // What stays is nothing, so its drop has no effect.
        if let Some(all) = other.permit.split(other.units()) {
            self.permit.merge(all);
        }
    }

    /// Splits `units` off; `None` if there are fewer.
    pub(super) fn split(&mut self, units: usize) -> Option<Self> {
        let permit = self.permit.split(units)?;
        let room = Arc::clone(&self.room);
        Some(Self { permit, room })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let paid = self.room.pay(self.units());
        if let Some(paid) = self.permit.split(paid) {
            paid.forget();
        }
    }
}

fn units_max(bytes: u64) -> u64 {
    bytes.max(SHARE_BYTES_MIN) / UNIT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn holders_keep_their_room_when_there_is_less_of_it() {
        const MIB: u64 = 1 << 20;
        let share = Share::new(8 * MIB);
        let mut held = share.take(6 * MIB).await.unwrap();
        let waiting = share.clone();
        let waiting = tokio::spawn(async move { waiting.take(5 * MIB).await.map(|it| it.units()) });
        tokio::task::yield_now().await;
        share.resize(2 * MIB);
        assert!(share.take_now(MIB).is_none(), "nothing is free");
        drop(held.split(768));
        assert!(share.take_now(4096).is_none(), "what was released is owed");
        drop(held);
        // It asked for more than there is now, and gets all of it.
        assert_eq!(waiting.await.unwrap(), Some(512));
        let all = share.take_now(2 * MIB).unwrap();
        assert!(share.take_now(4096).is_none(), "not more than the new size");
        share.resize(4 * MIB);
        drop((all, share.take_now(2 * MIB).unwrap()));
        drop(share.take_now(4 * MIB).unwrap());
    }
}
