//! Datasets that are kept by the references of pipelines.

use super::*;
use crate::model::PipelineReport;

impl Cluster {
    /// Two nodes of 1 TB, a fifth of which is for pipelines, and `warehouse` of 3 TB.
    fn with_warehouse() -> Self {
        let mut cluster = Self::new(2, TB, Some(100 * MB));
        let limits = Limits {
            remote_io: Some(100 * MB),
            pipelines_percent: 20,
            ..Limits::default()
        };
        cluster.allocator = Allocator::new(limits, Registry::default(), 0, cluster.now);
        cluster.run(1_100);
        cluster.ask(&Command::AddDataset(DatasetSpec {
            keep: Keep::References,
            ..dataset("warehouse")
        }));
        let counted = Counted {
            items: 1000,
            bytes: 3 * TB,
            slots: vec![3 * TB / 16_384; 16_384],
            identity: None,
            entries: 0,
            source: 0,
        };
        let id = cluster.dataset("warehouse").id;
        cluster.allocator.counted(id, counted);
        cluster.run(300);
        cluster
    }

    /// Sets the bytes that pipelines of node `rank` refer to.
    fn refer(&mut self, rank: usize, bytes: u64) {
        let dataset = self.dataset("warehouse").id;
        self.nodes[rank].pipelines = vec![PipelineReport {
            dataset,
            jobs: u32::from(bytes > 0),
            references: bytes / MB,
            bytes,
        }];
        self.run(500);
    }
}

#[test]
fn a_warehouse_gets_what_is_referred_to_and_keeps_it_until_others_need_it() {
    let mut cluster = Cluster::with_warehouse();
    let budget = |cluster: &Cluster| cluster.dataset("warehouse").budget;
    assert_eq!(budget(&cluster), 0);
    cluster.refer(0, 100 * GB);
    cluster.check();
    assert_eq!(budget(&cluster), 100 * GB);
    assert_eq!(cluster.dataset("warehouse").owners, [0]);
    cluster.refer(1, 50 * GB);
    assert_eq!(budget(&cluster), 150 * GB);
    assert_eq!(cluster.dataset("warehouse").owners, [0, 1]);
    // Tasks have ended.
    cluster.refer(0, 10 * GB);
    assert_eq!(budget(&cluster), 150 * GB);
    cluster.refer(0, 900 * GB);
    assert_eq!(budget(&cluster), 400 * GB, "a fifth of both nodes");
    cluster.refer(0, 0);
    cluster.refer(1, 0);
    cluster.run(10_000);
    assert_eq!(
        budget(&cluster),
        400 * GB,
        "no other dataset needs the room"
    );
    assert!(cluster.dataset("warehouse").owners.is_empty());
    cluster.add("images", 2 * TB);
    cluster.ask(&Command::AddJob(job("train", "images", 114 * MB)));
    cluster.run(10_000);
    cluster.check();
    assert_eq!(
        (budget(&cluster), cluster.dataset("images").budget),
        (0, 2 * TB)
    );
    // A pipeline has its part again at once.
    cluster.refer(1, 300 * GB);
    cluster.check();
    assert_eq!(budget(&cluster), 300 * GB);
    assert_eq!(cluster.dataset("images").budget, 1700 * GB);
}

#[test]
fn a_budget_set_by_hand_stays_whatever_is_referred_to() {
    let mut cluster = Cluster::with_warehouse();
    let (dataset, size) = ("warehouse".to_owned(), Some(TB));
    cluster.ask(&Command::AllocateCacheSize { dataset, size });
    cluster.refer(0, 10 * GB);
    assert_eq!(cluster.dataset("warehouse").budget, TB);
    cluster.refer(0, 0);
    cluster.run(6_000);
    assert_eq!(cluster.dataset("warehouse").budget, TB);
    let (dataset, size) = ("warehouse".to_owned(), None);
    cluster.ask(&Command::AllocateCacheSize { dataset, size });
    cluster.refer(0, 10 * GB);
    cluster.check();
    assert!(cluster.dataset("warehouse").budget >= 10 * GB);
}

/// Pipelines have no epochs, whatever their reads look like.
#[test]
fn the_jobs_of_pipelines_have_equal_parts_of_remote_io() {
    let mut cluster = Cluster::with_warehouse();
    cluster.refer(0, 100 * GB);
    for (rank, epoch, name) in [(0, 0, "slurm:1"), (1, 1, "slurm:2")] {
        cluster.reads(
            rank,
            JobReport {
                throughput: 80 * MB * (rank as u64 + 1),
                remote_io: 40 * MB,
                throttled: 0.9,
                epoch,
                ..reading(name, "warehouse")
            },
        );
    }
    cluster.run(10_000);
    cluster.check();
    let [first, second] = ["slurm:1", "slurm:2"].map(|name| cluster.job(name).remote_io.unwrap());
    assert!(first.abs_diff(second) <= MB, "{first} and {second}");
    assert!(first + second > 85 * MB, "{first} and {second}");
}
