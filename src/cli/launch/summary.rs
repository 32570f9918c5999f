//! The output of a launch when all nodes are up.

use super::super::record::Record;
use super::super::stats::ClusterReports;
use super::super::{Table, or_dash};
use super::Answer;
use crate::report::Report;
use copperfs_policy::amounts::ByteSize;

/// The summary as text, with one line per node for the nodes that fit one screen.
pub(super) fn text(record: &Record, answers: &[Answer], reports: &ClusterReports) -> String {
    /// More nodes than this do not fit one screen.
    const SHOWN: usize = 20;
    let nodes = &record.nodes;
    let report = |rank: u64| {
        let mut reports = reports.nodes.iter();
        reports.find(|report| report.rank() == Some(rank))
    };
    let parent = |report: &Report| report.parent();
    let memory = |report: &Report| ByteSize(report.counter("resident_bytes")).to_string();
    let rows = (0_u64..).zip(nodes.iter().zip(answers)).take(SHOWN);
    let rows = rows.map(|(rank, (node, answer))| (rank, node, answer, report(rank)));
    let mut text = Table::of(rows)
        .column("rank", |(rank, ..)| *rank)
        .column("node", |(_, node, ..)| node.name.as_str())
        .column("role", |(.., report)| report.map_or("?", Report::role))
        .column("parent", |(.., report)| or_dash(report.and_then(parent)))
        .column("pid", |(_, _, answer, _)| answer.pid)
        .column("memory", |(.., report)| report.map_or("?".into(), memory))
        .column("mount point", |(_, node, ..)| node.mountpoint.display())
        .text();
    if nodes.len() > SHOWN {
        text.push_str(&format!("... and {} more\n", nodes.len() - SHOWN));
    }
    text.push_str(&format!(
        "{} nodes are up. End them: copperfs unmount --all {}",
        nodes.len(),
        record.mountpoint.display()
    ));
    text
}

/// The summary as JSON, with all nodes.
pub(super) fn json(record: &Record, answers: &[Answer]) -> serde_json::Value {
    let nodes = record.nodes.iter().zip(answers).enumerate();
    let nodes = nodes.map(|(rank, (node, answer))| {
        serde_json::json!({
            "rank": rank,
            "node": node.name,
            "host": node.host,
            "mountpoint": node.mountpoint,
            "pid": answer.pid,
            "log": answer.log,
        })
    });
    let nodes: Vec<serde_json::Value> = nodes.collect();
    serde_json::json!({ "mountpoint": record.mountpoint, "nodes": nodes })
}
