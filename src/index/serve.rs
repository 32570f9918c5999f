//! Serving the names of a prefix from its index.
//!
//! [`IndexedFiles`] stands in front of a node's source. Names and attributes below the prefix come from
//! the index, with no message; bytes, extended attributes and everything else are asked for as ever, so
//! a file that is no longer the one that was indexed answers `Stale`. What an index cannot tell (a
//! directory that could not be listed, one that leads to another origin's prefix) is asked for as well.
//!
//! An index is what it is until its prefix is cleared: then its file is opened again.

use super::format::{DirectoryRecord, Place};
use super::read::{Bytestore, Index};
use super::{IndexError, LocalFile};
use crate::origin::NamespaceRules;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, ContentHash, Cursor, Entry, Failure, FailureKind,
    FileKind, Files, FilesystemUsage, ItemPath, Leased, Listed, Listing, ListingDigest,
    RangeAnswer, RangeRequest, ReadRequest, ReadStream, StatAnswers, Version, XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod tree_file;

pub use tree_file::TreeFile;

/// Files that have changed since they were indexed are logged up to this number; then it is clear.
const CHANGED_LOGGED: u64 = 20;
/// What a cursor of an index begins with; the last name of its page follows.
const CURSOR: u8 = b'i';

/// What every indexed prefix of a node has in common.
pub type Rules = NamespaceRules;

/// Where an index's file is.
#[derive(Clone, Debug)]
pub enum IndexPlace {
    /// On this host.
    Local(PathBuf),
    /// In the namespace.
    Tree(TreeFile),
}

/// One prefix and its index.
#[derive(Debug)]
pub struct Indexed {
    prefix: ItemPath,
    place: IndexPlace,
    rules: Arc<Rules>,
    /// Guards which index answers; held for a copy.
    state: RwLock<State>,
    /// One opens it at a time.
    opening: tokio::sync::Mutex<()>,
    changed: AtomicU64,
}

#[derive(Clone, Debug)]
enum State {
    /// Not opened yet: everything is asked for as if there were none.
    Closed,
    Open(Arc<Opened>),
    /// Cleared: to be opened again by whoever asks next.
    Outdated,
}

#[derive(Debug)]
struct Opened {
    index: Index,
    /// The index's own file, if it lies below the prefix: nothing could name it when it was made.
    own: Option<Entry>,
}

impl Indexed {
    /// The index at `place` is to answer for `prefix`, once it is opened.
    #[must_use]
    pub fn new(prefix: ItemPath, place: IndexPlace, rules: Arc<Rules>) -> Self {
        Self {
            prefix,
            place,
            rules,
            state: RwLock::new(State::Closed),
            opening: tokio::sync::Mutex::new(()),
            changed: AtomicU64::new(0),
        }
    }

    /// Where it answers.
    #[must_use]
    pub fn prefix(&self) -> &ItemPath {
        &self.prefix
    }

    /// Opens the index; from then on it answers. `expected` is the URI that the prefix is served from:
    /// an index of another one is borne, with a warning.
    ///
    /// # Errors
    /// It cannot be read, or is not a whole index of this version.
    pub async fn open(&self, expected: &str) -> Result<(), IndexError> {
        let opened = self.opened().await?;
        let index = &opened.index;
        if index.uri().trim_end_matches('/') != expected.trim_end_matches('/') {
            tracing::warn!(
                index = index.name(),
                of = index.uri(),
                prefix = %self.prefix,
                serves = expected,
                "the index was made of something else: its files will be stale if that differs"
            );
        }
        let totals = index.totals();
        tracing::info!(
            index = index.name(),
            prefix = %self.prefix,
            directories = totals.directories,
            files = totals.files,
            "names come from an index"
        );
        self.set(State::Open(Arc::new(opened)));
        Ok(())
    }

    async fn opened(&self) -> Result<Opened, IndexError> {
        let (store, own): (Arc<dyn Bytestore>, _) = match &self.place {
            IndexPlace::Local(path) => (Arc::new(LocalFile::open(path)?), None),
            IndexPlace::Tree(file) => {
                let (store, entry) = file.open().await?;
                let own = file.path().is_within(&self.prefix);
                (Arc::new(store), own.then_some(entry))
            }
        };
        let index = Index::open(store).await?;
        Ok(Opened { index, own })
    }

    fn set(&self, state: State) {
        *self.state.write() = state;
    }

    fn state(&self) -> State {
        let state = self.state.read();
        state.clone()
    }

    fn forget(&self, path: &ItemPath) {
        let touched = path.is_within(&self.prefix) || self.prefix.is_within(path);
        if touched && matches!(self.state(), State::Open(_)) {
            self.set(State::Outdated);
        }
    }

    /// The index as it answers now.
    async fn current(&self) -> Result<Option<Arc<Opened>>, Failure> {
        match self.state() {
            State::Closed => return Ok(None),
            State::Open(opened) => return Ok(Some(opened)),
            State::Outdated => {}
        }
        let _one = self.opening.lock().await;
        if let State::Open(opened) = self.state() {
            return Ok(Some(opened));
        }
        let opened = Arc::new(self.opened().await.map_err(|error| fault(&error))?);
        self.set(State::Open(Arc::clone(&opened)));
        Ok(Some(opened))
    }

    /// What `path` is below the prefix, if the index may answer for it: not where it leads to another
    /// origin.
    fn below(&self, path: &ItemPath) -> Option<ItemPath> {
        let below = path.strip_prefix(&self.prefix)?;
        if let IndexPlace::Tree(file) = &self.place
            && file.path() == path
        {
            return None;
        }
        let elsewhere = |prefix: &&ItemPath| {
            **prefix != self.prefix
                && prefix.is_within(&self.prefix)
                && (path.is_within(prefix) || prefix.is_within(path))
        };
        let elsewhere = self.rules.prefixes().iter().find(elsewhere).is_some();
        (!elsewhere).then_some(below)
    }

    /// Shows an entry of `directory` as the namespace does; `None`: not at all.
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

    /// What becomes of a read that failed: a file that is not what was indexed says so.
    fn explained(&self, path: &ItemPath, failure: Failure) -> Failure {
        if !matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound) {
            return failure;
        }
        let detail = format!("{path}: it changed since it was indexed; make the index anew");
        let before = self.changed.fetch_add(1, Ordering::Relaxed);
        if before < CHANGED_LOGGED {
            tracing::warn!(%path, cause = %failure, "changed since it was indexed; make the index anew");
        }
        Failure::new(FailureKind::Stale, detail)
    }
}

fn fault(error: &IndexError) -> Failure {
    Failure::new(FailureKind::Io, error.to_string())
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct IndexedFiles {
    inner: Arc<dyn Files>,
    /// Longest prefix first.
    indexes: Arc<[Arc<Indexed>]>,
}

impl std::fmt::Debug for IndexedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexedFiles")
            .field("indexes", &self.indexes)
            .finish_non_exhaustive()
    }
}

/// What an index says of a directory.
struct Known {
    indexed: Arc<Indexed>,
    opened: Arc<Opened>,
    record: DirectoryRecord,
    place: Place,
}

impl IndexedFiles {
    /// `inner`, with `indexes` in front of it.
    #[must_use]
    pub fn new(inner: Arc<dyn Files>, indexes: &[Arc<Indexed>]) -> Self {
        let mut indexes = indexes.to_vec();
        indexes.sort_by_key(|indexed| std::cmp::Reverse(indexed.prefix.as_bytes().len()));
        Self {
            inner,
            indexes: indexes.into(),
        }
    }

    fn of(&self, path: &ItemPath) -> Option<(&Arc<Indexed>, ItemPath)> {
        let within = |indexed: &&Arc<Indexed>| path.is_within(&indexed.prefix);
        let indexed = self.indexes.iter().find(within)?;
        Some((indexed, indexed.below(path)?))
    }

    /// `None`: it says nothing, and somebody else is to be asked.
    async fn known(&self, path: &ItemPath) -> Result<Option<Known>, Failure> {
        let Some((indexed, below)) = self.of(path) else {
            return Ok(None);
        };
        let Some(opened) = indexed.current().await? else {
            return Ok(None);
        };
        if indexed.rules.hides(path) {
            return Err(Failure::not_found(path));
        }
        let asked = |error: IndexError| fault(&error);
        let index = &opened.index;
        if let Some(record) = index.directory(&below).await.map_err(asked)? {
            return Ok(record.place.map(|place| Known {
                indexed: Arc::clone(indexed),
                opened: Arc::clone(&opened),
                record,
                place,
            }));
        }
        // Not a directory that was indexed: is it in one that was?
        let mut child = below;
        while let Some((parent, name)) = child.split() {
            if let Some(record) = index.directory(&parent).await.map_err(asked)? {
                let Some(place) = record.place else {
                    return Ok(None);
                };
                let entry = index.find(&place, name).await.map_err(asked)?;
                return match entry.map(|entry| entry.kind) {
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

    /// Directory `path` as its index has it; `None`: somebody else is to be asked.
    async fn listing(
        &self,
        path: &ItemPath,
        cursor: Option<&Cursor>,
        limit: usize,
    ) -> Result<Option<Listing>, Failure> {
        let Some(Known {
            indexed,
            opened,
            record,
            place,
        }) = self.known(path).await?
        else {
            return Ok(None);
        };
        let after = match cursor {
            None => None,
            Some(cursor) => match cursor.0.split_first() {
                Some((&CURSOR, name)) => Some(name),
                _ => {
                    let detail = format!("{path}: a foreign cursor");
                    return Err(Failure::new(FailureKind::Stale, detail));
                }
            },
        };
        let found = opened.index.entries(&place, after, limit.max(1)).await;
        let (mut entries, more) = found.map_err(|error| fault(&error))?;
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
        let shown = entries.into_iter();
        Ok(Some(Listing {
            directory: record.attributes,
            entries: shown
                .filter_map(|entry| indexed.shown(path, entry))
                .collect(),
            next,
        }))
    }

    /// If only the file's status changed since it was indexed, returns the attributes from storage;
    /// otherwise those in the index.
    async fn stat_again(
        self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> Result<Leased<Attributes>, Failure> {
        if self.known(&parent).await?.is_none() {
            return self.inner.stat_again(parent, name, denied).await;
        }
        let now = self
            .inner
            .stat_again(parent.clone(), name.clone(), denied)
            .await;
        match now {
            Ok(now) if now.value.version.has_data_of(&denied) => Ok(now),
            Err(failure) if failure.kind != FailureKind::NotFound => Err(failure),
            Ok(_) | Err(_) => {
                let path = parent.join(&name).unwrap_or_else(|_| parent.clone());
                let indexed = self.stat(parent, vec![name]).await?;
                let lease = indexed.lease;
                let found = indexed.value.into_iter().next();
                let value = found.unwrap_or_else(|| Err(Failure::not_found(&path)))?;
                Ok(Leased { value, lease })
            }
        }
    }

    async fn stat(
        self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> Result<Leased<StatAnswers>, Failure> {
        let Some(Known {
            indexed,
            opened,
            record,
            place,
        }) = self.known(&parent).await?
        else {
            return self.inner.stat(parent, names).await;
        };
        let mut answers: Vec<Option<Result<Attributes, Failure>>> = Vec::with_capacity(names.len());
        let mut unknown = Vec::new();
        for name in &names {
            if name.is_empty() {
                answers.push(Some(Ok(record.attributes.clone())));
                continue;
            }
            let found = opened.index.find(&place, name).await;
            let found = found.map_err(|error| fault(&error))?;
            let own = || {
                opened
                    .own_in(&indexed, &parent)
                    .filter(|own| own.name == *name)
            };
            let found = found.or_else(|| own().cloned());
            answers.push(
                match found.and_then(|entry| indexed.shown(&parent, entry)) {
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
                },
            );
        }
        let asked = if unknown.is_empty() {
            Leased::lasting(Vec::new())
        } else {
            self.inner.stat(parent.clone(), unknown).await?
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

impl Opened {
    /// The index's own file, if it is in directory `path`.
    fn own_in(&self, indexed: &Indexed, path: &ItemPath) -> Option<&Entry> {
        let IndexPlace::Tree(file) = &indexed.place else {
            return None;
        };
        let (parent, _) = file.path().split()?;
        self.own.as_ref().filter(|_| parent == *path)
    }
}

impl Files for IndexedFiles {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let this = self.clone();
        async move {
            match this.listing(&path, cursor.as_ref(), limit).await? {
                Some(listing) => Ok(listing),
                None => this.inner.list(path, cursor, limit).await,
            }
        }
        .boxed()
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        let this = self.clone();
        async move {
            let Some(listing) = this.listing(&path, cursor.as_ref(), limit).await? else {
                return this.inner.list_parts(path, cursor, limit, known).await;
            };
            if known.is_some() && known == ListingDigest::of_page(&listing) {
                return Ok(Listed::Unchanged { lease: None });
            }
            Ok(Listed::Listing(listing.into()))
        }
        .boxed()
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        self.clone().stat(parent, names).boxed()
    }

    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        self.clone().stat_again(parent, name, denied).boxed()
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let Some((indexed, _)) = self.of(&request.path) else {
            return self.inner.read(request);
        };
        let (indexed, path) = (Arc::clone(indexed), request.path.clone());
        let reading = self.inner.read(request);
        async move {
            match reading.await {
                Ok(parts) => {
                    let explained = move |part: Result<_, _>| {
                        part.map_err(|failure| indexed.explained(&path, failure))
                    };
                    Ok(parts.map(explained).boxed())
                }
                Err(failure) => Err(indexed.explained(&path, failure)),
            }
        }
        .boxed()
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let Some((indexed, _)) = self.of(&request.path) else {
            return self.inner.read_range(request);
        };
        let (indexed, path) = (Arc::clone(indexed), request.path.clone());
        let reading = self.inner.read_range(request);
        async move {
            let answer = reading.await;
            answer.map_err(|failure| indexed.explained(&path, failure))
        }
        .boxed()
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        self.inner.find(hash, len)
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        self.inner.bundle(request)
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        self.inner.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        self.inner.usage(path)
    }

    fn forget(&self, path: &ItemPath) {
        for indexed in &*self.indexes {
            indexed.forget(path);
        }
        self.inner.forget(path);
    }
}
