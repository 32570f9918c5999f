//! Datasets, jobs and their allocations, from the command line and over HTTP; and the allocator when it is
//! killed.

use crate::skip;
use crate::support::tree::{Members, write_secret};
use crate::support::{Mount, Scratch, check, copperfs, eventually, is_root, python, run};
use copperfs_overlay::Secret;
use copperfs_overlay::loopback::Port;
use copperfs_overlay::tls::tls_connect;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long the allocator may take to be the same again, wherever it runs.
const SAME_AGAIN: Duration = Duration::from_secs(5);

/// Four nodes below two roots, with a data mount each; a dataset is declared from the start.
struct Four {
    nodes: Vec<Option<Mount>>,
    members: Members,
    origin: Scratch,
    data: Scratch,
}

impl Drop for Four {
    /// Also unmounts the data mount of a killed daemon.
    fn drop(&mut self) {
        self.nodes.clear();
        for rank in 0..4 {
            self.free(rank);
        }
    }
}

impl Four {
    fn start() -> Self {
        let origin = Scratch::new();
        for number in 0..40 {
            origin.file(
                &format!("set/{:02}/f{number}", number % 5),
                vec![b'x'; 100_000],
            );
        }
        origin.file("first/f", vec![b'x'; 1_000]);
        origin.dir("empty");
        origin.settle();
        let mut this = Self {
            members: Members::with_arity(4, 2, origin.path()),
            nodes: Vec::new(),
            origin,
            data: Scratch::new(),
        };
        this.nodes = (0..4).map(|rank| Some(this.mount(rank))).collect();
        this
    }

    fn mount(&self, rank: usize) -> Mount {
        let mut flags = vec!["--roots", "2", "--remote-io", "20MB/s", "--gpus", "4"];
        let data = self.data.dir(&format!("data{rank}"));
        flags.extend(["--dataset", "first=/first", "--data-mount"]);
        flags.push(data.to_str().unwrap());
        self.members.start(rank, &flags)
    }

    fn free(&self, rank: usize) {
        let data = self.data.path().join(format!("data{rank}"));
        drop(run(Command::new("umount").arg("-lq").arg(data)));
    }

    fn point(&self, rank: usize) -> std::path::PathBuf {
        self.members.point(rank)
    }

    /// What a command says of node `rank`, as JSON.
    #[track_caller]
    fn ask(&self, rank: usize, words: &[&str]) -> Value {
        let point = self.point(rank);
        let said = check(copperfs(words).arg("--json").arg("--mount").arg(&point));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// The decision, or `None` while there is no allocator.
    fn allocation(&self, rank: usize) -> Option<Value> {
        let point = self.point(rank);
        let words = ["allocation", "--json", "--mount"];
        let said = run(copperfs(words).arg(&point));
        serde_json::from_slice(&said.stdout).ok()
    }

    #[track_caller]
    fn refused(&self, rank: usize, words: &[&str]) -> String {
        let point = self.point(rank);
        run(copperfs(words).arg("--mount").arg(&point))
            .refused()
            .to_owned()
    }
}

/// Budgets and rates, by name.
fn terms(all: &Value) -> Vec<(String, u64)> {
    let of = |list: &Value, name: &str, amount: &str| -> Vec<(String, u64)> {
        let list = list.as_array().unwrap().iter();
        list.map(|one| {
            (
                one[name].as_str().unwrap().to_owned(),
                one[amount].as_u64().unwrap_or(0),
            )
        })
        .collect()
    };
    let mut terms = of(&all["datasets"], "name", "budget");
    terms.extend(of(&all["jobs"], "id", "remote_io_allowed"));
    terms
}

#[test]
fn datasets_and_jobs_come_from_any_node_and_go() {
    if !is_root() {
        skip!("needs root");
    }
    let four = Four::start();
    let served = four.point(3).join("set");
    let served = served.to_str().unwrap();
    let added = four.ask(3, &["dataset", "add", "a", served, "--budget", "2MB"]);
    assert_eq!(added["path"], "/set");
    assert_eq!(
        (&added["items"], &added["size"]),
        (&40.into(), &4_000_000.into())
    );
    assert_eq!(added["budget"], 2_000_000);
    four.ask(
        1,
        &[
            "job",
            "add",
            "j",
            "--dataset",
            "a",
            "--ideal-rate",
            "10MB/s",
            "--epochs",
            "2",
        ],
    );
    four.ask(2, &["job", "set", "j", "--remote-io", "1MB/s"]);
    let job = four.ask(0, &["job", "show", "j"]);
    assert_eq!(
        (&job["remote_io_allowed"], &job["gpus"]),
        (&1_000_000.into(), &1.into())
    );
    four.ask(2, &["job", "set", "j", "--remote-io", "auto"]);
    let listed = check(copperfs(["job", "list", "--mount"]).arg(four.point(1)));
    assert!(
        listed.contains("j ") && listed.contains("allowed"),
        "{listed}"
    );
    for (words, hint) in [
        ("dataset add b s3://nowhere/x", "no origin serves"),
        ("dataset rm a", "copperfs job end j"),
        ("job add k --dataset b", "on no dataset"),
        ("job add k --dataset a --gpus 4", "the cluster has 4"),
        ("dataset set a --budget 1000", "has no unit"),
        ("dataset set a --budget 1PB", "more than there is"),
        ("job set j --remote-io 21MB/s", "remote_io is"),
        ("policy gredy", "Did you mean greedy?"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let error = four.refused(1, &words);
        assert!(error.contains(hint), "{words:?}: {error}");
    }
    let error = four.refused(1, &["dataset", "add", "a", served]);
    assert!(error.contains("copperfs dataset rm a"), "{error}");
    let error = four.refused(1, &["dataset", "add", "b", "/empty"]);
    assert!(error.contains("size zero"), "{error}");
    four.ask(1, &["job", "end", "j"]);
    four.ask(1, &["dataset", "rm", "a"]);
    let left = four.ask(2, &["dataset", "list"]);
    let left = left["datasets"].as_array().unwrap();
    assert!(left.len() == 1 && left[0]["name"] == "first", "{left:?}");
}

#[test]
fn the_allocator_may_be_killed_and_move() {
    if !is_root() {
        skip!("needs root");
    }
    let mut four = Four::start();
    let served = four.point(0).join("set");
    four.ask(
        0,
        &[
            "dataset",
            "add",
            "a",
            served.to_str().unwrap(),
            "--budget",
            "3MB",
        ],
    );
    four.ask(
        1,
        &[
            "job",
            "add",
            "j",
            "--dataset",
            "a",
            "--ideal-rate",
            "10MB/s",
        ],
    );
    eventually(Duration::from_secs(20), "four nodes report", || {
        four.allocation(3).is_some_and(|all| {
            all["nodes"]
                .as_array()
                .is_some_and(|nodes| nodes.len() == 4)
        })
    });
    let before = four.allocation(3).unwrap();
    let first = before["allocator"].clone();

    four.nodes[0].as_ref().unwrap().kill();
    let killed = Instant::now();
    eventually(SAME_AGAIN, "the next root is the allocator", || {
        four.allocation(3)
            .is_some_and(|all| all["allocator"] != first && terms(&all) == terms(&before))
    });
    eprintln!("moved in {:?}", killed.elapsed());
    // What is asked now is known to the first root when it is back.
    four.ask(3, &["dataset", "set", "a", "--budget", "2MB"]);
    four.nodes[0] = None;
    four.free(0);
    four.nodes[0] = Some(four.mount(0));
    eventually(SAME_AGAIN, "the first root is the allocator again", || {
        four.allocation(3).is_some_and(|all| {
            all["allocator"] == first && all["datasets"][1]["budget"] == 2_000_000
        })
    });
    assert!(four.origin.path().is_dir());
}

#[test]
fn the_api_is_for_its_owner_and_speaks_http() {
    if !is_root() {
        skip!("needs root");
    }
    let four = Four::start();
    let script = "import http.client, json, os, socket, stat, sys
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
mode = stat.S_IMODE(os.stat(sys.argv[1]).st_mode)
api = Unix('copperfs', timeout=30)
api.request('GET', '/openapi.json')
answer = api.getresponse(); document = json.load(answer)
api.request('PUT', '/v1/policy', json.dumps({'policy': 'max-min'}))
api.getresponse().read()
api.request('GET', '/v1/allocation')
allocation = json.load(api.getresponse())
print(oct(mode), document['openapi'], allocation['policy'], allocation['remote_io']['total'])";
    let socket = owners_socket(&four.point(2));
    let said = check(python().arg("-c").arg(script).arg(socket));
    assert_eq!(said.trim(), "0o600 3.1.0 max-min 20000000");
}

/// Only clients with the job's secret are answered.
#[test]
fn the_api_on_tcp_is_for_members_of_the_job() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("a", b"a");
    origin.settle();
    let members = Members::new(1, origin.path());
    let free = Port::tcp().unwrap();
    let address = free.address();
    let _node = members.start(0, &["--api-listen", &address.to_string()]);
    let ask = |secret: &Path| -> std::io::Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let secret = Secret::read_file(secret).map_err(std::io::Error::other)?;
            let stream = tls_connect(address, &secret).await;
            let mut stream = stream.map_err(std::io::Error::other)?;
            let question = "GET /v1/allocation HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
            stream.write_all(question.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        })
    };
    let answer = ask(&members.secret).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"policy\":\"greedy\""), "{answer}");
    let other = origin.path().join("other");
    write_secret(&other);
    let refused = ask(&other);
    assert!(refused.is_err(), "{refused:?}");
}

/// The socket of the daemon's owner.
fn owners_socket(point: &Path) -> std::path::PathBuf {
    copperfs_fuse::ioctl::client::sockets(point).unwrap().owner
}
