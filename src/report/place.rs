//! The connections of a node in its report: its link in each tree, and the number of its children.
//!
//! Reports of other nodes are parsed leniently and are not trusted: numbers may refer to nodes that do not exist,
//! and texts may contain any characters.

use crate::origin::HangingCalls;
use crate::pressure::Shortage;
use copperfs_overlay::{LinkReport, LinkStatus};
use serde::{Deserialize, Serialize};

/// Longest reason in a report, in bytes: 64 trees of them fit a report of 64 KiB, however JSON has to
/// quote them.
const REASON_BYTES_MAX: usize = 200;

/// The state of a node's link in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// An ancestor has accepted it.
    Connected,
    /// It is looking for one.
    Connecting,
    /// None can be reached.
    Stranded,
    /// It is leaving.
    Stopped,
}

/// A node's link in a tree of which it is not the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Which tree.
    pub tree: usize,
    /// Rank of the parent by the list.
    pub home: usize,
    /// Rank of the ancestor that it is connected to.
    pub using: Option<usize>,
    /// The state of the link.
    pub state: LinkState,
    /// Why it is not connected, if known.
    pub reason: Option<String>,
    /// How long it has been in this state, in milliseconds.
    pub since_ms: u64,
    /// The connection's smoothed round trip in microseconds.
    pub round_trip_us: Option<u64>,
    /// How often it has moved to another ancestor than its parent.
    pub failovers: u64,
    /// How often it has returned to its parent.
    pub returns: u64,
}

/// The number of a node's children in one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Children {
    /// Which tree.
    pub tree: usize,
    /// How many are connected.
    pub connected: usize,
}

/// The part of a report about the node's connections.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Whether it has joined without being in the member list.
    pub guest: bool,
    /// Its links, one per tree in which it is not the root.
    pub links: Vec<Link>,
    /// Its children, one entry per tree.
    pub children: Vec<Children>,
    /// The calls into storage that hang on it, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hanging: Option<Hanging>,
    /// The memory that caches have given back because it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_pressure: Option<MemoryPressure>,
}

/// Calls into storage that hang on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hanging {
    /// The number of calls.
    pub calls: u64,
    /// The action of the oldest one, a verb.
    pub action: String,
    /// Its path in the namespace.
    pub path: String,
    /// How long it has taken so far, in milliseconds.
    pub since_ms: u64,
}

/// Memory pressure on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPressure {
    /// The configured memory, in bytes.
    pub memory: u64,
    /// The bytes of it that are given back.
    pub given_back: u64,
    /// How long it has lasted, in milliseconds.
    pub since_ms: u64,
    /// The tightest limit, in bytes.
    pub limit: u64,
    /// Whether that is the machine's memory, and not the limit of a cgroup.
    pub is_machine: bool,
}

impl From<Shortage> for MemoryPressure {
    fn from(shortage: Shortage) -> Self {
        let since = shortage.since.elapsed().as_millis();
        Self {
            memory: shortage.memory,
            given_back: shortage.given_back,
            since_ms: u64::try_from(since).unwrap_or(u64::MAX),
            limit: shortage.limit,
            is_machine: shortage.is_machine,
        }
    }
}

impl From<HangingCalls> for Hanging {
    fn from(hanging: HangingCalls) -> Self {
        Self {
            calls: u64::try_from(hanging.calls).unwrap_or(u64::MAX),
            action: hanging.action.to_owned(),
            path: printable(&hanging.path.to_string(), REASON_BYTES_MAX),
            since_ms: u64::try_from(hanging.since.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Standing {
    /// Its link in `tree`.
    #[must_use]
    pub fn link(&self, tree: usize) -> Option<&Link> {
        self.links.iter().find(|link| link.tree == tree)
    }
}

impl From<LinkReport> for Link {
    fn from(link: LinkReport) -> Self {
        let (state, using, reason) = match link.status {
            LinkStatus::Connected(rank) => (LinkState::Connected, Some(rank), None),
            LinkStatus::Connecting { reason } => (LinkState::Connecting, None, reason),
            LinkStatus::Stranded { reason } => (LinkState::Stranded, None, Some(reason)),
            LinkStatus::Stopped => (LinkState::Stopped, None, None),
        };
        let round_trip = link.round_trip.map(|time| time.as_micros());
        Self {
            tree: link.tree,
            home: link.home,
            using,
            state,
            reason: reason.map(|reason| printable(&reason, REASON_BYTES_MAX)),
            since_ms: u64::try_from(link.since.as_millis()).unwrap_or(u64::MAX),
            round_trip_us: round_trip.map(|us| u64::try_from(us).unwrap_or(u64::MAX)),
            failovers: link.failovers,
            returns: link.returns,
        }
    }
}

/// `text` as one line without control characters, cut to `bytes_max`.
#[must_use]
pub fn printable(text: &str, bytes_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(bytes_max));
    for c in text.chars() {
        // Some characters change the direction of the text after them.
        let turns = matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let c = if c.is_control() || turns { '?' } else { c };
        if out.len() + c.len_utf8() > bytes_max {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stranded(tree: usize, reason: String) -> LinkReport {
        LinkReport {
            tree,
            home: usize::MAX,
            status: LinkStatus::Stranded { reason },
            since: Duration::from_millis(1_500),
            round_trip: None,
            failovers: u64::MAX,
            returns: u64::MAX,
        }
    }

    #[test]
    fn the_longest_standing_fits_a_report() {
        const TREES: usize = copperfs_overlay::ROOTS_MAX;
        let quoted = "\"".repeat(4_000);
        let standing = Standing {
            guest: false,
            links: (0..TREES)
                .map(|tree| stranded(tree, quoted.clone()).into())
                .collect(),
            children: (0..TREES)
                .map(|tree| Children {
                    tree,
                    connected: 1 << 20,
                })
                .collect(),
            hanging: None,
            memory_pressure: None,
        };
        let json = serde_json::to_vec(&standing).unwrap();
        assert!(json.len() < 48 << 10, "{} bytes", json.len());
    }

    #[test]
    fn a_link_has_the_values_of_its_link_report() {
        let link = Link::from(stranded(1, "\u{1b}[31mno\nanswer".into()));
        assert_eq!(link.reason.as_deref(), Some("?[31mno?answer"));
        assert_eq!((link.state, link.using), (LinkState::Stranded, None));
        assert_eq!(link.since_ms, 1_500);
        let moved = LinkReport {
            status: LinkStatus::Connected(3),
            round_trip: Some(Duration::from_micros(120)),
            ..stranded(0, String::new())
        };
        let link = Link::from(moved);
        assert_eq!((link.state, link.using), (LinkState::Connected, Some(3)));
        assert_eq!(link.round_trip_us, Some(120));
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(printable("äää", 5), "ää");
        assert_eq!(printable("a\u{202e}b", 9), "a?b");
    }
}
