//! Opens origins from their specifications.

use super::rules::{HostDirectory, NamespaceRules, excluded};
use super::{Mount, Origins, Shared};
use crate::origin::counters::OriginCounters;
use crate::origin::error::{OriginError, redacted};
use crate::origin::exclusion::Exclusion;
use crate::origin::options::{OriginOptions, OriginSpec};
use crate::origin::posix::{PosixOrigin, uri_of};
use crate::origin::{ObjectOrigin, own_directory};
use std::sync::Arc;

impl Origins {
    /// Opens every origin of `specs`. Directories are opened; nothing is sent to object stores yet.
    ///
    /// # Errors
    /// The first origin that cannot be served.
    pub fn open(specs: &[OriginSpec], options: &OriginOptions) -> Result<Self, OriginError> {
        if specs.is_empty() {
            return Err(OriginError::None);
        }
        let mut mounts: Vec<Mount> = Vec::with_capacity(specs.len());
        for spec in specs {
            if let Some(other) = mounts.iter().find(|mount| mount.prefix == spec.prefix) {
                return Err(OriginError::Duplicate {
                    prefix: spec.prefix.to_string(),
                    first: other.uri.clone(),
                    second: redacted(&spec.uri),
                });
            }
            mounts.push(mount(spec, options)?);
        }
        // The longest prefix that contains a path decides, so it must be found first.
        mounts.sort_by_key(|mount| std::cmp::Reverse(mount.prefix.as_bytes().len()));
        Ok(Self {
            shared: Arc::new(Shared {
                mounts,
                links: NamespaceRules::new(specs, options).links,
                counters: Arc::new(OriginCounters::default()),
                synthetic: own_directory(),
            }),
        })
    }
}

fn mount(spec: &OriginSpec, options: &OriginOptions) -> Result<Mount, OriginError> {
    let prefix = spec.prefix.clone();
    let directory = HostDirectory::of(&spec.uri)?;
    let excluded = excluded(spec, directory.as_ref(), options);
    let Some(HostDirectory {
        path, real_path, ..
    }) = directory
    else {
        let store = ObjectOrigin::connect(spec, options)?;
        return Ok(Mount {
            prefix,
            uri: redacted(&spec.uri),
            canonical_uri: store.address().to_owned(),
            origin: Arc::new(store.clone()),
            exclusion: Arc::new(Exclusion::of(excluded)),
            store: Some(store),
        });
    };
    let exclusion = Arc::new(Exclusion::below(&real_path, excluded));
    let origin = PosixOrigin::open_excluding(&path, options, Arc::clone(&exclusion))?;
    Ok(Mount {
        prefix,
        uri: spec.uri.clone(),
        canonical_uri: uri_of(&path),
        origin: Arc::new(origin),
        exclusion,
        store: None,
    })
}
