//! The output of a launch when all nodes are up.

use super::super::record::Record;
use super::super::stats::ClusterReports;
use super::super::table;
use super::Answer;
use copperfs_policy::amounts::ByteSize;

/// The summary as text, with one line per node for the nodes that fit one screen.
pub(super) fn text(record: &Record, answers: &[Answer], reports: &ClusterReports) -> String {
    /// More nodes than this do not fit one screen.
    const SHOWN: usize = 20;
    let nodes = &record.nodes;
    let mut rows = vec![
        [
            "rank",
            "node",
            "role",
            "parent",
            "pid",
            "memory",
            "mount point",
        ]
        .map(String::from),
    ];
    for (rank, (node, answer)) in nodes.iter().zip(answers).take(SHOWN).enumerate() {
        let report = reports
            .nodes
            .iter()
            .find(|report| report.rank() == u64::try_from(rank).ok());
        rows.push([
            rank.to_string(),
            node.name.clone(),
            report.map_or("?", |report| report.role()).to_owned(),
            report
                .and_then(|report| report.parent())
                .map_or("-".into(), |p| p.to_string()),
            answer.pid.to_string(),
            report.map_or("?".into(), |report| {
                ByteSize(report.counter("resident_bytes")).to_string()
            }),
            node.mountpoint.display().to_string(),
        ]);
    }
    let mut text = table(&rows);
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
    let nodes: Vec<serde_json::Value> = record
        .nodes
        .iter()
        .zip(answers)
        .enumerate()
        .map(|(rank, (node, answer))| {
            serde_json::json!({
                "rank": rank,
                "node": node.name,
                "host": node.host,
                "mountpoint": node.mountpoint,
                "pid": answer.pid,
                "log": answer.log,
            })
        })
        .collect();
    serde_json::json!({ "mountpoint": record.mountpoint, "nodes": nodes })
}
