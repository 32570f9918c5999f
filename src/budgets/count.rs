//! Counting datasets on the allocator's node: items, bytes, and bytes in each slot.
//!
//! A dataset with an index is counted from the index. Otherwise its directories are listed through this
//! node's own read path, so that everything the tree has cached is reused. The count covers what readers
//! can open: a file is an item, and so is each stripe of a larger file; links and special files are not.
//!
//! The bytes homed on each node are sums over slots. So nothing is counted again when nodes join or
//! leave.

use super::counter::{CountError, CountProgress, Counted, Counter};
use super::served::ServedPaths;
use crate::dataset::files::list;
use crate::dataset::{Catalog, Manifests};
use crate::index::serve::TreeFile;
use crate::index::{FileLocation, Index, IndexError, IndexedEntry, LocalFile};
use crate::manifest::{Freshness, Manifest};
use crate::model::slots::stripe_len;
use crate::model::{DatasetDecision, SLOTS, items_of, slot_of};
use crate::num::first_u64;
use crate::read::ReadPath;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Failure, FailureKind, FileKind, Files, ItemPath};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock};

#[cfg(test)]
mod tests;

/// Concurrent directory listings: enough to keep storage busy, and few enough to leave it to others.
const DIRECTORIES_AT_A_TIME: usize = 16;
/// Files of a manifest that are compared with storage when it is counted, evenly spread.
const FILES_COMPARED: usize = 100;
/// Entries read from an index at a time.
const INDEX_ENTRIES: usize = 4096;

/// Counts datasets that this node can reach. Cheap to clone.
#[derive(Clone)]
pub struct DatasetCounter {
    served: Arc<ServedPaths>,
    manifests: Manifests,
    /// Answers requests for an index's attributes.
    source: Arc<dyn Files>,
    /// This node's read path, without which nothing can be counted.
    read: Arc<OnceLock<ReadPath>>,
}

impl DatasetCounter {
    /// Creates a counter of datasets in `served`. `source` is asked for the attributes of indexes;
    /// listings and indexes are read through `read`.
    #[must_use]
    pub fn new(served: ServedPaths, source: Arc<dyn Files>, read: Arc<OnceLock<ReadPath>>) -> Self {
        Self {
            served: Arc::new(served),
            manifests: Manifests::new(Arc::clone(&source), Arc::clone(&read)),
            source,
            read,
        }
    }

    /// Counts the entries of the manifest at `manifest`. Items of equal content count once, because they
    /// are kept once.
    async fn named(
        self,
        path: ItemPath,
        manifest: ItemPath,
        mut tally: Tally,
    ) -> Result<Counted, CountError> {
        // Before the manifest is read: one that is replaced meanwhile is then detected as another one.
        let source = attributes(&*self.source, &manifest).await;
        let source = source.map_err(|failure| listing_error(&manifest, failure))?;
        let catalog = Catalog::new(self.manifests.load(&manifest).await?);
        self.check_files(&path, catalog.manifest()).await?;
        for (item, len) in catalog.items() {
            tally.item(item.slot(), len);
        }
        Ok(Counted {
            identity: Some(*catalog.manifest().identity()),
            entries: catalog.manifest().len() as u64,
            source: digest(&source.version.to_bytes()),
            ..tally.counted
        })
    }

    /// Compares some files of a manifest with storage. A reader compares every item anyway; this finds a
    /// manifest of other files at once.
    async fn check_files(&self, path: &ItemPath, manifest: &Manifest) -> Result<(), CountError> {
        let step = manifest.files().div_ceil(FILES_COMPARED);
        for file in (0..manifest.files()).step_by(step) {
            let file = u32::try_from(file).unwrap_or(u32::MAX);
            let names = manifest
                .path(file)
                .unwrap_or_default()
                .split(|byte| *byte == b'/');
            let full = names
                .into_iter()
                .try_fold(path.clone(), |path, name| path.join(name));
            let full = full.map_err(|_invalid| CountError::OtherDataset { path: path.clone() })?;
            match attributes(&*self.source, &full).await {
                Ok(now) if manifest.freshness(file, &now) == Freshness::Changed => {
                    return Err(CountError::OlderManifest { path: full });
                }
                Ok(_) => {}
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    return Err(CountError::OtherDataset { path: full });
                }
                Err(failure) => return Err(listing_error(&full, failure)),
            }
        }
        Ok(())
    }

    async fn counted(
        self,
        dataset: DatasetDecision,
        progress: Arc<CountProgress>,
    ) -> Result<Counted, CountError> {
        let tally = Tally::new(progress);
        let path = dataset.path;
        if let Some(manifest) = dataset.manifest {
            return self.named(path, manifest, tally).await;
        }
        let Some(index) = dataset.index else {
            let read = self.read.get().ok_or_else(|| {
                let detail = "the node has not started yet";
                listing_error(&path, Failure::new(FailureKind::Unavailable, detail))
            })?;
            return walk(Arc::new(read.clone()), path, tally).await;
        };
        // Before the index is read: an index that is replaced meanwhile is then detected as another one.
        let source = self.source_of(&index, &path).await?;
        let opened = match self.locate(&index, &path)? {
            FileLocation::Local(file) => Index::open(Arc::new(LocalFile::open(&file)?)).await?,
            FileLocation::Tree(file) => {
                let (source, read) = (Arc::clone(&self.source), Arc::clone(&self.read));
                TreeFile::new(file, source, read).index().await?
            }
        };
        let mut counted = self.indexed(&opened, &path, tally).await?;
        counted.source = source;
        Ok(counted)
    }

    fn locate(&self, index: &str, of: &ItemPath) -> Result<FileLocation, IndexError> {
        let located = self.served.locate_file(index, of);
        located.map_err(|error| {
            let failure = Failure::new(FailureKind::Unsupported, error.to_string());
            unreadable(index, failure)
        })
    }

    /// Returns a number that identifies the state of the index.
    async fn source_of(&self, index: &str, of: &ItemPath) -> Result<u64, IndexError> {
        match self.locate(index, of)? {
            FileLocation::Local(file) => {
                let found = tokio::fs::metadata(file).await;
                let meta = found.map_err(|source| IndexError::Io {
                    action: "look at the index",
                    path: index.into(),
                    source,
                })?;
                let [time, nanos] = [meta.mtime(), meta.mtime_nsec()].map(i64::cast_unsigned);
                let identity = [meta.len(), time, nanos, meta.ino()];
                Ok(digest(&identity.map(u64::to_le_bytes).concat()))
            }
            FileLocation::Tree(file) => {
                let found = attributes(&*self.source, &file).await;
                let found = found.map_err(|failure| unreadable(index, failure))?;
                Ok(digest(&found.version.to_bytes()))
            }
        }
    }

    async fn indexed(
        &self,
        index: &Index,
        path: &ItemPath,
        mut tally: Tally,
    ) -> Result<Counted, CountError> {
        // The path in the namespace of the tree that the index covers. If no origin serves that tree, it
        // is assumed to be the dataset itself.
        let located = self.served.locate(&index.tail.uri);
        let top = located.map_or(path.clone(), |location| location.path);
        let below = path.strip_prefix(&top);
        let below = below.ok_or_else(|| CountError::OtherTree {
            index: index.name(),
            of: index.tail.uri.clone(),
            path: path.clone(),
        })?;
        // Each with its path in the index and in the namespace.
        let mut directories = vec![(below, path.clone())];
        while let Some((directory, full)) = directories.pop() {
            tally.progress.lock().directories += 1;
            let Some(record) = index.directory(&directory).await? else {
                return Err(CountError::NotIndexed {
                    index: index.name(),
                    path: full,
                });
            };
            let Some(place) = record.place else {
                let detail = "the index could not list this directory when it was made";
                let failure = Failure::new(FailureKind::PermissionDenied, detail);
                return Err(listing_error(&full, failure));
            };
            let mut after: Option<Bytes> = None;
            loop {
                let page = index.entries(&place, after.as_deref(), INDEX_ENTRIES);
                let (entries, more) = page.await?;
                for IndexedEntry { entry, .. } in &entries {
                    // No request can name a path that is too long, so no job reads it.
                    let Ok(full) = full.join(&entry.name) else {
                        continue;
                    };
                    match (&entry.attributes, entry.kind) {
                        (_, FileKind::Directory) => {
                            let below = directory.join(&entry.name);
                            directories.extend(below.map(|below| (below, full)));
                        }
                        (Some(found), FileKind::File) => tally.file(&full, found.size),
                        _ => {}
                    }
                }
                after = entries.last().map(|last| last.entry.name.clone());
                if !more || after.is_none() {
                    break;
                }
            }
        }
        Ok(tally.counted)
    }
}

impl Counter for DatasetCounter {
    fn count(
        &self,
        dataset: &DatasetDecision,
        progress: Arc<CountProgress>,
    ) -> BoxFuture<'static, Result<Counted, CountError>> {
        self.clone().counted(dataset.clone(), progress).boxed()
    }

    fn is_outdated(&self, dataset: &DatasetDecision, source: u64) -> BoxFuture<'static, bool> {
        let (this, index, path) = (self.clone(), dataset.index.clone(), dataset.path.clone());
        let manifest = dataset.manifest.clone();
        async move {
            if let Some(manifest) = manifest {
                let current = attributes(&*this.source, &manifest).await;
                return current.is_ok_and(|now| digest(&now.version.to_bytes()) != source);
            }
            // Listings do not change until they are cleared, so only a count from an index can be outdated.
            let Some(index) = index else { return false };
            let current = this.source_of(&index, &path).await;
            // An index that cannot be reached now does not invalidate the count.
            current.is_ok_and(|current| current != source)
        }
        .boxed()
    }
}

fn digest(identity: &[u8]) -> u64 {
    first_u64(blake3::hash(identity).as_bytes())
}

fn unreadable(index: &str, failure: Failure) -> IndexError {
    let name = index.to_owned();
    IndexError::Read { name, failure }
}

fn listing_error(path: &ItemPath, failure: Failure) -> CountError {
    let path = path.clone();
    CountError::Listing { path, failure }
}

async fn attributes(files: &dyn Files, path: &ItemPath) -> Result<Attributes, Failure> {
    let (parent, name) = match path.split() {
        Some((parent, name)) => (parent, Bytes::copy_from_slice(name)),
        None => (ItemPath::root(), Bytes::new()),
    };
    Ok(files.stat_one(parent, name, None).await?.value)
}

/// The count so far.
struct Tally {
    counted: Counted,
    progress: Arc<CountProgress>,
}

impl Tally {
    fn new(progress: Arc<CountProgress>) -> Self {
        let counted = Counted {
            slots: vec![0; SLOTS],
            ..Counted::default()
        };
        Self { counted, progress }
    }

    fn file(&mut self, path: &ItemPath, size: u64) {
        for stripe in 0..items_of(size) {
            self.item(slot_of(path, stripe), stripe_len(size, stripe));
        }
    }

    fn item(&mut self, slot: u16, len: u64) {
        let bytes = &mut self.counted.slots[usize::from(slot)];
        *bytes = bytes.saturating_add(len);
        self.counted.items += 1;
        self.counted.bytes = self.counted.bytes.saturating_add(len);
        let mut progress = self.progress.lock();
        progress.items += 1;
        progress.bytes += len;
    }
}

/// Counts the file or the tree at `path`.
async fn walk(
    files: Arc<dyn Files>,
    path: ItemPath,
    mut tally: Tally,
) -> Result<Counted, CountError> {
    let top = attributes(&*files, &path).await;
    let top = top.map_err(|failure| listing_error(&path, failure))?;
    if top.kind == FileKind::File {
        tally.file(&path, top.size);
        return Ok(tally.counted);
    }
    // A stack keeps the number of waiting directories small in deep trees.
    let mut waiting = vec![path];
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < DIRECTORIES_AT_A_TIME
            && let Some(directory) = waiting.pop()
        {
            let files = Arc::clone(&files);
            running.push(async move {
                let listed = list(&*files, &directory).await;
                listed.map_err(|failure| listing_error(&directory, failure))
            });
        }
        let Some(listed) = running.next().await else {
            return Ok(tally.counted);
        };
        let listed = listed?;
        tally.progress.lock().directories += 1;
        for (file, size) in &listed.files {
            tally.file(file, *size);
        }
        waiting.extend(listed.directories);
    }
}
