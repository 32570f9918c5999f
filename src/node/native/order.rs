//! The order of an image's contents: that of a profile, so that a start of the recorded program reads them one after
//! another.

use crate::index::serve::TreeFile;
use crate::index::{FileLocation, IndexError};
use crate::profile::{Access, Profile, ProfileError};
use crate::read::ReadPath;
use copperfs_overlay::{FailureKind, ItemPath};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The largest profile: as many accesses as one may have, of usual length.
const PROFILE_BYTES_MAX: u64 = 1 << 30;

/// The reads of a profile, first one first.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The files, in the order of their first reads.
    pub(super) files: Vec<ItemPath>,
    /// Of each read the number of the file, and the bytes.
    pub(super) reads: Vec<(usize, Range<u64>)>,
}

/// Why a profile gives no order.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("{name}: {source}")]
    Profile { name: String, source: ProfileError },
    #[error("cannot read the profile {name}: {reason}")]
    Unreadable { name: String, reason: String },
}

/// Reads the profile at `location`, through `read` if it is in the namespace.
///
/// # Errors
/// It cannot be read, or is no profile.
pub(super) async fn read(location: &FileLocation, read: &ReadPath) -> Result<Order, OrderError> {
    let name = location.to_string();
    let unreadable = |reason: String| OrderError::Unreadable {
        name: name.clone(),
        reason,
    };
    let loaded = match location.clone() {
        FileLocation::Local(path) => {
            tokio::task::spawn_blocking(move || Profile::load(&path).map(Order::of)).await
        }
        FileLocation::Tree(path) => {
            let known = Arc::new(OnceLock::from(read.clone()));
            let file = TreeFile::new(path, Arc::new(read.clone()), known);
            let bytes = file.whole(PROFILE_BYTES_MAX).await;
            let bytes = bytes.map_err(|error| unreadable(reason(error)))?;
            tokio::task::spawn_blocking(move || Profile::read(&bytes[..]).map(Order::of)).await
        }
    };
    let loaded = loaded.map_err(|error| unreadable(error.to_string()))?;
    loaded.map_err(|source| OrderError::Profile { name, source })
}

/// Why a profile in the namespace cannot be read.
fn reason(error: IndexError) -> String {
    match error {
        IndexError::Read { failure, .. } if failure.kind == FailureKind::NotFound => {
            format!("{failure} (an indexed prefix shows no files that are newer than its index)")
        }
        IndexError::Read { failure, .. } => failure.to_string(),
        other => other.to_string(),
    }
}

impl Order {
    fn of(profile: Profile) -> Self {
        let mut order = Self::default();
        let mut numbers: HashMap<ItemPath, usize> = HashMap::new();
        for access in profile.accesses {
            if let Access::Read {
                path, offset, len, ..
            } = access
            {
                let number = *numbers.entry(path.clone()).or_insert_with(|| {
                    order.files.push(path);
                    order.files.len() - 1
                });
                let bytes = offset..offset.saturating_add(len);
                order.reads.push((number, bytes));
            }
        }
        order
    }
}
