//! When a dataset's share begins on a node and ends: opening, closing, and what is given up for some
//! time only.

use super::share::Share;
use super::{Home, HomePlace};
use crate::dataset::item_store::{self, GONE, ItemStore};
use crate::model::Decision;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a node that is no home any more, or whose datasets a new allocator does not know, keeps what
/// it has: longer than it takes a root to move and a node to be missed and found again.
const GRACE: Duration = Duration::from_secs(60);
/// How long after its start a node leaves directories of datasets that nobody has declared: their
/// allocator may start later.
const UNDECLARED: Duration = Duration::from_secs(600);
/// Datasets that are kept: each has a directory, two threads and a queue. Others are passed on.
const KEPT_MAX: usize = 128;
/// How long a directory that cannot be used is left alone before it is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How often to look whether something else has ended.
const POLL: Duration = Duration::from_millis(50);
/// What is below a node's directory.
const DATASETS: &str = "datasets";

/// Since when something is not there, and may be back.
#[derive(Debug)]
pub(super) struct Absence {
    /// When this process began; `None`: undeclared directories have been looked at.
    began: Option<Instant>,
    /// This node is no home.
    node: Option<Instant>,
    /// Datasets that are not declared any more, though nobody has removed them.
    datasets: HashMap<u64, Instant>,
}

impl Absence {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: Some(now),
            node: None,
            datasets: HashMap::new(),
        }
    }

    pub(super) fn of_node(&mut self, absent: bool, now: Instant) {
        self.node = absent.then(|| self.node.unwrap_or(now));
    }

    /// This node has been no home for so long that it gives up what it has.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.node
            .is_some_and(|since| now.duration_since(since) >= GRACE)
    }
}

impl Home {
    /// Closes what is declared no more. `same_term`: by an allocator who knew it, so it was removed.
    pub(super) fn let_go(
        &self,
        decision: &Decision,
        same_term: bool,
        absence: &mut Absence,
        now: Instant,
    ) {
        let declared = |id: u64| decision.datasets.iter().any(|dataset| dataset.id == id);
        absence.datasets.retain(|id, _| !declared(*id));
        for share in self.all() {
            let id = share.id();
            if declared(id) {
                continue;
            }
            if same_term && !absence.datasets.contains_key(&id) {
                self.close_one(&share);
            } else {
                absence.datasets.entry(id).or_insert(now);
            }
        }
    }

    /// Gives up what has not come back.
    pub(super) fn tidy(&self, now: Instant) {
        let mut applied = self.0.applied.lock();
        if applied.absence.is_over(now) {
            self.all().iter().for_each(|share| share.set_bytes(0));
        }
        let over = |since: &Instant| now.duration_since(*since) >= GRACE;
        let gone = applied.absence.datasets.extract_if(|_, since| over(since));
        for (id, _) in gone {
            if let Some(share) = self.find(id) {
                self.close_one(&share);
            }
        }
        let long = |began: &mut Instant| now.duration_since(*began) >= UNDECLARED;
        if applied.absence.began.take_if(long).is_some()
            && let Some(datasets) = self.datasets_directory()
        {
            let home = self.clone();
            let removing = async move { home.remove_undeclared(&datasets).await };
            drop(self.0.runtime.spawn(removing));
        }
    }

    /// Opens a new dataset's share, of `known` others.
    pub(super) fn open(&self, share: &Arc<Share>, known: usize) {
        if known >= KEPT_MAX {
            let why = format!("not kept here: {KEPT_MAX} datasets are");
            share.cannot_keep(why);
            return;
        }
        let HomePlace::Disk {
            reserve_percent, ..
        } = self.0.options.place
        else {
            share.open(ItemStore::memory(), Vec::new());
            return;
        };
        let Some(datasets) = self.datasets_directory() else {
            return;
        };
        let (home, share) = (self.clone(), Arc::downgrade(share));
        let opening = async move {
            loop {
                let Some(share) = share.upgrade() else {
                    return;
                };
                let current = home.find(share.id());
                if !current.is_some_and(|current| Arc::ptr_eq(&current, &share)) {
                    return;
                }
                if home.0.closing.lock().contains(&share.id()) {
                    drop(share);
                    tokio::time::sleep(POLL).await;
                    continue;
                }
                let directory = datasets.join(format!("{:016x}", share.id()));
                let reading = home.0.directories.read().await;
                let opened = match make(&datasets).await {
                    Ok(()) => ItemStore::open(&directory, reserve_percent).await,
                    Err(error) => Err(error),
                };
                drop(reading);
                match opened {
                    Ok((item_store, held)) => {
                        share.open(item_store, held);
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(dataset = share.name(), %error, "nothing of a dataset is kept here");
                        share.cannot_keep(error.to_string());
                    }
                }
                drop(share);
                tokio::time::sleep(RETRY).await;
            }
        };
        drop(self.0.runtime.spawn(opening));
    }

    fn datasets_directory(&self) -> Option<PathBuf> {
        match &self.0.options.place {
            HomePlace::Memory => None,
            HomePlace::Disk { directory, .. } => Some(directory.join(DATASETS)),
        }
    }

    /// Forgets a dataset, and removes what was kept of it.
    fn close_one(&self, share: &Arc<Share>) {
        let id = share.id();
        let mut shares = self.0.shares.write();
        shares.remove(&id);
        drop(shares);
        let item_store = share.close();
        let Some(datasets) = self.datasets_directory() else {
            return;
        };
        self.0.closing.lock().insert(id);
        let home = self.clone();
        let directory = datasets.join(format!("{id:016x}"));
        let closing = async move {
            // An opening that is under way ends first.
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

    /// Ends all shares and keeps what is on the disk, for the next process. Waits until it is there.
    pub async fn close(&self) {
        let shares = std::mem::take(&mut *self.0.shares.write());
        for share in shares.into_values() {
            retire(share.close()).await;
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

/// Makes the directory of all datasets.
async fn make(datasets: &Path) -> Result<(), crate::store::StoreError> {
    use std::os::unix::fs::DirBuilderExt;
    let path = datasets.to_owned();
    let making = tokio::task::spawn_blocking(move || {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
    });
    let made = making
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)));
    made.map_err(|source| crate::store::StoreError::Io {
        action: "make",
        path: datasets.to_owned(),
        source,
    })
}

/// Lets go of a item_store once nobody uses it: its threads end, and what waits to be written is.
async fn retire(item_store: Option<Arc<ItemStore>>) {
    let Some(item_store) = item_store else {
        return;
    };
    // As long as a read of storage may take, about.
    for _ in 0..1200 {
        if Arc::strong_count(&item_store) == 1 {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    drop(tokio::task::spawn_blocking(move || drop(item_store)).await);
}
