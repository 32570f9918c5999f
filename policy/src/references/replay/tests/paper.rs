//! The example of the LRC paper.

use super::*;

/// Figures 1, 4 and 6: three blocks are cached, with recency A > B > C. D is derived from A, E from B and
/// D, and F from C and D.
///
/// The block A is read at time t1 and D is put at t2 (Fig. 4). Then the tasks of E and F read their inputs.
fn figure_4(policy: EvictionPolicy) -> Outcome {
    let tasks = [("D", &["A"][..]), ("E", &["B", "D"]), ("F", &["C", "D"])];
    let tasks: Vec<_> = tasks
        .iter()
        .map(|(id, inputs)| json!({"id": id, "in": inputs}))
        .collect();
    let events = json!([
        {"ev": "submit", "job": "1", "tasks": tasks},
        read_by("1", "D", "A"),
        put("D"),
        of("done", "1", "D"),
        read_by("1", "E", "B"),
        read_by("1", "E", "D"),
        of("done", "1", "E"),
        read_by("1", "F", "C"),
        read_by("1", "F", "D"),
        of("done", "1", "F"),
    ]);
    run(policy, &["C", "B", "A"], &json!({}), &events)
}

#[test]
fn lrc_evicts_the_inactive_block_and_hits_five_of_five() {
    for policy in [EvictionPolicy::Lrc, EvictionPolicy::LrcOffline] {
        let outcome = figure_4(policy);
        assert_eq!(outcome.evictions, ["A"]);
        assert_eq!((outcome.hits, outcome.misses), (5, 0));
        assert_eq!(outcome.resident, ["B", "C", "D"]);
        assert!(outcome.counts.is_empty());
    }
}

#[test]
fn lru_evicts_the_block_that_is_needed_next_and_hits_four_of_five() {
    let outcome = figure_4(EvictionPolicy::Lru);
    assert_eq!(outcome.evictions[0], "C");
    assert_eq!((outcome.hits, outcome.misses), (4, 1));
}

/// Section II-C: LFU evicts B or C, because A has a historical access.
#[test]
fn lfu_keeps_the_inactive_block() {
    let outcome = figure_4(EvictionPolicy::Lfu);
    assert_eq!(outcome.evictions[0], "C");
}

/// Section III-B: E and F belong to two jobs. Before the second is submitted, D has one reference; after it,
/// two.
#[test]
fn online_counts_are_corrected_by_the_next_job() {
    let first = submit("1", 0, &[&["A"], &["B", "D"]]);
    let second = submit("2", 0, &[&["C", "D"]]);
    let events = json!([first, second]);
    assert_eq!(counts(&json!({}), &json!([first])), "A1 B1 D1");
    assert_eq!(counts(&json!({}), &events), "A1 B1 C1 D2");
}
