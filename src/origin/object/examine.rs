//! Examines one object of a store: the source of its versions, and whether the store supports ranges.

use super::gate::Priority;
use super::{ObjectOrigin, error, has_strong_tag, tag};
use copperfs_overlay::{Failure, ItemPath};
use object_store::{GetOptions, GetRange, ObjectMeta};

/// The source of an object's versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::origin) enum VersionSource {
    /// A strong `ETag`: every change shows.
    StrongTag,
    /// A weak `ETag`: changes that the server considers equivalent do not show.
    WeakTag,
    /// The second of the last change and the size.
    TimeAndSize,
}

impl ObjectOrigin {
    /// Reads the first byte of the object `path`, which must not be empty. Returns the source of its version, and whether
    /// a part of it can be read without the rest.
    ///
    /// # Errors
    /// Those of a read.
    pub(in crate::origin) async fn examine(
        &self,
        path: &ItemPath,
    ) -> Result<(VersionSource, bool), Failure> {
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
                let source = version_source(&answer.meta);
                // Read to the end, so that a broken transfer is reported.
                answer.bytes().await.map_err(failed)?;
                Ok((source, true))
            }
            Err(error) if error::is_without_ranges(&error) => {
                let meta = shared.head(&key, false, None).await.map_err(failed)?;
                Ok((version_source(&meta), false))
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
