//! Several origins side by side, as one namespace.
//!
//! The longest prefix that contains a path decides which origin answers. A directory that exists only
//! because a prefix is below it is *synthetic*; if an origin with a shorter prefix has a directory of that
//! name, the two are merged. Symlinks are rewritten here and excluded paths hidden.

mod blocks;
mod bundle;
mod examine;
mod links;
mod open;
mod rules;

pub use examine::{Finding, Outcome};
pub use rules::NamespaceRules;

use super::counters::{Operation, OriginCounters, StorePressure};
use super::exclusion::{ExcludedPaths, Exclusion};
use super::failure::Cause;
use super::options::{OriginOptions, OriginSpec};
use super::{
    ByteRange, ClaimFile, ClaimedStream, HangingCalls, ObjectOrigin, Origin, OriginError,
    StatAnswers, Storage, child_of, claim_any, truncated,
};
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Cursor, Entry, Failure, FailureKind, FileKind, Files,
    FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed, Listing,
    OriginFingerprint, RangeAnswer, RangeRequest, ReadRequest, ReadStream, Standing, StatRequest,
    Version, XattrList,
};
use futures_util::StreamExt;
use links::LinkRules;
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
    links: LinkRules,
    counters: Arc<OriginCounters>,
    /// The attributes of synthetic directories.
    synthetic: Attributes,
}

struct Mount {
    prefix: ItemPath,
    uri: String,
    /// The canonical form of `uri`, which is the same for all roots.
    canonical_uri: String,
    origin: Arc<dyn Origin>,
    exclusion: Arc<Exclusion>,
    /// The origin again, if it is an object store.
    store: Option<ObjectOrigin>,
}

impl Origins {
    /// Opens every origin of `specs`. Directories are opened; nothing is sent to object stores yet.
    ///
    /// # Errors
    /// The first origin that cannot be served.
    pub fn open(specs: &[OriginSpec], options: &OriginOptions) -> Result<Self, OriginError> {
        open::open(specs, options)
    }

    /// Sends every object store one request, to check that it answers and accepts the credentials.
    ///
    /// # Errors
    /// The first store that does not, after its retries.
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
        let read = |number: fn(&Self) -> u64| {
            let origins = self.clone();
            move || number(&origins)
        };
        let help = "Attempts that object stores refused because they were overloaded.";
        let throttled = read(|origins| origins.pressure().throttled);
        origin.computed("throttled", Kind::Counter, Unit::Count, help, throttled);
        let help = "Concurrent requests that object stores are sent at most, at this time.";
        let concurrency = read(|origins| origins.pressure().concurrency);
        origin.computed("concurrency", Kind::Gauge, Unit::Count, help, concurrency);
        let help = "Calls into POSIX storage that hang at this time.";
        let hanging = read(|origins| origins.hanging().map_or(0, |hanging| hanging.calls as u64));
        origin.computed("hanging", Kind::Gauge, Unit::Count, help, hanging);
    }

    /// The counters of all origins together.
    #[must_use]
    pub fn counters(&self) -> &OriginCounters {
        &self.shared.counters
    }

    /// How all object stores together cope with the requests.
    #[must_use]
    pub fn pressure(&self) -> StorePressure {
        let mut all = StorePressure::default();
        for store in self.shared.mounts.iter().filter_map(|m| m.store.as_ref()) {
            let pressure = store.pressure();
            all.throttled += pressure.throttled;
            all.concurrency += pressure.concurrency;
        }
        all
    }

    /// The hanging calls into storage, if there are any: their number, and the oldest one with its path in
    /// the namespace.
    #[must_use]
    pub fn hanging(&self) -> Option<HangingCalls> {
        let hanging = self.shared.mounts.iter().filter_map(|mount| {
            let hanging = mount.origin.hanging()?;
            let path = joined(&mount.prefix, &hanging.path).unwrap_or_else(|| mount.prefix.clone());
            Some(HangingCalls { path, ..hanging })
        });
        hanging.reduce(|all, here| HangingCalls {
            calls: all.calls + here.calls,
            ..if all.since >= here.since { all } else { here }
        })
    }
}

/// `below`, which is relative to `prefix`, as a path of the namespace. Returns `None` if it is too long.
fn joined(prefix: &ItemPath, below: &ItemPath) -> Option<ItemPath> {
    let mut components = below.components();
    components.try_fold(prefix.clone(), |path, name| path.join(name).ok())
}

/// Compared entries of an origin's top directory.
const COMPARED_ENTRIES: usize = 256;

impl Mount {
    /// A fingerprint of this storage, which differs from that of other storage with the same URI.
    ///
    /// It is made of properties that do not change while the storage is in use: the URI, the identity of
    /// the top directory (its version: inode and birth time, nothing that changes with its entries), and
    /// the names and kinds of its entries. It includes no size and no time of a file: another root makes its
    /// fingerprint a moment later, and a growing log file would make the same storage look different. A name
    /// that appears or vanishes in between still changes it, so a node that finds a difference tries again.
    async fn fingerprint(&self) -> Result<[u8; 16], Failure> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.canonical_uri.as_bytes());
        let listed = self
            .origin
            .list(ItemPath::root(), None, COMPARED_ENTRIES)
            .await;
        let listing = match listed {
            Ok(listing) => listing,
            // It can be searched and not listed: nothing more can be compared.
            Err(failure) if failure.kind == FailureKind::PermissionDenied => {
                return Ok(truncated(&hasher));
            }
            Err(failure) => return Err(failure),
        };
        // Only the data part of the version: no time of a status change, and no standing.
        let top = listing.directory.version.standing_as(Standing::Lasting);
        hasher.update(&top.changed_at(b"").to_bytes());
        let excluded = self.exclusion.snapshot();
        let mut entries: Vec<&Entry> = listing.entries.iter().collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let path = ItemPath::root().join(&entry.name);
            if path.is_ok_and(|path| excluded.covers(&path)) {
                continue;
            }
            // Names contain no slash, so different lists of names and kinds never give the same bytes.
            hasher.update(&entry.name);
            hasher.update(format!("/{:?}/", entry.kind).as_bytes());
        }
        Ok(truncated(&hasher))
    }
}

impl Shared {
    /// The origin whose prefix contains `path`, and the path relative to it.
    fn route(&self, path: &ItemPath) -> Option<(&Mount, ItemPath)> {
        self.mounts
            .iter()
            .find_map(|mount| Some((mount, path.strip_prefix(&mount.prefix)?)))
    }

    /// Like [`Shared::route`], but fails if the path is excluded there.
    fn resolve(&self, path: &ItemPath) -> Result<(&Mount, ItemPath), Failure> {
        match self.route(path) {
            Some((mount, below)) if !mount.exclusion.snapshot().covers(&below) => {
                Ok((mount, below))
            }
            _ => Err(Failure::not_found(path)),
        }
    }

    /// The current exclusions of the origin that answers for directory `dir`.
    fn filter(&self, dir: &ItemPath) -> DirectoryFilter<'_> {
        let mount = self.route(dir);
        DirectoryFilter(mount.map(|(mount, _)| (&mount.prefix, mount.exclusion.snapshot())))
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

    /// Attributes of a synthetic directory. Only its version depends on its path.
    fn synthetic(&self, path: &ItemPath) -> Attributes {
        let identity = [b"synthetic/", path.as_bytes()].concat();
        Attributes {
            version: Version::of(&identity),
            ..self.synthetic.clone()
        }
    }

    fn rewrite_link(&self, path: &ItemPath, attributes: &mut Attributes) {
        let is_hidden = |path: &ItemPath| self.resolve(path).is_err();
        self.links.rewrite(path, attributes, is_hidden);
    }

    /// Counts a fault and passes the result on.
    fn counted<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.inspect_err(|failure| self.counters.failed(failure))
    }

    async fn list(
        self: Arc<Self>,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> Result<Listing, Failure> {
        if cursor.is_none() {
            self.counters.listings.increment();
        }
        let synthetic: Vec<Bytes> = self.names_to_prefixes(&path).into_iter().collect();
        let start = match &cursor {
            None => PageStart::Synthetic(0),
            Some(cursor) => PageStart::decode(cursor).ok_or_else(|| {
                Failure::new(FailureKind::Stale, format!("{path}: a foreign cursor"))
            })?,
        };
        // Synthetic entries come first, and the origin's entries after them, perhaps on the same page.
        let (mut entries, below_cursor) = match start {
            PageStart::Synthetic(first) => {
                let end = synthetic.len().min(first.saturating_add(limit));
                let names = synthetic.get(first..end).unwrap_or_default();
                let entries = self.synthetic_entries(&path, names).await;
                let more = end < synthetic.len() || self.resolve(&path).is_ok();
                if more && entries.len() >= limit {
                    return Ok(Listing {
                        directory: self.prefix_attributes(&path).await?,
                        entries,
                        next: Some(PageStart::Synthetic(end).encode()),
                    });
                }
                (entries, None)
            }
            PageStart::Origin(cursor) => (Vec::new(), Some(cursor)),
        };
        let left = limit.saturating_sub(entries.len());
        let listing = match self.resolve(&path) {
            Ok((mount, below)) => mount.origin.list(below, below_cursor, left).await,
            Err(failure) => Err(failure),
        };
        let listing = match listing {
            Err(failure) if !synthetic.is_empty() && is_absence(failure.kind) => Listing {
                directory: self.synthetic(&path),
                entries: Vec::new(),
                next: None,
            },
            listing => self.counted(listing)?,
        };
        let filter = self.filter(&path);
        for mut entry in listing.entries {
            // It was listed as a synthetic entry already.
            if synthetic.binary_search(&entry.name).is_ok() {
                continue;
            }
            let Ok(child) = path.join(&entry.name) else {
                continue;
            };
            if filter.hides(&child) {
                continue;
            }
            if let Some(attributes) = &mut entry.attributes {
                self.rewrite_link(&child, attributes);
            }
            entries.push(entry);
        }
        Ok(Listing {
            directory: listing.directory,
            entries,
            next: listing
                .next
                .map(|cursor| PageStart::Origin(cursor).encode()),
        })
    }

    async fn synthetic_entries(self: &Arc<Self>, dir: &ItemPath, names: &[Bytes]) -> Vec<Entry> {
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
        let none = || Failure::new(FailureKind::Io, "the origin gave no answer");
        let answers = mount.origin.stat(below, vec![Bytes::new()]).await;
        let answer = answers.and_then(|answers| answers.into_iter().next().ok_or_else(none)?);
        let is_missing = match &answer {
            Ok(attributes) => attributes.kind != FileKind::Directory,
            Err(failure) => is_absence(failure.kind),
        };
        // A prefix stays reachable if the origin above it has a file there, or nothing.
        if is_missing && !self.is_prefix(path) {
            return Ok(self.synthetic(path));
        }
        answer
    }

    async fn stat(
        self: Arc<Self>,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> Result<StatAnswers, Failure> {
        self.counters.stats.add_len(names.len());
        let synthetic = self.names_to_prefixes(&parent);
        let mut answers: Vec<Option<Result<Attributes, Failure>>> = vec![None; names.len()];
        let mut of_origin = Vec::new();
        let filter = self.filter(&parent);
        for (index, name) in names.iter().enumerate() {
            let path = match child_of(&parent, name) {
                Ok(path) => path,
                Err(invalid) => {
                    let detail = format!("{parent}: not a possible name");
                    answers[index] = Some(Err(Failure::new(invalid.kind, detail)));
                    continue;
                }
            };
            let is_synthetic = if name.is_empty() {
                !synthetic.is_empty() || self.is_prefix(&parent)
            } else {
                synthetic.contains(name)
            };
            if is_synthetic {
                answers[index] = Some(self.prefix_attributes(&path).await);
            } else if !name.is_empty() && filter.hides(&path) {
                answers[index] = Some(Err(Failure::not_found(&path)));
            } else {
                of_origin.push(index);
            }
        }
        if !of_origin.is_empty() {
            let stat = self.stat_in_origin(&parent, &names, &of_origin, &mut answers);
            match stat.await {
                // The directory is synthetic, and has no other entries.
                Err(failure) if !synthetic.is_empty() && is_absence(failure.kind) => {}
                result => self.counted(result)?,
            }
        }
        let missing = || Err(Failure::not_found(&parent));
        Ok(answers
            .into_iter()
            .map(|answer| self.counted(answer.unwrap_or_else(missing)))
            .collect())
    }

    /// Requests the attributes of those `names` whose indices are in `requested` from the origin of `parent`.
    async fn stat_in_origin(
        &self,
        parent: &ItemPath,
        names: &[Bytes],
        requested: &[usize],
        answers: &mut [Option<Result<Attributes, Failure>>],
    ) -> Result<(), Failure> {
        let (mount, below) = self.resolve(parent)?;
        let requested_names = requested.iter().map(|&index| names[index].clone());
        let found = mount.origin.stat(below, requested_names.collect()).await?;
        for (&index, mut answer) in requested.iter().zip(found) {
            if let Ok(attributes) = &mut answer
                && let Ok(path) = parent.join(&names[index])
            {
                self.rewrite_link(&path, attributes);
            }
            answers[index] = Some(answer);
        }
        Ok(())
    }

    async fn read(self: Arc<Self>, request: ReadRequest) -> Result<ReadStream, Failure> {
        self.counters.opens.increment();
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
        self.counters.opens.increment();
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
struct DirectoryFilter<'a>(Option<(&'a ItemPath, ExcludedPaths<'a>)>);

impl DirectoryFilter<'_> {
    /// Whether `child`, an entry of the directory that leads to no further prefix, is hidden.
    fn hides(&self, child: &ItemPath) -> bool {
        match &self.0 {
            Some((prefix, excluded)) => child
                .strip_prefix(prefix)
                .is_none_or(|below| excluded.covers(&below)),
            None => true,
        }
    }
}

/// Whether the failure of a request about a directory means that there is no such directory.
fn is_absence(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::NotFound | FailureKind::NotADirectory)
}

/// Where a page of a merged directory begins.
enum PageStart {
    /// At the synthetic entry of this index.
    Synthetic(usize),
    /// After the synthetic entries, at the origin's cursor.
    Origin(Cursor),
}

impl PageStart {
    fn encode(self) -> Cursor {
        let bytes = match self {
            Self::Synthetic(index) => {
                let index = u32::try_from(index).unwrap_or(u32::MAX);
                [&[0], &index.to_le_bytes()[..]].concat()
            }
            Self::Origin(cursor) => [&[1], &cursor.0[..]].concat(),
        };
        Cursor(bytes.into())
    }

    fn decode(cursor: &Cursor) -> Option<Self> {
        match cursor.0.split_first()? {
            (0, index) => {
                let index = u32::from_le_bytes(index.try_into().ok()?);
                Some(Self::Synthetic(usize::try_from(index).ok()?))
            }
            (1, _) => Some(Self::Origin(Cursor(cursor.0.slice(1..)))),
            _ => None,
        }
    }
}

impl Storage for Origins {
    fn claimed_bundle(
        &self,
        request: BundleRequest,
        claim: ClaimFile,
    ) -> Result<ClaimedStream, Failure> {
        self.shared.bundle(request, claim)
    }

    fn timed_out(&self, path: &ItemPath, read_timeout: Duration) -> Failure {
        let mount = self.shared.resolve(path);
        let uri = mount.map_or("of no prefix", |(mount, _)| &mount.uri);
        let failure = Cause::timed_out(read_timeout).failure(uri, "read", path);
        self.shared.counters.failed(&failure);
        failure
    }
}

impl Origins {
    fn timed<T: Send + 'static>(
        &self,
        operation: Operation,
        answer: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> FilesFuture<T> {
        let counters = Arc::clone(&self.shared.counters);
        Box::pin(async move { counters.timed(operation, answer).await })
    }
}

impl Files for Origins {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let ListRequest {
            path,
            cursor,
            limit,
            known,
        } = request;
        let listing = Arc::clone(&self.shared).list(path, cursor, limit);
        self.timed(Operation::List, async move {
            Ok(Listed::new(listing.await?, known))
        })
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let answers = Arc::clone(&self.shared).stat(request.parent, request.names);
        self.timed(Operation::Stat, async move {
            answers.await.map(Leased::lasting)
        })
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let stream = Arc::clone(&self.shared).read(request);
        self.timed(Operation::Read, stream)
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        let range = Arc::clone(&self.shared).read_range(request);
        self.timed(Operation::ReadRange, range)
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        let items = self.shared.bundle(request, claim_any());
        let items = items.map(|items| items.map(|(item, _claim)| Ok(item)).boxed());
        Box::pin(std::future::ready(items))
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
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

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (mount, below) = shared.resolve(&path).or_else(|failure| {
                // A synthetic directory has the usage of the first origin below it.
                let mut mounts = shared.mounts.iter().rev();
                let mount = mounts.find(|mount| mount.prefix.is_within(&path));
                mount.map(|mount| (mount, ItemPath::root())).ok_or(failure)
            })?;
            shared.counted(mount.origin.usage(below).await)
        })
    }
}
