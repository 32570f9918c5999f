//! Who is in the cluster, and where this node sits: the member list, its forest, its placement.
//!
//! Every node makes the same membership from the same list, so nobody has to ask where a neighbour is. A
//! node that is not in the list (a guest) hangs below a member that its name picks, and has no
//! children. Pure.

use crate::wire::NAME_BYTES_MAX;
use crate::wire::message::{Hello, NodeId};
use copperfs_topology::{Forest, Placement, digest};
use std::collections::HashSet;

/// Longest member list.
const MEMBERS_MAX: usize = 1 << 20;

/// One node of the member list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name, unique in the list, at most 255 bytes.
    pub name: String,
    /// Where it listens: `host:port`. Looked up at every attempt to connect.
    pub address: String,
}

/// Where a node sits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeIdentity {
    /// At this place in the member list.
    Member(usize),
    /// Nowhere in it, under this name: it joins a running tree.
    Guest(String),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Membership {
    members: Vec<Member>,
    forest: Forest,
    placement: Placement,
    identity: NodeIdentity,
    fingerprint: [u8; 16],
}

impl Membership {
    /// The membership of `members` in trees of `arity` below `roots` (ranks), seen from `identity`.
    ///
    /// # Errors
    /// What makes no sense, for people.
    pub fn new(
        members: Vec<Member>,
        arity: usize,
        roots: Vec<usize>,
        identity: NodeIdentity,
    ) -> Result<Self, String> {
        if members.len() > MEMBERS_MAX {
            return Err(format!("more than {MEMBERS_MAX} members"));
        }
        let count = roots.len();
        let Some(forest) = Forest::new(members.len(), arity, roots) else {
            return Err(format!(
                "no trees of arity {arity} below {count} roots over {} members: there must be 1 to \
                 64 different roots, all of them members, and an arity of at least 1",
                members.len()
            ));
        };
        let mut names = HashSet::new();
        for Member { name, .. } in &members {
            check_name(name)?;
            if !names.insert(name.as_str()) {
                return Err(format!("member {name} is listed twice"));
            }
        }
        match &identity {
            NodeIdentity::Member(rank) if *rank >= members.len() => {
                return Err(format!(
                    "rank {rank} is not in the list of {} members (ranks begin at 0)",
                    members.len()
                ));
            }
            NodeIdentity::Guest(name) => {
                check_name(name)?;
                if names.contains(name.as_str()) {
                    return Err(format!("{name} is in the member list, and need not join"));
                }
            }
            NodeIdentity::Member(_) => {}
        }
        let roots = forest.roots().iter();
        let placement = Placement::new(roots.map(|&rank| members[rank].name.as_str()));
        let fingerprint = fingerprint(&members, &forest);
        Ok(Self {
            members,
            forest,
            placement,
            identity,
            fingerprint,
        })
    }

    /// The member list.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The trees.
    #[must_use]
    pub fn forest(&self) -> &Forest {
        &self.forest
    }

    /// Which root answers for what.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// How many trees there are.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.forest.roots().len()
    }

    /// This node's place in the list; `None` for a guest.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self.identity {
            NodeIdentity::Member(rank) => Some(rank),
            NodeIdentity::Guest(_) => None,
        }
    }

    /// This node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.identity {
            NodeIdentity::Member(rank) => self.members.get(*rank).map_or("", |own| &own.name),
            NodeIdentity::Guest(name) => name,
        }
    }

    /// This node, as answers to the whole tree name it.
    #[must_use]
    pub fn id(&self) -> NodeId {
        match &self.identity {
            NodeIdentity::Member(rank) => NodeId::Member(number(*rank)),
            NodeIdentity::Guest(name) => NodeId::Guest(name.clone()),
        }
    }

    /// What identifies the list and its roots: equal on nodes that compute the same forest.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        self.fingerprint
    }

    /// Whether this node is the root of `tree`.
    #[must_use]
    pub fn is_root_of(&self, tree: usize) -> bool {
        self.rank().is_some() && self.forest.roots().get(tree).copied() == self.rank()
    }

    /// Whom this node may hang from in `tree`: its ancestors, the parent first.
    #[must_use]
    pub fn ancestors(&self, tree: usize) -> Vec<usize> {
        self.ancestors_of(tree, &self.id())
    }

    /// Whether `node` may hang from, or be answered for by, `top` in `tree`.
    #[must_use]
    pub fn is_within(&self, tree: usize, node: &NodeId, top: &NodeId) -> bool {
        match top {
            _ if node == top => true,
            NodeId::Member(top) => self.ancestors_of(tree, node).contains(&index(*top)),
            NodeId::Guest(_) => false,
        }
    }

    /// What this node says to a member that it would hang from in `tree`.
    #[must_use]
    pub fn hello(&self, tree: usize) -> Hello {
        Hello {
            tree: u8::try_from(tree).unwrap_or(u8::MAX),
            reader: false,
            ..self.hello_as_reader()
        }
    }

    /// What this node says to a member that it would read items from.
    #[must_use]
    pub fn hello_as_reader(&self) -> Hello {
        Hello {
            rank: self.rank().map(number),
            tree: 0,
            members: number(self.members.len()),
            arity: number(self.forest.arity()),
            list: self.fingerprint,
            name: self.name().to_owned(),
            reader: true,
        }
    }

    /// Whether whoever says `hello` may hang from this node, or, a reader, ask it; gives who it is.
    ///
    /// # Errors
    /// Why not, for people on the other side.
    pub fn check(&self, hello: &Hello) -> Result<NodeId, String> {
        let id = self.identify(hello)?;
        let own = self.name();
        if hello.reader {
            // Who hangs where is nothing to a reader: it may be above this node, and is asked nothing.
            return match id == self.id() {
                false => Ok(id),
                true => Err(format!("{own} reads from itself over no connection")),
            };
        }
        let above = self.ancestors_of(usize::from(hello.tree), &id);
        match self.rank() {
            Some(rank) if above.contains(&rank) => Ok(id),
            _ => Err(format!(
                "{own} is not above {:?} in tree {}, and takes in nobody who might be above itself",
                hello.name, hello.tree
            )),
        }
    }

    /// Who says `hello`, if it has this node's list.
    fn identify(&self, hello: &Hello) -> Result<NodeId, String> {
        let own = self.name();
        let (len, arity) = (self.members.len(), self.forest.arity());
        if hello.members != number(len) || hello.arity != number(arity) {
            return Err(format!(
                "{own} has {len} members and arity {arity}, {:?} has {} and {}: give all nodes the \
                 same host list and arity",
                hello.name, hello.members, hello.arity
            ));
        }
        if hello.list != self.fingerprint {
            return Err(format!(
                "{own} and {:?} have lists of {len} members that differ in names, order or roots: \
                 give all nodes the same list and roots",
                hello.name
            ));
        }
        match hello.rank {
            Some(rank) => {
                let named = self.members.get(index(rank));
                if named.is_none_or(|member| member.name != hello.name) {
                    return Err(format!(
                        "rank {rank} is not {:?} in the host list of {own}: give all nodes the same \
                         list",
                        hello.name
                    ));
                }
                Ok(NodeId::Member(rank))
            }
            None => {
                check_name(&hello.name)?;
                if self.members.iter().any(|member| member.name == hello.name) {
                    return Err(format!(
                        "{} is a member and cannot join as a guest",
                        hello.name
                    ));
                }
                Ok(NodeId::Guest(hello.name.clone()))
            }
        }
    }

    /// Whether `node` is a child of this node in `tree` by the list: one that always has a place.
    #[must_use]
    pub fn is_own_child(&self, tree: usize, node: &NodeId) -> bool {
        matches!(node, NodeId::Member(_))
            && self.ancestors_of(tree, node).first().copied() == self.rank()
    }

    /// The name of `node`.
    #[must_use]
    pub fn name_of<'a>(&'a self, node: &'a NodeId) -> &'a str {
        match node {
            NodeId::Member(rank) => self.members.get(index(*rank)).map_or("", |m| &m.name),
            NodeId::Guest(name) => name,
        }
    }

    fn ancestors_of(&self, tree: usize, node: &NodeId) -> Vec<usize> {
        match node {
            NodeId::Member(rank) => self.forest.ancestors(tree, index(*rank)),
            NodeId::Guest(name) => {
                let host = host_of(name, self.members.len());
                let mut above = vec![host];
                above.extend(self.forest.ancestors(tree, host));
                above
            }
        }
    }
}

/// The member that a guest called `name` hangs from first.
fn host_of(name: &str, members: usize) -> usize {
    let members = u64::try_from(members.max(1)).unwrap_or(u64::MAX);
    usize::try_from(digest(name.as_bytes()) % members).unwrap_or(0)
}

fn fingerprint(members: &[Member], forest: &Forest) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for Member { name, .. } in members {
        hasher.update(&number(name.len()).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    for root in forest.roots() {
        hasher.update(&number(*root).to_le_bytes());
    }
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    fingerprint
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("a member's name has 1 to 255 bytes: {name:?}"));
    }
    Ok(())
}

/// Ranks travel as `u32`; lists are far shorter.
fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(len: usize) -> Vec<Member> {
        (0..len)
            .map(|i| Member {
                name: format!("n{i}"),
                address: format!("n{i}:1"),
            })
            .collect()
    }

    fn membership(identity: NodeIdentity) -> Membership {
        Membership::new(members(7), 2, vec![0, 3], identity).unwrap()
    }

    #[test]
    fn only_ancestors_take_a_node_in() {
        let leaf = membership(NodeIdentity::Member(6));
        for (rank, tree, welcome) in [
            (2, 0, true),
            (0, 0, true),
            (1, 0, false),
            (6, 0, false),
            (4, 1, true),
            (3, 1, true),
            (2, 1, false),
        ] {
            let above = membership(NodeIdentity::Member(rank));
            assert_eq!(
                above.check(&leaf.hello(tree)).is_ok(),
                welcome,
                "{rank} in {tree}"
            );
        }
        assert!(membership(NodeIdentity::Member(2)).is_own_child(0, &NodeId::Member(6)));
        assert!(!membership(NodeIdentity::Member(0)).is_own_child(0, &NodeId::Member(6)));
        assert!(
            membership(NodeIdentity::Member(0))
                .check(&leaf.hello(9))
                .is_err()
        );
    }

    #[test]
    fn a_guest_hangs_below_the_member_that_its_name_picks() {
        let guest = membership(NodeIdentity::Guest("late".into()));
        let host = guest.ancestors(0)[0];
        let above = membership(NodeIdentity::Member(host));
        assert_eq!(
            above.check(&guest.hello(0)),
            Ok(NodeId::Guest("late".into()))
        );
        assert_eq!(guest.ancestors(0).last(), Some(&0));
        assert_eq!(guest.ancestors(1).last(), Some(&3));
        assert!(above.is_within(1, &guest.id(), &NodeId::Member(3)));
        assert!(Membership::new(members(3), 2, vec![0], NodeIdentity::Guest("n1".into())).is_err());
        let mut impostor = guest.hello(0);
        impostor.name = "n1".into();
        assert!(above.check(&impostor).is_err());
    }

    #[test]
    fn lists_that_differ_are_refused() {
        let above = membership(NodeIdentity::Member(0));
        let other_roots =
            Membership::new(members(7), 2, vec![0, 4], NodeIdentity::Member(1)).unwrap();
        assert!(
            above
                .check(&other_roots.hello(0))
                .unwrap_err()
                .contains("roots")
        );
        let mut renamed = members(7);
        renamed[5].name = "m5".into();
        let renamed = Membership::new(renamed, 2, vec![0, 3], NodeIdentity::Member(1)).unwrap();
        assert!(above.check(&renamed.hello(0)).is_err());
    }
}
