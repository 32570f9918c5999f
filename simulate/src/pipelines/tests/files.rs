//! Workloads from files, and their traces.

use super::*;
use copperfs_policy::references::replay::{Trace, replay};

#[test]
fn every_file_is_loaded_and_every_name_found() {
    for text in [
        include_str!("../../../../config/simulate-pipelines.toml"),
        include_str!("../../../../config/simulate-pipelines-read-only.toml"),
        include_str!("../../../../config/simulate-pipelines-tenants.toml"),
    ] {
        for workload in Workload::from_toml(text).unwrap() {
            assert_eq!(Workload::named(&workload.name), Some(workload));
        }
    }
    for name in PAPER.into_iter().chain(READ_ONLY).chain([TENANTS]) {
        assert_eq!(Workload::named(name).unwrap().name, name);
    }
    assert_eq!(Workload::named("page-rank"), None);
}

#[test]
fn a_seed_determines_the_trace() {
    let lru = |pipeline: &mut Pipeline| {
        let cache = pipeline.inputs / 10;
        run(pipeline, Policy::Lru, cache).unwrap()
    };
    for name in ["pregel", "samples", "scanner"] {
        let workload = Workload::named(name).unwrap();
        let [mut first, mut again, mut other] =
            [1, 1, 2].map(|seed| workload.pipeline(seed).unwrap());
        assert_eq!(first.inputs, again.inputs);
        let found = lru(&mut first);
        assert_eq!(found, lru(&mut again));
        assert_ne!(found, lru(&mut other), "{name}");
    }
}

/// Each task reads every block that it declared, so all counts are 0 at the end, and a cache for all blocks
/// misses first reads only.
#[test]
fn tasks_read_the_blocks_that_they_declare() {
    for name in PAPER.into_iter().chain(READ_ONLY).chain([TENANTS]) {
        let mut pipeline = pipelines(name, 1).remove(0);
        let limits = pipeline.limits(Policy::LrcOffline, u64::MAX / 200);
        pipeline.trace.set_limits(limits).unwrap();
        let outcome = replay(&pipeline.trace, Policy::LrcOffline).unwrap();
        assert!(outcome.counts.is_empty(), "{name}");
        assert!(outcome.evictions.is_empty(), "{name}");
        let puts: std::collections::HashSet<u32> = (pipeline.trace.accesses().flatten())
            .filter_map(|access| access.is_put.then_some(access.block))
            .collect();
        let inputs = pipeline.trace.blocks() - puts.len();
        assert_eq!(outcome.misses, inputs as u64, "{name}");
    }
}

#[test]
fn wrong_files_are_refused_with_their_reason() {
    let graph = "input = \"1GB\"\npartitions = 4\nslots = 2\niterations = 2\nedges = 1.0\n";
    for (text, wanted) in [
        (String::new(), "has no workload"),
        ("[a]\nkind = \"sort\"".to_owned(), "unknown variant `sort`"),
        (format!("[a]\nkind = \"pregel\"\n{graph}"), "vertices"),
        (
            format!("[a]\nkind = \"pregel\"\nvertices = 1.0\ncores = 3\n{graph}"),
            "cores",
        ),
        (
            format!("[a]\nkind = \"pregel\"\nvertices = -1.0\n{graph}"),
            "workload \"a\": vertices must be",
        ),
        (
            format!("[a]\nkind = \"pregel\"\nvertices = 1.0\n{}", graph.replace("= 4", "= 0")),
            "partitions must be",
        ),
        (
            "[a]\nkind = \"tenants\"\ntenants = 2\napps = []".to_owned(),
            "the number of apps must be 1 to 100000, not 0",
        ),
        (
            "[w]\nkind = \"windows\"\npartitions = 3\nwindow = 4\npartition = \"1GB\"\nspread = 0.1\n\
             block = \"1MB\"\nactive = 1\nslots = 1"
                .to_owned(),
            "partitions without the first window must be",
        ),
        (
            "[s]\nkind = \"scanner\"\ndataset = \"1TB\"\njobs = 1\npart = 0.5\nscanned = \"1TB\"\n\
             block = \"1KB\"\nslots = 1"
                .to_owned(),
            "set a larger block",
        ),
        (
            "[s]\nkind = \"scanner\"\ndataset = \"1GB\"\njobs = 1\npart = 1.5\nscanned = \"1GB\"\n\
             block = \"1MB\"\nslots = 1"
                .to_owned(),
            "part must be 0 to 1, not 1.5",
        ),
    ] {
        let error = Workload::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn sizes_of_caches_are_parsed() {
    assert_eq!("20%".parse(), Ok(CacheSize::Percent(20.0)));
    assert_eq!("1.5 %".parse(), Ok(CacheSize::Percent(1.5)));
    assert_eq!("10GB".parse(), Ok(CacheSize::Bytes(10_000_000_000)));
    assert_eq!(CacheSize::Percent(10.0).bytes(55), 5);
    for wrong in ["", "20", "0%", "-1%", "NaN%", "1001%", "0GB", "GB", "ten%"] {
        let error = wrong.parse::<CacheSize>().unwrap_err().to_string();
        assert!(error.contains("is not the size of a cache"), "{error}");
    }
}

/// Under each policy a recorded trace keeps its options, as in `copperfs lrc replay`.
#[test]
fn a_recorded_trace_is_replayed_as_it_is() {
    let json = br#"{"cache": 3, "blocks": {"A": 1, "B": 1, "C": 2}, "options": {"floor": 1},
        "events": [{"ev": "read", "block": "A"}, {"ev": "put", "block": "B"},
                   {"ev": "read", "block": "C"}, {"ev": "read", "block": "A"}]}"#;
    let trace = Trace::from_json(json).unwrap();
    let mut pipeline = Pipeline::recorded("mine".to_owned(), trace.clone());
    assert_eq!((pipeline.inputs, pipeline.distances.mean()), (3, None));
    for policy in Policy::ALL {
        assert_eq!(pipeline.limits(policy, 3), trace.limits());
        let found = run(&mut pipeline, policy, 3).unwrap();
        let wanted = replay(&trace, policy).unwrap();
        assert_eq!((found.hits, found.misses), (wanted.hits, wanted.misses));
        assert_eq!(found.evictions, wanted.evictions.len() as u64);
        let a_missed_twice = wanted.misses == 3;
        assert_eq!(found.storage_bytes, if a_missed_twice { 4 } else { 3 });
    }
    let error = run(&mut pipeline, Policy::Lru, 0).unwrap_err().to_string();
    assert!(error.contains("floor of 1 bytes"), "{error}");
}
