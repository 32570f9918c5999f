//! The connected children of this node.

use crate::membership::Membership;
use crate::readers::LimitReached;
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
    /// The trees in which it is a child of this node.
    trees: BTreeSet<usize>,
}

/// The connected children.
#[derive(Debug)]
pub(crate) struct Children {
    membership: Arc<Membership>,
    /// Listed children, and a bounded number of others. Held for look-ups only.
    connected: Mutex<HashMap<NodeId, Child>>,
}

impl Children {
    pub(crate) fn new(membership: Arc<Membership>) -> Self {
        Self {
            membership,
            connected: Mutex::default(),
        }
    }

    /// Adds a child in `tree`. Returns the connection that `connection` replaces.
    pub(crate) fn add(
        &self,
        id: &NodeId,
        tree: usize,
        connection: &Connection,
    ) -> Result<Option<Connection>, LimitReached> {
        let mut children = self.connected.lock();
        if let Some(child) = children.get_mut(id) {
            // The same connection in another tree.
            if child.connection.stable_id() == connection.stable_id() {
                child.trees.insert(tree);
                return Ok(None);
            }
        } else if !self.membership.is_own_child(tree, id) && children.len() >= self.count_max() {
            return Err(LimitReached);
        }
        let child = Child {
            connection: connection.clone(),
            trees: BTreeSet::from([tree]),
        };
        Ok(children.insert(id.clone(), child).map(|old| old.connection))
    }

    /// The number of children beyond which only listed ones are accepted. It leaves room for the children of
    /// children that died. A root, the last resort of every node, has room for many more.
    fn count_max(&self) -> usize {
        let forest = self.membership.forest();
        let is_root = self
            .membership
            .rank()
            .is_some_and(|own| forest.is_root(own));
        let floor = if is_root { 512 } else { 32 };
        forest.arity().saturating_mul(8).max(floor)
    }

    /// Whether `id` is a child in `tree` over `connection`.
    pub(crate) fn contains(&self, id: &NodeId, tree: usize, connection: &Connection) -> bool {
        self.connected.lock().get(id).is_some_and(|child| {
            child.connection.stable_id() == connection.stable_id() && child.trees.contains(&tree)
        })
    }

    /// Removes a child, unless another connection has replaced `connection`.
    pub(crate) fn remove(&self, id: &NodeId, connection: &Connection) {
        let mut children = self.connected.lock();
        if children
            .get(id)
            .is_some_and(|held| held.connection.stable_id() == connection.stable_id())
        {
            children.remove(id);
        }
    }

    /// Returns the connected children in `tree`.
    pub(crate) fn in_tree(&self, tree: usize) -> Vec<(NodeId, Connection)> {
        self.connected
            .lock()
            .iter()
            .filter(|(_, held)| held.trees.contains(&tree))
            .map(|(id, held)| (id.clone(), held.connection.clone()))
            .collect()
    }

    /// Closes the connections of all children, so that they look for another parent.
    pub(crate) fn release(&self) {
        for child in self.connected.lock().values() {
            let reason = b"cut off from every root";
            child.connection.close(close::CUT_OFF.into(), reason);
        }
    }
}
