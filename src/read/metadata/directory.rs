//! A directory: its own attributes and its entries, with the leases under which they may be used. Pure.

use super::lease::{Cached, Lease, Term};
use crate::prefetch::Readers;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Entry, Failure, FailureKind, FileKind, ItemPath, Listing, ListingDigest,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The result of a look-up.
#[derive(Clone, Debug)]
pub enum LookupOutcome {
    /// The name exists.
    Attributes(Attributes),
    /// The name does not exist.
    Absent,
}

/// The answer about one name.
pub(super) type CachedLookup = Cached<LookupOutcome>;

impl CachedLookup {
    /// The attributes, if the name exists.
    pub(super) fn attributes(self) -> Option<Cached<Attributes>> {
        let Self { value, lease } = self;
        match value {
            LookupOutcome::Attributes(value) => Some(Cached { value, lease }),
            LookupOutcome::Absent => None,
        }
    }
}

/// Whether attributes that arrived at `since` may be used. Those of an unsettled version expire when
/// another look could settle it.
pub(super) fn is_current(attributes: &Attributes, since: Instant) -> bool {
    settles_after(attributes).is_none_or(|after| since.elapsed() < after)
}

/// How long it takes until a write would show in these attributes, if their version has not settled.
pub(super) fn settles_after(attributes: &Attributes) -> Option<Duration> {
    (!attributes.version.is_settled()).then(|| attributes.granularity())
}

/// A page of a directory in the listings' cache. Only large directories have pages after page 0.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListingKey {
    pub(super) path: ItemPath,
    pub(super) page: u32,
}

impl ListingKey {
    /// The first page of directory `path`.
    pub(super) fn first(path: &ItemPath) -> Self {
        Self {
            path: path.clone(),
            page: 0,
        }
    }
}

/// A directory: all of it, a page of a large one, or only its existence.
#[derive(Debug)]
pub struct Directory {
    /// Attributes of the directory itself.
    pub attributes: Attributes,
    /// The entries, in the origin's order.
    pub entries: Vec<Entry>,
    /// Positions in `entries`, sorted by name.
    pub(in crate::read) by_name: Box<[u32]>,
    /// More entries follow: the directory is large.
    pub(super) next: Option<Cursor>,
    /// `false`: the origin refused to list it. Its names are looked up one by one, and it cannot be listed here
    /// either.
    pub(super) listable: bool,
    since: Instant,
    /// The lease under which it may be used.
    term: Term,
    /// A number that no other directory of this process has.
    serial: u64,
    /// Names that were looked up by themselves, the most recent ones last; only with leases. Locked for a
    /// search among [`NAMED_MAX`].
    named: Mutex<VecDeque<Bytes>>,
    /// Computed on first use.
    digest: OnceLock<Option<ListingDigest>>,
    /// The entry whose attributes a reader would request next if it goes through the directory in order, and
    /// the size of its last batch.
    stat_next: AtomicU32,
    stat_batch: AtomicU32,
    /// What its readers have done so far, for guesses at what they will read.
    pub(in crate::read) readers: Readers,
}

/// See [`Directory::edition`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edition {
    serial: u64,
    until_ms: u64,
}

/// Names whose attributes are renewed together: the cost of one request to the origin for one name.
const NAMED_MAX: usize = 512;

/// The maximum number of names in one request when a reader goes through a directory in order.
const STAT_BATCH_MAX: u32 = 512;
/// Estimated cost of an entry beside its name, in bytes; with attributes or without.
pub(super) const ENTRY_BYTES: u64 = 64;
pub(super) const ATTRIBUTES_BYTES: u64 = 176;

impl Directory {
    pub(super) fn new(listing: Listing, lease: Lease) -> Self {
        static SERIALS: AtomicU64 = AtomicU64::new(0);
        let entries = listing.entries;
        let mut by_name: Vec<u32> = (0..u32::try_from(entries.len()).unwrap_or(u32::MAX)).collect();
        by_name.sort_unstable_by(|&a, &b| entries[a as usize].name.cmp(&entries[b as usize].name));
        Self {
            attributes: listing.directory,
            entries,
            by_name: by_name.into(),
            next: listing.next,
            listable: true,
            since: Instant::now(),
            term: Term::new(lease),
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            named: Mutex::default(),
            digest: OnceLock::new(),
            stat_next: AtomicU32::new(0),
            stat_batch: AtomicU32::new(0),
            readers: Readers::default(),
        }
    }

    /// Whether entry `index` of the whole directory is here, if it exists; this is the first page.
    #[must_use]
    pub fn holds(&self, index: usize) -> bool {
        self.listable && (self.next.is_none() || index < self.entries.len())
    }

    /// Whether a name that is not among `entries` does not exist.
    pub(super) fn is_complete(&self) -> bool {
        self.listable && self.next.is_none()
    }

    /// The lease under which it may be used.
    pub(super) fn lease(&self) -> Lease {
        self.term.lease()
    }

    /// Continues under `lease`: the source said that the directory has not changed.
    pub(super) fn renew(&self, lease: Lease) {
        self.term.renew(lease);
    }

    /// Identifies this listing and its lease. It differs after each change and each renewal.
    #[must_use]
    pub fn edition(&self) -> Edition {
        Edition {
            serial: self.serial,
            until_ms: self.term.until_ms(),
        }
    }

    /// This listing's answer about `name`, whatever its age; `None` if it has none. The empty name is the directory
    /// itself.
    pub(super) fn says(&self, name: &[u8]) -> Option<CachedLookup> {
        let value = match self.position(name) {
            _ if name.is_empty() => LookupOutcome::Attributes(self.attributes.clone()),
            Some(position) => LookupOutcome::Attributes(self.current_attributes(position)?.clone()),
            None if self.is_complete() => LookupOutcome::Absent,
            None => return None,
        };
        let lease = self.lease();
        Some(Cached { value, lease })
    }

    /// Records that `name` was looked up by itself. Returns the names that were before it.
    pub(super) fn name_asked(&self, name: &[u8]) -> Vec<Bytes> {
        let mut named = self.named.lock();
        named.retain(|other| other != name);
        let others = named.iter().cloned().collect();
        if named.len() == NAMED_MAX {
            named.pop_front();
        }
        named.push_back(Bytes::copy_from_slice(name));
        others
    }

    /// Takes over what `older`, which this directory replaces, recorded about its readers.
    pub(super) fn inherit(&self, older: &Self) {
        let names = std::mem::take(&mut *older.named.lock());
        *self.named.lock() = names;
    }

    /// The attributes that arrived with entry `position`, unless they have expired.
    pub(super) fn current_attributes(&self, position: usize) -> Option<&Attributes> {
        let attributes = self.entries[position].attributes.as_ref()?;
        is_current(attributes, self.since).then_some(attributes)
    }

    /// The position of `name`.
    #[must_use]
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.rank(name).map(|rank| self.by_name[rank] as usize)
    }

    /// The index of `name` in `by_name`.
    pub(in crate::read) fn rank(&self, name: &[u8]) -> Option<usize> {
        self.by_name
            .binary_search_by(|&at| self.entries[at as usize].name[..].cmp(name))
            .ok()
    }

    /// The directory after `name`, in the order of names.
    pub(in crate::read) fn directory_after(&self, name: &[u8]) -> Option<&Entry> {
        let after = self.by_name.get(self.rank(name)? + 1..)?;
        let mut entries = after.iter().map(|&at| &self.entries[at as usize]);
        entries.find(|entry| entry.kind == FileKind::Directory)
    }

    /// The entries whose attributes to request together with entry `position`: more of them, the longer a reader goes
    /// through the directory in order. The listing of a large directory comes without attributes.
    pub(super) fn stat_batch(&self, position: usize) -> &[Entry] {
        let at = u32::try_from(position).unwrap_or(u32::MAX);
        let last = self.stat_batch.load(Ordering::Relaxed);
        let next = self.stat_next.load(Ordering::Relaxed);
        // A reader in order may skip a few entries, such as directories.
        let in_order = last > 0 && at >= next && at - next < last.max(8);
        let batch = if in_order {
            (last * 4).min(STAT_BATCH_MAX)
        } else {
            1
        };
        self.stat_batch.store(batch, Ordering::Relaxed);
        self.stat_next.store(at + batch, Ordering::Relaxed);
        &self.entries[position..self.entries.len().min(position + batch as usize)]
    }

    /// A digest of its entries; `None` if it cannot be listed.
    pub(super) fn digest(&self) -> Option<ListingDigest> {
        let of = || ListingDigest::of(&self.attributes, &self.entries, self.next.as_ref());
        *self.digest.get_or_init(|| self.listable.then(of).flatten())
    }

    /// Refuses to list this directory, which is `path`, if the origin refuses it.
    pub(super) fn check_listable(&self, path: &ItemPath) -> Result<(), Failure> {
        if self.listable {
            return Ok(());
        }
        let detail = format!("{path}: may be searched, not listed");
        Err(Failure::new(FailureKind::PermissionDenied, detail))
    }

    pub(super) fn weight(&self) -> u64 {
        let bytes = self.entries.iter().map(|entry| {
            let attributes = u64::from(entry.attributes.is_some()) * ATTRIBUTES_BYTES;
            entry.name.len() as u64 + ENTRY_BYTES + attributes
        });
        256 + bytes.sum::<u64>()
    }
}
