//! One read of an open file: the requests to the homes of its items.

use super::super::HELD_UNIT;
use super::super::view::View;
use super::{Held, Open, Opened, Run};
use crate::job::Permit;
use crate::model::slots::{STRIPE_BYTES, slot_of, stripe_len};
use crate::num::to_usize;
use crate::read::{Cut, FileRef};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, ItemAnswer, ItemRequest, RANGE_ALIGN,
};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// Times that a home is asked for one run: without payment, with it, and again when its price rose
/// meanwhile (the item had been on its way for somebody else, who gave up).
const ASKED_MAX: usize = 8;

/// See the module.
pub(super) struct Reading<'a> {
    open: &'a Open,
    /// The open file, in the requested version.
    file: &'a FileRef,
    /// The time limit of all its requests. Time in which it waits for tokens moves it.
    until: Instant,
}

/// What a run of bytes has cost.
struct Cost {
    cached: bool,
    charged: u64,
    admitted: bool,
}

type Fetched = (Bytes, ContentHash, Cost);

impl<'a> Reading<'a> {
    pub(super) fn new(open: &'a Open, file: &'a FileRef) -> Self {
        let until = Instant::now() + open.begun.reader.request_timeout;
        Self { open, file, until }
    }

    /// The bytes of `run`, with those around it if they are worth it.
    pub(super) async fn read(&mut self, run: Run) -> Result<Cut, Failure> {
        let (open, file) = (self.open, self.file);
        if let Some(cut) = open.held(file, run) {
            return Ok(cut);
        }
        if open.goes_on(run) {
            // The reader that has the turn may be waiting for tokens, and has a separate time limit.
            let _turn = self.untimed(open.turn.lock()).await;
            if let Some(cut) = open.held(file, run) {
                return Ok(cut);
            }
            if self.bring(run.stripe).await?
                && let Some(cut) = open.held(file, run)
            {
                return Ok(cut);
            }
        }
        self.read_alone(run).await
    }

    /// Waits for `waited`, without using up the time limit.
    async fn untimed<T>(&mut self, waited: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let output = waited.await;
        self.until += begun.elapsed();
        output
    }

    /// Brings a whole item here. Returns false when there is no room for it.
    async fn bring(&mut self, stripe: u64) -> Result<bool, Failure> {
        let open = self.open;
        let len = stripe_len(self.file.size, stripe);
        let units = u32::try_from(len.div_ceil(HELD_UNIT)).unwrap_or(u32::MAX);
        // What was held makes room first.
        open.state.lock().held = None;
        let room = Arc::clone(&open.begun.reader.held).try_acquire_many_owned(units);
        let Ok(room) = room else {
            return Ok(false);
        };
        let offset = stripe * STRIPE_BYTES;
        let run = Run {
            stripe,
            offset,
            len,
        };
        let (bytes, hash) = self.ask(run).await?;
        open.state.lock().held = Some(Held {
            version: self.file.version,
            stripe,
            bytes,
            part: run.part(self.file, hash),
            _room: room,
        });
        Ok(true)
    }

    /// Reads `run`, extended only to its alignment. A file of one block is read whole, so that a single
    /// hash covers it.
    async fn read_alone(&mut self, run: Run) -> Result<Cut, Failure> {
        let size = self.file.size;
        let (mut start, mut end) = (0, size);
        if size > BLOCK_BYTES {
            start = run.offset - run.offset % RANGE_ALIGN;
            let stripe_end = (run.stripe + 1).saturating_mul(STRIPE_BYTES);
            end = (run.offset + run.len).next_multiple_of(RANGE_ALIGN);
            end = end.min(size).min(stripe_end);
        }
        let wanted = Run {
            stripe: run.stripe,
            offset: start,
            len: end - start,
        };
        let (bytes, hash) = self.ask(wanted).await?;
        self.open.give(&mut self.open.state.lock(), run);
        let from = to_usize(run.offset - start);
        let bytes = bytes.slice(from..from + to_usize(run.len));
        Ok(Cut::of(bytes, wanted.part(self.file, hash)))
    }

    /// Requests `run`, and records its cost. Returns the bytes and their hash.
    pub(super) async fn ask(&mut self, run: Run) -> Result<(Bytes, ContentHash), Failure> {
        let started = std::time::Instant::now();
        let (bytes, hash, cost) = self.fetch(run).await?;
        let mut state = self.open.state.lock();
        let current = self.open.current(&mut state, run.stripe, started);
        current.outcome.cached &= cost.cached;
        current.outcome.charged += cost.charged;
        current.outcome.admitted |= cost.admitted;
        Ok((bytes, hash))
    }

    /// Requests `run` from its home, then from the next home, then reads it on this node itself.
    async fn fetch(&mut self, run: Run) -> Result<Fetched, Failure> {
        let reader = &self.open.begun.reader;
        let view = reader.view();
        let slot = slot_of(&self.file.path, run.stripe);
        let home = view.home(slot);
        let mut failure = match self.fetch_from(home, run).await {
            Err(failure) if failure.kind == FailureKind::Unavailable => failure,
            answered => return answered,
        };
        for next in elsewhere(&view, slot, home) {
            reader.counters.elsewhere.increment();
            tracing::debug!(path = %self.file.path, %failure, "a home cannot be reached");
            failure = match self.fetch_from(next, run).await {
                Err(failure) if failure.kind == FailureKind::Unavailable => failure,
                answered => return answered,
            };
        }
        Err(failure)
    }

    /// Asks one node, first with what tokens there are, and then with what it costs.
    async fn fetch_from(&mut self, rank: Option<u32>, run: Run) -> Result<Fetched, Failure> {
        let Opened {
            reader, activity, ..
        } = &self.open.begun;
        let tokens = activity.tokens();
        let mut permit = tokens.try_take(run.len);
        for _ in 0..ASKED_MAX {
            let payment = permit.as_ref().map_or(0, Permit::bytes);
            reader.counters.requests.increment();
            let asking = reader.homes.ask(rank, self.request(run, payment));
            let Ok(answer) = timeout_at(self.until, asking).await else {
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
                    reader.counters.unpaid.increment();
                    // A home asks for its item's length at most. Otherwise a false price would hang the reader.
                    let cost = cost.clamp(run.len, STRIPE_BYTES);
                    permit = Some(self.untimed(tokens.take(cost)).await);
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
        let (path, limit) = (&self.file.path, self.open.begun.reader.request_timeout);
        let detail = format!("{path}: the homes of its dataset did not answer within {limit:?}");
        Failure::new(FailureKind::Io, detail)
    }

    fn request(&self, run: Run, payment: u64) -> ItemRequest {
        let Opened {
            dataset, activity, ..
        } = &self.open.begun;
        ItemRequest {
            dataset: *dataset,
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            content: self.file.content,
            stripe: run.stripe,
            offset: run.offset,
            len: run.len,
            job: activity.job().map_or(0, |job| job.id().0),
            payment,
        }
    }
}

fn elsewhere(view: &View, slot: u16, home: Option<u32>) -> Vec<Option<u32>> {
    if home.is_none() {
        return Vec::new();
    }
    let others = view.others(slot).into_iter().map(Some);
    others.chain([None]).collect()
}
