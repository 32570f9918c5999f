//! The output of a launch when all nodes are up.

use super::super::record::{Node, Record};
use super::super::{Table, or_dash};
use super::Answer;
use crate::report::Report;
use copperfs_policy::amounts::ByteSize;

/// The summary as text, with one line per node for the nodes that fit one screen.
pub(super) fn text(record: &Record, answers: &[Answer], reports: &[Report]) -> String {
    /// More nodes than this do not fit one screen.
    const SHOWN: usize = 20;
    let nodes = &record.nodes;
    // By name, because each instance has ranks of its own.
    let report = |node: &Node| reports.iter().find(|report| report.node() == node.name);
    let instances = record.instances().len();
    let parent = |report: &Report| report.parent();
    let memory = |report: &Report| ByteSize(report.counter("resident_bytes")).to_string();
    let rows = nodes.iter().zip(answers).take(SHOWN);
    let rows = rows.map(|(node, answer)| (node, answer, report(node)));
    let mut table = Table::of(rows);
    if instances > 1 {
        table = table.column("rack", |(node, ..)| or_dash(node.rack.as_deref()));
    }
    let mut text = table
        .column("rank", |(_, answer, _)| answer.rank)
        .column("node", |(node, ..)| node.name.as_str())
        .column("role", |(.., report)| report.map_or("?", Report::role))
        .column("parent", |(.., report)| or_dash(report.and_then(parent)))
        .column("pid", |(_, answer, _)| answer.pid)
        .column("memory", |(.., report)| report.map_or("?".into(), memory))
        .column("mount point", |(node, ..)| node.mountpoint.display())
        .text();
    if nodes.len() > SHOWN {
        text.push_str(&format!("... and {} more\n", nodes.len() - SHOWN));
    }
    let of = match instances {
        1 => String::new(),
        count => format!(" of {count} instances, one for each rack,"),
    };
    text.push_str(&format!(
        "{}. Logs: copperfs logs {1} --node N. End: copperfs unmount {1}",
        match nodes.len() {
            1 => "1 node is up".to_owned(),
            several => format!("{several} nodes{of} are up"),
        },
        record.mountpoint.display()
    ));
    text
}

/// The summary as JSON, with all nodes.
pub(super) fn json(record: &Record, answers: &[Answer]) -> serde_json::Value {
    let nodes = record.nodes.iter().zip(answers);
    let nodes = nodes.map(|(node, answer)| {
        serde_json::json!({
            "rank": answer.rank,
            "rack": node.rack,
            "node": node.name,
            "host": node.host,
            "mountpoint": node.mountpoint,
            "pid": answer.pid,
            "log": answer.log,
        })
    });
    let nodes: Vec<serde_json::Value> = nodes.collect();
    let instances = record.instances().len();
    serde_json::json!({ "mountpoint": record.mountpoint, "instances": instances, "nodes": nodes })
}
