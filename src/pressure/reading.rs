//! Reads how much memory there is: of the machine, of this process's cgroup, and of those above it.
//!
//! Slurm, systemd and Kubernetes set limits on any of these cgroups, so the tightest one counts. Everything is read
//! again at each look, because limits change and processes are moved. Files that are missing are no limits.

use super::policy::Usage;
use std::path::{Path, PathBuf};

/// A limit of version 1 from which on there is none: the kernel shows the largest multiple of the page size.
const NO_LIMIT: u64 = 1 << 62;

/// What the kernel shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Reading {
    /// The limit with the least room in relation to its margin.
    pub(super) usage: Option<Usage>,
    /// Processes that were killed in these cgroups, as far as it is known.
    pub(super) kills: u64,
}

impl Reading {
    /// Reads the `proc` and `sys` below `root`. Takes less than a millisecond.
    pub(super) fn take(root: &Path) -> Self {
        let groups = groups(root);
        let group = groups.iter().filter_map(Group::usage);
        let usages = machine(root).into_iter().chain(group);
        // A tight limit counts more than a large one with the same room.
        let tightness =
            |usage: &Usage| u128::from(usage.room()) * 1000 / u128::from(usage.margin().max(1));
        Self {
            usage: usages.min_by_key(tightness),
            kills: groups.iter().map(Group::kills).sum(),
        }
    }
}

/// The directory of a cgroup.
pub(super) struct Group {
    directory: PathBuf,
    is_v2: bool,
}

/// This process's cgroups with memory, from its own up to the top. Inside a container only the top may exist.
pub(super) fn groups(root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    // Each line is `hierarchy:controllers:path`. Version 2 of cgroups has an empty list of controllers.
    for line in read(root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let hierarchy = root.join(if is_v2 {
            "sys/fs/cgroup"
        } else {
            "sys/fs/cgroup/memory"
        });
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let directory = hierarchy.join(group);
            groups.push(Group { directory, is_v2 });
        }
    }
    groups
}

impl Group {
    /// The file under `name` whose readers are told of events, of version 2.
    pub(super) fn pollable(&self, name: &str) -> Option<PathBuf> {
        self.is_v2.then(|| self.directory.join(name))
    }

    fn usage(&self) -> Option<Usage> {
        let number = |name: &str| read(self.directory.join(name)).trim().parse::<u64>().ok();
        let (limits, current, prefix): (&[&str], _, _) = match self.is_v2 {
            // Above `memory.high` the kernel slows processes down and reclaims, so it counts as a limit.
            true => (&["memory.max", "memory.high"], "memory.current", ""),
            false => (
                &["memory.limit_in_bytes"],
                "memory.usage_in_bytes",
                "total_",
            ),
        };
        let limits = limits.iter().filter_map(|name| number(name));
        let limit = limits.min().filter(|limit| *limit < NO_LIMIT)?;
        let stat = read(self.directory.join("memory.stat"));
        let of = |name: &str| field(&stat, &format!("{prefix}{name}")).unwrap_or(0);
        // Pages of files in use are reclaimed too before a process is killed, but not without slowing readers down.
        let reclaimable = of("inactive_file") + of("active_file") / 2;
        let used = number(current)?.saturating_sub(reclaimable);
        Some(Usage {
            limit,
            used,
            is_machine: false,
        })
    }

    fn kills(&self) -> u64 {
        let name = if self.is_v2 {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        field(&read(self.directory.join(name)), "oom_kill").unwrap_or(0)
    }
}

fn machine(root: &Path) -> Option<Usage> {
    let text = read(root.join("proc/meminfo"));
    let bytes = |name: &str| Some(field(&text, name)?.saturating_mul(1024));
    let limit = bytes("MemTotal:")?;
    let used = limit.saturating_sub(bytes("MemAvailable:")?);
    Some(Usage {
        limit,
        used,
        is_machine: true,
    })
}

/// The number after `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| {
        (words.next()? == name)
            .then(|| words.next()?.parse().ok())
            .flatten()
    })
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reading(files: &[(&str, &str)]) -> Reading {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Reading::take(root.path())
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n",
    );

    #[test]
    fn without_cgroups_the_machine_counts() {
        assert_eq!(reading(&[]), Reading::default());
        let usage = Usage {
            limit: 8192 * MIB,
            used: 4096 * MIB,
            is_machine: true,
        };
        assert_eq!(reading(&[MEMINFO]).usage, Some(usage));
    }

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let seen = reading(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ("sys/fs/cgroup/job/step/memory.high", "max\n"),
            ("sys/fs/cgroup/job/step/memory.current", "1048576\n"),
            (
                "sys/fs/cgroup/job/step/memory.events",
                "low 0\noom 2\noom_kill 1\n",
            ),
            ("sys/fs/cgroup/job/memory.max", "max\n"),
            ("sys/fs/cgroup/job/memory.high", "1073741824\n"),
            ("sys/fs/cgroup/job/memory.current", "1069547520\n"),
            (
                "sys/fs/cgroup/job/memory.stat",
                "anon 5\ninactive_file 104857600\nactive_file 2097152\n",
            ),
            ("sys/fs/cgroup/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/memory.current", "1069547520\n"),
        ]);
        let usage = Usage {
            limit: 1024 * MIB,
            used: (1020 - 101) * MIB,
            is_machine: false,
        };
        assert_eq!(
            seen,
            Reading {
                usage: Some(usage),
                kills: 1
            }
        );
    }

    #[test]
    fn version_1_is_read_too() {
        let group = "sys/fs/cgroup/memory/slurm/job";
        let file = |name: &str| format!("{group}/{name}");
        let seen = reading(&[
            MEMINFO,
            (
                "proc/self/cgroup",
                "7:cpu:/x\n3:memory,hugetlb:/slurm/job\n0::/\n",
            ),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9999999999\n"),
            (&file("memory.limit_in_bytes"), "1073741824\n"),
            (&file("memory.usage_in_bytes"), "1073741824\n"),
            (
                &file("memory.stat"),
                "inactive_file 1\ntotal_inactive_file 268435456\n",
            ),
            (
                &file("memory.oom_control"),
                "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            ),
        ]);
        let usage = Usage {
            limit: 1024 * MIB,
            used: 768 * MIB,
            is_machine: false,
        };
        assert_eq!(
            seen,
            Reading {
                usage: Some(usage),
                kills: 3
            }
        );
    }

    #[test]
    fn this_machine_has_memory() {
        let usage = Reading::take(Path::new("/")).usage.unwrap();
        assert!(usage.limit > 0 && usage.used > 0 && usage.used < usage.limit);
    }
}
