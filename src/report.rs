//! A node's counters as JSON: the form in which they travel and are printed.
//!
//! The names are those of the ioctl ABI (`fuse/include/copperfs_ioctl.h`), nested at their dots, and
//! stable: `node`, `pid`, `rank`, `role`, `parent`, `uptime_s`, `rss_bytes`, `fuse.requests.<op>`,
//! `cache.{data,attributes,listings}.{entries,bytes,hits,misses,evictions}`, `coalesced`,
//! `upstream.{requests,bytes_received}`, `downstream.{requests,bytes_sent}`,
//! `origin.{opens,bytes_read,listings,stats,errors}`, `verify.{blocks,failures}`,
//! `push.{files,bytes,pending}`. `role` is a word, `parent` a rank or null.

use copperfs_fuse::ioctl::{
    NO_PARENT, NodeName, ROLE_INNER, ROLE_LEAF, ROLE_ROOT, ROLE_SINGLE, StatsBody,
};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

const ROLES: [(u64, &str); 4] = [
    (ROLE_ROOT, "root"),
    (ROLE_INNER, "inner"),
    (ROLE_LEAF, "leaf"),
    (ROLE_SINGLE, "single"),
];

/// The counters of one node, or of several summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report(pub StatsBody);

impl Report {
    /// The nested JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut root = Map::new();
        root.insert("node".into(), self.0.node.to_text().into());
        for (name, number) in self.0.fields() {
            let value = match name {
                "role" => role_word(number).into(),
                "parent" if number == NO_PARENT => Value::Null,
                _ => number.into(),
            };
            place(&mut root, name, value);
        }
        Value::Object(root)
    }

    /// Reads [`Report::to_json`]'s form. Numbers that are missing, as from a node of an older release,
    /// are 0; unknown ones are ignored.
    ///
    /// # Errors
    /// Something else than an object with a `node`.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let Some(node) = value.get("node").and_then(Value::as_str) else {
            return Err("a report without a `node`".into());
        };
        let mut body = StatsBody {
            node: NodeName::new(node),
            ..StatsBody::default()
        };
        for (name, field) in body.fields_mut() {
            let found = value.pointer(&format!("/{}", name.replace('.', "/")));
            *field = match (name, found) {
                ("role", Some(word)) => role_number(word.as_str().unwrap_or_default()),
                ("parent", Some(parent)) => parent.as_u64().unwrap_or(NO_PARENT),
                (_, found) => found.and_then(Value::as_u64).unwrap_or(0),
            };
        }
        Ok(Self(body))
    }
}

fn place(object: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => drop(object.insert(name.into(), value)),
        Some((head, rest)) => {
            let inner = object
                .entry(head)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                place(inner, rest, value);
            }
        }
    }
}

fn role_word(number: u64) -> &'static str {
    ROLES
        .iter()
        .find(|(role, _)| *role == number)
        .map_or("unknown", |(_, word)| word)
}

fn role_number(word: &str) -> u64 {
    ROLES
        .iter()
        .find(|(_, name)| *name == word)
        .map_or(u64::MAX, |(role, _)| *role)
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Report {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_the_trip_and_has_the_documented_keys() {
        let mut body = StatsBody {
            node: NodeName::new("h1"),
            role: ROLE_INNER,
            ..StatsBody::default()
        };
        body.cache_data_hits = 7;
        body.origin_bytes_read = 1 << 40;
        body.parent = NO_PARENT;
        let json = serde_json::to_value(Report(body)).unwrap();
        assert_eq!(json["role"], "inner");
        assert_eq!(json["parent"], Value::Null);
        assert_eq!(json["cache"]["data"]["hits"], 7);
        assert_eq!(json["fuse"]["requests"]["lookup"], 0);
        for key in ["opens", "bytes_read", "listings", "stats", "errors"] {
            assert!(json["origin"][key].is_u64(), "{key}");
        }
        assert_eq!(
            serde_json::from_value::<Report>(json).unwrap(),
            Report(body)
        );
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for text in ["{}", "[]", "3", "{\"node\":4}"] {
            assert!(serde_json::from_str::<Report>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Report>("{\"node\":\"a\",\"cache\":5}").is_ok());
    }
}
