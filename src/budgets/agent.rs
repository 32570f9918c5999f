//! The live part of the budgets, on every node: hears decisions, tells what is reported, and is the
//! allocator where that is this node's turn.
//!
//! A node hangs from an ancestor in tree 0; if no allocator's sign of life comes that way, in tree 1,
//! and so on. The root of the tree that it comes to is the allocator. So the allocator runs beside the
//! first root that lives, and whoever finds itself there takes up from the newest decision that any
//! node holds. See [`crate::budgets`].
//!
//! How it is wired: [`BudgetAgent::new`] when the overlay makes its service, which passes
//! `Service::steer` and `Service::command` on to [`BudgetAgent::service_steer`] and
//! [`BudgetAgent::service_command`]; [`BudgetAgent::start`] when the node can report; [`BudgetAgent::stop`] before
//! the overlay goes.

use super::allocator::Allocator;
use crate::budgets::counted::Counted;
use crate::model::{
    Asked, Beat, Command, CommandError, Counting, DatasetDecision, DatasetSpec, Decision,
    NodeReport, Reply, decode_answer, encode_answer,
};
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, LatestReceiver, LatestSender, Steering};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use state::State;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod allocate;
mod climb;
mod link;
mod serve;
mod state;
#[cfg(test)]
mod tests;

/// How long a command may take until it is answered: an allocator that has just moved listens first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes that may pass a command on: deeper than any tree. One that goes in a circle ends here.
const HOPS_MAX: u8 = 64;

/// What the budget agent needs of the other nodes; the overlay's `Upstream` has it.
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

impl CountProgress {
    fn of(&self, dataset: &str) -> Counting {
        use std::sync::atomic::Ordering::Relaxed;
        Counting {
            dataset: dataset.to_owned(),
            directories: self.directories.load(Relaxed),
            items: self.items.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
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

/// What a budget agent is told.
#[derive(Clone, Debug)]
pub struct BudgetAgentConfig {
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
pub struct BudgetAgent(Arc<Inner>);

struct Inner {
    config: BudgetAgentConfig,
    neighbours: Arc<dyn Neighbours>,
    counter: Arc<dyn Counter>,
    report: OnceLock<ReportSource>,
    /// The decision that this node follows.
    decision: watch::Sender<Arc<Decision>>,
    pulse: watch::Sender<Pulse>,
    /// Guards what this node knows of others; never held across an await.
    state: Mutex<State>,
    /// Something is to be reported before its time.
    soon: Notify,
    /// Something for the allocator of this node.
    work: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
    began: Instant,
}

/// Where this node stands, and the last sign of life of the allocator there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pulse {
    station: Station,
    beat: Beat,
}

/// Where this node stands. Children are taken in the same tree only: so a path that leads up leads to
/// that tree's root, and never in a circle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Station {
    /// It looks for an allocator in this tree.
    Searching(usize),
    /// It hears one there.
    Below(usize),
    /// It is the one there.
    Allocating(usize),
}

impl Station {
    const fn tree(self) -> usize {
        match self {
            Self::Searching(tree) | Self::Below(tree) | Self::Allocating(tree) => tree,
        }
    }
}

impl std::fmt::Debug for BudgetAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BudgetAgent")
            .field("name", &self.0.config.name)
            .field("pulse", &*self.0.pulse.borrow())
            .field("serial", &self.0.decision.borrow().serial)
            .finish_non_exhaustive()
    }
}

impl BudgetAgent {
    /// A budget agent that serves, but neither reports nor decides yet.
    #[must_use]
    pub fn new(
        config: BudgetAgentConfig,
        neighbours: Arc<dyn Neighbours>,
        counter: Arc<dyn Counter>,
    ) -> Self {
        let pulse = Pulse {
            station: Station::Searching(0),
            beat: Beat::default(),
        };
        Self(Arc::new(Inner {
            config,
            neighbours,
            counter,
            report: OnceLock::new(),
            decision: watch::Sender::new(Arc::new(Decision::default())),
            pulse: watch::Sender::new(pulse),
            state: Mutex::new(State::default()),
            soon: Notify::new(),
            work: Notify::new(),
            task: Mutex::new(None),
            began: Instant::now(),
        }))
    }

    /// Begins when somebody asks: a node below, a command. A cluster without datasets so exchanges
    /// nothing. `report` says what this node has to report. To be called once.
    pub fn stand_by(&self, report: ReportSource) {
        drop(self.0.report.set(report));
    }

    /// Begins: from now on `report` says what this node has to report. To be called once, within a
    /// runtime.
    pub fn start(&self, report: ReportSource) {
        self.stand_by(report);
        self.begin();
    }

    fn begin(&self) {
        let mut task = self.0.task.lock();
        if task.is_none() && self.0.report.get().is_some() {
            *task = Some(tokio::spawn(climb::climb(Arc::clone(&self.0))));
        }
    }

    /// Ends what [`BudgetAgent::start`] began. The last decision stays.
    pub fn stop(&self) {
        let mut task = self.0.task.lock();
        if let Some(task) = task.take() {
            task.abort();
        }
        self.0.state.lock().allocator = None;
        self.0.stand(Station::Searching(0));
    }

    /// The decision that this node follows: the newest that it has heard. Before the first one it is
    /// empty, with the serial 0.0.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Decision>> {
        self.0.decision.subscribe()
    }

    /// Something has changed that the allocator should hear soon: a job's first read, its end.
    pub fn report_soon(&self) {
        self.0.soon.notify_one();
    }

    /// Has `command` carried out by the allocator, wherever it is. May be cancelled; the command may
    /// have been carried out then.
    ///
    /// # Errors
    /// It was refused, or no allocator can be reached.
    pub async fn command(&self, command: Command) -> Result<Reply, CommandError> {
        self.begin();
        let asked = Asked { hops: 0, command };
        let answered = tokio::time::timeout(COMMAND_TIMEOUT, self.0.carry(asked));
        answered.await.unwrap_or_else(|_elapsed| {
            let why = "no allocator has answered in time: no root can be reached, or it has moved";
            Err(CommandError::unavailable(why))
        })
    }

    /// A stream of `child`, which hangs from this node in `tree`: what the overlay's service passes on.
    ///
    /// # Errors
    /// This node looks for the allocator in another tree: the child is to do so too.
    pub async fn service_steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> Result<(), Failure> {
        self.begin();
        serve::serve(&self.0, &child, tree, up, down).await
    }

    /// A command of a node below this one: what the overlay's service passes on.
    ///
    /// # Errors
    /// It is not one. A refusal is an answer.
    pub async fn service_command(&self, _tree: usize, command: Bytes) -> Result<Bytes, Failure> {
        self.begin();
        let asked = Asked::decode(&command).map_err(|error| {
            Failure::new(FailureKind::Corrupt, format!("not a command: {error}"))
        })?;
        let passing = self.0.carry(Asked {
            hops: asked.hops.saturating_add(1),
            ..asked
        });
        let answered = tokio::time::timeout(COMMAND_TIMEOUT, passing);
        let answered = answered.await.unwrap_or_else(|_elapsed| {
            let name = &self.0.config.name;
            Err(CommandError::unavailable(format!(
                "{name} reaches no allocator"
            )))
        });
        Ok(encode_answer(&answered).into())
    }
}

impl Inner {
    /// Since this budget agent was made: the clock of the allocator.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn stand(&self, station: Station) {
        self.pulse.send_if_modified(|pulse| {
            let changed = pulse.station != station;
            pulse.station = station;
            changed
        });
    }

    /// Carries out what is asked, here or above.
    async fn carry(&self, asked: Asked) -> Result<Reply, CommandError> {
        if asked.hops > HOPS_MAX {
            return Err(CommandError::unavailable("the command went in a circle"));
        }
        let mut pulse = self.pulse.subscribe();
        loop {
            let station = pulse.borrow_and_update().station;
            match station {
                Station::Allocating(_) => {
                    if let Some(answer) = self.carry_out(&asked.command) {
                        return answer;
                    }
                }
                Station::Below(tree) => return self.pass_on(tree, &asked).await,
                Station::Searching(_) => {}
            }
            // Beats come all the time: an allocator that listens is asked again with the next one.
            if pulse.changed().await.is_err() {
                return Err(CommandError::unavailable("this node stops"));
            }
        }
    }

    async fn pass_on(&self, tree: usize, asked: &Asked) -> Result<Reply, CommandError> {
        let command = asked.encode().into();
        let unreachable = |failure: Failure| {
            CommandError::unavailable(format!("no allocator can be reached: {failure}"))
        };
        let answer = self.neighbours.command(tree, command).await;
        let answer = decode_answer(&answer.map_err(unreachable)?);
        answer.unwrap_or_else(|error| {
            let why = format!("the answer of the node above cannot be read: {error}");
            Err(CommandError::unavailable(why))
        })
    }

    /// What the allocator of this node answers; `None` while it listens, and where there is none.
    fn carry_out(&self, command: &Command) -> Option<Result<Reply, CommandError>> {
        let now = self.now();
        let mut state = self.state.lock();
        let counting = state.counting();
        let allocator = state.allocator.as_mut().filter(|one| one.has_decided())?;
        let answer = match command {
            Command::Overview => {
                let overview = allocator.overview(&self.config.name, counting, now);
                Ok(Reply::Overview(Box::new(overview)))
            }
            command => allocator.command(command, now).map(Reply::Done),
        };
        self.publish(allocator);
        drop(state);
        self.work.notify_one();
        Some(answer)
    }

    /// Gives out the decision of this node's allocator.
    fn publish(&self, allocator: &Allocator) {
        let decided = allocator.decision();
        self.decision.send_if_modified(|held| {
            let newer = decided.serial > held.serial;
            if newer {
                *held = Arc::new(decided.clone());
            }
            newer
        });
    }
}
