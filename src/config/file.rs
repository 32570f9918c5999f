//! The configuration file: TOML in, a [`Layer`] out, and back again for a launch.
//!
//! Every key is one of [`KEYS`]; `[[origin]]` and `[[dataset]]` tables are the only nested ones. Errors
//! name the file and the line.

use super::ConfigError;
use super::datasets::OPTIONS;
use super::keys::{Form, KEYS, Key};
use super::layer::{Given, Layer, Source, Written};
use crate::nearest::nearest;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The largest file that is read: one million hosts fit.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads the file at `path`.
///
/// # Errors
/// It cannot be read, is no TOML, or has keys or values that are not known.
pub fn read(path: &Path) -> Result<Layer, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable {
        what: "configuration file",
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
        .map_err(unreadable)?;
    parse(&text, path)
}

/// Parses `text`, which stands in `path`.
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
            ("origin", _, DeValue::Array(items)) => items
                .iter()
                .map(|item| document.origin(item))
                .collect::<Result<_, _>>()?,
            ("dataset", _, DeValue::Array(items)) => items
                .iter()
                .map(|item| document.dataset(item))
                .collect::<Result<_, _>>()?,
            (_, Form::Many, DeValue::Array(items)) => items
                .iter()
                .map(|item| document.plain(key, item))
                .collect::<Result<_, _>>()?,
            ("hosts", _, DeValue::Array(items)) => {
                let hosts: Vec<String> = items
                    .iter()
                    .map(|item| document.plain(key, item).map(|written| written.text))
                    .collect::<Result<_, _>>()?;
                // The comma marks a list even if it has one entry.
                vec![written(hosts.join(",") + ",")]
            }
            _ => vec![document.plain(key, value)?],
        };
        let source = Source::File {
            path: path.to_owned(),
            line: document.line(offset),
        };
        layer.set_given(key.name, Given { source, values });
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
        // People write flags into files: the spelling with dashes is the nearest of all.
        let hint = match nearest(&name.replace('-', "_"), known.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("known keys: {}", known.collect::<Vec<_>>().join(", ")),
        };
        self.wrong(offset, format!("unknown key {name:?}; {hint}"))
    }

    /// A string, number or boolean.
    fn plain(&self, key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Written, ConfigError> {
        Ok(written(match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(on) => on.to_string(),
            other => {
                let message = format!(
                    "{} is a {}, but one value was wanted, such as {:?}",
                    key.name,
                    other.type_str(),
                    if key.default.is_empty() {
                        key.value
                    } else {
                        key.default
                    },
                );
                return Err(self.wrong(value.span().start, message));
            }
        }))
    }

    /// `"PREFIX=URI"` or `{ prefix = …, uri = …, options = {…} }`.
    fn origin(&self, value: &Spanned<DeValue<'_>>) -> Result<Written, ConfigError> {
        let table = match value.get_ref() {
            DeValue::String(text) => return Ok(written(text.to_string())),
            DeValue::Table(table) => table,
            _ => {
                let message = "an origin is \"PREFIX=URI\" or a table with prefix, uri and options";
                return Err(self.wrong(value.span().start, message.into()));
            }
        };
        let (mut prefix, mut uri, mut options) = ("/".to_owned(), None, BTreeMap::new());
        for (name, value) in table {
            let offset = name.span().start;
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("prefix", DeValue::String(text)) => prefix = text.to_string(),
                ("uri", DeValue::String(text)) => uri = Some(text.to_string()),
                ("options", DeValue::Table(table)) => options = self.options(table)?,
                (known @ ("prefix" | "uri" | "options"), other) => {
                    let message = format!("{known} of an origin cannot be a {}", other.type_str());
                    return Err(self.wrong(offset, message));
                }
                (unknown, _) => {
                    let known = ["prefix", "uri", "options"];
                    return Err(self.unknown(offset, unknown, known.into_iter()));
                }
            }
        }
        let uri =
            uri.ok_or_else(|| self.wrong(value.span().start, "this origin has no uri".into()))?;
        Ok(Written {
            text: format!("{prefix}={uri}"),
            options,
        })
    }

    /// `"NAME=PATH"` or `{ name = …, path = … or uri = …, index = …, … }`.
    fn dataset(&self, value: &Spanned<DeValue<'_>>) -> Result<Written, ConfigError> {
        let table = match value.get_ref() {
            DeValue::String(text) => return Ok(written(text.to_string())),
            DeValue::Table(table) => table,
            _ => {
                let message = "a dataset is \"NAME=PATH\" or a table with name, path and more";
                return Err(self.wrong(value.span().start, message.into()));
            }
        };
        let (mut name, mut place, mut options) = (None, None, BTreeMap::new());
        for (key, value) in table {
            let offset = key.span().start;
            let text = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.as_str().to_owned(),
                other => {
                    let message = format!(
                        "{} of a dataset cannot be a {}",
                        key.get_ref(),
                        other.type_str()
                    );
                    return Err(self.wrong(offset, message));
                }
            };
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
        Ok(Written {
            text: format!("{name}={place}"),
            options,
        })
    }

    fn options(&self, table: &DeTable<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
        table
            .iter()
            .map(|(name, value)| {
                let text = match value.get_ref() {
                    DeValue::String(text) => text.to_string(),
                    DeValue::Integer(number) => number.as_str().to_owned(),
                    DeValue::Boolean(on) => on.to_string(),
                    other => {
                        let message = format!(
                            "the option {} cannot be a {}",
                            name.get_ref(),
                            other.type_str()
                        );
                        return Err(self.wrong(name.span().start, message));
                    }
                };
                Ok((name.get_ref().to_string(), text))
            })
            .collect()
    }
}

fn written(text: String) -> Written {
    Written {
        text,
        options: BTreeMap::new(),
    }
}

/// `layer` as the text of a configuration file.
#[must_use]
pub fn render(layer: &Layer) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = String::new();
    let mut tables = String::new();
    for key in KEYS {
        let Some(given) = layer.get(key.name) else {
            continue;
        };
        let name = key.name;
        let values: Vec<String> = given.values.iter().map(|v| quoted(&v.text)).collect();
        // Writing to a String cannot fail.
        let _infallible = if key.name == "origin" {
            given.values.iter().try_for_each(|origin| {
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
            given.values.iter().try_for_each(|dataset| {
                let (name, place) = dataset.text.split_once('=').unwrap_or((&dataset.text, ""));
                writeln!(tables, "\n[[dataset]]\nname = {}", quoted(name))?;
                writeln!(tables, "path = {}", quoted(place))?;
                dataset.options.iter().try_for_each(|(option, value)| {
                    writeln!(tables, "{option} = {}", quoted(value))
                })
            })
        } else if key.form == Form::Many {
            writeln!(text, "{name} = [{}]", values.join(", "))
        } else {
            writeln!(text, "{name} = {}", values.join(", "))
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
    fn what_is_rendered_is_read_back() {
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
        for (key, given) in layer.iter() {
            assert_eq!(
                again.get(key).map(|g| &g.values),
                Some(&given.values),
                "{key}"
            );
        }
        assert_eq!(again.iter().count(), layer.iter().count());
    }
}
