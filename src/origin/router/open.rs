//! Opens origins from their specifications.

use super::links::{LinkRules, Served};
use super::{Mount, Origins, Shared};
use crate::origin::counters::OriginCounters;
use crate::origin::error::{OriginError, redacted};
use crate::origin::exclusion::Exclusion;
use crate::origin::options::{OriginOptions, OriginSpec};
use crate::origin::posix::{PosixOrigin, real_path, uri_of};
use crate::origin::{ObjectOrigin, Origin, placeholder_directory};
use copperfs_overlay::{Attributes, ItemPath};
use percent_encoding::percent_decode_str;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn open(specs: &[OriginSpec], options: &OriginOptions) -> Result<Origins, OriginError> {
    if specs.is_empty() {
        return Err(OriginError::None);
    }
    let mut mounts: Vec<Mount> = Vec::with_capacity(specs.len());
    let mut links = LinkRules::new(options.symlinks);
    for spec in specs {
        if let Some(other) = mounts.iter().find(|mount| mount.prefix == spec.prefix) {
            return Err(OriginError::Duplicate {
                prefix: spec.prefix.to_string(),
                first: other.uri.clone(),
                second: redacted(&spec.uri),
            });
        }
        mounts.push(match HostDirectory::of(&spec.uri)? {
            Some(directory) => {
                links.served.extend(directory.served_at(&spec.prefix));
                posix(spec, &directory, options)?
            }
            None => object(spec, options)?,
        });
    }
    // The longest prefix that contains a path decides, so it must be found first.
    mounts.sort_by_key(|mount| std::cmp::Reverse(mount.prefix.as_bytes().len()));
    Ok(Origins {
        shared: Arc::new(Shared {
            mounts,
            links,
            counters: Arc::new(OriginCounters::default()),
            synthetic: Attributes {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                ..placeholder_directory()
            },
        }),
    })
}

/// A directory of this host that a URI names.
pub(super) struct HostDirectory {
    path: PathBuf,
    /// Without symlinks.
    real_path: PathBuf,
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
        let real_path = real_path(&path);
        let mut names: Vec<ItemPath> = [&path, &real_path]
            .into_iter()
            .filter_map(|path| ItemPath::parse(path.as_os_str().as_bytes()).ok())
            .collect();
        names.dedup();
        Ok(Some(Self {
            path,
            real_path,
            names,
        }))
    }

    pub(super) fn served_at(&self, prefix: &ItemPath) -> impl Iterator<Item = Served> {
        self.names.iter().map(|name| Served {
            host: name.clone(),
            prefix: prefix.clone(),
        })
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

fn posix(
    spec: &OriginSpec,
    directory: &HostDirectory,
    options: &OriginOptions,
) -> Result<Mount, OriginError> {
    let excluded = excluded(spec, Some(directory), options);
    let exclusion = Arc::new(Exclusion::below(&directory.real_path, excluded));
    let path = &directory.path;
    let origin = PosixOrigin::open_excluding(path, options, Arc::clone(&exclusion))?;
    Ok(Mount {
        prefix: spec.prefix.clone(),
        uri: spec.uri.clone(),
        canonical_uri: uri_of(path),
        origin: Arc::new(origin),
        exclusion,
        store: None,
    })
}

fn object(spec: &OriginSpec, options: &OriginOptions) -> Result<Mount, OriginError> {
    let store = ObjectOrigin::connect(spec, options)?;
    let origin: Arc<dyn Origin> = Arc::new(store.clone());
    Ok(Mount {
        prefix: spec.prefix.clone(),
        uri: redacted(&spec.uri),
        canonical_uri: store.address().to_owned(),
        origin,
        exclusion: Arc::new(Exclusion::of(excluded(spec, None, options))),
        store: Some(store),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
