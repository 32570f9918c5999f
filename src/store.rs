//! The store: this node's cache on a disk, which outlives the process.
//!
//! Purpose: keep verified blocks in content files named by their BLAKE3 hash, below one directory of a
//! real filesystem (NVMe, or a tmpfs), and find them again by file version and block number after a
//! restart. Equal blocks share one content file, even if their paths differ. [`StoreLayer`] puts a store in front
//! of any [`Files`](copperfs_overlay::Files): it reads the blocks that the store has, and keeps the others
//! while it passes them on.
//!
//! What it does not do: metadata (the read path stores listings itself, in `meta/`), hits of the FUSE threads
//! (they come from memory only), retries towards other nodes.
//!
//! Invariants
//! - A content file is written elsewhere, renamed into place, and never written again.
//! - Every read from the disk is verified: a block that does not have its hash is dropped, counted and fetched
//!   again. So no write waits for `fsync`, and after a crash the store may only be smaller.
//! - Failures of the disk (full, read-only, removed) cost hits, and never fail a request.
//! - The directory is locked: only one process uses it at a time.
//!
//! The on-disk format is in `docs/format.md`.

mod catalog;
mod content;
mod directory;
mod health;
mod items;
mod job;
mod layer;
mod log;
mod record;
mod sweep;
mod whole;
mod writer;

pub use directory::StoreError;
pub(crate) use items::ItemBlock;
pub use layer::StoreLayer;
pub use whole::{Verified, Whole, WholeWriter};

use crate::cache::EvictionPolicy;
use bytes::Bytes;
use catalog::Catalog;
use copperfs_metrics::{Counter, Histogram, Kind, Registry, Unit};
use copperfs_overlay::{ContentHash, ItemPath};
use copperfs_policy::amounts::Size;
use directory::{Directory, METADATA};
use health::Health;
use items::ReferenceCounts;
use job::PutBlock;
use record::{BlockLocation, BlockOrigin, ContentId};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use writer::{Pending, QueueFull, Writer};

/// The options of a [`Store`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Its directory. It is created if it is missing, and refused if it has other content.
    pub directory: PathBuf,
    /// The maximum disk space of the content files, in whole disk blocks: bytes, or a share of the filesystem.
    pub capacity: Size,
    /// The share of its filesystem that is left free, in per cent.
    pub reserve_percent: u8,
    /// The eviction policy of a full store.
    pub policy: EvictionPolicy,
    /// How long a reader waits for the disk. After that a read is sent to the source, and a block is not kept.
    pub disk_timeout: Duration,
}

impl StoreOptions {
    /// The default of [`StoreOptions::disk_timeout`]: longer than a disk takes, unless it hangs.
    pub const DISK_TIMEOUT: Duration = Duration::from_secs(1);
}

/// Counters since a store was opened, and its current size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Content files.
    pub entries: u64,
    /// Their disk space, including evicted files that are still open.
    pub bytes: u64,
    /// Blocks read from the store.
    pub hits: u64,
    /// Requested blocks that the store did not have.
    pub misses: u64,
    /// Content files removed because the store was full.
    pub evictions: u64,
    /// Content files found torn or changed.
    pub damaged: u64,
    /// Blocks that were not kept, because the disk was full, slow or faulty.
    pub dropped: u64,
    /// Blocks whose bytes were in the store already.
    pub shared: u64,
}

#[derive(Default)]
struct Counters {
    /// Times to read a block.
    latency: Histogram,
    hits: Counter,
    misses: Counter,
    damaged: Counter,
    dropped: Counter,
    shared: Counter,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    writer: Arc<Writer>,
}

/// The state that the writer's thread and the readers share.
struct Shared {
    directory: Directory,
    catalog: Catalog,
    health: Health,
    counters: Counters,
    /// The store is being closed, so the sweep ends.
    closing: AtomicBool,
    /// The sweep has ended, so the catalog is complete.
    swept: watch::Sender<bool>,
    pending: Pending,
    /// Limits concurrent reads from the disk.
    reads: Arc<Semaphore>,
    /// See [`StoreOptions::disk_timeout`].
    disk_timeout: Duration,
}

/// Concurrent reads from the disk: enough to keep an NVMe busy, and few enough that a hanging disk occupies
/// few threads.
const READS_MAX: usize = 16;

impl Store {
    /// Opens the store in a directory, or creates one. Blocks while its index is read: some milliseconds for ten
    /// thousand blocks.
    ///
    /// # Errors
    /// See [`StoreError`]. A damaged index or content file is no error.
    pub fn open(options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open_as(options, false)
    }

    /// `is_of_items`: its owner decides which items it holds.
    fn open_as(options: &StoreOptions, is_of_items: bool) -> Result<Self, StoreError> {
        let directory = Directory::open(&options.directory)?;
        let capacity_bytes = bytes_of(&directory, options.capacity)?;
        let shared = Arc::new(Shared {
            health: Health::new(options.reserve_percent),
            directory,
            catalog: Catalog::new(options.policy, capacity_bytes),
            counters: Counters::default(),
            closing: AtomicBool::new(false),
            swept: watch::channel(false).0,
            pending: Pending::default(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            disk_timeout: options.disk_timeout,
        });
        let (log, evicted) = log::replay(&shared.directory, &shared.catalog)?;
        for content in evicted {
            shared.directory.remove(&content.path());
        }
        let references = is_of_items.then(|| ReferenceCounts::of(&shared.catalog));
        let writer = Arc::new(Writer::start(Arc::clone(&shared), log, references)?);
        writer.sweep();
        Ok(Self { shared, writer })
    }

    /// The directory in which this node may keep listings between launches.
    #[must_use]
    pub fn metadata_directory(&self) -> PathBuf {
        self.shared.directory.path.join(METADATA)
    }

    /// Invalidates the content of `path` and below: at once for this process, and after a restart as soon as
    /// the disk has recorded it. Waits for that for a limited time, and returns whether the disk has recorded
    /// it; if not, it is recorded when the disk answers. Content that is in use stays valid for its current
    /// users. This call blocks, so it needs a blocking thread.
    pub fn clear(&self, path: &ItemPath) -> bool {
        let clear = self.shared.catalog.clear(path);
        let is_recorded = self.writer.record_clear(clear);
        if !is_recorded {
            tracing::warn!(
                %path,
                "the store's disk does not answer: the cleared content is no longer used; if this \
                 daemon ends before the disk answers, the next one checks that content again"
            );
        }
        is_recorded
    }

    /// Writes all queued content, and the index. This call blocks.
    pub fn flush(&self) {
        self.writer.flush();
    }

    /// Changes the maximum disk space and the share of the filesystem that is left free. If the store is larger, it evicts
    /// at once. This call blocks until that is done, for a limited time.
    ///
    /// # Errors
    /// The disk does not tell its size, or has too much to write: nothing changes.
    pub fn resize(&self, capacity: Size, reserve_percent: u8) -> Result<(), StoreError> {
        let bytes = self.shared.bytes_of(capacity)?;
        match self.writer.resize(bytes) {
            Err(QueueFull) => {
                return Err(StoreError::Busy {
                    path: self.shared.directory.path.clone(),
                });
            }
            Ok(true) => {}
            Ok(false) => tracing::warn!("the store still evicts what no longer fits"),
        }
        self.shared.health.set_reserve(reserve_percent);
        Ok(())
    }

    /// Declares the counters in `registry`.
    pub fn declare(&self, registry: &Registry) {
        use Unit::{Bytes, Count};
        let latency = registry.scope("latency_seconds").label("tier", "disk");
        let help = "Time from a question to a tier to the beginning of its answer.";
        let read = latency.label("op", "read");
        read.histogram("", help, &self.shared.counters.latency);
        let disk = registry.scope("disk");
        let read = |number: fn(&StoreStats) -> u64| {
            let store = self.clone();
            move || number(&store.stats())
        };
        let help = "Content files in the store.";
        disk.computed("entries", Kind::Gauge, Count, help, read(|now| now.entries));
        let help = "Bytes of the disk that the store takes.";
        disk.computed("bytes", Kind::Gauge, Bytes, help, read(|now| now.bytes));
        let help = "Bytes of the disk that the store may take.";
        let capacity = self.clone();
        let capacity = move || capacity.shared.catalog.contents.capacity_bytes();
        disk.computed("capacity_bytes", Kind::Gauge, Bytes, help, capacity);
        let help = "Content files removed because the store was full.";
        let evictions = read(|now| now.evictions);
        disk.computed("evictions", Kind::Counter, Count, help, evictions);
        let counters = &self.shared.counters;
        let help = "Blocks read from the store.";
        disk.counter("hits", Count, help, &counters.hits);
        let help = "Blocks that were not in the store when they were requested.";
        disk.counter("misses", Count, help, &counters.misses);
        let help = "Content files found torn or changed: removed, and fetched again.";
        disk.counter("damaged", Count, help, &counters.damaged);
        let help = "Blocks that were not kept because the disk was full, slow or faulty.";
        disk.counter("dropped", Count, help, &counters.dropped);
        let help = "Blocks whose bytes were in the store already.";
        disk.counter("shared", Count, help, &counters.shared);
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let Shared {
            catalog, counters, ..
        } = &*self.shared;
        let held = catalog.contents.stats();
        StoreStats {
            entries: held.entries,
            bytes: held.bytes + catalog.lingering_bytes(),
            hits: counters.hits.get(),
            misses: counters.misses.get(),
            evictions: held.evictions,
            damaged: counters.damaged.get(),
            dropped: counters.dropped.get(),
            shared: counters.shared.get(),
        }
    }

    /// The verified bytes of `block`. Returns `None` if they are missing or damaged, which is recorded, or if
    /// the disk does not answer in time. A hanging read keeps one of [`READS_MAX`] permits and its thread, so a
    /// hanging disk occupies no more than these.
    async fn load(&self, block: BlockLocation) -> Option<Bytes> {
        let shared = &self.shared;
        if !shared.health.begin_read() {
            return None;
        }
        let store = self.clone();
        let reading = async move {
            let shared = Arc::clone(&store.shared);
            let permit = Arc::clone(&shared.reads).acquire_owned().await.ok()?;
            let read = tokio::task::spawn_blocking(move || {
                let loaded = shared.load(&block);
                drop(permit);
                loaded
            });
            let read = read.await.ok()?;
            read.inspect_err(|condemned| store.writer.remove(*condemned))
                .ok()
        };
        let read = tokio::time::timeout(shared.disk_timeout, reading).await;
        read.unwrap_or_else(|_elapsed| {
            shared.health.read_timed_out(shared.disk_timeout);
            None
        })
    }

    /// Queues a verified block to be written. Returns whether the disk is fast enough to take it.
    async fn keep(&self, origin: BlockOrigin, hash: ContentHash, pieces: Vec<Bytes>) -> bool {
        let block = PutBlock {
            origin,
            hash,
            pieces,
        };
        let is_queued = self.writer.put(block).await;
        if !is_queued {
            self.shared.counters.dropped.increment();
        }
        is_queued
    }

    /// The block with this hash, from any file.
    pub async fn by_hash(&self, hash: ContentHash, len: u64) -> Option<Bytes> {
        let block = self.shared.catalog.find_content(hash, len)?;
        self.load(block).await
    }
}

/// `capacity` in bytes, for a store in `directory`.
fn bytes_of(directory: &Directory, capacity: Size) -> Result<u64, StoreError> {
    match capacity {
        Size::Bytes(bytes) => Ok(bytes),
        Size::Percent(percent) => directory.share(percent),
    }
}

impl Shared {
    fn bytes_of(&self, capacity: Size) -> Result<u64, StoreError> {
        bytes_of(&self.directory, capacity)
    }

    /// Reads and verifies a block.
    ///
    /// # Errors
    /// The condemned content file, which must be removed.
    fn load(&self, block: &BlockLocation) -> Result<Bytes, ContentId> {
        let begun = Instant::now();
        let read = content::read(&self.directory, block);
        self.health.read_ended(read.as_ref().err().copied());
        let Ok(Some(bytes)) = read else {
            self.condemn(block.content, block.serial);
            return Err(block.content);
        };
        self.counters.latency.observe(begun.elapsed());
        self.counters.hits.increment();
        Ok(bytes)
    }

    /// Drops damaged content, and counts it once even if several readers find it damaged. Does nothing if it
    /// was evicted or replaced meanwhile.
    fn condemn(&self, content: ContentId, serial: u64) {
        if self.catalog.condemn(content, serial) {
            self.counters.damaged.increment();
            tracing::warn!(%content, "damaged content in the store: dropped, and fetched again");
        }
    }
}

#[cfg(test)]
mod tests;
