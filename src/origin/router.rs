//! Several origins side by side, as one namespace.
//!
//! The longest prefix that holds a path decides which origin answers. Directories that exist only
//! because a prefix lies below them are made up; where an origin with a shorter prefix has a directory
//! of that name, the two are merged. Symlinks are rewritten here and excluded paths hidden.

mod blocks;
mod bundle;
mod examine;
mod links;
mod open;
mod rules;

pub use examine::{Finding, Outcome};

use super::counters::{Operation, OriginCounters, OriginSnapshot};
use super::exclusion::{Exclusion, Hidden};
use super::failure::too_slow;
use super::options::{OriginOptions, OriginSpec, SymlinkPolicy};
use super::{
    Alone, ByteRange, HangingCalls, ObjectOrigin, Origin, OriginError, StatAnswers, Storage,
    TurnStream, Turns,
};
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Cursor, Entry, Failure, FailureKind, FileKind, Files,
    FilesystemUsage, ItemPath, Leased, Listing, OriginFingerprint, RangeAnswer, RangeRequest,
    ReadRequest, ReadStream, Standing, Timestamp, Version, XattrList,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use links::Served;
pub use rules::NamespaceRules;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// All origins of a root. Cheap to clone.
#[derive(Clone)]
pub struct Origins {
    shared: Arc<Shared>,
}

struct Shared {
    /// Longest prefix first.
    mounts: Vec<Mount>,
    served: Vec<Served>,
    symlinks: SymlinkPolicy,
    counters: Arc<OriginCounters>,
    /// Of directories that are made up.
    synthetic: Attributes,
}

struct Mount {
    prefix: ItemPath,
    uri: String,
    /// The canonical form of `uri`, which is the same for all roots.
    place: String,
    origin: Arc<dyn Origin>,
    exclusion: Arc<Exclusion>,
    /// For the request at start that shows whether a store answers.
    store: Option<ObjectOrigin>,
}

impl std::fmt::Debug for Origins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mounts = self.shared.mounts.iter();
        f.debug_map()
            .entries(mounts.map(|mount| (&mount.prefix, &mount.uri)))
            .finish()
    }
}

impl Origins {
    /// Opens every origin of `specs`. Directories are opened; nothing is sent to object stores yet.
    ///
    /// # Errors
    /// The first origin that cannot be served, with what to try.
    pub fn open(specs: &[OriginSpec], options: &OriginOptions) -> Result<Self, OriginError> {
        open::open(specs, options)
    }

    /// Asks every object store once whether it answers and lets us in.
    ///
    /// # Errors
    /// The first that does not, after its retries.
    pub async fn check(&self) -> Result<(), OriginError> {
        for mount in &self.shared.mounts {
            if let Some(store) = &mount.store {
                store.check().await?;
            }
        }
        Ok(())
    }

    /// The fingerprint of every origin's top directory. Nodes that see the same storage get the same
    /// fingerprint; nodes that see their own directories under the same name (a local disk) do not. The
    /// fingerprint includes the version of the top directory, and so the identity of its filesystem. If a
    /// filesystem has none, only inode number and birth time of the top directory and the names and kinds
    /// of its entries are compared.
    ///
    /// # Errors
    /// Storage does not answer.
    pub async fn fingerprints(&self) -> Result<Vec<OriginFingerprint>, Failure> {
        let mut fingerprints = Vec::with_capacity(self.shared.mounts.len());
        for mount in &self.shared.mounts {
            fingerprints.push(OriginFingerprint {
                prefix: mount.prefix.clone(),
                fingerprint: mount.fingerprint().await?,
            });
        }
        Ok(fingerprints)
    }

    /// Declares the counters of storage in `registry`.
    pub fn declare(&self, registry: &Registry) {
        self.shared.counters.declare(registry);
        let origin = registry.scope("origin");
        let read = |number: fn(&OriginSnapshot) -> u64| {
            let origins = self.clone();
            move || number(&origins.counters())
        };
        let help = "Attempts that object stores refused because they were overloaded.";
        let throttled = read(|now| now.throttled);
        origin.computed("throttled", Kind::Counter, Unit::Count, help, throttled);
        let help = "Concurrent requests that object stores are sent at most, at this time.";
        let concurrency = read(|now| now.concurrency);
        origin.computed("concurrency", Kind::Gauge, Unit::Count, help, concurrency);
        let help = "Calls into POSIX storage that hang at this time.";
        let hanging = read(|now| now.hanging);
        origin.computed("hanging", Kind::Gauge, Unit::Count, help, hanging);
    }

    /// What the origins have done so far.
    #[must_use]
    pub fn counters(&self) -> OriginSnapshot {
        let mut now = self.shared.counters.snapshot();
        for store in self.shared.mounts.iter().filter_map(|m| m.store.as_ref()) {
            let (throttled, concurrency) = store.pressure();
            now.throttled += throttled;
            now.concurrency += u64::try_from(concurrency).unwrap_or(u64::MAX);
        }
        for hanging in self.shared.mounts.iter().filter_map(|m| m.origin.hanging()) {
            now.hanging += u64::try_from(hanging.calls).unwrap_or(u64::MAX);
        }
        now
    }

    /// The hanging calls into storage, if there are any: their number, and the oldest one with its path in
    /// the namespace.
    #[must_use]
    pub fn hanging(&self) -> Option<HangingCalls> {
        let mut all: Option<HangingCalls> = None;
        for mount in &self.shared.mounts {
            let Some(mut here) = mount.origin.hanging() else {
                continue;
            };
            let below = here.path.components();
            let path = below.fold(mount.prefix.clone(), |path, name| {
                path.join(name).unwrap_or(path)
            });
            here.path = path;
            let calls = here.calls + all.as_ref().map_or(0, |all| all.calls);
            let oldest = all.filter(|all| all.since >= here.since).unwrap_or(here);
            all = Some(HangingCalls { calls, ..oldest });
        }
        all
    }
}

/// So many entries of an origin's top directory are compared.
const COMPARED_ENTRIES: usize = 256;

impl Mount {
    /// A fingerprint of this storage, which differs from that of other storage with the same URI.
    ///
    /// It is made of properties that do not change while the storage is in use: the URI, the identity of
    /// the top directory (its version: inode and birth time, nothing that changes with its entries), and
    /// the names and kinds of its entries. It includes no size and no time of a file: another root looks a
    /// moment later, and a growing log file would make the same storage look different. A name that appears
    /// or vanishes between two looks still changes it, so a node that finds a difference looks again.
    async fn fingerprint(&self) -> Result<[u8; 16], Failure> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.place.as_bytes());
        let listed = self
            .origin
            .list(ItemPath::root(), None, COMPARED_ENTRIES)
            .await;
        let listing = match listed {
            Ok(listing) => listing,
            // It may be searched only: nothing more can be compared.
            Err(failure) if failure.kind == FailureKind::PermissionDenied => {
                return Ok(truncated(&hasher));
            }
            Err(failure) => return Err(failure),
        };
        // Only the data part of the version: no time of a status change, and no standing.
        let top = listing.directory.version.standing_as(Standing::Lasting);
        hasher.update(&top.changed_at(b"").to_bytes());
        let hidden = self.exclusion.now();
        let mut entries: Vec<&Entry> = listing.entries.iter().collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let path = ItemPath::root().join(&entry.name);
            if path.is_ok_and(|path| hidden.covers(&path)) {
                continue;
            }
            // Names contain no slash, so different lists of names and kinds never give the same bytes.
            hasher.update(&entry.name);
            hasher.update(format!("/{:?}/", entry.kind).as_bytes());
        }
        Ok(truncated(&hasher))
    }
}

fn truncated(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}

impl Shared {
    /// The origin that answers for `path`, and what it calls it.
    fn route(&self, path: &ItemPath) -> Option<(&Mount, ItemPath)> {
        self.mounts
            .iter()
            .find_map(|mount| Some((mount, path.strip_prefix(&mount.prefix)?)))
    }

    /// The origin for `path`, unless it is excluded there or has none.
    fn resolve(&self, path: &ItemPath) -> Result<(&Mount, ItemPath), Failure> {
        match self.route(path) {
            Some((mount, below)) if !mount.exclusion.now().covers(&below) => Ok((mount, below)),
            _ => Err(Failure::not_found(path)),
        }
    }

    /// What the origin that answers for directory `dir` hides, as it stands now.
    fn view(&self, dir: &ItemPath) -> View<'_> {
        View(
            self.route(dir)
                .map(|(mount, _)| (&mount.prefix, mount.exclusion.now())),
        )
    }

    /// Names directly below `dir` that lead to a prefix.
    fn names_to_prefixes(&self, dir: &ItemPath) -> BTreeSet<Bytes> {
        self.mounts
            .iter()
            .filter_map(|mount| mount.prefix.strip_prefix(dir))
            .filter_map(|rest| rest.components().next().map(Bytes::copy_from_slice))
            .collect()
    }

    fn is_prefix(&self, path: &ItemPath) -> bool {
        self.mounts.iter().any(|mount| mount.prefix == *path)
    }

    /// Attributes of a directory that is made up: the same ones at all times, and a version of its own.
    fn synthetic(&self, path: &ItemPath) -> Attributes {
        let mut identity = b"synthetic/".to_vec();
        identity.extend_from_slice(path.as_bytes());
        Attributes {
            version: Version::of(&identity),
            ..self.synthetic.clone()
        }
    }

    /// Shows a link as the policy wants it.
    fn rewrite(&self, path: &ItemPath, attributes: &mut Attributes) {
        if self.symlinks == SymlinkPolicy::Keep {
            return;
        }
        let Some(target) = &attributes.link_target else {
            return;
        };
        let hidden = |path: &ItemPath| self.resolve(path).is_err();
        if let Some(text) = links::relative(path, target, &self.served, hidden) {
            attributes.size = u64::try_from(text.len()).unwrap_or(u64::MAX);
            attributes.link_target = Some(text.into());
        }
    }

    fn too_slow(&self, path: &ItemPath, patience: Duration) -> Failure {
        let uri = self
            .resolve(path)
            .map_or("of no prefix", |(mount, _)| &mount.uri);
        let failure = too_slow(uri, "read", path, patience);
        self.counters.failed(&failure);
        failure
    }

    /// Counts a fault and passes the result on.
    fn counted<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &result {
            self.counters.failed(failure);
        }
        result
    }

    async fn list(
        self: Arc<Self>,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Listing, Failure> {
        if cursor.is_none() {
            self.counters.listed();
        }
        let made_up: Vec<Bytes> = self.names_to_prefixes(&path).into_iter().collect();
        let place = match &cursor {
            None => Place::MadeUp(0),
            Some(cursor) => Place::decode(cursor).ok_or_else(|| {
                Failure::new(FailureKind::Stale, format!("{path}: a foreign cursor"))
            })?,
        };
        let (mut entries, inner) = match place {
            Place::MadeUp(first) => {
                let end = made_up.len().min(first.saturating_add(limit));
                let names = made_up.get(first..end).unwrap_or_default();
                let entries = self.made_up_entries(&path, names).await;
                let more = end < made_up.len() || self.resolve(&path).is_ok();
                if more && entries.len() >= limit {
                    return Ok(Listing {
                        directory: self.prefix_attributes(&path).await?,
                        entries,
                        next: Some(Place::MadeUp(end).encode()),
                    });
                }
                (entries, None)
            }
            Place::Origin(cursor) => (Vec::new(), Some(cursor)),
        };
        let left = limit.saturating_sub(entries.len());
        let listing = match self.resolve(&path) {
            Ok((mount, below)) => mount.origin.list(below, inner, left).await,
            Err(failure) => Err(failure),
        };
        let listing = match listing {
            Ok(listing) => listing,
            Err(failure) if !made_up.is_empty() && is_absence(failure.kind) => Listing {
                directory: self.synthetic(&path),
                entries: Vec::new(),
                next: None,
            },
            Err(failure) => return self.counted(Err(failure)),
        };
        let view = self.view(&path);
        for mut entry in listing.entries {
            if made_up.binary_search(&entry.name).is_ok() {
                continue;
            }
            let Ok(child) = path.join(&entry.name) else {
                continue;
            };
            if view.hides(&child) {
                continue;
            }
            if let Some(attributes) = &mut entry.attributes {
                self.rewrite(&child, attributes);
            }
            entries.push(entry);
        }
        Ok(Listing {
            directory: listing.directory,
            entries,
            next: listing.next.map(|cursor| Place::Origin(cursor).encode()),
        })
    }

    async fn made_up_entries(self: &Arc<Self>, dir: &ItemPath, names: &[Bytes]) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let Ok(path) = dir.join(name) else { continue };
            entries.push(Entry {
                name: name.clone(),
                kind: FileKind::Directory,
                attributes: self.prefix_attributes(&path).await.ok(),
            });
        }
        entries
    }

    /// Attributes of a prefix, or of a directory on the way to one.
    async fn prefix_attributes(&self, path: &ItemPath) -> Result<Attributes, Failure> {
        let Ok((mount, below)) = self.resolve(path) else {
            return Ok(self.synthetic(path));
        };
        let answer = mount.origin.stat(below, vec![Bytes::new()]).await;
        match answer.and_then(one) {
            Ok(attributes) if attributes.kind == FileKind::Directory => Ok(attributes),
            // The origin has a file there, or nothing: the way to the prefix goes through all the same.
            Ok(_) if !self.is_prefix(path) => Ok(self.synthetic(path)),
            Err(failure) if !self.is_prefix(path) && is_absence(failure.kind) => {
                Ok(self.synthetic(path))
            }
            other => other,
        }
    }

    async fn stat(
        self: Arc<Self>,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> Result<StatAnswers, Failure> {
        self.counters.stated(names.len());
        let made_up = self.names_to_prefixes(&parent);
        let mut answers: Vec<Option<Result<Attributes, Failure>>> = vec![None; names.len()];
        let mut asked = Vec::new();
        let view = self.view(&parent);
        for (index, name) in names.iter().enumerate() {
            if name.is_empty() {
                if !made_up.is_empty() || self.is_prefix(&parent) {
                    answers[index] = Some(self.prefix_attributes(&parent).await);
                    continue;
                }
            } else {
                let Ok(path) = parent.join(name) else {
                    let kind = if name.len() > ItemPath::NAME_BYTES_MAX {
                        FailureKind::NameTooLong
                    } else {
                        FailureKind::NotFound
                    };
                    let failure = Failure::new(kind, format!("{parent}: not a possible name"));
                    answers[index] = Some(Err(failure));
                    continue;
                };
                if made_up.contains(name) {
                    answers[index] = Some(self.prefix_attributes(&path).await);
                    continue;
                }
                if view.hides(&path) {
                    answers[index] = Some(Err(Failure::not_found(&path)));
                    continue;
                }
            }
            asked.push(index);
        }
        if !asked.is_empty() {
            self.ask(&parent, &names, &asked, !made_up.is_empty(), &mut answers)
                .await?;
        }
        let missing = || Err(Failure::not_found(&parent));
        Ok(answers
            .into_iter()
            .map(|answer| self.counted(answer.unwrap_or_else(missing)))
            .collect())
    }

    /// Has the origin of `parent` answer for those of `names` whose indices are in `asked`.
    async fn ask(
        &self,
        parent: &ItemPath,
        names: &[Bytes],
        asked: &[usize],
        exists: bool,
        answers: &mut [Option<Result<Attributes, Failure>>],
    ) -> Result<(), Failure> {
        let result = match self.resolve(parent) {
            Ok((mount, below)) => {
                let wanted = asked.iter().map(|&index| names[index].clone()).collect();
                mount.origin.stat(below, wanted).await
            }
            Err(failure) => Err(failure),
        };
        match result {
            Ok(found) => {
                for (&index, mut answer) in asked.iter().zip(found) {
                    if let Ok(attributes) = &mut answer
                        && let Ok(path) = parent.join(&names[index])
                    {
                        self.rewrite(&path, attributes);
                    }
                    answers[index] = Some(answer);
                }
                Ok(())
            }
            // The directory is made up: what is not a way to a prefix is not there.
            Err(failure) if exists && is_absence(failure.kind) => {
                for &index in asked {
                    answers[index] = Some(Err(Failure::not_found(parent)));
                }
                Ok(())
            }
            Err(failure) => self.counted(Err(failure)),
        }
    }

    async fn read(self: Arc<Self>, request: ReadRequest) -> Result<ReadStream, Failure> {
        self.counters.opened();
        let (mount, below) = self.resolve(&request.path)?;
        let range = blocks::range_of(&request, below);
        if let Some(blocks) = mount.origin.blocks(&range) {
            let blocks = self.counted(blocks.await)?;
            return Ok(blocks::counted(blocks, Arc::clone(&self.counters)));
        }
        let length = range.length;
        let bytes = self.counted(mount.origin.open(range).await)?;
        let counters = Arc::clone(&self.counters);
        Ok(blocks::hashed(bytes, request.path, length, counters))
    }

    async fn read_range(self: Arc<Self>, request: RangeRequest) -> Result<RangeAnswer, Failure> {
        self.counters.opened();
        if let Some(fault) = request.fault() {
            return Err(Failure::new(FailureKind::Corrupt, fault));
        }
        let (mount, below) = self.resolve(&request.path)?;
        let range = ByteRange {
            path: below,
            version: request.version,
            size: request.size,
            offset: request.offset,
            length: request.len,
        };
        let stream = self.counted(mount.origin.open(range).await)?;
        let bytes = blocks::gathered(stream, &request.path, request.len, &self.counters).await?;
        Ok(RangeAnswer::of(bytes))
    }
}

/// The exclusions for one directory, looked up once for all its names.
struct View<'a>(Option<(&'a ItemPath, Hidden<'a>)>);

impl View<'_> {
    /// Whether `child`, a path in the namespace below no further prefix, is hidden.
    fn hides(&self, child: &ItemPath) -> bool {
        match &self.0 {
            Some((prefix, hidden)) => child
                .strip_prefix(prefix)
                .is_none_or(|below| hidden.covers(&below)),
            None => true,
        }
    }
}

/// Whether a failure says that a directory is not there.
fn is_absence(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::NotFound | FailureKind::NotADirectory)
}

fn one(answers: StatAnswers) -> Result<Attributes, Failure> {
    let none = || Failure::new(FailureKind::Io, "the origin gave no answer");
    answers.into_iter().next().ok_or_else(none)?
}

/// Where a page of a merged directory begins.
enum Place {
    /// At this one of the names that are made up.
    MadeUp(usize),
    /// Behind them, at the origin's cursor.
    Origin(Cursor),
}

impl Place {
    fn encode(self) -> Cursor {
        let mut bytes = Vec::new();
        match self {
            Self::MadeUp(index) => {
                bytes.push(0);
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                bytes.extend_from_slice(&index.to_le_bytes());
            }
            Self::Origin(cursor) => {
                bytes.push(1);
                bytes.extend_from_slice(&cursor.0);
            }
        }
        Cursor(bytes.into())
    }

    fn decode(cursor: &Cursor) -> Option<Self> {
        match cursor.0.split_first()? {
            (0, index) => {
                let index = u32::from_le_bytes(index.try_into().ok()?);
                Some(Self::MadeUp(usize::try_from(index).ok()?))
            }
            (1, _) => Some(Self::Origin(Cursor(cursor.0.slice(1..)))),
            _ => None,
        }
    }
}

impl Storage for Origins {
    fn bundle_in_turn(
        &self,
        request: BundleRequest,
        turns: Arc<dyn Turns>,
    ) -> Result<TurnStream, Failure> {
        self.shared.bundle(request, turns)
    }

    fn too_slow(&self, path: &ItemPath, patience: Duration) -> Failure {
        self.shared.too_slow(path, patience)
    }
}

impl Origins {
    fn timed<T: Send + 'static>(
        &self,
        operation: Operation,
        answer: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Failure>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.counters.timed(operation, answer).await })
    }
}

impl Files for Origins {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let listing = Arc::clone(&self.shared).list(path, cursor, limit);
        self.timed(Operation::List, listing)
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        let answers = Arc::clone(&self.shared).stat(parent, names);
        self.timed(Operation::Stat, async move {
            answers.await.map(Leased::lasting)
        })
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        let stream = Arc::clone(&self.shared).read(request);
        self.timed(Operation::Read, stream)
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        let range = Arc::clone(&self.shared).read_range(request);
        self.timed(Operation::ReadRange, range)
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        let items = self.shared.bundle(request, Arc::new(Alone));
        let items = items.map(|items| items.map(|(item, _turn)| Ok(item)).boxed());
        Box::pin(std::future::ready(items))
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let list = match shared.resolve(&path) {
                Ok((mount, below)) => shared.counted(mount.origin.xattrs(below).await),
                Err(_) if !shared.names_to_prefixes(&path).is_empty() => Ok(XattrList::new()),
                Err(failure) => Err(failure),
            };
            list.map(Leased::lasting)
        })
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            // A directory that is made up is as large as the first origin below it.
            let below = shared.mounts.iter().rev();
            let routed = shared.resolve(&path).or_else(|failure| {
                below
                    .filter(|mount| mount.prefix.strip_prefix(&path).is_some())
                    .map(|mount| (mount, ItemPath::root()))
                    .next()
                    .ok_or(failure)
            });
            let (mount, below) = routed?;
            shared.counted(mount.origin.usage(below).await)
        })
    }
}

/// Attributes of a directory that no storage holds. Constant, so that nothing looks changed.
fn synthetic_attributes() -> Attributes {
    let epoch = Timestamp {
        seconds: 0,
        nanoseconds: 0,
    };
    Attributes {
        kind: FileKind::Directory,
        mode: 0o555,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        links: 1,
        device: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        version: Version::from_data([0; 16]),
        link_target: None,
        content: None,
    }
}
