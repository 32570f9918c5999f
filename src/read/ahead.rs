//! Carries out the guesses of [`crate::prefetch`]: requests files, blocks and listings before a reader does.

use super::data::{BundledFile, Data};
use super::file::FileRef;
use super::metadata::{Directory, Metadata};
use crate::prefetch::streams::{Pace, Pattern, ReadAhead};
use crate::prefetch::{Batch, BundleStats, Entries, Limits, Usefulness};
use bytes::Bytes;
use copperfs_overlay::{Attributes, BUNDLE_FILE_BYTES_MAX, Failure, FileKind, ItemPath};
use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
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

/// Prefetches for the readers of one view. Cheap to clone.
#[derive(Clone)]
pub(super) struct Prefetcher(Arc<Inner>);

struct Inner {
    data: Data,
    metadata: Metadata,
    /// Whether small files and listings are prefetched.
    enabled: bool,
    /// The progress of all readers of large files.
    pace: Pace,
    usefulness: Usefulness,
    /// The directory that a reader has just gone through to its end. Locked for a copy of a path.
    finished: Mutex<Option<ItemPath>>,
    /// Prefetched listings in progress.
    listings: AtomicUsize,
}

impl Prefetcher {
    pub(super) fn new(data: Data, metadata: Metadata, enabled: bool) -> Self {
        Self(Arc::new(Inner {
            pace: Pace::new(data.capacity_bytes() / WINDOWS_SHARE),
            data,
            metadata,
            enabled,
            usefulness: Usefulness::default(),
            finished: Mutex::default(),
            listings: AtomicUsize::new(0),
        }))
    }

    #[cfg(test)]
    pub(super) fn usefulness(&self) -> &Usefulness {
        &self.0.usefulness
    }

    pub(super) fn stats(&self) -> BundleStats {
        self.0.usefulness.stats()
    }

    /// Called when `range` of `file`, which is not empty, is read, whether or not it is cached.
    pub(super) fn on_read(&self, file: &FileRef, streams: &ReadAhead, range: &Range<u64>) {
        let Inner { data, pace, .. } = &*self.0;
        if range.start == 0 {
            self.on_first_read(file);
        }
        if data.is_small(file) {
            return;
        }
        if let Pattern::Forward(blocks) = streams.on_read(range, file.size, pace) {
            data.prefetch(file, blocks);
        }
    }

    /// Called when a reader begins with `file`: prefetches the small files that it will want next.
    fn on_first_read(&self, file: &FileRef) {
        let Inner {
            metadata,
            usefulness,
            ..
        } = &*self.0;
        if !self.0.enabled {
            return;
        }
        let Some((parent, name)) = file.path.split() else {
            return;
        };
        let Some(directory) = metadata.peek_directory(&parent) else {
            return;
        };
        let Some(position) = directory.position(name) else {
            return;
        };
        let entries = self.entries(&parent, &directory);
        let has_entered = || self.has_entered(&parent);
        let readers = &directory.readers;
        let limits = self.limits();
        let Some(guess) = readers.on_read(position, has_entered, &entries, usefulness, limits)
        else {
            return;
        };
        if guess.at_end {
            *self.0.finished.lock() = Some(parent.clone());
        }
        for batch in &guess.batches {
            self.fetch(&entries, batch);
        }
        if guess.next_directories > 0 {
            let next = (self.clone()).fetch_next_directories(parent, guess.next_directories);
            drop(self.0.metadata.runtime().spawn(next));
        }
    }

    /// Called when directory `path` is listed from its beginning: prefetches the listings that its reader will want
    /// next.
    pub(super) fn on_list(&self, path: &ItemPath) {
        let Inner { metadata, .. } = &*self.0;
        if !self.0.enabled {
            return;
        }
        let Some((parent, name)) = path.split() else {
            return;
        };
        let Some(directory) = metadata.peek_directory(&parent) else {
            return;
        };
        let Some(position) = directory.position(name) else {
            return;
        };
        let next = (directory.readers).on_list(position, &self.entries(&parent, &directory));
        let paths: Vec<ItemPath> = next
            .into_iter()
            .filter_map(|at| parent.join(&directory.entries[at].name).ok())
            .filter(|path| metadata.peek_directory(path).is_none())
            .collect();
        let (count, in_progress) = (paths.len(), &self.0.listings);
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
                let metadata = this.0.metadata.clone();
                async move {
                    // A reader that asks for the directory gets the failure from its own request.
                    if let Err(failure) = metadata.directory(&path).await {
                        tracing::debug!(%path, %failure, "not listed ahead");
                    }
                }
            });
            all.await;
            this.0.listings.fetch_sub(count, Ordering::Relaxed);
        };
        drop(self.0.metadata.runtime().spawn(listing));
    }

    /// Called before the bytes of `file` are stored into the page cache. Returns whether they may be.
    pub(super) fn on_push(&self, file: &FileRef) -> bool {
        let entry = file.path.split().and_then(|(parent, name)| {
            let directory = self.0.metadata.peek_directory(&parent)?;
            Some((directory.position(name)?, directory))
        });
        entry.is_none_or(|(at, directory)| directory.readers.on_push(at, directory.entries.len()))
    }

    /// Prefetches those of `names` in `directory` that are small files, for a caller that knows what will be read.
    /// Returns how many were requested.
    ///
    /// # Errors
    /// Like [`Metadata::directory`].
    pub(super) async fn fetch_named(
        &self,
        directory: &ItemPath,
        names: &[Bytes],
    ) -> Result<usize, Failure> {
        let listing = self.0.metadata.directory(directory).await?;
        let entries = self.entries(directory, &listing);
        let positions = names.iter().filter_map(|name| listing.position(name));
        let claimed: Vec<_> = positions.filter_map(|at| entries.claim(at)).collect();
        let count = claimed.len();
        self.0.data.fetch_bundle(directory, claimed, true);
        Ok(count)
    }

    fn limits(&self) -> Limits {
        Limits {
            cache_bytes: self.0.data.capacity_bytes(),
            may_begin: self.0.data.may_begin_bundle(),
        }
    }

    fn fetch(&self, entries: &DirectoryEntries<'_>, batch: &Batch) {
        let Inner {
            data, usefulness, ..
        } = &*self.0;
        let DirectoryEntries {
            path, directory, ..
        } = entries;
        let mut claimed = Vec::with_capacity(batch.positions.len());
        let mut unread = Vec::with_capacity(batch.positions.len());
        let mut bytes = 0;
        for &position in &batch.positions {
            if let Some(file) = entries.claim(position) {
                // The file that is being read would have been requested without the guess.
                if !directory.readers.is_read(position) {
                    unread.push(position);
                    bytes += file.file.size;
                }
                claimed.push(file);
            }
        }
        if claimed.is_empty() {
            return;
        }
        (directory.readers).on_prefetch(&unread, directory.entries.len());
        if !unread.is_empty() {
            data.expect(path, &claimed);
        }
        let files = claimed.len() as u64;
        let requests = data.fetch_bundle(path, claimed, true);
        usefulness.add_prefetched(requests, files, bytes, batch.is_shuffled);
    }

    /// Lists the `count` directories after `path`, and requests their small files.
    async fn fetch_next_directories(self, mut path: ItemPath, count: usize) {
        for _ in 0..count {
            let Some(next) = self.directory_after(&path) else {
                return;
            };
            path = next;
            let Ok(directory) = self.0.metadata.directory(&path).await else {
                return;
            };
            if !self.0.usefulness.pays() || !self.0.data.may_begin_bundle() {
                return;
            }
            let entries = self.entries(&path, &directory);
            let Some(batch) = directory.readers.on_listed_ahead(&entries) else {
                return;
            };
            self.fetch(&entries, &batch);
        }
    }

    /// Whether a reader has just gone through the directory before `path` to its end.
    fn has_entered(&self, path: &ItemPath) -> bool {
        let finished = self.0.finished.lock().clone();
        finished.is_some_and(|before| self.directory_after(&before).as_ref() == Some(path))
    }

    fn directory_after(&self, path: &ItemPath) -> Option<ItemPath> {
        let (parent, name) = path.split()?;
        let siblings = self.0.metadata.peek_directory(&parent)?;
        parent.join(&siblings.directory_after(name)?.name).ok()
    }

    fn entries<'a>(&'a self, path: &'a ItemPath, directory: &'a Directory) -> DirectoryEntries<'a> {
        DirectoryEntries {
            data: &self.0.data,
            metadata: &self.0.metadata,
            path,
            directory,
        }
    }
}

/// The entries of one directory.
struct DirectoryEntries<'a> {
    data: &'a Data,
    metadata: &'a Metadata,
    path: &'a ItemPath,
    directory: &'a Directory,
}

impl DirectoryEntries<'_> {
    fn small_file(&self, position: usize) -> Option<Attributes> {
        let entry = self.directory.entries.get(position)?;
        if entry.kind != FileKind::File {
            return None;
        }
        let attributes = self.metadata.peek_attributes(self.path, entry)?;
        let is_small = (1..=BUNDLE_FILE_BYTES_MAX).contains(&attributes.size);
        (is_small && !self.data.bypasses(attributes.size)).then_some(attributes)
    }

    /// Claims the file at `position` for a bundle; `None` if it is not a small file, or if it is cached or on its
    /// way.
    fn claim(&self, position: usize) -> Option<BundledFile> {
        let attributes = self.small_file(position)?;
        let path = (self.path).join(&self.directory.entries[position].name);
        let file = FileRef::of(path.ok()?, &attributes);
        self.data.claim_for_bundle(file)
    }
}

impl Entries for DirectoryEntries<'_> {
    fn by_name(&self) -> &[u32] {
        self.directory.by_name()
    }

    fn rank(&self, position: usize) -> usize {
        let name = &self.directory.entries[position].name;
        self.directory.rank(name).unwrap_or(0)
    }

    fn is_file(&self, position: usize) -> bool {
        self.directory.entries[position].kind == FileKind::File
    }

    fn is_directory(&self, position: usize) -> bool {
        self.directory.entries[position].kind == FileKind::Directory
    }

    fn small_file_bytes(&self, position: usize) -> Option<u64> {
        Some(self.small_file(position)?.size)
    }
}
