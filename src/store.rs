//! The store: this node's cache on a disk, which outlives the process.
//!
//! Purpose: keep verified blocks in content files named by their BLAKE3 hash, below one directory of a
//! real filesystem (NVMe, or a tmpfs), and find them again by file version and block number after a
//! restart. Bytes that are equal lie there once, whatever their paths. [`Stored`] puts a store in front
//! of any [`Files`](copperfs_overlay::Files): what is here is read from here, and what passes by is
//! kept.
//!
//! What it does not do: metadata (listings are the read path's, in `meta/`), hits of the FUSE threads
//! (they come from memory only), retries towards other nodes.
//!
//! Invariants
//! - A content file is written elsewhere and renamed into place, and never written again.
//! - Nothing is given out that does not have the hash under which it is kept: every read from disk is
//!   checked, and what is torn or changed is dropped, counted and fetched anew. So nothing waits for
//!   `fsync`, and a store after a crash is at worst a smaller one.
//! - Trouble with the disk (full, read-only, gone) costs its hits and no request.
//! - One process at a time: the directory is locked.
//!
//! The format is in `docs/format.md`.

mod catalog;
mod claims;
mod content;
mod directory;
mod health;
mod items;
mod job;
mod layer;
mod log;
mod record;
mod sweep;
mod unit;
mod whole;
mod writer;

pub use directory::StoreError;
pub(crate) use items::ItemBlock;
pub use layer::Stored;
pub use whole::{Verified, Whole, WholeWriter};

use crate::cache::EvictionPolicy;
use crate::read::FileRef;
use bytes::Bytes;
use catalog::{Catalog, Place};
use copperfs_metrics::{Counter, Histogram, Kind, Registry, Unit as Measure};
use copperfs_overlay::{ContentHash, ItemPath};
use copperfs_policy::amounts::Size;
use directory::Directory;
use health::Health;
use job::Put;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::time::Instant;
use tokio::sync::{Semaphore, watch};
use unit::Unit;
use writer::Writer;

/// What a [`Store`] is opened with.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Its directory: made if it is missing, refused if it holds anything else.
    pub directory: PathBuf,
    /// Disk it may take, content files only, in whole disk blocks: bytes, or a share of its filesystem.
    pub capacity: Size,
    /// The share of its filesystem that is left free, in per cent.
    pub reserve_percent: u8,
    /// What a full store evicts.
    pub policy: EvictionPolicy,
    /// How long a reader waits for the disk. After that a read asks the source, and a block is not kept.
    pub patience: Duration,
}

impl StoreOptions {
    /// The default of [`StoreOptions::patience`]: longer than a disk takes, unless it hangs.
    pub const PATIENCE: Duration = Duration::from_secs(1);
}

/// What a store has counted since it was opened, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStats {
    /// Content files held.
    pub entries: u64,
    /// Disk they take, evicted files that are still open included.
    pub bytes: u64,
    /// Blocks read from here.
    pub hits: u64,
    /// Blocks asked for that were not here.
    pub misses: u64,
    /// Content files dropped for lack of room.
    pub evictions: u64,
    /// Content files found torn or changed.
    pub damaged: u64,
    /// Blocks that were not kept: the disk was full, slow or faulty.
    pub dropped: u64,
    /// Blocks whose bytes were here already, under another name.
    pub shared: u64,
}

#[derive(Debug, Default)]
struct Counters {
    /// Times to read a block.
    latency: Histogram,
    hits: Counter,
    misses: Counter,
    damaged: Counter,
    dropped: Counter,
    shared: Counter,
}

/// Who decides what a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keeps {
    /// The store: it evicts for what comes.
    WhatFits,
    /// Its owner, item by item: what does not fit is refused.
    WhatIsAsked,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    writer: Writer,
}

/// What the writer's thread and the readers both use.
struct Shared {
    directory: Directory,
    catalog: Catalog,
    health: Health,
    counters: Counters,
    /// The store is being closed: the sweep ends.
    closing: AtomicBool,
    /// What the directory holds is known: the sweep has ended.
    swept: watch::Sender<bool>,
    keeps: Keeps,
    /// Reads from the disk at a time: enough to keep an NVMe busy, few enough that a disk that hangs
    /// holds few threads.
    reads: Arc<Semaphore>,
    /// See [`StoreOptions::patience`].
    patience: Duration,
}

/// Reads from the disk at a time.
const READS_MAX: usize = 16;

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("directory", &self.0.shared.directory)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store in a directory, or makes one. Blocks for as long as reading its index takes: some
    /// milliseconds for ten thousand blocks.
    ///
    /// # Errors
    /// See [`StoreError`]. A damaged index or content file is no error.
    pub fn open(options: &StoreOptions) -> Result<Self, StoreError> {
        Self::open_as(options, Keeps::WhatFits)
    }

    fn open_as(options: &StoreOptions, keeps: Keeps) -> Result<Self, StoreError> {
        let directory = Directory::open(&options.directory)?;
        let capacity_bytes = match options.capacity {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => directory.share(percent)?,
        };
        let catalog = Catalog::new(options.policy, capacity_bytes);
        let shared = Arc::new(Shared {
            health: Health::new(options.reserve_percent),
            directory,
            catalog,
            counters: Counters::default(),
            closing: AtomicBool::new(false),
            swept: watch::channel(false).0,
            keeps,
            reads: Arc::new(Semaphore::new(READS_MAX)),
            patience: options.patience,
        });
        let (log, evicted) = log::replay(&shared.directory, &shared.catalog)?;
        for unit in evicted {
            shared.directory.remove(&unit);
        }
        let writer = Writer::start(Arc::clone(&shared), log)?;
        let store = Self(Arc::new(Inner { shared, writer }));
        store.0.writer.sweep();
        Ok(store)
    }

    /// Where this node may keep listings between launches.
    #[must_use]
    pub fn metadata_directory(&self) -> PathBuf {
        self.0.shared.directory.metadata()
    }

    /// Voids the content that the store holds of `path` and below: at once for this process, and after a
    /// restart as soon as the disk has recorded it. Waits for that for a limited time, and returns whether
    /// the disk has recorded it; if not, it is recorded when the disk answers. Content that is in use stays
    /// valid for its current users. Blocks: call it on a blocking thread.
    pub fn clear(&self, path: &ItemPath) -> bool {
        let seq = self.0.shared.catalog.clear(path);
        let noted = self.0.writer.cleared(path.clone(), seq);
        if !noted {
            tracing::warn!(
                %path,
                "the store's disk does not answer: the cleared content is no longer used; if this \
                 daemon ends before the disk answers, the next one checks that content again"
            );
        }
        noted
    }

    /// What is queued is written, the index is complete. Blocks.
    pub fn flush(&self) {
        self.0.writer.flush();
    }

    /// Declares the counters in `registry`.
    pub fn declare(&self, registry: &Registry) {
        use Measure::{Bytes, Count};
        let latency = registry.scope("latency_seconds").label("tier", "disk");
        let help = "Time from a question to a tier to the beginning of its answer.";
        let read = latency.label("op", "read");
        read.histogram("", help, &self.0.shared.counters.latency);
        let disk = registry.scope("disk");
        let read = |number: fn(&StoreStats) -> u64| {
            let store = self.clone();
            move || number(&store.stats())
        };
        let help = "Content files in the store.";
        disk.computed("entries", Kind::Gauge, Count, help, read(|now| now.entries));
        let help = "Bytes of the disk that the store takes.";
        disk.computed("bytes", Kind::Gauge, Bytes, help, read(|now| now.bytes));
        let help = "Content files removed because the store was full.";
        let evictions = read(|now| now.evictions);
        disk.computed("evictions", Kind::Counter, Count, help, evictions);
        let counters = &self.0.shared.counters;
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

    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let Shared {
            catalog, counters, ..
        } = &*self.0.shared;
        let held = catalog.stats();
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

    /// The moment to give to [`Store::keep`] for what is asked for now: a `clear` in between makes it
    /// void.
    fn moment(&self) -> u64 {
        self.0.shared.catalog.moment()
    }

    /// Where block `index` of `file` is, if it is here.
    fn find(&self, file: &FileRef, index: u64) -> Option<Place> {
        self.0.shared.catalog.find(file, index)
    }

    /// The bytes at `place`, verified. Returns `None` if they are gone or damaged, which is recorded, or if
    /// the disk does not answer within the store's patience. A hanging read keeps one of [`READS_MAX`]
    /// places and its thread, so a hanging disk occupies no more than these.
    async fn load(&self, place: Place) -> Option<Bytes> {
        let shared = &self.0.shared;
        if !shared.health.begin_read() {
            return None;
        }
        let store = self.clone();
        let reading = async move {
            let shared = Arc::clone(&store.0.shared);
            let permit = Arc::clone(&shared.reads).acquire_owned().await.ok()?;
            let read = tokio::task::spawn_blocking(move || {
                let loaded = shared.load(&place);
                drop(permit);
                loaded
            });
            match read.await.ok()? {
                Ok(bytes) => Some(bytes),
                Err(condemned) => {
                    store.0.writer.remove(condemned);
                    None
                }
            }
        };
        let read = tokio::time::timeout(shared.patience, reading).await;
        read.unwrap_or_else(|_elapsed| {
            shared.health.read_hangs(shared.patience);
            None
        })
    }

    /// Takes a verified block to be written, if the disk keeps up. `moment` is when it was asked for.
    async fn keep(&self, block: Put) {
        if !self.0.writer.put(block).await {
            self.0.shared.counters.dropped.increment();
        }
    }

    /// A block with these bytes, whatever file it belongs to.
    pub async fn by_hash(&self, hash: ContentHash, len: u64) -> Option<Bytes> {
        let place = self.0.shared.catalog.find_content(hash, len)?;
        self.load(place).await
    }
}

impl Shared {
    /// Reads and checks. An error names the content file to remove, if it is condemned.
    fn load(&self, place: &Place) -> Result<Bytes, Unit> {
        let begun = Instant::now();
        match content::read(&self.directory, place) {
            Ok(Some(bytes)) => {
                self.health.read_well();
                self.counters.latency.observe(begun.elapsed());
                self.counters.hits.increment();
                Ok(bytes)
            }
            Ok(None) => {
                self.health.read_well();
                self.condemn(place.unit, place.serial);
                Err(place.unit)
            }
            Err(errno) => {
                self.health.read_failed(errno);
                self.condemn(place.unit, place.serial);
                Err(place.unit)
            }
        }
    }

    /// Drops content that is not what it should be, and counts it once, however many readers find it so.
    /// Does nothing if it was evicted since they looked, or replaced.
    fn condemn(&self, unit: Unit, serial: u64) {
        if self.catalog.condemn(unit, serial) {
            self.counters.damaged.increment();
            tracing::warn!(content = %unit, "damaged content in the store: dropped, and fetched anew");
        }
    }
}

#[cfg(test)]
mod tests;
