//! The model compared with the paper, with arithmetic, and between granularities.

mod quiver;

use super::trace::{from_csv, from_toml};
use super::*;

/// SiloD's Table 6, column "Simulation": minutes of average JCT and makespan.
const TABLE_6: [(System, f64, f64); 4] = [
    (System::Silod, 3403.0, 3718.0),
    (System::Coordl, 4406.0, 4918.0),
    (System::Alluxio, 4484.0, 4986.0),
    (System::Quiver, 3592.0, 3915.0),
];

fn eight_gpus() -> (Scenario, Workload) {
    let text = include_str!("../../../config/simulate-8v100.toml");
    let (cluster, workload) = from_toml(text).unwrap();
    let scenario = Scenario {
        gpus: cluster.gpus.unwrap(),
        cache: cluster.cache.unwrap(),
        remote_io: cluster.remote_io.unwrap(),
        ..Scenario::default()
    };
    (scenario, workload)
}

fn run_as(scenario: &Scenario, workload: &Workload, system: System) -> Outcome {
    let scenario = Scenario {
        system,
        ..scenario.clone()
    };
    run(&scenario, workload).unwrap()
}

/// Jobs on datasets of their own, all submitted at once.
fn workload(jobs: &[(f64, f64, f64)]) -> Workload {
    let mut text = COLUMNS.to_owned();
    for (at, (size, rate, work)) in jobs.iter().enumerate() {
        text += &format!("j{at},0,m,d{at},{size},1,{rate},{work}\n");
    }
    from_csv(&text).unwrap()
}

const COLUMNS: &str = "id,submit_s,model,dataset,dataset_bytes,gpus,ideal_rate,work_bytes\n";

fn small(system: System, cache: f64, remote_io: f64) -> Scenario {
    Scenario {
        gpus: 16,
        cache,
        remote_io,
        system,
        ..Scenario::default()
    }
}

fn near(found: f64, wanted: f64, part: f64) -> bool {
    (found - wanted).abs() <= part * wanted.abs()
}

#[test]
fn the_model_agrees_with_table_6() {
    let (scenario, workload) = eight_gpus();
    let mut errors = Vec::new();
    let mut found = Vec::new();
    for (system, jct, makespan) in TABLE_6 {
        let outcome = run_as(&scenario, &workload, system);
        let (found_jct, found_makespan) = (outcome.jct_mean_s / 60.0, outcome.makespan_s / 60.0);
        println!("{system:?}: {found_jct:.0} ({jct}), {found_makespan:.0} ({makespan})");
        errors.extend([found_jct / jct - 1.0, found_makespan / makespan - 1.0]);
        found.push((found_jct, found_makespan));
    }
    let worst = errors
        .iter()
        .fold(0.0_f64, |most, error| most.max(error.abs()));
    let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / 8.0;
    assert!(worst <= 0.08 && mean <= 0.05, "{worst} {mean}");
    let [silod, coordl, alluxio, quiver] = found[..] else {
        unreachable!()
    };
    assert!(silod.0 < quiver.0 && quiver.0 < coordl.0 && coordl.0 < alluxio.0);
    assert!(silod.1 < quiver.1 && quiver.1 < coordl.1 && coordl.1 < alluxio.1);
}

#[test]
fn all_systems_are_equal_until_the_first_epoch_ends() {
    let (scenario, workload) = eight_gpus();
    let outcomes = System::ALL.map(|system| run_as(&scenario, &workload, system));
    // Four jobs share 192 MB/s until the first has read its 1.3 TiB.
    let end = 1.3 * 2_f64.powi(40) / 48e6;
    for outcome in &outcomes {
        let first = outcome
            .samples
            .iter()
            .filter(|sample| sample.at_s + 600.0 < end);
        for sample in first {
            assert!(near(sample.throughput, 200e6, 1e-6), "{sample:?}");
        }
        let later = outcome
            .samples
            .iter()
            .find(|sample| sample.at_s > end + 600.0);
        assert!(later.unwrap().throughput > 205e6);
    }
    // Then one ResNet-50 is cached and the other has the rest, so no job waits for data (Figure 9).
    let silod = &outcomes[0];
    let second = silod
        .samples
        .iter()
        .find(|sample| sample.at_s > end + 600.0);
    assert!(near(second.unwrap().throughput, 374e6, 1e-6), "{second:?}");
    assert!(near(second.unwrap().remote_io, 198.6e6, 1e-3), "{second:?}");
}

#[test]
fn items_and_liquids_agree() {
    let (scenario, workload) = eight_gpus();
    for system in System::ALL {
        let fluid = run_as(&scenario, &workload, system);
        let items = Scenario {
            granularity: Granularity::Item,
            ..scenario.clone()
        };
        let items = run_as(&items, &workload, system);
        println!("{system:?}: {} {}", fluid.jct_mean_s, items.jct_mean_s);
        assert!(near(items.jct_mean_s, fluid.jct_mean_s, 0.01), "{system:?}");
        assert!(near(items.makespan_s, fluid.makespan_s, 0.01), "{system:?}");
        assert!(
            near(items.remote_bytes, fluid.remote_bytes, 0.02),
            "{system:?}"
        );
    }
}

#[test]
fn items_and_liquids_agree_on_shared_datasets() {
    let mut text = COLUMNS.to_owned();
    for (at, rate) in [200e6, 120e6, 90e6].iter().enumerate() {
        text += &format!("j{at},{},m,a,1e12,1,{rate},6e12\n", at * 1000);
    }
    text += "k,2000,m,b,4e11,1,1e8,4e12\n";
    let workload = from_csv(&text).unwrap();
    for system in System::ALL {
        let scenario = small(system, 9e11, 150e6);
        let fluid = run(&scenario, &workload).unwrap();
        let items = Scenario {
            granularity: Granularity::Item,
            items: 4096,
            ..scenario
        };
        let items = run(&items, &workload).unwrap();
        println!("{system:?}: {} {}", fluid.jct_mean_s, items.jct_mean_s);
        assert!(near(items.jct_mean_s, fluid.jct_mean_s, 0.02), "{system:?}");
    }
}

#[test]
fn a_uniform_cache_agrees_with_equation_4() {
    // 0.1 TB is read at 50 MB/s at first, and then at 50 / (1 - 0.6) = 125, limited to 100.
    for (cache, rate) in [(6e10, 100e6), (2e10, 62.5e6)] {
        let workload = workload(&[(1e11, 100e6, 5e11)]);
        let outcome = run(&small(System::Silod, cache, 50e6), &workload).unwrap();
        let wanted = 1e11 / 50e6 + 4e11 / rate;
        assert!(near(outcome.makespan_s, wanted, 1e-9), "{outcome:?}");
    }
}

#[test]
fn an_lru_cache_thrashes_as_calculated() {
    // After the fraction p of an epoch, (c - p) / (1 - p) of the unread items is cached. The mean
    // over the epoch is c + (1 - c) ln(1 - c).
    let workload = workload(&[(1e12, 100e6, 2e13)]);
    for c in [0.25, 0.5, 0.9] {
        let outcome = run(&small(System::Alluxio, c * 1e12, 1e9), &workload).unwrap();
        let hits = 1.0 - outcome.remote_bytes / outcome.read_bytes;
        let wanted = (c + (1.0 - c) * (1.0_f64 - c).ln()) * 19.0 / 20.0;
        assert!(near(hits, wanted, 0.02), "{c}: {hits} {wanted}");
    }
}

#[test]
fn a_new_job_hits_items_cached_by_another() {
    let text = format!("{COLUMNS}a,0,m,d,1e11,1,1e8,1e12\nb,5000,m,d,1e11,1,1e8,1e11\n");
    let workload = from_csv(&text).unwrap();
    for system in [System::Silod, System::Quiver, System::Alluxio] {
        let outcome = run(&small(system, 2e11, 1e8), &workload).unwrap();
        assert!(near(outcome.jobs[1].jct_s, 1000.0, 1e-6), "{system:?}");
        assert!(near(outcome.remote_bytes, 1e11, 1e-6), "{system:?}");
    }
    let apart = run(&small(System::Coordl, 16e11, 1e8), &workload).unwrap();
    assert!(
        near(apart.remote_bytes, 2e11, 1e-6),
        "{}",
        apart.remote_bytes
    );
}

#[test]
fn fifo_blocks_and_sjf_does_not_wait_for_the_long() {
    let text = format!(
        "{COLUMNS}a,0,m,d,1e9,12,1e8,1e11\nb,1,m,d,1e9,8,1e8,1e12\nc,2,m,d,1e9,1,1e8,1e10\n"
    );
    let workload = from_csv(&text).unwrap();
    let scenario = small(System::Alluxio, 1e12, 1e9);
    let fifo = run(&scenario, &workload).unwrap();
    let starts: Vec<f64> = fifo.jobs.iter().map(|job| job.start_s).collect();
    assert!(near(starts[1], 1000.0, 1e-6) && near(starts[2], 1000.0, 1e-6));
    let sjf = Scenario {
        scheduler: Scheduler::Sjf,
        ..scenario.clone()
    };
    // `b` is at the head when `c` comes, but `c` is shorter.
    let sjf = run(&sjf, &workload).unwrap();
    assert!(near(sjf.jobs[2].start_s, 2.0, 1e-9));
    let gavel = Scenario {
        scheduler: Scheduler::Gavel,
        ..scenario
    };
    // All run from the start, at 16/21 of their speed while there are three.
    let gavel = run(&gavel, &workload).unwrap();
    assert!(gavel.jobs.iter().all(|job| job.start_s == job.submit_s));
    assert!(gavel.jobs[2].jct_s > 100.0 && gavel.jobs[2].jct_s < 140.0);
}

#[test]
fn nothing_is_lost_and_nothing_exceeds_the_link() {
    let recipe = generate::Recipe {
        jobs: 120,
        days: 1.0,
        sharing: 0.3,
        seed: 3,
    };
    let workload = generate::generate(&recipe).unwrap();
    let work: f64 = workload.jobs.iter().map(|job| job.work).sum();
    for scheduler in [Scheduler::Fifo, Scheduler::Sjf, Scheduler::Gavel] {
        for system in System::ALL {
            let scenario = Scenario {
                gpus: 64,
                cache: 8e12,
                remote_io: 640e6,
                scheduler,
                system,
                ..Scenario::default()
            };
            let outcome = run(&scenario, &workload).unwrap();
            assert!(
                near(outcome.read_bytes, work, 1e-6),
                "{scheduler:?} {system:?}"
            );
            for sample in &outcome.samples {
                assert!(sample.remote_io <= 640e6 * (1.0 + 1e-9), "{sample:?}");
                assert!(sample.cached <= 8e12 * (1.0 + 1e-6), "{sample:?}");
                assert!(sample.gpus <= 64.0 + 1e-6, "{sample:?}");
                assert!(sample.throughput <= sample.ideal_throughput * (1.0 + 1e-9));
            }
            for (job, wanted) in outcome.jobs.iter().zip(&workload.jobs) {
                assert!(job.start_s >= job.submit_s);
                let ideal_duration = wanted.work / wanted.ideal_rate;
                assert!(job.finish_s - job.start_s >= ideal_duration * (1.0 - 1e-6));
            }
            assert_eq!(outcome, run(&scenario, &workload).unwrap());
        }
    }
}

#[test]
fn under_a_curriculum_lru_is_as_good_as_uniform() {
    let (mut scenario, mut workload) = eight_gpus();
    workload.jobs.truncate(1);
    workload.jobs[0].curriculum = Some(Curriculum {
        start: 0.04,
        growth: 1.5,
        step: 75_000,
        batch_bytes: 64.0 * 110e3,
    });
    scenario.cache = 0.6e12;
    scenario.remote_io = 50e6;
    let fluid = run(&scenario, &workload).unwrap_err();
    assert!(matches!(fluid, ClusterError::Curriculum { .. }), "{fluid}");
    scenario.granularity = Granularity::Item;
    scenario.items = 4096;
    let uniform = run_as(&scenario, &workload, System::Silod).jct_mean_s;
    let lru = run_as(&scenario, &workload, System::Alluxio).jct_mean_s;
    assert!(near(lru, uniform, 0.05), "{lru} {uniform}");
    // With epochs, an LRU cache of this size thrashes.
    workload.jobs[0].curriculum = None;
    let uniform = run_as(&scenario, &workload, System::Silod).jct_mean_s;
    let lru = run_as(&scenario, &workload, System::Alluxio).jct_mean_s;
    assert!(lru > 1.2 * uniform, "{lru} {uniform}");
}

#[test]
fn bad_traces_name_their_line() {
    let line = |line: &str| {
        let text = format!("{COLUMNS}a,5,m,d,1e9,1,1e6,1e9\n{line}\n");
        from_csv(&text).unwrap_err().to_string()
    };
    let cases = [
        (
            "b,4,m,d,1e9,1,1e6,1e9",
            "line 3: job \"b\" is submitted at 4 s, before the job above it (5 s)",
        ),
        (
            "a,5,m,d,1e9,1,1e6,1e9",
            "line 3: two jobs have the id \"a\"",
        ),
        (
            "b,5,m,d,2e9,1,1e6,1e9",
            "line 3: dataset \"d\" has 1000000000 bytes in one place and 2000000000 in another",
        ),
        (
            "b,5,m,e,0,1,1e6,1e9",
            "line 3: size of \"e\" must be above zero, not 0",
        ),
        (
            "b,5,m,d,1e9,0,1e6,1e9",
            "line 3: number of GPUs of \"b\" must be above zero, not 0",
        ),
        (
            "b,5,m,d,1e9,1,-1,1e9",
            "line 3: ideal rate of \"b\" must be above zero, not -1",
        ),
        (
            "b,5,m,d,1e9,1,1e6,NaN",
            "line 3: work of \"b\" must be above zero, not NaN",
        ),
        (
            "b,-5,m,d,1e9,1,1e6,1e9",
            "line 3: time of submission of \"b\" must be zero or above, not -5",
        ),
        (
            "b,5,m,d,1e9,1.5,1e6,1e9",
            "line 3: gpus is \"1.5\", which is not a whole number of GPUs",
        ),
        (
            "b,5,m,d,1GB,1,1e6,1e9",
            "line 3: dataset_bytes is \"1GB\", which is not a number",
        ),
        (
            "b,5,m,d,1e9,1,1e6",
            "line 3: 7 fields, where line 1 names 8 columns",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(line(text), wanted);
    }
    let missing = from_csv("id,submit_s\n").unwrap_err().to_string();
    assert!(
        missing.starts_with("line 1: there is no column \"model\""),
        "{missing}"
    );
    let twice = from_csv("id,id,submit_s\n").unwrap_err().to_string();
    assert!(twice.contains("there twice"), "{twice}");
    assert!(from_csv("").unwrap_err().to_string().contains("empty"));
    assert_eq!(
        from_csv(COLUMNS).unwrap_err().to_string(),
        "there is no job"
    );
}

#[test]
fn bad_clusters_and_files_are_refused() {
    type Change = fn(&mut Scenario);
    let (scenario, workload) = eight_gpus();
    let refused = |change: Change| {
        let mut scenario = scenario.clone();
        change(&mut scenario);
        run(&scenario, &workload).unwrap_err().to_string()
    };
    let cases: [(Change, &str); 6] = [
        (
            |s| s.gpus = 2,
            "job \"bert\" needs 4 GPUs; the cluster has 2",
        ),
        (
            |s| s.gpus = 0,
            "the number of GPUs must be 1 to 1048576, not 0",
        ),
        (|s| s.cache = 0.0, "the cache must be above zero, not 0"),
        (
            |s| s.remote_io = f64::NAN,
            "remote IO must be above zero, not NaN",
        ),
        (
            |s| s.gpu_speed = -1.0,
            "the GPUs' speed must be above zero, not -1",
        ),
        (
            |s| s.items = 1,
            "the number of items must be 64 to 1048576, not 1",
        ),
    ];
    for (change, wanted) in cases {
        assert_eq!(refused(change), wanted);
    }
    for (text, wanted) in [
        ("cache = \"2\"", "no unit"),
        ("remote_io = \"200MB\"", "does not end with /s"),
        ("gpu = 8", "unknown field `gpu`"),
        ("[[dataset]]\nname=\"a\"\nsize=\"0TB\"", "above zero"),
        (
            "[[dataset]]\nname=\"a\"\nsize=\"1TB\"\n[[dataset]]\nname=\"a\"\nsize=\"1TB\"",
            "there twice",
        ),
        (
            "[[job]]\nid=\"j\"\ndataset=\"x\"\nideal_rate=\"1MB/s\"\nepochs=1",
            "no dataset of this file",
        ),
        (
            "[[dataset]]\nname=\"a\"\nsize=\"1TB\"\n[[job]]\nid=\"j\"\ndataset=\"a\"\nideal_rate=\"1MB/s\"",
            "either epochs",
        ),
        ("", "there is no job"),
    ] {
        let error = from_toml(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}
