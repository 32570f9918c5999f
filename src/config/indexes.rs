//! Values of `--index`, checked without access to the file.

use super::ValueError;
use super::layer::split_prefix;
use super::origins::parse_prefix;
use super::settings::IndexSpec;
use crate::budgets::ServedPaths;

/// Parses an index of the namespace `served`.
///
/// Every node reads a file of the namespace through the tree. Files of the hosts are only read by roots. See
/// [`ServedPaths::locate_file`].
///
/// # Errors
/// The value is invalid.
pub(super) fn parse(text: &str, served: &ServedPaths) -> Result<IndexSpec, ValueError> {
    const FORM: &str = "write PREFIX=FILE, as in /data=/data/.index or /data=file:///var/idx/data";
    let (prefix, file) = split_prefix(text);
    let prefix = match (prefix, served.origins.as_slice()) {
        (Some(prefix), _) => parse_prefix(prefix, FORM)?,
        (None, [only]) => only.prefix.clone(),
        (None, _) => {
            let why = "there are several origins: say of which one this is the index";
            return Err(format!("{why}; {FORM}").into());
        }
    };
    // The origin with the longest prefix serves a path.
    let origins = served.origins.iter();
    let serving = origins.filter(|origin| prefix.is_within(&origin.prefix));
    let origin = serving
        .max_by_key(|origin| origin.prefix.as_bytes().len())
        .ok_or_else(|| format!("no origin serves {prefix}; {FORM}"))?;
    let below = prefix.strip_prefix(&origin.prefix);
    let below = below.filter(|below| !below.is_root());
    let base = origin.uri.strip_suffix('/').unwrap_or(&origin.uri);
    let uri = match below {
        Some(below) => format!("{base}/{}", String::from_utf8_lossy(below.as_bytes())),
        None => origin.uri.clone(),
    };
    let file = served
        .locate_file(file, &prefix)
        .map_err(|error| format!("{error}; {FORM}"))?;
    Ok(IndexSpec { prefix, file, uri })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::{FileLocation, OriginSpec};
    use copperfs_overlay::ItemPath;
    use std::collections::BTreeMap;

    fn origins(given: &[(&str, &str)]) -> Vec<OriginSpec> {
        let spec = |&(prefix, uri): &(&str, &str)| OriginSpec {
            prefix: ItemPath::parse(prefix.as_bytes()).unwrap(),
            uri: uri.into(),
            options: BTreeMap::new(),
        };
        given.iter().map(spec).collect()
    }

    fn parsed(text: &str, origins: &[OriginSpec]) -> Result<String, ValueError> {
        let served = ServedPaths {
            origins: origins.to_vec(),
            mounts: Vec::new(),
        };
        parse(text, &served).map(|spec| {
            let file = match spec.file {
                FileLocation::Local(path) => format!("local {}", path.display()),
                FileLocation::Tree(path) => format!("tree {path}"),
            };
            format!("{} of {}: {file}", spec.prefix, spec.uri)
        })
    }

    #[test]
    fn the_forms_of_an_index() {
        let one = origins(&[("/data", "s3://bucket/set/")]);
        let two = origins(&[("/", "file:///"), ("/data", "s3://bucket/set")]);
        for (text, origins, found) in [
            ("/x/i", &one, "/data of s3://bucket/set/: local /x/i"),
            ("/data/i", &one, "/data of s3://bucket/set/: tree /data/i"),
            (
                "file:///data/i",
                &one,
                "/data of s3://bucket/set/: local /data/i",
            ),
            (
                "/data/a=/x/i",
                &one,
                "/data/a of s3://bucket/set/a: local /x/i",
            ),
            ("/data=/x/i", &two, "/data of s3://bucket/set: tree /x/i"),
            ("/lus=/lus/a=b", &two, "/lus of file:///lus: tree /lus/a=b"),
        ] {
            assert_eq!(parsed(text, origins).unwrap(), found, "{text}");
        }
    }

    #[test]
    fn wrong_indexes_say_how_they_should_look() {
        let one = origins(&[("/data", "s3://bucket/set")]);
        let two = origins(&[("/a", "file:///a"), ("/data", "s3://bucket/set")]);
        for (text, origins, hint) in [
            ("/x/i", &two, "several origins"),
            ("/other=/x/i", &one, "no origin serves /other"),
            ("data=/x/i", &one, "does not begin with a slash"),
            ("/data=x/i", &one, "not an absolute path"),
            ("/a/../b=/x", &one, ".."),
        ] {
            let error = parsed(text, origins).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
