//! Opens a FUSE connection: with mount(2) if permitted, otherwise with the setuid helper fusermount3.
//!
//! The helper opens `/dev/fuse` itself, mounts, and passes the descriptor back over the socket whose number
//! it reads from `_FUSE_COMMFD`.

use super::{MountError, MountOptions, UnmountError};
use crate::descriptors;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const FUSE_CONF: &str = "/etc/fuse.conf";
/// The source that `mount` and `df` show.
const SOURCE: &str = "copperfs";
/// How long the helper may take. None of its work waits.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);
const HELPER_POLL: Duration = Duration::from_millis(2);
/// Bytes of the helper's error message that are read.
const MESSAGE_BYTES_MAX: u64 = 4096;

/// Why the helper did not succeed.
#[derive(Debug, thiserror::Error)]
enum HelperError {
    #[error(transparent)]
    Run(#[from] io::Error),
    #[error("it did not end within {seconds} s ({0:?})", seconds = HELPER_TIMEOUT.as_secs())]
    TimedOut(io::Result<ExitStatus>),
    #[error("it failed ({0})")]
    Silent(ExitStatus),
    /// Its own error message.
    #[error("{0}")]
    Refused(String),
}

impl From<Errno> for HelperError {
    fn from(errno: Errno) -> Self {
        Self::Run(errno.into())
    }
}

impl HelperError {
    /// Whether the helper's message contains one of `texts`. The helper reports the kind of a failure only as
    /// text.
    fn mentions(&self, texts: &[&str]) -> bool {
        matches!(self, Self::Refused(message) if texts.iter().any(|text| message.contains(text)))
    }

    fn mounting(self, mountpoint: &Path) -> MountError {
        match self {
            Self::Run(error) if error.kind() == io::ErrorKind::NotFound => MountError::NoFusermount,
            // The helper opens the device with the rights of its user.
            error if error.mentions(&["/dev/fuse: Permission denied"]) => MountError::DeviceRefused,
            error if error.mentions(&["device not found", "/dev/fuse: No such"]) => {
                MountError::NoDevice
            }
            error => MountError::Fusermount {
                path: mountpoint.to_owned(),
                message: error.to_string(),
            },
        }
    }

    fn unmounting(self, mountpoint: &Path) -> UnmountError {
        let path = mountpoint.to_owned();
        if self.mentions(&["busy"]) {
            return UnmountError::Busy(path);
        }
        UnmountError::Fusermount {
            path,
            message: self.to_string(),
        }
    }
}

/// Mounts on `mountpoint`. Returns the new FUSE connection, whose INIT is not answered yet.
pub(super) fn connect(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let refused = match mount_by_syscall(mountpoint, options) {
        Err(MountError::Mount { path, source })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            MountError::Mount { path, source }
        }
        result => return result,
    };
    // The helper reads the same file with the rights of the same user, and refuses the option if it cannot. Found
    // out here, that needs no look at the text of its message.
    let conf = std::fs::read_to_string(FUSE_CONF);
    if options.allow_other && !conf.is_ok_and(|text| allows_other(&text)) {
        return Err(MountError::AllowOtherRefused);
    }
    let mounted = mount_by_helper(mountpoint, options);
    match mounted.map_err(|error| error.mounting(mountpoint)) {
        // The helper cannot do more than root, so its absence is not the reason of the failure.
        Err(MountError::NoFusermount) if rustix::process::geteuid().is_root() => Err(refused),
        result => result,
    }
}

fn mount_by_syscall(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |errno: Errno| match errno {
        // The kernel has no FUSE.
        Errno::NODEV => MountError::NoDevice,
        errno => MountError::Mount {
            path: mountpoint.to_owned(),
            source: errno.into(),
        },
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fuse = rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT | Errno::NXIO => MountError::NoDevice,
        errno => failed(errno),
    })?;
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
        SOURCE,
        mountpoint,
        "fuse.copperfs",
        MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        data.as_c_str(),
    )
    .map_err(failed)?;
    Ok(fuse)
}

fn mount_by_helper(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, HelperError> {
    // The helper's end must survive exec; ours must not leak into the helper.
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
    let mut mount_options =
        format!("ro,nosuid,nodev,default_permissions,fsname={SOURCE},subtype=copperfs");
    if options.allow_other {
        mount_options.push_str(",allow_other");
    }
    run_helper(
        Command::new(HELPER)
            .args(["-o", &mount_options, "--"])
            .arg(mountpoint)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string()),
    )?;
    // With our copy of its end closed, a missing descriptor is an end of file and not a wait.
    drop(theirs);
    // The helper has ended, so the descriptor is in the socket or will never be.
    let received = descriptors::receive_with(&ours, RecvFlags::DONTWAIT)?;
    let descriptor = received.map(|(_, descriptor)| descriptor);
    descriptor.ok_or_else(|| HelperError::Refused("it passed no descriptor back".to_owned()))
}

/// Unmounts with the helper.
pub(super) fn unmount(mountpoint: &Path, lazily: bool) -> Result<(), UnmountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazily.then_some("-z"));
    run_helper(command.arg("--").arg(mountpoint)).map_err(|error| error.unmounting(mountpoint))
}

#[expect(
    clippy::disallowed_methods,
    reason = "std offers no wait with a timeout; the helper takes milliseconds"
)]
fn run_helper(command: &mut Command) -> Result<(), HelperError> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let deadline = Instant::now() + HELPER_TIMEOUT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(HELPER_POLL),
            None => {
                let killed = child.kill().and_then(|()| child.wait());
                return Err(HelperError::TimedOut(killed));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut message = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // The helper has ended, so its message is in the pipe. Without one, the status has to do.
        let mut stderr = stderr.take(MESSAGE_BYTES_MAX);
        stderr.read_to_end(&mut message).unwrap_or(0);
    }
    let message = String::from_utf8_lossy(&message);
    match message.trim().trim_start_matches("fusermount3: ") {
        "" => Err(HelperError::Silent(status)),
        message => Err(HelperError::Refused(message.to_owned())),
    }
}

fn allows_other(fuse_conf: &str) -> bool {
    fuse_conf
        .lines()
        .any(|line| line.trim() == "user_allow_other")
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
}
