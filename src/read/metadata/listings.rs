//! Listings: a directory is requested once and then answers for all its names.

use super::arriving::Arriving;
use super::directory::{ATTRIBUTES_BYTES, Directory, ENTRY_BYTES, ListingKey};
use super::lease::{Lease, least_for_child};
use super::{Inner, Metadata, wait_answer};
use crate::read::single_flight::{Joined, Lead, Pending};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, Cursor, Failure, FailureKind, ItemPath, Leased, ListRequest, Listed, ListingStream,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Metadata {
    /// The listing of `path`, or its first page if it is large, if that needs no message.
    pub fn try_directory(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.cached_page(&ListingKey::first(path), Duration::ZERO)
    }

    /// The cached listing of `path`, even if its lease has ended. Not counted as a hit.
    pub(in crate::read) fn peek_directory(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.shared().listings.peek(&ListingKey::first(path))
    }

    /// The cached page, if more than `least` of its lease is left.
    fn cached_page(&self, key: &ListingKey, least: Duration) -> Option<Arc<Directory>> {
        let cached = self.shared().listings.get(key);
        cached.filter(|directory| directory.lease().holds_for(least))
    }

    /// The listing of `path`, or its first page if it is large. A directory that may not be listed
    /// is returned without entries; its names can be looked up one by one.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, failures of the source.
    pub async fn directory(&self, path: &ItemPath) -> Result<Arc<Directory>, Failure> {
        self.page(path, 0, None).await
    }

    /// The page that contains entry `index` of directory `path`, whose first page is `page`, and the index of
    /// that page's first entry.
    ///
    /// # Errors
    /// Like [`Metadata::directory`], and `PermissionDenied` if the directory may not be listed.
    pub async fn page_after(
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

    pub(in crate::read) async fn page(
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
        match self.request_page(key, cursor, least) {
            Requested::Answered(answer) => answer,
            Requested::Pending(pending) => wait_answer(pending, &key.path).await,
        }
    }

    /// The listing of `path` with enough of its lease left for a child.
    pub(super) async fn directory_for_child(
        &self,
        path: &ItemPath,
    ) -> Result<Arc<Directory>, Failure> {
        let least = least_for_child(self.0.lease);
        self.listed(&ListingKey::first(path), None, least).await
    }

    /// The first page of a listing for a child, as it arrives here.
    ///
    /// # Errors
    /// Like [`Metadata::directory`], and `PermissionDenied` if the directory may not be listed.
    pub(in crate::read) async fn list_for_child(
        &self,
        request: ListRequest,
    ) -> Result<Listed, Failure> {
        let source = &self.0.source;
        let ListRequest {
            path, limit, known, ..
        } = &request;
        let key = ListingKey::first(path);
        let least = least_for_child(self.0.lease);
        let answer = match self.request_page(&key, None, least) {
            Requested::Answered(answer) => answer,
            Requested::Pending(pending) => {
                let arriving = self.flights().arriving.get(&key);
                let arriving = arriving.map(|entry| Arc::clone(&entry));
                // A child that knows a listing waits for the end: only then it shows whether that has changed.
                if let Some(arriving) = arriving.filter(|_| known.is_none())
                    && let Some(listing) = arriving.follow().await
                {
                    if *limit < listing.head.entries {
                        return source.list(request).await;
                    }
                    return Ok(Listed::Listing(listing));
                }
                wait_answer(pending, path).await
            }
        };
        let directory = answer?;
        if *limit < directory.entries.len() {
            // This child has less memory than this node, so it pages in its own steps.
            return source.list(request).await;
        }
        let lease = directory.lease().remaining();
        if known.is_some() && *known == directory.digest() {
            return Ok(Listed::Unchanged { lease });
        }
        let mut listing = directory.to_listing(path)?;
        self.with_settled(path, &directory, &mut listing.entries);
        let mut listing: ListingStream = listing.into();
        listing.head.lease = lease;
        Ok(Listed::Listing(listing))
    }

    /// The page with more than `least` of its lease left, or the request in progress for it, begun if
    /// necessary.
    fn request_page(&self, key: &ListingKey, cursor: Option<Cursor>, least: Duration) -> Requested {
        if let Some(directory) = self.cached_page(key, least) {
            return Requested::Answered(Ok(directory));
        }
        let flights = self.flights();
        let look_again = || self.cached_page(key, least).map(Ok);
        match flights.listings.join(key, look_again) {
            Joined::Answered(answer) => Requested::Answered(answer),
            Joined::Follow(pending) => Requested::Pending(pending),
            Joined::Lead(lead, pending) => {
                self.shared().listings.count_miss();
                let arriving = Arc::new(Arriving::new());
                flights.arriving.insert(key.clone(), Arc::clone(&arriving));
                let listing = self.clone().list(cursor, lead, arriving);
                drop(self.0.runtime.spawn(listing));
                Requested::Pending(pending)
            }
        }
    }

    /// Requests one page of a listing, or asks whether the cached one is still valid. A directory that may not
    /// be listed is cached as one without entries.
    async fn list(
        self,
        cursor: Option<Cursor>,
        lead: Lead<ListingKey, Result<Arc<Directory>, Failure>>,
        arriving: Arc<Arriving>,
    ) {
        let Inner { shared, source, .. } = &*self.0;
        let moment = shared.epoch.now();
        let key = lead.key();
        let held = self.held(key).await;
        let known = held.as_ref().and_then(|directory| directory.digest());
        let asked = Instant::now();
        let grant = |given| Lease::granted(asked, self.0.lease, given);
        let (path, limit) = (key.path.clone(), self.page_entries());
        let listed = source
            .list(ListRequest {
                path,
                cursor,
                limit,
                known,
            })
            .await;
        let answer = match listed {
            Ok(Listed::Unchanged { lease }) => match &held {
                Some(held) => {
                    held.renew(grant(lease));
                    Ok(Arc::clone(held))
                }
                None => {
                    let detail = "unchanged, but no listing is cached";
                    Err(Failure::new(FailureKind::Corrupt, detail))
                }
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
                self.settle_soon(&key.path, &directory.entries);
            }
        };
        shared.epoch.keep(moment, &key.path, keep);
        arriving.end(answer.clone());
        (self.flights().arriving).remove_if(lead.key(), |_, held| Arc::ptr_eq(held, &arriving));
        lead.answer(answer);
    }

    /// The cached page, although its lease has ended; for a directory that this launch has not asked about yet,
    /// the listing of an earlier launch.
    async fn held(&self, key: &ListingKey) -> Option<Arc<Directory>> {
        if let Some(held) = self.shared().listings.peek(key) {
            return Some(held);
        }
        if key.page > 0 {
            return None;
        }
        let listing = self.persisted()?.load(&key.path).await?;
        Some(Arc::new(Directory::new(listing, Lease::over())))
    }

    /// Caches `answer`. `held` is the page that was cached when it was requested.
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
                    self.shared().listings.remove(key);
                }
                return;
            }
        };
        let same = held.is_some_and(|held| Arc::ptr_eq(held, directory));
        if same && self.shared().listings.contains(key) {
            return;
        }
        let weight = directory.weight() + key.path.as_bytes().len() as u64;
        let listings = &self.shared().listings;
        listings.insert(key.clone(), Arc::clone(directory), weight);
        if same {
            return;
        }
        if let Some(held) = held {
            directory.inherit(held);
        }
        if key.page == 0 {
            if held.is_some_and(|held| held.next.is_some()) {
                // The later pages continued the first page that has just been replaced.
                let later = |other: &ListingKey| other.path == key.path && other.page > 0;
                listings.remove_where(|other, _| later(other));
            }
            if let Some(persisted) = self.persisted() {
                persisted.keep(&key.path, directory);
            }
        }
    }

    /// Entries of a page: few enough that several pages fit into the cache.
    fn page_entries(&self) -> usize {
        let fit =
            self.shared().listings.capacity_bytes() / 4 / (ENTRY_BYTES + ATTRIBUTES_BYTES + 32);
        self.0
            .listing_entries_max
            .min(usize::try_from(fit).unwrap_or(usize::MAX))
            .max(256)
    }

    async fn directory_itself(&self, path: &ItemPath) -> Result<Leased<Attributes>, Failure> {
        self.0
            .source
            .stat_one(path.clone(), Bytes::new(), None)
            .await
    }
}

/// A page that was requested.
enum Requested {
    /// It was cached, or answered in the meantime.
    Answered(Result<Arc<Directory>, Failure>),
    Pending(Pending<Result<Arc<Directory>, Failure>>),
}
