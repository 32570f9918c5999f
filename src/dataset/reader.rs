//! Reading a dataset's items on the node where the job runs: from their homes, paid with the job's
//! tokens.
//!
//! It answers the reads of open files. An item is requested from its home as a whole, once per
//! open, if it is read from its beginning or sequentially, and otherwise in the requested ranges.
//! Items that the home holds cost nothing. It reads missing ones from storage for as many bytes as
//! the request pays for. So a job without tokens waits for them, without delaying other jobs.
//!
//! It keeps no items, which the homes do, and decides nothing. It only holds those that are being read
//! (`reader/held.rs`).
//!
//! If a home cannot be reached, the slot's next nodes are asked, and finally this node itself,
//! which reads storage without keeping the item. That costs an extra read from storage, and never
//! returns a wrong byte.

mod held;
mod open;
#[cfg(test)]
mod tests;
mod view;

pub use open::OpenDatasetFile;

use super::catalog::Catalog;
use super::task_reads::TaskReads;
use crate::job::{Activities, CachedReader, JobActivity, JobName, Reader, Readers, Terms};
use crate::model::slots::slot_of_content;
use crate::model::{Decision, UNATTRIBUTED};
use crate::read::FileRef;
use bytes::Bytes;
use copperfs_metrics::{Counter, Scope, Unit};
use copperfs_overlay::{
    ContentHash, Failure, HeldAnswer, HeldRequest, Insertion, ItemAnswer, ItemPath, ItemRequest,
    RangeAnswer,
};
use copperfs_policy::{Keep, Mode};
use futures_util::future::BoxFuture;
use held::HeldItems;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use view::View;

/// The connection to the homes of items.
pub trait HomeClient: Send + Sync + 'static {
    /// Sends a request to the member at `rank`, which may be this node. `None`: this node, as the
    /// last resort.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be reached; otherwise its own failure.
    fn ask(
        &self,
        rank: Option<u32>,
        request: ItemRequest,
    ) -> BoxFuture<'static, Result<ItemAnswer, Failure>>;

    /// Returns the requested bytes, by block, if the member at `rank` is this node and has all of the item in memory.
    /// Waits for nothing.
    fn try_ask(&self, rank: u32, request: &ItemRequest) -> Option<Vec<RangeAnswer>>;

    /// Requests an item by its hash alone from the member at `rank`, which may be this node.
    ///
    /// # Errors
    /// As for [`HomeClient::ask`].
    fn content(
        &self,
        rank: u32,
        hash: ContentHash,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Failure>>;

    /// Gives an item to the member at `rank`, which may be this node.
    ///
    /// # Errors
    /// As for [`HomeClient::ask`].
    fn insert(
        &self,
        rank: u32,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>>;

    /// Asks the member at `rank`, which may be this node, which items it holds.
    ///
    /// # Errors
    /// As for [`HomeClient::ask`].
    fn held(
        &self,
        rank: u32,
        request: HeldRequest,
    ) -> BoxFuture<'static, Result<HeldAnswer, Failure>>;
}

#[derive(Debug, Default)]
struct Counters {
    requests: Counter,
    unpaid: Counter,
    elsewhere: Counter,
    outdated: Counter,
    unattributed_bytes: Counter,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct DatasetReader(Arc<Shared>);

pub(super) struct Shared {
    /// Replaced with each decision. The lock is held for a look-up only.
    view: RwLock<Arc<View>>,
    /// The entries of datasets with a manifest, as far as they are known here. The lock is held for a
    /// look-up only.
    catalogs: RwLock<HashMap<u64, Arc<Catalog>>>,
    /// Datasets about whose manifests a warning was logged. The lock is held for a look-up only.
    outdated: Mutex<HashSet<u64>>,
    homes: Arc<dyn HomeClient>,
    readers: Arc<Readers>,
    activities: Arc<Activities>,
    task_reads: Arc<TaskReads>,
    held: HeldItems,
    /// The time limit of a read's requests to homes.
    request_timeout: Duration,
    counters: Counters,
}

impl DatasetReader {
    /// Creates a reader without datasets. `readers` finds the job of a thread, and `activities`
    /// records its reads. A read whose homes have not answered within `request_timeout` fails; time
    /// in which its job waits for tokens does not count.
    #[must_use]
    pub fn new(
        homes: Arc<dyn HomeClient>,
        readers: Arc<Readers>,
        activities: Arc<Activities>,
        request_timeout: Duration,
    ) -> Self {
        Self(Arc::new(Shared {
            view: RwLock::default(),
            catalogs: RwLock::default(),
            outdated: Mutex::default(),
            homes,
            readers,
            activities,
            task_reads: Arc::default(),
            held: HeldItems::new(),
            request_timeout,
            counters: Counters::default(),
        }))
    }

    /// Applies `decision`, also to open files. `own` is this node's rank. Call it again when a job
    /// begins to read here, so that the job gets its terms.
    pub fn apply(&self, decision: &Arc<Decision>, own: u32) {
        // The view is rebuilt only for a new decision, but terms are applied each time, because
        // jobs may be new.
        let known = self.0.view();
        if known.decision.serial != decision.serial {
            let view = View::new(Arc::clone(decision), &known);
            self.0.readers.declare(owners(decision));
            let has_manifest = |id| {
                let mut datasets = decision.datasets.iter();
                datasets.any(|one| one.id == id && one.manifest.is_some())
            };
            self.0.catalogs.write().retain(|id, _| has_manifest(*id));
            *self.0.view.write() = Arc::new(view);
        }
        // A job that has just begun to read has no terms yet.
        for activity in self.0.activities.all() {
            activity.apply(terms(decision, own, &activity));
        }
    }

    /// Sets the entries of a dataset that has a manifest, also for open files.
    pub fn set_catalog(&self, dataset: u64, catalog: &Arc<Catalog>) {
        self.0.catalogs.write().insert(dataset, Arc::clone(catalog));
    }

    /// Returns the entries of a dataset that has a manifest, once they are known here.
    #[must_use]
    pub fn catalog(&self, dataset: u64) -> Option<Arc<Catalog>> {
        self.0.catalog(dataset)
    }

    /// Returns the rank of the home of items with this hash.
    #[must_use]
    pub fn home_of_content(&self, content: &ContentHash) -> Option<u32> {
        self.0.view().home(slot_of_content(content))
    }

    /// Begins the open of the file at `path` by thread `pid`. Returns `None` if the file is in no dataset.
    /// Does no I/O.
    #[must_use]
    pub fn open(&self, pid: u32, path: &ItemPath, file: &FileRef) -> Option<Opening> {
        let view = self.0.view();
        let (_, decided) = view.dataset_of(path)?;
        let reader = Arc::clone(&self.0);
        let root_bytes = decided.path.as_bytes().len();
        let (dataset, name, file) = (decided.id, decided.name.clone(), file.clone());
        let by_count = decided.keep == Keep::References;
        let finish = move |found: Option<&Reader>| {
            let now = Instant::now();
            let activity = reader.activities.of(found, &name, now);
            activity.opened(now);
            let task = found.and_then(|found| found.task.clone());
            let reading = (pid, task.filter(|_| by_count));
            OpenDatasetFile::new(reader, (dataset, root_bytes), file, activity, reading)
        };
        Some(match self.0.readers.cached(pid, Instant::now()) {
            CachedReader::Known(found) => Opening::Ready(finish(found.as_deref())),
            // A read of `/proc` may block, so it must not run on this thread.
            CachedReader::Unknown => {
                let readers = Arc::clone(&self.0.readers);
                Opening::Later(Box::pin(async move {
                    let found = readers.find(pid).await;
                    finish(found.as_deref())
                }))
            }
        })
    }

    /// Drops the items whose time in memory is over. Call it about every second.
    pub fn tidy(&self) {
        self.0.held.tidy(Instant::now());
    }

    /// Drops all items that no open file holds.
    pub fn clear(&self) {
        self.0.held.clear();
    }

    /// Returns the reads of tasks of pipelines on this node.
    #[must_use]
    pub fn task_reads(&self) -> &Arc<TaskReads> {
        &self.0.task_reads
    }

    /// Returns the datasets whose items clients may have by their hash, with their names.
    #[must_use]
    pub fn public_catalogs(&self) -> Vec<(String, Arc<Catalog>)> {
        let view = self.0.view();
        let datasets = view.decision.datasets.iter();
        let public = datasets.filter(|dataset| !dataset.is_private);
        let known = public.filter_map(|one| Some((one.name.clone(), self.0.catalog(one.id)?)));
        known.collect()
    }

    /// Charges `bytes` of each dataset to the job of the process `from`, which has read them from storage with its
    /// own credentials.
    pub async fn read_by_client(&self, from: Option<u32>, bytes: HashMap<&str, u64>) {
        if bytes.is_empty() {
            return;
        }
        let found = match from {
            Some(pid) => Arc::clone(&self.0.readers).find(pid).await,
            None => None,
        };
        let now = Instant::now();
        for (dataset, bytes) in bytes {
            let activity = self.0.activities.of(found.as_deref(), dataset, now);
            activity.read_by_itself(bytes, now);
        }
    }

    /// Returns the name of the dataset that contains `path`.
    #[must_use]
    pub fn dataset_of(&self, path: &ItemPath) -> Option<String> {
        let view = self.0.view();
        let (_, dataset) = view.dataset_of(path)?;
        Some(dataset.name.clone())
    }

    /// Records that `bytes` of the file at `path` were read through the software mount, by an
    /// unknown reader. Warns once for each dataset.
    pub fn unattributed(&self, path: &ItemPath, bytes: u64) {
        let view = self.0.view();
        let Some((at, dataset)) = view.dataset_of(path) else {
            return;
        };
        self.0.counters.unattributed_bytes.add(bytes);
        if view.warn_once(at) {
            tracing::warn!(
                dataset = %dataset.name, %path,
                "a dataset is read through the software mount: its reads belong to no job and have no \
                 budget. Read it below the data mount (--data-mount)"
            );
        }
    }

    /// Declares the counters in `datasets`.
    pub fn declare(&self, datasets: &Scope) {
        use Unit::{Bytes, Count};
        let counters = &self.0.counters;
        let help = "Requests of readers on this node to homes of items, this node included.";
        datasets.counter("requests", Count, help, &counters.requests);
        let help = "Requests that a home did not answer with data, because tokens were lacking.";
        datasets.counter("unpaid", Count, help, &counters.unpaid);
        let help = "Requests sent to another home because the first could not be reached.";
        datasets.counter("elsewhere", Count, help, &counters.elsewhere);
        let help = "Requests for items that have other bytes in storage than in their manifest.";
        datasets.counter("outdated", Count, help, &counters.outdated);
        let help = "Bytes of datasets read through the software mount, on no job's account.";
        let unattributed = &counters.unattributed_bytes;
        datasets.counter("unattributed_bytes", Bytes, help, unattributed);
    }
}

/// An open of a dataset's file.
pub enum Opening {
    /// The reader is known.
    Ready(OpenDatasetFile),
    /// The reader is being looked up, for a bounded time. May be cancelled; then nothing was opened.
    Later(BoxFuture<'static, OpenDatasetFile>),
}

impl Shared {
    fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Records that the file at `path` has other bytes than the manifest of its dataset says.
    fn outdated(&self, dataset: u64, path: &ItemPath) {
        self.counters.outdated.increment();
        if self.outdated.lock().insert(dataset) {
            tracing::warn!(
                %path,
                "a file has other bytes than the manifest of its dataset says. It is read from storage each \
                 time: make the manifest again with copperfs dataset manifest, and declare the dataset again"
            );
        }
    }

    fn catalog(&self, dataset: u64) -> Option<Arc<Catalog>> {
        self.catalogs.read().get(&dataset).cloned()
    }
}

/// Returns the owners of the declared jobs.
fn owners(decision: &Decision) -> HashMap<JobName, u32> {
    let jobs = decision.jobs.iter();
    jobs.filter_map(|job| Some((job.name.parse().ok()?, job.owner?)))
        .collect()
}

/// The divisor of the total (or of the job's rate if there is no total) that limits a job on a node
/// that the allocator does not know yet: enough to begin, and too little to exceed the total by
/// much.
const UNHEARD_PART: u64 = 100;

/// Returns the terms of a job on this node.
fn terms(decision: &Decision, own: u32, activity: &JobActivity) -> Terms {
    let items = decision.dataset(&activity.dataset).map(|one| one.items);
    let name = activity.job.as_ref().map_or(UNATTRIBUTED, JobName::as_str);
    let job = decision.job(name);
    let here = job.and_then(|job| job.nodes.iter().find(|node| node.rank == own));
    let rate = job.map(|job| job.remote_io);
    let limit = match (rate, here) {
        (Some(None), _) => None,
        (_, Some(here)) => Some(here.remote_io),
        // The decision may lag behind a job's first reads on a node. Until it names the node, a small
        // part of the total applies.
        (rate, None) => {
            let total = decision.remote_io_total.or(rate.flatten());
            total.map(|total| total / UNHEARD_PART)
        }
    };
    let nodes = job.map_or(1, |job| job.nodes.len());
    Terms {
        limit,
        nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
        items: items.filter(|items| *items > 0),
        mode: job.map_or(Mode::Cached, |job| job.mode),
    }
}
