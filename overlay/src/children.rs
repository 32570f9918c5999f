//! The children that are connected to this node.

use crate::membership::Membership;
use crate::readers::Full;
use crate::transport::close;
use crate::wire::message::NodeId;
use parking_lot::Mutex;
use quinn::Connection;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A connected child.
#[derive(Debug)]
struct Child {
    connection: Connection,
    /// In which trees it hangs from this node.
    trees: BTreeSet<usize>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Children {
    membership: Arc<Membership>,
    /// Children by the list, and a bounded number of others. Held for look-ups only.
    connected: Mutex<HashMap<NodeId, Child>>,
}

impl Children {
    pub(crate) fn new(membership: Arc<Membership>) -> Self {
        Self {
            membership,
            connected: Mutex::default(),
        }
    }

    /// Takes in a child in `tree`; gives the connection that its new one replaces.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        tree: usize,
        connection: &Connection,
    ) -> Result<Option<Connection>, Full> {
        let mut children = self.connected.lock();
        if let Some(child) = children.get_mut(id) {
            if child.connection.stable_id() == connection.stable_id() {
                child.trees.insert(tree);
                return Ok(None);
            }
        } else if !self.membership.is_own_child(tree, id) && children.len() >= self.count_max() {
            return Err(Full);
        }
        let child = Child {
            connection: connection.clone(),
            trees: BTreeSet::from([tree]),
        };
        Ok(children.insert(id.clone(), child).map(|old| old.connection))
    }

    /// How many children a node may have before it takes in only its own: enough for those of its
    /// children that die, and at a root, which is everybody's last resort, for many more.
    fn count_max(&self) -> usize {
        let is_root = self
            .membership
            .rank()
            .is_some_and(|own| self.membership.forest().is_root(own));
        let floor = if is_root { 512 } else { 32 };
        self.membership
            .forest()
            .arity()
            .saturating_mul(8)
            .max(floor)
    }

    /// Whether `id` hangs from this node in `tree`, over `connection`.
    pub(crate) fn contains(&self, id: &NodeId, tree: usize, connection: &Connection) -> bool {
        self.connected.lock().get(id).is_some_and(|child| {
            child.connection.stable_id() == connection.stable_id() && child.trees.contains(&tree)
        })
    }

    /// Forgets a child's connection, unless another has taken its place.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut children = self.connected.lock();
        if children
            .get(id)
            .is_some_and(|held| held.connection.stable_id() == connection.stable_id())
        {
            children.remove(id);
        }
    }

    /// The connected children in `tree`.
    pub(crate) fn in_tree(&self, tree: usize) -> Vec<(NodeId, Connection)> {
        self.connected
            .lock()
            .iter()
            .filter(|(_, held)| held.trees.contains(&tree))
            .map(|(id, held)| (id.clone(), held.connection.clone()))
            .collect()
    }

    /// Closes the connections of all children.
    pub(crate) fn release(&self) {
        for child in self.connected.lock().values() {
            let reason = b"cut off from every root";
            child.connection.close(close::CUT_OFF.into(), reason);
        }
    }
}
