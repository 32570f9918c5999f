//! The cluster and this node's position in it: the member list, its forest, its placement.
//!
//! Every node computes the same membership from the same list, so no node has to ask where its neighbours are.
//! A node that is not in the list, a *guest*, joins below a member that its name selects, and has no
//! children. Pure.

use crate::wire::NAME_BYTES_MAX;
use crate::wire::message::{Hello, NodeId};
use copperfs_topology::{Forest, Placement, digest};
use std::collections::HashSet;
use std::fmt;

/// Most members of a list.
const MEMBERS_MAX: usize = 1 << 20;

/// One node of the member list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its name, unique in the list, at most 255 bytes.
    pub name: String,
    /// `host:port` on which it listens. Resolved at every attempt to connect.
    pub address: String,
}

/// Its name and address, for logs and errors.
impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.address)
    }
}

/// A node's position in the member list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeIdentity {
    /// The member with this rank.
    Member(usize),
    /// Not listed: a guest with this name, which joins a running tree.
    Guest(String),
}

/// The member list and everything that follows from it; see the module.
#[derive(Clone, Debug)]
pub struct Membership {
    members: Vec<Member>,
    forest: Forest,
    placement: Placement,
    identity: NodeIdentity,
    fingerprint: [u8; 16],
}

/// A name that no node can have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a member's name has 1 to 255 bytes: {0:?}")]
pub struct InvalidName(String);

/// Why a member list, its roots and an identity make no [`Membership`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MembershipError {
    /// The list is too long.
    #[error("more than {MEMBERS_MAX} members")]
    TooManyMembers,
    /// No forest has this shape.
    #[error(
        "no trees of arity {arity} below {roots} roots over {members} members: there must be 1 to 64 \
         different roots, all of them members, and an arity of at least 1"
    )]
    NoForest {
        /// Length of the list.
        members: usize,
        /// Most children of a node.
        arity: usize,
        /// Number of roots.
        roots: usize,
    },
    /// A name is too short or too long.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Two members have this name.
    #[error("member {0} is listed twice")]
    Duplicate(String),
    /// This node's rank is not in the list.
    #[error("rank {rank} is not in the list of {members} members (ranks begin at 0)")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// Length of the list.
        members: usize,
    },
    /// A guest has the name of a member.
    #[error("{0} is in the member list, and need not join")]
    GuestIsMember(String),
}

/// Why a node refuses a hello. The text is sent to the peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct HelloError(pub(crate) String);

impl Membership {
    /// The membership of `members` in trees of `arity` below `roots` (ranks), seen from `identity`.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn new(
        members: Vec<Member>,
        arity: usize,
        roots: Vec<usize>,
        identity: NodeIdentity,
    ) -> Result<Self, MembershipError> {
        let len = members.len();
        if len > MEMBERS_MAX {
            return Err(MembershipError::TooManyMembers);
        }
        let no_forest = MembershipError::NoForest {
            members: len,
            arity,
            roots: roots.len(),
        };
        let forest = Forest::new(len, arity, roots).ok_or(no_forest)?;
        let mut names = HashSet::new();
        for Member { name, .. } in &members {
            check_name(name)?;
            if !names.insert(name.as_str()) {
                return Err(MembershipError::Duplicate(name.clone()));
            }
        }
        match &identity {
            NodeIdentity::Member(rank) if *rank >= len => {
                return Err(MembershipError::NoSuchRank {
                    rank: *rank,
                    members: len,
                });
            }
            NodeIdentity::Guest(name) => {
                check_name(name)?;
                if names.contains(name.as_str()) {
                    return Err(MembershipError::GuestIsMember(name.clone()));
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

    /// The root of every item.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.forest.roots().len()
    }

    /// This node's rank; `None` for a guest.
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

    /// This node's identity on the wire.
    #[must_use]
    pub fn id(&self) -> NodeId {
        match &self.identity {
            NodeIdentity::Member(rank) => NodeId::Member(number(*rank)),
            NodeIdentity::Guest(name) => NodeId::Guest(name.clone()),
        }
    }

    /// A hash of the list and its roots. It is equal on nodes that compute the same forest.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 16] {
        self.fingerprint
    }

    /// Whether this node is the root of `tree`.
    #[must_use]
    pub fn is_root_of(&self, tree: usize) -> bool {
        self.rank().is_some() && self.forest.roots().get(tree).copied() == self.rank()
    }

    /// The ranks of this node's ancestors in `tree`, the parent first.
    #[must_use]
    pub fn ancestors(&self, tree: usize) -> Vec<usize> {
        self.ancestors_of(tree, &self.id())
    }

    /// Whether `node` is `top` or one of its descendants in `tree`.
    #[must_use]
    pub fn is_within(&self, tree: usize, node: &NodeId, top: &NodeId) -> bool {
        match top {
            _ if node == top => true,
            NodeId::Member(top) => self.ancestors_of(tree, node).contains(&index(*top)),
            NodeId::Guest(_) => false,
        }
    }

    /// The hello of this node as a child in `tree`.
    #[must_use]
    pub fn hello(&self, tree: usize) -> Hello {
        Hello {
            tree: u8::try_from(tree).unwrap_or(u8::MAX),
            reader: false,
            ..self.hello_as_reader(0)
        }
    }

    /// The hello of this node as a reader of items, over the connection of its `lane`.
    #[must_use]
    pub fn hello_as_reader(&self, lane: usize) -> Hello {
        Hello {
            rank: self.rank().map(number),
            tree: 0,
            members: number(self.members.len()),
            arity: number(self.forest.arity()),
            list: self.fingerprint,
            name: self.name().to_owned(),
            reader: true,
            lane: u8::try_from(lane).unwrap_or(u8::MAX),
        }
    }

    /// Returns the node that sent `hello`, if it may be a child or a reader of this node.
    ///
    /// # Errors
    /// The reason of the refusal. Its text is sent to the peer.
    pub fn check(&self, hello: &Hello) -> Result<NodeId, HelloError> {
        let id = self.identify(hello).map_err(HelloError)?;
        let (own, name, tree) = (self.name(), &hello.name, hello.tree);
        if hello.reader {
            // A reader may be anywhere in the trees, because it gets no requests from this node.
            return match id == self.id() {
                false => Ok(id),
                true => Err(HelloError(format!(
                    "{own} reads from itself over no connection"
                ))),
            };
        }
        let above = self.ancestors_of(usize::from(tree), &id);
        match self.rank() {
            Some(rank) if above.contains(&rank) => Ok(id),
            _ => Err(HelloError(format!(
                "{own} is not above {name:?} in tree {tree}, and takes in nobody who might be above itself"
            ))),
        }
    }

    /// Returns the node that sent `hello`, if it has the same list as this node.
    fn identify(&self, hello: &Hello) -> Result<NodeId, String> {
        let (own, name) = (self.name(), &hello.name);
        let (len, arity) = (self.members.len(), self.forest.arity());
        if hello.members != number(len) || hello.arity != number(arity) {
            return Err(format!(
                "{own} has {len} members and arity {arity}, {name:?} has {} and {}: give all nodes the same \
                 host list and arity",
                hello.members, hello.arity
            ));
        }
        if hello.list != self.fingerprint {
            return Err(format!(
                "{own} and {name:?} have lists of {len} members that differ in names, order or roots: give \
                 all nodes the same list and roots"
            ));
        }
        if let Some(rank) = hello.rank {
            let named = self.members.get(index(rank));
            return match named.is_some_and(|member| member.name == *name) {
                true => Ok(NodeId::Member(rank)),
                false => Err(format!(
                    "rank {rank} is not {name:?} in the host list of {own}: give all nodes the same list"
                )),
            };
        }
        check_name(name).map_err(|invalid| invalid.to_string())?;
        match self.members.iter().any(|member| member.name == *name) {
            true => Err(format!("{name} is a member and cannot join as a guest")),
            false => Ok(NodeId::Guest(name.clone())),
        }
    }

    /// Whether `node` is a listed child of this node in `tree`.
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
                // A guest has one ancestor more than its host: the host itself.
                [vec![host], self.forest.ancestors(tree, host)].concat()
            }
        }
    }
}

/// The rank of the member that is the first ancestor of a guest called `name`.
fn host_of(name: &str, members: usize) -> usize {
    let members = u64::try_from(members.max(1)).unwrap_or(u64::MAX);
    usize::try_from(digest(name.as_bytes()) % members).unwrap_or(0)
}

fn fingerprint(members: &[Member], forest: &Forest) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for Member { name, .. } in members {
        // The length separates the names.
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

fn check_name(name: &str) -> Result<(), InvalidName> {
    match name.len() {
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(InvalidName(name.to_owned())),
    }
}

/// Encodes a rank or a count; lists are far shorter than 2^32.
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
    fn only_ancestors_accept_a_node() {
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
    fn a_guest_joins_below_the_member_that_its_name_selects() {
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
    fn nodes_with_another_list_are_refused() {
        let above = membership(NodeIdentity::Member(0));
        let other_roots =
            Membership::new(members(7), 2, vec![0, 4], NodeIdentity::Member(1)).unwrap();
        assert!(
            above
                .check(&other_roots.hello(0))
                .unwrap_err()
                .to_string()
                .contains("roots")
        );
        let mut renamed = members(7);
        renamed[5].name = "m5".into();
        let renamed = Membership::new(renamed, 2, vec![0, 3], NodeIdentity::Member(1)).unwrap();
        assert!(above.check(&renamed.hello(0)).is_err());
    }
}
