//! Memory pressure: caches are given back before the kernel kills, and grow again when there is room.

use crate::skip;
use crate::support::fixture::noise;
use crate::support::kernel::anonymous_bytes;
use crate::support::{Mount, Scratch, check, copperfs, eventually, is_root};
use rustix::fs::{Advice, fadvise};
use rustix::process::Pid;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The data: more than the limit allows, and less than `--memory`.
const FILES: u64 = 40;
const FILE_BYTES: usize = 6 << 20;

/// A cgroup with a limit on memory. Removed when it is dropped, after its processes have ended or were moved out.
struct Group {
    directory: PathBuf,
    above: PathBuf,
    is_v2: bool,
}

impl Group {
    /// A group below the cgroup of this process. `Err`: why there is none.
    fn new(name: &str) -> Result<Self, String> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let path_of = |is: &dyn Fn(&str) -> bool| {
            let mut lines = own
                .lines()
                .filter_map(|line| line.split_once(':')?.1.split_once(':'));
            lines
                .find(|(controllers, _)| is(controllers))
                .map(|(_, path)| path.to_owned())
        };
        let v1 = path_of(&|names| names.split(',').any(|name| name == "memory"));
        let (above, is_v2) = match v1 {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), false),
            // A group with processes cannot have groups with controllers below it, so it is made at the top.
            None => ("/sys/fs/cgroup".to_owned(), true),
        };
        let above = match Path::new(&above).exists() {
            true => PathBuf::from(above),
            false => PathBuf::from("/sys/fs/cgroup/memory"),
        };
        let directory = above.join(format!("copperfs-test-{name}-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| format!("no cgroup: {error}"))?;
        let group = Self {
            directory,
            above,
            is_v2,
        };
        if is_v2 {
            let _there = fs::write(group.above.join("cgroup.subtree_control"), "+memory");
        }
        match group.directory.join(group.limit_file()).exists() {
            true => Ok(group),
            false => Err("the memory controller is not in cgroups here".to_owned()),
        }
    }

    fn limit_file(&self) -> &'static str {
        if self.is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        }
    }

    fn limit(&self, bytes: u64) {
        fs::write(self.directory.join(self.limit_file()), bytes.to_string()).unwrap();
        if self.is_v2 {
            let _none = fs::write(self.directory.join("memory.swap.max"), "0");
        }
    }

    fn add(&self, pid: Pid) {
        let pid = pid.as_raw_nonzero().to_string();
        fs::write(self.directory.join("cgroup.procs"), pid).unwrap();
    }

    /// The processes that the kernel has killed.
    fn kills(&self) -> u64 {
        let name = if self.is_v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = fs::read_to_string(self.directory.join(name)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap_or("0").trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Also after a failure, with the daemon in it.
        let procs = |directory: &Path| directory.join("cgroup.procs");
        let inside = fs::read_to_string(procs(&self.directory)).unwrap_or_default();
        for pid in inside.lines() {
            let _gone = fs::write(procs(&self.above), pid);
        }
        if let Err(error) = fs::remove_dir(&self.directory) {
            eprintln!("{} stays: {error}", self.directory.display());
        }
    }
}

fn origin() -> Scratch {
    let origin = Scratch::new();
    for file in 0..FILES {
        origin.file(&format!("f{file}"), noise(file, FILE_BYTES));
    }
    origin.settle();
    origin
}

/// Reads all files, and has the kernel drop their pages, so that the daemon is asked the next time too.
fn read_all(mount: &Mount) {
    for file in 0..FILES {
        let mut opened = fs::File::open(mount.path(format!("f{file}"))).unwrap();
        let mut bytes = Vec::new();
        opened.read_to_end(&mut bytes).unwrap();
        assert!(bytes == noise(file, FILE_BYTES), "other bytes in f{file}");
        fadvise(&opened, 0, None, Advice::DontNeed).unwrap();
    }
}

fn status(mount: &Mount) -> (Value, String) {
    let json = check(copperfs(["status", "--json"]).arg(&mount.node.point));
    let text = check(copperfs(["status"]).arg(&mount.node.point));
    (serde_json::from_str(&json).unwrap(), text)
}

#[test]
fn caches_are_given_back_before_the_kernel_kills() {
    if !is_root() {
        skip!("needs root");
    }
    let group = match Group::new("pressure") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let origin = origin();
    let flags = ["--memory", "1GiB", "--push=off"];
    let mount = Mount::with(origin.path(), &flags);
    group.limit(192 * MIB);
    group.add(mount.node.pid);
    // It was started without this limit, and looks again when it has something to give back.
    drop(fs::read(mount.path("f0")).unwrap());
    eventually(
        Duration::from_secs(5),
        "the daemon has seen its limit",
        || mount.stats().get("memory.limit_bytes") == 192 * MIB,
    );
    for _ in 0..3 {
        read_all(&mount);
        assert!(mount.node.is_alive(), "killed: {}", mount.node.log());
    }
    assert_eq!(group.kills(), 0);
    let stats = mount.stats();
    assert!(stats.get("memory.episodes") > 0, "{stats:?}");
    assert!(stats.get("memory.given_back_bytes") > 0);
    assert!(stats.get("memory.withheld_bytes") > 512 * MIB);
    // The bound leaves a margin, and memory that is freed goes back to the kernel.
    let anonymous = anonymous_bytes(mount.node.pid);
    assert!(anonymous < 192 * MIB, "{} MiB", anonymous / MIB);
    let (json, text) = status(&mount);
    let told = &json["memory_pressure"][0];
    assert_eq!(told["memory"], 1024 * MIB, "{json}");
    assert_eq!(
        (&told["limit"], &told["is_machine"]),
        (&(192 * MIB).into(), &false.into())
    );
    assert!(
        text.contains("memory pressure on ") && text.contains("given back since "),
        "{text}"
    );
    assert!(mount.node.log().contains("memory is short"));

    // There is room again: the bound grows, 10 s after the last shortage, by 32 MiB every 2 s.
    group.limit(4096 * MIB);
    let withheld = || mount.stats().get("memory.withheld_bytes");
    let before = withheld();
    eventually(Duration::from_secs(60), "the bound grows again", || {
        withheld() + 100 * MIB < before
    });
    mount.unmount();
}
