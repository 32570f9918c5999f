//! The connected children and readers of this node, and the memory for answers to readers.

use crate::model::ITEM_BYTES_MAX;
use crate::transport::close;
use crate::wire::message::NodeId;
use parking_lot::Mutex;
use quinn::Connection;
use std::collections::{BTreeSet, HashMap};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most connected readers: every node of a cluster of this size may read from every home. An idle connection
/// takes 39 KiB, so all of them take 160 MiB. Further readers are refused, and read elsewhere.
pub(crate) const READERS_MAX: usize = 4096;
/// Bytes of items that are in flight to readers or waited for, which is more than any network takes at a time.
/// Further requests wait.
const BYTES_MAX: u64 = 64 << 20;
/// The part of it for one reader, so that a reader that does not take its answers leaves room for others.
const READER_BYTES_MAX: u64 = 16 << 20;
/// The unit in which room is counted.
const UNIT_BYTES: u64 = 1 << 10;

/// A connected child or reader.
#[derive(Debug)]
struct ConnectedPeer {
    connection: Connection,
    /// The trees in which it is a child of this node; none for a reader.
    trees: BTreeSet<usize>,
}

/// Connected peers: at most one connection for each node, and a bounded number of them. Held for look-ups only.
#[derive(Debug, Default)]
pub(crate) struct ConnectedPeers(Mutex<HashMap<NodeId, ConnectedPeer>>);

impl ConnectedPeers {
    /// Adds a reader, or a child in `tree`, and closes the connection that `connection` replaces. Returns `false` if
    /// there are `count_max` peers already.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        tree: Option<usize>,
        connection: &Connection,
        count_max: usize,
    ) -> bool {
        let mut peers = self.0.lock();
        if let Some(peer) = peers.get_mut(id) {
            // The same connection in another tree.
            if peer.connection.stable_id() == connection.stable_id() {
                peer.trees.extend(tree);
                return true;
            }
        } else if peers.len() >= count_max {
            return false;
        }
        let peer = ConnectedPeer {
            connection: connection.clone(),
            trees: tree.into_iter().collect(),
        };
        let replaced = peers.insert(id.clone(), peer);
        drop(peers);
        if let Some(older) = replaced {
            let reason = b"connected again";
            older.connection.close(close::REPLACED.into(), reason);
        }
        true
    }

    /// Whether `id` is a child in `tree` over `connection`.
    pub(crate) fn contains(&self, id: &NodeId, tree: usize, connection: &Connection) -> bool {
        self.0.lock().get(id).is_some_and(|child| {
            child.connection.stable_id() == connection.stable_id() && child.trees.contains(&tree)
        })
    }

    /// Removes a peer, unless another connection has replaced `connection`.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut peers = self.0.lock();
        let held = peers.get(id).map(|peer| peer.connection.stable_id());
        if held == Some(connection.stable_id()) {
            peers.remove(id);
        }
    }

    /// Returns the connected children in `tree`.
    pub(crate) fn in_tree(&self, tree: usize) -> Vec<(NodeId, Connection)> {
        let peers = self.0.lock();
        let children = peers.iter().filter(|(_, peer)| peer.trees.contains(&tree));
        let children = children.map(|(id, child)| (id.clone(), child.connection.clone()));
        children.collect()
    }

    /// Closes the connections of all peers, so that they look for another parent.
    pub(crate) fn release(&self) {
        for peer in self.0.lock().values() {
            let reason = b"cut off from every root";
            peer.connection.close(close::CUT_OFF.into(), reason);
        }
    }
}

/// Room for the bytes of answers.
#[derive(Debug)]
pub(crate) struct RoomForItems {
    cached: Semaphore,
    /// Room for items that must be read from the origin first. It is separate, so that no slow origin delays
    /// cached items.
    uncached: Semaphore,
    /// Room for blocks of files, on a root. It is separate, because another node's item may wait for them, while
    /// it holds room there.
    blocks: Semaphore,
}

/// The bytes for which a reader takes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RoomFor {
    /// Those that need no origin.
    Cached,
    /// An item that may have to be read from the origin.
    Uncached,
    /// Blocks of a file that a root has read.
    Blocks,
}

/// Room of one reader, and of all readers together. It is released when it is dropped.
pub(crate) type RoomPermit<'a> = [Option<SemaphorePermit<'a>>; 2];

impl RoomForItems {
    fn new(bytes: u64) -> Self {
        let units = usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX);
        Self {
            cached: Semaphore::new(units),
            uncached: Semaphore::new(units),
            blocks: Semaphore::new(units),
        }
    }

    fn of(&self, purpose: RoomFor) -> &Semaphore {
        match purpose {
            RoomFor::Cached => &self.cached,
            RoomFor::Uncached => &self.uncached,
            RoomFor::Blocks => &self.blocks,
        }
    }

    /// The room of one reader.
    pub(crate) fn of_reader() -> Self {
        Self::new(READER_BYTES_MAX)
    }
}

/// The connected readers, and the room that they share.
#[derive(Debug)]
pub(crate) struct Readers {
    room: RoomForItems,
    pub(crate) connected: ConnectedPeers,
}

impl Default for Readers {
    fn default() -> Self {
        Self {
            room: RoomForItems::new(BYTES_MAX),
            connected: ConnectedPeers::default(),
        }
    }
}

impl Readers {
    /// Waits for room for an answer of `len` bytes to a reader with the room `own`.
    pub(crate) async fn acquire<'a>(
        &'a self,
        own: &'a RoomForItems,
        purpose: RoomFor,
        len: u64,
    ) -> RoomPermit<'a> {
        let units = len.min(ITEM_BYTES_MAX).div_ceil(UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let acquire = |room: &'a RoomForItems| room.of(purpose).acquire_many(units);
        // The reader's own room comes first, so that a waiting reader holds no shared room. The semaphores are
        // never closed.
        [acquire(own).await.ok(), acquire(&self.room).await.ok()]
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
            let purpose = match cached {
                true => RoomFor::Cached,
                false => RoomFor::Uncached,
            };
            let acquiring = readers.acquire(&owns[reader], purpose, ITEM_BYTES_MAX);
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
