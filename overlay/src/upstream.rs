//! What a node asks of others: [`Files`] over the trees.
//!
//! A question goes to the root that its item's placement names, through the ancestor from which this
//! node hangs in that root's tree; where the tree cannot be reached, to the item's next root. A node
//! that is itself the root asks its storage. Connections that are lost cost a question nothing but
//! time: it is asked again. So an application sees latency where a node died, and no error.
//!
//! Loops cannot close: in one tree questions go to ancestors only, and from tree to tree only
//! forward in the item's order (its position, the attempt, travels with the question).
//!
//! Checks every answer against its question before anybody sees it: what cannot be true is `Corrupt`,
//! what does not come is `Unavailable`. Blocks are verified here (`read`): an `End` part means that
//! the bytes before it are those that the origin hashed. Caches nothing.

mod bundle;
pub(crate) mod climb;
mod find;
mod list;
mod range;
mod read;
mod steering;

use crate::counters::Meters;
use crate::exchange::{trimmed, unexpected};
use crate::homes::Homes;
use crate::membership::Membership;
use crate::model::{
    Attributes, BundleRequest, BundleStream, ContentHash, Cursor, Entry, Failure, FailureKind,
    Files, FilesystemUsage, ItemPath, Leased, Listed, Listing, ListingDigest, OriginFingerprint,
    RangeAnswer, RangeRequest, ReadRequest, ReadStream, StatAnswers, Version, XattrList, from_ms,
    only_answer, shorter,
};
use crate::patience;
use crate::peer::{Asking, Liveness, Peer};
use crate::transport::stream::{FrameReader, FrameWriter, StreamError};
use crate::wire::{
    FrameHeader, FrameKind, Head, PageReader, Request, STAT_NAME_BYTES_MAX, STAT_NAMES_MAX,
    WireError, message,
};
use bytes::Bytes;
use climb::{Hold, NoPeer};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, select_all};
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

pub use climb::{LinkReport, LinkStatus};

/// What a node does when it is cut off from every root of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Orphan {
    /// Questions wait until a root can be reached again, at most the request time-out.
    #[default]
    Wait,
    /// The node reads storage itself, if it can.
    Origin,
    /// Questions fail at once.
    Error,
}

/// A node's stub towards the others. Clones share its connections.
#[derive(Clone)]
pub struct Upstream {
    inner: Arc<Inner>,
    /// Where in their items' root orders its questions begin.
    attempt: u8,
}

struct Inner {
    membership: Arc<Membership>,
    /// This node's hold in each tree; `None` where it is the root.
    holds: Vec<Option<Arc<Hold>>>,
    /// Turns to ask for bytes by their hash, in each tree.
    finds: Vec<Semaphore>,
    storage: Option<Arc<dyn Files>>,
    orphan: Orphan,
    patience: Duration,
    /// How long a question waits for its answer, by tree.
    patiences: Vec<Duration>,
    liveness: Liveness,
    homes: Homes,
    meters: Arc<Meters>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("holds", &self.inner.holds)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Who is to answer a question.
enum Way {
    Storage(Arc<dyn Files>),
    Peer(Arc<Peer>, u8),
}

/// The answer to a question, once somebody has begun to give it.
struct Answer {
    reader: FrameReader,
    /// Of its first frame.
    header: FrameHeader,
    asking: Asking,
}

/// What became of a question.
enum Asked {
    /// It is this node's own storage that answers.
    Storage(Arc<dyn Files>),
    Answer(Answer),
}

/// How often a question is asked again over other connections before it is given up.
const REPLAYS_MAX: u32 = 32;
/// How often it is asked again after an answer was reset, by somebody who leaves or has waited too long
/// for its reader, while the connection goes on.
const RESETS_MAX: u32 = 4;
/// How long such a connection is given to end, before it is asked again.
const SOON: Duration = Duration::from_millis(50);

impl Upstream {
    pub(crate) fn new(
        membership: Arc<Membership>,
        storage: Option<Arc<dyn Files>>,
        (orphan, patience, liveness): (Orphan, Duration, Liveness),
        homes: Homes,
        meters: Arc<Meters>,
    ) -> Self {
        let holds = (0..membership.trees())
            .map(|tree| Hold::new(&membership, tree).map(Arc::new))
            .collect();
        let forest = membership.forest();
        let deepest = patience::deepest(forest.len(), forest.arity());
        let patiences = (0..membership.trees())
            .map(|tree| membership.ancestors(tree).len())
            .map(|depth| patience::of_question(patience, depth, deepest))
            .collect();
        let turns = |_tree| Semaphore::new(find::FINDS_AT_ONCE);
        let finds = (0..membership.trees()).map(turns).collect();
        Self {
            inner: Arc::new(Inner {
                membership,
                holds,
                finds,
                storage,
                orphan,
                patience,
                patiences,
                liveness,
                homes,
                meters,
            }),
            attempt: 0,
        }
    }

    /// The same stub for questions that come from position `attempt` of their items' root orders.
    #[must_use]
    pub fn at(&self, attempt: u8) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            attempt,
        }
    }

    /// Resolves once this node has found its place: hangs from somebody for the first time in every
    /// tree whose root can be reached, and in one at least, unless it is a root itself. Waits for as
    /// long as it takes: [`Upstream::links`] says why it takes long.
    pub async fn first_connected(&self) {
        for hold in self.holds() {
            hold.first_connected(true).await;
        }
        let is_root = self.inner.holds.iter().any(Option::is_none);
        if is_root || self.holds().any(|hold| hold.was_connected()) {
            return;
        }
        let waiting = self.holds().map(|hold| hold.first_connected(false).boxed());
        select_all(waiting).await;
    }

    /// Where this node stands in each tree in which it is not the root.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.holds().map(|hold| hold.report()).collect()
    }

    /// What the root of `tree` serves: its fingerprint of every origin.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be reached.
    pub async fn origins(&self, tree: usize) -> Result<Vec<OriginFingerprint>, Failure> {
        let number = u8::try_from(tree).unwrap_or(u8::MAX);
        let request = Request::Origins { tree: number };
        match self.answer_by(&Route::Tree(tree), &request).await? {
            Answered::Items(_head, origins) => Ok(origins),
            Answered::Storage(_) => Err(self.inner.unreachable("this node is the root")),
        }
    }

    /// The way to the homes of items; usable as soon as this node has taken its place.
    #[must_use]
    pub fn homes(&self) -> &Homes {
        &self.inner.homes
    }

    pub(crate) fn hold(&self, tree: usize) -> Option<&Arc<Hold>> {
        self.inner.holds.get(tree)?.as_ref()
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.inner.holds.iter().flatten()
    }

    /// The ancestor from which this node hangs in `tree`, waited for until `deadline`.
    pub(crate) async fn peer(&self, tree: usize, deadline: Instant) -> Option<Arc<Peer>> {
        self.hold(tree)?.peer(deadline).await.ok()
    }

    /// Waits until this node can answer nothing but what it holds: it is cut off from every root, and
    /// reads no storage itself.
    pub(crate) async fn cut_off(&self) {
        let reads = self.inner.orphan == Orphan::Origin && self.inner.storage.is_some();
        if reads || self.inner.holds.iter().any(Option::is_none) {
            return std::future::pending().await;
        }
        while !self.holds().all(|hold| hold.is_stranded()) {
            for hold in self.holds() {
                hold.stranded().await;
            }
        }
    }

    /// After [`Upstream::cut_off`]: waits until this is no longer so.
    pub(crate) async fn restored(&self) {
        select_all(self.holds().map(|hold| hold.mended().boxed())).await;
    }

    pub(crate) fn stop(&self) {
        for hold in self.holds() {
            hold.stop();
        }
    }

    /// Who is to be asked by `route` now, waited for until `deadline`.
    async fn way(&self, route: &Route<'_>, deadline: Instant) -> Result<Way, Failure> {
        let inner = &self.inner;
        loop {
            let mut reasons = None;
            let mut stranded = Vec::new();
            for attempt in self.attempt..=u8::MAX {
                let Some(tree) = route.tree(&inner.membership, attempt) else {
                    break;
                };
                let Some(hold) = self.hold(tree) else {
                    let storage = inner.storage.clone();
                    return storage
                        .map(Way::Storage)
                        .ok_or_else(|| inner.unreachable("a root without storage"));
                };
                match hold.peer(deadline).await {
                    Ok(peer) => return Ok(Way::Peer(peer, attempt)),
                    Err(NoPeer::Late(reason)) => return Err(inner.unreachable(&reason)),
                    Err(NoPeer::Stranded(reason)) => {
                        reasons.get_or_insert(reason);
                        stranded.push(Arc::clone(hold));
                    }
                }
            }
            let reason = reasons.unwrap_or_else(|| "no root is left to ask".into());
            match (inner.orphan, &inner.storage) {
                (Orphan::Origin, Some(storage)) => return Ok(Way::Storage(Arc::clone(storage))),
                (Orphan::Error, _) => return Err(inner.unreachable(&reason)),
                _ if stranded.is_empty() => return Err(inner.unreachable(&reason)),
                _ => {}
            }
            let mended = select_all(stranded.iter().map(|hold| hold.mended().boxed()));
            if timeout_at(deadline, mended).await.is_err() {
                return Err(inner.unreachable(&reason));
            }
        }
    }

    /// Asks `request` by `route`; gives the reader of its answer behind the first frame's header. A
    /// connection that is lost before that costs another try, within the request time-out.
    async fn ask(&self, route: &Route<'_>, request: &Request) -> Result<Asked, Failure> {
        let inner = &self.inner;
        let unsound = |error: WireError| {
            Failure::new(
                FailureKind::Io,
                format!("a request that cannot be sent: {error}"),
            )
        };
        request.check().map_err(unsound)?;
        let patience = self.patience(route);
        let deadline = Instant::now() + patience;
        let mut resets = 0;
        loop {
            let (peer, attempt) = match self.way(route, deadline).await? {
                Way::Storage(storage) => return Ok(Asked::Storage(storage)),
                Way::Peer(peer, attempt) => (peer, attempt),
            };
            let body = message::encode_question(attempt, request).map_err(unsound)?;
            let begun = Instant::now();
            let asking = timeout_at(deadline, inner.ask_once(&peer, body, patience));
            match asking.await {
                Ok(Ok(answer)) => {
                    if let Some(latency) = inner.meters.parent(request) {
                        latency.observe(begun.elapsed());
                    }
                    return Ok(Asked::Answer(answer));
                }
                Ok(Err(error)) if again(&error, &mut resets) && Instant::now() < deadline => {
                    inner.meters.replays.increment();
                    self.moved(route, &peer, &error, deadline).await;
                }
                Ok(Err(error)) => return Err(inner.failure(&peer, &error)),
                Err(_elapsed) => {
                    return Err(inner.failure(&peer, &StreamError::Silent(patience)));
                }
            }
        }
    }

    /// How long a question by `route` waits for its answer.
    fn patience(&self, route: &Route<'_>) -> Duration {
        let inner = &self.inner;
        let tree = route.tree(&inner.membership, self.attempt);
        let patience = tree.and_then(|tree| inner.patiences.get(tree));
        patience.copied().unwrap_or(inner.patience)
    }

    /// After `error` from `peer`, whose connection was lost or is about to be: waits until the holds
    /// know it too.
    async fn moved(&self, route: &Route<'_>, peer: &Peer, error: &StreamError, deadline: Instant) {
        let deadline = match error {
            StreamError::Lost(_) => deadline,
            // It may stay, and be asked again.
            _ => deadline.min(Instant::now() + SOON),
        };
        let lost = (self.attempt..=u8::MAX)
            .map_while(|attempt| route.tree(&self.inner.membership, attempt))
            .filter_map(|tree| self.hold(tree));
        for hold in lost {
            hold.left(peer, deadline).await;
        }
    }

    /// Asks a question that is answered by a head and `T`s, by `route`; again when the answer breaks
    /// off with its connection.
    async fn answer_by<T: DeserializeOwned>(
        &self,
        route: &Route<'_>,
        request: &Request,
    ) -> Result<Answered<T>, Failure> {
        let inner = &self.inner;
        let (mut replays, mut resets) = (0, 0);
        loop {
            let mut answer = match self.ask(route, request).await? {
                Asked::Storage(storage) => return Ok(Answered::Storage(storage)),
                Asked::Answer(answer) => answer,
            };
            match collect::<T>(&mut answer, request).await {
                Ok(Ok((head, items))) => return Ok(Answered::Items(head, items)),
                Ok(Err(failure)) => return Err(trimmed(failure)),
                Err(error) if replays < REPLAYS_MAX && again(&error, &mut resets) => {
                    replays += 1;
                    inner.meters.replays.increment();
                    let deadline = Instant::now() + inner.patience;
                    let peer = answer.asking.peer();
                    self.moved(route, peer, &error, deadline).await;
                }
                Err(error) => return Err(inner.failure(answer.asking.peer(), &error)),
            }
        }
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        key: &ItemPath,
        request: &Request,
    ) -> Result<Answered<T>, Failure> {
        self.answer_by(&Route::Item(key), request).await
    }

    /// With `denied` there is one name: storage has denied that it has that version.
    async fn stat_batches(
        self,
        parent: ItemPath,
        names: Vec<Bytes>,
        denied: Option<Version>,
    ) -> Result<Leased<StatAnswers>, Failure> {
        let mut answers = Vec::with_capacity(names.len());
        let mut lease = None;
        for batch in batches(names) {
            let request = Request::Stat {
                parent: parent.clone(),
                names: batch,
                denied,
            };
            let items = match self.answer(&parent, &request).await? {
                Answered::Items(head, items) => {
                    if let Head::Stat { lease_ms, .. } = head {
                        lease = shorter(lease, from_ms(lease_ms));
                    }
                    items
                }
                Answered::Storage(storage) => {
                    let Request::Stat { names, .. } = request else {
                        continue;
                    };
                    let asked = storage.stat_unlike(parent.clone(), names, denied);
                    let found = asked.await?;
                    lease = shorter(lease, found.lease);
                    answers.extend(found.value);
                    continue;
                }
            };
            for item in items {
                answers.push(match item {
                    Ok(attributes) => Ok(self.inner.checked(attributes)?),
                    Err(failure) => Err(trimmed(failure)),
                });
            }
        }
        Ok(Leased {
            value: answers,
            lease,
        })
    }
}

/// Whether a question whose answer broke off with `error` may be asked again.
fn again(error: &StreamError, resets: &mut u32) -> bool {
    match error {
        StreamError::Lost(_) => true,
        StreamError::Cancelled => {
            *resets += 1;
            *resets <= RESETS_MAX
        }
        _ => false,
    }
}

/// By which trees a question goes.
enum Route<'a> {
    /// Those of an item, in its root order.
    Item(&'a ItemPath),
    /// Those of a stripe of a file.
    Stripe(&'a ItemPath, u64),
    /// This one only.
    Tree(usize),
}

impl Route<'_> {
    fn tree(&self, membership: &Membership, attempt: u8) -> Option<usize> {
        match self {
            Self::Item(key) => membership.placement().tree(key, attempt),
            Self::Stripe(path, stripe) => membership
                .placement()
                .tree_of_stripe(path, *stripe, attempt),
            Self::Tree(tree) => (attempt == 0).then_some(*tree),
        }
    }
}

/// A complete answer.
#[expect(clippy::large_enum_variant, reason = "few at a time, and none is kept")]
enum Answered<T> {
    /// This node's own storage is to be asked.
    Storage(Arc<dyn Files>),
    Items(Head, Vec<T>),
}

/// The rest of an answer that is a head and pages of `T`s, or the failure in its place.
async fn collect<T: DeserializeOwned>(
    answer: &mut Answer,
    request: &Request,
) -> Result<Result<(Head, Vec<T>), Failure>, StreamError> {
    let (reader, header) = (&mut answer.reader, answer.header);
    let body = reader.body(header).await?;
    match header.kind {
        FrameKind::Head => {}
        FrameKind::Failure => return Ok(Err(message::decode("failure", &body)?)),
        got => return Err(unexpected(got, "head")),
    }
    let head: Head = message::decode("head", &body)?;
    head.check(request)?;
    let mut pages = PageReader::new(usize::try_from(head.items()).unwrap_or(usize::MAX));
    while !pages.is_complete() {
        match reader.frame().await? {
            Some((FrameKind::Page, body)) => pages.add(&body)?,
            Some((FrameKind::Failure, body)) => {
                return Ok(Err(message::decode("failure", &body)?));
            }
            Some((got, _)) => return Err(unexpected(got, "page")),
            None => return Err(StreamError::Truncated),
        }
    }
    reader.finish()?;
    Ok(Ok((head, pages.into_items())))
}

impl Inner {
    async fn ask_once(
        &self,
        peer: &Arc<Peer>,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, StreamError> {
        let asking = peer.asking();
        let opening = peer.connection.open_bi();
        let (send, recv) = opening.await.map_err(StreamError::Lost)?;
        self.meters.upstream_requests.increment();
        let meter = self.meters.upstream_bytes_received.clone();
        let mut reader = FrameReader::new(recv, patience).metered(meter);
        let mut writer = FrameWriter::new(send, patience);
        writer.frame(FrameKind::Request, body).await?;
        writer.finish();
        let header = reader.header().await?.ok_or(StreamError::Truncated)?;
        Ok(Answer {
            reader,
            header,
            asking,
        })
    }

    fn unreachable(&self, reason: &str) -> Failure {
        Failure::new(FailureKind::Unavailable, reason)
    }

    /// What a broken stream means to whoever asked.
    fn failure(&self, peer: &Peer, error: &StreamError) -> Failure {
        let kind = match error {
            StreamError::Silent(_) | StreamError::Lost(_) | StreamError::Cancelled => {
                FailureKind::Unavailable
            }
            StreamError::Truncated | StreamError::Wire(_) => {
                tracing::warn!(peer = %peer.label, %error, "a peer broke the protocol");
                FailureKind::Corrupt
            }
        };
        Failure::new(kind, format!("parent {}: {error}", peer.label))
    }

    fn checked(&self, attributes: Attributes) -> Result<Attributes, Failure> {
        let times = [attributes.atime, attributes.mtime, attributes.ctime];
        let link_bytes = attributes.link_target.as_ref().map_or(0, Bytes::len);
        if times.iter().any(|time| time.nanoseconds >= 1_000_000_000)
            || link_bytes > ItemPath::BYTES_MAX
        {
            return Err(impossible("attributes that no file can have"));
        }
        Ok(attributes)
    }

    fn checked_entry(&self, mut entry: Entry) -> Result<Entry, Failure> {
        if ItemPath::check_name(&entry.name).is_err() {
            return Err(impossible("an entry whose name no file can have"));
        }
        entry.attributes = entry
            .attributes
            .map(|found| self.checked(found))
            .transpose()?;
        Ok(entry)
    }
}

/// An answer that cannot be true.
fn impossible(what: &'static str) -> Failure {
    Failure::new(FailureKind::Corrupt, format!("the parent answered: {what}"))
}

impl Files for Upstream {
    fn list(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> BoxFuture<'static, Result<Listing, Failure>> {
        let parts = self.list_parts(path, cursor, limit, None);
        Box::pin(async move { parts.await?.stream()?.collect().await })
    }

    fn list_parts(
        &self,
        path: ItemPath,
        cursor: Option<Cursor>,
        limit: usize,
        known: Option<ListingDigest>,
    ) -> BoxFuture<'static, Result<Listed, Failure>> {
        Box::pin(list::open(self.clone(), path, cursor, limit, known))
    }

    fn stat(
        &self,
        parent: ItemPath,
        names: Vec<Bytes>,
    ) -> BoxFuture<'static, Result<Leased<StatAnswers>, Failure>> {
        Box::pin(self.clone().stat_batches(parent, names, None))
    }

    fn stat_again(
        &self,
        parent: ItemPath,
        name: Bytes,
        denied: Version,
    ) -> BoxFuture<'static, Result<Leased<Attributes>, Failure>> {
        let this = self.clone();
        Box::pin(async move {
            let names = vec![name];
            let answers = this
                .stat_batches(parent.clone(), names, Some(denied))
                .await?;
            only_answer(&parent, answers)
        })
    }

    fn read(&self, request: ReadRequest) -> BoxFuture<'static, Result<ReadStream, Failure>> {
        Box::pin(read::open(self.clone(), request))
    }

    fn read_range(
        &self,
        request: RangeRequest,
    ) -> BoxFuture<'static, Result<RangeAnswer, Failure>> {
        Box::pin(range::read(self.clone(), request))
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Result<Bytes, Failure>> {
        Box::pin(find::anywhere(self.clone(), hash, len))
    }

    fn bundle(&self, request: BundleRequest) -> BoxFuture<'static, Result<BundleStream, Failure>> {
        Box::pin(bundle::open(self.clone(), request))
    }

    fn xattrs(&self, path: ItemPath) -> BoxFuture<'static, Result<Leased<XattrList>, Failure>> {
        let this = self.clone();
        Box::pin(async move {
            let key = path.split().map_or(path.clone(), |(parent, _)| parent);
            let request = Request::Xattrs { path: path.clone() };
            match this.answer(&key, &request).await? {
                Answered::Storage(storage) => storage.xattrs(path).await,
                Answered::Items(Head::Xattrs { lease_ms, .. }, value) => Ok(Leased {
                    value,
                    lease: from_ms(lease_ms),
                }),
                Answered::Items(..) => Err(impossible(ANOTHER)),
            }
        })
    }

    fn usage(&self, path: ItemPath) -> BoxFuture<'static, Result<FilesystemUsage, Failure>> {
        let this = self.clone();
        Box::pin(async move {
            let request = Request::Usage { path: path.clone() };
            match this.answer::<()>(&path, &request).await? {
                Answered::Storage(storage) => storage.usage(path).await,
                Answered::Items(Head::Usage(usage), _) => Ok(usage),
                Answered::Items(..) => Err(impossible(ANOTHER)),
            }
        })
    }
}

const ANOTHER: &str = "an answer to another question";

/// `names` in as few requests as the bounds of one allow.
fn batches(names: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let mut batches = Vec::new();
    let mut batch: Vec<Bytes> = Vec::new();
    let mut bytes = 0;
    for name in names {
        let full = batch.len() == STAT_NAMES_MAX || bytes + name.len() > STAT_NAME_BYTES_MAX;
        if full && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += name.len();
        batch.push(name);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_asked_for_in_bounded_batches() {
        assert!(batches(Vec::new()).is_empty());
        let many = vec![Bytes::from_static(b"a"); STAT_NAMES_MAX + 1];
        assert_eq!(
            batches(many).iter().map(Vec::len).collect::<Vec<_>>(),
            [STAT_NAMES_MAX, 1]
        );
        let long = vec![Bytes::from(vec![b'a'; 255]); 2000];
        let split = batches(long);
        assert_eq!(split.iter().map(Vec::len).sum::<usize>(), 2000);
        for names in split {
            let request = Request::Stat {
                parent: ItemPath::root(),
                names,
                denied: None,
            };
            assert_eq!(request.check(), Ok(()));
            let body = message::encode("request", &request).unwrap();
            assert!(FrameHeader::new(FrameKind::Request, body.len()).is_ok());
        }
    }
}
