//! Rates of each node of a job, and of reads that belong to no job. Pure.

use super::chunks;
use crate::model::{
    DatasetDecision, Decision, JobDecision, JobNode, JobReport, NodeReport, UNATTRIBUTED,
};
use crate::num::{as_f64, whole};
use copperfs_policy::water;
use std::collections::BTreeMap;

/// The fraction of remote IO that is always reserved for reads that belong to no job.
const UNATTRIBUTED_MIN: f64 = 0.01;
/// The largest fraction for these reads while jobs run.
const UNATTRIBUTED_MAX: f64 = 0.1;
/// The factor by which their fraction grows and shrinks, so that noise causes no decisions.
const UNATTRIBUTED_STEP: f64 = 1.5;
/// A node that waits for tokens for more than this fraction of the time could use a higher rate.
const WAITS: f32 = 0.05;
/// The rate that a node may reach, relative to its current one, before others' rates are reduced for it.
const HEADROOM: f64 = 1.5;
/// The fraction of an equal share that every node of a job has, so that a node can begin to read.
const NODE_MIN: f64 = 0.1;

/// A node's use of its part of a job's rate.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Demand {
    pub(super) rank: u32,
    /// Bytes per second read from storage.
    pub(super) used: u64,
    /// Whether it waits for tokens.
    pub(super) waits: bool,
}

/// Returns the demands of the nodes on which a job reads.
pub(super) fn demands(parts: &[(u32, &JobReport)]) -> Vec<Demand> {
    let mut nodes: BTreeMap<u32, Demand> = BTreeMap::new();
    for (rank, part) in parts {
        let node = nodes.entry(*rank).or_default();
        node.rank = *rank;
        node.used = node.used.saturating_add(part.remote_io);
        node.waits |= part.throttled > WAITS;
    }
    nodes.into_values().collect()
}

/// Returns the demands of reads that belong to no job, on every node, because such reads may begin on any.
pub(super) fn unattributed_demands(reports: &[NodeReport]) -> Vec<Demand> {
    let of_none = |job: &&JobReport| job.job.is_empty() || job.job == UNATTRIBUTED;
    let demand = |report: &NodeReport| {
        let jobs = report.jobs.iter().filter(of_none).filter(|job| !job.ended);
        let parts: Vec<(u32, &JobReport)> = jobs.map(|job| (report.rank, job)).collect();
        demands(&parts).pop().unwrap_or(Demand {
            rank: report.rank,
            ..Demand::default()
        })
    };
    reports.iter().map(demand).collect()
}

/// Returns the part of `total` for reads that belong to no job: everything while no job runs; otherwise
/// between [`UNATTRIBUTED_MIN`] and [`UNATTRIBUTED_MAX`], by demand.
pub(super) fn unattributed(
    total: u64,
    jobs: bool,
    reports: &[NodeReport],
    before: Option<u64>,
) -> u64 {
    if !jobs {
        return total;
    }
    let least = as_f64(total) * UNATTRIBUTED_MIN;
    let most = as_f64(total) * UNATTRIBUTED_MAX;
    let demands = unattributed_demands(reports);
    let used: f64 = demands.iter().map(|demand| as_f64(demand.used)).sum();
    let waits = demands.iter().any(|demand| demand.waits);
    // Before the first job they had everything, so the previous rate says nothing beyond the maximum.
    let had = as_f64(before.unwrap_or(0)).min(most);
    let wanted = match waits {
        true => had.max(used) * HEADROOM,
        false => used,
    };
    let mut given = least;
    while given < wanted && given < most {
        given *= UNATTRIBUTED_STEP;
    }
    whole(given.min(most))
}

/// Divides `rate` among the nodes of a job by demand, with a part for nodes without demand; evenly if no
/// demand is known. The parts sum to at most `rate`. Without a rate no node has a limit.
pub(super) fn over_nodes(rate: Option<u64>, demands: &[Demand]) -> Vec<JobNode> {
    let node = |rank, remote_io| JobNode { rank, remote_io };
    let Some(rate) = rate else {
        let ranks = demands.iter().map(|demand| demand.rank);
        return ranks.map(|rank| node(rank, u64::MAX)).collect();
    };
    let count = as_f64(demands.len().max(1) as u64);
    let rate = as_f64(rate);
    let least = rate / count * NODE_MIN;
    let known = demands.iter().any(|demand| demand.used > 0 || demand.waits);
    let needs: Vec<f64> = demands
        .iter()
        .map(|demand| match known && !demand.waits {
            true => (as_f64(demand.used) * HEADROOM - least).max(0.0),
            false => f64::MAX,
        })
        .collect();
    let rest = rate - least * count;
    let given = water::fill(rest, &needs);
    // Divide what no node needs, so that a node whose demand rises is not held back until the next
    // decision.
    let left = (rest - given.iter().sum::<f64>()).max(0.0) / count;
    let nodes = demands.iter().zip(given);
    nodes
        .map(|(demand, given)| node(demand.rank, whole(least + given + left)))
        .collect()
}

/// Returns whether two decisions differ, where rates that differ by less than `noise` are equal, and so is a
/// chunk with a few entries more.
pub(super) fn differs(before: &Decision, after: &Decision, noise: f64) -> bool {
    let same_job = |(before, after): (&JobDecision, &JobDecision)| {
        let bare = |job: &JobDecision| JobDecision {
            remote_io: None,
            nodes: Vec::new(),
            ..job.clone()
        };
        let mut nodes = before.nodes.iter().zip(&after.nodes);
        bare(before) == bare(after)
            && near(before.remote_io, after.remote_io, noise)
            && before.nodes.len() == after.nodes.len()
            && nodes.all(|(b, a)| {
                // A node's part follows its demand, which fluctuates more than the job's rate.
                b.rank == a.rank && near(Some(b.remote_io), Some(a.remote_io), noise * 5.0)
            })
    };
    let same_dataset = |(before, after): (&DatasetDecision, &DatasetDecision)| {
        let bare = |dataset: &DatasetDecision| DatasetDecision {
            resident: None,
            ..dataset.clone()
        };
        bare(before) == bare(after) && chunks::near(&before.resident, &after.resident)
    };
    let bare = |decision: &Decision| Decision {
        datasets: Vec::new(),
        jobs: Vec::new(),
        ..decision.clone()
    };
    bare(before) != bare(after)
        || before.datasets.len() != after.datasets.len()
        || !before
            .datasets
            .iter()
            .zip(&after.datasets)
            .all(same_dataset)
        || before.jobs.len() != after.jobs.len()
        || !before.jobs.iter().zip(&after.jobs).all(same_job)
}

fn near(before: Option<u64>, after: Option<u64>, noise: f64) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            as_f64(before.abs_diff(after)) <= noise * as_f64(before.max(after))
        }
        (before, after) => before == after,
    }
}
