//! The places for those who have not said hello yet: few, and shared out so that nobody takes them all.
//!
//! A first packet costs its sender nothing: it may be a recording, and its source address made up. So
//! those whose address is not proven get half of the places, and a few for each address; others have to
//! prove theirs first (QUIC's Retry: a round trip, and nothing here is remembered for it). A recording
//! cannot, since the proof is bound to address and time. Proven addresses may take up to half of the
//! places each. As long as places are plenty nobody is asked for a proof. Pure: no I/O, no clock.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections in handshake or before their hello; further ones are refused unheard.
const PLACES: usize = 64;
/// Of these, for addresses that are not proven; all the others that come must prove theirs.
const UNPROVEN_MAX: usize = 32;
/// Of these, for one address.
const UNPROVEN_OF_ADDRESS: usize = 8;
/// Places of one address, proven or not; further connections from it are refused unheard.
const OF_ADDRESS: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Door(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    taken: Count,
    /// By address. Bounded by the places.
    by_address: HashMap<IpAddr, Count>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count {
    all: usize,
    unproven: usize,
}

impl Count {
    fn add(&mut self, proven: bool) {
        self.all += 1;
        self.unproven += usize::from(!proven);
    }

    fn subtract(&mut self, proven: bool) {
        self.all -= 1;
        self.unproven -= usize::from(!proven);
    }
}

/// What is done about one who knocks.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Comes in.
    Enter(Place),
    /// Must prove its address first.
    Prove,
    /// There is no place.
    Refuse,
}

impl Door {
    /// A connection from `address` begins, which is `proven` or not.
    pub(super) fn knock(self: &Arc<Self>, address: IpAddr, proven: bool) -> Verdict {
        let address = network_of(address);
        let mut state = self.lock();
        let (taken, of_address) = (state.taken, state.of(address));
        if !proven && (taken.unproven >= UNPROVEN_MAX || of_address.unproven >= UNPROVEN_OF_ADDRESS)
        {
            return Verdict::Prove;
        }
        if taken.all >= PLACES || of_address.all >= OF_ADDRESS {
            return Verdict::Refuse;
        }
        state.taken.add(proven);
        state.by_address.entry(address).or_default().add(proven);
        Verdict::Enter(Place {
            door: Arc::clone(self),
            address,
            proven,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&self, address: IpAddr) -> Count {
        self.by_address.get(&address).copied().unwrap_or_default()
    }
}

/// One address in IPv4; in IPv6 a host has a network of 64 bits to choose from.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// A place inside, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    door: Arc<Door>,
    address: IpAddr,
    proven: bool,
}

impl Place {
    /// The address is proven now: the handshake went through.
    pub(super) fn prove(&mut self) {
        if !std::mem::replace(&mut self.proven, true) {
            let mut state = self.door.lock();
            state.taken.unproven -= 1;
            if let Some(count) = state.by_address.get_mut(&self.address) {
                count.unproven -= 1;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.door.lock();
        state.taken.subtract(self.proven);
        if let Some(count) = state.by_address.get_mut(&self.address) {
            count.subtract(self.proven);
            if count.all == 0 {
                state.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn entered(verdict: Verdict) -> Place {
        match verdict {
            Verdict::Enter(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn as_long_as_places_are_plenty_nobody_has_to_prove_anything() {
        let door = Arc::new(Door::default());
        let inside: Vec<_> = (0..32)
            .map(|host_of| entered(door.knock(host(host_of), false)))
            .collect();
        assert!(matches!(door.knock(host(99), false), Verdict::Prove));
        drop(inside);
        entered(door.knock(host(99), false));
        assert!(door.lock().by_address.is_empty());
        assert_eq!(door.lock().taken, Count::default());
    }

    #[test]
    fn one_address_without_a_proof_takes_a_few_places_only() {
        let door = Arc::new(Door::default());
        let mut inside: Vec<_> = (0..8)
            .map(|_| entered(door.knock(host(1), false)))
            .collect();
        assert!(matches!(door.knock(host(1), false), Verdict::Prove));
        // Others notice nothing, and it may still prove itself.
        drop(entered(door.knock(host(2), false)));
        drop(entered(door.knock(host(1), true)));
        // One whose handshake went through counts as proven.
        inside[0].prove();
        inside[0].prove();
        drop(entered(door.knock(host(1), false)));
    }

    #[test]
    fn many_addresses_without_a_proof_leave_half_of_the_places() {
        let door = Arc::new(Door::default());
        let unproven = (0..255).map(|number| door.knock(host(number), false));
        let unproven: Vec<_> = unproven.collect();
        let inside = |verdict: &&Verdict| matches!(verdict, Verdict::Enter(_));
        assert_eq!(unproven.iter().filter(inside).count(), 32);
        let proven: Vec<_> = (0..33)
            .map(|number| door.knock(host(number), true))
            .collect();
        assert_eq!(proven.iter().filter(inside).count(), 32);
        assert!(matches!(proven[32], Verdict::Refuse));
    }

    #[test]
    fn a_proven_address_takes_half_of_the_places_at_most() {
        let door = Arc::new(Door::default());
        let proven: Vec<_> = (0..64).map(|_| door.knock(host(1), true)).collect();
        let inside = |verdict: &&Verdict| matches!(verdict, Verdict::Enter(_));
        assert_eq!(proven.iter().filter(inside).count(), 32);
        drop(entered(door.knock(host(2), true)));
    }

    #[test]
    fn addresses_of_one_network_are_one() {
        let parse = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:2"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), host(1));
        assert_ne!(parse("10.0.0.2"), host(1));
    }
}
