//! A node's report of itself, as JSON and back, and the sum of several.
//!
//! The numbers and their names are those of the ioctl ABI ([`StatsBody`]); this module gives them
//! their JSON form: nested objects, stable keys. Pure.
//!
//! | key | what |
//! | --- | --- |
//! | `node` | name of the node, as in the host list; not in a sum |
//! | `pid` | process id of its daemon; not in a sum |
//! | `rank` | its place in the member list, or null for a guest, which is not in it; not in a sum |
//! | `role` | `root` (of any tree), `inner`, `leaf`, or `single` for a node on its own; not in a sum |
//! | `parent` | rank of its parent in the first tree by the list, or null; not in a sum |
//! | `nodes` | how many nodes the numbers stand for |
//! | `uptime_s` | seconds since the daemon started; of a sum, the longest |
//! | `rss_bytes` | resident memory of the daemon |
//! | `fuse.requests.<op>` | requests of the kernel by operation |
//! | `cache.{data,attributes,listings}.{entries,bytes,hits,misses,evictions}` | what is held, and how it served |
//! | `inodes.{entries,bytes,pruned}` | names that the kernel holds, the memory that they take here, and those that the kernel dropped at the daemon's request |
//! | `coalesced` | requests that joined one already under way |
//! | `upstream.{requests,bytes_received}` | asked of the parent |
//! | `downstream.{requests,bytes_sent}` | asked by children |
//! | `origin.{opens,bytes_read,listings,stats,errors}` | asked of the storage; only a root asks |
//! | `origin.{throttled,concurrency}` | refused by object stores for want of room; requests that they may be sent at a time now |
//! | `origin.hanging` | calls into POSIX storage that hang now |
//! | `verify.{blocks,failures}` | blocks whose hash was checked, and those whose hash was wrong |
//! | `push.{files,bytes,pending}` | put into the kernel's page cache unasked |
//! | `data_mount.{mounted,lost}` | whether there is a data mount that answers (1), or one that was taken away alone |
//! | `data_mount.{requests,opens,releases,reads,bytes_read}` | asked by the kernel of the data mount; `fuse.*` are the software mount only |
//! | `data_mount.{dataset_opens,cached_opens}` | opens of files of datasets; opens that were closed without any READ: answered by the page cache, or not read |
//! | `healing.failovers` | how often it has moved to another ancestor than its parent, in all trees |
//! | `healing.returns` | how often it has come back to its parent |
//! | `healing.replays` | requests asked again because their connection was lost |
//! | `healing.wrong_blocks` | wrong blocks of others, each fetched again |
//! | `guest` | whether it has joined without being in the member list; only with `--cluster`, not in a sum |
//! | `links` | one object per tree in which it is not the root; only with `--cluster`, not in a sum |
//! | `links[].{tree,home,using}` | which tree; rank of its parent by the list; of the ancestor in use, or null |
//! | `links[].{state,reason,since_ms}` | `connected`, `connecting`, `stranded` or `stopped`; why, or null; for how long |
//! | `links[].{round_trip_us,failovers,returns}` | smoothed round trip, or null; moves away and back in this tree |
//! | `children[].{tree,connected}` | how many nodes hang from it in each tree; only with `--cluster`, not in a sum |
//! | `hanging.{calls,action,path,since_ms}` | hanging calls into storage: the number of calls; the oldest call's action, path and age; only with `--cluster`, not in a sum |

mod place;

pub use place::{Children, Hanging, Link, LinkState, Standing, printable};

use copperfs_fuse::ioctl::{
    NO_PARENT, NO_RANK, NodeName, ROLE_INNER, ROLE_LEAF, ROLE_ROOT, ROLE_SINGLE, StatsBody,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The keys that identify a node, and are no counters.
const IDENTITY: [&str; 4] = ["pid", "rank", "role", "parent"];

/// One node's report.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// A JSON object of the documented form.
    object: Map<String, Value>,
}

impl From<StatsBody> for Report {
    fn from(body: StatsBody) -> Self {
        let mut object = Map::new();
        object.insert("node".into(), body.node.to_text().into());
        for (key, number) in body.fields() {
            let value = match key {
                "role" => role_name(number).into(),
                "parent" if number == NO_PARENT => Value::Null,
                "rank" if number == NO_RANK => Value::Null,
                _ => number.into(),
            };
            insert(&mut object, key, value);
        }
        Self { object }
    }
}

impl Report {
    /// A report from its JSON form.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn from_json(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(object) => Ok(Self { object }),
            other => Err(other),
        }
    }

    /// The JSON form.
    #[must_use]
    pub fn into_json(self) -> Value {
        Value::Object(self.object)
    }

    /// The counters in the form of the ioctl ABI; keys that are missing are 0.
    #[must_use]
    pub fn to_stats(&self) -> StatsBody {
        let mut body = StatsBody {
            node: NodeName::new(self.node()),
            ..StatsBody::default()
        };
        for (key, field) in body.fields_mut() {
            *field = match key {
                "role" => role_number(self.role()),
                "parent" => self.parent().unwrap_or(NO_PARENT),
                "rank" => self.rank().unwrap_or(NO_RANK),
                _ => self.counter(key),
            };
        }
        body
    }

    /// The report with where its node stands.
    #[must_use]
    pub fn with_standing(mut self, standing: &Standing) -> Self {
        // A struct of numbers and texts always has a JSON form.
        if let Ok(Value::Object(more)) = serde_json::to_value(standing) {
            self.object.extend(more);
        }
        self
    }

    /// Where its node stands; what cannot be read is left out.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            guest: self.object.get("guest").and_then(Value::as_bool) == Some(true),
            links: self.list("links"),
            children: self.list("children"),
            hanging: (self.object.get("hanging"))
                .and_then(|hanging| Hanging::deserialize(hanging).ok()),
        }
    }

    fn list<T: DeserializeOwned>(&self, key: &str) -> Vec<T> {
        let items = self.object.get(key).and_then(Value::as_array);
        items
            .into_iter()
            .flatten()
            .filter_map(|item| T::deserialize(item).ok())
            .collect()
    }

    /// Name of the node; empty in a sum.
    #[must_use]
    pub fn node(&self) -> &str {
        self.object
            .get("node")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Its place in the member list; `None` for a guest, and in a sum.
    #[must_use]
    pub fn rank(&self) -> Option<u64> {
        self.object.get("rank").and_then(Value::as_u64)
    }

    /// Its role; empty in a sum.
    #[must_use]
    pub fn role(&self) -> &str {
        self.object
            .get("role")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Rank of its parent.
    #[must_use]
    pub fn parent(&self) -> Option<u64> {
        self.object.get("parent").and_then(Value::as_u64)
    }

    /// The counter at a dotted key, such as `origin.opens`; 0 if there is none.
    #[must_use]
    pub fn counter(&self, key: &str) -> u64 {
        let (first, rest) = key.split_once('.').unwrap_or((key, ""));
        let found = self.object.get(first);
        let value = rest
            .split('.')
            .filter(|name| !name.is_empty())
            .fold(found, |value, name| value?.get(name));
        value.and_then(Value::as_u64).unwrap_or(0)
    }

    /// The counters of an object such as `fuse.requests`, by name.
    pub fn counters<'a>(&'a self, key: &str) -> impl Iterator<Item = (&'a str, u64)> {
        let mut names = key.split('.');
        let found = names.next().and_then(|first| self.object.get(first));
        names
            .fold(found, |value, name| value?.get(name))
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.as_str(), value.as_u64()?)))
    }

    /// The sum of several reports: counters added, `uptime_s` the longest, without what identifies a
    /// node.
    #[must_use]
    pub fn total<'a>(reports: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut object = Map::new();
        for report in reports {
            add(&mut object, &report.object, true);
        }
        Self { object }
    }
}

fn add(sum: &mut Map<String, Value>, object: &Map<String, Value>, top: bool) {
    for (key, value) in object {
        if top && (key == "node" || IDENTITY.contains(&key.as_str())) {
            continue;
        }
        match value {
            Value::Object(inner) => {
                let slot = sum.entry(key.as_str()).or_insert_with(|| Map::new().into());
                if let Value::Object(slot) = slot {
                    add(slot, inner, false);
                }
            }
            Value::Number(number) => {
                let more = number.as_u64().unwrap_or(0);
                let so_far = sum.get(key).and_then(Value::as_u64).unwrap_or(0);
                let new = if top && key == "uptime_s" {
                    so_far.max(more)
                } else {
                    so_far.saturating_add(more)
                };
                sum.insert(key.clone(), new.into());
            }
            _ => {}
        }
    }
}

fn role_name(role: u64) -> &'static str {
    match role {
        ROLE_ROOT => "root",
        ROLE_INNER => "inner",
        ROLE_LEAF => "leaf",
        ROLE_SINGLE => "single",
        _ => "unknown",
    }
}

fn role_number(name: &str) -> u64 {
    [ROLE_ROOT, ROLE_INNER, ROLE_LEAF, ROLE_SINGLE]
        .into_iter()
        .find(|&role| role_name(role) == name)
        .unwrap_or(u64::MAX)
}

/// Sets `value` at a dotted key, making objects on the way.
fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            object.insert(key.to_owned(), value);
        }
        Some((first, rest)) => {
            let slot = object
                .entry(first.to_owned())
                .or_insert_with(|| Map::new().into());
            if let Value::Object(slot) = slot {
                insert(slot, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_fuse::ioctl::NodeName;

    fn body(rank: u64, opens: u64) -> StatsBody {
        StatsBody {
            node: NodeName::new("nid001"),
            pid: 17,
            rank,
            role: ROLE_INNER,
            parent: 0,
            nodes: 1,
            uptime_s: 10 * (rank + 1),
            origin_opens: opens,
            fuse_requests_lookup: 3,
            ..StatsBody::default()
        }
    }

    #[test]
    fn the_promised_keys_are_there() {
        let json = Report::from(body(1, 5)).into_json();
        assert_eq!(json["node"], "nid001");
        assert_eq!(json["role"], "inner");
        assert_eq!(json["origin"]["opens"], 5);
        for cache in ["data", "attributes", "listings"] {
            for key in ["entries", "bytes", "hits", "misses", "evictions"] {
                assert!(json["cache"][cache][key].is_u64(), "cache.{cache}.{key}");
            }
        }
        for (object, keys) in [
            ("upstream", &["requests", "bytes_received"][..]),
            ("downstream", &["requests", "bytes_sent"]),
            (
                "origin",
                &["opens", "bytes_read", "listings", "stats", "errors"],
            ),
            ("verify", &["blocks", "failures"]),
            (
                "healing",
                &["failovers", "returns", "replays", "wrong_blocks"],
            ),
        ] {
            for key in keys {
                assert!(json[object][key].is_u64(), "{object}.{key}");
            }
        }
        for key in [
            "pid",
            "rank",
            "parent",
            "uptime_s",
            "rss_bytes",
            "coalesced",
        ] {
            assert!(json[key].is_u64(), "{key}");
        }
        assert!(json["fuse"]["requests"]["lookup"].is_u64());
    }

    #[test]
    fn a_root_has_no_parent() {
        let report = Report::from(StatsBody {
            parent: NO_PARENT,
            role: ROLE_ROOT,
            ..StatsBody::default()
        });
        assert_eq!(report.parent(), None);
        assert!(report.clone().into_json()["parent"].is_null());
        assert_eq!(report.role(), "root");
    }

    #[test]
    fn a_guest_has_no_rank() {
        let report = Report::from(StatsBody {
            rank: NO_RANK,
            role: ROLE_LEAF,
            ..StatsBody::default()
        });
        assert_eq!(report.rank(), None);
        assert_eq!(report.to_stats().rank, NO_RANK);
        assert!(report.into_json()["rank"].is_null());
    }

    #[test]
    fn where_a_node_stands_comes_back() {
        let standing = Standing {
            guest: true,
            links: vec![Link {
                tree: 1,
                home: 4,
                using: None,
                state: LinkState::Stranded,
                reason: Some("no answer".into()),
                since_ms: 17,
                round_trip_us: None,
                failovers: 2,
                returns: 1,
            }],
            children: vec![Children {
                tree: 0,
                connected: 3,
            }],
            hanging: Some(Hanging {
                calls: 3,
                action: "read".into(),
                path: "/lus/a".into(),
                since_ms: 4000,
            }),
        };
        let report = Report::from(body(1, 5)).with_standing(&standing);
        let json = report.clone().into_json();
        assert_eq!(json["links"][0]["state"], "stranded");
        assert_eq!(json["children"][0]["connected"], 3);
        assert_eq!(report.standing(), standing);
        assert_eq!(Report::from(body(1, 5)).standing(), Standing::default());
        let odd = serde_json::json!({ "links": [3, { "tree": "x" }], "children": {} });
        let odd = Report::from_json(odd).unwrap();
        assert_eq!(odd.standing(), Standing::default());
    }

    #[test]
    fn sums_leave_identity_out() {
        let guest = Standing {
            guest: true,
            ..Standing::default()
        };
        let reports = [
            Report::from(body(0, 5)).with_standing(&guest),
            Report::from(body(1, 7)),
        ];
        let total = Report::total(&reports);
        assert_eq!(total.counter("origin.opens"), 12);
        assert_eq!(total.counter("fuse.requests.lookup"), 6);
        assert_eq!(total.counter("uptime_s"), 20);
        assert_eq!(total.counter("nodes"), 2);
        assert_eq!(total.counter("no.such.key"), 0);
        let json = total.into_json();
        for key in ["node", "pid", "rank", "role", "parent", "guest", "links"] {
            assert!(json.get(key).is_none(), "{key}");
        }
    }

    #[test]
    fn json_comes_back() {
        let report = Report::from(body(1, 5));
        let back = Report::from_json(report.clone().into_json()).unwrap();
        assert_eq!(back, report);
        assert!(Report::from_json(Value::Null).is_err());
        let lookups = back
            .counters("fuse.requests")
            .find(|(name, _)| *name == "lookup");
        assert_eq!(lookups, Some(("lookup", 3)));
    }
}
