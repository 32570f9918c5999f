//! Waiting for tokens, first come first served.

use super::bucket::{Bucket, RateLimit, Wait};
use crate::job::meter::Busy;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};

/// A job's tokens on this node, for any number of readers.
///
/// Locks: `state` (bucket and meter) is held for a few instructions, never across an await. `turn`
/// is whose turn it is to wait for the bucket; tokio hands it on in the order of the calls.
#[derive(Debug)]
pub struct Tokens {
    state: Mutex<State>,
    turn: Semaphore,
    /// The rate has changed, or something was given back.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    /// When at least one reader waited.
    waiting: Busy,
}

impl Tokens {
    /// Tokens at `limit` from now on.
    #[must_use]
    pub fn new(limit: RateLimit) -> Arc<Self> {
        let now = now();
        Arc::new(Self {
            state: Mutex::new(State {
                bucket: Bucket::new(limit, now),
                waiting: Busy::new(now),
            }),
            turn: Semaphore::new(1),
            changed: Notify::new(),
        })
    }

    /// Waits for leave to spend `bytes`.
    ///
    /// Readers are served in the order of their calls. Cancellation: dropping the future gives up its
    /// place and takes nothing. With a rate of 0 it waits for the next change.
    pub async fn take(self: &Arc<Self>, bytes: u64) -> Permit {
        if let Some(permit) = self.try_take(bytes) {
            return permit;
        }
        let _counted = Counted::new(self);
        // Never closed; were it, nobody would have to wait.
        let _turn = self.turn.acquire().await;
        loop {
            // Before the look at the bucket: a change in between is not missed.
            let changed = self.changed.notified();
            let taken = self.state.lock().bucket.try_take(bytes, now());
            match taken {
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

    /// Leave to spend `bytes` now. `None` if there are no tokens, or others wait for them.
    #[must_use]
    pub fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let _turn = self.turn.try_acquire().ok()?;
        let taken = self.state.lock().bucket.try_take(bytes, now());
        taken.is_ok().then(|| self.permit(bytes))
    }

    /// Another rate, at once, also for those who wait.
    pub fn set_limit(&self, limit: RateLimit) {
        self.state.lock().bucket.set_limit(limit, now());
        self.changed.notify_waiters();
    }

    /// The rate.
    #[must_use]
    pub fn limit(&self) -> RateLimit {
        self.state.lock().bucket.limit()
    }

    /// For how long, all in all, at least one reader has waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.state.lock().waiting.total(now())
    }

    fn permit(self: &Arc<Self>, bytes: u64) -> Permit {
        Permit {
            tokens: Arc::clone(self),
            bytes,
        }
    }
}

/// Leave to spend some bytes. Dropped without a word, all of it counts as spent: whoever gave up
/// does not know what the home has read meanwhile, and the cap must hold.
#[derive(Debug)]
#[must_use = "what is not spent is to be given back"]
pub struct Permit {
    tokens: Arc<Tokens>,
    bytes: u64,
}

impl Permit {
    /// How much may be spent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// `bytes` were spent: what is left goes back, and what was spent beyond is owed.
    pub fn spent(self, bytes: u64) {
        let mut state = self.tokens.state.lock();
        if bytes > self.bytes {
            state.bucket.charge(bytes - self.bytes, now());
        } else if bytes < self.bytes {
            state.bucket.refund(self.bytes - bytes, now());
            drop(state);
            self.tokens.changed.notify_waiters();
        }
    }
}

/// A reader that waits, for as long as this lives.
struct Counted<'a>(&'a Tokens);

impl<'a> Counted<'a> {
    fn new(tokens: &'a Tokens) -> Self {
        tokens.state.lock().waiting.begin(now());
        Self(tokens)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting.end(now());
    }
}

/// tokio's clock, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
