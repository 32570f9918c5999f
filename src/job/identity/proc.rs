//! Reads `/proc`. Values that cannot be read are `None` or empty.

use crate::process::Stat;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A process. Its start time distinguishes it from a later process with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its start time in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub started: u64,
}

/// The maximum number of bytes read from an environment. Linux allows a quarter of the stack's
/// limit, usually 2 MiB; jobs have about 20 KiB. The rest is ignored.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;

/// The maximum number of bytes read from the other files: `stat` and `status` have about 2 KiB,
/// `cgroup` a line for each of a dozen hierarchies.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// A `/proc` filesystem: the machine's, or a test's.
#[derive(Debug, Clone)]
pub struct Proc(PathBuf);

impl Default for Proc {
    fn default() -> Self {
        Self::at(Path::new("/proc"))
    }
}

impl Proc {
    /// Creates one with the given root directory.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// Returns whether `process` still runs. A zombie does not.
    #[must_use]
    pub fn runs(&self, process: Process) -> bool {
        let stat = Stat::parse(&self.text(process.pid, "stat"));
        stat.is_some_and(|stat| stat.started == process.started && !stat.is_dead())
    }

    /// Returns the number of a thread's process.
    pub(super) fn process_of(&self, tid: u32) -> Option<u32> {
        self.status(tid, "Tgid:")
    }

    /// Returns the real user of a process, who started it. The real user counts even if the program
    /// runs with another user's rights, because that user writes the environment.
    pub(super) fn user(&self, pid: u32) -> Option<u32> {
        self.status(pid, "Uid:")
    }

    /// Returns a process, or a thread as if it were one, and the number of its parent. `None` for 0, the
    /// parent of processes whose parent is outside of this namespace.
    pub(crate) fn process(&self, pid: u32) -> Option<(Process, u32)> {
        if pid == 0 {
            return None;
        }
        let stat = Stat::parse(&self.text(pid, "stat"))?;
        let started = stat.started;
        Some((Process { pid, started }, stat.parent))
    }

    /// Returns the environment: `NAME=value`, each followed by a zero byte.
    pub(super) fn environment(&self, pid: u32) -> Vec<u8> {
        self.bytes(pid, "environ", ENVIRONMENT_BYTES_MAX)
    }

    /// Returns the cgroups, a line for each hierarchy.
    pub(super) fn cgroup(&self, pid: u32) -> String {
        self.text(pid, "cgroup")
    }

    /// Returns the first number of the line that begins with `key` in `/proc/PID/status`.
    fn status(&self, pid: u32, key: &str) -> Option<u32> {
        let status = self.text(pid, "status");
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    fn text(&self, pid: u32, file: &str) -> String {
        let bytes = self.bytes(pid, file, TEXT_BYTES_MAX);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn bytes(&self, pid: u32, file: &str, max: u64) -> Vec<u8> {
        let path = self.0.join(pid.to_string()).join(file);
        let mut bytes = Vec::new();
        // The process may have ended, or may belong to another user. A part is better than nothing.
        if let Ok(file) = File::open(path) {
            let _part_is_better_than_nothing = file.take(max).read_to_end(&mut bytes);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let text = "77 (a ) R 1 (b) S 12 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 5533 1 1\n";
        let stat = Stat {
            state: 'S',
            parent: 12,
            started: 5533,
        };
        assert_eq!(Stat::parse(text), Some(stat));
    }

    #[test]
    fn this_very_process_is_found() {
        let proc = Proc::default();
        let pid = std::process::id();
        let (process, parent) = proc.process(pid).unwrap();
        assert!(parent != 0 && process.started > 0);
        assert!(proc.runs(process));
        let later = Process {
            started: process.started + 1,
            ..process
        };
        assert!(!proc.runs(later));
        assert_eq!(proc.process_of(pid), Some(pid));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _nothing = Stat::parse(&text);
        }
    }
}
