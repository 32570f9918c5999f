//! Hosts made by `scripts/hosts.sh`, taken away with their guard, also if the test is killed.

use super::command::{self, Finished, LIMIT, has_program};
use super::fixture::packages;
use super::mount::{copperfs, forget_runtime_dir};
use super::tree::write_secret;
use super::{Scratch, Stats, is_root};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// What keeps this machine from making hosts, if anything does.
pub fn missing() -> Option<&'static str> {
    if !is_root() {
        return Some("root's rights");
    }
    ["ip", "nft", "nsenter", "unshare"]
        .into_iter()
        .find(|name| !has_program(name))
}

/// A tree of arity 2 over hosts h1, h2, ..., each with a mount of the files of [`packages`].
#[derive(Debug)]
pub struct Job {
    pub hosts: Hosts,
    pub point: PathBuf,
    pub scratch: Scratch,
    list: PathBuf,
    secret: PathBuf,
    options: Vec<String>,
}

impl Job {
    /// A tree over `count` hosts; every node gets `options` too. `count` + 1 is a host that is not
    /// listed.
    #[track_caller]
    pub fn new(count: usize, options: &[&str]) -> Self {
        let scratch = Scratch::new();
        let secret = scratch.path().join("secret");
        write_secret(&secret);
        let names: String = (1..=count).map(|number| format!("h{number}\n")).collect();
        let list = scratch.file("hosts", format!("# in the order of the tree\n{names}"));
        let point = scratch.dir("mnt");
        Self {
            hosts: Hosts::up(count + 1, &point),
            point,
            list,
            secret,
            options: options.iter().map(ToString::to_string).collect(),
            scratch,
        }
    }

    /// Mounts on host `number`, which finds its rank by its name. Returns the daemon's pid there.
    #[track_caller]
    pub fn mount(&self, number: usize) -> String {
        let said = command::check(&mut self.mount_command(number));
        let pid = said
            .split_once("(pid ")
            .and_then(|(_, rest)| rest.split_once(','));
        pid.unwrap_or_else(|| panic!("{said}")).0.to_owned()
    }

    /// Mounts on hosts `numbers`, side by side.
    #[track_caller]
    pub fn mount_all(&self, numbers: impl IntoIterator<Item = usize>) {
        let mounting: Vec<_> = numbers
            .into_iter()
            .map(|number| self.mount_command(number).spawn().unwrap())
            .collect();
        for mut mount in mounting {
            assert!(mount.wait().unwrap().success());
        }
    }

    pub fn mount_command(&self, number: usize) -> Command {
        let origin = format!("/=file://{}", packages().path.display());
        let words = ["mount", "--arity", "2", "--origin", &origin];
        let mut mount = self.hosts.copperfs(number, &words);
        mount
            .arg("--hosts")
            .arg(&self.list)
            .arg("--secret-file")
            .arg(&self.secret);
        mount.args(["--request-timeout", "4s"]);
        mount.args(&self.options).arg(&self.point);
        mount
    }

    /// Runs a shell script on host `number`; its `$1` is the mount point.
    #[track_caller]
    pub fn run(&self, number: usize, script: &str) -> Finished {
        command::run(&mut self.shell(number, script))
    }

    /// As [`Job::run`], to be started by the caller.
    pub fn shell(&self, number: usize, script: &str) -> Command {
        let mut run = self.hosts.command(number, "bash");
        run.args(["-c", script, "sh"]).arg(&self.point);
        run
    }

    #[track_caller]
    pub fn stats(&self, number: usize) -> Stats {
        let mut ask = self.hosts.copperfs(number, &["stats", "--json"]);
        Stats(serde_json::from_str(&command::check(ask.arg(&self.point))).unwrap())
    }
}

/// Hosts 1 to N, named h1 to hN, with addresses of their own.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    count: usize,
    /// Their mount points, to remove the mounts of killed daemons.
    point: PathBuf,
}

impl Hosts {
    /// Starts `count` hosts beside those of other tests, all of which will mount at `point`.
    #[track_caller]
    pub fn up(count: usize, point: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let hosts = Self {
            prefix: format!("ct{}x{number}n", std::process::id()),
            count,
            point: point.to_owned(),
        };
        crate::cleanup::at_exit(hosts.script().arg("down"));
        hosts.control(&["up", &count.to_string()]);
        hosts
    }

    /// How the names of their network namespaces begin; the number of the host follows.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn script(&self) -> Command {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/hosts.sh");
        let mut command = Command::new(path);
        command.env("HOSTS_PREFIX", &self.prefix);
        command
    }

    /// Runs a command of `hosts.sh`.
    #[track_caller]
    pub fn control(&self, arguments: &[&str]) {
        command::check(self.script().args(arguments));
    }

    /// A program on host `number`.
    pub fn command(&self, number: usize, program: &str) -> Command {
        let mut command = self.script();
        command.args(["exec", &number.to_string(), program]);
        command
    }

    /// The program under test on host `number`.
    pub fn copperfs(&self, number: usize, arguments: &[&str]) -> Command {
        let plain = copperfs(arguments);
        let mut command = self.command(number, plain.get_program().to_str().unwrap());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(arguments);
        command
    }

    /// A script that reaches a host as `ssh` does: by its name, with one command line.
    pub fn reach_script(&self, scratch: &Scratch) -> PathBuf {
        let hosts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/hosts.sh");
        let text = format!(
            "#!/bin/sh\nhost=$1; shift\nexport HOSTS_PREFIX={}\nexec {} exec \"${{host#h}}\" sh -c \"$*\"\n",
            self.prefix,
            hosts.display()
        );
        let path = scratch.file("reach", text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let down = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            command::run_within(self.script().arg("down"), LIMIT)
        }));
        if !down.is_ok_and(|finished| finished.status.success()) {
            eprintln!("hosts {} are left behind", self.prefix);
        }
        for number in 1..=self.count {
            forget_runtime_dir(&self.point, Some(&format!("h{number}")));
        }
    }
}
