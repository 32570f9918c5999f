//! The thread that changes a store: it writes content, evicts, and maintains the index.
//!
//! Readers pass verified blocks to it through a queue that is bounded in bytes. If the disk is slower than
//! they are, they wait for it while it makes progress. So a first read runs at least at the speed of the disk,
//! and the second one finds the data. If the disk takes nothing for the timeout, blocks are no longer kept:
//! that costs hits, and no time.

use super::catalog::{ContentEntry, disk_bytes};
use super::content;
use super::items::ReferenceCounts;
use super::job::{Job, PutBlock, PutWhole};
use super::log::Log;
use super::record::{BlockOrigin, Clear, ContentId, Record};
use super::{Shared, StoreError, sweep};
use crate::num::to_usize;
use crate::read::FileId;
use copperfs_overlay::{ContentHash, ItemPath};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};

/// Bytes that may wait to be written. They are part of the memory that a daemon takes beside its caches.
const QUEUE_BYTES_MAX: u64 = 16 << 20;
/// Jobs that may wait. With small blocks this bound is reached first.
const QUEUE_JOBS_MAX: usize = 4096;
/// The unit in which the queue's bytes are counted.
const QUEUE_UNIT: u64 = 4096;
/// After a block has waited in vain for room in the queue, no block waits for this multiple of the timeout. So
/// a hanging disk delays readers for at most a tenth of the time.
const NO_WAIT_TIMEOUTS: u32 = 9;

/// How long a clear waits for the disk to record it.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(2);
/// How long passthrough files wait for the jobs queued before them.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long queued jobs may take to be written: far longer than a disk takes for a full queue, unless it
/// hangs.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Closing a store waits for queued jobs for this multiple of the disk's timeout.
const CLOSE_TIMEOUTS: u32 = 5;
/// Clears that wait for the disk. At this number they are merged into one clear of everything.
const CLEARS_MAX: usize = 256;

/// Work that takes no room in the queue, so that it can be added while the queue is full.
#[derive(Default)]
pub(super) struct Pending {
    /// Clears that the disk has not recorded yet. They are recorded before the next job.
    clears: Mutex<Vec<Clear>>,
    /// Files to release once the queue is empty. Bounded by the number of items.
    releases: Mutex<Vec<FileId>>,
}

/// A job was not queued, because the disk has too much to write.
#[derive(Debug)]
pub(super) struct QueueFull;

/// A handle on the thread. Dropping it writes all queued jobs and ends the thread.
pub(super) struct Writer {
    pub(super) jobs: mpsc::SyncSender<Job>,
    /// Permits for the bytes of the queue.
    room: Arc<Semaphore>,
    /// No block waits before this time. Locked for a copy only.
    next_wait: Mutex<Instant>,
    shared: Arc<Shared>,
    /// Disconnected when the writing thread and the sweeping one have ended, because each has a clone of
    /// `running`.
    ended: Mutex<mpsc::Receiver<()>>,
    running: Option<mpsc::SyncSender<()>>,
}

impl Writer {
    /// `references`: the owner of the store decides which items it holds.
    pub(super) fn start(
        shared: Arc<Shared>,
        log: Log,
        references: Option<ReferenceCounts>,
    ) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::sync_channel(QUEUE_JOBS_MAX);
        let (running, ended) = mpsc::sync_channel(0);
        let writer = Self {
            jobs,
            room: Arc::new(Semaphore::new(to_usize(QUEUE_BYTES_MAX / QUEUE_UNIT))),
            next_wait: Mutex::new(Instant::now()),
            shared: Arc::clone(&shared),
            ended: Mutex::new(ended),
            running: Some(running),
        };
        let thread = WriterThread {
            shared,
            references,
            log,
        };
        let started = writer.spawn("copperfs-store", move || thread.run(&queue));
        let path = &writer.shared.directory.path;
        started.map_err(StoreError::on(path, "start the thread of"))?;
        Ok(writer)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let running = self.running.clone();
        let builder = std::thread::Builder::new().name(name.into());
        builder.spawn(move || {
            work();
            drop(running);
        })?;
        Ok(())
    }

    /// Queues a block. Returns whether there was room in time.
    pub(super) async fn put(&self, block: PutBlock) -> bool {
        if !self.shared.health.may_write() {
            return false;
        }
        let units = u32::try_from(block.len().div_ceil(QUEUE_UNIT).max(1)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room);
        let permit = match Arc::clone(&room).try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => {
                let began = Instant::now();
                // The disk hung recently. Waiting again would delay another reader.
                if *self.next_wait.lock() > began {
                    return false;
                }
                let timeout = self.shared.disk_timeout;
                let waited = tokio::time::timeout(timeout, room.acquire_many_owned(units)).await;
                let Ok(Ok(permit)) = waited else {
                    *self.next_wait.lock() = began + timeout * (1 + NO_WAIT_TIMEOUTS);
                    return false;
                };
                permit
            }
        };
        self.jobs.try_send(Job::Put(block, permit)).is_ok()
    }

    /// Waits until all jobs queued before are done. `false`: the outcome is unknown.
    pub(super) async fn drained(&self) -> bool {
        let (done, drained) = oneshot::channel();
        let is_queued = self.jobs.try_send(Job::Drained(done)).is_ok();
        is_queued
            && matches!(
                tokio::time::timeout(DRAIN_TIMEOUT, drained).await,
                Ok(Ok(()))
            )
    }

    /// Queues the release of files, after the jobs queued before. Never waits: if the queue is full, they are
    /// released once it is empty.
    pub(super) fn release(&self, files: Vec<FileId>) {
        let queued = self.jobs.try_send(Job::Release(files));
        if let Err(mpsc::TrySendError::Full(Job::Release(files))) = queued {
            self.shared.pending.releases.lock().extend(files);
        }
    }

    /// Removes a condemned content file.
    pub(super) fn remove(&self, content: ContentId) {
        // If the queue is full, the sweep at the next start finds the file.
        drop(self.jobs.try_send(Job::Remove(content)));
    }

    /// Records a clear on the disk. Returns whether it was recorded in time.
    pub(super) fn record_clear(&self, mut clear: Clear) -> bool {
        {
            let mut clears = self.shared.pending.clears.lock();
            if clears.len() >= CLEARS_MAX {
                clears.clear();
                clear.path = ItemPath::root();
            }
            clears.push(clear);
        }
        // If the queue is full, the thread records the clear before its next job.
        self.ask(CLEAR_TIMEOUT, Job::Cleared).is_some()
    }

    /// Waits until all jobs queued before are done.
    pub(super) fn flush(&self) {
        let (done, flushed) = mpsc::sync_channel(1);
        let queued = self.jobs.send(Job::Flush(done));
        drop(queued.map(|()| flushed.recv()));
    }

    /// Waits until a whole file is renamed into place.
    pub(super) fn put_whole(&self, whole: PutWhole) {
        // Without an answer the file is still valid for its caller, and the thread completes the job later.
        let _answer = self.ask(ANSWER_TIMEOUT, |done| Job::PutWhole(whole, done));
    }

    /// Makes room for a whole file of `bytes`.
    ///
    /// # Errors
    /// Those of the disk; `NOSPC` if there is no room beside the reserve.
    pub(super) fn make_room(&self, bytes: u64) -> Result<(), Errno> {
        if !self.shared.health.may_write() {
            return Err(Errno::AGAIN);
        }
        self.ask(ANSWER_TIMEOUT, |done| Job::MakeRoom(bytes, done))
            .unwrap_or(Err(Errno::CANCELED))
    }

    /// Changes the capacity to `bytes`, after the jobs queued before. Waits for the evictions for a limited time, and
    /// returns whether they are done.
    ///
    /// # Errors
    /// The queue is full: the capacity stays.
    pub(super) fn resize(&self, bytes: u64) -> Result<bool, QueueFull> {
        let (done, answer) = mpsc::sync_channel(1);
        let queued = self.jobs.try_send(Job::Resize(bytes, done));
        queued.map_err(|_full| QueueFull)?;
        Ok(answer.recv_timeout(ANSWER_TIMEOUT).is_ok())
    }

    /// Waits for a job's answer. Returns `None` if the queue is full, the disk hangs, or the thread has
    /// ended.
    fn ask<T>(&self, timeout: Duration, job: impl FnOnce(mpsc::SyncSender<T>) -> Job) -> Option<T> {
        let (done, answer) = mpsc::sync_channel(1);
        self.jobs.try_send(job(done)).ok()?;
        answer.recv_timeout(timeout).ok()
    }

    /// Compares the index with the directory, on another thread.
    pub(super) fn sweep(&self) {
        let (shared, jobs) = (Arc::clone(&self.shared), self.jobs.clone());
        let sweep = move || {
            sweep::sweep(&shared, &jobs);
        };
        let started = self.spawn("copperfs-sweep", sweep);
        if let Err(error) = started {
            tracing::warn!(%error, "the store's directory is not compared with its index");
            self.shared.swept.send_replace(true);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Sequentially consistent: if the queue is full here, the thread sees this when it finds it empty.
        self.shared.closing.store(true, Ordering::SeqCst);
        drop(self.jobs.try_send(Job::Stop));
        // Only the threads' own senders are left, so that `ended` is disconnected when they end.
        self.running = None;
        let timeout = self.shared.disk_timeout * CLOSE_TIMEOUTS;
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.get_mut().recv_timeout(timeout) {
            tracing::warn!("the store's disk does not answer: the data queued for it is lost");
        }
    }
}

/// The state of the writing thread.
struct WriterThread {
    shared: Arc<Shared>,
    log: Log,
    /// For a store whose owner decides which items it holds: it evicts nothing, and refuses content that does
    /// not fit.
    references: Option<ReferenceCounts>,
}

impl WriterThread {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        loop {
            let job = match queue.try_recv() {
                Err(mpsc::TryRecvError::Empty) => {
                    self.finish_batch();
                    // A store that was closed while its queue was full could not queue its stop job. Jobs that were
                    // queued before it was closed are still done.
                    if self.shared.closing.load(Ordering::SeqCst) {
                        queue.try_recv().ok()
                    } else {
                        queue.recv().ok()
                    }
                }
                job => job.ok(),
            };
            let Some(job) = job.filter(|job| !matches!(job, Job::Stop)) else {
                break;
            };
            // Before the job: content that was requested before a clear must not be valid after a restart.
            self.record_clears();
            self.run_job(job);
        }
        self.record_clears();
        self.finish_batch();
    }

    fn record_clears(&mut self) {
        let clears = std::mem::take(&mut *self.shared.pending.clears.lock());
        if clears.is_empty() {
            return;
        }
        for clear in clears {
            self.log.append(&Record::Cleared(clear));
        }
        self.log.sync();
    }

    /// Completes the work that waits for an empty queue: releases, and writes of the index.
    fn finish_batch(&mut self) {
        let releases = std::mem::take(&mut *self.shared.pending.releases.lock());
        releases.iter().for_each(|file| self.release(file));
        self.log.flush();
        if self.log.wants_compaction() && self.shared.health.may_write() {
            let Shared {
                directory, catalog, ..
            } = &*self.shared;
            if let Err(errno) = self.log.compact(directory, catalog) {
                self.write_failed(errno);
            }
        }
    }

    /// Answers may fail, because the caller may have stopped waiting.
    fn run_job(&mut self, job: Job) {
        match job {
            Job::Put(block, permit) => {
                self.put(&block);
                // The permit stands for the memory of the block.
                drop((block, permit));
            }
            Job::PutWhole(whole, done) => {
                self.put_whole(whole);
                done.try_send(()).ok();
            }
            Job::Resize(bytes, done) => {
                self.resize(bytes);
                done.try_send(()).ok();
            }
            Job::MakeRoom(bytes, done) => {
                let made = self.make_room(bytes);
                if let Err(errno) = made {
                    self.write_failed(errno);
                }
                done.try_send(made).ok();
            }
            Job::Remove(content) => {
                if self.shared.catalog.acquit(&content) {
                    self.remove(&content);
                }
            }
            Job::Adopt(content, len, origin) => self.adopt(content, len, origin),
            Job::Missing(content) => {
                // It may have been written since the sweep.
                if !self.shared.directory.exists(&content.path()) {
                    self.shared.catalog.forget(&content);
                    self.log.append(&Record::Gone(content));
                }
            }
            Job::Swept => drop(self.shared.swept.send_replace(true)),
            Job::Drained(done) => drop(done.send(())),
            Job::Release(files) => files.iter().for_each(|file| self.release(file)),
            // The clears were recorded just before this job.
            Job::Cleared(done) => {
                done.try_send(()).ok();
            }
            Job::Flush(done) => {
                self.finish_batch();
                done.try_send(()).ok();
            }
            Job::Stop => {}
        }
    }

    /// Handles a failed write. If the directory may have been removed, it is restored, and content that was
    /// lost with it is forgotten.
    fn write_failed(&mut self, errno: Errno) {
        let shared = Arc::clone(&self.shared);
        shared.health.write_failed(errno);
        if !matches!(
            errno,
            Errno::NOENT | Errno::STALE | Errno::IO | Errno::NODEV | Errno::NXIO
        ) {
            return;
        }
        match shared.directory.restore() {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!("the store's directory was taken away: it begins again");
                for content in shared.catalog.content_ids() {
                    if !shared.directory.exists(&content.path()) {
                        shared.catalog.forget(&content);
                    }
                }
                self.log.is_broken = true;
                shared.health.restored();
            }
            Err(error) => tracing::debug!(%error, "the store's directory is not back"),
        }
    }

    fn put(&mut self, block: &PutBlock) {
        let (shared, hash, len) = (Arc::clone(&self.shared), block.hash, block.len());
        if let Some(torn) = shared.catalog.torn(hash, len) {
            shared.counters.damaged.increment();
            shared.catalog.forget(&torn);
            self.remove(&torn);
        }
        if shared.catalog.has_content(hash) {
            shared.counters.shared.increment();
        } else {
            let written = self.make_room(len).and_then(|()| {
                content::write(&shared.directory, hash, &block.pieces, &block.origin)
            });
            if let Err(errno) = written {
                self.write_failed(errno);
                shared.counters.dropped.increment();
                return;
            }
            shared.health.write_succeeded();
            self.add_block(hash, len);
        }
        self.record(block.origin, hash);
    }

    fn put_whole(&mut self, whole: PutWhole) {
        let shared = Arc::clone(&self.shared);
        let content = ContentId::whole(whole.name);
        let blocks = whole.entry.blocks.clone().unwrap_or_default();
        let len = whole.entry.len;
        // Its bytes are on the disk already, so no further room is needed.
        let published = self
            .make_room(0)
            .and_then(|()| shared.directory.publish(&whole.temporary, &content.path()));
        if let Err(errno) = published {
            shared.directory.remove(&whole.temporary);
            self.write_failed(errno);
            return;
        }
        self.add(content, whole.entry);
        let (file, moment, name) = (whole.file, whole.moment, whole.name);
        shared.catalog.record_whole(file, moment, name, &blocks);
        self.log.append(&Record::Whole {
            file,
            moment,
            name,
            len,
            blocks: blocks.to_vec(),
        });
        // The whole file replaces the content files of its blocks.
        for hash in blocks.iter() {
            let block = ContentId::block(*hash);
            if shared.catalog.contents.contains(&content) && shared.catalog.forget(&block) {
                self.remove(&block);
            }
        }
    }

    fn adopt(&mut self, content: ContentId, len: u64, origin: Option<BlockOrigin>) {
        // Since the sweep found the file, a reader may have found it damaged, or the store may have evicted it.
        let shared = Arc::clone(&self.shared);
        let catalog = &shared.catalog;
        let is_known = catalog.contents.contains(&content) || catalog.condemned.contains(&content);
        if is_known || !shared.directory.exists(&content.path()) {
            return;
        }
        let Some(origin) = origin else {
            // No file version refers to it, and a whole file may be torn.
            self.remove(&content);
            return;
        };
        catalog.reach(origin.moment);
        self.add_block(content.name, len);
        self.record(origin, content.name);
    }

    /// Adds a content file with one block.
    fn add_block(&mut self, hash: ContentHash, len: u64) {
        self.add(ContentId::block(hash), ContentEntry::block(len));
        if let Ok(len) = u32::try_from(len) {
            self.log.append(&Record::Content { hash, len });
        }
    }

    /// Records that a block of a file version has this hash.
    fn record(&mut self, origin: BlockOrigin, hash: ContentHash) {
        let catalog = &self.shared.catalog;
        if let Some(references) = &mut self.references
            && catalog.recorded_hash(&origin.file, origin.index) != Some(hash)
        {
            references.add(hash);
        }
        catalog.record(&origin, hash);
        self.log.append(&Record::Block { origin, hash });
    }

    fn add(&mut self, content: ContentId, entry: ContentEntry) {
        for evicted in self.shared.catalog.add(content, entry) {
            self.remove(&evicted);
        }
    }

    /// Evicts until `incoming` bytes fit into the store and its filesystem.
    fn make_room(&mut self, incoming: u64) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let catalog = &shared.catalog;
        let incoming = disk_bytes(incoming);
        let mut target = catalog.contents.capacity_bytes().saturating_sub(incoming);
        let shortage = shared.health.shortage(&shared.directory, incoming)?;
        if shortage > 0 {
            let held = catalog.contents.stats().bytes + catalog.lingering_bytes();
            if self.references.is_some() || held < shortage {
                return Err(Errno::NOSPC);
            }
            // Other files fill the disk, so the store shrinks below its capacity.
            target = target.min(held - shortage);
        }
        for evicted in catalog.shrink_to(target) {
            self.remove(&evicted);
        }
        Ok(())
    }

    fn resize(&mut self, bytes: u64) {
        for evicted in self.shared.catalog.shrink_to(bytes) {
            self.remove(&evicted);
        }
        // Only this thread adds content, so there is nothing left to evict.
        self.shared.catalog.contents.set_capacity(bytes);
    }

    fn remove(&mut self, content: &ContentId) {
        self.shared.directory.remove(&content.path());
        self.log.append(&Record::Gone(*content));
    }

    /// Forgets a file, and the content that no other file has.
    fn release(&mut self, file: &FileId) {
        for (_, hash) in self.shared.catalog.forget_file(file) {
            let references = self.references.as_mut();
            let is_last = references.is_none_or(|references| references.remove(hash));
            let content = ContentId::block(hash);
            if is_last && self.shared.catalog.forget(&content) {
                self.remove(&content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::EvictionPolicy;
    use crate::store::{Store, StoreOptions};
    use copperfs_policy::amounts::Size;

    /// Jobs that are queued before the store is closed are done, also if the thread completes a batch meanwhile.
    #[test]
    fn jobs_queued_before_closing_are_done() {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            directory: directory.path().to_owned(),
            capacity: Size::Bytes(1 << 20),
            reserve_percent: 1,
            policy: EvictionPolicy::Lru,
            disk_timeout: Duration::from_secs(60),
        };
        let store = Store::open(&options).unwrap();
        // With an empty queue, the thread waits for this lock.
        let releases = store.shared.pending.releases.lock();
        let answer = loop {
            let (done, answer) = mpsc::sync_channel(1);
            store.writer.jobs.try_send(Job::Cleared(done)).unwrap();
            // Without an answer, the thread has found its queue empty before, and waits for the lock.
            if answer.recv_timeout(Duration::from_millis(100)).is_err() {
                break answer;
            }
        };
        store.shared.closing.store(true, Ordering::SeqCst);
        drop(releases);
        assert_eq!(answer.recv(), Ok(()));
    }
}
