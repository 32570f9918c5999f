//! Attributes: from a listing, or asked for by name, once whoever asks.

use super::directory::{ATTRIBUTES_BYTES, Directory, ENTRY_BYTES, Found, ListingKey, is_current};
use super::lease::{Lease, least_for_child};
use super::single_flight::{Joined, Lead, Pending, answer_of};
use super::{Inner, ReadPath, given_up};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Entry, Failure, FailureKind, ItemPath, Leased, Version, XattrList,
};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

type PendingAttributes = Pending<Result<Known, Failure>>;
type AttributesLead = Lead<ItemPath, Result<Known, Failure>>;

/// What is known of one name, and until when.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) found: Found,
    lease: Lease,
}

/// Why names are requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Demand {
    /// For a reader. An unsettled version is looked at again.
    Reader,
    /// This is that second look.
    Second,
    /// For a reader, after storage has denied this version.
    Denied(Version),
}

impl Known {
    pub(super) fn into_found(self) -> Found {
        self.found
    }

    pub(super) fn leased(self) -> Leased<Found> {
        Leased {
            value: self.found,
            lease: self.lease.remaining(),
        }
    }
}

/// What is known of the attributes of one path, and since when.
#[derive(Clone, Debug)]
pub(super) struct KnownAttributes {
    known: Known,
    since: Instant,
}

impl KnownAttributes {
    fn holds_for(&self, least: Duration) -> bool {
        let certain = match &self.known.found {
            Found::Attributes(attributes) => is_current(attributes, self.since),
            Found::Absent => true,
        };
        certain && self.known.lease.holds_for(least)
    }
}

/// What is known of the extended attributes of one path.
#[derive(Clone, Debug)]
pub(super) struct KnownXattrs {
    answer: Result<Arc<XattrList>, Failure>,
    lease: Lease,
}

impl ReadPath {
    /// Looks `name` up in directory `parent`, if that needs no message.
    pub fn find_now(&self, parent: &ItemPath, name: &[u8]) -> Option<Leased<Found>> {
        let known = self.0.peek_name(parent, name, Duration::ZERO)?;
        self.0.attributes.count_hit();
        Some(known.leased())
    }

    /// Looks `name` up in directory `parent`.
    ///
    /// # Errors
    /// `NotFound` and `NotADirectory` about `parent`; faults.
    pub async fn find(&self, parent: &ItemPath, name: &[u8]) -> Result<Found, Failure> {
        Ok(self.look_up(parent, name).await?.value)
    }

    /// As [`ReadPath::find`], with what remains of the lease.
    ///
    /// # Errors
    /// As [`ReadPath::find`].
    pub async fn look_up(&self, parent: &ItemPath, name: &[u8]) -> Result<Leased<Found>, Failure> {
        let inner = &self.0;
        inner.attributes.count_miss();
        let directory = match inner.searched_by_name(parent) {
            Some(directory) => directory,
            None => {
                let directory = self.directory(parent).await?;
                // Whatever its lease: it came for this question.
                if let Some(found) = directory.says(name) {
                    let lease = directory.lease();
                    return Ok(Known { found, lease }.leased());
                }
                directory
            }
        };
        let path = parent.join(name).ok();
        if let Some(known) = path.and_then(|path| inner.known(&path, Duration::ZERO)) {
            return Ok(known.leased());
        }
        let (names, wanted) = inner.names_with(parent, name, &directory);
        let found = self.stat_names(parent, names, Duration::ZERO).await;
        found
            .into_iter()
            .nth(wanted)
            .unwrap_or_else(|| Err(given_up(parent)))
            .map(Known::leased)
    }

    /// Looks several names up in directory `parent`, for a child; the empty name is the directory.
    ///
    /// # Errors
    /// As [`ReadPath::find`]; the inner failures are about one name.
    pub(super) async fn find_all(
        &self,
        parent: &ItemPath,
        names: &[Bytes],
    ) -> Result<Leased<Vec<Result<Found, Failure>>>, Failure> {
        let inner = &self.0;
        let least = least_for_child(inner.options.lease);
        let by_name = !names.iter().any(Bytes::is_empty);
        let searched = inner.searched_by_name(parent).filter(|_| by_name);
        let fresh = match searched {
            Some(_) => None,
            None => Some(self.directory_for_child(parent).await?),
        };
        let mut answers: Vec<Option<Result<Known, Failure>>> = Vec::with_capacity(names.len());
        let mut unknown = Vec::new();
        for name in names {
            let said = fresh.as_ref().and_then(|directory| {
                let found = if name.is_empty() {
                    Some(Found::Attributes(directory.attributes.clone()))
                } else {
                    directory.says(name)
                };
                let lease = directory.lease();
                found.map(|found| Known { found, lease })
            });
            let known = || inner.known(&parent.join(name).ok()?, least);
            match said.or_else(known) {
                Some(known) => {
                    inner.attributes.count_hit();
                    answers.push(Some(Ok(known)));
                }
                None => {
                    inner.attributes.count_miss();
                    unknown.push(name.clone());
                    answers.push(None);
                }
            }
        }
        let mut asked = self.stat_names(parent, unknown, least).await.into_iter();
        let lost = || Err(given_up(parent));
        let mut lease: Option<Lease> = None;
        let mut take = |known: Known| {
            lease = Some(lease.map_or(known.lease, |lease| lease.shorter(known.lease)));
            known.found
        };
        let value = answers
            .into_iter()
            .map(|answer| answer.or_else(|| asked.next()).unwrap_or_else(lost))
            .map(|answer| answer.map(&mut take))
            .collect();
        Ok(Leased {
            value,
            lease: lease.and_then(Lease::remaining),
        })
    }

    /// What is known of `name` without a message, for the attributes of a directory page.
    pub fn peek_attributes(&self, parent: &ItemPath, entry: &Entry) -> Option<Attributes> {
        if let Some(attributes) = &entry.attributes
            && attributes.version.is_settled()
        {
            return Some(attributes.clone());
        }
        match self.0.peek_name(parent, &entry.name, Duration::ZERO)?.found {
            Found::Attributes(attributes) => Some(attributes),
            Found::Absent => None,
        }
    }

    /// As [`ReadPath::peek_attributes`], of an entry of `directory`, which is `parent` or a page of it;
    /// with what remains of the lease.
    pub fn peek_leased(
        &self,
        parent: &ItemPath,
        directory: &Directory,
        entry: &Entry,
    ) -> Option<Leased<Attributes>> {
        if let Some(attributes) = &entry.attributes
            && attributes.version.is_settled()
        {
            return Some(Leased {
                value: attributes.clone(),
                lease: directory.lease().remaining(),
            });
        }
        let known = self.0.peek_name(parent, &entry.name, Duration::ZERO)?;
        attributes_in(known.leased())
    }

    /// The attributes of `path` itself: what a directory's listing says of it, or a stat by name.
    ///
    /// # Errors
    /// `NotFound`; faults.
    pub async fn attributes_of(&self, path: &ItemPath) -> Result<Attributes, Failure> {
        Ok(self.leased_attributes_of(path).await?.value)
    }

    /// As [`ReadPath::attributes_of`], with what remains of the lease.
    ///
    /// # Errors
    /// As [`ReadPath::attributes_of`].
    pub async fn leased_attributes_of(
        &self,
        path: &ItemPath,
    ) -> Result<Leased<Attributes>, Failure> {
        let Some((parent, name)) = path.split() else {
            return Ok(self.directory(path).await?.leased_attributes());
        };
        let found = self.look_up(&parent, name).await?;
        attributes_in(found).ok_or_else(|| Failure::not_found(path))
    }

    /// The attributes of `path` itself, if that needs no message; of what is known to be absent, none.
    pub fn attributes_now(&self, path: &ItemPath) -> Option<Leased<Attributes>> {
        let Some((parent, name)) = path.split() else {
            return Some(self.directory_now(path)?.leased_attributes());
        };
        attributes_in(self.find_now(&parent, name)?)
    }

    /// Attributes of `names` in `parent` from the source, each asked for once whoever asks, unless one
    /// has come meanwhile with more than `least` of its lease left. In the order of `names`.
    async fn stat_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
        least: Duration,
    ) -> Vec<Result<Known, Failure>> {
        let answers = self.ask_names(parent, names, least, Demand::Reader);
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

    /// Requests those of `names` in `parent` that are neither known nor requested yet. Returns the known or
    /// pending answers in the order of `names`.
    pub(super) fn ask_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
        least: Duration,
        demand: Demand,
    ) -> Vec<Result<PendingAttributes, Result<Known, Failure>>> {
        let inner = &self.0;
        let mut answers = Vec::with_capacity(names.len());
        let mut leads = Vec::new();
        for name in names {
            let Ok(path) = parent.join(&name) else {
                let detail = format!("{parent}: not a name: {name:?}");
                answers.push(Err(Err(Failure::new(FailureKind::NameTooLong, detail))));
                continue;
            };
            let look_again = || inner.known(&path, least).map(Ok);
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
                    .spawn(Arc::clone(inner).stat(parent.clone(), leads, demand)),
            );
        }
        answers
    }

    /// All extended attributes of `path`, if they are here (or known to be unsupported).
    pub fn xattrs_now(&self, path: &ItemPath) -> Option<Result<Arc<XattrList>, Failure>> {
        let known = self.0.known_xattrs(path, Duration::ZERO)?;
        self.0.attributes.count_hit();
        Some(known.answer)
    }

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` (remembered) where the origin has none; faults.
    pub async fn xattrs(&self, path: &ItemPath) -> Result<Arc<XattrList>, Failure> {
        Ok(self.leased_xattrs(path, Duration::ZERO).await?.value)
    }

    /// As [`ReadPath::xattrs`], from what has more than `least` of its lease left.
    pub(super) async fn leased_xattrs(
        &self,
        path: &ItemPath,
        least: Duration,
    ) -> Result<Leased<Arc<XattrList>>, Failure> {
        let inner = &self.0;
        let look_again = || inner.known_xattrs(path, least);
        let pending = match inner.xattr_flights.join(path, look_again) {
            Joined::Answered(known) => return known.leased(),
            Joined::Follow(pending) => pending,
            Joined::Lead(lead, pending) => {
                inner.attributes.count_miss();
                drop(inner.runtime.spawn(Arc::clone(inner).fetch_xattrs(lead)));
                pending
            }
        };
        match answer_of(pending).await {
            Some(known) => known.leased(),
            None => Err(given_up(path)),
        }
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

    /// Like [`Inner::forget_attributes`], for a file with an unsettled version: its attributes in the
    /// directory's listing expire without this.
    pub(super) fn forget_unsettled(&self, path: &ItemPath) {
        let unsettled = |known: &KnownAttributes| matches!(&known.known.found, Found::Attributes(known) if !known.version.is_settled());
        if self
            .attributes
            .peek(path)
            .is_some_and(|known| unsettled(&known))
        {
            self.attributes.remove(path);
        }
    }

    /// Metadata that is on its way answers those who wait for it already, but is neither kept nor given
    /// to those who ask from now on.
    pub(super) fn forget_metadata_flights(&self) {
        self.epoch.clear(&ItemPath::root());
        for view in self.views() {
            view.listing_flights.forget_all();
            view.attribute_flights.forget_all();
            view.xattr_flights.forget_all();
            view.arriving.clear();
        }
    }

    /// The same for blocks of `path` and below.
    pub(super) fn forget_data_flights(&self, path: &ItemPath) {
        self.data_epoch.clear(path);
        for view in self.views() {
            (view.block_flights).retain(|_, flight| !flight.path().is_within(path));
        }
    }

    fn views(&self) -> impl Iterator<Item = Arc<Self>> {
        let views = self.views.get().into_iter().flatten();
        views.filter_map(Weak::upgrade)
    }

    /// What the attributes cache knows of `path`, with more than `least` of its lease left.
    pub(super) fn known(&self, path: &ItemPath, least: Duration) -> Option<Known> {
        let known = self.attributes.peek(path)?;
        known.holds_for(least).then_some(known.known)
    }

    fn known_xattrs(&self, path: &ItemPath, least: Duration) -> Option<KnownXattrs> {
        let known = self.xattrs.get(path)?;
        known.lease.holds_for(least).then_some(known)
    }

    /// What is known of a name: from its directory's listing, or from an earlier look-up by name.
    pub(super) fn peek_name(
        &self,
        parent: &ItemPath,
        name: &[u8],
        least: Duration,
    ) -> Option<Known> {
        let directory = self.listings.get(&ListingKey {
            path: parent.clone(),
            page: 0,
        });
        if let Some(directory) = directory {
            let lease = directory.lease();
            if lease.holds_for(least)
                && let Some(found) = directory.says(name)
            {
                return Some(Known { found, lease });
            }
        }
        self.known(&parent.join(name).ok()?, least)
    }

    /// The listing of `parent`, if its lease is over and it would not say of every name whether it
    /// exists: to renew all of it for one name would cost more than to ask for that name.
    fn searched_by_name(&self, parent: &ItemPath) -> Option<Arc<Directory>> {
        let held = self.listings.peek(&ListingKey {
            path: parent.clone(),
            page: 0,
        })?;
        let over = !held.lease().holds_for(Duration::ZERO);
        (over && !held.is_complete()).then_some(held)
    }

    /// The names to ask for together with `name`, and its place among them: those that one who goes
    /// through the directory wants next, or those whose leases have ended like that of `name`.
    fn names_with(
        &self,
        parent: &ItemPath,
        name: &[u8],
        directory: &Directory,
    ) -> (Vec<Bytes>, usize) {
        let mut names: Vec<Bytes> = match directory.position(name) {
            Some(position) => directory
                .stat_batch(position)
                .iter()
                .filter(|entry| !self.knows(parent, directory, entry))
                .map(|entry| entry.name.clone())
                .collect(),
            None => Vec::new(),
        };
        let unsettled = self.unsettled_with(parent, name, directory);
        if !unsettled.is_empty() {
            names = unsettled;
        }
        if !names.iter().any(|other| other == name) {
            names = vec![Bytes::copy_from_slice(name)];
        }
        if self.options.lease.is_some() {
            let asked_before = directory.name_asked(name);
            if names.len() == 1 {
                let over = |other: &Bytes| {
                    let path = parent.join(other).ok();
                    let known = path.and_then(|path| self.attributes.peek(&path));
                    known.is_some_and(|known| !known.holds_for(Duration::ZERO))
                };
                names.extend(asked_before.into_iter().filter(over));
            }
        }
        let wanted = names.iter().position(|other| other == name).unwrap_or(0);
        (names, wanted)
    }

    fn knows(&self, parent: &ItemPath, directory: &Directory, entry: &Entry) -> bool {
        let came_along = entry
            .attributes
            .as_ref()
            .is_some_and(|attributes| attributes.version.is_settled());
        came_along && directory.lease().holds_for(Duration::ZERO)
            || parent
                .join(&entry.name)
                .is_ok_and(|path| self.known(&path, Duration::ZERO).is_some())
    }

    /// Requests the attributes of several names of one directory, or of one name after storage has denied a
    /// version of it.
    pub(super) async fn stat(
        self: Arc<Self>,
        parent: ItemPath,
        leads: Vec<(Bytes, AttributesLead)>,
        demand: Demand,
    ) {
        let asked_at = self.epoch.now();
        let names = leads.iter().map(|(name, _)| name.clone()).collect();
        let asked = Instant::now();
        let denied = match demand {
            Demand::Denied(version) => Some(version),
            Demand::Reader | Demand::Second => None,
        };
        let stat = self.source.stat_unlike(parent.clone(), names, denied);
        let (answers, given) = match stat.await {
            Ok(answers) => (answers.value, answers.lease),
            Err(failure) => (leads.iter().map(|_| Err(failure.clone())).collect(), None),
        };
        let lease = Lease::granted(asked, self.options.lease, given);
        let mut unsettled = Vec::new();
        for ((name, lead), answer) in leads.into_iter().zip(answers) {
            let found = match answer {
                Ok(attributes) => Ok(Found::Attributes(attributes)),
                Err(failure) if failure.kind == FailureKind::NotFound => Ok(Found::Absent),
                Err(failure) => Err(failure),
            };
            if let Ok(Found::Attributes(attributes)) = &found
                && !attributes.version.is_settled()
            {
                unsettled.push(Entry {
                    name,
                    kind: attributes.kind,
                    attributes: Some(attributes.clone()),
                });
            }
            let answer = found.map(|found| Known { found, lease });
            if let Ok(known) = &answer {
                let known = KnownAttributes {
                    known: known.clone(),
                    since: Instant::now(),
                };
                let path = lead.key();
                let weight = path.as_bytes().len() as u64 + ENTRY_BYTES + ATTRIBUTES_BYTES;
                let keep = || self.attributes.insert(path.clone(), known, weight);
                self.epoch.keep(asked_at, path, keep);
            }
            lead.answer(answer);
        }
        if demand != Demand::Second {
            self.settle_soon(&parent, &unsettled);
        }
    }

    async fn fetch_xattrs(self: Arc<Self>, lead: Lead<ItemPath, KnownXattrs>) {
        let asked_at = self.epoch.now();
        let asked = Instant::now();
        let (answer, given) = match self.source.xattrs(lead.key().clone()).await {
            Ok(list) => (Ok(Arc::new(list.value)), list.lease),
            Err(failure) => (Err(failure), None),
        };
        let bytes = match &answer {
            Ok(list) => Some(
                list.iter()
                    .map(|(name, value)| name.len() + value.len())
                    .sum(),
            ),
            Err(failure) => (failure.kind == FailureKind::Unsupported).then_some(0),
        };
        let lease = Lease::granted(asked, self.options.lease, given);
        let known = KnownXattrs { answer, lease };
        if let Some(bytes) = bytes {
            let path = lead.key();
            let weight = (bytes + path.as_bytes().len()) as u64 + ENTRY_BYTES;
            let keep = || self.xattrs.insert(path.clone(), known.clone(), weight);
            self.epoch.keep(asked_at, path, keep);
        }
        lead.answer(known);
    }
}

impl KnownXattrs {
    fn leased(self) -> Result<Leased<Arc<XattrList>>, Failure> {
        Ok(Leased {
            value: self.answer?,
            lease: self.lease.remaining(),
        })
    }
}

pub(super) fn attributes_in(found: Leased<Found>) -> Option<Leased<Attributes>> {
    match found.value {
        Found::Attributes(value) => Some(Leased {
            value,
            lease: found.lease,
        }),
        Found::Absent => None,
    }
}
