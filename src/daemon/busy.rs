//! Finds the processes that use a mount, as fuser(1) does, without a request to the filesystem.
//!
//! A process uses a mount by an open file, its working directory, its root, its program or a mapping. Files
//! are matched by the device number of their filesystem, which is the same in every mount namespace.
//! Processes are listed as `/proc` shows them, which includes those of nested pid namespaces. Nothing here
//! waits for a daemon: files are opened with `O_PATH`, and only the device number is read, which the kernel
//! holds.
//!
//! Not found are processes of other users, unless this process is root, and users within the kernel, such
//! as a loop device. Only the kernel's use count ([`copperfs_fuse::mount_use`]) includes these.

use crate::process::Companion;
use copperfs_fuse::mountinfo::{self, MountEntry};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, statx};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A filesystem's device number, as mountinfo shows it.
pub type Device = (u32, u32);

/// One user of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// A process.
    Process {
        /// Its id, as `/proc` shows it.
        pid: u32,
        /// Its program's name.
        command: String,
        /// How it uses the mount.
        by: &'static str,
    },
    /// Another mount, either of the same filesystem or on one of its directories.
    Mount(PathBuf),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, command, by } => write!(f, "process {pid} ({command}: {by})"),
            Self::Mount(path) => write!(f, "a mount at {}", path.display()),
        }
    }
}

/// The devices of the copperfs mount at `path` and of the images over it, in this process's mount namespace, or in that of
/// the process that `/proc` shows as `shown`.
#[must_use]
pub fn devices_at(path: &Path, shown: Option<u32>) -> Vec<Device> {
    let process = shown.map_or_else(|| "self".to_owned(), |shown| shown.to_string());
    let text = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let mounts = mountinfo::parse(&text);
    let Some(mount) = mountinfo::at(&mounts, path).filter(|mount| mount.is_copperfs()) else {
        return Vec::new();
    };
    let natives = mountinfo::natives(&mounts, path).into_iter();
    natives.chain([mount]).map(|mount| mount.device).collect()
}

/// All users of the filesystems `devices`, except this process and copperfs' own helpers. `points` are the
/// mount points of these filesystems, which are not listed as other mounts.
#[must_use]
pub fn users(devices: &[Device], points: &[PathBuf]) -> Vec<User> {
    let own = fs::read_link("/proc/self").unwrap_or_default();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut shown: Vec<u32> = processes
        .filter(|entry| own.as_os_str() != entry.file_name())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    shown.sort_unstable();
    let users = shown.into_iter().filter_map(|pid| {
        // The daemon's own processes use the mount, and end with it.
        let by = uses(pid, devices).filter(|_| Companion::of(pid).is_none())?;
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(User::Process {
            pid,
            command: command.trim_end().to_owned(),
            by,
        })
    });
    let mut users: Vec<User> = users.collect();
    let mounts = mountinfo::read().unwrap_or_default().into_iter();
    for mount in mounts.filter(|mount| !mount.is_native()) {
        let MountEntry {
            mountpoint, device, ..
        } = mount;
        // Another mount keeps a filesystem in use if it is the same filesystem at another mount point, or a
        // mount below it.
        let below = points.iter().any(|point| mountpoint.starts_with(point));
        if !points.contains(&mountpoint) && (below || devices.contains(&device)) {
            users.push(User::Mount(mountpoint));
        }
    }
    users
}

/// How process `pid` uses one of the filesystems, if it does.
fn uses(pid: u32, devices: &[Device]) -> Option<&'static str> {
    let at = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let lies_there = |path: &Path| device_of(path).is_some_and(|device| devices.contains(&device));
    let links = [
        ("cwd", "working directory"),
        ("root", "root directory"),
        ("exe", "program"),
    ];
    if let Some((_, by)) = links.iter().find(|(name, _)| lies_there(&at(name))) {
        return Some(by);
    }
    // The lists of descriptors and mappings are longer, so they are checked last.
    let mut open = fs::read_dir(at("fd")).into_iter().flatten().flatten();
    if open.any(|entry| lies_there(&entry.path())) {
        return Some("open file");
    }
    let maps = fs::read(at("maps")).unwrap_or_default();
    let mut mapped = maps.split(|&b| b == b'\n').filter_map(mapped_device);
    let is_mapped = mapped.any(|device| devices.contains(&device));
    is_mapped.then_some("mapping")
}

/// The device of the file that a link in `/proc` leads to. Reads only attributes that the kernel holds.
fn device_of(link: &Path) -> Option<Device> {
    let file = open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(&file, c"", flags, StatxFlags::empty()).ok()?;
    Some((status.stx_dev_major, status.stx_dev_minor))
}

/// `7f0c-7f0d r-xp 00000000 00:4d 12 /path` (proc_pid_maps(5)).
fn mapped_device(line: &[u8]) -> Option<Device> {
    let word = line.split(|&b| b == b' ').nth(3)?;
    let (major, minor) = std::str::from_utf8(word).ok()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_device_of_a_mapping() {
        let line = b"7f0c-7f0d r-xp 00000000 00:4d 12                /a b";
        assert_eq!(mapped_device(line), Some((0, 0x4d)));
        assert_eq!(mapped_device(b""), None);
    }

    #[test]
    fn a_process_is_found_by_its_working_directory_and_by_its_open_file() {
        // A filesystem that holds no programs or roots of processes.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::write(dir.path().join("f"), "x").unwrap();
        let device = device_of(dir.path()).unwrap();
        for (script, by) in [
            ("cd \"$1\"; echo in; read -r _", "working directory"),
            ("cd /proc; exec 3<\"$1/f\"; echo in; read -r _", "open file"),
        ] {
            let mut child = Command::new("sh")
                .args(["-c", script, "sh"])
                .arg(dir.path())
                .current_dir("/proc")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = [0; 3];
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
            let found = uses(child.id(), &[device]);
            drop(child.stdin.take());
            child.wait().unwrap();
            assert_eq!(found, Some(by));
        }
    }
}
