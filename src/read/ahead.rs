//! Carries out the guesses of [`crate::prefetch`]: requests files, blocks and listings before a reader does.

use super::ReadPath;
use super::data::BundledFile;
use super::file::FileRef;
use super::metadata::Directory;
use crate::prefetch::streams::{Pace, ReadAhead};
use crate::prefetch::{Batch, Entries, Limits, Usefulness};
use bytes::Bytes;
use copperfs_overlay::{Attributes, BUNDLE_FILE_BYTES_MAX, Failure, FileKind, ItemPath};
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All windows of large files' readers together may fill one part in this many of the data cache. This is well below
/// the tenth that S3-FIFO reserves for blocks that were not read again, so prefetched blocks are still cached when
/// their reader comes.
const WINDOWS_SHARE: u64 = 16;
/// The maximum number of prefetched listings in progress. Beyond it the reader requests them itself.
const LISTINGS_MAX: usize = 64;
/// Listings of one guess that are requested at a time.
const LISTINGS_AT_ONCE: usize = 32;

/// The prefetching of one view.
pub(super) struct Ahead {
    /// Whether small files and listings are prefetched.
    enabled: bool,
    /// The progress of all readers of large files.
    pace: Pace,
    pub(super) usefulness: Usefulness,
    /// The directory that a reader has just gone through to its end. Locked for a copy of a path.
    finished: Mutex<Option<ItemPath>>,
    /// Prefetched listings in progress.
    listings: AtomicUsize,
}

impl Ahead {
    pub(super) fn new(cache_bytes: u64, enabled: bool) -> Self {
        Self {
            enabled,
            pace: Pace::new(cache_bytes / WINDOWS_SHARE),
            usefulness: Usefulness::default(),
            finished: Mutex::default(),
            listings: AtomicUsize::new(0),
        }
    }

    /// Adapts the windows to a data cache of `cache_bytes`.
    pub(super) fn resize(&self, cache_bytes: u64) {
        self.pace.set_share(cache_bytes / WINDOWS_SHARE);
    }
}

impl ReadPath {
    /// Called when `range` of `file`, which is not empty, is read, whether or not it is cached.
    pub(super) fn prefetch_after(&self, file: &FileRef, streams: &ReadAhead, range: &Range<u64>) {
        if range.start == 0 && self.ahead.enabled {
            self.prefetch_files_with(file);
        }
        if self.data.is_small(file) {
            return;
        }
        if let Some(blocks) = streams.on_read(range, file.size, &self.ahead.pace) {
            self.data.fetch(file, blocks);
        }
    }

    /// Called when a reader begins with `file`: prefetches the small files that it will want next.
    fn prefetch_files_with(&self, file: &FileRef) {
        let Some((parent, directory, position)) = self.entry_of(&file.path) else {
            return;
        };
        let usefulness = &self.ahead.usefulness;
        let entries = self.entries(&parent, &directory);
        let has_entered = || self.has_entered(&parent);
        let limits = Limits {
            cache_bytes: self.data.cache().capacity_bytes(),
            may_begin: self.data.may_begin_bundle(),
        };
        let readers = &directory.readers;
        let Some(guess) = readers.on_read(position, has_entered, &entries, usefulness, limits)
        else {
            return;
        };
        if guess.at_end {
            *self.ahead.finished.lock() = Some(parent.clone());
        }
        for batch in &guess.batches {
            self.prefetch_batch(&entries, batch);
        }
        if guess.next_directories > 0 {
            let next = (self.clone()).fetch_next_directories(parent, guess.next_directories);
            drop(self.metadata.runtime().spawn(next));
        }
    }

    /// Called when a reader lists directory `path` from its beginning: prefetches the listings that it will want
    /// next.
    pub fn on_list(&self, path: &ItemPath) {
        if !self.ahead.enabled {
            return;
        }
        let Some((parent, directory, position)) = self.entry_of(path) else {
            return;
        };
        let next = (directory.readers).on_list(position, &self.entries(&parent, &directory));
        let paths: Vec<ItemPath> = next
            .into_iter()
            .filter_map(|at| parent.join(&directory.entries[at].name).ok())
            .filter(|path| self.metadata.peek_directory(path).is_none())
            .collect();
        let (count, in_progress) = (paths.len(), &self.ahead.listings);
        if count == 0 {
            return;
        }
        if in_progress.fetch_add(count, Ordering::Relaxed) + count > LISTINGS_MAX {
            in_progress.fetch_sub(count, Ordering::Relaxed);
            return;
        }
        let this = self.clone();
        let listing = async move {
            let all = stream::iter(paths).for_each_concurrent(LISTINGS_AT_ONCE, |path| {
                let metadata = this.metadata.clone();
                async move {
                    // A reader that asks for the directory gets the failure from its own request.
                    if let Err(failure) = metadata.directory(&path).await {
                        tracing::debug!(%path, %failure, "not listed ahead");
                    }
                }
            });
            all.await;
            this.ahead.listings.fetch_sub(count, Ordering::Relaxed);
        };
        drop(self.metadata.runtime().spawn(listing));
    }

    /// Called before the bytes of `file` are stored into the page cache. Returns whether they may be.
    pub fn on_push(&self, file: &FileRef) -> bool {
        let entry = self.entry_of(&file.path);
        entry.is_none_or(|(_, it, at)| it.readers.marks.push(at, it.entries.len()))
    }

    /// Prefetches those of `names` in `directory` that are small files, for a caller that knows what will be read.
    /// Returns how many were requested.
    ///
    /// # Errors
    /// Like [`Metadata::directory`](super::Metadata::directory).
    pub async fn prefetch(&self, directory: &ItemPath, names: &[Bytes]) -> Result<usize, Failure> {
        let listing = self.metadata.directory(directory).await?;
        let entries = self.entries(directory, &listing);
        let positions = names.iter().filter_map(|name| listing.position(name));
        let claimed: Vec<_> = positions.filter_map(|at| entries.claim(at)).collect();
        let count = claimed.len();
        self.data.fetch_bundle(directory, claimed, true);
        Ok(count)
    }

    /// Requests blocks of files before their reader does, as a guess of the caller. Small files of a directory are requested
    /// together, and before all blocks of larger ones. Does nothing while the guesses so far were not right often enough.
    pub fn fetch_ahead(&self, blocks: Vec<(FileRef, Range<u64>)>) {
        if self.ahead.enabled && self.ahead.usefulness.pays() {
            let this = self.clone();
            drop(self.metadata.runtime().spawn(this.fetch_in_order(blocks)));
        }
    }

    async fn fetch_in_order(self, blocks: Vec<(FileRef, Range<u64>)>) {
        let is_small = |(file, _): &(FileRef, _)| file.size <= BUNDLE_FILE_BYTES_MAX;
        let (small, large): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_small);
        let mut directories: Vec<(ItemPath, Vec<Bytes>)> = Vec::new();
        let mut numbers: HashMap<ItemPath, usize> = HashMap::new();
        for (file, _) in small {
            if let Some((directory, name)) = file.path.split() {
                let number = *numbers.entry(directory.clone()).or_insert_with(|| {
                    directories.push((directory, Vec::new()));
                    directories.len() - 1
                });
                directories[number].1.push(Bytes::copy_from_slice(name));
            }
        }
        for (path, names) in directories {
            let Ok(directory) = self.metadata.directory(&path).await else {
                // Its reader gets the failure from its own request.
                continue;
            };
            let positions = names.iter().filter_map(|name| directory.position(name));
            let batch = Batch {
                positions: positions.collect(),
                is_shuffled: false,
            };
            self.prefetch_batch(&self.entries(&path, &directory), &batch);
        }
        for (file, blocks) in large {
            self.data.fetch(&file, blocks);
        }
    }

    /// The directory that contains `path`, its listing and the position of the entry, if they are cached.
    fn entry_of(&self, path: &ItemPath) -> Option<(ItemPath, Arc<Directory>, usize)> {
        let (parent, name) = path.split()?;
        let directory = self.metadata.peek_directory(&parent)?;
        let position = directory.position(name)?;
        Some((parent, directory, position))
    }

    fn prefetch_batch(&self, entries: &DirectoryEntries<'_>, batch: &Batch) {
        let (path, directory) = (entries.path, entries.directory);
        let mut claimed = Vec::with_capacity(batch.positions.len());
        let mut unread = Vec::with_capacity(batch.positions.len());
        let mut bytes = 0;
        for &position in &batch.positions {
            if let Some(file) = entries.claim(position) {
                // The file that is being read would have been requested without the guess.
                if !directory.readers.marks.is_read(position) {
                    unread.push(position);
                    bytes += file.file.size;
                }
                claimed.push(file);
            }
        }
        if claimed.is_empty() {
            return;
        }
        (directory.readers.marks).prefetch(&unread, directory.entries.len());
        if !unread.is_empty() {
            self.data.expect(path, &claimed);
        }
        let files = claimed.len() as u64;
        let requests = self.data.fetch_bundle(path, claimed, true);
        (self.ahead.usefulness).add_prefetched(requests, files, bytes, batch.is_shuffled);
    }

    /// Lists the `count` directories after `path`, and requests their small files. `None`: it ended before.
    async fn fetch_next_directories(self, mut path: ItemPath, count: usize) -> Option<()> {
        for _ in 0..count {
            path = self.directory_after(&path)?;
            let directory = self.metadata.directory(&path).await.ok()?;
            if !self.ahead.usefulness.pays() || !self.data.may_begin_bundle() {
                return None;
            }
            let entries = self.entries(&path, &directory);
            let batch = directory.readers.on_listed_ahead(&entries)?;
            self.prefetch_batch(&entries, &batch);
        }
        Some(())
    }

    /// Whether a reader has just gone through the directory before `path` to its end.
    fn has_entered(&self, path: &ItemPath) -> bool {
        let finished = self.ahead.finished.lock().clone();
        finished.is_some_and(|before| self.directory_after(&before).as_ref() == Some(path))
    }

    fn directory_after(&self, path: &ItemPath) -> Option<ItemPath> {
        let (parent, name) = path.split()?;
        let siblings = self.metadata.peek_directory(&parent)?;
        parent.join(&siblings.directory_after(name)?.name).ok()
    }

    fn entries<'a>(&'a self, path: &'a ItemPath, directory: &'a Directory) -> DirectoryEntries<'a> {
        DirectoryEntries {
            read: self,
            path,
            directory,
        }
    }
}

/// The entries of one directory.
struct DirectoryEntries<'a> {
    read: &'a ReadPath,
    path: &'a ItemPath,
    directory: &'a Directory,
}

impl DirectoryEntries<'_> {
    /// The attributes of the entry, if it is a file that a bundle may bring.
    fn small_file(&self, position: usize) -> Option<Attributes> {
        let entry = self.directory.entries.get(position)?;
        if entry.kind != FileKind::File {
            return None;
        }
        let found = (self.read.metadata).peek_attributes(self.path, self.directory, entry)?;
        let size = found.value.size;
        let is_small = (1..=BUNDLE_FILE_BYTES_MAX).contains(&size);
        (is_small && !self.read.data.bypasses(size)).then_some(found.value)
    }

    /// Claims the file at `position` for a bundle; `None` if it is not a small file, or if it is cached or on its
    /// way.
    fn claim(&self, position: usize) -> Option<BundledFile> {
        let attributes = self.small_file(position)?;
        let path = (self.path).join(&self.directory.entries[position].name);
        let file = FileRef::of(path.ok()?, &attributes);
        self.read.data.claim_for_bundle(file)
    }
}

impl Entries for DirectoryEntries<'_> {
    fn by_name(&self) -> &[u32] {
        &self.directory.by_name
    }

    fn rank(&self, position: usize) -> usize {
        let name = &self.directory.entries[position].name;
        self.directory.rank(name).unwrap_or(0)
    }

    fn kind(&self, position: usize) -> FileKind {
        self.directory.entries[position].kind
    }

    fn small_file_bytes(&self, position: usize) -> Option<u64> {
        Some(self.small_file(position)?.size)
    }
}
