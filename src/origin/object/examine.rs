//! Examines one object of a store: the source of its versions, and whether the store supports ranges.

use super::gate::Priority;
use super::{ObjectOrigin, error, has_strong_tag, tag};
use copperfs_overlay::{Failure, ItemPath};
use object_store::{GetOptions, GetRange, ObjectMeta};

/// The source of an object's versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionSource {
    /// A strong `ETag`: every change shows.
    StrongTag,
    /// A weak `ETag`: changes that the server considers equivalent do not show.
    WeakTag,
    /// The second of the last change and the size.
    TimeAndSize,
}

/// The traits of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectTraits {
    /// The source of its version.
    pub version: VersionSource,
    /// Whether a part of it can be read without the rest.
    pub ranges: bool,
}

impl ObjectOrigin {
    /// Reads the first byte of the object `path`, which must not be empty, and examines the answer.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn traits(&self, path: &ItemPath) -> Result<ObjectTraits, Failure> {
        let shared = &self.shared;
        let failed = |error| shared.failed("read", path, &error);
        let key = shared.key(path)?;
        let first = GetOptions {
            range: Some(GetRange::Bounded(0..1)),
            ..GetOptions::default()
        };
        let permit = shared.connection.gate.enter(Priority::Demand).await;
        let answer = shared.get(&key, first, &permit).await;
        drop(permit);
        match answer {
            Ok(answer) => {
                let version = version_source(&answer.meta);
                // Read to the end, so that a broken transfer is reported.
                answer.bytes().await.map_err(failed)?;
                Ok(ObjectTraits {
                    version,
                    ranges: true,
                })
            }
            Err(error) if error::is_without_ranges(&error) => {
                let meta = shared.head(&key, false).await.map_err(failed)?;
                Ok(ObjectTraits {
                    version: version_source(&meta),
                    ranges: false,
                })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn version_source(meta: &ObjectMeta) -> VersionSource {
    if has_strong_tag(meta) {
        VersionSource::StrongTag
    } else if tag(meta).is_some() {
        VersionSource::WeakTag
    } else {
        VersionSource::TimeAndSize
    }
}
