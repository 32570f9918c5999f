//! `copperfs bench`: measures the cost of the tree and of images on this machine.

use super::simulate::{shown, shown_rate};
use super::{Table, print};
use crate::bench::hop::{self, HopResult};
use crate::bench::idle::{self, IdleResult};
use crate::bench::image::{self, ImageResult};
use crate::bench::tree::{RoundTrips, TreeBench, TreeResult};
use crate::config::Machine;
use crate::daemon::runtime_dir;
use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use copperfs_policy::amounts::ByteSize;
use copperfs_simulate::cold_start::Calibration;
use serde_json::json;
use std::path::{Path, PathBuf};

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Round trips from a leaf to the root and back, many nodes in this process
    #[command(after_help = "Examples:\n  \
            copperfs bench tree\n  \
            copperfs bench tree --nodes 31 --arity 2 --sizes 1,4KiB,128KiB,1MiB --json\n  \
            copperfs bench tree --calibrate here.json\n\n\
            Real QUIC with mutual TLS over loopback; no caches on the way, no FUSE, no storage.")]
    Tree(TreeArgs),
    /// One hop in bulk, beside TCP with TLS in the same run; memory of idle connections
    #[command(after_help = "Examples:\n  \
            copperfs bench hop\n  \
            copperfs bench hop --bulk 1GiB --samples 5 --json\n\n\
            Both ends are in this process, a thread each; processor time is that of both.")]
    Hop(HopArgs),
    /// The writer of the images of --front erofs
    #[command(after_help = "Examples:\n  \
            copperfs bench image\n  \
            copperfs bench image --entries 10000 --samples 9 --json\n\n\
            A software tree in memory, 12 files a directory: sorted, laid out and written by one thread.")]
    Image(ImageArgs),
    /// The other side of idle connections; a task on standard input
    #[command(hide = true)]
    IdlePeer,
}

/// Options of `bench tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Nodes in this process
    #[arg(long, default_value_t = 31)]
    nodes: usize,
    /// Most children of a node
    #[arg(long, default_value_t = 2)]
    arity: usize,
    /// Payloads of the answers
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "1,4KiB,128KiB,1MiB",
        value_delimiter = ','
    )]
    sizes: Vec<ByteSize>,
    /// Round trips of each payload; an eighth of them from 1 MiB on
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    samples: usize,
    /// Threads that all nodes share
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Print JSON: times in seconds
    #[arg(long)]
    json: bool,
    /// Also measure bulk transfer, and write what `copperfs simulate tree --calibration` reads
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
}

/// Options of `bench hop`.
#[derive(Debug, Args)]
pub struct HopArgs {
    /// Bytes of one transfer
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    bulk: ByteSize,
    /// Transfers in each of three rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    samples: usize,
    /// Idle connections to count memory by; 0: leave it
    #[arg(long, value_name = "N", default_value_t = 512)]
    idle: usize,
    /// Print JSON: rates in bytes a second
    #[arg(long)]
    json: bool,
}

/// Options of `bench image`.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// Names in the image
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    entries: usize,
    /// Images to write
    #[arg(long, value_name = "N", default_value_t = 5)]
    samples: usize,
    /// Print JSON: times in seconds
    #[arg(long)]
    json: bool,
}

/// Bytes of a transfer for a calibration.
const CALIBRATION_BYTES: u64 = 256 << 20;
/// The maximum number of samples and of idle connections.
const COUNT_MAX: usize = 1_000_000;
/// The maximum number of names in an image.
const ENTRIES_MAX: usize = 20_000_000;
/// The maximum payload of one read.
const SIZE_MAX: u64 = 1 << 40;

/// Measures and prints.
///
/// # Errors
/// What could not be measured.
pub fn bench(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Tree(args) => tree(&args),
        BenchCommand::Hop(args) => one_hop(&args),
        BenchCommand::Image(args) => images(&args),
        BenchCommand::IdlePeer => idle::peer(),
    }
}

fn tree(args: &TreeArgs) -> anyhow::Result<()> {
    let sizes: Vec<u64> = args.sizes.iter().map(|size| size.0).collect();
    ensure!(
        (1..=COUNT_MAX).contains(&args.samples) && (1..=64).contains(&args.workers),
        "--samples lies between 1 and {COUNT_MAX}, --workers between 1 and 64"
    );
    ensure!(
        sizes.iter().all(|size| (1..=SIZE_MAX).contains(size)),
        "--sizes: a payload has 1 byte to 1 TiB"
    );
    let bench = TreeBench {
        nodes: args.nodes,
        arity: args.arity,
        sizes,
        samples: args.samples,
        workers: args.workers,
    };
    let found = bench.run()?;
    print(args.json, &found, tree_report)?;
    if let Some(path) = &args.calibrate {
        calibrate(&bench, path)?;
    }
    Ok(())
}

fn calibrate(bench: &TreeBench, path: &Path) -> anyhow::Result<()> {
    let small = TreeBench {
        nodes: 2,
        arity: 1,
        sizes: vec![1],
        ..bench.clone()
    };
    let small = small.run()?;
    let trips = small.one_hop.first().context("nothing was measured")?;
    let read = hop::reading(CALIBRATION_BYTES, 3)?;
    let calibration = Calibration {
        hop_s: trips.time.p50_s / 2.0,
        // Both ends are in this process, and do about as much.
        request_cpu_s: trips.cpu_s / 2.0,
        bandwidth: read.bytes_per_s,
        cpu_s_per_gib: read.cpu_s_per_gib,
    };
    std::fs::write(path, serde_json::to_vec_pretty(&calibration)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn tree_report(found: &TreeResult) -> String {
    let way = |trips: &RoundTrips| match trips.hops {
        1 => "one hop and back (1)".to_owned(),
        hops => format!("leaf to root and back ({hops})"),
    };
    Table::of(found.leaf.iter().chain(&found.one_hop))
        .column("way", |trips| way(trips))
        .column("payload", |trips| ByteSize(trips.bytes))
        .column("p50", |trips| shown(trips.time.p50_s))
        .column("p90", |trips| shown(trips.time.p90_s))
        .column("p99", |trips| shown(trips.time.p99_s))
        .column("samples", |trips| trips.time.samples)
        .column("CPU", |trips| shown(trips.cpu_s))
        .text()
}

fn one_hop(args: &HopArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=COUNT_MAX).contains(&args.samples) && args.idle <= COUNT_MAX,
        "--samples lies between 1 and {COUNT_MAX}, --idle between 0 and {COUNT_MAX}"
    );
    ensure!(
        (1..=SIZE_MAX).contains(&args.bulk.0),
        "--bulk: a transfer has 1 byte to 1 TiB"
    );
    let found = hop::run(args.bulk.0, args.samples)?;
    let idle = match args.idle {
        0 => None,
        count => {
            let program = std::env::current_exe().context("cannot find this program's own file")?;
            let dir = Machine::inspect().runtime_base().join("bench");
            runtime_dir::prepare(&dir)?;
            let secret = dir.join(format!("{}.secret", std::process::id()));
            let peer = ["bench", "idle-peer"];
            Some(idle::run(count, &program, &peer, &secret)?)
        }
    };
    let value = json!({ "bulk": found, "idle": idle });
    print(args.json, &value, |_| hop_report(&found, idle.as_ref()))
}

fn hop_report(found: &HopResult, idle: Option<&IdleResult>) -> String {
    let ways = [
        ("transport (QUIC)", &found.quic),
        ("TCP + TLS", &found.tls),
        ("read, framed and verified", &found.read),
    ];
    let mut text = Table::of(ways)
        .column("one hop", |(name, _)| *name)
        .column("throughput", |(_, way)| shown_rate(way.bytes_per_s))
        .column("processor, both ends", |(_, way)| {
            format!("{:.3} CPU-s/GiB", way.cpu_s_per_gib)
        })
        .text();
    text.push_str(&format!(
        "\ntransport against TCP + TLS: throughput {:.2} ×, processor {:.2} ×\n",
        found.throughput_ratio, found.cpu_ratio
    ));
    if let Some(idle) = idle {
        text.push_str(&format!(
            "idle connection, of {}: {} at the parent, {} at the child\n",
            idle.connections,
            ByteSize(idle.parent_bytes),
            ByteSize(idle.child_bytes)
        ));
    }
    text
}

fn images(args: &ImageArgs) -> anyhow::Result<()> {
    ensure!(
        (1..=ENTRIES_MAX).contains(&args.entries) && (1..=COUNT_MAX).contains(&args.samples),
        "--entries lies between 1 and {ENTRIES_MAX}, --samples between 1 and {COUNT_MAX}"
    );
    let found = image::run(args.entries, args.samples)?;
    print(args.json, &found, image_report)
}

fn image_report(found: &ImageResult) -> String {
    Table::of([found])
        .column("names", |found| found.entries)
        .column("time", |found| shown(found.time_s))
        .column("bytes for each", |found| {
            format!("{:.1}", found.bytes_per_entry)
        })
        .column("samples", |found| found.samples)
        .text()
}
