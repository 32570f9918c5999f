//! Rates per second between two snapshots of the cluster. Pure.

use crate::cli::stats::ClusterReports;
use crate::cli::status::view::{NoMemberList, NodeState, View};
use crate::report::Report;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The filesystems whose requests are shown together: what is read from images is a part of the software mount.
const FRONTS: [&str; 2] = ["fuse.software", "fuse.images"];

/// A snapshot of the cluster.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// The time since the start of the program.
    pub(super) at: Duration,
    pub(super) reports: ClusterReports,
}

/// The average rates per second of one node or of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    /// Requests of the kernel, of any kind.
    pub(super) requests: f64,
    pub(super) reads: f64,
    pub(super) lookups: f64,
    /// Bytes given to the kernel in answer to READ.
    pub(super) bytes_read: f64,
    /// Blocks found in the data cache.
    pub(super) hits: f64,
    pub(super) misses: f64,
    pub(super) upstream_requests: f64,
    pub(super) upstream_bytes: f64,
    pub(super) downstream_bytes: f64,
    pub(super) origin_bytes: f64,
    pub(super) origin_opens: f64,
}

impl Rates {
    /// The hit ratio of the data cache, 0 to 1; `None` without look-ups.
    pub(super) fn hit_ratio(&self) -> Option<f64> {
        let asked = self.hits + self.misses;
        (asked > 0.0).then(|| self.hits / asked)
    }

    fn between(before: &Report, now: &Report, elapsed: Duration) -> Option<Self> {
        // The counters of a restarted daemon begin at zero, so a difference would be meaningless.
        let restarted = before.counter("pid") != now.counter("pid");
        if restarted || elapsed.is_zero() {
            return None;
        }
        let rate = |key: &str| per_second(before.counter(key), now.counter(key), elapsed);
        let of_fronts = |key: &str| -> f64 {
            let fronts = FRONTS.iter();
            fronts.map(|front| rate(&format!("{front}.{key}"))).sum()
        };
        let kinds = now.counters("fuse.software.requests");
        Some(Self {
            requests: kinds
                .map(|(kind, _)| of_fronts(&format!("requests.{kind}")))
                .sum(),
            reads: of_fronts("requests.read"),
            lookups: of_fronts("requests.lookup"),
            bytes_read: of_fronts("read_bytes"),
            hits: rate("cache.data.hits"),
            misses: rate("cache.data.misses"),
            upstream_requests: rate("upstream.requests"),
            upstream_bytes: rate("upstream.received_bytes"),
            downstream_bytes: rate("downstream.sent_bytes"),
            origin_bytes: rate("origin.read_bytes"),
            origin_opens: rate("origin.opens"),
        })
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.reads += other.reads;
        self.lookups += other.lookups;
        self.bytes_read += other.bytes_read;
        self.hits += other.hits;
        self.misses += other.misses;
        self.upstream_requests += other.upstream_requests;
        self.upstream_bytes += other.upstream_bytes;
        self.downstream_bytes += other.downstream_bytes;
        self.origin_bytes += other.origin_bytes;
        self.origin_opens += other.origin_opens;
    }
}

/// The rate of a counter. A counter that has decreased, because a daemon restarted with the same pid, has rate 0.
fn per_second(before: u64, now: u64, elapsed: Duration) -> f64 {
    now.saturating_sub(before) as f64 / elapsed.as_secs_f64()
}

/// The row of a node in the table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) rank: Option<usize>,
    pub(super) role: String,
    /// The worst state in any tree.
    pub(super) state: NodeState,
    /// `None` until the node has answered twice.
    pub(super) rates: Option<Rates>,
    /// `None` if the node has not answered.
    pub(super) rss_bytes: Option<u64>,
}

/// The content of the header and the table.
#[derive(Debug, Clone, Default)]
pub(super) struct Picture {
    /// Members by rank, then guests by name.
    pub(super) rows: Vec<Row>,
    /// `None` until a node has answered twice.
    pub(super) total: Option<Rates>,
    /// Rates of the kernel's requests by kind, in descending order; kinds without requests are omitted.
    pub(super) kinds: Vec<(String, f64)>,
    pub(super) rss_bytes: u64,
    pub(super) roots: usize,
}

/// Identifies a node: a member by rank, a guest by name.
type Key = (Option<u64>, String);

fn key(report: &Report) -> Key {
    match report.rank() {
        Some(rank) => (Some(rank), String::new()),
        None => (None, report.node().to_owned()),
    }
}

/// The rates between `before`, if there is a previous snapshot, and `now`.
///
/// # Errors
/// The daemon does not report the member list.
pub(super) fn picture(before: Option<&Snapshot>, now: &Snapshot) -> Result<Picture, NoMemberList> {
    let view = View::of(&now.reports)?;
    let known: HashMap<Key, &Report> = before
        .iter()
        .flat_map(|look| &look.reports.nodes)
        .map(|report| (key(report), report))
        .collect();
    let elapsed = now.at.saturating_sub(before.map_or(now.at, |look| look.at));
    let mut reports: HashMap<Key, (&Report, Option<Rates>)> = HashMap::new();
    let mut picture = Picture {
        roots: view.trees.len(),
        ..Picture::default()
    };
    let mut kinds: BTreeMap<&str, f64> = BTreeMap::new();
    for report in &now.reports.nodes {
        picture.rss_bytes += report.counter("resident_bytes");
        let before = known.get(&key(report));
        let rates = before.and_then(|before| Rates::between(before, report, elapsed));
        reports.insert(key(report), (report, rates));
        let (Some(before), Some(rates)) = (before, rates) else {
            continue;
        };
        picture.total.get_or_insert_default().add(&rates);
        for requests in FRONTS.map(|front| format!("{front}.requests")) {
            for (kind, count) in report.counters(&requests) {
                let count_before = before.counter(&format!("{requests}.{kind}"));
                *kinds.entry(kind).or_default() += per_second(count_before, count, elapsed);
            }
        }
    }
    let kinds = kinds.into_iter().filter(|(_, rate)| *rate > 0.0);
    picture.kinds = kinds.map(|(kind, rate)| (kind.to_owned(), rate)).collect();
    picture.kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (node, worst) in view.nodes() {
        let key = match node.rank {
            Some(rank) => (u64::try_from(rank).ok(), String::new()),
            None => (None, node.node.clone()),
        };
        let found = reports.get(&key);
        let role = if node.guest { "guest" } else { &node.role };
        picture.rows.push(Row {
            node: node.node.clone(),
            rank: node.rank,
            role: role.to_owned(),
            state: worst,
            rates: found.and_then(|(_, rates)| *rates),
            rss_bytes: found.map(|(report, _)| report.counter("resident_bytes")),
        });
    }
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::stats::MemberList;
    use crate::report::{Identity, Role};
    use serde_json::json;

    fn report(rank: usize, count: u64) -> Report {
        report_of(rank, 100, count)
    }

    fn report_of(rank: usize, pid: u32, count: u64) -> Report {
        let identity = Identity {
            node: format!("n{rank}"),
            pid,
            rank: Some(rank),
            role: Role::Leaf,
            parent: None,
        };
        let metrics = json!({
            "resident_bytes": 1 << 20,
            "fuse": { "software": {
                "requests": { "lookup": 2 * count, "read": count },
                "read_bytes": 4096 * count,
            } },
            "cache": { "data": { "hits": 3 * count, "misses": count } },
            "upstream": { "received_bytes": 10 * count },
        });
        Report::new(&identity, metrics.as_object().unwrap().clone())
    }

    fn look(seconds: u64, nodes: Vec<Report>) -> Snapshot {
        let names = ["n0", "n1", "n2"].map(String::from).to_vec();
        Snapshot {
            at: Duration::from_secs(seconds),
            reports: ClusterReports {
                nodes,
                missing: Vec::new(),
                list: Some(MemberList {
                    arity: 2,
                    roots: vec![0],
                    names,
                    crossings: None,
                }),
            },
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = look(10, vec![report(0, 100), report(1, 0)]);
        let now = look(14, vec![report(0, 120), report(1, 8)]);
        let picture = picture(Some(&before), &now).unwrap();
        let root = picture.rows[0].rates.unwrap();
        assert_eq!((root.reads, root.lookups, root.requests), (5.0, 10.0, 15.0));
        assert_eq!(root.bytes_read, 5.0 * 4096.0);
        assert_eq!(root.hit_ratio(), Some(0.75));
        let total = picture.total.unwrap();
        assert_eq!((total.reads, total.upstream_bytes), (7.0, 70.0));
        assert_eq!(
            picture.kinds,
            [("lookup".to_owned(), 14.0), ("read".to_owned(), 7.0)]
        );
        assert_eq!(picture.rss_bytes, 2 << 20);
        assert_eq!(picture.rows[2].state, NodeState::Missing);
        assert_eq!(picture.rows[2].rss_bytes, None);
    }

    #[test]
    fn a_first_look_has_no_rates() {
        let now = look(1, vec![report(0, 5)]);
        let first = picture(None, &now).unwrap();
        assert_eq!((first.total, first.rows[0].rates), (None, None));
        let same_time = picture(Some(&look(1, vec![report(0, 1)])), &now).unwrap();
        assert_eq!(same_time.rows[0].rates, None);
    }

    #[test]
    fn a_node_that_restarted_has_no_rates_yet() {
        let restarted = report_of(0, 7, 3);
        let before = look(1, vec![report(0, 100), report(1, 1)]);
        let now = look(2, vec![restarted, report(1, 2)]);
        let picture = picture(Some(&before), &now).unwrap();
        assert_eq!(picture.rows[0].rates, None);
        assert_eq!(picture.total.unwrap().reads, 1.0);
        // A counter that goes back for another reason is no rate of 2^64.
        assert_eq!(per_second(9, 3, Duration::from_secs(1)), 0.0);
    }

    #[test]
    fn a_cache_that_nobody_asks_has_no_ratio() {
        assert_eq!(Rates::default().hit_ratio(), None);
    }
}
