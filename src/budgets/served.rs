//! Where a dataset lies: from what people write to a path of the namespace.

use crate::index::IndexFile;
use crate::origin::{OriginSpec, redacted};
use copperfs_overlay::ItemPath;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is served where.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The origins of the namespace.
    pub origins: Vec<OriginSpec>,
    /// Where the namespace is mounted on this host.
    pub mounts: Vec<PathBuf>,
}

impl Served {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeMap;

    pub(crate) fn served() -> Served {
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
}
