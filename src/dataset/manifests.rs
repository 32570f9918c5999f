//! Loading the manifests of declared datasets on a node.
//!
//! A manifest is a file of the namespace, so each node reads it through the tree like any other file,
//! and the roots read storage for it once. It is used only if it has the identity in the decision, so
//! all nodes have the same entries.

use super::{Catalog, DatasetReader, Home};
use crate::manifest::{FormatError, Manifest};
use crate::model::Decision;
use crate::read::{FileRef, ReadAhead, ReadPath};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{Failure, FailureKind, FileKind, Files, ItemPath};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// The maximum size of a manifest on a node, where it is kept in memory: thirty million entries.
/// Larger ones are refused.
pub const MANIFEST_BYTES_MAX: u64 = 2 << 30;
/// The maximum size of one read.
const READ_BYTES_MAX: u64 = 1 << 20;
/// How long until a manifest that cannot be loaded is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Why a manifest cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ManifestTrouble {
    /// It cannot be read.
    #[error("its manifest {path} cannot be read: {failure}")]
    Unreadable {
        /// The path of the manifest.
        path: ItemPath,
        /// The failure.
        failure: Failure,
    },
    /// It is larger than [`MANIFEST_BYTES_MAX`].
    #[error(
        "its manifest {path} has {size} bytes, and a node loads at most {MANIFEST_BYTES_MAX}: divide \
         the dataset"
    )]
    TooLarge {
        /// The path of the manifest.
        path: ItemPath,
        /// Its size in bytes.
        size: u64,
    },
    /// It is no manifest.
    #[error("its manifest {path}: {source}")]
    Format {
        /// The path of the manifest.
        path: ItemPath,
        /// The cause.
        source: FormatError,
    },
    /// It is not the one that was counted.
    #[error(
        "its manifest {path} was replaced after the dataset was declared: declare it again with \
         --replace"
    )]
    Replaced {
        /// The path of the manifest.
        path: ItemPath,
    },
}

/// Reads manifests through this node's own read path. Cheap to clone.
#[derive(Clone)]
pub struct Manifests {
    /// The source of their attributes. Not the read path, whose listings may be older.
    source: Arc<dyn Files>,
    /// The source of their bytes.
    read: Arc<OnceLock<ReadPath>>,
}

impl Manifests {
    /// Creates a loader of manifests with attributes from `source` and bytes from `read`.
    #[must_use]
    pub fn new(source: Arc<dyn Files>, read: Arc<OnceLock<ReadPath>>) -> Self {
        Self { source, read }
    }

    /// Loads the manifest at `path`. May be cancelled.
    ///
    /// # Errors
    /// See [`ManifestTrouble`].
    pub async fn load(&self, path: &ItemPath) -> Result<Manifest, ManifestTrouble> {
        let unreadable = |failure| ManifestTrouble::Unreadable {
            path: path.clone(),
            failure,
        };
        let file = self.file(path).await.map_err(unreadable)?;
        if file.size > MANIFEST_BYTES_MAX {
            let (path, size) = (path.clone(), file.size);
            return Err(ManifestTrouble::TooLarge { path, size });
        }
        let bytes = self.bytes(&file).await.map_err(unreadable)?;
        // It takes a second for ten million entries.
        let opening = tokio::task::spawn_blocking(move || Manifest::from_bytes(bytes));
        let opened = opening.await.map_err(|stopped| {
            unreadable(Failure::new(FailureKind::Unavailable, stopped.to_string()))
        })?;
        opened.map_err(|source| ManifestTrouble::Format {
            path: path.clone(),
            source,
        })
    }

    async fn file(&self, path: &ItemPath) -> Result<FileRef, Failure> {
        let no_file = || Failure::new(FailureKind::Unsupported, format!("{path} is no file"));
        let (parent, name) = path.split().ok_or_else(no_file)?;
        let name = Bytes::copy_from_slice(name);
        let found = self.source.stat_one(parent, name, None).await?.value;
        match found.kind {
            FileKind::File => Ok(FileRef::of(path.clone(), &found)),
            _ => Err(no_file()),
        }
    }

    async fn bytes(&self, file: &FileRef) -> Result<Bytes, Failure> {
        let starting = || Failure::new(FailureKind::Unavailable, "the node has not started yet");
        let read = self.read.get().ok_or_else(starting)?;
        let ahead = ReadAhead::default();
        let mut bytes = BytesMut::new();
        loop {
            let at = bytes.len() as u64;
            let size = (file.size - at).min(READ_BYTES_MAX);
            if size == 0 {
                return Ok(bytes.freeze());
            }
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            let piece = match read.data().try_read(file, at, size) {
                Some(piece) => piece,
                None => read.read(file, &ahead, at, size).await?,
            };
            if piece.bytes.is_empty() {
                let detail = format!("{}: it ends before byte {at}", file.path);
                return Err(Failure::new(FailureKind::Io, detail));
            }
            bytes.extend_from_slice(&piece.bytes);
        }
    }
}

/// Gives the home and the reader of a node the entries of datasets with manifests.
pub struct CatalogLoader {
    manifests: Manifests,
    home: Home,
    reader: DatasetReader,
    /// By dataset. The lock guards the list only.
    loading: Mutex<HashMap<u64, Loading>>,
    /// Notified when a manifest has been loaded.
    loaded: Arc<Notify>,
}

/// A catalog that is loaded, or being loaded.
struct Loading {
    path: ItemPath,
    identity: [u8; 32],
    task: AbortHandle,
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CatalogLoader {
    /// Creates a loader for `home` and `reader`.
    #[must_use]
    pub fn new(manifests: Manifests, home: Home, reader: DatasetReader) -> Self {
        Self {
            manifests,
            home,
            reader,
            loading: Mutex::default(),
            loaded: Arc::default(),
        }
    }

    /// Waits until another manifest has been loaded. May be cancelled.
    pub async fn loaded(&self) {
        self.loaded.notified().await;
    }

    /// Loads the manifests that are new in `decision`, and forgets those that are gone. Must be called
    /// within a runtime, after the home and the reader have applied the decision.
    pub fn apply(&self, decision: &Decision) {
        let mut loading = self.loading.lock();
        let mut known = std::mem::take(&mut *loading);
        for dataset in &decision.datasets {
            let (Some(path), Some(identity)) = (&dataset.manifest, dataset.identity) else {
                continue;
            };
            let same = known.remove(&dataset.id);
            let same = same.filter(|one| one.path == *path && one.identity == identity);
            let current = same.unwrap_or_else(|| Loading {
                path: path.clone(),
                identity,
                task: self.load(dataset.id, dataset.name.clone(), path.clone(), identity),
            });
            loading.insert(dataset.id, current);
        }
    }

    fn load(&self, id: u64, name: String, path: ItemPath, identity: [u8; 32]) -> AbortHandle {
        let (manifests, home) = (self.manifests.clone(), self.home.clone());
        let (reader, loaded) = (self.reader.clone(), Arc::clone(&self.loaded));
        let loading = async move {
            let mut last = None;
            loop {
                let found = manifests.load(&path).await;
                let found = found.and_then(|manifest| match *manifest.identity() == identity {
                    true => Ok(manifest),
                    false => Err(ManifestTrouble::Replaced { path: path.clone() }),
                });
                match found {
                    Ok(manifest) => {
                        let catalog = tokio::task::spawn_blocking(move || Catalog::new(manifest));
                        if let Ok(catalog) = catalog.await.map(Arc::new) {
                            reader.set_catalog(id, &catalog);
                            home.set_catalog(id, &catalog);
                            loaded.notify_one();
                        }
                        return;
                    }
                    Err(trouble) => {
                        let trouble = trouble.to_string();
                        if last.as_ref() != Some(&trouble) {
                            tracing::warn!(
                                dataset = name,
                                trouble,
                                "nothing of a dataset is kept here"
                            );
                            home.set_trouble(id, &trouble);
                        }
                        last = Some(trouble);
                    }
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        tokio::spawn(loading).abort_handle()
    }
}
