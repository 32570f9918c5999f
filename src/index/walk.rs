//! Walking a tree, many directories at a time, into an index.
//!
//! The queue is the log of what is done ([`Partial`]): a directory's record names the directories in
//! it. Listings come in any order and are appended in the queue's, so that a walk that was killed goes
//! on where it was. Memory holds no more than the listings under way.

use super::IndexError;
use super::format::Totals;
use super::partial::{FAILURES_MAX, Partial, Sorted};
use super::write::{Existing, IndexWriter, io_error};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, ContentHash, Entry, Failure, FailureKind, FileKind, Files,
    ItemPath, LISTING_ENTRIES_MAX, ReadRequest, Timestamp, Version,
};
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesOrdered};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Directories under way for each request that may be: those that are done wait for a slow one before
/// them, so that the log stays in order.
const AHEAD: usize = 4;
/// The maximum number of further looks at files that are too young.
const SETTLING_LOOKS: usize = 3;
/// Added to the granularity of the files' times.
const SETTLING_MARGIN: Duration = Duration::from_millis(10);
/// Names whose attributes are asked for in one request.
const STAT_NAMES: usize = 1024;

/// How to walk.
#[derive(Clone, Copy, Debug)]
pub struct WalkOptions {
    /// Requests to the origin at a time.
    pub concurrency: usize,
    /// Whether every file is read and its content's hash kept.
    pub hash: bool,
}

/// How far a walk is. Relaxed: for people.
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

/// Why a directory is left out.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// Which one, relative to the top.
    pub path: ItemPath,
    /// Why.
    pub failure: Failure,
}

/// A walk over one tree.
pub struct Walker {
    files: Arc<dyn Files>,
    options: WalkOptions,
    permits: Arc<Semaphore>,
    progress: Arc<Progress>,
    /// Names of the index itself, where it lies in the tree.
    own: Arc<[ItemPath]>,
}

impl std::fmt::Debug for Walker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Walker")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

struct Task {
    path: ItemPath,
    attributes: Option<Attributes>,
    again: bool,
}

struct Walked {
    task: Task,
    listed: Result<(Attributes, Vec<Entry>), Failure>,
}

impl Walker {
    /// A walk of all that `files` has, but for `own`.
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

    /// Lists what is not in `log` yet. Gives what failed. May be dropped at any time: what is in the
    /// log stays.
    ///
    /// # Errors
    /// The top cannot be listed; too much fails; the log cannot be written.
    pub async fn walk(&self, uri: &str, log: &mut Partial) -> Result<Vec<LeftOut>, IndexError> {
        let mut queue = Queue::new(log);
        self.progress.directories.store(log.done, Ordering::Relaxed);
        let mut running: FuturesOrdered<JoinHandle<Walked>> = FuturesOrdered::new();
        let mut failures = Vec::new();
        loop {
            while running.len() < self.options.concurrency.max(1) * AHEAD
                && let Some(task) = queue.next(log)?
            {
                running.push_back(tokio::spawn(self.one(task)));
            }
            let Some(walked) = running.next().await else {
                return Ok(failures);
            };
            let Walked { task, listed } = walked?;
            match listed {
                Ok((attributes, entries)) => {
                    self.progress.directories.fetch_add(1, Ordering::Relaxed);
                    let count = entries.len() as u64;
                    self.progress.entries.fetch_add(count, Ordering::Relaxed);
                    log.append(task.path, attributes, Some(&entries), task.again)?;
                }
                Err(failure) if task.path.is_root() => {
                    let uri = uri.to_owned();
                    return Err(IndexError::Top { uri, failure });
                }
                Err(failure) => {
                    let attributes = task.attributes.unwrap_or_else(nobody_knows);
                    log.append(task.path.clone(), attributes, None, task.again)?;
                    self.progress.failed.fetch_add(1, Ordering::Relaxed);
                    // What went away while it was walked is no fault.
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

    /// Lists one directory, wherever it runs.
    fn one(&self, task: Task) -> impl Future<Output = Walked> + Send + 'static {
        let this = Self {
            files: Arc::clone(&self.files),
            options: self.options,
            permits: Arc::clone(&self.permits),
            progress: Arc::clone(&self.progress),
            own: Arc::clone(&self.own),
        };
        async move {
            let listed = this.list(&task.path).await;
            Walked { task, listed }
        }
    }

    async fn list(&self, path: &ItemPath) -> Result<(Attributes, Vec<Entry>), Failure> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut cursor = None;
        let directory = loop {
            let permit = self.permits.acquire().await;
            let limit = LISTING_ENTRIES_MAX;
            let page = self.files.list(path.clone(), cursor.take(), limit).await?;
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
        self.complete(path, &mut entries).await?;
        self.settle(path, &mut entries).await?;
        if self.options.hash {
            self.hash(path, &mut entries).await;
        }
        Ok((directory, entries))
    }

    /// Asks for the attributes that did not come along; what vanished is dropped.
    async fn complete(&self, path: &ItemPath, entries: &mut Vec<Entry>) -> Result<(), Failure> {
        self.ask(path, entries, |entry| entry.attributes.is_none())
            .await
    }

    /// Looks again at files that are too young for their times to show every later change. Files that
    /// change during all these looks are left without attributes.
    async fn settle(&self, path: &ItemPath, entries: &mut Vec<Entry>) -> Result<(), Failure> {
        let unsettled = |entry: &Entry| {
            let known = entry.attributes.as_ref();
            known.is_some_and(|known| !known.version.is_settled())
        };
        for _ in 0..SETTLING_LOOKS {
            let young = entries.iter().filter(|entry| unsettled(entry));
            let known = young.filter_map(|entry| entry.attributes.as_ref());
            let Some(granularity) = known.map(Attributes::granularity).max() else {
                return Ok(());
            };
            tokio::time::sleep(granularity + SETTLING_MARGIN).await;
            self.ask(path, entries, unsettled).await?;
        }
        Ok(())
    }

    /// Requests the attributes of the entries for which `lacking` holds. Entries that vanished are removed.
    async fn ask(
        &self,
        path: &ItemPath,
        entries: &mut Vec<Entry>,
        lacking: impl Fn(&Entry) -> bool,
    ) -> Result<(), Failure> {
        let names: Vec<Bytes> = entries
            .iter()
            .filter(|entry| lacking(entry))
            .map(|entry| entry.name.clone())
            .collect();
        let mut answers = Vec::with_capacity(names.len());
        for names in names.chunks(STAT_NAMES) {
            let _permit = self.permits.acquire().await;
            answers.extend(self.files.stat(path.clone(), names.to_vec()).await?.value);
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

    /// Fills in the contents of files. One that cannot be read, or changes while it is, goes without.
    async fn hash(&self, path: &ItemPath, entries: &mut [Entry]) {
        let mut files = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            if let Some(found) = &entry.attributes
                && found.kind == FileKind::File
                && let Ok(file) = path.join(&entry.name)
            {
                files.push((at, file, found.version, found.size));
            }
        }
        let hashing = stream::iter(files).map(|(at, file, version, size)| async move {
            let _permit = self.permits.acquire().await;
            let content = self.content(&file, version, size).await;
            if let Err(failure) = &content {
                tracing::debug!(%file, %failure, "a file goes without its hash");
            }
            (at, content.ok())
        });
        let mut hashing = hashing
            .buffer_unordered(self.options.concurrency.max(1))
            .boxed();
        while let Some((at, content)) = hashing.next().await {
            if let Some(found) = entries[at].attributes.as_mut() {
                found.content = content;
            }
        }
    }

    async fn content(
        &self,
        file: &ItemPath,
        version: Version,
        size: u64,
    ) -> Result<ContentHash, Failure> {
        let mut hasher = blake3::Hasher::new();
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
                // Storage takes nothing back.
                if let BlockPart::Bytes(bytes) = part? {
                    hasher.update(&bytes);
                    let bytes = bytes.len() as u64;
                    self.progress.hashed.fetch_add(bytes, Ordering::Relaxed);
                }
            }
        }
        Ok(ContentHash(*hasher.finalize().as_bytes()))
    }
}

/// What is to be listed next.
struct Queue {
    tasks: VecDeque<Task>,
    /// The record whose directories come next.
    at: u64,
    /// Directories of records that are listed already.
    skip: u64,
}

impl Queue {
    fn new(log: &Partial) -> Self {
        let again = log.failed.iter().map(|(path, attributes)| Task {
            path: path.clone(),
            attributes: Some(attributes.clone()),
            again: true,
        });
        let mut this = Self {
            tasks: again.collect(),
            at: log.first(),
            skip: log.done.saturating_sub(1),
        };
        if log.done == 0 {
            this.tasks.push_back(Task {
                path: ItemPath::root(),
                attributes: None,
                again: false,
            });
        }
        this
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
            for (path, attributes) in record.children()? {
                if self.skip > 0 {
                    self.skip -= 1;
                    continue;
                }
                self.tasks.push_back(Task {
                    path,
                    attributes,
                    again: false,
                });
            }
        }
    }
}

/// Writes the index of all that is in `log` to `target`.
///
/// # Errors
/// The log cannot be read, the index not be written.
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
        let next = sorted.next_record();
        let Some(at) = next.map_err(|source| io_error("sort", target, source))? else {
            return writer.finish(hashed, made_at);
        };
        if let Some((record, _)) = log.record_at(at)? {
            let directory = record.directory.clone();
            let entries = directory.place.map(|_| record.entries());
            writer.directory(directory.path, directory.attributes, entries)?;
        }
    }
}

/// Of a directory that could be neither listed nor looked at.
fn nobody_knows() -> Attributes {
    let time = Timestamp {
        seconds: 0,
        nanoseconds: 0,
    };
    Attributes {
        kind: FileKind::Directory,
        mode: 0o555,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        version: Version::from_data([0; 16]),
        link_target: None,
        content: None,
    }
}
