//! Questions to the whole tree: every node's report, and clearing everywhere.
//!
//! A question climbs to the root and comes down again; answers stream back the way it went, each
//! under the rank of its node, and are passed on as they come. So nobody gathers the cluster but
//! whoever asked, and whoever does not answer is found by subtraction: no list of the dead travels.
//! A node that cannot reach its parent asks its own subtree, and names the rest as missing.

use crate::item::{Failure, FailureKind, ItemPath};
use crate::overlay::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, Cleared};
use crate::wire::{FrameKind, REPORT_BYTES_MAX, Request, WireError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Answers on their way through a node.
const ANSWERS_QUEUED: usize = 64;
/// The most time that a peer may ask this node to spend.
const BUDGET_MAX: Duration = Duration::from_secs(300);
/// Each level keeps a 1/16 of its time for handing on what has come.
const LEVEL_SHARE: u32 = 16;

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
    fn up(&self, budget_ms: u32) -> Request {
        match self.clone() {
            Self::Reports => Request::ClusterReports { budget_ms },
            Self::Clear(path) => Request::ClusterClear { path, budget_ms },
        }
    }

    fn down(&self, budget_ms: u32) -> Request {
        match self.clone() {
            Self::Reports => Request::ReportsBelow { budget_ms },
            Self::Clear(path) => Request::ClearBelow { path, budget_ms },
        }
    }
}

/// One node's answer.
#[derive(Debug)]
struct Reply {
    rank: usize,
    body: ReplyBody,
}

#[derive(Debug)]
enum ReplyBody {
    Report(Bytes),
    Cleared(Result<(), Failure>),
}

/// Asks every node for its report.
pub(crate) async fn reports(shared: &Arc<Shared>) -> ClusterReports {
    let mut result = ClusterReports::default();
    let mut replies = collect(shared, &Operation::Reports).await;
    for (rank, member) in shared.members.iter().enumerate() {
        match replies.remove(&rank) {
            Some(ReplyBody::Report(report)) => result.reports.push(report),
            _ => result.missing.push(member.name.clone()),
        }
    }
    result
}

/// Has every node do `operation`, a clear.
pub(crate) async fn clear(shared: &Arc<Shared>, operation: Operation) -> ClusterClear {
    let mut result = ClusterClear::default();
    let mut replies = collect(shared, &operation).await;
    for (rank, member) in shared.members.iter().enumerate() {
        match replies.remove(&rank) {
            Some(ReplyBody::Cleared(Ok(()))) => result.cleared += 1,
            Some(ReplyBody::Cleared(Err(failure))) => {
                result.failed.push((member.name.clone(), failure));
            }
            _ => result.missing.push(member.name.clone()),
        }
    }
    result
}

/// Every node's answer by rank, as far as they come within the request time-out.
async fn collect(shared: &Arc<Shared>, operation: &Operation) -> BTreeMap<usize, ReplyBody> {
    let deadline = Instant::now() + shared.request_timeout;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let mut collected = BTreeMap::new();
    let asking = async {
        // A parent that takes questions and answers none leaves time for this node's own subtree.
        let up_by = deadline - shared.request_timeout / 4;
        let asked = whole(shared, operation, (up_by, deadline), &out);
        // What has not come by then is missing.
        let _elapsed = timeout_at(deadline, asked).await;
        drop(out);
    };
    let collecting = async {
        while let Some(Reply { rank, body }) = replies.recv().await {
            collected.entry(rank).or_insert(body);
        }
    };
    tokio::join!(asking, collecting);
    if let Entry::Vacant(vacant) = collected.entry(shared.rank) {
        // A dead tree does not keep a node from answering for itself.
        vacant.insert(own(shared, operation, shared.request_timeout / 4).await);
    }
    collected
}

/// This node's own answer, given up after `patience`.
async fn own(shared: &Shared, operation: &Operation, patience: Duration) -> ReplyBody {
    match operation {
        Operation::Reports => ReplyBody::Report(shared.service.report()),
        Operation::Clear(path) => {
            let clearing = shared.service.clear(path.clone());
            ReplyBody::Cleared(match tokio::time::timeout(patience, clearing).await {
                Ok(result) => result,
                Err(_elapsed) => Err(Failure::new(
                    FailureKind::Unavailable,
                    format!("clearing {path} takes too long"),
                )),
            })
        }
    }
}

/// Asks the whole tree through the parent, until `up_by`; where there is no parent to ask, or it
/// does not answer, this node's subtree, until `deadline`.
async fn whole(
    shared: &Arc<Shared>,
    operation: &Operation,
    (up_by, deadline): (Instant, Instant),
    out: &mpsc::Sender<Reply>,
) {
    if let Some(parent) = &shared.parent {
        let now = Instant::now();
        let soon = now + up_by.saturating_duration_since(now) / 4;
        if let Ok(connection) = parent.connection(soon).await {
            let request = operation.up(budget_ms(up_by));
            let parent = &parent.member().name;
            match timeout_at(up_by, ask(shared, &connection, &request, 0, out)).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::warn!(%parent, %error, "the parent did not answer for the cluster");
                }
                Err(_elapsed) => {
                    tracing::warn!(%parent, "the parent did not answer for the cluster in time");
                }
            }
        }
    }
    below(shared, operation, deadline, out).await;
}

/// This node first, then all its children at once.
async fn below(
    shared: &Arc<Shared>,
    operation: &Operation,
    deadline: Instant,
    out: &mpsc::Sender<Reply>,
) {
    // At most half of the time: a node that hangs must not keep its children from being asked.
    let patience = deadline.saturating_duration_since(Instant::now()) / 2;
    let body = own(shared, operation, patience).await;
    if out
        .send(Reply {
            rank: shared.rank,
            body,
        })
        .await
        .is_err()
    {
        return;
    }
    let request = &operation.down(budget_ms(deadline));
    let children = shared.connected_children();
    let mut asking: FuturesUnordered<_> = children
        .iter()
        .map(async |(rank, connection)| {
            if let Err(error) = ask(shared, connection, request, *rank, out).await {
                tracing::debug!(rank, %error, "a child did not answer for its subtree");
            }
        })
        .collect();
    while asking.next().await.is_some() {}
}

/// Asks one neighbour and passes on its answers, each for a node at or below `top` (a node may answer
/// only for its own subtree).
async fn ask(
    shared: &Shared,
    connection: &Connection,
    request: &Request,
    top: usize,
    out: &mpsc::Sender<Reply>,
) -> Result<(), StreamError> {
    let patience = shared.request_timeout;
    let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
    let mut reader = FrameReader::new(recv, patience);
    let mut writer = FrameWriter::new(send, patience);
    writer.message(FrameKind::Request, request).await?;
    writer.finish();
    // One answer a node, and the end.
    for _ in 0..=shared.tree.len() {
        let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
        let Some(reply) = decode(kind, body)? else {
            return reader.finish();
        };
        if !shared.tree.is_within(reply.rank, top) {
            return Err(WireError::Impossible("an answer for a node elsewhere").into());
        }
        if out.send(reply).await.is_err() {
            return Err(StreamError::Cancelled);
        }
    }
    Err(WireError::Impossible("more answers than nodes").into())
}

/// The answer in a frame; `None` for the end.
fn decode(kind: FrameKind, mut body: Bytes) -> Result<Option<Reply>, StreamError> {
    match kind {
        FrameKind::Report if body.len() >= 4 => {
            let rank = usize::try_from(body.get_u32_le()).unwrap_or(usize::MAX);
            Ok(Some(Reply {
                rank,
                body: ReplyBody::Report(body),
            }))
        }
        FrameKind::Cleared => {
            let cleared: Cleared = message::decode("acknowledgement", &body)?;
            let rank = usize::try_from(cleared.rank).unwrap_or(usize::MAX);
            Ok(Some(Reply {
                rank,
                body: ReplyBody::Cleared(cleared.result),
            }))
        }
        FrameKind::Done => Ok(None),
        got => Err(WireError::Unexpected {
            got,
            wanted: "answers of nodes",
        }
        .into()),
    }
}

/// Answers a neighbour's question to the tree.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    request: Request,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let (operation, up, budget) = match request {
        Request::ClusterReports { budget_ms } => (Operation::Reports, true, budget_ms),
        Request::ClusterClear { path, budget_ms } => (Operation::Clear(path), true, budget_ms),
        Request::ReportsBelow { budget_ms } => (Operation::Reports, false, budget_ms),
        Request::ClearBelow { path, budget_ms } => (Operation::Clear(path), false, budget_ms),
        _ => return Err(WireError::Impossible("not a question to the tree").into()),
    };
    let budget = Duration::from_millis(u64::from(budget)).min(BUDGET_MAX);
    let deadline = Instant::now() + budget - budget / LEVEL_SHARE;
    let (out, mut replies) = mpsc::channel(ANSWERS_QUEUED);
    let asking = async {
        let asked = async {
            if up {
                whole(shared, &operation, (deadline, deadline), &out).await;
            } else {
                below(shared, &operation, deadline, &out).await;
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

async fn pass(writer: &mut FrameWriter, reply: Reply) -> Result<(), StreamError> {
    let rank = u32::try_from(reply.rank).unwrap_or(u32::MAX);
    match reply.body {
        ReplyBody::Report(report) if report.len() > REPORT_BYTES_MAX => {
            tracing::warn!(rank, bytes = report.len(), "a report is too long to send");
        }
        ReplyBody::Report(report) => {
            let mut body = BytesMut::with_capacity(4 + report.len());
            body.put_u32_le(rank);
            body.put_slice(&report);
            writer.frame(FrameKind::Report, body.freeze()).await?;
        }
        ReplyBody::Cleared(result) => {
            writer
                .message(FrameKind::Cleared, &Cleared { rank, result })
                .await?;
        }
    }
    Ok(())
}

fn budget_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}
