mod chunks;
mod pipelines;
mod probing;

use super::*;
use crate::model::{
    DatasetSpec, DatasetTrouble, JobReport, JobSpec, RateSource, Resources, ShareReport,
};
use crate::num::whole;
use copperfs_overlay::ItemPath;
use copperfs_policy::Keep;

const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;
const TB: u64 = 1_000_000_000_000;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn dataset(name: &str) -> DatasetSpec {
    let path = format!("/d/{name}");
    DatasetSpec::new(name, ItemPath::parse(path.as_bytes()).unwrap())
}

fn job(name: &str, dataset: &str, rate: u64) -> JobSpec {
    JobSpec {
        name: name.into(),
        dataset: dataset.into(),
        ideal_rate: (rate > 0).then_some(rate),
        gpus: 1,
        epochs: None,
        owner: None,
    }
}

/// The nodes of a cluster, and its allocator.
struct Cluster {
    allocator: Allocator,
    nodes: Vec<NodeReport>,
    now: Duration,
}

impl Cluster {
    fn new(nodes: u32, capacity: u64, remote_io: Option<u64>) -> Self {
        let limits = Limits {
            remote_io,
            ..Limits::default()
        };
        let nodes = (0..nodes).map(|rank| NodeReport {
            rank,
            name: format!("n{rank}"),
            boot: 7,
            capacity,
            ..NodeReport::default()
        });
        let mut cluster = Self {
            allocator: Allocator::new(limits, Registry::default(), 0, at(0)),
            nodes: nodes.collect(),
            now: at(0),
        };
        cluster.run(1_100);
        cluster
    }

    /// Advances the time. Every node reports each 100 ms. Returns the number of decisions.
    fn run(&mut self, ms: u64) -> usize {
        let mut made = 0;
        for _ in 0..ms / 100 {
            self.now += at(100);
            for node in &mut self.nodes {
                node.count += 1;
                self.allocator.record(node.clone(), self.now);
            }
            made += usize::from(self.allocator.tick(self.now));
        }
        made
    }

    fn ask(&mut self, command: &Command) {
        self.allocator.command(command, self.now).unwrap();
    }

    fn add(&mut self, name: &str, size: u64) {
        self.ask(&Command::AddDataset(dataset(name)));
        let id = self.dataset(name).id;
        let counted = Counted {
            items: 1000,
            bytes: size,
            slots: vec![size / 16_384; 16_384],
            identity: None,
            entries: 0,
            source: 0,
        };
        self.allocator.counted(id, counted);
        self.run(300);
    }

    /// Fills every home with its shares.
    fn fill(&mut self) {
        let decision = self.allocator.decision().clone();
        for node in &mut self.nodes {
            let rank = node.rank;
            let home = decision
                .homes
                .iter()
                .position(|home| home.rank == rank)
                .unwrap();
            let shares = decision.datasets.iter().map(|one| ShareReport {
                dataset: one.id,
                cached: one.share(&decision.homes, home),
                items: 1,
                share: one.share(&decision.homes, home),
                ..ShareReport::default()
            });
            node.shares = shares.collect();
        }
        self.run(6_000);
    }

    fn dataset(&self, name: &str) -> &DatasetDecision {
        self.allocator.decision().dataset(name).unwrap()
    }

    fn job(&self, name: &str) -> &JobDecision {
        self.allocator.decision().job(name).unwrap()
    }

    /// Sets the report of node `rank` on a job.
    fn reads(&mut self, rank: usize, report: JobReport) {
        let jobs = &mut self.nodes[rank].jobs;
        jobs.retain(|job| job.job != report.job);
        jobs.push(report);
    }

    /// Checks the invariants of every decision.
    fn check(&self) {
        let decision = self.allocator.decision();
        let budgets: u64 = decision.datasets.iter().map(|one| one.budget).sum();
        assert!(budgets <= decision.cache_total, "{decision:?}");
        if let Some(total) = decision.remote_io_total {
            let rates: u64 = decision.jobs.iter().filter_map(|job| job.remote_io).sum();
            assert!(rates <= total, "{rates} of {total}");
            for job in &decision.jobs {
                let parts: u64 = job.nodes.iter().map(|node| node.remote_io).sum();
                assert!(parts <= job.remote_io.unwrap(), "{job:?}");
            }
        }
    }
}

fn reading(job: &str, dataset: &str) -> JobReport {
    JobReport {
        job: job.into(),
        dataset: dataset.into(),
        ..JobReport::default()
    }
}

#[test]
fn cache_goes_to_the_most_efficient_dataset_and_rates_follow_current_hits() {
    // §7.1.1, on two nodes of 1 TB: two ResNet-50 on ImageNet-22k copies, 114 MB/s each.
    let mut cluster = Cluster::new(2, TB, Some(200 * MB));
    cluster.add("a", 13 * TB / 10);
    cluster.add("b", 13 * TB / 10);
    cluster.ask(&Command::AddJob(job("ja", "a", 114 * MB)));
    cluster.ask(&Command::AddJob(job("jb", "b", 114 * MB)));
    cluster.check();
    assert_eq!(cluster.dataset("a").budget, 13 * TB / 10);
    assert_eq!(cluster.dataset("b").budget, 7 * TB / 10);
    // Nothing is cached yet, so both need remote IO, although one is planned as fully cached.
    let rate = |cluster: &Cluster, name: &str| cluster.job(name).remote_io.unwrap();
    assert!(rate(&cluster, "ja") > 95 * MB && rate(&cluster, "jb") > 95 * MB);
    // With full caches the first needs next to nothing, and the second half of its reads.
    cluster.fill();
    cluster.check();
    let needs = 114.0 * (1.0 - 7.0 / 13.0) * 1e6;
    assert!(
        rate(&cluster, "jb") >= whole(needs),
        "{}",
        rate(&cluster, "jb")
    );
    let overview = cluster.allocator.overview("n0", Vec::new(), cluster.now);
    assert!((overview.rates[0].hit_ratio - 1.0).abs() < 1e-9);
    assert!((overview.rates[1].hit_ratio - 7.0 / 13.0).abs() < 1e-9);
}

#[test]
fn items_read_in_an_epoch_are_not_read_again_in_it() {
    let part = |bytes, hit_bytes, admitted_bytes| JobReport {
        bytes,
        hit_bytes,
        admitted_bytes,
        ..reading("j", "d")
    };
    let ratio = |cached, part: &JobReport| effective_hit_ratio(1000, cached, &[(0, part)]);
    // First epoch: the job itself brought in everything that is cached.
    assert_eq!(ratio(300, &part(300, 0, 300)), 0.0);
    // Second epoch of a half cached dataset: at its start, and in the middle.
    assert_eq!(ratio(500, &part(0, 0, 0)), 0.5);
    assert_eq!(ratio(500, &part(400, 200, 0)), 0.5);
    // Items that others bring in before this job reads them are useful at once.
    assert_eq!(ratio(800, &part(400, 200, 0)), 1.0);
    // At the end of an epoch the next one begins, for which everything cached counts.
    assert_eq!(ratio(500, &part(1000, 0, 500)), 0.5);
    // Near the end the ratio is in between.
    let near = ratio(500, &part(995, 0, 500));
    assert!(near > 0.2 && near < 0.3, "{near}");
    // A node in an earlier epoch has read nothing of this one.
    let ahead = JobReport {
        epoch: 2,
        ..part(100, 50, 0)
    };
    let behind = JobReport {
        epoch: 1,
        ..part(500, 250, 0)
    };
    let both = effective_hit_ratio(1000, 500, &[(0, &ahead), (1, &behind)]);
    assert_eq!(both, 450.0 / 900.0);
    assert_eq!(effective_hit_ratio(0, 5, &[(0, &ahead)]), 0.0);
}

use super::problem::effective_hit_ratio;

#[test]
fn the_allocator_listens_before_it_decides_and_then_decides_only_changes() {
    let mut allocator = Allocator::new(Limits::default(), Registry::default(), 0, at(0));
    assert!(!allocator.tick(at(900)));
    assert!(allocator.tick(at(1_100)));
    assert_eq!(allocator.decision().serial, Serial { term: 1, count: 1 });
    let mut cluster = Cluster::new(3, GB, Some(MB));
    cluster.add("a", GB);
    cluster.run(1_000);
    let serial = cluster.allocator.decision().serial;
    // Two periods without a change cause no decision.
    assert_eq!(cluster.run(12_000), 0);
    assert_eq!(cluster.allocator.decision().serial, serial);
    // A hundred changes at once cause one decision.
    for name in 0..100 {
        cluster.reads(0, reading(&format!("slurm:{name}"), "a"));
    }
    assert_eq!(cluster.run(1_000), 1);
    assert_eq!(cluster.allocator.decision().jobs.len(), 101);
    cluster.check();
}

#[test]
fn a_silent_node_loses_its_slots_and_gets_them_back_when_it_returns() {
    let mut cluster = Cluster::new(4, GB, Some(100 * MB));
    cluster.add("a", 3 * GB);
    cluster.ask(&Command::AddJob(job("j", "a", 50 * MB)));
    for rank in 0..4 {
        cluster.reads(rank, reading("j", "a"));
    }
    cluster.run(1_000);
    let before = cluster.allocator.decision().clone();
    assert_eq!(before.homes.len(), 4);
    assert_eq!(before.dataset("a").unwrap().budget, 3 * GB);
    let nodes = cluster.job("j").nodes.clone();
    assert_eq!(nodes.len(), 4);
    assert!(
        nodes
            .iter()
            .all(|node| node.remote_io == nodes[0].remote_io)
    );
    let homed: u64 = cluster.dataset("a").homed.iter().sum();
    assert_eq!(homed, 3 * GB / 16_384 * 16_384);

    let lost = cluster.nodes.pop().unwrap();
    cluster.run(3_000);
    assert_eq!(cluster.allocator.decision().homes.len(), 4, "not yet");
    cluster.run(1_500);
    let without = cluster.allocator.decision().clone();
    assert_eq!(without.homes.len(), 3);
    assert_eq!(without.dataset("a").unwrap().homed.len(), 3);
    assert_eq!(without.cache_total, 3 * GB);
    assert_eq!(cluster.job("j").nodes.len(), 3);
    cluster.check();

    cluster.nodes.push(NodeReport {
        boot: 8,
        count: 0,
        ..lost.clone()
    });
    cluster.run(500);
    let mut after = cluster.allocator.decision().clone();
    after.serial = before.serial;
    assert_eq!(after, before);
    // A report of its previous process may still arrive.
    let late = NodeReport {
        count: 1_000,
        capacity: 0,
        ..lost
    };
    cluster.allocator.record(late, cluster.now);
    assert!(!cluster.allocator.tick(cluster.now + at(300)));
    assert_eq!(cluster.allocator.decision().homes.len(), 4);
}

#[test]
fn an_allocator_continues_from_the_newest_decision() {
    let mut cluster = Cluster::new(2, GB, Some(100 * MB));
    cluster.add("a", GB);
    cluster.add("b", GB);
    cluster.ask(&Command::AddJob(job("j", "a", 50 * MB)));
    cluster.ask(&Command::AllocateCacheSize {
        dataset: "b".into(),
        size: Some(GB / 2),
    });
    cluster.ask(&Command::SetPolicy("max-min".into()));
    cluster.reads(1, reading("slurm:7", "b"));
    cluster.run(1_000);
    cluster.fill();
    let held = cluster.allocator.decision().clone();

    let limits = cluster.allocator.limits;
    let mut next = Allocator::new(limits, Registry::default(), 0, at(0));
    // It accepts a command before it receives the decision.
    next.record(cluster.nodes[0].clone(), at(100));
    next.command(&Command::AddDataset(dataset("c")), at(100))
        .unwrap();
    next.adopt(&held, at(500));
    assert!(next.tick(at(1_100)));
    let after = next.decision();
    assert_eq!(after.serial.term, held.serial.term + 1);
    assert_eq!(after.policy, "max-min");
    assert_eq!(after.dataset("b").unwrap().pinned, Some(GB / 2));
    assert!(after.dataset("c").is_some(), "the command is applied again");
    // The home and the job of the node that has not reported yet are presumed.
    assert_eq!(after.homes, held.homes);
    assert_eq!(after.datasets[..2], held.datasets);
    let rates = |decision: &Decision| {
        decision
            .jobs
            .iter()
            .map(|job| job.remote_io)
            .collect::<Vec<_>>()
    };
    assert_eq!(after.job("slurm:7").unwrap().nodes.len(), 1);
    for (before, after) in rates(&held).into_iter().zip(rates(after)) {
        let (before, after) = (before.unwrap(), after.unwrap());
        assert!(before.abs_diff(after) * 10 <= before, "{before} {after}");
    }
    // An older decision is ignored.
    next.adopt(&held, at(2_000));
    assert!(next.decision().dataset("c").is_some());
    // A presumed node that never reports times out.
    next.record(
        NodeReport {
            count: 99,
            ..cluster.nodes[0].clone()
        },
        at(6_500),
    );
    next.tick(at(7_000));
    assert_eq!(next.decision().homes.len(), 1);
    assert!(next.decision().job("slurm:7").is_none());
}

/// A new allocator does not know the rates of jobs before their nodes report. No budget moves meanwhile.
#[test]
fn budgets_stay_until_all_nodes_of_a_decision_have_reported() {
    let mut cluster = Cluster::new(2, GB / 2, Some(500 * MB));
    cluster.add("a", GB);
    cluster.add("b", GB);
    let estimated = |name, dataset, rate| JobReport {
        ideal_rate: Some(rate),
        confidence: 0.9,
        ..reading(name, dataset)
    };
    cluster.reads(0, estimated("run:slow", "a", 10 * MB));
    cluster.reads(1, estimated("run:fast", "b", 200 * MB));
    cluster.run(6_000);
    cluster.fill();
    let budgets = |decision: &Decision| -> Vec<u64> {
        decision.datasets.iter().map(|one| one.budget).collect()
    };
    let held = cluster.allocator.decision().clone();
    assert_eq!(budgets(&held), [0, GB], "the faster job has all of it");

    let limits = cluster.allocator.limits;
    let mut next = Allocator::new(limits, Registry::default(), 0, at(0));
    next.adopt(&held, at(0));
    // Of the slow job nothing is known at first, so it could be the faster one.
    (cluster.nodes[1].boot, cluster.nodes[1].count) = (8, 1);
    next.record(cluster.nodes[1].clone(), at(500));
    assert!(next.tick(at(1_000)));
    assert_eq!(budgets(next.decision()), [0, GB]);
    (cluster.allocator, cluster.now) = (next, at(1_500));
    for _ in 0..80 {
        cluster.run(100);
        assert_eq!(budgets(cluster.allocator.decision()), [0, GB]);
    }
    // After that they move as ever.
    cluster.reads(0, estimated("run:slow", "a", 400 * MB));
    cluster.run(6_000);
    assert_eq!(budgets(cluster.allocator.decision()), [GB, 0]);
}

#[test]
fn observed_jobs_are_estimated_until_they_end() {
    let mut cluster = Cluster::new(2, GB, Some(100 * MB));
    cluster.add("a", 10 * GB);
    cluster.reads(
        0,
        JobReport {
            bound: true,
            ideal_rate: Some(MB),
            ..reading("slurm:7", "a")
        },
    );
    cluster.run(500);
    let rate = |cluster: &Cluster| {
        let overview = cluster.allocator.overview("n0", Vec::new(), cluster.now);
        (overview.rates[0].rate, overview.rates[0].source)
    };
    // Data was always its bottleneck, so the rate is the most that it could use.
    assert_eq!(rate(&cluster), (99 * MB, RateSource::Assumed));
    let sure = JobReport {
        ideal_rate: Some(30 * MB),
        confidence: 0.9,
        ..reading("slurm:7", "a")
    };
    cluster.reads(0, sure.clone());
    cluster.reads(1, reading("slurm:7", "a"));
    cluster.run(500);
    assert_eq!(rate(&cluster), (60 * MB, RateSource::Estimated));
    // Noise changes nothing.
    cluster.reads(
        0,
        JobReport {
            ideal_rate: Some(30 * MB + MB / 2),
            ..sure.clone()
        },
    );
    cluster.run(6_000);
    assert_eq!(rate(&cluster).0, 60 * MB);
    cluster.reads(
        0,
        JobReport {
            ideal_rate: Some(35 * MB),
            ..sure.clone()
        },
    );
    cluster.run(500);
    assert_eq!(rate(&cluster).0, 70 * MB);
    for rank in 0..2 {
        cluster.reads(
            rank,
            JobReport {
                ended: true,
                ..sure.clone()
            },
        );
    }
    cluster.run(500);
    assert!(cluster.allocator.decision().job("slurm:7").is_none());
}

/// Nodes report a job for half a minute after its end. It is removed at once nevertheless, and returns if
/// it continues to read.
#[test]
fn an_ended_job_is_not_observed_again_unless_it_reads() {
    let mut cluster = Cluster::new(2, GB, Some(100 * MB));
    cluster.add("a", 10 * GB);
    cluster.ask(&Command::AddJob(job("run:x", "a", MB)));
    let read = |bytes| JobReport {
        total_bytes: bytes,
        throughput: MB,
        ..reading("run:x", "a")
    };
    cluster.reads(0, read(GB));
    cluster.run(1_000);
    cluster.ask(&Command::EndJob("run:x".into()));
    cluster.reads(0, read(GB + MB));
    let known = |cluster: &Cluster| cluster.allocator.decision().job("run:x").is_some();
    for _ in 0..12 {
        cluster.run(1_000);
        assert!(!known(&cluster), "it is reported, and reads no more");
    }
    cluster.reads(0, read(GB + 2 * MB));
    cluster.run(8_000);
    assert!(known(&cluster), "it reads on");
}

#[test]
fn a_jobs_rate_is_divided_by_the_demand_of_its_nodes() {
    let demand = |used, waits| rates::Demand {
        rank: 0,
        used,
        waits,
    };
    let parts = |rate, demands: &[rates::Demand]| -> Vec<u64> {
        let nodes = rates::over_nodes(Some(rate), demands);
        nodes.iter().map(|node| node.remote_io).collect()
    };
    // Without known demands, evenly.
    assert_eq!(
        parts(1000, &[demand(0, false), demand(0, false)]),
        [500, 500]
    );
    // One uses little, the other waits.
    assert_eq!(
        parts(1000, &[demand(100, false), demand(600, true)]),
        [150, 850]
    );
    // One that has not begun can begin.
    assert_eq!(
        parts(1000, &[demand(0, false), demand(900, true)]),
        [50, 950]
    );
    // Neither uses all, so the rest is divided evenly.
    assert_eq!(
        parts(1000, &[demand(100, false), demand(200, false)]),
        [425, 575]
    );
    assert_eq!(parts(0, &[demand(0, true)]), [0]);
    let free = rates::over_nodes(None, &[demand(0, true)]);
    assert_eq!(free[0].remote_io, u64::MAX);
}

#[test]
fn unattributed_reads_neither_starve_nor_take_everything() {
    let mut cluster = Cluster::new(2, GB, Some(100 * MB));
    cluster.add("a", 10 * GB);
    let part = |cluster: &Cluster| cluster.job(UNATTRIBUTED).remote_io.unwrap();
    // They have everything while no job runs.
    assert_eq!(part(&cluster), 100 * MB);
    cluster.ask(&Command::AddJob(job("j", "a", 500 * MB)));
    cluster.run(300);
    assert_eq!(part(&cluster), MB);
    let wants = JobReport {
        remote_io: MB / 2,
        throttled: 0.9,
        ..reading(UNATTRIBUTED, "a")
    };
    cluster.reads(1, wants);
    for _ in 0..12 {
        cluster.run(5_000);
        cluster.check();
    }
    assert_eq!(part(&cluster), 10 * MB);
    let nodes = &cluster.job(UNATTRIBUTED).nodes;
    assert!(nodes[1].remote_io > 15 * nodes[0].remote_io && nodes[0].remote_io > 0);
    // A manual rate of the whole total is scaled.
    cluster.ask(&Command::AllocateRemoteIo {
        job: "j".into(),
        rate: Some(100 * MB),
    });
    cluster.check();
    assert_eq!(cluster.job("j").remote_io, Some(90 * MB));
}

#[test]
fn manual_rates_hold_and_the_rest_is_divided_among_other_jobs() {
    let mut cluster = Cluster::new(1, GB, Some(100 * MB));
    for name in ["a", "b", "c"] {
        cluster.add(name, 10 * GB);
        cluster.ask(&Command::AddJob(job(name, name, 500 * MB)));
    }
    cluster.ask(&Command::AllocateRemoteIo {
        job: "a".into(),
        rate: Some(MB),
    });
    cluster.check();
    assert_eq!(cluster.job("a").remote_io, Some(MB));
    let others = cluster.job("b").remote_io.unwrap() + cluster.job("c").remote_io.unwrap();
    assert!(others > 95 * MB, "{others}");
}

#[test]
fn without_a_total_only_manual_rates_limit_jobs() {
    let mut cluster = Cluster::new(1, GB, None);
    cluster.add("a", 10 * GB);
    cluster.ask(&Command::AddJob(job("j", "a", 0)));
    cluster.ask(&Command::AddJob(job("k", "a", MB)));
    cluster.ask(&Command::AllocateRemoteIo {
        job: "k".into(),
        rate: Some(MB),
    });
    assert_eq!(cluster.job("j").remote_io, None);
    assert_eq!(cluster.job("k").remote_io, Some(MB));
    assert_eq!(cluster.job(UNATTRIBUTED).remote_io, None);
}

#[test]
fn budgets_stay_if_a_move_gains_nothing() {
    let mut cluster = Cluster::new(1, 100 * GB, Some(100 * MB));
    cluster.add("a", 100 * GB);
    cluster.add("b", 100 * GB);
    cluster.ask(&Command::AddJob(job("ja", "a", 100 * MB)));
    cluster.run(500);
    assert_eq!(cluster.dataset("a").budget, 100 * GB);
    // Half a per cent more efficient: not worth moving everything.
    cluster.ask(&Command::AddJob(job("jb", "b", 100 * MB + MB / 2)));
    cluster.run(6_000);
    assert_eq!(cluster.dataset("a").budget, 100 * GB);
    // Twice as efficient.
    cluster.ask(&Command::AddJob(job("jb2", "b", 100 * MB)));
    assert_eq!(cluster.dataset("b").budget, 100 * GB);
    // Without readers the content stays until another dataset needs the room.
    for name in ["ja", "jb", "jb2"] {
        cluster.ask(&Command::EndJob(name.into()));
    }
    cluster.run(6_000);
    assert_eq!(cluster.dataset("b").budget, 100 * GB);
    cluster.ask(&Command::AllocateCacheSize {
        dataset: "a".into(),
        size: Some(30 * GB),
    });
    assert_eq!(cluster.dataset("a").budget, 30 * GB);
    assert_eq!(cluster.dataset("b").budget, 70 * GB);
    cluster.check();
}

/// Other resources take effect with the command, also for later checks.
#[test]
fn resources_change_while_the_allocator_runs() {
    let mut cluster = Cluster::new(2, GB, Some(GB));
    cluster.add("a", GB);
    assert_eq!(cluster.allocator.decision().remote_io_total, Some(GB));
    cluster.ask(&Command::SetResources(Resources {
        remote_io: Some(GB / 2),
        gpus: Some(1),
        pipelines_percent: 20,
    }));
    assert_eq!(cluster.allocator.decision().remote_io_total, Some(GB / 2));
    let mut spec = job("j", "a", GB / 10);
    spec.gpus = 2;
    let refused = cluster
        .allocator
        .command(&Command::AddJob(spec), cluster.now);
    assert!(refused.unwrap_err().message.contains("GPU"));
    cluster.run(6_000);
    assert_eq!(cluster.allocator.decision().remote_io_total, Some(GB / 2));
    cluster.check();
}

#[test]
fn a_dataset_of_which_nothing_is_kept_has_no_budget() {
    let mut cluster = Cluster::new(2, 1 << 40, Some(GB));
    cluster.add("a", 1 << 40);
    cluster.add("b", 1 << 40);
    let keep = |keep| Command::SetKeep {
        dataset: "a".into(),
        keep,
    };
    cluster.run(1_000);
    assert_eq!(cluster.dataset("a").budget, 1 << 40);
    cluster.ask(&keep(Keep::None));
    assert_eq!(cluster.dataset("a").budget, 0);
    assert_eq!(cluster.dataset("b").budget, 1 << 40);
    cluster.ask(&keep(Keep::Auto));
    cluster.run(6_000);
    assert_eq!(cluster.dataset("a").budget, 1 << 40);
}

#[test]
fn a_count_that_arrives_after_its_dataset_was_removed_does_not_stand_for_the_next() {
    let mut cluster = Cluster::new(1, GB, None);
    cluster.add("a", GB);
    let id = cluster.dataset("a").id;
    cluster.ask(&Command::RemoveDataset("a".into()));
    // Before the next regular decision.
    cluster.allocator.counted(id, Counted::default());
    cluster.ask(&Command::AddDataset(dataset("a")));
    assert_eq!(cluster.allocator.uncounted().count(), 1);
}

#[test]
fn a_dataset_without_a_count_has_its_manual_budget() {
    let mut cluster = Cluster::new(2, GB, Some(MB));
    cluster.ask(&Command::AddDataset(dataset("a")));
    cluster.ask(&Command::AddDataset(DatasetSpec {
        budget: Some(GB),
        ..dataset("b")
    }));
    cluster.ask(&Command::AddJob(job("j", "a", MB)));
    assert_eq!(
        (cluster.dataset("a").budget, cluster.dataset("b").budget),
        (0, GB)
    );
    assert_eq!(cluster.allocator.uncounted().count(), 2);
    let id = cluster.dataset("a").id;
    cluster.allocator.count_failed(id, "storage is gone".into());
    cluster.run(300);
    let trouble = DatasetTrouble::Uncounted("storage is gone".into());
    assert_eq!(cluster.dataset("a").trouble, Some(trouble));
    // Shares by capacity until the bytes are known.
    let decision = cluster.allocator.decision();
    assert_eq!(cluster.dataset("b").share(&decision.homes, 0), GB / 2);
}

proptest::proptest! {
    /// Budgets and rates stay within the totals for any declarations, reports and manual settings.
    #[test]
    fn budgets_and_rates_stay_within_the_totals(
        capacities in proptest::collection::vec(0..4 * GB, 1..5),
        remote_io in 1..200 * MB,
        sizes in proptest::collection::vec(1..8 * GB, 1..4),
        jobs in proptest::collection::vec((0..4_usize, 0..200 * MB, 0..4_usize, 0..100_u64), 0..6),
        policy in 0..6_usize,
        pins in proptest::collection::vec((0..6_usize, 1..200 * MB), 0..3),
    ) {
        let mut cluster = Cluster::new(u32::try_from(capacities.len()).unwrap(), 0, Some(remote_io));
        for (node, capacity) in cluster.nodes.iter_mut().zip(&capacities) {
            node.capacity = *capacity;
        }
        cluster.ask(&Command::SetPolicy(Policy::ALL[policy].name().into()));
        for (at, size) in sizes.iter().enumerate() {
            cluster.add(&format!("d{at}"), *size);
        }
        for (at, (dataset, rate, node, progress)) in jobs.iter().enumerate() {
            let dataset = format!("d{}", dataset % sizes.len());
            let name = format!("j{at}");
            cluster.ask(&Command::AddJob(job(&name, &dataset, *rate)));
            let node = node % capacities.len();
            let bytes = progress * MB;
            let part = JobReport {
                bytes,
                hit_bytes: bytes / 3,
                throttled: *progress as f32 / 100.0,
                remote_io: *rate,
                irregular: progress % 5 == 0,
                ..reading(&name, &dataset)
            };
            cluster.reads(node, part);
        }
        for (at, amount) in pins {
            let _refused = cluster.allocator.command(
                &Command::AllocateRemoteIo { job: format!("j{at}"), rate: Some(amount) },
                cluster.now,
            );
            let _refused = cluster.allocator.command(
                &Command::AllocateCacheSize { dataset: format!("d{at}"), size: Some(amount) },
                cluster.now,
            );
        }
        cluster.run(6_000);
        cluster.check();
        cluster.nodes.pop();
        cluster.run(6_000);
        cluster.check();
    }
}
