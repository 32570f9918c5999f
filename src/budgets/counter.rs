//! Counting of datasets, as the budget agent uses it.

use crate::dataset::manifests::ManifestTrouble;
use crate::index::IndexError;
use crate::model::{Counting, DatasetDecision};
use copperfs_overlay::{Failure, ItemPath};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;

/// The content of a dataset, according to a count or an index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// The number of items: files, and the stripes of larger files.
    pub items: u64,
    /// Bytes of these items.
    pub bytes: u64,
    /// Bytes in each slot.
    pub slots: Vec<u64>,
    /// The identity of the dataset's manifest, if it has one.
    pub identity: Option<[u8; 32]>,
    /// The number of entries of the manifest.
    pub entries: u64,
    /// Identifies the source of the count, such as an index's time and length, so that a change of it
    /// can be detected.
    pub source: u64,
}

/// The progress of a count, for people. Locked briefly.
pub type CountProgress = Mutex<Counting>;

/// Why a dataset cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// A directory cannot be listed.
    #[error("{path} cannot be counted: {failure}. Is it there, and is storage in order?")]
    Listing {
        /// The directory, or a file in it.
        path: ItemPath,
        /// The failure of storage.
        failure: Failure,
    },
    /// Its index cannot be used.
    #[error("its index cannot be used: {0}")]
    Index(#[from] IndexError),
    /// Its index covers another tree.
    #[error(
        "its index {index} was made of {of}, which does not hold {path}: make one with copperfs index build"
    )]
    OtherTree {
        /// The name of the index.
        index: String,
        /// The URI of the tree that the index covers.
        of: String,
        /// The path of the dataset.
        path: ItemPath,
    },
    /// Its manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestTrouble),
    /// Its manifest names a file that is not there.
    #[error(
        "its manifest names {path}, which is not there: is it the manifest of another dataset? Make one \
         with copperfs dataset manifest"
    )]
    OtherDataset {
        /// The file.
        path: ItemPath,
    },
    /// Its manifest is older than a file.
    #[error(
        "{path} has changed since the manifest was made: make it again with copperfs dataset manifest"
    )]
    OlderManifest {
        /// The file.
        path: ItemPath,
    },
    /// A directory is not in the index.
    #[error("{path} is not in its index {index}: make it again with copperfs index update")]
    NotIndexed {
        /// The name of the index.
        index: String,
        /// The directory.
        path: ItemPath,
    },
}

/// Counts datasets, on the allocator's node.
pub trait Counter: Send + Sync + 'static {
    /// Counts `dataset`. May be dropped at any time.
    ///
    /// # Errors
    /// See [`CountError`].
    fn count(
        &self,
        dataset: &DatasetDecision,
        progress: Arc<CountProgress>,
    ) -> BoxFuture<'static, Result<Counted, CountError>>;

    /// Returns whether a count of `dataset` that was made from `source` is outdated.
    fn is_outdated(&self, dataset: &DatasetDecision, source: u64) -> BoxFuture<'static, bool>;
}
