//! The configuration file: parses TOML into a [`Layer`], and writes a layer as TOML for a launch.
//!
//! Every key is one of [`KEYS`]; `[[origin]]` and `[[dataset]]` tables are the only nested ones. Errors
//! name the file and the line.

use super::ConfigError;
use super::datasets::OPTIONS;
use super::keys::{Form, KEYS, Key};
use super::layer::{Layer, RawValue, RawValues, Source};
use crate::nearest::nearest;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
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
        let offset = error.span().map_or(0, |span| span.start);
        document.wrong(offset, error.message().trim().to_owned())
    })?;
    let mut layer = Layer::default();
    for (name, value) in table.get_ref() {
        let offset = name.span().start;
        let key = KEYS
            .iter()
            .find(|key| key.name == name.get_ref().as_ref())
            .ok_or_else(|| document.unknown(offset, name.get_ref(), KEYS.iter().map(|k| k.name)))?;
        let values = match (key.name, key.form, value.get_ref()) {
            (name, Form::Many, DeValue::Array(items)) => items
                .iter()
                .map(|item| match name {
                    "origin" => document.origin(item),
                    "dataset" => document.dataset(item),
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
            line: document.line(offset),
        };
        layer.insert(key.name, RawValues { source, values });
    }
    Ok(layer)
}

struct Document<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Document<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|&&b| b == b'\n').count()
    }

    fn wrong(&self, offset: usize, message: String) -> ConfigError {
        ConfigError::File {
            path: self.path.to_owned(),
            line: self.line(offset),
            message,
        }
    }

    fn unknown<'k>(
        &self,
        offset: usize,
        name: &str,
        known: impl Iterator<Item = &'k str> + Clone,
    ) -> ConfigError {
        // Users copy flags into files, with dashes for underscores.
        let hint = match nearest(&name.replace('-', "_"), known.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known keys: {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.wrong(offset, format!("unknown key {name:?}; {hint}"))
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
                Err(self.wrong(value.span().start, message))
            }
        }
    }

    /// `"PREFIX=URI"` or `{ prefix = …, uri = …, options = {…} }`.
    fn origin(&self, value: &Spanned<DeValue<'_>>) -> Result<RawValue, ConfigError> {
        let table = match value.get_ref() {
            DeValue::String(text) => return Ok(text.to_string().into()),
            DeValue::Table(table) => table,
            _ => {
                let message = "an origin is \"PREFIX=URI\" or a table with prefix, uri and options";
                return Err(self.wrong(value.span().start, message.into()));
            }
        };
        let (mut prefix, mut uri, mut options) = ("/".to_owned(), None, BTreeMap::new());
        for (name, value) in table {
            let key = name.get_ref().as_ref();
            match (key, value.get_ref()) {
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
                _ => {
                    let known = ["prefix", "uri", "options"];
                    return Err(self.unknown(name.span().start, key, known.into_iter()));
                }
            }
        }
        let uri =
            uri.ok_or_else(|| self.wrong(value.span().start, "this origin has no uri".into()))?;
        Ok(RawValue {
            text: format!("{prefix}={uri}"),
            options,
        })
    }

    /// `"NAME=PATH"` or `{ name = …, path = … or uri = …, index = …, … }`.
    fn dataset(&self, value: &Spanned<DeValue<'_>>) -> Result<RawValue, ConfigError> {
        let table = match value.get_ref() {
            DeValue::String(text) => return Ok(text.to_string().into()),
            DeValue::Table(table) => table,
            _ => {
                let message = "a dataset is \"NAME=PATH\" or a table with name, path and more";
                return Err(self.wrong(value.span().start, message.into()));
            }
        };
        let (mut name, mut place, mut options) = (None, None, BTreeMap::new());
        for (key, value) in table {
            let offset = key.span().start;
            if let DeValue::Boolean(_) = value.get_ref() {
                return Err(self.wrong_type(key, value, "{} of a dataset"));
            }
            let text = self.text(key, value, "{} of a dataset")?;
            match key.get_ref().as_ref() {
                "name" => name = Some(text),
                "path" | "uri" if place.is_some() => {
                    return Err(self.wrong(offset, "give a path or a uri, not both".into()));
                }
                "path" | "uri" => place = Some(text),
                known if OPTIONS.contains(&known) => {
                    options.insert(known.to_owned(), text);
                }
                unknown => {
                    let known = ["name", "path", "uri"].into_iter().chain(OPTIONS);
                    return Err(self.unknown(offset, unknown, known));
                }
            }
        }
        let missing = |what| self.wrong(value.span().start, format!("this dataset has no {what}"));
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
        self.wrong(name.span().start, message)
    }
}

/// `layer` as the text of a configuration file.
#[must_use]
pub fn render(layer: &Layer) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = String::new();
    let mut tables = String::new();
    for key in KEYS {
        if !layer.is_set(key.name) {
            continue;
        }
        let (name, values) = (key.name, layer.values(key.name));
        let all = || {
            values
                .iter()
                .map(|value| quoted(&value.text))
                .collect::<Vec<_>>()
                .join(", ")
        };
        // Writing to a String cannot fail.
        let _infallible = if key.name == "origin" {
            values.iter().try_for_each(|origin| {
                let (prefix, uri) = super::origins::split(&origin.text);
                writeln!(tables, "\n[[origin]]\nprefix = {}", quoted(&prefix))?;
                writeln!(tables, "uri = {}", quoted(&uri))?;
                if !origin.options.is_empty() {
                    writeln!(tables, "[origin.options]")?;
                }
                origin.options.iter().try_for_each(|(option, value)| {
                    writeln!(tables, "{} = {}", quoted(option), quoted(value))
                })
            })
        } else if key.name == "dataset" {
            values.iter().try_for_each(|dataset| {
                let (name, path) = dataset.text.split_once('=').unwrap_or((&dataset.text, ""));
                writeln!(tables, "\n[[dataset]]\nname = {}", quoted(name))?;
                writeln!(tables, "path = {}", quoted(path))?;
                dataset.options.iter().try_for_each(|(option, value)| {
                    writeln!(tables, "{option} = {}", quoted(value))
                })
            })
        } else if key.form == Form::Many {
            writeln!(text, "{name} = [{}]", all())
        } else {
            writeln!(text, "{name} = {}", all())
        };
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
        for key in KEYS {
            assert_eq!(
                again.values(key.name),
                layer.values(key.name),
                "{}",
                key.name
            );
        }
    }
}
