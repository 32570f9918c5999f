//! Counting datasets: items, bytes, and bytes of each slot, on the allocator's node.
//!
//! From the dataset's index where it has one, else by going through its directories by this node's own
//! read path, so that what the tree knows is asked of the tree. What is counted is what readers find: a
//! file is an item, and of a larger one each stripe; links and special files are none.
//!
//! Bytes that are homed on each of any set of nodes are then sums over slots: nothing is counted again
//! when nodes come and go.

use super::agent::{CountProgress, Counter};
use super::counted::Counted;
use crate::budgets::Served;
use crate::config::IndexFile;
use crate::index::serve::TreeFile;
use crate::index::{Index, IndexError, LocalFile};
use crate::model::slots::stripe_len;
use crate::model::{DatasetDecision, SLOTS, items_of, slot_of};
use crate::read::ReadPath;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Failure, FailureKind, FileKind, Files, ItemPath, LISTING_ENTRIES_MAX,
};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

#[cfg(test)]
mod tests;

/// Directories that are listed at a time. Enough to keep storage busy, few enough to leave it to others.
const DIRECTORIES_AT_A_TIME: usize = 16;
/// Names whose attributes are asked for at a time.
const NAMES_AT_A_TIME: usize = 1000;
/// Entries that are taken from an index at a time.
const INDEX_ENTRIES: usize = 4096;

/// Counts what this node can reach. Cheap to clone.
#[derive(Clone)]
pub struct DatasetCounter {
    served: Arc<Served>,
    /// What an index's attributes are asked of.
    source: Arc<dyn Files>,
    /// This node's read path, once it has one.
    read: Arc<OnceLock<ReadPath>>,
}

impl std::fmt::Debug for DatasetCounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatasetCounter")
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// Why a dataset cannot be counted.
#[derive(Debug, thiserror::Error)]
enum CountError {
    /// It cannot be listed.
    #[error("{path} cannot be counted: {failure}. Is it there, and is storage in order?")]
    Listing { path: ItemPath, failure: Failure },
    /// Its index cannot be used.
    #[error("its index cannot be used: {0}")]
    Index(#[from] IndexError),
    /// Its index is of something else.
    #[error(
        "its index {index} was made of {of}, which does not hold {path}: make one with copperfs index"
    )]
    Elsewhere {
        index: String,
        of: String,
        path: ItemPath,
    },
    /// The index does not know it.
    #[error("{path} is not in its index {index}: make the index anew with copperfs index")]
    Unknown { index: String, path: ItemPath },
}

impl DatasetCounter {
    /// One that counts what `served` says, once it is connected. `source` is asked for the attributes
    /// of indexes.
    #[must_use]
    pub fn new(served: Served, source: Arc<dyn Files>) -> Self {
        Self {
            served: Arc::new(served),
            source,
            read: Arc::new(OnceLock::new()),
        }
    }

    /// From now on listings and indexes come through `read`. Until then nothing can be counted.
    pub fn connect(&self, read: ReadPath) {
        drop(self.read.set(read));
    }

    async fn counted(
        self,
        path: ItemPath,
        index: Option<String>,
        progress: Arc<CountProgress>,
    ) -> Result<Counted, CountError> {
        let tally = Tally::new(progress);
        let Some(index) = index else {
            let read = self.read.get().cloned().ok_or_else(|| {
                let detail = "the node has not started yet";
                listing(&path, Failure::new(FailureKind::Unavailable, detail))
            })?;
            return walk(Arc::new(read), path, tally).await;
        };
        let source = self.source_of(&index).await?;
        let opened = match self.place(&index)? {
            IndexFile::Local(file) => Index::open(Arc::new(LocalFile::open(&file)?)).await?,
            IndexFile::Tree(file) => self.tree_file(file).index().await?,
        };
        let mut counted = self.indexed(&opened, &path, tally).await?;
        counted.source = source;
        Ok(counted)
    }

    fn place(&self, index: &str) -> Result<IndexFile, CountError> {
        self.served.index(index).map_err(|why| {
            CountError::Index(IndexError::Read {
                name: index.to_owned(),
                failure: Failure::new(FailureKind::Unsupported, why),
            })
        })
    }

    fn tree_file(&self, path: ItemPath) -> TreeFile {
        TreeFile::new(path, Arc::clone(&self.source), Arc::clone(&self.read))
    }

    /// A number that is another one when the index is.
    async fn source_of(&self, index: &str) -> Result<u64, CountError> {
        match self.place(index)? {
            IndexFile::Local(file) => {
                let looked = tokio::task::spawn_blocking(move || local_source(&file));
                let looked = looked.await.map_err(IndexError::from)?;
                looked.map_err(|source| {
                    CountError::Index(IndexError::Io {
                        action: "look at the index",
                        path: index.into(),
                        source,
                    })
                })
            }
            IndexFile::Tree(file) => {
                let found = attributes(&*self.source, &file).await;
                let found = found.map_err(|failure| IndexError::Read {
                    name: index.to_owned(),
                    failure,
                })?;
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
        // Where the index's tree lies in the namespace; if nothing serves it, it is taken to be the
        // dataset's own.
        let top = self
            .served
            .place(index.uri())
            .map_or(path.clone(), |(top, _)| top);
        let below = path
            .strip_prefix(&top)
            .ok_or_else(|| CountError::Elsewhere {
                index: index.name(),
                of: index.uri().to_owned(),
                path: path.clone(),
            })?;
        let mut directories = vec![below.clone()];
        while let Some(directory) = directories.pop() {
            tally.progress.directories.fetch_add(1, Relaxed);
            let full = joined(&top, &directory).unwrap_or_else(|| path.clone());
            let Some(record) = index.directory(&directory).await? else {
                return Err(CountError::Unknown {
                    index: index.name(),
                    path: full,
                });
            };
            let Some(place) = record.place else {
                let detail = "the index could not list this directory when it was made";
                let failure = Failure::new(FailureKind::PermissionDenied, detail);
                return Err(listing(&full, failure));
            };
            let mut after: Option<Bytes> = None;
            loop {
                let (entries, more) = index
                    .entries(&place, after.as_deref(), INDEX_ENTRIES)
                    .await?;
                for entry in &entries {
                    match (&entry.attributes, entry.kind) {
                        (_, FileKind::Directory) => directories.extend(directory.join(&entry.name)),
                        (Some(found), FileKind::File) => {
                            if let Ok(file) = full.join(&entry.name) {
                                tally.file(&file, found.size);
                            }
                        }
                        _ => {}
                    }
                }
                after = entries.last().map(|entry| entry.name.clone());
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
    ) -> BoxFuture<'static, Result<Counted, String>> {
        let (path, index) = (dataset.path.clone(), dataset.index.clone());
        let counting = self.clone().counted(path, index, progress);
        async move { counting.await.map_err(|error| error.to_string()) }.boxed()
    }

    fn is_outdated(&self, dataset: &DatasetDecision, source: u64) -> BoxFuture<'static, bool> {
        let (this, index) = (self.clone(), dataset.index.clone());
        async move {
            match index {
                Some(index) => {
                    let now = this.source_of(&index).await;
                    // One that cannot be looked at now says nothing about the count.
                    now.is_ok_and(|now| now != source)
                }
                // Listings are what they are until they are cleared.
                None => false,
            }
        }
        .boxed()
    }
}

fn local_source(file: &Path) -> std::io::Result<u64> {
    let meta = std::fs::metadata(file)?;
    let mut identity = meta.len().to_le_bytes().to_vec();
    identity.extend(meta.mtime().to_le_bytes());
    identity.extend(meta.mtime_nsec().to_le_bytes());
    identity.extend(meta.ino().to_le_bytes());
    Ok(digest(&identity))
}

fn digest(identity: &[u8]) -> u64 {
    let mut first = [0; 8];
    blake3::Hasher::new()
        .update(identity)
        .finalize_xof()
        .fill(&mut first);
    u64::from_le_bytes(first)
}

fn listing(path: &ItemPath, failure: Failure) -> CountError {
    CountError::Listing {
        path: path.clone(),
        failure,
    }
}

fn joined(top: &ItemPath, below: &ItemPath) -> Option<ItemPath> {
    let mut path = top.clone();
    for name in below.components() {
        path = path.join(name).ok()?;
    }
    Some(path)
}

async fn attributes(files: &dyn Files, path: &ItemPath) -> Result<Attributes, Failure> {
    let (parent, name) = match path.split() {
        Some((parent, name)) => (parent, Bytes::copy_from_slice(name)),
        None => (ItemPath::root(), Bytes::new()),
    };
    let answers = files.stat(parent, vec![name]).await?;
    let found = answers.value.into_iter().next();
    found.unwrap_or_else(|| Err(Failure::not_found(path)))
}

/// What was counted so far.
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
        let items = items_of(size);
        for stripe in 0..items {
            if let Some(slot) = self
                .counted
                .slots
                .get_mut(usize::from(slot_of(path, stripe)))
            {
                *slot = slot.saturating_add(stripe_len(size, stripe));
            }
        }
        self.counted.items += items;
        self.counted.bytes = self.counted.bytes.saturating_add(size);
        self.progress.items.fetch_add(items, Relaxed);
        self.progress.bytes.fetch_add(size, Relaxed);
    }
}

/// What one directory holds.
#[derive(Default)]
struct Directory {
    files: Vec<(ItemPath, u64)>,
    directories: Vec<ItemPath>,
}

/// Goes through all that lies at `path` and below.
async fn walk(
    files: Arc<dyn Files>,
    path: ItemPath,
    mut tally: Tally,
) -> Result<Counted, CountError> {
    let top = attributes(&*files, &path).await;
    let top = top.map_err(|failure| listing(&path, failure))?;
    if top.kind == FileKind::File {
        tally.file(&path, top.size);
        return Ok(tally.counted);
    }
    let mut waiting = vec![path];
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < DIRECTORIES_AT_A_TIME
            && let Some(directory) = waiting.pop()
        {
            let files = Arc::clone(&files);
            running.push(async move {
                let listed = list(&*files, &directory).await;
                listed.map_err(|failure| listing(&directory, failure))
            });
        }
        let Some(listed) = running.next().await else {
            return Ok(tally.counted);
        };
        let listed = listed?;
        tally.progress.directories.fetch_add(1, Relaxed);
        for (file, size) in &listed.files {
            tally.file(file, *size);
        }
        waiting.extend(listed.directories);
    }
}

async fn list(files: &dyn Files, path: &ItemPath) -> Result<Directory, Failure> {
    let mut found = Directory::default();
    let mut cursor = None;
    loop {
        let page = files
            .list(path.clone(), cursor, LISTING_ENTRIES_MAX)
            .await?;
        let mut lacking = Vec::new();
        for entry in page.entries {
            match (entry.kind, entry.attributes) {
                (FileKind::Directory, _) => found.directories.extend(path.join(&entry.name)),
                (FileKind::File, Some(known)) => {
                    found
                        .files
                        .extend(path.join(&entry.name).map(|file| (file, known.size)));
                }
                (FileKind::File, None) => lacking.push(entry.name),
                _ => {}
            }
        }
        for names in lacking.chunks(NAMES_AT_A_TIME) {
            let answers = files.stat(path.clone(), names.to_vec()).await?.value;
            for (name, answer) in names.iter().zip(answers) {
                match answer {
                    Ok(known) if known.kind == FileKind::File => {
                        found
                            .files
                            .extend(path.join(name).map(|file| (file, known.size)));
                    }
                    Ok(_) => {}
                    // It went away between the two questions.
                    Err(failure) if failure.kind == FailureKind::NotFound => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}
