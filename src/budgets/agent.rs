//! The budget agent of a node: it forwards reports up and decisions down, and runs the allocator when it
//! is this node's turn.
//!
//! The overlay heals each tree, but a tree whose root is dead cannot reach an allocator. So an agent
//! first looks for an allocator through its ancestors in tree 0; if no heartbeat arrives that way, in
//! tree 1, and so on. If it reaches a tree whose root is this node, it becomes the allocator. So the
//! allocator runs on the first live root, and continues from the newest decision that any node holds.
//! See [`crate::budgets`].
//!
//! Life cycle: [`BudgetAgent::new`] when the overlay creates its service, which forwards `Service::steer`
//! and `Service::command` to [`BudgetAgent::service_steer`] and [`BudgetAgent::service_command`];
//! [`BudgetAgent::start`] when the node can report; [`BudgetAgent::stop`] before the overlay stops.

use super::counter::Counter;
use crate::model::{
    Command, CommandError, DatasetSpec, Decision, ForwardedCommand, Heartbeat, NodeReport, Reply,
    Resources, decode, encode,
};
use allocate::allocate;
use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, Steering};
use follow::{connect, follow};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use state::State;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

mod allocate;
mod follow;
mod frame;
mod state;
#[cfg(test)]
mod tests;

/// The time limit of a command. It includes the time for which a new allocator listens before it decides.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of nodes that forward a command: deeper than any tree. Ends a command in a circle.
const HOPS_MAX: u8 = 64;
/// How long each tree is tried: ancestors may be about to change to it themselves.
const TREE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the first tree is tried when the node starts: the nodes of a launch do not start all at once.
const FIRST_TREE_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(250);

/// The budget agent's connections to other nodes, which the overlay's `Upstream` provides.
pub trait Neighbours: Send + Sync + 'static {
    /// Returns the number of trees, at least 1.
    fn trees(&self) -> usize;

    /// Returns whether this node has no parent in `tree`.
    fn is_root_of(&self, tree: usize) -> bool;

    /// Opens a stream to this node's nearest live ancestor in `tree`.
    ///
    /// # Errors
    /// No ancestor can be reached.
    fn steer(&self, tree: usize) -> BoxFuture<'static, Result<Steering, Failure>>;

    /// Sends a command to that ancestor, and returns the reply.
    ///
    /// # Errors
    /// No ancestor can be reached, or the reply does not arrive.
    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>>;
}

/// Produces this node's report. It must be cheap, because it is called every second.
pub type ReportSource = Arc<dyn Fn() -> NodeReport + Send + Sync>;

/// The configuration of a budget agent.
#[derive(Clone, Debug)]
pub struct BudgetAgentConfig {
    /// This node's name, for messages.
    pub name: String,
    /// Identifies the process: a different number after each start.
    pub boot: u64,
    /// The datasets to declare if no node holds a decision.
    pub datasets: Vec<DatasetSpec>,
    /// The name of the policy if no node holds a decision.
    pub policy: String,
    /// What an allocator on this node divides.
    pub resources: Resources,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct BudgetAgent(Arc<Shared>);

struct Shared {
    config: BudgetAgentConfig,
    /// The policy and the resources for an allocator that begins on this node. Locked for a copy only.
    configured: Mutex<(String, Resources)>,
    neighbours: Arc<dyn Neighbours>,
    counter: Arc<dyn Counter>,
    /// Set by [`BudgetAgent::start`]: the report contains the serial of this agent's decision.
    report: OnceLock<ReportSource>,
    /// The decision that this node follows.
    decision: watch::Sender<Arc<Decision>>,
    status: watch::Sender<Status>,
    /// Guards reports and counts. Never held across an await.
    state: Mutex<State>,
    /// Wakes the task that reports, before the next regular report.
    report_soon: Notify,
    /// Wakes this node's allocator.
    allocator_work: Notify,
    task: Mutex<Option<JoinHandle<()>>>,
    began: Instant,
}

/// The role of this node, and the last heartbeat that it received or sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Status {
    /// The tree in which it has this role. A node serves only children that use the same tree, so the path
    /// to the allocator leads to that tree's root and never in a circle.
    tree: usize,
    role: Role,
    heartbeat: Heartbeat,
}

/// The role of this node in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Role {
    /// It is looking for an allocator.
    #[default]
    Searching,
    /// It receives an allocator's heartbeats.
    Following,
    /// It is the allocator, as the root of the tree.
    Allocating,
}

impl BudgetAgent {
    /// Creates an agent that serves other nodes, but neither reports nor decides yet.
    #[must_use]
    pub fn new(
        config: BudgetAgentConfig,
        neighbours: Arc<dyn Neighbours>,
        counter: Arc<dyn Counter>,
    ) -> Self {
        Self(Arc::new(Shared {
            configured: Mutex::new((config.policy.clone(), config.resources)),
            config,
            neighbours,
            counter,
            report: OnceLock::new(),
            decision: watch::Sender::new(Arc::new(Decision::default())),
            status: watch::Sender::new(Status::default()),
            state: Mutex::new(State::default()),
            report_soon: Notify::new(),
            allocator_work: Notify::new(),
            task: Mutex::new(None),
            began: Instant::now(),
        }))
    }

    /// Sets the source of reports, and starts when a child or a command needs this agent. So a cluster
    /// without datasets exchanges nothing. Call once.
    pub fn stand_by(&self, report: ReportSource) {
        drop(self.0.report.set(report));
    }

    /// Sets the source of reports and starts. Call once, within a runtime.
    pub fn start(&self, report: ReportSource) {
        self.stand_by(report);
        self.begin();
    }

    fn begin(&self) {
        let mut task = self.0.task.lock();
        if task.is_none() && self.0.report.get().is_some() {
            *task = Some(tokio::spawn(run(Arc::clone(&self.0))));
        }
    }

    /// Stops reporting and allocating. This node keeps its last decision.
    pub fn stop(&self) {
        // Aborting drops the guard of a running allocator, which removes it from the state.
        if let Some(task) = self.0.task.lock().take() {
            task.abort();
        }
        self.0.state.lock().allocator = None;
        self.0.search_in(0);
    }

    /// Sets the policy and the resources for an allocator that begins on this node later. An allocator that runs is changed
    /// by commands.
    pub fn configure(&self, policy: &str, resources: Resources) {
        *self.0.configured.lock() = (policy.to_owned(), resources);
    }

    /// Returns whether this agent exchanges reports and decisions with other nodes.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.task.lock().is_some()
    }

    /// Follows `decision` if it is newer than this node's.
    pub fn follow(&self, decision: &Decision) {
        self.0.publish(decision);
    }

    /// Returns the decision that this node follows: the newest that it has received. It is empty with
    /// the serial 0.0 before the first one.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<Decision>> {
        self.0.decision.subscribe()
    }

    /// Reports before the next regular report, because the allocator should soon know of a change such
    /// as a job's first read or its end.
    pub fn report_soon(&self) {
        self.0.report_soon.notify_one();
    }

    /// Sends `command` to the allocator, wherever it runs, and returns its reply. Cancellation does not
    /// undo the command.
    ///
    /// # Errors
    /// The allocator refused the command, or cannot be reached.
    pub async fn command(&self, command: Command) -> Result<Reply, CommandError> {
        self.begin();
        let late = "no allocator has answered in time: no root can be reached, or it has moved";
        let forwarded = ForwardedCommand { hops: 0, command };
        self.0.forward_in_time(forwarded, late).await
    }

    /// Forwards a command from a child and returns the encoded reply. The overlay's service calls this.
    ///
    /// # Errors
    /// It is no command. A refusal is a reply.
    pub async fn service_command(&self, _tree: usize, command: Bytes) -> Result<Bytes, Failure> {
        self.begin();
        let mut command: ForwardedCommand = decode(&command).map_err(|error| {
            Failure::new(FailureKind::Corrupt, format!("not a command: {error}"))
        })?;
        command.hops = command.hops.saturating_add(1);
        let late = format!("{} reaches no allocator", self.0.config.name);
        let reply = self.0.forward_in_time(command, late).await;
        Ok(encode(&reply).into())
    }
}

/// Follows an allocator or is the allocator, forever: in the first tree that has a live allocator or whose
/// root this node is. Tries all trees again and again while no other node can be reached.
async fn run(shared: Arc<Shared>) {
    let mut tree_timeout = FIRST_TREE_TIMEOUT;
    loop {
        for tree in 0..shared.neighbours.trees() {
            shared.search_in(tree);
            let connecting = async {
                loop {
                    if let Some(link) = connect(&shared, tree).await {
                        return link;
                    }
                    sleep(RETRY_DELAY).await;
                }
            };
            let mut link = if shared.neighbours.is_root_of(tree) {
                Some(allocate(&shared, tree).await)
            } else {
                timeout(tree_timeout, connecting).await.ok()
            };
            tree_timeout = TREE_TIMEOUT;
            let found = link.is_some();
            while let Some(current) = link {
                link = follow(&shared, current).await;
            }
            // A lost allocator is looked for in the first tree.
            if found {
                break;
            }
        }
    }
}

impl Shared {
    /// The time since this agent was created, which is the clock of its allocator.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn search_in(&self, tree: usize) {
        self.status.send_if_modified(|status| {
            // Watchers wake only on a change, because searching sets the same role repeatedly.
            let before = *status;
            (status.tree, status.role) = (tree, Role::Searching);
            *status != before
        });
    }

    /// Like [`forward`](Self::forward), within [`COMMAND_TIMEOUT`]. `late`: the failure after that.
    async fn forward_in_time(
        &self,
        forwarded: ForwardedCommand,
        late: impl Into<String>,
    ) -> Result<Reply, CommandError> {
        let replied = timeout(COMMAND_TIMEOUT, self.forward(forwarded)).await;
        replied.unwrap_or_else(|_elapsed| Err(CommandError::unavailable(late)))
    }

    /// Carries out a command, on this node or on the allocator's.
    async fn forward(&self, forwarded: ForwardedCommand) -> Result<Reply, CommandError> {
        if forwarded.hops > HOPS_MAX {
            return Err(CommandError::unavailable("the command went in a circle"));
        }
        let mut status = self.status.subscribe();
        loop {
            let Status { role, tree, .. } = *status.borrow_and_update();
            match role {
                Role::Allocating => {
                    if let Some(reply) = self.carry_out(&forwarded.command) {
                        return reply;
                    }
                }
                Role::Following => {
                    let encoded = encode(&forwarded).into();
                    let replied = self.neighbours.command(tree, encoded).await;
                    let reply = replied.map_err(|failure| {
                        CommandError::unavailable(format!("no allocator can be reached: {failure}"))
                    })?;
                    return decode(&reply).unwrap_or_else(|error| {
                        let why = format!("the answer of the node above cannot be read: {error}");
                        Err(CommandError::unavailable(why))
                    });
                }
                Role::Searching => {}
            }
            // Heartbeats change the status, so an allocator that still listens is tried again with the next.
            if status.changed().await.is_err() {
                return Err(CommandError::unavailable("this node stops"));
            }
        }
    }

    /// Carries out a command on this node's allocator. Returns `None` if there is none, or if it still
    /// listens.
    fn carry_out(&self, command: &Command) -> Option<Result<Reply, CommandError>> {
        let now = self.now();
        let mut state = self.state.lock();
        let counts = state.counts.values();
        let counting = counts.map(|progress| progress.lock().clone()).collect();
        let allocator = state.allocator.as_mut()?;
        // Before its first decision it listens.
        allocator.decided?;
        let reply = match command {
            Command::Overview => {
                let overview = allocator.overview(&self.config.name, counting, now);
                Ok(Reply::Overview(Box::new(overview)))
            }
            Command::ReportBatches(report) => {
                allocator.report_batches(report, now).map(Reply::Done)
            }
            command => allocator.command(command, now).map(Reply::Done),
        };
        self.publish(allocator.decision());
        drop(state);
        // The command may have declared a dataset that has to be counted.
        self.allocator_work.notify_one();
        Some(reply)
    }

    /// Follows `decision` if it is newer than this node's. Returns whether it is.
    fn publish(&self, decision: &Decision) -> bool {
        self.decision.send_if_modified(|held| {
            // Decisions arrive by several paths and in any order; an older one must not replace a
            // newer.
            let newer = decision.serial > held.serial;
            if newer {
                *held = Arc::new(decision.clone());
            }
            newer
        })
    }
}
