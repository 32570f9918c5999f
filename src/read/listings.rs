//! Listings: a directory is fetched once and then answers for all its names.

use super::arriving::Arriving;
use super::directory::{ATTRIBUTES_BYTES, Directory, ENTRY_BYTES, ListingKey};
use super::lease::{Lease, least_for_child};
use super::single_flight::{Joined, Lead, Pending, answer_of};
use super::{Inner, ReadPath, given_up};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Failure, FailureKind, ItemPath, Leased, Listed, ListingDigest,
    ListingStream,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl ReadPath {
    /// The listing of `path` if it is here: the first page of a large directory.
    pub fn directory_now(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        let key = ListingKey {
            path: path.clone(),
            page: 0,
        };
        let held = self.0.listings.get(&key);
        held.filter(|directory| directory.lease().holds_for(Duration::ZERO))
    }

    /// The listing of `path` that is held here, on a lease or over: neither counted nor touched.
    pub(super) fn peek_directory(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.0.listings.peek(&ListingKey {
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
        if index == 0 {
            self.listing(path);
        }
        let first = self.directory(path).await?;
        self.page_behind(path, first, index).await
    }

    /// As [`ReadPath::page_with`], of a directory whose first page is `page`.
    ///
    /// # Errors
    /// As [`ReadPath::page_with`].
    pub async fn page_behind(
        &self,
        path: &ItemPath,
        mut page: Arc<Directory>,
        index: usize,
    ) -> Result<(usize, Arc<Directory>), Failure> {
        let mut first = 0;
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
        let found = page.holds(index).then_some((0, page))?;
        if index == 0 {
            self.listing(path);
        }
        Some(found)
    }

    pub(super) async fn page(
        &self,
        path: &ItemPath,
        page: u32,
        cursor: Option<Cursor>,
    ) -> Result<Arc<Directory>, Failure> {
        let key = ListingKey {
            path: path.clone(),
            page,
        };
        self.listed(&key, cursor, Duration::ZERO).await
    }

    async fn listed(
        &self,
        key: &ListingKey,
        cursor: Option<Cursor>,
        least: Duration,
    ) -> Result<Arc<Directory>, Failure> {
        match self.ask_page(key, cursor, least) {
            Asked::Answered(answer) => answer,
            Asked::Pending(pending) => answer_of(pending)
                .await
                .unwrap_or_else(|| Err(given_up(&key.path))),
        }
    }

    /// The listing of `path` with enough of its lease left for a child.
    pub(super) async fn directory_for_child(
        &self,
        path: &ItemPath,
    ) -> Result<Arc<Directory>, Failure> {
        let key = ListingKey {
            path: path.clone(),
            page: 0,
        };
        let least = least_for_child(self.0.options.lease);
        self.listed(&key, None, least).await
    }

    /// The listing of `path` for a child that takes at most `limit` entries, as it arrives here.
    ///
    /// # Errors
    /// As [`ReadPath::directory`], and `PermissionDenied` when the directory may not be listed.
    pub(super) async fn list_for_child(
        &self,
        path: ItemPath,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> Result<Listed, Failure> {
        let inner = &self.0;
        let key = ListingKey {
            path: path.clone(),
            page: 0,
        };
        let least = least_for_child(inner.options.lease);
        let answer = match self.ask_page(&key, None, least) {
            Asked::Answered(answer) => answer,
            Asked::Pending(pending) => {
                let arriving = inner.arriving.get(&key).map(|entry| Arc::clone(&entry));
                // Whether it is the one that the child knows shows at its end.
                if let Some(arriving) = arriving.filter(|_| known.is_none())
                    && let Some(listing) = arriving.follow().await
                {
                    if limit < listing.head.entries {
                        return inner.source.list_parts(path, None, limit, None).await;
                    }
                    return Ok(Listed::Listing(listing));
                }
                answer_of(pending)
                    .await
                    .unwrap_or_else(|| Err(given_up(&path)))
            }
        };
        let directory = answer?;
        if limit < directory.entries.len() {
            // This child has less room than this node: it pages in its own steps.
            return inner.source.list_parts(path, None, limit, known).await;
        }
        let lease = directory.lease().remaining();
        if known.is_some() && known == directory.digest() {
            return Ok(Listed::Unchanged { lease });
        }
        let mut listing = directory.to_listing(&path)?;
        inner.with_settled(&path, &directory, &mut listing.entries);
        let mut listing: ListingStream = listing.into();
        listing.head.lease = lease;
        Ok(Listed::Listing(listing))
    }

    /// The page with more than `least` of its lease left, or the flight that brings it, begun if need
    /// be.
    fn ask_page(&self, key: &ListingKey, cursor: Option<Cursor>, least: Duration) -> Asked {
        let inner = &self.0;
        let held = || {
            let held = inner.listings.get(key);
            held.filter(|directory| directory.lease().holds_for(least))
        };
        if let Some(directory) = held() {
            return Asked::Answered(Ok(directory));
        }
        match inner.listing_flights.join(key, || held().map(Ok)) {
            Joined::Answered(answer) => Asked::Answered(answer),
            Joined::Follow(pending) => Asked::Pending(pending),
            Joined::Lead(lead, pending) => {
                inner.listings.count_miss();
                let arriving = Arc::new(Arriving::new());
                inner.arriving.insert(key.clone(), Arc::clone(&arriving));
                let listing = Arc::clone(inner).list(cursor, lead, arriving);
                drop(inner.runtime.spawn(listing));
                Asked::Pending(pending)
            }
        }
    }
}

/// What became of a question for a page.
enum Asked {
    Answered(Result<Arc<Directory>, Failure>),
    Pending(Pending<Result<Arc<Directory>, Failure>>),
}

impl Inner {
    /// Asks for one page of a listing, or whether it is still the one that is held. A directory that
    /// refuses to be listed is kept as one that is searched by name.
    async fn list(
        self: Arc<Self>,
        cursor: Option<Cursor>,
        lead: Lead<ListingKey, Result<Arc<Directory>, Failure>>,
        arriving: Arc<Arriving>,
    ) {
        let asked_at = self.epoch.now();
        let key = lead.key();
        let held = self.held(key).await;
        let known = held.as_ref().and_then(|directory| directory.digest());
        let asked = Instant::now();
        let grant = |given| Lease::granted(asked, self.options.lease, given);
        let listed = self
            .source
            .list_parts(key.path.clone(), cursor, self.page_entries(), known)
            .await;
        let answer = match listed {
            Ok(Listed::Unchanged { lease }) => match &held {
                Some(held) => {
                    held.renew(grant(lease));
                    Ok(Arc::clone(held))
                }
                None => Err(Failure::new(FailureKind::Corrupt, "unchanged from what?")),
            },
            Ok(Listed::Listing(listing)) => arriving
                .fill(listing, |head| grant(head.lease))
                .await
                .map(|(listing, lease)| Arc::new(Directory::new(listing, lease))),
            Err(failure) if failure.kind == FailureKind::PermissionDenied && key.page == 0 => self
                .directory_itself(&key.path)
                .await
                .map(|itself| Arc::new(Directory::unlistable(itself.value, grant(itself.lease)))),
            Err(failure) => Err(failure),
        };
        let keep = || {
            self.keep_listing(key, held.as_ref(), &answer);
            if let Ok(directory) = &answer {
                self.settle_directory(&key.path, directory);
            }
        };
        self.epoch.keep(asked_at, &key.path, keep);
        arriving.end(answer.clone());
        self.arriving
            .remove_if(lead.key(), |_, held| Arc::ptr_eq(held, &arriving));
        lead.answer(answer);
    }

    /// The page that is held, its lease over; of a directory that this launch has not asked about yet,
    /// what an earlier launch has left of it.
    async fn held(&self, key: &ListingKey) -> Option<Arc<Directory>> {
        if let Some(held) = self.listings.peek(key) {
            return Some(held);
        }
        if key.page > 0 {
            return None;
        }
        let listing = self.persisted.as_ref()?.load(&key.path).await?;
        Some(Arc::new(Directory::new(listing, Lease::over())))
    }

    /// Keeps what came of a question for the page of `held`.
    fn keep_listing(
        &self,
        key: &ListingKey,
        held: Option<&Arc<Directory>>,
        answer: &Result<Arc<Directory>, Failure>,
    ) {
        let directory = match answer {
            Ok(directory) => directory,
            Err(failure) => {
                if matches!(
                    failure.kind,
                    FailureKind::NotFound | FailureKind::NotADirectory
                ) {
                    self.listings.remove(key);
                }
                return;
            }
        };
        let same = held.is_some_and(|held| Arc::ptr_eq(held, directory));
        if same && self.listings.contains(key) {
            return;
        }
        let weight = directory.weight() + key.path.as_bytes().len() as u64;
        self.listings
            .insert(key.clone(), Arc::clone(directory), weight);
        if same {
            return;
        }
        if let Some(held) = held {
            directory.inherit(held);
        }
        if key.page == 0 {
            if held.is_some_and(|held| held.next.is_some()) {
                // They went on behind a page that is no more.
                let behind = |other: &ListingKey| other.path == key.path && other.page > 0;
                self.listings.remove_where(|other, _| behind(other));
            }
            if let Some(persisted) = &self.persisted {
                persisted.keep(&key.path, directory);
            }
        }
    }

    /// Entries in a page: few enough that several pages fit into the listings' bound.
    fn page_entries(&self) -> usize {
        let fit = self.listings.capacity_bytes() / 4 / (ENTRY_BYTES + ATTRIBUTES_BYTES + 32);
        self.options
            .listing_entries_max
            .min(usize::try_from(fit).unwrap_or(usize::MAX))
            .max(256)
    }

    async fn directory_itself(&self, path: &ItemPath) -> Result<Leased<Attributes>, Failure> {
        let answers = self.source.stat(path.clone(), vec![Bytes::new()]).await?;
        let lease = answers.lease;
        let itself = answers.value.into_iter().next();
        let value = itself.unwrap_or_else(|| Err(Failure::not_found(path)))?;
        Ok(Leased { value, lease })
    }
}
