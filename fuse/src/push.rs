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
//!   as without push). At most [`crate::MountOptions::push_bytes_max`] bytes are pushed for inodes that the
//!   kernel still knows.
//!
//! Stored pages are charged to the daemon's memory cgroup, not to the reader's, and are reclaimed like any
//! page cache.

use crate::backend::{Backend, Ino};
use crate::counters::Counters;
use crate::device::Device;
use crate::notifier::Notifier;
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

#[derive(Debug, Default)]
struct Inodes {
    /// The queue, oldest first. A READ or FORGET removes an inode from `waiting` only.
    order: VecDeque<Ino>,
    waiting: HashSet<Ino>,
    /// Bytes pushed for each inode that the kernel still knows, and their sum.
    pushed: HashMap<Ino, u64>,
    pushed_bytes: u64,
}

/// The inodes that wait to be pushed, and the pushed ones that the kernel still knows.
#[derive(Debug)]
pub struct Push {
    bytes_max: u64,
    counters: Arc<Counters>,
    /// Held for a few map operations, never across a system call. No other lock is taken while it is held.
    inodes: Mutex<Inodes>,
    /// Whether `waiting` or `pushed` may have entries. If not, READ and FORGET need not take the lock.
    in_use: AtomicBool,
    notifier: Notifier,
}

impl Push {
    /// Queues `inos`, whose bytes arrived on this node after the kernel learned of them, within the limits of
    /// the mount. [`Backend::pushable`] later selects the ones to push. Never waits.
    pub fn offer(&self, inos: &[Ino]) {
        self.queue(inos);
        self.start();
    }

    pub(crate) fn new(bytes_max: u64, counters: Arc<Counters>, notifier: Notifier) -> Self {
        Self {
            bytes_max,
            counters,
            inodes: Mutex::default(),
            in_use: AtomicBool::new(false),
            notifier,
        }
    }

    /// Queues the inodes of a READDIRPLUS reply. Called before the reply is sent, so that a program that has
    /// read the listing finds them counted as pending. Call [`start`](Self::start) after the reply.
    pub(crate) fn queue(&self, inos: &[Ino]) {
        if self.bytes_max == 0 || inos.is_empty() {
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
        if self.counters.push_pending.get() > 0 {
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
        let mut inodes = self.inodes.lock();
        if inodes.pushed_bytes >= self.bytes_max {
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

/// Why a store failed.
enum NotStored {
    /// The kernel did not know the inode in any attempt.
    UnknownInode,
    /// The inode was forgotten or read in the meantime, or the kernel refused.
    Refused,
}

/// The part of the notifier thread.
impl Push {
    /// Pushes one batch. Returns `false` if there was none.
    pub(crate) fn push_batch(&self, device: &Device, backend: &dyn Backend) -> bool {
        let batch = self.take_batch();
        if batch.is_empty() {
            return false;
        }
        let mut pushed = Vec::with_capacity(batch.len());
        // An inode that stays unknown means that the reader is gone and never parsed the reply. The rest of
        // the batch then gets one attempt each, so that no invalidation waits for several rounds.
        let mut attempts = ATTEMPTS_MAX;
        for (ino, bytes) in backend.pushable(&batch) {
            if bytes.is_empty() || !self.still_wanted(ino) {
                continue;
            }
            let mut pieces = (0..)
                .step_by(STORE_BYTES_MAX)
                .zip(bytes.chunks(STORE_BYTES_MAX));
            match pieces.try_for_each(|(at, piece)| self.store(device, ino, at, piece, attempts)) {
                Ok(()) => {
                    let length = bytes.len() as u64;
                    pushed.push((ino, length));
                    self.counters.push_files.increment();
                    self.counters.push_bytes.add(length);
                }
                Err(NotStored::UnknownInode) => attempts = 1,
                Err(NotStored::Refused) => {}
            }
        }
        self.finish_batch(&batch, &pushed);
        true
    }

    fn store(
        &self,
        device: &Device,
        ino: Ino,
        offset: u64,
        piece: &[u8],
        attempts: u32,
    ) -> Result<(), NotStored> {
        self.yield_to_requests();
        let mut pause = FIRST_PAUSE;
        for _ in 0..attempts {
            match device.store(ino, offset, piece) {
                Ok(()) => return Ok(()),
                Err(Errno::NOENT) if self.still_wanted(ino) => {
                    sleep(pause);
                    pause *= 2;
                }
                Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {
                    return Err(NotStored::Refused);
                }
                Err(errno) => {
                    // Most likely the machine is short of memory, so the push does not insist.
                    tracing::debug!(%errno, ino = ino.0, "a push was refused");
                    return Err(NotStored::Refused);
                }
            }
        }
        Err(NotStored::UnknownInode)
    }

    /// Waits while FUSE threads handle requests, within a bound.
    fn yield_to_requests(&self) {
        for _ in 0..YIELDS_MAX {
            if self.counters.active.load(Ordering::Relaxed) == 0 {
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
