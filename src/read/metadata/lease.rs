//! Leases: how long metadata may be used.
//!
//! A root's lease has the configured length and begins before the root asks storage. A node that asks another
//! node receives the remainder of that node's lease and counts it from before its own question. So metadata
//! is used no longer than configured after storage was asked, whatever the depth of the tree.

use copperfs_overlay::{Leased, shorter};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A child's answer has at least one part in this many of the lease left; metadata with less is renewed
/// first. Otherwise the lease of every node on the way up would end a moment after that of the node below,
/// and a busy leaf would ask once for each of them.
const CHILD_SHARE: u32 = 16;

/// The minimum remainder of a lease for a child, for leases of `length`.
pub(super) fn least_for_child(length: Option<Duration>) -> Duration {
    length.map_or(Duration::ZERO, |length| length / CHILD_SHARE)
}

/// The end of a lease; `None`: when the metadata is cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lease(Option<Instant>);

impl Lease {
    /// A lease that ends when the metadata is cleared.
    #[cfg(test)]
    pub(super) const LASTING: Self = Self(None);

    /// A lease that has ended.
    pub(super) fn over() -> Self {
        Self(Some(Instant::now()))
    }

    /// The lease of an answer to a question asked at `asked`: the shorter of `rule`, the configured length, and
    /// `given`, the remainder of the answering node's lease.
    pub(super) fn granted(asked: Instant, rule: Option<Duration>, given: Option<Duration>) -> Self {
        Self(shorter(rule, given).and_then(|length| asked.checked_add(length)))
    }

    /// The remaining time; `None`: until the metadata is cleared.
    pub(super) fn remaining(self) -> Option<Duration> {
        self.0
            .map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Whether more than `least` remains.
    pub(super) fn holds_for(self, least: Duration) -> bool {
        self.remaining().is_none_or(|remaining| remaining > least)
    }

    /// The lease that ends first.
    pub(super) fn shorter(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (one, another) => Self(one.or(another)),
        }
    }
}

/// A value, and the lease under which it may be used.
#[derive(Clone, Debug)]
pub struct Cached<T> {
    /// The value.
    pub value: T,
    pub(super) lease: Lease,
}

impl<T> Cached<T> {
    /// The value with the remainder of its lease, for which the clock is read.
    #[must_use]
    pub fn leased(self) -> Leased<T> {
        Leased {
            value: self.value,
            lease: self.lease.remaining(),
        }
    }
}

/// A lease that can be renewed while it is read.
#[derive(Debug)]
pub(super) struct Term {
    begun: Instant,
    /// In ms after `begun`, rounded down; [`LASTING`]: until it is cleared.
    until_ms: AtomicU64,
}

const LASTING: u64 = u64::MAX;

impl Term {
    pub(super) fn new(lease: Lease) -> Self {
        let term = Self {
            begun: Instant::now(),
            until_ms: AtomicU64::new(0),
        };
        term.renew(lease);
        term
    }

    pub(super) fn renew(&self, lease: Lease) {
        let until_ms = lease.0.map_or(LASTING, |until| {
            let after = until.saturating_duration_since(self.begun).as_millis();
            u64::try_from(after).unwrap_or(LASTING)
        });
        self.until_ms.store(until_ms, Ordering::Release);
    }

    pub(super) fn lease(&self) -> Lease {
        match self.until_ms() {
            LASTING => Lease(None),
            ms => Lease(self.begun.checked_add(Duration::from_millis(ms))),
        }
    }

    /// Differs after every renewal but those within one millisecond.
    pub(super) fn until_ms(&self) -> u64 {
        self.until_ms.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_the_shorter_of_rule_and_grant_from_the_question_on() {
        let asked = Instant::now();
        let (long, short) = (Duration::from_secs(60), Duration::from_secs(5));
        let of = |rule, given| Lease::granted(asked, rule, given).0;
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some(long), None), Some(asked + long));
        assert_eq!(of(Some(long), Some(short)), Some(asked + short));
        assert_eq!(of(Some(short), Some(long)), Some(asked + short));
        assert_eq!(of(None, Some(short)), Some(asked + short));
        assert_eq!(of(Some(Duration::MAX), None), None, "for ever");
    }

    #[test]
    fn a_term_ends_and_can_be_renewed() {
        let asked = Instant::now();
        let over = Lease::granted(asked, Some(Duration::ZERO), None);
        let term = Term::new(over);
        assert!(!term.lease().holds_for(Duration::ZERO));
        assert_eq!(term.lease().remaining(), Some(Duration::ZERO));
        let before = term.until_ms();
        let minute = Duration::from_secs(60);
        term.renew(Lease::granted(asked, Some(minute), None));
        assert_ne!(term.until_ms(), before);
        assert!(term.lease().holds_for(least_for_child(Some(minute))));
        assert!(!term.lease().holds_for(minute));
        assert!(term.lease().remaining() <= Some(minute));
        term.renew(Lease::LASTING);
        assert_eq!(term.lease().remaining(), None);
    }

    #[test]
    fn of_two_leases_the_one_that_ends_first_counts() {
        let asked = Instant::now();
        let of = |seconds| Lease::granted(asked, Some(Duration::from_secs(seconds)), None);
        assert_eq!(of(3).shorter(of(2)), of(2));
        assert_eq!(of(3).shorter(Lease::LASTING), of(3));
        assert_eq!(Lease::LASTING.shorter(Lease::LASTING), Lease::LASTING);
    }
}
