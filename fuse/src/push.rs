//! Pushes the bytes of small files into the kernel's page cache before a program reads them.
//!
//! A READDIRPLUS reply makes inodes known to the kernel. The notifier thread then stores the bytes of those
//! that are complete on this node with FUSE_NOTIFY_STORE. A program that lists a directory and reads its
//! files then sends no READ at all (measured: 0.15 to 0.96 of native speed for files of 20 KB).
//!
//! Rules
//! - An inode number belongs to one version of a file, so bytes that are stored late can only complete the
//!   version that they belong to.
//! - Readers come first: the thread waits while FUSE threads handle requests (20 × 50 µs at most), and a
//!   file that is read in the meantime is no longer pushed.
//! - The kernel learns of an inode only when the *reader* has parsed the READDIRPLUS reply, some time after
//!   the reply was sent. An earlier store fails with ENOENT and is repeated for about 50 ms.
//! - Bounds: at most `QUEUE_MAX` inodes wait, and further ones are dropped (their files are read by READ,
//!   as without push). At most [`PushLimits::bytes_max`] bytes are pushed for inodes that the kernel still
//!   knows.
//!
//! Stored pages are charged to the daemon's memory cgroup, not to the reader's, and are reclaimed like any
//! page cache.

use crate::backend::{Backend, Ino};
use crate::counters::Counters;
use crate::device::Device;
use crate::notifier::Notifier;
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Inodes in the queue at most; further ones are not pushed.
const QUEUE_MAX: usize = 1 << 16;
/// Inodes pushed in one batch. Invalidations are sent between batches.
const BATCH_MAX: usize = 16;
/// Bytes in one store: the most that the kernel accepts in one message (256 pages).
const STORE_BYTES_MAX: usize = 1 << 20;
/// Attempts to store into an inode that the kernel does not know yet. With a pause that doubles from
/// [`FIRST_PAUSE`] they take about 50 ms. After that the reader is assumed to be gone.
const ATTEMPTS_MAX: u32 = 9;
const FIRST_PAUSE: Duration = Duration::from_micros(100);
/// How often a store waits for active requests before it proceeds anyway.
const YIELDS_MAX: u32 = 20;
const YIELD_TIME: Duration = Duration::from_micros(50);

/// Limits of the push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushLimits {
    /// Whether files are pushed at all.
    pub enabled: bool,
    /// Bytes pushed at most for inodes that the kernel still knows. Checked once per batch.
    pub bytes_max: u64,
}

impl Default for PushLimits {
    fn default() -> Self {
        Self {
            enabled: true,
            bytes_max: 512 << 20,
        }
    }
}

#[derive(Debug, Default)]
struct Inodes {
    /// The queue, oldest first. A READ or FORGET removes an inode from `waiting` only.
    order: VecDeque<Ino>,
    waiting: HashSet<Ino>,
    /// Bytes pushed for each inode that the kernel still knows, and their sum.
    pushed: HashMap<Ino, u64>,
    pushed_bytes: u64,
}

/// Queues files whose bytes arrived on this node after the kernel learned of their inode.
#[derive(Clone, Debug)]
pub struct Push(pub(crate) Arc<PushQueue>);

impl Push {
    /// Queues `inos`, within the limits of the mount. [`Backend::pushable`] later selects the ones to push.
    /// Never waits.
    pub fn offer(&self, inos: &[Ino]) {
        self.0.offer(inos);
        self.0.start();
    }
}

/// The inodes that wait to be pushed, and the pushed ones that the kernel still knows.
#[derive(Debug)]
pub(crate) struct PushQueue {
    limits: PushLimits,
    counters: Arc<Counters>,
    /// Held for a few map operations, never across a system call. No other lock is taken while it is held.
    inodes: Mutex<Inodes>,
    /// Whether `waiting` or `pushed` may have entries. If not, READ and FORGET need not take the lock.
    in_use: AtomicBool,
    /// Set while a wake-up of the notifier thread is queued.
    wake_queued: AtomicBool,
    notifier: Notifier,
}

impl PushQueue {
    pub(crate) fn new(limits: PushLimits, counters: Arc<Counters>, notifier: Notifier) -> Self {
        Self {
            limits,
            counters,
            inodes: Mutex::default(),
            in_use: AtomicBool::new(false),
            wake_queued: AtomicBool::new(false),
            notifier,
        }
    }

    /// Queues the inodes of a READDIRPLUS reply. Called before the reply is sent, so that a program that has
    /// read the listing finds them counted as pending. Call [`start`](Self::start) after the reply.
    pub(crate) fn offer(&self, inos: &[Ino]) {
        if !self.limits.enabled || inos.is_empty() {
            return;
        }
        let mut inodes = self.inodes.lock();
        for &ino in inos {
            if inodes.order.len() >= QUEUE_MAX {
                tracing::trace!("push queue full");
                break;
            }
            if inodes.waiting.insert(ino) {
                inodes.order.push_back(ino);
            }
        }
        self.publish(&inodes);
    }

    /// Wakes the notifier thread if inodes wait.
    pub(crate) fn start(&self) {
        let waiting = self.counters.push_pending() > 0;
        // One wake-up is enough until the thread has begun: it looks at the queue before it sleeps.
        if waiting && !self.wake_queued.swap(true, Ordering::AcqRel) {
            self.notifier.wake();
        }
    }

    /// Records a READ of the inode, which then need not be pushed.
    pub(crate) fn was_read(&self, ino: Ino) {
        if self.in_use.load(Ordering::Acquire) {
            // A READ must not wait for the notifier thread. At worst a file is pushed for nothing.
            if let Some(mut inodes) = self.inodes.try_lock() {
                inodes.waiting.remove(&ino);
            }
        }
    }

    /// Records that the kernel has dropped the inode and its pages.
    pub(crate) fn was_forgotten(&self, ino: Ino) {
        if self.in_use.load(Ordering::Acquire) {
            let mut inodes = self.inodes.lock();
            inodes.waiting.remove(&ino);
            if let Some(bytes) = inodes.pushed.remove(&ino) {
                inodes.pushed_bytes -= bytes;
            }
            self.publish(&inodes);
        }
    }

    /// Removes the next inodes from the queue, without those that were read or forgotten. Drops the whole queue
    /// if the bound on bytes is reached.
    fn take_batch(&self) -> Vec<Ino> {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        // Cleared before the look: an inode that is queued later wakes the thread again.
        self.wake_queued.store(false, Ordering::Release);
        let mut inodes = self.inodes.lock();
        if inodes.pushed_bytes >= self.limits.bytes_max {
            inodes.order.clear();
            inodes.waiting.clear();
        }
        while batch.len() < BATCH_MAX
            && let Some(ino) = inodes.order.pop_front()
        {
            if inodes.waiting.contains(&ino) {
                batch.push(ino);
            }
        }
        self.publish(&inodes);
        batch
    }

    /// Whether the inode was neither read nor forgotten since it was queued.
    fn still_wanted(&self, ino: Ino) -> bool {
        self.inodes.lock().waiting.contains(&ino)
    }

    /// Records the end of a batch. `pushed` are the inodes that the kernel accepted, with their bytes.
    fn finish_batch(&self, batch: &[Ino], pushed: &[(Ino, u64)]) {
        let mut inodes = self.inodes.lock();
        for &(ino, bytes) in pushed {
            // An inode that no longer waits was read, so its pages would be cached without the push, or it
            // was forgotten, and its pages with it. Neither counts towards the bound.
            if inodes.waiting.contains(&ino) {
                let before = inodes.pushed.insert(ino, bytes).unwrap_or(0);
                inodes.pushed_bytes = inodes.pushed_bytes + bytes - before;
            }
        }
        for ino in batch {
            inodes.waiting.remove(ino);
        }
        self.publish(&inodes);
    }

    /// Updates what is read without the lock.
    fn publish(&self, inodes: &Inodes) {
        self.in_use.store(
            !(inodes.waiting.is_empty() && inodes.pushed.is_empty()),
            Ordering::Release,
        );
        self.counters.push_pending.set(inodes.waiting.len() as u64);
    }
}

/// The outcome of a store.
enum Stored {
    Complete,
    /// The kernel did not know the inode in any attempt.
    UnknownInode,
    /// The inode was forgotten or read in the meantime, or the kernel refused.
    Refused,
}

/// Pushes files, on the notifier thread.
pub(crate) struct Pusher {
    pub(crate) device: Arc<Device>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) queue: Arc<PushQueue>,
}

impl Pusher {
    /// Pushes one batch. Returns `false` if there was none.
    pub(crate) fn push_batch(&self) -> bool {
        let batch = self.queue.take_batch();
        if batch.is_empty() {
            return false;
        }
        let mut pushed = Vec::with_capacity(batch.len());
        // An inode that stays unknown means that the reader is gone and never parsed the reply. The rest of
        // the batch then gets one attempt each, so that no invalidation waits for several rounds.
        let mut attempts = ATTEMPTS_MAX;
        for (ino, bytes) in self.backend.pushable(&batch) {
            if bytes.is_empty() || !self.queue.still_wanted(ino) {
                continue;
            }
            match self.store(ino, &bytes, attempts) {
                Stored::Complete => {
                    let length = bytes.len() as u64;
                    pushed.push((ino, length));
                    let counters = &self.queue.counters;
                    counters.push_files.increment();
                    counters.push_bytes.add(length);
                }
                Stored::UnknownInode => attempts = 1,
                Stored::Refused => {}
            }
        }
        self.queue.finish_batch(&batch, &pushed);
        true
    }

    fn store(&self, ino: Ino, bytes: &Bytes, attempts: u32) -> Stored {
        let mut offset = 0;
        for piece in bytes.chunks(STORE_BYTES_MAX) {
            self.yield_to_requests();
            match self.store_piece(ino, offset, piece, attempts) {
                Stored::Complete => offset += piece.len() as u64,
                failed => return failed,
            }
        }
        Stored::Complete
    }

    fn store_piece(&self, ino: Ino, offset: u64, piece: &[u8], attempts: u32) -> Stored {
        let mut pause = FIRST_PAUSE;
        for _ in 0..attempts {
            match self.device.store(ino, offset, piece) {
                Ok(()) => return Stored::Complete,
                Err(Errno::NOENT) if self.queue.still_wanted(ino) => {
                    sleep(pause);
                    pause *= 2;
                }
                Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => return Stored::Refused,
                Err(errno) => {
                    // Most likely the machine is short of memory, so the push does not insist.
                    tracing::debug!(%errno, ino = ino.0, "a push was refused");
                    return Stored::Refused;
                }
            }
        }
        Stored::UnknownInode
    }

    /// Waits while FUSE threads handle requests, within a bound.
    fn yield_to_requests(&self) {
        for _ in 0..YIELDS_MAX {
            if self.queue.counters.active.load(Ordering::Relaxed) == 0 {
                return;
            }
            sleep(YIELD_TIME);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel reports no event when it learns of an inode; this thread has no other task, and each wait is bounded"
)]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}
