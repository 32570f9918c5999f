//! The options of a running daemon, and the changes that `copperfs reload` asks for.
//!
//! Decides which options change, and which of them cannot. It reads the configuration file, and applies nothing: that
//! is the node's.

use super::keys::{Form, KEYS, Key, Reload};
use super::layer::{Layer, RawValue, Source};
use super::{ConfigError, Location, Machine, Settings, file, origins, resolve};
use crate::origin::{permission_options, redacted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The options of a daemon, with their sources. No `Debug`: the variables hold credentials.
#[derive(Clone, Serialize, Deserialize)]
pub struct Options {
    /// All options, with absolute paths.
    pub layer: Layer,
    /// The configuration file, which a reload reads again.
    pub config: Option<PathBuf>,
    /// The variables for object stores, if a reload has changed them; `None`: those of the process.
    pub environment: Option<BTreeMap<String, String>>,
}

/// The options that a reload asks for. No `Debug`: they hold credentials.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The options that are named: they replace those of the same name.
    #[serde(default)]
    pub options: Layer,
    /// A configuration file, which replaces the daemon's: its absolute path, and its options.
    #[serde(default)]
    pub config: Option<(PathBuf, Layer)>,
    /// Whether to read the configuration file again, if `config` is not given, and the credentials.
    #[serde(default)]
    pub again: bool,
    /// Variables for object stores. They replace those of the same name; an empty one removes it.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Whether to tell only what would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// An option or variable that changes. The values are shown to the owner, so they hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The key, or the variable.
    pub key: String,
    /// Its present value.
    pub from: String,
    /// The value that is asked for.
    pub to: String,
    /// The place where it is set. `None`: a variable for object stores.
    #[serde(skip)]
    pub location: Option<Location>,
    /// Why it cannot change, if it cannot: empty if no part of it can.
    #[serde(skip)]
    pub refused: Option<&'static str>,
}

/// An option of a daemon, as it is shown to the owner: without credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownOption {
    /// The key.
    pub key: &'static str,
    /// Its value; `None` if it has none.
    pub value: Option<String>,
    /// The place where it is set, in the form that errors show; `None` if it has its default.
    pub source: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to, .. } = self;
        match from == to {
            // Only a secret part of it differs.
            true => write!(f, "{key}: (changed)"),
            false => write!(f, "{key}: {from} -> {to}"),
        }
    }
}

/// Options that cannot change while a mount lasts. The text names all of them.
#[derive(Debug, thiserror::Error)]
#[error(
    "only a new mount can change this, so nothing has changed: {}",
    .0.iter().map(refusal).collect::<Vec<_>>().join("; ")
)]
pub struct CannotChange(pub Vec<Change>);

fn refusal(change: &Change) -> String {
    let Change { key, from, to, .. } = change;
    let source = change.location.as_ref().map(|location| &location.source);
    let place = match (source, &change.location) {
        (Some(Source::Default) | None, _) | (_, None) => "the default would be".to_owned(),
        (_, Some(location)) => format!("{location} asks for"),
    };
    let (from, to) = match from == to {
        true => ("", "other options"),
        false => (from.as_str(), to.as_str()),
    };
    let is = if from.is_empty() {
        String::new()
    } else {
        format!(" is {from}, and")
    };
    match change.refused {
        Some(part) if !part.is_empty() => {
            format!("{key}{is} {place} {to} (what can change: {part})")
        }
        _ => format!("{key}{is} {place} {to}"),
    }
}

impl Options {
    /// The options of a daemon that starts with `layer`, whose file is `config`.
    #[must_use]
    pub fn new(layer: Layer, config: Option<PathBuf>) -> Self {
        Self {
            layer,
            config,
            environment: None,
        }
    }

    /// All options with their values and places, in the order of the table of keys.
    #[must_use]
    pub fn shown(&self) -> Vec<ShownOption> {
        let keys = KEYS.iter().map(|key| {
            let value = whole(key.name, &values(&self.layer, key.name));
            let location = self.layer.location(key.name);
            let is_set = location.source != Source::Default;
            ShownOption {
                key: key.name,
                source: is_set.then(|| shown_source(key, &location, &value)),
                value: (!value.is_empty()).then_some(value),
            }
        });
        keys.collect()
    }

    /// The settings of a daemon with these options on `machine`.
    ///
    /// # Errors
    /// See [`resolve`](fn@resolve).
    pub fn settings(&self, machine: &Machine) -> Result<Settings, ConfigError> {
        match &self.environment {
            None => resolve(&self.layer, machine),
            Some(variables) => {
                let mut machine = machine.clone();
                machine.set_storage_environment(variables);
                resolve(&self.layer, &machine)
            }
        }
    }

    /// The options after `request`. `variables` are the present ones for object stores.
    ///
    /// The result is the one of the command that has mounted, if it were given now with the named options added: a key
    /// that the file no longer sets returns to its default, and flags of the mount override the file.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn after(
        &self,
        request: &Request,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut next = self.clone();
        let read = match (&request.config, &self.config) {
            (Some((path, layer)), _) => Some((path.clone(), layer.clone())),
            (None, Some(path)) if request.again => {
                Some((path.clone(), file::read(path)?.absolute(Path::new("/"))))
            }
            (None, _) => None,
        };
        if let Some((path, mut layer)) = read {
            // Their paths were made canonical when the mount was made.
            for key in ["mountpoint", "data_mount"] {
                layer.make_canonical(key);
            }
            let given = |source: &Source| matches!(source, Source::Flag | Source::Environment);
            let by_default = |source: &Source| *source == Source::Default;
            let below = layer.over(self.layer.clone().filtered(by_default));
            next.layer = self.layer.clone().filtered(given).over(below);
            next.config = Some(path);
        }
        next.layer = request.options.clone().over(next.layer);
        if !request.environment.is_empty() {
            next.environment = Some(merged(variables, &request.environment));
        }
        Ok(next)
    }

    /// The options and variables that differ in `next`. `before` and `after` are the variables for object stores.
    #[must_use]
    pub fn changes(
        &self,
        next: &Self,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) -> Vec<Change> {
        let of_keys = KEYS.iter().filter_map(|key| {
            let (from, to) = (values(&self.layer, key.name), values(&next.layer, key.name));
            if from == to {
                return None;
            }
            let refused = match key.reload {
                Reload::Live => None,
                Reload::Remount => Some(""),
                Reload::Partly(what) => (!part_can(key.name, &from, &to)).then_some(what),
            };
            Some(Change {
                key: key.name.to_owned(),
                from: shown(key.name, &from),
                to: shown(key.name, &to),
                location: Some(next.layer.location(key.name)),
                refused,
            })
        });
        let names: std::collections::BTreeSet<&String> =
            before.keys().chain(after.keys()).collect();
        let differ = names
            .into_iter()
            .filter(|name| before.get(*name) != after.get(*name));
        let of_variables = differ.map(|name| Change {
            key: name.clone(),
            from: String::new(),
            to: String::new(),
            location: None,
            refused: None,
        });
        of_keys.chain(of_variables).collect()
    }
}

/// Checks that each of `changes` can be applied to a running daemon.
///
/// # Errors
/// Some cannot.
pub fn check(changes: &[Change]) -> Result<(), CannotChange> {
    let refused = changes.iter().filter(|change| change.refused.is_some());
    let refused: Vec<Change> = refused.cloned().collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(CannotChange(refused)),
    }
}

/// The text that says where `value` of `key` is set.
fn shown_source(key: &Key, location: &Location, value: &str) -> String {
    match (key.form, &location.source, value) {
        (Form::Switch, Source::Flag, "false") => format!("--no-{}", key.flag()),
        _ => location.to_string(),
    }
}

/// The values of `key`, with its default.
fn values(layer: &Layer, key: &'static str) -> Vec<RawValue> {
    match layer.value(key) {
        _ if layer.values(key).len() > 1 => layer.values(key).to_vec(),
        Some(text) if !layer.is_set(key) => vec![text.to_owned().into()],
        Some(_) => layer.values(key).to_vec(),
        None if key == "exclude" && layer.is_set(key) => layer.values(key).to_vec(),
        None => Vec::new(),
    }
}

/// Whether a running daemon can change the option `key`, which it can change in part, from one value to the other.
fn part_can(key: &str, from: &[RawValue], to: &[RawValue]) -> bool {
    match key {
        "origin" => {
            from.len() == to.len()
                && from.iter().zip(to).all(|(from, to)| {
                    let (before, after) = (&from.options, &to.options);
                    from.text == to.text && permission_options(before) == permission_options(after)
                })
        }
        "disk" => {
            let directory = |values: &[RawValue]| {
                let text = values.first()?.text.rsplit_once(':')?.0.to_owned();
                Some(text)
            };
            let directory_is = directory(from);
            directory_is.is_some() && directory_is == directory(to)
        }
        _ => false,
    }
}

/// The maximum number of characters of a value that is shown.
const SHOWN_MAX: usize = 80;

/// The text of `values` without credentials.
fn whole(key: &str, values: &[RawValue]) -> String {
    let text = |value: &RawValue| match key {
        "origin" => {
            let (prefix, uri) = origins::split(&value.text);
            format!("{prefix}={}", redacted(&uri))
        }
        _ => value.text.clone(),
    };
    values.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The text of `values` for a message.
fn shown(key: &str, values: &[RawValue]) -> String {
    let mut all = whole(key, values);
    if all.is_empty() {
        return "unset".to_owned();
    }
    if all.chars().count() > SHOWN_MAX {
        all = all.chars().take(SHOWN_MAX).collect::<String>() + "…";
    }
    all
}

/// Variables of which each is only good with the others: a key without its session token is another identity.
const SESSION_TOKENS: [&str; 2] = ["AWS_SESSION_TOKEN", "AWS_TOKEN"];

/// `present` variables, with `given` ones instead.
fn merged(
    present: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut merged = present.clone();
    if given.contains_key("AWS_ACCESS_KEY_ID") {
        merged.retain(|name, _| !SESSION_TOKENS.contains(&name.as_str()));
    }
    merged.extend(given.clone());
    merged.retain(|_, value| !value.is_empty());
    merged
}

impl Layer {
    /// Resolves the links of the path `key`, if it is set, except within the last directory of it: that may be the
    /// daemon's own mount, which it must not enter.
    fn make_canonical(&mut self, key: &'static str) {
        let source = self.location(key).source;
        let Some(mut path) = self
            .text(key)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
        else {
            return;
        };
        for _ in 0..LINKS_MAX {
            let Some((parent, name)) = path.parent().zip(path.file_name()) else {
                break;
            };
            if let Ok(parent) = parent.canonicalize() {
                path = parent.join(name);
            }
            let Ok(target) = std::fs::read_link(&path) else {
                break;
            };
            path = path.parent().unwrap_or(Path::new("/")).join(target);
        }
        self.set(key, source, vec![path.display().to_string()]);
    }
}

/// Links that are followed, as by the kernel.
const LINKS_MAX: usize = 40;

#[cfg(test)]
mod tests;
