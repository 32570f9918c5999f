//! Mounts whose daemons are followed by others.

use super::datasets::SOON;
use super::kernel::{kernel_is_before, mount_at};
use super::mount::Node;
use super::{Mount, check, copperfs, eventually};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Processes of `copperfs WORD` for the mount at `point`.
pub fn processes(word: &str, point: &Path) -> Vec<Pid> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_ours = |number: &i32| {
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&word.as_bytes()) && words.contains(&point.as_os_str().as_bytes())
    };
    let found = numbers.filter(is_ours).filter_map(Pid::from_raw);
    found.collect()
}

/// Whether requests fail that were in hand when a daemon died, because the kernel does not send them again.
pub fn sends_no_request_again() -> bool {
    kernel_is_before((6, 9), "sends no request again, so those in hand fail")
}

/// The daemons of one mount, one after another.
pub struct Daemons {
    pub point: PathBuf,
    log: PathBuf,
    pub last: Pid,
}

impl Daemons {
    pub fn of(node: &Node) -> Self {
        Self {
            point: node.point.clone(),
            log: node.log.clone(),
            last: node.pid,
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How often the mount was served, by the log.
    fn answered(&self) -> usize {
        self.log().matches("the mount answers").count()
    }

    /// Kills the daemon, and waits until another one answers.
    #[track_caller]
    pub fn kill(&mut self) {
        let before = self.answered();
        kill_process(self.last, Signal::KILL).unwrap();
        eventually(SOON, "another daemon answers", || self.answered() > before);
        let daemons = processes("daemon", &self.point);
        let next = daemons.iter().find(|pid| **pid != self.last);
        self.last = *next.unwrap_or_else(|| panic!("no daemon: {daemons:?}"));
    }

    #[track_caller]
    pub fn are_gone(&self) {
        eventually(SOON, "no process is left", || {
            let words = ["daemon", "watchdog", "attend", "keep"];
            let mut words = words.iter();
            words.all(|word| processes(word, &self.point).is_empty())
        });
        assert!(mount_at(&self.point).is_none(), "{}", self.log());
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        // The guard of the mount knows the first one only.
        if !processes("daemon", &self.point).is_empty() {
            drop(copperfs(["unmount", "--force"]).arg(&self.point).output());
        }
        for pid in processes("daemon", &self.point) {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// A mount of one node, whose daemons are killed.
pub struct Followed {
    daemons: Daemons,
    pub mount: Mount,
}

impl Followed {
    #[track_caller]
    pub fn start(origin: &Path, flags: &[&str]) -> Self {
        let mount = Mount::with(origin, &[&["--takeover"], flags].concat());
        Self {
            daemons: Daemons::of(&mount),
            mount,
        }
    }

    /// Unmounts, and checks that nothing is left.
    #[track_caller]
    pub fn end(self) {
        check(copperfs(["unmount", "--force"]).arg(&self.point));
        self.are_gone();
    }
}

impl std::ops::Deref for Followed {
    type Target = Daemons;

    fn deref(&self) -> &Daemons {
        &self.daemons
    }
}

impl std::ops::DerefMut for Followed {
    fn deref_mut(&mut self) -> &mut Daemons {
        &mut self.daemons
    }
}

/// Reads a file past the page cache.
pub fn read_cold(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut bytes = vec![0; file.metadata()?.len().try_into().unwrap()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
