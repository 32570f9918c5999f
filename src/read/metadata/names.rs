//! Attributes of names: from a listing, from an earlier look-up, or from the source.

use super::directory::{
    ATTRIBUTES_BYTES, CachedLookup, Directory, ENTRY_BYTES, ListingKey, LookupOutcome, is_current,
    settles_after,
};
use super::lease::{Cached, Lease, least_for_child};
use super::{Inner, Metadata};
use crate::read::single_flight::{Lead, Requested, given_up};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Entry, Failure, FailureKind, ItemPath, Leased, StatAnswers, StatRequest, Version,
    XattrList,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An entry of the attributes' cache.
#[derive(Clone, Debug)]
pub(super) struct CachedAttributes {
    answer: CachedLookup,
    since: Instant,
}

impl CachedAttributes {
    fn holds_for(&self, least: Duration) -> bool {
        let current = match &self.answer.value {
            LookupOutcome::Attributes(attributes) => is_current(attributes, self.since),
            LookupOutcome::Absent => true,
        };
        current && self.answer.lease.holds_for(least)
    }
}

/// The extended attributes of one path; a failure if the origin has none.
pub(super) type CachedXattrs = Cached<Result<Arc<XattrList>, Failure>>;

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

impl Metadata {
    /// Looks `name` up in directory `parent`, if that needs no message.
    pub fn try_look_up(&self, parent: &ItemPath, name: &[u8]) -> Option<Leased<LookupOutcome>> {
        let answer = self.peek_name(parent, name)?;
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
                if let Some(answer) = directory.says(name) {
                    return Ok(answer);
                }
                directory
            }
        };
        if let Some(answer) = self.cached_name(parent, name, Duration::ZERO) {
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
            true => Some(self.page(&ListingKey::first(parent), None, least).await?),
            false => None,
        };
        let mut found = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            let listed = directory.as_ref().and_then(|it| it.says(name));
            let answer = listed.or_else(|| self.cached_name(parent, name, least));
            if answer.is_some() {
                self.shared().attributes.count_hit();
            } else {
                self.shared().attributes.count_miss();
                missing.push(name.clone());
            }
            found.push(answer.map(Ok));
        }
        let mut received = self.stat_names(parent, missing, least).await.into_iter();
        let answers = found.into_iter().map(|answer| {
            let answer = answer.or_else(|| received.next());
            answer.unwrap_or_else(|| Err(given_up(parent)))
        });
        let answers: Vec<Result<CachedLookup, Failure>> = answers.collect();
        // All answers travel under one lease: the shortest.
        let leases = answers.iter().flatten().map(|answer| answer.lease);
        Ok(Leased {
            lease: leases.reduce(Lease::shorter).and_then(Lease::remaining),
            value: answers.into_iter().map(|it| Ok(it?.value)).collect(),
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

    /// The attributes of `entry`, if that needs no message. `directory` is directory `parent` or a page of it.
    pub fn peek_attributes(
        &self,
        parent: &ItemPath,
        directory: &Directory,
        entry: &Entry,
    ) -> Option<Cached<Attributes>> {
        match settled_attributes(entry) {
            Some(attributes) => Some(Cached {
                value: attributes.clone(),
                lease: directory.lease(),
            }),
            None => self.peek_name(parent, &entry.name)?.attributes(),
        }
    }

    /// The attributes of `path` itself, with the remainder of their lease.
    ///
    /// # Errors
    /// `NotFound`; failures of the source.
    pub async fn attributes_of(&self, path: &ItemPath) -> Result<Leased<Attributes>, Failure> {
        let answer = match path.split() {
            Some((parent, name)) => Some(self.look_up_cached(&parent, name).await?),
            None => self.directory(path).await?.says(b""),
        };
        let attributes = answer.and_then(CachedLookup::attributes);
        let attributes = attributes.ok_or_else(|| Failure::not_found(path))?;
        Ok(attributes.leased())
    }

    /// The attributes of `path` itself, if that needs no message; `None` also if it is known to be absent.
    pub fn try_attributes_of(&self, path: &ItemPath) -> Option<Leased<Attributes>> {
        let Some((parent, name)) = path.split() else {
            let itself = self.try_directory(path)?.says(b"")?;
            return itself.attributes().map(Cached::leased);
        };
        let answer = self.peek_name(&parent, name)?;
        self.shared().attributes.count_hit();
        answer.attributes().map(Cached::leased)
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
                Ok(requested) => requested.answer(parent).await,
                Err(failure) => Err(failure),
            });
        }
        answers
    }

    /// Requests those of `names` in `parent` that are neither cached nor requested yet. The results are in the
    /// order of `names`; a failure if the name cannot be requested.
    pub(super) fn request_names(
        &self,
        parent: &ItemPath,
        names: Vec<Bytes>,
        least: Duration,
        demand: Demand,
    ) -> Vec<Result<Requested<CachedLookup>, Failure>> {
        let mut leads = Vec::new();
        let request = |name: Bytes| {
            let path = parent.join(&name).map_err(|_invalid| {
                let detail = format!("{parent}: not a name: {name:?}");
                Failure::new(FailureKind::NameTooLong, detail)
            })?;
            let look_again = || self.cached(&path, least);
            let begin = |lead| leads.push((name, lead));
            Ok((self.flights().attributes).request(&path, look_again, begin))
        };
        let requested = names.into_iter().map(request).collect();
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
        Some(cached.value)
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
        let begin = |lead| {
            self.shared().attributes.count_miss();
            drop(self.0.runtime.spawn(self.clone().fetch_xattrs(lead)));
        };
        let requested = (self.flights().xattrs).request(path, look_again, begin);
        let Leased { value, lease } = requested.answer(path).await?.leased();
        let value = value?;
        Ok(Leased { value, lease })
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
        let is_unsettled = |cached: CachedAttributes| match cached.answer.value {
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

    /// Like [`Metadata::cached`], about `name` in directory `parent`.
    pub(super) fn cached_name(
        &self,
        parent: &ItemPath,
        name: &[u8],
        least: Duration,
    ) -> Option<CachedLookup> {
        self.cached(&parent.join(name).ok()?, least)
    }

    fn cached_xattrs(&self, path: &ItemPath, least: Duration) -> Option<CachedXattrs> {
        let cached = self.shared().xattrs.get(path)?;
        cached.lease.holds_for(least).then_some(cached)
    }

    /// The answer about a name from its directory's listing, or from an earlier look-up.
    pub(super) fn peek_name(&self, parent: &ItemPath, name: &[u8]) -> Option<CachedLookup> {
        let directory = self.try_directory(parent);
        let listed = directory.and_then(|directory| directory.says(name));
        listed.or_else(|| self.cached_name(parent, name, Duration::ZERO))
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
            let holds = directory.lease().holds_for(Duration::ZERO);
            let is_missing = |entry: &&Entry| {
                let listed = holds && settled_attributes(entry).is_some();
                !listed && !self.knows_settled(parent, &entry.name)
            };
            let missing = batch.filter(is_missing);
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

    /// Requests the attributes of several names of one directory, or of one name after storage has denied a
    /// version of it.
    pub(super) async fn stat(
        self,
        parent: ItemPath,
        leads: Vec<(Bytes, Lead<ItemPath, CachedLookup>)>,
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
            if let Ok(attributes) = &answer {
                unsettled.extend(settles_after(attributes).map(|after| (after, name)));
            }
            let lookup = match answer {
                Ok(attributes) => Ok(LookupOutcome::Attributes(attributes)),
                Err(failure) if failure.kind == FailureKind::NotFound => Ok(LookupOutcome::Absent),
                Err(failure) => Err(failure),
            };
            let answer = lookup.map(|value| Cached { value, lease });
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
            self.settle_soon(&parent, unsettled);
        }
    }

    async fn fetch_xattrs(self, lead: Lead<ItemPath, CachedXattrs>) {
        let Inner { shared, source, .. } = &*self.0;
        let moment = shared.epoch.now();
        let asked = Instant::now();
        let granted = |value, given| {
            let lease = Lease::granted(asked, self.0.lease, given);
            Ok(Cached { value, lease })
        };
        let answer: Result<CachedXattrs, Failure> = match source.xattrs(lead.key().clone()).await {
            Ok(list) => granted(Ok(Arc::new(list.value)), list.lease),
            // Only this failure is cached: the origin has no extended attributes.
            Err(failure) if failure.kind == FailureKind::Unsupported => granted(Err(failure), None),
            Err(failure) => Err(failure),
        };
        if let Ok(cached) = &answer {
            let path = lead.key();
            let list = cached.value.iter().flat_map(|list| list.iter());
            let bytes: usize = list.map(|(name, value)| name.len() + value.len()).sum();
            let weight = (bytes + path.as_bytes().len()) as u64 + ENTRY_BYTES;
            let keep = || (shared.xattrs).insert(path.clone(), cached.clone(), weight);
            shared.epoch.keep(moment, path, keep);
        }
        lead.answer(answer);
    }
}

/// The attributes that arrived with `entry` in a listing, if their version has settled.
fn settled_attributes(entry: &Entry) -> Option<&Attributes> {
    let known = entry.attributes.as_ref();
    known.filter(|known| known.version.is_settled())
}
