//! Directories, in pages of `getdents`.
//!
//! Names and types come first, on one thread. Attributes follow for a directory that fits into the
//! answer whole and has few enough entries; an entry that vanished in between is dropped, and one whose
//! attributes do not come in time goes without.

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

/// Buffer of one `getdents`, in bytes: some 1,500 entries a call.
const GETDENTS_BYTES: usize = 64 << 10;

/// What one thread brings of a directory.
struct Page {
    dir: Arc<OwnedFd>,
    directory: Attributes,
    /// Names; a type of `None` is one that the filesystem did not tell.
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
    let wanted: Vec<usize> = if whole && page.next.is_none() && few {
        (0..page.entries.len()).collect()
    } else {
        let unknown = |index: &usize| page.entries[*index].1.is_none();
        (0..page.entries.len()).filter(unknown).collect()
    };
    let names = wanted
        .iter()
        .map(|&index| page.entries[index].0.clone())
        .collect();
    let deadline = Instant::now() + shared.listing_attributes_timeout;
    let answers = stat::entries(&shared, dir, page.dir, names, deadline).await;

    let mut found = vec![None; page.entries.len()];
    for (index, answer) in wanted.into_iter().zip(answers) {
        found[index] = answer;
    }
    let entries = page
        .entries
        .into_iter()
        .zip(found)
        .filter_map(|((name, kind), answer)| entry(name, kind, answer))
        .collect();
    Ok(Listing {
        directory: page.directory,
        entries,
        next: page.next,
    })
}

/// One entry, unless it vanished.
fn entry(
    name: Bytes,
    kind: Option<FileKind>,
    answer: Option<Result<Attributes, Failure>>,
) -> Option<Entry> {
    let attributes = match answer {
        Some(Ok(attributes)) => Some(attributes),
        Some(Err(failure)) if failure.kind == FailureKind::NotFound => return None,
        Some(Err(_)) | None => None,
    };
    let kind = match &attributes {
        // Between the two looks the name may have changed its type: the later look holds.
        Some(attributes) => attributes.kind,
        // Neither getdents nor stat told: most names are files, and a later stat will say.
        None => kind.unwrap_or(FileKind::File),
    };
    Some(Entry {
        name,
        kind,
        attributes,
    })
}

fn read_page(
    shared: &Shared,
    path: &ItemPath,
    cursor: Option<&Cursor>,
    limit: usize,
) -> Result<Page, Failure> {
    let failed = |errno| shared.failure(ACTION, path, errno);
    shared.follow_root();
    let dir = shared
        .open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(failed)?;
    let directory = attributes(shared, path, &dir, b"").map_err(failed)?;
    if let Some(cursor) = cursor {
        let offset = offset_of(cursor, directory.version).ok_or_else(|| failed(Errno::STALE))?;
        seek(&dir, SeekFrom::Start(offset)).map_err(failed)?;
    }
    let hidden = shared.exclusion.now();
    let hides = |name: &[u8]| {
        !hidden.is_empty() && path.join(name).is_ok_and(|child| hidden.covers(&child))
    };
    let mut entries = Vec::new();
    let mut next = None;
    let mut offset = 0;
    let mut buffer = Vec::with_capacity(GETDENTS_BYTES);
    let mut raw = RawDir::new(&dir, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || hides(name) {
            continue;
        }
        if entries.len() >= limit {
            next = Some(cursor_at(offset, directory.version));
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

/// The filesystem's own cookie, and the directory that it belongs to.
fn cursor_at(offset: u64, directory: Version) -> Cursor {
    let mut bytes = Vec::with_capacity(8 + Version::BYTES);
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&directory.to_bytes());
    Cursor(bytes.into())
}

fn offset_of(cursor: &Cursor, directory: Version) -> Option<u64> {
    let (offset, version) = cursor.0.split_first_chunk::<8>()?;
    (version == directory.to_bytes()).then_some(u64::from_le_bytes(*offset))
}
