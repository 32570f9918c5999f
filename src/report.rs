//! A node's report, its forms as JSON and as lines, and the sum of several reports.
//!
//! A report identifies its node (`node`, `pid`, `rank`, `role`, `parent`), describes its connections ([`Standing`]),
//! and holds the node's metrics under their declared names. This module knows hardly any metric by name. Pure.
//!
//! | key | what |
//! | --- | --- |
//! | `node` | name of the node, as in the host list; not in a sum |
//! | `pid` | process id of its daemon; not in a sum |
//! | `rank` | its place in the member list, or null for a guest, which is not in it; not in a sum |
//! | `role` | `root` (of any tree), `inner`, `leaf`, or `single` for a node on its own; not in a sum |
//! | `parent` | rank of its parent in the first tree by the list, or null; not in a sum |
//! | `nodes` | how many nodes the numbers stand for |
//! | `guest` | whether it has joined without being in the member list; only with `--all`, not in a sum |
//! | `links` | one object per tree in which it is not the root; only with `--all`, not in a sum |
//! | `links[].{tree,home,using}` | which tree; rank of its parent by the list; of the ancestor in use, or null |
//! | `links[].{state,reason,since_ms}` | `connected`, `connecting`, `stranded` or `stopped`; why, or null; for how long |
//! | `links[].{round_trip_us,failovers,returns}` | smoothed round trip, or null; moves away and back in this tree |
//! | `children[].{tree,connected}` | how many nodes hang from it in each tree; only with `--all`, not in a sum |
//! | `hanging.{calls,action,path,since_ms}` | hanging calls into storage: the number of calls; the oldest call's action, path and age; only with `--all`, not in a sum |
//! | `memory_pressure.{memory,given_back,since_ms,limit,is_machine}` | only while memory is short: the configured bytes, those given back, for how long, the tightest limit and whether it is the machine's memory; only with `--all`, not in a sum |

mod place;

pub use place::{Children, Hanging, Link, LinkState, MemoryPressure, Standing, printable};

use copperfs_metrics::insert;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Keys that a sum does not have: they identify a node, or describe its connections.
const OF_ONE_NODE: [&str; 10] = [
    "node",
    "pid",
    "rank",
    "role",
    "parent",
    "guest",
    "links",
    "children",
    "hanging",
    "memory_pressure",
];
/// Keys whose values are texts, even if they look like numbers.
const TEXTS: [&str; 2] = ["node", "role"];
/// Longest text in a line, in bytes.
const TEXT_BYTES_MAX: usize = 255;
/// Key of the time since the start of the daemon: of a sum, the longest.
const UPTIME: &str = "uptime_seconds";

/// A node's role in the trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The root of any tree.
    Root,
    /// It has a parent and children.
    Inner,
    /// It has no children.
    Leaf,
    /// The only node.
    Single,
}

/// Identifies the node of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Its name, as in the host list.
    pub node: String,
    /// Process id of its daemon.
    pub pid: u32,
    /// Its place in the member list; `None` for a guest.
    pub rank: Option<usize>,
    /// Its role.
    pub role: Role,
    /// Rank of its parent in the first tree by the list.
    pub parent: Option<usize>,
}

/// One node's report: a JSON object of the documented form.
#[derive(Debug, Clone, PartialEq)]
pub struct Report(Value);

impl Report {
    /// The report of node `identity` with `metrics`.
    #[must_use]
    pub fn new(identity: &Identity, metrics: Map<String, Value>) -> Self {
        let report = Self(json!(identity)).with(json!({ "nodes": 1 }));
        report.with(metrics.into())
    }

    /// A report from lines of name and value, as [`Report::to_lines`] writes them. Other lines are skipped.
    #[must_use]
    pub fn from_lines(text: &str) -> Self {
        let absent = ["rank", "parent"].map(|key| (key.to_owned(), Value::Null));
        let mut object = Map::from_iter(absent);
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let number = value.parse::<u64>().ok();
            let number = number.filter(|_| !TEXTS.contains(&key));
            let value = number.map_or_else(|| value.into(), Value::from);
            insert(&mut object, &key.split('.').collect::<Vec<_>>(), value);
        }
        Self(object.into())
    }

    /// Lines of name and value: `origin.opens 5`. The buckets of histograms are left out.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let mut text = String::new();
        for (key, value) in self.0.as_object().into_iter().flatten() {
            lines(key, value, &mut text);
        }
        text
    }

    /// A report from its JSON form.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn from_json(value: Value) -> Result<Self, Value> {
        match value {
            Value::Object(_) => Ok(Self(value)),
            other => Err(other),
        }
    }

    /// The JSON form.
    #[must_use]
    pub fn into_json(self) -> Value {
        self.0
    }

    /// Adds the connections of the node.
    #[must_use]
    pub fn with_standing(self, standing: &Standing) -> Self {
        self.with(json!(standing))
    }

    /// Adds the keys of `part`.
    fn with(mut self, part: Value) -> Self {
        if let (Value::Object(object), Value::Object(more)) = (&mut self.0, part) {
            object.extend(more);
        }
        self
    }

    /// The connections of the node. Parts that cannot be parsed are skipped.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            guest: self.0["guest"].as_bool() == Some(true),
            links: self.list("links"),
            children: self.list("children"),
            hanging: Hanging::deserialize(&self.0["hanging"]).ok(),
            memory_pressure: MemoryPressure::deserialize(&self.0["memory_pressure"]).ok(),
        }
    }

    fn list<T: DeserializeOwned>(&self, key: &str) -> Vec<T> {
        let items = self.0[key].as_array().into_iter().flatten();
        items.filter_map(|item| T::deserialize(item).ok()).collect()
    }

    /// Name of the node; empty in a sum.
    #[must_use]
    pub fn node(&self) -> &str {
        self.0["node"].as_str().unwrap_or_default()
    }

    /// Its place in the member list; `None` for a guest, and in a sum.
    #[must_use]
    pub fn rank(&self) -> Option<u64> {
        self.0["rank"].as_u64()
    }

    /// Its role; empty in a sum.
    #[must_use]
    pub fn role(&self) -> &str {
        self.0["role"].as_str().unwrap_or_default()
    }

    /// Rank of its parent.
    #[must_use]
    pub fn parent(&self) -> Option<u64> {
        self.0["parent"].as_u64()
    }

    /// The counter at a dotted key, such as `origin.opens`; 0 if there is none.
    #[must_use]
    pub fn counter(&self, key: &str) -> u64 {
        self.at(key).as_u64().unwrap_or(0)
    }

    /// The value at a dotted key; null if there is none.
    fn at(&self, key: &str) -> &Value {
        key.split('.').fold(&self.0, |value, name| &value[name])
    }

    /// The counters of an object such as `fuse.requests`, by name.
    pub fn counters<'a>(&'a self, key: &str) -> impl Iterator<Item = (&'a str, u64)> {
        let counters = self.at(key).as_object().into_iter().flatten();
        counters.filter_map(|(name, value)| Some((name.as_str(), value.as_u64()?)))
    }

    /// The sum of several reports. Numbers are added, except that the uptime is the longest one. Keys that concern
    /// one node are omitted.
    #[must_use]
    pub fn total<'a>(reports: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut object = Map::new();
        for report in reports {
            add(&mut object, &report.0);
        }
        for key in OF_ONE_NODE {
            object.remove(key);
        }
        Self(object.into())
    }
}

fn add(sum: &mut Map<String, Value>, object: &Value) {
    for (key, value) in object.as_object().into_iter().flatten() {
        match value {
            Value::Object(_) => {
                let slot = sum.entry(key.as_str()).or_insert_with(|| Map::new().into());
                if let Value::Object(slot) = slot {
                    add(slot, value);
                }
            }
            Value::Number(number) => {
                let more = number.as_u64().unwrap_or(0);
                let so_far = sum.get(key).and_then(Value::as_u64).unwrap_or(0);
                // An uptime is not additive.
                let new = if key == UPTIME {
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

fn lines(key: &str, value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => text.push_str(&format!("{key} {number}\n")),
        Value::String(value) => {
            text.push_str(&format!("{key} {}\n", printable(value, TEXT_BYTES_MAX)));
        }
        Value::Object(inner) => {
            for (name, value) in inner.iter().filter(|(name, _)| *name != "buckets") {
                lines(&format!("{key}.{name}"), value, text);
            }
        }
        Value::Null | Value::Bool(_) | Value::Array(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(rank: Option<usize>) -> Identity {
        Identity {
            node: "nid001".into(),
            pid: 17,
            rank,
            role: Role::Inner,
            parent: rank.and_then(|rank| rank.checked_sub(1)),
        }
    }

    fn report(rank: usize, opens: u64) -> Report {
        let metrics = json!({
            "uptime_seconds": 10 * (rank + 1),
            "origin": { "opens": opens },
            "fuse": { "software": { "requests": { "lookup": 3 } } },
            "latency": { "count": 2, "sum_us": 7, "buckets": { "4": 2 } },
        });
        Report::new(&identity(Some(rank)), metrics.as_object().unwrap().clone())
    }

    #[test]
    fn identity_and_metrics_are_one_object() {
        let json = report(1, 5).into_json();
        assert_eq!(
            (&json["node"], &json["role"]),
            (&json!("nid001"), &json!("inner"))
        );
        assert_eq!(
            (&json["pid"], &json["rank"], &json["parent"]),
            (&json!(17), &json!(1), &json!(0))
        );
        assert_eq!(
            (&json["origin"]["opens"], &json["nodes"]),
            (&json!(5), &json!(1))
        );
    }

    #[test]
    fn a_guest_has_no_rank_and_a_root_no_parent() {
        let guest = Report::new(&identity(None), Map::new());
        assert_eq!((guest.rank(), guest.parent()), (None, None));
        let json = guest.into_json();
        assert!(json["rank"].is_null() && json["parent"].is_null());
    }

    #[test]
    fn lines_come_back() {
        for report in [report(1, 5), Report::new(&identity(None), Map::new())] {
            let text = report.to_lines();
            let back = Report::from_lines(&text);
            let mut wanted = report.into_json();
            if let Some(latency) = wanted.get_mut("latency").and_then(Value::as_object_mut) {
                latency.remove("buckets");
            }
            assert_eq!(back.into_json(), wanted, "{text}");
        }
        let numeric = Report::from_lines("node 17\nodd\nrole leaf\n");
        assert_eq!((numeric.node(), numeric.role()), ("17", "leaf"));
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
            memory_pressure: Some(MemoryPressure {
                memory: 4 << 30,
                given_back: 1 << 30,
                since_ms: 4000,
                limit: 6 << 30,
                is_machine: false,
            }),
        };
        let standing_report = report(1, 5).with_standing(&standing);
        let json = standing_report.clone().into_json();
        assert_eq!(json["links"][0]["state"], "stranded");
        assert_eq!(json["children"][0]["connected"], 3);
        assert_eq!(standing_report.standing(), standing);
        assert_eq!(report(1, 5).standing(), Standing::default());
        let odd = json!({ "links": [3, { "tree": "x" }], "children": {} });
        let odd = Report::from_json(odd).unwrap();
        assert_eq!(odd.standing(), Standing::default());
    }

    #[test]
    fn sums_leave_identity_out() {
        let guest = Standing {
            guest: true,
            ..Standing::default()
        };
        let reports = [report(0, 5).with_standing(&guest), report(1, 7)];
        let total = Report::total(&reports);
        assert_eq!(total.counter("origin.opens"), 12);
        assert_eq!(total.counter("fuse.software.requests.lookup"), 6);
        assert_eq!(total.counter("uptime_seconds"), 20);
        assert_eq!(total.counter("nodes"), 2);
        assert_eq!(total.counter("no.such.key"), 0);
        let json = total.into_json();
        for key in ["node", "pid", "rank", "role", "parent", "guest", "links"] {
            assert!(json.get(key).is_none(), "{key}");
        }
    }

    #[test]
    fn json_comes_back() {
        let report = report(1, 5);
        let back = Report::from_json(report.clone().into_json()).unwrap();
        assert_eq!(back, report);
        assert!(Report::from_json(Value::Null).is_err());
        let lookups = back
            .counters("fuse.software.requests")
            .find(|(name, _)| *name == "lookup");
        assert_eq!(lookups, Some(("lookup", 3)));
    }
}
