//! Listings and attributes: a directory is fetched once and then answers for all its names.

use super::single_flight::{Joined, Lead, answer_of};
use super::{Inner, PROVISIONAL_TTL, Page, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Entry, Failure, FailureKind, FilesystemUsage, ItemPath, Listing, XattrList,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// What a look-up found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It exists.
    Attributes(Attributes),
    /// It does not.
    Absent,
}

/// A directory's page in the listings cache. Page 0 is the only one but for large directories.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListingKey {
    pub(super) path: ItemPath,
    pub(super) page: u32,
}

/// What is known of the attributes of one path.
#[derive(Clone, Debug)]
pub(super) struct KnownAttributes {
    found: Found,
    since: Instant,
}

impl KnownAttributes {
    fn is_current(&self) -> bool {
        match &self.found {
            Found::Attributes(attributes) => is_current(attributes, self.since),
            Found::Absent => true,
        }
    }
}

fn is_current(attributes: &Attributes, since: Instant) -> bool {
    !attributes.provisional || since.elapsed() < PROVISIONAL_TTL
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
    next: Option<Cursor>,
    /// The origin refused to list it: names are looked up one by one, and readers are refused.
    listable: bool,
    since: Instant,
    /// The entry whose attributes a reader that walks in order would want next, and how many it got
    /// the last time.
    stat_next: AtomicU32,
    stat_batch: AtomicU32,
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

/// Names stat'ed in one request when a reader walks a directory in order.
const STAT_BATCH_MAX: u32 = 512;
/// Estimated cost of an entry beside its name, in bytes; with attributes or without.
const ENTRY_BYTES: u64 = 64;
const ATTRIBUTES_BYTES: u64 = 144;

impl Directory {
    fn new(listing: Listing) -> Self {
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
            stat_next: AtomicU32::new(0),
            stat_batch: AtomicU32::new(0),
        }
    }

    fn unlistable(attributes: Attributes) -> Self {
        let empty = Listing {
            directory: attributes,
            entries: Vec::new(),
            next: None,
        };
        Self {
            listable: false,
            ..Self::new(empty)
        }
    }

    /// Whether a name that is not among `entries` does not exist.
    fn is_complete(&self) -> bool {
        self.listable && self.next.is_none()
    }

    /// Position of `name`.
    #[must_use]
    pub fn position(&self, name: &[u8]) -> Option<usize> {
        self.by_name
            .binary_search_by(|&at| self.entries[at as usize].name[..].cmp(name))
            .ok()
            .map(|at| self.by_name[at] as usize)
    }

    /// Names to stat together with entry `position`: more, the longer a reader goes in order.
    fn stat_batch(&self, position: usize) -> &[Entry] {
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

    fn weight(&self) -> u64 {
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

impl ReadPath {
    /// Looks `name` up in directory `parent`, if that needs no message.
    pub fn find_now(&self, parent: &ItemPath, name: &[u8]) -> Option<Found> {
        let found = self.0.peek_name(parent, name)?;
        self.0.attributes.count_hit();
        Some(found)
    }

    /// Looks `name` up in directory `parent`.
    ///
    /// # Errors
    /// `NotFound` and `NotADirectory` about `parent`; faults.
    pub async fn find(&self, parent: &ItemPath, name: &[u8]) -> Result<Found, Failure> {
        self.0.attributes.count_miss();
        let directory = self.directory(parent).await?;
        if let Some(found) = self.0.peek_name(parent, name) {
            return Ok(found);
        }
        let names: Vec<Bytes> = match directory.position(name) {
            Some(position) => directory
                .stat_batch(position)
                .iter()
                .filter(|entry| !self.0.knows(parent, entry))
                .map(|entry| entry.name.clone())
                .collect(),
            None if directory.is_complete() => return Ok(Found::Absent),
            None => Vec::new(),
        };
        let names = match names.iter().position(|candidate| candidate == name) {
            Some(_) => names,
            None => vec![Bytes::copy_from_slice(name)],
        };
        let wanted = names
            .iter()
            .position(|candidate| candidate == name)
            .unwrap_or(0);
        self.stat_names(parent, names).await.swap_remove(wanted)
    }

    /// Looks several names up in directory `parent`, for a child; the empty name is the directory.
    ///
    /// # Errors
    /// As [`ReadPath::find`]; the inner failures are about one name.
    pub(super) async fn find_all(
        &self,
        parent: &ItemPath,
        names: &[Bytes],
    ) -> Result<Vec<Result<Found, Failure>>, Failure> {
        let directory = self.directory(parent).await?;
        let mut answers: Vec<Option<Result<Found, Failure>>> = Vec::with_capacity(names.len());
        let mut unknown = Vec::new();
        for name in names {
            answers.push(if name.is_empty() {
                Some(Ok(Found::Attributes(directory.attributes.clone())))
            } else if let Some(found) = self.0.peek_name(parent, name) {
                self.0.attributes.count_hit();
                Some(Ok(found))
            } else {
                self.0.attributes.count_miss();
                unknown.push(name.clone());
                None
            });
        }
        let mut asked = self.stat_names(parent, unknown).await.into_iter();
        let lost = || Err(given_up(parent));
        Ok(answers
            .into_iter()
            .map(|answer| answer.or_else(|| asked.next()).unwrap_or_else(lost))
            .collect())
    }

    /// What is known of `name` without a message, for the attributes of a directory page.
    pub fn peek_attributes(&self, parent: &ItemPath, entry: &Entry) -> Option<Attributes> {
        if let Some(attributes) = &entry.attributes
            && !attributes.provisional
        {
            return Some(attributes.clone());
        }
        match self.0.peek_name(parent, &entry.name)? {
            Found::Attributes(attributes) => Some(attributes),
            Found::Absent => None,
        }
    }

    /// Brings the attributes of up to [`STAT_BATCH_MAX`] entries from `position` on to this node.
    /// Failures are not reported: whoever looks a name up will meet them.
    pub async fn stat_from(&self, parent: &ItemPath, directory: &Directory, position: usize) {
        let end = directory
            .entries
            .len()
            .min(position + STAT_BATCH_MAX as usize);
        let names: Vec<Bytes> = directory.entries[position.min(end)..end]
            .iter()
            .filter(|entry| !self.0.knows(parent, entry))
            .map(|entry| entry.name.clone())
            .collect();
        if !names.is_empty() {
            self.stat_names(parent, names).await;
        }
    }

    /// The listing of `path` if it is here: the first page of a large directory.
    pub fn directory_now(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.0.listings.get(&ListingKey {
            path: path.clone(),
            page: 0,
        })
    }

    /// The listing of `path`, or its first page when it is large. A directory that may not be listed
    /// comes back empty, to be searched by name.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, faults.
    pub async fn directory(&self, path: &ItemPath) -> Result<Arc<Directory>, Failure> {
        self.page(path, 0, None).await
    }

    /// The page of directory `path` that holds entry `index`, and the index of the page's first.
    ///
    /// # Errors
    /// As [`ReadPath::directory`], and `PermissionDenied` when the directory may not be listed.
    pub async fn page_with(
        &self,
        path: &ItemPath,
        index: usize,
    ) -> Result<(usize, Arc<Directory>), Failure> {
        let mut first = 0;
        let mut page = self.directory(path).await?;
        for number in 1.. {
            if !page.listable {
                let detail = format!("{path}: may be searched, not listed");
                return Err(Failure::new(FailureKind::PermissionDenied, detail));
            }
            let Some(next) = page.next.clone() else { break };
            if index < first + page.entries.len() {
                break;
            }
            first += page.entries.len();
            page = self.page(path, number, Some(next)).await?;
        }
        Ok((first, page))
    }

    /// The page of a listed directory that holds entry `index`, if no message is needed for it.
    pub fn page_with_now(&self, path: &ItemPath, index: usize) -> Option<(usize, Arc<Directory>)> {
        let page = self.directory_now(path)?;
        let here = page.next.is_none() || index < page.entries.len();
        (page.listable && here).then_some((0, page))
    }

    async fn page(
        &self,
        path: &ItemPath,
        page: u32,
        cursor: Option<Cursor>,
    ) -> Result<Arc<Directory>, Failure> {
        let inner = &self.0;
        let key = ListingKey {
            path: path.clone(),
            page,
        };
        if let Some(directory) = inner.listings.get(&key) {
            return Ok(directory);
        }
        let pending = match inner
            .listing_flights
            .join(&key, || inner.listings.get(&key).map(Ok))
        {
            Joined::Answered(answer) => return answer,
            Joined::Follow(pending) => pending,
            Joined::Lead(lead, pending) => {
                inner.listings.count_miss();
                drop(
                    inner
                        .runtime
                        .spawn(Arc::clone(inner).list((page, cursor), lead)),
                );
                pending
            }
        };
        answer_of(pending)
            .await
            .unwrap_or_else(|| Err(given_up(path)))
    }

    /// The attributes of `path` itself: what a directory's listing says of it, or a stat by name.
    ///
    /// # Errors
    /// `NotFound`; faults.
    pub async fn attributes_of(&self, path: &ItemPath) -> Result<Attributes, Failure> {
        let Some((parent, name)) = path.split() else {
            return Ok(self.directory(path).await?.attributes.clone());
        };
        match self.find(&parent, name).await? {
            Found::Attributes(attributes) => Ok(attributes),
            Found::Absent => Err(Failure::not_found(path)),
        }
    }

    /// Attributes of `names` in `parent` from the source, each asked for once whoever asks. In the
    /// order of `names`.
    async fn stat_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
    ) -> Vec<Result<Found, Failure>> {
        let inner = &self.0;
        let mut answers = Vec::with_capacity(names.len());
        let mut leads = Vec::new();
        for name in names {
            let Ok(path) = parent.join(&name) else {
                let detail = format!("{parent}: not a name: {name:?}");
                answers.push(Err(Err(Failure::new(FailureKind::NameTooLong, detail))));
                continue;
            };
            let look_again = || inner.known(&path).map(Ok);
            answers.push(match inner.attribute_flights.join(&path, look_again) {
                Joined::Answered(answer) => Err(answer),
                Joined::Follow(pending) => Ok(pending),
                Joined::Lead(lead, pending) => {
                    leads.push((name, lead));
                    Ok(pending)
                }
            });
        }
        if !leads.is_empty() {
            drop(
                inner
                    .runtime
                    .spawn(Arc::clone(inner).stat(parent.clone(), leads)),
            );
        }
        let mut found = Vec::with_capacity(answers.len());
        for answer in answers {
            found.push(match answer {
                Err(answered) => answered,
                Ok(pending) => answer_of(pending)
                    .await
                    .unwrap_or_else(|| Err(given_up(parent))),
            });
        }
        found
    }

    /// All extended attributes of `path`, if they are here (or known to be unsupported).
    pub fn xattrs_now(&self, path: &ItemPath) -> Option<Result<Arc<XattrList>, Failure>> {
        let known = self.0.xattrs.get(path)?;
        self.0.attributes.count_hit();
        Some(known)
    }

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` (remembered) where the origin has none; faults.
    pub async fn xattrs(&self, path: &ItemPath) -> Result<Arc<XattrList>, Failure> {
        let inner = &self.0;
        let pending = match inner.xattr_flights.join(path, || inner.xattrs.get(path)) {
            Joined::Answered(answer) => return answer,
            Joined::Follow(pending) => pending,
            Joined::Lead(lead, pending) => {
                inner.attributes.count_miss();
                drop(inner.runtime.spawn(Arc::clone(inner).fetch_xattrs(lead)));
                pending
            }
        };
        answer_of(pending)
            .await
            .unwrap_or_else(|| Err(given_up(path)))
    }

    /// Usage of the filesystem behind `path`. Not cached.
    ///
    /// # Errors
    /// Faults.
    pub async fn usage(&self, path: &ItemPath) -> Result<FilesystemUsage, Failure> {
        self.0.source.usage(path.clone()).await
    }

    /// Forgets the attributes of `path` and the listing that may hold them, after they were seen to
    /// be out of date.
    pub fn forget_attributes(&self, path: &ItemPath) {
        self.0.forget_attributes(path);
    }
}

impl Inner {
    pub(super) fn forget_attributes(&self, path: &ItemPath) {
        self.forget_metadata_flights();
        self.attributes.remove(path);
        self.xattrs.remove(path);
        if let Some((parent, _)) = path.split() {
            self.listings.remove_where(|key, _| key.path == parent);
        }
    }

    /// Metadata that is on its way answers those who wait for it already, but is neither kept nor given
    /// to those who ask from now on.
    pub(super) fn forget_metadata_flights(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.listing_flights.forget_all();
        self.attribute_flights.forget_all();
        self.xattr_flights.forget_all();
    }

    /// What the attributes cache knows of `path`.
    fn known(&self, path: &ItemPath) -> Option<Found> {
        self.attributes
            .peek(path)
            .filter(KnownAttributes::is_current)
            .map(|known| known.found)
    }

    /// What is known of a name: from its directory's listing, or from an earlier look-up by name.
    fn peek_name(&self, parent: &ItemPath, name: &[u8]) -> Option<Found> {
        let directory = self.listings.get(&ListingKey {
            path: parent.clone(),
            page: 0,
        });
        if let Some(directory) = directory {
            match directory.position(name) {
                Some(position) => {
                    if let Some(attributes) = &directory.entries[position].attributes
                        && is_current(attributes, directory.since)
                    {
                        return Some(Found::Attributes(attributes.clone()));
                    }
                }
                None if directory.is_complete() => return Some(Found::Absent),
                None => {}
            }
        }
        self.known(&parent.join(name).ok()?)
    }

    fn knows(&self, parent: &ItemPath, entry: &Entry) -> bool {
        entry
            .attributes
            .as_ref()
            .is_some_and(|attributes| !attributes.provisional)
            || parent
                .join(&entry.name)
                .is_ok_and(|path| self.known(&path).is_some())
    }

    /// Asks for one page of a listing. A directory that refuses to be listed is kept as one that is
    /// searched by name.
    async fn list(
        self: Arc<Self>,
        (page, cursor): Page,
        lead: Lead<ListingKey, Result<Arc<Directory>, Failure>>,
    ) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let path = lead.key().path.clone();
        let listed = self
            .source
            .list(path.clone(), cursor, self.page_entries())
            .await;
        let answer = match listed {
            Ok(listing) => Ok(Directory::new(listing)),
            Err(failure) if failure.kind == FailureKind::PermissionDenied && page == 0 => self
                .directory_itself(&path)
                .await
                .map(Directory::unlistable),
            Err(failure) => Err(failure),
        };
        let answer = answer.map(Arc::new);
        if let Ok(directory) = &answer
            && self.epoch.load(Ordering::Acquire) == epoch
        {
            let weight = directory.weight() + path.as_bytes().len() as u64;
            self.listings
                .insert(lead.key().clone(), Arc::clone(directory), weight);
        }
        lead.answer(answer);
    }

    /// Entries in a page: few enough that several pages fit into the listings' bound.
    fn page_entries(&self) -> usize {
        let fit = self.listings.capacity_bytes() / 4 / (ENTRY_BYTES + ATTRIBUTES_BYTES + 32);
        self.options
            .listing_entries_max
            .min(usize::try_from(fit).unwrap_or(usize::MAX))
            .max(256)
    }

    async fn directory_itself(&self, path: &ItemPath) -> Result<Attributes, Failure> {
        let answers = self.source.stat(path.clone(), vec![Bytes::new()]).await?;
        answers
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(Failure::not_found(path)))
    }

    /// Asks for the attributes of several names of one directory at once.
    async fn stat(
        self: Arc<Self>,
        parent: ItemPath,
        leads: Vec<(Bytes, Lead<ItemPath, Result<Found, Failure>>)>,
    ) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let names = leads.iter().map(|(name, _)| name.clone()).collect();
        let answers = match self.source.stat(parent, names).await {
            Ok(answers) => answers,
            Err(failure) => leads.iter().map(|_| Err(failure.clone())).collect(),
        };
        let keep = self.epoch.load(Ordering::Acquire) == epoch;
        for ((_, lead), answer) in leads.into_iter().zip(answers) {
            let answer = match answer {
                Ok(attributes) => Ok(Found::Attributes(attributes)),
                Err(failure) if failure.kind == FailureKind::NotFound => Ok(Found::Absent),
                Err(failure) => Err(failure),
            };
            if let Ok(found) = &answer
                && keep
            {
                let known = KnownAttributes {
                    found: found.clone(),
                    since: Instant::now(),
                };
                let weight = lead.key().as_bytes().len() as u64 + ENTRY_BYTES + ATTRIBUTES_BYTES;
                self.attributes.insert(lead.key().clone(), known, weight);
            }
            lead.answer(answer);
        }
    }

    async fn fetch_xattrs(self: Arc<Self>, lead: Lead<ItemPath, Result<Arc<XattrList>, Failure>>) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let answer = self.source.xattrs(lead.key().clone()).await.map(Arc::new);
        let bytes = match &answer {
            Ok(list) => Some(
                list.iter()
                    .map(|(name, value)| name.len() + value.len())
                    .sum(),
            ),
            Err(failure) => (failure.kind == FailureKind::Unsupported).then_some(0),
        };
        if let Some(bytes) = bytes
            && self.epoch.load(Ordering::Acquire) == epoch
        {
            let weight = (bytes + lead.key().as_bytes().len()) as u64 + ENTRY_BYTES;
            self.xattrs
                .insert(lead.key().clone(), answer.clone(), weight);
        }
        lead.answer(answer);
    }
}

fn given_up(path: &ItemPath) -> Failure {
    Failure::new(
        FailureKind::Unavailable,
        format!("{path}: the request was given up"),
    )
}
