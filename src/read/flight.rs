//! A block on its way here: a buffer that grows, and those who wait for it or forward it.

use super::Block;
use bytes::Bytes;
use copperfs_overlay::{ContentHash, Failure, FailureKind, ItemPath};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What a forwarder holds back until the hash of the block has been checked, so that it never
/// completes a wrong block and an honest forwarder is never blamed for one.
const HELD_BACK_BYTES: usize = 64 << 10;

/// How far a block has come.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    /// Bytes are arriving, unverified.
    Filling,
    /// Complete and verified.
    Done(Block),
    /// It will not come.
    Failed(Failure),
}

/// BLAKE3 is several times faster over long runs than packet by packet.
const HASH_RUN_BYTES: usize = 128 << 10;

#[derive(Debug, Default)]
struct Filling {
    bytes: Vec<u8>,
    hasher: blake3::Hasher,
    hashed: usize,
}

/// A block under way. Filled by one task; watched by any number.
#[derive(Debug)]
pub(super) struct Flight {
    len: usize,
    /// Guards the bytes so far. Held for a copy or a hash of at most one block, never across an await.
    filling: Mutex<Filling>,
    progress: watch::Sender<Progress>,
}

impl Flight {
    pub(super) fn new(len: usize) -> Self {
        Self {
            len,
            filling: Mutex::default(),
            progress: watch::channel(Progress::Filling).0,
        }
    }

    pub(super) fn watch(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Appends bytes as they arrive.
    ///
    /// # Errors
    /// `Corrupt` when the block would become longer than it is.
    pub(super) fn push(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut guard = self.lock();
        let filling = &mut *guard;
        if filling.bytes.len() + bytes.len() > self.len {
            return Err(Failure::new(
                FailureKind::Corrupt,
                "a block longer than announced",
            ));
        }
        if filling.bytes.capacity() == 0 {
            filling.bytes.reserve_exact(self.len);
        }
        filling.bytes.extend_from_slice(bytes);
        if filling.bytes.len() - filling.hashed >= HASH_RUN_BYTES {
            filling.hash();
        }
        drop(guard);
        self.progress.send_replace(Progress::Filling);
        Ok(())
    }

    /// Takes the bytes out as a verified block. The flight goes on to be watched; [`Flight::finish`]
    /// must follow.
    ///
    /// # Errors
    /// `Corrupt` when bytes are missing or `hash` is not theirs.
    pub(super) fn verify(&self, path: &ItemPath, hash: ContentHash) -> Result<Block, Failure> {
        let mut filling = self.lock();
        let arrived = filling.bytes.len();
        if arrived != self.len {
            let detail = format!("{path}: a block ended after {arrived} of {} B", self.len);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        filling.hash();
        if *filling.hasher.finalize().as_bytes() != hash.0 {
            let detail = format!("{path}: a block's bytes do not match its hash");
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        let bytes = Bytes::from(std::mem::take(&mut filling.bytes));
        Ok(Block {
            bytes,
            hash,
            path: path.clone(),
        })
    }

    pub(super) fn finish(&self, outcome: Result<Block, Failure>) {
        self.progress.send_replace(match outcome {
            Ok(block) => Progress::Done(block),
            Err(failure) => Progress::Failed(failure),
        });
    }

    /// The bytes behind `from` that may be forwarded before the block is verified.
    pub(super) fn forwardable(&self, from: usize) -> Option<Bytes> {
        let bytes = &self.lock().bytes;
        let end = bytes.len().min(self.len.saturating_sub(HELD_BACK_BYTES));
        (end > from).then(|| Bytes::copy_from_slice(&bytes[from..end]))
    }

    fn lock(&self) -> MutexGuard<'_, Filling> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Filling {
    fn hash(&mut self) {
        self.hasher.update(&self.bytes[self.hashed..]);
        self.hashed = self.bytes.len();
    }
}
