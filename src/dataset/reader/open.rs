//! One open file of a dataset.

mod reading;

use super::Shared;
use crate::job::{ItemOutcome, JobActivity};
use crate::model::slots::{STRIPE_BYTES, items_of, stripe_len};
use crate::num::{first_u64, to_usize};
use crate::read::{Cut, FileId, FileRef, Part, PartRange};
use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Failure, Standing, Version};
use parking_lot::Mutex;
use reading::Reading;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// Files up to this size are fetched whole on their first read, at any offset.
const WHOLE_MAX: u64 = 1 << 20;
/// The maximum number of stripes of a file that count as read if the page cache has answered all
/// reads.
const UNREAD_STRIPES_MAX: u64 = 1 << 16;

/// See the module. Cheap to clone. It counts as closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenDatasetFile(Arc<Open>);

struct Open {
    reader: Arc<Shared>,
    dataset: u64,
    file: FileRef,
    activity: Arc<JobActivity>,
    pid: u32,
    /// Guards the arithmetic of one call. Never held across an await.
    state: Mutex<OpenState>,
    /// Held while a whole item is fetched. Other readers then find it in memory.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct OpenState {
    /// The whole item that was read last.
    held: Option<HeldItem>,
    /// The offset at which the last read ended.
    next: u64,
    /// The item that is being read.
    current: Option<CurrentItem>,
    /// Whether any byte was requested.
    touched: bool,
}

struct HeldItem {
    version: Version,
    stripe: u64,
    bytes: Bytes,
    /// The part that all the bytes belong to, with its hash.
    part: Part,
    /// Its part of the limit on bytes held.
    _room: OwnedSemaphorePermit,
}

/// An item that is being read, until it is counted.
struct CurrentItem {
    stripe: u64,
    started: Instant,
    /// Its bytes are those returned to the reader.
    outcome: ItemOutcome,
    counted: bool,
}

/// Consecutive bytes within one stripe.
#[derive(Clone, Copy)]
struct Run {
    stripe: u64,
    /// The offset in the file.
    offset: u64,
    len: u64,
}

impl Run {
    /// The run as a part with the hash of its bytes. A run that is a whole file of one block is block 0.
    fn part(self, file: &FileRef, hash: ContentHash) -> Part {
        let Self { offset, len, .. } = self;
        let range = if file.size <= BLOCK_BYTES && len == file.size {
            PartRange::Block(0)
        } else {
            PartRange::Run { offset, len }
        };
        Part { range, hash }
    }
}

impl OpenDatasetFile {
    pub(super) fn new(
        reader: Arc<Shared>,
        dataset: u64,
        file: FileRef,
        activity: Arc<JobActivity>,
        pid: u32,
    ) -> Self {
        Self(Arc::new(Open {
            reader,
            dataset,
            file,
            activity,
            pid,
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Bytes from `offset`, `size` of them or up to the file's end, if the whole item is in memory. `file`
    /// is the open file, in the requested version.
    #[must_use]
    pub fn try_read(&self, file: &FileRef, offset: u64, size: u32) -> Option<Cut> {
        let mut runs = self.0.runs(offset, size);
        let only = runs.next().filter(|_| runs.next().is_none());
        self.0.held(file, only?)
    }

    /// Bytes from `offset`, `size` of them or up to the file's end, of the version in `file`. Waits for
    /// tokens if storage has to be read and the job has none; that time does not count against the request's
    /// time limit. May be cancelled.
    ///
    /// # Errors
    /// `Stale` if the file no longer has that version; `Io` at the time limit; the failure of its home, or of
    /// this node itself if no home can be reached.
    pub async fn read(&self, file: &FileRef, offset: u64, size: u32) -> Result<Cut, Failure> {
        let open = &self.0;
        let _waiting = open.activity.waits(open.pid, Instant::now());
        let mut reading = Reading::new(open, file);
        let mut cuts = Vec::with_capacity(1);
        for run in open.runs(offset, size) {
            cuts.push(reading.read(run).await?);
        }
        Ok(Cut::joined(cuts))
    }

    /// The hash of `len` bytes of `file` from `offset`, a run that [`OpenDatasetFile::read`] has returned
    /// under another version. The bytes are requested from the home and charged like any other read.
    ///
    /// # Errors
    /// Like [`OpenDatasetFile::read`].
    pub async fn hash(
        &self,
        file: &FileRef,
        offset: u64,
        len: u64,
    ) -> Result<ContentHash, Failure> {
        let run = Run {
            stripe: offset / STRIPE_BYTES,
            offset,
            len,
        };
        let (_bytes, hash) = Reading::new(&self.0, file).ask(run).await?;
        Ok(hash)
    }
}

impl Open {
    /// Splits a read into runs, one for each stripe.
    fn runs(&self, offset: u64, size: u32) -> impl Iterator<Item = Run> {
        let end = offset.saturating_add(size.into());
        let end = end.min(self.file.size);
        let stripes = offset / STRIPE_BYTES..end.div_ceil(STRIPE_BYTES);
        let runs = stripes.map(move |stripe| {
            let offset = offset.max(stripe * STRIPE_BYTES);
            let until = end.min((stripe + 1).saturating_mul(STRIPE_BYTES));
            Run {
                stripe,
                offset,
                len: until.saturating_sub(offset),
            }
        });
        runs.filter(|run| run.len > 0)
    }

    /// Returns the bytes of a run if the item is in memory.
    fn held(&self, file: &FileRef, run: Run) -> Option<Cut> {
        let mut state = self.state.lock();
        let same = |held: &&HeldItem| (held.stripe, held.version) == (run.stripe, file.version);
        let held = state.held.as_ref().filter(same)?;
        let from = to_usize(run.offset % STRIPE_BYTES);
        let bytes = held.bytes.get(from..from + to_usize(run.len))?;
        let cut = Cut::of(held.bytes.slice_ref(bytes), held.part);
        self.give(&mut state, run);
        Some(cut)
    }

    /// Returns whether the whole item should be fetched for `run`: it is small, or is read from its
    /// beginning or sequentially.
    fn is_sequential(&self, run: Run) -> bool {
        let begins = run.offset.is_multiple_of(STRIPE_BYTES);
        self.file.size <= WHOLE_MAX || begins || self.state.lock().next == run.offset
    }

    /// Returns the current item, which is that of `stripe`. Another one is counted first.
    fn current<'a>(
        &self,
        state: &'a mut OpenState,
        stripe: u64,
        started: Instant,
    ) -> &'a mut CurrentItem {
        if state.current.as_ref().is_some_and(|at| at.stripe != stripe) {
            self.count(state);
            state.current = None;
        }
        state.current.get_or_insert_with(|| CurrentItem {
            stripe,
            started,
            outcome: ItemOutcome {
                cached: true,
                ..ItemOutcome::default()
            },
            counted: false,
        })
    }

    /// Records that `run` was returned to the reader.
    fn give(&self, state: &mut OpenState, run: Run) {
        state.touched = true;
        state.next = run.offset + run.len;
        let whole = stripe_len(self.file.size, run.stripe);
        let current = self.current(state, run.stripe, Instant::now());
        current.outcome.bytes += run.len;
        // Bytes may be read more than once; the item counts once.
        if current.outcome.bytes >= whole {
            self.count(state);
        }
    }

    /// Counts the current item, once.
    fn count(&self, state: &mut OpenState) {
        let Some(current) = state.current.as_mut().filter(|current| !current.counted) else {
            return;
        };
        current.counted = true;
        let whole = stripe_len(self.file.size, current.stripe);
        let outcome = ItemOutcome {
            bytes: current.outcome.bytes.min(whole),
            ..current.outcome
        };
        let item = item_hash(&self.file, current.stripe);
        let now = Instant::now();
        self.activity.read(item, outcome, current.started, now);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.count(&mut state);
        let (file, now) = (&self.file, Instant::now());
        // A file that was never read counts with all of its stripes, because the page cache has
        // answered.
        let stripes = match state.touched {
            true => 1,
            false => items_of(file.size).min(UNREAD_STRIPES_MAX),
        };
        for stripe in 0..stripes {
            let len = stripe_len(file.size, stripe);
            let item = item_hash(file, stripe);
            self.activity.closed(item, len, !state.touched, now);
        }
    }
}

/// The identity of an item for the jobs of this node; it does not change with the file's status or
/// standing.
pub(super) fn item_hash(file: &FileRef, stripe: u64) -> u64 {
    let version = file.version.with_change([0; 8]);
    let id = FileId::of_place(&file.path, version.standing_as(Standing::Lasting));
    // Spread, so that stripes of two files do not collide.
    first_u64(id.as_bytes()) ^ stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
