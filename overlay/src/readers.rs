//! The readers of items that are connected to this node, and the memory for their answers.

use crate::model::ITEM_BYTES_MAX;
use crate::wire::message::NodeId;
use parking_lot::Mutex;
use quinn::Connection;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connected readers: every node of a cluster of this size may read from every home. An idle connection
/// takes 39 KiB, so all of them take 160 MiB. Further readers are refused, and read elsewhere.
const READERS_MAX: usize = 4096;
/// Bytes of items that are in flight to readers or waited for, which is more than any network takes at a time.
/// Further requests wait.
const BYTES_MAX: u64 = 64 << 20;
/// The part of it for one reader, so that a reader that does not take its answers leaves room for others.
const READER_BYTES_MAX: u64 = 16 << 20;
/// The unit in which room is counted.
const UNIT_BYTES: u64 = 1 << 10;

/// The limit on connected peers is reached.
#[derive(Debug)]
pub(crate) struct LimitReached;

/// Room for the bytes of answers.
#[derive(Debug)]
pub(crate) struct RoomForItems {
    cached: Arc<Semaphore>,
    /// Room for items that must be read from the origin first. It is separate, so that no slow origin delays
    /// cached items.
    uncached: Arc<Semaphore>,
}

impl RoomForItems {
    fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        Self {
            cached: Arc::new(Semaphore::new(units)),
            uncached: Arc::new(Semaphore::new(units)),
        }
    }

    /// The room of one reader.
    pub(crate) fn of_reader() -> Self {
        Self::new(READER_BYTES_MAX)
    }

    async fn acquire(&self, units: u32, cached: bool) -> Option<OwnedSemaphorePermit> {
        let room = if cached { &self.cached } else { &self.uncached };
        // The semaphores are never closed.
        Arc::clone(room).acquire_many_owned(units).await.ok()
    }
}

/// The connected readers, and the room that they share.
#[derive(Debug)]
pub(crate) struct Readers {
    room: RoomForItems,
    /// At most one connection for each node. Held for look-ups only.
    connected: Mutex<HashMap<NodeId, Connection>>,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            room: RoomForItems::new(BYTES_MAX),
            connected: Mutex::default(),
        }
    }
}

/// Room for one answer, released on drop.
#[derive(Debug)]
pub(crate) struct ItemPermit {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<OwnedSemaphorePermit>,
}

impl Readers {
    /// Adds a reader. Returns the connection that `connection` replaces.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        connection: &Connection,
    ) -> Result<Option<Connection>, LimitReached> {
        let mut connected = self.connected.lock();
        if connected.len() >= READERS_MAX && !connected.contains_key(id) {
            return Err(LimitReached);
        }
        Ok(connected.insert(id.clone(), connection.clone()))
    }

    /// Removes a reader, unless another connection has replaced `connection`.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut connected = self.connected.lock();
        if connected
            .get(id)
            .is_some_and(|held| held.stable_id() == connection.stable_id())
        {
            connected.remove(id);
        }
    }

    /// Waits for room for an answer of `len` bytes to a reader with the room `own`. `cached`: the answer needs
    /// no origin.
    pub(crate) async fn acquire(&self, own: &RoomForItems, len: u64, cached: bool) -> ItemPermit {
        let units = len.min(ITEM_BYTES_MAX).div_ceil(UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // The reader's own room comes first, so that a waiting reader holds no shared room.
        ItemPermit {
            _own: own.acquire(units, cached).await,
            _shared: self.room.acquire(units, cached).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn room_is_bounded_and_cached_items_do_not_wait_for_uncached_ones() {
        let readers = Readers::default();
        let owns: Vec<_> = (0..5).map(|_| RoomForItems::of_reader()).collect();
        let ask = |reader: usize, cached| {
            let acquiring = readers.acquire(&owns[reader], ITEM_BYTES_MAX, cached);
            acquiring.now_or_never()
        };
        let mut held: Vec<_> = (0..16).map(|i| ask(i / 4, false).unwrap()).collect();
        // Four readers hold all room for uncached items, each all of its own.
        assert!(ask(0, false).is_none());
        assert!(ask(4, false).is_none());
        let of_first: Vec<_> = (0..4).map(|_| ask(0, true).unwrap()).collect();
        assert!(ask(0, true).is_none());
        assert!(ask(4, true).is_some());
        drop(held.pop());
        assert!(
            ask(0, false).is_none(),
            "a reader's own room is not extended by that of others"
        );
        assert!(ask(4, false).is_some());
        drop(of_first);
        assert!(ask(0, true).is_some());
    }
}
