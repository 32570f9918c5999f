//! Traces that are wrong: each has a message, and none panics.

use super::random::{self, Random};
use super::*;
use proptest::prelude::*;

/// Returns the message about a trace of a cache of 4 bytes with block A of 1, whose fields are replaced.
fn wrong(fields: &Value) -> String {
    let mut document = json!({"cache": 4, "blocks": {"A": 1, "B": 3}, "events": []});
    for (name, value) in fields.as_object().unwrap() {
        document[name] = value.clone();
    }
    error(&document.to_string())
}

fn error(text: &str) -> String {
    let error = Trace::from_json(text.as_bytes()).unwrap_err().to_string();
    // The tests ignore the position in the text.
    error.split(" at line").next().unwrap().to_owned()
}

fn wrong_event(event: &Value) -> String {
    wrong(&json!({"events": [{"ev": "flush"}, event]}))
}

#[test]
fn every_name_must_have_a_size() {
    assert_eq!(
        wrong_event(&read("X")),
        "events[1]: block \"X\" has no size. Add it to \"blocks\" with its bytes"
    );
    let submits = submit("j", 0, &[&["A", "Y"]]);
    assert_eq!(
        wrong(&json!({"events": [submits, read("X")]})),
        "events[0]: block \"Y\" has no size. Add it to \"blocks\" with its bytes"
    );
    assert_eq!(
        wrong(&json!({"initial_lru_to_mru": ["A", "X"]})),
        "initial_lru_to_mru: block \"X\" has no size. Add it to \"blocks\" with its bytes"
    );
}

#[test]
fn the_initial_blocks_differ_and_fit() {
    assert_eq!(
        wrong(&json!({"initial_lru_to_mru": ["A", "A"]})),
        "initial_lru_to_mru: block \"A\" is there twice. List it once, at its last use"
    );
    let max = u64::MAX;
    assert_eq!(
        wrong(&json!({"cache": max, "blocks": {"A": max, "B": max},
            "initial_lru_to_mru": ["A", "B"]})),
        format!(
            "initial_lru_to_mru: with block \"B\" the blocks are larger than the cache of {max} bytes. \
             List fewer, or set a larger \"cache\""
        )
    );
}

#[test]
fn a_task_is_listed_once() {
    let twice = json!({"ev": "submit", "job": "j", "tasks": [{"id": "t"}, {"id": "t"}]});
    assert_eq!(
        wrong_event(&twice),
        "events[1]: task \"t\" is listed twice. Give each task of a job its own id"
    );
    // The rest of the document must be JSON all the same.
    let cut = format!(r#"{{"cache":4,"blocks":{{}},"events":[{twice},"#);
    assert_eq!(
        error(&cut),
        "the trace is not valid: EOF while parsing a value"
    );
}

#[test]
fn the_floor_is_within_the_cache() {
    assert_eq!(
        wrong(&json!({"options": {"floor": 5}})),
        "options: the floor of 5 bytes is above the cache of 4. Set at most that"
    );
    assert!(
        Trace::from_json(br#"{"cache":4,"blocks":{},"events":[],"options":{"floor":4}}"#).is_ok()
    );
}

#[test]
fn values_have_their_types() {
    let cases = [
        (
            json!({"cache": -1}),
            "invalid value: integer `-1`, expected u64",
        ),
        (
            json!({"cache": "4"}),
            "invalid type: string \"4\", expected u64",
        ),
        (
            json!({"blocks": {"A": -1}}),
            "blocks: \"A\": invalid value: integer `-1`, expected u64",
        ),
        (
            json!({"blocks": {"A": 1.5}}),
            "blocks: \"A\": invalid type: floating point `1.5`, expected u64",
        ),
        (
            json!({"blocks": ["A"]}),
            "invalid type: sequence, expected an object of blocks with their sizes in bytes",
        ),
        (
            json!({"events": {}}),
            "invalid type: map, expected a list of events",
        ),
        (
            json!({"options": {"admit": "never"}}),
            "unknown variant `never`, expected `always` or `compare`",
        ),
        (
            json!({"options": {"decrement": "never"}}),
            "unknown variant `never`, expected `read` or `done`",
        ),
        (
            json!({"options": {"attribution": "lifo"}}),
            "unknown variant `lifo`, expected `none` or `fifo`",
        ),
        (
            json!({"options": {"floor": -1}}),
            "invalid value: integer `-1`, expected u64",
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(
            wrong(&fields),
            format!("the trace is not valid: {expected}")
        );
    }
    let huge = r#"{"cache":4,"blocks":{"A":18446744073709551616},"events":[]}"#;
    assert!(error(huge).contains("blocks: \"A\": invalid type: floating point"));
    let twice = r#"{"cache":4,"blocks":{"A":1,"A":1},"events":[]}"#;
    assert_eq!(
        error(twice),
        "blocks: \"A\" is there twice. Give each block one size in bytes"
    );
}

#[test]
fn events_have_their_fields() {
    let cases = [
        (
            json!(5),
            "invalid type: integer `5`, expected internally tagged enum Event",
        ),
        (
            json!({"ev": "open"}),
            "unknown variant `open`, expected one of `submit`, `read`, `put`, `done`, `taskfail`, `end`, `flush`",
        ),
        (json!({"block": "A"}), "missing field `ev`"),
        (json!({"ev": "read"}), "missing field `block`"),
        (json!({"ev": "submit", "job": "j"}), "missing field `tasks`"),
        (json!({"ev": "done", "job": "j"}), "missing field `task`"),
        (
            json!({"ev": "end", "job": 5}),
            "invalid type: integer `5`, expected a string",
        ),
        (
            json!({"ev": "submit", "job": "j", "attempt": -1, "tasks": []}),
            "invalid value: integer `-1`, expected u64",
        ),
    ];
    for (event, expected) in cases {
        let expected = format!("the trace is not valid: events[1]: {expected}");
        assert_eq!(wrong_event(&event), expected);
    }
}

#[test]
fn other_fields_are_ignored_wherever_they_are() {
    let document = json!({
        "cache": 1, "blocks": {"A": 1}, "comment": {"cache": -1}, "initial_lru_to_mru": null,
        "options": {"floor": null, "admit": null, "seed": [1, -2.5]},
        "events": [
            {"ev": "submit", "job": "j", "tenant": null, "attempt": null, "app": 7, "block": 5,
             "tasks": [{"id": "t", "in": ["A"], "after": [3], "cost": {}}]},
            {"ev": "read", "block": "A", "job": null, "tasks": "junk"},
            {"ev": "put", "block": "A", "job": 5},
            {"ev": "flush", "block": {"x": []}, "task": 1},
        ],
    });
    let trace = Trace::from_json(document.to_string().as_bytes()).unwrap();
    let outcome = replay(&trace, EvictionPolicy::Lrc).unwrap();
    assert_eq!((outcome.misses, outcome.counts["A"]), (1, 1));
}

#[test]
fn nested_junk_is_refused_without_exhausting_the_stack() {
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    for place in ["cache", "events", "blocks"] {
        let document = format!(r#"{{"{place}":{}}}"#, deep(100_000));
        assert!(Trace::from_json(document.as_bytes()).is_err());
    }
    let event = deep(100_000);
    let event = format!(r#"{{"cache":1,"blocks":{{}},"events":[{{"x":{event},"ev":"flush"}}]}}"#);
    assert!(error(&event).contains("events[0]: recursion limit exceeded"));
    assert!(Trace::from_json(&[0xff, 0xfe]).is_err());
    assert!(Trace::from_json(b"").is_err());
}

/// Any JSON of the keys and values that a trace has, in any place.
fn junk() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..5_u64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "A", "B", "submit", "read", "put", "done", "taskfail", "end", "flush", "compare",
            "fifo", "",
        ])
        .prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "cache",
        "blocks",
        "events",
        "options",
        "initial_lru_to_mru",
        "ev",
        "tenant",
        "job",
        "attempt",
        "task",
        "block",
        "tasks",
        "id",
        "in",
        "floor",
        "admit",
        "A",
        "B",
    ]);
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..8).prop_map(|fields| {
                let fields = fields.into_iter();
                Value::Object(fields.map(|(key, value)| (key.to_owned(), value)).collect())
            }),
        ]
    })
}

/// Replays a document under every policy, if it is valid.
fn replay_all(document: &Value) -> usize {
    let Ok(trace) = Trace::from_json(document.to_string().as_bytes()) else {
        return 0;
    };
    for policy in EvictionPolicy::ALL {
        replay(&trace, policy).unwrap();
    }
    1
}

proptest! {
    #[test]
    fn no_json_panics(document in junk(), blocks in junk(), events in prop::collection::vec(junk(), 0..4)) {
        replay_all(&document);
        let mut almost = json!({"cache": 3, "blocks": {"A": 1, "B": 2}, "events": events});
        replay_all(&almost);
        almost["blocks"] = blocks;
        almost["options"] = document;
        replay_all(&almost);
    }
}

/// Replaces one value of a valid trace, at any depth, by another one.
fn spoil(value: &mut Value, random: &mut Random) {
    let children = match value {
        Value::Array(values) => values.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    } as u64;
    if children == 0 || random.below(8) == 0 {
        let junk = [
            json!(null),
            json!(-1),
            json!(2.5),
            json!([]),
            json!({}),
            json!([["b0"]]),
        ];
        let (texts, numbers) = (["b0", "t0", "done", ""], [0, 1, 7, u64::MAX]);
        let any = usize::try_from(random.below(4)).unwrap();
        // Most values keep their type, so that some traces stay valid.
        *value = match value {
            Value::String(_) if random.below(4) > 0 => json!(texts[any]),
            Value::Number(_) if random.below(4) > 0 => json!(numbers[any]),
            _ => junk[usize::try_from(random.below(6)).unwrap()].clone(),
        };
        return;
    }
    let at = usize::try_from(random.below(children)).unwrap();
    match value {
        Value::Array(values) => spoil(&mut values[at], random),
        Value::Object(fields) => spoil(fields.values_mut().nth(at).unwrap(), random),
        _ => {}
    }
}

#[test]
fn no_spoiled_trace_panics() {
    let mut valid = 0;
    for seed in 0..1_000 {
        let mut document = serde_json::to_value(random::document(seed)).unwrap();
        let mut random = Random::new(!seed);
        for _ in 0..=random.below(3) {
            spoil(&mut document, &mut random);
        }
        valid += replay_all(&document);
    }
    // Both kinds are there.
    assert!((100..900).contains(&valid), "{valid}");
}
