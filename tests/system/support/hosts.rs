//! Hosts made by `scripts/hosts.sh`, taken away when their guard goes.

use super::Scratch;
use super::command::{self, LIMIT};
use super::mount::copperfs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Hosts 1 to N, named h1 to hN, with addresses of their own.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
}

impl Hosts {
    /// Starts `count` hosts beside those of other tests.
    #[track_caller]
    pub fn up(count: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let hosts = Self {
            prefix: format!("ct{}x{number}n", std::process::id()),
        };
        hosts.control(&["up", &count.to_string()]);
        hosts
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
    }
}
