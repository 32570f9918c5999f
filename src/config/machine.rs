//! Facts about this machine and this process: names, addresses, user, memory, variables.
//!
//! The only place that reads the environment. The facts are a plain value, so that code which depends on them
//! can be tested with other facts.

use super::runtime_base::{Places, bases};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Facts that configuration depends on. No `Debug`: the variables hold credentials.
#[derive(Clone, Default)]
pub struct Machine {
    /// Effective user.
    pub uid: u32,
    /// The names and addresses of this host.
    pub host_names: Vec<String>,
    /// Interfaces and their addresses.
    pub addresses: Vec<(String, IpAddr)>,
    /// Memory that this process may use, in bytes: the machine's or its cgroup's.
    pub memory_bytes: u64,
    /// Processors that this process may use: its affinity and its cgroup's quota count. 0 if unknown.
    pub processors: usize,
    /// The environment's variables that are valid UTF-8.
    pub variables: BTreeMap<String, String>,
    /// The working directory.
    pub working_dir: PathBuf,
    /// The directories that hold the runtime directories of this user's mounts: the one for new mounts
    /// first, then those that may hold earlier ones. Empty if they were not looked up.
    pub runtime_bases: Vec<PathBuf>,
}

/// Variables that `object_store` and its HTTP client understand, by their beginnings.
const STORAGE_VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

impl Machine {
    /// Collects the facts.
    #[must_use]
    pub fn inspect() -> Self {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let addresses = addresses();
        let uid = rustix::process::geteuid().as_raw();
        let own = variables.get("XDG_RUNTIME_DIR").map(Path::new);
        let places = Places {
            system: Path::new("/run"),
            own: own.filter(|dir| dir.is_absolute()),
            shared: Path::new("/tmp"),
        };
        Self {
            uid,
            runtime_bases: bases(uid, places),
            host_names: host_names(&addresses),
            addresses,
            memory_bytes: memory_bytes(Path::new("/")),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            variables,
            working_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        }
    }

    /// The variables for object stores.
    #[must_use]
    pub fn storage_environment(&self) -> BTreeMap<String, String> {
        let mut variables = self.variables.clone();
        variables.retain(|name, _| {
            let mut starts = STORAGE_VARIABLES.into_iter();
            starts.any(|start| name.starts_with(start))
        });
        variables
    }

    /// Replaces the variables for object stores.
    pub(super) fn set_storage_environment(&mut self, variables: &BTreeMap<String, String>) {
        for name in self.storage_environment().keys() {
            self.variables.remove(name);
        }
        self.variables.extend(variables.clone());
    }

    /// The environment that origins use: the variables for object stores, and the home directory, where
    /// other tools keep credentials.
    #[must_use]
    pub fn origin_environment(&self) -> BTreeMap<String, String> {
        let mut environment = self.storage_environment();
        let home = self.variables.get_key_value("HOME");
        environment.extend(home.map(|(name, value)| (name.clone(), value.clone())));
        environment
    }

    /// The value of the variable `name`, if it is set and not empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Whether output to a terminal may have colours: `NO_COLOR` is not set, and the terminal is not dumb.
    #[must_use]
    pub fn wants_colours(&self) -> bool {
        let terminal = self.variable("TERM");
        self.variable("NO_COLOR").is_none() && terminal.is_none_or(|terminal| terminal != "dumb")
    }

    /// The first of this host's names.
    #[must_use]
    pub fn host_name(&self) -> &str {
        self.host_names.first().map_or("localhost", String::as_str)
    }

    /// Where to mount if no place is named: `/copper_mnt` if it exists or this is root. Other users cannot make it. Their
    /// place is below `/tmp`, and not below `XDG_RUNTIME_DIR`, which ends with the session and is missing on other hosts.
    #[must_use]
    pub fn default_mountpoint(&self) -> PathBuf {
        let usual = PathBuf::from("/copper_mnt");
        if self.uid == 0 || usual.is_dir() {
            return usual;
        }
        let mut bases = self.runtime_bases.iter();
        let base = bases.find(|base| base.starts_with("/tmp")).cloned();
        base.unwrap_or_else(|| self.runtime_base()).join("mnt")
    }

    /// The directory that holds the runtime directories of this user's new mounts.
    #[must_use]
    pub fn runtime_base(&self) -> PathBuf {
        let usual = || PathBuf::from(format!("/tmp/copperfs-{}", self.uid));
        self.runtime_bases.first().cloned().unwrap_or_else(usual)
    }
}

/// The kernel's name of this host, and every address but loopback.
fn host_names(addresses: &[(String, IpAddr)]) -> Vec<String> {
    let uname = rustix::system::uname();
    let mut names = vec![uname.nodename().to_string_lossy().into_owned()];
    let addresses = addresses.iter().map(|(_, address)| address);
    let addresses = addresses.filter(|address| !address.is_loopback());
    names.extend(addresses.map(ToString::to_string));
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| !name.is_empty() && seen.insert(name.to_ascii_lowercase()));
    names
}

fn addresses() -> Vec<(String, IpAddr)> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((interface.interface_name, v4.or_else(v6)?))
    });
    addresses.collect()
}

/// The smaller of the machine's memory and the limits of this process's cgroup and those above it,
/// as shown by the `proc` and `sys` below `root`.
pub(super) fn memory_bytes(root: &Path) -> u64 {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let mut bytes = read(root.join("proc/meminfo"))
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    // Each line is `hierarchy:controllers:path`. Version 2 of cgroups has an empty list of controllers.
    for line in read(root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (hierarchy, files): (&str, &[&str]) = if controllers.is_empty() {
            ("sys/fs/cgroup", &["memory.max", "memory.high"])
        } else if controllers.split(',').any(|name| name == "memory") {
            ("sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
        } else {
            continue;
        };
        // From the process's own group up to the top; inside a container only the top may exist.
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            for file in files {
                let limit = read(root.join(hierarchy).join(group).join(file));
                if let Ok(limit) = limit.trim().parse::<u64>() {
                    bytes = bytes.min(limit);
                }
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_of(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        memory_bytes(root.path())
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let meminfo = ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n");
        assert_eq!(memory_of(&[meminfo]), 16 << 20);
        let v2 = ("proc/self/cgroup", "0::/job/step\n");
        assert_eq!(
            memory_of(&[
                meminfo,
                v2,
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job/memory.max", "4194304\n"),
            ]),
            4 << 20
        );
        assert_eq!(
            memory_of(&[meminfo, v2, ("sys/fs/cgroup/memory.max", "1048576\n")]),
            1 << 20
        );
        let v1 = (
            "proc/self/cgroup",
            "7:cpu:/x\n3:memory,hugetlb:/docker/abc\n",
        );
        assert_eq!(
            memory_of(&[
                meminfo,
                v1,
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712\n"
                ),
                (
                    "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes",
                    "2097152\n"
                ),
            ]),
            2 << 20
        );
        assert_eq!(
            memory_of(&[
                meminfo,
                v1,
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n")
            ]),
            8192
        );
    }

    #[test]
    fn colours_can_be_refused() {
        let wants = |name: &str, value: &str| {
            let variables = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let machine = Machine {
                variables,
                ..Machine::default()
            };
            machine.wants_colours()
        };
        assert!(wants("TERM", "xterm") && wants("NO_COLOR", "") && wants("X", "1"));
        assert!(!wants("TERM", "dumb") && !wants("NO_COLOR", "1"));
    }

    #[test]
    fn this_machine_has_a_name_and_memory() {
        let machine = Machine::inspect();
        assert!(!machine.host_name().is_empty());
        assert!(machine.memory_bytes > 1 << 20 && machine.memory_bytes < u64::MAX);
        assert!(
            machine
                .addresses
                .iter()
                .any(|(_, address)| address.is_loopback())
        );
    }
}
