//! Datasets of which two chunks are cached (Quiver, FAST '20, sections 5 and 7).

use super::*;
use copperfs_policy::{Choice, Keep};

/// The jobs of `config/simulate-quiver.toml`: seven on one dataset.
fn seven_jobs(keep: Keep, rounds: f64) -> (Scenario, Workload) {
    let (scenario, mut workload) = loaded(include_str!("../../../../config/simulate-quiver.toml"));
    workload.datasets[0].keep = keep;
    for job in &mut workload.jobs {
        job.work = rounds * workload.datasets[0].size;
    }
    (scenario, workload)
}

fn loaded(text: &str) -> (Scenario, Workload) {
    let (cluster, workload) = from_toml(text).unwrap();
    let scenario = Scenario {
        gpus: cluster.gpus.unwrap(),
        cache: cluster.cache.unwrap(),
        remote_io: cluster.remote_io.unwrap(),
        chunk_size: cluster.chunk_size.unwrap(),
        evict_after_s: cluster.evict_after_s.unwrap(),
        system: System::Quiver,
        granularity: Granularity::Item,
        items: 2048,
        batch: 16,
        ..Scenario::default()
    };
    (scenario, workload)
}

/// The bytes from storage in this number of rounds of seven jobs, in datasets.
fn from_storage(keep: Keep, rounds: f64, change: impl Fn(&mut Scenario)) -> f64 {
    let (mut scenario, workload) = seven_jobs(keep, rounds);
    change(&mut scenario);
    run(&scenario, &workload).unwrap().remote_bytes / workload.datasets[0].size
}

#[test]
fn seven_jobs_read_from_storage_as_calculated() {
    // The first round is left out, because it fills the cache.
    let a_round = |keep, system, cache: f64| {
        let change = |scenario: &mut Scenario| {
            scenario.system = system;
            scenario.cache = cache * 154e9;
        };
        (from_storage(keep, 4.0, change) - from_storage(keep, 1.0, change)) / 3.0
    };
    for (keep, system, cache, wanted) in [
        (Keep::None, System::Quiver, 0.2, 7.0),
        (Keep::Auto, System::Alluxio, 0.1, 6.4),
        (Keep::Auto, System::Alluxio, 0.2, 5.8),
        (Keep::Auto, System::Alluxio, 0.5, 3.8),
        (Keep::Uniform, System::Silod, 0.2, 5.6),
    ] {
        let found = a_round(keep, system, cache);
        println!("{keep} {system:?} {cache}: {found:.2} ({wanted})");
        assert!(near(found, wanted, 0.03), "{keep} {system:?}: {found}");
    }
}

#[test]
fn a_dataset_of_which_nothing_is_kept_is_read_by_each_job() {
    for granularity in [Granularity::Fluid, Granularity::Item] {
        let found = from_storage(Keep::None, 2.0, |scenario| {
            scenario.granularity = granularity;
            scenario.cache = 200e9;
        });
        assert!(near(found, 14.0, 1e-6), "{granularity:?}: {found}");
    }
}

#[test]
fn seven_jobs_on_two_chunks_read_the_dataset_once_a_round() {
    for rounds in [1.0, 2.0, 5.0] {
        let found = from_storage(Keep::Chunks, rounds, |_| {});
        println!("{rounds} rounds: {found:.2}");
        assert!(
            found <= rounds + 0.2 && found > 0.8 * rounds,
            "{rounds}: {found}"
        );
    }
    let (scenario, workload) = seven_jobs(Keep::Chunks, 3.0);
    let outcome = run(&scenario, &workload).unwrap();
    assert!(
        near(outcome.read_bytes, 21.0 * 154e9, 1e-6),
        "{}",
        outcome.read_bytes
    );
    assert_eq!(outcome, run(&scenario, &workload).unwrap());
    // Storage serves each job at a quarter of its ideal rate; together they are not limited by it.
    for job in &outcome.jobs {
        assert!(job.jct_s < 1.1 * 3.0 * 154e9 / 96e6, "{job:?}");
    }
    // Storage gives each item once per residence of its chunk, of which there are eleven.
    let loads = outcome.chunks.len() as f64 / 11.0;
    assert!(near(outcome.remote_bytes / 154e9, loads, 0.01), "{loads}");
    let without = seven_jobs(Keep::None, 3.0).1;
    let without = run(&scenario, &without).unwrap();
    let gain = without.jct_mean_s / outcome.jct_mean_s;
    assert!(gain > 3.4, "{gain}");
}

/// The maximum number of chunks of a dataset that are resident at a time.
fn resident_max(spans: &[ChunkSpan]) -> usize {
    let at_start = |span: &ChunkSpan| {
        let other = |other: &&ChunkSpan| {
            let until = other.until_s.unwrap_or(f64::INFINITY);
            other.dataset == span.dataset && other.from_s <= span.from_s && span.from_s < until
        };
        spans.iter().filter(other).count()
    };
    spans.iter().map(at_start).max().unwrap_or(0)
}

#[test]
fn a_slow_job_neither_delays_the_others_nor_doubles_the_bytes() {
    let (scenario, mut workload) = seven_jobs(Keep::Chunks, 3.0);
    workload.jobs[6].ideal_rate /= 4.0;
    let outcome = run(&scenario, &workload).unwrap();
    for (job, wanted) in outcome.jobs.iter().zip(&workload.jobs).take(6) {
        let rate = wanted.work / job.jct_s;
        println!("{}: {:.3}", job.id, rate / wanted.ideal_rate);
        assert!(rate >= 0.9 * wanted.ideal_rate, "{job:?}");
    }
    let datasets = outcome.remote_bytes / 154e9;
    println!("{datasets:.2} datasets");
    assert!(datasets <= 6.5, "{datasets}");
    assert!(outcome.chunks.iter().any(|span| span.is_forced));
    assert_eq!(resident_max(&outcome.chunks), 2);
}

/// Figure 7: four jobs, and three more after 15 minutes.
#[test]
fn jobs_that_come_later_start_on_the_current_chunk() {
    let (mut scenario, mut workload) = seven_jobs(Keep::Chunks, 2.0);
    // Storage limits the jobs even together.
    scenario.remote_io = 40e6;
    for job in &mut workload.jobs[4..] {
        job.submit = 900.0;
    }
    let outcome = run(&scenario, &workload).unwrap();
    assert_eq!(resident_max(&outcome.chunks), 2);
    // The ring goes on: no chunk comes back before its turn.
    let chunks: Vec<u32> = outcome.chunks.iter().map(|span| span.chunk).collect();
    let turns = chunks.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 11);
    assert!(turns, "{chunks:?}");
    let before = outcome.chunks.iter().filter(|span| span.from_s < 900.0);
    assert!(before.count() > 2, "the first chunks are gone");
    let mean = |from: f64, to: f64| {
        let samples = outcome.samples.iter();
        let samples = samples.filter(|sample| (from..to).contains(&sample.at_s));
        let rates: Vec<f64> = samples.map(|sample| sample.throughput).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    let (four, seven) = (mean(300.0, 900.0), mean(1200.0, 1800.0));
    println!("{:.0} and {:.0} MB/s", four / 1e6, seven / 1e6);
    // Each byte from storage serves all jobs that are there.
    assert!(
        near(four, 160e6, 0.1) && seven > 1.6 * four,
        "{four} {seven}"
    );
}

#[test]
fn two_chunks_in_too_small_a_cache_are_kept_as_far_as_they_go() {
    let small = |scenario: &mut Scenario| scenario.cache = 14e9;
    let found = from_storage(Keep::Chunks, 2.0, small);
    // Half of each chunk is kept. Each job misses the other half itself.
    println!("{found:.2}");
    assert!(found > 2.0 && found < 11.0, "{found}");
}

/// Figure 6: the gain over no cache in steady state, which is the mean over twelve jobs.
#[test]
fn twelve_jobs_gain_as_the_paper_says() {
    let text = include_str!("../../../../config/simulate-quiver-mix.toml");
    let (scenario, workload) = loaded(text);
    let seconds = |keep: [Keep; 3], system, cache: f64, part: f64| {
        let mut workload = workload.clone();
        for (set, keep) in workload.datasets.iter_mut().zip(keep) {
            set.keep = keep;
        }
        for job in &mut workload.jobs {
            job.work *= part;
        }
        let scenario = Scenario {
            system,
            cache: cache * 2_f64.powi(30),
            ..scenario.clone()
        };
        run(&scenario, &workload)
            .unwrap()
            .jobs
            .into_iter()
            .map(|job| job.jct_s)
    };
    // The first part fills the cache.
    let gain = |keep, system, cache| {
        let (first, both) = (
            seconds(keep, system, cache, 0.1),
            seconds(keep, system, cache, 0.2),
        );
        let rates = first.zip(both).map(|(first, both)| 1e12 / (both - first));
        rates.map(|rate| rate / 25e6).sum::<f64>() / 12.0
    };
    assert!(near(
        gain([Keep::None; 3], System::Quiver, 100.0),
        1.0,
        0.01
    ));
    // All jobs can reach 2.36. The paper's are 1.6, about 2, and 2.32; each job is measured again and again,
    // which costs more of the time than in reality, because the items are larger.
    for (cache, least) in [(100.0, 1.6), (200.0, 2.1), (700.0, 2.3)] {
        let quiver = gain([Keep::Auto; 3], System::Quiver, cache);
        let lru = gain([Keep::Auto; 3], System::Alluxio, cache);
        println!("{cache} GiB: {quiver:.3}, LRU {lru:.3}");
        assert!(
            quiver >= least && quiver >= 0.99 * lru,
            "{cache}: {quiver} {lru}"
        );
    }
}

/// Section 7: the policy measures the jobs, and gives the images most.
#[test]
fn the_policy_chooses_among_the_options_by_measured_times() {
    use Choice::{Chunks, Whole};
    let text = include_str!("../../../../config/simulate-quiver-mix.toml");
    let (scenario, mut workload) = loaded(text);
    for job in &mut workload.jobs {
        job.work *= 0.05;
    }
    for (cache, wanted) in [
        (100.0, [Chunks, Chunks, Chunks]),
        (200.0, [Whole, Chunks, Chunks]),
        (700.0, [Whole, Chunks, Whole]),
    ] {
        let scenario = Scenario {
            cache: cache * 2_f64.powi(30),
            ..scenario.clone()
        };
        let outcome = run(&scenario, &workload).unwrap();
        // While all jobs run.
        let ends = outcome.jobs.iter().map(|job| job.finish_s);
        let end = ends.fold(f64::INFINITY, f64::min);
        let chosen = workload.datasets.iter().map(|set| {
            let of_it = outcome.choices.iter().filter(|one| one.dataset == set.name);
            let changes: Vec<&ChoiceChange> = of_it.filter(|one| one.at_s < end).collect();
            let until = changes.iter().skip(1).map(|next| next.at_s).chain([end]);
            let spans = changes
                .iter()
                .zip(until)
                .map(|(one, until)| (one.choice, until - one.at_s));
            spans
                .max_by(|a, b| a.1.total_cmp(&b.1))
                .map(|(choice, _)| choice)
        });
        let chosen: Vec<Choice> = chosen.flatten().collect();
        println!(
            "{cache} GiB: {chosen:?}, probes {:.0} of {:.0} GB",
            outcome.probe_bytes / 1e9,
            outcome.remote_bytes / 1e9
        );
        assert_eq!(chosen, wanted, "{cache} GiB");
        assert!(outcome.probe_bytes > 0.0 && outcome.probe_bytes < outcome.remote_bytes);
        if cache < 150.0 {
            assert_eq!(outcome, run(&scenario, &workload).unwrap());
        }
    }
}

/// A job that computes longer than it reads gets no cache, once it is measured.
#[test]
fn a_job_without_a_gain_is_switched_off() {
    let (scenario, mut workload) = seven_jobs(Keep::Auto, 3.0);
    workload.jobs.truncate(1);
    workload.jobs[0].substitutes = true;
    let scenario = Scenario {
        cache: 200e9,
        ..scenario
    };
    // Alone it is not bound by storage.
    let outcome = run(&scenario, &workload).unwrap();
    let last = outcome.choices.last().map(|one| one.choice);
    println!("{:?}", outcome.choices);
    assert_eq!(last, Some(Choice::None));
    assert!(
        near(outcome.remote_bytes, 3.0 * 154e9, 0.5),
        "{}",
        outcome.remote_bytes
    );
}

#[test]
fn chunks_that_cannot_be_simulated_are_refused() {
    let refused = |change: fn(&mut Scenario, &mut Workload)| {
        let (mut scenario, mut workload) = seven_jobs(Keep::Chunks, 1.0);
        change(&mut scenario, &mut workload);
        run(&scenario, &workload).unwrap_err().to_string()
    };
    let fluid = refused(|scenario, _| scenario.granularity = Granularity::Fluid);
    assert!(
        fluid.ends_with("simulate it with --granularity item"),
        "{fluid}"
    );
    let few = refused(|scenario, _| (scenario.items, scenario.batch) = (64, 16));
    assert!(
        few.contains("64 entries cannot be divided") && few.contains("--items"),
        "{few}"
    );
    let ordered = refused(|_, workload| {
        workload.jobs[0].curriculum = Some(Curriculum {
            start: 0.1,
            growth: 2.0,
            step: 1,
            batch_bytes: 1e6,
        });
    });
    assert!(ordered.contains("keep = \"uniform\""), "{ordered}");
    let counted = refused(|_, workload| workload.datasets[0].keep = Keep::References);
    assert!(counted.contains("copperfs simulate pipelines"), "{counted}");
    let at_once = refused(|scenario, _| scenario.evict_after_s = 0.0);
    assert_eq!(
        at_once,
        "the time before eviction must be above zero, not 0"
    );
}
