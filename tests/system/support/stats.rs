//! Counters as `copperfs stats --json` gives them.

use serde_json::Value;
use std::collections::BTreeMap;

/// The counters of one node, or of all summed.
#[derive(Clone, Debug)]
pub struct Stats(pub Value);

/// Requests that a kernel with everything cached has no reason to send.
pub const NEEDLESS: [&str; 6] = ["lookup", "getattr", "read", "readdir", "readdirplus", "readlink"];

impl Stats {
    /// The value under a documented key, as in `origin.opens`.
    #[track_caller]
    pub fn get(&self, key: &str) -> u64 {
        let value = self.0.get(key).or_else(|| self.0.pointer(&format!("/{}", key.replace('.', "/"))));
        let value = value.unwrap_or_else(|| panic!("no key {key} in {}", self.0));
        value.as_u64().unwrap_or_else(|| panic!("{key} is no count: {value}"))
    }

    /// How much `key` has grown since `earlier`.
    #[track_caller]
    pub fn since(&self, earlier: &Self, key: &str) -> u64 {
        self.get(key).checked_sub(earlier.get(key)).unwrap_or_else(|| panic!("{key} went back"))
    }

    /// Requests of the kernel since `earlier`, by operation; those that did not come are left out.
    pub fn requests_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let operations = self.0["fuse"]["requests"].as_object().expect("fuse.requests").keys();
        operations
            .map(|name| (name.clone(), self.since(earlier, &format!("fuse.requests.{name}"))))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// Fails if the kernel has sent a request since `earlier` that it could have answered itself.
    #[track_caller]
    pub fn assert_kernel_answered(&self, earlier: &Self) {
        let requests = self.requests_since(earlier);
        let needless: Vec<_> =
            requests.iter().filter(|(name, _)| NEEDLESS.contains(&name.as_str())).collect();
        assert!(needless.is_empty(), "needless requests: {needless:?} of {requests:?}");
    }

    /// Fails if this node has asked its parent or the origin for anything since `earlier`.
    #[track_caller]
    pub fn assert_nothing_upstream(&self, earlier: &Self) {
        for key in ["upstream.requests", "origin.opens", "origin.bytes_read", "origin.listings", "origin.stats"] {
            assert_eq!(self.since(earlier, key), 0, "{key}");
        }
    }
}
