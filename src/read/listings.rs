//! Listings: a directory is fetched once and then answers for all its names.

use super::arriving::Arriving;
use super::attributes::given_up;
use super::directory::{ATTRIBUTES_BYTES, Directory, ENTRY_BYTES};
use super::single_flight::{Joined, Lead, Pending, answer_of};
use super::{Inner, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{Attributes, Cursor, Failure, FailureKind, ItemPath, Listed, ListingDigest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A directory's page in the listings cache. Page 0 is the only one but for large directories.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ListingKey {
    pub(super) path: ItemPath,
    pub(super) page: u32,
}

impl ReadPath {
    /// The listing of `path` if it is here: the first page of a large directory.
    pub fn directory_now(&self, path: &ItemPath) -> Option<Arc<Directory>> {
        self.0.listings.get(&ListingKey {
            path: path.clone(),
            page: 0,
        })
    }

    /// As [`ReadPath::directory_now`], for the node's own questions: neither counted nor touched.
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
        if index == 0 {
            self.listing(path);
        }
        let here = page.next.is_none() || index < page.entries.len();
        (page.listable && here).then_some((0, page))
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
        match self.ask_page(&key, cursor) {
            Asked::Answered(answer) => answer,
            Asked::Pending(pending) => answer_of(pending)
                .await
                .unwrap_or_else(|| Err(given_up(path))),
        }
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
        let answer = match self.ask_page(&key, None) {
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
        if known.is_some() && known == directory.digest() {
            return Ok(Listed::Unchanged { lease: None });
        }
        Ok(Listed::Listing(directory.to_listing(&path)?.into()))
    }

    /// The page, or the flight that brings it, begun if need be.
    fn ask_page(&self, key: &ListingKey, cursor: Option<Cursor>) -> Asked {
        let inner = &self.0;
        if let Some(directory) = inner.listings.get(key) {
            return Asked::Answered(Ok(directory));
        }
        match inner
            .listing_flights
            .join(key, || inner.listings.get(key).map(Ok))
        {
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
    /// Asks for one page of a listing. A directory that refuses to be listed is kept as one that is
    /// searched by name.
    async fn list(
        self: Arc<Self>,
        cursor: Option<Cursor>,
        lead: Lead<ListingKey, Result<Arc<Directory>, Failure>>,
        arriving: Arc<Arriving>,
    ) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let path = lead.key().path.clone();
        let listing = self
            .source
            .list_parts(path.clone(), cursor, self.page_entries(), None);
        let listed = match listing.await.and_then(Listed::stream) {
            Ok(listing) => arriving.fill(listing).await,
            Err(failure) => Err(failure),
        };
        let answer = match listed {
            Ok(listing) => Ok(Directory::new(listing)),
            Err(failure)
                if failure.kind == FailureKind::PermissionDenied && lead.key().page == 0 =>
            {
                self.directory_itself(&path)
                    .await
                    .map(Directory::unlistable)
            }
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
        arriving.end(answer.clone());
        self.arriving
            .remove_if(lead.key(), |_, held| Arc::ptr_eq(held, &arriving));
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
            .value
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(Failure::not_found(path)))
    }
}
