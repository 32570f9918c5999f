//! What `/proc` says about processes. Everything is `None` or empty that cannot be read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A process, told from a later one with the same number by when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the machine did: field 22 of `/proc/PID/stat`.
    pub started: u64,
}

/// How much of an environment is read. Linux lets one be a quarter of the stack's limit, 2 MiB as a
/// rule; those of jobs have some 20 KiB. What lies beyond is not seen.
const ENVIRONMENT_BYTES_MAX: u64 = 256 << 10;

/// How much is read of the other files: `stat` and `status` have some 2 KiB, `cgroup` a line for each
/// of a dozen hierarchies.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// A `/proc`: the machine's, or one that a test has made.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at(Path::new("/proc"))
    }
}

impl Proc {
    /// The one below `root`.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether `process` still runs. One that is dead and not yet waited for does not.
    #[must_use]
    pub fn runs(&self, process: Process) -> bool {
        self.stat(process.pid)
            .is_some_and(|stat| stat.started == process.started && !stat.dead)
    }

    /// A thread, as if it were a process.
    pub(super) fn thread(&self, tid: u32) -> Option<Process> {
        let stat = self.stat(tid)?;
        Some(Process {
            pid: tid,
            started: stat.started,
        })
    }

    /// The number of the process that a thread belongs to.
    pub(super) fn process_of(&self, tid: u32) -> Option<u32> {
        let status = self.text(tid, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        line.trim().parse().ok()
    }

    /// The real user of a process, which started it. It counts even if the program runs with another user's
    /// rights, because this user writes the environment.
    pub(super) fn user(&self, pid: u32) -> Option<u32> {
        let status = self.text(pid, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    /// A process, and the number of its parent. `None` for 0, the parent of those that have none here.
    pub(super) fn process(&self, pid: u32) -> Option<(Process, u32)> {
        if pid == 0 {
            return None;
        }
        let stat = self.stat(pid)?;
        let process = Process {
            pid,
            started: stat.started,
        };
        Some((process, stat.parent))
    }

    /// The variables, `NAME=value`, each with a zero byte behind it.
    pub(super) fn environment(&self, pid: u32) -> Vec<u8> {
        self.bytes(pid, "environ", ENVIRONMENT_BYTES_MAX)
    }

    /// The cgroups, a line for each hierarchy.
    pub(super) fn cgroup(&self, pid: u32) -> String {
        self.text(pid, "cgroup")
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        Stat::parse(&self.text(pid, "stat"))
    }

    fn text(&self, pid: u32, file: &str) -> String {
        let bytes = self.bytes(pid, file, TEXT_BYTES_MAX);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn bytes(&self, pid: u32, file: &str, max: u64) -> Vec<u8> {
        let path = self.root.join(pid.to_string()).join(file);
        let mut bytes = Vec::new();
        // A process that has gone meanwhile, or another user's: nothing is known of it.
        if let Ok(file) = File::open(path) {
            let _part_is_better_than_nothing = file.take(max).read_to_end(&mut bytes);
        }
        bytes
    }
}

/// Of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    dead: bool,
    parent: u32,
    started: u64,
}

impl Stat {
    /// `PID (NAME) STATE PPID … STARTED …`; the name may hold blanks and brackets.
    fn parse(text: &str) -> Option<Self> {
        let (_, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // Fields 3 and 4 are taken; 22 is wanted.
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self {
            dead: matches!(state, "Z" | "X" | "x"),
            parent,
            started,
        })
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
            dead: false,
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
