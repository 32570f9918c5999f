//! How the namespace differs from its origins, without the origins: what is excluded, and how absolute
//! links are shown. For who knows an origin's names from elsewhere (an index), on any node.
//!
//! Where copperfs is mounted below an origin changes while a daemon runs, and only a root sees it: such
//! mount points are left out when an index is made, not here.

use super::links::{self, Served};
use super::open::directory;
use crate::origin::options::{OriginOptions, OriginSpec, SymlinkPolicy};
use crate::origin::posix::real_path;
use copperfs_overlay::{Attributes, ItemPath};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct NamespaceRules {
    prefixes: Vec<ItemPath>,
    served: Vec<Served>,
    hidden: Vec<ItemPath>,
    symlinks: SymlinkPolicy,
}

impl NamespaceRules {
    /// The rules of a namespace of these origins. Nothing is opened.
    #[must_use]
    pub fn new(specs: &[OriginSpec], options: &OriginOptions) -> Self {
        let mut this = Self {
            symlinks: options.symlinks,
            ..Self::default()
        };
        for spec in specs {
            this.prefixes.push(spec.prefix.clone());
            let root = directory(&spec.uri).ok().flatten();
            let hosts: Vec<ItemPath> = match &root {
                Some(root) => [root.clone(), real_path(root)]
                    .iter()
                    .filter_map(|path| ItemPath::parse(path.as_os_str().as_bytes()).ok())
                    .collect(),
                None => Vec::new(),
            };
            // Of a directory, paths of the host are excluded; of a store, paths of the namespace.
            let bases = if root.is_some() {
                &hosts[..]
            } else {
                std::slice::from_ref(&spec.prefix)
            };
            let mut below: Vec<ItemPath> = options
                .exclude
                .iter()
                .flat_map(|path| bases.iter().filter_map(|base| path.strip_prefix(base)))
                .filter(|below| !below.is_root())
                .collect();
            if options.default_exclude && root.as_deref() == Some(Path::new("/")) {
                let paths = OriginOptions::DEFAULT_EXCLUDE.iter();
                below.extend(paths.filter_map(|path| ItemPath::parse(path.as_bytes()).ok()));
            }
            let placed = below
                .iter()
                .filter_map(|below| below_prefix(&spec.prefix, below));
            this.hidden.extend(placed);
            this.served.extend(hosts.into_iter().map(|host| Served {
                host,
                prefix: spec.prefix.clone(),
            }));
        }
        this
    }

    /// Where the origins stand.
    #[must_use]
    pub fn prefixes(&self) -> &[ItemPath] {
        &self.prefixes
    }

    /// Whether `path` is excluded.
    #[must_use]
    pub fn hides(&self, path: &ItemPath) -> bool {
        self.hidden.iter().any(|hidden| path.is_within(hidden))
    }

    /// Shows a link at `path` as the policy wants it.
    pub fn rewrite(&self, path: &ItemPath, attributes: &mut Attributes) {
        let Some(target) = &attributes.link_target else {
            return;
        };
        if self.symlinks == SymlinkPolicy::Keep {
            return;
        }
        if let Some(text) = links::relative(path, target, &self.served, |path| self.hides(path)) {
            attributes.size = text.len() as u64;
            attributes.link_target = Some(text.into());
        }
    }
}

fn below_prefix(prefix: &ItemPath, below: &ItemPath) -> Option<ItemPath> {
    below
        .components()
        .try_fold(prefix.clone(), |path, name| path.join(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_excluded_is_hidden_and_no_link_leads_there() {
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
            let mut link = super::super::synthetic_attributes();
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
}
