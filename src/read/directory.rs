//! A directory as this node knows it. Pure.

use super::lease::{Lease, Term};
use super::siblings::Descent;
use super::touched::Touched;
use super::walk::{FILES, Walk};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Entry, Failure, FailureKind, FileKind, ItemPath, Leased, Listing,
    ListingDigest,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// What a look-up found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It exists.
    Attributes(Attributes),
    /// It does not.
    Absent,
}

/// Whether attributes that arrived at `since` may be used. Those of an unsettled version expire when
/// another look could settle it.
pub(super) fn is_current(attributes: &Attributes, since: Instant) -> bool {
    attributes.version.is_settled() || since.elapsed() < attributes.granularity()
}

/// A directory's page in the listings cache. Page 0 is the only one but for large directories.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListingKey {
    pub(super) path: ItemPath,
    pub(super) page: u32,
}

/// A directory as this node knows it: all of it, a page of a large one, or only that it exists.
pub struct Directory {
    /// Attributes of the directory itself.
    pub attributes: Attributes,
    /// The entries, in the origin's order.
    pub entries: Vec<Entry>,
    /// Positions in `entries`, sorted by name.
    by_name: Box<[u32]>,
    /// More entries follow: the directory is large.
    pub(super) next: Option<Cursor>,
    /// The origin refused to list it: names are looked up one by one, and readers are refused.
    pub(super) listable: bool,
    since: Instant,
    /// Until when it may be used.
    term: Term,
    /// Its number among all directories that this process has known.
    serial: u64,
    /// Names in it that were asked for by themselves, the last ones at the end; kept where there are
    /// leases. Guards itself; held for a search among [`NAMED_MAX`].
    named: Mutex<VecDeque<Bytes>>,
    /// Made when somebody asks for it.
    digest: OnceLock<Option<ListingDigest>>,
    /// The entry whose attributes a reader that walks in order would want next, and how many it got
    /// the last time.
    stat_next: AtomicU32,
    stat_batch: AtomicU32,
    /// Readers that go through the files in the listing's order, and in the order of the names.
    listed: Walk,
    sorted: Walk,
    /// What became of each file here.
    pub(super) touched: Touched,
    /// Those who list one directory below after the other.
    pub(super) descent: Descent,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("entries", &self.entries.len())
            .field("large", &self.next.is_some())
            .field("listable", &self.listable)
            .finish_non_exhaustive()
    }
}

/// What a read tells about its reader's way through the directory.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Positions of the entries that one who goes on in order will want next.
    pub(super) ahead: Vec<usize>,
    /// One who has gone through another directory begins here.
    pub(super) begun: bool,
    /// One has come to the end here.
    pub(super) ended: bool,
}

/// See [`Directory::edition`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edition {
    serial: u64,
    until_ms: u64,
}

/// Names whose attributes are renewed together: what one request to the origin may cost for one name.
const NAMED_MAX: usize = 512;

/// Names stat'ed in one request when a reader walks a directory in order.
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
            listed: Walk::default(),
            sorted: Walk::default(),
            touched: Touched::default(),
            descent: Descent::default(),
        }
    }

    pub(super) fn unlistable(attributes: Attributes, lease: Lease) -> Self {
        let empty = Listing {
            directory: attributes,
            entries: Vec::new(),
            next: None,
        };
        Self {
            listable: false,
            ..Self::new(empty, lease)
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

    /// Until when it may be used.
    pub(super) fn lease(&self) -> Lease {
        self.term.lease()
    }

    /// The attributes of the directory itself, with what remains of the lease.
    pub(super) fn leased_attributes(&self) -> Leased<Attributes> {
        Leased {
            value: self.attributes.clone(),
            lease: self.lease().remaining(),
        }
    }

    /// It is still the same, and may be used for so much longer.
    pub(super) fn renew(&self, lease: Lease) {
        self.term.renew(lease);
    }

    /// Which listing this is, on which lease: another one after each change and each renewal.
    #[must_use]
    pub fn edition(&self) -> Edition {
        Edition {
            serial: self.serial,
            until_ms: self.term.until_ms(),
        }
    }

    /// What this listing says about `name`, whatever its age; `None` if it does not say.
    pub(super) fn says(&self, name: &[u8]) -> Option<Found> {
        match self.position(name) {
            Some(position) => {
                let attributes = self.current_attributes(position)?;
                Some(Found::Attributes(attributes.clone()))
            }
            None => self.is_complete().then_some(Found::Absent),
        }
    }

    /// `name` was asked for by itself; gives those that were before it.
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

    /// What was learned of the habits of its readers in `older`, which this one replaces.
    pub(super) fn inherit(&self, older: &Self) {
        let names = std::mem::take(&mut *older.named.lock());
        *self.named.lock() = names;
    }

    /// The attributes that came along with entry `position`, while they can be trusted.
    pub(super) fn current_attributes(&self, position: usize) -> Option<&Attributes> {
        let attributes = self.entries[position].attributes.as_ref()?;
        is_current(attributes, self.since).then_some(attributes)
    }

    /// Position of `name`.
    #[must_use]
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.rank(name).map(|rank| self.by_name[rank] as usize)
    }

    /// Place of `name` in the order of names.
    fn rank(&self, name: &[u8]) -> Option<usize> {
        self.by_name
            .binary_search_by(|&at| self.entries[at as usize].name[..].cmp(name))
            .ok()
    }

    /// The file at `position` is being read from its beginning, for the first time, by one who may have
    /// just gone through another directory to its end (`carried_on`).
    pub(super) fn reading(&self, position: usize, carried_on: bool) -> Step {
        let Some(rank) = self.rank(&self.entries[position].name) else {
            return Step::default();
        };
        let sorted = |rank: usize| self.by_name[rank] as usize;
        let listed = self.walk(&self.listed, position, carried_on, |place| place);
        let by_name = self.walk(&self.sorted, rank, carried_on, sorted);
        let in_listing_order = !listed.ahead.is_empty();
        Step {
            ahead: if in_listing_order {
                listed.ahead
            } else {
                by_name.ahead
            },
            begun: listed.begun || by_name.begun,
            ended: listed.ended || by_name.ended,
        }
    }

    /// Whether its files are read in an order.
    pub(super) fn is_walked(&self) -> bool {
        self.listed.is_run() || self.sorted.is_run()
    }

    /// All entries from `position` on and then those before it, in the order in which its readers seem
    /// to go.
    pub(super) fn rest_from(&self, position: usize) -> Vec<usize> {
        let count = self.entries.len();
        if self.listed.is_longer_than(&self.sorted) {
            return (position..count).chain(0..position).collect();
        }
        let rank = self.rank(&self.entries[position].name).unwrap_or(0);
        let places = (rank..count).chain(0..rank);
        places.map(|rank| self.by_name[rank] as usize).collect()
    }

    /// The position of the first entry in the order of names; 0 in an empty directory.
    pub(super) fn first(&self) -> usize {
        self.by_name.first().map_or(0, |&at| at as usize)
    }

    /// The directory behind `name`, in the order of names.
    pub(super) fn directory_behind(&self, name: &[u8]) -> Option<&Entry> {
        let behind = self.by_name.get(self.rank(name)? + 1..)?;
        let mut entries = behind.iter().map(|&at| &self.entries[at as usize]);
        entries.find(|entry| entry.kind == FileKind::Directory)
    }

    /// One step of `walk` at `place`, in an order in which `entry_at` gives the entries' positions.
    fn walk(
        &self,
        walk: &Walk,
        place: usize,
        carried_on: bool,
        entry_at: impl Fn(usize) -> usize,
    ) -> Step {
        let count = self.entries.len();
        let narrow = |place: usize| u32::try_from(place).unwrap_or(u32::MAX);
        let is_file = |place| self.entries[entry_at(place)].kind == FileKind::File;
        let unseen = |at: usize| !is_file(at) || self.touched.may_be_read_unseen(entry_at(at));
        let begun = carried_on && (0..place).all(unseen);
        if begun {
            walk.carry_on(narrow(place));
        }
        let all_unseen = |places: Range<u32>| places.map(|at| at as usize).all(unseen);
        let ahead = walk
            .step(narrow(place), &FILES, all_unseen)
            .unwrap_or_default();
        let ahead = (ahead.start as usize).min(count)..(ahead.end as usize).min(count);
        Step {
            ahead: ahead.map(entry_at).collect(),
            begun,
            ended: walk.has_come_to(narrow(count)),
        }
    }

    /// Names to stat together with entry `position`: more, the longer a reader goes in order.
    pub(super) fn stat_batch(&self, position: usize) -> &[Entry] {
        let at = u32::try_from(position).unwrap_or(u32::MAX);
        let last = self.stat_batch.load(Ordering::Relaxed);
        let next = self.stat_next.load(Ordering::Relaxed);
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

    /// What it holds, in short; `None` for what cannot be listed.
    pub(super) fn digest(&self) -> Option<ListingDigest> {
        let of = || ListingDigest::of(&self.attributes, &self.entries, self.next.as_ref());
        *self.digest.get_or_init(|| self.listable.then(of).flatten())
    }

    /// This page for a child.
    pub(super) fn to_listing(&self, path: &ItemPath) -> Result<Listing, Failure> {
        if !self.listable {
            let detail = format!("{path}: may be searched, not listed");
            return Err(Failure::new(FailureKind::PermissionDenied, detail));
        }
        Ok(Listing {
            directory: self.attributes.clone(),
            entries: self.entries.clone(),
            next: self.next.clone(),
        })
    }

    pub(super) fn weight(&self) -> u64 {
        let attributes = self
            .entries
            .iter()
            .filter(|entry| entry.attributes.is_some())
            .count();
        let names: usize = self.entries.iter().map(|entry| entry.name.len()).sum();
        (names + 256) as u64
            + self.entries.len() as u64 * ENTRY_BYTES
            + attributes as u64 * ATTRIBUTES_BYTES
    }
}
