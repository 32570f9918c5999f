//! `copperfs stats`: prints the counters of a node, or of all nodes.

use super::daemon::{ask_daemon, client_of, run};
use super::mounted::MountArg;
use super::{Table, or_dash, percent, print, say};
use crate::config::{Crossings, wrapped};
use crate::num::as_f64;
use crate::report::Report;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use copperfs_fuse::ioctl::client;
use copperfs_policy::amounts::ByteSize;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// How long a daemon may take to report its own counters.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the reports of all nodes may take.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(75);

/// The counters to show.
#[derive(Debug, Args)]
pub struct StatsArgs {
    #[command(flatten)]
    mount: MountArg,
    /// All nodes, not only this one
    #[arg(long)]
    all: bool,
    /// Show them again each so many seconds, until interrupted
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u32).range(1..=3600)
    )]
    watch: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The reports of all nodes.
#[derive(Debug, Default)]
pub struct ClusterReports {
    /// A report per node that answered: members by rank, then guests by name.
    pub nodes: Vec<Report>,
    /// The nodes that did not answer, by name.
    pub missing: Vec<Value>,
    /// The member list, if the daemon knows it.
    pub list: Option<MemberList>,
}

/// The member list and the shape of the trees, as every node knows them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MemberList {
    /// Most children of a node in one tree.
    pub arity: usize,
    /// The rank of each tree's root.
    pub roots: Vec<usize>,
    /// All names, in rank order.
    pub names: Vec<String>,
    /// The number of edges that cross switches, if a topology is known.
    pub crossings: Option<Crossings>,
}

impl ClusterReports {
    /// Parses the JSON form `{"nodes":[…],"missing":[…]}`, with or without a `list`.
    ///
    /// # Errors
    /// It has another form, or is an `{"error":"…"}`.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        Self::from_json(serde_json::from_slice(bytes).context("the answer is no JSON")?)
    }

    fn from_json(mut answer: Value) -> anyhow::Result<Self> {
        if let Some(error) = answer.get("error").and_then(Value::as_str) {
            bail!("{error}");
        }
        let mut list = |key: &str| match answer.get_mut(key).map(Value::take) {
            Some(Value::Array(list)) => Ok(list),
            _ => bail!("the answer has no list of {key}"),
        };
        let missing = list("missing")?;
        let nodes = list("nodes")?;
        let list = answer.get_mut("list").map(Value::take);
        let list = list.and_then(|list| serde_json::from_value(list).ok());
        let nodes: Result<Vec<_>, _> = nodes.into_iter().map(Report::from_json).collect();
        let mut nodes = nodes.map_err(|other| anyhow!("{other} is no report"))?;
        nodes.sort_by_cached_key(|node| match node.rank() {
            Some(rank) => (rank, String::new()),
            None => (u64::MAX, node.node().to_owned()),
        });
        Ok(Self {
            nodes,
            missing,
            list,
        })
    }

    fn into_json(self) -> Value {
        let total = Report::total(&self.nodes).into_json();
        let nodes: Vec<Value> = self.nodes.into_iter().map(Report::into_json).collect();
        json!({ "nodes": nodes, "total": total, "missing": self.missing })
    }
}

/// Prints the counters of this node or of all nodes.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub fn stats(args: &StatsArgs) -> anyhow::Result<()> {
    let mountpoint = args.mount.find()?;
    let Some(seconds) = args.watch else {
        let (value, text) = counters(args, &mountpoint)?;
        return print(args.json, &value, |_| text);
    };
    // A terminal shows the newest ones only. A file gets all, and JSON as one line each.
    let clear = match std::io::stdout().is_terminal() {
        true => "\x1b[H\x1b[2J",
        false => "",
    };
    run(async {
        let mut ticks = tokio::time::interval(Duration::from_secs(seconds.into()));
        loop {
            ticks.tick().await;
            let (value, text) = counters(args, &mountpoint)?;
            match args.json {
                true => say(value),
                false => say(format_args!("{clear}{}\n", text.trim_end())),
            }
        }
    })
}

/// The counters as JSON and as text.
fn counters(args: &StatsArgs, mountpoint: &Path) -> anyhow::Result<(Value, String)> {
    if args.all {
        let reports = cluster_reports(mountpoint)?;
        let text = cluster_table(&reports);
        return Ok((reports.into_json(), text));
    }
    let report = ask_daemon(mountpoint, NODE_TIMEOUT, client::node_stats)??;
    let report = Report::from_lines(&report);
    let text = node_table(&report);
    Ok((report.into_json(), text))
}

/// Asks the daemon of `mountpoint` for the reports of all nodes.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub fn cluster_reports(mountpoint: &Path) -> anyhow::Result<ClusterReports> {
    // `ask_daemon` starts a thread, so the caller may be within a runtime.
    let answer = ask_daemon(mountpoint, CLUSTER_TIMEOUT, |mountpoint| {
        let client = client_of(mountpoint)?;
        run(async move { Ok(client.ask("GET", "/v1/cluster", None).await?) })
    })??;
    ClusterReports::from_json(answer)
}

fn node_table(report: &Report) -> String {
    let count = |key: &str| grouped(report.counter(key));
    let bytes = |key: &str| ByteSize(report.counter(key)).to_string();
    let rank = |rank: Option<u64>, none: &str| match rank {
        Some(rank) => format!("rank {rank}"),
        None => none.to_owned(),
    };
    let mut text = format!(
        "{} ({}, {}, parent {}), pid {}, up {}, memory {}\n\n",
        report.node(),
        rank(report.rank(), "guest"),
        report.role(),
        rank(report.parent(), "none"),
        report.counter("pid"),
        duration(report.counter("uptime_seconds")),
        bytes("resident_bytes"),
    );
    let inodes = |name: &str| {
        let of = |mount| report.counter(&format!("inodes.{mount}.{name}"));
        of("software") + of("data")
    };
    text.push_str(&format!(
        "{}\n{}\norigin: {} listings, {} stats, {} errors, {} hanging; coalesced {}; verified {} blocks, {} wrong\n\
         healing: {} moves away, {} back, {} requests repeated\n\
         names known to the kernel: {}, {} here, {} dropped for want of room\n",
        caches(report),
        traffic(report),
        count("origin.listings"),
        count("origin.stats"),
        count("origin.errors"),
        count("origin.hanging"),
        count("coalesced"),
        count("verify.blocks"),
        count("verify.failures"),
        count("healing.failovers"),
        count("healing.returns"),
        count("healing.replays"),
        grouped(inodes("entries")),
        ByteSize(inodes("bytes")),
        grouped(inodes("pruned")),
    ));
    text.push_str(&requests(report, "software", "from the kernel"));
    text.push_str(&requests(report, "images", "for images"));
    text.push_str(&data_mount(report));
    text
}

/// A line with the requests of the kernel for one of its filesystems; empty if the node does not have it.
fn requests(report: &Report, mount: &str, label: &str) -> String {
    let key = format!("fuse.{mount}.requests");
    let requests: Vec<_> = report.counters(&key).collect();
    if requests.is_empty() {
        return String::new();
    }
    let requests = requests.into_iter().filter(|(_, number)| *number > 0);
    let requests = requests.map(|(name, number)| format!("{name} {}", grouped(number)));
    let requests = match requests.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        requests => requests,
    };
    wrapped(&format!("{label}: {requests}"), 80)
}

/// A line about the data mount; empty if there is none.
fn data_mount(report: &Report) -> String {
    let count = |key: &str| report.counter(key);
    if count("data_mount.mounted") + count("data_mount.lost") == 0 {
        return String::new();
    }
    let lost = match count("data_mount.lost") {
        0 => "",
        _ => " (gone)",
    };
    let line = format!(
        "data mount{lost}: {} opens, {} of datasets, {} answered by the page cache or not read; {} \
         READs, {}",
        grouped(count("fuse.data.requests.open")),
        grouped(count("data_mount.dataset_opens")),
        grouped(count("data_mount.cached_opens")),
        grouped(count("fuse.data.requests.read")),
        ByteSize(count("fuse.data.read_bytes")),
    );
    format!("\n{}", wrapped(&line, 80))
}

fn caches(report: &Report) -> String {
    let counter = |cache: &str, name: &str| match cache {
        "disk" => report.counter(&format!("disk.{name}")),
        cache => report.counter(&format!("cache.{cache}.{name}")),
    };
    let disk = (report.counter("disk.capacity_bytes") > 0).then_some("disk");
    let tiers = ["data", "attributes", "listings"].into_iter().chain(disk);
    Table::of(tiers)
        .column("cache", |cache| *cache)
        .column("entries", |cache| grouped(counter(cache, "entries")))
        .column("bytes", |cache| ByteSize(counter(cache, "bytes")))
        .column("hits", |cache| grouped(counter(cache, "hits")))
        .column("misses", |cache| grouped(counter(cache, "misses")))
        .column("hit ratio", |cache| {
            ratio(counter(cache, "hits"), counter(cache, "misses"))
        })
        .column("evictions", |cache| grouped(counter(cache, "evictions")))
        .text()
}

/// The part of look-ups that were hits, or a dash if there were none.
fn ratio(hits: u64, misses: u64) -> String {
    let asked = hits.saturating_add(misses);
    or_dash((asked > 0).then(|| percent(as_f64(hits) / as_f64(asked))))
}

fn traffic(report: &Report) -> String {
    let rows = [
        (
            "from parent",
            "upstream.requests",
            "upstream.received_bytes",
        ),
        (
            "to children",
            "downstream.requests",
            "downstream.sent_bytes",
        ),
        ("from origin", "origin.opens", "origin.read_bytes"),
        (
            "pushed to kernel",
            "push.software.files",
            "push.software.bytes",
        ),
    ];
    Table::of(rows)
        .column("", |(name, ..)| *name)
        .column("requests", |(_, key, _)| grouped(report.counter(key)))
        .column("bytes", |(.., key)| ByteSize(report.counter(key)))
        .text()
}

/// The rank, the name and the report of a node, or of all of them.
type Line<'a> = (String, String, &'a Report);

fn cluster_table(reports: &ClusterReports) -> String {
    let total = Report::total(&reports.nodes);
    let nodes = reports.nodes.iter().map(|report| {
        let name: String = report.node().chars().take(24).collect();
        (or_dash(report.rank()), name, report)
    });
    let total = [(String::new(), "total".to_owned(), &total)];
    let bytes = |key: &'static str| move |(.., report): &Line<'_>| ByteSize(report.counter(key));
    let errors =
        |report: &Report| report.counter("origin.errors") + report.counter("verify.failures");
    let has_disk = reports
        .nodes
        .iter()
        .any(|report| report.counter("disk.capacity_bytes") > 0);
    let mut table = Table::of(nodes.chain(total))
        .column("rank", |(rank, ..)| rank.clone())
        .column("node", |(_, name, _)| name.clone())
        .column("role", |(.., report)| report.role())
        .column("memory", bytes("resident_bytes"))
        .column("cached", bytes("cache.data.bytes"));
    if has_disk {
        table = table.column("disk", bytes("disk.bytes"));
    }
    let mut text = table
        .column("hits", |(.., report)| {
            let counter = |name| report.counter(&format!("cache.data.{name}"));
            ratio(counter("hits"), counter("misses"))
        })
        .column("received", bytes("upstream.received_bytes"))
        .column("from storage", bytes("origin.read_bytes"))
        .column("errors", |(.., report)| grouped(errors(report)))
        .text();
    if !reports.missing.is_empty() {
        let name = |node: &Value| {
            node.as_str()
                .map_or_else(|| node.to_string(), ToOwned::to_owned)
        };
        let names: Vec<String> = reports.missing.iter().map(name).collect();
        let line = format!("no answer from: {}", names.join(", "));
        text.push_str(&wrapped(&line, 80));
    }
    text.trim_end().to_owned()
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration such as `3m12s`.
pub(super) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Identity, Role};

    fn report(rank: usize) -> Report {
        let identity = Identity {
            node: "nid001234.cluster.example.org:7470".into(),
            pid: 17,
            rank: Some(rank),
            role: Role::Leaf,
            parent: Some(0),
        };
        let metrics = json!({
            "uptime_seconds": 3_661,
            "resident_bytes": 25 << 20,
            "cache": { "data": { "bytes": 3_u64 << 30, "hits": 1_234_567 } },
            "fuse": { "software": { "requests": { "lookup": 632_028 } } },
            "upstream": { "received_bytes": u32::MAX },
        });
        Report::new(&identity, metrics.as_object().unwrap().clone())
    }

    #[test]
    fn tables_fit_the_screen() {
        let reports = ClusterReports {
            nodes: vec![report(1), report(8299)],
            missing: vec![json!("nid7"), json!("nid8")],
            list: None,
        };
        let cluster = cluster_table(&reports);
        let node = node_table(&report(1));
        for line in cluster.lines().chain(node.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
            assert_eq!(line, line.trim_end(), "{line:?}");
        }
        assert!(cluster.contains("no answer from: nid7, nid8"), "{cluster}");
        assert!(
            node.contains("1,234,567") && node.contains("up 1h01m"),
            "{node}"
        );
        assert!(node.contains("from the kernel: lookup 632,028"), "{node}");
    }

    #[test]
    fn answers_are_read() {
        let answer =
            json!({ "nodes": [report(2).into_json(), report(0).into_json()], "missing": [] });
        let reports = ClusterReports::parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!(reports.nodes[0].rank(), Some(0));
        let json = reports.into_json();
        assert_eq!(json["total"]["cache"]["data"]["hits"], 2 * 1_234_567);
        assert_eq!(json["missing"], json!([]));
        let error = ClusterReports::parse(br#"{"error":"not yet"}"#).unwrap_err();
        assert_eq!(error.to_string(), "not yet");
        for wrong in [&b"{}"[..], b"", b"[", br#"{"nodes":[3],"missing":[]}"#] {
            assert!(ClusterReports::parse(wrong).is_err());
        }
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
