use super::workload::ItemKind;
use super::*;
use copperfs_topology::Tree;
use proptest::prelude::*;

/// One item of `bytes`.
fn one_file(bytes: u64) -> Vec<Item> {
    vec![Item {
        key: copperfs_topology::ItemPath::root(),
        kind: ItemKind::Data,
        bytes,
    }]
}

/// One file of 4 MiB over links of 10 MB/s, as in the project's measurements.
fn slow(nodes: usize, arity: usize) -> Scenario {
    Scenario {
        nodes,
        arity,
        link: 10e6,
        hop: 1e-4,
        storage: 1e15,
        ..Scenario::default()
    }
}

#[track_caller]
fn close_to(found: f64, wanted: f64, percent: f64) {
    assert!(
        (found / wanted - 1.0).abs() * 100.0 <= percent,
        "{found} is not within {percent} % of {wanted}"
    );
}

fn leaf_depth(nodes: usize, arity: usize) -> f64 {
    f64::from(u32::try_from(Tree::new(nodes, arity).unwrap().depth(nodes - 1)).unwrap())
}

#[test]
fn one_look_up_takes_a_round_trip_of_every_edge() {
    for (nodes, arity) in [(2, 2), (31, 2), (8_300, 4), (100_000, 8)] {
        let scenario = Scenario {
            readers: Readers::One(nodes - 1),
            link: 1e15,
            request_cpu: 5e-6,
            ..slow(nodes, arity)
        };
        let outcome = run(&scenario, &one_file(1)).unwrap();
        let edges = leaf_depth(nodes, arity);
        close_to(outcome.times.max_s, edges * (2e-4 + 5e-6), 0.1);
        assert_eq!(outcome.requests_per_node_max, 1);
        assert_eq!(outcome.storage_reads, 1);
    }
}

#[test]
fn a_herd_waits_for_one_way_and_one_turn_at_the_parent() {
    // All nodes request at once, so requests meet the answer on its way down: one request up, d
    // edges down, and k requests at the root. The other parents have processed their requests when
    // the answer arrives.
    let scenario = Scenario {
        link: 1e15,
        request_cpu: 5e-6,
        ..slow(341, 4)
    };
    let outcome = run(&scenario, &one_file(1)).unwrap();
    close_to(outcome.times.max_s, 5.0 * 1e-4 + 4.0 * 5e-6, 0.1);
}

#[test]
fn cut_through_agrees_with_arithmetic() {
    let (bytes, unit) = (4_f64 * 1_048_576.0, 65_536.0);
    for (nodes, arity) in [(2, 1), (7, 2), (31, 2), (85, 4), (8_300, 4), (100_000, 4)] {
        let scenario = slow(nodes, arity);
        let outcome = run(&scenario, &one_file(4 << 20)).unwrap();
        let k = f64::from(u32::try_from(arity).unwrap());
        let d = leaf_depth(nodes, arity);
        let wanted = k * bytes / 10e6 + (d - 1.0) * k * unit / 10e6 + (d + 1.0) * 1e-4;
        // A last level that is not full has parents with fewer children.
        close_to(outcome.times.max_s, wanted, 0.5);
    }
}

#[test]
fn store_and_forward_agrees_with_arithmetic() {
    let scenario = Scenario {
        unit: 4 << 20,
        ..slow(31, 2)
    };
    let outcome = run(&scenario, &one_file(4 << 20)).unwrap();
    let wanted = 4.0 * (2.0 * 4.0 * 1_048_576.0 / 10e6 + 1e-4);
    close_to(outcome.times.max_s, wanted, 0.5);
}

#[test]
fn storage_may_be_the_bottleneck() {
    let scenario = Scenario {
        storage: 1e6,
        storage_latency: 0.5,
        ..slow(31, 2)
    };
    let outcome = run(&scenario, &one_file(4 << 20)).unwrap();
    close_to(outcome.times.max_s, 0.5 + 4.0 * 1.048_576, 3.0);
}

#[test]
fn requests_per_node_do_not_depend_on_the_number_of_nodes() {
    let items = workload::described(728, 36_300_000, 1);
    let data_bytes: u64 = items.iter().map(|item| item.bytes).sum();
    let mut times = Vec::new();
    for nodes in [2, 32, 8_300, 100_000] {
        let scenario = Scenario {
            nodes,
            ..Scenario::default()
        };
        let outcome = run(&scenario, &items).unwrap();
        assert_eq!(outcome.requests_per_node_max, 910, "{nodes}");
        assert!(outcome.requests_answered_per_node_max <= 4 * 910);
        assert_eq!(outcome.storage_reads, 910, "{nodes}");
        assert_eq!(outcome.storage_bytes, data_bytes, "{nodes}");
        assert_eq!(outcome.bytes_received_per_node_max, data_bytes);
        times.push(outcome.times.max_s);
    }
    // Nearly constant: only the depth grows.
    assert!(times[3] < 1.1 * times[1], "{times:?}");
}

#[test]
fn more_roots_divide_storage() {
    let items = workload::described(400, 40_000_000, 1);
    let time = |roots| {
        let scenario = Scenario {
            nodes: 32,
            roots,
            storage: 1e6,
            link: 1e9,
            // With one request at a time only one root reads at a time.
            window: 64,
            ..Scenario::default()
        };
        let outcome = run(&scenario, &items).unwrap();
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        assert_eq!(outcome.storage_bytes, bytes);
        assert!(outcome.requests_per_node_max <= 500);
        outcome.times.max_s
    };
    let (one, four) = (time(1), time(4));
    assert!(one / four > 2.0, "{one} {four}");
}

#[test]
fn invalid_scenarios_are_refused() {
    let refused = |change: fn(&mut Scenario)| {
        let mut scenario = Scenario::default();
        change(&mut scenario);
        run(&scenario, &one_file(1)).unwrap_err().to_string()
    };
    assert!(refused(|s| s.nodes = 0).contains("no tree of 0 nodes"));
    assert!(refused(|s| s.arity = 0).contains("arity 0"));
    assert!(refused(|s| s.roots = 8_301).contains("8301 roots"));
    assert!(refused(|s| s.nodes = usize::MAX).contains("no tree"));
    assert!(refused(|s| s.link = 0.0).contains("the link"));
    assert!(refused(|s| s.hop = f64::NAN).contains("the hop"));
    assert!(refused(|s| s.storage = f64::INFINITY).contains("storage"));
    assert!(refused(|s| s.window = 0).contains("window"));
    let long = vec![one_file(1)[0].clone(); 20_000];
    let skewed = Scenario {
        nodes: 100_000,
        skew: 1.0,
        ..Scenario::default()
    };
    let said = run(&skewed, &long).unwrap_err().to_string();
    assert!(said.contains("too many to simulate"), "{said}");
}

#[test]
fn without_items_nothing_is_read() {
    let outcome = run(&Scenario::default(), &[]).unwrap();
    assert_eq!((outcome.times.max_s, outcome.bytes_moved), (0.0, 0));
    let empty = run(&Scenario::default(), &one_file(0)).unwrap();
    assert_eq!((empty.storage_reads, empty.bytes_moved), (1, 0));
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let tree = (1usize..70, 1usize..6, 1usize..5);
    let costs = (0u32..3, 0u32..3, 0u32..3, 1usize..5);
    let readers = prop::option::of(0usize..70);
    let skew = prop::bool::weighted(0.2);
    (tree, costs, readers, skew, any::<u64>()).prop_map(
        |((nodes, arity, roots), (cpu, think, latency, window), reader, skew, seed)| Scenario {
            nodes,
            arity,
            roots: roots.min(nodes),
            link: 10e6,
            hop: 1e-4,
            request_cpu: f64::from(cpu) * 7e-6,
            storage: 5e6,
            storage_latency: f64::from(latency) * 3e-4,
            think: f64::from(think) * 2e-4,
            window,
            skew: if skew { 0.05 } else { 0.0 },
            readers: reader.map_or(Readers::All, |node| Readers::One(node % nodes)),
            unit: UNIT_BYTES,
            seed,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A simulation of classes agrees with a simulation of every node.
    #[test]
    fn classes_change_nothing(scenario in scenarios(), files in 1usize..20) {
        let items = workload::described(files, 1_500_000, scenario.seed);
        let forest = check(&scenario).unwrap();
        let alike = run(&scenario, &items).unwrap();
        let single = simulate(
            &scenario,
            &items,
            &forest,
            &Classes::single(&forest),
            &readers(&scenario),
        )
        .unwrap();
        prop_assert_eq!(single.classes, scenario.nodes);
        // Sums of f64 in another order differ by picoseconds.
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 + 1e-9 * b;
        prop_assert!(near(alike.times.p50_s, single.times.p50_s), "{alike:?} {single:?}");
        prop_assert!(near(alike.times.p99_s, single.times.p99_s), "{alike:?} {single:?}");
        prop_assert!(near(alike.times.max_s, single.times.max_s), "{alike:?} {single:?}");
        let counts = |outcome: &Outcome| Outcome {
            times: Times { p50_s: 0.0, p99_s: 0.0, max_s: 0.0 },
            classes: 0,
            events: 0,
            ..outcome.clone()
        };
        prop_assert_eq!(counts(&alike), counts(&single));
    }

    /// Every item crosses every edge that leads to a reader once, and is read from storage once.
    #[test]
    fn bytes_are_moved_once(scenario in scenarios(), files in 1usize..20) {
        let items = workload::described(files, 1_500_000, scenario.seed);
        let outcome = run(&scenario, &items).unwrap();
        let bytes: u64 = items.iter().map(|item| item.bytes).sum();
        let count = u64::try_from(items.len()).unwrap();
        prop_assert_eq!(outcome.storage_bytes, bytes);
        prop_assert_eq!(outcome.storage_reads, count);
        prop_assert!(outcome.requests_per_node_max <= count);
        if scenario.readers == Readers::All {
            let edges = u64::try_from(scenario.nodes - 1).unwrap();
            prop_assert_eq!(outcome.bytes_moved, bytes * edges);
        }
        prop_assert_eq!(&run(&scenario, &items).unwrap(), &outcome);
    }
}
