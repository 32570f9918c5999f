//! A block that is being fetched: a growing buffer, and the readers that wait for it or forward it.

use super::Block;
use crate::read::epoch::Moment;
use crate::read::file::FileRef;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Failure, FailureKind, ItemPath};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::watch;

/// The progress of a fetch.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// Bytes are arriving, unverified. The number counts the restarts.
    Filling(u32),
    /// Complete and verified. The number counts the restarts.
    Done(Block, u32),
    /// It failed.
    Failed(Failure),
}

/// Failed fetches for equal files at other paths after which a reader gives up: with more of them,
/// something else is wrong.
const DETOURS_MAX: u32 = 4;

/// Bytes of a pending block that are copied for a child in one step.
const FORWARD_BYTES_MAX: usize = 128 << 10;

#[derive(Debug, Default)]
struct Filling {
    bytes: Vec<u8>,
    /// All of the block, if it came in one part that shares its memory with nothing else: it is not copied.
    whole: Option<Bytes>,
    restarts: u32,
}

impl Filling {
    fn arrived(&self) -> usize {
        self.whole.as_ref().map_or(self.bytes.len(), Bytes::len)
    }
}

/// It comes with a run of blocks, after other blocks or after other runs.
const QUEUED: u8 = 0;
/// It is among the next blocks of its run, and its bytes can be watched as they arrive.
const NEAR: u8 = 1;
/// It comes with a bundle, perhaps after many other files.
const BUNDLED: u8 = 2;
/// A separate request was sent, because a reader waits for it.
const URGED: u8 = 3;
/// It has arrived or failed.
const LANDED: u8 = 4;

/// What a flight waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Behind {
    /// Other files of a bundle.
    Bundle,
    /// Other blocks of a run, or other runs.
    Run,
    /// Nothing, or it was requested separately, or it has arrived.
    Nothing,
}

/// A block that is being fetched. One task fills it, and any number of readers watch it. A block that waits
/// for others may be requested separately. Then it arrives whole, from the request that brings it first.
#[derive(Debug)]
pub(super) struct Flight {
    /// The file for which it was begun. Its readers may want it for an equal file at another path.
    path: ItemPath,
    asked: Moment,
    len: usize,
    /// One of the constants above.
    route: AtomicU8,
    /// The bytes so far. Locked for a copy of at most one block, never across an await.
    filling: Mutex<Filling>,
    progress: watch::Sender<Progress>,
}

impl Flight {
    pub(super) fn new(path: ItemPath, asked: Moment, len: usize) -> Self {
        Self {
            path,
            asked,
            len,
            route: AtomicU8::new(QUEUED),
            filling: Mutex::default(),
            progress: watch::channel(Progress::Filling(0)).0,
        }
    }

    /// Whether its failure says nothing about `file`, whose reader waited for it: it was begun at another
    /// path, and this has not happened [`DETOURS_MAX`] times already.
    pub(super) fn is_elsewhere(&self, file: &FileRef, detours: u32) -> bool {
        self.path != file.path && detours < DETOURS_MAX
    }

    pub(super) fn path(&self) -> &ItemPath {
        &self.path
    }

    /// When it began.
    pub(super) fn asked(&self) -> Moment {
        self.asked
    }

    pub(super) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Another flight for the same block, which nobody watches.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.path.clone(), self.asked, self.len)
    }

    /// From now on it comes with a bundle.
    pub(super) fn give_to_bundle(&self) {
        self.route.store(BUNDLED, Ordering::Relaxed);
    }

    /// What it waits for.
    pub(super) fn behind(&self) -> Behind {
        match self.route.load(Ordering::Relaxed) {
            BUNDLED => Behind::Bundle,
            QUEUED => Behind::Run,
            _ => Behind::Nothing,
        }
    }

    /// Marks it as requested separately as well. Returns whether the caller must send that request.
    pub(super) fn urge(&self) -> bool {
        self.change_route(BUNDLED, URGED) || self.change_route(QUEUED, URGED)
    }

    /// Marks it as one of the next blocks of its run. Returns `false` if a separate request fills it.
    pub(super) fn come_near(&self) -> bool {
        self.change_route(QUEUED, NEAR) || self.route.load(Ordering::Relaxed) == NEAR
    }

    /// Its bundle ends without it. Returns whether no other request will bring it.
    pub(super) fn leave_bundle(&self) -> bool {
        self.change_route(BUNDLED, QUEUED)
    }

    /// Its run ends without it. Returns whether no other request has brought it or will.
    pub(super) fn leave_run(&self) -> bool {
        self.change_route(QUEUED, LANDED) || self.change_route(NEAR, LANDED)
    }

    /// Marks it as ended. Returns whether the caller is the first to end it, and so must finish it.
    pub(super) fn land(&self) -> bool {
        self.route.swap(LANDED, Ordering::AcqRel) != LANDED
    }

    fn change_route(&self, from: u8, to: u8) -> bool {
        self.route
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Whether it has arrived or failed.
    pub(super) fn has_landed(&self) -> bool {
        self.route.load(Ordering::Relaxed) == LANDED
    }

    /// Whether none of its bytes have arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.filling.lock().arrived() == 0
    }

    /// Appends bytes as they arrive.
    ///
    /// # Errors
    /// `Corrupt` if the block is longer than announced.
    pub(super) fn push(&self, bytes: Bytes) -> Result<(), Failure> {
        let mut guard = self.filling.lock();
        let filling = &mut *guard;
        if filling.arrived() + bytes.len() > self.len {
            return Err(Failure::new(
                FailureKind::Corrupt,
                "a block longer than announced",
            ));
        }
        if bytes.len() == self.len && bytes.is_unique() {
            filling.whole = Some(bytes);
        } else {
            if filling.bytes.capacity() == 0 {
                filling.bytes.reserve_exact(self.len);
            }
            filling.bytes.extend_from_slice(&bytes);
        }
        let restarts = filling.restarts;
        drop(guard);
        self.progress.send_replace(Progress::Filling(restarts));
        Ok(())
    }

    /// Discards the bytes that have arrived.
    pub(super) fn restart(&self) {
        let mut filling = self.filling.lock();
        filling.bytes.clear();
        filling.whole = None;
        filling.restarts += 1;
        let restarts = filling.restarts;
        drop(filling);
        self.progress.send_replace(Progress::Filling(restarts));
    }

    /// Takes the bytes out as a block that its source has verified. [`Flight::finish`] must follow.
    ///
    /// # Errors
    /// `Corrupt` if bytes are missing.
    pub(super) fn complete(&self, hash: ContentHash) -> Result<Block, Failure> {
        let path = &self.path;
        let mut filling = self.filling.lock();
        let arrived = filling.arrived();
        if arrived != self.len {
            let detail = format!("{path}: a block ended after {arrived} of {} B", self.len);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        let bytes = match filling.whole.take() {
            Some(whole) => whole,
            None => Bytes::from(std::mem::take(&mut filling.bytes)),
        };
        Ok(Block {
            bytes,
            hash,
            path: path.clone(),
        })
    }

    pub(super) fn finish(&self, outcome: Result<Block, Failure>) {
        self.progress.send_replace(match outcome {
            Ok(block) => Progress::Done(block, self.filling.lock().restarts),
            Err(failure) => Progress::Failed(failure),
        });
    }

    /// The bytes after `from`, at most [`FORWARD_BYTES_MAX`], if the block has restarted `restarts` times.
    pub(super) fn forwardable(&self, from: usize, restarts: u32) -> Option<Bytes> {
        let filling = self.filling.lock();
        if filling.restarts != restarts || filling.arrived() <= from {
            return None;
        }
        let to = filling.arrived().min(from + FORWARD_BYTES_MAX);
        Some(match &filling.whole {
            Some(whole) => whole.slice(from..to),
            None => Bytes::copy_from_slice(&filling.bytes[from..to]),
        })
    }
}
