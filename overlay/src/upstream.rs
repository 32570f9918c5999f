//! The client side of a node: [`Files`] over the trees.
//!
//! A request goes to the root that its item's placement names, through this node's parent in that root's
//! tree. If the tree cannot be reached, it goes to the item's next root. A root asks its own storage. A
//! request whose connection is lost is repeated, so that applications see a delay when a node dies, and no
//! error.
//!
//! Homes of items read much that no node on the way keeps, so they ask the roots past the trees
//! ([`Upstream::direct`]).
//!
//! No request can loop: within one tree it only goes to ancestors, and from tree to tree only forward in the
//! item's order of roots. The position in that order, the *attempt*, travels with the request.
//!
//! Every answer is checked against its request before it is returned. An impossible answer is `Corrupt`; a
//! missing one is `Unavailable`. Blocks are verified in `read`. Nothing is cached here.

mod bundle;
mod find;
mod list;
pub(crate) mod parent_link;
mod read;
mod steering;

use crate::config::{Orphan, OverlayConfig};
use crate::counters::Counters;
use crate::exchange::{AnswerError, expect_body, open_stream, read_failure, read_verified};
use crate::homes::Homes;
use crate::level_timeouts;
use crate::membership::Membership;
use crate::model::{
    Attributes, BundleRequest, BundleStream, ContentHash, Entry, Failure, FailureKind, Files,
    FilesFuture, FilesystemUsage, ItemPath, Leased, ListRequest, Listed, OriginFingerprint,
    RangeAnswer, RangeRequest, ReadRequest, ReadStream, STRIPE_BLOCKS, StatAnswers, StatRequest,
    XattrList, from_ms, shorter,
};
use crate::peer::{InFlight, Peer};
use crate::transport::stream::{FrameReader, StreamError};
use crate::wire::{
    FrameKind, Head, PageReader, Request, STAT_NAME_BYTES_MAX, STAT_NAMES_MAX, WireError, message,
};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::select_all;
use parent_link::{NoParent, ParentLink, unavailable};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

pub use parent_link::{LinkReport, LinkStatus};

/// A node's client for the other nodes. Clones share its connections.
#[derive(Clone)]
pub struct Upstream {
    inner: Arc<UpstreamInner>,
    /// Position in their items' root orders at which requests begin.
    attempt: u8,
    /// Whether the bytes of files are asked of the roots themselves.
    direct: bool,
}

struct UpstreamInner {
    membership: Arc<Membership>,
    trees: Vec<TreeClient>,
    storage: Option<Arc<dyn Files>>,
    config: Arc<OverlayConfig>,
    homes: Homes,
    counters: Arc<Counters>,
}

/// The client side of one tree.
struct TreeClient {
    /// The link to the parent; `None` if this node is the root.
    link: Option<Arc<ParentLink>>,
    /// Permits for requests by hash.
    find_permits: Semaphore,
    /// How long a request waits for its answer.
    request_timeout: Duration,
}

/// The outcome of a request, or of the choice of its target.
enum Response<T> {
    /// No other node is to be asked: the caller reads this node's own storage.
    Storage(Arc<dyn Files>),
    Remote(T),
}

/// The node that a request is sent to.
struct Target {
    peer: Arc<Peer>,
    /// The attempt that stands for its tree.
    attempt: u8,
    /// Whether it is a root that is asked past the tree.
    direct: bool,
}

impl Target {
    fn parent(peer: Arc<Peer>, attempt: u8) -> Self {
        Self {
            peer,
            attempt,
            direct: false,
        }
    }

    fn root(peer: Arc<Peer>, attempt: u8) -> Self {
        Self {
            direct: true,
            ..Self::parent(peer, attempt)
        }
    }
}

/// An answer that has begun to arrive.
struct RemoteAnswer {
    reader: FrameReader,
    /// Kind of the first frame, which the reader returns next.
    first: FrameKind,
    in_flight: InFlight,
}

impl RemoteAnswer {
    /// Returns the failure, if the answer is one.
    async fn refused(&mut self) -> Result<(), Failure> {
        if self.first != FrameKind::Failure {
            return Ok(());
        }
        let error = match self.reader.header().await {
            Ok(header) => read_failure(&mut self.reader, header.kind, "an answer").await,
            Err(error) => error.into(),
        };
        Err(answer_failure(&self.in_flight, error))
    }
}

/// Repetitions of one request.
#[derive(Default)]
struct Retries {
    replays: u32,
    resets: u32,
    /// Answers that had a wrong hash. Reset after each verified block.
    corrupt: u32,
}

impl Retries {
    /// Repetitions over other connections before a request fails.
    const REPLAYS_MAX: u32 = 32;
    /// Repetitions after an answer was reset while its connection stayed. A node resets answers when it
    /// leaves, or when its reader is too slow.
    const RESETS_MAX: u32 = 4;
    /// Repetitions after a wrong hash.
    const CORRUPT_MAX: u32 = 4;

    /// Whether a request whose answer broke off with `error` may be repeated.
    fn may_replay(&mut self, error: &StreamError) -> bool {
        match error {
            StreamError::Lost(_) => true,
            StreamError::Cancelled => {
                self.resets += 1;
                self.resets <= Self::RESETS_MAX
            }
            _ => false,
        }
    }
}

/// How long a connection on which an answer was reset may take to end, before the request is repeated.
const RESET_DELAY: Duration = Duration::from_millis(50);

impl Upstream {
    pub(crate) fn new(
        membership: Arc<Membership>,
        storage: Option<Arc<dyn Files>>,
        config: Arc<OverlayConfig>,
    ) -> Self {
        let forest = membership.forest();
        let deepest = level_timeouts::depth_of_tree(forest.len(), forest.arity());
        let tree_client = |tree| {
            let depth = membership.ancestors(tree).len();
            TreeClient {
                link: ParentLink::new(&membership, tree).map(Arc::new),
                find_permits: Semaphore::new(find::FINDS_MAX),
                request_timeout: level_timeouts::of_request(config.request_timeout, depth, deepest),
            }
        };
        let counters = Arc::new(Counters::new(config.lanes.len()));
        let inner = UpstreamInner {
            trees: (0..membership.trees()).map(tree_client).collect(),
            membership,
            storage,
            homes: Homes::new(Arc::clone(&config), Arc::clone(&counters)),
            config,
            counters,
        };
        Self {
            inner: Arc::new(inner),
            attempt: 0,
            direct: false,
        }
    }

    /// The same client for requests that begin at position `attempt` of their items' root orders.
    #[must_use]
    pub fn at(&self, attempt: u8) -> Self {
        Self {
            attempt,
            ..self.clone()
        }
    }

    /// The same client, which asks the roots themselves for the bytes of files ([`Files::read`] and
    /// [`Files::read_range`]), over connections that are made for items. No node between them then works for
    /// these bytes. A root that cannot be reached so is asked by way of its tree.
    #[must_use]
    pub fn direct(&self) -> Self {
        Self {
            direct: true,
            ..self.clone()
        }
    }

    /// Waits until this node has had a parent in every tree whose root can be reached, and in at least one
    /// tree unless it is a root. Has no time limit; [`Upstream::links`] tells why it takes long.
    pub async fn first_connected(&self) {
        for link in self.parent_links() {
            link.first_connected(true).await;
        }
        if !self.is_root() {
            let links = self.parent_links();
            select_all(links.map(|link| link.first_connected(false).boxed())).await;
        }
    }

    /// Waits until nothing but a change of this node's or of the other nodes' configuration can connect it: for 5 s its
    /// ancestors in a tree have run another version or had another secret, and none has accepted it. Returns the reason.
    /// Never completes on a node without ancestors. Dropping the future has no effect.
    pub async fn mismatched(&self) -> String {
        let links = self.parent_links();
        let waiting: Vec<_> = links.map(|link| link.mismatched().boxed()).collect();
        if waiting.is_empty() {
            return std::future::pending().await;
        }
        select_all(waiting).await.0
    }

    /// The state of this node's link in each tree of which it is not the root.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.parent_links().map(|link| link.report()).collect()
    }

    /// Returns the fingerprint of every origin that the root of `tree` serves.
    ///
    /// # Errors
    /// `Unavailable` if the root cannot be reached.
    pub async fn origins(&self, tree: usize) -> Result<Vec<OriginFingerprint>, Failure> {
        let number = u8::try_from(tree).unwrap_or(u8::MAX);
        let request = Request::Origins { tree: number };
        match self.request_items(Route::Tree(tree), &request).await? {
            Response::Remote((_head, origins)) => Ok(origins),
            Response::Storage(_) => Err(unavailable("this node is the root")),
        }
    }

    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.inner.membership
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.inner.counters
    }

    /// The client for homes of items; usable once this node has started.
    #[must_use]
    pub fn homes(&self) -> &Homes {
        &self.inner.homes
    }

    /// The link to the parent in `tree`; `None` if this node is the root.
    pub(crate) fn parent_link(&self, tree: usize) -> Option<&Arc<ParentLink>> {
        self.inner.trees.get(tree)?.link.as_ref()
    }

    pub(crate) fn parent_links(&self) -> impl Iterator<Item = &Arc<ParentLink>> {
        let trees = self.inner.trees.iter();
        trees.filter_map(|tree| tree.link.as_ref())
    }

    /// Whether this node is the root of some tree.
    pub(crate) fn is_root(&self) -> bool {
        self.inner.trees.iter().any(|tree| tree.link.is_none())
    }

    /// Returns the parent in `tree`, and waits for one until `deadline`.
    pub(crate) async fn parent(&self, tree: usize, deadline: Instant) -> Option<Arc<Peer>> {
        self.parent_link(tree)?.parent(deadline).await.ok()
    }

    /// Waits until this node can answer from its caches only: it can reach no root, and reads no storage.
    pub(crate) async fn cut_off(&self) {
        let reads_storage =
            self.inner.config.orphan == Orphan::Origin && self.inner.storage.is_some();
        if reads_storage || self.is_root() {
            return std::future::pending().await;
        }
        // A link may recover while another is waited for, so all are checked again.
        while !self.parent_links().all(|link| link.is_stranded()) {
            for link in self.parent_links() {
                link.stranded().await;
            }
        }
    }

    /// Waits until [`Upstream::cut_off`] does not apply any more.
    pub(crate) async fn restored(&self) {
        select_all(self.parent_links().map(|link| link.recovered().boxed())).await;
    }

    pub(crate) fn stop(&self) {
        for link in self.parent_links() {
            link.stop();
        }
    }

    /// Chooses the next target for `route`, and waits for one until `deadline`: the parent in a tree, or its root
    /// itself.
    async fn target(
        &self,
        route: Route<'_>,
        deadline: Instant,
    ) -> Result<Response<Target>, Failure> {
        let inner = &self.inner;
        loop {
            let mut first_failure = None;
            let mut stranded = Vec::new();
            for (attempt, tree) in self.trees_of(route) {
                // Without a link this node is the root, and reads its own storage.
                let Some(link) = self.parent_link(tree) else {
                    let storage = inner.storage.clone().map(Response::Storage);
                    return storage.ok_or_else(|| unavailable("a root without storage"));
                };
                if let Some(root) = self.root_itself(route, link).await {
                    return Ok(Response::Remote(Target::root(root, attempt)));
                }
                match link.parent(deadline).await {
                    Ok(parent) => return Ok(Response::Remote(Target::parent(parent, attempt))),
                    Err(NoParent::TimedOut(failure)) => return Err(failure),
                    Err(NoParent::Stranded(failure)) => {
                        first_failure.get_or_insert(failure);
                        stranded.push(link);
                    }
                }
            }
            let failure = first_failure.unwrap_or_else(|| unavailable("no root is left to ask"));
            match (inner.config.orphan, &inner.storage) {
                (Orphan::Origin, Some(storage)) => {
                    return Ok(Response::Storage(Arc::clone(storage)));
                }
                (Orphan::Wait | Orphan::Origin, _) if !stranded.is_empty() => {}
                _ => return Err(failure),
            }
            // Every tree of the route is stranded: wait for the first that recovers.
            let recovered = select_all(stranded.iter().map(|link| link.recovered().boxed()));
            if timeout_at(deadline, recovered).await.is_err() {
                return Err(failure);
            }
        }
    }

    /// Returns the root of the tree of `link`, if it is to be asked itself and can be. Waits while a connection is
    /// made; a root that was found to be down is not waited for.
    async fn root_itself(&self, route: Route<'_>, link: &ParentLink) -> Option<Arc<Peer>> {
        let bytes_of_files = matches!(route, Route::Stripe(..));
        let root = link
            .root_beyond_parent()
            .filter(|_| self.direct && bytes_of_files)?;
        self.inner.homes.connection(root).await.ok()
    }

    /// The attempts that are left to a request by `route`, and the tree that each stands for.
    fn trees_of(&self, route: Route<'_>) -> impl Iterator<Item = (u8, usize)> {
        let placement = self.inner.membership.placement();
        (self.attempt..=u8::MAX).map_while(move |attempt| {
            let tree = match route {
                Route::Item(key) => placement.tree(key, attempt),
                Route::Stripe(path, stripe) => placement.tree_of_stripe(path, stripe, attempt),
                Route::Tree(tree) => (attempt == 0).then_some(tree),
            };
            Some((attempt, tree?))
        })
    }

    /// Sends `request` and waits until its answer begins. Sends it again, within the request timeout, if the
    /// connection is lost before that.
    async fn request(
        &self,
        route: Route<'_>,
        request: &Request,
    ) -> Result<Response<RemoteAnswer>, Failure> {
        let inner = &self.inner;
        // An invalid request would be refused by the peer, and blamed on it.
        request.check().map_err(|error| {
            let detail = format!("a request that cannot be sent: {error}");
            Failure::new(FailureKind::Io, detail)
        })?;
        let first = self.trees_of(route).next();
        let first = first.and_then(|(_, tree)| inner.trees.get(tree));
        let timeout = first.map_or(inner.config.request_timeout, |tree| tree.request_timeout);
        let deadline = Instant::now() + timeout;
        let mut retries = Retries::default();
        loop {
            let target = match self.target(route, deadline).await? {
                Response::Storage(storage) => return Ok(Response::Storage(storage)),
                Response::Remote(target) => target,
            };
            let begun = Instant::now();
            let sending = inner.send(&target, request, timeout);
            let error = match timeout_at(deadline, sending).await {
                Ok(Ok(answer)) => {
                    let latency = inner.counters.parent_latency(request);
                    if let Some(latency) = latency.filter(|_| !target.direct) {
                        latency.observe(begun.elapsed());
                    }
                    return Ok(Response::Remote(answer));
                }
                Ok(Err(error)) => error,
                Err(_elapsed) => StreamError::Silent(timeout),
            };
            let peer = &target.peer;
            inner.homes.leave(peer, &error);
            if !retries.may_replay(&error) || Instant::now() >= deadline {
                return Err(stream_failure(peer, &error));
            }
            inner.counters.replays.increment();
            self.wait_for_failover(route, peer, &error, deadline).await;
        }
    }

    /// After `error` from `peer`, whose connection was lost or may be about to end: waits until the links
    /// of `route` have noticed.
    async fn wait_for_failover(
        &self,
        route: Route<'_>,
        peer: &Peer,
        error: &StreamError,
        deadline: Instant,
    ) {
        let deadline = match error {
            StreamError::Lost(_) => deadline,
            // The connection may stay, and the request may go there again.
            _ => deadline.min(Instant::now() + RESET_DELAY),
        };
        for (_attempt, tree) in self.trees_of(route) {
            if let Some(link) = self.parent_link(tree) {
                link.moved_from(peer, deadline).await;
            }
        }
    }

    /// Prepares the repetition of a request whose `answer` ended with `error`: counts it, and waits until
    /// another target may be chosen.
    ///
    /// # Errors
    /// The failure to report if a repetition would not help, or there were too many.
    async fn prepare_retry(
        &self,
        route: Route<'_>,
        answer: &RemoteAnswer,
        error: AnswerError,
        retries: &mut Retries,
    ) -> Result<(), Failure> {
        let (inner, peer) = (&self.inner, &answer.in_flight);
        let error = match error {
            AnswerError::Failure(failure) => return Err(failure),
            AnswerError::Stream(error) => error,
        };
        match &error {
            StreamError::Wire(WireError::WrongHash) if retries.corrupt < Retries::CORRUPT_MAX => {
                retries.corrupt += 1;
                inner.counters.wrong_blocks.increment();
                tracing::warn!(peer = %peer.label, ?route, "a block's hash is wrong; asking again");
                peer.report_corrupt();
            }
            error if retries.replays < Retries::REPLAYS_MAX && retries.may_replay(error) => {
                retries.replays += 1;
                inner.counters.replays.increment();
            }
            error => return Err(stream_failure(peer, error)),
        }
        inner.homes.leave(peer, &error);
        // A new deadline: the answer had begun, so the request as a whole is making progress.
        let deadline = Instant::now() + inner.config.request_timeout;
        self.wait_for_failover(route, peer, &error, deadline).await;
        Ok(())
    }

    /// Sends a request whose answer is a head and pages of `T`s, and reads the whole answer. Sends it again
    /// if the connection is lost meanwhile.
    async fn request_items<T: DeserializeOwned>(
        &self,
        route: Route<'_>,
        request: &Request,
    ) -> Result<Response<(Head, Vec<T>)>, Failure> {
        let mut retries = Retries::default();
        loop {
            let mut answer = match self.request(route, request).await? {
                Response::Storage(storage) => return Ok(Response::Storage(storage)),
                Response::Remote(answer) => answer,
            };
            match read_items::<T>(&mut answer.reader, request).await {
                Ok(items) => return Ok(Response::Remote(items)),
                Err(error) => {
                    self.prepare_retry(route, &answer, error, &mut retries)
                        .await?;
                }
            }
        }
    }

    /// Answers [`Files::stat`], in as many requests as needed.
    async fn stat_batches(self, mut all: StatRequest) -> Result<Leased<StatAnswers>, Failure> {
        let names = std::mem::take(&mut all.names);
        let mut answers = Vec::with_capacity(names.len());
        let mut lease = None;
        for names in batches(names) {
            let batch = StatRequest {
                names,
                ..all.clone()
            };
            let request = Request::Stat(batch.clone());
            let response = self.request_items(Route::Item(&all.parent), &request);
            match response.await? {
                Response::Storage(storage) => {
                    let found = storage.stat(batch).await?;
                    lease = shorter(lease, found.lease);
                    answers.extend(found.value);
                }
                Response::Remote((head, items)) => {
                    if let Head::Stat { lease_ms, .. } = head {
                        lease = shorter(lease, from_ms(lease_ms));
                    }
                    for item in items {
                        answers.push(match item {
                            Ok(attributes) => Ok(check_attributes(attributes)?),
                            Err(Failure { kind, detail }) => Err(Failure::new(kind, detail)),
                        });
                    }
                }
            }
        }
        Ok(Leased {
            value: answers,
            lease,
        })
    }

    /// Reads one range, whole, and verifies it.
    async fn verified_range(self, request: RangeRequest) -> Result<RangeAnswer, Failure> {
        let path = request.path.clone();
        let route = Route::Stripe(&path, request.block() / STRIPE_BLOCKS);
        let message = Request::ReadRange(request.clone());
        let mut retries = Retries::default();
        loop {
            let mut answer = match self.request(route, &message).await? {
                Response::Storage(storage) => return storage.read_range(request).await,
                Response::Remote(answer) => answer,
            };
            match read_verified(&mut answer.reader, request.len).await {
                Ok(range) => {
                    self.inner.counters.blocks_verified.increment();
                    return Ok(range);
                }
                Err(error) => {
                    self.prepare_retry(route, &answer, error, &mut retries)
                        .await?;
                }
            }
        }
    }
}

/// The trees that may answer a request, in order.
#[derive(Clone, Copy, Debug)]
enum Route<'a> {
    /// Those of an item.
    Item(&'a ItemPath),
    /// Those of a stripe of a file.
    Stripe(&'a ItemPath, u64),
    /// This tree only.
    Tree(usize),
}

/// Reads the rest of an answer that is a head and pages of `T`s.
async fn read_items<T: DeserializeOwned>(
    reader: &mut FrameReader,
    request: &Request,
) -> Result<(Head, Vec<T>), AnswerError> {
    let body = expect_body(reader, FrameKind::Head, "head").await?;
    let head: Head = message::decode("head", &body)?;
    head.check(request)?;
    let mut pages = PageReader::new(usize::try_from(head.items()).unwrap_or(usize::MAX));
    while !pages.is_complete() {
        pages.add(&expect_body(reader, FrameKind::Page, "page").await?)?;
    }
    reader.finish()?;
    Ok((head, pages.take()))
}

impl UpstreamInner {
    /// Sends one request to `target` and waits for the header of its answer.
    async fn send(
        &self,
        target: &Target,
        request: &Request,
        timeout: Duration,
    ) -> Result<RemoteAnswer, StreamError> {
        let (peer, counters) = (&target.peer, &self.counters);
        let in_flight = peer.begin_request();
        let stream = open_stream(&peer.connection, target.attempt, request, timeout);
        let (mut reader, writer) = stream.await?;
        writer.finish();
        let (requests, received) = match target.direct {
            true => (&counters.roots_asked, &counters.root_bytes_received),
            false => (
                &counters.upstream_requests,
                &counters.upstream_bytes_received,
            ),
        };
        requests.increment();
        reader.meter = Some(received.clone());
        Ok(RemoteAnswer {
            first: reader.peek().await?.kind,
            reader,
            in_flight,
        })
    }
}

/// The failure that a broken stream to `peer` means to the requester.
fn stream_failure(peer: &Peer, error: &StreamError) -> Failure {
    let kind = match error {
        StreamError::Silent(_) | StreamError::Lost(_) | StreamError::Cancelled => {
            FailureKind::Unavailable
        }
        StreamError::Truncated | StreamError::Wire(_) => {
            tracing::warn!(peer = %peer.label, %error, "a peer broke the protocol");
            FailureKind::Corrupt
        }
    };
    Failure::new(kind, format!("node {}: {error}", peer.label))
}

/// The failure that an answer of `peer` which ended with `error` means to the requester.
fn answer_failure(peer: &Peer, error: AnswerError) -> Failure {
    match error {
        AnswerError::Failure(failure) => failure,
        AnswerError::Stream(error) => stream_failure(peer, &error),
    }
}

/// The failure for an answer that cannot be true.
fn impossible(what: &'static str) -> Failure {
    Failure::new(FailureKind::Corrupt, format!("the parent answered: {what}"))
}

/// The failure for an answer of the wrong kind.
fn wrong_answer() -> Failure {
    impossible("an answer to another question")
}

fn check_attributes(attributes: Attributes) -> Result<Attributes, Failure> {
    let times = [attributes.atime, attributes.mtime, attributes.ctime];
    let link_bytes = attributes.link_target.as_ref().map_or(0, Bytes::len);
    if times.iter().any(|time| time.nanoseconds >= 1_000_000_000)
        || link_bytes > ItemPath::BYTES_MAX
    {
        return Err(impossible("attributes that no file can have"));
    }
    Ok(attributes)
}

fn check_entry(mut entry: Entry) -> Result<Entry, Failure> {
    if ItemPath::check_name(&entry.name).is_err() {
        return Err(impossible("an entry whose name no file can have"));
    }
    entry.attributes = entry.attributes.map(check_attributes).transpose()?;
    Ok(entry)
}

impl Files for Upstream {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        Box::pin(list::open(self.clone(), request))
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        Box::pin(self.clone().stat_batches(request))
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        Box::pin(read::open(self.clone(), request))
    }

    fn read_range(&self, request: RangeRequest) -> FilesFuture<RangeAnswer> {
        Box::pin(self.clone().verified_range(request))
    }

    fn find(&self, hash: ContentHash, len: u64) -> FilesFuture<Bytes> {
        let this = self.clone();
        Box::pin(async move { this.find_in(0..this.trees(), hash, len).await })
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        Box::pin(bundle::open(self.clone(), request))
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        let this = self.clone();
        Box::pin(async move {
            // Metadata of a file belongs to the root of its directory.
            let key = path.split().map_or(path.clone(), |(parent, _)| parent);
            let request = Request::Xattrs { path: path.clone() };
            match this.request_items(Route::Item(&key), &request).await? {
                Response::Storage(storage) => storage.xattrs(path).await,
                Response::Remote((Head::Xattrs { lease_ms, .. }, value)) => Ok(Leased {
                    value,
                    lease: from_ms(lease_ms),
                }),
                Response::Remote(_) => Err(wrong_answer()),
            }
        })
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        let this = self.clone();
        Box::pin(async move {
            let request = Request::Usage { path: path.clone() };
            let response = this.request_items::<()>(Route::Item(&path), &request);
            match response.await? {
                Response::Storage(storage) => storage.usage(path).await,
                Response::Remote((Head::Usage(usage), _)) => Ok(usage),
                Response::Remote(_) => Err(wrong_answer()),
            }
        })
    }
}

/// Splits `names` into as few requests as the limits of one request allow.
fn batches(names: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let mut batches: Vec<Vec<Bytes>> = Vec::new();
    let mut bytes = 0;
    for name in names {
        bytes += name.len();
        match batches.last_mut() {
            Some(batch) if batch.len() < STAT_NAMES_MAX && bytes <= STAT_NAME_BYTES_MAX => {
                batch.push(name);
            }
            _ => {
                bytes = name.len();
                batches.push(vec![name]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameHeader;

    #[test]
    fn names_are_split_into_bounded_batches() {
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
            let request = Request::Stat(StatRequest {
                parent: ItemPath::root(),
                names,
                denied: None,
            });
            assert_eq!(request.check(), Ok(()));
            let body = message::encode("request", &request).unwrap();
            assert!(FrameHeader::new(FrameKind::Request, body.len()).is_ok());
        }
    }
}
