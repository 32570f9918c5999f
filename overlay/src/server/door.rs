//! Limits the connections that have not sent their hello, and shares them between addresses.
//!
//! A first packet costs its sender nothing: it may be a recording, and its source address may be forged. So
//! addresses that are not proven get at most half of the places, and each of them only a few. Beyond that,
//! an address has to be proven first by QUIC's Retry, which costs a round trip and no state here. The
//! sender of a recording cannot prove its address, because the proof is bound to the address and the time.
//! A proven address may take up to half of the places. While there are enough places, no proof is
//! requested. Pure: no I/O, no clock.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Connections in handshake or before their hello; further connections are refused.
const PLACES: usize = 64;
/// Places for addresses that are not proven; further ones must prove their address.
const UNPROVEN_MAX: usize = 32;
/// Places for a single address that is not proven.
const UNPROVEN_OF_ADDRESS: usize = 8;
/// Places for a single address, proven or not; further connections from it are refused.
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

/// The decision on a new connection.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Accept it; it holds this place.
    Enter(Place),
    /// Request a proof of its address first.
    Prove,
    /// Refuse it: there is no place.
    Refuse,
}

impl Door {
    /// Decides on a new connection from `address`, which is `proven` or not.
    pub(super) fn knock(self: &Arc<Self>, address: IpAddr, proven: bool) -> Verdict {
        let address = network_of(address);
        let mut state = self.0.lock();
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
}

impl State {
    fn of(&self, address: IpAddr) -> Count {
        self.by_address.get(&address).copied().unwrap_or_default()
    }
}

/// The part of an address that stands for one host: a /64 network in IPv6, the whole address in IPv4.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// One place, freed on drop.
#[derive(Debug)]
pub(super) struct Place {
    door: Arc<Door>,
    address: IpAddr,
    proven: bool,
}

impl Place {
    /// Marks the address as proven, because the handshake succeeded.
    pub(super) fn prove(&mut self) {
        if !std::mem::replace(&mut self.proven, true) {
            let mut state = self.door.0.lock();
            state.taken.unproven -= 1;
            if let Some(count) = state.by_address.get_mut(&self.address) {
                count.unproven -= 1;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.door.0.lock();
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
        assert!(door.0.lock().by_address.is_empty());
        assert_eq!(door.0.lock().taken, Count::default());
    }

    #[test]
    fn one_address_without_a_proof_takes_a_few_places_only() {
        let door = Arc::new(Door::default());
        let mut inside: Vec<_> = (0..8)
            .map(|_| entered(door.knock(host(1), false)))
            .collect();
        assert!(matches!(door.knock(host(1), false), Verdict::Prove));
        // Other addresses are not affected, and this address may still prove itself.
        drop(entered(door.knock(host(2), false)));
        drop(entered(door.knock(host(1), true)));
        // A connection counts as proven after its handshake.
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
