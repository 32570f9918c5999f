//! Measures bulk transfer over one hop: the transport, TCP with TLS, and a read with frames and hashes.

use super::relay::Memory;
use super::tree::{fetch, start_node};
use super::{CONNECT_TIMEOUT, on_worker, runtime};
use crate::num::as_f64;
use anyhow::Context;
use copperfs_overlay::bench::{Transfer, Wire, bulk, cpu_time};
use copperfs_overlay::{Member, Secret, Tree};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The throughput and cost of a transfer: medians of the samples.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Throughput {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Processor seconds of both ends for a gibibyte.
    pub cpu_s_per_gib: f64,
}

/// The result.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct HopResult {
    /// Bytes of a transfer.
    pub bytes: u64,
    /// The number of transfers of each kind, which alternate.
    pub samples: usize,
    /// One stream of the QUIC transport.
    pub quic: Throughput,
    /// TCP with TLS, same cipher suite, mutual authentication.
    pub tls: Throughput,
    /// A read between two nodes: the transport, with frames and the verification of blocks.
    pub read: Throughput,
    /// The transport's throughput over that of TCP with TLS: above 1 is better.
    pub throughput_ratio: f64,
    /// The transport's processor time over that of TCP with TLS: below 1 is better.
    pub cpu_ratio: f64,
}

/// Rounds in which the kinds alternate, so that a slow period of the machine affects all of them.
const ROUNDS: usize = 3;

/// Transfers `bytes` in each way, `samples` times in each of three rounds. Blocks; must not be called within a
/// runtime.
///
/// # Errors
/// A transfer failed.
pub fn run(bytes: u64, samples: usize) -> anyhow::Result<HopResult> {
    let (mut quic, mut tls, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        quic.extend(bulk(Wire::Quic, bytes, samples)?);
        tls.extend(bulk(Wire::Tls, bytes, samples)?);
        read.extend(reads(bytes, samples)?);
    }
    let (quic, tls, read) = (throughput(&quic), throughput(&tls), throughput(&read));
    Ok(HopResult {
        bytes,
        samples: samples * ROUNDS,
        quic,
        tls,
        read,
        throughput_ratio: quic.bytes_per_s / tls.bytes_per_s,
        cpu_ratio: quic.cpu_s_per_gib / tls.cpu_s_per_gib,
    })
}

/// Measures reads between two nodes. Blocks; must not be called within a runtime.
///
/// # Errors
/// A read failed.
pub fn reading(bytes: u64, samples: usize) -> anyhow::Result<Throughput> {
    Ok(throughput(&reads(bytes, samples)?))
}

/// Reads between a root and its child, each with a runtime of its own.
fn reads(bytes: u64, samples: usize) -> anyhow::Result<Vec<Transfer>> {
    let tree = Tree::new(2, 1).context("no tree")?;
    let secret = Secret::generate()?;
    let memory = Arc::new(Memory::new());
    let mut members = ["root", "child"].map(|name| Member {
        name: name.into(),
        address: String::new(),
    });
    let (above, below) = (runtime(1)?, runtime(1)?);
    let root = {
        let _within = above.enter();
        start_node(tree, 0, &members, &secret, &memory)?
    };
    if let Some(address) = root.local_addr() {
        members[0].address = address.to_string();
    }
    let child = {
        let _within = below.enter();
        start_node(tree, 1, &members, &secret, &memory)?
    };
    let found = on_worker(&below, async move {
        let upstream = child.upstream();
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, upstream.first_connected());
        connected.await.ok().context("the child does not connect")?;
        let mut found = Vec::with_capacity(samples);
        for sample in 0..=samples {
            let (start, cpu) = (Instant::now(), cpu_time());
            fetch(upstream, bytes).await?;
            // The first read only warms up the connection.
            if sample > 0 {
                found.push(Transfer {
                    bytes,
                    wall: start.elapsed(),
                    cpu: cpu_time().saturating_sub(cpu),
                });
            }
        }
        child.shutdown().await;
        Ok(found)
    });
    {
        let _within = above.enter();
        drop(root);
    }
    for runtime in [above, below] {
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
    found
}

fn throughput(transfers: &[Transfer]) -> Throughput {
    let bytes = |one: &Transfer| as_f64(one.bytes.max(1));
    let rate = |one: &Transfer| bytes(one) / one.wall.as_secs_f64();
    let cost = |one: &Transfer| one.cpu.as_secs_f64() / (bytes(one) / 1_073_741_824.0);
    Throughput {
        bytes_per_s: median(transfers.iter().map(rate)),
        cpu_s_per_gib: median(transfers.iter().map(cost)),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_ways_are_measured() {
        let found = run(1 << 20, 1).unwrap();
        assert_eq!((found.bytes, found.samples), (1 << 20, 3));
        for way in [found.quic, found.tls, found.read] {
            assert!(
                way.bytes_per_s > 0.0 && way.cpu_s_per_gib > 0.0,
                "{found:?}"
            );
        }
        assert!(found.throughput_ratio > 0.0 && found.cpu_ratio > 0.0);
    }
}
