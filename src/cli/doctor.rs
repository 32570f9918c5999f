//! `copperfs doctor`: checks of this machine, each with a fix.
//!
//! Every check is a function of a few facts. The facts are gathered separately, so that the checks can be
//! tested without the machine. Origins are checked on request (`origins`).

mod bundle;
mod hosts;
mod origins;
mod probe;

pub use probe::probe;

use super::launch::remote::ReachArgs;
use super::say;
use crate::config::{Machine, wrapped};
use crate::daemon::{mountpoint, runtime_dir};
use crate::origin::{Finding, Outcome};
use clap::Args;
use copperfs_overlay::Cipher;
use copperfs_policy::amounts::ByteSize;
use rustix::io::Errno;
use std::fs;
use std::path::{Path, PathBuf};

/// The size of a socket's buffer that a node requests.
const SOCKET_BYTES_WANTED: u64 = 4 << 20;
/// The number of descriptors that a node may need.
const FILES_WANTED: u64 = 4096;
/// The oldest kernel that works: copperfs uses `openat2` to confine paths to an origin.
const KERNEL_OLDEST: (u32, u32) = (5, 6);
/// The oldest kernel that is tested (`scripts/test-kernel`).
const KERNEL_TESTED: (u32, u32) = (6, 1);
/// The bytes per second that a core encrypts if it has AES instructions, at least.
const CIPHER_WANTED: f64 = 1e9;
/// The usual mount point of fusectl.
const FUSECTL: &str = "/sys/fs/fuse/connections";
/// The first kernel with FUSE passthrough.
const KERNEL_PASSTHROUGH: (u32, u32) = (6, 9);

/// The first kernel that mounts EROFS images from files.
const KERNEL_IMAGES: (u32, u32) = (6, 12);

/// The first kernel with shared mappings of files that are open for direct reads.
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
    /// Look at these hosts instead, at the same time: the list is that of a launch. Each one needs copperfs of the same
    /// version, a clock that is right, and UDP to and from its neighbour in the tree. Takes 10 s
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["origins", "config", "bundle"])]
    hosts: Option<String>,
    #[command(flatten)]
    reach: ReachArgs,
    /// Collect what a report of a problem needs in this new file, a .tar.gz: these checks, and of each mount of this user
    /// its log, counters and options. Secrets are left out, and no mount is touched
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The facts that the checks depend on.
#[derive(Debug, Clone)]
struct Facts {
    uid: u32,
    kernel: String,
    /// Whether `/dev/fuse` opens for reading and writing.
    device: Result<(), Errno>,
    fusermount: Option<PathBuf>,
    user_allow_other: bool,
    rmem_max: Option<u64>,
    wmem_max: Option<u64>,
    files_max: u64,
    /// Whether the kernel was built with passthrough, if its configuration can be seen.
    passthrough: Option<bool>,
    sys_admin: bool,
    /// Whether the kernel has EROFS, built in or as a module.
    erofs: bool,
    /// Whether fusectl is mounted at [`FUSECTL`].
    fusectl: bool,
    memory_bytes: u64,
    machine_bytes: u64,
    runtime_dir: PathBuf,
    runtime_dir_error: Option<String>,
    /// The libraries of the cipher, with the bytes that they encrypt per second on one core, the fastest first.
    ciphers: Vec<(&'static str, f64)>,
}

/// Prints every check. Returns whether a mount can work.
///
/// # Errors
/// The configuration cannot be understood; the output cannot be written as JSON.
pub fn doctor(args: DoctorArgs) -> anyhow::Result<bool> {
    let machine = Machine::inspect();
    if let Some(list) = &args.hosts {
        return hosts::look(list, &args, &machine);
    }
    let (as_json, bundle) = (args.json, args.bundle.clone());
    let mut checks = judge(&Facts::gather(&machine));
    if !args.origins.is_empty() || args.config.is_some() {
        checks.extend(origins::look(args, &machine)?);
    }
    if as_json {
        say(serde_json::to_string_pretty(&checks)?);
    } else {
        for check in &checks {
            let mark = match check.outcome {
                Outcome::Good => "ok  ",
                Outcome::Poor => "warn",
                Outcome::Bad => "FAIL",
            };
            say(format_args!("{mark}  {:<16}  {}", check.what, check.found));
            for line in wrapped(&check.fix, 74).lines() {
                say(format_args!("      {line}"));
            }
        }
    }
    if let Some(file) = bundle {
        let file = machine.working_dir.join(file);
        let mounts = bundle::collect(&file, &checks, &machine)?;
        if !as_json {
            say(format_args!(
                "wrote {}: these checks, and logs, counters and options of {mounts} mounts",
                file.display()
            ));
        }
    }
    Ok(checks.iter().all(|check| check.outcome != Outcome::Bad))
}

impl Facts {
    fn gather(machine: &Machine) -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let number = |path: &str| read(path)?.trim().parse().ok();
        // The value of a line `name: value`.
        let field = |path: &str, name: &str| {
            let text = read(path)?;
            let value = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim().to_owned())
        };
        let kib = |text: String| text.strip_suffix("kB")?.trim().parse::<u64>().ok();
        let total = field("/proc/meminfo", "MemTotal:").and_then(kib);
        let mask = |text: String| u64::from_str_radix(&text, 16).ok();
        let capabilities = field("/proc/self/status", "CapEff:").and_then(mask);
        let device = fs::File::options().read(true).write(true).open("/dev/fuse");
        let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let path = machine.variables.get("PATH");
        let path = path.map_or("/usr/bin:/bin", String::as_str).split(':');
        let mut fusermounts = path.map(|dir| Path::new(dir).join("fusermount3"));
        let fuse = read("/etc/fuse.conf").unwrap_or_default();
        let runtime_dir = machine.runtime_base();
        let uname = rustix::system::uname();
        let kernel = uname.release().to_string_lossy().into_owned();
        let built = read(&format!("/boot/config-{kernel}"));
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        Self {
            uid: machine.uid,
            device: device.map(drop).map_err(errno),
            fusermount: fusermounts.find(|program| program.is_file()),
            user_allow_other: fuse.lines().any(|line| line.trim() == "user_allow_other"),
            rmem_max: number("/proc/sys/net/core/rmem_max"),
            wmem_max: number("/proc/sys/net/core/wmem_max"),
            files_max: files.maximum.unwrap_or(u64::MAX),
            passthrough: built.map(|text| text.contains("CONFIG_FUSE_PASSTHROUGH=y")),
            // `CAP_SYS_ADMIN` is bit 21.
            sys_admin: capabilities.is_some_and(|mask| mask & (1 << 21) != 0),
            erofs: has_erofs(&kernel),
            fusectl: mountpoint::kind_at(Path::new(FUSECTL)).is_some(),
            memory_bytes: machine.memory_bytes,
            machine_bytes: total.map_or(machine.memory_bytes, |kib| kib * 1024),
            runtime_dir_error: (runtime_dir::prepare(&runtime_dir).err())
                .map(|error| error.to_string()),
            runtime_dir,
            kernel,
            ciphers: ciphers(),
        }
    }
}

/// Whether the kernel has EROFS: loaded, or as a module that mounting loads.
fn has_erofs(kernel: &str) -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(kernel);
    let lists = ["modules.dep", "modules.builtin"].map(|name| fs::read(modules.join(name)));
    let lists = lists.into_iter().flatten();
    let mut names = lists.map(|list| String::from_utf8_lossy(&list).contains("/erofs.ko"));
    known.split_whitespace().any(|word| word == "erofs") || names.any(|found| found)
}

/// Measures the libraries of the cipher.
fn ciphers() -> Vec<(&'static str, f64)> {
    let measured = |cipher: Cipher| Some((cipher.name(), cipher.bytes_per_second()?));
    let mut ciphers: Vec<_> = Cipher::ALL.into_iter().filter_map(measured).collect();
    ciphers.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ciphers
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let checks = [
        ("fuse device", device(facts)),
        ("kernel", kernel(facts)),
        ("fusermount3", fusermount(facts)),
        ("user_allow_other", allow_other(facts)),
        ("socket receive", socket("rmem_max", facts.rmem_max)),
        ("socket send", socket("wmem_max", facts.wmem_max)),
        ("open files", files(facts)),
        ("passthrough", passthrough(facts)),
        ("images", images(facts)),
        ("data mount", data_mount(facts)),
        ("killed daemons", killed(facts)),
        ("memory", memory(facts)),
        ("runtime dir", runtime(facts)),
        ("cipher", cipher(facts)),
    ];
    let named = |(what, check)| Finding { what, ..check };
    checks.into_iter().map(named).collect()
}

/// A check before it has a name.
fn unnamed(outcome: Outcome, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding {
        what: "",
        outcome,
        found: found.into(),
        fix: fix.into(),
    }
}

fn ok(found: impl Into<String>) -> Finding {
    unnamed(Outcome::Good, found, "")
}

fn warn(found: impl Into<String>, fix: impl Into<String>) -> Finding {
    unnamed(Outcome::Poor, found, fix)
}

fn fail(found: impl Into<String>, fix: impl Into<String>) -> Finding {
    unnamed(Outcome::Bad, found, fix)
}

fn device(facts: &Facts) -> Finding {
    match facts.device {
        Ok(()) => ok("/dev/fuse opens"),
        Err(why @ Errno::ACCESS) if facts.uid != 0 && facts.fusermount.is_some() => fail(
            format!("/dev/fuse: {why}"),
            "this user must be able to read and write it: chmod 0666 /dev/fuse, as udev does on most \
             systems",
        ),
        Err(why) => fail(
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

fn kernel(facts: &Facts) -> Finding {
    match version(&facts.kernel) {
        Some(found) if found >= KERNEL_TESTED => ok(&facts.kernel),
        Some(found) if found < KERNEL_OLDEST => fail(
            &facts.kernel,
            "Linux 5.6 is the oldest kernel that serves; use 6.1 or newer, which are tested",
        ),
        _ => warn(
            &facts.kernel,
            "tested on Linux 6.1 and newer; 5.6 is the oldest kernel that serves",
        ),
    }
}

fn fusermount(facts: &Facts) -> Finding {
    match &facts.fusermount {
        Some(path) => ok(path.display().to_string()),
        None if facts.uid == 0 => warn(
            "not found; root mounts without it",
            "for other users: apt-get install fuse3",
        ),
        None => fail("not found", "apt-get install fuse3"),
    }
}

fn allow_other(facts: &Facts) -> Finding {
    match (facts.user_allow_other, facts.uid) {
        (true, _) => ok("set in /etc/fuse.conf"),
        (false, 0) => ok("not set (not needed by root)"),
        (false, _) => warn(
            "not set: --allow-other will be refused",
            "needed only to share your mounts with other users: add the line user_allow_other to \
             /etc/fuse.conf",
        ),
    }
}

fn socket(key: &str, found: Option<u64>) -> Finding {
    match found {
        Some(bytes) if bytes >= SOCKET_BYTES_WANTED => ok(format!("{key} {}", ByteSize(bytes))),
        Some(bytes) => warn(
            format!("{key} {}", ByteSize(bytes)),
            format!(
                "transfers between nodes are faster with more: sysctl -w \
                 net.core.{key}={SOCKET_BYTES_WANTED}, and in /etc/sysctl.d to keep it"
            ),
        ),
        // The namespace of a container does not show it.
        None => warn(format!("{key} cannot be seen"), "look on the host"),
    }
}

fn files(facts: &Facts) -> Finding {
    match facts.files_max {
        u64::MAX => ok("unlimited"),
        most @ FILES_WANTED.. => ok(format!("up to {most}")),
        most => warn(
            format!("up to {most}"),
            format!("raise the hard limit to {FILES_WANTED}: ulimit -Hn, or limits.conf"),
        ),
    }
}

fn images(facts: &Facts) -> Finding {
    let new_enough = version(&facts.kernel).is_some_and(|v| v >= KERNEL_IMAGES);
    if !new_enough || !facts.erofs {
        warn(
            "the kernel mounts none",
            "only --front erofs needs it: Linux 6.12 with CONFIG_EROFS_FS and \
             CONFIG_EROFS_FS_BACKED_BY_FILE; modprobe erofs",
        )
    } else if facts.sys_admin {
        ok("the kernel has EROFS, and this user may mount")
    } else {
        warn(
            "this user may not mount them",
            "only --front erofs needs it: root runs copperfs attend for the mounts of other users",
        )
    }
}

fn data_mount(facts: &Facts) -> Finding {
    if version(&facts.kernel).is_some_and(|v| v >= KERNEL_DIRECT_MAPPING) {
        return ok("with or without the page cache");
    }
    warn(
        "no shared mappings without the page cache",
        "only --page-cache=false with programs that map files shared needs it: Linux 6.6",
    )
}

fn killed(facts: &Facts) -> Finding {
    if facts.fusectl || facts.sys_admin {
        return ok("their mounts can be cut off");
    }
    warn(
        "one that hangs in the kernel can only be freed by root",
        "as root: mount -t fusectl none /sys/fs/fuse/connections, as systemd does",
    )
}

fn passthrough(facts: &Facts) -> Finding {
    let new_enough = version(&facts.kernel).is_some_and(|v| v >= KERNEL_PASSTHROUGH);
    if !new_enough || facts.passthrough == Some(false) {
        warn(
            "the kernel has none",
            "only --open passthrough needs it: Linux 6.9 with CONFIG_FUSE_PASSTHROUGH",
        )
    } else if facts.sys_admin {
        ok("available")
    } else {
        warn(
            "not permitted",
            "only --open passthrough needs it: it takes CAP_SYS_ADMIN",
        )
    }
}

fn memory(facts: &Facts) -> Finding {
    let default = ByteSize(facts.memory_bytes / 20);
    let (own, machine) = (ByteSize(facts.memory_bytes), ByteSize(facts.machine_bytes));
    let found = match own.0 < machine.0 {
        true => format!("{own} by the cgroup, of {machine}; caches get {default} by default"),
        false => format!("{own}; caches get {default} by default"),
    };
    if default.0 >= 64 << 20 {
        return ok(found);
    }
    let fix = "for more than a small software tree, give --memory explicitly";
    warn(found, fix)
}

fn runtime(facts: &Facts) -> Finding {
    match &facts.runtime_dir_error {
        None => ok(facts.runtime_dir.display().to_string()),
        Some(why) => fail(
            why,
            "set XDG_RUNTIME_DIR to a directory of yours, or give --runtime-dir",
        ),
    }
}

fn cipher(facts: &Facts) -> Finding {
    let shown = |(library, speed): &(&str, f64)| format!("{library} {:.1} GB/s", speed / 1e9);
    let found: Vec<String> = facts.ciphers.iter().map(shown).collect();
    let found = format!(
        "AES-128-GCM on one core, the first is used: {}",
        found.join(", ")
    );
    let fastest = facts.ciphers.first().map_or(0.0, |(_, speed)| *speed);
    if fastest >= CIPHER_WANTED {
        return ok(found);
    }
    let fix = "transfers between nodes will be slow. In a virtual machine, let it see the processor's AES instructions \
               (aes, pclmulqdq)";
    warn(found, fix)
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
            erofs: true,
            memory_bytes: 64 << 30,
            machine_bytes: 64 << 30,
            fusectl: true,
            runtime_dir: "/run/user/1000/copperfs".into(),
            runtime_dir_error: None,
            ciphers: vec![("ring", 7.3e9), ("aws-lc-rs", 3.4e9)],
        }
    }

    fn verdicts(facts: &Facts) -> Vec<(&'static str, Outcome)> {
        let checks = judge(facts);
        for check in &checks {
            assert_eq!(
                check.fix.is_empty(),
                check.outcome == Outcome::Good,
                "{check:?}"
            );
        }
        let bad = checks.iter().filter(|check| check.outcome != Outcome::Good);
        bad.map(|check| (check.what, check.outcome)).collect()
    }

    #[test]
    fn a_good_machine_is_all_ok() {
        assert_eq!(verdicts(&good()), []);
    }

    #[test]
    fn each_lack_has_its_fix() {
        let facts = Facts {
            device: Err(Errno::NOENT),
            rmem_max: Some(212_992),
            files_max: 1024,
            passthrough: Some(false),
            erofs: false,
            memory_bytes: 512 << 20,
            ciphers: vec![("ring", 2e8)],
            ..good()
        };
        assert_eq!(
            verdicts(&facts),
            [
                ("fuse device", Outcome::Bad),
                ("socket receive", Outcome::Poor),
                ("open files", Outcome::Poor),
                ("passthrough", Outcome::Poor),
                ("images", Outcome::Poor),
                ("memory", Outcome::Poor),
                ("cipher", Outcome::Poor)
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
        assert_eq!(verdicts(&facts).len(), 9);
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
