//! Push: the bytes of small files go into the kernel's page cache before anybody asks.
//!
//! A READDIRPLUS reply makes inodes known to the kernel. Those whose bytes are on this node are then
//! stored with FUSE_NOTIFY_STORE by the notifier thread, so that a program which lists a directory
//! and reads what is in it sends no READ at all (measured: .15 to .96 of native for 20 KB files).
//!
//! Rules
//! - A version is an inode: bytes stored late can only complete the version that they belong to.
//! - Never ahead of a reader: the thread steps aside while a request is in hand (20 × 50 µs
//!   at most), and a file that is read meanwhile is no longer pushed.
//! - The kernel learns of an inode only when the *reader* has parsed the READDIRPLUS reply, some time
//!   after it was sent. A store before that fails with ENOENT and is tried again, for
//!   some 50 ms.
//! - Bounded: [`PushLimits::queue_max`] inodes wait at most, and what does not fit is dropped (the
//!   file is then read by READ, as without push); [`PushLimits::bytes_max`] bytes of inodes that the
//!   kernel still knows are pushed at most.
//!
//! Stored pages belong to the daemon's memory cgroup, not to the reader's, and are reclaimed like any
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

/// Inodes looked at in one go, between two looks at the invalidations.
const BATCH: usize = 16;
/// Bytes in one store: what the kernel takes in one message to a page cache (256 pages).
const PIECE_BYTES: usize = 1 << 20;
/// How often a store is tried on an inode that the kernel does not know yet: with a pause that
/// doubles from [`PAUSE`] that is about 50 ms, after which the reader is taken to be gone.
const ATTEMPTS_MAX: u32 = 9;
const PAUSE: Duration = Duration::from_micros(100);
/// How often a store steps aside for requests in hand before it goes on all the same.
const YIELDS_MAX: u32 = 20;
const YIELD: Duration = Duration::from_micros(50);

/// How much is pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushLimits {
    /// Whether anything is.
    pub enabled: bool,
    /// Bytes pushed at most for inodes that the kernel has not forgotten since.
    pub bytes_max: u64,
    /// Inodes that may wait; more are dropped, and read by READ if anybody cares.
    pub queue_max: usize,
}

impl Default for PushLimits {
    fn default() -> Self {
        Self {
            enabled: true,
            bytes_max: 512 << 20,
            queue_max: 1 << 16,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// What waits, oldest first. An inode may have left `waiting` since, by a READ or FORGET.
    order: VecDeque<Ino>,
    waiting: HashSet<Ino>,
    /// Bytes pushed for each inode that the kernel still knows, and their sum.
    held: HashMap<Ino, u64>,
    held_bytes: u64,
}

/// Has bytes pushed that came to this node after the kernel learned of their inode.
#[derive(Clone, Debug)]
pub struct Push(pub(crate) Arc<PushQueue>);

impl Push {
    /// Pushes what [`Backend::pushable`] gives for `inos`, within the limits of the mount. Returns at
    /// once.
    pub fn offer(&self, inos: &[Ino]) {
        self.0.offer(inos);
        self.0.start();
    }
}

/// What waits to be pushed.
#[derive(Debug)]
pub(crate) struct PushQueue {
    limits: PushLimits,
    counters: Arc<Counters>,
    /// Guards the queue. Held for a few map operations, never across a system call; no other lock is
    /// taken under it.
    state: Mutex<State>,
    /// Whether `waiting` or `held` may have something in it: spares READ and FORGET the lock.
    in_use: AtomicBool,
    /// The notifier thread was told that something waits, and has not looked since.
    announced: AtomicBool,
    notifier: Notifier,
}

impl PushQueue {
    pub(crate) fn new(limits: PushLimits, counters: Arc<Counters>, notifier: Notifier) -> Self {
        Self {
            limits,
            counters,
            state: Mutex::default(),
            in_use: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            notifier,
        }
    }

    /// A READDIRPLUS reply will carry these. Before it is sent, so that whoever has read the listing
    /// finds them counted as pending; [`start`](Self::start) follows when it is sent.
    pub(crate) fn offer(&self, inos: &[Ino]) {
        if !self.limits.enabled || inos.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for &ino in inos {
            if state.order.len() >= self.limits.queue_max {
                tracing::trace!("push queue full");
                break;
            }
            if state.waiting.insert(ino) {
                state.order.push_back(ino);
            }
        }
        self.publish(&state);
    }

    /// Sets the notifier thread to work on what was offered.
    pub(crate) fn start(&self) {
        let waiting = self.counters.push_pending() > 0;
        // One message is enough until the thread has begun: it looks at the queue before it sleeps.
        if waiting && !self.announced.swap(true, Ordering::AcqRel) {
            self.notifier.wake_for_push();
        }
    }

    /// A reader asks for the inode's bytes itself.
    pub(crate) fn was_read(&self, ino: Ino) {
        if self.in_use.load(Ordering::Acquire) {
            // A reader never waits for the notifier thread: at worst a file is pushed in vain.
            if let Some(mut state) = self.state.try_lock() {
                state.waiting.remove(&ino);
            }
        }
    }

    /// The kernel has dropped the inode, and its pages with it.
    pub(crate) fn was_forgotten(&self, ino: Ino) {
        if self.in_use.load(Ordering::Acquire) {
            let mut state = self.state.lock();
            state.waiting.remove(&ino);
            if let Some(bytes) = state.held.remove(&ino) {
                state.held_bytes -= bytes;
            }
            self.publish(&state);
        }
    }

    /// The next inodes, still wanted.
    fn take(&self) -> Vec<Ino> {
        let mut batch = Vec::with_capacity(BATCH);
        self.announced.store(false, Ordering::Release);
        let mut state = self.state.lock();
        let full = state.held_bytes >= self.limits.bytes_max;
        while batch.len() < BATCH {
            let Some(ino) = state.order.pop_front() else {
                break;
            };
            if state.waiting.contains(&ino) && !full {
                batch.push(ino);
            } else {
                state.waiting.remove(&ino);
            }
            if full && state.order.is_empty() {
                break;
            }
        }
        self.publish(&state);
        batch
    }

    fn still_wanted(&self, ino: Ino) -> bool {
        self.state.lock().waiting.contains(&ino)
    }

    /// The batch is done; `pushed` are those that the kernel took.
    fn done(&self, batch: &[Ino], pushed: &[(Ino, u64)]) {
        let mut state = self.state.lock();
        for &(ino, bytes) in pushed {
            // Not waiting any more: read meanwhile, and then its pages would be there without us, or
            // forgotten, and its pages with it. Neither is held against the bound.
            if state.waiting.contains(&ino) {
                let before = state.held.insert(ino, bytes).unwrap_or(0);
                state.held_bytes = state.held_bytes + bytes - before;
            }
        }
        for ino in batch {
            state.waiting.remove(ino);
        }
        self.publish(&state);
    }

    fn publish(&self, state: &State) {
        self.in_use.store(
            !(state.waiting.is_empty() && state.held.is_empty()),
            Ordering::Release,
        );
        self.counters.push_pending.set(state.waiting.len() as u64);
    }
}

/// What became of a push.
enum Stored {
    Whole,
    /// The kernel did not know the inode, for as long as it was tried.
    Unknown,
    /// Forgotten or read meanwhile, or refused.
    Refused,
}

/// The notifier thread's side of the push.
pub(crate) struct Pusher {
    device: Arc<Device>,
    backend: Arc<dyn Backend>,
    queue: Arc<PushQueue>,
}

impl Pusher {
    pub(crate) fn new(
        device: Arc<Device>,
        backend: Arc<dyn Backend>,
        queue: Arc<PushQueue>,
    ) -> Self {
        Self {
            device,
            backend,
            queue,
        }
    }

    /// Pushes one batch; `false` if there was none.
    pub(crate) fn push_some(&self) -> bool {
        let batch = self.queue.take();
        if batch.is_empty() {
            return false;
        }
        let mut pushed = Vec::with_capacity(batch.len());
        // One inode that stays unknown says that the reader went away with the reply: the rest of
        // the batch is tried once, so that no invalidation waits longer than one round of attempts.
        let mut attempts = ATTEMPTS_MAX;
        for (ino, bytes) in self.backend.pushable(&batch) {
            if bytes.is_empty() || !self.queue.still_wanted(ino) {
                continue;
            }
            match self.store(ino, &bytes, attempts) {
                Stored::Whole => {
                    let length = bytes.len() as u64;
                    pushed.push((ino, length));
                    let counters = &self.queue.counters;
                    counters.push_files.increment();
                    counters.push_bytes.add(length);
                }
                Stored::Unknown => attempts = 1,
                Stored::Refused => {}
            }
        }
        self.queue.done(&batch, &pushed);
        true
    }

    fn store(&self, ino: Ino, bytes: &Bytes, attempts: u32) -> Stored {
        let mut offset = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            self.step_aside();
            match self.store_piece(ino, offset, piece, attempts) {
                Stored::Whole => offset += piece.len() as u64,
                other => return other,
            }
        }
        Stored::Whole
    }

    fn store_piece(&self, ino: Ino, offset: u64, piece: &[u8], attempts: u32) -> Stored {
        let mut pause = PAUSE;
        for _ in 0..attempts {
            match self.device.store(ino, offset, piece) {
                Ok(()) => return Stored::Whole,
                Err(Errno::NOENT) if self.queue.still_wanted(ino) => {
                    wait(pause);
                    pause *= 2;
                }
                Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => return Stored::Refused,
                Err(errno) => {
                    // Out of memory, most likely: the page cache is the last thing to press for.
                    tracing::debug!(%errno, ino = ino.0, "a push was refused");
                    return Stored::Refused;
                }
            }
        }
        Stored::Unknown
    }

    /// Lets requests in hand go first, within a bound.
    fn step_aside(&self) {
        for _ in 0..YIELDS_MAX {
            if self.queue.counters.in_hand.load(Ordering::Relaxed) == 0 {
                return;
            }
            wait(YIELD);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel gives no event for `inode known`; this thread serves nobody else, and each wait is bounded"
)]
fn wait(time: Duration) {
    std::thread::sleep(time);
}
