//! One open file of a dataset.

mod reading;

use super::Inner;
use crate::job::{ItemOutcome, JobActivity};
use crate::model::slots::{STRIPE_BYTES, items_of, stripe_len};
use crate::num::to_usize;
use crate::read::{Cut, FileId, FileRef, Part, PartRange};
use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Failure, Standing, Version};
use parking_lot::Mutex;
use reading::Reading;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;

/// Files up to this many bytes come whole on their first read, wherever it is.
const WHOLE_MAX: u64 = 1 << 20;
/// Stripes of a file that count as read when the page cache has answered all of it.
const UNREAD_STRIPES_MAX: u64 = 1 << 16;

/// What an open file begins with.
pub(super) struct Opened {
    pub(super) reader: Arc<Inner>,
    pub(super) dataset: u64,
    pub(super) file: FileRef,
    pub(super) activity: Arc<JobActivity>,
    pub(super) pid: u32,
}

/// See the module. Cheap to clone; counted as closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenDatasetFile(Arc<Open>);

struct Open {
    begun: Opened,
    /// Guards the arithmetic of one call, and is not held across an await.
    state: Mutex<State>,
    /// Whose turn it is to ask for a whole item; the others find it held.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The item that was read last, whole.
    held: Option<Held>,
    /// Where the last read ended.
    next: u64,
    /// The item that is being read.
    current: Option<Current>,
    /// A byte was asked for.
    touched: bool,
}

struct Held {
    version: Version,
    stripe: u64,
    bytes: Bytes,
    /// The part that all the bytes belong to, with its hash.
    part: Part,
    /// Its room.
    _room: OwnedSemaphorePermit,
}

/// An item on its way to a reader, until it is counted.
struct Current {
    stripe: u64,
    started: Instant,
    /// Bytes given out.
    given: u64,
    outcome: ItemOutcome,
    counted: bool,
}

/// A run of bytes within one stripe.
#[derive(Clone, Copy)]
struct Run {
    stripe: u64,
    /// In the file.
    offset: u64,
    len: u64,
}

impl Run {
    /// The run as a part with the hash of its bytes. A run that is a whole file of one block is block 0.
    fn part(self, file: &FileRef, hash: ContentHash) -> Part {
        let Self { offset, len, .. } = self;
        let range = match file.size <= BLOCK_BYTES && len == file.size {
            true => PartRange::Block(0),
            false => PartRange::Run { offset, len },
        };
        Part { range, hash }
    }
}

impl fmt::Debug for OpenDatasetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenDatasetFile")
            .field("path", &self.0.begun.file.path)
            .finish_non_exhaustive()
    }
}

impl OpenDatasetFile {
    pub(super) fn new(begun: Opened) -> Self {
        Self(Arc::new(Open {
            begun,
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Bytes from `offset`, `size` of them or up to the file's end, if the whole item is in memory. `file`
    /// is the open file, in the requested version.
    #[must_use]
    pub fn read_now(&self, file: &FileRef, offset: u64, size: u32) -> Option<Cut> {
        let mut runs = self.0.runs(offset, size);
        let run = runs.next()?;
        if runs.next().is_some() {
            return None;
        }
        self.0.held(file, run)
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
        let _waiting = open.begun.activity.waits(open.begun.pid, Instant::now());
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
    /// The runs of a read, one for each stripe.
    fn runs(&self, offset: u64, size: u32) -> impl Iterator<Item = Run> {
        let end = offset.saturating_add(size.into());
        let end = end.min(self.begun.file.size);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let stripe = at / STRIPE_BYTES;
            let until = end.min(stripe.saturating_add(1).saturating_mul(STRIPE_BYTES));
            let run = Run {
                stripe,
                offset: at,
                len: until - at,
            };
            at = until;
            Some(run)
        })
    }

    /// The bytes of a run out of the item that is held.
    fn held(&self, file: &FileRef, run: Run) -> Option<Cut> {
        let mut state = self.state.lock();
        let held = state
            .held
            .as_ref()
            .filter(|held| held.stripe == run.stripe && held.version == file.version)?;
        let from = to_usize(run.offset % STRIPE_BYTES);
        let bytes = held.bytes.get(from..from + to_usize(run.len))?;
        let cut = Cut::of(held.bytes.slice_ref(bytes), held.part);
        self.give(&mut state, run);
        Some(cut)
    }

    /// Whether the whole item is worth bringing for `run`: it is small, or is read from its beginning
    /// or on from where the last read ended.
    fn goes_on(&self, run: Run) -> bool {
        let begins = run.offset.is_multiple_of(STRIPE_BYTES);
        self.begun.file.size <= WHOLE_MAX || begins || self.state.lock().next == run.offset
    }

    /// The item that is being read is that of `stripe`; another one is done with.
    fn current<'a>(&self, state: &'a mut State, stripe: u64, started: Instant) -> &'a mut Current {
        if state.current.as_ref().is_some_and(|at| at.stripe != stripe) {
            self.count(state);
            state.current = None;
        }
        state.current.get_or_insert_with(|| Current {
            stripe,
            started,
            given: 0,
            outcome: ItemOutcome {
                cached: true,
                ..ItemOutcome::default()
            },
            counted: false,
        })
    }

    /// `run` was given to the reader.
    fn give(&self, state: &mut State, run: Run) {
        state.touched = true;
        state.next = run.offset + run.len;
        let whole = stripe_len(self.begun.file.size, run.stripe);
        let current = self.current(state, run.stripe, Instant::now());
        current.given += run.len;
        if current.given >= whole {
            self.count(state);
        }
    }

    /// Counts the item that is being read, once.
    fn count(&self, state: &mut State) {
        let Some(current) = state.current.as_mut().filter(|current| !current.counted) else {
            return;
        };
        current.counted = true;
        let whole = stripe_len(self.begun.file.size, current.stripe);
        let outcome = ItemOutcome {
            bytes: current.given.min(whole),
            ..current.outcome
        };
        let item = item_hash(&self.begun.file, current.stripe);
        self.begun
            .activity
            .read(item, outcome, current.started, Instant::now());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.count(&mut state);
        let (file, now) = (&self.begun.file, Instant::now());
        let stripes = if state.touched || file.size == 0 {
            1
        } else {
            items_of(file.size).min(UNREAD_STRIPES_MAX)
        };
        for stripe in 0..stripes {
            let len = stripe_len(file.size, stripe);
            let item = item_hash(file, stripe);
            self.begun.activity.closed(item, len, !state.touched, now);
        }
    }
}

/// The identity of an item for the jobs of this node; it does not change with the file's status or
/// standing.
pub(super) fn item_hash(file: &FileRef, stripe: u64) -> u64 {
    let version = file
        .version
        .with_change([0; 8])
        .standing_as(Standing::Lasting);
    let id = FileId::of_place(&file.path, version);
    let (low, _) = id.as_bytes().split_at(8);
    let low = low.try_into().map_or(0, u64::from_le_bytes);
    // Spread, so that the stripes of two files do not meet.
    low ^ stripe.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
