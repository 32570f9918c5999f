//! Finds the files of a dataset, with their sizes and versions: in storage, or in an index.

use super::ManifestError;
use super::items::DatasetFile;
use crate::index::format::EntryRange;
use crate::index::walk::Walker;
use crate::index::{Index, IndexedEntry};
use bytes::Bytes;
use copperfs_overlay::{Attributes, Entry, Failure, FailureKind, FileKind, ItemPath, parts_of};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Directories that are listed at the same time.
const DIRECTORIES_AT_A_TIME: usize = 64;
/// Entries read from an index at a time.
const INDEX_ENTRIES: usize = 4096;

/// The source of a dataset's names.
pub enum Names {
    /// Storage, which is listed.
    Storage(Walker),
    /// An index.
    Index {
        /// The index.
        index: Box<Index>,
        /// The dataset's root in it.
        root: ItemPath,
        /// Paths that are not files of the dataset, such as the manifest itself.
        own: Vec<ItemPath>,
    },
}

/// The root of the dataset at `uri` in the tree that `index` is of.
///
/// # Errors
/// `OtherTree`.
pub fn root_in(index: &Index, uri: &str) -> Result<ItemPath, ManifestError> {
    let of = index.tail.uri.trim_end_matches('/');
    let below = uri.trim_end_matches('/').strip_prefix(of);
    // `s3://bucket/set` is not a part of `s3://bucket/settle`.
    let below = below.filter(|below| below.is_empty() || below.starts_with('/'));
    let root = below.and_then(|below| ItemPath::parse(below.as_bytes()).ok());
    root.ok_or_else(|| ManifestError::OtherTree {
        index: index.name(),
        of: index.tail.uri.clone(),
        uri: uri.to_owned(),
    })
}

impl Names {
    /// All files of the dataset, in any order. `found` counts them. Links and special files are left out, because no
    /// item of a dataset is one.
    ///
    /// # Errors
    /// A directory cannot be listed, a file keeps changing, or the index cannot be read.
    pub async fn all(&self, found: &AtomicU64) -> Result<Vec<DatasetFile>, ManifestError> {
        match self {
            Self::Storage(walker) => walked(walker, found).await,
            Self::Index { index, root, own } => {
                let mut files = indexed(index, root, found).await?;
                files.retain(|file| !own.contains(&file.path));
                Ok(files)
            }
        }
    }

    /// The files at `paths`, in this order; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`Names::all`].
    pub async fn at(&self, paths: &[ItemPath]) -> Result<Vec<Option<DatasetFile>>, ManifestError> {
        let mut directories: BTreeMap<ItemPath, Vec<(usize, Bytes)>> = BTreeMap::new();
        for (number, path) in paths.iter().enumerate() {
            // The root is no file.
            if let Some((parent, name)) = path.split() {
                let names = directories.entry(parent).or_default();
                names.push((number, Bytes::copy_from_slice(name)));
            }
        }
        let mut files = vec![None; paths.len()];
        for (directory, names) in directories {
            let found = match self {
                Self::Storage(walker) => looked_up(walker, &directory, &names).await?,
                Self::Index { index, root, .. } => {
                    looked_up_in(index, root, &directory, &names).await?
                }
            };
            for (number, name) in names {
                files[number] = found.get(&name).cloned();
            }
        }
        Ok(files)
    }
}

/// The file `entry` of `directory` in storage. Returns `None` for anything else than a file.
fn in_storage(directory: &ItemPath, entry: Entry) -> Result<Option<DatasetFile>, ManifestError> {
    // No request can name a path that is too long, so no job reads it.
    let Ok(path) = directory.join(&entry.name) else {
        return Ok(None);
    };
    match entry.attributes {
        _ if entry.kind != FileKind::File => Ok(None),
        Some(found) if found.version.is_settled() => Ok(Some(file(path, &found))),
        Some(_) => Err(ManifestError::Unsettled { path }),
        None => {
            let failure = Failure::new(FailureKind::Io, "its attributes cannot be read");
            Err(ManifestError::Listing { path, failure })
        }
    }
}

fn file(path: ItemPath, found: &Attributes) -> DatasetFile {
    DatasetFile {
        path,
        size: found.size,
        version: found.version,
        content: found.content,
        parts: Box::default(),
    }
}

/// The file `name` of the directory at `place` in `index`.
async fn indexed_file(
    index: &Index,
    place: &EntryRange,
    name: &[u8],
    path: ItemPath,
    found: &Attributes,
) -> Result<DatasetFile, ManifestError> {
    let mut file = file(path, found);
    if file.content.is_some() && parts_of(file.size) > 0 {
        file.parts = index.parts(place, name).await?.into();
    }
    Ok(file)
}

async fn walked(walker: &Walker, found: &AtomicU64) -> Result<Vec<DatasetFile>, ManifestError> {
    let mut files = Vec::new();
    // A stack keeps the number of waiting directories small in deep trees.
    let mut waiting = vec![ItemPath::root()];
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < DIRECTORIES_AT_A_TIME
            && let Some(directory) = waiting.pop()
        {
            running.push(async move {
                let listed = walker.list(&directory).await;
                (directory, listed)
            });
        }
        let Some((path, listed)) = running.next().await else {
            return Ok(files);
        };
        let entries = match listed {
            Ok((_, entries)) => entries,
            // A directory that was removed during the walk has no files.
            Err(failure) if failure.kind == FailureKind::NotFound && !path.is_root() => continue,
            Err(failure) => return Err(ManifestError::Listing { path, failure }),
        };
        for entry in entries {
            if entry.kind == FileKind::Directory {
                waiting.extend(path.join(&entry.name));
            }
            files.extend(in_storage(&path, entry)?);
        }
        found.store(files.len() as u64, Ordering::Relaxed);
    }
}

async fn looked_up(
    walker: &Walker,
    directory: &ItemPath,
    names: &[(usize, Bytes)],
) -> Result<BTreeMap<Bytes, DatasetFile>, ManifestError> {
    let wanted = names.iter().map(|(_, name)| name.clone()).collect();
    let entries = match walker.look_up(directory, wanted).await {
        Ok(entries) => entries,
        Err(failure) if is_absence(failure.kind) => Vec::new(),
        Err(failure) => {
            let path = directory.clone();
            return Err(ManifestError::Listing { path, failure });
        }
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let name = entry.name.clone();
        found.extend(in_storage(directory, entry)?.map(|file| (name, file)));
    }
    Ok(found)
}

fn is_absence(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::NotFound | FailureKind::NotADirectory)
}

fn not_indexed(index: &Index, path: ItemPath) -> ManifestError {
    ManifestError::NotIndexed {
        index: index.name(),
        path,
    }
}

/// `below`, which is relative to `root`, as a path of the index.
fn full(root: &ItemPath, below: &ItemPath) -> Option<ItemPath> {
    let mut names = below.components();
    names.try_fold(root.clone(), |path, name| path.join(name).ok())
}

async fn indexed(
    index: &Index,
    root: &ItemPath,
    found: &AtomicU64,
) -> Result<Vec<DatasetFile>, ManifestError> {
    let mut files = Vec::new();
    let mut directories = vec![ItemPath::root()];
    while let Some(directory) = directories.pop() {
        let Some(in_index) = full(root, &directory) else {
            continue;
        };
        let record = index.directory(&in_index).await?;
        let place = record.and_then(|record| record.place);
        let place = place.ok_or_else(|| not_indexed(index, directory.clone()))?;
        let mut after: Option<Bytes> = None;
        loop {
            let page = index.entries(&place, after.as_deref(), INDEX_ENTRIES);
            let (entries, more) = page.await?;
            after = entries.last().map(|last| last.entry.name.clone());
            for IndexedEntry { entry, .. } in entries {
                let Ok(path) = directory.join(&entry.name) else {
                    continue;
                };
                match (entry.kind, &entry.attributes) {
                    (FileKind::Directory, _) => directories.push(path),
                    (FileKind::File, Some(known)) => {
                        files.push(indexed_file(index, &place, &entry.name, path, known).await?);
                    }
                    (FileKind::File, None) => return Err(not_indexed(index, path)),
                    _ => {}
                }
            }
            found.store(files.len() as u64, Ordering::Relaxed);
            if !more || after.is_none() {
                break;
            }
        }
    }
    Ok(files)
}

async fn looked_up_in(
    index: &Index,
    root: &ItemPath,
    directory: &ItemPath,
    names: &[(usize, Bytes)],
) -> Result<BTreeMap<Bytes, DatasetFile>, ManifestError> {
    let mut found = BTreeMap::new();
    let Some(in_index) = full(root, directory) else {
        return Ok(found);
    };
    let Some(record) = index.directory(&in_index).await? else {
        return Ok(found);
    };
    let unlisted = || not_indexed(index, directory.clone());
    let place = record.place.ok_or_else(unlisted)?;
    for (_, name) in names {
        let entry = index.find(&place, name).await?;
        let (Some(IndexedEntry { entry, .. }), Ok(path)) = (entry, directory.join(name)) else {
            continue;
        };
        match (entry.kind, &entry.attributes) {
            (FileKind::File, Some(known)) => {
                let file = indexed_file(index, &place, name, path, known).await?;
                found.insert(name.clone(), file);
            }
            (FileKind::File, None) => return Err(not_indexed(index, path)),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{attributes, path};
    use copperfs_overlay::Standing;

    fn found(
        kind: FileKind,
        attributes: Option<Attributes>,
    ) -> Result<Option<DatasetFile>, String> {
        let name = Bytes::from_static(b"f");
        let entry = Entry {
            name,
            kind,
            attributes,
        };
        in_storage(&path("d"), entry).map_err(|error| error.to_string())
    }

    #[test]
    fn only_files_that_stand_still_are_in_a_manifest() {
        let known = attributes(FileKind::File, 5, 1);
        let wanted = file(path("d/f"), &known);
        assert_eq!(found(FileKind::File, Some(known.clone())), Ok(Some(wanted)));
        for kind in [FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
            assert_eq!(found(kind, Some(attributes(kind, 5, 1))), Ok(None));
        }
        let mut changing = known;
        changing.version = changing.version.standing_as(Standing::Unsettled(3));
        let said = found(FileKind::File, Some(changing)).unwrap_err();
        assert!(said.contains("/d/f changes all the time"), "{said}");
        let said = found(FileKind::File, None).unwrap_err();
        assert!(said.contains("cannot list /d/f"), "{said}");
    }
}
