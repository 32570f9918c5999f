//! One source of options before it is understood: texts, and where each came from.
//!
//! Three layers (flags over environment over file) are laid on one another, and only the result is
//! parsed, so that a value is checked once and its error names the place it was written at.

use super::assigned::{absolute, split_prefix};
use super::hosts::launcher::Launcher;
use super::keys::{Form, KEYS};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where an option was given.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Nowhere.
    Default,
}

/// An option and the place it was given at, as errors name them: `--memory`,
/// `COPPERFS_MEMORY`, `job.toml:3: memory`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub source: Source,
    /// Which option.
    pub key: &'static str,
}

impl fmt::Display for Place {
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

/// One value as written.
#[derive(Clone, PartialEq, Eq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// Of an origin: `object_store`'s options; they may be secrets. Of a dataset: what stands in its
    /// table. Only a file can hold them.
    pub options: BTreeMap<String, String>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written")
            .field("text", &self.text)
            .field("options", &self.options.keys())
            .finish()
    }
}

/// The values of one option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Where they were given.
    pub source: Source,
    /// The values; exactly one unless the option may be repeated.
    pub values: Vec<Written>,
}

/// Options by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layer {
    given: BTreeMap<&'static str, Given>,
}

impl Layer {
    /// Sets `key` to `values`.
    pub fn set(&mut self, key: &'static str, source: Source, values: Vec<String>) {
        let values = values
            .into_iter()
            .map(|text| Written {
                text,
                options: BTreeMap::new(),
            })
            .collect();
        self.set_given(key, Given { source, values });
    }

    /// Sets `key`.
    pub fn set_given(&mut self, key: &'static str, given: Given) {
        self.given.insert(key, given);
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) -> Option<Given> {
        self.given.remove(key)
    }

    /// What was given for `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Given> {
        self.given.get(key)
    }

    /// The single value of `key`.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        Some(self.given.get(key)?.values.first()?.text.as_str())
    }

    /// The place of `key`.
    #[must_use]
    pub fn place(&self, key: &'static str) -> Place {
        let source = self
            .given
            .get(key)
            .map_or(Source::Default, |given| given.source.clone());
        Place { source, key }
    }

    /// What was given, in the order of the keys' names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Given)> {
        self.given.iter().map(|(key, given)| (*key, given))
    }

    /// This layer with `below` showing through wherever it has no value.
    #[must_use]
    pub fn over(mut self, below: Self) -> Self {
        for (key, given) in below.given {
            self.given.entry(key).or_insert(given);
        }
        self
    }

    /// The layer of the `COPPERFS_*` variables among `variables`; others are not ours to judge (a
    /// module system may well set `COPPERFS_HOME`). Empty values count as unset.
    #[must_use]
    pub fn from_environment(variables: &BTreeMap<String, String>) -> Self {
        let mut layer = Self::default();
        for key in KEYS {
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

    /// Makes the values that are paths absolute: against the directory of the file they stand in, or
    /// `working_dir`. A host list counts when it names a file that way.
    #[must_use]
    pub fn absolute(mut self, working_dir: &Path) -> Self {
        const PATHS: [&str; 6] = [
            "mountpoint",
            "data_mount",
            "secret_file",
            "topology",
            "runtime_dir",
            "log_file",
        ];
        for (key, given) in &mut self.given {
            let base = match &given.source {
                Source::File { path, .. } => path.parent().unwrap_or(working_dir),
                _ => working_dir,
            };
            let base = working_dir.join(base);
            for value in &mut given.values {
                if *key == "dataset" {
                    value.text = absolute(&value.text, &base, tidy);
                    if let Some(index) = value.options.get_mut("index") {
                        *index = absolute_index(index, &base);
                    }
                    continue;
                }
                if *key == "index" {
                    value.text = absolute_index(&value.text, &base);
                    continue;
                }
                let names_file = PATHS.contains(key)
                    || (*key == "hosts" && names_host_file(&value.text) && {
                        value.text.contains('/') || base.join(&value.text).is_file()
                    });
                if names_file && !value.text.is_empty() && !value.text.starts_with('/') {
                    value.text = tidy(&base.join(&value.text)).display().to_string();
                }
            }
        }
        self
    }
}

/// `[PREFIX=]FILE` with an absolute path.
fn absolute_index(text: &str, base: &Path) -> String {
    let (prefix, file) = split_prefix(text);
    if file.is_empty() || file.starts_with('/') || file.starts_with("file://") {
        return text.to_owned();
    }
    let file = tidy(&base.join(file)).display().to_string();
    prefix.map_or(file.clone(), |prefix| format!("{prefix}={file}"))
}

/// Whether `hosts` may be the name of a file: no list, and no launcher's word.
fn names_host_file(hosts: &str) -> bool {
    !hosts.contains(',') && Launcher::named(hosts).is_none()
}

/// `path` without `.` components (`..` stays: behind a symlink it is not what it seems).
fn tidy(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}
