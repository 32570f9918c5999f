//! Directories, in pages of `getdents`.
//!
//! One thread reads names and types. Attributes follow for a directory that fits into the answer whole and
//! has few enough entries. An entry that vanished in between is dropped; an entry whose attributes do not
//! arrive in time has none.

use super::attributes::{attributes, kind_of};
use super::{Shared, stat};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Entry, Failure, FailureKind, FileKind, ItemPath, Listing, Version,
};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, RawDir, SeekFrom, seek};
use rustix::io::Errno;
use std::sync::Arc;
use tokio::time::Instant;

const ACTION: &str = "list";

/// Buffer of one `getdents`, in bytes: some 1,500 entries per call.
const GETDENTS_BYTES: usize = 64 << 10;

/// A page of a directory, without attributes.
struct Page {
    dir: Arc<OwnedFd>,
    directory: Attributes,
    /// Names and types; `None` is a type that the filesystem does not report.
    entries: Vec<(Bytes, Option<FileKind>)>,
    next: Option<Cursor>,
}

/// Answers [`crate::origin::Origin::list`].
pub(super) async fn list(
    shared: Arc<Shared>,
    dir: ItemPath,
    cursor: Option<Cursor>,
    limit: usize,
) -> Result<Listing, Failure> {
    let whole = cursor.is_none();
    let page = Arc::clone(&shared)
        .run(ACTION, dir.clone(), move |shared, dir| {
            read_page(shared, dir, cursor.as_ref(), limit)
        })
        .await?;
    let few = page.entries.len() <= shared.listing_attributes_max;
    let all = whole && page.next.is_none() && few;
    // An unknown type requires a stat in any case.
    let lacking = |(_, kind): &&(Bytes, Option<FileKind>)| all || kind.is_none();
    let names = page.entries.iter().filter(lacking);
    let names = names.map(|(name, _)| name.clone()).collect();
    let deadline = Instant::now() + shared.listing_attributes_timeout;
    let answers = stat::entries(&shared, dir, page.dir, names, deadline).await;
    let mut answers = answers.into_iter();
    let entries = page.entries.into_iter().filter_map(|(name, kind)| {
        let requested = all || kind.is_none();
        let attributes = match requested.then(|| answers.next()).flatten().flatten() {
            Some(Ok(attributes)) => Some(attributes),
            // The entry has vanished.
            Some(Err(failure)) if failure.kind == FailureKind::NotFound => return None,
            Some(Err(_)) | None => None,
        };
        // The name may have changed its type since getdents: the later result is valid.
        let kind = attributes.as_ref().map(|later| later.kind).or(kind);
        Some(Entry {
            name,
            // Neither getdents nor stat has the type. Most names are files, and a later stat will correct it.
            kind: kind.unwrap_or(FileKind::File),
            attributes,
        })
    });
    Ok(Listing {
        directory: page.directory,
        entries: entries.collect(),
        next: page.next,
    })
}

fn read_page(
    shared: &Shared,
    path: &ItemPath,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let failed = |errno| shared.failure(ACTION, path, errno);
    shared.root.follow(&shared.label);
    let dir = shared
        .open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(failed)?;
    let directory = attributes(shared, path, &dir, b"").map_err(failed)?;
    if let Some(cursor) = cursor {
        let offset = offset_of(cursor, directory.version).ok_or_else(|| failed(Errno::STALE))?;
        seek(&dir, SeekFrom::Start(offset)).map_err(failed)?;
    }
    let excluded = shared.exclusion.snapshot();
    let hides = |name: &[u8]| {
        !excluded.is_empty() && path.join(name).is_ok_and(|child| excluded.covers(&child))
    };
    let mut entries = Vec::new();
    let mut next = None;
    let mut offset = 0_u64;
    let mut buffer = Vec::with_capacity(GETDENTS_BYTES);
    let mut raw = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || hides(name) {
            continue;
        }
        if entries.len() >= limit {
            // The cookie of the last entry that is returned: this one is the first of the next page.
            let cursor = [&offset.to_le_bytes()[..], &directory.version.to_bytes()];
            next = Some(Cursor(cursor.concat().into()));
            break;
        }
        offset = entry.next_entry_cookie();
        entries.push((Bytes::copy_from_slice(name), kind_of(entry.file_type())));
    }
    Ok(Page {
        dir: Arc::new(dir),
        directory,
        entries,
        next,
    })
}

/// A cursor has the filesystem's own cookie, and the version of the directory to which it belongs.
fn offset_of(cursor: &Cursor, directory: Version) -> Option<u64> {
    let (offset, version) = cursor.0.split_first_chunk::<8>()?;
    (version == directory.to_bytes()).then_some(u64::from_le_bytes(*offset))
}
