//! Questions to the whole tree: every node's report, and clearing everywhere.
//!
//! A question climbs to the root of one tree and comes down again, along the connections that there
//! are; answers stream back the way it went, each under the name of its node, and are passed on as
//! they come. So nobody gathers the cluster but whoever asked, and whoever does not answer is found by
//! subtraction: no list of the dead travels. A node that cannot reach the root of any tree asks its
//! own subtree, and names the rest as missing. Where one tree does not reach all, the next is asked.

pub(crate) mod warm;

use crate::model::{Failure, FailureKind, ItemPath};
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, Cleared, NodeId, Question, Reported};
use crate::wire::{FrameKind, NAME_BYTES_MAX, REPORT_BYTES_MAX, Request, WireError};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// Answers on their way through a node.
const ANSWERS_QUEUED: usize = 64;
/// The most time that a peer may ask this node to spend.
const BUDGET_MAX: Duration = Duration::from_secs(300);
/// Most nodes that answer without being in the list.
const GUESTS_MAX: usize = 4096;
/// So long a child may take until it has reported itself, which costs it nothing: nobody watches
/// children for life, and a dead one would hold up everybody until its connection idles out.
const FIRST_REPORT: Duration = Duration::from_secs(3);
/// Each level keeps a 1/16 of its time for handing on what has come.
const LEVEL_SHARE: u32 = 16;
/// How many times as long as a request a clear may take: it waits for requests that are under way.
const CLEAR_TIMES: f64 = 1.5;

/// All nodes' reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterReports {
    /// What the nodes that answered reported, in rank order.
    pub reports: Vec<Bytes>,
    /// Names of the nodes that did not, in rank order.
    pub missing: Vec<String>,
}

/// How clearing everywhere went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterClear {
    /// How many nodes have cleared.
    pub cleared: usize,
    /// How many of them had anything to clear.
    pub effective: usize,
    /// Names of the nodes that could not, and why.
    pub failed: Vec<(String, Failure)>,
    /// Names of the nodes that did not answer; they may or may not have cleared.
    pub missing: Vec<String>,
}

/// What is asked of every node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Reports,
    Clear(ItemPath),
}

impl Operation {
    fn up(&self, tree: usize, budget_ms: u32) -> Request {
        let tree = number(tree);
        match self.clone() {
            Self::Reports => Request::ClusterReports { tree, budget_ms },
            Self::Clear(path) => Request::ClusterClear {
                tree,
                path,
                budget_ms,
            },
        }
    }

    fn down(&self, tree: usize, budget_ms: u32) -> Request {
        let tree = number(tree);
        match self.clone() {
            Self::Reports => Request::ReportsBelow { tree, budget_ms },
            Self::Clear(path) => Request::ClearBelow {
                tree,
                path,
                budget_ms,
            },
        }
    }
}

/// One node's answer.
#[derive(Debug)]
struct Reply {
    node: NodeId,
    body: ReplyBody,
}

#[derive(Debug)]
enum ReplyBody {
    Report(Bytes),
    Cleared(Result<bool, Failure>),
}

/// Asks every node for its report.
pub(crate) async fn reports(shared: &Arc<Shared>) -> ClusterReports {
    let trees = shared.membership.trees();
    let patience = shared.request_timeout / u32::from(number(trees)).max(1);
    let mut replies = BTreeMap::new();
    let first = reachable(shared);
    // A tree that is broken above this node answers for a part of the cluster only.
    for tree in std::iter::once(first).chain((0..trees).filter(|tree| *tree != first)) {
        for (node, reply) in collect(shared, &Operation::Reports, tree, patience).await {
            replies.entry(node).or_insert(reply);
        }
        let listed = |node: &&NodeId| matches!(node, NodeId::Member(_));
        if replies.keys().filter(listed).count() >= shared.membership.members().len() {
            break;
        }
    }
    let mut result = ClusterReports::default();
    for (name, reply) in by_node(shared, replies) {
        match reply {
            Some(ReplyBody::Report(report)) => result.reports.push(report),
            _ => result.missing.push(name),
        }
    }
    result
}

/// Has every node do `operation`, a clear, along one tree after another.
pub(crate) async fn clear(shared: &Arc<Shared>, operation: Operation) -> ClusterClear {
    let mut outcomes: BTreeMap<NodeId, ReplyBody> = BTreeMap::new();
    let trees = shared.membership.trees();
    let patience = clear_timeout(shared) / u32::from(number(trees)).max(1);
    for tree in 0..trees {
        let gone = shared
            .upstream
            .hold(tree)
            .is_some_and(|hold| hold.is_stranded());
        if gone && tree != reachable(shared) {
            continue;
        }
        for (node, reply) in collect(shared, &operation, tree, patience).await {
            match outcomes.entry(node) {
                Entry::Vacant(vacant) => {
                    vacant.insert(reply);
                }
                Entry::Occupied(mut known) => {
                    // A failure in any tree counts, because that node has not cleared everything. An effect
                    // in the first tree counts too, because the later trees then find nothing left to
                    // clear.
                    match (known.get(), &reply) {
                        (ReplyBody::Cleared(Ok(true)), ReplyBody::Cleared(Ok(_))) => {}
                        (ReplyBody::Cleared(Ok(_)), _) => drop(known.insert(reply)),
                        _ => {}
                    }
                }
            }
        }
    }
    let mut result = ClusterClear::default();
    for (name, reply) in by_node(shared, outcomes) {
        match reply {
            Some(ReplyBody::Cleared(Ok(effective))) => {
                result.cleared += 1;
                result.effective += usize::from(effective);
            }
            Some(ReplyBody::Cleared(Err(failure))) => result.failed.push((name, failure)),
            _ => result.missing.push(name),
        }
    }
    result
}

/// The tree to ask along: the first whose root can be reached.
fn reachable(shared: &Shared) -> usize {
    let reached = |tree: &usize| {
        let hold = shared.upstream.hold(*tree);
        hold.is_none_or(|hold| hold.is_connected())
    };
    (0..shared.membership.trees()).find(reached).unwrap_or(0)
}

/// The name and the reply of every member in rank order, then of the guests that replied.
fn by_node(
    shared: &Shared,
    mut replies: BTreeMap<NodeId, ReplyBody>,
) -> Vec<(String, Option<ReplyBody>)> {
    let mut nodes = Vec::with_capacity(shared.membership.members().len());
    for (rank, member) in shared.membership.members().iter().enumerate() {
        let rank = u32::try_from(rank).unwrap_or(u32::MAX);
        let reply = replies.remove(&NodeId::Member(rank));
        nodes.push((member.name.clone(), reply));
    }
    let guests = replies.into_iter();
    nodes
        .extend(guests.map(|(id, reply)| (shared.membership.name_of(&id).to_owned(), Some(reply))));
    nodes
}

/// Every node's answer, as far as they come within `patience`.
async fn collect(
    shared: &Arc<Shared>,
    operation: &Operation,
    tree: usize,
    patience: Duration,
) -> BTreeMap<NodeId, ReplyBody> {
    let deadline = Instant::now() + patience;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let mut collected = BTreeMap::new();
    let asking = async {
        // A parent that takes questions and answers none leaves time for this node's own subtree.
        let up_by = deadline - patience / 4;
        let asked = whole(shared, (operation, tree), (up_by, deadline), &out);
        // What has not come by then is missing.
        let _elapsed = timeout_at(deadline, asked).await;
        drop(out);
    };
    let collecting = async {
        while let Some(Reply { node, body }) = replies.recv().await {
            collected.entry(node).or_insert(body);
        }
    };
    tokio::join!(asking, collecting);
    if let Entry::Vacant(vacant) = collected.entry(shared.membership.id()) {
        // A dead tree does not keep a node from answering for itself.
        let until = Instant::now() + patience / 4;
        let body = own(shared, operation, until).await;
        vacant.insert(finished(shared, operation, body, until).await);
    }
    collected
}

/// This node's own answer, as far as its children depend on it. It is given up at `until`.
async fn own(shared: &Shared, operation: &Operation, until: Instant) -> ReplyBody {
    match operation {
        Operation::Reports => ReplyBody::Report(shared.service.report()),
        Operation::Clear(path) => {
            let clearing = shared.service.clear(path.clone());
            let cleared = timeout_at(until, clearing).await;
            ReplyBody::Cleared(cleared.unwrap_or_else(|_elapsed| Err(too_slow(path))))
        }
    }
}

/// The answer `body` once this node has done all that belongs to it, or its failure at `until`.
async fn finished(
    shared: &Shared,
    operation: &Operation,
    body: ReplyBody,
    until: Instant,
) -> ReplyBody {
    match (operation, &body) {
        (Operation::Clear(path), ReplyBody::Cleared(Ok(_))) => {
            let withdrawing = shared.service.withdraw(path.clone());
            match timeout_at(until, withdrawing).await {
                Ok(()) => body,
                Err(_elapsed) => ReplyBody::Cleared(Err(too_slow(path))),
            }
        }
        _ => body,
    }
}

fn clear_timeout(shared: &Shared) -> Duration {
    shared.request_timeout.mul_f64(CLEAR_TIMES)
}

fn too_slow(path: &ItemPath) -> Failure {
    let detail = format!("clearing {path} takes too long");
    Failure::new(FailureKind::Unavailable, detail)
}

/// Asks the whole tree through the parent, until `up_by`; where there is no parent to ask, or it
/// does not answer, this node's subtree, until `deadline`.
async fn whole(
    shared: &Arc<Shared>,
    (operation, tree): (&Operation, usize),
    (up_by, deadline): (Instant, Instant),
    out: &mpsc::Sender<Reply>,
) {
    let now = Instant::now();
    let soon = now + up_by.saturating_duration_since(now) / 4;
    if let Some(parent) = shared.upstream.peer(tree, soon).await {
        let request = operation.up(tree, budget_ms(up_by));
        let neighbour = Neighbour {
            connection: &parent.connection,
            below: None,
            tree,
        };
        // The parent is watched for life while it is asked.
        let _asking = parent.asking();
        match timeout_at(up_by, ask(shared, &neighbour, request, out)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::warn!(parent = %parent.label, %error, "no answer for the cluster");
            }
            Err(_elapsed) => {
                tracing::warn!(parent = %parent.label, "no answer for the cluster in time");
            }
        }
    }
    below(shared, (operation, tree), deadline, out).await;
}

/// This node first, as far as its children depend on it, then all its children at once.
async fn below(
    shared: &Arc<Shared>,
    (operation, tree): (&Operation, usize),
    deadline: Instant,
    out: &mpsc::Sender<Reply>,
) {
    // At most half of the time: a node that hangs must not keep its children from being asked.
    let now = Instant::now();
    let left = deadline.saturating_duration_since(now);
    let body = own(shared, operation, now + left / 2).await;
    let answering = async {
        let until = deadline - left / LEVEL_SHARE;
        let body = finished(shared, operation, body, until).await;
        let node = shared.membership.id();
        // An asker that is gone needs no answer.
        drop(out.send(Reply { node, body }).await);
    };
    let request = &operation.down(tree, budget_ms(deadline));
    let children = shared.children.in_tree(tree);
    let mut asking: FuturesUnordered<_> = children
        .iter()
        .map(async |(id, connection)| {
            let neighbour = Neighbour {
                connection,
                below: Some(id),
                tree,
            };
            if let Err(error) = ask(shared, &neighbour, request.clone(), out).await {
                let child = shared.membership.name_of(id);
                tracing::debug!(child, %error, "a child did not answer for its subtree");
            }
        })
        .collect();
    let children = async { while asking.next().await.is_some() {} };
    tokio::join!(answering, children);
}

/// Whom to ask, and for whom it may answer.
struct Neighbour<'a> {
    connection: &'a Connection,
    /// For this node and those below it; `None`: for all.
    below: Option<&'a NodeId>,
    tree: usize,
}

/// Asks one neighbour and passes on its answers.
async fn ask(
    shared: &Shared,
    neighbour: &Neighbour<'_>,
    request: Request,
    out: &mpsc::Sender<Reply>,
) -> Result<(), StreamError> {
    let patience = match request {
        Request::ClusterClear { .. } | Request::ClearBelow { .. } => clear_timeout(shared),
        _ => shared.request_timeout,
    };
    let opening = neighbour.connection.open_bi();
    let (send, recv) = opening.await.map_err(StreamError::Lost)?;
    let mut reader = FrameReader::new(recv, patience);
    let mut writer = FrameWriter::new(send, patience);
    let question = Question {
        attempt: 0,
        request,
    };
    writer.message(FrameKind::Request, &question).await?;
    writer.finish();
    let mut first = match question.request {
        Request::ReportsBelow { .. } => Some(FIRST_REPORT),
        _ => None,
    };
    // One answer a node, guests among them, and the end.
    for _ in 0..=2 * shared.membership.members().len() + GUESTS_MAX {
        let frame = match first.take() {
            Some(first) => timeout(first, reader.frame())
                .await
                .map_err(|_elapsed| StreamError::Silent(first))?,
            None => reader.frame().await,
        };
        let (kind, body) = frame?.ok_or(StreamError::Truncated)?;
        let Some(reply) = decode(kind, &body)? else {
            return reader.finish();
        };
        if let Some(top) = neighbour.below
            && !shared
                .membership
                .is_within(neighbour.tree, &reply.node, top)
        {
            return Err(WireError::Impossible("an answer for a node elsewhere").into());
        }
        if out.send(reply).await.is_err() {
            return Err(StreamError::Cancelled);
        }
    }
    Err(WireError::Impossible("more answers than nodes").into())
}

/// The answer in a frame; `None` for the end.
fn decode(kind: FrameKind, body: &[u8]) -> Result<Option<Reply>, StreamError> {
    let reply = match kind {
        FrameKind::Report => {
            let Reported { node, report } = message::decode("report", body)?;
            let body = ReplyBody::Report(report);
            Reply { node, body }
        }
        FrameKind::Cleared => {
            let Cleared { node, result } = message::decode("acknowledgement", body)?;
            let body = ReplyBody::Cleared(result);
            Reply { node, body }
        }
        FrameKind::Done => return Ok(None),
        got => {
            let wanted = "answers of nodes";
            return Err(WireError::Unexpected { got, wanted }.into());
        }
    };
    match &reply.node {
        NodeId::Guest(name) if name.len() > NAME_BYTES_MAX => {
            Err(WireError::Impossible("a name that no node can have").into())
        }
        _ => Ok(Some(reply)),
    }
}

/// Answers a neighbour's question to the tree.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    request: Request,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let (operation, tree, up, budget) = match request {
        Request::ClusterReports { tree, budget_ms } => (Operation::Reports, tree, true, budget_ms),
        Request::ReportsBelow { tree, budget_ms } => (Operation::Reports, tree, false, budget_ms),
        Request::ClusterClear {
            tree,
            path,
            budget_ms,
        } => (Operation::Clear(path), tree, true, budget_ms),
        Request::ClearBelow {
            tree,
            path,
            budget_ms,
        } => (Operation::Clear(path), tree, false, budget_ms),
        _ => return Err(WireError::Impossible("not a question to the tree").into()),
    };
    let what = (&operation, usize::from(tree));
    let budget = Duration::from_millis(u64::from(budget)).min(BUDGET_MAX);
    let deadline = Instant::now() + budget - budget / LEVEL_SHARE;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let asking = async {
        let asked = async {
            if up {
                whole(shared, what, (deadline, deadline), &out).await;
            } else {
                below(shared, what, deadline, &out).await;
            }
        };
        // What has not come by then is missing at whoever asked.
        let _elapsed = timeout_at(deadline, asked).await;
        drop(out);
        Ok(())
    };
    let passing = async {
        while let Some(reply) = replies.recv().await {
            pass(writer, reply).await?;
        }
        writer.frame(FrameKind::Done, Bytes::new()).await.map(drop)
    };
    tokio::try_join!(asking, passing).map(drop)
}

async fn pass(writer: &mut FrameWriter, Reply { node, body }: Reply) -> Result<(), StreamError> {
    match body {
        ReplyBody::Report(report) if report.len() > REPORT_BYTES_MAX => {
            tracing::warn!(?node, bytes = report.len(), "a report is too long to send");
        }
        ReplyBody::Report(report) => {
            let reported = Reported { node, report };
            writer.message(FrameKind::Report, &reported).await?;
        }
        ReplyBody::Cleared(result) => {
            let cleared = Cleared { node, result };
            writer.message(FrameKind::Cleared, &cleared).await?;
        }
    }
    Ok(())
}

fn number(tree: usize) -> u8 {
    u8::try_from(tree).unwrap_or(u8::MAX)
}

fn budget_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}
