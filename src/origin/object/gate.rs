//! Limits the concurrent requests to one store.
//!
//! Every request waits for a [`Permit`] first. [`Aimd`] sets their number, from the results of all attempts
//! that the HTTP client reports: `object_store` repeats a refused request itself, with a jittered backoff,
//! and holds the permit meanwhile, so that no other request takes its place.
//!
//! Requests that a reader waits for go before prefetching. The queues have no bound of their own: the caller
//! of each waiting request bounds their number (flights, bundles, batches of names).

use super::aimd::{Aimd, Round};
use object_store::client::{HttpError, HttpErrorKind};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// The priority of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Priority {
    /// A reader waits for the answer.
    Demand,
    /// No reader has requested it yet.
    Prefetch,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Gate {
    /// Locked for a few steps, never across an await.
    state: Mutex<GateState>,
    throttled: AtomicU64,
}

#[derive(Debug)]
struct GateState {
    limit: Aimd,
    running: usize,
    demand: VecDeque<oneshot::Sender<Permit>>,
    prefetch: VecDeque<oneshot::Sender<Permit>>,
}

/// The right to run one request, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<Gate>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.admit();
    }
}

impl Gate {
    /// A gate that never grants more than `max` permits at a time.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(GateState {
                limit: Aimd::new(max),
                running: 0,
                demand: VecDeque::new(),
                prefetch: VecDeque::new(),
            }),
            throttled: AtomicU64::new(0),
        })
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub(super) async fn enter(self: &Arc<Self>, priority: Priority) -> Permit {
        let waiting = {
            let mut state = self.state.lock();
            if state.running < state.limit.limit() {
                state.running += 1;
                return Permit(Arc::clone(self));
            }
            let (sender, waiting) = oneshot::channel();
            match priority {
                Priority::Demand => state.demand.push_back(sender),
                Priority::Prefetch => state.prefetch.push_back(sender),
            }
            waiting
        };
        match waiting.await {
            Ok(permit) => permit,
            // Cannot happen: the gate, which this future holds, keeps the sender until it sends.
            Err(_closed) => {
                self.state.lock().running += 1;
                Permit(Arc::clone(self))
            }
        }
    }

    /// Grants permits to waiting requests up to the limit.
    fn admit(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.running >= state.limit.limit() {
                    return;
                }
                let next = state.demand.pop_front();
                let Some(next) = next.or_else(|| state.prefetch.pop_front()) else {
                    return;
                };
                // The waiting request was cancelled.
                if next.is_closed() {
                    continue;
                }
                state.running += 1;
                next
            };
            // A request that is cancelled meanwhile returns the permit by dropping it, which locks the state.
            drop(next.send(Permit(Arc::clone(self))));
        }
    }

    /// The round of an attempt that begins now.
    pub(super) fn round(&self) -> Round {
        self.state.lock().limit.round()
    }

    /// An attempt that began in round `began` was answered with `status`.
    pub(super) fn answered(self: &Arc<Self>, began: Round, status: u16) {
        if is_refusal(status) {
            self.refused(began);
            return;
        }
        let mut state = self.state.lock();
        let running = state.running;
        state.limit.answered(running);
        drop(state);
        self.admit();
    }

    /// An attempt that began in round `began` got no answer.
    pub(super) fn failed(&self, began: Round, error: &HttpError) {
        if matches!(error.kind(), HttpErrorKind::Timeout) {
            self.refused(began);
        }
    }

    fn refused(&self, began: Round) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        self.state.lock().limit.refused(began);
    }

    /// Attempts that the store refused or did not answer in time.
    pub(super) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// The current limit of concurrent requests.
    pub(super) fn limit(&self) -> usize {
        self.state.lock().limit.limit()
    }
}

/// Whether a status means that the store is overloaded: S3 uses 503 ("slow down"), others 429. 408 and 504 are
/// time-outs that the server noticed first.
fn is_refusal(status: u16) -> bool {
    matches!(status, 408 | 429 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn demand_goes_before_prefetching_up_to_the_limit() {
        let gate = Gate::new(2);
        let (first, second) = (
            gate.enter(Priority::Prefetch).await,
            gate.enter(Priority::Prefetch).await,
        );
        let mut ahead = Box::pin(gate.enter(Priority::Prefetch));
        let mut demand = Box::pin(gate.enter(Priority::Demand));
        assert!(ahead.as_mut().now_or_never().is_none());
        assert!(demand.as_mut().now_or_never().is_none());
        drop(first);
        assert!(ahead.as_mut().now_or_never().is_none());
        let third = demand.as_mut().now_or_never().expect("its turn");
        drop((second, third));
        assert!(ahead.now_or_never().is_some());
        assert_eq!(gate.state.lock().running, 0);
    }

    #[tokio::test]
    async fn cancelled_requests_release_their_permits() {
        let gate = Gate::new(1);
        let first = gate.enter(Priority::Demand).await;
        let mut waiting: Vec<_> = (0..3)
            .map(|_| Box::pin(gate.enter(Priority::Demand)))
            .collect();
        for wait in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        drop(waiting.remove(0));
        // One is cancelled after its permit was sent and before it was polled.
        drop(first);
        drop(waiting.remove(0));
        assert!(waiting.remove(0).now_or_never().is_some());
        assert_eq!(gate.state.lock().running, 0);
    }

    #[tokio::test]
    async fn refusals_lower_the_limit_and_answers_raise_it() {
        let gate = Gate::new(64);
        let permits: Vec<_> =
            futures_util::future::join_all((0..32).map(|_| gate.enter(Priority::Demand))).await;
        let began = gate.round();
        for _ in 0..32 {
            gate.answered(began, 503);
        }
        assert_eq!((gate.limit(), gate.throttled()), (16, 32));
        let mut waiting = Box::pin(gate.enter(Priority::Demand));
        assert!(waiting.as_mut().now_or_never().is_none());
        let began = gate.round();
        for _ in 0..300 {
            gate.answered(began, 200);
        }
        assert!(gate.limit() > 24);
        drop(permits);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn only_overload_is_a_refusal() {
        for status in [408, 429, 503, 504] {
            assert!(is_refusal(status));
        }
        for status in [200, 206, 304, 403, 404, 412, 416, 500] {
            assert!(!is_refusal(status));
        }
    }
}
