//! Places where the job's secret must not be: command lines, environments, logs, core files, and files that other users
//! may read.

use crate::skip;
use crate::support::command::{Finished, has_program, run};
use crate::support::hosts::Hosts;
use crate::support::tree::{Members, write_secret};
use crate::support::{Mount, Scratch, Tree, check, copperfs, eventually, is_root, sh};
use copperfs::config::Machine;
use copperfs::config::resolve::instance_name;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A secret in the forms in which it could be found: as the file has it, and as bytes.
struct Needle {
    hex: String,
    bytes: Vec<u8>,
}

impl Needle {
    #[track_caller]
    fn from_file(path: &Path) -> Self {
        let hex = fs::read_to_string(path).unwrap().trim_end().to_owned();
        assert_eq!(hex.len(), 64, "{}", path.display());
        let digits = (0..64).step_by(2);
        let bytes = digits
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        Self { hex, bytes }
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        // Half of it would be as bad.
        let found = |needle: &[u8]| bytes.windows(needle.len()).any(|at| at == needle);
        let lower = bytes.to_ascii_lowercase();
        let hex = &self.hex.as_bytes()[..32];
        found(&self.bytes[..16]) || lower.windows(hex.len()).any(|at| at == hex)
    }

    /// Fails if any process of this machine shows it in the list of processes.
    #[track_caller]
    fn is_in_no_process(&self) {
        for entry in fs::read_dir("/proc").unwrap() {
            let dir = entry.unwrap().path();
            for file in ["cmdline", "environ", "comm"] {
                // Gone meanwhile, a kernel's thread, or no process.
                let shown = fs::read(dir.join(file)).unwrap_or_default();
                assert!(!self.is_in(&shown), "{}/{file}", dir.display());
            }
        }
    }

    /// Fails if a file below `dir` holds it, the secret's own apart, or is open to others.
    #[track_caller]
    fn is_kept_in(&self, dir: &Path) -> usize {
        let mode = fs::metadata(dir).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{} is open to others", dir.display());
        let mut own = 0;
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            // Another test's, gone meanwhile.
            let Ok(meta) = fs::symlink_metadata(&path) else {
                continue;
            };
            assert_eq!(
                meta.mode() & 0o077,
                0,
                "{} is open to others",
                path.display()
            );
            if meta.is_dir() {
                own += self.is_kept_in(&path);
            } else if meta.is_file() && self.is_in(&fs::read(&path).unwrap_or_default()) {
                assert_eq!(path.file_name().unwrap(), "secret", "{}", path.display());
                own += 1;
            }
        }
        own
    }
}

fn runtime_dir(point: &Path, host: &str) -> PathBuf {
    let machine = Machine::inspect();
    machine.runtime_base().join(instance_name(point, host))
}

/// A whole local launch that says as much as it can, and works.
#[test]
fn a_launch_shows_its_secret_to_nobody() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("file", "content");
    let tree = Tree::launch(3, 1, origin.path(), &["--log-level", "trace"]);
    assert_eq!(fs::read(tree.path(2, "file")).unwrap(), b"content");
    let _reports = tree.leaf().cluster_stats();
    let dirs: Vec<&Path> = tree
        .nodes
        .iter()
        .map(|node| node.log.parent().unwrap())
        .collect();
    let needle = Needle::from_file(&dirs[0].join("secret"));
    needle.is_in_no_process();
    for dir in dirs {
        assert_eq!(needle.is_kept_in(dir), 1, "{}", dir.display());
    }
    assert!(tree.nodes.iter().all(|node| !node.log().is_empty()));
    // What the launch wrote down for its end.
    let records = dirs_of_launches();
    assert_eq!(needle.is_kept_in(&records), 0);
}

fn dirs_of_launches() -> PathBuf {
    let machine = Machine::inspect();
    machine.runtime_base().join("launches")
}

/// It goes to other hosts through a pipe: the arguments of the remote shell and the list of processes are recorded, and
/// searched.
#[test]
fn the_way_to_other_hosts_shows_no_secret() {
    if !is_root() {
        skip!("needs root");
    }
    if let Some(what) = ["ip", "nft", "nsenter", "unshare"]
        .into_iter()
        .find(|name| !has_program(name))
    {
        skip!("{what} is missing");
    }
    let (scratch, origin) = (Scratch::new(), Scratch::new());
    origin.file("file", "content");
    let point = scratch.dir("mnt");
    let hosts = Hosts::up(2, &point);
    let reach = hosts.reach_script(&scratch);
    let seen = scratch.path().join("seen");
    let script = format!(
        "#!/bin/sh\n(printf '%s\\n' \"$@\"; env; cat /proc/*/cmdline /proc/*/environ 2>/dev/null) \
         >> {}\nexec {} \"$@\"\n",
        seen.display(),
        reach.display()
    );
    let spy = scratch.file("spy", script);
    fs::set_permissions(&spy, fs::Permissions::from_mode(0o755)).unwrap();
    let served = format!("/=file://{}", origin.path().display());
    let mut launch = copperfs(["launch", "--hosts", "h1,h2", "--origin", &served, "--ssh"]);
    let said: Finished = run(launch.arg(&spy).arg(&point));
    assert!(said.status.success(), "{said:?}");
    let dirs = [runtime_dir(&point, "h1"), runtime_dir(&point, "h2")];
    let needle = Needle::from_file(&dirs[0].join("secret"));
    assert!(!needle.is_in(&said.stdout) && !needle.is_in(said.stderr.as_bytes()));
    let shown = fs::read(&seen).unwrap();
    assert!(shown.windows(10).any(|at| at == b"start-node"));
    assert!(!needle.is_in(&shown));
    needle.is_in_no_process();
    for dir in &dirs {
        assert_eq!(needle.is_kept_in(dir), 1, "{}", dir.display());
    }
    check(copperfs(["unmount", "--all"]).arg(&point));
    assert!(dirs.iter().all(|dir| !dir.join("secret").exists()));
}

/// `command`, with cores allowed.
fn with_cores(command: &Command) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// Files that look like core files.
fn cores(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .filter(|path| path.is_file())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("core")
        })
        .collect()
}

#[test]
fn a_daemon_that_crashes_leaves_no_core_file() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let members = Members::new(2, origin.path());
    let mount = Mount::at(&members.point(0), &mut with_cores(&members.command(0, &[])));
    let limits = format!("/proc/{}/limits", mount.pid.as_raw_nonzero());
    let limits = fs::read_to_string(limits).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let words: Vec<&str> = core.unwrap().split_whitespace().collect();
    // One byte: no file is so short, and no pipe gets a core either.
    assert_eq!(words[4..6], ["1", "unlimited"], "{core:?}");

    // Whether a crash leaves anything here at all.
    let scratch = Scratch::new();
    let crash = "cd \"$1\" && ulimit -c unlimited && (sh -c 'kill -ABRT $$' || true)";
    sh(crash, &[&scratch.path()]);
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if cores(scratch.path()).is_empty() {
        // Not a failure: only the limit above counts.
        eprintln!(
            "a crash leaves no file here anyway (core_pattern {})",
            pattern.trim_end()
        );
    }
    // A relative pattern is relative to the daemon's own directory.
    let cwd = fs::read_link(format!("/proc/{}/cwd", mount.pid.as_raw_nonzero())).unwrap();
    let before = cores(&cwd);
    mount.signal(Signal::ABORT);
    eventually(Duration::from_secs(20), "the daemon ends", || {
        !mount.is_alive()
    });
    assert_eq!(cores(&cwd), before, "a core file was left behind");
}

/// A secret that others could have read or written is refused, with a remedy.
#[test]
fn a_secret_that_others_may_read_is_refused_with_what_to_do() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let members = Members::new(2, origin.path());
    let scratch = Scratch::new();
    let file = scratch.path().join("secret");
    write_secret(&file);
    let name = file.display().to_string();
    let flags = ["--secret-file", &name];
    let needle = Needle::from_file(&file);
    for mode in [0o644, 0o640, 0o604, 0o660, 0o606, 0o610, 0o601, 0o4644] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let refused = Mount::try_at(&members.point(0), &mut members.command(0, &flags));
        let refused = refused.expect_err("it was mounted");
        let said = refused.refused();
        assert!(
            said.contains("chmod 600") && said.contains(&name),
            "{mode:o}: {said}"
        );
        assert!(said.contains(&format!("{mode:04o}")), "{mode:o}: {said}");
        assert!(!needle.is_in(said.as_bytes()));
    }
    // For its owner alone it is good, to be written or not.
    for mode in [0o400, 0o600] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mount = Mount::at(&members.point(0), &mut members.command(0, &flags));
        mount.unmount();
    }
    // What it holds is not shown when it is wrong, either.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, format!("{}0\n", needle.hex)).unwrap();
    let refused = Mount::try_at(&members.point(0), &mut members.command(0, &flags));
    let refused = refused.expect_err("it was mounted");
    assert!(
        refused.refused().contains("not a job secret"),
        "{refused:?}"
    );
    assert!(!needle.is_in(refused.refused().as_bytes()));
}
