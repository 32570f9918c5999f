//! One open file of a dataset.

use super::view::View;
use super::{HELD_UNIT, Inner};
use crate::dataset::slots::{STRIPE_BYTES, items_of, slot_of, stripe_len};
use crate::job::{ItemOutcome, JobActivity, Permit, Tokens};
use crate::num::to_usize;
use crate::read::{Cut, FileId, FileRef, Part, Place};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, ItemAnswer, ItemRequest, RANGE_ALIGN, Standing,
    Version,
};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout_at;

/// Files up to this many bytes come whole on their first read, wherever it is.
const WHOLE_MAX: u64 = 1 << 20;
/// Stripes of a file that count as read when the page cache has answered all of it.
const UNREAD_STRIPES_MAX: u64 = 1 << 16;

/// Times that a home is asked for one run: without payment, with it, and again when its price rose
/// meanwhile (the item had been on its way for somebody else, who gave up).
const ASKED_MAX: usize = 8;

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
        let place = match file.size <= BLOCK_BYTES && len == file.size {
            true => Place::Block(0),
            false => Place::Run { offset, len },
        };
        Part { place, hash }
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
        let mut patience = open.patience();
        let mut cuts = Vec::with_capacity(1);
        for run in open.runs(offset, size) {
            cuts.push(open.read_run(file, run, &mut patience).await?);
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
        let mut patience = self.0.patience();
        Ok(self.0.ask(file, run, &mut patience).await?.1)
    }
}

/// How long the homes of one read may take.
struct Patience {
    until: tokio::time::Instant,
}

impl Patience {
    /// Waits for tokens, without using up the time limit.
    async fn take(&mut self, tokens: &Arc<Tokens>, bytes: u64) -> Permit {
        let begun = tokio::time::Instant::now();
        let permit = tokens.take(bytes).await;
        self.until += begun.elapsed();
        permit
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

    fn patience(&self) -> Patience {
        let until = tokio::time::Instant::now() + self.begun.reader.request_timeout;
        Patience { until }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a run out of the item that is held.
    fn held(&self, file: &FileRef, run: Run) -> Option<Cut> {
        let mut state = self.state();
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

    async fn read_run(
        &self,
        file: &FileRef,
        run: Run,
        patience: &mut Patience,
    ) -> Result<Cut, Failure> {
        if let Some(cut) = self.held(file, run) {
            return Ok(cut);
        }
        if self.goes_on(run) {
            let begun = tokio::time::Instant::now();
            let _turn = self.turn.lock().await;
            // The reader that had the turn may have waited for tokens, and has a separate time limit.
            patience.until += begun.elapsed();
            if let Some(cut) = self.held(file, run) {
                return Ok(cut);
            }
            if self.bring(file, run.stripe, patience).await?
                && let Some(cut) = self.held(file, run)
            {
                return Ok(cut);
            }
        }
        self.read_alone(file, run, patience).await
    }

    /// Whether the whole item is worth bringing for `run`: it is small, or is read from its beginning
    /// or on from where the last read ended.
    fn goes_on(&self, run: Run) -> bool {
        let begins = run.offset.is_multiple_of(STRIPE_BYTES);
        self.begun.file.size <= WHOLE_MAX || begins || self.state().next == run.offset
    }

    /// Brings a whole item here; false when there is no room for it.
    async fn bring(
        &self,
        file: &FileRef,
        stripe: u64,
        patience: &mut Patience,
    ) -> Result<bool, Failure> {
        let len = stripe_len(self.begun.file.size, stripe);
        let units = u32::try_from(len.div_ceil(HELD_UNIT)).unwrap_or(u32::MAX);
        // What was held makes room first.
        self.state().held = None;
        let room = Arc::clone(&self.begun.reader.held).try_acquire_many_owned(units);
        let Ok(room) = room else {
            return Ok(false);
        };
        let offset = stripe * STRIPE_BYTES;
        let run = Run {
            stripe,
            offset,
            len,
        };
        let (bytes, hash) = self.ask(file, run, patience).await?;
        self.state().held = Some(Held {
            version: file.version,
            stripe,
            bytes,
            part: run.part(file, hash),
            _room: room,
        });
        Ok(true)
    }

    /// Reads `run`, extended only to its alignment. A file of one block is read whole, so that a single
    /// hash covers it.
    async fn read_alone(
        &self,
        file: &FileRef,
        run: Run,
        patience: &mut Patience,
    ) -> Result<Cut, Failure> {
        let (mut start, mut end) = (0, file.size);
        if file.size > BLOCK_BYTES {
            start = run.offset - run.offset % RANGE_ALIGN;
            let stripe_end = (run.stripe + 1).saturating_mul(STRIPE_BYTES);
            end = (run.offset + run.len).next_multiple_of(RANGE_ALIGN);
            end = end.min(file.size).min(stripe_end);
        }
        let wanted = Run {
            stripe: run.stripe,
            offset: start,
            len: end - start,
        };
        let (bytes, hash) = self.ask(file, wanted, patience).await?;
        self.give(&mut self.state(), run);
        let from = to_usize(run.offset - start);
        let bytes = bytes.slice(from..from + to_usize(run.len));
        Ok(Cut::of(bytes, wanted.part(file, hash)))
    }

    /// Requests `run`, and records its cost. Returns the bytes and their hash.
    async fn ask(
        &self,
        file: &FileRef,
        run: Run,
        patience: &mut Patience,
    ) -> Result<(Bytes, ContentHash), Failure> {
        let started = Instant::now();
        let (bytes, hash, cost) = self.begun.fetch(file, run, patience).await?;
        let mut state = self.state();
        let current = self.current(&mut state, run.stripe, started);
        current.outcome.cached &= cost.cached;
        current.outcome.charged += cost.charged;
        current.outcome.admitted |= cost.admitted;
        Ok((bytes, hash))
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
        let mut state =
            std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
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

/// What a run of bytes has cost.
struct Cost {
    cached: bool,
    charged: u64,
    admitted: bool,
}

type Fetched = (Bytes, ContentHash, Cost);

impl Opened {
    /// Requests `run` of `file` from its home, then from the next home, then reads it on this node itself.
    async fn fetch(
        &self,
        file: &FileRef,
        run: Run,
        patience: &mut Patience,
    ) -> Result<Fetched, Failure> {
        let view = self.reader.view();
        let slot = slot_of(&self.file.path, run.stripe);
        let home = view.home(slot);
        let mut failure = match self.fetch_from(home, file, run, patience).await {
            Err(failure) if failure.kind == FailureKind::Unavailable => failure,
            answered => return answered,
        };
        for next in self.elsewhere(&view, slot, home) {
            let counter = &self.reader.counters.elsewhere;
            counter.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(path = %self.file.path, %failure, "a home cannot be reached");
            failure = match self.fetch_from(next, file, run, patience).await {
                Err(failure) if failure.kind == FailureKind::Unavailable => failure,
                answered => return answered,
            };
        }
        Err(failure)
    }

    fn elsewhere(&self, view: &View, slot: u16, home: Option<u32>) -> Vec<Option<u32>> {
        if home.is_none() {
            return Vec::new();
        }
        let others = view.others(slot).into_iter().map(Some);
        others.chain([None]).collect()
    }

    /// Asks one node, first with what tokens there are, and then with what it costs.
    async fn fetch_from(
        &self,
        rank: Option<u32>,
        file: &FileRef,
        run: Run,
        patience: &mut Patience,
    ) -> Result<Fetched, Failure> {
        let tokens = self.activity.tokens();
        let mut permit = tokens.try_take(run.len);
        for _ in 0..ASKED_MAX {
            let payment = permit.as_ref().map_or(0, |permit| permit.bytes());
            let requests = &self.reader.counters.requests;
            requests.fetch_add(1, Ordering::Relaxed);
            let request = self.request(file, run, payment);
            let asking = self.reader.homes.ask(rank, request);
            let Ok(answer) = timeout_at(patience.until, asking).await else {
                return Err(self.too_slow());
            };
            match answer {
                Ok(ItemAnswer::Bytes {
                    bytes,
                    hash,
                    cached,
                    charged,
                    admitted,
                }) => {
                    // Without payment nothing is read from storage.
                    if let Some(permit) = permit {
                        permit.spent(charged);
                    }
                    let cost = Cost {
                        cached,
                        charged,
                        admitted: admitted > 0,
                    };
                    return Ok((bytes, hash, cost));
                }
                Ok(ItemAnswer::Unpaid { cost }) => {
                    if let Some(permit) = permit.take() {
                        permit.spent(0);
                    }
                    let unpaid = &self.reader.counters.unpaid;
                    unpaid.fetch_add(1, Ordering::Relaxed);
                    // A home asks for its item's length at most; more would hang for its words' sake.
                    let cost = cost.clamp(run.len, STRIPE_BYTES);
                    permit = Some(patience.take(tokens, cost).await);
                }
                // Storage may have been read for it all the same: what was to be paid counts as spent.
                Err(failure) => return Err(failure),
            }
        }
        let path = &self.file.path;
        let detail = format!("{path}: its home wants more to be paid for than an item has");
        Err(Failure::new(FailureKind::Corrupt, detail))
    }

    fn too_slow(&self) -> Failure {
        let (path, patience) = (&self.file.path, self.reader.request_timeout);
        let detail = format!("{path}: the homes of its dataset did not answer within {patience:?}");
        Failure::new(FailureKind::Io, detail)
    }

    fn request(&self, file: &FileRef, run: Run, payment: u64) -> ItemRequest {
        ItemRequest {
            dataset: self.dataset,
            path: file.path.clone(),
            version: file.version,
            size: file.size,
            content: file.content,
            stripe: run.stripe,
            offset: run.offset,
            len: run.len,
            job: self.activity.job().map_or(0, |job| job.id().0),
            payment,
        }
    }
}
