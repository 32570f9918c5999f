//! The decoders in use: a real node over real QUIC, and a peer that sends anything.
//!
//! Slower than the pure targets by two orders of magnitude, and the only ones that cover the order of frames on the server
//! side, the blocks of the client, and broken streams.

use crate::seeds::frame;
use bytes::Bytes;
use copperfs_overlay::identity::Identity;
use copperfs_overlay::wire::{ALPN, FrameHeader, FrameKind, HEADER_BYTES, message};
use copperfs_overlay::{BlockPart, Failure, FailureKind, Files, FilesystemUsage, ItemPath, LatestReceiver, LatestSender, Leased, Member, OriginFingerprint, Overlay, OverlayConfig, ReadRequest, ReadStream, Membership, NodeIdentity, Secret, Service, StatAnswers, Version, XattrList, FilesFuture, ListRequest, Listed, StatRequest};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The only block of the requested file.
pub const BLOCK: [u8; 100] = [0x5a; 100];
/// Its hash.
pub static BLOCK_HASH: LazyLock<[u8; 32]> = LazyLock::new(|| blake3::hash(&BLOCK).into());
/// How long a node waits for bytes that a peer has announced.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(300);
/// Longer than any answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all();
    builder.build().expect("a runtime")
});

/// Answers a child's client with any bytes. The first byte selects the request.
pub fn answers(data: &[u8]) {
    static CHILD: Mutex<Option<Child>> = Mutex::new(None);
    let Some((&question, answer)) = data.split_first() else {
        return;
    };
    let mut held = CHILD.lock().expect("no panic");
    let child = held.get_or_insert_with(|| RUNTIME.block_on(Child::start()));
    *child.answer.lock().expect("no panic") = Bytes::copy_from_slice(answer);
    let asked = async { timeout(ANSWER_TIMEOUT, child.ask(question)).await };
    RUNTIME
        .block_on(asked)
        .expect("an answer or a failure in time");
    // After corrupt blocks the child bars its parent, so another child is needed.
    if child.overlay.counters().wrong_blocks.get() > 1 {
        let _guard = RUNTIME.enter();
        *held = None;
    }
}

/// Sends any bytes to a node, as its child; the answer consists of valid frames.
pub fn requests(data: &[u8]) {
    static PARENT: LazyLock<RootNode> = LazyLock::new(|| RUNTIME.block_on(RootNode::start()));
    let parent = &*PARENT;
    let asked = async { timeout(ANSWER_TIMEOUT, parent.ask(data)).await };
    let answer = RUNTIME
        .block_on(asked)
        .expect("an answer or a failure in time");
    let mut rest = &answer[..];
    while !rest.is_empty() {
        let (header, after) = rest
            .split_first_chunk::<HEADER_BYTES>()
            .expect("a whole header");
        let header = FrameHeader::parse(*header).expect("a sound header");
        let (body, after) = after
            .split_at_checked(header.len as usize)
            .expect("a whole body");
        if header.kind == FrameKind::Failure {
            let failure: Failure = message::decode("failure", body).expect("a failure");
            assert!(failure.detail.len() <= Failure::DETAIL_BYTES_MAX);
            assert!(after.is_empty(), "a failure is the last frame");
        }
        rest = after;
    }
}

fn path(text: &str) -> ItemPath {
    ItemPath::parse(text.as_bytes()).expect("a path")
}

fn config(secret: &Secret, rank: usize, parent: SocketAddr) -> OverlayConfig {
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let own = free.local_addr().expect("an address");
    let member = |rank: usize, address: SocketAddr| Member {
        name: format!("n{rank}"),
        address: address.to_string(),
    };
    let members = vec![member(0, parent), member(1, own)];
    OverlayConfig {
        arity: 2,
        listen: if rank == 0 { parent } else { own },
        request_timeout: REQUEST_TIMEOUT,
        ..OverlayConfig::new(members, NodeIdentity::Member(rank), secret.clone())
    }
}

fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("an address")
}

/// A node with a parent whose answers are set.
struct Child {
    answer: Arc<Mutex<Bytes>>,
    files: Arc<dyn Files>,
    overlay: Overlay,
    parent: tokio::task::JoinHandle<()>,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.parent.abort();
    }
}

impl Child {
    async fn start() -> Self {
        let secret = Secret::generate().expect("a secret");
        let tls = Identity::new(&secret)
            .and_then(|own| own.server())
            .expect("TLS");
        let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).expect("TLS for QUIC");
        let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
        let address = free_address();
        let endpoint = quinn::Endpoint::server(config, address).expect("an endpoint");
        let answer = Arc::new(Mutex::new(Bytes::new()));
        let parent = tokio::spawn(answer_all(endpoint, Arc::clone(&answer)));
        let config = self::config(&secret, 1, address);
        let overlay = Overlay::start(config, None, |_upstream| Arc::new(Nothing));
        let overlay = overlay.expect("a node");
        let upstream = overlay.upstream().clone();
        upstream.first_connected().await;
        Self {
            answer,
            files: Arc::new(upstream),
            overlay,
            parent,
        }
    }

    async fn ask(&self, question: u8) {
        let (files, dir) = (&self.files, path("dir"));
        match question % 5 {
            0 => {
                let Ok(listing) = files.list_page(dir.clone(), None, 50).await else {
                    return;
                };
                assert!(listing.entries.len() <= 50);
                for entry in &listing.entries {
                    dir.join(&entry.name).expect("a name that a file can have");
                }
            }
            1 => {
                let names = vec![Bytes::new(), Bytes::from_static(b"a")];
                let answers = files.stat_names(dir, names).await;
                assert!(answers.is_err() || answers.is_ok_and(|answers| answers.value.len() == 2));
            }
            2 => drop(files.xattrs(dir).await),
            3 => drop(files.usage(dir).await),
            _ => self.read().await,
        }
    }

    /// A read returns at most the bytes of the file, and no part after a failure.
    async fn read(&self) {
        let size = BLOCK.len() as u64;
        let (path, version) = (path("file"), Version::from_data([7; 16]));
        let request = ReadRequest {
            path,
            version,
            size,
            first_block: 0,
            block_count: 1,
            content: None,
            through: false,
        };
        let Ok(mut parts) = self.files.read(request).await else {
            return;
        };
        let (mut bytes, mut ends, mut failed) = (0, 0, false);
        let mut whole = Vec::new();
        while let Some(part) = parts.next().await {
            assert!(!failed, "a part after a failure");
            match part {
                Ok(BlockPart::Bytes(piece)) => {
                    bytes += piece.len();
                    whole.extend_from_slice(&piece);
                }
                Ok(BlockPart::Restart) => {
                    assert_eq!(ends, 0, "a verified block is taken back");
                    bytes = 0;
                    whole.clear();
                }
                Ok(BlockPart::End(hash)) => {
                    assert_eq!(hash.0, *blake3::hash(&whole).as_bytes());
                    ends += 1;
                }
                Err(_) => failed = true,
            }
        }
        assert!(bytes <= BLOCK.len());
        assert!(failed || (bytes == BLOCK.len() && ends == 1));
    }
}

/// A parent that accepts every child, and answers every request with `answer`.
async fn answer_all(endpoint: quinn::Endpoint, answer: Arc<Mutex<Bytes>>) {
    while let Some(incoming) = endpoint.accept().await {
        let Ok(connection) = incoming.await else {
            continue;
        };
        let mut welcome = Some(frame(FrameKind::Welcome, &[1]));
        while let Ok((mut send, mut recv)) = connection.accept_bi().await {
            // The whole request is read, so that no stopped stream cuts the answer.
            let bytes = match welcome.take() {
                Some(bytes) => bytes.into(),
                None => {
                    let _question = recv.read_to_end(1 << 20).await;
                    answer.lock().expect("no panic").clone()
                }
            };
            let _stopped = send.write_all(&bytes).await;
            let _stopped = send.finish();
        }
    }
}

/// A root, and the connection of a child that has sent its hello.
struct RootNode {
    connection: quinn::Connection,
    _endpoint: quinn::Endpoint,
    _overlay: Overlay,
}

impl RootNode {
    async fn start() -> Self {
        let secret = Secret::generate().expect("a secret");
        let address = free_address();
        let storage = Some(Arc::new(Nothing) as Arc<dyn Files>);
        let config = config(&secret, 0, address);
        let hello = Membership::new(config.members.clone(), 2, vec![0], NodeIdentity::Member(1));
        let hello = hello.expect("a membership").hello(0);
        let overlay = Overlay::start(config, storage, |_upstream| Arc::new(Nothing));
        let tls = Identity::new(&secret)
            .and_then(|own| own.client(&[ALPN]))
            .expect("TLS");
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).expect("TLS for QUIC");
        let mut endpoint =
            quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
        let connecting = endpoint
            .connect(address, Identity::NAME)
            .expect("a handshake");
        let connection = connecting.await.expect("a connection");
        // Requests of the root to its child are reset at once.
        let asked = connection.clone();
        drop(tokio::spawn(async move {
            while let Ok(streams) = asked.accept_bi().await {
                drop(streams);
            }
        }));
        let hello = message::encode("hello", &hello).expect("a hello");
        let (mut send, mut recv) = connection.open_bi().await.expect("a stream");
        send.write_all(&frame(FrameKind::Hello, &hello))
            .await
            .expect("sent");
        send.finish().expect("sent");
        recv.read_to_end(64).await.expect("welcome");
        Self {
            connection,
            _endpoint: endpoint,
            _overlay: overlay.expect("a node"),
        }
    }

    /// Sends `bytes` on a new stream. Returns the answer; empty if the stream is reset.
    async fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        let (mut send, mut recv) = self
            .connection
            .open_bi()
            .await
            .expect("the connection stays");
        let _stopped = send.write_all(bytes).await;
        let _stopped = send.finish();
        recv.read_to_end(8 << 20).await.unwrap_or_default()
    }
}

/// A service without files.
struct Nothing;

fn none<T: Send + 'static>() -> BoxFuture<'static, Result<T, Failure>> {
    std::future::ready(Err(Failure::new(FailureKind::NotFound, "nothing here"))).boxed()
}

impl Files for Nothing {
    fn list(&self, _request: ListRequest) -> FilesFuture<Listed> {
        none()
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        let StatRequest { parent, names, .. } = request;
        let absent = |name: &Bytes| {
            // Only valid names get here, and the empty name of the directory itself.
            let child = parent.join(name).or_else(|error| match name.is_empty() {
                true => Ok(parent.clone()),
                false if parent.as_bytes().len() + name.len() >= ItemPath::BYTES_MAX => {
                    Ok(parent.clone())
                }
                false => Err(error),
            });
            Err(Failure::not_found(&child.expect("a name")))
        };
        let answers = names.iter().map(absent).collect();
        std::future::ready(Ok(Leased::lasting(answers))).boxed()
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        assert!(ReadRequest::block_len(request.size, request.first_block) > 0);
        none()
    }

    fn xattrs(&self, _path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        none()
    }

    fn usage(&self, _path: ItemPath) -> FilesFuture<FilesystemUsage> {
        std::future::ready(Ok(FilesystemUsage::default())).boxed()
    }
}

impl Service for Nothing {
    fn steer(
        &self,
        _child: String,
        _tree: usize,
        mut up: LatestReceiver,
        down: LatestSender,
    ) -> BoxFuture<'static, Result<(), Failure>> {
        // An echo.
        async move {
            while let Some(frame) = up.recv().await {
                let _gone = down.send(frame);
            }
            Ok(())
        }
        .boxed()
    }

    fn command(&self, _tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        std::future::ready(Ok(command)).boxed()
    }

    fn files(&self, _attempt: u8) -> Arc<dyn Files> {
        Arc::new(Self)
    }

    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>> {
        none()
    }

    fn report(&self) -> Bytes {
        Bytes::from_static(b"{}")
    }

    fn clear(&self, _path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>> {
        std::future::ready(Ok(true)).boxed()
    }
}
