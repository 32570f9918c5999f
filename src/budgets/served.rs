//! Resolves what users write for a dataset or an index to a path of the namespace.

use crate::index::FileLocation;
use crate::origin::{OriginSpec, redacted};
use copperfs_overlay::{InvalidPath, ItemPath};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The origins of the namespace, and where it is mounted.
#[derive(Clone, Debug, Default)]
pub struct ServedPaths {
    /// The origins of the namespace.
    pub origins: Vec<OriginSpec>,
    /// The mount points of the namespace on this host.
    pub mounts: Vec<PathBuf>,
}

/// The location of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// Its path in the namespace.
    pub path: ItemPath,
    /// The URI that it was located by, without credentials, if it was one.
    pub uri: Option<String>,
}

/// Why a text does not locate a dataset or an index.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LocateError {
    /// It is neither a path nor a URI.
    #[error(
        "{0:?} is neither an absolute path nor a URI; write /lus/data/imagenet, or \
         s3://bucket/imagenet"
    )]
    Relative(String),
    /// It is no path of the namespace.
    #[error("{text}: {source}")]
    Path {
        /// The text.
        text: String,
        /// Why it is no path.
        source: InvalidPath,
    },
    /// No origin serves it.
    #[error("no origin serves {location}; served are: {served}")]
    NotServed {
        /// The path or URI.
        location: String,
        /// The prefixes and URIs of all origins.
        served: String,
    },
    /// An index needs an absolute path.
    #[error("the index {0:?} is not an absolute path")]
    RelativeIndex(String),
}

impl ServedPaths {
    /// Returns the location that `text` denotes: a path below a mount point, a path of the namespace, or
    /// a URI that an origin serves.
    ///
    /// # Errors
    /// See [`LocateError`].
    pub fn locate(&self, text: &str) -> Result<Location, LocateError> {
        if text.contains("://") {
            let (path, uri) = (self.path_of_uri(text)?, Some(redacted(text)));
            return Ok(Location { path, uri });
        }
        if !text.starts_with('/') {
            return Err(LocateError::Relative(text.to_owned()));
        }
        let mut mounts = self.mounts.iter();
        let inside = mounts.find_map(|mount| Path::new(text).strip_prefix(mount).ok());
        let bytes = inside.unwrap_or(Path::new(text)).as_os_str().as_bytes();
        let path = ItemPath::parse(bytes).map_err(|source| LocateError::Path {
            text: format!("{text:?}"),
            source,
        })?;
        if self.serving(&path).next().is_none() {
            return Err(self.not_served(path.to_string()));
        }
        Ok(Location { path, uri: None })
    }

    /// Returns the location of the index of the tree `of`, or of another file that nodes read: a file of the namespace, or
    /// of the hosts.
    ///
    /// A path is one of the hosts. It denotes a file of the namespace if a directory that an origin serves
    /// contains it, or else if it is below `of` or below the prefix of an origin, other than `/`. A URI that an origin serves
    /// denotes a file of the namespace too, except for `file:///path`, which is always a file of the hosts.
    ///
    /// # Errors
    /// See [`LocateError`].
    pub fn locate_file(&self, text: &str, of: &ItemPath) -> Result<FileLocation, LocateError> {
        if let Some(path) = text.strip_prefix("file://") {
            return on_host(path, text);
        }
        if text.contains("://") {
            return self.path_of_uri(text).map(FileLocation::Tree);
        }
        if text.starts_with('/')
            && let Ok(path) = self.path_of_uri(&format!("file://{text}"))
        {
            return Ok(FileLocation::Tree(path));
        }
        let inside = ItemPath::parse(text.as_bytes()).ok();
        let is_named = |path: &ItemPath| {
            let mut above = self.serving(path);
            (path.is_within(of) && !of.is_root()) || above.any(|prefix| !prefix.is_root())
        };
        let named = inside.filter(is_named);
        named.map_or_else(|| on_host(text, text), |path| Ok(FileLocation::Tree(path)))
    }

    /// The prefixes that `path` is below.
    fn serving<'a>(&'a self, path: &'a ItemPath) -> impl Iterator<Item = &'a ItemPath> {
        let prefixes = self.origins.iter().map(|origin| &origin.prefix);
        prefixes.filter(|prefix| path.is_within(prefix))
    }

    fn path_of_uri(&self, uri: &str) -> Result<ItemPath, LocateError> {
        let served = self.origins.iter().filter_map(|origin| {
            let below = uri.strip_prefix(origin.uri.trim_end_matches('/'))?;
            // `s3://bucket/set` does not serve `s3://bucket/settle`.
            (below.is_empty() || below.starts_with('/')).then_some((origin, below))
        });
        let (origin, below) = served
            .max_by_key(|(origin, _)| origin.uri.len())
            .ok_or_else(|| self.not_served(redacted(uri)))?;
        let path = format!("{}/{}", origin.prefix, below.trim_start_matches('/'));
        ItemPath::parse(path.as_bytes()).map_err(|source| LocateError::Path {
            text: redacted(uri),
            source,
        })
    }

    fn not_served(&self, location: String) -> LocateError {
        let served = self.origins.iter();
        let served: Vec<String> = served
            .map(|origin| format!("{} ({})", origin.prefix, redacted(&origin.uri)))
            .collect();
        let served = served.join(", ");
        LocateError::NotServed { location, served }
    }
}

fn on_host(path: &str, text: &str) -> Result<FileLocation, LocateError> {
    if !path.starts_with('/') {
        return Err(LocateError::RelativeIndex(text.to_owned()));
    }
    Ok(FileLocation::Local(path.into()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    pub(crate) fn served() -> ServedPaths {
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
        ServedPaths {
            origins: origins.map(spec).into(),
            mounts: vec!["/copper_mnt".into(), "/copper_data".into()],
        }
    }

    #[test]
    fn a_location_is_a_path_of_a_mount_or_of_the_namespace_or_a_served_uri() {
        for (text, path, is_uri) in [
            ("/lus/x", "/lus/x", false),
            ("/copper_data/lus/x/", "/lus/x", false),
            ("/copper_mnt/data", "/data", false),
            ("file:///lus/x", "/lus/x", true),
            ("s3://bucket/set", "/data", true),
            ("s3://bucket/set/a/b/", "/data/a/b", true),
            ("s3://bucket/set/x/deep/1", "/data/deep/1", true),
        ] {
            let found = served().locate(text).unwrap();
            assert_eq!(found.path.to_string(), path, "{text}");
            assert_eq!(found.uri.is_some(), is_uri, "{text}");
        }
        for (text, hint) in [
            ("/home/x", "served are: /lus (file:///lus)"),
            ("s3://bucket/settle", "no origin serves s3://bucket/settle"),
            ("x", "neither an absolute path nor a URI"),
            ("/lus/../x", ".."),
        ] {
            let error = served().locate(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn an_index_is_in_the_namespace_or_on_the_roots() {
        let mut other = served();
        other.origins[0].prefix = ItemPath::parse(b"/").unwrap();
        let sets = ItemPath::parse(b"/set").unwrap();
        for (served, text, found) in [
            (&other, "/set/.index", "tree /set/.index"),
            (&served(), "/data/.index", "tree /data/.index"),
            (&served(), "s3://bucket/set/.index", "tree /data/.index"),
            (&served(), "/lus/.index", "tree /lus/.index"),
            (&served(), "/var/x.index", "host /var/x.index"),
            (&served(), "file:///data/.index", "host /data/.index"),
            (&other, "/lus/.index", "tree /.index"),
            (&other, "/lustre.index", "host /lustre.index"),
        ] {
            let found_here = match served.locate_file(text, &sets).unwrap() {
                FileLocation::Tree(path) => format!("tree {path}"),
                FileLocation::Local(path) => format!("host {}", path.display()),
            };
            assert_eq!(found_here, found, "{text}");
        }
        for wrong in ["x.index", "file://x.index", "s3://other/.index"] {
            assert!(served().locate_file(wrong, &sets).is_err(), "{wrong}");
        }
    }
}
