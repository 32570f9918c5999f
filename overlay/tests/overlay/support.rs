//! An in-memory namespace at the root, nodes that forward all requests, and raw QUIC peers.

use crate::waiting::until_some;
use bytes::Bytes;
use copperfs_overlay::identity::Identity;
use copperfs_overlay::loopback::Port;
use copperfs_overlay::wire::{
    FrameHeader, FrameKind, HEADER_BYTES, Hello, Question, Request, message,
};
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, BlockPart, BundleItem, BundleRequest, BundleStream, ContentHash,
    Cursor, Entry, Failure, FailureKind, FileKind, Files, FilesFuture, FilesystemUsage, Insertion,
    ItemAnswer, ItemPath, ItemRequest, LatestReceiver, LatestSender, Leased, LinkStatus,
    ListRequest, Listed, Listing, Member, Membership, NodeIdentity, OriginFingerprint, Overlay,
    OverlayConfig, OverlayError, PlanReader, ReadRequest, ReadStream, Secret, Service, StatAnswers,
    StatRequest, Tally, Timestamp, Upstream, Version, XattrList,
};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// Bytes of a part that the root's reads yield.
pub(crate) const PART_BYTES: u64 = 64 << 10;

pub(crate) fn path(text: &str) -> ItemPath {
    ItemPath::parse(text.as_bytes()).unwrap()
}

/// The repeated content of every file. Its length is a prime number, so that all blocks differ.
const PERIOD: usize = 1_000_003;
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    (0..PERIOD + (1 << 20))
        .map(|at| u8::try_from(at % PERIOD % 251).unwrap())
        .collect()
});

/// Up to 1 MiB from `from` of every file.
pub(crate) fn content(from: u64, len: u64) -> Bytes {
    let start = usize::try_from(from).unwrap() % PERIOD;
    PATTERN.slice(start..start + usize::try_from(len).unwrap())
}

pub(crate) fn attributes(kind: FileKind, size: u64) -> Attributes {
    let time = Timestamp {
        seconds: -1,
        nanoseconds: 999_999_999,
    };
    Attributes {
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        links: 1,
        device: 0,
        size,
        blocks: size.div_ceil(512),
        block_size: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        version: Version::of(&size.to_le_bytes()),
        link_target: None,
        content: None,
    }
}

/// Counts its live instances.
pub(crate) struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub(crate) fn new(gauge: &Arc<AtomicUsize>) -> Self {
        gauge.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(gauge))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The events at one node.
#[derive(Default)]
pub(crate) struct NodeEvents {
    /// Answers in progress.
    pub(crate) alive: Arc<AtomicUsize>,
    /// Bytes that reads have yielded.
    pub(crate) produced: AtomicU64,
    /// The nodes that have cleared, in order over all nodes of one tree.
    pub(crate) cleared: Arc<Mutex<Vec<usize>>>,
}

/// The storage of a root: `dir` (three files), `huge` (`n` entries for a path `huge/n`), any path as a file
/// of the requested size; `absent`; `hang` never answers; `fails` fails after its first part.
pub(crate) struct TestStorage {
    pub(crate) seen: Arc<NodeEvents>,
}

/// The service of a test's node, which forwards requests to its client.
pub(crate) struct TestService {
    pub(crate) rank: usize,
    pub(crate) upstream: Upstream,
    pub(crate) seen: Arc<NodeEvents>,
    pub(crate) report: Bytes,
    pub(crate) clear_hangs: bool,
    /// `withdraw` waits for this.
    pub(crate) withdraw_waits: Option<tokio::sync::watch::Receiver<bool>>,
    pub(crate) finds: FindAnswer,
    pub(crate) answers: CustomAnswers,
}

type Handler<Q, A> =
    Arc<dyn Fn(Q) -> BoxFuture<'static, Result<A, Failure>> + Send + Sync + 'static>;
type SteeredChild = (String, usize, LatestReceiver, LatestSender);

/// The answers of a test's node to requests other than for files. The default is that of the trait.
#[derive(Clone, Default)]
pub(crate) struct CustomAnswers {
    items: Option<Handler<ItemRequest, ItemAnswer>>,
    /// Whether all items are cached.
    pub(crate) here: bool,
    /// The items that a home gives by their hash; it takes others.
    pub(crate) contents: Option<Arc<Mutex<HashMap<ContentHash, Bytes>>>>,
    steering: Option<Handler<SteeredChild, ()>>,
    commands: Option<Handler<(usize, Bytes), Bytes>>,
}

impl CustomAnswers {
    pub(crate) fn items<F>(
        mut self,
        answer: impl Fn(ItemRequest) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<ItemAnswer, Failure>> + Send + 'static,
    {
        self.items = Some(Arc::new(move |request| answer(request).boxed()));
        self
    }

    pub(crate) fn steering<F>(
        mut self,
        steer: impl Fn(SteeredChild) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.steering = Some(Arc::new(move |stream| steer(stream).boxed()));
        self
    }

    pub(crate) fn commands<F>(
        mut self,
        answer: impl Fn(usize, Bytes) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
    {
        self.commands = Some(Arc::new(move |(tree, command)| {
            answer(tree, command).boxed()
        }));
        self
    }
}

/// How a test's node answers requests by hash.
pub(crate) enum FindAnswer {
    Nothing,
    /// It holds these bytes.
    Holds(Bytes),
    /// It answers every request with these bytes.
    Corrupt(Bytes),
    Hangs,
}

/// A request that is never answered.
fn hang<T: Send + 'static>(seen: &NodeEvents) -> BoxFuture<'static, T> {
    let alive = Alive::new(&seen.alive);
    async move {
        let _alive = alive;
        std::future::pending().await
    }
    .boxed()
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, T> {
    std::future::ready(value).boxed()
}

impl Files for TestStorage {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let ListRequest {
            path,
            cursor,
            limit,
            known,
        } = request;
        let names: Vec<&[u8]> = path.components().collect();
        let count = match names[..] {
            [b"dir"] => 3,
            [b"huge", n] => std::str::from_utf8(n).unwrap().parse().unwrap(),
            [b"hang"] => return hang(&self.seen),
            _ => return ready(Err(Failure::not_found(&path))),
        };
        let first: usize =
            cursor.map_or(0, |at| std::str::from_utf8(&at.0).unwrap().parse().unwrap());
        let end = count.min(first + limit);
        let entries = (first..end)
            .map(|i| Entry {
                name: format!("entry-{i:06}-\u{e9}\n").into(),
                kind: FileKind::File,
                attributes: Some(attributes(FileKind::File, i as u64)),
            })
            .collect();
        let listing = Listing {
            directory: attributes(FileKind::Directory, 4096),
            entries,
            next: (end < count).then(|| Cursor(end.to_string().into())),
        };
        ready(Ok(Listed::new(listing, known)))
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let StatRequest { parent, names, .. } = request;
        let answers = names.iter().map(|name| match &name[..] {
            b"absent" => Err(Failure::not_found(&parent.join(name).unwrap())),
            _ => Ok(attributes(FileKind::File, name.len() as u64)),
        });
        ready(Ok(Leased::lasting(answers.collect())))
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        if request.directory == path("absent") {
            return ready(Err(Failure::not_found(&request.directory)));
        }
        let items = request.files.into_iter().enumerate();
        let items = items.filter(|(_, file)| &file.name[..] != b"absent");
        let items = items.map(|(index, file)| {
            if &file.name[..] == b"fails" {
                return Err(Failure::new(FailureKind::Unavailable, "enough"));
            }
            let bytes = content(index as u64, file.size);
            let lie = u8::from(&file.name[..] == b"wrong");
            let mut hash: [u8; 32] = blake3::hash(&bytes).into();
            hash[0] ^= lie;
            let hash = ContentHash(hash);
            Ok(BundleItem { index, bytes, hash })
        });
        ready(Ok(stream::iter(items).boxed()))
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        if request.path == path("absent") {
            return ready(Err(Failure::not_found(&request.path)));
        }
        if request.path == path("hang") {
            return hang(&self.seen);
        }
        let fails = request.path == path("fails");
        let (seen, alive) = (Arc::clone(&self.seen), Alive::new(&self.seen.alive));
        let blocks = request.first_block..request.first_block + request.block_count;
        let parts = blocks.flat_map(move |block| {
            let (start, len) = (
                block * BLOCK_BYTES,
                ReadRequest::block_len(request.size, block),
            );
            let seen = Arc::clone(&seen);
            let pieces = (0..len.div_ceil(PART_BYTES)).map(move |piece| {
                let from = piece * PART_BYTES;
                let bytes = content(start + from, PART_BYTES.min(len - from));
                seen.produced
                    .fetch_add(bytes.len() as u64, Ordering::SeqCst);
                BlockPart::Bytes(bytes)
            });
            let end = std::iter::once_with(move || {
                BlockPart::End(ContentHash(blake3::hash(&content(start, len)).into()))
            });
            pieces.chain(end)
        });
        let parts = parts.enumerate().map(move |(index, part)| {
            let _alive = &alive;
            if fails && index == 1 {
                return Err(Failure::new(FailureKind::Stale, "changed in mid-stream"));
            }
            Ok(part)
        });
        // Yields between parts, as a stream that waits for storage does.
        ready(Ok(stream::iter(parts)
            .then(async |part| {
                tokio::task::yield_now().await;
                part
            })
            .boxed()))
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        if path.is_root() {
            return ready(Err(Failure::new(
                FailureKind::Unsupported,
                "no attributes here",
            )));
        }
        ready(Ok(Leased::lasting(vec![
            (Bytes::from_static(b"user.a"), Bytes::from_static(b"\0\xff")),
            (
                Bytes::from_static(b"user.big"),
                Bytes::from(vec![7; 64 << 10]),
            ),
        ])))
    }

    fn usage(&self, _path: ItemPath) -> FilesFuture<FilesystemUsage> {
        ready(Ok(FilesystemUsage {
            blocks: 1 << 40,
            block_size: 4096,
            ..Default::default()
        }))
    }
}

/// A service with the default answers of the trait.
struct DefaultService;

impl Service for DefaultService {
    fn files(&self, _attempt: u8) -> Arc<dyn Files> {
        unreachable!("files are asked of the real one")
    }

    fn report(&self) -> Bytes {
        Bytes::new()
    }

    fn clear(&self, _path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>> {
        ready(Ok(true))
    }

    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>> {
        ready(Ok(Vec::new()))
    }
}

impl Service for TestService {
    /// Receives all pages, and carries out none.
    fn warm(&self, mut plan: PlanReader, tally: Tally) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while plan.page().await.is_some() {}
            drop(tally);
        })
    }

    fn files(&self, attempt: u8) -> Arc<dyn Files> {
        Arc::new(self.upstream.at(attempt))
    }

    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>> {
        ready(Ok(vec![OriginFingerprint {
            prefix: path("lus"),
            fingerprint: [7; 16],
        }]))
    }

    fn find(&self, hash: ContentHash, len: u64) -> BoxFuture<'static, Option<Bytes>> {
        let is_it =
            |bytes: &Bytes| blake3::hash(bytes).as_bytes() == &hash.0 && bytes.len() as u64 == len;
        match &self.finds {
            FindAnswer::Holds(bytes) if is_it(bytes) => ready(Some(bytes.clone())),
            FindAnswer::Corrupt(bytes) => ready(Some(bytes.clone())),
            FindAnswer::Hangs => hang(&self.seen),
            FindAnswer::Nothing | FindAnswer::Holds(_) => ready(None),
        }
    }

    fn item_is_here(&self, _request: &ItemRequest) -> bool {
        self.answers.here
    }

    fn item(&self, request: ItemRequest) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        match &self.answers.items {
            Some(answer) => answer(request),
            None => DefaultService.item(request),
        }
    }

    fn content(&self, hash: ContentHash) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        match &self.answers.contents {
            Some(held) => std::future::ready(Ok(held.lock().unwrap().get(&hash).cloned())).boxed(),
            None => DefaultService.content(hash),
        }
    }

    fn insert(
        &self,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        match &self.answers.contents {
            Some(held) => {
                held.lock().unwrap().insert(hash, bytes);
                std::future::ready(Ok(Insertion::Kept)).boxed()
            }
            None => DefaultService.insert(hash, bytes),
        }
    }

    fn steer(
        &self,
        child: String,
        tree: usize,
        up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        match &self.answers.steering {
            Some(steer) => steer((child, tree, up, down)),
            None => DefaultService.steer(child, tree, up, down),
        }
    }

    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        match &self.answers.commands {
            Some(answer) => answer((tree, command)),
            None => DefaultService.command(tree, command),
        }
    }

    fn report(&self) -> Bytes {
        self.report.clone()
    }

    fn clear(&self, path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>> {
        if self.clear_hangs {
            return hang(&self.seen);
        }
        if path == self::path("refused") {
            let detail = format!("rank {} refuses", self.rank);
            return ready(Err(Failure::new(FailureKind::PermissionDenied, detail)));
        }
        self.seen.cleared.lock().unwrap().push(self.rank);
        ready(Ok(true))
    }

    fn withdraw(&self, _path: ItemPath) -> BoxFuture<'static, ()> {
        match self.withdraw_waits.clone() {
            Some(mut told) => Box::pin(async move { drop(told.wait_for(|told| *told).await) }),
            None => ready(()),
        }
    }
}

/// A tree of nodes in this process. Dropping it ends all nodes.
pub(crate) struct TestTree {
    pub(crate) members: Vec<Member>,
    pub(crate) secret: Secret,
    pub(crate) arity: usize,
    pub(crate) roots: Vec<usize>,
    pub(crate) timeout: Duration,
    pub(crate) nodes: Vec<Option<Overlay>>,
    pub(crate) seen: Vec<Arc<NodeEvents>>,
    cleared: Arc<Mutex<Vec<usize>>>,
    _ports: Vec<Port>,
}

impl TestTree {
    /// A member list of `len` nodes on free ports, none of them started.
    pub(crate) fn plan(len: usize, arity: usize, timeout: Duration) -> Self {
        let ports: Vec<Port> = (0..len).map(|_| Port::udp().unwrap()).collect();
        let members = ports
            .iter()
            .enumerate()
            .map(|(rank, port)| Member {
                name: format!("node{rank}"),
                address: port.address().to_string(),
            })
            .collect();
        let cleared = Arc::new(Mutex::new(Vec::new()));
        let seen = (0..len)
            .map(|_| {
                Arc::new(NodeEvents {
                    cleared: Arc::clone(&cleared),
                    ..NodeEvents::default()
                })
            })
            .collect();
        Self {
            members,
            secret: Secret::generate().unwrap(),
            arity,
            roots: vec![0],
            timeout,
            nodes: (0..len).map(|_| None).collect(),
            seen,
            cleared,
            _ports: ports,
        }
    }

    /// `len` nodes, started and connected.
    pub(crate) async fn start(len: usize, arity: usize) -> Self {
        let mut tree = Self::plan(len, arity, Duration::from_secs(20));
        tree.start_all().await;
        tree
    }

    pub(crate) async fn start_all(&mut self) {
        for rank in 0..self.members.len() {
            self.start_node(rank);
        }
        for rank in 0..self.members.len() {
            self.connected(rank).await;
        }
    }

    pub(crate) fn start_node(&mut self, rank: usize) {
        self.nodes[rank] = Some(self.try_start(rank, self.config(rank), |_| {}).unwrap());
    }

    pub(crate) fn start_node_as(&mut self, rank: usize, change: impl FnOnce(&mut TestService)) {
        self.nodes[rank] = Some(self.try_start(rank, self.config(rank), change).unwrap());
    }

    /// Restarts node `rank` with other answers.
    pub(crate) async fn restart(&mut self, rank: usize, answers: CustomAnswers) {
        if let Some(node) = self.nodes[rank].take() {
            within(2, node.shutdown()).await;
        }
        // The system may free the address late.
        let node = until_some(SOON, "its address is free", async || {
            let answers = answers.clone();
            let config = self.config(rank);
            match self.try_start(rank, config, |service| service.answers = answers) {
                Ok(node) => Some(node),
                Err(OverlayError::Listen { .. }) => None,
                Err(error) => panic!("{error}"),
            }
        });
        self.nodes[rank] = Some(node.await);
    }

    pub(crate) fn try_start(
        &self,
        rank: usize,
        config: OverlayConfig,
        change: impl FnOnce(&mut TestService),
    ) -> Result<Overlay, OverlayError> {
        let seen = Arc::clone(&self.seen[rank]);
        let storage = self.roots.contains(&rank).then(|| {
            let seen = Arc::clone(&seen);
            Arc::new(TestStorage { seen }) as Arc<dyn Files>
        });
        Overlay::start(config, storage, |upstream| {
            let report = Bytes::from(format!("{{\"rank\":{rank}}}"));
            let mut service = TestService {
                rank,
                upstream,
                seen,
                report,
                clear_hangs: false,
                withdraw_waits: None,
                finds: FindAnswer::Nothing,
                answers: CustomAnswers::default(),
            };
            change(&mut service);
            Arc::new(service)
        })
    }

    pub(crate) fn config(&self, rank: usize) -> OverlayConfig {
        OverlayConfig {
            arity: self.arity,
            roots: self.roots.clone(),
            listen: self.members[rank].address.parse().unwrap(),
            request_timeout: self.timeout,
            ..OverlayConfig::new(
                self.members.clone(),
                NodeIdentity::Member(rank),
                self.secret.clone(),
            )
        }
    }

    pub(crate) fn node(&self, rank: usize) -> &Overlay {
        self.nodes[rank].as_ref().unwrap()
    }

    pub(crate) fn parent(&self, rank: usize) -> Upstream {
        self.node(rank).upstream().clone()
    }

    /// The hello of node `rank` in the first tree, as a frame.
    pub(crate) fn hello(&self, rank: usize) -> Vec<u8> {
        hello(&self.said(rank))
    }

    pub(crate) fn said(&self, rank: usize) -> Hello {
        let (arity, roots) = (self.arity, self.roots.clone());
        let membership = Membership::new(
            self.members.clone(),
            arity,
            roots,
            NodeIdentity::Member(rank),
        )
        .unwrap();
        membership.hello(0)
    }

    /// The link status of node `rank` in the first tree in which it is not the root.
    pub(crate) fn status(&self, rank: usize) -> LinkStatus {
        self.parent(rank).links()[0].status.clone()
    }

    pub(crate) async fn connected(&self, rank: usize) {
        within(10, self.parent(rank).first_connected()).await;
    }

    pub(crate) fn address(&self, rank: usize) -> SocketAddr {
        self.members[rank].address.parse().unwrap()
    }

    /// Ranks in the order in which they cleared.
    pub(crate) fn cleared(&self) -> Vec<usize> {
        self.cleared.lock().unwrap().clone()
    }

    pub(crate) fn alive(&self) -> usize {
        self.seen
            .iter()
            .map(|seen| seen.alive.load(Ordering::SeqCst))
            .sum()
    }
}

/// Awaits `future`, and fails the test after `seconds`.
pub(crate) async fn within<T>(seconds: u64, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(seconds), future)
        .await
        .expect("takes too long")
}

/// An idle machine needs less than this for all that a test waits for.
pub(crate) const SOON: Duration = Duration::from_secs(5);

pub(crate) fn hash_of(bytes: &[u8]) -> ContentHash {
    ContentHash(*blake3::hash(bytes).as_bytes())
}

/// A read of all of a file of `size` bytes.
pub(crate) fn whole(name: &str, size: u64) -> ReadRequest {
    whole_of(path(name), size)
}

/// Like [`whole`].
pub(crate) fn whole_of(path: ItemPath, size: u64) -> ReadRequest {
    ReadRequest {
        path,
        version: Version::of(b"1"),
        size,
        first_block: 0,
        block_count: size.div_ceil(BLOCK_BYTES),
        content: None,
        through: false,
    }
}

/// Reads a stream and verifies every block. Returns the bytes, and how it ended.
pub(crate) async fn drain(mut parts: ReadStream) -> (u64, Result<(), Failure>) {
    let (mut total, mut block, mut hasher) = (0, 0, blake3::Hasher::new());
    while let Some(part) = parts.next().await {
        match part {
            Ok(BlockPart::Bytes(bytes)) => {
                block += bytes.len() as u64;
                hasher.update(&bytes);
            }
            Ok(BlockPart::Restart) => {
                block = 0;
                hasher.reset();
            }
            Ok(BlockPart::End(hash)) => {
                assert_eq!(hash.0, *hasher.finalize().as_bytes());
                hasher.reset();
                total += std::mem::take(&mut block);
            }
            Err(failure) => return (total + block, Err(failure)),
        }
    }
    (total + block, Ok(()))
}

/// The kind of a result that must be a failure.
pub(crate) fn kind<T>(result: Result<T, Failure>) -> FailureKind {
    match result {
        Ok(_) => panic!("this must fail"),
        Err(failure) => failure.kind,
    }
}

/// A frame's bytes.
pub(crate) fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    [
        &FrameHeader::new(kind, body.len()).unwrap().encode()[..],
        body,
    ]
    .concat()
}

/// The frame of an unchecked request.
pub(crate) fn question(request: Request) -> Vec<u8> {
    let question = Question {
        attempt: 0,
        request,
    };
    let body = message::encode("request", &question).unwrap();
    frame(FrameKind::Request, &body)
}

pub(crate) fn hello(hello: &Hello) -> Vec<u8> {
    frame(FrameKind::Hello, &message::encode("hello", hello).unwrap())
}

/// A raw client endpoint with `tls`.
pub(crate) fn raw_client(tls: rustls::ClientConfig) -> quinn::Endpoint {
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let mut endpoint = quinn::Endpoint::client(LOOPBACK.parse().unwrap()).unwrap();
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    endpoint
}

/// A raw connection to `address` as a member of the job, before its hello.
pub(crate) async fn raw_member(
    secret: &Secret,
    address: SocketAddr,
) -> (quinn::Endpoint, quinn::Connection) {
    let identity = Identity::new(secret).unwrap();
    let endpoint = raw_client(identity.client(&[copperfs_overlay::wire::ALPN]).unwrap());
    let connecting = endpoint.connect(address, Identity::NAME).unwrap();
    let connection = within(5, connecting).await.unwrap();
    (endpoint, connection)
}

/// Sends `said` over a member's connection to `address`. Returns the reason with which the node closes it.
///
/// QUIC delivers the reason in one packet, which may be lost (RFC 9000, section 10.2; a busy machine loses
/// some packets of its loopback too). Then the peer learns by a reset only that the connection is gone. It
/// connects again, as a child does, and gets the reason.
pub(crate) async fn refusal(secret: &Secret, address: SocketAddr, said: &[u8]) -> String {
    for _ in 0..5 {
        let (_endpoint, connection) = raw_member(secret, address).await;
        let (mut send, _recv) = connection.open_bi().await.unwrap();
        let _refused = send.write_all(said).await;
        match within(5, connection.closed()).await {
            quinn::ConnectionError::Reset => {}
            error => return error.to_string(),
        }
    }
    panic!("five connections were reset without a reason");
}

/// Like [`raw_member`], at node 0 of `tree`, after the hello of node `rank`.
pub(crate) async fn raw_child(
    tree: &TestTree,
    rank: usize,
) -> (quinn::Endpoint, quinn::Connection) {
    let (endpoint, connection) = raw_member(&tree.secret, tree.address(0)).await;
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(&tree.hello(rank)).await.unwrap();
    send.finish().unwrap();
    let answer = within(5, recv.read_to_end(64)).await.unwrap();
    assert_eq!(answer, frame(FrameKind::Welcome, &[1]));
    (endpoint, connection)
}

/// A parent that accepts every child and answers each request with `answer`. Then it ends the stream if `finish`, and
/// leaves it open otherwise.
pub(crate) fn fake_parent(
    secret: &Secret,
    listen: SocketAddr,
    finish: bool,
    answer: impl Fn() -> Vec<u8> + Send + Sync + 'static,
) -> (quinn::Endpoint, tokio::task::JoinHandle<()>) {
    let tls = Identity::new(secret).unwrap().server().unwrap();
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let endpoint = quinn::Endpoint::server(config, listen).unwrap();
    let accepting = endpoint.clone();
    let task = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(incoming) = accepting.accept().await {
            let Ok(connection) = incoming.await else {
                continue;
            };
            let mut first = true;
            while let Ok((mut send, mut recv)) = connection.accept_bi().await {
                let mut header = [0; HEADER_BYTES];
                recv.read_exact(&mut header).await.unwrap();
                let welcome = frame(FrameKind::Welcome, &[1]);
                let bytes = if first { welcome } else { answer() };
                // The peer may stop reading at the first wrong byte.
                let _stopped = send.write_all(&bytes).await;
                if first || finish {
                    let _stopped = send.finish();
                }
                first = false;
                kept.push((send, recv));
            }
        }
    });
    (endpoint, task)
}
