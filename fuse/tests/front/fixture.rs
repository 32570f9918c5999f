//! A mounted [`Memory`], and child processes that do not outlive their test.

use super::memory::Memory;
use crate::skipping::{has_program, is_root};
use crate::waiting::exit_within;
use copperfs_fuse::{Mount, MountOptions, mount};
use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Unmounts and removes its directory when dropped, even if the test fails.
pub(crate) struct Fixture {
    // Dropped in this order: the mount ends hanging requests, and the directory must be unmounted first.
    pub(crate) mount: Mount,
    pub(crate) memory: Arc<Memory>,
    pub(crate) runtime: Runtime,
    pub(crate) directory: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new(fill: impl FnOnce(&Memory)) -> Self {
        Self::with(|_| {}, fill)
    }

    pub(crate) fn with(adjust: impl FnOnce(&mut MountOptions), fill: impl FnOnce(&Memory)) -> Self {
        assert!(
            can_mount(),
            "these tests mount: run them as root or with fusermount3"
        );
        let directory = crate::cleanup::directory();
        let memory = Memory::new();
        fill(&memory);
        let runtime = runtime();
        let mut options = MountOptions::new(directory.path());
        options.counters = Arc::clone(&memory.counters);
        adjust(&mut options);
        let backend = Arc::clone(&memory);
        let mount = mount(backend, options, runtime.handle()).unwrap();
        Self {
            mount,
            memory,
            runtime,
            directory,
        }
    }

    pub(crate) fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.mount.mountpoint().join(name.as_ref())
    }

    pub(crate) fn root(&self) -> &Path {
        self.mount.mountpoint()
    }

    pub(crate) fn requests(&self, op: copperfs_fuse::Op) -> u64 {
        self.mount.counters().requests(op)
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn can_mount() -> bool {
    is_root() || has_program("fusermount3")
}

/// A child process that is killed when dropped.
pub(crate) struct Reaped(pub(crate) Child);

impl Reaped {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Returns its exit status if it ends within `time`.
    pub(crate) fn ends_within(&mut self, time: Duration) -> Option<ExitStatus> {
        exit_within(&mut self.0, time)
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // An error means that it has ended already.
        self.0.kill().ok();
        // Bounded: a child that waits for the mount ends only after the unmount, which comes later.
        self.ends_within(Duration::from_secs(2));
    }
}

#[expect(clippy::disallowed_methods, reason = "tests wait for other processes")]
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// An operation that takes longer counts as hanging. Generous, because the machine may be busy.
pub(crate) const HUNG: Duration = Duration::from_secs(60);

/// Limit for conditions that an idle machine reaches much sooner.
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// Runs a command to its end, for 30 s at most.
pub(crate) fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Reaped(command.spawn().unwrap());
    // The output fits into the buffer of a pipe, so the child never waits for a reader.
    let status = child
        .ends_within(Duration::from_secs(30))
        .unwrap_or_else(|| panic!("{command:?} does not end"));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut stdout)
        .unwrap();
    child
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_end(&mut stderr)
        .unwrap();
    Output {
        status,
        stdout,
        stderr,
    }
}

/// Runs a Python program in the mount and returns its output.
pub(crate) fn python(root: &Path, program: &str) -> String {
    let output = run(Command::new("python3")
        .arg("-c")
        .arg(program)
        .current_dir(root));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
