//! Warming the whole tree: a plan goes down every edge once, how far its nodes are comes back up.
//!
//! The plan climbs to the root of one tree, passed on page by page. From there every node hands it on
//! to its connected children as it comes and has its [`Service`](crate::Service) carry it out. What
//! the plan names comes up and down the tree as any read does: every node asks its parent once, so
//! each block crosses each edge once.
//!
//! A node holds the plan once ([`Plan`]), however many children it has: each child has a place of its
//! own in it, so one that is slow keeps nobody waiting, and one that comes later, from a parent that
//! died, begins at its beginning. Progress is summed on the way up and costs an
//! edge the same whatever lies below it; only the names of nodes that are warm travel each, once.
//! Whoever is not among them is not warm: one that is dead, or could not do all of it.
//!
//! To stop is to drop: a stream that is given up ends the work at its other end, and so on down.

use super::{GUESTS_MAX, number, reachable};
use crate::peer::Peer;
use crate::plan::{Board, News, PLANS_MAX, Plan, WarmProgress};
use crate::shared::Shared;
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::message::{self, NodeId, Question};
use crate::wire::{FrameKind, Request, WireError};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quinn::Connection;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// How often a node looks for children that have come to it meanwhile, from a parent that died.
const LOOK: Duration = Duration::from_secs(1);
/// How often a node says how far it is.
const TICK: Duration = Duration::from_millis(500);
/// A neighbour that says nothing for so long, ticks missing, is given up.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a neighbour may take no byte of the plan, which it only has to put down.
const UNTAKEN: Duration = Duration::from_secs(60);
/// How long the next page may take: whoever walks a tree of files may have to wait for storage. An
/// asker that is gone is noticed by its connection.
const PAGE_PATIENCE: Duration = Duration::from_secs(3600);

/// How warming went.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WarmOutcome {
    /// How many nodes are warm.
    pub warmed: usize,
    /// Names of the members that are not, or not wholly, in rank order.
    pub missing: Vec<String>,
    /// The last that was heard.
    pub progress: WarmProgress,
}

/// Has every node carry out the plan that comes over `pages`.
pub(crate) async fn warm(
    shared: &Arc<Shared>,
    mut pages: mpsc::Receiver<Bytes>,
    progress: &watch::Sender<WarmProgress>,
) -> WarmOutcome {
    let tree = reachable(shared);
    let mut known = Known {
        progress,
        warm: HashSet::new(),
    };
    let result = match parent(shared, tree).await {
        Some(parent) => climb(shared, tree, &parent, &mut pages, &mut known).await,
        None => {
            let (plan, board) = (Plan::default(), Board::new(shared.membership.name()));
            let feeding = async {
                while let Some(page) = pages.recv().await {
                    plan.push(page)?;
                }
                plan.end();
                Ok(())
            };
            let telling = async {
                let mut ticks = ticks();
                loop {
                    let (news, last) = board.news(&mut ticks).await;
                    news.into_iter().for_each(|news| known.hear(news));
                    if last {
                        return Ok(());
                    }
                }
            };
            let working = spread(shared, tree, &plan, &board);
            tokio::try_join!(feeding, working, telling).map(drop)
        }
    };
    let mut last = progress.borrow().clone();
    if let Err(error) = result {
        tracing::warn!(%error, "warming was broken off");
        last.reasons.clear();
        last.reason(&format!("warming was broken off: {error}"));
    }
    let members = shared.membership.members().iter().enumerate();
    let cold = members.filter(|(rank, _)| {
        let rank = u32::try_from(*rank).unwrap_or(u32::MAX);
        !known.warm.contains(&NodeId::Member(rank))
    });
    WarmOutcome {
        missing: cold.map(|(_, member)| member.name.clone()).collect(),
        warmed: known.warm.len(),
        progress: last,
    }
}

/// What the asker knows.
struct Known<'a> {
    progress: &'a watch::Sender<WarmProgress>,
    warm: HashSet<NodeId>,
}

impl Known<'_> {
    fn hear(&mut self, news: News) {
        match news {
            News::Progress(latest) => drop(self.progress.send_replace(latest)),
            News::Warmed(nodes) => self.warm.extend(nodes),
        }
    }
}

/// Whom to hand the plan to, on the way to the root of `tree`; `None`: this node spreads it.
async fn parent(shared: &Shared, tree: usize) -> Option<Arc<Peer>> {
    if shared.membership.is_root_of(tree) {
        return None;
    }
    let soon = Instant::now() + shared.request_timeout / 4;
    shared.upstream.peer(tree, soon).await
}

fn ticks() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Opens a stream for `request`; both its ends.
async fn open(
    connection: &Connection,
    request: Request,
) -> Result<(FrameReader, FrameWriter), StreamError> {
    let (send, recv) = connection.open_bi().await.map_err(StreamError::Lost)?;
    let mut writer = FrameWriter::new(send, UNTAKEN);
    let question = Question {
        attempt: 0,
        request,
    };
    writer.message(FrameKind::Request, &question).await?;
    Ok((FrameReader::new(recv, SILENCE), writer))
}

/// The next news of a neighbour; `None` when it is done.
async fn news(reader: &mut FrameReader) -> Result<Option<News>, StreamError> {
    let (kind, body) = reader.frame().await?.ok_or(StreamError::Truncated)?;
    match kind {
        FrameKind::Progress => {
            let progress: WarmProgress = message::decode("progress", &body)?;
            progress.check()?;
            Ok(Some(News::Progress(progress)))
        }
        FrameKind::Warmed => {
            let nodes = message::decode("list of nodes", &body)?;
            Ok(Some(News::Warmed(nodes)))
        }
        FrameKind::Done => {
            reader.finish()?;
            Ok(None)
        }
        got => {
            let wanted = "progress";
            Err(WireError::Unexpected { got, wanted }.into())
        }
    }
}

/// Hears all news of a neighbour: of at most as many nodes as there can be.
async fn hear(
    shared: &Shared,
    reader: &mut FrameReader,
    mut sink: impl FnMut(News) -> Result<(), StreamError>,
) -> Result<(), StreamError> {
    let mut nodes_left = shared.membership.members().len() + GUESTS_MAX;
    while let Some(news) = news(reader).await? {
        if let News::Warmed(nodes) = &news {
            let left = nodes_left.checked_sub(nodes.len());
            nodes_left = left.ok_or(WireError::Impossible("more nodes than there are"))?;
        }
        sink(news)?;
    }
    Ok(())
}

/// The asker: hands the plan to its parent, page by page.
async fn climb(
    shared: &Shared,
    tree: usize,
    parent: &Arc<Peer>,
    pages: &mut mpsc::Receiver<Bytes>,
    known: &mut Known<'_>,
) -> Result<(), StreamError> {
    // The parent is watched for life while it works.
    let _asking = parent.asking();
    let request = Request::Warm { tree: number(tree) };
    let (mut reader, mut writer) = open(&parent.connection, request).await?;
    let telling = async {
        while let Some(page) = pages.recv().await {
            writer.frame(FrameKind::Page, page).await?;
        }
        writer.frame(FrameKind::Done, Bytes::new()).await?;
        writer.finish();
        Ok(())
    };
    let hearing = hear(shared, &mut reader, |news| {
        known.hear(news);
        Ok(())
    });
    tokio::try_join!(telling, hearing).map(drop)
}

/// This node and all below it carry out `plan`, while it comes; also children that come to this node
/// while others are at work.
async fn spread(
    shared: &Arc<Shared>,
    tree: usize,
    plan: &Plan,
    board: &Board,
) -> Result<(), StreamError> {
    let own = async {
        let carried_out = shared.service.warm(plan.reader(), board.tally());
        carried_out.await;
        board.own_done(shared.membership.id());
    };
    let below = async {
        let mut asking = FuturesUnordered::new();
        let mut looks = interval(LOOK);
        let mut known = HashSet::new();
        loop {
            for (id, connection) in shared.children.in_tree(tree) {
                if known.insert(connection.stable_id()) {
                    let place = known.len();
                    asking.push(child(shared, (tree, id, connection), plan, (board, place)));
                }
            }
            if asking.is_empty() {
                return;
            }
            tokio::select! {
                _one = asking.next() => {}
                _now = looks.tick() => {}
            }
        }
    };
    tokio::join!(own, below);
    board.all_done();
    Ok(())
}

/// Has one child carry out `plan`, and those below it; what comes of it goes to its place on `board`.
async fn child(
    shared: &Shared,
    (tree, id, connection): (usize, NodeId, Connection),
    plan: &Plan,
    (board, place): (&Board, usize),
) {
    let outcome = below(shared, (tree, &id, &connection), plan, |news| {
        board.hear(place, news);
    });
    if let Err(error) = outcome.await {
        let child = shared.membership.name_of(&id);
        tracing::warn!(child, %error, "a child was not warmed");
        board.lost(place, &format!("{child}: {error}"));
    }
}

/// The same, until it is done or lost.
async fn below(
    shared: &Shared,
    (tree, child, connection): (usize, &NodeId, &Connection),
    plan: &Plan,
    mut sink: impl FnMut(News),
) -> Result<(), StreamError> {
    let request = Request::WarmBelow { tree: number(tree) };
    let (mut reader, mut writer) = open(connection, request).await?;
    let mut pages = plan.reader();
    let telling = async {
        while let Some(page) = pages.page().await {
            writer.frame(FrameKind::Page, page).await?;
        }
        writer.frame(FrameKind::Done, Bytes::new()).await?;
        writer.finish();
        Ok(())
    };
    let hearing = hear(shared, &mut reader, |news| {
        if let News::Warmed(nodes) = &news
            && !nodes
                .iter()
                .all(|node| shared.membership.is_within(tree, node, child))
        {
            return Err(WireError::Impossible("an answer for a node elsewhere").into());
        }
        sink(news);
        Ok(())
    });
    tokio::try_join!(telling, hearing).map(drop)
}

/// Answers a neighbour that hands over a plan: passes it on towards the root, or has this node and
/// those below it carry it out.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    request: &Request,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    reader.be_patient(PAGE_PATIENCE);
    let (tree, above) = match request {
        Request::Warm { tree } => {
            let tree = usize::from(*tree);
            if let Some(parent) = parent(shared, tree).await {
                return relay(&parent, tree, reader, writer).await;
            }
            (tree, None)
        }
        Request::WarmBelow { tree } => {
            let tree = usize::from(*tree);
            (tree, parent(shared, tree).await)
        }
        _ => return Err(WireError::Impossible("not a plan").into()),
    };
    let Ok(_place) = shared.plans.try_acquire() else {
        tracing::warn!("refused a plan: {PLANS_MAX} are being carried out");
        return Err(StreamError::Cancelled);
    };
    // The parent owes this node pages and takes its news. It is watched meanwhile, so that this node turns
    // to another ancestor, and is given the plan there, if the parent dies without a word.
    let _asking = above.as_ref().map(|parent| parent.asking());
    let (plan, board) = (Plan::default(), Board::new(shared.membership.name()));
    let hearing = async {
        while let Some(page) = page(reader).await? {
            plan.push(page)?;
        }
        plan.end();
        Ok(())
    };
    let telling = async {
        let mut ticks = ticks();
        loop {
            let (news, last) = board.news(&mut ticks).await;
            for news in news {
                match news {
                    News::Progress(sum) => writer.message(FrameKind::Progress, &sum).await?,
                    News::Warmed(nodes) => writer.message(FrameKind::Warmed, &nodes).await?,
                };
            }
            if last {
                return writer.frame(FrameKind::Done, Bytes::new()).await.map(drop);
            }
        }
    };
    let working = spread(shared, tree, &plan, &board);
    tokio::try_join!(hearing, working, telling).map(drop)
}

/// The next page of a plan; `None` behind the last.
async fn page(reader: &mut FrameReader) -> Result<Option<Bytes>, StreamError> {
    match reader.frame().await?.ok_or(StreamError::Truncated)? {
        (FrameKind::Page, body) => Ok(Some(body)),
        (FrameKind::Done, _empty) => Ok(None),
        (got, _) => {
            let wanted = "page of a plan";
            Err(WireError::Unexpected { got, wanted }.into())
        }
    }
}

/// Passes a plan on to this node's own parent, and the news back: one frame at a time.
async fn relay(
    parent: &Arc<Peer>,
    tree: usize,
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
) -> Result<(), StreamError> {
    let _asking = parent.asking();
    let request = Request::Warm { tree: number(tree) };
    let (mut above, mut up) = open(&parent.connection, request).await?;
    let rising = async {
        while let Some(page) = page(reader).await? {
            up.frame(FrameKind::Page, page).await?;
        }
        up.frame(FrameKind::Done, Bytes::new()).await?;
        up.finish();
        Ok(())
    };
    let falling = async {
        loop {
            let (kind, body) = above.frame().await?.ok_or(StreamError::Truncated)?;
            writer.frame(kind, body).await?;
            if matches!(kind, FrameKind::Done | FrameKind::Failure) {
                return Ok(());
            }
        }
    };
    tokio::try_join!(rising, falling).map(drop)
}
