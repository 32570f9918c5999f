//! `copperfs lrc replay`: its output, and its messages about invalid traces. The messages themselves are
//! tested in policy/src/references/replay/tests/malformed.rs.

use super::{copperfs, refused};
use std::io::Write;
use std::process::{Command, Stdio};

/// Figures 1 and 4 of the LRC paper: D is derived from A, E from B and D, F from C and D.
const TRACE: &str = r#"{"cache":3,"blocks":{"A":1,"B":1,"C":1,"D":1},"initial_lru_to_mru":["C","B","A"],
 "events":[
  {"ev":"submit","job":"1","tasks":[{"id":"D","in":["A"]},{"id":"E","in":["B","D"]},{"id":"F","in":["C","D"]}]},
  {"ev":"read","job":"1","task":"D","block":"A"},{"ev":"put","block":"D"},{"ev":"done","job":"1","task":"D"},
  {"ev":"read","job":"1","task":"E","block":"B"},{"ev":"read","job":"1","task":"E","block":"D"},
  {"ev":"read","job":"1","task":"F","block":"C"},{"ev":"read","job":"1","task":"F","block":"D"}]}"#;

const LRC: &str = concat!(
    r#"{"hits":5,"misses":0,"evictions":["A"],"resident":["B","C","D"],"counts":{}}"#,
    "\n"
);

/// Runs `lrc replay` on a file with this text.
fn replayed(trace: &str, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.json"), trace).unwrap();
    let output = copperfs(dir.path(), &[&["lrc", "replay", "t.json"], args].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn replay_refused(trace: &str, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.json"), trace).unwrap();
    refused(dir.path(), &[&["lrc", "replay", "t.json"], args].concat())
}

#[test]
fn the_papers_example() {
    assert_eq!(replayed(TRACE, &[]), LRC);
    assert_eq!(replayed(TRACE, &["--policy", "lrc-offline"]), LRC);
    let lru = replayed(TRACE, &["--policy", "lru"]);
    let lru: serde_json::Value = serde_json::from_str(&lru).unwrap();
    assert_eq!(lru["evictions"][0], "C");
    assert_eq!((&lru["hits"], &lru["misses"]), (&4.into(), &1.into()));
    for policy in ["lfu", "s3-fifo", "min"] {
        replayed(TRACE, &["--policy", policy]);
    }
}

#[test]
fn a_trace_on_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_copperfs"))
        .args(["lrc", "replay", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(TRACE.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), LRC);
}

#[test]
fn invalid_traces_are_explained() {
    let cases = [
        (
            r#"{"cache":1,"blocks":{},"events":[{"ev":"read","block":"X"}]}"#,
            "events[0]: block \"X\" has no size. Add it to \"blocks\" with its bytes",
        ),
        (
            r#"{"cache":1,"blocks":{},"events":[],"options":{"floor":2}}"#,
            "options: the floor of 2 bytes is above the cache of 1",
        ),
        (
            r#"{"cache":1,"blocks":{"A":-1},"events":[]}"#,
            "blocks: \"A\": invalid value: integer `-1`",
        ),
        ("{\"cache\":1", "EOF while parsing an object"),
    ];
    for (trace, expected) in cases {
        let said = replay_refused(trace, &[]);
        assert!(said.contains("t.json: "), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn unknown_policies_and_missing_files_are_explained() {
    let said = replay_refused(TRACE, &["--policy", "fifo"]);
    assert!(
        said.contains("--policy: \"fifo\" is not a policy"),
        "{said}"
    );
    assert!(said.contains("s3-fifo, min"), "{said}");
    let dir = tempfile::tempdir().unwrap();
    let said = refused(dir.path(), &["lrc", "replay", "gone.json"]);
    assert!(said.contains("gone.json: No such file"), "{said}");
}
