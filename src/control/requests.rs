//! The bodies of requests: JSON in, checked values out. Pure.
//!
//! Amounts are numbers (bytes, bytes per second) or texts with a unit (`"120GB"`, `"200MB/s"`).

use super::error::ControlError;
use crate::budgets::ServedPaths;
use crate::config::datasets::{DatasetFiles, declare};
use crate::model::{ChunkOptions, DatasetSpec, JobSpec};
use copperfs_policy::amounts::{ByteRate, ByteSize, duration_of_seconds};
use copperfs_policy::{Keep, Mode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// `POST /v1/datasets`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetRequest {
    /// The dataset's name, unique.
    pub name: String,
    /// Where it begins, in the mount or in the namespace. Either this or `uri` is set.
    pub path: Option<String>,
    /// A URI that an origin serves.
    pub uri: Option<String>,
    /// The index that names its files.
    pub index: Option<String>,
    /// The manifest of its entries.
    pub manifest: Option<String>,
    /// Bytes, set by hand.
    pub budget: Option<ByteSize>,
    /// `roots` or `homes`.
    pub origin_readers: Option<String>,
    /// The rule of what its homes keep.
    pub keep: Option<Keep>,
    /// The size of its chunks, in bytes.
    pub chunk_size: Option<ByteSize>,
    /// Items are given by path only.
    pub private: Option<bool>,
    /// How long a chunk that is to be evicted stays after the first job has exhausted it, in seconds.
    pub evict_after_s: Option<f64>,
    /// Replace a dataset of the same name.
    pub replace: Option<bool>,
}

/// `POST /v1/jobs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The job's name, unique.
    pub id: String,
    /// The dataset that the job reads.
    pub dataset: String,
    /// Bytes per second.
    pub ideal_rate: Option<ByteRate>,
    /// GPUs; 1 by default.
    pub gpus: Option<u32>,
    /// Epochs.
    pub epochs: Option<u32>,
}

/// `PUT /v1/policy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// The policy's name.
    pub policy: String,
}

/// `PUT /v1/datasets/{name}/keep`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepRequest {
    /// The rule.
    pub keep: Keep,
}

/// `POST /v1/datasets/{name}/chunks`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The job's name.
    pub job: String,
    /// The number of the reader among those of one process; 0 by default.
    pub rank: Option<u32>,
    /// The number of its epoch: another one than before begins an epoch.
    pub epoch: Option<u64>,
    /// The chunks of which it needs nothing more in this epoch.
    #[serde(default)]
    pub exhausted: Vec<u32>,
}

/// `POST /v1/datasets/{name}/chunks/{chunk}/ref`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefRequest {
    /// The job's name.
    pub job: String,
    /// As in [`JoinRequest`].
    pub rank: Option<u32>,
    /// As in [`JoinRequest`].
    pub epoch: Option<u64>,
}

/// `POST /v1/datasets/{name}/chunks/{chunk}/unref`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnrefRequest {
    /// The job's name.
    pub job: String,
    /// As in [`JoinRequest`].
    pub rank: Option<u32>,
    /// Whether the job has read everything of the chunk that it needs in this epoch.
    pub exhausted: bool,
}

/// `POST /v1/jobs/{id}/report`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportRequest {
    /// The dataset that the job reads.
    pub dataset: String,
    /// How the look-ups of these mini-batches were answered.
    pub mode: Mode,
    /// The number of ranks of the job, each of which reports its own mini-batches.
    #[serde(default)]
    pub ranks: u32,
    /// The number of mini-batches.
    pub batches: u64,
    /// The time that they took together, in seconds.
    pub seconds: f64,
    /// Look-ups that hit.
    pub hits: u64,
    /// Look-ups that missed.
    pub misses: u64,
    /// Hits that came before their turn.
    #[serde(default, rename = "substituted")]
    pub _substituted: u64,
}

/// `POST /v1/clear`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearRequest {
    /// The path to clear, with everything below it; empty for the whole namespace.
    #[serde(default)]
    pub path: String,
    /// On all nodes.
    #[serde(default)]
    pub cluster: bool,
}

/// `POST /v1/upgrade`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// The absolute path of the other program, as the daemon sees it.
    pub program: PathBuf,
    /// Only check whether it could take over.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /v1/lrc/flush`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlushRequest {
    /// The dataset's name.
    pub dataset: String,
}

/// Parses the body of a request.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ControlError> {
    let malformed =
        |error: String| ControlError::malformed(error, "GET /openapi.json tells what is expected");
    let unexpected = |error| malformed(format!("the request is not as it should be: {error}"));
    let value: Value = serde_json::from_slice(body).map_err(unexpected)?;
    serde_path_to_error::deserialize(value).map_err(|error| match error.path().iter().next() {
        Some(_) => malformed(format!("{}: {}", error.path(), error.inner())),
        None => unexpected(error.into_inner()),
    })
}

/// `PUT /v1/datasets/{name}/cache`. Returns bytes; `None`: the policy decides.
pub(super) fn parse_cache(body: &[u8]) -> Result<Option<u64>, ControlError> {
    Ok(only(body, "size")?.map(|ByteSize(bytes)| bytes))
}

/// `PUT /v1/jobs/{id}/remote-io`. Returns bytes per second; `None`: the policy decides.
pub(super) fn parse_remote_io(body: &[u8]) -> Result<Option<u64>, ControlError> {
    Ok(only(body, "rate")?.map(|ByteRate(rate)| rate))
}

/// Parses an object whose only key is `key`. The key must be present; its value may be null.
fn only<T: DeserializeOwned>(body: &[u8], key: &str) -> Result<Option<T>, ControlError> {
    let mut object: Map<String, Value> = parse(body)?;
    let hint = format!("Write {{\"{key}\": ...}}, with null to leave it to the policy");
    let malformed = |error: String| ControlError::malformed(error, hint);
    match object.remove(key) {
        Some(value) if object.is_empty() => {
            serde_json::from_value(value).map_err(|error| malformed(format!("{key}: {error}")))
        }
        _ => Err(malformed(format!("the request has other keys than {key}"))),
    }
}

impl DatasetRequest {
    /// The declaration of a dataset in the namespace `served`.
    pub(super) fn into_spec(self, served: &ServedPaths) -> Result<DatasetSpec, ControlError> {
        let ((Some(location), None) | (None, Some(location))) = (&self.path, &self.uri) else {
            let error = "a dataset has a path or a uri";
            return Err(ControlError::malformed(error, "Give one of the two"));
        };
        let options = ChunkOptions::default();
        let evict_after = self.evict_after_s.map(duration_of_seconds);
        let evict_after = evict_after.transpose().map_err(|error| {
            let error = format!("evict_after_s: {error}");
            ControlError::malformed(error, "Write seconds, such as 60; at most a century")
        })?;
        let readers = self.origin_readers.as_deref();
        let files = DatasetFiles {
            index: self.index.as_ref(),
            manifest: self.manifest.as_ref(),
        };
        let spec = declare(served, &self.name, location, &files, readers)
            .map_err(|error| ControlError::invalid(&error, "copperfs dataset add NAME PATH|URI"))?;
        Ok(DatasetSpec {
            budget: self.budget.map(|ByteSize(bytes)| bytes),
            keep: self.keep.unwrap_or_default(),
            chunk_options: ChunkOptions {
                size: self
                    .chunk_size
                    .map_or(options.size, |ByteSize(bytes)| bytes),
                evict_after: evict_after.unwrap_or(options.evict_after),
            },
            is_private: self.private.unwrap_or(false),
            ..spec
        })
    }
}

impl JobRequest {
    /// The declaration made by the ordinary user `owner`.
    pub(super) fn into_spec(self, owner: Option<u32>) -> JobSpec {
        JobSpec {
            name: self.id,
            dataset: self.dataset,
            ideal_rate: self.ideal_rate.map(|ByteRate(rate)| rate),
            gpus: self.gpus.unwrap_or(1),
            epochs: self.epochs,
            owner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_policy::amounts::DURATION_MAX;

    #[test]
    fn amounts_are_numbers_of_bytes_or_texts_with_units() {
        let of = |text: &str| parse_cache(text.as_bytes());
        assert_eq!(of(r#"{"size": 1000}"#), Ok(Some(1000)));
        assert_eq!(of(r#"{"size": 1.3e12}"#), Ok(Some(1_300_000_000_000)));
        assert_eq!(of(r#"{"size": "2GB"}"#), Ok(Some(2_000_000_000)));
        assert_eq!(of(r#"{"size": null}"#), Ok(None));
        for (text, hint) in [
            (r#"{"size": -1}"#, "is negative"),
            (r#"{"size": "-1GB"}"#, "no number in front"),
            (r#"{"size": "1000"}"#, "has no unit"),
            (r#"{"size": true}"#, "is no amount"),
            (r#"{"rate": 5}"#, "other keys than size"),
            (r#"{"size": 5, "more": 1}"#, "other keys than size"),
            ("{", "not as it should be"),
        ] {
            let error = of(text).unwrap_err().0;
            let found = error.body["error"].as_str().unwrap();
            assert!(
                error.status == 400 && found.contains(hint),
                "{text}: {found}"
            );
        }
        let of = |text: &str| parse_remote_io(text.as_bytes());
        assert_eq!(of(r#"{"rate": "1.6Gbit/s"}"#), Ok(Some(200_000_000)));
        assert!(of(r#"{"rate": "200MB"}"#).is_err());
    }

    #[test]
    fn a_time_before_eviction_is_at_most_a_century() {
        let served = ServedPaths {
            origins: vec![crate::config::OriginSpec {
                prefix: crate::testing::path("/lus"),
                uri: "file:///lus".into(),
                options: Default::default(),
            }],
            mounts: Vec::new(),
        };
        let of = |seconds: f64| {
            let body =
                serde_json::json!({ "name": "a", "path": "/lus/a", "evict_after_s": seconds });
            let request: DatasetRequest = parse(body.to_string().as_bytes()).unwrap();
            request.into_spec(&served)
        };
        let century = DURATION_MAX.as_secs_f64();
        let longest = of(century).unwrap().chunk_options.evict_after;
        assert_eq!(longest, DURATION_MAX);
        for seconds in [century + 1.0, 1.8e18, 1e300, -1.0] {
            let refused = of(seconds).unwrap_err().0;
            let said = refused.body.to_string();
            assert!(
                refused.status == 400 && said.contains("evict_after_s"),
                "{seconds}: {said}"
            );
        }
    }
}
