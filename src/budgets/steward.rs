//! The live part of the budgets, on every node: hears decisions, tells what is reported, and is the
//! allocator where that is this node's turn.
//!
//! A node hangs from an ancestor in tree 0; if no allocator's sign of life comes that way, in tree 1,
//! and so on. The root of the tree that it comes to is the allocator. So the allocator runs beside the
//! first root that lives, and whoever finds itself there takes up from the newest decision that any
//! node holds. See [`crate::budgets`].
//!
//! How it is wired: [`Steward::new`] when the overlay makes its service, which passes
//! `Service::steer` and `Service::command` on to [`Steward::service_steer`] and
//! [`Steward::service_command`]; [`Steward::start`] when the node can report; [`Steward::stop`] before
//! the overlay goes.

use super::command::{Command, CommandError, DatasetSpec, Reply};
use super::decision::{DatasetDecision, Decision};
use super::report::NodeReport;
use bytes::Bytes;
use copperfs_overlay::Failure;
use copperfs_overlay::steering::{LatestReceiver, LatestSender, Steering};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;

/// What the steward needs of the other nodes; the overlay's `Upstream` has it.
pub trait Neighbours: Send + Sync + 'static {
    /// How many trees there are: at least 1.
    fn trees(&self) -> usize;

    /// Whether nobody is above this node in `tree`.
    fn is_root_of(&self, tree: usize) -> bool;

    /// A stream to the ancestor from which this node hangs in `tree`.
    ///
    /// # Errors
    /// None can be reached.
    fn steer(&self, tree: usize) -> BoxFuture<'static, Result<Steering, Failure>>;

    /// Asks that ancestor.
    ///
    /// # Errors
    /// None can be reached, or the answer does not come.
    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>>;
}

/// What a dataset holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Files, and the stripes of larger ones.
    pub items: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// What this count was made from, so that a change shows: an index's time and length, say.
    pub source: u64,
}

/// How far a count is. Relaxed: for people.
#[derive(Debug, Default)]
pub struct CountProgress {
    /// Directories gone through.
    pub directories: AtomicU64,
    /// Items found.
    pub items: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
}

/// Counts datasets, on the allocator's node.
pub trait Counter: Send + Sync + 'static {
    /// Counts `dataset`. May be dropped at any time.
    ///
    /// # Errors
    /// Why it cannot be counted, for people.
    fn count(
        &self,
        dataset: &DatasetDecision,
        progress: Arc<CountProgress>,
    ) -> BoxFuture<'static, Result<Counted, String>>;

    /// Whether a count of `dataset` that was made from `source` is out of date.
    fn is_outdated(&self, dataset: &DatasetDecision, source: u64) -> BoxFuture<'static, bool>;
}

/// What this node reports, when it is asked. Must be cheap: it is called each second.
pub type ReportSource = Arc<dyn Fn() -> NodeReport + Send + Sync>;

/// What a steward is told.
#[derive(Clone, Debug)]
pub struct StewardConfig {
    /// This node's name, for people.
    pub name: String,
    /// Another number each time that the process starts.
    pub boot: u64,
    /// Datasets that are declared where there is no decision to take up from.
    pub datasets: Vec<DatasetSpec>,
    /// The policy, by name, where there is no decision to take up from.
    pub policy: String,
    /// Bytes per second that storage gives; `None`: no limit.
    pub remote_io: Option<u64>,
    /// GPUs of the cluster, if known.
    pub gpus: Option<u32>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Steward(Arc<Inner>);

struct Inner {
    config: StewardConfig,
    decision: watch::Sender<Arc<Decision>>,
}

impl std::fmt::Debug for Steward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steward")
            .field("name", &self.0.config.name)
            .field("serial", &self.0.decision.borrow().serial)
            .finish_non_exhaustive()
    }
}

impl Steward {
    /// A steward that does not do anything yet.
    #[must_use]
    pub fn new(
        config: StewardConfig,
        neighbours: Arc<dyn Neighbours>,
        counter: Arc<dyn Counter>,
    ) -> Self {
        drop((neighbours, counter));
        let decision = watch::Sender::new(Arc::new(Decision::default()));
        Self(Arc::new(Inner { config, decision }))
    }

    /// Begins: from now on `report` says what this node has to report. To be called once, within a
    /// runtime.
    pub fn start(&self, report: ReportSource) {
        drop(report);
    }

    /// Ends what [`Steward::start`] began.
    pub fn stop(&self) {}

    /// The decision that this node follows: the newest that it has heard. Before the first one it is
    /// empty, with the serial 0.0.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Decision>> {
        self.0.decision.subscribe()
    }

    /// Something has changed that the allocator should hear soon: a job's first read, its end.
    pub fn report_soon(&self) {}

    /// Has `command` carried out by the allocator, wherever it is. May be cancelled; the command may
    /// have been carried out then.
    ///
    /// # Errors
    /// It was refused, or no allocator can be reached.
    pub async fn command(&self, command: Command) -> Result<Reply, CommandError> {
        drop(command);
        Err(CommandError::unavailable("no allocator runs yet"))
    }

    /// A stream of `child`, which hangs from this node in `tree`.
    ///
    /// # Errors
    /// This node has no allocator above it in that tree: the child is to look elsewhere.
    pub async fn service_steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> Result<(), Failure> {
        drop((child, tree, up, down));
        Ok(())
    }

    /// A command of a node below this one.
    ///
    /// # Errors
    /// It is not one. A refusal is an answer.
    pub async fn service_command(&self, tree: usize, command: Bytes) -> Result<Bytes, Failure> {
        drop((tree, command));
        Ok(Bytes::new())
    }
}
