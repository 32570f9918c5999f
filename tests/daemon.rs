//! The life of real daemons: mounted, asked, killed, stopped, launched together, taken down.
//!
//! Needs `/dev/fuse`. A guard ends everything that a test has started, also after a failure.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends with what it did not expect"
)]

#[path = "fixtures/cleanup.rs"]
mod cleanup;
#[path = "fixtures/skipping.rs"]
mod skipping;
#[path = "fixtures/waiting.rs"]
mod waiting;

use skipping::{is_root, skipped};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use waiting::eventually;

const CONTENT: &[u8] = b"the bytes of the origin\n";

/// A directory with an origin, and a guard over every mount below it.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = cleanup::directory();
        fs::create_dir(dir.path().join("origin")).unwrap();
        fs::write(dir.path().join("origin/file"), CONTENT).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn mnt(&self) -> String {
        self.path("mnt").display().to_string()
    }

    fn origin(&self) -> String {
        format!("/data={}", self.path("origin").display())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copperfs"));
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .current_dir(self.dir.path());
        command
    }

    /// Runs the program. Returns its output if it succeeds.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the program. Returns its error text if it fails.
    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    /// Mounts; the daemon's process id.
    #[track_caller]
    fn mount(&self, more: &[&str]) -> u32 {
        let (mnt, origin) = (self.mnt(), self.origin());
        let common = ["mount", &mnt, "--origin", &origin, "--memory", "64MiB"];
        pid_in(&self.run(&[&common[..], more].concat()))
    }

    fn mounts(&self) -> Vec<String> {
        let base = self.mnt();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        paths
            .filter(|path| path.starts_with(&base))
            .map(ToOwned::to_owned)
            .collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _already_gone = self
            .command(&["unmount", "--all", "--force", &self.mnt()])
            .output();
    }
}

/// A process that is ended with the test.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn pid_in(said: &str) -> u32 {
    let (_, rest) = said.split_once("(pid ").unwrap();
    rest.split_once(',').unwrap().0.parse().unwrap()
}

/// Whether process `pid` runs. A zombie does not.
fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn a_mount_answers_and_an_unmount_ends_it() {
    let scene = Scene::new();
    let pid = scene.mount(&[]);
    assert_eq!(fs::read(scene.path("mnt/data/file")).unwrap(), CONTENT);
    let said = scene.refused(&["mount", &scene.mnt(), "--origin", &scene.origin()]);
    assert!(
        said.contains("already mounted there; copperfs unmount"),
        "{said}"
    );
    let stats: serde_json::Value =
        serde_json::from_str(&scene.run(&["stats", "--json", &scene.mnt()])).unwrap();
    assert_eq!(stats["pid"], pid);
    assert_eq!(stats["role"], "single");
    assert_eq!(stats["origin"]["opens"], 1);
    assert!(scene.run(&["stats", &scene.mnt()]).contains("from origin"));
    assert!(runs(pid));
    let said = scene.run(&["unmount", &scene.mnt()]);
    assert!(said.contains(&format!("daemon {pid} ended")), "{said}");
    assert!(!runs(pid));
    assert!(scene.mounts().is_empty());
}

#[test]
fn options_come_from_variables_and_the_file() {
    let scene = Scene::new();
    let config = scene.path("job.toml");
    fs::write(
        &config,
        format!("origin = [\"{}\"]\nmemory = \"64MiB\"\n", scene.origin()),
    )
    .unwrap();
    let output = scene
        .command(&["mount"])
        .env("COPPERFS_MOUNTPOINT", "mnt")
        .env("COPPERFS_CONFIG", "job.toml")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::read(scene.path("mnt/data/file")).unwrap(), CONTENT);
}

#[test]
fn a_dead_daemons_mount_is_cleaned_by_the_next() {
    let scene = Scene::new();
    let pid = scene.mount(&["--takeover=false"]);
    signal(pid, "KILL");
    eventually(Duration::from_secs(10), "its mount is dead", || {
        fs::metadata(scene.path("mnt")).is_err()
    });
    let said = scene.refused(&["stats", &scene.mnt()]);
    assert!(said.contains("is gone and left its mount behind"), "{said}");
    let second = scene.mount(&["--takeover=false"]);
    assert_ne!(second, pid);
    assert_eq!(scene.mounts().len(), 1);
    assert_eq!(fs::read(scene.path("mnt/data/file")).unwrap(), CONTENT);
    signal(second, "KILL");
    let said = scene.run(&["unmount", &scene.mnt()]);
    assert!(said.contains("unmounted"), "{said}");
    assert!(scene.mounts().is_empty());
}

#[test]
fn a_daemon_that_hangs_is_ended() {
    let scene = Scene::new();
    let pid = scene.mount(&[]);
    signal(pid, "STOP");
    let said = scene.refused(&["mount", &scene.mnt(), "--origin", &scene.origin()]);
    assert!(said.contains("does not answer; copperfs unmount"), "{said}");
    let said = scene.run(&["unmount", &scene.mnt()]);
    assert!(said.contains("was killed"), "{said}");
    assert!(!runs(pid));
    assert!(scene.mounts().is_empty());
}

#[test]
fn a_mount_in_use_stays_unless_force_is_given() {
    let scene = Scene::new();
    let pid = scene.mount(&[]);
    let mut inside = Command::new("sh");
    inside
        .args(["-c", "exec 3<data/file; echo in; exec sleep 60"])
        .current_dir(scene.path("mnt"))
        .stdout(Stdio::piped());
    let mut inside = Guard(inside.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(inside.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "in\n");
    let said = scene.refused(&["unmount", &scene.mnt()]);
    let user = format!(
        "in use by process {} (sleep: working directory)",
        inside.0.id()
    );
    assert!(said.contains(&user) && said.contains("--force"), "{said}");
    assert!(runs(pid) && scene.mounts().len() == 1);
    assert_eq!(fs::read(scene.path("mnt/data/file")).unwrap(), CONTENT);
    let start = Instant::now();
    let said = scene.run(&["unmount", "--force", &scene.mnt()]);
    assert!(said.contains(&format!("daemon {pid} ended")), "{said}");
    assert!(start.elapsed() < Duration::from_secs(8));
    assert!(!runs(pid) && scene.mounts().is_empty());
}

#[test]
fn in_the_foreground_until_told() {
    let scene = Scene::new();
    let (mnt, origin) = (scene.mnt(), scene.origin());
    let mut command = scene.command(&[
        "mount",
        &mnt,
        "--origin",
        &origin,
        "--memory=64MiB",
        "--foreground",
    ]);
    let mut child = Guard(
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("is mounted; Ctrl-C ends it"), "{line}");
    assert_eq!(fs::read(scene.path("mnt/data/file")).unwrap(), CONTENT);
    signal(child.0.id(), "INT");
    assert!(child.0.wait().unwrap().success());
    assert!(scene.mounts().is_empty());
}

#[test]
fn errors_of_the_daemon_are_reported_by_mount() {
    let scene = Scene::new();
    let missing = format!("/gone={}", scene.path("gone").display());
    let said = scene.refused(&["mount", &scene.mnt(), "--origin", &missing]);
    assert!(
        said.contains(&scene.path("gone").display().to_string()),
        "{said}"
    );
    assert!(said.starts_with("copperfs: "), "{said}");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let secret = scene.path("secret");
    fs::write(&secret, "0".repeat(64) + "\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let said = scene.refused(&[
        "mount",
        &scene.mnt(),
        "--origin",
        &scene.origin(),
        "--hosts",
        "a,b",
        "--rank",
        "0",
        "--listen",
        &listen,
        "--secret-file",
        "secret",
    ]);
    assert!(
        said.contains(&format!("cannot listen on {listen}")),
        "{said}"
    );
    assert!(scene.mounts().is_empty());
}

/// The daemons of a local launch, from its JSON summary.
fn daemons(summary: &str) -> Vec<(u32, PathBuf)> {
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let nodes = summary["nodes"].as_array().unwrap().iter();
    nodes
        .map(|node| {
            let pid = u32::try_from(node["pid"].as_u64().unwrap()).unwrap();
            (pid, PathBuf::from(node["log"].as_str().unwrap()))
        })
        .collect()
}

fn launch_args<'a>(mnt: &'a str, origin: &'a str) -> Vec<&'a str> {
    let hosts = ["launch", mnt, "--hosts", "local:3", "--arity", "1"];
    [&hosts[..], &["--origin", origin, "--memory", "32MiB"]].concat()
}

#[test]
fn a_local_launch_is_one_tree_with_one_secret() {
    let scene = Scene::new();
    let (mnt, origin) = (scene.mnt(), scene.origin());
    let args = launch_args(&mnt, &origin);
    let nodes = daemons(&scene.run(&[&args[..], &["--json"]].concat()));
    assert_eq!(nodes.len(), 3);
    assert_eq!(fs::read(scene.path("mnt/2/data/file")).unwrap(), CONTENT);
    let stats = scene.run(&["stats", "--all", "--json", &format!("{mnt}/1")]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let seen = stats["nodes"].as_array().unwrap();
    assert_eq!(
        seen.iter().map(|n| &n["rank"]).collect::<Vec<_>>(),
        [0, 1, 2]
    );
    assert_eq!(seen[2]["parent"], 1);
    assert_eq!(stats["total"]["origin"]["opens"], 1);
    assert_eq!(stats["missing"], serde_json::json!([]));

    let mut secrets = Vec::new();
    for (pid, log) in &nodes {
        let secret = log.with_file_name("secret");
        assert_eq!(
            fs::metadata(&secret).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let value = fs::read_to_string(&secret).unwrap();
        for shown in ["cmdline", "environ"] {
            let shown = fs::read(format!("/proc/{pid}/{shown}")).unwrap();
            assert!(!String::from_utf8_lossy(&shown).contains(value.trim()));
        }
        secrets.push((secret, value));
    }
    assert!(secrets.iter().all(|(_, value)| *value == secrets[0].1));

    let said = scene.refused(&args);
    assert!(said.contains("3 of 3 nodes did not come up"), "{said}");
    assert!(said.contains("already mounted at"), "{said}");
    assert_eq!(scene.mounts().len(), 3, "the first launch stays");

    let said = scene.run(&["unmount", "--all", &mnt]);
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(nodes.iter().all(|(pid, _)| !runs(*pid)));
    assert!(secrets.iter().all(|(path, _)| !path.exists()));
    assert!(scene.mounts().is_empty());
}

/// All commands find a mount in the same way: by a path on it, the variable, the working directory, or the directory of a
/// launch, which stands for its nodes.
#[test]
fn a_mount_is_named_in_the_same_way_for_all_commands() {
    let scene = Scene::new();
    let (mnt, place) = (scene.mnt(), scene.origin());
    scene.run(&["launch", "-n", "2", "--memory", "32MiB", &place, &mnt]);
    let rank = |args: &[&str], dir: &str, variable: &str| {
        let mut command = scene.command(&["stats", "--json"]);
        command.args(args).current_dir(scene.path(dir));
        let output = command
            .env("COPPERFS_MOUNTPOINT", variable)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        stats["rank"].as_u64()
    };
    for (args, dir, variable, due) in [
        (&["mnt"][..], "", "", 0),
        (&["mnt/1"], "", "mnt/0", 1),
        (&["mnt/1/data/file"], "", "", 1),
        (&["."], "mnt/1/data", "", 1),
        (&[], "", "mnt/1", 1),
        (&[], "", "mnt", 0),
        (&[], "mnt/1/data", "", 1),
        (&[], "mnt", "", 0),
    ] {
        assert_eq!(
            rank(args, dir, variable),
            Some(due),
            "{args:?} {dir} {variable}"
        );
    }
    for command in [
        &["stats"][..],
        &["status"],
        &["config", "show"],
        &["reload", "--dry-run"],
        &["clear", "--everything"],
        &["record", "start"],
        &["logs"],
        &["policy", "-m"],
        &["dataset", "list", "-m"],
        &["warm", "/data", "-m"],
    ] {
        scene.run(&[command, &[&mnt]].concat());
        let why = scene.refused(&[command, &["origin"]].concat());
        let expected = match command {
            ["logs"] => "no log is known for",
            _ => "origin is not a copperfs mount; mounted here: ",
        };
        assert!(why.contains(expected), "{command:?}: {why}");
    }
}

/// What a launch tells of its nodes: their options, logs and sockets. A log outlives its daemon.
#[test]
fn a_launch_tells_of_its_nodes() {
    let scene = Scene::new();
    let (mnt, place) = (scene.mnt(), scene.origin());
    scene.run(&["launch", "-n", "2", "--memory", "32MiB", &place, &mnt]);
    let shown = scene.run(&["config", "show", "--changed", "--json", &mnt]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let origin = shown["options"].as_array().unwrap().iter();
    let origin: Vec<_> = origin.filter(|option| option["key"] == "origin").collect();
    assert_eq!(origin.len(), 1, "{shown}");
    let listed: serde_json::Value = serde_json::from_str(&scene.run(&["list", "--json"])).unwrap();
    let here = format!("{mnt}/1");
    let mut listed = listed.as_array().unwrap().iter();
    let listed = listed.find(|one| one["mount"] == here.as_str()).unwrap();
    assert_eq!(
        (&listed["role"], &listed["log"].is_string()),
        (&"leaf".into(), &true)
    );
    let of_node = scene.run(&["logs", &mnt, "--node", "1", "-n", "1000"]);
    assert!(of_node.contains("origin=/data=file://"), "{of_node}");
    assert!(
        of_node.contains("the mount answers") && of_node.contains(&here),
        "{of_node}"
    );
    assert!(
        scene
            .refused(&["logs", &mnt, "--node", "2"])
            .contains("0 to 1")
    );
    let socket = scene.run(&["api", "--socket", "-m", &mnt]);
    assert!(Path::new(socket.trim()).exists());
    let policy = scene.run(&["api", "get", "/v1/allocation", "-m", &mnt]);
    assert!(policy.contains("\"policy\": \"greedy\""), "{policy}");
    assert_eq!(scene.run(&["unmount", &mnt]).lines().count(), 2);
    assert!(scene.run(&["logs", &here]).contains("the mount answers"));
    // The directory was there before the launch, and the mount points were not.
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0);
    assert!(
        scene
            .refused(&["unmount", &mnt])
            .contains("is not a copperfs mount")
    );
}

#[test]
fn a_disk_that_is_larger_than_its_filesystem_is_warned_about() {
    let scene = Scene::new();
    let disk = format!("{}:900TB", scene.path("disk").display());
    let (mnt, place) = (scene.mnt(), scene.origin());
    let output = scene
        .command(&["mount", &place, &mnt, "--disk", &disk])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("warning: --disk: 818 TiB is more than"),
        "{said}"
    );
}

#[test]
fn a_file_of_options_is_checked_without_a_mount() {
    let scene = Scene::new();
    let file = scene.path("job.toml");
    fs::write(
        &file,
        format!("origin = [\"{}\"]\nmemory = \"64MiB\"\n", scene.origin()),
    )
    .unwrap();
    let said = scene.run(&["config", "check", "job.toml"]);
    assert!(said.contains("job.toml: 2 options, all valid"), "{said}");
    for (text, why) in [
        ("memroy = \"64MiB\"", "did you mean memory?"),
        ("memory = \"64\"", "64 B is too little"),
        ("origin = [\"/data=ftp://host/x\"]", "ftp"),
        ("foreground = 3", "foreground"),
    ] {
        let origin = format!("origin = [\"{}\"]\n", scene.origin());
        let origin = if text.starts_with("origin") {
            ""
        } else {
            &origin
        };
        fs::write(&file, format!("{origin}{text}\n")).unwrap();
        let said = scene.refused(&["config", "check", "job.toml"]);
        assert!(said.contains("job.toml") && said.contains(why), "{said}");
    }
    assert!(
        scene
            .refused(&["config", "check", "none.toml"])
            .contains("none.toml")
    );
}

#[test]
fn one_node_that_fails_takes_the_launch_down() {
    let scene = Scene::new();
    fs::create_dir(scene.path("mnt/1")).unwrap();
    fs::write(scene.path("mnt/1/in-the-way"), "").unwrap();
    let said = scene.refused(&launch_args(&scene.mnt(), &scene.origin()));
    assert!(said.contains("1 of 3 nodes did not come up"), "{said}");
    assert!(said.contains("mnt/1: the directory is not empty"), "{said}");
    assert!(said.contains("the others have been taken down"), "{said}");
    assert!(scene.mounts().is_empty());
}

/// Hosts of their own (`scripts/hosts.sh`), taken away with the test.
struct Hosts {
    /// Tests of one process use one name for theirs, in turn.
    _turn: MutexGuard<'static, ()>,
}

static HOSTS: Mutex<()> = Mutex::new(());

impl Hosts {
    /// Each process has hosts of its own.
    fn prefix() -> String {
        format!("cd{}n", std::process::id())
    }

    fn script(args: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/hosts.sh");
        let mut command = Command::new(script);
        command
            .args(args)
            .env("HOSTS_PREFIX", Self::prefix())
            .env("HOSTS_NET", "10.79.0");
        command
    }

    fn run(args: &[&str]) -> Output {
        Self::script(args).output().unwrap()
    }

    fn up(count: &str) -> Self {
        let hosts = Self {
            _turn: HOSTS.lock().unwrap_or_else(PoisonError::into_inner),
        };
        cleanup::at_exit(&Self::script(&["down"]));
        let output = Self::run(&["up", count]);
        assert!(output.status.success(), "{}", text(&output));
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _already_down = Self::run(&["down"]);
    }
}

/// A script that reaches a host as ssh does: its name, and one line for the shell there.
fn remote_shell(scene: &Scene) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/hosts.sh");
    let rsh = scene.path("rsh");
    let line = format!(
        "#!/bin/sh\nHOSTS_PREFIX={} exec {} exec \"${{1#h}}\" sh -c \"$2\"\n",
        Hosts::prefix(),
        script.display()
    );
    fs::write(&rsh, line).unwrap();
    fs::set_permissions(&rsh, fs::Permissions::from_mode(0o755)).unwrap();
    rsh.display().to_string()
}

/// The datagrams of the tree's edges, the names and the ports are tried on the hosts themselves.
#[test]
fn doctor_examines_every_host() {
    if !is_root() {
        return skipped("hosts need root");
    }
    let scene = Scene::new();
    let _hosts = Hosts::up("3");
    let rsh = remote_shell(&scene);
    let doctor = ["doctor", "--hosts", "h1,h2,h3", "--ssh", &rsh];
    let said = scene.run(&doctor);
    assert!(said.contains("3 of 3 hosts are well"), "{said}");

    let firewall = "nft add table inet t; nft add chain inet t in '{ type filter hook input priority 0; }'; \
                    nft add rule inet t in udp dport 7470 drop";
    let closed = Hosts::run(&["exec", "3", "sh", "-c", firewall]);
    assert!(closed.status.success(), "{}", text(&closed));
    Hosts::run(&["crash", "2"]);
    let output = scene.command(&doctor).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    let of = |host: &str| {
        let mut lines = said.lines();
        let line = lines.find(|line| line.starts_with(host));
        line.unwrap_or_else(|| panic!("no {host}: {said}"))
    };
    assert!(
        of("h3").contains("no UDP datagrams to and from h1:7470"),
        "{said}"
    );
    assert!(of("h2").contains("FAIL"), "{said}");
    assert!(said.contains("0 of 3 hosts are well"), "{said}");
}

/// The bundle has the log and the options of a mount, also if its daemon hangs, and no secret.
#[test]
fn doctor_packs_a_report_without_secrets() {
    if !is_root() {
        return skipped("mounts need root");
    }
    let scene = Scene::new();
    let (mnt, origin) = (scene.mnt(), scene.origin());
    scene.run(&["mount", &mnt, "--origin", &origin]);
    let file = scene.path("report.tar.gz").display().to_string();
    scene.run(&["doctor", "--bundle", &file]);
    let unpacked = Command::new("tar").args(["-xzOf", &file]).output().unwrap();
    let all = String::from_utf8_lossy(&unpacked.stdout);
    for wanted in [
        "the mount answers",
        "uptime_seconds",
        "\"key\": \"memory\"",
        "fuse device",
    ] {
        assert!(all.contains(wanted), "no {wanted}: {all}");
    }
    let said = scene.refused(&["doctor", "--bundle", &file]);
    assert!(said.contains("exists already"), "{said}");
    scene.run(&["unmount", &mnt]);
}

#[test]
fn a_remote_launch_reaches_every_host() {
    if !is_root() {
        return skipped("hosts need root");
    }
    let scene = Scene::new();
    let _hosts = Hosts::up("3");
    let (mnt, origin, rsh) = (scene.mnt(), scene.origin(), remote_shell(&scene));
    fs::write(scene.path("hosts"), "# one rack\nh1\nh2\nh3\n").unwrap();
    let launch = [
        "launch", &mnt, "--hosts", "./hosts", "--ssh", &rsh, "--origin", &origin,
    ];
    let said = scene.run(&[&launch[..], &["--memory", "32MiB"]].concat());
    assert!(said.contains("3 nodes are up"), "{said}");
    let read = Hosts::run(&["exec", "3", "cat", &format!("{mnt}/data/file")]);
    assert_eq!(read.stdout, CONTENT, "{}", text(&read));
    let said = scene.run(&["unmount", "--all", &mnt]);
    assert_eq!(said.lines().count(), 3, "{said}");
    let said = scene.refused(&["unmount", "--all", &mnt]);
    assert!(said.contains("is not a copperfs mount"), "{said}");

    Hosts::run(&["crash", "2"]);
    let said = scene.refused(&[&launch[..], &["--memory", "32MiB"]].concat());
    assert!(said.contains("1 of 3 nodes did not come up"), "{said}");
    assert!(said.contains("h2: "), "{said}");
    let mounts = Hosts::run(&["exec", "3", "cat", "/proc/mounts"]);
    assert!(!String::from_utf8_lossy(&mounts.stdout).contains(&mnt));
}
