//! Limits the connections that have not sent their hello, and shares them between addresses.
//!
//! A first packet costs its sender nothing: it may be a recording, and its source address may be forged. So
//! addresses that are not validated get at most half of the slots, and each of them only a few. Beyond that,
//! an address has to be validated first by QUIC's Retry, which costs a round trip and no state here. The
//! sender of a recording cannot pass it, because the token is bound to the address and the time. A validated
//! address may take up to half of the slots. While slots are plentiful, no validation is requested. Pure: no
//! I/O, no clock.

use crate::transport::host_of;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Connections in handshake or before their hello; further connections are refused.
const PENDING_MAX: usize = 64;
/// Slots for addresses that are not validated; further ones must be validated first.
const UNVALIDATED_MAX: usize = 32;
/// Slots for a single host that is not validated.
const UNVALIDATED_OF_HOST_MAX: usize = 8;
/// Slots for a single host, validated or not; its further connections are refused.
const OF_HOST_MAX: usize = 32;

/// The slots of connections without a hello; see the module.
#[derive(Debug, Default)]
pub(crate) struct Admission(
    /// The slots that are taken, at most [`PENDING_MAX`].
    Mutex<Vec<Arc<Slot>>>,
);

#[derive(Debug)]
struct Slot {
    host: IpAddr,
    validated: AtomicBool,
}

/// The decision on a new connection.
#[derive(Debug)]
pub(super) enum Decision {
    /// Accept it; it holds a slot.
    Accept(PendingConnection),
    /// Validate its address first.
    Validate,
    /// Refuse it: there is no slot.
    Refuse,
}

impl Admission {
    /// Decides on a new connection from `address`, which is `validated` or not.
    pub(super) fn decide(self: &Arc<Self>, address: IpAddr, validated: bool) -> Decision {
        let host = host_of(address);
        let mut taken = self.0.lock();
        let of_host = || taken.iter().filter(|slot| slot.host == host);
        let unvalidated = |slot: &&Arc<Slot>| !slot.validated.load(Ordering::Relaxed);
        if !validated
            && (taken.iter().filter(unvalidated).count() >= UNVALIDATED_MAX
                || of_host().filter(unvalidated).count() >= UNVALIDATED_OF_HOST_MAX)
        {
            return Decision::Validate;
        }
        if taken.len() >= PENDING_MAX || of_host().count() >= OF_HOST_MAX {
            return Decision::Refuse;
        }
        let validated = AtomicBool::new(validated);
        let slot = Arc::new(Slot { host, validated });
        taken.push(Arc::clone(&slot));
        Decision::Accept(PendingConnection {
            admission: Arc::clone(self),
            slot,
        })
    }
}

/// A slot for one connection, freed on drop.
#[derive(Debug)]
pub(super) struct PendingConnection {
    admission: Arc<Admission>,
    slot: Arc<Slot>,
}

impl PendingConnection {
    /// Notes that the handshake has succeeded, which validates the address.
    pub(super) fn validated(&self) {
        self.slot.validated.store(true, Ordering::Relaxed);
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        let mut taken = self.admission.0.lock();
        taken.retain(|slot| !Arc::ptr_eq(slot, &self.slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn accepted(decision: Decision) -> PendingConnection {
        match decision {
            Decision::Accept(pending) => pending,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_validation_is_requested_while_slots_are_plentiful() {
        let admission = Arc::new(Admission::default());
        let inside: Vec<_> = (0..32)
            .map(|host_of| accepted(admission.decide(host(host_of), false)))
            .collect();
        assert!(matches!(
            admission.decide(host(99), false),
            Decision::Validate
        ));
        drop(inside);
        accepted(admission.decide(host(99), false));
        assert!(admission.0.lock().is_empty());
    }

    #[test]
    fn one_unvalidated_host_takes_only_a_few_slots() {
        let admission = Arc::new(Admission::default());
        let accepted_ones: Vec<_> = (0..8)
            .map(|_| accepted(admission.decide(host(1), false)))
            .collect();
        assert!(matches!(
            admission.decide(host(1), false),
            Decision::Validate
        ));
        // Other hosts are not affected, and this host may still be validated.
        drop(accepted(admission.decide(host(2), false)));
        drop(accepted(admission.decide(host(1), true)));
        // A connection counts as validated after its handshake.
        accepted_ones[0].validated();
        accepted_ones[0].validated();
        drop(accepted(admission.decide(host(1), false)));
    }

    #[test]
    fn many_unvalidated_hosts_leave_half_of_the_slots() {
        let admission = Arc::new(Admission::default());
        let unvalidated = (0..255).map(|number| admission.decide(host(number), false));
        let unvalidated: Vec<_> = unvalidated.collect();
        let inside = |decision: &&Decision| matches!(decision, Decision::Accept(_));
        assert_eq!(unvalidated.iter().filter(inside).count(), 32);
        let validated: Vec<_> = (0..33)
            .map(|number| admission.decide(host(number), true))
            .collect();
        assert_eq!(validated.iter().filter(inside).count(), 32);
        assert!(matches!(validated[32], Decision::Refuse));
    }

    #[test]
    fn a_validated_host_takes_at_most_half_of_the_slots() {
        let admission = Arc::new(Admission::default());
        let validated: Vec<_> = (0..64).map(|_| admission.decide(host(1), true)).collect();
        let inside = |decision: &&Decision| matches!(decision, Decision::Accept(_));
        assert_eq!(validated.iter().filter(inside).count(), 32);
        drop(accepted(admission.decide(host(2), true)));
    }
}
