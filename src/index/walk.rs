//! Walks a tree, with several concurrent listings, and writes an index of it.
//!
//! The queue is the log of the finished directories ([`Partial`]): a directory's record names the directories in
//! it. Listings arrive in any order and are appended in the order of the queue, so that an interrupted walk can
//! be resumed. Memory holds only the listings in progress.

use super::content::ContentHasher;
use super::format::{DirectoryRecord, Totals};
use super::partial::{FAILURES_MAX, Partial, Sorted};
use super::write::{Existing, IndexWriter, io_error};
use super::{IndexError, WalkedEntry};
use crate::origin::placeholder_directory;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, ContentHash, Entry, Failure, FailureKind, FileKind, Files,
    ItemPath, LISTING_ENTRIES_MAX, ReadRequest, Version, XattrList,
};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesOrdered};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Directories in progress per concurrent request. Finished ones wait for a slow one before them, so that the log
/// stays in order.
const DIRECTORIES_PER_REQUEST: usize = 4;
/// The maximum number of further requests about files that are too young.
const SETTLING_ATTEMPTS: usize = 3;
/// Added to the granularity of the files' times.
const SETTLING_MARGIN: Duration = Duration::from_millis(10);
/// The maximum number of names in one request for attributes.
const STAT_NAMES: usize = 1024;

/// The options of a walk.
#[derive(Clone, Copy, Debug)]
pub struct WalkOptions {
    /// The maximum number of concurrent requests to the origin.
    pub concurrency: usize,
    /// Whether every file is read, and the hash of its content recorded.
    pub hash: bool,
}

/// The progress of a walk. Relaxed, because it is only shown.
#[derive(Debug, Default)]
pub struct Progress {
    /// Directories listed.
    pub directories: AtomicU64,
    /// Entries found.
    pub entries: AtomicU64,
    /// Bytes read for their hashes.
    pub hashed: AtomicU64,
    /// Directories that failed.
    pub failed: AtomicU64,
}

/// A directory that is left out.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// Its path, relative to the top.
    pub path: ItemPath,
    /// The cause.
    pub failure: Failure,
}

/// A walk over one tree.
#[derive(Clone)]
pub struct Walker {
    files: Arc<dyn Files>,
    options: WalkOptions,
    permits: Arc<Semaphore>,
    progress: Arc<Progress>,
    /// The paths of the index itself, if it is in the tree.
    own: Arc<[ItemPath]>,
}

struct Task {
    path: ItemPath,
    attributes: Option<Attributes>,
    again: bool,
}

impl Walker {
    /// A walk of everything in `files` except `own`.
    #[must_use]
    pub fn new(
        files: Arc<dyn Files>,
        options: WalkOptions,
        progress: Arc<Progress>,
        own: Vec<ItemPath>,
    ) -> Self {
        Self {
            files,
            options,
            permits: Arc::new(Semaphore::new(options.concurrency.max(1))),
            progress,
            own: own.into(),
        }
    }

    /// Lists the directories that are not in `log` yet. Returns those that failed. Dropping the future interrupts the
    /// walk: all records in the log stay valid.
    ///
    /// # Errors
    /// The top cannot be listed; too many directories fail; the log cannot be written.
    pub async fn walk(&self, uri: &str, log: &mut Partial) -> Result<Vec<LeftOut>, IndexError> {
        let mut queue = Queue::new(log);
        self.progress.directories.store(log.done, Ordering::Relaxed);
        let mut running = FuturesOrdered::new();
        let mut failures = Vec::new();
        loop {
            while running.len() < self.options.concurrency.max(1) * DIRECTORIES_PER_REQUEST
                && let Some(task) = queue.next(log)?
            {
                let this = self.clone();
                running.push_back(tokio::spawn(async move {
                    let listed = this.list_whole(&task.path).await;
                    (task, listed)
                }));
            }
            let Some(walked) = running.next().await else {
                return Ok(failures);
            };
            let (task, listed) = walked?;
            match listed {
                Ok((directory, entries)) => {
                    self.progress.directories.fetch_add(1, Ordering::Relaxed);
                    let count = entries.len() as u64;
                    self.progress.entries.fetch_add(count, Ordering::Relaxed);
                    log.append(directory, Some(&entries), task.again)?;
                }
                Err(failure) if task.path.is_root() => {
                    let uri = uri.to_owned();
                    return Err(IndexError::Top { uri, failure });
                }
                Err(failure) => {
                    // Recorded as failed, so that a resumed walk tries it again.
                    let directory = DirectoryRecord {
                        path: task.path.clone(),
                        attributes: task.attributes.unwrap_or_else(placeholder_directory),
                        xattrs: None,
                        place: None,
                    };
                    log.append(directory, None, task.again)?;
                    self.progress.failed.fetch_add(1, Ordering::Relaxed);
                    // Directories that were removed during the walk are no failures.
                    let gone = [FailureKind::NotFound, FailureKind::NotADirectory];
                    if gone.contains(&failure.kind) {
                        continue;
                    }
                    if failures.len() >= FAILURES_MAX {
                        return Err(IndexError::TooManyFailures {
                            max: FAILURES_MAX,
                            last: failure,
                        });
                    }
                    let path = task.path;
                    failures.push(LeftOut { path, failure });
                }
            }
        }
    }

    /// Lists directory `path`. Returns its attributes, and its entries in the order of their names, with settled
    /// attributes as far as possible.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn list(&self, path: &ItemPath) -> Result<(Attributes, Vec<Entry>), Failure> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut cursor = None;
        let directory = loop {
            let permit = self.permits.acquire().await;
            let (from, limit) = (cursor.take(), LISTING_ENTRIES_MAX);
            let page = self.files.list_page(path.clone(), from, limit).await?;
            drop(permit);
            entries.extend(page.entries);
            cursor = page.next;
            if cursor.is_none() {
                break page.directory;
            }
        };
        let is_own = |entry: &Entry| {
            let child = path.join(&entry.name);
            child.is_ok_and(|child| self.own.contains(&child))
        };
        if self.own.iter().any(|own| own.is_within(path)) {
            entries.retain(|entry| !is_own(entry));
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        // The attributes that did not come with the listing.
        self.complete(path, &mut entries).await?;
        Ok((directory, entries))
    }

    /// As [`Walker::list`], with extended attributes, and with the hashes of files if the options say so.
    async fn list_whole(
        &self,
        path: &ItemPath,
    ) -> Result<(DirectoryRecord, Vec<WalkedEntry>), Failure> {
        let (attributes, entries) = self.list(path).await?;
        let directory = DirectoryRecord {
            path: path.clone(),
            attributes,
            xattrs: self.xattrs(path.clone()).await,
            place: None,
        };
        let entries = stream::iter(entries).map(|entry| async move {
            let xattrs = match (entry.kind, path.join(&entry.name)) {
                // It has its own record.
                (FileKind::Directory, _) | (_, Err(_)) => None,
                // The kernel asks no mount for those of a link.
                (FileKind::Symlink, _) => Some(XattrList::new()),
                (_, Ok(file)) => self.xattrs(file).await,
            };
            WalkedEntry {
                entry,
                parts: Vec::new(),
                xattrs,
            }
        });
        let concurrency = self.options.concurrency.max(1);
        let mut entries: Vec<WalkedEntry> = entries.buffered(concurrency).collect().await;
        if self.options.hash {
            self.hash(path, &mut entries).await;
        }
        Ok((directory, entries))
    }

    /// The extended attributes of a file, in the order of their names; `None` if they cannot be read.
    async fn xattrs(&self, path: ItemPath) -> Option<XattrList> {
        let _permit = self.permits.acquire().await;
        match self.files.xattrs(path).await {
            Ok(found) => {
                let mut xattrs = found.value;
                xattrs.sort_unstable();
                Some(xattrs)
            }
            // The origin has none at all.
            Err(failure) if failure.kind == FailureKind::Unsupported => Some(XattrList::new()),
            Err(_) => None,
        }
    }

    /// The entries `names` of directory `path`, with settled attributes as far as possible. Names that do not exist
    /// are left out.
    ///
    /// # Errors
    /// Those of the origin.
    pub async fn look_up(&self, path: &ItemPath, names: Vec<Bytes>) -> Result<Vec<Entry>, Failure> {
        let unknown = |name| Entry {
            name,
            // Replaced by the answer, as are the attributes.
            kind: FileKind::File,
            attributes: None,
        };
        let mut entries = names.into_iter().map(unknown).collect();
        self.complete(path, &mut entries).await?;
        Ok(entries)
    }

    /// Adds the attributes that `entries` lack, and waits until they have settled.
    async fn complete(&self, path: &ItemPath, entries: &mut Vec<Entry>) -> Result<(), Failure> {
        self.stat(path, entries, |entry| entry.attributes.is_none())
            .await?;
        self.settle(path, entries).await
    }

    /// Examines files again that are too young for their times to show every later change. Files that keep changing
    /// are left without attributes.
    async fn settle(&self, path: &ItemPath, entries: &mut Vec<Entry>) -> Result<(), Failure> {
        let unsettled = |entry: &Entry| {
            let known = entry.attributes.as_ref();
            known.is_some_and(|known| !known.version.is_settled())
        };
        for _ in 0..SETTLING_ATTEMPTS {
            let young = entries.iter().filter(|entry| unsettled(entry));
            let known = young.filter_map(|entry| entry.attributes.as_ref());
            let Some(granularity) = known.map(Attributes::granularity).max() else {
                return Ok(());
            };
            tokio::time::sleep(granularity + SETTLING_MARGIN).await;
            self.stat(path, entries, unsettled).await?;
        }
        Ok(())
    }

    /// Requests the attributes of the entries for which `lacking` holds. Entries that vanished are removed.
    async fn stat(
        &self,
        path: &ItemPath,
        entries: &mut Vec<Entry>,
        lacking: impl Fn(&Entry) -> bool,
    ) -> Result<(), Failure> {
        let lacks = entries.iter().filter(|entry| lacking(entry));
        let names: Vec<Bytes> = lacks.map(|entry| entry.name.clone()).collect();
        let mut answers = Vec::with_capacity(names.len());
        for names in names.chunks(STAT_NAMES) {
            let _permit = self.permits.acquire().await;
            let found = self.files.stat_names(path.clone(), names.to_vec()).await?;
            answers.extend(found.value);
        }
        let mut answers = answers.into_iter();
        entries.retain_mut(|entry| {
            if !lacking(entry) {
                return true;
            }
            match answers.next() {
                Some(Ok(found)) => {
                    entry.kind = found.kind;
                    entry.attributes = Some(found);
                    true
                }
                Some(Err(failure)) => failure.kind != FailureKind::NotFound,
                None => true,
            }
        });
        Ok(())
    }

    /// Computes the hashes of files. A file that cannot be read, or changes meanwhile, has none.
    async fn hash(&self, path: &ItemPath, entries: &mut [WalkedEntry]) {
        let mut files = Vec::new();
        for (at, WalkedEntry { entry, .. }) in entries.iter().enumerate() {
            if let Some(found) = &entry.attributes
                && found.kind == FileKind::File
                && let Ok(file) = path.join(&entry.name)
            {
                files.push((at, file, found.version, found.size));
            }
        }
        let hashing = stream::iter(files).map(|(at, file, version, size)| async move {
            let _permit = self.permits.acquire().await;
            let hashes = self.content(&file, version, size).await;
            if let Err(failure) = &hashes {
                tracing::debug!(%file, %failure, "a file goes without its hash");
            }
            (at, hashes.ok())
        });
        let mut hashing = hashing
            .buffer_unordered(self.options.concurrency.max(1))
            .boxed();
        while let Some((at, hashes)) = hashing.next().await {
            let WalkedEntry { entry, parts, .. } = &mut entries[at];
            if let (Some(found), Some((content, of_parts))) = (entry.attributes.as_mut(), hashes) {
                found.content = Some(content);
                *parts = of_parts;
            }
        }
    }

    async fn content(
        &self,
        file: &ItemPath,
        version: Version,
        size: u64,
    ) -> Result<(ContentHash, Vec<[u8; 32]>), Failure> {
        let mut hasher = ContentHasher::new(size);
        if size > 0 {
            let request = ReadRequest {
                path: file.clone(),
                version,
                size,
                first_block: 0,
                block_count: size.div_ceil(BLOCK_BYTES),
                content: None,
                through: false,
            };
            let mut parts = self.files.read(request).await?;
            while let Some(part) = parts.next().await {
                // Storage never restarts a block.
                if let BlockPart::Bytes(bytes) = part? {
                    hasher.feed(&bytes);
                    let bytes = bytes.len() as u64;
                    self.progress.hashed.fetch_add(bytes, Ordering::Relaxed);
                }
            }
        }
        let cut_short = || Failure::new(FailureKind::Io, "storage returned too few bytes");
        hasher.finish().ok_or_else(cut_short)
    }
}

/// The directories that are to be listed next.
struct Queue {
    tasks: VecDeque<Task>,
    /// The position of the record whose directories follow.
    at: u64,
    /// The number of those directories that are listed already.
    skip: u64,
}

impl Queue {
    fn new(log: &Partial) -> Self {
        let again = log.failed.iter().map(|(path, attributes)| Task {
            path: path.clone(),
            attributes: Some(attributes.clone()),
            again: true,
        });
        let top = (log.done == 0).then(|| Task {
            path: ItemPath::root(),
            attributes: None,
            again: false,
        });
        Self {
            tasks: again.chain(top).collect(),
            at: log.first,
            skip: log.done.saturating_sub(1),
        }
    }

    fn next(&mut self, log: &Partial) -> Result<Option<Task>, IndexError> {
        loop {
            if let Some(task) = self.tasks.pop_front() {
                return Ok(Some(task));
            }
            let Some((record, next)) = log.record_at(self.at)? else {
                return Ok(None);
            };
            self.at = next;
            for entry in record.entries() {
                let WalkedEntry { entry, .. } = entry?;
                if entry.kind != FileKind::Directory {
                    continue;
                }
                let Ok(path) = record.directory.path.join(&entry.name) else {
                    continue;
                };
                if self.skip > 0 {
                    self.skip -= 1;
                    continue;
                }
                self.tasks.push_back(Task {
                    path,
                    attributes: entry.attributes,
                    again: false,
                });
            }
        }
    }
}

/// Writes the index of all records in `log` to `target`.
///
/// # Errors
/// The log cannot be read, or the index cannot be written.
pub fn write_index(
    log: &Partial,
    target: &Path,
    uri: &str,
    hashed: bool,
    made_at: i64,
    existing: Existing,
) -> Result<Totals, IndexError> {
    let mut writer = IndexWriter::create(target, uri, existing)?;
    let mut sorted = Sorted::new(log)?;
    loop {
        let Some(at) = sorted.next_record().map_err(io_error("sort", target))? else {
            return writer.finish(hashed, made_at);
        };
        if let Some((record, _)) = log.record_at(at)? {
            let directory = record.directory.clone();
            let entries = directory.place.map(|_| record.entries());
            writer.directory(directory, entries)?;
        }
    }
}
