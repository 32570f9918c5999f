//! The paper's examples, and properties of every policy.

mod lp;
mod properties;

pub(super) use properties::{problems, sound, steady_problems};

use super::*;

pub(super) const MB: f64 = 1e6;
pub(super) const GB: f64 = 1e9;
pub(super) const TB: f64 = 1e12;

pub(super) fn totals(gpus: f64, cache: f64, remote_io: f64) -> Totals {
    Totals {
        gpus,
        cache,
        remote_io,
    }
}

pub(super) fn dataset(name: &str, size: f64) -> Dataset {
    Dataset {
        name: name.to_owned(),
        size,
        ..Dataset::default()
    }
}

pub(super) fn job(id: &str, dataset: usize, ideal_rate: f64, gpus: f64) -> Job {
    Job {
        id: id.to_owned(),
        dataset,
        ideal_rate,
        gpus,
        ..Job::default()
    }
}

/// §7.1.1: eight V100, 2 TB of cache, 1.6 Gbps; two ResNet-50, two EfficientNetB1, one BERT.
pub(super) fn micro_benchmark() -> Problem {
    let with_work = |mut job: Job, work: f64| {
        job.work = Some(work);
        job
    };
    Problem {
        totals: totals(8.0, 2.0 * TB, 200.0 * MB),
        datasets: vec![
            dataset("images0", 1.3 * TB),
            dataset("images1", 1.3 * TB),
            dataset("images2", 1.3 * TB),
            dataset("images3", 1.3 * TB),
            dataset("web", 20.9 * TB),
        ],
        jobs: vec![
            with_work(job("resnet0", 0, 114.0 * MB, 1.0), 13.0 * 1.3 * TB),
            with_work(job("resnet1", 1, 114.0 * MB, 1.0), 13.0 * 1.3 * TB),
            with_work(job("efficient0", 2, 69.0 * MB, 1.0), 10.0 * 1.3 * TB),
            with_work(job("efficient1", 3, 69.0 * MB, 1.0), 10.0 * 1.3 * TB),
            with_work(job("bert", 4, 8.0 * MB, 4.0), 0.07 * 20.9 * TB),
        ],
    }
}

/// §2.1, Figure 4: two ResNet-50 on 1.36 TB each, 1.4 TB of cache.
pub(super) fn figure_4(remote_io: f64) -> Problem {
    Problem {
        totals: totals(2.0, 1.4 * TB, remote_io),
        datasets: vec![dataset("a", 1.36 * TB), dataset("b", 1.36 * TB)],
        jobs: vec![
            job("job0", 0, 114.0 * MB, 1.0),
            job("job1", 1, 114.0 * MB, 1.0),
        ],
    }
}

#[track_caller]
pub(super) fn assert_near(found: f64, wanted: f64, relative: f64) {
    assert!(
        (found - wanted).abs() <= relative * wanted.abs(),
        "{found} is not {wanted}"
    );
}

#[test]
fn the_micro_benchmark_under_greedy() {
    let answer = Policy::Greedy.allocate(&micro_benchmark());
    let caches: Vec<f64> = answer.datasets.iter().map(|share| share.cache).collect();
    assert_eq!(caches, [1.3 * TB, 0.7 * TB, 0.0, 0.0, 0.0]);
    let remote: Vec<f64> = answer.jobs.iter().map(|job| job.remote_io / MB).collect();
    assert_eq!(remote[0], 0.0);
    // The paper: about 52.6 MB/s.
    assert_near(remote[1], 52.6, 1e-3);
    assert_eq!(remote[2..], [69.0, 69.0, 8.0]);
    // All reach their ideal speed, with 200 MB/s.
    for (share, job) in answer.jobs.iter().zip(micro_benchmark().jobs) {
        assert_near(share.throughput, job.ideal_rate, 1e-12);
    }
    let orders: Vec<usize> = answer.jobs.iter().map(|job| job.order).collect();
    assert_eq!(orders, [0, 1, 2, 3, 4]);
    // The unneeded 1.4 MB/s are distributed among the enforced limits.
    let limits: f64 = answer.jobs.iter().map(|job| job.limit).sum();
    assert_near(limits, 200.0 * MB, 1e-12);
    assert_near(answer.jobs[0].limit, 1.385 * MB * 114.0 / 374.0, 1e-2);
}

#[test]
fn the_micro_benchmark_under_the_baselines() {
    let problem = micro_benchmark();
    // Quiver caches one ResNet-50's data and wastes 0.7 TB: a dataset has one job, so chunks do not
    // help.
    let mut of_quiver = problem.clone();
    for job in &mut of_quiver.jobs {
        job.substitutes = true;
    }
    for problem in [&problem, &of_quiver] {
        let quiver = Policy::Benefit.allocate(problem);
        let caches: Vec<f64> = quiver.datasets.iter().map(|share| share.cache).collect();
        assert_eq!(caches, [1.3 * TB, 0.0, 0.0, 0.0, 0.0]);
    }
    // CoorDL wastes half of the cache on BERT.
    let coordl = Policy::Static.allocate(&problem);
    let caches: Vec<f64> = coordl.datasets.iter().map(|share| share.cache).collect();
    assert_eq!(caches, [0.25 * TB, 0.25 * TB, 0.25 * TB, 0.25 * TB, TB]);
    // LRU fills the cache, and faster jobs hold more of it.
    let alluxio = Policy::Lru.allocate(&problem);
    let held: f64 = alluxio.datasets.iter().map(|share| share.cache).sum();
    assert_near(held, 2.0 * TB, 1e-9);
    assert!(alluxio.datasets[0].cache > alluxio.datasets[2].cache);
    assert!(alluxio.objective < Policy::Greedy.allocate(&problem).objective);
}

#[test]
fn before_an_epoch_ends_no_cache_helps() {
    let mut problem = micro_benchmark();
    for job in &mut problem.jobs {
        job.hit_ratio = Some(0.0);
    }
    let rates = |policy: Policy| -> Vec<f64> {
        let answer = policy.allocate(&problem);
        answer.jobs.iter().map(|job| job.throughput).collect()
    };
    let wanted = [48.0 * MB, 48.0 * MB, 48.0 * MB, 48.0 * MB, 8.0 * MB];
    for policy in [Policy::Greedy, Policy::Benefit, Policy::Lru, Policy::Static] {
        assert_eq!(
            rates(policy),
            wanted,
            "{policy}: as §7.1.1 before minute 460"
        );
    }
}

#[test]
fn shared_datasets_are_cached_once() {
    // The other dataset is more efficient than the small one, until a second job reads the small
    // one.
    let mut problem = Problem {
        totals: totals(3.0, 700.0 * GB, 100.0 * MB),
        datasets: vec![dataset("small", 600.0 * GB), dataset("other", 600.0 * GB)],
        jobs: vec![job("a", 0, 60.0 * MB, 1.0), job("b", 1, 100.0 * MB, 1.0)],
    };
    let caches = |problem: &Problem| -> Vec<f64> {
        let answer = Policy::Greedy.allocate(problem);
        answer.datasets.iter().map(|share| share.cache).collect()
    };
    assert_eq!(caches(&problem), [100.0 * GB, 600.0 * GB]);
    problem.jobs.push(job("c", 0, 60.0 * MB, 1.0));
    assert_eq!(caches(&problem), [600.0 * GB, 100.0 * GB]);
    let answer = Policy::Greedy.allocate(&problem);
    assert_eq!(answer.jobs[0].hit_ratio, 1.0);
    assert_eq!(answer.jobs[2].hit_ratio, 1.0);
}

#[test]
fn manual_settings_come_first() {
    let mut problem = micro_benchmark();
    problem.datasets[4].budget = Some(0.5 * TB);
    problem.jobs[2].remote_io = Some(10.0 * MB);
    for policy in Policy::ALL {
        let answer = policy.allocate(&problem);
        assert_near(answer.datasets[4].cache, 0.5 * TB, 1e-12);
        let share = answer.jobs[2];
        assert_eq!((share.remote_io, share.limit), (10.0 * MB, 10.0 * MB));
        assert_near(share.throughput, 10.0 * MB / (1.0 - share.hit_ratio), 1e-12);
    }
    // Budgets above the total are cut evenly.
    problem.datasets[3].budget = Some(1.3 * TB);
    problem.datasets[2].budget = Some(1.3 * TB);
    let answer = Policy::Greedy.allocate(&problem);
    let caches: Vec<f64> = answer.datasets.iter().map(|share| share.cache).collect();
    assert_eq!(caches, [0.0, 0.0, 0.75 * TB, 0.75 * TB, 0.5 * TB]);
}

#[test]
fn names_of_policies() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    assert_eq!(Policy::default(), Policy::Greedy);
    let error = "fair".parse::<Policy>().unwrap_err().to_string();
    assert!(error.starts_with("\"fair\" is not a policy. The policies: "));
    for policy in Policy::ALL {
        assert!(error.contains(policy.name()), "{error}");
    }
}
