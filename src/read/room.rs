//! How much memory reads that are under way may take.
//!
//! The data cache has its bound; what is on its way into it, and what is being handed to a reader, is
//! in memory too. Both come out of what the node was given for data: [`reserve`] says how much of it is
//! for what is under way, and the cache gets the rest. A local read takes room for what it brings before
//! it asks for it, and waits, without a thread, while there is none. Children's reads take none here: what
//! they ask for at a time is bounded on their own nodes, and a node that waited for room while others
//! wait for it could wait for ever.
//!
//! A read that gets no answer within [`PATIENCE`] holds no memory, only a place: it gives its room back,
//! so that storage that hangs does not keep reads of other storage waiting.

use crate::num::to_usize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// One part in so many of the bytes for data is for what is under way …
const RESERVE_SHARE: u64 = 4;
/// … but no more than this: 256 blocks under way keep any link busy.
const RESERVE_BYTES_MAX: u64 = 256 << 20;
/// The least that lets one block come.
const RESERVE_BYTES_MIN: u64 = 1 << 20;
/// How long a read keeps its room without an answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// The unit in which room is given.
const UNIT_BYTES: u64 = 4096;

/// Of `data_bytes`, those for what is under way.
pub(super) fn reserve(data_bytes: u64) -> u64 {
    (data_bytes / RESERVE_SHARE).min(RESERVE_BYTES_MAX)
}

/// See the module.
#[derive(Debug)]
pub(super) struct Room {
    units: Arc<Semaphore>,
    units_max: u64,
}

impl Room {
    pub(super) fn new(bytes: u64) -> Self {
        let units_max = bytes.max(RESERVE_BYTES_MIN) / UNIT_BYTES;
        Self {
            units: Arc::new(Semaphore::new(to_usize(units_max))),
            units_max,
        }
    }

    /// Carries out `work`, which brings `bytes`, once there is room for them. Who wants more than there
    /// is in all gets all of it.
    pub(super) async fn within<T>(&self, bytes: u64, work: impl Future<Output = T>) -> T {
        let permit = self.take(bytes).await;
        let mut work = std::pin::pin!(work);
        match timeout(PATIENCE, &mut work).await {
            Ok(done) => done,
            Err(_elapsed) => {
                drop(permit);
                work.await
            }
        }
    }

    async fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.units_max);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        Arc::clone(&self.units).acquire_many_owned(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[tokio::test]
    async fn reads_wait_for_room_and_those_that_hang_make_it() {
        let room = Arc::new(Room::new(4 << 20));
        let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let reads = (0..64).map(|_| {
            let (room, now, most) = (Arc::clone(&room), Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                room.within(1 << 20, async {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                })
                .await;
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 4);

        let hanging = Arc::clone(&room);
        let hanging = tokio::spawn(async move {
            hanging.within(1 << 40, std::future::pending::<()>()).await;
        });
        tokio::task::yield_now().await;
        room.within(1 << 20, std::future::ready(())).await;
        hanging.abort();
    }
}
