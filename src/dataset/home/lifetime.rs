//! The lifetime of a dataset's share on a node: opening, closing, and grace periods.

use super::pass_on::hand_over;
use super::share::Share;
use super::{AppliedDecision, Home, HomeStorage};
use crate::dataset::item_store::{self, GONE, ItemStore};
use crate::model::Decision;
use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a node that is no longer a home, or whose datasets a new allocator does not know, keeps
/// its items: longer than it takes to replace a root, or to lose and find a node.
const GRACE: Duration = Duration::from_secs(60);
/// How long after its start a node keeps directories of undeclared datasets: their allocator may
/// start later.
const UNDECLARED_GRACE: Duration = Duration::from_secs(600);
/// The maximum number of datasets on a disk: each has a directory, two threads and a queue. Items
/// of further datasets are not kept.
const KEPT_MAX: usize = 128;
/// How long until an unusable directory is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// How often to check whether another task has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The name of the directory in a node's store.
const DATASETS: &str = "datasets";

impl AppliedDecision {
    /// Returns whether this node has been no home for the whole grace period.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        let over = |since| now.duration_since(since) >= GRACE;
        self.absent.is_some_and(over)
    }
}

impl Home {
    /// Closes datasets that are no longer declared. `same_term`: the same allocator knew the
    /// dataset before, so it was removed.
    pub(super) fn close_removed(
        &self,
        decision: &Decision,
        same_term: bool,
        undeclared: &mut HashMap<u64, Instant>,
        now: Instant,
    ) {
        let declared = |id: u64| decision.datasets.iter().any(|dataset| dataset.id == id);
        undeclared.retain(|id, _| !declared(*id));
        let all = self.all();
        for share in all.iter().filter(|share| !declared(share.id)) {
            if same_term && !undeclared.contains_key(&share.id) {
                self.close_one(share);
            } else {
                undeclared.entry(share.id).or_insert(now);
            }
        }
    }

    /// Drops shares and directories whose grace period has ended.
    pub(super) fn tidy(&self, now: Instant) {
        let mut applied = self.0.applied.lock();
        if applied.is_away(now) {
            self.all().iter().for_each(|share| drop(share.set_bytes(0)));
        }
        self.all().iter().for_each(|share| share.expire_owners(now));
        let over = |since: &Instant| now.duration_since(*since) >= GRACE;
        let gone = applied.undeclared.extract_if(|_, since| over(since));
        for (id, _) in gone {
            if let Some(share) = self.find(id) {
                self.close_one(&share);
            }
        }
        let long = |began: &mut Instant| now.duration_since(*began) >= UNDECLARED_GRACE;
        // Once per process. The datasets declared until then are in the list of shares.
        if applied.began.take_if(long).is_some()
            && let Some(datasets) = self.datasets_directory()
        {
            let home = self.clone();
            let removing = async move { home.remove_undeclared(&datasets).await };
            drop(self.0.runtime.spawn(removing));
        }
    }

    /// Opens a new dataset's share, in addition to `known` others.
    pub(super) fn open(&self, share: &Arc<Share>, known: usize) {
        if known >= KEPT_MAX {
            return share.cannot_keep(format!("not kept here: {KEPT_MAX} datasets are"));
        }
        let HomeStorage::Disk {
            directory,
            reserve_percent,
            disk_timeout,
        } = &self.0.options.storage
        else {
            return share.open(ItemStore::Memory(Mutex::default()), Vec::new());
        };
        let (datasets, reserve_percent) = (directory.join(DATASETS), *reserve_percent);
        let disk_timeout = *disk_timeout;
        let (home, share) = (self.clone(), Arc::downgrade(share));
        let opening = async move {
            loop {
                let Some(share) = share.upgrade() else {
                    return;
                };
                // The dataset may have been removed, and declared again, since the task was
                // started.
                let current = home.find(share.id);
                if !current.is_some_and(|current| Arc::ptr_eq(&current, &share)) {
                    return;
                }
                // The directory of an earlier share of this dataset is still being removed.
                if home.0.closing.lock().contains(&share.id) {
                    drop(share);
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
                let directory = datasets.join(format!("{:016x}", share.id));
                let reading = home.0.directories.read().await;
                let opened = ItemStore::open(&directory, reserve_percent, disk_timeout).await;
                drop(reading);
                match opened {
                    Ok((item_store, held)) => return share.open(item_store, held),
                    Err(error) => {
                        tracing::warn!(dataset = share.name, %error, "nothing of a dataset is kept here");
                        share.cannot_keep(error.to_string());
                    }
                }
                drop(share);
                tokio::time::sleep(RETRY_DELAY).await;
            }
        };
        drop(self.0.runtime.spawn(opening));
    }

    fn datasets_directory(&self) -> Option<PathBuf> {
        match &self.0.options.storage {
            HomeStorage::Memory => None,
            HomeStorage::Disk { directory, .. } => Some(directory.join(DATASETS)),
        }
    }

    /// Forgets a dataset, and removes its directory.
    fn close_one(&self, share: &Arc<Share>) {
        let id = share.id;
        self.0.shares.write().remove(&id);
        // Requests in progress keep the store open until they are done.
        let (item_store, items) = share.close();
        let inheritances = self.inheritances(share, &items);
        let passing = item_store.clone();
        let passing = passing.map(|own| hand_over(Arc::clone(share), own, inheritances));
        let Some(datasets) = self.datasets_directory() else {
            drop(self.0.runtime.spawn(OptionFuture::from(passing)));
            return;
        };
        // Set before the task starts, so that a new share of the dataset waits for the removal.
        self.0.closing.lock().insert(id);
        let home = self.clone();
        let directory = datasets.join(format!("{id:016x}"));
        let closing = async move {
            OptionFuture::from(passing).await;
            // Wait for an opening in progress.
            let writing = home.0.directories.write().await;
            let removed =
                tokio::task::spawn_blocking(move || item_store::remove_directory(&directory)).await;
            home.0.closing.lock().remove(&id);
            drop(writing);
            if let Ok(Err(error)) = removed {
                tracing::warn!(%error, "cannot remove the directory of a dataset");
            }
            retire(item_store).await;
        };
        drop(self.0.runtime.spawn(closing));
    }

    /// Closes all shares, and keeps items on the disk for the next process. Waits until they are
    /// written.
    pub async fn close(&self) {
        let shares = std::mem::take(&mut *self.0.shares.write());
        for share in shares.into_values() {
            retire(share.close().0).await;
        }
    }

    /// Removes the directories of datasets that are not declared.
    async fn remove_undeclared(&self, datasets: &Path) {
        let _writing = self.0.directories.write().await;
        let (home, datasets) = (self.clone(), datasets.to_owned());
        let removing = tokio::task::spawn_blocking(move || {
            for entry in std::fs::read_dir(datasets).into_iter().flatten().flatten() {
                let path = entry.path();
                let stem = path.file_stem().and_then(|stem| stem.to_str());
                let id = stem.filter(|stem| stem.len() == 16);
                let Some(id) = id.and_then(|id| u64::from_str_radix(id, 16).ok()) else {
                    continue;
                };
                // A process that was killed may have left a directory half emptied.
                let leftover = path.extension().is_some_and(|extension| extension == GONE);
                if leftover || home.find(id).is_none() {
                    tracing::info!(directory = %path.display(), "nobody has declared this dataset: what was kept of it goes");
                    std::fs::remove_dir_all(path).ok();
                }
            }
        });
        drop(removing.await);
    }
}

/// Drops an item store once it is unused. Its threads end, and pending writes are completed.
async fn retire(item_store: Option<Arc<ItemStore>>) {
    let Some(item_store) = item_store else {
        return;
    };
    // About as long as a read from storage may take.
    for _ in 0..1200 {
        if Arc::strong_count(&item_store) == 1 {
            break;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    drop(tokio::task::spawn_blocking(move || drop(item_store)).await);
}
