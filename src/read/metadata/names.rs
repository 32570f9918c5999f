//! Attributes of names: from a listing, from an earlier look-up, or from the source.

use super::directory::{
    ATTRIBUTES_BYTES, Directory, ENTRY_BYTES, ListingKey, LookupOutcome, is_current,
};
use super::lease::{Lease, least_for_child};
use super::{Inner, Metadata, given_up, wait_answer};
use crate::read::single_flight::{Joined, Lead, Pending, answer_of};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Entry, Failure, FailureKind, ItemPath, Leased, StatAnswers, StatRequest, Version,
    XattrList,
};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

type PendingLookup = Pending<Result<CachedLookup, Failure>>;
type LookupLead = Lead<ItemPath, Result<CachedLookup, Failure>>;

/// The answer about one name, and its lease.
#[derive(Clone, Debug)]
pub(super) struct CachedLookup {
    pub(super) lookup: LookupOutcome,
    lease: Lease,
}

impl CachedLookup {
    pub(super) fn leased(self) -> Leased<LookupOutcome> {
        Leased {
            value: self.lookup,
            lease: self.lease.remaining(),
        }
    }

    /// The attributes, if the name exists.
    pub(super) fn attributes(self) -> Option<Leased<Attributes>> {
        match self.lookup {
            LookupOutcome::Attributes(value) => Some(Leased {
                value,
                lease: self.lease.remaining(),
            }),
            LookupOutcome::Absent => None,
        }
    }
}

/// An entry of the attributes' cache.
#[derive(Clone, Debug)]
pub(super) struct CachedAttributes {
    answer: CachedLookup,
    since: Instant,
}

impl CachedAttributes {
    fn holds_for(&self, least: Duration) -> bool {
        let current = match &self.answer.lookup {
            LookupOutcome::Attributes(attributes) => is_current(attributes, self.since),
            LookupOutcome::Absent => true,
        };
        current && self.answer.lease.holds_for(least)
    }
}

/// The extended attributes of one path.
#[derive(Clone, Debug)]
pub(super) struct CachedXattrs {
    answer: Result<Arc<XattrList>, Failure>,
    lease: Lease,
}

impl CachedXattrs {
    fn leased(self) -> Result<Leased<Arc<XattrList>>, Failure> {
        Ok(Leased {
            value: self.answer?,
            lease: self.lease.remaining(),
        })
    }
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

/// A name that was requested.
pub(super) enum Requested {
    /// It was answered in the meantime, or cannot be requested.
    Answered(Result<CachedLookup, Failure>),
    Pending(PendingLookup),
}

impl Metadata {
    /// Looks `name` up in directory `parent`, if that needs no message.
    pub fn try_look_up(&self, parent: &ItemPath, name: &[u8]) -> Option<Leased<LookupOutcome>> {
        let answer = self.peek_name(parent, name, Duration::ZERO)?;
        self.shared().attributes.count_hit();
        Some(answer.leased())
    }

    /// Looks `name` up in directory `parent`.
    ///
    /// # Errors
    /// `NotFound` and `NotADirectory` about `parent`; failures of the source.
    pub async fn look_up(
        &self,
        parent: &ItemPath,
        name: &[u8],
    ) -> Result<Leased<LookupOutcome>, Failure> {
        Ok(self.look_up_cached(parent, name).await?.leased())
    }

    async fn look_up_cached(
        &self,
        parent: &ItemPath,
        name: &[u8],
    ) -> Result<CachedLookup, Failure> {
        self.shared().attributes.count_miss();
        let directory = match self.searched_by_name(parent) {
            Some(directory) => directory,
            None => {
                let directory = self.directory(parent).await?;
                // Even if its lease has ended by now: it was requested for this look-up.
                if let Some(lookup) = directory.says(name) {
                    let lease = directory.lease();
                    return Ok(CachedLookup { lookup, lease });
                }
                directory
            }
        };
        let path = parent.join(name).ok();
        if let Some(answer) = path.and_then(|path| self.cached(&path, Duration::ZERO)) {
            return Ok(answer);
        }
        let (names, wanted) = self.names_with(parent, name, &directory);
        let answers = self.stat_names(parent, names, Duration::ZERO).await;
        let answer = answers.into_iter().nth(wanted);
        answer.unwrap_or_else(|| Err(given_up(parent)))
    }

    /// Looks several names up in directory `parent`, for a child; the empty name is the directory itself.
    ///
    /// # Errors
    /// Like [`Metadata::look_up`]; each inner failure concerns one name.
    async fn look_up_all(
        &self,
        parent: &ItemPath,
        names: &[Bytes],
    ) -> Result<Leased<Vec<Result<LookupOutcome, Failure>>>, Failure> {
        let least = least_for_child(self.0.lease);
        let with_itself = names.iter().any(Bytes::is_empty);
        let directory = match with_itself || self.searched_by_name(parent).is_none() {
            true => Some(self.directory_for_child(parent).await?),
            false => None,
        };
        let mut answers: Vec<Option<Result<CachedLookup, Failure>>> =
            Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            let listed = directory.as_ref().and_then(|directory| {
                let lookup = if name.is_empty() {
                    Some(LookupOutcome::Attributes(directory.attributes.clone()))
                } else {
                    directory.says(name)
                };
                let lease = directory.lease();
                lookup.map(|lookup| CachedLookup { lookup, lease })
            });
            let cached = || self.cached(&parent.join(name).ok()?, least);
            match listed.or_else(cached) {
                Some(answer) => {
                    self.shared().attributes.count_hit();
                    answers.push(Some(Ok(answer)));
                }
                None => {
                    self.shared().attributes.count_miss();
                    missing.push(name.clone());
                    answers.push(None);
                }
            }
        }
        let mut received = self.stat_names(parent, missing, least).await.into_iter();
        // All answers travel under one lease: the shortest.
        let mut lease: Option<Lease> = None;
        let mut value = Vec::with_capacity(names.len());
        for answer in answers {
            let answer = answer.or_else(|| received.next());
            value.push(match answer.unwrap_or_else(|| Err(given_up(parent))) {
                Ok(answer) => {
                    lease = Some(lease.map_or(answer.lease, |lease| lease.shorter(answer.lease)));
                    Ok(answer.lookup)
                }
                Err(failure) => Err(failure),
            });
        }
        Ok(Leased {
            value,
            lease: lease.and_then(Lease::remaining),
        })
    }

    /// Answers [`copperfs_overlay::Files::stat`], for a child.
    ///
    /// # Errors
    /// As that.
    pub(in crate::read) async fn stat_for_child(
        &self,
        request: StatRequest,
    ) -> Result<Leased<StatAnswers>, Failure> {
        let StatRequest {
            parent,
            names,
            denied,
        } = request;
        if let (Some(denied), [name]) = (denied, &names[..]) {
            let path = parent.join(name).map_err(|invalid| {
                Failure::new(FailureKind::NameTooLong, format!("{parent}: {invalid}"))
            })?;
            return match self.attributes_unlike(&path, denied).await {
                Ok(attributes) => Ok(attributes.map(|attributes| vec![Ok(attributes)])),
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    Ok(Leased::lasting(vec![Err(failure)]))
                }
                Err(failure) => Err(failure),
            };
        }
        let lookups = self.look_up_all(&parent, &names).await?;
        let answer = |(name, lookup): (&Bytes, Result<_, _>)| match lookup? {
            LookupOutcome::Attributes(attributes) => Ok(attributes),
            LookupOutcome::Absent => {
                let path = parent.join(name).unwrap_or_else(|_| parent.clone());
                Err(Failure::not_found(&path))
            }
        };
        Ok(lookups.map(|lookups| names.iter().zip(lookups).map(answer).collect()))
    }

    /// The attributes of `entry`, an entry of directory `parent`, if that needs no message.
    pub fn peek_attributes(&self, parent: &ItemPath, entry: &Entry) -> Option<Attributes> {
        match settled_attributes(entry) {
            Some(attributes) => Some(attributes.clone()),
            None => Some(self.peek_entry(parent, entry)?.value),
        }
    }

    /// Like [`Metadata::peek_attributes`], with the remainder of the lease. `directory` is `parent` or a page
    /// of it.
    pub fn peek_leased(
        &self,
        parent: &ItemPath,
        directory: &Directory,
        entry: &Entry,
    ) -> Option<Leased<Attributes>> {
        match settled_attributes(entry) {
            Some(attributes) => Some(Leased {
                value: attributes.clone(),
                lease: directory.lease().remaining(),
            }),
            None => self.peek_entry(parent, entry),
        }
    }

    fn peek_entry(&self, parent: &ItemPath, entry: &Entry) -> Option<Leased<Attributes>> {
        (self.peek_name(parent, &entry.name, Duration::ZERO)?).attributes()
    }

    /// The attributes of `path` itself, with the remainder of their lease.
    ///
    /// # Errors
    /// `NotFound`; failures of the source.
    pub async fn attributes_of(&self, path: &ItemPath) -> Result<Leased<Attributes>, Failure> {
        let Some((parent, name)) = path.split() else {
            return Ok(self.directory(path).await?.leased_attributes());
        };
        let answer = self.look_up_cached(&parent, name).await?;
        answer.attributes().ok_or_else(|| Failure::not_found(path))
    }

    /// The attributes of `path` itself, if that needs no message; `None` also if it is known to be absent.
    pub fn try_attributes_of(&self, path: &ItemPath) -> Option<Leased<Attributes>> {
        let Some((parent, name)) = path.split() else {
            return Some(self.try_directory(path)?.leased_attributes());
        };
        let answer = self.peek_name(&parent, name, Duration::ZERO)?;
        self.shared().attributes.count_hit();
        answer.attributes()
    }

    /// Requests `names` in `parent` and waits for the answers, in the order of `names`. An answer that has
    /// arrived meanwhile, with more than `least` of its lease left, is used instead.
    async fn stat_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
        least: Duration,
    ) -> Vec<Result<CachedLookup, Failure>> {
        let requested = self.request_names(parent, names, least, Demand::Reader);
        let mut answers = Vec::with_capacity(requested.len());
        for one in requested {
            answers.push(match one {
                Requested::Answered(answer) => answer,
                Requested::Pending(pending) => wait_answer(pending, parent).await,
            });
        }
        answers
    }

    /// Requests those of `names` in `parent` that are neither cached nor requested yet. The results are in the
    /// order of `names`.
    pub(super) fn request_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
        least: Duration,
        demand: Demand,
    ) -> Vec<Requested> {
        let mut requested = Vec::with_capacity(names.len());
        let mut leads = Vec::new();
        for name in names {
            let Ok(path) = parent.join(&name) else {
                let detail = format!("{parent}: not a name: {name:?}");
                let failure = Failure::new(FailureKind::NameTooLong, detail);
                requested.push(Requested::Answered(Err(failure)));
                continue;
            };
            let look_again = || self.cached(&path, least).map(Ok);
            requested.push(match self.flights().attributes.join(&path, look_again) {
                Joined::Answered(answer) => Requested::Answered(answer),
                Joined::Follow(pending) => Requested::Pending(pending),
                Joined::Lead(lead, pending) => {
                    leads.push((name, lead));
                    Requested::Pending(pending)
                }
            });
        }
        if !leads.is_empty() {
            let stat = self.clone().stat(parent.clone(), leads, demand);
            drop(self.0.runtime.spawn(stat));
        }
        requested
    }

    /// All extended attributes of `path`, if that needs no message. A failure is cached where the origin does
    /// not support them.
    pub fn try_xattrs(&self, path: &ItemPath) -> Option<Result<Arc<XattrList>, Failure>> {
        let cached = self.cached_xattrs(path, Duration::ZERO)?;
        self.shared().attributes.count_hit();
        Some(cached.answer)
    }

    /// All extended attributes of `path`.
    ///
    /// # Errors
    /// `Unsupported` (cached) where the origin has none; failures of the source.
    pub async fn xattrs(&self, path: &ItemPath) -> Result<Arc<XattrList>, Failure> {
        Ok(self.leased_xattrs(path, Duration::ZERO).await?.value)
    }

    /// Like [`Metadata::xattrs`], for a child.
    pub(in crate::read) async fn xattrs_for_child(
        &self,
        path: &ItemPath,
    ) -> Result<Leased<Arc<XattrList>>, Failure> {
        self.leased_xattrs(path, least_for_child(self.0.lease))
            .await
    }

    async fn leased_xattrs(
        &self,
        path: &ItemPath,
        least: Duration,
    ) -> Result<Leased<Arc<XattrList>>, Failure> {
        let look_again = || self.cached_xattrs(path, least);
        let pending = match self.flights().xattrs.join(path, look_again) {
            Joined::Answered(cached) => return cached.leased(),
            Joined::Follow(pending) => pending,
            Joined::Lead(lead, pending) => {
                self.shared().attributes.count_miss();
                drop(self.0.runtime.spawn(self.clone().fetch_xattrs(lead)));
                pending
            }
        };
        match answer_of(pending).await {
            Some(answer) => answer.leased(),
            None => Err(given_up(path)),
        }
    }

    /// Drops the attributes of `path`, and the listings that contain it.
    pub(in crate::read) fn forget_attributes(&self, path: &ItemPath) {
        self.forget_flights();
        let shared = self.shared();
        shared.attributes.remove(path);
        shared.xattrs.remove(path);
        if let Some((parent, _)) = path.split() {
            shared.listings.remove_where(|key, _| key.path == parent);
        }
    }

    /// Like [`Metadata::forget_attributes`], for a file with an unsettled version. Its attributes in the
    /// directory's listing expire by themselves.
    pub(in crate::read) fn forget_unsettled(&self, path: &ItemPath) {
        let attributes = &self.shared().attributes;
        let is_unsettled = |cached: CachedAttributes| match cached.answer.lookup {
            LookupOutcome::Attributes(attributes) => !attributes.version.is_settled(),
            LookupOutcome::Absent => false,
        };
        if attributes.peek(path).is_some_and(is_unsettled) {
            attributes.remove(path);
        }
    }

    /// The cached answer about `path`, with more than `least` of its lease left.
    pub(super) fn cached(&self, path: &ItemPath, least: Duration) -> Option<CachedLookup> {
        let cached = self.shared().attributes.peek(path)?;
        cached.holds_for(least).then_some(cached.answer)
    }

    fn cached_xattrs(&self, path: &ItemPath, least: Duration) -> Option<CachedXattrs> {
        let cached = self.shared().xattrs.get(path)?;
        cached.lease.holds_for(least).then_some(cached)
    }

    /// The answer about a name from its directory's listing, or from an earlier look-up.
    pub(super) fn peek_name(
        &self,
        parent: &ItemPath,
        name: &[u8],
        least: Duration,
    ) -> Option<CachedLookup> {
        let key = ListingKey::first(parent);
        if let Some(directory) = self.shared().listings.get(&key) {
            let lease = directory.lease();
            if lease.holds_for(least)
                && let Some(lookup) = directory.says(name)
            {
                return Some(CachedLookup { lookup, lease });
            }
        }
        self.cached(&parent.join(name).ok()?, least)
    }

    /// The listing of `parent`, if its lease has ended and it is incomplete. Renewing all of it for one name
    /// would cost more than a request for that name.
    fn searched_by_name(&self, parent: &ItemPath) -> Option<Arc<Directory>> {
        let listing = self.peek_directory(parent)?;
        let ended = !listing.lease().holds_for(Duration::ZERO);
        (ended && !listing.is_complete()).then_some(listing)
    }

    /// The names to request together with `name`, and its index among them: the other unsettled ones, those that a
    /// reader in order wants next, or those whose leases have ended, too.
    fn names_with(
        &self,
        parent: &ItemPath,
        name: &[u8],
        directory: &Directory,
    ) -> (Vec<Bytes>, usize) {
        let mut names = self.unsettled_with(parent, name, directory);
        if let (true, Some(position)) = (names.is_empty(), directory.position(name)) {
            let batch = directory.stat_batch(position).iter();
            let missing = batch.filter(|entry| !self.has_attributes(parent, directory, entry));
            names = missing.map(|entry| entry.name.clone()).collect();
        }
        if !names.iter().any(|other| other == name) {
            names = vec![Bytes::copy_from_slice(name)];
        }
        if self.0.lease.is_some() {
            let earlier = directory.name_asked(name);
            if names.len() == 1 {
                let has_ended = |other: &Bytes| {
                    let path = parent.join(other).ok();
                    let cached = path.and_then(|path| self.shared().attributes.peek(&path));
                    cached.is_some_and(|cached| !cached.holds_for(Duration::ZERO))
                };
                names.extend(earlier.into_iter().filter(has_ended));
            }
        }
        let wanted = names.iter().position(|other| other == name).unwrap_or(0);
        (names, wanted)
    }

    fn has_attributes(&self, parent: &ItemPath, directory: &Directory, entry: &Entry) -> bool {
        let listed = settled_attributes(entry).is_some();
        listed && directory.lease().holds_for(Duration::ZERO)
            || parent
                .join(&entry.name)
                .is_ok_and(|path| self.cached(&path, Duration::ZERO).is_some())
    }

    /// Requests the attributes of several names of one directory, or of one name after storage has denied a
    /// version of it.
    pub(super) async fn stat(
        self,
        parent: ItemPath,
        leads: Vec<(Bytes, LookupLead)>,
        demand: Demand,
    ) {
        let Inner { shared, source, .. } = &*self.0;
        let moment = shared.epoch.now();
        let names = leads.iter().map(|(name, _)| name.clone()).collect();
        let asked = Instant::now();
        let denied = match demand {
            Demand::Denied(version) => Some(version),
            Demand::Reader | Demand::Second => None,
        };
        let request = StatRequest {
            parent: parent.clone(),
            names,
            denied,
        };
        let (answers, given) = match source.stat(request).await {
            Ok(answers) => (answers.value, answers.lease),
            Err(failure) => (leads.iter().map(|_| Err(failure.clone())).collect(), None),
        };
        let lease = Lease::granted(asked, self.0.lease, given);
        let mut unsettled = Vec::new();
        for ((name, lead), answer) in leads.into_iter().zip(answers) {
            let lookup = match answer {
                Ok(attributes) => Ok(LookupOutcome::Attributes(attributes)),
                Err(failure) if failure.kind == FailureKind::NotFound => Ok(LookupOutcome::Absent),
                Err(failure) => Err(failure),
            };
            if let Ok(LookupOutcome::Attributes(attributes)) = &lookup
                && !attributes.version.is_settled()
            {
                unsettled.push(Entry {
                    name,
                    kind: attributes.kind,
                    attributes: Some(attributes.clone()),
                });
            }
            let answer = lookup.map(|lookup| CachedLookup { lookup, lease });
            if let Ok(answer) = &answer {
                let cached = CachedAttributes {
                    answer: answer.clone(),
                    since: Instant::now(),
                };
                let path = lead.key();
                let weight = path.as_bytes().len() as u64 + ENTRY_BYTES + ATTRIBUTES_BYTES;
                let keep = || shared.attributes.insert(path.clone(), cached, weight);
                shared.epoch.keep(moment, path, keep);
            }
            lead.answer(answer);
        }
        if demand != Demand::Second {
            self.settle_soon(&parent, &unsettled);
        }
    }

    async fn fetch_xattrs(self, lead: Lead<ItemPath, CachedXattrs>) {
        let Inner { shared, source, .. } = &*self.0;
        let moment = shared.epoch.now();
        let asked = Instant::now();
        let (answer, given) = match source.xattrs(lead.key().clone()).await {
            Ok(list) => (Ok(Arc::new(list.value)), list.lease),
            Err(failure) => (Err(failure), None),
        };
        // Only one failure is cached: the origin has no extended attributes.
        let bytes = match &answer {
            Ok(list) => {
                let of = list.iter().map(|(name, value)| name.len() + value.len());
                Some(of.sum::<usize>())
            }
            Err(failure) => (failure.kind == FailureKind::Unsupported).then_some(0),
        };
        let lease = Lease::granted(asked, self.0.lease, given);
        let cached = CachedXattrs { answer, lease };
        if let Some(bytes) = bytes {
            let path = lead.key();
            let weight = (bytes + path.as_bytes().len()) as u64 + ENTRY_BYTES;
            let keep = || (shared.xattrs).insert(path.clone(), cached.clone(), weight);
            shared.epoch.keep(moment, path, keep);
        }
        lead.answer(cached);
    }

    /// A handle that does not keep the caches alive, for tasks that wait for a long time.
    pub(super) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }
}

/// The attributes that arrived with `entry` in a listing, if their version has settled.
fn settled_attributes(entry: &Entry) -> Option<&Attributes> {
    entry
        .attributes
        .as_ref()
        .filter(|attributes| attributes.version.is_settled())
}
