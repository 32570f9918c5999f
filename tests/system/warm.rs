//! `copperfs record` and `copperfs warm`: the files of a start-up are in every kernel's cache before it starts.

use crate::skip;
use crate::support::command::Finished;
use crate::support::fixture::{checksums, noise, packages, packages_total};
use crate::support::kernel::{KernelCache, children};
use crate::support::{
    Background, Mount, Scratch, Tree, check, copperfs, eventually, is_root, python, run,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

const IMPORT: &str = "import everything; print(everything.TOTAL)";

/// A Python that imports from the mount at `point`.
fn import(point: &Path) -> Command {
    let mut command = python();
    command.args(["-S", "-s", "-c", IMPORT]);
    command.env("PYTHONPATH", point);
    command
}

/// Records the accesses of `command` on `mount` into `profile`.
fn record(point: &Path, profile: &Path, command: &Command) -> Finished {
    let mut record = copperfs(["record"]);
    record.arg("-m").arg(point).arg("-o").arg(profile).arg("--");
    record.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => record.env(name, value),
            None => record.env_remove(name),
        };
    }
    run(&mut record)
}

fn warm_command(point: &Path, more: &[&dyn AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = copperfs(["warm", "--json"]);
    command.arg("-m").arg(point);
    command.args(more.iter().map(AsRef::as_ref));
    command
}

/// The last line of a warm, and how it ended.
#[track_caller]
fn warm(point: &Path, more: &[&dyn AsRef<std::ffi::OsStr>]) -> (Value, Finished) {
    let finished = run(&mut warm_command(point, more));
    let text = finished.text();
    let Some(last) = text.lines().last() else {
        panic!("nothing said: {finished:?}");
    };
    (serde_json::from_str(last).unwrap(), finished)
}

/// As [`warm`]; fails unless all nodes are warm.
#[track_caller]
fn warmed(point: &Path, more: &[&dyn AsRef<std::ffi::OsStr>]) -> Value {
    let (done, finished) = warm(point, more);
    assert!(finished.status.success(), "{finished:?}");
    assert_eq!(done["event"], "done");
    assert_eq!(done["not_warmed"], serde_json::json!([]));
    assert_eq!(done["failed"], 0, "{done}");
    done
}

/// The helpers that the daemons `of` have at work.
fn helpers(of: &[Pid]) -> usize {
    of.iter().map(|&pid| children(pid, "touch").len()).sum()
}

/// What one node has recorded lets every node of another tree start without a question: nothing goes
/// upstream, and next to nothing comes from the kernel.
#[test]
fn a_recorded_import_runs_from_memory_on_a_leaf_of_a_warmed_tree() {
    if !is_root() {
        skip!("needs root");
    }
    let files = packages();
    let scratch = Scratch::new();
    let profile = scratch.path().join("start.profile");
    {
        let mount = Mount::of(&files.path);
        let finished = record(&mount.point, &profile, &import(&mount.point));
        assert!(finished.status.success(), "{finished:?}");
        assert_eq!(finished.text().trim_end(), packages_total());
        assert!(
            finished.stderr.contains("accesses recorded"),
            "{finished:?}"
        );
    }
    let text = fs::read_to_string(&profile).unwrap();
    let reads = text.lines().filter(|line| line.contains("\"op\":\"read\""));
    assert_eq!(reads.count() as u64, files.modules);

    let _kernel = KernelCache::undisturbed();
    let tree = Tree::launch(7, 2, &files.path, &[]);
    // Asked on a leaf: the plan climbs to the root first.
    let done = warmed(&tree.leaf().point, &[&"--profile", &profile]);
    assert_eq!(done["nodes_warm"], 7);
    assert_eq!(done["bytes"].as_u64(), Some(7 * files.bytes));
    let (_, total) = tree.leaf().cluster_stats();
    assert_eq!(total.get("origin.read_bytes"), files.bytes, "once");
    let mut reads = Vec::new();
    for rank in [3, 4, 5, 6] {
        let node = &tree.nodes[rank];
        let before = node.stats();
        assert_eq!(before.get("upstream.received_bytes") / files.bytes, 1);
        assert_eq!(check(&mut import(&node.point)).trim_end(), packages_total());
        let after = node.stats();
        after.assert_nothing_upstream(&before);
        let requests = after.requests_since(&before);
        eprintln!("import on rank {rank}: {requests:?}");
        reads.push(after.since(&before, "fuse.software.requests.read"));
        let lookups = after.since(&before, "fuse.software.requests.lookup");
        assert!(lookups * 20 <= files.modules, "{lookups} LOOKUPs");
    }
    // Some machines take pages back that were idle for seconds; not on all nodes at the same time.
    let least = reads.iter().min().unwrap();
    assert!(least * 20 <= files.modules, "{reads:?} READs");
}

/// All below a directory, on every node, in the kernel; a second time nothing moves.
#[test]
fn warming_a_directory_twice_moves_its_bytes_once() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..60 {
        origin.file(
            &format!("top/d{}/f{number}", number % 3),
            noise(number, 30_000),
        );
    }
    origin.file("top/large", noise(99, 5 << 20));
    origin.file("top/empty", "");
    origin.file("other", noise(98, 1000));
    std::os::unix::fs::symlink("d1/f1", origin.path().join("top/link")).unwrap();
    origin.settle();
    let _kernel = KernelCache::undisturbed();
    let tree = Tree::launch(5, 2, origin.path(), &[]);
    // As users see it, and as the mount sees it.
    let done = warmed(&tree.root().point, &[&tree.path(0, "top")]);
    let bytes = 60 * 30_000 + (5 << 20);
    assert_eq!(done["plan"]["bytes"].as_u64(), Some(bytes));
    assert_eq!(done["bytes"].as_u64(), Some(5 * bytes));
    let before = tree.stats();
    let again = warmed(&tree.leaf().point, &[&"/top"]);
    assert_eq!(again["plan"], done["plan"]);
    for (now, before) in tree.stats().iter().zip(&before) {
        now.assert_nothing_upstream(before);
    }
    assert_eq!(
        checksums(&tree.path(4, "top")),
        checksums(&origin.path().join("top"))
    );
    let after = tree.leaf().stats();
    // `find` asks for the usage of the filesystem, which is cached for a few seconds only.
    assert!(after.since(&before[4], "upstream.requests") <= 1);
    let reads = after.since(&before[4], "fuse.software.requests.read");
    assert!(reads <= 3, "{reads} READs");
    let (_, total) = tree.leaf().cluster_stats();
    assert_eq!(total.get("origin.read_bytes"), bytes, "nothing else");
}

/// Missing files of a profile are counted, and an invalid plan is an error with the reason.
#[test]
fn files_that_vanished_are_counted_and_wrong_plans_are_refused() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("d/here", noise(1, 5000));
    origin.settle();
    let mount = Mount::of(origin.path());
    let scratch = Scratch::new();
    let profile = scratch.file(
        "p",
        "{\"op\":\"list\",\"path\":\"/d\"}\n{\"op\":\"list\",\"path\":\"/gone\"}\n\
         {\"op\":\"stat\",\"path\":\"/gone/x\"}\n{\"op\":\"absent\",\"path\":\"/d/none\"}\n\
         {\"op\":\"read\",\"path\":\"/d/gone\",\"size\":9,\"offset\":0,\"len\":9}\n\
         {\"op\":\"read\",\"path\":\"/d/here\",\"size\":9000,\"offset\":0,\"len\":9000}\n",
    );
    let done = warmed(&mount.point, &[&"--profile", &profile]);
    assert_eq!((&done["items"], &done["vanished"]), (&6.into(), &3.into()));
    assert_eq!(done["bytes"], 5000);

    let wrong = scratch.file(
        "wrong",
        "{\"op\":\"list\",\"path\":\"/d\"}\n{\"op\":\"fly\"}\n",
    );
    let said = run(&mut warm_command(&mount.point, &[&"--profile", &wrong]));
    assert!(said.refused().contains("line 2 of the profile"), "{said:?}");
    let said = run(&mut warm_command(&mount.point, &[&"/d", &"/nowhere"]));
    assert!(
        said.refused().contains("no /nowhere in this mount"),
        "{said:?}"
    );
    let said = run(&mut warm_command(origin.path(), &[&"/d"]));
    assert!(said.refused().contains("not a copperfs mount"), "{said:?}");
    eventually(Duration::from_secs(10), "no helper is left", || {
        helpers(&[mount.pid]) == 0
    });
}

/// Starts to warm all of `tree` on `rank` and waits until something has come.
fn under_way(tree: &Tree, rank: usize) -> (Background, BufReader<std::process::ChildStdout>) {
    let mut command = warm_command(&tree.nodes[rank].point, &[&"/"]);
    let mut warming = Background::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(warming.stdout());
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "an early end");
        let said: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(said["event"], "progress", "too fast to be stopped");
        if said["items"].as_u64() > Some(0) {
            return (warming, lines);
        }
    }
}

/// Enough to be busy with for some seconds.
fn plenty() -> Scratch {
    let origin = Scratch::new();
    for number in 0..12_000 {
        origin.file(&format!("d{}/f{number}", number % 30), noise(number, 8_000));
    }
    origin.settle();
    origin
}

fn ended(mut warming: Background) -> ExitStatus {
    let status = warming.exit_within(Duration::from_secs(60));
    status.expect("an end")
}

/// An interrupted warm ends everywhere, and nothing is left of it.
#[test]
fn an_interrupted_warm_stops_on_all_nodes() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = plenty();
    let tree = Tree::launch(7, 2, origin.path(), &[]);
    let pids: Vec<Pid> = tree.nodes.iter().map(|node| node.pid).collect();
    let (warming, lines) = under_way(&tree, 6);
    assert!(helpers(&pids) > 0);
    warming.signal(Signal::INT);
    assert_eq!(ended(warming).code(), Some(130));
    drop(lines);
    let limit = Duration::from_secs(10);
    eventually(limit, "all helpers have ended", || helpers(&pids) == 0);
    let bytes = |tree: &Tree| -> u64 {
        let stats = tree.stats();
        stats.iter().map(|node| node.get("upstream.requests")).sum()
    };
    let mut last = bytes(&tree);
    eventually(limit, "nothing moves any more", || {
        // A tree without a request for this long is idle; there is no event for that.
        std::thread::sleep(Duration::from_millis(300));
        let now = bytes(&tree);
        std::mem::replace(&mut last, now) == now
    });
    // And the tree works as before.
    let done = warmed(&tree.root().point, &[&"/d3"]);
    assert_eq!(done["nodes_warm"], 7);
}

/// A node that is killed in the middle is named; those below it find another parent, and are warm as
/// all others are.
#[test]
fn a_node_that_dies_in_the_middle_is_named_and_the_others_are_warm() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = plenty();
    let tree = Tree::launch(7, 2, origin.path(), &[]);
    let (warming, lines) = under_way(&tree, 6);
    tree.nodes[1].kill();
    let mut last = Value::Null;
    for line in lines.lines() {
        last = serde_json::from_str(&line.unwrap()).unwrap();
    }
    assert_eq!(ended(warming).code(), Some(1));
    assert_eq!(last["event"], "done", "{last}");
    let cold = last["not_warmed"].as_array().unwrap();
    assert_eq!(cold.len(), 1, "{last}");
    assert_eq!(last["nodes_warm"], 6, "{last}");
    assert_eq!(last["nodes"], 6, "{last}");
    let others: Vec<Pid> = [0, 2, 3, 4, 5, 6].map(|rank| tree.nodes[rank].pid).to_vec();
    eventually(Duration::from_secs(10), "no helper is left", || {
        helpers(&others) == 0
    });
}

/// The helper of a killed daemon ends, and a daemon that is unmounted while it warms ends, too.
#[test]
fn no_helper_outlives_its_daemon() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = plenty();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let (warming, lines) = under_way(&tree, 0);
    let daemon = tree.nodes[1].pid;
    let helpers = [children(daemon, "touch"), children(daemon, "watchdog")].concat();
    assert_eq!(helpers.len(), 2, "one of each");
    tree.nodes[1].kill();
    check(copperfs(["unmount", "--force"]).arg(&tree.root().point));
    drop(lines);
    assert!(!ended(warming).success());
    eventually(Duration::from_secs(10), "the helper has ended", || {
        helpers
            .iter()
            .all(|pid| !Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists())
    });
}

/// The recorded program's status and signals are its own; a recording is one at a time.
#[test]
fn recording_passes_on_how_the_program_ends() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("a/b", "text");
    origin.settle();
    let mount = Mount::of(origin.path());
    let scratch = Scratch::new();
    let profile = scratch.path().join("p");
    let mut program = Command::new("sh");
    program
        .arg("-c")
        .arg("cat \"$0\"; exit 7")
        .arg(mount.path("a/b"));
    // The kernel holds it already: a recording sees it all the same.
    assert_eq!(fs::read(mount.path("a/b")).unwrap(), b"text");
    let finished = record(&mount.point, &profile, &program);
    assert_eq!(finished.status.code(), Some(7), "{finished:?}");
    assert_eq!(finished.text(), "text");
    let text = fs::read_to_string(&profile).unwrap();
    assert!(
        text.contains(r#"{"op":"read","path":"/a/b","size":4,"offset":0,"len":4}"#),
        "{text}"
    );

    check(copperfs(["record", "start"]).arg(&mount.point));
    let finished = record(&mount.point, &profile, &program);
    assert!(finished.refused().contains("already"), "{finished:?}");
    drop(fs::metadata(mount.path("a/none")));
    let stop = || {
        run(copperfs(["record", "stop", "-o"])
            .arg(&profile)
            .arg(&mount.point))
    };
    assert!(stop().status.success());
    let text = fs::read_to_string(&profile).unwrap();
    assert!(
        text.contains(r#"{"op":"absent","path":"/a/none"}"#),
        "{text}"
    );
    assert!(stop().refused().contains("nothing is being recorded"));
    assert_eq!(
        fs::read_dir(scratch.path()).unwrap().count(),
        1,
        "no drafts"
    );

    let mut long = copperfs(["record", "-o"]);
    long.arg(&profile)
        .arg("-m")
        .arg(&mount.point)
        .args(["--", "sleep", "60"]);
    let mut long = Background::spawn(long.stdin(Stdio::null()));
    let children = format!("/proc/{0}/task/{0}/children", long.pid().as_raw_nonzero());
    eventually(Duration::from_secs(10), "it runs", || {
        fs::read_to_string(&children).is_ok_and(|pids| !pids.is_empty())
    });
    long.signal(Signal::TERM);
    let status = long.exit_within(Duration::from_secs(20)).expect("an end");
    assert_eq!(status.code(), Some(128 + 15));
    assert!(stop().refused().contains("nothing is being recorded"));
}

/// A recording belongs to its command: when the command ends, by any cause, the recording ends and no file
/// is left. A recording begun by `record start` can be discarded.
#[test]
fn a_recording_ends_with_its_command() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("a/b", "text");
    origin.settle();
    let mount = Mount::of(origin.path());
    let scratch = Scratch::new();
    let profile = scratch.path().join("profile");
    let recording = || {
        let mut long = copperfs(["record", "-o"]);
        long.arg(&profile)
            .arg("-m")
            .arg(&mount.point)
            .args(["--", "sleep", "60"]);
        let long = Background::spawn(long.stdin(Stdio::null()));
        let children = format!("/proc/{0}/task/{0}/children", long.pid().as_raw_nonzero());
        let mut sleep = None;
        eventually(Duration::from_secs(10), "it runs", || {
            let pids = fs::read_to_string(&children).unwrap_or_default();
            sleep = pids
                .split_whitespace()
                .next()
                .and_then(|pid| pid.parse().ok());
            sleep.is_some()
        });
        (long, Pid::from_raw(sleep.unwrap()).unwrap())
    };
    let stop = |flag: &str| {
        let mut stop = copperfs(["record", "stop"]);
        run(stop.arg(&mount.point).arg(flag))
    };
    let (mut long, sleep) = recording();
    long.signal(Signal::KILL);
    long.exit_within(Duration::from_secs(10)).expect("an end");
    kill_process(sleep, Signal::KILL).unwrap();
    let files = || fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(files(), 0, "no drafts");

    eventually(Duration::from_secs(10), "another may begin", || {
        let start = run(copperfs(["record", "start"]).arg(&mount.point));
        start.status.success()
    });
    drop(fs::metadata(mount.path("a/none")));
    let said = stop("--discard").text();
    assert!(said.contains("forgotten"), "{said}");
    assert!(stop("--discard").refused().contains("nothing is being"));
    assert_eq!(files(), 0);

    // A daemon that is unmounted meanwhile does not wait for the recorded program.
    let (mut long, sleep) = recording();
    check(copperfs(["unmount"]).arg(&mount.point));
    kill_process(sleep, Signal::KILL).unwrap();
    let status = long.exit_within(Duration::from_secs(20)).expect("an end");
    assert_eq!(
        status.code(),
        Some(1),
        "its profile is lost, and it says so"
    );
}
