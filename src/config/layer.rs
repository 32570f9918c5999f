//! The options of one source as text, with the place where each is set.
//!
//! Three layers (flags, environment, file) are merged, and only the result is parsed. So each value is checked
//! once, and an error names the place where it is set.

use super::hosts::launcher::Launcher;
use super::keys::{Form, KEYS, find};
use crate::nearest::nearest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The source of an option's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// On the command line.
    Flag,
    /// In a `COPPERFS_*` variable.
    Environment,
    /// In a file, at a line counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// The table of keys: no source sets the option.
    Default,
}

/// An option and the source of its value, in the form that errors show: `--memory`, `COPPERFS_MEMORY`,
/// `job.toml:3: memory`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The source of the value.
    pub source: Source,
    /// The option.
    pub key: &'static str,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match &self.source {
            Source::Flag if key == "mountpoint" => f.write_str("MOUNTPOINT"),
            Source::Flag => write!(f, "--{}", key.replace('_', "-")),
            Source::Environment => write!(f, "COPPERFS_{}", key.to_ascii_uppercase()),
            Source::File { path, line } => write!(f, "{}:{line}: {key}", path.display()),
            Source::Default => write!(f, "the default of {key}"),
        }
    }
}

/// One value, not yet parsed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawValue {
    /// The text.
    pub text: String,
    /// For an origin, `object_store`'s options, which may be secrets. For a dataset, the other keys of its
    /// table. Only a file can set them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// Omits the values of the options, which may be secrets.
impl fmt::Debug for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawValue")
            .field("text", &self.text)
            .field("options", &self.options.keys())
            .finish()
    }
}

/// The values of one option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawValues {
    /// The source that sets them.
    pub source: Source,
    /// The values; exactly one unless the option may be repeated.
    pub values: Vec<RawValue>,
}

impl From<String> for RawValue {
    fn from(text: String) -> Self {
        Self {
            text,
            options: BTreeMap::new(),
        }
    }
}

/// Options by key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    try_from = "BTreeMap<String, RawValues>",
    into = "BTreeMap<String, RawValues>"
)]
pub struct Layer {
    pub(super) options: BTreeMap<&'static str, RawValues>,
}

/// Variables of copperfs that are no options: of jobs and tasks, of tests, and the configuration file.
const OTHER_VARIABLES: [&str; 8] = [
    "COPPERFS_CONFIG",
    "COPPERFS_JOB",
    "COPPERFS_DATASET",
    "COPPERFS_TASK",
    "COPPERFS_SPARK_JAR",
    "COPPERFS_FAILPOINTS",
    "COPPERFS_TEST_STRICT",
    "COPPERFS_TEST_REPORT",
];

/// There is no option of this name, or it has no value.
#[derive(Debug, thiserror::Error)]
pub enum NotAnOption {
    /// There is none.
    #[error("unknown key {name:?}{}", near.map_or_else(String::new, |near| format!("; did you mean {near}?")))]
    Unknown {
        /// The name.
        name: String,
        /// The option with the most similar name.
        near: Option<&'static str>,
    },
    /// One value is wanted, and there is another number of them.
    #[error("{0} takes one value")]
    Values(&'static str),
}

impl TryFrom<BTreeMap<String, RawValues>> for Layer {
    type Error = NotAnOption;

    fn try_from(named: BTreeMap<String, RawValues>) -> Result<Self, NotAnOption> {
        let options = named.into_iter().map(|(name, raw)| {
            let Some(key) = find(&name) else {
                let near = nearest(&name, KEYS.iter().map(|key| key.name));
                return Err(NotAnOption::Unknown { name, near });
            };
            if key.form != Form::Many && raw.values.len() != 1 {
                return Err(NotAnOption::Values(key.name));
            }
            Ok((key.name, raw))
        });
        let options = options.collect::<Result<_, _>>()?;
        Ok(Self { options })
    }
}

impl From<Layer> for BTreeMap<String, RawValues> {
    fn from(layer: Layer) -> Self {
        let options = layer.options.into_iter();
        options.map(|(name, raw)| (name.to_owned(), raw)).collect()
    }
}

impl Layer {
    /// Sets `key` to `values`.
    pub fn set(&mut self, key: &'static str, source: Source, values: Vec<String>) {
        let values = values.into_iter().map(RawValue::from).collect();
        self.options.insert(key, RawValues { source, values });
    }

    /// The layer as if flags had set all its options.
    #[must_use]
    pub fn as_flags(mut self) -> Self {
        for raw in self.options.values_mut() {
            raw.source = Source::Flag;
        }
        self
    }

    /// Removes `key`, and returns its values.
    pub fn remove(&mut self, key: &str) -> Option<RawValues> {
        self.options.remove(key)
    }

    /// The values of `key`; empty if it is not set.
    #[must_use]
    pub fn values(&self, key: &str) -> &[RawValue] {
        self.options.get(key).map_or(&[], |raw| &raw.values)
    }

    /// Whether `key` is set.
    #[must_use]
    pub fn is_set(&self, key: &str) -> bool {
        self.options.contains_key(key)
    }

    /// The single value of `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        Some(self.options.get(key)?.values.first()?.text.as_str())
    }

    /// The location of `key`, for errors.
    #[must_use]
    pub fn location(&self, key: &'static str) -> Location {
        let raw = self.options.get(key);
        let source = raw.map_or(Source::Default, |raw| raw.source.clone());
        Location { source, key }
    }

    /// Whether no option is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// This layer, without the options whose source `keep` does not accept.
    #[must_use]
    pub fn filtered(mut self, keep: impl Fn(&Source) -> bool) -> Self {
        self.options.retain(|_, raw| keep(&raw.source));
        self
    }

    /// This layer, with the values of `below` for the keys that it does not set.
    #[must_use]
    pub fn over(self, mut below: Self) -> Self {
        below.options.extend(self.options);
        below
    }

    /// The layer of the `COPPERFS_*` variables among `variables` that name an option. Others are ignored,
    /// because a module system may set `COPPERFS_HOME`. Empty values count as unset.
    #[must_use]
    pub fn from_environment(variables: &BTreeMap<String, String>) -> Self {
        let mut layer = Self::default();
        for key in KEYS.iter() {
            let Some(text) = variables.get(&key.variable()).filter(|v| !v.is_empty()) else {
                continue;
            };
            let values = match key.form {
                Form::Many => text.split(',').map(|v| v.trim().to_owned()).collect(),
                _ => vec![text.clone()],
            };
            layer.set(key.name, Source::Environment, values);
        }
        layer
    }

    /// The variables that look like options and are none, each with the option that is most similar.
    #[must_use]
    pub fn unknown_variables(
        variables: &BTreeMap<String, String>,
    ) -> Vec<(String, Option<String>)> {
        let names = variables.keys().filter(|name| {
            let is_own = name.starts_with("COPPERFS_") && !name.starts_with("COPPERFS_LRC_");
            let is_option = KEYS.iter().any(|key| key.variable() == **name);
            is_own && !is_option && !OTHER_VARIABLES.contains(&name.as_str())
        });
        let near = |name: &String| {
            let name = name.strip_prefix("COPPERFS_")?.to_ascii_lowercase();
            let near = nearest(&name, KEYS.iter().map(|key| key.name))?;
            Some(find(near)?.variable())
        };
        names.map(|name| (name.clone(), near(name))).collect()
    }

    /// Makes paths absolute: relative to the directory of the file that sets them, or to `working_dir`. A
    /// host list is a path if it names a file.
    #[must_use]
    pub fn absolute(mut self, working_dir: &Path) -> Self {
        for (key, raw) in &mut self.options {
            let base = match &raw.source {
                Source::File { path, .. } => path.parent().unwrap_or(working_dir),
                _ => working_dir,
            };
            let base = working_dir.join(base);
            for RawValue { text, options } in &mut raw.values {
                match *key {
                    "dataset" => {
                        *text = absolute_dataset(text, &base);
                        if let Some(index) = options.get_mut("index") {
                            *index = absolute_index(index, &base);
                        }
                    }
                    "index" => *text = absolute_index(text, &base),
                    "origin" => *text = absolute_origin(text, &base),
                    "native_profile" if text.contains("://") => {}
                    // A list or a launcher's word is not a path.
                    "hosts" if !names_host_file(text, &base) => {}
                    "mountpoint" | "data_mount" | "disk" | "hosts" | "secret_file" | "topology"
                    | "runtime_dir" | "log_file" | "native_profile" => {
                        *text = absolute_path(text, &base);
                    }
                    _ => {}
                }
            }
        }
        self
    }
}

/// Splits `NAME=PATH`. Returns `None` if the text does not begin with a name.
pub(super) fn split_name(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(name, _)| !name.contains('/'))
}

/// Splits `[PREFIX=]FILE`.
#[must_use]
pub fn split_prefix(text: &str) -> (Option<&str>, &str) {
    let split = text.split_once('=');
    split.map_or((None, text), |(prefix, file)| (Some(prefix), file))
}

/// `NAME=PATH` with an absolute path. URIs are not changed.
fn absolute_dataset(text: &str, base: &Path) -> String {
    match split_name(text) {
        Some((name, path)) if !path.contains("://") => {
            format!("{name}={}", absolute_path(path, base))
        }
        _ => text.to_owned(),
    }
}

/// `[PREFIX=]PATH` with an absolute path. URIs are not changed.
fn absolute_origin(text: &str, base: &Path) -> String {
    if text.contains("://") {
        return text.to_owned();
    }
    match text.split_once('=') {
        Some((prefix, path)) => format!("{prefix}={}", absolute_path(path, base)),
        None => absolute_path(text, base),
    }
}

/// `[PREFIX=]FILE` with an absolute path. URIs are not changed.
fn absolute_index(text: &str, base: &Path) -> String {
    match split_prefix(text) {
        (_, file) if file.starts_with("file://") => text.to_owned(),
        (Some(prefix), file) => format!("{prefix}={}", absolute_path(file, base)),
        (None, file) => absolute_path(file, base),
    }
}

/// `path` relative to `base`, without `.` components. `..` stays, because it may follow a symlink. An empty
/// path stays empty.
fn absolute_path(path: &str, base: &Path) -> String {
    if path.is_empty() || path.starts_with('/') {
        return path.to_owned();
    }
    without_dots(&base.join(path)).display().to_string()
}

/// `path` without `.` components.
pub(crate) fn without_dots(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}

/// Whether `hosts` names a file: it is no list and no launcher's word, and it has a slash or exists in `base`.
fn names_host_file(hosts: &str, base: &Path) -> bool {
    !hosts.contains(',')
        && Launcher::named(hosts).is_none()
        && (hosts.contains('/') || base.join(hosts).is_file())
}
