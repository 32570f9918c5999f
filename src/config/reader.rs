//! Values of a [`Layer`], parsed.

use super::ConfigError;
use super::keys::find;
use super::layer::Layer;
use crate::nearest::nearest;
use copperfs_policy::amounts::{parse_bytes, parse_duration};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// A text that may be a single word of a list, and what each word means.
pub(super) type Words<T> = [(&'static str, T)];

/// A single value as text, with defaults from the table of keys.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) layer: &'a Layer,
}

impl<'a> Reader<'a> {
    /// The value or its default; `None` if both are unset.
    pub(super) fn text(self, key: &'static str) -> Option<&'a str> {
        self.layer
            .text(key)
            .or_else(|| find(key).map(|key| key.default))
            .filter(|text| !text.is_empty())
    }

    pub(super) fn wrong(self, key: &'static str, why: impl Display) -> ConfigError {
        ConfigError::Value {
            place: self.layer.place(key),
            why: why.to_string(),
        }
    }

    pub(super) fn optional<T, E: Display>(
        self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        self.text(key)
            .map(|text| parse(text).map_err(|error| self.wrong(key, error)))
            .transpose()
    }

    /// A value that always has a default.
    pub(super) fn parsed<T, E: Display>(
        self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        let text = self.text(key).unwrap_or_default();
        parse(text).map_err(|error| self.wrong(key, error))
    }

    pub(super) fn count(self, key: &'static str, min: usize) -> Result<usize, ConfigError> {
        self.parsed(key, number_at_least(min))
    }

    pub(super) fn path(self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        self.optional(key, |text| {
            if text.starts_with('/') {
                Ok(PathBuf::from(text))
            } else {
                Err(format!("{text:?} is not an absolute path"))
            }
        })
    }

    pub(super) fn word<T: Copy>(
        self,
        key: &'static str,
        words: &Words<T>,
    ) -> Result<T, ConfigError> {
        self.parsed(key, |text| {
            let known = || words.iter().map(|(word, _)| *word);
            words
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, value)| *value)
                .ok_or_else(|| {
                    let all = known().collect::<Vec<_>>().join(", ");
                    match nearest(text, known()) {
                        Some(near) => format!("{text:?} is none of {all}; did you mean {near}?"),
                        None => format!("{text:?} is none of {all}"),
                    }
                })
        })
    }

    pub(super) fn size_or_off(self, key: &'static str) -> Result<Option<u64>, ConfigError> {
        self.parsed(key, |text| match text {
            "off" => Ok(None),
            _ => parse_bytes(text).map(Some),
        })
    }

    pub(super) fn positive_duration(
        self,
        key: &'static str,
    ) -> Result<std::time::Duration, ConfigError> {
        let duration = self.parsed(key, parse_duration)?;
        if duration.is_zero() {
            return Err(self.wrong(key, "0 would fail every request; write 30s, say"));
        }
        Ok(duration)
    }
}

pub(super) fn number_at_least<T: FromStr + PartialOrd + Display + Copy>(
    min: T,
) -> impl Fn(&str) -> Result<T, String> {
    move |text| {
        let number: T = text
            .parse()
            .ok()
            .ok_or_else(|| format!("{text:?} is not a whole number, or too large"))?;
        if number < min {
            return Err(format!("{number} is too small; at least {min}"));
        }
        Ok(number)
    }
}
