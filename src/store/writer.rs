//! The one thread that changes a store: writes content, evicts, keeps the index.
//!
//! Readers hand it verified blocks through a queue that is bounded in bytes. When the disk does not
//! keep up they wait for it, as long as it makes way: so what is read for the first time comes at the
//! speed of the disk at least, and is there the second time. A disk that takes nothing for a second is
//! passed by: that costs hits, not time.

use super::catalog::{Held, disk_bytes};
use super::claims::Claims;
use super::content::{self, Origin};
use super::job::{Job, Put, PutWhole};
use super::log::Log;
use super::record::Record;
use super::sweep;
use super::unit::Unit;
use super::{Keeps, Shared, StoreError};
use crate::num::to_usize;
use crate::read::FileId;
use copperfs_overlay::{ContentHash, ItemPath};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, oneshot};

/// Bytes that may wait to be written. They are part of what a daemon takes above its caches.
const QUEUE_BYTES_MAX: u64 = 16 << 20;
/// Jobs that may wait; with small blocks this bound comes first.
const QUEUE_JOBS_MAX: usize = 4096;
/// The unit in which the queue's bytes are counted.
const QUEUE_UNIT: u64 = 4096;
/// After a block has waited in vain for room in the queue, no block waits for this multiple of the
/// patience. So a hanging disk delays readers for at most a tenth of the time.
const BETWEEN_WAITS: u32 = 9;

/// How long a clear waits for the disk to record it.
const CLEAR_PATIENCE: Duration = Duration::from_secs(2);
/// How long passthrough files wait for the jobs queued before them.
const ASK_PATIENCE: Duration = Duration::from_secs(30);
/// How long queued jobs may take to be written: far longer than a disk takes for a full queue, unless it
/// hangs.
const WRITTEN_PATIENCE: Duration = Duration::from_secs(10);
/// Closing a store waits for queued jobs for this multiple of a reader's patience.
const CLOSE_PATIENCES: u32 = 5;
/// The interval at which a closing store retries to queue its stop job.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// Clears that wait for the disk; beyond it they are merged into one clear of everything.
const CLEARS_MAX: usize = 256;

/// Work that needs no room in the queue, and so can be added while the queue is full.
#[derive(Debug, Default)]
struct Aside {
    /// Clears that the disk has not recorded yet. They are processed before queued jobs.
    clears: Mutex<Vec<(ItemPath, u64)>>,
    /// Files to release once the queue is empty. Bounded by the items that were held.
    releases: Mutex<Vec<FileId>>,
}

impl Aside {
    fn clear(&self, path: ItemPath, until: u64) {
        let mut clears = self.clears.lock();
        if clears.len() >= CLEARS_MAX {
            clears.clear();
            clears.push((ItemPath::root(), until));
        } else {
            clears.push((path, until));
        }
    }

    fn release(&self, files: Vec<FileId>) {
        self.releases.lock().extend(files);
    }
}

/// A handle on the thread. Dropping it ends the thread, when what is queued is written.
pub(super) struct Writer {
    pub(super) jobs: mpsc::SyncSender<Job>,
    room: Arc<Semaphore>,
    /// No block waits before this. Held for a look only.
    next_wait: Mutex<Instant>,
    shared: Arc<Shared>,
    aside: Arc<Aside>,
    /// The writing thread, and the one that sweeps.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Disconnected when the last of the threads has ended, because each holds a sender.
    ended: Mutex<mpsc::Receiver<()>>,
    /// The sender that is cloned for new threads.
    running: mpsc::SyncSender<()>,
}

impl Writer {
    pub(super) fn start(shared: Arc<Shared>, log: Log) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::sync_channel(QUEUE_JOBS_MAX);
        let aside = Arc::<Aside>::default();
        let (running, ended) = mpsc::sync_channel(0);
        let runs = running.clone();
        let writing = Writing {
            aside: Arc::clone(&aside),
            claims: Claims::of(&shared),
            shared: Arc::clone(&shared),
            log,
        };
        let thread = std::thread::Builder::new()
            .name("copperfs-store".into())
            .spawn(move || {
                writing.run(&queue);
                drop(runs);
            })
            .map_err(|source| StoreError::Io {
                action: "start the thread of",
                path: shared.directory.path().to_owned(),
                source,
            })?;
        Ok(Self {
            jobs,
            room: Arc::new(Semaphore::new(to_usize(QUEUE_BYTES_MAX / QUEUE_UNIT))),
            next_wait: Mutex::new(Instant::now()),
            shared,
            aside,
            threads: Mutex::new(vec![thread]),
            ended: Mutex::new(ended),
            running,
        })
    }

    /// Queues a block; says whether there was room.
    pub(super) async fn put(&self, put: Put) -> bool {
        if !self.shared.health.may_write() {
            return false;
        }
        let units = u32::try_from(put.len().div_ceil(QUEUE_UNIT).max(1)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room);
        let permit = match Arc::clone(&room).try_acquire_many_owned(units) {
            Ok(permit) => permit,
            Err(_) => {
                let began = Instant::now();
                if *self.next_wait.lock() > began {
                    return false;
                }
                let patience = self.shared.patience;
                let waited = tokio::time::timeout(patience, room.acquire_many_owned(units)).await;
                let Ok(Ok(permit)) = waited else {
                    *self.next_wait.lock() = began + patience * (1 + BETWEEN_WAITS);
                    return false;
                };
                permit
            }
        };
        self.jobs.try_send(Job::Put(put, permit)).is_ok()
    }

    /// Waits until what was queued before is written or refused; `false`: it cannot be told.
    pub(super) async fn written(&self) -> bool {
        let (done, written) = oneshot::channel();
        let queued = self.jobs.try_send(Job::Written(done)).is_ok();
        queued
            && matches!(
                tokio::time::timeout(WRITTEN_PATIENCE, written).await,
                Ok(Ok(()))
            )
    }

    /// Queues the release of files that are no longer held, after the jobs queued before. Never waits: if
    /// the queue is full, they are released once it is empty.
    pub(super) fn release(&self, files: Vec<FileId>) {
        let queued = self.jobs.try_send(Job::Release(files));
        if let Err(mpsc::TrySendError::Full(Job::Release(files))) = queued {
            self.aside.release(files);
        }
    }

    /// Removes a content file that is condemned.
    pub(super) fn remove(&self, unit: Unit) {
        // If the queue is full, the sweep at the next start finds the file.
        drop(self.jobs.try_send(Job::Remove(unit)));
    }

    /// Records a clear on the disk, and waits for it. Returns whether it is recorded.
    pub(super) fn cleared(&self, path: ItemPath, until: u64) -> bool {
        self.aside.clear(path, until);
        let (done, noted) = mpsc::sync_channel(1);
        // If the queue is full, the thread records the clear before its next job.
        self.jobs.try_send(Job::Cleared(done)).is_ok() && noted.recv_timeout(CLEAR_PATIENCE).is_ok()
    }

    /// Waits until everything queued before is written.
    pub(super) fn flush(&self) {
        let (done, written) = mpsc::sync_channel(1);
        let queued = self.jobs.send(Job::Flush(done));
        drop(queued.map(|()| written.recv()));
    }

    /// Waits until a whole file has its place.
    pub(super) fn whole(&self, whole: PutWhole) {
        let _ended = self.ask(|done| Job::Whole(whole, done));
    }

    /// Makes room for a whole file of so many bytes.
    ///
    /// # Errors
    /// The disk's, or that there is no room without touching the reserve.
    pub(super) fn room(&self, bytes: u64) -> Result<(), Errno> {
        if !self.shared.health.may_write() {
            return Err(Errno::AGAIN);
        }
        self.ask(|done| Job::Room(bytes, done))
            .unwrap_or(Err(Errno::CANCELED))
    }

    /// Waits for a job's answer. Returns `None` if the queue is full, the disk hangs, or the thread has
    /// ended.
    fn ask<T>(&self, job: impl FnOnce(mpsc::SyncSender<T>) -> Job) -> Option<T> {
        let (done, answer) = mpsc::sync_channel(1);
        self.jobs.try_send(job(done)).ok()?;
        answer.recv_timeout(ASK_PATIENCE).ok()
    }

    /// Compares the index with the directory, on a thread of its own.
    pub(super) fn sweep(&self) {
        let (shared, jobs) = (Arc::clone(&self.shared), self.jobs.clone());
        let runs = self.running.clone();
        let sweeping = std::thread::Builder::new()
            .name("copperfs-sweep".into())
            .spawn(move || {
                sweep::sweep(&shared, &jobs);
                drop(runs);
            });
        match sweeping {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                tracing::warn!(%error, "the store's directory is not compared with its index");
                self.shared.swept.send_replace(true);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        // Only the threads' own senders are left.
        let (running, ended) = mpsc::sync_channel(0);
        drop(std::mem::replace(&mut self.running, running));
        let ended = std::mem::replace(&mut self.ended, Mutex::new(ended));
        let ended = ended.into_inner();
        let deadline = Instant::now() + self.shared.patience * CLOSE_PATIENCES;
        let mut told = false;
        loop {
            told = told
                || !matches!(
                    self.jobs.try_send(Job::Stop),
                    Err(mpsc::TrySendError::Full(_))
                );
            let left = deadline.saturating_duration_since(Instant::now());
            let pause = if told { left } else { left.min(BETWEEN_TRIES) };
            match ended.recv_timeout(pause) {
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                _ if left.is_zero() => {
                    tracing::warn!(
                        "the store's disk does not answer: the data queued for it is lost"
                    );
                    return;
                }
                Ok(()) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            drop(thread.join());
        }
    }
}

/// The thread's own.
struct Writing {
    shared: Arc<Shared>,
    aside: Arc<Aside>,
    log: Log,
    /// Of a store whose owner decides what it holds.
    claims: Option<Claims>,
}

impl Writing {
    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        loop {
            let job = match queue.try_recv() {
                Ok(job) => job,
                Err(mpsc::TryRecvError::Empty) => {
                    self.rest();
                    match queue.recv() {
                        Ok(job) => job,
                        Err(mpsc::RecvError) => break,
                    }
                }
                Err(mpsc::TryRecvError::Disconnected) => break,
            };
            if matches!(job, Job::Stop) {
                break;
            }
            self.note_clears();
            self.carry_out(job);
        }
        self.note_clears();
        self.rest();
    }

    fn note_clears(&mut self) {
        let clears = std::mem::take(&mut *self.aside.clears.lock());
        if clears.is_empty() {
            return;
        }
        for (path, until) in clears {
            self.log.append(&Record::Cleared { path, until });
        }
        self.log.sync();
    }

    /// Nothing waits: what was added to the index is handed on.
    fn rest(&mut self) {
        let releases = std::mem::take(&mut *self.aside.releases.lock());
        releases.iter().for_each(|file| self.release(file));
        self.log.flush();
        if self.log.wants_compaction() && self.shared.health.may_write() {
            let Shared {
                directory, catalog, ..
            } = &*self.shared;
            if let Err(errno) = self.log.compact(directory, catalog) {
                self.failed(errno);
            }
        }
    }

    fn carry_out(&mut self, job: Job) {
        match job {
            Job::Put(put, permit) => {
                self.put(&put);
                drop((put, permit));
            }
            Job::Whole(whole, done) => {
                self.put_whole(whole);
                done.try_send(()).ok();
            }
            Job::Room(bytes, done) => {
                let made = self.make_room(bytes);
                if let Err(errno) = made {
                    self.failed(errno);
                }
                done.try_send(made).ok();
            }
            Job::Remove(unit) => {
                if self.shared.catalog.acquit(&unit) {
                    self.remove(&unit);
                }
            }
            Job::Adopt(unit, len, origin) => self.adopt(unit, len, origin),
            Job::Missing(unit) => {
                if !self.shared.directory.exists(&unit) {
                    self.shared.catalog.forget(&unit);
                    self.log.append(&Record::gone(&unit));
                }
            }
            Job::Swept => drop(self.shared.swept.send_replace(true)),
            Job::Written(done) => drop(done.send(())),
            Job::Release(files) => files.iter().for_each(|file| self.release(file)),
            // The clears were recorded just before this job.
            Job::Cleared(done) => drop(done.try_send(())),
            Job::Flush(done) => {
                self.rest();
                done.try_send(()).ok();
            }
            Job::Stop => {}
        }
    }

    /// Something could not be written. Where the reason may be that somebody has taken the directory
    /// away, it is made again, and nothing of what was in it is counted on.
    fn failed(&mut self, errno: Errno) {
        let shared = Arc::clone(&self.shared);
        shared.health.write_failed(errno);
        let gone = [
            Errno::NOENT,
            Errno::STALE,
            Errno::IO,
            Errno::NODEV,
            Errno::NXIO,
        ];
        if !gone.contains(&errno) {
            return;
        }
        match shared.directory.restore() {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!("the store's directory was taken away: it begins anew");
                let lost = shared.catalog.units().into_iter();
                lost.filter(|unit| !shared.directory.exists(unit))
                    .for_each(|unit| shared.catalog.forget(&unit));
                self.log.lost();
                shared.health.restored();
            }
            Err(error) => tracing::debug!(%error, "the store's directory is not back"),
        }
    }

    fn put(&mut self, put: &Put) {
        let (shared, hash) = (Arc::clone(&self.shared), put.hash);
        let len = put.len();
        if let Some(torn) = shared.catalog.torn(hash, len) {
            shared.counters.damaged.increment();
            shared.catalog.forget(&torn);
            self.remove(&torn);
        }
        let origin = Origin {
            file: *put.file.as_bytes(),
            moment: put.moment,
            index: put.index,
        };
        if shared.catalog.has_content(hash) {
            shared.counters.shared.increment();
        } else {
            let written = self
                .make_room(len)
                .and_then(|()| content::write(&shared.directory, hash, &put.pieces, &origin));
            if let Err(errno) = written {
                self.failed(errno);
                shared.counters.dropped.increment();
                return;
            }
            shared.health.wrote_well();
            self.hold_block(hash, len);
        }
        self.note(&origin, hash);
    }

    fn put_whole(&mut self, whole: PutWhole) {
        let shared = Arc::clone(&self.shared);
        let unit = Unit::whole(whole.name);
        let blocks = whole.held.blocks.clone().unwrap_or_default();
        let len = whole.held.len;
        let published = self
            .make_room(0)
            .and_then(|()| shared.directory.publish(&whole.temporary, &unit));
        if let Err(errno) = published {
            shared.directory.discard(&whole.temporary);
            self.failed(errno);
            return;
        }
        self.hold(unit, whole.held);
        shared
            .catalog
            .note_whole(whole.file, whole.moment, whole.name, &blocks);
        self.log.append(&Record::Whole {
            file: *whole.file.as_bytes(),
            moment: whole.moment,
            name: whole.name,
            len,
            blocks: blocks.to_vec(),
        });
        // Its blocks lie in it now.
        for hash in blocks.iter() {
            let block = Unit::block(*hash);
            if shared.catalog.holds_unit(&block) && shared.catalog.holds_unit(&unit) {
                shared.catalog.forget(&block);
                self.remove(&block);
            }
        }
    }

    fn adopt(&mut self, unit: Unit, len: u64, origin: Option<Origin>) {
        let shared = Arc::clone(&self.shared);
        // Since the sweep saw the file, a reader may have found it damaged, or the store may have evicted
        // it.
        let (catalog, directory) = (&shared.catalog, &shared.directory);
        if catalog.holds_unit(&unit) || catalog.is_condemned(&unit) || !directory.exists(&unit) {
            return;
        }
        let Some(origin) = origin else {
            // Nobody would find it, and a whole file cannot be told from a torn one.
            self.remove(&unit);
            return;
        };
        self.hold_block(unit.name, len);
        shared.catalog.reach(origin.moment);
        self.note(&origin, unit.name);
    }

    /// A content file with one block exists now.
    fn hold_block(&mut self, hash: ContentHash, len: u64) {
        self.hold(Unit::block(hash), Held::block(len));
        if let Ok(len) = u32::try_from(len) {
            self.log.append(&Record::Content { hash, len });
        }
    }

    /// The block that `origin` names has these bytes.
    fn note(&mut self, origin: &Origin, hash: ContentHash) {
        let Origin {
            file,
            moment,
            index,
        } = *origin;
        let catalog = &self.shared.catalog;
        if let Some(claims) = &mut self.claims
            && catalog.noted(&FileId::of(file), index) != Some(hash)
        {
            claims.add(hash);
        }
        catalog.note(FileId::of(file), moment, index, hash);
        self.log.append(&Record::Block {
            file,
            moment,
            index,
            hash,
        });
    }

    fn hold(&mut self, unit: Unit, held: Held) {
        for gone in self.shared.catalog.hold(unit, held) {
            self.remove(&gone);
        }
    }

    /// Evicts until `incoming` bytes fit into the store and its filesystem.
    fn make_room(&mut self, incoming: u64) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let Shared {
            directory,
            catalog,
            health,
            ..
        } = &*shared;
        let incoming = disk_bytes(incoming);
        let mut target = catalog.capacity_bytes().saturating_sub(incoming);
        let shortage = health.shortage(directory, incoming)?;
        if shortage > 0 && shared.keeps == Keeps::WhatIsAsked {
            return Err(Errno::NOSPC);
        }
        if shortage > 0 {
            let held = catalog.stats().bytes + catalog.lingering_bytes();
            if held < shortage {
                return Err(Errno::NOSPC);
            }
            target = target.min(held - shortage);
        }
        for gone in catalog.shrink_to(target) {
            self.remove(&gone);
        }
        Ok(())
    }

    fn remove(&mut self, unit: &Unit) {
        self.shared.directory.remove(unit);
        self.log.append(&Record::gone(unit));
    }

    /// Forgets a file, and the content that no other one has.
    fn release(&mut self, file: &FileId) {
        for (_, hash) in self.shared.catalog.forget_file(file) {
            let last = self
                .claims
                .as_mut()
                .is_none_or(|claims| claims.drop_one(hash));
            let unit = Unit::block(hash);
            if last && self.shared.catalog.holds_unit(&unit) {
                self.shared.catalog.forget(&unit);
                self.remove(&unit);
            }
        }
    }
}
