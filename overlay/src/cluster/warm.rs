//! Warming the whole cluster: a plan goes down every edge once, and its progress comes back up.
//!
//! The plan goes up to the root of one tree, page by page. From there every node forwards it to its connected
//! children as it arrives, and has its [`Service`](crate::Service) carry it out. The items of the plan come down
//! the tree as for any read: every node asks its parent once, so each block crosses each edge once.
//!
//! A node holds the plan once ([`Plan`]), for all its children. Each child has its own position in it, so a slow
//! child delays no other, and a child that comes later, from a parent that died, begins at the first page.
//! Progress is summed on the way up, so an edge carries the same amount for any number of nodes below it. Only
//! the names of warm nodes travel one by one, each once. A node that is not among them is not warm: it is dead,
//! or could not carry out all of the plan.
//!
//! Cancellation is by drop: a stream that is dropped ends the work at its other end, and so on down the tree.

use super::{GUESTS_MAX, reachable_tree, tree_number};
use crate::exchange::open_stream;
use crate::peer::Peer;
use crate::plan::{PLANS_MAX, Plan, ProgressBoard, WarmProgress, WarmUpdate};
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, NodeId};
use crate::wire::{FrameKind, Request, WireError, ensure};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Interval at which a node looks for new children, which come from a parent that died.
const NEW_CHILDREN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a node reports its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// A peer that reports no progress for this long is given up.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a peer may leave the plan unread. It only has to store it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the next page may take: its author may wait for storage while walking a directory tree. A requester
/// that is gone is noticed by its connection.
const PAGE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The outcome of warming.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WarmOutcome {
    /// Number of warm nodes.
    pub warmed: usize,
    /// Names of the members that are not warm, in rank order.
    pub missing: Vec<String>,
    /// The last progress that was reported.
    pub progress: WarmProgress,
}

/// Has every node carry out the plan that comes over `pages`.
pub(crate) async fn warm(
    shared: &Shared,
    mut pages: mpsc::Receiver<Bytes>,
    progress: &watch::Sender<WarmProgress>,
) -> WarmOutcome {
    let tree = reachable_tree(shared);
    let mut warm = HashSet::new();
    let mut take_update = |update| match update {
        WarmUpdate::Progress(latest) => drop(progress.send_replace(latest)),
        WarmUpdate::Warmed(nodes) => warm.extend(nodes),
    };
    let result = match parent(shared, tree).await {
        Some(parent) => hand_over(shared, tree, &parent, &mut pages, take_update).await,
        None => {
            let spread = Spread::new(shared, tree);
            let feeding = async {
                while let Some(page) = pages.recv().await {
                    spread.plan.push(page)?;
                }
                spread.plan.end();
                Ok(())
            };
            let reporting = async {
                let mut ticks = progress_ticks();
                loop {
                    let (updates, last) = spread.board.next_updates(&mut ticks).await;
                    updates.into_iter().for_each(&mut take_update);
                    if last {
                        return Ok(());
                    }
                }
            };
            tokio::try_join!(feeding, spread.run(), reporting).map(drop)
        }
    };
    let mut last = progress.borrow().clone();
    if let Err(error) = result {
        tracing::warn!(%error, "warming was broken off");
        // Makes room for the most important reason.
        last.reasons.clear();
        last.add_reason(&format!("warming was broken off: {error}"));
    }
    let members = (0..).zip(shared.membership.members());
    let missing = members.filter(|(rank, _)| !warm.contains(&NodeId::Member(*rank)));
    WarmOutcome {
        missing: missing.map(|(_, member)| member.name.clone()).collect(),
        warmed: warm.len(),
        progress: last,
    }
}

/// The parent that gets the plan, on the way to the root of `tree`; `None` if this node spreads it.
async fn parent(shared: &Shared, tree: usize) -> Option<Arc<Peer>> {
    let soon = Instant::now() + shared.request_timeout / 4;
    shared.upstream.parent(tree, soon).await
}

fn progress_ticks() -> Interval {
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Opens a stream and sends `request`.
async fn open(
    connection: &Connection,
    request: Request,
) -> Result<(FrameReader, FrameWriter), StreamError> {
    let (mut reader, writer) = open_stream(connection, 0, &request, WRITE_TIMEOUT).await?;
    reader.timeout = PROGRESS_TIMEOUT;
    Ok((reader, writer))
}

/// Ends a plan that was sent page by page.
async fn end_plan(mut writer: FrameWriter) -> Result<(), StreamError> {
    writer.frame(FrameKind::Done, Bytes::new()).await?;
    writer.finish();
    Ok(())
}

/// Receives the next page of a plan; `None` after the last.
async fn receive_page(reader: &mut FrameReader) -> Result<Option<Bytes>, StreamError> {
    match reader.frame().await? {
        (FrameKind::Page, body) => Ok(Some(body)),
        (FrameKind::Done, _empty) => Ok(None),
        (got, _) => Err(WireError::unexpected(got, "page of a plan").into()),
    }
}

/// Receives the updates of a peer until it is done. They name at most as many nodes as there can be.
async fn receive_updates(
    shared: &Shared,
    reader: &mut FrameReader,
    mut take_update: impl FnMut(WarmUpdate) -> Result<(), WireError>,
) -> Result<(), StreamError> {
    let mut nodes_left = shared.membership.members().len() + GUESTS_MAX;
    loop {
        let (kind, body) = reader.frame().await?;
        let update = match kind {
            FrameKind::Progress => {
                let progress: WarmProgress = message::decode("progress", &body)?;
                progress.check()?;
                WarmUpdate::Progress(progress)
            }
            FrameKind::Warmed => {
                let nodes: Vec<NodeId> = message::decode("list of nodes", &body)?;
                let left = nodes_left.checked_sub(nodes.len());
                nodes_left = left.ok_or(WireError::Impossible("more nodes than there are"))?;
                WarmUpdate::Warmed(nodes)
            }
            FrameKind::Done => return reader.finish(),
            got => return Err(WireError::unexpected(got, "progress").into()),
        };
        take_update(update)?;
    }
}

/// Hands the plan to `parent`, page by page, and receives the updates.
async fn hand_over(
    shared: &Shared,
    tree: usize,
    parent: &Arc<Peer>,
    pages: &mut mpsc::Receiver<Bytes>,
    mut take_update: impl FnMut(WarmUpdate),
) -> Result<(), StreamError> {
    // Counts as a request in flight, so that the parent is watched for life.
    let _in_flight = parent.begin_request();
    let tree = tree_number(tree);
    let (mut reader, mut writer) = open(&parent.connection, Request::Warm { tree }).await?;
    let sending = async {
        while let Some(page) = pages.recv().await {
            writer.frame(FrameKind::Page, page).await?;
        }
        end_plan(writer).await
    };
    let receiving = receive_updates(shared, &mut reader, |update| {
        take_update(update);
        Ok(())
    });
    tokio::try_join!(sending, receiving).map(drop)
}

/// The work on one plan at this node and its subtree.
struct Spread<'a> {
    shared: &'a Shared,
    tree: usize,
    plan: Plan,
    board: ProgressBoard,
}

impl<'a> Spread<'a> {
    fn new(shared: &'a Shared, tree: usize) -> Self {
        Self {
            shared,
            tree,
            plan: Plan::default(),
            board: ProgressBoard::new(shared.membership.name()),
        }
    }

    /// Carries out the plan here and in the subtree while it arrives, children included that come later.
    async fn run(&self) -> Result<(), StreamError> {
        let own = async {
            let (plan, tally) = (self.plan.reader(), self.board.tally());
            self.shared.service.warm(plan, tally).await;
            self.board.own_done(self.shared.membership.id());
        };
        let subtree = async {
            let mut warming = FuturesUnordered::new();
            let mut looks = interval(NEW_CHILDREN_INTERVAL);
            let mut known = HashSet::new();
            loop {
                for (id, connection) in self.shared.children.in_tree(self.tree) {
                    // A child that reconnects gets the plan again.
                    if known.insert(connection.stable_id()) {
                        warming.push(self.warm_child(known.len(), id, connection));
                    }
                }
                if warming.is_empty() {
                    return;
                }
                tokio::select! {
                    _done = warming.next() => {}
                    _now = looks.tick() => {}
                }
            }
        };
        tokio::join!(own, subtree);
        self.board.all_done();
        Ok(())
    }

    /// Has child number `number` and its subtree carry out the plan, and puts their updates on the board.
    async fn warm_child(&self, number: usize, id: NodeId, connection: Connection) {
        let membership = &self.shared.membership;
        let exchange = async {
            let tree = tree_number(self.tree);
            let (mut reader, mut writer) = open(&connection, Request::WarmBelow { tree }).await?;
            let mut pages = self.plan.reader();
            let sending = async {
                while let Some(page) = pages.page().await {
                    writer.frame(FrameKind::Page, page).await?;
                }
                end_plan(writer).await
            };
            let receiving = receive_updates(self.shared, &mut reader, |update| {
                let within = |node: &NodeId| membership.is_within(self.tree, node, &id);
                if let WarmUpdate::Warmed(nodes) = &update {
                    ensure(nodes.iter().all(within), "an answer for a node elsewhere")?;
                }
                self.board.update(number, update);
                Ok(())
            });
            tokio::try_join!(sending, receiving).map(drop)
        };
        let outcome: Result<(), StreamError> = exchange.await;
        if let Err(error) = outcome {
            let child = membership.name_of(&id);
            tracing::warn!(child, %error, "a child was not warmed");
            self.board.lost(number, &format!("{child}: {error}"));
        }
    }
}

/// Answers a peer that hands over a plan: forwards it towards the root, or carries it out here and in the
/// subtree.
pub(crate) async fn answer(
    shared: &Shared,
    request: &Request,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    reader.timeout = PAGE_TIMEOUT;
    let (Request::Warm { tree } | Request::WarmBelow { tree }) = request else {
        return Err(WireError::Impossible("not a plan").into());
    };
    let tree = usize::from(*tree);
    let mut parent = parent(shared, tree).await;
    if let Request::Warm { .. } = request
        && let Some(parent) = parent.take()
    {
        return relay(&parent, tree, reader, writer).await;
    }
    let Ok(_permit) = shared.plans.try_acquire() else {
        tracing::warn!("refused a plan: {PLANS_MAX} are being carried out");
        return Err(StreamError::Cancelled);
    };
    // The parent owes this node pages and receives its updates. It is watched meanwhile, so that this node turns
    // to another ancestor, and gets the plan there, if the parent dies without notice.
    let _in_flight = parent.as_ref().map(|parent| parent.begin_request());
    let spread = Spread::new(shared, tree);
    let receiving = async {
        while let Some(page) = receive_page(reader).await? {
            spread.plan.push(page)?;
        }
        spread.plan.end();
        Ok(())
    };
    let reporting = async {
        let mut ticks = progress_ticks();
        loop {
            let (updates, last) = spread.board.next_updates(&mut ticks).await;
            for update in updates {
                match update {
                    WarmUpdate::Progress(sum) => writer.message(FrameKind::Progress, &sum).await?,
                    WarmUpdate::Warmed(nodes) => writer.message(FrameKind::Warmed, &nodes).await?,
                };
            }
            if last {
                return writer.frame(FrameKind::Done, Bytes::new()).await.map(drop);
            }
        }
    };
    tokio::try_join!(receiving, spread.run(), reporting).map(drop)
}

/// Forwards a plan to this node's own parent, and the updates back, one frame at a time.
async fn relay(
    parent: &Arc<Peer>,
    tree: usize,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let _in_flight = parent.begin_request();
    let tree = tree_number(tree);
    let (mut from_parent, mut to_parent) = open(&parent.connection, Request::Warm { tree }).await?;
    let upwards = async {
        while let Some(page) = receive_page(reader).await? {
            to_parent.frame(FrameKind::Page, page).await?;
        }
        end_plan(to_parent).await
    };
    let downwards = async {
        loop {
            let (kind, body) = from_parent.frame().await?;
            writer.frame(kind, body).await?;
            if matches!(kind, FrameKind::Done | FrameKind::Failure) {
                return Ok(());
            }
        }
    };
    tokio::try_join!(upwards, downwards).map(drop)
}
