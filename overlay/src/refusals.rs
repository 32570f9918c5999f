//! Refused peers in the log.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// Refusals that are remembered so as to be logged once; when full, further ones are not logged.
const REFUSALS_MAX: usize = 256;

/// Remembers which refusals were logged.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashSet<(IpAddr, String)>>);

impl Refusals {
    /// Logs `reason` against `peer`, the first time.
    pub(crate) fn log(&self, peer: SocketAddr, reason: &str) {
        if self.is_news(peer, reason) {
            tracing::warn!(%peer, reason, "refused a peer");
        }
    }

    fn is_news(&self, peer: SocketAddr, reason: &str) -> bool {
        let mut seen = self.0.lock();
        // The port of a peer that tries again is another one, and part of the reason's text.
        let key = (peer.ip(), reason.replace(&peer.to_string(), ""));
        seen.len() < REFUSALS_MAX && seen.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_tries_again_is_not_news_and_a_flood_is_not_logged() {
        let refusals = Refusals::default();
        let peer = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(refusals.is_news(peer(1000), "127.0.0.1:1000 has no secret"));
        assert!(!refusals.is_news(peer(1001), "127.0.0.1:1001 has no secret"));
        assert!(refusals.is_news(peer(1001), "another reason"));
        let logged = (0..10_000)
            .filter(|i| refusals.is_news(peer(1), &i.to_string()))
            .count();
        assert_eq!(logged, REFUSALS_MAX - 2);
    }
}
