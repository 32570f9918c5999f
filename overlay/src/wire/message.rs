//! The postcard bodies: hellos, requests, and the heads of answers.

use super::{
    CURSOR_BYTES_MAX, ORIGINS_MAX, READ_BLOCKS_MAX, STAT_NAME_BYTES_MAX, STAT_NAMES_MAX, WireError,
    XATTRS_MAX, at_most, check_name, ensure,
};
use crate::model::{
    Attributes, BLOCK_BYTES, BundleRequest, ContentHash, Cursor, Failure, FilesystemUsage,
    HELD_BYTES_MAX, HeldRequest, ITEM_BYTES_MAX, Insertion, ItemPath, ItemRequest,
    LISTING_ENTRIES_MAX, ListRequest, RangeRequest, ReadRequest, StatRequest,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The introduction of a child, once for every tree in which the receiver is its parent, or of a reader of items,
/// once. The receiver checks that both nodes compute the same forest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The sender's rank; `None` for a guest.
    pub rank: Option<u32>,
    /// The tree in which the sender is a child. Of no meaning for a reader.
    pub tree: u8,
    /// Length of the sender's member list.
    pub members: u32,
    /// The sender's arity.
    pub arity: u32,
    /// A hash of the member list and the roots: [`crate::Membership::fingerprint`].
    pub list: [u8; 16],
    /// The sender's name.
    pub name: String,
    /// The sender is no child, but requests items only.
    pub reader: bool,
    /// The number of the reader's lane, which has a connection of its own, from 0. 0 for a child.
    pub lane: u8,
}

/// A request, and its position in the root order of its item.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The position in the root order ([`crate::Placement`]). A node that forwards the request never lowers it, so that
    /// no request returns to a node that it came from.
    pub attempt: u8,
    /// The request.
    pub request: Request,
}

/// A request. Unless noted otherwise, a child sends it to its parent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// [`crate::Files::list`]: answered by [`Head::Listing`] and pages of [`crate::Entry`], or by
    /// [`Head::Unchanged`].
    List(ListRequest),
    /// [`crate::Files::stat`]: answered by [`Head::Stat`] and pages of `Result<Attributes, Failure>`.
    Stat(StatRequest),
    /// [`crate::Files::read`]: answered by data and end frames.
    Read(ReadRequest),
    /// [`crate::Files::xattrs`]: answered by [`Head::Xattrs`] and pages of `(name, value)`.
    Xattrs {
        /// The file.
        path: ItemPath,
    },
    /// [`crate::Files::usage`]: answered by [`Head::Usage`].
    Usage {
        /// Any path on the filesystem.
        path: ItemPath,
    },
    /// The fingerprint of every origin that the root of `tree` serves.
    Origins {
        /// The tree.
        tree: u8,
    },
    /// The reports of all nodes, collected along `tree`.
    ClusterReports {
        /// The tree.
        tree: u8,
        /// How long the requester waits, in ms from now.
        budget_ms: u32,
    },
    /// All nodes clear `path`, along `tree`.
    ClusterClear {
        /// The tree.
        tree: u8,
        /// The path to clear.
        path: ItemPath,
        /// How long the requester waits, in ms from now.
        budget_ms: u32,
    },
    /// Parent to child: the reports of the child and its subtree in `tree`.
    ReportsBelow {
        /// The tree.
        tree: u8,
        /// How long the requester waits, in ms from now.
        budget_ms: u32,
    },
    /// Parent to child: the child and its subtree in `tree` clear `path`.
    ClearBelow {
        /// The tree.
        tree: u8,
        /// The path to clear.
        path: ItemPath,
        /// How long the requester waits, in ms from now.
        budget_ms: u32,
    },
    /// [`crate::Files::bundle`]: answered by bundle frames and a done frame.
    Bundle(BundleRequest),
    /// All nodes carry out the plan that follows, along `tree`.
    Warm {
        /// The tree.
        tree: u8,
    },
    /// Parent to child: the child and its subtree in `tree` carry out the plan that follows.
    WarmBelow {
        /// The tree.
        tree: u8,
    },
    /// [`crate::Files::read_range`]: answered by data frames and an end frame.
    ReadRange(RangeRequest),
    /// Content by its hash, from the caches of the parent and the nodes above it in `tree`, and never from storage.
    /// Answered by data frames and an end frame, or by `NotFound`.
    Find {
        /// The tree.
        tree: u8,
        /// The hash.
        hash: ContentHash,
        /// Length of the content: 1 to [`BLOCK_BYTES`].
        len: u64,
    },
    /// Reader to home: [`crate::Service::item`]. Answered by [`Head::Item`], data frames and an end
    /// frame, or by [`Head::Unpaid`].
    Item(ItemRequest),
    /// [`crate::Service::steer`]. The stream stays open, and both sides send steering frames.
    Steer {
        /// The tree in which the requester is a child.
        tree: u8,
    },
    /// [`crate::Service::command`]. A steering frame with the command follows; another one answers it.
    Command {
        /// The tree in which the requester is a child.
        tree: u8,
    },
    /// Reader to home: [`crate::Service::held`]. Answered by [`Head::Held`], and if it has bytes by data frames
    /// and an end frame.
    Held(HeldRequest),
    /// Reader to home: [`crate::Service::content`]. Answered by [`Head::Content`], and if it has bytes by data
    /// frames and an end frame.
    Content {
        /// The hash of the item.
        hash: ContentHash,
    },
    /// Reader to home: [`crate::Service::insert`]. Data frames with the item and an end frame follow. Answered by
    /// [`Head::Inserted`].
    Insert {
        /// The hash of the item.
        hash: ContentHash,
        /// Length of the item in bytes: 1 to [`ITEM_BYTES_MAX`].
        len: u64,
    },
    /// Member to member: [`crate::Service::message`]. A steering frame with the message follows; another one
    /// answers it.
    Message,
}

/// The head of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Head {
    /// To [`Request::List`].
    Listing {
        /// Attributes of the directory.
        directory: Attributes,
        /// Where the next page begins.
        next: Option<Cursor>,
        /// Number of entries in the pages.
        entries: u32,
        /// The rest of the lease in ms; `None`: the answer is valid until it is cleared.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Stat`].
    Stat {
        /// Number of answers in the pages.
        answers: u32,
        /// As for a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Xattrs`].
    Xattrs {
        /// Number of attributes in the pages.
        attributes: u32,
        /// As for a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Usage`]: complete, no pages follow.
    Usage(FilesystemUsage),
    /// To [`Request::Origins`].
    Origins {
        /// Number of [`crate::OriginFingerprint`]s in the pages.
        origins: u32,
    },
    /// To [`Request::List`]: the requester's listing is up to date. Complete, no pages follow.
    Unchanged {
        /// As for a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Item`]: the bytes of each block follow, and its hash. See [`crate::ItemAnswer::Bytes`].
    Item {
        /// The home had the bytes before this request.
        cached: bool,
        /// Bytes that were read from the origin for this request.
        charged: u64,
        /// Bytes that the home caches from now on because of this request.
        admitted: u64,
    },
    /// To [`Request::Item`]: the payment is too small. Complete.
    Unpaid {
        /// The cost in bytes.
        cost: u64,
    },
    /// To [`Request::Held`]. See [`crate::HeldAnswer`].
    Held {
        /// Identifies the bits.
        state: u64,
        /// Bytes of the bits, which follow. `None`: the requester has them.
        bytes: Option<u32>,
    },
    /// To [`Request::Content`].
    Content {
        /// Length of the item, whose bytes follow. `None`: the home does not give it.
        bytes: Option<u64>,
    },
    /// To [`Request::Insert`]. Complete.
    Inserted(Insertion),
}

/// The identity of a node on the wire.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NodeId {
    /// A member, by its rank.
    Member(u32),
    /// A guest, by its name.
    Guest(String),
}

/// One node's report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reported {
    /// The node.
    pub node: NodeId,
    /// Its report, at most [`super::REPORT_BYTES_MAX`].
    pub report: Bytes,
}

/// The outcome of a clear at one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cleared {
    /// The node.
    pub node: NodeId,
    /// Whether anything was cached, or why the node could not clear.
    pub result: Result<bool, Failure>,
}

/// Encodes `value` with postcard.
///
/// # Errors
/// Values that postcard cannot encode. This crate has none.
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Bytes, WireError> {
    match postcard::to_stdvec(value) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => {
            tracing::warn!(%error, what, "cannot encode");
            Err(WireError::Malformed { what })
        }
    }
}

/// Encodes a [`Question`] with a borrowed request.
///
/// # Errors
/// As [`encode`].
pub fn encode_question(attempt: u8, request: &Request) -> Result<Bytes, WireError> {
    encode("request", &(attempt, request))
}

/// Decodes a whole body.
///
/// # Errors
/// `Malformed`, also when bytes are left over.
pub fn decode<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        _ => Err(WireError::Malformed { what }),
    }
}

impl Request {
    /// Checks the limits that the types do not express. The requester does so before sending, and the receiver before
    /// anything else.
    ///
    /// # Errors
    /// The first violated limit.
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Self::List(ListRequest { cursor, limit, .. }) => {
                check_cursor(cursor.as_ref())?;
                at_most("entries wanted", *limit, LISTING_ENTRIES_MAX)?;
                ensure(*limit > 0, "a listing of at most 0 entries")
            }
            Self::Stat(StatRequest { names, denied, .. }) => {
                ensure(
                    denied.is_none() || names.len() == 1,
                    "a denied version without a name, or with several names",
                )?;
                at_most("names", names.len(), STAT_NAMES_MAX)?;
                let bytes: usize = names.iter().map(Bytes::len).sum();
                at_most("bytes of names", bytes, STAT_NAME_BYTES_MAX)?;
                let mut names = names.iter().filter(|name| !name.is_empty());
                names.try_for_each(|name| check_name(name))
            }
            Self::Read(request) => {
                at_most("blocks wanted", request.block_count, READ_BLOCKS_MAX)?;
                ensure(request.block_count > 0, "a read of no blocks")?;
                let blocks = request.size.div_ceil(BLOCK_BYTES);
                let end = request.first_block.checked_add(request.block_count);
                ensure(
                    end.is_some_and(|end| end <= blocks),
                    "a read beyond the end of the file",
                )
            }
            Self::ReadRange(request) => sound(request.fault()),
            Self::Find { len, .. } => {
                at_most("bytes sought by hash", *len, BLOCK_BYTES)?;
                ensure(*len > 0, "no bytes sought by hash")
            }
            Self::Bundle(request) => super::bundle::check(request),
            Self::Item(request) => sound(request.fault()),
            Self::Insert { len, .. } => {
                at_most("bytes of an item", *len, ITEM_BYTES_MAX)?;
                ensure(*len > 0, "an item of no bytes")
            }
            // Paths are checked when they are decoded, and numbers of trees when they are used.
            _ => Ok(()),
        }
    }
}

fn sound(fault: Option<&'static str>) -> Result<(), WireError> {
    fault.map_or(Ok(()), |fault| Err(WireError::Impossible(fault)))
}

impl Head {
    /// The number of items in the pages that follow.
    #[must_use]
    pub fn items(&self) -> u32 {
        match self {
            Self::Listing { entries: items, .. }
            | Self::Stat { answers: items, .. }
            | Self::Xattrs {
                attributes: items, ..
            }
            | Self::Origins { origins: items } => *items,
            Self::Usage(_)
            | Self::Unchanged { .. }
            | Self::Item { .. }
            | Self::Unpaid { .. }
            | Self::Held { .. }
            | Self::Content { .. }
            | Self::Inserted(_) => 0,
        }
    }

    /// Checks this head against its request.
    ///
    /// # Errors
    /// Another kind of answer, or more items than requested.
    pub fn check(&self, request: &Request) -> Result<(), WireError> {
        match (self, request) {
            (Self::Listing { next, entries, .. }, Request::List(ListRequest { limit, .. })) => {
                check_cursor(next.as_ref())?;
                at_most("entries of a listing", *entries, *limit)
            }
            (Self::Unchanged { .. }, Request::List(ListRequest { known, .. })) => {
                ensure(known.is_some(), "unchanged, and nothing was known")
            }
            (Self::Stat { answers, .. }, Request::Stat(StatRequest { names, .. })) => ensure(
                usize::try_from(*answers) == Ok(names.len()),
                "another number of answers than of names",
            ),
            (Self::Xattrs { attributes, .. }, Request::Xattrs { .. }) => {
                at_most("extended attributes", *attributes, XATTRS_MAX)
            }
            (Self::Usage(_), Request::Usage { .. })
            | (Self::Item { .. } | Self::Unpaid { .. }, Request::Item(_))
            | (Self::Inserted(_), Request::Insert { .. }) => Ok(()),
            (Self::Content { bytes }, Request::Content { .. }) => {
                at_most("bytes of an item", bytes.unwrap_or(0), ITEM_BYTES_MAX)?;
                ensure(*bytes != Some(0), "an item of no bytes")
            }
            (Self::Held { state, bytes }, Request::Held(HeldRequest { known, .. })) => {
                at_most("bytes of held items", bytes.unwrap_or(0), HELD_BYTES_MAX)?;
                ensure(
                    bytes.is_some() || state == known,
                    "unchanged, and something else was known",
                )
            }
            (Self::Origins { origins }, Request::Origins { .. }) => {
                at_most("origins", *origins, ORIGINS_MAX)
            }
            _ => Err(WireError::Impossible("an answer to another question")),
        }
    }
}

fn check_cursor(cursor: Option<&Cursor>) -> Result<(), WireError> {
    let len = cursor.map_or(0, |cursor| cursor.0.len());
    at_most("bytes of a cursor", len, CURSOR_BYTES_MAX)
}

#[cfg(test)]
mod tests;
