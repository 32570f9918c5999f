//! How a namespace differs from its origins: the excluded paths, and the form of absolute links. For nodes that
//! have no origins open and know an origin's names from an index.
//!
//! The mount points of copperfs below an origin change while a daemon runs, and only a root sees them. They
//! are left out when an index is made, and not here.

use super::joined;
use super::links::LinkRules;
use super::open::{HostDirectory, excluded};
use crate::origin::options::{OriginOptions, OriginSpec};
use copperfs_overlay::{Attributes, ItemPath};

/// See the module.
#[derive(Clone, Default)]
pub struct NamespaceRules {
    prefixes: Vec<ItemPath>,
    excluded: Vec<ItemPath>,
    links: LinkRules,
}

impl NamespaceRules {
    /// The rules of a namespace of these origins. Opens none of them.
    #[must_use]
    pub fn new(specs: &[OriginSpec], options: &OriginOptions) -> Self {
        let mut this = Self {
            links: LinkRules::new(options.symlinks),
            ..Self::default()
        };
        for spec in specs {
            // Opening the origins reports a URI that cannot be understood.
            let directory = HostDirectory::of(&spec.uri).ok().flatten();
            let excluded = excluded(spec, directory.as_ref(), options).into_iter();
            this.excluded
                .extend(excluded.filter_map(|below| joined(&spec.prefix, &below)));
            let served = directory
                .iter()
                .flat_map(|directory| directory.served_at(&spec.prefix));
            this.links.served.extend(served);
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
}
