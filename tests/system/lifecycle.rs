//! Starting and ending: in any order, in the foreground, with some nodes gone.

use crate::skip;
use crate::support::datasets::{SOON, quietly};
use crate::support::kernel::{mount_at, signal};
use crate::support::mount::forget_runtime_dir;
use crate::support::takeover::processes;
use crate::support::tree::Members;
use crate::support::{Background, Mount, Scratch, Tree, check, copperfs, eventually, is_root, run};
use rustix::process::{Signal, kill_process};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A child may be started before its parent, and finds it.
#[test]
fn a_child_may_be_started_first() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let members = Members::new(3, origin.path());
    std::thread::scope(|scope| {
        let members = &members;
        let last = scope.spawn(|| members.start(2, &["--request-timeout", "20s"]));
        // Long enough for the node to look for its parent, which is not there.
        std::thread::sleep(Duration::from_millis(700));
        let middle = scope.spawn(|| members.start(1, &["--request-timeout", "20s"]));
        std::thread::sleep(Duration::from_millis(700));
        let root = members.start(0, &[]);
        let mounts = [root, middle.join().unwrap(), last.join().unwrap()];
        for mount in &mounts {
            assert_eq!(fs::read(mount.path("file")).unwrap(), b"content");
        }
    });
}

/// The mount point and the data mount are made where they are missing, and taken away with the mount, unless something
/// else is in the directories above them. A mount that fails leaves nothing.
#[test]
fn missing_mount_points_are_made_and_taken_away() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let scratch = Scratch::new();
    let point = scratch.path().join("a/b/mnt");
    let data = scratch.path().join("data");
    let mount = |origin: &str| {
        let mut command = copperfs(["mount", origin]);
        command.arg(&point).arg("--data-mount").arg(&data);
        command
    };
    let refused = run(&mut mount("/no/such/directory"));
    assert!(!refused.status.success(), "{refused:?}");
    assert!(!scratch.path().join("a").exists() && !data.exists());
    check(&mut mount(&origin.path().display().to_string()));
    assert_eq!(fs::read(point.join("file")).unwrap(), b"content");
    scratch.file("a/other", "");
    check(copperfs(["unmount"]).arg(&point));
    assert!(!scratch.path().join("a/b").exists() && !data.exists());
    assert!(scratch.path().join("a/other").exists());
    forget_runtime_dir(&point, None);
}

/// In the foreground the program stays, says that it is mounted, and ends on Ctrl-C.
#[test]
fn the_foreground_ends_on_ctrl_c() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    for ending in [Signal::INT, Signal::TERM] {
        let log = fs::File::create(scratch.path().join("said")).unwrap();
        let served = format!("/=file://{}", origin.path().display());
        let mut mount = copperfs(["mount", "--foreground", "--origin", &served]);
        mount
            .arg(&point)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut daemon = Background::spawn(&mut mount);
        let said = || fs::read_to_string(scratch.path().join("said")).unwrap();
        eventually(Duration::from_secs(20), "it mounts", || {
            said().contains("is mounted")
        });
        assert_eq!(fs::read(point.join("file")).unwrap(), b"content");
        daemon.signal(ending);
        let status = daemon.exit_within(Duration::from_secs(15)).expect("an end");
        assert!(status.success(), "{status}: {}", said());
        assert!(mount_at(&point).is_none());
    }
    forget_runtime_dir(&point, None);
}

/// In the foreground the program tells a service manager that the mount answers, and that it ends.
#[test]
fn the_foreground_tells_its_service_manager() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let served = format!("/=file://{}", origin.path().display());
    for takeover in ["--takeover=true", "--takeover=false"] {
        let address = scratch.path().join(takeover);
        let socket = UnixDatagram::bind(&address).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let heard = || {
            let mut bytes = [0; 512];
            let len = socket.recv(&mut bytes).expect("a message");
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        let mut mount = copperfs(["mount", "--foreground", takeover, "--origin", &served]);
        mount.arg(&point).env("NOTIFY_SOCKET", &address);
        let mut foreground = quietly(&mut mount);
        let ready = format!("READY=1\nSTATUS={} is mounted", point.display());
        assert_eq!(heard(), ready);
        assert_eq!(fs::read(point.join("file")).unwrap(), b"content");
        foreground.signal(Signal::TERM);
        assert_eq!(heard(), "STOPPING=1\nSTATUS=ending");
        let status = foreground.exit_within(SOON).expect("an end");
        assert!(status.success(), "{status}");
    }
    forget_runtime_dir(&point, None);
}

/// Everything that a mount is started with can stand in a file or in the environment; flags go first.
#[test]
fn options_come_from_flags_environment_and_file() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = Scratch::new();
    for name in ["flag", "environment", "file"] {
        scratch.file(&format!("{name}/is"), name);
    }
    let served = |name: &str| format!("/=file://{}/{name}", scratch.path().display());
    let point = scratch.dir("mnt");
    let text = format!(
        "mountpoint = {:?}\nmemory = \"64MiB\"\npush = false\n\n\
         [[origin]]\nprefix = \"/\"\nuri = \"file://{}/file\"\n",
        point.display().to_string(),
        scratch.path().display()
    );
    let config = scratch.file("config.toml", text);
    let content = |flag: bool, environment: bool| {
        let mut mount = copperfs(["mount", "--config"]);
        mount.arg(&config);
        if flag {
            mount.args(["--origin", &served("flag")]);
        }
        if environment {
            mount.env("COPPERFS_ORIGIN", served("environment"));
        }
        let mount = Mount::at(&point, &mut mount);
        fs::read_to_string(mount.path("is")).unwrap()
    };
    assert_eq!(content(false, false), "file");
    assert_eq!(content(false, true), "environment");
    assert_eq!(content(true, true), "flag");
}

/// After a node is gone, `stats --all` reports the others and `clear` names the node that it did not
/// reach, both within a bound. `unmount --all` then unmounts the rest.
#[test]
fn a_tree_with_a_dead_node_is_reported_cleared_and_unmounted() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let tree = Tree::launch(4, 2, origin.path(), &["--request-timeout", "2s"]);
    tree.nodes[2].kill();
    eventually(Duration::from_secs(5), "it is dead", || {
        !tree.nodes[2].is_alive()
    });
    let start = Instant::now();
    for asked in [0, 3] {
        let (nodes, total) = tree.nodes[asked].cluster_stats();
        let ranks: Vec<u64> = nodes.iter().map(|node| node.get("rank")).collect();
        assert_eq!(ranks, [0, 1, 3], "asked of node {asked}");
        assert_eq!(total.get("nodes"), 3);
    }
    let cleared = run(&mut tree.root().clearing("/"));
    assert!(
        !cleared.status.success(),
        "one node was not cleared: {cleared:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(fs::read(tree.path(3, "file")).unwrap(), b"content");
    check(copperfs(["unmount", "--all"]).arg(tree.base()));
    for node in &tree.nodes {
        assert!(!node.is_alive() && !node.is_mounted(), "{node:?}");
    }
}

/// A launch where one is running already says so and leaves that one alone.
#[test]
fn a_second_launch_leaves_the_first_alone() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let served = format!("/=file://{}", origin.path().display());
    let mut again = copperfs(["launch", "--hosts", "local:2", "--origin", &served]);
    let refused = run(again.arg(tree.base()));
    assert!(refused.refused().contains("already mounted"), "{refused:?}");
    for rank in 0..2 {
        assert_eq!(fs::read(tree.path(rank, "file")).unwrap(), b"content");
    }
    check(copperfs(["unmount", "--all"]).arg(tree.base()));
    assert!(
        tree.nodes
            .iter()
            .all(|node| !node.is_alive() && !node.is_mounted())
    );
}

/// No file of a launch remains after it is unmounted, above all no secret.
#[test]
fn no_secret_stays_behind() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let dirs: Vec<_> = tree
        .nodes
        .iter()
        .map(|node| node.log.parent().unwrap().to_owned())
        .collect();
    check(copperfs(["unmount", "--all"]).arg(tree.base()));
    for dir in dirs {
        let left: Vec<_> = fs::read_dir(&dir)
            .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
            .unwrap_or_default();
        assert!(
            !left
                .iter()
                .any(|name| name.to_string_lossy().contains("secret")),
            "{left:?}"
        );
    }
}

/// A daemon's resources do not grow with the number of requests.
#[test]
fn descriptors_and_threads_do_not_pile_up() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..50 {
        origin.file(&format!("dir/f{number}"), vec![b'x'; 5000]);
    }
    let tree = Tree::launch(2, 1, origin.path(), &[]);
    let count = |what: &str| -> Vec<usize> {
        let of = |node: &crate::support::mount::Node| {
            fs::read_dir(format!("/proc/{}/{what}", node.pid.as_raw_nonzero()))
                .unwrap()
                .count()
        };
        tree.nodes.iter().map(of).collect()
    };
    let round = || {
        for number in 0..50 {
            fs::read(tree.path(1, format!("dir/f{number}"))).unwrap();
        }
        tree.leaf().cluster_stats();
        tree.leaf().clear_everywhere("/");
    };
    (0..3).for_each(|_| round());
    let before = (count("fd"), count("task"));
    (0..20).for_each(|_| round());
    // Threads for blocking calls come and go.
    eventually(Duration::from_secs(30), "all is given back", || {
        let no_more = |now: &[usize], before: &[usize]| {
            now.iter()
                .zip(before)
                .all(|(now, before)| *now <= before + 2)
        };
        no_more(&count("fd"), &before.0) && no_more(&count("task"), &before.1)
    });
}

/// In the foreground the program stays while daemons follow each other, and ends with the last one.
#[test]
fn the_foreground_follows_the_daemons() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    origin.settle();
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let served = format!("/=file://{}", origin.path().display());
    let said = || fs::read_to_string(scratch.path().join("said")).unwrap();
    let daemon = || processes("daemon", &point).first().copied();
    for ordered in [true, false] {
        let log = fs::File::create(scratch.path().join("said")).unwrap();
        let mut mount = copperfs(["mount", "--foreground", "--origin", &served]);
        mount.arg(&point).stdin(Stdio::null());
        mount.stdout(log.try_clone().unwrap()).stderr(log);
        let mut foreground = Background::spawn(&mut mount);
        let answered = |times| {
            let answers = || said().matches("the mount answers").count();
            eventually(SOON, "the mount answers", || answers() == times);
        };
        for killed in 0..2 {
            answered(killed + 1);
            assert_eq!(fs::read(point.join("file")).unwrap(), b"content");
            kill_process(daemon().unwrap(), Signal::KILL).unwrap();
        }
        if ordered {
            // At once, while the next daemon starts.
            foreground.signal(Signal::TERM);
        } else {
            answered(3);
            for pid in processes("watchdog", &point) {
                signal(pid, Signal::STOP);
                kill_process(daemon().unwrap(), Signal::KILL).unwrap();
                signal(pid, Signal::KILL);
            }
        }
        let status = foreground.exit_within(SOON).expect("an end");
        assert_eq!(status.success(), ordered, "{status}: {}", said());
        if !ordered {
            let end = "has died, and no other one follows";
            assert!(said().contains(end), "{}", said());
        }
    }
    check(copperfs(["unmount"]).arg(&point));
    assert!(processes("daemon", &point).is_empty());
    forget_runtime_dir(&point, None);
}
