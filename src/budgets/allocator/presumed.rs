//! Presumed reports of the nodes in an adopted decision that have not reported yet. Pure.

use crate::model::{Decision, JobReport, NodeReport, ShareReport, UNATTRIBUTED};
use std::collections::BTreeMap;

/// Returns the report of each node of `decision` if it held all of its shares and read at its full rate.
pub(super) fn reports(decision: &Decision) -> Vec<NodeReport> {
    let mut nodes: BTreeMap<u32, NodeReport> = BTreeMap::new();
    for (at, home) in decision.homes.iter().enumerate() {
        let shares = decision.datasets.iter().map(|dataset| {
            let share = dataset.share(&decision.homes, at);
            ShareReport {
                dataset: dataset.id,
                cached: share,
                share,
                ..ShareReport::default()
            }
        });
        let report = NodeReport {
            rank: home.rank,
            name: home.name.clone(),
            capacity: home.capacity,
            shares: shares.collect(),
            ..NodeReport::default()
        };
        nodes.insert(home.rank, report);
    }
    for job in decision.jobs.iter().filter(|job| job.name != UNATTRIBUTED) {
        let Some(dataset) = &job.dataset else {
            continue;
        };
        for node in &job.nodes {
            let report = nodes.entry(node.rank).or_insert_with(|| NodeReport {
                rank: node.rank,
                ..NodeReport::default()
            });
            report.jobs.push(JobReport {
                job: job.name.clone(),
                dataset: dataset.clone(),
                // Without a limit the node's rate is meaningless.
                remote_io: job.remote_io.map_or(0, |_| node.remote_io),
                irregular: job.irregular,
                bound: true,
                ..JobReport::default()
            });
        }
    }
    nodes.into_values().collect()
}
