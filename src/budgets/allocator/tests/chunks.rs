//! Datasets that are kept in chunks.

use super::*;
use crate::model::{ChunkOptions, ReadingReport};
use ChunkState::{Complete, Loading, Marked};
use copperfs_policy::chunks::{ChunkReport, ChunkState, EVICT_AFTER, Reader, Reading};

/// A dataset of 100 entries and 10 GB, in ten chunks of 1 GB.
fn chunked(name: &str) -> DatasetSpec {
    DatasetSpec {
        manifest: Some(ItemPath::parse(format!("/d/{name}.manifest").as_bytes()).unwrap()),
        keep: Keep::Chunks,
        ..dataset(name)
    }
}

impl Cluster {
    fn add_chunked(&mut self, spec: DatasetSpec) {
        let name = spec.name.clone();
        self.ask(&Command::AddDataset(spec));
        let counted = Counted {
            items: 100,
            bytes: 10 * GB,
            slots: vec![10 * GB / 16_384; 16_384],
            identity: Some([1; 32]),
            entries: 100,
            source: 0,
        };
        let id = self.dataset(&name).id;
        self.allocator.counted(id, counted);
        self.run(300);
    }

    /// Sets the state of a process of `job` on node `rank`.
    fn read_chunks(&mut self, rank: usize, job: &str, dataset: &str, reading: &Reading) {
        let dataset = self.dataset(dataset).id;
        let part = rank as u64;
        let reader = Reader {
            job: job.into(),
            part,
        };
        let readings = &mut self.nodes[rank].readings;
        readings.retain(|one| one.reader != reader);
        readings.push(ReadingReport {
            dataset,
            reader,
            reading: reading.clone(),
        });
    }

    /// Has every home hold its part of the first `loaded` chunks of these.
    fn load(&mut self, dataset: &str, loaded: &[u32]) {
        let dataset = self.dataset(dataset).id;
        let homes = self.nodes.len() as u64;
        for node in &mut self.nodes {
            let chunks = loaded.iter().map(|&chunk| ChunkReport {
                chunk,
                held: 10 / homes,
                lost: 0,
                pending: 0,
            });
            node.shares = vec![ShareReport {
                dataset,
                chunks: chunks.collect(),
                ..ShareReport::default()
            }];
        }
    }

    fn states(&self, dataset: &str) -> Vec<(u32, ChunkState)> {
        let resident = self.dataset(dataset).resident.iter().flatten();
        resident.map(|one| (one.chunk, one.state)).collect()
    }
}

fn exhausted(chunks: std::ops::Range<u32>) -> Reading {
    Reading {
        exhausted: chunks.collect(),
        ..Reading::default()
    }
}

#[test]
fn chunks_come_in_for_readers_and_go_when_they_are_exhausted() {
    let mut cluster = Cluster::new(2, 100 * GB, None);
    cluster.add_chunked(chunked("a"));
    assert_eq!(
        cluster.dataset("a").resident,
        Some(Vec::new()),
        "no one reads"
    );
    for job in ["i", "j"] {
        cluster.read_chunks(0, job, "a", &Reading::default());
    }
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(0, Loading), (1, Loading)]);
    assert_eq!(cluster.dataset("a").budget, 2 * GB);
    cluster.load("a", &[0]);
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(0, Complete), (1, Loading)]);
    cluster.load("a", &[0, 1]);
    let reading = Reading {
        refers: [0].into(),
        ..Reading::default()
    };
    for job in ["i", "j"] {
        cluster.read_chunks(0, job, "a", &reading);
    }
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(0, Marked), (1, Complete)]);
    // The first job exhausts it, and the second is slower.
    cluster.read_chunks(0, "i", "a", &exhausted(0..1));
    cluster.run(2_000);
    assert_eq!(cluster.states("a"), [(0, Marked), (1, Complete)]);
    cluster.run(60_000);
    assert_eq!(cluster.states("a"), [(1, Complete), (2, Loading)]);
    cluster.check();
}

#[test]
fn a_job_that_has_died_is_waited_for_no_longer() {
    let mut cluster = Cluster::new(2, 100 * GB, None);
    cluster.add_chunked(chunked("a"));
    let reading = Reading {
        refers: [0].into(),
        ..Reading::default()
    };
    cluster.read_chunks(0, "i", "a", &reading);
    cluster.read_chunks(1, "j", "a", &reading);
    cluster.run(300);
    cluster.load("a", &[0, 1]);
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(0, Marked), (1, Complete)]);
    cluster.read_chunks(0, "i", "a", &exhausted(0..1));
    cluster.nodes[1].readings.clear();
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(1, Complete), (2, Loading)]);
    // Without readers nothing more comes in.
    cluster.nodes[0].readings.clear();
    cluster.load("a", &[1, 2]);
    cluster.run(6_000);
    assert_eq!(cluster.states("a"), [(2, Complete)]);
}

/// The first processes to report must not evict the chunks of those that report later.
#[test]
fn a_new_allocator_changes_chunks_only_when_all_have_reported() {
    let mut cluster = Cluster::new(2, 100 * GB, None);
    cluster.add_chunked(chunked("a"));
    let reading = Reading {
        refers: [0].into(),
        ..Reading::default()
    };
    cluster.read_chunks(0, "i", "a", &exhausted(0..1));
    cluster.read_chunks(1, "j", "a", &reading);
    cluster.run(300);
    cluster.load("a", &[0, 1]);
    cluster.run(300);
    let before = cluster.states("a");
    assert_eq!(before, [(0, Marked), (1, Complete)]);
    let held = cluster.allocator.decision().clone();

    cluster.allocator = Allocator::new(
        cluster.allocator.limits,
        Registry::default(),
        0,
        cluster.now,
    );
    cluster.allocator.adopt(&held, cluster.now);
    let late = cluster.nodes.pop().unwrap();
    cluster.run(3_000);
    assert_eq!(cluster.states("a"), before);
    assert_eq!(cluster.dataset("a").budget, 2 * GB);
    cluster.nodes.push(late);
    cluster.run(10_000);
    assert_eq!(cluster.states("a"), before);
    cluster.nodes[1].readings.clear();
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(1, Complete), (2, Loading)]);
}

#[test]
fn progress_makes_few_decisions() {
    let mut cluster = Cluster::new(1, 100 * GB, None);
    cluster.add_chunked(DatasetSpec {
        chunk_options: ChunkOptions {
            size: GB,
            evict_after: EVICT_AFTER,
        },
        ..chunked("a")
    });
    let id = cluster.dataset("a").id;
    let counted = Counted {
        items: 100_000,
        bytes: 10 * GB,
        slots: vec![10 * GB / 16_384; 16_384],
        identity: Some([2; 32]),
        entries: 100_000,
        source: 1,
    };
    cluster.allocator.counted(id, counted);
    cluster.read_chunks(0, "i", "a", &Reading::default());
    cluster.run(1_000);
    let mut made = 0;
    for held in 0..1_000 {
        cluster.nodes[0].shares = vec![ShareReport {
            dataset: id,
            chunks: vec![ChunkReport {
                chunk: 0,
                held: held * 10,
                lost: 0,
                pending: 0,
            }],
            ..ShareReport::default()
        }];
        made += cluster.run(100);
    }
    assert!((15..=25).contains(&made), "{made}");
}

#[test]
fn a_dataset_that_cannot_be_divided_says_so() {
    let mut cluster = Cluster::new(1, 100 * GB, None);
    let small = DatasetSpec {
        chunk_options: ChunkOptions {
            size: GB / 2,
            evict_after: EVICT_AFTER,
        },
        ..chunked("a")
    };
    cluster.add_chunked(small);
    let trouble = cluster.dataset("a").trouble.clone().unwrap().to_string();
    assert!(
        trouble.contains("100 entries cannot be divided"),
        "{trouble}"
    );
    assert_eq!(cluster.dataset("a").resident, None);
    cluster.ask(&Command::SetKeep {
        dataset: "a".into(),
        keep: Keep::Uniform,
    });
    assert_eq!(cluster.dataset("a").trouble, None);
    let again = Command::SetKeep {
        dataset: "a".into(),
        keep: Keep::Chunks,
    };
    let error = cluster.allocator.command(&again, cluster.now).unwrap_err();
    assert!(error.message.contains("100 entries cannot be divided"));
}

#[test]
fn a_rule_may_change_while_jobs_read() {
    let mut cluster = Cluster::new(1, 100 * GB, None);
    cluster.add_chunked(chunked("a"));
    cluster.read_chunks(0, "i", "a", &Reading::default());
    cluster.run(300);
    assert_eq!(cluster.states("a").len(), 2);
    let keep = |keep| Command::SetKeep {
        dataset: "a".into(),
        keep,
    };
    cluster.ask(&keep(Keep::Uniform));
    assert_eq!(cluster.dataset("a").resident, None);
    cluster.run(6_000);
    assert_eq!(cluster.dataset("a").budget, 10 * GB);
    cluster.ask(&keep(Keep::Chunks));
    cluster.run(300);
    assert_eq!(cluster.states("a"), [(0, Loading), (1, Loading)]);
    assert_eq!(cluster.dataset("a").budget, 2 * GB);
}

/// With `auto` the policy chooses: two chunks while jobs that substitute read the dataset and it does not fit.
#[test]
fn the_policy_chooses_chunks() {
    let mut cluster = Cluster::new(1, 5 * GB, Some(100 * MB));
    cluster.ask(&Command::SetPolicy("benefit".into()));
    cluster.add_chunked(DatasetSpec {
        keep: Keep::Auto,
        ..chunked("a")
    });
    assert_eq!(cluster.dataset("a").resident, None);
    for name in ["i", "j"] {
        cluster.ask(&Command::AddJob(job(name, "a", 50 * MB)));
        cluster.read_chunks(0, name, "a", &Reading::default());
    }
    cluster.run(6_000);
    assert_eq!(cluster.states("a"), [(0, Loading), (1, Loading)]);
    assert_eq!(cluster.dataset("a").budget, 2 * GB);
    // With room for all of it, all of it is kept.
    cluster.nodes[0].capacity = 50 * GB;
    cluster.run(6_000);
    assert_eq!(cluster.dataset("a").resident, None);
    assert_eq!(cluster.dataset("a").budget, 10 * GB);
}
