//! The limit of concurrent requests to one store: additive increase, multiplicative decrease. Pure.
//!
//! As in TCP, every success raises the limit by one until the store refuses a request for the first time.
//! From then on each round of successes raises it by one, and a refusal halves it. A burst of refusals
//! counts once: refusals of requests that began before the last halving are ignored.

use crate::num::{to_usize, whole};

/// The initial limit.
const START: u32 = 32;
/// The minimum. With one request at a time, even a store that is always overloaded makes progress.
const LEAST: u32 = 1;

/// Counts halvings. A request remembers the round in which it began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) struct Round(u32);

/// See the module.
#[derive(Debug)]
pub(super) struct Aimd {
    limit: f64,
    max: f64,
    /// The store has not refused a request yet, so the limit doubles each round.
    is_starting: bool,
    round: Round,
}

impl Aimd {
    /// A limit that is never above `max`.
    pub(super) fn new(max: usize) -> Self {
        let max = u32::try_from(max).unwrap_or(u32::MAX).max(LEAST);
        Self {
            limit: f64::from(START.min(max)),
            max: f64::from(max),
            is_starting: true,
            round: Round(0),
        }
    }

    /// The current limit.
    pub(super) fn limit(&self) -> usize {
        to_usize(whole(self.limit))
    }

    /// The round of a request that begins now.
    pub(super) fn round(&self) -> Round {
        self.round
    }

    /// A request was answered while `running` requests were running.
    pub(super) fn answered(&mut self, running: usize) {
        // Far below the limit, a success does not show that the store can handle more.
        if running < self.limit().div_ceil(2) {
            return;
        }
        let step = if self.is_starting {
            1.0
        } else {
            1.0 / self.limit
        };
        self.limit = (self.limit + step).min(self.max);
    }

    /// The store refused a request that began in round `began`, because it was overloaded.
    pub(super) fn refused(&mut self, began: Round) {
        // It was sent under a higher limit, which is halved already.
        if began < self.round {
            return;
        }
        self.is_starting = false;
        self.limit = (self.limit / 2.0).max(f64::from(LEAST));
        self.round = Round(self.round.0.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(rule: &mut Aimd, times: usize) {
        for _ in 0..times {
            rule.answered(rule.limit());
        }
    }

    #[test]
    fn successes_raise_the_limit_up_to_the_maximum() {
        let mut rule = Aimd::new(64);
        assert_eq!(rule.limit(), 32);
        answered(&mut rule, 32);
        assert_eq!(rule.limit(), 64, "doubled in one round");
        answered(&mut rule, 1000);
        assert_eq!(rule.limit(), 64);
        assert_eq!(Aimd::new(4).limit(), 4);
        assert_eq!(Aimd::new(0).limit(), 1);
    }

    #[test]
    fn a_burst_of_refusals_halves_once_and_recovery_is_slow() {
        let mut rule = Aimd::new(64);
        let began = rule.round();
        for _ in 0..32 {
            rule.refused(began);
        }
        assert_eq!(rule.limit(), 16);
        answered(&mut rule, 15);
        assert_eq!(rule.limit(), 16, "less than a round");
        answered(&mut rule, 2);
        assert_eq!(rule.limit(), 17, "one a round");
        answered(&mut rule, 3000);
        assert_eq!(rule.limit(), 64, "all of it in the end");
    }

    #[test]
    fn a_store_that_always_refuses_gets_one_request_at_a_time() {
        let mut rule = Aimd::new(64);
        for _ in 0..20 {
            rule.refused(rule.round());
        }
        assert_eq!(rule.limit(), 1);
        answered(&mut rule, 1);
        assert_eq!(rule.limit(), 2);
    }

    #[test]
    fn successes_far_below_the_limit_do_not_raise_it() {
        let mut rule = Aimd::new(64);
        for _ in 0..100 {
            rule.answered(1);
        }
        assert_eq!(rule.limit(), 32);
    }
}
