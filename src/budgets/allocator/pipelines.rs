//! Budgets of datasets that are kept by the references of pipelines, and the nodes that know these. Pure.
//!
//! Such a dataset gets as many bytes as are referred to, and all of them together at most a part of the cache. While
//! pipelines run, a budget grows and does not shrink: tasks end all the time, and the next ones refer to the same
//! items. After the last pipeline the dataset keeps what it has as long as no other dataset needs the room (`budgets`).

use crate::model::{DatasetDecision, Decision, NodeReport};
use crate::num::{as_f64, saturating_sum};
use copperfs_policy::{Keep, water};

/// Returns whether the budget of a dataset follows from the references of pipelines.
pub(super) fn decides(one: &DatasetDecision) -> bool {
    one.keep == Keep::References && one.pinned.is_none()
}

/// Returns the budget of each dataset in bytes, of `room` bytes for all of them. `None`: references do not decide it.
pub(super) fn budgets(
    datasets: &[DatasetDecision],
    reports: &[NodeReport],
    before: &Decision,
    room: f64,
) -> Vec<Option<f64>> {
    let wanted = |one: &DatasetDecision| {
        if !decides(one) {
            return 0.0;
        }
        let referenced = referenced(one, reports);
        let before = before.dataset(&one.name);
        let had = before.filter(|before| before.id == one.id && referenced > 0);
        let wanted = referenced.max(had.map_or(0, |before| before.budget));
        // Ranges of files that have grown since may exceed the last count.
        let size = if one.size > 0 { one.size } else { u64::MAX };
        as_f64(wanted.min(size))
    };
    let wanted: Vec<f64> = datasets.iter().map(wanted).collect();
    let given = water::fill(room, &wanted);
    let each = datasets.iter().zip(given);
    each.map(|(one, given)| decides(one).then_some(given))
        .collect()
}

/// Returns the ranks of the nodes with pipelines that read the dataset.
pub(super) fn owners(dataset: &DatasetDecision, reports: &[NodeReport]) -> Vec<u32> {
    let has_jobs = |report: &&NodeReport| {
        let mut pipelines = report.pipelines.iter();
        pipelines.any(|one| one.dataset == dataset.id && one.jobs > 0)
    };
    reports
        .iter()
        .filter(has_jobs)
        .map(|one| one.rank)
        .collect()
}

/// Returns whether the references of a node have changed so much that budgets should follow.
pub(super) fn differ(before: &NodeReport, after: &NodeReport) -> bool {
    /// The relative change of bytes that is worth a decision.
    const STEP: f64 = 0.05;
    let same = before.pipelines.len() == after.pipelines.len();
    let mut pairs = before.pipelines.iter().zip(&after.pipelines);
    !same
        || pairs.any(|(before, after)| {
            let grown = after.bytes.saturating_sub(before.bytes);
            before.dataset != after.dataset
                || (before.jobs == 0) != (after.jobs == 0)
                || as_f64(grown) > STEP * as_f64(before.bytes.max(1))
        })
}

/// Returns the bytes that the pipelines of all nodes refer to. Items that pipelines of two nodes refer to count twice.
fn referenced(dataset: &DatasetDecision, reports: &[NodeReport]) -> u64 {
    let pipelines = reports.iter().flat_map(|report| &report.pipelines);
    let of_it = pipelines.filter(|one| one.dataset == dataset.id);
    saturating_sum(of_it.map(|one| one.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PipelineReport;

    fn dataset(name: &str, size: u64) -> DatasetDecision {
        DatasetDecision {
            name: name.into(),
            id: u64::from(name.as_bytes()[0]),
            size,
            keep: Keep::References,
            ..DatasetDecision::default()
        }
    }

    fn report(rank: u32, bytes: &[(&str, u64)]) -> NodeReport {
        let pipelines = bytes.iter().map(|(name, bytes)| PipelineReport {
            dataset: u64::from(name.as_bytes()[0]),
            jobs: u32::from(*bytes > 0),
            references: 1,
            bytes: *bytes,
        });
        NodeReport {
            rank,
            pipelines: pipelines.collect(),
            ..NodeReport::default()
        }
    }

    #[test]
    fn a_dataset_gets_the_bytes_that_are_referred_to_up_to_a_part_of_the_cache() {
        let mut datasets = vec![dataset("a", 500), dataset("b", 0), dataset("c", 500)];
        datasets[2].pinned = Some(10);
        let reports = [report(1, &[("a", 60), ("b", 90)]), report(4, &[("a", 40)])];
        let before = Decision::default();
        let given = budgets(&datasets, &reports, &before, 500.0);
        assert_eq!(given, [Some(100.0), Some(90.0), None]);
        // Both want more than half of it.
        let given = budgets(&datasets, &reports, &before, 100.0);
        assert_eq!(given, [Some(50.0), Some(50.0), None]);
        assert_eq!(owners(&datasets[0], &reports), [1, 4]);
        assert_eq!(owners(&datasets[1], &reports), [1]);
        assert_eq!(owners(&datasets[2], &reports), [0_u32; 0]);
    }

    #[test]
    fn a_budget_does_not_shrink_while_pipelines_run() {
        let datasets = vec![dataset("a", 500)];
        let mut before = Decision {
            datasets: datasets.clone(),
            ..Decision::default()
        };
        before.datasets[0].budget = 80;
        let of = |bytes| {
            let reports = [report(1, &[("a", bytes)])];
            budgets(&datasets, &reports, &before, 200.0)
        };
        assert_eq!(of(30), [Some(80.0)]);
        assert_eq!(of(120), [Some(120.0)]);
        assert_eq!(of(700), [Some(200.0)], "all that there is");
        assert_eq!(of(0), [Some(0.0)], "the last pipeline has ended");
    }

    #[test]
    fn small_changes_wait_for_the_next_period() {
        let of = |bytes| report(1, &[("a", bytes)]);
        assert!(!differ(&of(1000), &of(1040)));
        assert!(!differ(&of(1000), &of(10)), "tasks have ended");
        assert!(differ(&of(1000), &of(1060)));
        assert!(differ(&of(0), &of(1)) && differ(&of(1), &of(0)));
        assert!(differ(&report(1, &[]), &of(1)));
    }
}
