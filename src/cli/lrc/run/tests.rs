//! Runs of real programs, with a daemon that keeps jobs in memory and speaks HTTP on a Unix socket.

mod fake_daemon;

use super::*;
use crate::cli::job::tests::TURN;
use crate::pipeline::message::{Input, Submission, Task};
use crate::testing::SOON;
use crate::waiting::until;
use copperfs_fuse::Sockets;
use fake_daemon::FakeDaemon;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

/// A run in a directory of its own.
struct Bench {
    dir: TempDir,
    daemon: FakeDaemon,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let daemon = FakeDaemon::start(&dir.path().join("daemon"));
        Self { dir, daemon }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self) -> Run {
        let base = self.path("copperfs-runtime");
        runtime(&base);
        let owner = self.path("daemon");
        let find = move || {
            let (owner, users) = (owner.clone(), "none".into());
            Ok(crate::control::client::ControlClient::new(Sockets {
                owner,
                users,
            }))
        };
        Run {
            daemon: Daemon::new("daily", find),
            defaults: Defaults {
                app: "daily".into(),
                dataset: "warehouse".into(),
                consume: "done".into(),
                expires_s: Number::from(86_400),
            },
            root: "/copper_data/lus/warehouse".into(),
            dir: PrivateDir::new(&base).unwrap(),
            variables: vec![("ENGINE_VARIABLE".into(), "set".into())],
            order: FileOrder::Listed,
            has_adapter: true,
            profile: None,
            last: None,
            log: None,
        }
    }

    /// The program: it notes its environment, and waits until the test lets it go on with `rest`.
    fn command(&self, rest: &str) -> Vec<OsString> {
        let (noted, go) = (self.path("noted"), self.path("go"));
        let (noted, go) = (noted.display(), go.display());
        let _absent = std::fs::remove_file(self.path("go"));
        let script = format!(
            "env > {noted}.new && mv {noted}.new {noted}; \
             for i in $(seq 3000); do test -e {go} && break; sleep 0.02; done; {rest}"
        );
        ["sh", "-c", &script].map(OsString::from).to_vec()
    }

    fn go(&self) {
        std::fs::write(self.path("go"), "").unwrap();
    }

    /// The environment of the program, once it runs.
    async fn environment(&self) -> BTreeMap<String, String> {
        let noted = self.path("noted");
        until(SOON, "the program runs", || noted.exists()).await;
        let text = std::fs::read_to_string(&noted).unwrap();
        std::fs::remove_file(&noted).unwrap();
        let lines = text.lines().filter_map(|line| line.split_once('='));
        lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    async fn adapter(&self) -> Adapter {
        Adapter::connect(&self.environment().await["COPPERFS_LRC_SOCKET"]).await
    }
}

/// The directory in which runs make theirs.
fn runtime(base: &Path) {
    crate::daemon::runtime_dir::prepare(base).unwrap();
}

/// An adapter's connection.
struct Adapter {
    lines: tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl Adapter {
    async fn connect(socket: &str) -> Self {
        let (read, write) = UnixStream::connect(socket).await.unwrap().into_split();
        let lines = BufReader::new(read).lines();
        Self { lines, write }
    }

    async fn write(&mut self, line: &Value) {
        self.write
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
    }

    async fn answer(&mut self) -> Value {
        let line = tokio::time::timeout(SOON, self.lines.next_line()).await;
        serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, line: Value) -> Value {
        self.write(&line).await;
        self.answer().await
    }
}

/// A job of tasks `0`, `1` and so on, each with its files.
fn job(job: &str, attempt: u64, tasks: &[&[&str]]) -> Value {
    let mut submission = Submission::new("", job.into(), attempt);
    submission.app = None;
    for (id, files) in tasks.iter().enumerate() {
        let mut task = Task {
            id: id.to_string(),
            ..Task::default()
        };
        for file in *files {
            let known = submission.files.iter().position(|known| known == file);
            let index = known.unwrap_or_else(|| {
                submission.files.push((*file).to_owned());
                submission.files.len() - 1
            });
            task.inputs.push(Input::Whole(index));
        }
        submission.tasks.push(task);
    }
    serde_json::to_value(submission).unwrap()
}

fn event(op: &str, job: &str, task: Option<&str>) -> Value {
    json!({ "v": 1, "op": op, "job": job, "task": task })
}

fn shown(code: ExitCode) -> String {
    format!("{code:?}")
}

#[tokio::test]
async fn lines_are_relayed_in_order_and_all_jobs_end_with_the_command() {
    let _turn = TURN.lock().await;
    let bench = Bench::new();
    let (run, log) = (bench.run(), bench.path("log"));
    let run = Run {
        log: Some(RunLog::create(&log).unwrap()),
        ..run
    };
    let dir = run.dir.path().to_owned();
    let acting = async {
        let environment = bench.environment().await;
        for (name, value) in [
            ("COPPERFS_LRC_DATASET", "warehouse"),
            ("COPPERFS_LRC_ROOT", "/copper_data/lus/warehouse"),
            ("COPPERFS_LRC_APP", "daily"),
            ("COPPERFS_LRC_CONSUME", "done"),
            ("ENGINE_VARIABLE", "set"),
        ] {
            assert_eq!(environment[name], value);
        }
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        let mut adapter = Adapter::connect(&environment["COPPERFS_LRC_SOCKET"]).await;
        let mut other = Adapter::connect(&environment["COPPERFS_LRC_SOCKET"]).await;
        // Written at once: answers come in order.
        for line in [
            job("a/0", 0, &[&["x", "y"], &["x"]]),
            event("done", "a/0", Some("0")),
            event("done", "b", None),
        ] {
            adapter.write(&line).await;
        }
        adapter
            .write
            .write_all(b"{\"v\":1,\"op\":\"du\n")
            .await
            .unwrap();
        assert_eq!(
            adapter.answer().await,
            json!({"accepted": true, "blocks": 2, "unknown_paths": []})
        );
        assert_eq!(adapter.answer().await, json!({"accepted": true}));
        assert_eq!(adapter.answer().await, json!({"accepted": false}));
        let error = adapter.answer().await;
        assert!(error["error"].as_str().unwrap().contains("EOF"), "{error}");
        assert!(
            error["try"].as_str().unwrap().contains("docs/PIPELINES.md"),
            "{error}"
        );
        let refused = other.ask(job("refused/1", 0, &[&["x"]])).await;
        assert_eq!(refused["error"], "it is refused");
        assert_eq!(other.ask(job("a/2", 0, &[&["x"]])).await["accepted"], true);
        assert_eq!(bench.daemon.counts(), BTreeMap::from([("x".into(), 2)]));
        bench.go();
    };
    let command = bench.command("exit 7");
    let (code, ()) = tokio::join!(run.run(&command), acting);
    assert_eq!(shown(code.unwrap()), shown(ExitCode::from(7)));
    assert_eq!(bench.daemon.counts(), BTreeMap::new());
    check_lines(
        &bench.daemon.lines(),
        &std::fs::read_to_string(log).unwrap(),
    );
    assert!(!dir.exists());
}

/// The lines that the daemon has got, and the log of them.
fn check_lines(lines: &[Value], log: &str) {
    assert_eq!(lines[0], json!({"v": 1, "op": "attach", "app": "daily"}));
    let submitted = &lines[1];
    for (key, value) in [
        ("app", json!("daily")),
        ("dataset", json!("warehouse")),
        ("consume", json!("done")),
        ("expires_s", json!(86_400)),
    ] {
        assert_eq!(submitted[key], value, "{submitted}");
    }
    assert!(submitted.get("tenant").is_none());
    // The refused job was never live, so it has no end.
    let ends: Vec<&Value> = (lines.iter().filter(|line| line["op"] == "end"))
        .map(|line| &line["job"])
        .collect();
    assert_eq!(ends, ["a/0", "a/2"]);
    let log: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let sent: Vec<&Value> = log.iter().map(|line| &line["line"]).collect();
    assert_eq!(sent, lines[1..].iter().collect::<Vec<_>>());
    assert!(
        log.iter()
            .all(|line| line["ms"].as_u64() > Some(1_700_000_000_000))
    );
    assert_eq!(log[0]["answer"]["blocks"], 2);
}

#[tokio::test]
async fn signals_are_the_commands_and_its_jobs_end() {
    let _turn = TURN.lock().await;
    let bench = Bench::new();
    let acting = async {
        let mut adapter = bench.adapter().await;
        adapter.ask(job("a/0", 0, &[&["x"]])).await;
        assert_eq!(bench.daemon.counts().len(), 1);
        let this = rustix::process::getpid();
        rustix::process::kill_process(this, rustix::process::Signal::TERM).unwrap();
    };
    let command = bench.command("exit 7");
    let (code, ()) = tokio::join!(bench.run().run(&command), acting);
    assert_eq!(shown(code.unwrap()), shown(ExitCode::from(128 + 15)));
    assert_eq!(bench.daemon.counts(), BTreeMap::new());
}

#[tokio::test]
async fn a_daemon_that_was_restarted_gets_the_live_jobs_again() {
    let _turn = TURN.lock().await;
    let mut bench = Bench::new();
    let (run, command) = (bench.run(), bench.command("exit 0"));
    let running = tokio::spawn(async move { run.run(&command).await });
    let mut adapter = bench.adapter().await;
    adapter.ask(job("a/0", 0, &[&["x"], &["y"], &["z"]])).await;
    adapter.ask(job("a/1", 3, &[&["x"]])).await;
    adapter.ask(job("a/2", 0, &[&["x"]])).await;
    adapter.ask(event("end", "a/2", None)).await;
    adapter.ask(event("done", "a/0", Some("0"))).await;
    bench.daemon.kill().await;
    // Each line has an answer without the daemon too, and still counts.
    let missed = adapter.ask(event("done", "a/0", Some("1"))).await;
    let submitted = adapter.ask(job("a/3", 0, &[&["w"]])).await;
    for answer in [missed, submitted] {
        assert_eq!(answer["error"], "the daemon does not answer", "{answer}");
    }
    bench.daemon = FakeDaemon::start(&bench.path("daemon"));
    let wanted = BTreeMap::from([("w".into(), 1), ("x".into(), 1), ("z".into(), 1)]);
    let daemon = bench.daemon.clone();
    until(SOON, "the jobs are back", || daemon.counts() == wanted).await;
    let attempts: Vec<(Value, Value)> = (bench.daemon.lines().iter().skip(1))
        .map(|line| (line["job"].clone(), line["attempt"].clone()))
        .collect();
    let wanted = [("a/0", 1), ("a/1", 4), ("a/3", 1)];
    assert_eq!(
        attempts,
        wanted.map(|(job, attempt)| (json!(job), json!(attempt)))
    );
    // The adapter's next attempt replaces the repetition.
    let next = adapter.ask(job("a/0", 1, &[&["v"]])).await;
    assert_eq!(next["accepted"], true, "{next}");
    assert_eq!(bench.daemon.counts()["v"], 1);
    assert!(!bench.daemon.counts().contains_key("z"));
    bench.go();
    let code = running.await.unwrap().unwrap();
    assert_eq!(shown(code), shown(ExitCode::SUCCESS));
    assert_eq!(bench.daemon.counts(), BTreeMap::new());
}

#[tokio::test]
async fn the_command_goes_on_without_a_daemon() {
    let _turn = TURN.lock().await;
    let bench = Bench::new();
    let (run, command) = (bench.run(), bench.command("exit 3"));
    let running = tokio::spawn(async move { run.run(&command).await });
    let mut adapter = bench.adapter().await;
    adapter.ask(job("a/0", 0, &[&["x"]])).await;
    bench.daemon.kill().await;
    assert!(adapter.ask(event("done", "a/0", Some("0"))).await["error"].is_string());
    bench.go();
    assert_eq!(
        shown(running.await.unwrap().unwrap()),
        shown(ExitCode::from(3))
    );
}

#[tokio::test]
async fn a_daemon_that_is_absent_or_refuses_is_an_error_before_the_command_runs() {
    let mut bench = Bench::new();
    let command = bench.command("exit 0");
    bench.daemon.kill().await;
    let error = bench.run().run(&command).await.unwrap_err().to_string();
    assert!(error.contains("cannot reach the daemon"), "{error}");
    bench.daemon = FakeDaemon::start(&bench.path("daemon"));
    bench.daemon.refuse_all();
    let error = bench.run().run(&command).await.unwrap_err().to_string();
    assert_eq!(error, "this daemon counts no references. Use another");
    assert!(!bench.path("noted").exists(), "the command has run");
}

#[tokio::test]
async fn jobs_end_when_the_process_of_their_adapter_has_ended() {
    let _turn = TURN.lock().await;
    let bench = Bench::new();
    // Submits a job, and with a second argument closes its connection and lives on until its input ends.
    let adapter = r#"
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["COPPERFS_LRC_SOCKET"])
f = s.makefile("rw")
f.write('{"v":1,"op":"submit","job":"%s","tasks":[{"id":"0","inputs":[{"path":"%s"}]}]}\n' % (sys.argv[1], sys.argv[1]))
f.flush()
f.readline()
if len(sys.argv) > 2:
    f.close()
    s.close()
    open(sys.argv[2], "w").close()
    sys.stdin.read()
os.kill(os.getpid(), 9)
"#;
    let script = bench.path("adapter.py");
    std::fs::write(&script, adapter).unwrap();
    let (input, closed, go) = (bench.path("input"), bench.path("closed"), bench.path("go"));
    let command = format!(
        "mkfifo {input}; python3 {script} lives {closed} < {input} & exec 9> {input}; \
         while test ! -e {closed}; do sleep 0.02; done; \
         python3 {script} killed; test $? = 137 || exit 1; \
         while test ! -e {go}; do sleep 0.02; done; exec 9>&-; wait; \
         while test ! -e {go}.again; do sleep 0.02; done; exit 5",
        input = input.display(),
        closed = closed.display(),
        go = go.display(),
        script = script.display(),
    );
    let command = ["bash", "-c", &command].map(OsString::from).to_vec();
    let run = bench.run();
    let running = tokio::spawn(async move { run.run(&command).await });
    let daemon = bench.daemon.clone();
    let lines = |op: &str| {
        daemon
            .lines()
            .iter()
            .filter(|line| line["op"] == op)
            .count()
    };
    until(SOON, "both have submitted", || lines("submit") == 2).await;
    // The one with the open connection was killed, and the one that lives has closed its own.
    until(SOON, "the job of the killed one ends", || lines("end") == 1).await;
    assert_eq!(daemon.counts(), BTreeMap::from([("lives".into(), 1)]));
    bench.go();
    until(SOON, "the job of the other ends with its process", || {
        daemon.counts().is_empty()
    })
    .await;
    std::fs::write(bench.path("go.again"), "").unwrap();
    assert_eq!(
        shown(running.await.unwrap().unwrap()),
        shown(ExitCode::from(5))
    );
    assert_eq!(lines("end"), 2);
}

#[tokio::test]
async fn the_next_run_expects_the_jobs_of_the_last() {
    let _turn = TURN.lock().await;
    let bench = Bench::new();
    let profile = bench.path("daily.profile");
    // Day by day: the first job reads two files, the second one of them, and a third one.
    let mut seen = Vec::new();
    for day in 1..=4_u64 {
        let mut run = bench.run();
        run.last = profile_file::read_last(&profile).unwrap();
        assert_eq!(run.last.is_some(), day > 1);
        run.profile = Some(profile.clone());
        // The last day has another shape, and fails.
        let command = bench.command(if day == 4 { "exit 1" } else { "exit 0" });
        let running = tokio::spawn(async move { run.run(&command).await });
        let mut adapter = bench.adapter().await;
        let (a, b, c) = (format!("a{day}"), format!("b{day}"), format!("c{day}"));
        adapter
            .ask(job(&format!("app-{day}/sql-0"), 0, &[&[&a, &b]]))
            .await;
        let (daemon, expected) = (bench.daemon.clone(), if day == 1 { 1 } else { 2 });
        until(SOON, "the second job is expected", || {
            daemon.counts().get(&a) == Some(&expected)
        })
        .await;
        assert_eq!(daemon.counts()[&b], 1);
        seen.push(daemon.counts().len());
        let tasks: &[&[&str]] = if day == 4 {
            &[&[&a, &c], &[&c]]
        } else {
            &[&[&a, &c]]
        };
        adapter
            .ask(job(&format!("app-{day}/sql-1"), 0, tasks))
            .await;
        until(SOON, "the expected job has ended", || {
            daemon.counts()[&a] == 2
        })
        .await;
        assert_eq!(daemon.counts()[&c], if day == 4 { 2 } else { 1 });
        bench.go();
        let code = running.await.unwrap().unwrap();
        assert_eq!(shown(code), shown(ExitCode::from(u8::from(day == 4))));
        assert_eq!(daemon.counts(), BTreeMap::new());
    }
    assert_eq!(seen, [2; 4]);
    let ends = bench.daemon.lines();
    let expected = |line: &&Value| {
        line["job"]
            .as_str()
            .is_some_and(|job| job.ends_with("/expected-1"))
    };
    let expected: Vec<&Value> = ends.iter().filter(expected).collect();
    // Three days: one submission and one end each, under a name of its own.
    assert_eq!(expected.len(), 6);
    let names: std::collections::HashSet<&str> = expected
        .iter()
        .map(|line| line["job"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    // The run that failed has left the profile of the day before.
    let kept = read_profile(&profile).unwrap();
    assert_eq!((kept.jobs.len(), kept.jobs[1].shape.tasks.len()), (2, 1));
}

#[test]
fn a_run_is_named_for_its_script() {
    for (command, name) in [
        ("spark-submit --master local[4] jobs/daily.py 2026", "daily"),
        ("snakemake --cores 8", "snakemake"),
        ("/opt/bin/my prog", "my"),
        ("python3 -c pass", "python3"),
        ("ünique", "-nique"),
        ("/", "run"),
    ] {
        let words: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        assert_eq!(derived_name(&words), name, "{command}");
    }
    assert!(app_name("a/b").is_err() && app_name("").is_err());
    assert_eq!(app_name("daily 1").unwrap(), "daily 1");
}

#[tokio::test]
async fn a_dataset_is_named_or_is_the_only_one() {
    let bench = Bench::new();
    let owner = bench.path("daemon");
    let client = crate::control::client::ControlClient::new(Sockets {
        owner,
        users: "none".into(),
    });
    bench.daemon.datasets(&[]);
    let error = place::dataset(&client, None).await.unwrap_err().to_string();
    assert!(error.contains("copperfs dataset add"), "{error}");
    bench.daemon.datasets(&["warehouse"]);
    let only = place::dataset(&client, None).await.unwrap();
    assert_eq!(only["name"], "warehouse");
    bench.daemon.datasets(&["warehouse", "calls"]);
    let error = place::dataset(&client, None).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "several datasets are declared: name one with --dataset (warehouse, calls)"
    );
    let calls = place::dataset(&client, Some("calls")).await.unwrap();
    assert_eq!(calls["path"], "/lus/calls");
    let error = place::dataset(&client, Some("call"))
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "--dataset call: there is no such dataset. Declared are warehouse, calls"
    );
}

#[test]
fn the_directory_of_a_killed_run_is_removed_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("copperfs-runtime");
    runtime(&base);
    let live = PrivateDir::new(&base).unwrap();
    std::fs::write(live.path().join("socket"), "").unwrap();
    let killed = base.join("lrc/0123");
    std::fs::create_dir(&killed).unwrap();
    std::fs::write(killed.join("socket"), "").unwrap();
    let next = PrivateDir::new(&base).unwrap();
    assert!(live.path().exists() && !killed.exists());
    let path = next.path().to_owned();
    drop(next);
    assert!(!path.exists());
}

#[test]
fn a_profile_that_cannot_be_used_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.profile");
    assert!(profile_file::read_last(&path).unwrap().is_none());
    assert!(!path.exists(), "the check leaves no file");
    std::fs::write(&path, "{\"copperfs_profile\":1}").unwrap();
    let error = crate::cli::explained(&profile_file::read_last(&path).unwrap_err());
    assert!(
        error.starts_with(&format!(
            "cannot use the profile {}: it is not a profile",
            path.display()
        )),
        "{error}"
    );
    let error = profile_file::read_last(&dir.path().join("absent/x"))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot write the profile"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
