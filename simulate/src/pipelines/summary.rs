//! Policies compared over several workloads.

use super::study::{Study, average};
use copperfs_policy::references::EvictionPolicy;
use serde::Serialize;

/// A policy over all workloads and caches of several studies, each with the same weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The policy.
    pub policy: &'static str,
    /// The mean hit ratio.
    pub hit_ratio: f64,
    /// The mean difference to the hit ratio of LRU.
    pub over_lru: f64,
    /// The least difference, over workloads, caches and seeds.
    pub over_lru_min: f64,
    /// For each hit ratio: the space for it, divided by the space that LRU needs. It is the mean over the
    /// workloads in which both reach it.
    pub spaces_to_lru: Vec<(f64, f64)>,
}

/// Returns a summary for each policy of the studies, which are of one plan.
#[must_use]
pub fn summaries(studies: &[Study]) -> Vec<Summary> {
    let summary = |policy: EvictionPolicy| {
        let policy = policy.name();
        let rows = studies.iter().flat_map(|study| &study.rows);
        let rows: Vec<_> = rows.filter(|row| row.policy == policy).collect();
        let mean = |values: Vec<f64>| average(&values);
        let mut ratios: Vec<f64> = Vec::new();
        for space in studies.iter().flat_map(|study| &study.spaces) {
            if !ratios.contains(&space.hit_ratio) {
                ratios.push(space.hit_ratio);
            }
        }
        let space = |hit_ratio: f64| {
            let spaces = studies.iter().flat_map(|study| &study.spaces);
            let of = spaces.filter(|one| one.policy == policy && one.hit_ratio == hit_ratio);
            let found: Vec<f64> = of.filter_map(|space| space.to_lru).collect();
            (!found.is_empty()).then(|| (hit_ratio, average(&found)))
        };
        (!rows.is_empty()).then(|| Summary {
            policy,
            hit_ratio: mean(rows.iter().map(|row| row.hit_ratio).collect()),
            over_lru: mean(rows.iter().map(|row| row.over_lru).collect()),
            over_lru_min: rows
                .iter()
                .map(|row| row.over_lru_min)
                .fold(f64::INFINITY, f64::min),
            spaces_to_lru: ratios.into_iter().filter_map(space).collect(),
        })
    };
    EvictionPolicy::ALL
        .into_iter()
        .filter_map(summary)
        .collect()
}

impl Study {
    /// Returns the part of the gain of `lrc-offline` over LRU that `lrc` keeps: the sum over all caches of the
    /// differences between hit ratios. 1: knowing jobs only from their submissions costs nothing. `None`: one
    /// of the two was not run, or there is no gain.
    #[must_use]
    pub fn kept_online(&self) -> Option<f64> {
        let gain = |policy: EvictionPolicy| {
            let rows = self.rows.iter();
            let rows: Vec<_> = rows.filter(|row| row.policy == policy.name()).collect();
            (!rows.is_empty()).then(|| rows.iter().map(|row| row.over_lru).sum::<f64>())
        };
        let (online, offline) = (
            gain(EvictionPolicy::Lrc)?,
            gain(EvictionPolicy::LrcOffline)?,
        );
        (offline > 0.0).then(|| online / offline)
    }
}
