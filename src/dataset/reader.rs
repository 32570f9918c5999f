//! Reading a dataset's items on the node where the job runs: from their homes, paid with the job's
//! tokens.
//!
//! Purpose: answer the reads of one open file. An item is asked of its home whole, once for each open,
//! where it is read from its beginning or in order, and in the runs that are asked for otherwise. What
//! the home has costs nothing; what it lacks it reads from storage for as many bytes as the request
//! pays for, so a job without tokens waits for them, and nobody else does.
//!
//! What it does not do: keep items (that is the homes' business), decide anything.
//!
//! Where a home cannot be reached its slots' next nodes are asked, and at last this node itself, which
//! reads storage for it without keeping it: that costs an extra read of storage, never a wrong byte.

mod open;
#[cfg(test)]
mod tests;
mod view;

pub use open::OpenDatasetFile;

use crate::job::{Activities, JobActivity, JobName, RateLimit, Reader, Readers, Terms};
use crate::model::{Decision, JobDecision, UNATTRIBUTED};
use crate::read::FileRef;
use copperfs_metrics::{Counter, Scope, Unit};
use copperfs_overlay::{Failure, ItemAnswer, ItemPath, ItemRequest};
use futures_util::future::BoxFuture;
use open::Opened;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use view::View;

/// Bytes of items that open files hold on this node, all together: some thirty stripes, or more small
/// files than loaders have open. Who finds no room reads in runs, which are given out at once.
pub const HELD_BYTES_MAX: u64 = 128 << 20;
/// What [`HELD_BYTES_MAX`] is counted in.
const HELD_UNIT: u64 = 4096;

/// The nodes that keep items.
pub trait Homes: Send + Sync + 'static {
    /// Asks the member at `rank`, which may be this node; `None`: this node, for lack of another.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be reached; what it failed with.
    fn ask(
        &self,
        rank: Option<u32>,
        request: ItemRequest,
    ) -> BoxFuture<'static, Result<ItemAnswer, Failure>>;
}

/// What readers on this node have cost. All of them rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReaderStats {
    /// Requests to homes.
    pub requests: u64,
    /// Requests that a home could not answer for lack of payment.
    pub unpaid: u64,
    /// Requests that went elsewhere because a home could not be reached.
    pub elsewhere: u64,
    /// Bytes of datasets that were read through the software mount, unattributed.
    pub unattributed_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    requests: Counter,
    unpaid: Counter,
    elsewhere: Counter,
    unattributed_bytes: Counter,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct DatasetReader(Arc<Inner>);

pub(super) struct Inner {
    /// Replaced as a whole with each decision; held for a look.
    view: RwLock<Arc<View>>,
    homes: Arc<dyn Homes>,
    readers: Arc<Readers>,
    activities: Arc<Activities>,
    /// Room for what open files hold, in units of [`HELD_UNIT`].
    held: Arc<Semaphore>,
    /// How long the homes of one read may take.
    request_timeout: Duration,
    counters: Counters,
}

impl fmt::Debug for DatasetReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatasetReader")
            .field("serial", &self.0.view().decision.serial)
            .finish_non_exhaustive()
    }
}

impl DatasetReader {
    /// A reader that knows no datasets yet. `readers` tells whose processes read, `activities` what
    /// they do. A read whose homes have not answered within `request_timeout` fails; the time in which its
    /// job waits for tokens does not count.
    #[must_use]
    pub fn new(
        homes: Arc<dyn Homes>,
        readers: Arc<Readers>,
        activities: Arc<Activities>,
        request_timeout: Duration,
    ) -> Self {
        let room = usize::try_from(HELD_BYTES_MAX / HELD_UNIT).unwrap_or(Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            view: RwLock::default(),
            homes,
            readers,
            activities,
            held: Arc::new(Semaphore::new(room)),
            request_timeout,
            counters: Counters::default(),
        }))
    }

    /// Follows `decision` from now on, also with files that are open. `own` is this node's rank. To be
    /// called again when a job is new here: each gets its terms by this.
    pub fn apply(&self, decision: &Arc<Decision>, own: u32) {
        let known = self.0.view();
        if known.decision.serial != decision.serial {
            let view = View::new(Arc::clone(decision), &known);
            self.0.readers.declare(owners(decision));
            *self.0.view.write() = Arc::new(view);
        }
        for activity in self.0.activities.all() {
            activity.apply(terms(decision, own, &activity));
        }
    }

    /// Begins the open of the file at `path` by thread `pid`. Returns `None` if the file is in no dataset.
    /// Does no I/O.
    #[must_use]
    pub fn open(&self, pid: u32, path: &ItemPath, file: &FileRef) -> Option<Opening> {
        let view = self.0.view();
        let dataset = view.dataset_of(path)?;
        let decided = &view.decision.datasets[dataset];
        let begun = Begun {
            reader: Arc::clone(&self.0),
            dataset: decided.id,
            name: decided.name.clone(),
            file: file.clone(),
            pid,
        };
        Some(match self.0.readers.known(pid, Instant::now()) {
            Some(reader) => Opening::Ready(begun.opened(reader.as_deref())),
            None => Opening::Later(Box::pin(async move {
                let readers = Arc::clone(&begun.reader.readers);
                let reader = readers.find(pid).await;
                begun.opened(reader.as_deref())
            })),
        })
    }

    /// The dataset that `path` belongs to, by name.
    #[must_use]
    pub fn dataset_of(&self, path: &ItemPath) -> Option<String> {
        let view = self.0.view();
        let dataset = view.dataset_of(path)?;
        Some(view.decision.datasets[dataset].name.clone())
    }

    /// `bytes` of the file at `path` were read through the software mount, where nobody knows by whom.
    /// Said once for each dataset.
    pub fn unattributed(&self, path: &ItemPath, bytes: u64) {
        let view = self.0.view();
        let Some(dataset) = view.dataset_of(path) else {
            return;
        };
        self.0.counters.unattributed_bytes.add(bytes);
        if view.warn_once(dataset) {
            let name = &view.decision.datasets[dataset].name;
            tracing::warn!(
                dataset = %name, %path,
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
        let help = "Bytes of datasets read through the software mount, on no job's account.";
        let unattributed = &counters.unattributed_bytes;
        datasets.counter("unattributed_bytes", Bytes, help, unattributed);
    }

    /// The counters as they stand.
    #[must_use]
    pub fn stats(&self) -> ReaderStats {
        let counters = &self.0.counters;
        ReaderStats {
            requests: counters.requests.get(),
            unpaid: counters.unpaid.get(),
            elsewhere: counters.elsewhere.get(),
            unattributed_bytes: counters.unattributed_bytes.get(),
        }
    }
}

/// An open of a dataset's file, in progress.
pub enum Opening {
    /// The reader is known.
    Ready(OpenDatasetFile),
    /// The reader is being looked up, for a bounded time. May be cancelled; then nothing was opened.
    Later(BoxFuture<'static, OpenDatasetFile>),
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Later(_) => "Later",
        })
    }
}

/// An open whose reader is not known yet.
struct Begun {
    reader: Arc<Inner>,
    dataset: u64,
    name: String,
    file: FileRef,
    pid: u32,
}

impl Begun {
    fn opened(self, reader: Option<&Reader>) -> OpenDatasetFile {
        let now = Instant::now();
        let activity = self.reader.activities.of(reader, &self.name, now);
        activity.opened(now);
        OpenDatasetFile::new(Opened {
            reader: self.reader,
            dataset: self.dataset,
            file: self.file,
            activity,
            pid: self.pid,
        })
    }
}

impl Inner {
    fn view(&self) -> Arc<View> {
        let view = self.view.read();
        Arc::clone(&view)
    }
}

/// The owners of the declared jobs.
fn owners(decision: &Decision) -> HashMap<JobName, u32> {
    let jobs = decision.jobs.iter();
    jobs.filter_map(|job| Some((job.name.parse().ok()?, job.owner?)))
        .collect()
}

/// The part of the total, or of its own rate where there is no total, that a job may read on a node that
/// the allocator has not heard of yet: enough to begin with, little enough that the total is not
/// exceeded by much.
const UNHEARD_PART: u64 = 100;

/// What `decision` says to a job on this node.
fn terms(decision: &Decision, own: u32, activity: &JobActivity) -> Terms {
    let dataset = decision.dataset(activity.dataset());
    let name = activity.job().map_or(UNATTRIBUTED, JobName::as_str);
    let job = decision.job(name);
    let here = job.and_then(|job| job.nodes.iter().find(|node| node.rank == own));
    let limit = match (decision.remote_io_total, job, here) {
        (
            _,
            Some(JobDecision {
                remote_io: None, ..
            }),
            _,
        )
        | (None, None, _) => RateLimit::Unlimited,
        (_, _, Some(here)) => RateLimit::BytesPerSecond(here.remote_io),
        (Some(total), _, None) => RateLimit::BytesPerSecond(total / UNHEARD_PART),
        (
            None,
            Some(JobDecision {
                remote_io: Some(rate),
                ..
            }),
            None,
        ) => RateLimit::BytesPerSecond(rate / UNHEARD_PART),
    };
    let nodes = job.map_or(1, |job| job.nodes.len());
    Terms {
        limit,
        nodes: u32::try_from(nodes).unwrap_or(u32::MAX),
        items: dataset
            .map(|dataset| dataset.items)
            .filter(|items| *items > 0),
    }
}
