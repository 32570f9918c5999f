//! Arbitrary values of the wire format, from a fuzzer's bytes, for structure-aware fuzzing.

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use copperfs_overlay::wire::message::{Cleared, NodeId, Reported};
use copperfs_overlay::wire::{Head, Hello, Question, Request};
use copperfs_overlay::{Attributes, BundleFile, BundleRequest, ContentHash, Cursor, Entry, Extent, Failure, FailureKind, FileKind, FilesystemUsage, HeldRequest, ITEM_BYTES_MAX, Insertion, ItemPath, ItemRequest, ListingDigest, RangeRequest, ReadRequest, Standing, Timestamp, Version, ListRequest, StatRequest};

/// Bytes, at most `max` of them.
pub fn bytes(from: &mut Unstructured<'_>, max: usize) -> Result<Bytes> {
    let len = from.int_in_range(0..=max.min(from.len()))?;
    Ok(Bytes::copy_from_slice(from.bytes(len)?))
}

/// A path inside the namespace.
pub fn path(from: &mut Unstructured<'_>) -> Result<ItemPath> {
    let text = bytes(from, 300)?;
    Ok(ItemPath::parse(&text).unwrap_or_else(|_| ItemPath::root()))
}

/// A version with any standing.
pub fn version(from: &mut Unstructured<'_>) -> Result<Version> {
    let standing = match from.int_in_range(0..=2)? {
        0 => Standing::Lasting,
        1 => Standing::Launch,
        _ => Standing::Unsettled(u64::arbitrary(from)?),
    };
    let version = Version::from_data(<[u8; 16]>::arbitrary(from)?);
    Ok(version
        .with_change(<[u8; 8]>::arbitrary(from)?)
        .standing_as(standing))
}

fn time(from: &mut Unstructured<'_>) -> Result<Timestamp> {
    Ok(Timestamp {
        seconds: i64::arbitrary(from)?,
        nanoseconds: from.int_in_range(0..=999_999_999)?,
    })
}

fn kind(from: &mut Unstructured<'_>) -> Result<FileKind> {
    use FileKind::*;
    let all = [
        File,
        Directory,
        Symlink,
        Fifo,
        Socket,
        CharDevice,
        BlockDevice,
    ];
    from.choose(&all).copied()
}

/// Attributes that a file can have.
pub fn attributes(from: &mut Unstructured<'_>) -> Result<Attributes> {
    Ok(Attributes {
        kind: kind(from)?,
        mode: u16::arbitrary(from)?,
        uid: u32::arbitrary(from)?,
        gid: u32::arbitrary(from)?,
        links: u32::arbitrary(from)?,
        device: u64::arbitrary(from)?,
        size: u64::arbitrary(from)?,
        blocks: u64::arbitrary(from)?,
        block_size: u32::arbitrary(from)?,
        atime: time(from)?,
        mtime: time(from)?,
        ctime: time(from)?,
        version: version(from)?,
        link_target: if bool::arbitrary(from)? {
            Some(bytes(from, 100)?)
        } else {
            None
        },
        content: content(from)?,
    })
}

fn content(from: &mut Unstructured<'_>) -> Result<Option<ContentHash>> {
    let known = Option::<[u8; 32]>::arbitrary(from)?;
    Ok(known.map(ContentHash))
}

/// An entry of a listing.
pub fn entry(from: &mut Unstructured<'_>) -> Result<Entry> {
    Ok(Entry {
        name: bytes(from, 255)?,
        kind: kind(from)?,
        attributes: if bool::arbitrary(from)? {
            Some(attributes(from)?)
        } else {
            None
        },
    })
}

/// A failure.
pub fn failure(from: &mut Unstructured<'_>) -> Result<Failure> {
    use FailureKind::*;
    let all = [
        NotFound,
        NotADirectory,
        IsADirectory,
        PermissionDenied,
        Stale,
        SymlinkLoop,
        NameTooLong,
        Unsupported,
        Unavailable,
        Corrupt,
        Io,
    ];
    Ok(Failure::new(*from.choose(&all)?, String::arbitrary(from)?))
}

fn cursor(from: &mut Unstructured<'_>) -> Result<Option<Cursor>> {
    Ok(match bool::arbitrary(from)? {
        true => Some(Cursor(bytes(from, 5000)?)),
        false => None,
    })
}

/// A request, valid or not, and its attempt.
pub fn question(from: &mut Unstructured<'_>) -> Result<Question> {
    Ok(Question {
        attempt: u8::arbitrary(from)?,
        request: request(from)?,
    })
}

/// A request, valid or not.
pub fn request(from: &mut Unstructured<'_>) -> Result<Request> {
    let (path, tree) = (path(from)?, u8::arbitrary(from)?);
    Ok(match from.int_in_range(0..=20)? {
        0 => Request::List(ListRequest {
            path,
            cursor: cursor(from)?,
            limit: u32::arbitrary(from)? as usize,
            known: Option::<[u8; 16]>::arbitrary(from)?.map(ListingDigest),
        }),
        1 => {
            let mut names = Vec::new();
            while !from.is_empty() && names.len() < 5000 {
                names.push(bytes(from, 300)?);
            }
            Request::Stat(StatRequest {
                parent: path,
                names,
                denied: if bool::arbitrary(from)? {
                    Some(version(from)?)
                } else {
                    None
                },
            })
        }
        2 => Request::Read(ReadRequest {
            path,
            version: version(from)?,
            size: u64::arbitrary(from)?,
            first_block: u64::arbitrary(from)?,
            block_count: u64::arbitrary(from)?,
            content: content(from)?,
            through: bool::arbitrary(from)?,
        }),
        3 => Request::Xattrs { path },
        4 => Request::Usage { path },
        5 => Request::ClusterReports {
            tree,
            budget_ms: u32::arbitrary(from)?,
        },
        6 => Request::ClusterClear {
            tree,
            path,
            budget_ms: u32::arbitrary(from)?,
        },
        7 => Request::ReportsBelow {
            tree,
            budget_ms: u32::arbitrary(from)?,
        },
        8 => Request::Origins { tree },
        9 => {
            let mut files = Vec::new();
            while !from.is_empty() && files.len() < 3000 {
                files.push(BundleFile {
                    name: bytes(from, 300)?,
                    version: version(from)?,
                    size: u64::arbitrary(from)?,
                    content: content(from)?,
                });
            }
            let directory = path;
            Request::Bundle(BundleRequest { directory, files })
        }
        10 => Request::WarmBelow { tree },
        11 => Request::ReadRange(RangeRequest {
            path,
            version: version(from)?,
            size: u64::arbitrary(from)?,
            offset: u64::arbitrary(from)?,
            len: u64::arbitrary(from)?,
            content: None,
        }),
        12 => Request::Find {
            tree,
            hash: ContentHash(<[u8; 32]>::arbitrary(from)?),
            len: u64::arbitrary(from)?,
        },
        13 => Request::Item(item(from, path)?),
        14 => Request::Steer { tree },
        15 => Request::Command { tree },
        16 => Request::Held(HeldRequest {
            dataset: u64::arbitrary(from)?,
            layout: <[u8; 16]>::arbitrary(from)?,
            known: u64::arbitrary(from)?,
        }),
        17 => Request::Content {
            hash: ContentHash(<[u8; 32]>::arbitrary(from)?),
        },
        18 => Request::Insert {
            hash: ContentHash(<[u8; 32]>::arbitrary(from)?),
            len: u64::arbitrary(from)?,
        },
        19 => Request::Message,
        _ => Request::ClearBelow {
            tree,
            path,
            budget_ms: u32::arbitrary(from)?,
        },
    })
}

fn item(from: &mut Unstructured<'_>, path: ItemPath) -> Result<ItemRequest> {
    // The wanted bytes are often within the item, which random numbers rarely are.
    let item = Extent {
        start: u64::arbitrary(from)?,
        len: from.int_in_range(0..=ITEM_BYTES_MAX + 1)?,
    };
    let before = match bool::arbitrary(from)? {
        true => from.int_in_range(0..=item.len)?,
        false => u64::arbitrary(from)?,
    };
    let wanted = Extent {
        start: item.start.wrapping_add(before),
        len: match bool::arbitrary(from)? {
            true => item.len.saturating_sub(before),
            false => u64::arbitrary(from)?,
        },
    };
    Ok(ItemRequest {
        dataset: u64::arbitrary(from)?,
        path,
        version: version(from)?,
        size: u64::arbitrary(from)?,
        item,
        content: content(from)?,
        wanted,
        job: u128::arbitrary(from)?,
        payment: u64::arbitrary(from)?,
        is_uncached: bool::arbitrary(from)?,
    })
}

/// The beginning of an answer.
pub fn head(from: &mut Unstructured<'_>) -> Result<Head> {
    Ok(match from.int_in_range(0..=10)? {
        0 => Head::Listing {
            directory: attributes(from)?,
            next: cursor(from)?,
            entries: u32::arbitrary(from)?,
            lease_ms: Option::<u32>::arbitrary(from)?,
        },
        1 => Head::Stat {
            answers: u32::arbitrary(from)?,
            lease_ms: Option::<u32>::arbitrary(from)?,
        },
        2 => Head::Xattrs {
            attributes: u32::arbitrary(from)?,
            lease_ms: Option::<u32>::arbitrary(from)?,
        },
        3 => Head::Origins {
            origins: u32::arbitrary(from)?,
        },
        4 => Head::Unchanged {
            lease_ms: Option::<u32>::arbitrary(from)?,
        },
        5 => Head::Item {
            cached: bool::arbitrary(from)?,
            charged: u64::arbitrary(from)?,
            admitted: u64::arbitrary(from)?,
        },
        7 => Head::Held {
            state: u64::arbitrary(from)?,
            bytes: Option::arbitrary(from)?,
        },
        8 => Head::Content {
            bytes: Option::arbitrary(from)?,
        },
        9 => Head::Inserted(*from.choose(&[Insertion::Kept, Insertion::NoRoom, Insertion::Refused])?),
        6 => Head::Unpaid {
            cost: u64::arbitrary(from)?,
        },
        _ => Head::Usage(FilesystemUsage {
            blocks: u64::arbitrary(from)?,
            files: u64::arbitrary(from)?,
            name_max: u32::arbitrary(from)?,
            ..FilesystemUsage::default()
        }),
    })
}

/// A hello.
pub fn hello(from: &mut Unstructured<'_>) -> Result<Hello> {
    Ok(Hello {
        rank: Option::<u32>::arbitrary(from)?,
        tree: u8::arbitrary(from)?,
        members: u32::arbitrary(from)?,
        arity: u32::arbitrary(from)?,
        list: <[u8; 16]>::arbitrary(from)?,
        name: String::arbitrary(from)?,
        reader: bool::arbitrary(from)?,
        lane: u8::arbitrary(from)?,
    })
}

fn node(from: &mut Unstructured<'_>) -> Result<NodeId> {
    Ok(match bool::arbitrary(from)? {
        true => NodeId::Member(u32::arbitrary(from)?),
        false => NodeId::Guest(String::arbitrary(from)?),
    })
}

/// A report.
pub fn reported(from: &mut Unstructured<'_>) -> Result<Reported> {
    Ok(Reported {
        node: node(from)?,
        report: bytes(from, 70_000)?,
    })
}

/// An acknowledgement.
pub fn cleared(from: &mut Unstructured<'_>) -> Result<Cleared> {
    Ok(Cleared {
        node: node(from)?,
        result: match bool::arbitrary(from)? {
            true => Ok(bool::arbitrary(from)?),
            false => Err(failure(from)?),
        },
    })
}
