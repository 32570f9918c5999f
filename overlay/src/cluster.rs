//! Requests to the whole cluster: every node's report, and clearing everywhere.
//!
//! A request goes up to the root of one tree and from there down to all nodes, along the existing connections.
//! Answers stream back the same way, each under the name of its node, and are forwarded as they arrive. So only
//! the node that asked holds all answers. Nodes that did not answer are found by subtraction; no list of dead
//! nodes travels. A node that cannot reach the root of any tree asks its own subtree and reports the rest as
//! missing. If one tree does not reach all nodes, the next one is asked.

pub(crate) mod warm;

use crate::exchange::open_stream;
use crate::model::{Failure, FailureKind, ItemPath};
use crate::shared::Shared;
use crate::transport::stream::{FrameWriter, StreamError};
use crate::wire::message::{self, Cleared, NodeId, Reported};
use crate::wire::{FrameKind, NAME_BYTES_MAX, REPORT_BYTES_MAX, Request, WireError, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// Answers queued in a node on their way.
const ANSWERS_QUEUED: usize = 64;
/// Longest time that a peer may ask this node to spend.
const BUDGET_MAX: Duration = Duration::from_secs(300);
/// Most guests that answer.
const GUESTS_MAX: usize = 4096;
/// How long a child may take for its own report, which costs it nothing. Children are not watched for life, and
/// without this a dead one would delay all answers until its connection idles out.
const FIRST_REPORT_TIMEOUT: Duration = Duration::from_secs(3);
/// Each level reserves 1/16 of its time for forwarding the answers.
const LEVEL_SHARE: u32 = 16;
/// The time for a clear, as a multiple of the request timeout, because a clear waits for requests in flight.
const CLEAR_TIMEOUT_FACTOR: f64 = 1.5;

/// The reports of all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterReports {
    /// Reports of the nodes that answered, in rank order.
    pub reports: Vec<Bytes>,
    /// Names of the nodes that did not answer, in rank order.
    pub missing: Vec<String>,
}

/// The outcome of clearing everywhere.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterClear {
    /// Number of nodes that have cleared.
    pub cleared: usize,
    /// Number of these that had anything to clear.
    pub effective: usize,
    /// Names of the nodes that could not clear, and the reasons.
    pub failed: Vec<(String, Failure)>,
    /// Names of the nodes that did not answer. They may or may not have cleared.
    pub missing: Vec<String>,
}

/// An operation for every node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Reports,
    Clear(ItemPath),
}

/// One node's answer.
#[derive(Debug)]
enum Reply {
    Report(Bytes),
    Cleared(Result<bool, Failure>),
}

/// The answers of nodes on their way.
type Replies = mpsc::Sender<(NodeId, Reply)>;

/// Requests the report of every node.
pub(crate) async fn reports(shared: &Shared) -> ClusterReports {
    let trees = shared.membership.trees();
    let timeout = shared.request_timeout / u32::from(tree_number(trees)).max(1);
    let mut replies = BTreeMap::new();
    let first = reachable_tree(shared);
    // A tree that is broken above this node reaches a part of the cluster only.
    for tree in std::iter::once(first).chain((0..trees).filter(|tree| *tree != first)) {
        for (node, reply) in collect(shared, Operation::Reports, tree, timeout).await {
            replies.entry(node).or_insert(reply);
        }
        // Guests are not in the list, so their number is unknown.
        let listed = |node: &&NodeId| matches!(node, NodeId::Member(_));
        if replies.keys().filter(listed).count() >= shared.membership.members().len() {
            break;
        }
    }
    let mut result = ClusterReports::default();
    for (name, reply) in by_node(shared, replies) {
        match reply {
            Some(Reply::Report(report)) => result.reports.push(report),
            _ => result.missing.push(name),
        }
    }
    result
}

/// Has every node clear `path`, along one tree after another.
pub(crate) async fn clear(shared: &Shared, path: ItemPath) -> ClusterClear {
    let mut outcomes: BTreeMap<NodeId, Reply> = BTreeMap::new();
    let trees = shared.membership.trees();
    let timeout = clear_timeout(shared) / u32::from(tree_number(trees)).max(1);
    for tree in 0..trees {
        let link = shared.upstream.parent_link(tree);
        let stranded = link.is_some_and(|link| link.is_stranded());
        if stranded && tree != reachable_tree(shared) {
            continue;
        }
        let operation = Operation::Clear(path.clone());
        for (node, reply) in collect(shared, operation, tree, timeout).await {
            match outcomes.entry(node) {
                Entry::Vacant(vacant) => drop(vacant.insert(reply)),
                // A failure in any tree counts, because that node has not cleared everything. An effect in the
                // first tree counts too, because the later trees then find nothing left to clear.
                Entry::Occupied(mut known) => match (known.get(), &reply) {
                    (Reply::Cleared(Ok(true)), Reply::Cleared(Ok(_))) => {}
                    (Reply::Cleared(Ok(_)), _) => drop(known.insert(reply)),
                    _ => {}
                },
            }
        }
    }
    let mut result = ClusterClear::default();
    for (name, reply) in by_node(shared, outcomes) {
        match reply {
            Some(Reply::Cleared(Ok(effective))) => {
                result.cleared += 1;
                result.effective += usize::from(effective);
            }
            Some(Reply::Cleared(Err(failure))) => result.failed.push((name, failure)),
            _ => result.missing.push(name),
        }
    }
    result
}

/// The first tree whose root can be reached.
fn reachable_tree(shared: &Shared) -> usize {
    let reachable = |tree: &usize| {
        let link = shared.upstream.parent_link(*tree);
        link.is_none_or(|link| link.is_connected())
    };
    (0..shared.membership.trees()).find(reachable).unwrap_or(0)
}

/// Returns the name and the reply of every member in rank order, then of the guests that replied.
fn by_node(shared: &Shared, mut replies: BTreeMap<NodeId, Reply>) -> Vec<(String, Option<Reply>)> {
    let members = (0..).zip(shared.membership.members());
    let members = members.map(|(rank, member)| {
        let reply = replies.remove(&NodeId::Member(rank));
        (member.name.clone(), reply)
    });
    let mut nodes: Vec<_> = members.collect();
    nodes.extend(replies.into_iter().map(|(guest, reply)| {
        let name = shared.membership.name_of(&guest).to_owned();
        (name, Some(reply))
    }));
    nodes
}

fn clear_timeout(shared: &Shared) -> Duration {
    shared.request_timeout.mul_f64(CLEAR_TIMEOUT_FACTOR)
}

fn too_slow(path: &ItemPath) -> Failure {
    let detail = format!("clearing {path} takes too long");
    Failure::new(FailureKind::Unavailable, detail)
}

/// One operation along one tree.
struct Broadcast<'a> {
    shared: &'a Shared,
    operation: Operation,
    tree: usize,
}

/// Returns the answers of all nodes to `operation` along `tree` that come within `timeout`.
async fn collect(
    shared: &Shared,
    operation: Operation,
    tree: usize,
    timeout: Duration,
) -> BTreeMap<NodeId, Reply> {
    let broadcast = Broadcast {
        shared,
        operation,
        tree,
    };
    let deadline = Instant::now() + timeout;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let mut collected = BTreeMap::new();
    let asking = async {
        // A parent that answers nothing leaves a quarter of the time to this node's own subtree.
        let asking = broadcast.ask_all(deadline - timeout / 4, deadline, &out);
        // Answers that have not come by then are missing.
        let _elapsed = timeout_at(deadline, asking).await;
        drop(out);
    };
    let collecting = async {
        while let Some((node, reply)) = replies.recv().await {
            collected.entry(node).or_insert(reply);
        }
    };
    tokio::join!(asking, collecting);
    if let Entry::Vacant(vacant) = collected.entry(shared.membership.id()) {
        // A dead tree does not keep a node from answering for itself.
        let until = Instant::now() + timeout / 4;
        let reply = broadcast.carry_out(until).await;
        vacant.insert(broadcast.complete(reply, until).await);
    }
    collected
}

impl Broadcast<'_> {
    /// Carries out the part of the operation that the children depend on. Gives up at `until`.
    async fn carry_out(&self, until: Instant) -> Reply {
        let service = &self.shared.service;
        match &self.operation {
            Operation::Reports => Reply::Report(service.report()),
            Operation::Clear(path) => {
                let cleared = timeout_at(until, service.clear(path.clone())).await;
                Reply::Cleared(cleared.unwrap_or_else(|_elapsed| Err(too_slow(path))))
            }
        }
    }

    /// Carries out the rest of the operation. Returns `reply`, or a failure at `until`.
    async fn complete(&self, reply: Reply, until: Instant) -> Reply {
        let (Operation::Clear(path), Reply::Cleared(Ok(_))) = (&self.operation, &reply) else {
            return reply;
        };
        let withdrawing = self.shared.service.withdraw(path.clone());
        match timeout_at(until, withdrawing).await {
            Ok(()) => reply,
            Err(_elapsed) => Reply::Cleared(Err(too_slow(path))),
        }
    }

    /// Asks all nodes through the parent, until `parent_deadline`. Without a parent, or if it does not answer,
    /// asks this node's subtree, until `deadline`.
    async fn ask_all(&self, parent_deadline: Instant, deadline: Instant, out: &Replies) {
        let now = Instant::now();
        let soon = now + parent_deadline.saturating_duration_since(now) / 4;
        if let Some(parent) = self.shared.upstream.parent(self.tree, soon).await {
            let (tree, budget_ms) = (tree_number(self.tree), budget_ms(parent_deadline));
            let request = match self.operation.clone() {
                Operation::Reports => Request::ClusterReports { tree, budget_ms },
                Operation::Clear(path) => Request::ClusterClear {
                    tree,
                    path,
                    budget_ms,
                },
            };
            // Counts as a request in flight, so that the parent is watched for life.
            let _in_flight = parent.begin_request();
            let asking = self.ask(&parent.connection, None, &request, out);
            match timeout_at(parent_deadline, asking).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::warn!(parent = %parent.label, %error, "no answer for the cluster");
                }
                Err(_elapsed) => {
                    tracing::warn!(parent = %parent.label, "no answer for the cluster in time");
                }
            }
        }
        self.ask_subtree(deadline, out).await;
    }

    /// Carries out the operation here first, and then asks all children at once.
    async fn ask_subtree(&self, deadline: Instant, out: &Replies) {
        let membership = &self.shared.membership;
        // At most half of the time: a node that hangs must not keep its children from being asked.
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let reply = self.carry_out(now + left / 2).await;
        let answering = async {
            let reply = self.complete(reply, deadline - left / LEVEL_SHARE).await;
            // A requester that is gone needs no answer.
            drop(out.send((membership.id(), reply)).await);
        };
        let (tree, budget_ms) = (tree_number(self.tree), budget_ms(deadline));
        let request = match self.operation.clone() {
            Operation::Reports => Request::ReportsBelow { tree, budget_ms },
            Operation::Clear(path) => Request::ClearBelow {
                tree,
                path,
                budget_ms,
            },
        };
        let children = self.shared.children.in_tree(self.tree);
        let mut asking: FuturesUnordered<_> = children
            .iter()
            .map(async |(id, connection)| {
                let asked = self.ask(connection, Some(id), &request, out).await;
                if let Err(error) = asked {
                    let child = membership.name_of(id);
                    tracing::debug!(child, %error, "a child did not answer for its subtree");
                }
            })
            .collect();
        let children = async { while asking.next().await.is_some() {} };
        tokio::join!(answering, children);
    }

    /// Sends `request` over `connection` and forwards the answers: those of `child` and its subtree only or, from
    /// the parent (`None`), of all nodes.
    async fn ask(
        &self,
        connection: &Connection,
        child: Option<&NodeId>,
        request: &Request,
        out: &Replies,
    ) -> Result<(), StreamError> {
        let membership = &self.shared.membership;
        let answer_timeout = match &self.operation {
            Operation::Clear(_) => clear_timeout(self.shared),
            Operation::Reports => self.shared.request_timeout,
        };
        let (mut reader, writer) = open_stream(connection, 0, request, answer_timeout).await?;
        writer.finish();
        let reports_below = matches!(request, Request::ReportsBelow { .. });
        let mut first_timeout = reports_below.then_some(FIRST_REPORT_TIMEOUT);
        // One answer for each node and guest, and the end.
        for _ in 0..=2 * membership.members().len() + GUESTS_MAX {
            let (kind, body) = match first_timeout.take() {
                // Limits the whole frame; the reader's own timeout begins again with each byte.
                Some(first) => timeout(first, reader.frame())
                    .await
                    .map_err(|_elapsed| StreamError::Silent(first))??,
                None => reader.frame().await?,
            };
            let Some((node, reply)) = decode(kind, &body)? else {
                return reader.finish();
            };
            // A child may answer for its own subtree only.
            let within = child.is_none_or(|top| membership.is_within(self.tree, &node, top));
            ensure(within, "an answer for a node elsewhere")?;
            let sent = out.send((node, reply)).await;
            sent.map_err(|_gone| StreamError::Cancelled)?;
        }
        Err(WireError::Impossible("more answers than nodes").into())
    }
}

/// Decodes one answer; `None` for the end.
fn decode(kind: FrameKind, body: &[u8]) -> Result<Option<(NodeId, Reply)>, WireError> {
    let (node, reply) = match kind {
        FrameKind::Report => {
            let Reported { node, report } = message::decode("report", body)?;
            (node, Reply::Report(report))
        }
        FrameKind::Cleared => {
            let Cleared { node, result } = message::decode("acknowledgement", body)?;
            (node, Reply::Cleared(result))
        }
        FrameKind::Done => return Ok(None),
        got => return Err(WireError::unexpected(got, "answers of nodes")),
    };
    let too_long = matches!(&node, NodeId::Guest(name) if name.len() > NAME_BYTES_MAX);
    ensure(!too_long, "a name that no node can have")?;
    Ok(Some((node, reply)))
}

/// Answers a peer's request to the whole cluster or to this node's subtree.
pub(crate) async fn answer(
    shared: &Shared,
    request: Request,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let whole_cluster = matches!(
        request,
        Request::ClusterReports { .. } | Request::ClusterClear { .. }
    );
    let (operation, tree, budget_ms) = match request {
        Request::ClusterReports { tree, budget_ms } | Request::ReportsBelow { tree, budget_ms } => {
            (Operation::Reports, tree, budget_ms)
        }
        Request::ClusterClear {
            tree,
            path,
            budget_ms,
        }
        | Request::ClearBelow {
            tree,
            path,
            budget_ms,
        } => (Operation::Clear(path), tree, budget_ms),
        _ => return Err(WireError::Impossible("not a question to the tree").into()),
    };
    let broadcast = Broadcast {
        shared,
        operation,
        tree: usize::from(tree),
    };
    let budget = Duration::from_millis(u64::from(budget_ms)).min(BUDGET_MAX);
    // The rest of the budget is for the way back.
    let deadline = Instant::now() + budget - budget / LEVEL_SHARE;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let asking = async {
        let asking = async {
            match whole_cluster {
                true => broadcast.ask_all(deadline, deadline, &out).await,
                false => broadcast.ask_subtree(deadline, &out).await,
            }
        };
        // Answers that have not come by then are missing at the requester.
        let _elapsed = timeout_at(deadline, asking).await;
        drop(out);
        Ok(())
    };
    let forwarding = async {
        while let Some((node, reply)) = replies.recv().await {
            match reply {
                Reply::Report(report) if report.len() > REPORT_BYTES_MAX => {
                    tracing::warn!(?node, bytes = report.len(), "a report is too long to send");
                }
                Reply::Report(report) => {
                    let reported = Reported { node, report };
                    writer.message(FrameKind::Report, &reported).await?;
                }
                Reply::Cleared(result) => {
                    let cleared = Cleared { node, result };
                    writer.message(FrameKind::Cleared, &cleared).await?;
                }
            }
        }
        writer.frame(FrameKind::Done, Bytes::new()).await.map(drop)
    };
    tokio::try_join!(asking, forwarding).map(drop)
}

/// Encodes the number of a tree, or of trees.
fn tree_number(tree: usize) -> u8 {
    u8::try_from(tree).unwrap_or(u8::MAX)
}

/// The time until `deadline`, as it travels.
fn budget_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}
