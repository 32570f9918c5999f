//! The counters of `copperfs stats --json`.

use super::mount::Node;
use serde_json::Value;
use std::collections::BTreeMap;

/// The counters of one node, or of all summed.
#[derive(Clone, Debug)]
pub struct Stats(pub Value);

/// Requests that a kernel with everything cached has no reason to send.
pub const NEEDLESS: [&str; 6] = [
    "lookup",
    "getattr",
    "read",
    "readdir",
    "readdirplus",
    "readlink",
];

impl Stats {
    /// The value under a documented key, as in `origin.opens`.
    #[track_caller]
    pub fn get(&self, key: &str) -> u64 {
        let value = self
            .0
            .get(key)
            .or_else(|| self.0.pointer(&format!("/{}", key.replace('.', "/"))));
        let value = value.unwrap_or_else(|| panic!("no key {key} in {}", self.0));
        value
            .as_u64()
            .unwrap_or_else(|| panic!("{key} is no count: {value}"))
    }

    /// How much `key` has grown since `earlier`.
    #[track_caller]
    pub fn since(&self, earlier: &Self, key: &str) -> u64 {
        self.get(key)
            .checked_sub(earlier.get(key))
            .unwrap_or_else(|| panic!("{key} went back"))
    }

    /// Requests of the kernel since `earlier`, by operation; those that did not come are left out.
    pub fn requests_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let operations = self.0["fuse"]["software"]["requests"]
            .as_object()
            .expect("fuse.software.requests")
            .keys();
        operations
            .map(|name| {
                (
                    name.clone(),
                    self.since(earlier, &format!("fuse.software.requests.{name}")),
                )
            })
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Requests since `earlier` that a kernel with everything cached has no reason to send.
    pub fn needless_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let mut requests = self.requests_since(earlier);
        requests.retain(|name, _| NEEDLESS.contains(&name.as_str()));
        requests
    }

    /// Fails if this node has asked its parent or the origin for anything since `earlier`.
    #[track_caller]
    pub fn assert_nothing_upstream(&self, earlier: &Self) {
        for key in [
            "upstream.requests",
            "origin.opens",
            "origin.read_bytes",
            "origin.listings",
            "origin.stats",
        ] {
            assert_eq!(self.since(earlier, key), 0, "{key}");
        }
    }
}

/// Repeats `again`, all of whose needs are cached, until the kernel lets it run on `node` without
/// asking the daemon; fails if it does not after some tries, or if the node ever asks for anything.
///
/// A kernel may give up cached pages whenever it likes (a busy machine with several memory groups
/// does so every few seconds, on every filesystem), so one try proves nothing against copperfs.
#[track_caller]
pub fn undisturbed(node: &Node, again: impl Fn()) {
    const TRIES: usize = 30;
    let mut needless = BTreeMap::new();
    for attempt in 1..=TRIES {
        let before = node.stats();
        again();
        let after = node.stats();
        after.assert_nothing_upstream(&before);
        needless = after.needless_since(&before);
        if needless.is_empty() {
            let requests = after.requests_since(&before);
            eprintln!(
                "repeated on rank {}, try {attempt}: {requests:?}",
                after.get("rank")
            );
            return;
        }
    }
    panic!("requests that the kernel could have answered, {TRIES} times: {needless:?}");
}
