//! Listings: a directory is requested once and then answers for all its names.

use super::arriving::Arriving;
use super::directory::{ATTRIBUTES_BYTES, Directory, ENTRY_BYTES, ListingKey, settles_after};
use super::lease::{Lease, least_for_child};
use super::{Inner, Metadata};
use crate::num::to_usize;
use crate::read::single_flight::{Lead, Requested};
use bytes::Bytes;
use copperfs_overlay::{
    Cursor, Failure, FailureKind, ItemPath, ListRequest, Listed, Listing, ListingStream,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

impl Metadata {
    /// The listing of `path`, or its first page if it is large, if that needs no message.
    pub fn try_directory(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.cached_page(&ListingKey::first(path), Duration::ZERO)
    }

    /// The cached listing of `path`, even if its lease has ended. Not counted as a hit.
    #[must_use]
    pub fn peek_directory(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.shared().listings.peek(&ListingKey::first(path))
    }

    /// The cached page, if more than `least` of its lease is left.
    pub(super) fn cached_page(&self, key: &ListingKey, least: Duration) -> Option<Arc<Directory>> {
        let cached = self.shared().listings.get(key);
        cached.filter(|directory| directory.lease().holds_for(least))
    }

    /// The listing of `path`, or its first page if it is large. A directory that may not be listed
    /// is returned without entries; its names can be looked up one by one.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, failures of the source.
    pub async fn directory(&self, path: &ItemPath) -> Result<Arc<Directory>, Failure> {
        (self.page(&ListingKey::first(path), None, Duration::ZERO)).await
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
            page.check_listable(path)?;
            let Some(next) = page.next.clone() else { break };
            if index < first + page.entries.len() {
                break;
            }
            first += page.entries.len();
            let key = ListingKey {
                path: path.clone(),
                page: number,
            };
            page = self.page(&key, Some(next), Duration::ZERO).await?;
        }
        Ok((first, page))
    }

    /// The page with more than `least` of its lease left.
    pub(super) async fn page(
        &self,
        key: &ListingKey,
        cursor: Option<Cursor>,
        least: Duration,
    ) -> Result<Arc<Directory>, Failure> {
        let requested = self.request_page(key, cursor, least);
        requested.answer(&key.path).await
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
        let requested = self.request_page(&key, None, least);
        // A child that knows a listing waits for the end: only then it shows whether that has changed.
        if known.is_none() && matches!(requested, Requested::Pending(_)) {
            let arriving = self.flights().arriving.get(&key);
            if let Some(follower) = arriving.map(|entry| entry.clone())
                && let Some(listing) = follower.listing().await
            {
                if *limit < listing.head.entries {
                    return source.list(request).await;
                }
                return Ok(Listed::Listing(listing));
            }
        }
        let directory = requested.answer(path).await?;
        if *limit < directory.entries.len() {
            // This child has less memory than this node, so it pages in its own steps.
            return source.list(request).await;
        }
        let lease = directory.lease().remaining();
        if known.is_some() && *known == directory.digest() {
            return Ok(Listed::Unchanged { lease });
        }
        directory.check_listable(path)?;
        let mut entries = directory.entries.clone();
        self.with_settled(path, &directory, &mut entries);
        let mut listing = ListingStream::from(Listing {
            directory: directory.attributes.clone(),
            entries,
            next: directory.next.clone(),
        });
        listing.head.lease = lease;
        Ok(Listed::Listing(listing))
    }

    /// The page with more than `least` of its lease left, or the request in progress for it, begun if
    /// necessary.
    fn request_page(
        &self,
        key: &ListingKey,
        cursor: Option<Cursor>,
        least: Duration,
    ) -> Requested<Arc<Directory>> {
        if let Some(directory) = self.cached_page(key, least) {
            return Requested::Answered(directory);
        }
        let flights = self.flights();
        let begin = |lead| {
            self.shared().listings.count_miss();
            let arriving = Arriving::default();
            (flights.arriving).insert(key.clone(), arriving.follower());
            drop((self.0.runtime).spawn(self.clone().list(cursor, lead, arriving)));
        };
        (flights.listings).request(key, || self.cached_page(key, least), begin)
    }

    /// Requests one page of a listing, or asks whether the cached one is still valid. A directory that may not
    /// be listed is cached as one without entries.
    async fn list(
        self,
        cursor: Option<Cursor>,
        lead: Lead<ListingKey, Arc<Directory>>,
        arriving: Arriving,
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
            Err(failure) if failure.kind == FailureKind::PermissionDenied && key.page == 0 => {
                self.unlistable(&key.path, grant).await.map(Arc::new)
            }
            Err(failure) => Err(failure),
        };
        let keep = || {
            self.keep_listing(key, held.as_ref(), &answer);
            if let Ok(directory) = &answer {
                let unsettled = directory.entries.iter().filter_map(|entry| {
                    let after = settles_after(entry.attributes.as_ref()?)?;
                    Some((after, entry.name.clone()))
                });
                self.settle_soon(&key.path, unsettled);
            }
        };
        shared.epoch.keep(moment, &key.path, keep);
        arriving.end(answer.clone());
        (self.flights().arriving).remove_if(lead.key(), |_, listed| listed.follows(&arriving));
        lead.answer(answer);
    }

    /// The cached page, although its lease has ended; for a directory that this launch has not asked about yet,
    /// the listing of an earlier launch.
    async fn held(&self, key: &ListingKey) -> Option<Arc<Directory>> {
        let held = self.shared().listings.peek(key);
        if held.is_some() || key.page > 0 {
            return held;
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
        let listings = &self.shared().listings;
        let directory = match answer {
            Ok(directory) => directory,
            Err(failure) => {
                use FailureKind::{NotADirectory, NotFound};
                if matches!(failure.kind, NotFound | NotADirectory) {
                    listings.remove(key);
                }
                return;
            }
        };
        let same = held.is_some_and(|held| Arc::ptr_eq(held, directory));
        if same && listings.contains(key) {
            return;
        }
        let weight = directory.weight() + key.path.as_bytes().len() as u64;
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
                listings.remove_where(|other, _| other.path == key.path && other.page > 0);
            }
            if let Some(persisted) = self.persisted() {
                persisted.keep(&key.path, directory);
            }
        }
    }

    /// Entries of a page: few enough that several pages fit into the cache.
    fn page_entries(&self) -> usize {
        let entry_bytes = ENTRY_BYTES + ATTRIBUTES_BYTES + 32;
        let fit = to_usize(self.shared().listings.capacity_bytes() / 4 / entry_bytes);
        self.0.listing_entries_max.min(fit).max(256)
    }

    /// Directory `path`, which may not be listed.
    async fn unlistable(
        &self,
        path: &ItemPath,
        grant: impl Fn(Option<Duration>) -> Lease,
    ) -> Result<Directory, Failure> {
        let itself = self
            .0
            .source
            .stat_one(path.clone(), Bytes::new(), None)
            .await?;
        let listing = Listing {
            directory: itself.value,
            entries: Vec::new(),
            next: None,
        };
        let mut directory = Directory::new(listing, grant(itself.lease));
        directory.listable = false;
        Ok(directory)
    }
}
