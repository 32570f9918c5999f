//! The connected children and readers of this node, and the memory for answers to readers.

use crate::model::ITEM_BYTES_MAX;
use crate::transport::close;
use crate::wire::message::NodeId;
use parking_lot::Mutex;
use quinn::Connection;
use std::collections::{BTreeSet, HashMap};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most connections of readers: every node of a cluster of this size may read from every home. An idle connection
/// takes 39 KiB, so all of them take 160 MiB. Further readers are refused, and read elsewhere.
pub(crate) const READERS_MAX: usize = 4096;
/// Connections of readers beyond which a node gets no second one for another of its lanes.
const READERS_OF_LANES_MAX: usize = READERS_MAX / 2;
/// Bytes of items that are in flight to readers or waited for, which is more than any network takes at a time.
/// Further requests wait. Lanes share it, but each has room for one reader.
const BYTES_MAX: u64 = 64 << 20;
/// The part of it for one reader, so that a reader that does not take its answers leaves room for others.
const READER_BYTES_MAX: u64 = 16 << 20;
/// The unit in which room is counted.
const UNIT_BYTES: u64 = 1 << 10;

/// A connected child.
#[derive(Debug)]
struct ConnectedChild {
    connection: Connection,
    /// The trees in which it is a child of this node.
    trees: BTreeSet<usize>,
}

/// Closes a connection that another one replaces.
fn replace(older: &Connection) {
    older.close(close::REPLACED.into(), b"connected again");
}

/// Connected children: at most one connection for each node, and a bounded number of them. Held for look-ups only.
#[derive(Debug, Default)]
pub(crate) struct ConnectedChildren(Mutex<HashMap<NodeId, ConnectedChild>>);

impl ConnectedChildren {
    /// Adds a child in `tree`, and closes the connection that `connection` replaces. Returns `false` if there are
    /// `count_max` children already.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        tree: usize,
        connection: &Connection,
        count_max: usize,
    ) -> bool {
        let mut children = self.0.lock();
        if let Some(child) = children.get_mut(id) {
            // The same connection in another tree.
            if child.connection.stable_id() == connection.stable_id() {
                child.trees.insert(tree);
                return true;
            }
        } else if children.len() >= count_max {
            return false;
        }
        let child = ConnectedChild {
            connection: connection.clone(),
            trees: BTreeSet::from([tree]),
        };
        let replaced = children.insert(id.clone(), child);
        drop(children);
        if let Some(older) = replaced {
            replace(&older.connection);
        }
        true
    }

    /// Whether `id` is a child in `tree` over `connection`.
    pub(crate) fn contains(&self, id: &NodeId, tree: usize, connection: &Connection) -> bool {
        self.0.lock().get(id).is_some_and(|child| {
            child.connection.stable_id() == connection.stable_id() && child.trees.contains(&tree)
        })
    }

    /// Removes a child, unless another connection has replaced `connection`.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut children = self.0.lock();
        let held = children.get(id).map(|child| child.connection.stable_id());
        if held == Some(connection.stable_id()) {
            children.remove(id);
        }
    }

    /// Returns the connected children in `tree`.
    pub(crate) fn in_tree(&self, tree: usize) -> Vec<(NodeId, Connection)> {
        let connected = self.0.lock();
        let children = connected.iter();
        let children = children.filter(|(_, child)| child.trees.contains(&tree));
        let children = children.map(|(id, child)| (id.clone(), child.connection.clone()));
        children.collect()
    }

    /// Closes the connections of all children, so that they look for another parent.
    pub(crate) fn release(&self) {
        for child in self.0.lock().values() {
            let reason = b"cut off from every root";
            child.connection.close(close::CUT_OFF.into(), reason);
        }
    }
}

/// A reader's node, and the number of its lane.
pub(crate) type ReaderId = (NodeId, u8);

/// Connected readers: at most one connection for each lane of a node, and a bounded number of them. Held for look-ups only.
#[derive(Debug, Default)]
pub(crate) struct ConnectedReaders(Mutex<HashMap<ReaderId, Connection>>);

impl ConnectedReaders {
    /// Adds a reader, and closes the connection that `connection` replaces. Returns `false` if there is no room: the first
    /// lane of each node has precedence, and takes the room of a further lane if it must.
    pub(crate) fn add(&self, id: &ReaderId, connection: &Connection) -> bool {
        let mut readers = self.0.lock();
        let Ok(superseded) = make_room(&mut readers, id) else {
            return false;
        };
        readers.insert(id.clone(), connection.clone());
        drop(readers);
        superseded.iter().for_each(replace);
        true
    }

    /// Removes a reader, unless another connection has replaced `connection`.
    pub(crate) fn remove(&self, id: &ReaderId, connection: &Connection) {
        let mut readers = self.0.lock();
        let held = readers.get(id).map(Connection::stable_id);
        if held == Some(connection.stable_id()) {
            readers.remove(id);
        }
    }
}

/// Makes room for the connection of reader `id` among `readers`. Returns the connection that it takes the place of, if any;
/// `Err` if there is no room.
fn make_room<C>(readers: &mut HashMap<ReaderId, C>, id: &ReaderId) -> Result<Option<C>, Full> {
    if let Some(older) = readers.remove(id) {
        return Ok(Some(older));
    }
    let is_first = id.1 == 0;
    if !is_first && readers.len() >= READERS_OF_LANES_MAX {
        return Err(Full);
    }
    if readers.len() < READERS_MAX {
        return Ok(None);
    }
    let further = readers.keys().find(|(_, lane)| *lane > 0).cloned();
    let further = further.ok_or(Full)?;
    Ok(readers.remove(&further))
}

/// There is no room for a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Full;

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
    /// That of each lane; at least one.
    rooms: Vec<RoomForItems>,
    pub(crate) connected: ConnectedReaders,
}

impl Readers {
    /// Those of a node with `lanes`, or of one without lanes if there are none.
    pub(crate) fn new(lanes: usize) -> Self {
        let count = lanes.max(1);
        let bytes = BYTES_MAX / u64::try_from(count).unwrap_or(u64::MAX);
        let bytes = bytes.max(READER_BYTES_MAX);
        Self {
            rooms: (0..count).map(|_| RoomForItems::new(bytes)).collect(),
            connected: ConnectedReaders::default(),
        }
    }

    /// Waits for room for an answer of `len` bytes to a reader with the room `own`, which this node's `lane` serves.
    pub(crate) async fn acquire<'a>(
        &'a self,
        (own, lane): (&'a RoomForItems, usize),
        purpose: RoomFor,
        len: u64,
    ) -> RoomPermit<'a> {
        let units = len.min(ITEM_BYTES_MAX).div_ceil(UNIT_BYTES);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let acquire = |room: &'a RoomForItems| room.of(purpose).acquire_many(units);
        // The reader's own room comes first, so that a waiting reader holds no shared room. The semaphores are
        // never closed.
        let shared = self.rooms.get(lane).or(self.rooms.first());
        let own = acquire(own).await.ok();
        let shared = match shared {
            Some(room) => acquire(room).await.ok(),
            None => None,
        };
        [own, shared]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn each_node_has_room_for_a_reader_before_any_has_room_for_a_second_one() {
        let mut readers = HashMap::new();
        let mut add = |node: u32, lane: u8, connection: u32| {
            let id = (NodeId::Member(node), lane);
            let room = make_room(&mut readers, &id);
            if room.is_ok() {
                readers.insert(id, connection);
            }
            assert!(readers.len() <= READERS_MAX);
            room
        };
        let nodes = u32::try_from(READERS_MAX).unwrap();
        let of_lanes = u32::try_from(READERS_OF_LANES_MAX).unwrap();
        for node in 0..of_lanes {
            let [first, second] = [0, 1].map(|lane| add(node, lane, 1));
            assert_eq!(first, Ok(None));
            assert_eq!(second.is_ok(), node < of_lanes / 2, "{node}");
        }
        // One that comes again takes its own place.
        assert_eq!(add(0, 1, 2), Ok(Some(1)));
        for node in of_lanes..nodes {
            let room = add(node, 0, 1);
            // Then places of further lanes, and none for another one.
            let free = nodes - of_lanes - of_lanes / 2;
            assert_eq!(matches!(room, Ok(None)), node < of_lanes + free, "{node}");
            assert_eq!(add(node, 1, 1), Err(Full));
        }
        assert_eq!(add(nodes, 0, 1), Err(Full));
        assert!(readers.keys().all(|(_, lane)| *lane == 0));
    }

    #[test]
    fn room_is_bounded_and_cached_items_do_not_wait_for_uncached_ones() {
        let readers = Readers::new(0);
        let owns: Vec<_> = (0..5).map(|_| RoomForItems::of_reader()).collect();
        let ask = |reader: usize, cached| {
            let purpose = match cached {
                true => RoomFor::Cached,
                false => RoomFor::Uncached,
            };
            let acquiring = readers.acquire((&owns[reader], 0), purpose, ITEM_BYTES_MAX);
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
