//! `copperfs simulate`: the command line of the simulators. The tree's is here, the others' are in
//! `cluster` and `pipelines`.

mod cluster;
mod figures;
mod pipelines;
mod sweep;
mod trace;

use super::{Table, print};
use crate::num::as_f64;
use crate::profile::{self, Profile};
use anyhow::Context;
use clap::{Args, Subcommand};
use copperfs_policy::amounts::{ByteRate, ByteSize};
use copperfs_simulate::chart::{Chart, Series};
use copperfs_simulate::cold_start::workload::{Access, Item, described, recorded};
use copperfs_simulate::cold_start::{Calibration, Outcome, STATED, Scenario, Stated, run};
use serde_json::json;
use std::path::PathBuf;

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub enum SimulateCommand {
    /// A cold start: every node of a tree reads the same files at once
    #[command(after_help = "Examples:\n  \
            copperfs simulate tree --nodes 8300 --arity 4 --link 25GB/s --hop 2us\n  \
            copperfs simulate tree --profile torch.jsonl --nodes 100000 --json\n  \
            copperfs simulate tree --nodes 8300 --calibration here.json --plot cold.svg\n\n\
            Times are of data alone: what the program computes is given with --think. Rates are \
            payload; --mtu takes the packets' headers off the link's rate. Links and cores divide \
            themselves evenly; there is no loss and no FUSE, so this is what a real tree comes \
            near to where its links are what limits it.")]
    Tree(Box<TreeArgs>),
    /// A cluster that trains: who gets GPUs, cache and remote IO, and what comes of it
    #[command(after_help = "Examples:\n  \
            copperfs simulate cluster config/simulate-8v100.toml --system all\n  \
            copperfs simulate cluster trace.csv --gpus 400 --cache 50TB --remote-io 4GB/s \\\n    \
            --scheduler gavel --system silod,quiver --plots figures\n  \
            copperfs simulate cluster trace.csv --gpus 400 --cache 50TB --remote-io 4GB/s \\\n    \
            --system silod,alluxio --sweep remote-io=2GB/s,4GB/s,8GB/s --json\n\n\
            A trace has the columns id,submit_s,model,dataset,dataset_bytes,gpus,ideal_rate,\
            work_bytes (bytes and bytes per second); `copperfs simulate trace` makes one. \
            docs/SIMULATOR.md says what is modelled, and what it was compared with.")]
    Cluster(Box<cluster::ClusterArgs>),
    /// Pipelines whose tasks are known before they run, and a cache that evicts by reference count (LRC)
    #[command(after_help = "Examples:\n  \
            copperfs simulate pipelines paper --policy lrc,lrc-offline,lru\n  \
            copperfs simulate pipelines read-only --policy lrc,lru --seeds 10 --hit-ratio 0.5\n  \
            copperfs simulate pipelines tenants --policy lrc,lru --cache 1.26GB --tenants 8,12,16,20\n  \
            copperfs simulate pipelines trace.json --cache 10%,1GB --json\n  \
            copperfs simulate pipelines connected-components --plot lrc.svg\n\n\
            The named workloads are those of config/simulate-pipelines*.toml. Each policy runs in the \
            engine of `copperfs lrc replay`. docs/SIMULATOR.md describes the workloads, and compares the \
            results with the paper.")]
    Pipelines(pipelines::PipelinesArgs),
    /// Make a trace for `simulate cluster`: Microsoft-like jobs that train SiloD's models
    #[command(after_help = "Examples:\n  \
            copperfs simulate trace --jobs 4200 --days 14 --seed 1 > trace.csv\n  \
            copperfs simulate trace --jobs 1000 --days 3 --sharing 0.5 --output trace.csv")]
    Trace(trace::TraceArgs),
}

/// Options of `simulate tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Nodes in the list
    #[arg(long, default_value_t = 8_300)]
    nodes: usize,
    /// Most children of a node in one tree
    #[arg(long, default_value_t = 4)]
    arity: usize,
    /// Trees, each with its own root that reads from the origin
    #[arg(long, default_value_t = 1)]
    roots: usize,
    /// What the program reads: JSON lines as `copperfs record` writes them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "bytes"])]
    profile: Option<PathBuf>,
    /// Without --profile: so many files, in directories of four
    #[arg(long, value_name = "N", default_value_t = 728)]
    files: usize,
    /// Without --profile: bytes of all files together (the default is what Copper's paper states for
    /// PyTorch)
    #[arg(long, value_name = "SIZE", default_value = "36.3MB")]
    bytes: ByteSize,
    /// Rate of a node's link each way
    #[arg(long, value_name = "RATE", default_value = "25GB/s")]
    link: ByteRate,
    /// Largest packet on the link: Ethernet, IP, UDP and QUIC headers are taken off --link
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Time from a node to its neighbour, one way
    #[arg(long, value_name = "TIME", default_value = "2us", value_parser = span)]
    hop: f64,
    /// A parent's core time for one request
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    request_cpu: f64,
    /// Costs of the software on this machine, from `copperfs bench tree --calibrate`: added to --hop
    /// and --request-cpu, and a bound on --link
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// What one root reads from the origin
    #[arg(long, value_name = "RATE", default_value = "10GB/s")]
    origin: ByteRate,
    /// Time before the first byte of each item comes from the origin
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    origin_latency: f64,
    /// What the program computes between two accesses
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    think: f64,
    /// Accesses that a node has open at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    window: usize,
    /// Nodes start at random within this time
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    skew: f64,
    /// For the files' sizes and the skew
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON: times in seconds, the rest in bytes and requests
    #[arg(long)]
    json: bool,
    /// Also simulate 1 to 100,000 nodes, and draw the times beside those that Copper's paper states
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Nodes of the plot.
const PLOTTED: [usize; 14] = [
    1, 2, 4, 8, 16, 32, 128, 512, 2_048, 8_300, 16_384, 32_768, 65_536, 100_000,
];
/// The bytes of a packet that are not payload: Ethernet 14, IPv4 20, UDP 8, QUIC's short header 11, its tag
/// 16, a stream frame's header 8.
const PACKET_BYTES: f64 = 77.0;
/// The part of [`PACKET_BYTES`] that the MTU does not include.
const ETHERNET_BYTES: f64 = 14.0;

/// Simulates and prints.
///
/// # Errors
/// A file cannot be read or written, or the scenario is invalid.
pub fn simulate(command: SimulateCommand) -> anyhow::Result<()> {
    let args = match command {
        SimulateCommand::Tree(args) => args,
        SimulateCommand::Cluster(args) => return cluster::simulate(&args),
        SimulateCommand::Pipelines(args) => return pipelines::simulate(&args),
        SimulateCommand::Trace(args) => return trace::write(&args),
    };
    let items = args.items()?;
    let scenario = args.scenario()?;
    let outcome = run(&scenario, &items)?;
    if let Some(path) = &args.plot {
        args.plot(&scenario, &items, path)?;
    }
    let value = json!({
        "scenario": {
            "nodes": scenario.nodes,
            "arity": scenario.arity,
            "roots": scenario.roots,
            "link_bytes_per_s": scenario.link,
            "hop_s": scenario.hop,
            "request_cpu_s": scenario.request_cpu,
            "origin_bytes_per_s": scenario.origin,
            "origin_latency_s": scenario.origin_latency,
            "think_s": scenario.think,
            "window": scenario.window,
            "skew_s": scenario.skew,
            "seed": scenario.seed,
        },
        "outcome": outcome,
    });
    print(args.json, &value, |_| report(&outcome))
}

/// An access of a profile in the form of the model; `None` if it causes no request between nodes.
fn modelled(access: &profile::Access) -> Option<Access<'_>> {
    match access {
        profile::Access::List { path, entries } => Some(Access::List {
            path,
            entries: *entries,
        }),
        profile::Access::Stat { path } | profile::Access::Absent { path } => {
            Some(Access::Stat { path })
        }
        profile::Access::Xattrs { .. } => None,
        profile::Access::Read {
            path,
            size,
            offset,
            len,
        } => Some(Access::Read {
            path,
            size: *size,
            range: *offset..offset.saturating_add(*len),
        }),
    }
}

impl TreeArgs {
    fn items(&self) -> anyhow::Result<Vec<Item>> {
        match &self.profile {
            Some(path) => {
                let profile = Profile::load(path).with_context(|| format!("{}", path.display()))?;
                Ok(recorded(profile.accesses.iter().filter_map(modelled)))
            }
            None => {
                anyhow::ensure!(
                    self.files <= profile::ACCESSES_MAX,
                    "--files: more than {}",
                    profile::ACCESSES_MAX
                );
                Ok(described(self.files, self.bytes.0, self.seed))
            }
        }
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let goodput = match self.mtu {
            None => 1.0,
            Some(mtu @ 576..=65_535) => {
                let frame = f64::from(mtu) + ETHERNET_BYTES;
                (frame - PACKET_BYTES) / frame
            }
            Some(mtu) => anyhow::bail!("--mtu: {mtu} is no size of a packet: 576 to 65535"),
        };
        let mut scenario = Scenario {
            nodes: self.nodes,
            arity: self.arity,
            roots: self.roots,
            link: as_f64(self.link.0) * goodput,
            hop: self.hop,
            request_cpu: self.request_cpu,
            origin: as_f64(self.origin.0),
            origin_latency: self.origin_latency,
            think: self.think,
            window: self.window,
            skew: self.skew,
            seed: self.seed,
            ..Scenario::default()
        };
        if let Some(path) = &self.calibration {
            let measured = Calibration::load(path)?;
            scenario.hop += measured.hop_s;
            scenario.request_cpu += measured.request_cpu_s;
            scenario.link = scenario.link.min(measured.bandwidth);
        }
        Ok(scenario)
    }

    fn plot(&self, scenario: &Scenario, items: &[Item], path: &PathBuf) -> anyhow::Result<()> {
        let mut points = Vec::new();
        for nodes in PLOTTED {
            let one = Scenario {
                nodes,
                roots: scenario.roots.min(nodes),
                ..scenario.clone()
            };
            let outcome = run(&one, items)?;
            let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
            points.push((f64::from(nodes), outcome.times.max_s));
        }
        let (arity, roots) = (self.arity, self.roots);
        let plural = if roots == 1 { "root" } else { "roots" };
        let name = format!("copperfs, model: arity {arity}, {roots} {plural}");
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        let note = format!(
            "Model: {} requests, {} a node; link {}, hop {}, origin {} a root, {} of computing \
             between accesses.\nPaper: Copper (Lewis et al.), Aurora, 12 processes a node.",
            items.len(),
            ByteSize(bytes),
            shown_rate(scenario.link),
            shown(scenario.hop),
            shown_rate(scenario.origin),
            shown(scenario.think),
        );
        let model = Series {
            name,
            points,
            dots: true,
        };
        let stated = STATED.iter().map(Stated::series);
        let chart = Chart {
            title: "Cold start against nodes".to_owned(),
            x: "nodes".to_owned(),
            y: "seconds".to_owned(),
            series: std::iter::once(model).chain(stated).collect(),
            logarithmic: true,
            note,
        };
        std::fs::write(path, chart.lines()?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn report(outcome: &Outcome) -> String {
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let (all, times) = (outcome, outcome.times);
    let (requested, answered) = (
        all.requests_per_node_max,
        all.requests_answered_per_node_max,
    );
    let (sent, received) = (all.bytes_sent_per_node_max, all.bytes_received_per_node_max);
    let rows = [
        ("nodes", all.nodes.to_string()),
        ("depth", all.depth.to_string()),
        ("requests of a reader", all.items.to_string()),
        ("bytes of a reader", bytes(all.item_bytes)),
        ("time, half of the nodes", shown(times.p50_s)),
        ("time, 99 %", shown(times.p99_s)),
        ("time, all", shown(times.max_s)),
        ("requests sent, most of a node", requested.to_string()),
        ("requests answered, most of a node", answered.to_string()),
        ("bytes received, most of a node", bytes(received)),
        ("bytes sent, most of a node", bytes(sent)),
        ("bytes over all edges", bytes(all.bytes_moved)),
        ("requests to the origin", all.origin_reads.to_string()),
        ("bytes from the origin", bytes(all.origin_bytes)),
    ];
    let table = Table::of(&rows);
    let table = table
        .column("", |row| row.0)
        .column("", |row| row.1.as_str());
    // The line of the titles is empty.
    table.text().trim_start().to_owned()
}

/// Seconds with a unit.
pub(super) fn shown(seconds: f64) -> String {
    match seconds {
        0.0 | 1.0.. => format!("{seconds:.2} s"),
        1e-3.. => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.2} µs", seconds * 1e6),
    }
}

/// A rate with a 1000-based unit, as for links.
pub(super) fn shown_rate(rate: f64) -> String {
    match rate {
        1e9.. => format!("{:.2} GB/s", rate / 1e9),
        1e6.. => format!("{:.2} MB/s", rate / 1e6),
        _ => format!("{rate:.0} B/s"),
    }
}

/// Seconds: `2us`, `1.5ms`.
fn span(text: &str) -> Result<f64, String> {
    const FORMS: &str = "Write a number and a unit: 500ns, 2us, 1.5ms, 3s";
    let trimmed = text.trim();
    let units = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
    ];
    let found = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = trimmed.strip_suffix(unit)?.trim_end().parse().ok()?;
        (number.is_finite() && number >= 0.0).then_some(number * seconds)
    });
    found.ok_or_else(|| format!("{text:?} is not a time. {FORMS}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_parsed() {
        assert_eq!(span("2us"), Ok(2e-6));
        assert_eq!(span("1.5 ms"), Ok(1.5e-3));
        assert_eq!(span("3s"), Ok(3.0));
        for wrong in ["2", "-1s", "inf s", "s", "2 min"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _seconds = span(&text);
        }
    }

    #[test]
    fn a_report_says_everything_once() {
        let scenario = Scenario::default();
        let outcome = run(&scenario, &described(40, 1_000_000, 1)).unwrap();
        let text = report(&outcome);
        assert!(text.starts_with("nodes"), "{text}");
        assert!(text.contains("requests to the origin"), "{text}");
        assert_eq!(text.lines().count(), 14, "{text}");
    }
}
