//! From specifications to open origins.

use super::links::Served;
use super::{Mount, Origins, Shared, synthetic_attributes};
use crate::origin::counters::OriginCounters;
use crate::origin::error::{OriginError, redacted};
use crate::origin::exclusion::Exclusion;
use crate::origin::options::{OriginOptions, OriginSpec};
use crate::origin::posix::{PosixOrigin, real_path, uri_of};
use crate::origin::{ObjectOrigin, Origin};
use copperfs_overlay::ItemPath;
use percent::decoded;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn open(specs: &[OriginSpec], options: &OriginOptions) -> Result<Origins, OriginError> {
    if specs.is_empty() {
        return Err(OriginError::None);
    }
    let mut mounts: Vec<Mount> = Vec::with_capacity(specs.len());
    let mut served = Vec::new();
    for spec in specs {
        if let Some(other) = mounts.iter().find(|mount| mount.prefix == spec.prefix) {
            return Err(OriginError::Duplicate {
                prefix: spec.prefix.to_string(),
                first: other.uri.clone(),
                second: redacted(&spec.uri),
            });
        }
        mounts.push(match directory(&spec.uri)? {
            Some(root) => posix(spec, &root, options, &mut served)?,
            None => object(spec, options)?,
        });
    }
    mounts.sort_by_key(|mount| std::cmp::Reverse(mount.prefix.as_bytes().len()));
    Ok(Origins {
        shared: Arc::new(Shared {
            mounts,
            served,
            symlinks: options.symlinks,
            counters: Arc::new(OriginCounters::default()),
            synthetic: synthetic_attributes(),
        }),
    })
}

/// The directory that a URI stands for, if it is one of this host.
pub(super) fn directory(uri: &str) -> Result<Option<PathBuf>, OriginError> {
    let path = match uri.strip_prefix("file://") {
        Some(path) => decoded(path),
        None if uri.starts_with('/') => uri.as_bytes().to_vec(),
        None => return Ok(None),
    };
    if path.first() != Some(&b'/') {
        return Err(OriginError::Uri {
            uri: uri.to_owned(),
            reason: "a directory is named by an absolute path, with three slashes".to_owned(),
        });
    }
    Ok(Some(PathBuf::from(OsString::from_vec(path))))
}

fn posix(
    spec: &OriginSpec,
    root: &Path,
    options: &OriginOptions,
    served: &mut Vec<Served>,
) -> Result<Mount, OriginError> {
    let real = real_path(root);
    let hosts: Vec<ItemPath> = [root, &real]
        .into_iter()
        .filter_map(|path| ItemPath::parse(path.as_os_str().as_bytes()).ok())
        .collect();
    let mut fixed: Vec<ItemPath> = options
        .exclude
        .iter()
        .flat_map(|path| hosts.iter().filter_map(|host| path.strip_prefix(host)))
        .filter(|below| !below.is_root())
        .collect();
    if options.default_exclude && real == Path::new("/") {
        let paths = OriginOptions::DEFAULT_EXCLUDE.iter();
        fixed.extend(paths.filter_map(|path| ItemPath::parse(path.as_bytes()).ok()));
    }
    let exclusion = Arc::new(Exclusion::below(&real, fixed));
    let origin = PosixOrigin::open_excluding(root, options, Arc::clone(&exclusion))?;
    for host in hosts {
        let place = Served {
            host,
            prefix: spec.prefix.clone(),
        };
        if !served.contains(&place) {
            served.push(place);
        }
    }
    Ok(Mount {
        prefix: spec.prefix.clone(),
        uri: spec.uri.clone(),
        place: uri_of(root),
        origin: Arc::new(origin),
        exclusion,
        store: None,
    })
}

fn object(spec: &OriginSpec, options: &OriginOptions) -> Result<Mount, OriginError> {
    let store = ObjectOrigin::connect(spec, options)?;
    let fixed = options
        .exclude
        .iter()
        .filter_map(|path| path.strip_prefix(&spec.prefix))
        .filter(|below| !below.is_root())
        .collect();
    let origin: Arc<dyn Origin> = Arc::new(store.clone());
    Ok(Mount {
        prefix: spec.prefix.clone(),
        uri: redacted(&spec.uri),
        place: store.place().to_owned(),
        origin,
        exclusion: Arc::new(Exclusion::of(fixed)),
        store: Some(store),
    })
}

/// `%41` and its like in `file://` URIs.
mod percent {
    pub(super) fn decoded(text: &str) -> Vec<u8> {
        let mut plain = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            let code = tail
                .get(..2)
                .filter(|code| byte == b'%' && code.iter().all(u8::is_ascii_hexdigit))
                .and_then(|code| std::str::from_utf8(code).ok())
                .and_then(|code| u8::from_str_radix(code, 16).ok());
            plain.push(code.unwrap_or(byte));
            rest = if code.is_some() { &tail[2..] } else { tail };
        }
        plain
    }

    #[test]
    fn percent_signs_that_encode_nothing_stay() {
        assert_eq!(decoded("/a%20b%c3%a9"), "/a bé".as_bytes());
        assert_eq!(decoded("/100%"), b"/100%");
        assert_eq!(decoded("/%zz%+1"), b"/%zz%+1");
    }
}
