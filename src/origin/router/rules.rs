//! How a namespace differs from its origins: the excluded paths, and the form of absolute links. Also for nodes
//! that have no origins open and know an origin's names from an index.
//!
//! The mount points of copperfs below an origin change while a daemon runs, and only a root sees them. They
//! are left out when an index is made, and not here.

use super::links::{LinkRules, Served};
use crate::origin::error::OriginError;
use crate::origin::options::{OriginOptions, OriginSpec};
use copperfs_overlay::{Attributes, ItemPath};
use percent_encoding::percent_decode_str;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Clone, Default)]
pub struct NamespaceRules {
    prefixes: Vec<ItemPath>,
    excluded: Vec<ItemPath>,
    pub(super) links: LinkRules,
}

impl NamespaceRules {
    /// The rules of a namespace of these origins. Opens none of them.
    #[must_use]
    pub fn new(specs: &[OriginSpec], options: &OriginOptions) -> Self {
        let mut this = Self::default();
        this.links.policy = options.symlinks;
        for spec in specs {
            // Opening the origins reports a URI that cannot be understood.
            let directory = HostDirectory::of(&spec.uri).ok().flatten();
            let excluded = excluded(spec, directory.as_ref(), options).into_iter();
            this.excluded
                .extend(excluded.filter_map(|below| spec.prefix.below(&below).ok()));
            let names = directory.into_iter().flat_map(|directory| directory.names);
            this.links.served.extend(names.map(|host| Served {
                host,
                prefix: spec.prefix.clone(),
            }));
            this.prefixes.push(spec.prefix.clone());
        }
        this
    }

    /// The prefixes of the origins.
    #[must_use]
    pub fn prefixes(&self) -> &[ItemPath] {
        &self.prefixes
    }

    /// Whether `path` is excluded.
    #[must_use]
    pub fn hides(&self, path: &ItemPath) -> bool {
        self.excluded
            .iter()
            .any(|excluded| path.is_within(excluded))
    }

    /// Changes the target of a link at `path` to the form in which the namespace shows it.
    pub fn rewrite(&self, path: &ItemPath, attributes: &mut Attributes) {
        self.links
            .rewrite(path, attributes, |path| self.hides(path));
    }
}

/// A directory of this host that a URI names.
pub(super) struct HostDirectory {
    pub(super) path: PathBuf,
    /// Without symlinks.
    pub(super) real_path: PathBuf,
    /// Both paths, or one if they are equal. Link targets and exclusions may use either.
    names: Vec<ItemPath>,
}

impl HostDirectory {
    /// Returns `None` for a URI of an object store.
    pub(super) fn of(uri: &str) -> Result<Option<Self>, OriginError> {
        let path = match uri.strip_prefix("file://") {
            Some(path) => percent_decode_str(path).collect(),
            None if uri.starts_with('/') => uri.as_bytes().to_vec(),
            None => return Ok(None),
        };
        if path.first() != Some(&b'/') {
            return Err(OriginError::Uri {
                uri: uri.to_owned(),
                reason: "a directory is named by an absolute path, with three slashes".to_owned(),
            });
        }
        let path = PathBuf::from(OsString::from_vec(path));
        let real_path = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
        let names = [&path, &real_path].map(|path| ItemPath::parse(path.as_os_str().as_bytes()));
        let mut names: Vec<ItemPath> = names.into_iter().flatten().collect();
        names.dedup();
        Ok(Some(Self {
            path,
            real_path,
            names,
        }))
    }
}

/// The configured exclusions of an origin, relative to it. For a directory, `exclude` has paths of the host;
/// for a store, paths of the namespace.
pub(super) fn excluded(
    spec: &OriginSpec,
    directory: Option<&HostDirectory>,
    options: &OriginOptions,
) -> Vec<ItemPath> {
    let bases = match directory {
        Some(directory) => &directory.names[..],
        None => std::slice::from_ref(&spec.prefix),
    };
    let mut excluded: Vec<ItemPath> = options
        .exclude
        .iter()
        .flat_map(|path| bases.iter().filter_map(|base| path.strip_prefix(base)))
        .filter(|below| !below.is_root())
        .collect();
    let is_top = directory.is_some_and(|directory| directory.real_path == Path::new("/"));
    if options.default_exclude && is_top {
        let paths = OriginOptions::DEFAULT_EXCLUDE.iter();
        excluded.extend(paths.filter_map(|path| ItemPath::parse(path.as_bytes()).ok()));
    }
    excluded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;
    use std::collections::BTreeMap;

    #[test]
    fn excluded_paths_are_hidden_and_no_link_leads_there() {
        let spec = |prefix: &str, uri: &str| OriginSpec {
            prefix: path(prefix),
            uri: uri.into(),
            options: BTreeMap::new(),
        };
        let specs = [
            spec("/lus", "file:///no-such-lus"),
            spec("/data", "s3://bucket/set"),
        ];
        let options = OriginOptions {
            exclude: vec![path("/no-such-lus/tmp"), path("/data/old"), path("/other")],
            ..OriginOptions::default()
        };
        let rules = NamespaceRules::new(&specs, &options);
        assert!(rules.hides(&path("lus/tmp")) && rules.hides(&path("lus/tmp/a")));
        assert!(rules.hides(&path("data/old/x")));
        assert!(!rules.hides(&path("lus/tmpx")) && !rules.hides(&path("lus")));
        let shown = |target: &str| {
            let mut link = crate::origin::placeholder_directory();
            link.link_target = Some(bytes::Bytes::copy_from_slice(target.as_bytes()));
            rules.rewrite(&path("lus/a/link"), &mut link);
            let text = link.link_target.unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        assert_eq!(shown("/no-such-lus/b"), "../b");
        assert_eq!(shown("/no-such-lus/tmp/b"), "/no-such-lus/tmp/b");
        assert_eq!(shown("/etc/passwd"), "/etc/passwd");
        assert_eq!(shown("b"), "b");
    }

    /// The opened origin follows the link, so the default exclusions must apply for a node without it, too.
    #[test]
    fn a_link_to_the_top_of_the_host_has_the_default_exclusions() {
        let scratch = tempfile::tempdir().unwrap();
        let link = scratch.path().join("host");
        std::os::unix::fs::symlink("/", &link).unwrap();
        let specs = [OriginSpec {
            prefix: path("/all"),
            uri: format!("file://{}", link.display()),
            options: BTreeMap::new(),
        }];
        let options = OriginOptions {
            default_exclude: true,
            ..OriginOptions::default()
        };
        let rules = NamespaceRules::new(&specs, &options);
        assert!(rules.hides(&path("all/proc")) && !rules.hides(&path("all/usr")));
    }

    #[test]
    fn percent_signs_that_encode_nothing_stay() {
        for (uri, path) in [
            ("file:///a%20b%c3%a9", "/a bé"),
            ("file:///100%", "/100%"),
            ("file:///%zz%+1", "/%zz%+1"),
            ("/a%20b", "/a%20b"),
        ] {
            let directory = HostDirectory::of(uri).unwrap().unwrap();
            assert_eq!(directory.path, Path::new(path), "{uri}");
        }
    }
}
