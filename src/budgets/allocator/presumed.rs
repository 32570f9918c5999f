//! Nodes that were not heard of yet, as the decision that was taken up knows them. Pure.

use crate::model::{Decision, JobDecision, JobReport, NodeReport, ShareReport, UNATTRIBUTED};
use std::collections::BTreeMap;

/// What each node of `decision` would report if it held its shares and read as it was allowed to.
pub(super) fn reports(decision: &Decision) -> Vec<NodeReport> {
    let mut nodes: BTreeMap<u32, NodeReport> = BTreeMap::new();
    for (at, home) in decision.homes.iter().enumerate() {
        let shares = decision.datasets.iter().map(|dataset| {
            let share = dataset.share(&decision.homes, at);
            ShareReport {
                dataset: dataset.id,
                cached: share,
                items: 0,
                share,
                origin_bytes: 0,
                trouble: None,
            }
        });
        let node = NodeReport {
            name: home.name.clone(),
            capacity: home.capacity,
            shares: shares.collect(),
            ..nobody(home.rank)
        };
        nodes.insert(home.rank, node);
    }
    let jobs = decision.jobs.iter().filter(|job| job.name != UNATTRIBUTED);
    for (job, node) in jobs.flat_map(|job| job.nodes.iter().map(move |node| (job, node))) {
        let report = nodes.entry(node.rank).or_insert_with(|| nobody(node.rank));
        report.jobs.extend(part(job, node.remote_io));
    }
    nodes.into_values().collect()
}

fn part(job: &JobDecision, remote_io: u64) -> Option<JobReport> {
    Some(JobReport {
        job: job.name.clone(),
        dataset: job.dataset.clone()?,
        remote_io: if job.remote_io.is_some() {
            remote_io
        } else {
            0
        },
        irregular: job.irregular,
        bound: true,
        ..JobReport::default()
    })
}

fn nobody(rank: u32) -> NodeReport {
    NodeReport {
        rank,
        name: String::new(),
        boot: 0,
        count: 0,
        follows: Default::default(),
        capacity: 0,
        shares: Vec::new(),
        jobs: Vec::new(),
    }
}
