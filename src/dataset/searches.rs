//! Searches of catalogs for the many hashes of a client's request.
//!
//! A request names up to 65,536 hashes, which take a second to find in a few large catalogs. The runtime may have one
//! worker, which serves all readers of the mount, so the searches run on a thread for blocking work. A thread for each
//! request would take the processors from the jobs on this node. So there is one thread, which the requests use part by
//! part in turns: a small request waits for one part of each other request, and a request that is given up ends with
//! its part.

use super::Catalog;
use super::residency::{Resident, elsewhere};
use copperfs_overlay::ContentHash;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Searches of one catalog for one hash in a part. They take about 10 ms if the catalogs are in no processor's cache.
const PART_SEARCHES: usize = 4096;

/// The searches of one node. Clones share their thread.
#[derive(Clone, Debug)]
pub struct Searches {
    /// One permit, which belongs to the part that is searched.
    turn: Arc<Semaphore>,
}

impl Default for Searches {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Searches {
    /// Returns for each hash whether an item with it is resident, according to the entries of `datasets` and the
    /// bits of those that are resident. May be cancelled.
    pub async fn look_up(
        &self,
        datasets: Vec<(Arc<Catalog>, Resident)>,
        hashes: Vec<ContentHash>,
    ) -> Vec<bool> {
        let count = datasets.len();
        let search = move |hashes: &[ContentHash]| look_up(&datasets, hashes);
        self.search(hashes, count, search).await
    }

    /// Returns for each hash the position of the first catalog that has an item with it. May be cancelled.
    pub async fn first_with(
        &self,
        catalogs: Vec<Arc<Catalog>>,
        hashes: Vec<ContentHash>,
    ) -> Vec<Option<usize>> {
        let count = catalogs.len();
        let first = move |hash: &ContentHash| {
            let mut catalogs = catalogs.iter();
            catalogs.position(|catalog| catalog.entry_with(hash).is_some())
        };
        let search = move |hashes: &[ContentHash]| hashes.iter().map(&first).collect();
        self.search(hashes, count, search).await
    }

    /// Calls `search` for the parts of `hashes`, and joins the results. Each hash is searched for in as many as
    /// `catalogs`.
    async fn search<T: Send + 'static>(
        &self,
        hashes: Vec<ContentHash>,
        catalogs: usize,
        search: impl Fn(&[ContentHash]) -> Vec<T> + Send + Sync + 'static,
    ) -> Vec<T> {
        let part = (PART_SEARCHES / catalogs.max(1)).max(1);
        let mut found = Vec::with_capacity(hashes.len());
        let (hashes, search) = (Arc::new(hashes), Arc::new(search));
        for start in (0..hashes.len()).step_by(part) {
            // The semaphore is never closed.
            let turn = Arc::clone(&self.turn).acquire_owned().await.ok();
            let (hashes, search) = (Arc::clone(&hashes), Arc::clone(&search));
            let searching = elsewhere(move || {
                let end = hashes.len().min(start + part);
                let found = search(&hashes[start..end]);
                // Moved into the work, so that the next part begins after it also if the client has given up.
                drop(turn);
                found
            });
            found.extend(searching.await);
        }
        found
    }
}

/// Returns for each hash whether an item with it is resident, according to the entries of `datasets` and the
/// bits of those that are resident.
fn look_up(datasets: &[(Arc<Catalog>, Resident)], hashes: &[ContentHash]) -> Vec<bool> {
    let is_resident = |hash: &ContentHash| {
        // All datasets are searched for every hash, so that the time tells nothing.
        let mut found = false;
        for (catalog, resident) in datasets {
            // The bit of another entry takes the place of an unknown item's.
            let entry = catalog.entry_with(hash);
            let at = entry.unwrap_or(0) as usize;
            let bit = resident
                .bits
                .get(at / 8)
                .is_some_and(|byte| byte >> (at % 8) & 1 == 1);
            found |= bit & entry.is_some();
        }
        found
    };
    hashes.iter().map(is_resident).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::residency::tests::catalog;
    use futures_util::FutureExt;

    /// Hashes that no entry has.
    fn unknown(count: usize) -> Vec<ContentHash> {
        vec![ContentHash([9; 32]); count]
    }

    /// The runtime's only worker must serve reads during a look-up.
    #[tokio::test]
    async fn the_worker_of_the_runtime_searches_nothing() {
        let worker = std::thread::current().id();
        let thread = |hashes: &[ContentHash]| vec![std::thread::current().id(); hashes.len()];
        let count = 2 * PART_SEARCHES;
        let searches = Searches::default();
        let threads = searches.search(unknown(count), 1, thread).await;
        assert_eq!(threads.len(), count);
        assert!(threads.iter().all(|thread| *thread != worker));
    }

    #[tokio::test]
    async fn parts_are_joined_in_order() {
        let searches = Searches::default();
        let known = catalog().piece_at(b"3", 1000, 0).unwrap().content.unwrap();
        let mut hashes = unknown(3 * PART_SEARCHES + 1);
        let at = [0, PART_SEARCHES - 1, PART_SEARCHES, 3 * PART_SEARCHES];
        for at in at {
            hashes[at] = known;
        }
        let bits = vec![0xff; catalog().manifest().len().div_ceil(8)].into();
        let resident = Resident {
            bits,
            ..Resident::default()
        };
        for datasets in [1, 3, 2 * PART_SEARCHES] {
            // The hashes of many datasets have parts of one hash, so they are fewer.
            let hashes = hashes[..hashes.len().min(40_000 / datasets).max(2)].to_vec();
            let known_at = |at: &usize| hashes[*at] == known;
            let due: Vec<usize> = (0..hashes.len()).filter(known_at).collect();
            let datasets = vec![(catalog(), resident.clone()); datasets];
            let catalogs = datasets.iter().map(|(catalog, _)| Arc::clone(catalog));
            let first = searches
                .first_with(catalogs.collect(), hashes.clone())
                .await;
            let found = searches.look_up(datasets, hashes.clone()).await;
            let all = 0..hashes.len();
            assert_eq!(all.clone().filter(|at| found[*at]).collect::<Vec<_>>(), due);
            assert_eq!(
                all.filter(|at| first[*at] == Some(0)).collect::<Vec<_>>(),
                due
            );
        }
        assert!(searches.look_up(Vec::new(), unknown(2)).await == [false; 2]);
    }

    /// A long look-up gives its thread to others after each part.
    #[tokio::test]
    async fn a_small_look_up_waits_for_one_part_of_a_large_one() {
        let searches = Searches::default();
        let datasets = || vec![(catalog(), Resident::default())];
        let many = unknown(100 * PART_SEARCHES);
        let mut large = Box::pin(searches.look_up(datasets(), many));
        assert!(
            large.as_mut().now_or_never().is_none(),
            "its first part is searched"
        );
        let mut small = Box::pin(searches.look_up(datasets(), unknown(1)));
        tokio::select! {
            biased;
            _ = &mut large => panic!("the small one has waited for the end"),
            found = &mut small => assert_eq!(found, [false]),
        }
    }

    /// A client that gives up leaves nothing behind but the part that is being searched.
    #[tokio::test]
    async fn a_cancelled_look_up_gives_its_turn_back() {
        let searches = Searches::default();
        let datasets = || vec![(catalog(), Resident::default())];
        let large = searches.look_up(datasets(), unknown(100 * PART_SEARCHES));
        assert!(large.now_or_never().is_none());
        assert_eq!(searches.look_up(datasets(), unknown(1)).await, [false]);
    }
}
