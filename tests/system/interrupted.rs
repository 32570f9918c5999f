//! A test that is killed, by its runner or by a user, leaves no mount, process or namespace.

use crate::skip;
use crate::support::hosts::Job;
use crate::support::kernel::mount_at;
use crate::support::{Background, Mount, Scratch, eventually};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Names the file in which the killed test records its mounts and processes.
const REPORT: &str = "COPPERFS_TEST_REPORT";

#[test]
#[ignore = "started by a_killed_test_leaves_no_mount_daemon_host_or_file"]
fn inner_test_that_is_killed() {
    let Some(report) = std::env::var_os(REPORT) else {
        return;
    };
    let origin = Scratch::new();
    origin.file("file", "content");
    let mount = Mount::of(origin.path());
    let job = Job::new(1, &[]);
    job.mount(1);
    let made = [
        origin.path(),
        mount.point.parent().unwrap(),
        job.scratch.path(),
    ];
    let made: Vec<_> = made.iter().map(|path| path.to_str().unwrap()).collect();
    let unfinished = Path::new(&report).with_extension("new");
    let (prefix, point) = (job.hosts.prefix(), mount.point.display());
    let text = format!("{prefix}\n{point}\n{}", made.join("\n"));
    fs::write(&unfinished, text).unwrap();
    fs::rename(&unfinished, &report).unwrap();
    std::thread::sleep(Duration::from_secs(100));
}

#[test]
fn a_killed_test_leaves_no_mount_daemon_host_or_file() {
    if let Some(missing) = crate::support::hosts::missing() {
        skip!("hosts need {missing}");
    }
    let scratch = Scratch::new();
    let report = scratch.path().join("report");
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args([
        "--exact",
        "interrupted::inner_test_that_is_killed",
        "--ignored",
    ])
    .env(REPORT, &report)
    .stdin(Stdio::null())
    .stdout(Stdio::null())
    .process_group(0);
    let test = Background::spawn(&mut test);
    eventually(
        Duration::from_secs(40),
        "the test has made its things",
        || report.exists(),
    );
    let text = fs::read_to_string(&report).unwrap();
    let mut lines = text.lines();
    let (prefix, point) = (lines.next().unwrap(), Path::new(lines.next().unwrap()));
    let made: Vec<PathBuf> = lines.map(Into::into).collect();
    let namespace = Path::new("/run/netns").join(format!("{prefix}1"));
    assert!(namespace.exists());
    assert!(mount_at(point).is_some());
    assert!(!processes_that_name(&made).is_empty());

    // As runners do it: the whole group.
    rustix::process::kill_process_group(test.pid(), rustix::process::Signal::KILL).unwrap();
    let what = std::fmt::from_fn(|f| {
        let processes = processes_that_name(&made);
        write!(
            f,
            "all of {made:?} and {namespace:?} is gone; there run {processes:?}"
        )
    });
    eventually(Duration::from_secs(30), what, || {
        let there = made.iter().any(|path| path.exists()) || namespace.exists();
        !there && mount_at(point).is_none() && processes_that_name(&made).is_empty()
    });
}

/// Command lines in which one of `paths` occurs.
fn processes_that_name(paths: &[PathBuf]) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| {
            paths
                .iter()
                .any(|path| line.contains(path.to_str().unwrap()))
        })
        .collect()
}
