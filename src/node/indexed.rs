//! The indexes of a node.

use crate::config::{FileLocation, Settings};
use crate::index::serve::{IndexLocation, TreeFile};
use crate::index::{IndexError, IndexedFiles, IndexedPrefix};
use crate::origin::{NamespaceRules, OriginOptions, redacted};
use crate::read::ReadPath;
use copperfs_overlay::{Files, ItemPath, Upstream};
use std::sync::{Arc, OnceLock};

/// The indexes that this node answers from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Indexes {
    /// Each with the URI of the origin that serves its prefix.
    all: Vec<(Arc<IndexedPrefix>, String)>,
    read: Arc<OnceLock<ReadPath>>,
}

impl Indexes {
    /// The configured indexes. Only roots open an index in a file of the host; they answer for the other nodes.
    pub(super) fn new(settings: &Settings, options: &OriginOptions, upstream: &Upstream) -> Self {
        let rules = Arc::new(NamespaceRules::new(&settings.origins, options));
        let read = Arc::new(OnceLock::new());
        let mut all = Vec::with_capacity(settings.indexes.len());
        for spec in &settings.indexes {
            let place = match &spec.file {
                FileLocation::Local(_) if !settings.is_root() => continue,
                FileLocation::Local(path) => IndexLocation::Local(path.clone()),
                FileLocation::Tree(path) => {
                    let source = Arc::new(upstream.at(0));
                    IndexLocation::Tree(TreeFile::new(path.clone(), source, Arc::clone(&read)))
                }
            };
            let indexed = IndexedPrefix::new(spec.prefix.clone(), place, Arc::clone(&rules));
            all.push((Arc::new(indexed), redacted(&spec.uri)));
        }
        Self { all, read }
    }

    /// `source`, with the indexes in front of it.
    pub(super) fn before(&self, source: Arc<dyn Files>) -> Arc<dyn Files> {
        if self.all.is_empty() {
            return source;
        }
        let indexes: Vec<_> = self.all.iter().map(|(one, _)| Arc::clone(one)).collect();
        Arc::new(IndexedFiles::new(source, &indexes))
    }

    /// The index with the longest prefix that contains `path`.
    pub(super) fn of(&self, path: &ItemPath) -> Option<&Arc<IndexedPrefix>> {
        let of = self.all.iter().map(|(indexed, _)| indexed);
        let of = of.filter(|indexed| indexed.covers(path));
        of.max_by_key(|indexed| indexed.prefix().as_bytes().len())
    }

    /// Opens all of them, with their bytes read through `read`. From then on they answer.
    pub(super) async fn open(&self, read: &ReadPath) -> Result<(), IndexError> {
        drop(self.read.set(read.clone()));
        for (indexed, uri) in &self.all {
            indexed.open(uri).await?;
        }
        Ok(())
    }
}
