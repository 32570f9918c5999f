//! `copperfs doctor`: what this machine offers and lacks, each with its fix.
//!
//! Every check is a function of a few facts; gathering the facts is apart, so that the judgement is
//! tested without the machine. Origins are looked at on request (`origins`).

mod origins;

use super::{say, wrapped};
use crate::config::Machine;
use crate::daemon::{mountpoint, runtime_dir};
use clap::Args;
use copperfs_policy::amounts::Bytes;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// What a node wants of a socket's buffer.
const SOCKET_BYTES_WANTED: u64 = 4 << 20;
/// What a node wants of descriptors.
const FILES_WANTED: u64 = 4096;
/// The oldest kernel that works: copperfs uses `openat2` to confine paths to an origin.
const KERNEL_OLDEST: (u32, u32) = (5, 6);
/// The oldest kernel that is tested (`scripts/test-kernel`).
const KERNEL_TESTED: (u32, u32) = (6, 1);
/// Where fusectl is mounted, if it is.
const FUSECTL: &str = "/sys/fs/fuse/connections";
/// The kernel with FUSE passthrough.
const KERNEL_PASSTHROUGH: (u32, u32) = (6, 9);

/// The kernel that maps files shared which are open for direct reads.
const KERNEL_DIRECT_MAPPING: (u32, u32) = (6, 6);

/// What to look at.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// Look at this origin too, as a mount with the same variables would; may be repeated
    #[arg(long = "origin", value_name = "PREFIX=URI")]
    origins: Vec<String>,
    /// Look at the origins of this configuration file too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// A mount will not work.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; empty if nothing.
    pub fix: String,
}

/// What is known of the machine.
#[derive(Debug, Clone)]
struct Facts {
    uid: u32,
    kernel: String,
    /// Whether `/dev/fuse` opens for reading and writing, or why not.
    device: Result<(), String>,
    fusermount: Option<PathBuf>,
    user_allow_other: bool,
    rmem_max: Option<u64>,
    wmem_max: Option<u64>,
    files_max: u64,
    /// Whether the kernel was built with passthrough, if its configuration can be seen.
    passthrough: Option<bool>,
    sys_admin: bool,
    /// Whether fusectl is mounted where all look for it.
    fusectl: bool,
    memory_bytes: u64,
    machine_bytes: u64,
    runtime_dir: PathBuf,
    runtime_dir_error: Option<String>,
}

/// Prints every check; whether a mount can work.
///
/// # Errors
/// The configuration cannot be understood; the output cannot be written as JSON.
pub fn doctor(args: DoctorArgs) -> anyhow::Result<bool> {
    let machine = Machine::inspect();
    let as_json = args.json;
    let mut checks = judge(&Facts::gather(&machine));
    if !args.origins.is_empty() || args.config.is_some() {
        checks.extend(origins::look(args, &machine)?);
    }
    let worst = checks.iter().map(|check| check.verdict).max();
    if as_json {
        say(serde_json::to_string_pretty(&checks)?);
    } else {
        for check in &checks {
            let mark = match check.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            say(format_args!("{mark}  {:<16}  {}", check.name, check.found));
            if !check.fix.is_empty() {
                for line in wrapped(&check.fix, 74).lines() {
                    say(format_args!("      {line}"));
                }
            }
        }
    }
    Ok(worst != Some(Verdict::Fail))
}

impl Facts {
    fn gather(machine: &Machine) -> Self {
        let read_number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .map(drop)
            .map_err(|error| error.to_string());
        let path = machine
            .variables
            .get("PATH")
            .map_or("/usr/bin:/bin", String::as_str);
        let runtime_dir = machine.runtime_base();
        let kernel = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        Self {
            uid: machine.uid,
            device,
            fusermount: path
                .split(':')
                .map(|dir| Path::new(dir).join("fusermount3"))
                .find(|program| program.is_file()),
            user_allow_other: fs::read_to_string("/etc/fuse.conf")
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
            rmem_max: read_number("/proc/sys/net/core/rmem_max"),
            wmem_max: read_number("/proc/sys/net/core/wmem_max"),
            files_max: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .maximum
                .unwrap_or(u64::MAX),
            passthrough: fs::read_to_string(format!("/boot/config-{kernel}"))
                .ok()
                .map(|text| text.contains("CONFIG_FUSE_PASSTHROUGH=y")),
            sys_admin: has_sys_admin(),
            fusectl: mountpoint::kind_at(Path::new(FUSECTL)).is_some(),
            memory_bytes: machine.memory_bytes,
            machine_bytes: read_meminfo().unwrap_or(machine.memory_bytes),
            runtime_dir_error: runtime_dir::prepare(&runtime_dir)
                .err()
                .map(|error| error.to_string()),
            runtime_dir,
            kernel,
        }
    }
}

fn read_meminfo() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Whether this process has `CAP_SYS_ADMIN`, bit 21.
fn has_sys_admin() -> bool {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << 21) != 0)
}

fn judge(facts: &Facts) -> Vec<Check> {
    vec![
        device(facts),
        kernel(facts),
        fusermount(facts),
        allow_other(facts),
        socket("socket receive", "rmem_max", facts.rmem_max),
        socket("socket send", "wmem_max", facts.wmem_max),
        files(facts),
        passthrough(facts),
        data_mount(facts),
        killed(facts),
        memory(facts),
        runtime(facts),
    ]
}

fn check(name: &'static str, verdict: Verdict, found: impl Into<String>, fix: &str) -> Check {
    Check {
        name,
        verdict,
        found: found.into(),
        fix: fix.to_owned(),
    }
}

fn device(facts: &Facts) -> Check {
    const NAME: &str = "fuse device";
    match &facts.device {
        Ok(()) => check(NAME, Verdict::Ok, "/dev/fuse opens", ""),
        Err(why) if facts.uid != 0 && why.contains("denied") && facts.fusermount.is_some() => {
            check(
                NAME,
                Verdict::Fail,
                format!("/dev/fuse: {why}"),
                "fusermount3 opens it for you only if you may too: chmod 0666 /dev/fuse, as udev does \
             on most systems",
            )
        }
        Err(why) => check(
            NAME,
            Verdict::Fail,
            format!("/dev/fuse: {why}"),
            "load the module (modprobe fuse); in a container, start it with --device /dev/fuse \
             --cap-add SYS_ADMIN",
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(facts: &Facts) -> Check {
    const NAME: &str = "kernel";
    match version(&facts.kernel) {
        Some(found) if found >= KERNEL_TESTED => check(NAME, Verdict::Ok, &facts.kernel, ""),
        Some(found) if found < KERNEL_OLDEST => check(
            NAME,
            Verdict::Fail,
            &facts.kernel,
            "Linux 5.6 is the oldest kernel that serves; use 6.1 or newer, which are tested",
        ),
        _ => check(
            NAME,
            Verdict::Warn,
            &facts.kernel,
            "tested on Linux 6.1 and newer; 5.6 is the oldest kernel that serves",
        ),
    }
}

fn fusermount(facts: &Facts) -> Check {
    const NAME: &str = "fusermount3";
    match &facts.fusermount {
        Some(path) => check(NAME, Verdict::Ok, path.display().to_string(), ""),
        None if facts.uid == 0 => check(
            NAME,
            Verdict::Warn,
            "not found; root mounts without it",
            "for other users: apt-get install fuse3",
        ),
        None => check(NAME, Verdict::Fail, "not found", "apt-get install fuse3"),
    }
}

fn allow_other(facts: &Facts) -> Check {
    const NAME: &str = "user_allow_other";
    if facts.user_allow_other {
        check(NAME, Verdict::Ok, "set in /etc/fuse.conf", "")
    } else if facts.uid == 0 {
        check(NAME, Verdict::Ok, "not set; root needs it not", "")
    } else {
        check(
            NAME,
            Verdict::Warn,
            "not set: --allow-other will be refused",
            "only if other users shall use your mounts: add the line user_allow_other to \
             /etc/fuse.conf",
        )
    }
}

fn socket(name: &'static str, key: &str, found: Option<u64>) -> Check {
    match found {
        Some(bytes) if bytes >= SOCKET_BYTES_WANTED => {
            check(name, Verdict::Ok, format!("{key} {}", Bytes(bytes)), "")
        }
        Some(bytes) => check(
            name,
            Verdict::Warn,
            format!("{key} {}", Bytes(bytes)),
            &format!(
                "transfers between nodes are faster with more: sysctl -w \
                 net.core.{key}={SOCKET_BYTES_WANTED}, and in /etc/sysctl.d to keep it"
            ),
        ),
        // The namespace of a container does not show it.
        None => check(
            name,
            Verdict::Warn,
            format!("{key} cannot be seen"),
            "look on the host",
        ),
    }
}

fn files(facts: &Facts) -> Check {
    const NAME: &str = "open files";
    let found = if facts.files_max == u64::MAX {
        "unlimited".to_owned()
    } else {
        format!("up to {}", facts.files_max)
    };
    if facts.files_max >= FILES_WANTED {
        check(NAME, Verdict::Ok, found, "")
    } else {
        let fix = format!("raise the hard limit to {FILES_WANTED}: ulimit -Hn, or limits.conf");
        check(NAME, Verdict::Warn, found, &fix)
    }
}

fn data_mount(facts: &Facts) -> Check {
    const NAME: &str = "data mount";
    if version(&facts.kernel).is_some_and(|v| v >= KERNEL_DIRECT_MAPPING) {
        return check(NAME, Verdict::Ok, "with or without the page cache", "");
    }
    check(
        NAME,
        Verdict::Warn,
        "no shared mappings without the page cache",
        "only --page-cache=false with programs that map files shared needs it: Linux 6.6",
    )
}

fn killed(facts: &Facts) -> Check {
    const NAME: &str = "killed daemons";
    if facts.fusectl || facts.sys_admin {
        return check(NAME, Verdict::Ok, "their mounts can be cut off", "");
    }
    check(
        NAME,
        Verdict::Warn,
        "one that hangs in the kernel can only be freed by root",
        "as root: mount -t fusectl none /sys/fs/fuse/connections, as systemd does",
    )
}

fn passthrough(facts: &Facts) -> Check {
    const NAME: &str = "passthrough";
    let new_enough = version(&facts.kernel).is_some_and(|v| v >= KERNEL_PASSTHROUGH);
    if !new_enough || facts.passthrough == Some(false) {
        check(
            NAME,
            Verdict::Warn,
            "the kernel has none",
            "only --open passthrough needs it: Linux 6.9 with CONFIG_FUSE_PASSTHROUGH",
        )
    } else if facts.sys_admin {
        check(NAME, Verdict::Ok, "available", "")
    } else {
        check(
            NAME,
            Verdict::Warn,
            "not permitted",
            "only --open passthrough needs it: it takes CAP_SYS_ADMIN",
        )
    }
}

fn memory(facts: &Facts) -> Check {
    const NAME: &str = "memory";
    let default = Bytes(facts.memory_bytes / 20);
    let found = if facts.memory_bytes < facts.machine_bytes {
        format!(
            "{} by the cgroup, of {}; caches get {default} by default",
            Bytes(facts.memory_bytes),
            Bytes(facts.machine_bytes)
        )
    } else {
        format!(
            "{}; caches get {default} by default",
            Bytes(facts.memory_bytes)
        )
    };
    if facts.memory_bytes / 20 >= 64 << 20 {
        check(NAME, Verdict::Ok, found, "")
    } else {
        let fix = "for more than a small software tree, give --memory explicitly";
        check(NAME, Verdict::Warn, found, fix)
    }
}

fn runtime(facts: &Facts) -> Check {
    const NAME: &str = "runtime dir";
    match &facts.runtime_dir_error {
        None => check(
            NAME,
            Verdict::Ok,
            facts.runtime_dir.display().to_string(),
            "",
        ),
        Some(why) => check(
            NAME,
            Verdict::Fail,
            why,
            "set XDG_RUNTIME_DIR to a directory of yours, or give --runtime-dir",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        Facts {
            uid: 1000,
            kernel: "6.18.5-amd64".into(),
            device: Ok(()),
            fusermount: Some("/usr/bin/fusermount3".into()),
            user_allow_other: true,
            rmem_max: Some(8 << 20),
            wmem_max: Some(8 << 20),
            files_max: 1 << 20,
            passthrough: Some(true),
            sys_admin: true,
            memory_bytes: 64 << 30,
            machine_bytes: 64 << 30,
            fusectl: true,
            runtime_dir: "/run/user/1000/copperfs".into(),
            runtime_dir_error: None,
        }
    }

    fn verdicts(facts: &Facts) -> Vec<(&'static str, Verdict)> {
        let checks = judge(facts);
        for check in &checks {
            assert_eq!(
                check.fix.is_empty(),
                check.verdict == Verdict::Ok,
                "{check:?}"
            );
        }
        let bad = checks.iter().filter(|check| check.verdict != Verdict::Ok);
        bad.map(|check| (check.name, check.verdict)).collect()
    }

    #[test]
    fn a_good_machine_is_all_ok() {
        assert_eq!(verdicts(&good()), []);
    }

    #[test]
    fn each_lack_has_its_fix() {
        let facts = Facts {
            device: Err("No such file or directory (os error 2)".into()),
            rmem_max: Some(212_992),
            files_max: 1024,
            passthrough: Some(false),
            memory_bytes: 512 << 20,
            ..good()
        };
        assert_eq!(
            verdicts(&facts),
            [
                ("fuse device", Verdict::Fail),
                ("socket receive", Verdict::Warn),
                ("open files", Verdict::Warn),
                ("passthrough", Verdict::Warn),
                ("memory", Verdict::Warn)
            ]
        );
        let facts = Facts {
            fusermount: None,
            user_allow_other: false,
            kernel: "4.18.0".into(),
            sys_admin: false,
            fusectl: false,
            runtime_dir_error: Some("belongs to another".into()),
            wmem_max: None,
            ..good()
        };
        assert_eq!(verdicts(&facts).len(), 8);
        assert_eq!(
            verdicts(&Facts {
                uid: 0,
                fusermount: None,
                ..good()
            })
            .len(),
            1
        );
    }

    #[test]
    fn kernel_versions() {
        assert_eq!(version("6.18.5-amd64"), Some((6, 18)));
        assert_eq!(version("5.14.0-427.el9.x86_64"), Some((5, 14)));
        assert_eq!(version("linux"), None);
    }
}
