//! Getting a FUSE connection: by mount(2) where we may, by the setuid helper fusermount3 otherwise.
//!
//! The helper opens `/dev/fuse` itself, mounts, and passes the descriptor back over a socket whose
//! number it reads from `_FUSE_COMMFD`.

use super::{MountError, MountOptions, UnmountError, descriptors};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const FUSE_CONF: &str = "/etc/fuse.conf";
/// How long the helper may take; it does nothing that waits.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);
const HELPER_POLL: Duration = Duration::from_millis(2);

/// Who mounted, and so who unmounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Via {
    Kernel,
    Helper,
}

/// A fresh FUSE connection whose INIT waits to be answered.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) fuse: OwnedFd,
    pub(super) mountpoint: std::path::PathBuf,
    pub(super) via: Via,
}

/// Mounts on `mountpoint`.
pub(super) fn connect(mountpoint: &Path, options: &MountOptions) -> Result<Connection, MountError> {
    let refused = match by_kernel(mountpoint, options) {
        Ok(fuse) => {
            return Ok(Connection {
                fuse,
                mountpoint: mountpoint.to_owned(),
                via: Via::Kernel,
            });
        }
        Err(MountError::Mount { source, path }) if is_refusal(&source) => {
            MountError::Mount { source, path }
        }
        Err(error) => return Err(error),
    };
    match by_helper(mountpoint, options) {
        Ok(fuse) => Ok(Connection {
            fuse,
            mountpoint: mountpoint.to_owned(),
            via: Via::Helper,
        }),
        // For root the helper is no better: say what mount(2) said.
        Err(MountError::NoFusermount) if rustix::process::geteuid().is_root() => Err(refused),
        Err(error) => Err(error),
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::ACCESS)
    )
}

fn by_kernel(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |errno: Errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        errno => MountError::Mount {
            path: mountpoint.to_owned(),
            source: errno.into(),
        },
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fuse = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(failed)?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        fuse.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).or(Err(failed(Errno::INVAL)))?;
    rustix::mount::mount(
        fsname(options),
        mountpoint,
        "fuse.copperfs",
        MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        data.as_c_str(),
    )
    .map_err(|errno| match errno {
        // The kernel does not know the type.
        Errno::NODEV => MountError::NoDevice,
        errno => MountError::Mount {
            path: mountpoint.to_owned(),
            source: errno.into(),
        },
    })?;
    Ok(fuse)
}

fn by_helper(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if options.allow_other && !user_allow_other() {
        return Err(MountError::AllowOtherRefused);
    }
    let failed = |message: String| MountError::Fusermount {
        path: mountpoint.to_owned(),
        message,
    };
    let io_failed = |error: io::Error| failed(error.to_string());
    // The helper's end must survive exec; ours must not leak into it.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(|errno| io_failed(errno.into()))?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC).map_err(|errno| io_failed(errno.into()))?;
    let mut mount_options = format!(
        "ro,nosuid,nodev,default_permissions,fsname={},subtype=copperfs",
        fsname(options)
    );
    if options.allow_other {
        mount_options.push_str(",allow_other");
    }
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(mount_options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MountError::NoFusermount,
            _ => io_failed(error),
        })?;
    drop(theirs);
    wait(child).map_err(|said| {
        // The helper opens the device with the rights of its user.
        if said.contains("/dev/fuse: Permission denied") {
            MountError::DeviceRefused
        } else if said.contains("device not found") || said.contains("/dev/fuse: No such") {
            MountError::NoDevice
        } else {
            failed(said)
        }
    })?;
    // The helper is done, so the descriptor is in the socket or will never be.
    descriptors::receive(&ours, RecvFlags::DONTWAIT)
        .map_err(|errno| io_failed(errno.into()))?
        .ok_or_else(|| failed("it passed no descriptor back".to_owned()))
}

/// Unmounts what `via` mounted: normally, and lazily if it is in use.
pub(super) fn disconnect(mountpoint: &Path, via: Via) -> Result<(), UnmountError> {
    match via {
        Via::Helper => unmount(mountpoint, false).or_else(|_| unmount(mountpoint, true)),
        Via::Kernel => {
            let unmount =
                |flags| rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW);
            unmount(UnmountFlags::empty())
                .or_else(|_| unmount(UnmountFlags::DETACH))
                .map_err(|errno| UnmountError::Unmount {
                    path: mountpoint.to_owned(),
                    source: errno.into(),
                })
        }
    }
}

/// Unmounts through the helper.
pub(super) fn unmount(mountpoint: &Path, lazily: bool) -> Result<(), UnmountError> {
    let failed = |message: String| UnmountError::Fusermount {
        path: mountpoint.to_owned(),
        message,
    };
    let child = Command::new(HELPER)
        .arg("-u")
        .args(lazily.then_some("-z"))
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    wait(child).map_err(failed)
}

/// Waits for the helper's end, within its time; an error is what it said.
fn wait(mut child: Child) -> Result<(), String> {
    let deadline = Instant::now() + HELPER_TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => pause(),
            Ok(None) => {
                let killed = child.kill().and_then(|()| child.wait());
                return Err(format!(
                    "it did not end within {} s ({killed:?})",
                    HELPER_TIMEOUT.as_secs()
                ));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // It has ended; what it said lies in the pipe.
        stderr.take(4096).read_to_end(&mut said).unwrap_or(0);
    }
    let said = String::from_utf8_lossy(&said);
    let said = said.trim().trim_start_matches("fusermount3: ");
    if said.is_empty() {
        Err(format!("it failed ({status})"))
    } else {
        Err(said.to_owned())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "std offers no wait with a timeout; the helper takes milliseconds"
)]
fn pause() {
    std::thread::sleep(HELPER_POLL);
}

fn user_allow_other() -> bool {
    // The helper reads the same file the same way; if we may not, it decides.
    std::fs::read_to_string(FUSE_CONF).is_ok_and(|text| allows_other(&text))
}

fn allows_other(fuse_conf: &str) -> bool {
    fuse_conf
        .lines()
        .any(|line| line.trim() == "user_allow_other")
}

/// The source, without what would end an option or need escapes in mountinfo.
fn fsname(options: &MountOptions) -> String {
    options
        .fsname
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "-_.:/@+".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_conf_is_read_line_by_line() {
        assert!(allows_other("# x\n  user_allow_other \nmount_max = 5\n"));
        assert!(!allows_other("#user_allow_other\n"));
        assert!(!allows_other("user_allow_other = 1\n"));
    }

    #[test]
    fn a_source_cannot_carry_options() {
        let mut options = MountOptions::new("/x");
        options.fsname = "s3://b/p,allow_other k".to_owned();
        assert_eq!(fsname(&options), "s3://b/p_allow_other_k");
    }
}
