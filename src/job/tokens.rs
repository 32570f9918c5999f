//! Remote-IO tokens: the limit on a job's reads from storage on this node (SiloD §6: a job's remote
//! IO is throttled where its data is fetched).
//!
//! [`Bucket`] is the pure arithmetic, and [`Tokens`] lets readers wait for it in the order of their
//! calls. One byte from storage costs one token. A bucket collects at most [`BURST`] of its rate
//! (or [`BURST_LEAST`], if that is more), and goes into debt by at most one take. So an item that
//! is larger than the burst still passes, the long-run rate is exact, and in any window at most
//! `burst + rate × window + one item` passes.
//!
//! Neighbours: decisions set the rate ([`super::activity`]). The dataset's reader takes tokens
//! before it lets a home read from storage, and returns the tokens that the home did not spend.

mod bucket;
#[cfg(test)]
mod tests;

pub use bucket::{BURST, BURST_LEAST, Bucket, Wait};

use super::journaled::{JobJournal, Record, TokensLeft};
use super::meter::Busy;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// A job's tokens on this node, for any number of readers.
///
/// Locks: `state` (bucket and meter) is held for a few instructions, never across an await. The
/// holder of `turn` waits for the bucket; tokio passes it on in the order of calls.
#[derive(Debug)]
pub struct Tokens {
    state: Mutex<TokenState>,
    turn: Semaphore,
    /// Notified when the rate changes or tokens are returned.
    changed: Notify,
    journal: Option<JobJournal>,
}

#[derive(Debug)]
struct TokenState {
    bucket: Bucket,
    /// The most that was ever taken at once.
    largest: u64,
    /// Measures the time with at least one waiting reader.
    waiting: Busy,
}

impl Tokens {
    /// Creates tokens with the given limit, in bytes per second.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self::beginning(Bucket::new(limit, now()), 0, None))
    }

    /// Creates tokens without a limit whose state `journal` keeps.
    pub(super) fn journaled(journal: JobJournal) -> Self {
        Self::beginning(Bucket::new(None, now()), 0, Some(journal))
    }

    /// Continues the tokens of a daemon that has left `left`. It may have been killed just after the largest take, so
    /// they begin with the debt of one. So the limit holds across daemons.
    pub(super) fn resumed(journal: JobJournal, left: TokensLeft) -> Self {
        let bucket = Bucket::resumed(left, &journal.clock, now());
        Self::beginning(bucket, left.largest, Some(journal))
    }

    fn beginning(bucket: Bucket, largest: u64, journal: Option<JobJournal>) -> Self {
        Self {
            state: Mutex::new(TokenState {
                bucket,
                largest,
                waiting: Busy::new(now()),
            }),
            turn: Semaphore::new(1),
            changed: Notify::new(),
            journal,
        }
    }

    /// Waits for a permit to spend `bytes`.
    ///
    /// Readers are served in the order of their calls. Dropping the future gives up its turn and
    /// takes nothing. With a rate of 0 it waits for the next change.
    pub async fn take(self: &Arc<Self>, bytes: u64) -> Permit {
        if let Some(permit) = self.try_take(bytes) {
            return permit;
        }
        // Count the wait from here, including the time until it is this reader's turn.
        self.state.lock().waiting.begin(now());
        let _waiting = WaitGuard(self);
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        loop {
            // Register before the bucket is examined, so that a change in between is not missed.
            let changed = self.changed.notified();
            match self.try_pay(bytes) {
                Ok(()) => return self.permit(bytes),
                Err(Wait::Change) => changed.await,
                Err(Wait::Until(then)) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(then.into()) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Returns a permit to spend `bytes` now. `None` if there are no tokens, or if other readers
    /// wait.
    #[must_use]
    pub fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        // Fails if another reader waits, so that readers are not overtaken.
        let _turn = self.turn.try_acquire().ok()?;
        let taken = self.try_pay(bytes);
        taken.is_ok().then(|| self.permit(bytes))
    }

    fn try_pay(&self, bytes: u64) -> Result<(), Wait> {
        let mut state = self.state.lock();
        state.bucket.try_take(bytes, now())?;
        if bytes > state.largest && state.bucket.limit.is_some() {
            state.largest = bytes;
            // Before storage is read. The largest take of a job is soon known.
            self.tell(&state);
        }
        Ok(())
    }

    /// Tells the journal the tokens that are left.
    fn tell(&self, state: &TokenState) {
        if let Some(journal) = &self.journal {
            journal.commit(&state.record(journal));
        }
    }

    /// Tells the journal of the tokens, for its snapshot.
    pub(super) fn save(&self) {
        if let Some(journal) = &self.journal {
            journal.put_saved(&self.state.lock().record(journal));
        }
    }

    /// Takes tokens for bytes that were read already. The debt is paid before the next read.
    pub fn charge(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.bucket.charge(bytes, now());
        self.tell(&state);
    }

    /// Changes the rate at once, also for waiting readers.
    pub fn set_limit(&self, limit: Option<u64>) {
        let mut state = self.state.lock();
        state.bucket.set_limit(limit, now());
        // A smaller debt is known from the largest take alone.
        if state.bucket.owed() > state.largest {
            self.tell(&state);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns the rate.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.state.lock().bucket.limit
    }

    /// Returns the total time during which at least one reader waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.state.lock().waiting.total(now())
    }

    fn permit(self: &Arc<Self>, bytes: u64) -> Permit {
        let tokens = Arc::clone(self);
        Permit { tokens, bytes }
    }
}

impl TokenState {
    fn record(&self, journal: &JobJournal) -> Record<'static> {
        let left = TokensLeft {
            largest: self.largest,
            owed: self.bucket.owed(),
            at: journal.clock.ms(self.bucket.at),
            limit: self.bucket.limit,
        };
        let id = journal.id;
        Record::Tokens { id, left }
    }
}

/// A permit to spend bytes. If it is dropped, all of it counts as spent: the cancelled reader does
/// not know how much the home has read meanwhile, and the limit must hold.
#[derive(Debug)]
#[must_use = "what is not spent is to be given back"]
pub struct Permit {
    tokens: Arc<Tokens>,
    bytes: u64,
}

impl Permit {
    /// Returns the permitted number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records that `bytes` were spent. Returns the rest to the bucket, or takes what was spent
    /// beyond the permit.
    pub fn spent(self, bytes: u64) {
        let mut state = self.tokens.state.lock();
        if bytes > self.bytes {
            state.bucket.charge(bytes - self.bytes, now());
            self.tokens.tell(&state);
        } else if bytes < self.bytes {
            state.bucket.refund(self.bytes - bytes, now());
            drop(state);
            self.tokens.changed.notify_waiters();
        }
    }
}

/// Counts a waiting reader until it is dropped.
struct WaitGuard<'a>(&'a Tokens);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting.end(now());
    }
}

/// tokio's clock, which tests may pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
