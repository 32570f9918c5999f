//! `copperfs stats`: needs only the mount.

use super::{say, table};
use crate::config::Crossings;
use crate::daemon::mountpoint::{canonical, within};
use crate::report::Report;
use anyhow::{Context, bail};
use copperfs_fuse::ioctl::client;
use copperfs_policy::amounts::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a daemon may take for its own numbers.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the tree may take.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest answer of a control socket: a million nodes at some 3 kB.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// What the control socket says of all nodes.
#[derive(Debug)]
pub struct ClusterReports {
    /// A report per node that answered: members by rank, then guests by name.
    pub nodes: Vec<Report>,
    /// The nodes that did not answer, by name.
    pub missing: Vec<Value>,
    /// The list that they were asked by, if it is known.
    pub list: Option<MemberList>,
}

/// What every node knows of the cluster: enough to say where each belongs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MemberList {
    /// Most children of a node in one tree.
    pub arity: usize,
    /// The rank of each tree's root.
    pub roots: Vec<usize>,
    /// All names, in rank order.
    pub names: Vec<String>,
    /// How many edges of the trees cross switches, if that is known.
    pub crossings: Option<Crossings>,
}

impl ClusterReports {
    /// From the JSON form `{"nodes":[…],"missing":[…]}`, with or without a `list`.
    ///
    /// # Errors
    /// It is something else, or an `{"error":"…"}`.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut answer: Value = serde_json::from_slice(bytes).context("the answer is no JSON")?;
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
        let mut nodes = nodes
            .into_iter()
            .map(Report::from_json)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|other| anyhow::anyhow!("{other} is no report"))?;
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

/// Prints counters of this node or of all.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub fn stats(mountpoint: &Path, cluster: bool, as_json: bool) -> anyhow::Result<()> {
    let mountpoint = canonical(mountpoint);
    if cluster {
        let reports = cluster_reports(&mountpoint)?;
        if as_json {
            say(serde_json::to_string_pretty(&reports.into_json())?);
        } else {
            say(cluster_table(&reports));
        }
        return Ok(());
    }
    let report = node_report(&mountpoint)?;
    if as_json {
        say(serde_json::to_string_pretty(&report.into_json())?);
    } else {
        say(node_table(&report));
    }
    Ok(())
}

fn node_report(mountpoint: &Path) -> anyhow::Result<Report> {
    let asked = mountpoint.to_owned();
    let body = within(NODE_TIMEOUT, move || client::node_stats(&asked))
        .with_context(|| format!("the daemon of {} does not answer", mountpoint.display()))??;
    Ok(Report::from(body))
}

/// Asks the daemon of `mountpoint` for the reports of all nodes.
///
/// # Errors
/// It is no copperfs mount, or its daemon does not answer.
pub fn cluster_reports(mountpoint: &Path) -> anyhow::Result<ClusterReports> {
    let asked = mountpoint.to_owned();
    let socket = within(NODE_TIMEOUT, move || client::control_socket(&asked))??;
    let answer = ask(&socket, &json!({ "cmd": "reports" }))
        .with_context(|| format!("the control socket {} does not answer", socket.display()))?;
    ClusterReports::parse(&answer)
}

/// One request, one line of answer.
fn ask(socket: &Path, request: &Value) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(CLUSTER_TIMEOUT))?;
    stream.set_write_timeout(Some(NODE_TIMEOUT))?;
    writeln!(stream, "{request}")?;
    let mut line = Vec::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_until(b'\n', &mut line)?;
    Ok(line)
}

fn node_table(report: &Report) -> String {
    let count = |key: &str| grouped(report.counter(key));
    let bytes = |key: &str| Bytes(report.counter(key)).to_string();
    let parent = report
        .parent()
        .map_or("none".to_owned(), |parent| format!("rank {parent}"));
    let mut text = format!(
        "{} ({}, {}, parent {parent}), pid {}, up {}, memory {}\n\n",
        report.node(),
        report
            .rank()
            .map_or_else(|| "guest".to_owned(), |rank| format!("rank {rank}")),
        report.role(),
        report.counter("pid"),
        duration(report.counter("uptime_s")),
        bytes("rss_bytes"),
    );
    text.push_str(&caches(report));
    let mut rows = vec![["", "requests", "bytes"].map(String::from)];
    for (name, requests, size) in [
        (
            "from parent",
            "upstream.requests",
            "upstream.bytes_received",
        ),
        (
            "to children",
            "downstream.requests",
            "downstream.bytes_sent",
        ),
        ("from origin", "origin.opens", "origin.bytes_read"),
        ("pushed to kernel", "push.files", "push.bytes"),
    ] {
        rows.push([name.into(), count(requests), bytes(size)]);
    }
    text.push('\n');
    text.push_str(&table(&rows));
    text.push_str(&format!(
        "\norigin: {} listings, {} stats, {} errors, {} hanging; coalesced {}; verified {} blocks, {} wrong\n\
         healing: {} moves away, {} back, {} requests repeated\n\
         names known to the kernel: {}, {} here, {} dropped for want of room\n",
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
        count("inodes.entries"),
        bytes("inodes.bytes"),
        count("inodes.pruned"),
    ));
    let requests: Vec<String> = report
        .counters("fuse.requests")
        .filter(|(_, number)| *number > 0)
        .map(|(name, number)| format!("{name} {}", grouped(number)))
        .collect();
    let requests = if requests.is_empty() {
        "none".into()
    } else {
        requests.join(", ")
    };
    text.push_str(&super::wrapped(&format!("from the kernel: {requests}"), 80));
    text.push_str(&data_mount(report));
    text
}

/// A line of its own; empty where there is no data mount.
fn data_mount(report: &Report) -> String {
    let count = |key: &str| report.counter(&format!("data_mount.{key}"));
    if count("mounted") + count("lost") == 0 {
        return String::new();
    }
    let lost = if count("lost") > 0 { " (gone)" } else { "" };
    let line = format!(
        "data mount{lost}: {} opens, {} of datasets, {} answered by the page cache or not read; {} \
         READs, {}",
        grouped(count("opens")),
        grouped(count("dataset_opens")),
        grouped(count("cached_opens")),
        grouped(count("reads")),
        Bytes(count("bytes_read")),
    );
    format!("\n{}", super::wrapped(&line, 80))
}

fn caches(report: &Report) -> String {
    let head = ["cache", "entries", "bytes", "hits", "misses", "evictions"].map(String::from);
    let mut rows = vec![head];
    for cache in ["data", "attributes", "listings"] {
        let key = |name: &str| format!("cache.{cache}.{name}");
        let count = |name: &str| grouped(report.counter(&key(name)));
        rows.push([
            cache.to_owned(),
            count("entries"),
            Bytes(report.counter(&key("bytes"))).to_string(),
            count("hits"),
            count("misses"),
            count("evictions"),
        ]);
    }
    table(&rows)
}

fn cluster_table(reports: &ClusterReports) -> String {
    let head = [
        "rank",
        "node",
        "role",
        "memory",
        "cached",
        "from parent",
        "from origin",
        "opens",
        "errors",
    ];
    let mut rows = vec![head.map(String::from)];
    let total = Report::total(&reports.nodes);
    let line = |report: &Report, rank: String, name: String| {
        let bytes = |key: &str| Bytes(report.counter(key)).to_string();
        [
            rank,
            name,
            report.role().to_owned(),
            bytes("rss_bytes"),
            bytes("cache.data.bytes"),
            bytes("upstream.bytes_received"),
            bytes("origin.bytes_read"),
            grouped(report.counter("origin.opens")),
            grouped(report.counter("origin.errors") + report.counter("verify.failures")),
        ]
    };
    for report in &reports.nodes {
        let name: String = report.node().chars().take(24).collect();
        let rank = report.rank();
        let rank = rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        rows.push(line(report, rank, name));
    }
    rows.push(line(&total, String::new(), "total".into()));
    let mut text = table(&rows);
    if !reports.missing.is_empty() {
        let names: Vec<String> = reports
            .missing
            .iter()
            .map(|node| {
                node.as_str()
                    .map_or_else(|| node.to_string(), ToOwned::to_owned)
            })
            .collect();
        text.push_str(&super::wrapped(
            &format!("no answer from: {}", names.join(", ")),
            80,
        ));
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

/// For people: `3m12s`.
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
    use copperfs_fuse::ioctl::{NodeName, ROLE_LEAF, StatsBody};

    fn report(rank: u64) -> Report {
        Report::from(StatsBody {
            node: NodeName::new("nid001234.cluster.example.org:7470"),
            rank,
            role: ROLE_LEAF,
            uptime_s: 3_661,
            rss_bytes: 25 << 20,
            cache_data_bytes: 3 << 30,
            cache_data_hits: 1_234_567,
            fuse_requests_lookup: 632_028,
            upstream_bytes_received: u64::from(u32::MAX),
            ..StatsBody::default()
        })
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
    fn answers_of_the_control_socket() {
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
    fn a_control_socket_is_asked_one_line() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            (&stream)
                .write_all(b"{\"nodes\":[],\"missing\":[]}\n")
                .unwrap();
            line
        });
        let answer = ask(&path, &json!({ "cmd": "reports" })).unwrap();
        assert_eq!(server.join().unwrap(), "{\"cmd\":\"reports\"}\n");
        assert!(ClusterReports::parse(&answer).unwrap().nodes.is_empty());
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }
}
