//! Lines that make no sense, each with the message that its sender gets.

use super::{BYTES, live, submission, submitting, with};
use crate::skip;
use crate::support::datasets::{Nodes, datasets};
use crate::support::{Scratch, command, is_root};
use serde_json::{Value, json};

/// Fields of a submission that replace those of a good one, and parts of the message. A field that is null is left out.
#[expect(clippy::too_many_lines, reason = "a table of faults")]
fn refused() -> Vec<(Value, &'static str)> {
    let task = |fields: Value| json!({ "tasks": [fields] });
    vec![
        (
            json!({ "dataset": "nothing" }),
            "there is no dataset \"nothing\" / Kept by references: set",
        ),
        (
            json!({ "dataset": "plain" }),
            "kept by the rule uniform / --keep references",
        ),
        (json!({ "dataset": null }), "names no dataset"),
        (json!({ "job": null }), "names no job"),
        (json!({ "job": "" }), "names no job"),
        (json!({ "job": "a\nb" }), "cannot name a job"),
        (json!({ "job": "x".repeat(513) }), "cannot name a job"),
        (json!({ "v": 2 }), "version 2 / \"v\":1"),
        (json!({ "v": null }), "does not say its version"),
        (json!({ "v": -1 }), "not as it should be"),
        (
            json!({ "op": "remove" }),
            "\"remove\" is not an operation / taskfail",
        ),
        (json!({ "op": null }), "is not an operation"),
        (
            json!({ "files": ["../plain/d0/f0"] }),
            "outside of dataset set / relative to /set",
        ),
        (
            json!({ "files": ["/plain/d0/f0"] }),
            "outside of dataset set",
        ),
        (json!({ "files": ["/settle/x"] }), "outside of dataset set"),
        (
            json!({ "files": ["/set/../plain"] }),
            "outside of dataset set",
        ),
        (
            json!({ "files": ["/etc/passwd"] }),
            "outside of dataset set",
        ),
        (json!({ "files": [""] }), "a path is empty"),
        (
            json!({ "files": ["x".repeat(5000)] }),
            "5000 bytes, more than 4096",
        ),
        (json!({ "files": ["a\u{0}b"] }), "outside of dataset set"),
        (
            task(json!({ "id": "t", "in": [1] })),
            "reads file 1, and there are 1 files",
        ),
        (
            task(json!({ "id": "t", "in": [u64::MAX] })),
            "and there are 1 files",
        ),
        (task(json!({ "id": "t", "in": [-1] })), "index into files"),
        (task(json!({ "id": "t", "in": [0.5] })), "index into files"),
        (
            task(json!({ "id": "t", "in": [[0, 1]] })),
            "[index, offset, length]",
        ),
        (
            task(json!({ "id": "t", "in": [[0, 1, 2, 3]] })),
            "[index, offset, length]",
        ),
        (
            task(json!({ "id": "t", "in": [[0, 0, 10_001]] })),
            "reads 10001 bytes from 0 / has 10000 bytes",
        ),
        (
            task(json!({ "id": "t", "in": [[0, 10_001, 0]] })),
            "has 10000 bytes",
        ),
        (
            task(json!({ "id": "t", "in": [[0, u64::MAX, u64::MAX]] })),
            "has 10000 bytes",
        ),
        (task(json!({ "id": "", "in": [0] })), "names no task"),
        (task(json!({ "in": [0] })), "names no task"),
        (
            task(json!({ "id": "t", "in": [0], "inputs": [{ "path": "d0/f1" }] })),
            "Use one of both",
        ),
        (
            task(json!({ "id": "t", "inputs": [{ "path": "d0/f1" }] })),
            "Use one of both",
        ),
        (
            json!({ "files": [], "tasks": [{ "id": "t", "inputs": [{ "path": "/plain/d0/f0" }] }] }),
            "outside",
        ),
        (
            json!({ "files": [], "tasks": [{ "id": "t", "inputs": [{ "path": "a", "off": 1 }] }] }),
            "off without len",
        ),
        (
            json!({ "files": [], "tasks": [{ "id": "t", "inputs": [{ "path": "a", "recursive": true, "len": 1 }] }] }),
            "no off and len",
        ),
        (
            json!({ "tasks": [{ "id": "t", "in": [0] }, { "id": "t", "in": [0] }] }),
            "\"t\" is listed twice",
        ),
        (
            json!({ "tasks": [{ "id": "a", "in": [0], "after": ["b"] }, { "id": "b", "in": [0], "after": ["a"] }] }),
            "in a circle: a, b / \"after\"",
        ),
        (
            json!({ "tasks": [{ "id": "a", "in": [0], "after": ["a"] }] }),
            "in a circle: a",
        ),
        (
            json!({ "tasks": [{ "id": "a", "in": [0], "after": ["z"] }] }),
            "\"z\", which is not listed",
        ),
        (json!({ "tasks": {} }), "a list of tasks"),
        (json!({ "tasks": [7] }), "an object with id and in"),
        (json!({ "expires_s": 0 }), "expires_s is 0"),
        (json!({ "expires_s": -5 }), "expires_s is -5"),
        (json!({ "consume": "never" }), "never"),
        (json!({ "attempt": "two" }), "two"),
        (json!({ "tenant": "" }), "names no tenant"),
    ]
}

/// Each is refused with its reason and advice, and leaves nothing.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of faults")]
fn submissions_that_make_no_sense() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 5, BYTES), ("plain", 5, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "50kB"]);
    nodes.add("plain", &["--keep", "uniform"]);
    let scratch = Scratch::new();
    let good = submission("j", "set", &[("t", 0..1)]);
    let said = |lines: &[u8]| submitting(&scratch, lines, |words| nodes.command(1, words));
    let mut wrong = Vec::new();
    let cases: Vec<(Vec<u8>, &str)> = refused()
        .into_iter()
        .map(|(fields, says)| {
            let mut line = good.clone();
            for (name, value) in fields.as_object().unwrap() {
                line[name] = value.clone();
            }
            line.as_object_mut()
                .unwrap()
                .retain(|_, value| !value.is_null());
            (line.to_string().into_bytes(), says)
        })
        .collect();
    let text = good.to_string();
    let nested = |bracket: &str| format!("{{\"v\":1,\"x\":{}", bracket.repeat(100_000));
    let others: Vec<(Vec<u8>, &str)> = vec![
        (text[..text.len() - 9].into(), "EOF"),
        (b"{".to_vec(), "EOF"),
        (b"[]".to_vec(), "a JSON object"),
        (b"7".to_vec(), "a JSON object"),
        (b"hello".to_vec(), "not as it should be"),
        (
            b"{\"v\":1,\"op\":\"end\",\"job\":\"\xff\xfe\"}".to_vec(),
            "not as it should be",
        ),
        (nested("[").into(), "not as it should be"),
        (nested("{\"a\":").into(), "not as it should be"),
        (
            text.replace("\"tasks\":[", "\"tasks\":[[[[").into(),
            "not as it should be",
        ),
        (
            b"{\"v\":1,\"op\":\"done\",\"job\":\"j\"}".to_vec(),
            "names no task",
        ),
        (b"{\"v\":1,\"op\":\"end\"}".to_vec(), "names no job"),
    ];
    for (line, says) in cases.into_iter().chain(others) {
        let finished = said(&line);
        let stderr = &finished.stderr;
        let missing = says.split(" / ").find(|part| !stderr.contains(*part));
        if finished.status.success() || missing.is_some() || stderr.contains("panicked") {
            let line = String::from_utf8_lossy(&line)
                .chars()
                .take(300)
                .collect::<String>();
            wrong.push(format!(
                "{line}\n  {} {missing:?}: {stderr}",
                finished.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        live(&nodes, 1).is_empty(),
        "a refused submission leaves nothing"
    );
    assert_eq!(nodes.total("pipelines.references"), 0);

    // Good lines among bad ones are carried out, and each line has its answer.
    let lines = format!(
        "{good}\n{{\"v\":2}}\n\n{}\nnonsense\n",
        with(&good, "job", "k")
    );
    let finished = said(lines.as_bytes());
    assert!(
        finished.refused().contains("2 lines were refused"),
        "{finished:?}"
    );
    assert_eq!(finished.text().lines().count(), 2, "{finished:?}");
    assert_eq!(live(&nodes, 1), ["j", "k"]);
    // A file that is not there, and an empty one.
    let missing = command::run(&mut nodes.command(1, &["lrc", "submit", "/nowhere"]));
    assert!(missing.refused().contains("/nowhere"), "{missing:?}");
    assert!(said(b"").status.success());
    // Commands about nothing.
    for words in [
        ["lrc", "counts", "nothing"],
        ["lrc", "flush-zero", "nothing"],
        ["lrc", "flush-zero", "plain"],
    ] {
        let finished = command::run(&mut nodes.command(1, &words));
        assert!(
            finished.refused().contains(words[2]),
            "{words:?}: {finished:?}"
        );
    }
}
