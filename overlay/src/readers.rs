//! Who reads items from this node, and how much at a time.

use crate::model::ITEM_BYTES_MAX;
use crate::wire::message::NodeId;
use parking_lot::Mutex;
use quinn::Connection;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connected readers: a cluster of so many nodes, all of which read from all homes. An idle connection
/// takes 39 KiB, so that all of them together take 160 MiB; further readers are refused, and ask
/// elsewhere.
const READERS_MAX: usize = 4096;
/// Bytes of items that are on their way to readers, or are waited for: more than any network takes at a
/// time. Questions for more wait.
const BYTES_MAX: u64 = 64 << 20;
/// The part of it that one reader may take, so that one which does not take what it asked for leaves
/// the others room.
const READER_BYTES_MAX: u64 = 16 << 20;
/// What room is counted in.
const UNIT_BYTES: u64 = 1 << 10;

/// A node that this one has no room for.
#[derive(Debug)]
pub(crate) struct Full;

/// Room for bytes.
#[derive(Debug)]
pub(crate) struct Rooms {
    /// Of items that are here already.
    here: Arc<Semaphore>,
    /// As much again for those that must come from the origin first, so that no slow origin keeps what
    /// is here waiting.
    coming: Arc<Semaphore>,
}

impl Rooms {
    fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        Self {
            here: Arc::new(Semaphore::new(units)),
            coming: Arc::new(Semaphore::new(units)),
        }
    }

    /// The room of one reader.
    pub(crate) fn of_reader() -> Self {
        Self::new(READER_BYTES_MAX)
    }

    async fn take(&self, units: u32, here: bool) -> Option<OwnedSemaphorePermit> {
        let room = if here { &self.here } else { &self.coming };
        // The semaphores are never closed.
        Arc::clone(room).acquire_many_owned(units).await.ok()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Readers {
    rooms: Rooms,
    /// One for each node; held for look-ups only.
    connected: Mutex<HashMap<NodeId, Connection>>,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            rooms: Rooms::new(BYTES_MAX),
            connected: Mutex::default(),
        }
    }
}

/// Room for one answer; given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _own: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Readers {
    /// Takes in a reader; gives the connection that its new one replaces.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        connection: &Connection,
    ) -> Result<Option<Connection>, Full> {
        let mut connected = self.connected.lock();
        if connected.len() >= READERS_MAX && !connected.contains_key(id) {
            return Err(Full);
        }
        Ok(connected.insert(id.clone(), connection.clone()))
    }

    /// Forgets a reader's connection, unless another has taken its place.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut connected = self.connected.lock();
        if connected
            .get(id)
            .is_some_and(|held| held.stable_id() == connection.stable_id())
        {
            connected.remove(id);
        }
    }

    /// Waits for room for an answer of `len` bytes (a checked request's) to a reader with `own` rooms;
    /// `here`: that needs no origin.
    pub(crate) async fn room(&self, own: &Rooms, len: u64, here: bool) -> Room {
        let units = len.min(ITEM_BYTES_MAX).div_ceil(UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        // One's own first: who waits there holds nothing of others.
        Room {
            _own: own.take(units, here).await,
            _of_all: self.rooms.take(units, here).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn room_is_bounded_and_what_is_here_does_not_wait_for_what_is_coming() {
        let readers = Readers::default();
        let owns: Vec<_> = (0..5).map(|_| Rooms::of_reader()).collect();
        let ask = |reader: usize, here| {
            let asked = readers.room(&owns[reader], ITEM_BYTES_MAX, here);
            asked.now_or_never()
        };
        let mut held: Vec<_> = (0..16).map(|i| ask(i / 4, false).unwrap()).collect();
        // Four readers have taken all that there is for what is coming, each all of its own.
        assert!(ask(0, false).is_none());
        assert!(ask(4, false).is_none());
        let of_first: Vec<_> = (0..4).map(|_| ask(0, true).unwrap()).collect();
        assert!(ask(0, true).is_none());
        assert!(ask(4, true).is_some());
        drop(held.pop());
        assert!(ask(0, false).is_none(), "others' room is not its own");
        assert!(ask(4, false).is_some());
        drop(of_first);
        assert!(ask(0, true).is_some());
    }
}
