//! The postcard bodies: what is asked, and how an answer begins.

use super::{
    CURSOR_BYTES_MAX, ORIGINS_MAX, READ_BLOCKS_MAX, STAT_NAME_BYTES_MAX, STAT_NAMES_MAX, WireError,
    XATTRS_MAX,
};
use crate::model::{
    Attributes, BLOCK_BYTES, BundleRequest, ContentHash, Cursor, Failure, FilesystemUsage,
    ItemPath, ItemRequest, LISTING_ENTRIES_MAX, ListingDigest, RangeRequest, ReadRequest, Version,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How a child introduces itself, once for every tree in which it hangs from this parent, and how a
/// reader of items does, once. Who is asked checks that both compute the same forest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The child's place in the member list; `None` for one that joins without being listed.
    pub rank: Option<u32>,
    /// In which tree.
    pub tree: u8,
    /// Length of its member list.
    pub members: u32,
    /// Its arity.
    pub arity: u32,
    /// A hash of the member list and the roots: [`crate::Membership::fingerprint`].
    pub list: [u8; 16],
    /// Its name in the list.
    pub name: String,
    /// It hangs from nobody here (`tree` says nothing then): it asks for items only.
    pub reader: bool,
}

/// A question, and how it has come so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Where in the root order of its item the question stands ([`crate::Placement`]): whoever
    /// passes it on never lowers this, so it cannot come back to where it was.
    pub attempt: u8,
    /// What is asked.
    pub request: Request,
}

/// What is asked. The first five go from a child to its parent and ask what [`crate::Files`] asks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// [`crate::Files::list_parts`]: answered by [`Head::Listing`] and pages of [`crate::Entry`], or by
    /// [`Head::Unchanged`].
    List {
        /// The directory.
        path: ItemPath,
        /// Where to go on.
        cursor: Option<Cursor>,
        /// Most entries wanted.
        limit: u32,
        /// Of the listing that the asker holds, if it holds one.
        known: Option<ListingDigest>,
    },
    /// [`crate::Files::stat`]: answered by [`Head::Stat`] and pages of `Result<Attributes, Failure>`.
    Stat {
        /// The directory.
        parent: ItemPath,
        /// Names in it; the empty one is the directory itself.
        names: Vec<Bytes>,
        /// With exactly one name: the version that storage has denied ([`crate::Files::stat_again`]).
        denied: Option<Version>,
    },
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
    /// Child to parent: what the root of `tree` serves, origin by origin.
    Origins {
        /// Which tree.
        tree: u8,
    },
    /// Child to parent: the reports of all nodes, asked along `tree`.
    ClusterReports {
        /// Which tree.
        tree: u8,
        /// When the asker stops waiting, in ms from now.
        budget_ms: u32,
    },
    /// Child to parent: all nodes are to clear, told along `tree`.
    ClusterClear {
        /// Which tree.
        tree: u8,
        /// What.
        path: ItemPath,
        /// When the asker stops waiting, in ms from now.
        budget_ms: u32,
    },
    /// Parent to child: the reports of the child and of all below it in `tree`.
    ReportsBelow {
        /// Which tree.
        tree: u8,
        /// When the asker stops waiting, in ms from now.
        budget_ms: u32,
    },
    /// Parent to child: the child and all below it in `tree` are to clear.
    ClearBelow {
        /// Which tree.
        tree: u8,
        /// What.
        path: ItemPath,
        /// When the asker stops waiting, in ms from now.
        budget_ms: u32,
    },
    /// [`crate::Files::bundle`]: answered by bundle frames and a done frame.
    Bundle(BundleRequest),
    /// Child to parent: all nodes are to carry out the plan that follows, told along `tree`.
    Warm {
        /// Which tree.
        tree: u8,
    },
    /// Parent to child: the child and all below it in `tree` are to carry out the plan that follows.
    WarmBelow {
        /// Which tree.
        tree: u8,
    },
    /// [`crate::Files::read_range`]: answered by data frames and an end frame.
    ReadRange(RangeRequest),
    /// Child to parent: bytes with this hash, from the caches of the parent and of those above it in
    /// `tree`; storage is not asked. Answered by data frames and an end frame, or by `NotFound`.
    Find {
        /// Which tree.
        tree: u8,
        /// What they hash to.
        hash: ContentHash,
        /// How many they are: 1 to [`BLOCK_BYTES`].
        len: u64,
    },
    /// Reader to home: [`crate::Service::item`]. Answered by [`Head::Item`], data frames and an end
    /// frame, or by [`Head::Unpaid`].
    Item(ItemRequest),
    /// Child to parent: [`crate::Service::steer`]. The stream stays open; both sides send steering
    /// frames.
    Steer {
        /// In which tree the child hangs from the parent.
        tree: u8,
    },
    /// Child to parent: [`crate::Service::command`]. A steering frame with the command follows, and
    /// answers it.
    Command {
        /// In which tree.
        tree: u8,
    },
}

/// The first frame of an answer that has one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Head {
    /// To [`Request::List`].
    Listing {
        /// Attributes of the directory.
        directory: Attributes,
        /// Where to go on.
        next: Option<Cursor>,
        /// How many entries the pages hold.
        entries: u32,
        /// What remains of the lease in ms; `None`: it lasts until it is cleared.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Stat`].
    Stat {
        /// How many answers the pages hold.
        answers: u32,
        /// As that of a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Xattrs`].
    Xattrs {
        /// How many attributes the pages hold.
        attributes: u32,
        /// As that of a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Usage`]: complete, no pages follow.
    Usage(FilesystemUsage),
    /// To [`Request::Origins`].
    Origins {
        /// How many [`crate::OriginFingerprint`]s the pages hold.
        origins: u32,
    },
    /// To [`Request::List`]: the asker's own listing is right. Complete, no pages follow.
    Unchanged {
        /// As that of a listing.
        lease_ms: Option<u32>,
    },
    /// To [`Request::Item`]: the bytes follow. As [`crate::ItemAnswer::Bytes`].
    Item {
        /// The home had them before it was asked.
        cached: bool,
        /// Bytes that were read from the origin for this request.
        charged: u64,
        /// Bytes that the home keeps from now on because of it.
        admitted: u64,
    },
    /// To [`Request::Item`]: the payment is too small. Complete.
    Unpaid {
        /// What it costs, in bytes.
        cost: u64,
    },
}

/// A node, as answers to the whole tree name it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum NodeId {
    /// By its place in the member list.
    Member(u32),
    /// One that has joined without being listed, by name.
    Guest(String),
}

/// One node's report of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reported {
    /// Which node.
    pub node: NodeId,
    /// Its report, at most [`super::REPORT_BYTES_MAX`].
    pub report: Bytes,
}

/// Acknowledges a clear.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cleared {
    /// Which node.
    pub node: NodeId,
    /// Whether anything was cached, or why the node could not clear it.
    pub result: Result<bool, Failure>,
}

/// The postcard bytes of `value`.
///
/// # Errors
/// Values that postcard cannot encode; none of this crate's.
pub fn encode<T: Serialize>(what: &'static str, value: &T) -> Result<Bytes, WireError> {
    match postcard::to_stdvec(value) {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) => {
            tracing::warn!(%error, what, "cannot encode");
            Err(WireError::Malformed { what })
        }
    }
}

/// The postcard bytes of a [`Question`] about a borrowed request.
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
    /// Checks everything that the types do not say: done by the asker before sending and by the
    /// answerer before anything else.
    ///
    /// # Errors
    /// What is out of bounds.
    pub fn check(&self) -> Result<(), WireError> {
        match self {
            Self::List { cursor, limit, .. } => {
                check_cursor(cursor.as_ref())?;
                let limit = u64::from(*limit);
                bounded("entries wanted", limit, LISTING_ENTRIES_MAX as u64)?;
                if limit == 0 {
                    return Err(WireError::Impossible("a listing of at most 0 entries"));
                }
                Ok(())
            }
            Self::Stat { names, denied, .. } => match (denied, names.len()) {
                (Some(_), 0 | 2..) => Err(WireError::Impossible(
                    "a denied version without a name, or with several names",
                )),
                _ => check_names(names),
            },
            Self::Read(request) => check_read(request),
            Self::ReadRange(request) => match request.fault() {
                Some(fault) => Err(WireError::Impossible(fault)),
                None => Ok(()),
            },
            Self::Find { len, .. } => {
                bounded("bytes sought by hash", *len, BLOCK_BYTES)?;
                if *len == 0 {
                    return Err(WireError::Impossible("no bytes sought by hash"));
                }
                Ok(())
            }
            Self::Bundle(request) => super::bundle::check(request),
            Self::Item(request) => match request.fault() {
                Some(fault) => Err(WireError::Impossible(fault)),
                None => Ok(()),
            },
            Self::Xattrs { .. }
            | Self::Usage { .. }
            | Self::Origins { .. }
            | Self::ClusterReports { .. }
            | Self::ClusterClear { .. }
            | Self::ReportsBelow { .. }
            | Self::ClearBelow { .. }
            | Self::Warm { .. }
            | Self::WarmBelow { .. }
            | Self::Steer { .. }
            | Self::Command { .. } => Ok(()),
        }
    }
}

impl Head {
    /// How many items the pages behind this head hold.
    #[must_use]
    pub fn items(&self) -> u32 {
        match self {
            Self::Listing { entries: items, .. }
            | Self::Stat { answers: items, .. }
            | Self::Xattrs {
                attributes: items, ..
            }
            | Self::Origins { origins: items } => *items,
            Self::Usage(_) | Self::Unchanged { .. } | Self::Item { .. } | Self::Unpaid { .. } => 0,
        }
    }

    /// Checks this head against what was asked.
    ///
    /// # Errors
    /// Another kind of answer, or more of it than was asked for.
    pub fn check(&self, request: &Request) -> Result<(), WireError> {
        match (self, request) {
            (Self::Listing { next, entries, .. }, Request::List { limit, .. }) => {
                check_cursor(next.as_ref())?;
                bounded(
                    "entries of a listing",
                    u64::from(*entries),
                    u64::from(*limit),
                )
            }
            (Self::Unchanged { .. }, Request::List { known, .. }) => {
                if known.is_some() {
                    return Ok(());
                }
                Err(WireError::Impossible("unchanged, and nothing was known"))
            }
            (Self::Stat { answers, .. }, Request::Stat { names, .. }) => {
                if usize::try_from(*answers) == Ok(names.len()) {
                    return Ok(());
                }
                Err(WireError::Impossible(
                    "another number of answers than of names",
                ))
            }
            (Self::Xattrs { attributes, .. }, Request::Xattrs { .. }) => bounded(
                "extended attributes",
                u64::from(*attributes),
                XATTRS_MAX as u64,
            ),
            (Self::Usage(_), Request::Usage { .. })
            | (Self::Item { .. } | Self::Unpaid { .. }, Request::Item(_)) => Ok(()),
            (Self::Origins { origins }, Request::Origins { .. }) => {
                bounded("origins", u64::from(*origins), ORIGINS_MAX as u64)
            }
            _ => Err(WireError::Impossible("an answer to another question")),
        }
    }
}

fn bounded(what: &'static str, got: u64, max: u64) -> Result<(), WireError> {
    if got > max {
        return Err(WireError::TooMany { what, got, max });
    }
    Ok(())
}

fn check_cursor(cursor: Option<&Cursor>) -> Result<(), WireError> {
    let len = cursor.map_or(0, |cursor| cursor.0.len());
    bounded("bytes of a cursor", len as u64, CURSOR_BYTES_MAX as u64)
}

fn check_names(names: &[Bytes]) -> Result<(), WireError> {
    bounded("names", names.len() as u64, STAT_NAMES_MAX as u64)?;
    let bytes: usize = names.iter().map(Bytes::len).sum();
    bounded("bytes of names", bytes as u64, STAT_NAME_BYTES_MAX as u64)?;
    for name in names.iter().filter(|name| !name.is_empty()) {
        if ItemPath::check_name(name).is_err() {
            return Err(WireError::Impossible("a name that no file can have"));
        }
    }
    Ok(())
}

fn check_read(request: &ReadRequest) -> Result<(), WireError> {
    bounded("blocks wanted", request.block_count, READ_BLOCKS_MAX)?;
    if request.block_count == 0 {
        return Err(WireError::Impossible("a read of no blocks"));
    }
    let blocks = request.size.div_ceil(BLOCK_BYTES);
    match request.first_block.checked_add(request.block_count) {
        Some(end) if end <= blocks => Ok(()),
        _ => Err(WireError::Impossible("a read beyond the end of the file")),
    }
}

#[cfg(test)]
mod tests;
