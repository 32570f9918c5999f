//! How many requests may be under way at one store: additive increase, multiplicative decrease. Pure.
//!
//! As TCP does it: every success raises the limit by one until the store refuses for the first time, by
//! one a round from then on, and a refusal halves it. One burst of refusals is one refusal: those whose
//! requests began before the last halving say nothing new.

/// Requests at a time of a store that nothing is known of.
const START: u32 = 32;
/// Fewest requests at a time: with one, a store that is always overloaded still gets on.
const LEAST: u32 = 1;

/// Counts halvings. A request remembers the round in which it began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) struct Round(u32);

/// See the module.
#[derive(Debug)]
pub(super) struct Aimd {
    limit: f64,
    max: f64,
    /// The store has never refused: the limit doubles each round.
    untried: bool,
    round: Round,
}

impl Aimd {
    /// A rule that never allows more than `max` at a time.
    pub(super) fn new(max: usize) -> Self {
        let max = u32::try_from(max).unwrap_or(u32::MAX).max(LEAST);
        Self {
            limit: f64::from(START.min(max)),
            max: f64::from(max),
            untried: true,
            round: Round(0),
        }
    }

    /// Requests that may be under way.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between LEAST and a u32"
    )]
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// For a request that begins now.
    pub(super) fn round(&self) -> Round {
        self.round
    }

    /// A request was answered while `under_way` of them were there. One that leaves most of the room
    /// unused says nothing about more.
    pub(super) fn answered(&mut self, under_way: usize) {
        if under_way < self.limit().div_ceil(2) {
            return;
        }
        let step = if self.untried { 1.0 } else { 1.0 / self.limit };
        self.limit = (self.limit + step).min(self.max);
    }

    /// The store refused a request that began in round `began`, for want of room.
    pub(super) fn refused(&mut self, began: Round) {
        if began < self.round {
            return;
        }
        self.untried = false;
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
    fn a_store_that_answers_is_asked_more_up_to_the_bound() {
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
    fn a_burst_of_refusals_halves_once_and_the_way_back_is_slow() {
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
    fn a_store_that_always_refuses_is_asked_one_by_one() {
        let mut rule = Aimd::new(64);
        for _ in 0..20 {
            rule.refused(rule.round());
        }
        assert_eq!(rule.limit(), 1);
        answered(&mut rule, 1);
        assert_eq!(rule.limit(), 2);
    }

    #[test]
    fn who_asks_little_is_allowed_no_more_for_it() {
        let mut rule = Aimd::new(64);
        for _ in 0..100 {
            rule.answered(1);
        }
        assert_eq!(rule.limit(), 32);
    }
}
