//! `copperfs simulate tree`: the command line of the model of a cold start.

use super::{plot, shown, shown_rate};
use crate::cli::{Table, print};
use crate::num::as_f64;
use crate::profile::{self, Profile};
use anyhow::Context;
use clap::Args;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use copperfs_simulate::chart::{Chart, Series};
use copperfs_simulate::cold_start::workload::{Access, Item, described, recorded};
use copperfs_simulate::cold_start::{Calibration, Outcome, STATED, Scenario, Stated, run};
use serde_json::json;
use std::path::PathBuf;

/// Options of `simulate tree`.
#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Number of nodes
    #[arg(long, default_value_t = 8_300)]
    nodes: usize,
    /// Maximum number of children of a node in one tree
    #[arg(long, default_value_t = 4)]
    arity: usize,
    /// Number of trees. Each has its own root, which reads from storage
    #[arg(long, default_value_t = 1)]
    roots: usize,
    /// A profile of the program's reads, as written by `copperfs record`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["files", "bytes"])]
    profile: Option<PathBuf>,
    /// Without --profile: the number of files. Each directory has four of them
    #[arg(long, value_name = "N", default_value_t = 728)]
    files: usize,
    /// Without --profile: bytes of all files together. The defaults of --files and --bytes are those
    /// that Copper's paper states for PyTorch
    #[arg(long, value_name = "SIZE", default_value = "36.3MB")]
    bytes: ByteSize,
    /// Rate of a node's link in each direction
    #[arg(long, value_name = "RATE", default_value = "25GB/s")]
    link: ByteRate,
    /// Size of the largest packet on the link. The bytes of Ethernet, IP, UDP and QUIC headers then
    /// reduce the rate of --link
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Latency from a node to its neighbour, in one direction
    #[arg(long, value_name = "TIME", default_value = "2us", value_parser = span)]
    hop: f64,
    /// Processor time of a parent for one request
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    request_cpu: f64,
    /// Costs of copperfs on this machine, as written by `copperfs bench tree --calibrate`. They are
    /// added to --hop and --request-cpu, and limit --link
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Rate at which one root reads from storage
    #[arg(long, value_name = "RATE", default_value = "10GB/s")]
    storage_rate: ByteRate,
    /// Time until storage returns the first byte of an item
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    storage_latency: f64,
    /// Time that the program computes between two accesses. With the default, the times are of data
    /// movement only. To include the program's own work, measure its run time on one node with its files
    /// in the page cache, and divide it by the number of accesses
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    think: f64,
    /// Number of accesses that a node has in progress at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    window: usize,
    /// Nodes start at random moments within this time
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = span)]
    skew: f64,
    /// Seed of the sizes of files, and of the skew
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON. Times are in seconds, and amounts in bytes
    #[arg(long)]
    json: bool,
    /// Also simulate 1 to 100,000 nodes, and draw the times beside those that Copper's paper states. The
    /// figure is the file PATH if that ends with .svg, otherwise cold-start.svg in the directory PATH
    #[arg(long, value_name = "PATH")]
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
pub(super) fn simulate(args: &TreeArgs) -> anyhow::Result<()> {
    let items = args.items()?;
    let scenario = args.scenario()?;
    let outcome = run(&scenario, &items)?;
    let written = match &args.plot {
        Some(path) => plot::write(path, &[args.chart(&scenario, &items)?])?,
        None => Vec::new(),
    };
    let value = json!({
        "scenario": {
            "nodes": scenario.nodes,
            "arity": scenario.arity,
            "roots": scenario.roots,
            "link_bytes_per_s": scenario.link,
            "hop_s": scenario.hop,
            "request_cpu_s": scenario.request_cpu,
            "storage_bytes_per_s": scenario.storage,
            "storage_latency_s": scenario.storage_latency,
            "think_s": scenario.think,
            "window": scenario.window,
            "skew_s": scenario.skew,
            "seed": scenario.seed,
        },
        "scope": scope(&scenario),
        "left_out": left_out(&scenario),
        "outcome": outcome,
    });
    print(args.json, &value, |_| report(&scenario, &outcome))?;
    plot::say_wrote(&written);
    Ok(())
}

/// Describes the times of a scenario, for titles.
fn scope(scenario: &Scenario) -> String {
    match scenario.think {
        0.0 => "data movement only".to_owned(),
        think => format!(
            "data movement, and {} of computing between accesses",
            shown(think)
        ),
    }
}

/// Lists the parts of a real start that the times of a scenario leave out.
fn left_out(scenario: &Scenario) -> Vec<&'static str> {
    let mut parts = vec!["FUSE", "packet loss"];
    if scenario.think == 0.0 {
        parts.insert(
            0,
            "Python and all other work of the program (add it with --think)",
        );
    }
    if scenario.request_cpu == 0.0 {
        parts.push(
            "the processor time of copperfs (measure it with `copperfs bench tree --calibrate FILE`)",
        );
    }
    parts
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
                    "--files: more than {} files",
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
            Some(mtu) => {
                anyhow::bail!("--mtu: packets of {mtu} bytes cannot be sent. Write 576 to 65535")
            }
        };
        let mut scenario = Scenario {
            nodes: self.nodes,
            arity: self.arity,
            roots: self.roots,
            link: as_f64(self.link.0) * goodput,
            hop: self.hop,
            request_cpu: self.request_cpu,
            storage: as_f64(self.storage_rate.0),
            storage_latency: self.storage_latency,
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

    fn chart(&self, scenario: &Scenario, items: &[Item]) -> anyhow::Result<Chart> {
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
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        let note = format!(
            "Simulated: {} requests and {} for each node; link {}, hop {}, request {} of processor time, \
             storage {} for each root. Left out: {}.\n\
             Measured: Copper (Lewis et al.) on Aurora, cold, 12 Python processes on each node. These times \
             contain the work of Python.",
            items.len(),
            ByteSize(bytes),
            shown_rate(scenario.link),
            shown(scenario.hop),
            shown(scenario.request_cpu),
            shown_rate(scenario.storage),
            left_out(scenario).join(", "),
        );
        let model = Series {
            name: format!("simulated: copperfs, arity {arity}, {roots} {plural}"),
            points,
            dots: true,
            ..Series::default()
        };
        let stated = STATED.iter().map(Stated::series);
        Ok(Chart {
            file: "cold-start".to_owned(),
            title: "Cold-start time vs. number of nodes".to_owned(),
            scope: scope(scenario),
            x: "nodes".to_owned(),
            y: "time (seconds)".to_owned(),
            series: std::iter::once(model).chain(stated).collect(),
            logarithmic: true,
            note,
            ..Chart::default()
        })
    }
}

fn report(scenario: &Scenario, outcome: &Outcome) -> String {
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let (all, times) = (outcome, outcome.times);
    let (requested, answered) = (
        all.requests_per_node_max,
        all.requests_answered_per_node_max,
    );
    let (sent, received) = (all.bytes_sent_per_node_max, all.bytes_received_per_node_max);
    let scope = scope(scenario);
    let time = |part: &str| format!("time until {part} have all data ({scope})");
    let rows: [(&str, String); 14] = [
        ("nodes", all.nodes.to_string()),
        (
            "edges from the root to the farthest node",
            all.depth.to_string(),
        ),
        ("requests of each node", all.items.to_string()),
        ("bytes for each node", bytes(all.item_bytes)),
        (&time("half of the nodes"), shown(times.p50_s)),
        (&time("99 % of the nodes"), shown(times.p99_s)),
        (&time("all nodes"), shown(times.max_s)),
        ("requests sent by a node, maximum", requested.to_string()),
        ("requests answered by a node, maximum", answered.to_string()),
        ("bytes received by a node, maximum", bytes(received)),
        ("bytes sent by a node, maximum", bytes(sent)),
        ("bytes over all edges", bytes(all.bytes_moved)),
        ("requests to storage", all.storage_reads.to_string()),
        ("bytes from storage", bytes(all.storage_bytes)),
    ];
    let table = Table::of(&rows);
    let table = table
        .column("", |row| row.0)
        .column("", |row| row.1.as_str());
    // The line of the titles is empty.
    let table = table.text();
    let left_out = left_out(scenario).join("\n- ");
    format!("{}\n\nThe times leave out:\n- {left_out}", table.trim())
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
    fn a_report_has_each_number_once() {
        let scenario = Scenario::default();
        let outcome = run(&scenario, &described(40, 1_000_000, 1)).unwrap();
        let text = report(&scenario, &outcome);
        assert!(text.starts_with("nodes"), "{text}");
        assert!(text.contains("requests to storage"), "{text}");
        assert_eq!(text.matches("(data movement only)").count(), 3, "{text}");
        assert!(text.contains("leave out:\n- Python"), "{text}");
        assert_eq!(text.lines().count(), 20, "{text}");
    }

    #[test]
    fn times_and_charts_tell_their_scope() {
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            args: TreeArgs,
        }
        let chart = |flags: &[&str]| {
            let words = ["tree", "--files", "4", "--bytes", "1MB"];
            let args = Line::parse_from(words.iter().chain(flags)).args;
            let items = args.items().unwrap();
            args.chart(&args.scenario().unwrap(), &items).unwrap()
        };
        let plain = chart(&[]);
        let title = "Cold-start time vs. number of nodes (data movement only)";
        assert_eq!(plain.heading(), title);
        assert!(plain.note.contains("Left out: Python and all other work"));
        assert!(plain.note.contains("--calibrate FILE"), "{}", plain.note);
        let measured = plain.series[1..].iter();
        for one in measured {
            assert!(one.hollow && one.name.contains("with Python"), "{one:?}");
        }
        let full = chart(&["--think", "1.5ms", "--request-cpu", "12us"]);
        assert!(
            full.heading()
                .ends_with("and 1.50 ms of computing between accesses)")
        );
        assert!(
            full.note.contains("Left out: FUSE, packet loss."),
            "{}",
            full.note
        );
    }
}
