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
mod renew;
mod rules;

pub use examine::{Finding, Outcome};
pub use renew::Renewal;
pub use rules::NamespaceRules;

use super::counters::{Operation, OriginCounters, StorePressure};
use super::exclusion::Exclusion;
use super::{
    ByteRange, HangingCalls, ObjectOrigin, Origin, OriginError, StatAnswers, Storage, child_of,
    claim_any, collected, truncated,
};
use bytes::Bytes;
use copperfs_metrics::{Kind, Registry, Unit};
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Cursor, Entry, Failure, FailureKind, FileKind, Files,
    FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed, Listing,
    OriginFingerprint, RangeAnswer, RangeRequest, ReadRequest, ReadStream, Standing, StatRequest,
    Version, XattrList,
};
use futures_util::{StreamExt, TryStreamExt};
use links::LinkRules;
use std::collections::BTreeSet;
use std::sync::Arc;

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
    /// Sends every object store one request, to check that it answers and accepts the credentials.
    ///
    /// # Errors
    /// The first store that does not, after its retries.
    pub async fn check(&self) -> Result<(), OriginError> {
        for store in self.stores() {
            store.check().await?;
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
        for store in self.stores() {
            let pressure = store.pressure();
            all.throttled += pressure.throttled;
            all.concurrency += pressure.concurrency;
        }
        all
    }

    fn stores(&self) -> impl Iterator<Item = &ObjectOrigin> {
        let mounts = self.shared.mounts.iter();
        mounts.filter_map(|mount| mount.store.as_ref())
    }

    /// The hanging calls into storage, if there are any: their number, and the oldest one with its path in
    /// the namespace.
    #[must_use]
    pub fn hanging(&self) -> Option<HangingCalls> {
        let hanging = self.shared.mounts.iter().filter_map(|mount| {
            let hanging = mount.origin.hanging()?;
            let path = (mount.prefix.below(&hanging.path))
                .unwrap_or_else(|_too_long| mount.prefix.clone());
            Some(HangingCalls { path, ..hanging })
        });
        hanging.reduce(|all, here| HangingCalls {
            calls: all.calls + here.calls,
            ..if all.since >= here.since { all } else { here }
        })
    }
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
        let listed = (self.origin).list(ItemPath::root(), None, COMPARED_ENTRIES);
        let mut listing = match listed.await {
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
        listing.entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in listing.entries {
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
        let mut mounts = self.mounts.iter();
        mounts.find_map(|mount| Some((mount, path.strip_prefix(&mount.prefix)?)))
    }

    /// Like [`Shared::route`], but fails if the path is excluded there.
    fn resolve(&self, path: &ItemPath) -> Result<(&Mount, ItemPath), Failure> {
        let served = self.route(path);
        let served = served.filter(|(mount, below)| !mount.exclusion.snapshot().covers(below));
        served.ok_or_else(|| Failure::not_found(path))
    }

    /// Tells whether a path is hidden that is an entry of directory `dir` and leads to no further prefix. The exclusions
    /// are looked up once for all entries.
    fn filter<'a>(&'a self, dir: &ItemPath) -> impl Fn(&ItemPath) -> bool + use<'a> {
        let mount = self.route(dir).map(|(mount, _)| mount);
        let excluded = mount.map(|mount| (&mount.prefix, mount.exclusion.snapshot()));
        move |child| {
            let below = (excluded.as_ref())
                .and_then(|(prefix, excluded)| Some((child.strip_prefix(prefix)?, excluded)));
            below.is_none_or(|(below, excluded)| excluded.covers(&below))
        }
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
        let synthetic: Vec<Bytes> = self.names_to_prefixes(&path).into_iter().collect();
        let start = match &cursor {
            None => {
                self.counters.listings.increment();
                PageStart::Synthetic(0)
            }
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
        let is_hidden = self.filter(&path);
        entries.extend(listing.entries.into_iter().filter_map(|mut entry| {
            let child = path.join(&entry.name).ok()?;
            // It was listed as a synthetic entry already.
            if synthetic.binary_search(&entry.name).is_ok() || is_hidden(&child) {
                return None;
            }
            if let Some(attributes) = &mut entry.attributes {
                self.rewrite_link(&child, attributes);
            }
            Some(entry)
        }));
        let next = listing.next.map(PageStart::Origin);
        Ok(Listing {
            directory: listing.directory,
            entries,
            next: next.map(PageStart::encode),
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
        let is_synthetic = |name: &Bytes| match &name[..] {
            b"" => !synthetic.is_empty() || self.is_prefix(&parent),
            _ => synthetic.contains(name),
        };
        let is_hidden = self.filter(&parent);
        // `None` until the origin has answered.
        let mut answers = Vec::with_capacity(names.len());
        let mut of_origin = Vec::new();
        for (index, name) in names.iter().enumerate() {
            answers.push(match child_of(&parent, name) {
                Err(invalid) => {
                    let detail = format!("{parent}: not a possible name");
                    Some(Err(Failure::new(invalid.kind, detail)))
                }
                Ok(path) if is_synthetic(name) => Some(self.prefix_attributes(&path).await),
                Ok(path) if !name.is_empty() && is_hidden(&path) => {
                    Some(Err(Failure::not_found(&path)))
                }
                Ok(path) => {
                    of_origin.push((index, path));
                    None
                }
            });
        }
        if !of_origin.is_empty() {
            let requested = of_origin.iter().map(|(index, _)| names[*index].clone());
            let found = match self.resolve(&parent) {
                Ok((mount, below)) => mount.origin.stat(below, requested.collect()).await,
                Err(failure) => Err(failure),
            };
            let found = match found {
                // The directory is synthetic, and has no other entries.
                Err(failure) if !synthetic.is_empty() && is_absence(failure.kind) => Vec::new(),
                found => self.counted(found)?,
            };
            for ((index, path), mut answer) in of_origin.into_iter().zip(found) {
                if let Ok(attributes) = &mut answer {
                    self.rewrite_link(&path, attributes);
                }
                answers[index] = Some(answer);
            }
        }
        let missing = || Err(Failure::not_found(&parent));
        let answers = answers.into_iter();
        Ok(answers
            .map(|answer| self.counted(answer.unwrap_or_else(missing)))
            .collect())
    }

    async fn read(self: Arc<Self>, request: ReadRequest) -> Result<ReadStream, Failure> {
        self.counters.opens.increment();
        let (mount, below) = self.resolve(&request.path)?;
        let range = blocks::range_of(&request, below);
        let parts = if let Some(blocks) = mount.origin.blocks(&range) {
            blocks::parts_of(self.counted(blocks.await)?)
        } else {
            let length = range.length;
            let bytes = self.counted(mount.origin.open(range).await)?;
            blocks::hashed(bytes, request.path, length)
        };
        Ok(blocks::counted(parts, Arc::clone(&self.counters)))
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
        let counters = Arc::clone(&self.counters);
        let stream = self.counted(mount.origin.open(range).await)?;
        let stream = stream.inspect_ok(move |piece| counters.read_bytes.add_len(piece.len()));
        let bytes = collected(stream.boxed(), request.len, &request.path).await;
        self.counted(bytes).map(RangeAnswer::of)
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
        let items = self.claimed_bundle(request, claim_any());
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
