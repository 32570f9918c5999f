//! Rates: of each node of a job, and of those who belong to none. Pure.

use crate::model::{Decision, JobDecision, JobNode, JobReport, NodeReport, UNATTRIBUTED};
use crate::num::{as_f64, whole};
use copperfs_policy::water;
use std::collections::BTreeMap;

/// The part of remote IO that is always there for reads that belong to no job.
const UNATTRIBUTED_MIN: f64 = 0.01;
/// The part that they have at most while jobs run.
const UNATTRIBUTED_MAX: f64 = 0.1;
/// Their part grows and shrinks in steps of this, so that noise makes no decisions.
const UNATTRIBUTED_STEP: f64 = 1.5;
/// Whoever waits for tokens for more than this part of the time would take more.
const WAITS: f32 = 0.05;
/// What a node may take beyond what it takes now, before the others are asked to give.
const HEADROOM: f64 = 1.5;
/// The part of an equal share that every node of a job has, so that one that begins to read can.
const NODE_MIN: f64 = 0.1;

/// What a node does with its part of a job's rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Demand {
    pub(super) rank: u32,
    /// Bytes per second from storage.
    pub(super) used: u64,
    /// It waits for more.
    pub(super) waits: bool,
}

/// The nodes on which a job reads.
pub(super) fn demands(parts: &[(u32, &JobReport)]) -> Vec<Demand> {
    let mut nodes: BTreeMap<u32, Demand> = BTreeMap::new();
    for (rank, part) in parts.iter().filter(|(_, part)| !part.ended) {
        let node = nodes.entry(*rank).or_insert(Demand {
            rank: *rank,
            used: 0,
            waits: false,
        });
        node.used = node.used.saturating_add(part.remote_io);
        node.waits |= part.throttled > WAITS;
    }
    nodes.into_values().collect()
}

/// Reads that belong to no job may come on every node.
pub(super) fn unattributed_demands(reports: &[NodeReport]) -> Vec<Demand> {
    let demand = |report: &NodeReport| {
        let parts: Vec<(u32, &JobReport)> = report
            .jobs
            .iter()
            .filter(|job| is_unattributed(job))
            .map(|job| (report.rank, job))
            .collect();
        let none = Demand {
            rank: report.rank,
            used: 0,
            waits: false,
        };
        demands(&parts).pop().unwrap_or(none)
    };
    reports.iter().map(demand).collect()
}

fn is_unattributed(job: &JobReport) -> bool {
    job.job.is_empty() || job.job == UNATTRIBUTED
}

/// What reads that belong to no job may take of `total`: everything while no job runs; else at least
/// [`UNATTRIBUTED_MIN`], and as they ask for it up to [`UNATTRIBUTED_MAX`].
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
    // While no job ran they may have had everything: what they take now says what they need.
    let had = as_f64(before.unwrap_or(0)).min(most);
    let wanted = if waits {
        had.max(used) * HEADROOM
    } else {
        used
    };
    let mut given = least;
    while given < wanted && given < most {
        given *= UNATTRIBUTED_STEP;
    }
    whole(given.min(most))
}

/// `rate` divided over the nodes of a job: by what each asks for, with a part for those who do not ask
/// yet; evenly where nothing is known. Sums to `rate` at most. Without a limit nobody has one.
pub(super) fn over_nodes(rate: Option<u64>, demands: &[Demand]) -> Vec<JobNode> {
    let Some(rate) = rate else {
        let free = |demand: &Demand| JobNode {
            rank: demand.rank,
            remote_io: u64::MAX,
        };
        return demands.iter().map(free).collect();
    };
    let count = as_f64(demands.len().max(1) as u64);
    let rate = as_f64(rate);
    let least = rate / count * NODE_MIN;
    let known = demands.iter().any(|demand| demand.used > 0 || demand.waits);
    let needs: Vec<f64> = demands
        .iter()
        .map(|demand| match demand {
            _ if !known => f64::MAX,
            Demand { waits: true, .. } => f64::MAX,
            Demand { used, .. } => (as_f64(*used) * HEADROOM - least).max(0.0),
        })
        .collect();
    let rest = rate - least * count;
    let given = water::fill(rest, &needs);
    let left = (rest - given.iter().sum::<f64>()).max(0.0) / count;
    let nodes = demands.iter().zip(given);
    nodes
        .map(|(demand, given)| JobNode {
            rank: demand.rank,
            remote_io: whole(least + given + left),
        })
        .collect()
}

/// Whether `after` says something that `before` did not: rates that differ by less than `noise` are the
/// same.
pub(super) fn says_more(before: &Decision, after: &Decision, noise: f64) -> bool {
    let same_job = |(before, after): (&JobDecision, &JobDecision)| {
        let bare = |job: &JobDecision| JobDecision {
            remote_io: None,
            nodes: Vec::new(),
            ..job.clone()
        };
        bare(before) == bare(after)
            && near(before.remote_io, after.remote_io, noise)
            && before.nodes.len() == after.nodes.len()
            && before.nodes.iter().zip(&after.nodes).all(|(b, a)| {
                b.rank == a.rank && near(Some(b.remote_io), Some(a.remote_io), noise * 5.0)
            })
    };
    let bare = |decision: &Decision| Decision {
        jobs: Vec::new(),
        ..decision.clone()
    };
    bare(before) != bare(after)
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
