//! Parses the values of a [`Layer`].

use super::keys::find;
use super::layer::Layer;
use super::{ConfigError, ValueError};
use crate::nearest::nearest;
use copperfs_policy::amounts::{ByteSize, parse_duration};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Reads single values, with defaults from the table of keys.
impl Layer {
    /// The value or its default; `None` if both are unset.
    pub(super) fn value(&self, key: &'static str) -> Option<&str> {
        self.text(key)
            .or_else(|| find(key).map(|key| key.default))
            .filter(|text| !text.is_empty())
    }

    /// The error that the value of `key` is invalid.
    pub(super) fn wrong(&self, key: &'static str, source: impl Into<ValueError>) -> ConfigError {
        ConfigError::value(self.location(key), source)
    }

    pub(super) fn optional<T, E: Into<ValueError>>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        self.value(key)
            .map(|text| parse(text).map_err(|error| self.wrong(key, error)))
            .transpose()
    }

    /// A value that always has a default.
    pub(super) fn parsed<T, E: Into<ValueError>>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        let text = self.value(key).unwrap_or_default();
        parse(text).map_err(|error| self.wrong(key, error))
    }

    pub(super) fn count(&self, key: &'static str, min: usize) -> Result<usize, ConfigError> {
        self.parsed(key, number_at_least(min))
    }

    pub(super) fn path(&self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        self.optional(key, absolute_path)
    }

    /// The one of `values` for the word. They are in the order of the choices in the table of keys.
    pub(super) fn word<T: Copy>(&self, key: &'static str, values: &[T]) -> Result<T, ConfigError> {
        let words = find(key).map_or(&[][..], |key| key.choices);
        self.parsed(key, |text| {
            let mut pairs = words.iter().zip(values);
            let pair = pairs.find(|(word, _)| **word == text);
            pair.map(|(_, value)| *value).ok_or_else(|| {
                let all = words.join(", ");
                match nearest(text, words.iter().copied()) {
                    Some(near) => format!("{text:?} is none of {all}; did you mean {near}?"),
                    None => format!("{text:?} is none of {all}"),
                }
            })
        })
    }

    pub(super) fn bytes_or_off(&self, key: &'static str) -> Result<Option<u64>, ConfigError> {
        match self.value(key) {
            Some("off") => Ok(None),
            _ => self.bytes(key).map(Some),
        }
    }

    pub(super) fn bytes(&self, key: &'static str) -> Result<u64, ConfigError> {
        self.parsed(key, ByteSize::from_str).map(|size| size.0)
    }

    pub(super) fn positive_duration(&self, key: &'static str) -> Result<Duration, ConfigError> {
        let duration = self.parsed(key, parse_duration)?;
        if duration.is_zero() {
            return Err(self.wrong(key, "0 would fail every request: write a time such as 30s"));
        }
        Ok(duration)
    }
}

pub(super) fn absolute_path(text: &str) -> Result<PathBuf, ValueError> {
    if text.starts_with('/') {
        Ok(PathBuf::from(text))
    } else {
        Err(format!("{text:?} is not an absolute path").into())
    }
}

pub(super) fn number_at_least<T: FromStr + PartialOrd + Display + Copy>(
    min: T,
) -> impl Fn(&str) -> Result<T, ValueError> {
    move |text| match text.parse() {
        Ok(number) if number >= min => Ok(number),
        Ok(number) => Err(format!("{number} is too small; at least {min}").into()),
        Err(_) => Err(format!("{text:?} is not a whole number, or too large").into()),
    }
}
