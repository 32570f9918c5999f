//! Running other programs, each within a bound.

pub(crate) use crate::skipping::has_program;
use rustix::process::{Pid, Signal};
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// No program that a test runs needs longer, unless it says so.
pub const LIMIT: Duration = Duration::from_secs(120);

/// What a program has said and how it ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Finished {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless the program has failed. Returns its standard error.
    #[track_caller]
    pub fn refused(&self) -> &str {
        assert!(!self.status.success(), "it succeeded: {self:?}");
        &self.stderr
    }
}

/// Runs `command` to its end, with nothing on its standard input.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    run_within(command, LIMIT)
}

/// As [`run`]; kills it and fails if it takes longer than `limit`.
///
/// Output goes to files, not pipes: a daemon that keeps them open does not keep the test waiting.
#[track_caller]
pub fn run_within(command: &mut Command, limit: Duration) -> Finished {
    let mut stdout = tempfile::tempfile().unwrap();
    let mut stderr = tempfile::tempfile().unwrap();
    command.stdin(Stdio::null());
    command
        .stdout(stdout.try_clone().unwrap())
        .stderr(stderr.try_clone().unwrap());
    let mut child = Background::spawn(command);
    let status = child.exit_within(limit);
    drop(child);
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    let Some(status) = status else {
        let said = String::from_utf8_lossy(&stdout).into_owned();
        panic!("not done after {limit:?}: {command:?}\n{said}{stderr}");
    };
    Finished {
        status,
        stdout,
        stderr,
    }
}

/// Runs `command` and fails unless it succeeds. Returns its standard output.
#[track_caller]
pub fn check(command: &mut Command) -> String {
    let finished = run(command);
    assert!(
        finished.status.success(),
        "{command:?}: {}\n{}{}",
        finished.status,
        finished.text(),
        finished.stderr
    );
    finished.text()
}

/// Runs a shell script, `$1` and so on being `arguments`, and fails unless it succeeds.
#[track_caller]
pub fn sh(script: &str, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script, "sh"]);
    check(command.args(arguments.iter().map(AsRef::as_ref)))
}

/// The Python that `python3` stands for, and not a wrapper around it.
pub fn python() -> Command {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let ask = ["-c", "import sys; print(sys.executable)"];
        check(Command::new("python3").args(ask)).trim_end().into()
    });
    let mut command = Command::new(program);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove("PYTHONPATH");
    command
}

/// Whether [`python`] has the module `name`.
pub fn has_python_module(name: &str) -> bool {
    let script = format!("import {name}");
    run(python().args(["-c", &script])).status.success()
}

/// A command for `program` as another user and group, without any privilege.
pub fn as_user(user: u32, group: u32, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
    command.args([&user, &group, "--clear-groups", "--inh-caps=-all", program]);
    command
}

/// A child that is killed when its guard goes.
#[derive(Debug)]
pub struct Background(Child);

impl Background {
    /// Starts `command`.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Self {
        Self(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}")),
        )
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Sends it a signal. It has stopped after SIGSTOP.
    pub fn signal(&self, signal: Signal) {
        super::kernel::signal(self.pid(), signal);
    }

    /// Its standard input, if it was asked for.
    pub fn stdin(&mut self) -> std::process::ChildStdin {
        self.0.stdin.take().unwrap()
    }

    /// Its standard output, if it was asked for.
    pub fn stdout(&mut self) -> std::process::ChildStdout {
        self.0.stdout.take().unwrap()
    }

    /// How it ended, if it did within `limit`.
    pub fn exit_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        crate::waiting::exit_within(&mut self.0, limit)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }
}
