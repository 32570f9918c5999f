//! The way to one store: who may send now, and who waits.
//!
//! Every request takes a [`Permit`] first. How many there are is [`Aimd`]'s to say, from what the HTTP
//! client reports of every attempt: `object_store` repeats a refused request itself, with a jittered
//! backoff and the permit in hand, so nobody else goes in its place meanwhile.
//!
//! What somebody waits for goes before what is fetched ahead. The queues have no bound of their own:
//! each who waits is a request that its asker has bounded (flights, bundles, batches of names).

use super::aimd::{Aimd, Round};
use object_store::client::{HttpError, HttpErrorKind};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Somebody waits for the answer.
    Demand,
    /// Nobody has asked for it yet.
    Ahead,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Gate {
    /// Held for a few steps, never across an await.
    state: Mutex<State>,
    throttled: AtomicU64,
}

#[derive(Debug)]
struct State {
    rule: Aimd,
    under_way: usize,
    demand: VecDeque<oneshot::Sender<Permit>>,
    ahead: VecDeque<oneshot::Sender<Permit>>,
}

/// The right to have one request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<Gate>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.admit();
    }
}

impl Gate {
    /// A gate that never lets more than `max` through.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                rule: Aimd::new(max),
                under_way: 0,
                demand: VecDeque::new(),
                ahead: VecDeque::new(),
            }),
            throttled: AtomicU64::new(0),
        })
    }

    /// Waits for a permit. Dropping the future gives the place up.
    pub(super) async fn enter(self: &Arc<Self>, turn: Turn) -> Permit {
        let waiting = {
            let mut state = self.state.lock();
            if state.under_way < state.rule.limit() {
                state.under_way += 1;
                return Permit(Arc::clone(self));
            }
            let (sender, waiting) = oneshot::channel();
            match turn {
                Turn::Demand => state.demand.push_back(sender),
                Turn::Ahead => state.ahead.push_back(sender),
            }
            waiting
        };
        match waiting.await {
            Ok(permit) => permit,
            // The gate holds the sender until it sends, and we hold the gate.
            Err(_gone) => {
                self.state.lock().under_way += 1;
                Permit(Arc::clone(self))
            }
        }
    }

    /// Lets in those for whom there is room.
    fn admit(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state.lock();
                if state.under_way >= state.rule.limit() {
                    return;
                }
                let next = state.demand.pop_front();
                let Some(next) = next.or_else(|| state.ahead.pop_front()) else {
                    return;
                };
                if next.is_closed() {
                    continue;
                }
                state.under_way += 1;
                next
            };
            // One who has left meanwhile gives the permit back by dropping it.
            drop(next.send(Permit(Arc::clone(self))));
        }
    }

    /// For an attempt that begins now.
    pub(super) fn round(&self) -> Round {
        self.state.lock().rule.round()
    }

    /// An attempt that began in round `began` was answered with `status`.
    pub(super) fn answered(self: &Arc<Self>, began: Round, status: u16) {
        if is_refusal(status) {
            self.refused(began);
            return;
        }
        let mut state = self.state.lock();
        let under_way = state.under_way;
        state.rule.answered(under_way);
        drop(state);
        self.admit();
    }

    /// An attempt that began in round `began` brought no answer.
    pub(super) fn failed(&self, began: Round, error: &HttpError) {
        if matches!(error.kind(), HttpErrorKind::Timeout) {
            self.refused(began);
        }
    }

    fn refused(&self, began: Round) {
        self.throttled.fetch_add(1, Ordering::Relaxed);
        self.state.lock().rule.refused(began);
    }

    /// Attempts that the store refused or did not answer in time.
    pub(super) fn throttled(&self) -> u64 {
        self.throttled.load(Ordering::Relaxed)
    }

    /// Requests that may be under way now.
    pub(super) fn limit(&self) -> usize {
        self.state.lock().rule.limit()
    }
}

/// Whether a status says that the store has too much to do: S3's "slow down" is 503, others say 429;
/// 408 and 504 are time-outs that the server noticed first.
fn is_refusal(status: u16) -> bool {
    matches!(status, 408 | 429 | 503 | 504)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn no_more_than_the_limit_and_demand_goes_first() {
        let gate = Gate::new(2);
        let (first, second) = (gate.enter(Turn::Ahead).await, gate.enter(Turn::Ahead).await);
        let mut ahead = Box::pin(gate.enter(Turn::Ahead));
        let mut demand = Box::pin(gate.enter(Turn::Demand));
        assert!(ahead.as_mut().now_or_never().is_none());
        assert!(demand.as_mut().now_or_never().is_none());
        drop(first);
        assert!(ahead.as_mut().now_or_never().is_none());
        let third = demand.as_mut().now_or_never().expect("its turn");
        drop((second, third));
        assert!(ahead.now_or_never().is_some());
        assert_eq!(gate.state.lock().under_way, 0);
    }

    #[tokio::test]
    async fn those_who_leave_take_no_place_with_them() {
        let gate = Gate::new(1);
        let first = gate.enter(Turn::Demand).await;
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(gate.enter(Turn::Demand))).collect();
        for wait in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        drop(waiting.remove(0));
        // One leaves after its permit was sent and before it saw it.
        drop(first);
        drop(waiting.remove(0));
        assert!(waiting.remove(0).now_or_never().is_some());
        assert_eq!(gate.state.lock().under_way, 0);
    }

    #[tokio::test]
    async fn refusals_close_the_gate_and_answers_open_it() {
        let gate = Gate::new(64);
        let permits: Vec<_> =
            futures_util::future::join_all((0..32).map(|_| gate.enter(Turn::Demand))).await;
        let began = gate.round();
        for _ in 0..32 {
            gate.answered(began, 503);
        }
        assert_eq!((gate.limit(), gate.throttled()), (16, 32));
        let mut waiting = Box::pin(gate.enter(Turn::Demand));
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
    fn only_want_of_room_is_a_refusal() {
        for status in [408, 429, 503, 504] {
            assert!(is_refusal(status));
        }
        for status in [200, 206, 304, 403, 404, 412, 416, 500] {
            assert!(!is_refusal(status));
        }
    }
}
