//! What a store tells of one object: what its versions are made of, and whether it gives ranges.

use super::gate::Turn;
use super::{ObjectOrigin, error, has_strong_tag, tag};
use copperfs_overlay::{Failure, ItemPath};
use object_store::{GetOptions, GetRange, ObjectMeta};

/// What a version of an object is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionSource {
    /// A strong `ETag`: whatever changes shows.
    StrongTag,
    /// A weak one: changes that the server calls equal do not show.
    WeakTag,
    /// The second of the last change and the size.
    TimeAndSize,
}

/// What a store tells of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectTraits {
    /// What its version is made of.
    pub version: VersionSource,
    /// Whether a part of it can be had without the rest.
    pub ranges: bool,
}

impl ObjectOrigin {
    /// Reads the first byte of the object `path`, which has one, and judges the answer.
    ///
    /// # Errors
    /// As of a read.
    pub async fn traits(&self, path: &ItemPath) -> Result<ObjectTraits, Failure> {
        let inner = &self.inner;
        let failed = |failure| inner.failure("read", path, &failure);
        let key = inner.key(path)?;
        let first = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..GetOptions::default()
        };
        let permit = inner.gate.enter(Turn::Demand).await;
        let answer = inner.get(&key, first, &permit).await;
        drop(permit);
        match answer {
            Ok(answer) => {
                let version = source(&answer.meta);
                answer.bytes().await.map_err(failed)?;
                Ok(ObjectTraits {
                    version,
                    ranges: true,
                })
            }
            Err(failure) if error::is_without_ranges(&failure) => {
                let meta = inner.head(&key, false).await.map_err(failed)?;
                Ok(ObjectTraits {
                    version: source(&meta),
                    ranges: false,
                })
            }
            Err(failure) => Err(failed(failure)),
        }
    }
}

fn source(meta: &ObjectMeta) -> VersionSource {
    if has_strong_tag(meta) {
        VersionSource::StrongTag
    } else if tag(meta).is_some() {
        VersionSource::WeakTag
    } else {
        VersionSource::TimeAndSize
    }
}
