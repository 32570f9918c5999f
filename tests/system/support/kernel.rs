//! The kernel's side: its caches, its mounts, its processes.

use super::datasets::SOON;
use super::{Mount, eventually};
use crate::skipping::not_on_this_kernel;
use crate::waiting::wait_until_stopped;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Held while a test relies on the kernel's caches, or drops them. A lock on a file, because tests run in several
/// processes.
#[derive(Debug)]
pub struct KernelCache(File);

impl KernelCache {
    fn file() -> File {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel-cache.lock");
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .unwrap()
    }

    /// Nobody drops caches meanwhile.
    pub fn undisturbed() -> Self {
        let file = Self::file();
        file.lock_shared().unwrap();
        Self(file)
    }

    /// Nobody counts on caches meanwhile.
    pub fn to_be_dropped() -> Self {
        let file = Self::file();
        file.lock().unwrap();
        Self(file)
    }

    /// Drops clean pages, names and inodes of the whole machine. Root only.
    pub fn drop_all(&self) {
        let _held = &self.0;
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
}

/// Sends a signal. SIGSTOP has its effect when this returns.
#[track_caller]
pub fn signal(process: Pid, signal: Signal) {
    kill_process(process, signal).unwrap();
    if signal == Signal::STOP {
        wait_until_stopped(process);
    }
}

/// Whether the kernel is older than this version. What cannot be tested on it is reported with `reason`.
pub fn kernel_is_before(version: (u32, u32), reason: &str) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap());
    let own: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    let older = own < version;
    if older {
        not_on_this_kernel(reason);
    }
    older
}

/// Whether the kernel cannot read a file without the daemon (`--open passthrough`).
pub fn has_no_passthrough() -> bool {
    kernel_is_before((6, 9), "has no passthrough")
}

/// The open modes that the kernel offers.
pub fn open_modes() -> &'static [&'static str] {
    let all = &["zero-message", "tracked", "passthrough"];
    if has_no_passthrough() { &all[..2] } else { all }
}

/// Makes the kernel forget the pages of one file, so that the next read asks the daemon.
pub fn forget_pages(file: &File) {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Opens a file of more than 2,100,000 bytes so that its reads do not reach the daemon. That takes until the daemon has a
/// local file with all of its bytes.
#[track_caller]
pub fn passed_through(mount: &Mount, name: &str) -> File {
    let mut open = None;
    eventually(SOON, "an open is passed through", || {
        let file = File::open(mount.path(name)).unwrap();
        forget_pages(&file);
        let before = mount.stats();
        let mut bytes = vec![0; 100_000];
        file.read_exact_at(&mut bytes, 2_000_000).unwrap();
        let asked = mount.stats().since(&before, "fuse.software.requests.read");
        open = (asked == 0).then_some(file);
        open.is_some()
    });
    open.unwrap()
}

/// The options and the type of the topmost mount at `path`.
pub fn mount_at(path: &Path) -> Option<(String, String)> {
    mount_at_of(rustix::process::getpid(), path)
}

/// The same in the mount namespace of another process.
pub fn mount_at_of(process: Pid, path: &Path) -> Option<(String, String)> {
    let table = format!("/proc/{}/mountinfo", process.as_raw_nonzero());
    let table = fs::read_to_string(table).unwrap_or_default();
    let wanted = path.to_str()?;
    table.lines().rev().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields[4] == wanted).then(|| {
            let dash = fields.iter().position(|field| *field == "-").unwrap();
            (fields[5].to_owned(), fields[dash + 1].to_owned())
        })
    })
}

/// The children of process `of` that were started as `copperfs WORD`.
pub fn children(of: Pid, word: &str) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero()));
    let tasks = tasks.into_iter().flatten().flatten();
    let mut found = Vec::new();
    for task in tasks {
        let pids = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in pids.split_whitespace() {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if words.split(|&byte| byte == 0).nth(1) == Some(word.as_bytes()) {
                found.extend(Pid::from_raw(pid.parse().unwrap()));
            }
        }
    }
    found
}

/// How often threads of a process have waited for something.
pub fn voluntary_switches(pid: Pid) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    let of = |task: fs::DirEntry| -> Option<u64> {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        count.trim().parse().ok()
    };
    tasks.flatten().filter_map(of).sum()
}

/// Processor time that a process has used, in clock ticks.
pub fn cpu_ticks(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let rest = stat.rsplit_once(") ").unwrap().1;
    rest.split(' ')
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}

/// A line of `/proc/PID/status` in KiB.
fn status_kib(pid: Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    value.unwrap().parse().unwrap()
}

/// The most memory in bytes that the process has had, without the pages of its program and libraries: those of
/// a build for tests are many, and any of them can be dropped.
pub fn most_memory(pid: Pid) -> u64 {
    (status_kib(pid, "VmHWM") - status_kib(pid, "RssFile")) * 1024
}

/// The memory of a process without that of mapped files.
pub fn anonymous_bytes(pid: Pid) -> u64 {
    status_kib(pid, "RssAnon") * 1024
}
