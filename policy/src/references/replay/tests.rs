use super::*;
use crate::references::{EvictionPolicy, Limits, ResidentBytes};
use serde_json::{Value, json};

mod brute_force;
mod malformed;
mod paper;
mod random;

/// Replays events with blocks A to E of 1 byte, and Z of 9, in a cache of 3 bytes with `initial` blocks.
fn run(policy: EvictionPolicy, initial: &[&str], options: &Value, events: &Value) -> Outcome {
    let document = json!({
        "cache": 3, "initial_lru_to_mru": initial, "options": options, "events": events,
        "blocks": {"A": 1, "B": 1, "C": 1, "D": 1, "E": 1, "Z": 9},
    });
    let trace = Trace::from_json(document.to_string().as_bytes()).unwrap();
    replay(&trace, policy).unwrap()
}

fn lrc(initial: &[&str], options: &Value, events: &Value) -> Outcome {
    run(EvictionPolicy::Lrc, initial, options, events)
}

/// Returns the counts after these events.
fn counts(options: &Value, events: &Value) -> String {
    let outcome = lrc(&[], options, events);
    let counts = outcome.counts.iter();
    let counts: Vec<_> = counts
        .map(|(block, count)| format!("{block}{count}"))
        .collect();
    counts.join(" ")
}

/// A submission of a job with one task "t" for each list of inputs: "t0", "t1" and so on.
fn submit(job: &str, attempt: u64, inputs: &[&[&str]]) -> Value {
    let tasks = inputs.iter().enumerate();
    let tasks: Vec<_> = tasks
        .map(|(at, inputs)| json!({"id": format!("t{at}"), "in": inputs}))
        .collect();
    json!({"ev": "submit", "job": job, "attempt": attempt, "tasks": tasks})
}

fn read(block: &str) -> Value {
    json!({"ev": "read", "block": block})
}

fn read_by(job: &str, task: &str, block: &str) -> Value {
    json!({"ev": "read", "job": job, "task": task, "block": block})
}

fn put(block: &str) -> Value {
    json!({"ev": "put", "block": block})
}

fn of(ev: &str, job: &str, task: &str) -> Value {
    json!({"ev": ev, "job": job, "task": task})
}

#[test]
fn an_empty_trace_has_an_empty_outcome() {
    let trace = Trace::from_json(br#"{"cache":0,"blocks":{},"events":[]}"#).unwrap();
    let outcome = replay(&trace, EvictionPolicy::default()).unwrap();
    assert_eq!(
        serde_json::to_string(&outcome).unwrap(),
        r#"{"hits":0,"misses":0,"evictions":[],"resident":[],"counts":{}}"#
    );
}

#[test]
fn initial_blocks_were_used_in_their_order_before_the_first_event() {
    let outcome = lrc(&["C", "A", "B"], &json!({}), &json!([read("D"), read("E")]));
    assert_eq!(outcome.evictions, ["C", "A"]);
    assert_eq!(outcome.resident, ["B", "D", "E"]);
    assert_eq!((outcome.hits, outcome.misses), (0, 2));
}

#[test]
fn a_submission_is_ignored_unless_its_attempt_is_above_the_highest_even_after_the_end() {
    let none = json!({});
    let (first, again) = (submit("j", 1, &[&["A"]]), submit("j", 1, &[&["B"]]));
    let older = submit("j", 0, &[&["B"]]);
    let end = of("end", "j", "");
    assert_eq!(counts(&none, &json!([first, again, older])), "A1");
    assert_eq!(counts(&none, &json!([first, end, again, older])), "");
    let newer = submit("j", 2, &[&["B", "B"], &["B", "C"]]);
    assert_eq!(counts(&none, &json!([first, newer])), "B2 C1");
    assert_eq!(counts(&none, &json!([first, end, newer])), "B2 C1");
    // Without an attempt it is 0, so a repeated submission is ignored.
    let plain = json!({"ev": "submit", "job": "j", "tasks": [{"id": "t", "in": ["A"]}]});
    let repeated = json!({"ev": "submit", "job": "j", "tasks": [{"id": "t", "in": ["B"]}]});
    assert_eq!(counts(&none, &json!([plain, repeated])), "A1");
}

#[test]
fn jobs_of_different_tenants_are_different() {
    let mut other = submit("j", 0, &[&["A", "B"]]);
    other["tenant"] = json!("other");
    let mut done = of("done", "j", "t0");
    done["tenant"] = json!("other");
    let events = json!([submit("j", 0, &[&["A"]]), other, done]);
    assert_eq!(counts(&json!({}), &events), "A1");
    // No tenant and the empty one are the same.
    let mut empty = of("done", "j", "t0");
    empty["tenant"] = json!("");
    let events = json!([submit("j", 0, &[&["A"]]), empty]);
    assert_eq!(counts(&json!({}), &events), "");
}

#[test]
fn a_read_with_a_job_consumes_the_reference_of_its_task_once() {
    let job = submit("j", 0, &[&["A"], &["A"]]);
    let reads = json!([job, read_by("j", "t0", "A"), read_by("j", "t0", "A")]);
    assert_eq!(counts(&json!({}), &reads), "A1");
    assert_eq!(counts(&json!({"attribution": "fifo"}), &reads), "A1");
    assert_eq!(counts(&json!({"decrement": "done"}), &reads), "A2");
    let unknown = json!([job, read_by("k", "t0", "A"), read_by("j", "t7", "A"),
        {"ev": "read", "job": "j", "block": "A"}, {"ev": "read", "job": "j", "task": null, "block": "A"}]);
    assert_eq!(counts(&json!({"attribution": "fifo"}), &unknown), "A2");
}

#[test]
fn a_read_without_a_job_consumes_under_fifo_alone_whatever_decrement_says() {
    let events = json!([submit("j", 0, &[&["A"]]), read("A")]);
    assert_eq!(counts(&json!({}), &events), "A1");
    for decrement in ["read", "done"] {
        let options = json!({"attribution": "fifo", "decrement": decrement});
        assert_eq!(counts(&options, &events), "");
    }
}

#[test]
fn fifo_takes_from_the_oldest_live_job_and_its_first_listed_task() {
    let fifo = json!({"attribution": "fifo"});
    let (old, new) = (
        submit("old", 0, &[&["B"], &["A", "C"], &["A"]]),
        submit("new", 0, &[&["A"]]),
    );
    let until = |events: &[Value]| {
        let mut all = vec![old.clone(), new.clone()];
        all.extend_from_slice(events);
        counts(&fifo, &Value::from(all))
    };
    // Of the three references to A that of old/t1 goes first, so its end releases only C.
    let done = |job, task| of("done", job, task);
    assert_eq!(until(&[read("A"), done("old", "t1")]), "A2 B1");
    assert_eq!(until(&[read("A"), read("A"), done("new", "t0")]), "B1 C1");
    // A resubmission makes old the youngest.
    let again = submit("old", 1, &[&["A"]]);
    assert_eq!(until(&[again, read("A"), done("new", "t0")]), "A1");
    let end = of("end", "old", "");
    assert_eq!(until(&[end, read("A")]), "");
}

#[test]
fn a_put_uses_the_block_but_consumes_and_counts_nothing() {
    let fifo = json!({"attribution": "fifo"});
    let job = submit("j", 0, &[&["A", "B"]]);
    let outcome = lrc(&["A", "C", "D"], &fifo, &json!([job, put("C"), put("E")]));
    assert_eq!((outcome.hits, outcome.misses), (0, 0));
    // C was used last, so D goes.
    assert_eq!(outcome.evictions, ["D"]);
    assert_eq!(outcome.counts.len(), 2);
}

#[test]
fn done_ends_a_task_for_this_attempt() {
    let none = json!({});
    let job = submit("j", 0, &[&["A", "B"], &["A"]]);
    let done = of("done", "j", "t0");
    let fail = of("taskfail", "j", "t0");
    assert_eq!(counts(&none, &json!([job, done])), "A1");
    assert_eq!(counts(&none, &json!([job, done, fail])), "A1");
    let again = submit("j", 1, &[&["C"]]);
    assert_eq!(counts(&none, &json!([job, done, again])), "C1");
    let consumed = json!([job, done, again, read_by("j", "t0", "C"), fail]);
    assert_eq!(counts(&none, &consumed), "C1");
    // Unknown tasks and jobs, and jobs that are not live, are ignored.
    let unknown = json!([job, of("done", "j", "t9"), of("done", "k", "t0")]);
    assert_eq!(counts(&none, &unknown), "A2 B1");
    let ended = json!([job, of("end", "j", ""), done, fail]);
    assert_eq!(counts(&none, &ended), "");
}

#[test]
fn a_failed_task_holds_all_its_references_again() {
    let job = submit("j", 0, &[&["A", "B"], &["A"]]);
    let reads = [
        read_by("j", "t0", "A"),
        read_by("j", "t0", "B"),
        read_by("j", "t1", "A"),
    ];
    let [one, two, three] = reads;
    let fail = of("taskfail", "j", "t0");
    let events = json!([job, one, two, three, fail, fail]);
    assert_eq!(counts(&json!({}), &events), "A1 B1");
}

#[test]
fn a_flush_evicts_declared_residents_without_references_by_last_use() {
    let job = submit("j", 0, &[&["A", "B", "E"]]);
    let reads = [read_by("j", "t0", "A"), read_by("j", "t0", "B")];
    let [a, b] = reads;
    let flush = json!({"ev": "flush"});
    let outcome = lrc(&["B", "A", "C"], &json!({}), &json!([job, b, a, flush]));
    assert_eq!(outcome.evictions, ["B", "A"]);
    assert_eq!(outcome.resident, ["C"]);
    // A block stays declared after its job.
    let events = json!([job, of("end", "j", ""), flush]);
    for policy in EvictionPolicy::ALL {
        let kept = policy == EvictionPolicy::LrcOffline;
        let outcome = run(policy, &["B", "A", "C"], &json!({}), &events);
        let expected: &[&str] = if kept { &[] } else { &["B", "A"] };
        assert_eq!(outcome.evictions, expected, "{policy}");
    }
}

#[test]
fn a_block_above_the_cache_changes_nothing() {
    for policy in EvictionPolicy::ALL {
        let events = json!([read("Z"), put("Z")]);
        let outcome = run(policy, &["A", "B", "C"], &json!({}), &events);
        assert_eq!((outcome.hits, outcome.misses), (0, 1));
        assert_eq!(outcome.resident, ["A", "B", "C"]);
        assert!(outcome.evictions.is_empty(), "{policy}");
    }
}

#[test]
fn counts_are_consumed_before_victims_are_chosen() {
    // The read of D makes it the block with the least count, so under compare it stays out.
    let job = submit("j", 0, &[&["A", "B", "C", "D"]]);
    let events = json!([job, read_by("j", "t0", "D")]);
    let outcome = lrc(&["A", "B", "C"], &json!({"admit": "compare"}), &events);
    assert!(outcome.evictions.is_empty());
    assert_eq!(outcome.misses, 1);
    let outcome = lrc(&["A", "B", "C"], &json!({"admit": "always"}), &events);
    assert_eq!(outcome.evictions, ["A"]);
}

#[test]
fn a_floor_spares_the_undeclared_unless_nothing_else_is_left() {
    let job = submit("j", 0, &[&["B", "C", "D"]]);
    let events = json!([job, read("D")]);
    let evictions = |floor| {
        let options = json!({"floor": floor});
        lrc(&["A", "B", "C"], &options, &events).evictions
    };
    assert_eq!(evictions(0), ["A"]);
    assert_eq!(evictions(1), ["B"]);
    let all = lrc(
        &["A", "B", "C"],
        &json!({"floor": 3}),
        &json!([read("D"), read("E")]),
    );
    assert_eq!(all.evictions, ["A", "B"]);
}

#[test]
fn offline_all_submissions_count_from_the_start_and_end_does_nothing() {
    let job = |name, block: &[&str]| submit(name, 0, &[block]);
    let events = json!([
        job("first", &["B"]),
        read("D"),
        of("end", "first", ""),
        job("second", &["A"]),
        read("E"),
    ]);
    let online = lrc(&["A", "B", "C"], &json!({}), &events);
    assert_eq!(online.evictions, ["A", "B"]);
    let offline = run(
        EvictionPolicy::LrcOffline,
        &["A", "B", "C"],
        &json!({}),
        &events,
    );
    assert_eq!(offline.evictions, ["C", "D"]);
    assert_eq!(offline.counts.len(), 2);
    // The highest attempt counts from the start, and done is for it.
    let events = json!([
        submit("j", 0, &[&["A"]]),
        of("done", "j", "t0"),
        submit("j", 1, &[&["B"], &["C"]]),
    ]);
    let offline = run(EvictionPolicy::LrcOffline, &[], &json!({}), &events);
    assert_eq!(offline.counts.keys().collect::<Vec<_>>(), ["C"]);
}

#[test]
fn the_other_policies_follow_their_own_rank() {
    let events = json!([
        read("A"),
        read("A"),
        read("B"),
        read("C"),
        read("D"),
        read("A")
    ]);
    let evicted = |policy| run(policy, &[], &json!({}), &events).evictions;
    assert_eq!(evicted(EvictionPolicy::Lru), ["A", "B"]);
    assert_eq!(evicted(EvictionPolicy::Lfu), ["B"]);
    assert_eq!(evicted(EvictionPolicy::Min), ["B"]);
    assert_eq!(evicted(EvictionPolicy::S3Fifo), ["A", "B"]);
}

#[test]
fn min_does_not_keep_a_block_that_is_put_before_it_is_read() {
    let events = json!([read("D"), put("C"), read("C"), read("A"), read("B")]);
    let outcome = run(EvictionPolicy::Min, &["A", "B", "C"], &json!({}), &events);
    assert_eq!(outcome.evictions, ["C", "D"]);
    assert_eq!((outcome.hits, outcome.misses), (3, 1));
}

#[test]
fn a_replay_shows_the_cache_between_events() {
    let events = json!([
        submit("j", 0, &[&["A"], &["B"]]),
        read_by("j", "t0", "A"),
        read("E")
    ]);
    let document = json!({
        "cache": 4, "blocks": {"A": 1, "B": 1, "C": 1, "E": 1},
        "initial_lru_to_mru": ["A", "B", "C"], "events": events,
    });
    let trace = Trace::from_json(document.to_string().as_bytes()).unwrap();
    for policy in EvictionPolicy::ALL {
        let mut replay = Replay::new(&trace, policy).unwrap();
        let mut bytes = Vec::new();
        while replay.advance().unwrap() {
            let ResidentBytes {
                undeclared,
                unreferenced,
                referenced,
            } = replay.resident_bytes();
            bytes.push((undeclared, unreferenced, referenced));
        }
        assert_eq!(bytes, [(1, 0, 2), (1, 1, 1), (2, 1, 1)], "{policy}");
        assert_eq!((replay.hits(), replay.misses()), (1, 1));
        assert!(!replay.advance().unwrap());
    }
}

#[test]
fn policies_have_names() {
    for policy in EvictionPolicy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let unknown = "fifo".parse::<EvictionPolicy>().unwrap_err();
    assert!(unknown.to_string().contains("lrc (the default)"));
}

/// Another cache gives the outcome of a trace that was written for it.
#[test]
fn the_limits_of_a_trace_can_be_changed() {
    let json = |cache: u64| {
        let events = json!([read("A"), read("B"), read("A"), put("C")]);
        let blocks = json!({"A": 1, "B": 1, "C": 1});
        json!({"cache": cache, "blocks": blocks, "initial_lru_to_mru": ["B"], "events": events})
    };
    let parsed = |cache| Trace::from_json(json(cache).to_string().as_bytes()).unwrap();
    let (mut trace, narrow) = (parsed(3), parsed(1));
    let narrow_limits = narrow.limits();
    trace.set_limits(narrow_limits).unwrap();
    let policy = EvictionPolicy::Lru;
    assert_eq!(
        replay(&trace, policy).unwrap(),
        replay(&narrow, policy).unwrap()
    );
    for (capacity, floor, wanted) in [(0, 0, "initial_lru_to_mru"), (1, 2, "floor of 2 bytes")] {
        let limits = Limits {
            capacity,
            floor,
            ..narrow_limits
        };
        let error = trace.set_limits(limits).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(trace.limits(), narrow_limits);
    }
}

/// References of later jobs count, and the victims are those of the policy.
#[test]
fn all_jobs_can_be_known_under_any_policy() {
    let events = json!([
        submit("1", 0, &[&["A"]]),
        read_by("1", "t0", "A"),
        of("end", "1", "t0"),
        submit("2", 0, &[&["A"], &["B"]]),
    ]);
    let document = json!({"cache": 3, "blocks": {"A": 1, "B": 2}, "events": events});
    let trace = Trace::from_json(document.to_string().as_bytes()).unwrap();
    let accesses: Vec<_> = trace.accesses().collect();
    let read = Access {
        block: 0,
        bytes: 1,
        is_put: false,
    };
    assert_eq!(accesses, [None, Some(read), None, None]);
    let mut replay = Replay::with_all_jobs(&trace, EvictionPolicy::Lru).unwrap();
    assert_eq!((replay.count(0), replay.count(1)), (2, 1));
    while replay.advance().unwrap() {}
    assert_eq!(
        (replay.count(0), replay.evictions(), trace.blocks()),
        (1, 0, 2)
    );
}
