//! A block that is being fetched: a growing buffer, and the readers that wait for it or forward it.

use super::Block;
use crate::read::epoch::Moment;
use crate::read::file::{BlockKey, FileRef};
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Failure, FailureKind, ItemPath};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The progress of a fetch.
#[derive(Clone, Debug)]
pub(in crate::read) enum Progress {
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

/// The way on which a flight comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// It comes with a run of blocks, after other blocks or after other runs.
    Queued,
    /// It is among the next blocks of its run, and its bytes can be watched as they arrive.
    Near,
    /// It comes with a bundle, perhaps after many other files.
    Bundled,
    /// A separate request was sent, because a reader waits for it.
    Urged,
    /// It has arrived or failed.
    Landed,
}

/// A block that is being fetched. One task fills it, and any number of readers watch it. A block that waits
/// for others may be requested separately. Then it arrives whole, from the request that brings it first.
#[derive(Debug)]
pub(in crate::read) struct Flight {
    /// The block, or the piece of one.
    pub(super) key: BlockKey,
    /// The file for which it was begun. Its readers may want it for an equal file at another path.
    pub(super) path: ItemPath,
    /// When it began.
    pub(super) asked: Moment,
    pub(super) len: usize,
    /// Locked for a comparison and a change.
    route: Mutex<Route>,
    /// The bytes so far. Locked for a copy of at most one block, never across an await.
    filling: Mutex<Filling>,
    progress: watch::Sender<Progress>,
}

impl Flight {
    pub(super) fn new(key: BlockKey, path: ItemPath, asked: Moment, len: usize) -> Self {
        Self {
            key,
            path,
            asked,
            len,
            route: Mutex::new(Route::Queued),
            filling: Mutex::default(),
            progress: watch::channel(Progress::Filling(0)).0,
        }
    }

    /// Whether its failure says nothing about `file`, whose reader waited for it: it was begun at another
    /// path, and this has not happened [`DETOURS_MAX`] times already.
    pub(in crate::read) fn is_elsewhere(&self, file: &FileRef, detours: u32) -> bool {
        self.path != file.path && detours < DETOURS_MAX
    }

    pub(in crate::read) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits until it has ended.
    pub(super) async fn done(&self) -> Result<Block, Failure> {
        let mut progress = self.watch();
        let is_done = |now: &Progress| !matches!(now, Progress::Filling(_));
        match progress.wait_for(is_done).await.as_deref() {
            Ok(Progress::Done(block, _)) => Ok(block.clone()),
            Ok(Progress::Failed(failure)) => Err(failure.clone()),
            Ok(Progress::Filling(_)) | Err(_) => Err(given_up()),
        }
    }

    /// Another flight for the same block, which has no readers.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.key, self.path.clone(), self.asked, self.len)
    }

    /// From now on it comes with a bundle.
    pub(super) fn give_to_bundle(&self) {
        *self.route.lock() = Route::Bundled;
    }

    pub(super) fn route(&self) -> Route {
        *self.route.lock()
    }

    /// Marks it as requested separately as well. Returns whether the caller must send that request.
    pub(super) fn urge(&self) -> bool {
        self.change_route(&[Route::Bundled, Route::Queued], Route::Urged)
    }

    /// Marks it as one of the next blocks of its run. Returns `false` if a separate request fills it.
    pub(super) fn come_near(&self) -> bool {
        self.change_route(&[Route::Queued, Route::Near], Route::Near)
    }

    /// Its bundle ends without it. Returns whether no other request will bring it.
    pub(super) fn leave_bundle(&self) -> bool {
        self.change_route(&[Route::Bundled], Route::Queued)
    }

    /// Its run ends without it. Returns whether no other request has brought it or will.
    pub(super) fn leave_run(&self) -> bool {
        self.change_route(&[Route::Queued, Route::Near], Route::Landed)
    }

    /// Marks it as ended. Returns whether the caller is the first to end it, and so must finish it.
    pub(super) fn land(&self) -> bool {
        std::mem::replace(&mut *self.route.lock(), Route::Landed) != Route::Landed
    }

    fn change_route(&self, from: &[Route], to: Route) -> bool {
        let mut route = self.route.lock();
        let changes = from.contains(&route);
        if changes {
            *route = to;
        }
        changes
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
            let detail = "a block longer than announced";
            return Err(Failure::new(FailureKind::Corrupt, detail));
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
        let whole = filling.whole.take();
        let bytes = whole.unwrap_or_else(|| std::mem::take(&mut filling.bytes).into());
        let path = path.clone();
        Ok(Block { bytes, hash, path })
    }

    pub(super) fn finish(&self, outcome: Result<Block, Failure>) {
        self.progress.send_replace(match outcome {
            Ok(block) => Progress::Done(block, self.filling.lock().restarts),
            Err(failure) => Progress::Failed(failure),
        });
    }

    /// The bytes after `from`, at most [`FORWARD_BYTES_MAX`], if the block has restarted `restarts` times.
    pub(in crate::read) fn forwardable(&self, from: usize, restarts: u32) -> Option<Bytes> {
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

/// The failure of a fetch whose task ended without an answer.
pub(in crate::read) fn given_up() -> Failure {
    Failure::new(FailureKind::Unavailable, "the fetch was given up")
}
