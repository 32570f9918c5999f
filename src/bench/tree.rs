//! Measures round trips through a tree of many nodes in one process.

use super::relay::{Memory, Relay, Storage};
use super::{CONNECT_TIMEOUT, Quantiles, on_worker, runtime};
use anyhow::{Context, bail, ensure};
use copperfs_overlay::bench::cpu_time;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, Files, ItemPath, Member, NodeIdentity, Overlay, OverlayConfig,
    ReadRequest, Secret, Tree, Version,
};
use futures_util::StreamExt;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The minimum number of warm-up samples per size.
const WARM_UP: usize = 20;
/// Payloads from 1 MiB on get one in 8 of the samples.
const LARGE_SHARE: usize = 8;
/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of nodes. Each has a socket, and a connection to every neighbour.
pub const NODES_MAX: usize = 1024;

/// The parameters of a measurement.
#[derive(Debug, Clone)]
pub struct TreeBench {
    /// Nodes, 2 to [`NODES_MAX`].
    pub nodes: usize,
    /// Most children of a node.
    pub arity: usize,
    /// Payloads in bytes.
    pub sizes: Vec<u64>,
    /// Samples of each.
    pub samples: usize,
    /// Threads of the runtime that all nodes share.
    pub workers: usize,
}

/// Round trips of one payload.
#[derive(Debug, Clone, Serialize)]
pub struct RoundTrips {
    /// Payload of the answer in bytes.
    pub bytes: u64,
    /// Edges from the requesting node to the root.
    pub hops: usize,
    /// The time until the last byte was received and verified.
    pub time: Quantiles,
    /// Processor time of all nodes per round trip, in seconds.
    pub cpu_s: f64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct TreeResult {
    /// Nodes.
    pub nodes: usize,
    /// Arity.
    pub arity: usize,
    /// From the last node of the list to the root and back, by payload.
    pub leaf: Vec<RoundTrips>,
    /// From a child of the root, by payload.
    pub one_hop: Vec<RoundTrips>,
}

impl TreeBench {
    /// Measures. Blocks; must not be called within a runtime.
    ///
    /// # Errors
    /// The tree cannot be started, or a request failed.
    pub fn run(&self) -> anyhow::Result<TreeResult> {
        let tree = Tree::new(self.nodes, self.arity)
            .filter(|tree| (2..=NODES_MAX).contains(&tree.len()))
            .with_context(|| format!("a tree has 2 to {NODES_MAX} nodes and an arity"))?;
        let runtime = runtime(self.workers)?;
        let this = self.clone();
        let found = on_worker(&runtime, async move {
            let nodes = start(tree).await?;
            let last = this.nodes - 1;
            let leaf = this.of(&nodes[last], tree.depth(last)).await?;
            let one_hop = this.of(&nodes[1], 1).await?;
            for node in nodes.iter().rev() {
                node.shutdown().await;
            }
            Ok(TreeResult {
                nodes: this.nodes,
                arity: this.arity,
                leaf,
                one_hop,
            })
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        found
    }

    /// The round trips from `node`, which is `hops` below the root.
    async fn of(&self, node: &Overlay, hops: usize) -> anyhow::Result<Vec<RoundTrips>> {
        let mut found = Vec::new();
        for &bytes in &self.sizes {
            let share = if bytes >= 1 << 20 { LARGE_SHARE } else { 1 };
            let samples = (self.samples / share).max(1);
            // Warms up connections, congestion windows and allocators.
            for _ in 0..(samples / 10).max(WARM_UP) {
                fetch(node.upstream(), bytes).await?;
            }
            let cpu = cpu_time();
            let mut times = Vec::with_capacity(samples);
            for _ in 0..samples {
                let start = Instant::now();
                fetch(node.upstream(), bytes).await?;
                times.push(start.elapsed());
            }
            let cpu = cpu_time().saturating_sub(cpu).as_secs_f64();
            found.push(RoundTrips {
                bytes,
                hops,
                time: Quantiles::of(times),
                cpu_s: cpu / f64::from(u32::try_from(samples).unwrap_or(u32::MAX)),
            });
        }
        Ok(found)
    }
}

/// Reads a file of `bytes` through `files`, to its end.
pub(super) async fn fetch(files: &impl Files, bytes: u64) -> anyhow::Result<()> {
    const FAILED: &str = "a request under test failed";
    let request = ReadRequest {
        path: ItemPath::root(),
        version: Version::from_data([0; 16]),
        size: bytes,
        first_block: 0,
        block_count: bytes.div_ceil(BLOCK_BYTES).max(1),
        content: None,
        through: false,
    };
    let mut parts = files.read(request).await.context(FAILED)?;
    let mut got = 0;
    while let Some(part) = parts.next().await {
        match part.context(FAILED)? {
            BlockPart::Bytes(piece) => got += piece.len() as u64,
            BlockPart::End(_) => {}
            BlockPart::Restart => bail!("a block came damaged, or a node died"),
        }
    }
    ensure!(got == bytes, "{got} bytes of {bytes} came");
    Ok(())
}

/// The nodes in the order of the list, connected. Must be called within a runtime.
async fn start(tree: Tree) -> anyhow::Result<Vec<Overlay>> {
    let secret = Secret::generate()?;
    let memory = Arc::new(Memory::new());
    let member = |rank| Member {
        name: format!("node{rank}"),
        address: String::new(),
    };
    let mut members: Vec<Member> = (0..tree.len()).map(member).collect();
    let mut nodes = Vec::with_capacity(tree.len());
    for rank in 0..tree.len() {
        // Parents come before children in the list, so their addresses are known by now.
        let node = start_node(tree, rank, &members, &secret, &memory)?;
        if let Some(address) = node.local_addr() {
            members[rank].address = address.to_string();
        }
        nodes.push(node);
    }
    for node in &nodes {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, node.upstream().first_connected());
        connected.await.ok().context("the tree does not connect")?;
    }
    Ok(nodes)
}

pub(super) fn start_node(
    tree: Tree,
    rank: usize,
    members: &[Member],
    secret: &Secret,
    memory: &Arc<Memory>,
) -> anyhow::Result<Overlay> {
    let config = OverlayConfig {
        arity: tree.arity(),
        request_timeout: REQUEST_TIMEOUT,
        connect_timeout: REQUEST_TIMEOUT,
        ..OverlayConfig::new(members.to_vec(), NodeIdentity::Member(rank), secret.clone())
    };
    let storage = (rank == 0).then(|| Arc::new(Storage(Arc::clone(memory))) as Arc<dyn Files>);
    let node = Overlay::start(config, storage, |upstream| Arc::new(Relay(upstream)))?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_tree_answers() {
        let bench = TreeBench {
            nodes: 7,
            arity: 2,
            sizes: vec![1, (1 << 20) + 1],
            samples: 8,
            workers: 1,
        };
        let found = bench.run().unwrap();
        assert_eq!(found.leaf.len(), 2);
        assert_eq!((found.leaf[0].hops, found.one_hop[0].hops), (2, 1));
        for trips in found.leaf.iter().chain(&found.one_hop) {
            assert!(trips.time.p50_s > 0.0 && trips.time.p50_s <= trips.time.p99_s);
            assert!(trips.cpu_s > 0.0);
        }
        assert_eq!(found.leaf[1].time.samples, 1);
    }

    #[test]
    fn a_tree_of_one_is_refused() {
        let bench = TreeBench {
            nodes: 1,
            arity: 2,
            sizes: vec![1],
            samples: 1,
            workers: 1,
        };
        assert!(bench.run().is_err());
    }
}
