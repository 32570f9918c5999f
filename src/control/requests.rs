//! What requests hold: JSON in, checked values out. Pure.
//!
//! Amounts are numbers (bytes, bytes per second) or texts with a unit (`"120GB"`, `"200MB/s"`).

use super::error::ControlError;
use crate::budgets::ServedPaths;
use crate::config::datasets::origin_readers;
use crate::model::{DatasetSpec, JobSpec};
use crate::num::whole;
use copperfs_policy::amounts::{parse_bytes, parse_whole_rate};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// What the trouble of a dataset without a byte says.
pub(super) const EMPTY: &str = "a dataset of size zero";

/// `POST /v1/datasets`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetRequest {
    /// Its name, unique.
    pub name: String,
    /// Where it begins, in the mount or in the namespace; or
    pub path: Option<String>,
    /// a URI that an origin serves.
    pub uri: Option<String>,
    /// The index that names its files.
    pub index: Option<String>,
    /// Bytes, set by hand.
    pub budget: Option<Value>,
    /// `roots` or `homes`.
    pub origin_readers: Option<String>,
    /// Replace a dataset of the same name.
    pub replace: Option<bool>,
}

/// `POST /v1/jobs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Its name, unique.
    pub id: String,
    /// The dataset that it reads.
    pub dataset: String,
    /// Bytes per second.
    pub ideal_rate: Option<Value>,
    /// GPUs.
    pub gpus: Option<u32>,
    /// Epochs.
    pub epochs: Option<u32>,
    #[serde(skip)]
    rate: Option<u64>,
}

/// `PUT /v1/datasets/{name}/cache`.
#[derive(Debug)]
pub struct CacheRequest {
    /// Bytes; `None`: the policy decides.
    pub size: Option<u64>,
}

/// `PUT /v1/jobs/{id}/remote-io`.
#[derive(Debug)]
pub struct RateRequest {
    /// Bytes per second; `None`: the policy decides.
    pub rate: Option<u64>,
}

/// `PUT /v1/policy`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Its name.
    pub policy: String,
}

/// `POST /v1/clear`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearRequest {
    /// What is cleared, with all below it; empty for everything.
    #[serde(default)]
    pub path: String,
    /// On all nodes.
    #[serde(default)]
    pub cluster: bool,
}

impl ClearRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        parsed(body)
    }
}

pub(super) fn object(body: &[u8]) -> Result<Value, ControlError> {
    let object: serde_json::Map<String, Value> = parsed(body)?;
    Ok(Value::Object(object))
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, ControlError> {
    serde_json::from_slice(body).map_err(|error| {
        let advice = "GET /openapi.json tells what is expected";
        ControlError::malformed(
            format!("the request is not as it should be: {error}"),
            advice,
        )
    })
}

fn amount(
    key: &str,
    value: &Value,
    parse: impl Fn(&str) -> Result<u64, String>,
    example: &str,
) -> Result<u64, ControlError> {
    let advice = || format!("Write a number of bytes, or a text with a unit: {example}");
    let wrong = |why: &str| ControlError::malformed(format!("{key}: {why}"), advice());
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(bytes), _) => Ok(bytes),
            // 1.3e12 is how programs write it.
            (None, Some(bytes)) if (0.0..1.8e19).contains(&bytes) => Ok(whole(bytes)),
            _ => Err(wrong(&format!("{number} is negative, or too much"))),
        },
        Value::String(text) if text.ends_with(|last: char| last.is_ascii_digit()) => {
            Err(wrong(&format!("{text:?} has no unit")))
        }
        Value::String(text) => parse(text).map_err(|why| wrong(&why)),
        other => Err(wrong(&format!("{other} is no amount"))),
    }
}

fn size(key: &str, value: &Value) -> Result<u64, ControlError> {
    let parse = |text: &str| parse_bytes(text).map_err(|error| error.to_string());
    amount(key, value, parse, "\"120GB\", \"1TiB\"")
}

fn rate(key: &str, value: &Value) -> Result<u64, ControlError> {
    let parse = |text: &str| parse_whole_rate(text).map_err(|error| error.to_string());
    amount(key, value, parse, "\"200MB/s\", \"1.6Gbit/s\"")
}

/// The one key of a request, which may be null.
fn only(
    body: &[u8],
    key: &str,
    parse: impl Fn(&str, &Value) -> Result<u64, ControlError>,
) -> Result<Option<u64>, ControlError> {
    let object: serde_json::Map<String, Value> = parsed(body)?;
    match (object.get(key), object.len()) {
        (Some(Value::Null), 1) => Ok(None),
        (Some(value), 1) => parse(key, value).map(Some),
        _ => Err(ControlError::malformed(
            format!("the request has other keys than {key}"),
            format!("Write {{\"{key}\": ...}}, with null to leave it to the policy"),
        )),
    }
}

impl DatasetRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        parsed(body)
    }

    pub(super) fn into_spec(self, served: &ServedPaths) -> Result<DatasetSpec, ControlError> {
        let ((Some(place), None) | (None, Some(place))) = (&self.path, &self.uri) else {
            let error = "a dataset has a path or a uri";
            return Err(ControlError::malformed(error, "Give one of the two"));
        };
        let advice = "copperfs dataset add NAME PATH|URI";
        let refused = |why: String| ControlError::new(422, why, advice);
        let location = served.locate(place);
        let location = location.map_err(|error| refused(error.to_string()))?;
        if let Some(index) = &self.index {
            let located = served.locate_index(index);
            drop(located.map_err(|error| refused(error.to_string()))?);
        }
        let readers = self.origin_readers.as_deref().map(origin_readers);
        let readers = readers.transpose().map_err(refused)?;
        Ok(DatasetSpec {
            uri: location.uri,
            index: self.index,
            budget: self
                .budget
                .as_ref()
                .map(|value| size("budget", value))
                .transpose()?,
            origin_readers: readers.unwrap_or_default(),
            ..DatasetSpec::new(self.name, location.path)
        })
    }
}

impl JobRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        let mut this: Self = parsed(body)?;
        this.rate = this
            .ideal_rate
            .take()
            .map(|value| rate("ideal_rate", &value))
            .transpose()?;
        Ok(this)
    }

    /// The declaration made by the ordinary user `owner`.
    pub(super) fn into_spec(self, owner: Option<u32>) -> JobSpec {
        JobSpec {
            name: self.id,
            dataset: self.dataset,
            ideal_rate: self.rate,
            gpus: self.gpus.unwrap_or(1),
            epochs: self.epochs,
            owner,
        }
    }
}

impl CacheRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        only(body, "size", size).map(|size| Self { size })
    }
}

impl RateRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        only(body, "rate", rate).map(|rate| Self { rate })
    }
}

impl PolicyRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ControlError> {
        parsed(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_numbers_of_bytes_or_texts_with_units() {
        let of = |text: &str| CacheRequest::parse(text.as_bytes()).map(|request| request.size);
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
            let error = of(text).unwrap_err().into_answer();
            let found = error.body["error"].as_str().unwrap();
            assert!(
                error.status == 400 && found.contains(hint),
                "{text}: {found}"
            );
        }
        let of = |text: &str| RateRequest::parse(text.as_bytes()).map(|request| request.rate);
        assert_eq!(of(r#"{"rate": "1.6Gbit/s"}"#), Ok(Some(200_000_000)));
        assert!(of(r#"{"rate": "200MB"}"#).is_err());
    }
}
