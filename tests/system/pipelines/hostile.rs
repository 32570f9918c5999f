//! Clients that send too much, too slowly, or go away. The daemon's memory is bounded, and it serves the others.

use super::{BYTES, file, live, lrc, lrc_json, shows, submission, submit, submitting};
use crate::skip;
use crate::support::datasets::{Nodes, SOON, datasets};
use crate::support::{Scratch, eventually, is_root};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// More than a line may take: two million short names take about 110 MB. Less than the long texts that are sent.
const MEMORY_MAX: u64 = 160 << 20;

/// A conversation with a daemon, without the client of the product.
struct Raw {
    stream: BufReader<UnixStream>,
    has_begun: bool,
}

impl Raw {
    #[track_caller]
    fn connect(nodes: &Nodes, rank: usize) -> Self {
        let socket = nodes.tree.nodes[rank]
            .log
            .parent()
            .unwrap()
            .join("control.sock");
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(SOON * 4)).unwrap();
        stream.set_write_timeout(Some(SOON * 4)).unwrap();
        stream
            .write_all(
                b"POST /v1/lrc HTTP/1.1\r\nHost: copperfs\r\nTransfer-Encoding: chunked\r\n\r\n",
            )
            .unwrap();
        Self {
            stream: BufReader::new(stream),
            has_begun: false,
        }
    }

    /// Sends bytes as one chunk. Returns whether the daemon takes them.
    fn send(&mut self, bytes: &[u8]) -> bool {
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend(bytes);
        chunk.extend(b"\r\n");
        match self.stream.get_mut().write_all(&chunk) {
            Ok(()) => true,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                false
            }
            Err(error) => panic!("the daemon does not read: {error}"),
        }
    }

    /// Sends this number of bytes of `text`, or until the daemon does not take them. Returns their number.
    fn send_again_and_again(&mut self, text: &str, bytes: usize) -> usize {
        let chunk = text.repeat((64 << 10) / text.len());
        let mut sent = 0;
        while sent < bytes && self.send(chunk.as_bytes()) {
            sent += chunk.len();
        }
        sent
    }

    /// The next line of the answer.
    #[track_caller]
    fn answer(&mut self) -> Value {
        if !self.has_begun {
            let mut head = String::new();
            while self.stream.read_line(&mut head).unwrap() > 2 {}
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            self.has_begun = true;
        }
        let mut size = String::new();
        self.stream.read_line(&mut size).unwrap();
        let length =
            usize::from_str_radix(size.trim(), 16).unwrap_or_else(|_| panic!("no chunk: {size:?}"));
        let mut chunk = vec![0; length + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        let text = String::from_utf8_lossy(&chunk[..length]).into_owned();
        serde_json::from_str(text.trim()).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// The most memory that a daemon has had since [`forget_peak`], in bytes.
fn peak(nodes: &Nodes, rank: usize) -> u64 {
    let path = format!(
        "/proc/{}/status",
        nodes.tree.nodes[rank].pid.as_raw_nonzero()
    );
    let status = std::fs::read_to_string(path).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

fn forget_peak(nodes: &Nodes, rank: usize) -> u64 {
    let pid = nodes.tree.nodes[rank].pid.as_raw_nonzero();
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    peak(nodes, rank)
}

/// Lines that are very long: the memory of the daemon is bounded, whatever they are full of.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of lines")]
fn lines_that_never_end_take_no_memory() {
    if !is_root() {
        skip!("needs root");
    }
    // An unoptimized parser needs a while for the last of them.
    const LONG: usize = 40_000_000;
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(1, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    let begin = "{\"v\":1,\"op\":\"submit\",\"dataset\":\"set\",\"job\":\"j\"";
    let cases = [
        (
            "a text",
            200_000_000,
            format!("{begin},\"app\":\""),
            "x",
            "1048576 bytes",
        ),
        (
            "an ignored text",
            200_000_000,
            format!("{begin},\"comment\":\""),
            "x",
            "1048576 bytes",
        ),
        ("a key", LONG, "{\"v\":1,\"".into(), "x", "1048576 bytes"),
        (
            "escapes",
            LONG,
            format!("{begin},\"app\":\""),
            "\\u0041",
            "1048576 bytes",
        ),
        (
            "brackets",
            LONG,
            format!("{begin},\"comment\":"),
            "[",
            "nested more than 1048576 deep",
        ),
        (
            "bytes that are no text",
            LONG,
            "{".into(),
            "\u{1}",
            "not as it should be",
        ),
        (
            "names of files",
            LONG,
            format!("{begin},\"files\":[\"a\""),
            ",\"a\"",
            "more than 2000000 inputs",
        ),
        (
            "tasks",
            LONG,
            format!("{begin},\"tasks\":[{{}}"),
            ",{}",
            "more than 2000000 inputs",
        ),
        (
            "digits",
            LONG / 4,
            "{\"v\":".into(),
            "1",
            "not as it should be",
        ),
    ];
    for (what, long, begin, more, says) in cases {
        let before = forget_peak(&nodes, 0);
        let begun = Instant::now();
        let mut raw = Raw::connect(&nodes, 0);
        assert!(raw.send(begin.as_bytes()));
        let sent = raw.send_again_and_again(more, long);
        assert!(raw.send(b"\n"));
        let answer = raw.answer();
        let grown = peak(&nodes, 0).saturating_sub(before);
        let error = answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{what}: {answer}"));
        eprintln!(
            "{what}: {sent} bytes, {:?}, {} KiB more memory: {error}",
            begun.elapsed(),
            grown >> 10
        );
        assert!(error.contains(says), "{what}: {error}");
        assert!(grown < MEMORY_MAX, "{what}: {grown} bytes");
        // The next line is read.
        assert!(raw.send(b"{\"v\":1,\"op\":\"end\",\"job\":\"j\"}\n"));
        assert_eq!(raw.answer(), json!({ "accepted": false }), "{what}");
    }
    // One that is longer than any line: the conversation ends with the answer.
    let before = forget_peak(&nodes, 0);
    let mut raw = Raw::connect(&nodes, 0);
    assert!(raw.send(b"{\"v\":1,\"app\":\""));
    let sent = raw.send_again_and_again("x", 300_000_000);
    let answer = raw.answer();
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("a line has more than 268435456 bytes"),
        "{answer}"
    );
    let grown = peak(&nodes, 0).saturating_sub(before);
    eprintln!(
        "a line without an end: {sent} bytes, {} KiB more memory",
        grown >> 10
    );
    assert!(grown < MEMORY_MAX, "{grown} bytes");
    assert_eq!(
        submit(&nodes, 0, &submission("j", "set", &[("t", 0..20)]))["accepted"],
        true
    );
}

/// Clients that stall, or that go away, in the middle of a line: others are served, and nothing is left of it.
#[test]
fn clients_that_stall_or_go_away() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    // Half of a short line, and halves of long ones: as many as there are turns for long lines of a user.
    let mut stalled: Vec<Raw> = (0..3).map(|_| Raw::connect(&nodes, 1)).collect();
    assert!(stalled[0].send(b"{\"v\":1,\"op\":\"end\",\"jo"));
    let tasks: Vec<String> = (0..20_000)
        .map(|at| format!("{{\"id\":\"t{at}\",\"in\":[0]}}"))
        .collect();
    let long = format!(
        "{{\"v\":1,\"op\":\"submit\",\"job\":\"long\",\"dataset\":\"set\",\"files\":[\"{}\"],\"tasks\":[{}]}}\n",
        file(0),
        tasks.join(",")
    );
    let half = &long.as_bytes()[..long.len() / 2];
    for raw in &mut stalled[1..] {
        assert!(raw.send(half));
    }
    // Short lines of others are served at once, long ones when the stalled ones have been given up.
    let begun = Instant::now();
    assert_eq!(
        submit(&nodes, 1, &submission("j", "set", &[("t", 0..20)]))["accepted"],
        true
    );
    eprintln!("a short line beside stalled ones: {:?}", begun.elapsed());
    let mut other = Raw::connect(&nodes, 1);
    assert!(other.send(long.as_bytes()));
    assert_eq!(other.answer()["blocks"], 1);
    eprintln!("a long line beside stalled ones: {:?}", begun.elapsed());
    for raw in &mut stalled {
        let answer = raw.answer();
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .contains("does not arrive"),
            "{answer}"
        );
    }
    assert_eq!(live(&nodes, 1), ["j", "long"]);
    lrc(&nodes, 1, &["end", "long"]);
    // Those that go away in the middle, of each kind.
    for part in [1, 40, half.len(), long.len() - 1] {
        let mut raw = Raw::connect(&nodes, 1);
        assert!(raw.send(&long.as_bytes()[..part]));
        drop(raw);
    }
    // With a job that ends with its connection.
    let mut attached = Raw::connect(&nodes, 1);
    assert!(attached.send(b"{\"v\":1,\"op\":\"attach\"}\n"));
    assert_eq!(attached.answer(), json!({ "accepted": true }));
    assert!(attached.send(long.replace("long", "attached").as_bytes()));
    assert_eq!(attached.answer()["accepted"], true);
    assert!(live(&nodes, 1).contains(&"attached".to_owned()));
    assert!(attached.send(half));
    drop(attached);
    eventually(SOON, "only one job is left", || live(&nodes, 1) == ["j"]);
    assert_eq!(nodes.total("pipelines.references"), 20);
}

/// A file with very many lines: each has its answer, and none is lost.
#[test]
fn many_short_lines() {
    if !is_root() {
        skip!("needs root");
    }
    const TASKS: u64 = 50_000;
    let origin = datasets(&[("set", 1, BYTES)]);
    let nodes = Nodes::launch(1, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "10kB"]);
    let tasks: Vec<Value> = (0..TASKS)
        .map(|at| json!({ "id": format!("t{at}"), "in": [0] }))
        .collect();
    let job = json!({ "v": 1, "op": "submit", "job": "j", "dataset": "set", "files": [file(0)], "tasks": tasks });
    let mut lines = format!("{job}\n");
    for at in 0..TASKS {
        lines.push_str(&format!(
            "{{\"v\":1,\"op\":\"done\",\"job\":\"j\",\"task\":\"t{at}\"}}\n"
        ));
    }
    let scratch = Scratch::new();
    let begun = Instant::now();
    let finished = submitting(&scratch, lines.as_bytes(), |words| nodes.command(0, words));
    assert!(
        finished.status.success(),
        "{}: {}",
        finished.status,
        finished.stderr
    );
    eprintln!("{TASKS} lines in {:?}", begun.elapsed());
    let text = finished.text();
    assert_eq!(text.lines().count() as u64, TASKS + 1);
    assert!(text.lines().all(|line| line.contains("\"accepted\":true")));
    assert_eq!(nodes.total("pipelines.references"), 0);
}

/// A client that sends and never reads its answers is given up.
#[test]
fn a_client_that_reads_no_answers() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 1, BYTES)]);
    let nodes = Nodes::launch(1, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "10kB"]);
    let before = forget_peak(&nodes, 0);
    let mut raw = Raw::connect(&nodes, 0);
    raw.stream
        .get_ref()
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let line = b"{\"v\":1,\"op\":\"end\",\"job\":\"j\"}\n".repeat(1000);
    let begun = Instant::now();
    // Until the daemon does not read any more, and then until it has closed the connection.
    let outcome = loop {
        match raw
            .stream
            .get_mut()
            .write_all(&[format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat())
        {
            Ok(()) => assert!(
                begun.elapsed() < Duration::from_secs(100),
                "it reads for ever"
            ),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // A part of the chunk was sent, so what follows makes no sense.
                assert!(
                    begun.elapsed() < Duration::from_secs(100),
                    "the connection is never closed"
                );
            }
            Err(error) => break error,
        }
    };
    eprintln!("given up after {:?}: {outcome}", begun.elapsed());
    let grown = peak(&nodes, 0).saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes");
    assert!(live(&nodes, 0).is_empty());
}

/// A directory that is named in very many ways, and jobs without references: they are limited as references are.
#[test]
fn nothing_gets_around_the_limit_of_references() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 100, BYTES)]);
    // Empty files have no items, and so no references.
    for number in 0..500 {
        origin.file(&format!("set/empty/e{number}"), "");
    }
    origin.settle();
    let nodes = Nodes::launch(1, origin.path(), &["--max-refs-per-tenant", "1000"]);
    nodes.add("set", &["--keep", "references", "--budget", "10kB"]);
    let scratch = Scratch::new();
    let said = |line: &Value| {
        submitting(&scratch, line.to_string().as_bytes(), |words| {
            nodes.command(0, words)
        })
    };
    // The same directory by many names.
    let spelled = |times: usize| {
        (0..times)
            .map(|at| json!({ "path": format!("{}empty", "./".repeat(at)), "recursive": true }))
    };
    let inputs: Vec<Value> = spelled(900).collect();
    let job = json!({ "v": 1, "op": "submit", "job": "j", "dataset": "set", "tasks": [{ "id": "t", "inputs": inputs }] });
    let refused = said(&job);
    assert!(
        refused.refused().contains("more than 1000 references"),
        "{refused:?}"
    );
    // Tasks without inputs, again and again.
    let tasks: Vec<Value> = (0..900)
        .map(|at| json!({ "id": format!("t{at}"), "in": [] }))
        .collect();
    let mut refused = None;
    for at in 0..20 {
        let job = json!({ "v": 1, "op": "submit", "job": format!("k{at}"), "dataset": "set", "files": [], "tasks": tasks });
        let finished = said(&job);
        if !finished.status.success() {
            refused = Some(finished.stderr);
            break;
        }
    }
    let refused = refused.expect("18,000 tasks are more than 1,000 references");
    assert!(refused.contains("would hold"), "{refused}");
}

/// A daemon ends beside conversations that are open, whatever they are at.
#[test]
fn an_unmount_waits_for_no_conversation() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    let mut idle = Raw::connect(&nodes, 1);
    assert!(idle.send(b"{\"v\":1,\"op\":\"attach\"}\n"));
    assert_eq!(idle.answer(), json!({ "accepted": true }));
    let line = format!("{}\n", submission("j", "set", &[("t", 0..20)]));
    assert!(idle.send(line.as_bytes()));
    assert_eq!(idle.answer()["accepted"], true);
    let mut short = Raw::connect(&nodes, 1);
    assert!(short.send(b"{\"v\":1,"));
    let mut long = Raw::connect(&nodes, 1);
    assert!(long.send(format!("{{\"v\":1,\"files\":[{}", "\"a\",".repeat(50_000)).as_bytes()));
    let begun = Instant::now();
    let mut unmount = crate::support::copperfs(["unmount"]);
    let node = &nodes.tree.nodes[1];
    let said = crate::support::check(unmount.arg(&node.point));
    eprintln!("unmounted after {:?}: {said}", begun.elapsed());
    assert!(!node.is_alive(), "{said}");
    // The counts go with it.
    shows(&nodes, "set", "references", 0);
}

/// The command that submits prints answers while its input is open, and its jobs end when it is killed.
#[test]
fn a_pipe_that_stays_open() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = datasets(&[("set", 20, BYTES)]);
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    let mut submit = nodes.command(1, &["lrc", "submit", "--attach", "-"]);
    let piped = submit
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = piped.spawn().unwrap();
    let (mut input, mut output) = (
        child.stdin.take().unwrap(),
        BufReader::new(child.stdout.take().unwrap()),
    );
    for round in 0..3 {
        writeln!(
            input,
            "{}",
            submission(&format!("j{round}"), "set", &[("t", 0..20)])
        )
        .unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        assert!(answer.contains("\"accepted\":true"), "{answer}");
    }
    assert_eq!(live(&nodes, 1).len(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(SOON, "its jobs have ended", || live(&nodes, 1).is_empty());
}

/// Names that are no words: quotes, spaces, other scripts, and slashes, in jobs, tasks and files.
#[test]
fn names_of_all_kinds() {
    if !is_root() {
        skip!("needs root");
    }
    let names = [
        "a b",
        "\"quoted\"",
        "día=1/añ☃",
        "-x",
        "100%",
        "back\\slash",
        "{\"v\":1}",
        "'$(reboot)'",
    ];
    let origin = datasets(&[("set", 1, BYTES)]);
    for name in names {
        origin.file(&format!("set/{name}"), vec![7; 100]);
    }
    origin.settle();
    let nodes = Nodes::launch(2, origin.path(), &[]);
    nodes.add("set", &["--keep", "references", "--budget", "200kB"]);
    for name in names {
        let task = json!({ "id": name, "inputs": [{ "path": name }] });
        let line = json!({ "v": 1, "op": "submit", "job": name, "dataset": "set", "consume": "read", "tasks": [task] });
        assert_eq!(
            submit(&nodes, 1, &line),
            json!({ "accepted": true, "blocks": 1, "unknown_paths": [] }),
            "{name}"
        );
    }
    assert_eq!(nodes.total("pipelines.references"), names.len() as u64);
    let mut jobs = live(&nodes, 1);
    jobs.sort();
    let mut sorted = names.map(str::to_owned);
    sorted.sort();
    assert_eq!(jobs, sorted);
    for name in names {
        let shown = lrc_json(&nodes, 1, &["counts", "set", "--", name]);
        assert_eq!(shown["counts"][0]["path"], name, "{shown}");
        let shown = lrc_json(&nodes, 1, &["show", "--", name]);
        assert_eq!(shown["tasks"][0]["task"], name, "{shown}");
    }
    for (at, name) in (0..).zip(names) {
        let mut cat = std::process::Command::new("cat");
        cat.env("COPPERFS_TASK", format!("{name}/{name}"));
        crate::support::check(cat.arg("--").arg(nodes.path(0, "set").join(name)));
        eventually(SOON, format!("{name} is read"), || {
            nodes.total("pipelines.references") == (names.len() - 1 - at) as u64
        });
        lrc(&nodes, 1, &["end", "--", name]);
    }
    assert!(live(&nodes, 1).is_empty());
}
