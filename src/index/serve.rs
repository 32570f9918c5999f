//! Serves the names of a prefix from its index.
//!
//! [`IndexedFiles`] is in front of a node's source. Names and attributes below the prefix come from the index,
//! without a message. Bytes, extended attributes and everything else are requested from the source, so a file
//! that has changed since it was indexed fails with `Stale`. So are directories that could not be listed for
//! the index, and those that lead to the prefix of another origin.
//!
//! An index does not change until its prefix is cleared. Then its file is opened again.

use super::format::{DirectoryRecord, EntryRange};
use super::read::{Bytestore, Index};
use super::{IndexError, LocalFile};
use crate::logging::TO_THE_USER;
use crate::origin::NamespaceRules;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, ContentHash, Cursor, Entry, Failure, FailureKind,
    FileKind, Files, FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed, Listing,
    RangeAnswer, RangeRequest, ReadRequest, ReadStream, StatAnswers, StatRequest, Version,
    XattrList,
};
use futures_util::{FutureExt, StreamExt};
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod tree_file;
mod whole;

pub use tree_file::TreeFile;
use tree_file::until_settled;
pub use whole::{WholeDirectory, WholeEntry, WholeError};

/// The maximum number of files that are remembered, and logged, because they have changed since they were indexed.
const CHANGED_MAX: usize = 20;
/// The first byte of a cursor; the last name of its page follows.
const CURSOR: u8 = b'i';

/// The location of an index's file.
#[derive(Clone)]
pub enum IndexLocation {
    /// On this host.
    Local(PathBuf),
    /// In the namespace.
    Tree(TreeFile),
}

/// One prefix and its index.
pub struct IndexedPrefix {
    prefix: ItemPath,
    place: IndexLocation,
    rules: Arc<NamespaceRules>,
    /// Everything is requested from the source until the index is opened for the first time.
    is_in_use: AtomicBool,
    /// The index that answers. Empty after a clear: the next request opens it again. Locked for a copy.
    opened: RwLock<Option<Arc<OpenIndex>>>,
    /// Held while the index is opened again.
    opening: tokio::sync::Mutex<()>,
    /// Files whose reads storage has denied since the index was opened, as far as [`CHANGED_MAX`] goes.
    changed: Mutex<Vec<ItemPath>>,
}

struct OpenIndex {
    index: Index,
    /// The index's own file, if it is below the prefix. It did not exist when the index was made.
    own: Option<Entry>,
}

impl IndexedPrefix {
    /// The index at `place` for `prefix`. It answers after it is opened.
    #[must_use]
    pub fn new(prefix: ItemPath, place: IndexLocation, rules: Arc<NamespaceRules>) -> Self {
        Self {
            prefix,
            place,
            rules,
            is_in_use: AtomicBool::new(false),
            opened: RwLock::default(),
            opening: tokio::sync::Mutex::new(()),
            changed: Mutex::default(),
        }
    }

    /// Opens the index; from then on it answers. `expected` is the URI that the prefix is served from: the index of
    /// another URI causes a warning.
    ///
    /// # Errors
    /// It cannot be read, or is not a complete index of this version.
    pub async fn open(&self, expected: &str) -> Result<(), IndexError> {
        let opened = until_settled(|| self.read_file().boxed()).await?;
        let index = &opened.index;
        if index.tail.uri.trim_end_matches('/') != expected.trim_end_matches('/') {
            tracing::warn!(
                target: TO_THE_USER,
                "the index {} was made of {}, and {} serves {expected}: files that differ there fail with \
                 Stale file handle",
                index.name(),
                index.tail.uri,
                self.prefix
            );
        }
        let totals = index.header.totals;
        tracing::info!(
            index = index.name(),
            prefix = %self.prefix,
            directories = totals.directories,
            files = totals.files,
            "names come from an index"
        );
        *self.opened.write() = Some(Arc::new(opened));
        self.is_in_use.store(true, Ordering::Release);
        Ok(())
    }

    async fn read_file(&self) -> Result<OpenIndex, IndexError> {
        let (store, own): (Arc<dyn Bytestore>, _) = match &self.place {
            IndexLocation::Local(path) => (Arc::new(LocalFile::open(path)?), None),
            IndexLocation::Tree(file) => {
                let (store, entry) = file.open().await?;
                let own = file.path.is_within(&self.prefix);
                (Arc::new(store), own.then_some(entry))
            }
        };
        let index = Index::open(store).await?;
        Ok(OpenIndex { index, own })
    }

    fn forget(&self, path: &ItemPath) {
        if path.is_within(&self.prefix) || self.prefix.is_within(path) {
            *self.opened.write() = None;
            self.changed.lock().clear();
        }
    }

    /// The first files below the prefix that have changed since they were indexed, in content or status, as reads have
    /// found out since the index was opened.
    #[must_use]
    pub fn changed(&self) -> Vec<ItemPath> {
        self.changed.lock().clone()
    }

    /// The current index. Opens it again if it is outdated.
    async fn current(&self) -> Result<Option<Arc<OpenIndex>>, Failure> {
        let current = || self.opened.read().clone();
        let opened = current();
        if opened.is_some() || !self.is_in_use.load(Ordering::Acquire) {
            return Ok(opened);
        }
        // Another request may have opened the index while this one waited.
        let _one = self.opening.lock().await;
        if let Some(opened) = current() {
            return Ok(Some(opened));
        }
        let opened = Arc::new(self.read_file().await.map_err(unreadable)?);
        *self.opened.write() = Some(Arc::clone(&opened));
        Ok(Some(opened))
    }

    /// `path` relative to the prefix, if the index may answer for it. Returns `None` for a path that leads to another
    /// origin.
    fn below(&self, path: &ItemPath) -> Option<ItemPath> {
        let below = path.strip_prefix(&self.prefix)?;
        if let IndexLocation::Tree(file) = &self.place
            && file.path == *path
        {
            return None;
        }
        let is_elsewhere = self.rules.prefixes().iter().any(|prefix| {
            *prefix != self.prefix
                && prefix.is_within(&self.prefix)
                && (path.is_within(prefix) || prefix.is_within(path))
        });
        (!is_elsewhere).then_some(below)
    }

    /// Converts an entry of `directory` to the form in which the namespace shows it. Returns `None` if it is hidden.
    fn shown(&self, directory: &ItemPath, mut entry: Entry) -> Option<Entry> {
        let path = directory.join(&entry.name).ok()?;
        if self.rules.hides(&path) {
            return None;
        }
        if let Some(attributes) = &mut entry.attributes {
            self.rules.rewrite(&path, attributes);
        }
        Some(entry)
    }

    /// The failure of a read below the prefix, which may mean that the file has changed since it was indexed.
    fn read_failure(&self, path: &ItemPath, failure: Failure) -> Failure {
        if !matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound) {
            return failure;
        }
        let detail = format!("{path}: it changed since it was indexed; make the index again");
        let mut changed = self.changed.lock();
        if changed.len() < CHANGED_MAX && !changed.contains(path) {
            changed.push(path.clone());
            tracing::warn!(%path, cause = %failure, "changed since it was indexed; make the index again");
        }
        Failure::new(FailureKind::Stale, detail)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn unreadable(error: IndexError) -> Failure {
    Failure::new(FailureKind::Io, error.to_string())
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct IndexedFiles {
    inner: Arc<dyn Files>,
    /// Longest prefix first.
    indexes: Arc<[Arc<IndexedPrefix>]>,
}

/// A directory with an index that answers for it.
struct IndexedDirectory {
    indexed: Arc<IndexedPrefix>,
    opened: Arc<OpenIndex>,
    record: DirectoryRecord,
    place: EntryRange,
}

impl IndexedFiles {
    /// Puts `indexes` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Files>, indexes: &[Arc<IndexedPrefix>]) -> Self {
        let mut indexes = indexes.to_vec();
        indexes.sort_by_key(|indexed| std::cmp::Reverse(indexed.prefix.as_bytes().len()));
        Self {
            inner,
            indexes: indexes.into(),
        }
    }

    fn of(&self, path: &ItemPath) -> Option<(&Arc<IndexedPrefix>, ItemPath)> {
        let within = |indexed: &&Arc<IndexedPrefix>| path.is_within(&indexed.prefix);
        let indexed = self.indexes.iter().find(within)?;
        Some((indexed, indexed.below(path)?))
    }

    /// The index of directory `path`. Returns `None` if the source must answer instead.
    async fn directory(&self, path: &ItemPath) -> Result<Option<IndexedDirectory>, Failure> {
        let Some((indexed, below)) = self.of(path) else {
            return Ok(None);
        };
        let Some(opened) = indexed.current().await? else {
            return Ok(None);
        };
        if indexed.rules.hides(path) {
            return Err(Failure::not_found(path));
        }
        let index = &opened.index;
        if let Some(record) = index.directory(&below).await.map_err(unreadable)? {
            return Ok(record.place.map(|place| IndexedDirectory {
                indexed: Arc::clone(indexed),
                opened: Arc::clone(&opened),
                record,
                place,
            }));
        }
        // The directory is not in the index. The nearest parent in the index decides whether it exists.
        let mut child = below;
        while let Some((parent, name)) = child.split() {
            if let Some(record) = index.directory(&parent).await.map_err(unreadable)? {
                let Some(place) = record.place else {
                    return Ok(None);
                };
                let entry = index.find(&place, name).await.map_err(unreadable)?;
                return match entry.map(|found| found.entry.kind) {
                    Some(FileKind::Directory) => Ok(None),
                    Some(_) => {
                        let detail = format!("{path}: not a directory");
                        Err(Failure::new(FailureKind::NotADirectory, detail))
                    }
                    None => Err(Failure::not_found(path)),
                };
            }
            child = parent;
        }
        Ok(None)
    }

    /// The listing of directory `path` from its index. Returns `None` if the source must answer instead.
    async fn listing(
        &self,
        path: &ItemPath,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Option<Listing>, Failure> {
        let Some(IndexedDirectory {
            indexed,
            opened,
            record,
            place,
        }) = self.directory(path).await?
        else {
            return Ok(None);
        };
        let after = cursor.map(|cursor| match cursor.0.split_first() {
            Some((&CURSOR, name)) => Ok(name),
            _ => {
                let detail = format!("{path}: a foreign cursor");
                Err(Failure::new(FailureKind::Stale, detail))
            }
        });
        let after = after.transpose()?;
        let page = opened.index.entries(&place, after, limit.max(1));
        let (entries, more) = page.await.map_err(unreadable)?;
        let mut entries: Vec<Entry> = entries.into_iter().map(|found| found.entry).collect();
        let last = entries.last().map(|entry| entry.name.clone());
        let next = last.filter(|_| more).map(|last| {
            let cursor = [&[CURSOR], &last[..]].concat();
            Cursor(cursor.into())
        });
        if let Some(own) = opened.own_in(&indexed, path)
            && after.is_none_or(|after| own.name[..] > *after)
            && let Err(at) = entries.binary_search_by(|entry| entry.name.cmp(&own.name))
            && (at < entries.len() || !more)
        {
            entries.insert(at, own.clone());
        }
        let entries = entries.into_iter();
        let shown = entries.filter_map(|entry| indexed.shown(path, entry));
        Ok(Some(Listing {
            directory: record.attributes,
            entries: shown.collect(),
            next,
        }))
    }

    /// The attributes of a file, after storage has denied its version `denied`: if only its status changed since
    /// it was indexed, those in storage; otherwise those in the index.
    async fn stat_denied(
        self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> Result<Leased<StatAnswers>, Failure> {
        let now = self
            .inner
            .stat_one(parent.clone(), name.clone(), Some(denied));
        match now.await {
            Ok(now) if now.value.version.has_data_of(&denied) => Ok(now.map(|now| vec![Ok(now)])),
            Err(failure) if failure.kind != FailureKind::NotFound => Err(failure),
            Ok(_) | Err(_) => self.stat_names(parent, vec![name]).await,
        }
    }

    async fn stat_indexed(self, request: StatRequest) -> Result<Leased<StatAnswers>, Failure> {
        let Some(IndexedDirectory {
            indexed,
            opened,
            record,
            place,
        }) = self.directory(&request.parent).await?
        else {
            return self.inner.stat(request).await;
        };
        let StatRequest {
            parent,
            mut names,
            denied,
        } = request;
        if let (Some(denied), 1) = (denied, names.len()) {
            return self.stat_denied(parent, names.remove(0), denied).await;
        }
        let own = |name: &Bytes| {
            let own = opened.own_in(&indexed, &parent);
            own.filter(|own| own.name == *name).cloned()
        };
        let mut answers: Vec<Option<Result<Attributes, Failure>>> = Vec::with_capacity(names.len());
        let mut unknown = Vec::new();
        for name in &names {
            if name.is_empty() {
                answers.push(Some(Ok(record.attributes.clone())));
                continue;
            }
            let found = opened.index.find(&place, name).await.map_err(unreadable)?;
            let found = found.map(|found| found.entry).or_else(|| own(name));
            answers.push(match found.and_then(|it| indexed.shown(&parent, it)) {
                Some(entry) => {
                    if entry.attributes.is_none() {
                        unknown.push(name.clone());
                    }
                    entry.attributes.map(Ok)
                }
                None => {
                    let path = parent.join(name).unwrap_or_else(|_| parent.clone());
                    Some(Err(Failure::not_found(&path)))
                }
            });
        }
        let asked = if unknown.is_empty() {
            Leased::lasting(Vec::new())
        } else {
            self.inner.stat_names(parent.clone(), unknown).await?
        };
        let lease = asked.lease;
        let mut asked = asked.value.into_iter();
        let missing = || Err(Failure::not_found(&parent));
        let value = answers
            .into_iter()
            .map(|answer| answer.or_else(|| asked.next()).unwrap_or_else(missing))
            .collect();
        Ok(Leased { value, lease })
    }
}

impl OpenIndex {
    /// The index's own file, if it is in directory `path`.
    fn own_in(&self, indexed: &IndexedPrefix, path: &ItemPath) -> Option<&Entry> {
        let IndexLocation::Tree(file) = &indexed.place else {
            return None;
        };
        let (parent, _) = file.path.split()?;
        self.own.as_ref().filter(|_| parent == *path)
    }
}

impl Files for IndexedFiles {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let this = self.clone();
        async move {
            let ListRequest {
                path,
                cursor,
                limit,
                known,
            } = &request;
            match this.listing(path, cursor.as_ref(), *limit).await? {
                Some(listing) => Ok(Listed::new(listing, *known)),
                None => this.inner.list(request).await,
            }
        }
        .boxed()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.clone().stat_indexed(request).boxed()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let Some((indexed, _)) = self.of(&request.path) else {
            return self.inner.read(request);
        };
        let (indexed, path) = (Arc::clone(indexed), request.path.clone());
        let reading = self.inner.read(request);
        async move {
            match reading.await {
                Ok(parts) => {
                    let read_failure = move |part: Result<_, _>| {
                        part.map_err(|failure| indexed.read_failure(&path, failure))
                    };
                    Ok(parts.map(read_failure).boxed())
                }
                Err(failure) => Err(indexed.read_failure(&path, failure)),
            }
        }
        .boxed()
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let Some((indexed, _)) = self.of(&request.path) else {
            return self.inner.read_range(request);
        };
        let (indexed, path) = (Arc::clone(indexed), request.path.clone());
        let reading = self.inner.read_range(request);
        async move {
            let answer = reading.await;
            answer.map_err(|failure| indexed.read_failure(&path, failure))
        }
        .boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> FilesFuture<Bytes> {
        self.inner.find(hash, len)
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        self.inner.bundle(request)
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.inner.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.inner.usage(path)
    }

    fn forget(&self, path: &ItemPath) {
        for indexed in &*self.indexes {
            indexed.forget(path);
        }
        self.inner.forget(path);
    }
}
