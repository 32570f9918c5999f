//! Measures round trips through a tree of many nodes in one process.

use super::relay::{Memory, Relay, Storage};
use super::{BenchError, CONNECT_TIMEOUT, Quantiles, on_worker, runtime};
use copperfs_overlay::bench::cpu_time;
use copperfs_overlay::{
    BLOCK_BYTES, BlockPart, Files, ItemPath, Member, NodeIdentity, Overlay, OverlayConfig,
    ReadRequest, Secret, Tree, Upstream, Version,
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
    /// See [`BenchError`].
    pub fn run(&self) -> Result<TreeResult, BenchError> {
        let tree = Tree::new(self.nodes, self.arity)
            .filter(|tree| (2..=NODES_MAX).contains(&tree.len()))
            .ok_or_else(|| {
                BenchError::Broken(format!("a tree has 2 to {NODES_MAX} nodes and an arity"))
            })?;
        let runtime = runtime(self.workers)?;
        let this = self.clone();
        let found = on_worker(&runtime, async move {
            let nodes = start(tree).await?;
            let leaf = this.of(&nodes, tree, this.nodes - 1).await?;
            let one_hop = this.of(&nodes, tree, 1).await?;
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

    async fn of(
        &self,
        nodes: &[Overlay],
        tree: Tree,
        rank: usize,
    ) -> Result<Vec<RoundTrips>, BenchError> {
        let upstream = nodes
            .get(rank)
            .map(Overlay::upstream)
            .ok_or_else(|| BenchError::Broken("no such node".into()))?;
        let mut found = Vec::new();
        for &bytes in &self.sizes {
            let share = if bytes >= 1 << 20 { LARGE_SHARE } else { 1 };
            let samples = (self.samples / share).max(1);
            found.push(round_trips(upstream, tree.depth(rank), bytes, samples).await?);
        }
        Ok(found)
    }
}

async fn round_trips(
    upstream: &Upstream,
    hops: usize,
    bytes: u64,
    samples: usize,
) -> Result<RoundTrips, BenchError> {
    // Warms up connections, congestion windows and allocators.
    for _ in 0..(samples / 10).max(WARM_UP) {
        fetch(upstream, bytes).await?;
    }
    let cpu = cpu_time();
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let start = Instant::now();
        fetch(upstream, bytes).await?;
        times.push(start.elapsed());
    }
    let cpu = cpu_time().saturating_sub(cpu).as_secs_f64();
    let per_trip = cpu / f64::from(u32::try_from(samples).unwrap_or(u32::MAX));
    Ok(RoundTrips {
        bytes,
        hops,
        time: Quantiles::of(times),
        cpu_s: per_trip,
    })
}

/// Reads a file of `bytes` through `files`, to its end.
pub(super) async fn fetch(files: &impl Files, bytes: u64) -> Result<(), BenchError> {
    let request = ReadRequest {
        path: ItemPath::root(),
        version: Version::from_data([0; 16]),
        size: bytes,
        first_block: 0,
        block_count: bytes.div_ceil(BLOCK_BYTES).max(1),
        content: None,
        through: false,
    };
    let mut parts = files.read(request).await?;
    let mut got = 0;
    while let Some(part) = parts.next().await {
        match part? {
            BlockPart::Bytes(piece) => got += piece.len() as u64,
            BlockPart::End(_) => {}
            BlockPart::Restart => {
                return Err(BenchError::Broken(
                    "a block came damaged, or a node died".into(),
                ));
            }
        }
    }
    if got == bytes {
        Ok(())
    } else {
        Err(BenchError::Broken(format!("{got} bytes of {bytes} came")))
    }
}

/// The nodes in the order of the list, connected. Must be called within a runtime.
async fn start(tree: Tree) -> Result<Vec<Overlay>, BenchError> {
    let secret = Secret::generate()?;
    let memory = Arc::new(Memory::new());
    let mut members: Vec<Member> = (0..tree.len())
        .map(|rank| Member {
            name: format!("node{rank}"),
            address: String::new(),
        })
        .collect();
    let mut nodes = Vec::with_capacity(tree.len());
    for rank in 0..tree.len() {
        // Parents come before children in the list, so their addresses are known by now.
        let node = start_node(tree, rank, &members, &secret, &memory)?;
        if let (Some(member), Some(address)) = (members.get_mut(rank), node.local_addr()) {
            member.address = address.to_string();
        }
        nodes.push(node);
    }
    for node in &nodes {
        tokio::time::timeout(CONNECT_TIMEOUT, node.upstream().first_connected())
            .await
            .map_err(|_elapsed| BenchError::Broken("the tree does not connect".into()))?;
    }
    Ok(nodes)
}

pub(super) fn start_node(
    tree: Tree,
    rank: usize,
    members: &[Member],
    secret: &Secret,
    memory: &Arc<Memory>,
) -> Result<Overlay, BenchError> {
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
