//! Trees whose nodes have cables that can be pulled, and readers that check every byte meanwhile.

use crate::support::{TestTree, content, path, whole, within};
use crate::waiting::until;
use copperfs_overlay::transport::{KernelNetwork, Network};
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, Failure, Files, LinkStatus, OverlayConfig, ReadStream, Upstream,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::collections::HashSet;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A node's cable.
#[derive(Clone, Debug, Default)]
pub(super) struct Cable {
    pulled: Arc<AtomicBool>,
    /// The only peer with which it carries no packets.
    without: Arc<Mutex<HashSet<SocketAddr>>>,
}

impl Cable {
    /// No packet comes in or goes out, as if the machine had died.
    pub(super) fn pull(&self) {
        self.pulled.store(true, Ordering::SeqCst);
    }

    pub(super) fn plug(&self) {
        self.pulled.store(false, Ordering::SeqCst);
        self.without.lock().unwrap().clear();
    }

    /// No packet comes from `address`, or goes there.
    pub(super) fn avoid(&self, address: SocketAddr) {
        self.without.lock().unwrap().insert(address);
    }

    fn carries(&self, address: SocketAddr) -> bool {
        let pulled = self.pulled.load(Ordering::SeqCst);
        !pulled && !self.without.lock().unwrap().contains(&address)
    }
}

impl Network for Cable {
    fn bind(&self, address: SocketAddr) -> io::Result<(Arc<dyn AsyncUdpSocket>, usize)> {
        let (inner, granted) = KernelNetwork.bind(address)?;
        let cable = self.clone();
        Ok((Arc::new(Socket { inner, cable }), granted))
    }

    fn resolve(&self, address: &str) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        KernelNetwork.resolve(address)
    }
}

#[derive(Debug)]
struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    cable: Cable,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if self.cable.carries(transmit.destination) {
            return self.inner.try_send(transmit);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let received = std::task::ready!(self.inner.poll_recv(cx, bufs, meta))?;
            // A batch is rarely from several senders; lost packets are sent again.
            if meta[..received]
                .iter()
                .all(|meta| self.cable.carries(meta.addr))
            {
                return Poll::Ready(Ok(received));
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// A tree, and each node's cable.
pub(super) struct Cabled {
    pub(super) tree: TestTree,
    pub(super) cables: Vec<Cable>,
}

impl Cabled {
    pub(super) fn plan(len: usize, arity: usize, roots: Vec<usize>) -> Self {
        let mut tree = TestTree::plan(len, arity, Duration::from_secs(20));
        tree.roots = roots;
        let cables = (0..len).map(|_| Cable::default()).collect();
        Self { tree, cables }
    }

    pub(super) async fn start(len: usize, arity: usize, roots: Vec<usize>) -> Self {
        let mut cabled = Self::plan(len, arity, roots);
        cabled.start_all().await;
        cabled
    }

    pub(super) async fn start_all(&mut self) {
        for rank in 0..self.cables.len() {
            self.start_node(rank, |_| {});
        }
        for rank in 0..self.cables.len() {
            self.tree.connected(rank).await;
        }
    }

    pub(super) fn start_node(&mut self, rank: usize, change: impl FnOnce(&mut OverlayConfig)) {
        let config = self.config(rank, change);
        self.tree.nodes[rank] = Some(self.tree.try_start(rank, config, |_| {}).unwrap());
    }

    pub(super) fn config(
        &self,
        rank: usize,
        change: impl FnOnce(&mut OverlayConfig),
    ) -> OverlayConfig {
        let mut config = self.tree.config(rank);
        config.network = Arc::new(self.cables[rank].clone());
        change(&mut config);
        config
    }

    /// The rank of `rank`'s parent in each tree in which it is not the root; `None` if it has none.
    pub(super) fn above(&self, rank: usize) -> Vec<Option<usize>> {
        let links = self.tree.parent(rank).links().into_iter();
        links
            .map(|link| match link.status {
                LinkStatus::Connected(above) => Some(above),
                _ => None,
            })
            .collect()
    }

    /// Waits until `rank` uses its listed parent in every tree. Returns how long it took.
    pub(super) async fn home(&self, rank: usize) -> Duration {
        let begun = Instant::now();
        let links = || self.tree.parent(rank).links();
        until(HEALED, format!("node {rank} is at home"), || {
            let mut links = links().into_iter();
            links.all(|link| link.status == LinkStatus::Connected(link.home))
        })
        .await;
        begun.elapsed()
    }

    /// Waits until `above` is the parent of `rank` in its first tree. Returns how long it took.
    pub(super) async fn moved(&self, rank: usize, above: usize) -> Duration {
        let begun = Instant::now();
        until(HEALED, format!("{rank} hangs from {above}"), || {
            self.above(rank)[0] == Some(above)
        })
        .await;
        begun.elapsed()
    }
}

/// Reads a stream and compares all its bytes. Returns the number of restarts.
pub(super) async fn right(mut parts: ReadStream) -> Result<u32, Failure> {
    let (mut block, mut blocks, mut restarts) = (Vec::new(), 0, 0);
    while let Some(part) = parts.next().await {
        match part? {
            BlockPart::Bytes(bytes) => block.extend_from_slice(&bytes),
            BlockPart::Restart => {
                block.clear();
                restarts += 1;
            }
            BlockPart::End(_) => {
                let len = u64::try_from(block.len()).unwrap();
                assert!(block == content(blocks * BLOCK_BYTES, len), "wrong bytes");
                block.clear();
                blocks += 1;
            }
        }
    }
    assert!(block.is_empty(), "bytes without an end");
    Ok(restarts)
}

/// Reads and lists without pause until it is ended; every answer must be right.
pub(super) struct Reader {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<Took>>,
}

/// How long this suite waits for effects of healing. The design's time bounds are checked on the clocks of
/// `seeds` and `simulated`, which other processes cannot slow down. Here the machine may be busy, so only
/// the effects and their cost in requests are checked.
pub(super) const GENEROUS_S: u64 = 60;
/// The part of it that an idle machine may take.
pub(super) const HEALED: Duration = Duration::from_secs(15);

/// The observations of a reader.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Took {
    pub(super) answers: u32,
    pub(super) restarts: u32,
    pub(super) longest: Duration,
}

impl Took {
    /// Checks that no answer took longer than `bound`, plus an allowance for the load of this machine:
    /// `bystander` read at the same time and was not affected by the fault, so it measures the load.
    #[track_caller]
    pub(super) fn is_within(&self, bound: Duration, bystander: &Self) {
        let allowed = bound + 10 * bystander.longest;
        assert!(self.longest <= allowed, "{self:?}, beside {bystander:?}");
    }

    fn and(self, other: Self) -> Self {
        Self {
            answers: self.answers + other.answers,
            restarts: self.restarts + other.restarts,
            longest: self.longest.max(other.longest),
        }
    }
}

impl Reader {
    /// Three reads of two blocks and a listing at a time.
    pub(super) fn start(files: &Upstream) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(AtomicUsize::new(0));
        let tasks = (0..4).map(|which| {
            let (files, stop) = (files.clone(), Arc::clone(&stop));
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let mut took = Took::default();
                while !stop.load(Ordering::SeqCst) {
                    let begun = Instant::now();
                    if which == 0 {
                        let listing = files.list_page(path("dir"), None, 10).await.unwrap();
                        assert_eq!(listing.entries.len(), 3);
                    } else {
                        let name = format!("file{which}-{}", took.answers);
                        let request = whole(&name, BLOCK_BYTES + 5);
                        let parts = files.read(request).await.unwrap();
                        took.restarts += right(parts).await.unwrap();
                    }
                    took.answers += 1;
                    answers.fetch_add(1, Ordering::SeqCst);
                    took.longest = took.longest.max(begun.elapsed());
                    // The test measures the tree, and not this machine.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                took
            })
        });
        Self {
            tasks: tasks.collect(),
            answers,
            stop,
        }
    }

    /// Waits for some further answers.
    pub(super) async fn makes_progress(&self) {
        let answers = || self.answers.load(Ordering::SeqCst);
        let enough = answers() + 16;
        until(HEALED, "a reader makes progress", || answers() >= enough).await;
    }

    /// Ends the reader and returns its observations. Fails if an answer was an error or wrong.
    pub(super) async fn end(self) -> Took {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Took::default();
        for task in self.tasks {
            all = all.and(within(GENEROUS_S, task).await.unwrap());
        }
        assert!(all.answers > 3, "{all:?}");
        all
    }
}
