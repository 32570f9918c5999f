//! Attributes: from a listing, or asked for by name, once whoever asks.

use super::directory::{ATTRIBUTES_BYTES, ENTRY_BYTES};
use super::listings::ListingKey;
use super::single_flight::{Joined, Lead, answer_of};
use super::{Inner, PROVISIONAL_TTL, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Entry, Failure, FailureKind, FilesystemUsage, ItemPath, XattrList,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What a look-up found.
#[derive(Clone, Debug)]
pub enum Found {
    /// It exists.
    Attributes(Attributes),
    /// It does not.
    Absent,
}

type AttributesLead = Lead<ItemPath, Result<Found, Failure>>;

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

pub(super) fn is_current(attributes: &Attributes, since: Instant) -> bool {
    !attributes.provisional || since.elapsed() < PROVISIONAL_TTL
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
        let (names, wanted) = match names.iter().position(|candidate| candidate == name) {
            Some(wanted) => (names, wanted),
            None => (vec![Bytes::copy_from_slice(name)], 0),
        };
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
        for view in self
            .views
            .get()
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
        {
            view.listing_flights.forget_all();
            view.attribute_flights.forget_all();
            view.xattr_flights.forget_all();
        }
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
                    if let Some(attributes) = directory.current_attributes(position) {
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

    /// Asks for the attributes of several names of one directory at once.
    async fn stat(self: Arc<Self>, parent: ItemPath, leads: Vec<(Bytes, AttributesLead)>) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let names = leads.iter().map(|(name, _)| name.clone()).collect();
        let answers = match self.source.stat(parent, names).await {
            Ok(answers) => answers.value,
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
        let answer = self.source.xattrs(lead.key().clone()).await;
        let answer = answer.map(|list| Arc::new(list.value));
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

pub(super) fn given_up(path: &ItemPath) -> Failure {
    Failure::new(
        FailureKind::Unavailable,
        format!("{path}: the request was given up"),
    )
}
