//! Where a dataset lies: from what people write to a path of the namespace.
//!
//! Used for `[[dataset]]` tables and `--dataset`, and by the daemon for what the API is asked to add.

use super::layer::Written;
use super::settings::{IndexFile, OriginSpec, Settings};
use super::units::parse_bytes;
use crate::budgets::registry::{Limits, Registry};
use crate::budgets::{DatasetSpec, OriginReaders};
use crate::origin::redacted;
use copperfs_overlay::ItemPath;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a table of a dataset may hold besides its name and place.
pub const OPTIONS: [&str; 3] = ["index", "budget", "origin_readers"];

/// What is served where.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The origins of the namespace.
    pub origins: Vec<OriginSpec>,
    /// Where the namespace is mounted on this host.
    pub mounts: Vec<PathBuf>,
}

impl Served {
    /// What a node with these settings serves.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let mounts = [&settings.mountpoint].into_iter();
        Self {
            origins: settings.origins.clone(),
            mounts: mounts.chain(&settings.data_mount).cloned().collect(),
        }
    }

    /// The path of the namespace that `text` means: a path below a mount point, a path of the
    /// namespace, or a URI that an origin serves; and the URI without credentials, if it is one.
    ///
    /// # Errors
    /// What is wrong with it, and what is served.
    pub fn place(&self, text: &str) -> Result<(ItemPath, Option<String>), String> {
        if text.contains("://") {
            return Ok((self.of_uri(text)?, Some(redacted(text))));
        }
        if !text.starts_with('/') {
            return Err(format!(
                "{text:?} is neither an absolute path nor a URI; write /lus/data/imagenet, or \
                 s3://bucket/imagenet"
            ));
        }
        let below = |mount: &PathBuf| Path::new(text).strip_prefix(mount).ok().map(Path::to_owned);
        let inside = self.mounts.iter().find_map(below);
        let bytes = match &inside {
            Some(path) => path.as_os_str().as_bytes(),
            None => text.as_bytes(),
        };
        let path = ItemPath::parse(bytes).map_err(|error| format!("{text:?}: {error}"))?;
        if !self.holds(&path) {
            return Err(format!("no origin serves {path}; {}", self.shown()));
        }
        Ok((path, None))
    }

    fn holds(&self, path: &ItemPath) -> bool {
        let mut origins = self.origins.iter();
        origins.any(|origin| path.is_within(&origin.prefix))
    }

    fn of_uri(&self, uri: &str) -> Result<ItemPath, String> {
        let found = self.origins.iter().filter_map(|origin| {
            let below = uri.strip_prefix(origin.uri.trim_end_matches('/'))?;
            (below.is_empty() || below.starts_with('/')).then_some((origin, below))
        });
        let nearest = found.max_by_key(|(origin, _)| origin.uri.len());
        let Some((origin, below)) = nearest else {
            return Err(format!(
                "no origin serves {}; {}",
                redacted(uri),
                self.shown()
            ));
        };
        let path = format!("{}/{}", origin.prefix, below.trim_start_matches('/'));
        ItemPath::parse(path.as_bytes()).map_err(|error| format!("{}: {error}", redacted(uri)))
    }

    fn shown(&self) -> String {
        let served = self.origins.iter();
        let served: Vec<String> = served
            .map(|origin| format!("{} ({})", origin.prefix, redacted(&origin.uri)))
            .collect();
        format!("served are: {}", served.join(", "))
    }

    /// Where a dataset's index is: in the namespace, or a file of the roots' hosts.
    ///
    /// # Errors
    /// It is not an absolute path.
    pub fn index(&self, text: &str) -> Result<IndexFile, String> {
        let (local, path) = match text.strip_prefix("file://") {
            Some(path) => (true, path),
            None => (false, text),
        };
        if !path.starts_with('/') {
            return Err(format!("the index {text:?} is not an absolute path"));
        }
        let inside = ItemPath::parse(path.as_bytes()).ok();
        Ok(match inside.filter(|path| !local && self.holds(path)) {
            Some(path) => IndexFile::Tree(path),
            None => IndexFile::Local(PathBuf::from(path)),
        })
    }
}

/// The datasets of `written`, checked against each other.
///
/// # Errors
/// What is wrong with the first that makes no sense, and what to try.
pub(super) fn parse_all(written: &[Written], served: &Served) -> Result<Vec<DatasetSpec>, String> {
    let mut registry = Registry::default();
    let mut specs = Vec::new();
    for one in written.iter().filter(|one| !one.text.is_empty()) {
        let spec = parse(one, served)?;
        // How much cache there is comes out when the nodes have started.
        registry
            .add_dataset(spec.clone(), &Limits::default())
            .map_err(|error| format!("{error}. {}", error.advice()))?;
        specs.push(spec);
    }
    Ok(specs)
}

/// Splits `NAME=PATH`.
///
/// # Errors
/// There is no name in front.
pub fn split(text: &str) -> Result<(&str, &str), String> {
    match text.split_once('=') {
        Some((name, place)) if !name.contains('/') => Ok((name, place)),
        _ => Err(format!(
            "{text:?} has no name in front; write imagenet=/lus/data/imagenet"
        )),
    }
}

fn parse(written: &Written, served: &Served) -> Result<DatasetSpec, String> {
    let (name, place) = split(&written.text)?;
    let (path, uri) = served.place(place)?;
    let mut spec = DatasetSpec {
        uri,
        ..DatasetSpec::new(name, path)
    };
    for (option, value) in &written.options {
        match option.as_str() {
            "index" => {
                served.index(value)?;
                spec.index = Some(value.clone());
            }
            "budget" => spec.budget = Some(parse_bytes(value).map_err(|error| error.to_string())?),
            "origin_readers" => spec.origin_readers = origin_readers(value)?,
            other => return Err(format!("{other:?} is no option of a dataset")),
        }
    }
    Ok(spec)
}

/// `roots` or `homes`.
///
/// # Errors
/// Anything else.
pub fn origin_readers(text: &str) -> Result<OriginReaders, String> {
    match text {
        "roots" => Ok(OriginReaders::Roots),
        "homes" => Ok(OriginReaders::Homes),
        _ => Err(format!("{text:?} is neither roots nor homes")),
    }
}

/// `text` with an absolute path in place of one relative to `base`; URIs stay.
pub(super) fn absolute(text: &str, base: &Path, tidy: impl Fn(&Path) -> PathBuf) -> String {
    match split(text) {
        Ok((name, place))
            if !place.is_empty() && !place.starts_with('/') && !place.contains("://") =>
        {
            format!("{name}={}", tidy(&base.join(place)).display())
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn served() -> Served {
        let spec = |(prefix, uri): (&str, &str)| OriginSpec {
            prefix: ItemPath::parse(prefix.as_bytes()).unwrap(),
            uri: uri.into(),
            options: BTreeMap::new(),
        };
        let origins = [
            ("/lus", "file:///lus"),
            ("/data", "s3://bucket/set/"),
            ("/data/deep", "s3://bucket/set/x/deep"),
        ];
        Served {
            origins: origins.map(spec).into(),
            mounts: vec!["/copper_mnt".into(), "/copper_data".into()],
        }
    }

    fn written(text: &str, options: &[(&str, &str)]) -> Written {
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Written {
            text: text.into(),
            options: options.collect(),
        }
    }

    #[test]
    fn a_place_is_a_path_of_a_mount_or_of_the_namespace_or_a_served_uri() {
        for (text, path, is_uri) in [
            ("/lus/x", "/lus/x", false),
            ("/copper_data/lus/x/", "/lus/x", false),
            ("/copper_mnt/data", "/data", false),
            ("file:///lus/x", "/lus/x", true),
            ("s3://bucket/set", "/data", true),
            ("s3://bucket/set/a/b/", "/data/a/b", true),
            ("s3://bucket/set/x/deep/1", "/data/deep/1", true),
        ] {
            let (found, uri) = served().place(text).unwrap();
            assert_eq!(
                (found.to_string().as_str(), uri.is_some()),
                (path, is_uri),
                "{text}"
            );
        }
        for (text, hint) in [
            ("/home/x", "served are: /lus (file:///lus)"),
            ("s3://bucket/settle", "no origin serves s3://bucket/settle"),
            ("x", "neither an absolute path nor a URI"),
            ("/lus/../x", ".."),
        ] {
            let error = served().place(text).unwrap_err();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn an_index_is_in_the_namespace_or_on_the_roots() {
        let tree = served().index("/data/.index").unwrap();
        assert!(matches!(tree, IndexFile::Tree(_)));
        for local in ["/var/x.index", "file:///data/.index"] {
            assert!(matches!(served().index(local), Ok(IndexFile::Local(_))));
        }
        assert!(served().index("x.index").is_err());
    }

    #[test]
    fn datasets_are_checked_against_each_other() {
        let table = [("budget", "2GiB"), ("origin_readers", "homes")];
        let specs = parse_all(
            &[
                written("a=/lus/a", &table),
                written("b=s3://bucket/set", &[]),
            ],
            &served(),
        )
        .unwrap();
        assert_eq!(specs[0].budget, Some(2 << 30));
        assert_eq!(specs[0].origin_readers, OriginReaders::Homes);
        assert_eq!(specs[1].path.to_string(), "/data");
        for (texts, hint) in [
            (["a=/lus/a", "a=/lus/b"], "already"),
            (["a=/lus/a", "b=/lus/a/b"], "overlaps"),
            (["a=/lus/a", "/lus/b"], "no name in front"),
            (["a=/lus/a", "b /=/lus/b"], "no name in front"),
            (["a=/lus/a", "b c=/lus/b"], "cannot be the name"),
        ] {
            let all = texts.map(|text| written(text, &[]));
            let error = parse_all(&all, &served()).unwrap_err();
            assert!(error.contains(hint), "{texts:?}: {error}");
        }
        let wrong = written("a=/lus/a", &[("budget", "-1")]);
        let error = parse_all(&[wrong], &served()).unwrap_err();
        assert!(error.contains("is not a size"), "{error}");
    }
}
