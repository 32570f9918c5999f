//! Logs refused peers, each reason once.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// Refusals that are remembered, so that each is logged once. When this many are, further ones are not logged.
const REFUSALS_MAX: usize = 256;

/// The refusals that were logged.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashSet<(IpAddr, String)>>);

impl Refusals {
    /// Logs `reason` against `peer`, unless it was logged before.
    pub(crate) fn log(&self, peer: SocketAddr, reason: &str) {
        if self.is_new(peer, reason) {
            tracing::warn!(%peer, reason, "refused a peer");
        }
    }

    fn is_new(&self, peer: SocketAddr, reason: &str) -> bool {
        let mut logged = self.0.lock();
        // A peer that tries again has another port, which may be part of the reason's text.
        let key = (peer.ip(), reason.replace(&peer.to_string(), ""));
        logged.len() < REFUSALS_MAX && logged.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_is_not_logged_again_and_a_flood_is_bounded() {
        let refusals = Refusals::default();
        let peer = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(refusals.is_new(peer(1000), "127.0.0.1:1000 has no secret"));
        assert!(!refusals.is_new(peer(1001), "127.0.0.1:1001 has no secret"));
        assert!(refusals.is_new(peer(1001), "another reason"));
        let logged = (0..10_000)
            .filter(|i| refusals.is_new(peer(1), &i.to_string()))
            .count();
        assert_eq!(logged, REFUSALS_MAX - 2);
    }
}
