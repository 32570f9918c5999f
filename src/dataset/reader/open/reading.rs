//! One read of an open file: the requests to the homes of its items.

use super::super::held::{HeldItem, cuts};
use super::{Open, Run, held_blocks};
use crate::dataset::catalog::Piece;
use crate::job::{ItemOutcome, Permit};
use crate::model::slots::STRIPE_BYTES;
use crate::read::{Cut, FileRef};
use copperfs_overlay::{Extent, Failure, FailureKind, ItemAnswer, RANGE_ALIGN, RangeAnswer};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::time::{Instant, timeout_at};

/// The maximum number of requests to a home for one run: without payment, with it, and again if the
/// price has risen (another request's flight, which this one had joined, was aborted).
const ASKED_MAX: usize = 8;

/// See the module.
pub(super) struct Reading<'a> {
    open: &'a Open,
    /// The open file, in the requested version.
    file: &'a FileRef,
    /// The time limit of all its requests. Time in which it waits for tokens moves it.
    until: Instant,
    /// Whether its first run began an item, or continued the read before; `None` until it is known.
    is_sequential: Option<bool>,
}

/// The bytes of a run, by block, and their cost.
pub(super) type Fetched = (Vec<RangeAnswer>, ItemOutcome);

impl<'a> Reading<'a> {
    pub(super) fn new(open: &'a Open, file: &'a FileRef) -> Self {
        let until = Instant::now() + open.reader.request_timeout;
        Self {
            open,
            file,
            until,
            is_sequential: None,
        }
    }

    /// Returns the bytes of `run`, and fetches the whole item if that is worthwhile.
    pub(super) async fn read(&mut self, run: Run) -> Result<Cut, Failure> {
        let (open, file) = (self.open, self.file);
        if let Some(cut) = open.held(file, run) {
            return Ok(cut);
        }
        // A read that goes on into another item begins it only by chance: samples in large shards cross borders.
        let is_sequential = *self
            .is_sequential
            .get_or_insert_with(|| open.is_sequential(run));
        if is_sequential || open.is_small(run.piece) {
            // The reader that has the turn may be waiting for tokens, and has a separate time limit.
            let _turn = self.untimed(open.turn.lock()).await;
            if let Some(cut) = open.held(file, run) {
                return Ok(cut);
            }
            self.hold(run.piece).await?;
            if let Some(cut) = open.held(file, run) {
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

    /// Finds or fetches a whole item, and holds it in the open file, if there is enough memory.
    async fn hold(&mut self, piece: Piece) -> Result<(), Failure> {
        let (open, file) = (self.open, self.file);
        let items = &open.reader.held;
        let Extent { start, len } = piece.extent;
        // A job that is measured without a cache shares nothing between its opens.
        let is_shared = open.is_small(piece) && !open.is_uncached;
        let find = || items.recent(file, piece.extent, std::time::Instant::now());
        // Drop the previous item first, so that its memory is available.
        open.state.lock().held = None;
        if let Some(recent) = is_shared.then(find).flatten() {
            open.state.lock().held = Some(recent);
            return Ok(());
        }
        let Some(room) = items.room(len) else {
            return Ok(());
        };
        let (blocks, cost) = self.ask(Run::whole(piece)).await?;
        let item = Arc::new(HeldItem {
            version: file.version,
            extent: piece.extent,
            blocks: held_blocks(file, start, blocks),
            left: AtomicU64::new(len),
            _room: room,
        });
        open.state.lock().held = Some(Arc::clone(&item));
        if is_shared && !cost.cached && !cost.admitted {
            items.keep(file, item, std::time::Instant::now());
        }
        Ok(())
    }

    /// Reads `run`, extended only to its alignment. A small item is read whole, so that a single hash
    /// covers it.
    async fn read_alone(&mut self, run: Run) -> Result<Cut, Failure> {
        let item = run.piece.extent;
        let (mut start, mut end) = (item.start, item.end());
        if !self.open.is_small(run.piece) {
            start = (run.offset - run.offset % RANGE_ALIGN).max(item.start);
            end = (run.offset + run.len).next_multiple_of(RANGE_ALIGN);
            end = end.min(item.end());
        }
        let wanted = Run {
            piece: run.piece,
            offset: start,
            len: end - start,
        };
        let (blocks, _cost) = self.ask(wanted).await?;
        self.open.give(&mut self.open.state.lock(), run);
        let blocks = held_blocks(self.file, start, blocks);
        Ok(Cut::joined(cuts(&blocks, run.offset, run.len).collect()))
    }

    /// Requests `run`, and records its cost.
    pub(super) async fn ask(&mut self, run: Run) -> Result<Fetched, Failure> {
        let started = std::time::Instant::now();
        let (blocks, cost) = self.fetch(run).await?;
        let mut state = self.open.state.lock();
        let current = self.open.current(&mut state, run.piece.extent, started);
        current.outcome.cached &= cost.cached;
        current.outcome.charged += cost.charged;
        current.outcome.admitted |= cost.admitted;
        Ok((blocks, cost))
    }

    /// Requests `run`. If storage has other bytes than the manifest, requests them without their hash.
    async fn fetch(&mut self, run: Run) -> Result<Fetched, Failure> {
        let fetched = self.fetch_item(run).await;
        let stale = matches!(&fetched, Err(failure) if failure.kind == FailureKind::Stale);
        if !stale || run.piece.content.is_none() {
            return fetched;
        }
        let piece = Piece {
            content: None,
            ..run.piece
        };
        // If the version is stale, this fails in the same way.
        let fetched = self.fetch_item(Run { piece, ..run }).await?;
        self.open
            .reader
            .outdated(self.open.dataset, &self.file.path);
        Ok(fetched)
    }

    /// Requests `run` from its home, then from the next home, then reads it on this node itself.
    async fn fetch_item(&mut self, run: Run) -> Result<Fetched, Failure> {
        let reader = &self.open.reader;
        let view = reader.view();
        // The view is that of the latest decision, also for files opened before it.
        let slot = self.open.slot_of(run.piece);
        let home = view.home(slot);
        let mut answered = self.fetch_from(home, run).await;
        let unreachable = |answered: &Result<Fetched, Failure>| {
            let failure = answered.as_ref().err();
            failure.is_some_and(|failure| failure.kind == FailureKind::Unavailable)
        };
        // Without a home this node was asked already.
        if home.is_none() || !unreachable(&answered) {
            return answered;
        }
        for next in view.others(slot).into_iter().map(Some).chain([None]) {
            reader.counters.elsewhere.increment();
            if let Err(failure) = &answered {
                tracing::debug!(path = %self.file.path, %failure, "a home cannot be reached");
            }
            answered = self.fetch_from(next, run).await;
            if !unreachable(&answered) {
                break;
            }
        }
        answered
    }

    /// Requests `run` from one node, first with the available tokens, and then with its price.
    async fn fetch_from(&mut self, rank: Option<u32>, run: Run) -> Result<Fetched, Failure> {
        let (reader, tokens) = (&self.open.reader, &self.open.activity.tokens);
        // Without tokens the first request is made without payment, because a hit costs nothing.
        let mut permit = tokens.try_take(run.len);
        for _ in 0..ASKED_MAX {
            let payment = permit.as_ref().map_or(0, Permit::bytes);
            reader.counters.requests.increment();
            let asking = reader
                .homes
                .ask(rank, self.open.request(self.file, run, payment));
            let Ok(answer) = timeout_at(self.until, asking).await else {
                let (path, limit) = (&self.file.path, reader.request_timeout);
                let detail =
                    format!("{path}: the homes of its dataset did not answer within {limit:?}");
                return Err(Failure::new(FailureKind::Io, detail));
            };
            match answer {
                Ok(ItemAnswer::Bytes {
                    blocks,
                    cached,
                    charged,
                    admitted,
                }) => {
                    // Without payment nothing is read from storage.
                    if let Some(permit) = permit {
                        permit.spent(charged);
                    }
                    let cost = ItemOutcome {
                        bytes: run.len,
                        cached,
                        charged,
                        admitted: admitted > 0,
                    };
                    return Ok((blocks, cost));
                }
                Ok(ItemAnswer::Unpaid { cost }) => {
                    if let Some(permit) = permit.take() {
                        permit.spent(0);
                    }
                    reader.counters.unpaid.increment();
                    // The price is at most the item's length, in whole pages. A larger claim could block
                    // the reader forever.
                    let cost = cost.clamp(run.len, STRIPE_BYTES + 2 * RANGE_ALIGN);
                    permit = Some(self.untimed(tokens.take(cost)).await);
                }
                // Storage may have been read nevertheless, so the payment counts as spent.
                Err(failure) => return Err(failure),
            }
        }
        let path = &self.file.path;
        let detail = format!("{path}: its home wants more to be paid for than an item has");
        Err(Failure::new(FailureKind::Corrupt, detail))
    }
}
