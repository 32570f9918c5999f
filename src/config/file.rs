//! The configuration file: parses TOML into a [`Layer`], and writes a layer as TOML for a launch.
//!
//! Every key is one of [`KEYS`]; `[[origin]]` and `[[dataset]]` tables are the only nested ones. Errors
//! name the file and the line.

use super::ConfigError;
use super::datasets::OPTIONS;
use super::keys::{Form, KEYS, Key, find};
use super::layer::{Layer, RawValue, RawValues, Source};
use crate::nearest::nearest;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// The largest file that is read. One million hosts fit.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads the file at `path`.
///
/// # Errors
/// It cannot be read, is not TOML, or has unknown keys or invalid values.
pub fn read(path: &Path) -> Result<Layer, ConfigError> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(|source| ConfigError::unreadable("configuration file", path, source))?;
    parse(&text, path)
}

/// Parses `text`, the content of `path`.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, path: &Path) -> Result<Layer, ConfigError> {
    let document = Document { text, path };
    let table = DeTable::parse(text).map_err(|error| {
        document.wrong(error.span().unwrap_or_default(), error.message().trim())
    })?;
    let mut layer = Layer::default();
    for (name, value) in table.get_ref() {
        let key = find(name.get_ref())
            .ok_or_else(|| document.unknown(name, KEYS.iter().map(|key| key.name)))?;
        let values = match (key.name, key.form, value.get_ref()) {
            (name, Form::Many, DeValue::Array(items)) => items
                .iter()
                .map(|item| match (name, item.get_ref()) {
                    ("origin", DeValue::Table(table)) => document.origin(item, table),
                    ("dataset", DeValue::Table(table)) => document.dataset(item, table),
                    (_, DeValue::String(text)) => Ok(text.to_string().into()),
                    ("origin", _) => Err(document.wrong(
                        item.span(),
                        "an origin is \"PREFIX=URI\" or a table with prefix, uri and options",
                    )),
                    ("dataset", _) => Err(document.wrong(
                        item.span(),
                        "a dataset is \"NAME=PATH\" or a table with name, path and more",
                    )),
                    _ => document.plain(key, item).map(RawValue::from),
                })
                .collect::<Result<_, _>>()?,
            ("hosts", _, DeValue::Array(items)) => {
                let hosts: Vec<String> = items
                    .iter()
                    .map(|item| document.plain(key, item))
                    .collect::<Result<_, _>>()?;
                // The comma marks a list even if it has one entry.
                vec![(hosts.join(",") + ",").into()]
            }
            _ => vec![document.plain(key, value)?.into()],
        };
        let source = Source::File {
            path: path.to_owned(),
            line: document.line(&name.span()),
        };
        let values = RawValues { source, values };
        layer.options.insert(key.name, values);
    }
    Ok(layer)
}

struct Document<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Document<'_> {
    /// The line where `span` begins.
    fn line(&self, span: &Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }

    fn wrong(&self, span: Range<usize>, message: impl Into<String>) -> ConfigError {
        ConfigError::File {
            path: self.path.to_owned(),
            line: self.line(&span),
            message: message.into(),
        }
    }

    fn unknown<'k>(
        &self,
        name: &Spanned<DeString<'_>>,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> ConfigError {
        let key = name.get_ref();
        // Users copy flags into files, with dashes for underscores.
        let hint = match nearest(&key.replace('-', "_"), known.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known keys: {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.wrong(name.span(), format!("unknown key {key:?}; {hint}"))
    }

    /// A string, number or boolean.
    fn plain(&self, key: &Key, value: &Spanned<DeValue<'_>>) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Float(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(on) => Ok(on.to_string()),
            other => {
                let example = match key.default {
                    "" => key.value,
                    default => default,
                };
                let message = format!(
                    "{} is a {}, but one value was wanted, such as {example:?}",
                    key.name,
                    other.type_str(),
                );
                Err(self.wrong(value.span(), message))
            }
        }
    }

    /// `{ prefix = …, uri = …, options = {…} }`.
    fn origin(
        &self,
        origin: &Spanned<DeValue<'_>>,
        table: &DeTable<'_>,
    ) -> Result<RawValue, ConfigError> {
        let (mut prefix, mut uri, mut options) = ("/".to_owned(), None, BTreeMap::new());
        for (name, value) in table {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("prefix", DeValue::String(text)) => prefix = text.to_string(),
                ("uri", DeValue::String(text)) => uri = Some(text.to_string()),
                ("options", DeValue::Table(table)) => {
                    for (name, value) in table {
                        let text = self.text(name, value, "the option {}")?;
                        options.insert(name.get_ref().to_string(), text);
                    }
                }
                ("prefix" | "uri" | "options", _) => {
                    return Err(self.wrong_type(name, value, "{} of an origin"));
                }
                _ => return Err(self.unknown(name, ["prefix", "uri", "options"].into_iter())),
            }
        }
        let no_uri = || self.wrong(origin.span(), "this origin has no uri");
        let uri = uri.ok_or_else(no_uri)?;
        Ok(RawValue {
            text: format!("{prefix}={uri}"),
            options,
        })
    }

    /// `{ name = …, path = … or uri = …, index = …, … }`.
    fn dataset(
        &self,
        dataset: &Spanned<DeValue<'_>>,
        table: &DeTable<'_>,
    ) -> Result<RawValue, ConfigError> {
        let (mut name, mut place, mut options) = (None, None, BTreeMap::new());
        for (key, value) in table {
            if let DeValue::Boolean(_) = value.get_ref() {
                return Err(self.wrong_type(key, value, "{} of a dataset"));
            }
            let text = self.text(key, value, "{} of a dataset")?;
            match key.get_ref().as_ref() {
                "name" => name = Some(text),
                "path" | "uri" if place.is_some() => {
                    return Err(self.wrong(key.span(), "give a path or a uri, not both"));
                }
                "path" | "uri" => place = Some(text),
                known if OPTIONS.contains(&known) => {
                    options.insert(known.to_owned(), text);
                }
                _ => {
                    let known = ["name", "path", "uri"].into_iter().chain(OPTIONS);
                    return Err(self.unknown(key, known));
                }
            }
        }
        let missing = |what| self.wrong(dataset.span(), format!("this dataset has no {what}"));
        let name = name.ok_or_else(|| missing("name"))?;
        let place = place.ok_or_else(|| missing("path"))?;
        Ok(RawValue {
            text: format!("{name}={place}"),
            options,
        })
    }

    /// A value in a nested table. `subject` names the key in an error.
    fn text(
        &self,
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
        subject: &str,
    ) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) => Ok(number.as_str().to_owned()),
            DeValue::Boolean(on) => Ok(on.to_string()),
            _ => Err(self.wrong_type(name, value, subject)),
        }
    }

    fn wrong_type(
        &self,
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
        subject: &str,
    ) -> ConfigError {
        let subject = subject.replace("{}", name.get_ref());
        let message = format!("{subject} cannot be a {}", value.get_ref().type_str());
        self.wrong(name.span(), message)
    }
}

/// `layer` as the text of a configuration file.
#[must_use]
pub fn render(layer: &Layer) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let (mut text, mut tables) = (String::new(), String::new());
    for key in KEYS.iter().filter(|key| layer.is_set(key.name)) {
        let values = layer.values(key.name);
        match key.name {
            "origin" => {
                for origin in values {
                    let (prefix, uri) = super::origins::split(&origin.text);
                    let (prefix, uri) = (quoted(&prefix), quoted(&uri));
                    tables += &format!("\n[[origin]]\nprefix = {prefix}\nuri = {uri}\n");
                    if !origin.options.is_empty() {
                        tables += "[origin.options]\n";
                    }
                    for (option, value) in &origin.options {
                        tables += &format!("{} = {}\n", quoted(option), quoted(value));
                    }
                }
            }
            "dataset" => {
                for dataset in values {
                    let (name, path) = dataset.text.split_once('=').unwrap_or((&dataset.text, ""));
                    let (name, path) = (quoted(name), quoted(path));
                    tables += &format!("\n[[dataset]]\nname = {name}\npath = {path}\n");
                    for (option, value) in &dataset.options {
                        tables += &format!("{option} = {}\n", quoted(value));
                    }
                }
            }
            name => {
                let all: Vec<String> = values.iter().map(|value| quoted(&value.text)).collect();
                text += &match key.form {
                    Form::Many => format!("{name} = [{}]\n", all.join(", ")),
                    _ => format!("{name} = {}\n", all.join(", ")),
                };
            }
        }
    }
    text + &tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Layer, String> {
        parse(text, Path::new("job.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn unknown_keys_name_their_line_and_the_nearest_known_one() {
        let error = parsed("# a job\nmemroy = \"1GiB\"\n").unwrap_err();
        assert_eq!(
            error,
            "job.toml:2: unknown key \"memroy\"; did you mean memory?"
        );
        let error = parsed("request-timeout = 3").unwrap_err();
        assert!(error.contains("did you mean request_timeout?"), "{error}");
        let error = parsed("xyzzy = 3").unwrap_err();
        assert!(error.contains("known keys: mountpoint, origin"), "{error}");
        let error = parsed("[[origin]]\nuri = \"file:///x\"\noption = 3").unwrap_err();
        assert!(
            error.contains("job.toml:3:") && error.contains("options?"),
            "{error}"
        );
    }

    #[test]
    fn syntax_and_types_name_their_line() {
        let error = parsed("memory = \"1GiB\"\nrank = = 3\n").unwrap_err();
        assert!(error.starts_with("job.toml:2:"), "{error}");
        let error = parsed("\nmemory = [1]\n").unwrap_err();
        assert!(
            error.starts_with("job.toml:2: memory is a array"),
            "{error}"
        );
        let error = parsed("[[origin]]\nprefix = \"/x\"\n").unwrap_err();
        assert!(error.contains("no uri"), "{error}");
        for (table, hint) in [
            ("path = '/x'", "no name"),
            ("name = 'a'", "no path"),
            ("name = 'a'\npath = '/x'\nuri = 's3://b'", "not both"),
            (
                "name = 'a'\npath = '/x'\nbudgte = 1",
                "did you mean budget?",
            ),
            ("name = ['a']", "cannot be a array"),
        ] {
            let error = parsed(&format!("[[dataset]]\n{table}\n")).unwrap_err();
            assert!(error.contains(hint), "{table}: {error}");
        }
    }

    #[test]
    fn a_rendered_layer_is_parsed_back() {
        let layer = parsed(
            "memory = \"1GiB\"\nrank = 3\npush = false\nexclude = [\"/a\", \"/b,c\"]\n\
             hosts = [\"h1\"]\nmountpoint = '/with \"quotes\"'\n\
             [[origin]]\nprefix = \"/data\"\nuri = \"s3://bucket/a=b\"\n\
             [origin.options]\naws_secret_access_key = \"x\\ny\"\n\
             [[origin]]\nuri = \"file:///\"\n\
             [[dataset]]\nname = \"a\"\nuri = \"s3://bucket/a=b/x\"\nbudget = \"1GB\"\n\
             [[dataset]]\nname = \"b\"\npath = \"/x\"\n",
        )
        .unwrap();
        assert_eq!(layer.text("hosts"), Some("h1,"));
        assert_eq!(layer.text("rank"), Some("3"));
        let again = parsed(&render(&layer)).unwrap();
        for key in KEYS.iter() {
            assert_eq!(
                again.values(key.name),
                layer.values(key.name),
                "{}",
                key.name
            );
        }
    }
}
