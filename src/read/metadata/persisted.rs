//! Listings that outlive the process: a file for each directory, below one directory.
//!
//! A listing that is read here is never used before the source has said that it is still valid. It only saves sending
//! the entries. So a file may be lost, torn or foreign at any moment, and nothing is ever synced. One thread writes the
//! files, outside the read path. A listing that does not fit into its queue is not written.
//!
//! The format is in `docs/format.md`.

mod files;
mod format;

use super::directory::Directory;
use copperfs_overlay::{ItemPath, Listing};
use files::ListingFiles;
use format::Record;
use parking_lot::Mutex;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Listings that wait to be written, or paths to be cleared; more are not. Each may pin a directory in
/// memory.
const QUEUE_MAX: usize = 128;
/// Bytes of all files; the oldest go first. Some millions of entries.
const BYTES_MAX: u64 = 256 << 20;
/// A disk that takes longer has none: the listing is then asked for as if for the first time.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Concurrent reads of listings; it bounds the threads that a hanging disk occupies. Beyond it a listing is
/// requested as if it were not on the disk.
const READS_MAX: usize = 16;

/// See the module. Cheap to clone; the writer ends with the last of them.
#[derive(Clone, Debug)]
pub struct PersistedListings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    queue: SyncSender<Job>,
    reads: Arc<Semaphore>,
    /// Locked for a count.
    stats: Arc<Mutex<PersistedStats>>,
}

/// What became of listings on disk since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PersistedStats {
    /// Read, and asked about.
    pub loaded: u64,
    /// Written.
    pub kept: u64,
    /// Not written: the queue was full, or the disk.
    pub dropped: u64,
    /// Files that were torn, foreign or of another version, and were removed.
    pub torn: u64,
}

/// What the writer is to do.
#[derive(Debug)]
enum Job {
    Keep(ItemPath, Arc<Directory>),
    /// All at the path and below, and the directory that it stands in.
    Clear(ItemPath),
    /// A file that cannot be used.
    Remove(PathBuf),
}

impl PersistedListings {
    /// Those below `dir`, which is made if need be. Nothing is read yet. `None`, and a word in the log,
    /// if there can be none.
    pub fn open(dir: &Path) -> Option<Self> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let stats = Arc::<Mutex<PersistedStats>>::default();
        let (place, counting) = (dir.to_owned(), Arc::clone(&stats));
        // Only its owner may look into the directory. One that is there stays as it is.
        let mut private = DirBuilder::new();
        let made = private.recursive(true).mode(0o700).create(dir);
        let started = made.and_then(|()| {
            std::thread::Builder::new()
                .name("copperfs-meta".to_owned())
                .spawn(move || run(place, &counting, &jobs))
        });
        if let Err(error) = started {
            tracing::warn!(dir = %dir.display(), %error, "no listings are kept for the next launch");
            return None;
        }
        Some(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            queue,
            reads: Arc::new(Semaphore::new(READS_MAX)),
            stats,
        })))
    }

    /// What an earlier launch knew of directory `path`, or this one before it was evicted. Nobody may
    /// use it before its source has said that it is unchanged.
    pub(super) async fn load(&self, path: &ItemPath) -> Option<Listing> {
        let file = self.0.dir.join(format::file_name(path));
        let (reading, wanted) = (file.clone(), path.clone());
        let reads = Arc::clone(&self.0.reads);
        let read = async move {
            let permit = reads.acquire_owned().await.ok()?;
            let read = tokio::task::spawn_blocking(move || {
                let read = Record::read(&reading, &wanted);
                drop(permit);
                read
            });
            read.await.ok()
        };
        let Ok(Some(loaded)) = tokio::time::timeout(READ_TIMEOUT, read).await else {
            return None;
        };
        match loaded {
            Ok(listing) => {
                self.0.stats.lock().loaded += u64::from(listing.is_some());
                listing
            }
            Err(error) => {
                tracing::info!(file = %file.display(), %error, "a listing on disk cannot be used");
                self.0.stats.lock().torn += 1;
                self.queue(Job::Remove(file));
                None
            }
        }
    }

    /// Writes the listing of directory `path` to the disk later. Directories whose versions are valid in
    /// one launch only are left out.
    pub(super) fn keep(&self, path: &ItemPath, directory: &Arc<Directory>) {
        if directory.listable && directory.attributes.version.outlives_launch() {
            self.queue(Job::Keep(path.clone(), Arc::clone(directory)));
        }
    }

    /// Removes what is kept of `path` and below, and of the directory that it stands in, some time. It
    /// is not used unasked meanwhile either.
    pub(super) fn clear(&self, path: &ItemPath) {
        self.queue(Job::Clear(path.clone()));
    }

    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> PersistedStats {
        *self.0.stats.lock()
    }

    fn queue(&self, job: Job) {
        if self.0.queue.try_send(job).is_err() {
            self.0.stats.lock().dropped += 1;
        }
    }
}

fn run(dir: PathBuf, stats: &Mutex<PersistedStats>, jobs: &Receiver<Job>) {
    let mut files = ListingFiles::scan(dir, BYTES_MAX);
    let mut complained = false;
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Keep(path, directory) => {
                let written = Record::encode(&path, &directory)
                    .map_err(std::io::Error::other)
                    .and_then(|bytes| files.write(&format::file_name(&path), &bytes));
                match written {
                    Ok(()) => stats.lock().kept += 1,
                    Err(error) => {
                        stats.lock().dropped += 1;
                        if !complained {
                            complained = true;
                            tracing::warn!(%path, %error, "a listing is not kept; said once");
                        }
                    }
                }
            }
            Job::Clear(path) => files.remove_where(|file| {
                let Some(kept) = format::path_of(file) else {
                    return true;
                };
                kept.is_within(&path) || path.split().is_some_and(|(parent, _)| parent == kept)
            }),
            Job::Remove(file) => files.remove(&file),
        }
    }
}

#[cfg(test)]
mod tests;
