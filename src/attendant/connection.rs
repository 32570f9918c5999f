//! The FUSE filesystem that the files of images are read from.
//!
//! It is not the mount of the daemon, because there the kernel opens files without a message, and so never learns that it
//! should read large ones directly, without pages of its own in between. It is mounted nowhere: nothing but the attendant
//! reaches it, and it goes when neither the attendant nor an image has a file of it.
//!
//! The daemon serves it, and a successor of the daemon after that. A process of its own, the *keeper*, passes the connection
//! to each of them. The attendant must not have it. The kernel does not interrupt a request that a daemon has read, so an
//! attendant that waits for an answer of a dead daemon ends only with the connection, which lasts as long as a process has
//! it; and if the answer is to a request of mounting, `sync` waits with it, in all programs of the machine.

use super::{RETRY_PAUSE, has_ended, is_there, open_in};
use crate::image::files;
use crate::process::Companion;
use anyhow::{Context, ensure};
use copperfs_fuse::{Handshake, handover, mountinfo, raise_read_ahead};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, fstatfs, open};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::{getegid, geteuid};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long a daemon that runs may take to serve the connection.
const SERVED_TIMEOUT: Duration = Duration::from_secs(30);

/// How often the daemons that come may refuse a connection: one cannot serve it that talks otherwise to the kernel than the
/// first one did.
const REFUSED_MAX: u32 = 10;

/// The word of a keeper when a daemon serves its connection.
const SERVED: &[u8] = b"served";

/// See the module.
pub(super) struct Connection {
    mountpoint: PathBuf,
    socket: PathBuf,
    made: Option<Filesystem>,
}

/// The filesystem, which a daemon has begun to serve.
struct Filesystem {
    /// Its top directory.
    top: OwnedFd,
    keeper: Child,
}

impl Connection {
    /// For the daemon of the mount at `mountpoint`, with this runtime directory.
    pub(super) fn new(mountpoint: &Path, runtime_dir: &Path) -> Self {
        Self {
            mountpoint: mountpoint.to_owned(),
            socket: runtime_dir.join(files::SOCKET),
            made: None,
        }
    }

    /// Whether no daemon will serve the filesystem any more: its keeper was killed, and then the daemon was.
    pub(super) fn is_lost(&self) -> bool {
        let made = self.made.as_ref();
        made.is_some_and(|made| has_ended(&fstatfs(&made.top)))
    }

    /// Opens a file of the filesystem, which is made first if there is none that is served.
    pub(super) fn open(&mut self, name: &OsStr) -> anyhow::Result<OwnedFd> {
        if self.is_lost()
            && let Some(mut lost) = self.made.take()
        {
            let _ended = lost.keeper.try_wait()?;
        }
        let made = match self.made.take() {
            Some(made) => made,
            None => self.make()?,
        };
        let made = self.made.insert(made);
        open_in(&made.top, name, OFlags::RDONLY)
    }

    /// Makes the filesystem, and leaves its connection to a keeper. Returns when a daemon serves it.
    fn make(&self) -> anyhow::Result<Filesystem> {
        let (connection, top) = make()?;
        let mut keeper = Companion::Keeper
            .command()
            .arg("--socket")
            .arg(&self.socket)
            .arg("--")
            .arg(&self.mountpoint)
            .stdin(connection)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process for the contents of images")?;
        let mut word = Vec::new();
        if let Some(mut said) = keeper.stdout.take() {
            let is_in_time = wait_for(&said, PollFlags::IN, SERVED_TIMEOUT)?;
            if is_in_time {
                said.read_to_end(&mut word)?;
            }
        }
        ensure!(
            word == SERVED,
            "the daemon does not serve the contents of images"
        );
        let device = fstat(&top)?.st_dev;
        raise_read_ahead((rustix::fs::major(device), rustix::fs::minor(device)));
        Ok(Filesystem { top, keeper })
    }
}

/// Makes a FUSE filesystem that is mounted nowhere, and that only this user may read. Returns its connection and its top
/// directory.
fn make() -> anyhow::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let connection = open("/dev/fuse", flags, Mode::empty()).context("cannot open /dev/fuse")?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (option, value) in [
        ("source", "copperfs-images".to_owned()),
        ("fd", connection.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", geteuid().as_raw().to_string()),
        ("group_id", getegid().as_raw().to_string()),
    ] {
        fsconfig_set_string(&context, option, value)?;
    }
    let made = fsconfig_create(&context);
    made.context("cannot make a FUSE filesystem for the contents of images")?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let top = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((connection, top))
}

/// Flags of the keeper.
#[derive(Debug, Clone, clap::Args)]
pub struct KeepArgs {
    /// The mount
    #[arg(value_name = "MOUNT")]
    mountpoint: PathBuf,
    /// Where its daemons take the connection
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,
}

/// Passes the connection on standard input to each daemon of the mount, until the mount is gone or nothing needs the
/// connection any more. Writes a word to standard output when the first daemon serves it.
///
/// # Errors
/// The first daemon does not serve it.
pub fn keep(args: &KeepArgs) -> anyhow::Result<()> {
    let _shown_otherwise = rustix::thread::set_name(c"copperfs-keep");
    let connection = io::stdin().as_fd().try_clone_to_owned()?;
    let mounts = mountinfo::read()?;
    let mount = mountinfo::at(&mounts, &args.mountpoint).context("the mount is gone")?;
    // A daemon that ends between INIT and its answer leaves a connection that no other daemon can serve.
    let mut daemon = UnixStream::connect(&args.socket)?;
    let made = pass(&daemon, &connection, None)?;
    let mut output = io::stdout().lock();
    output.write_all(SERVED)?;
    output.flush()?;
    super::close_stdout()?;
    loop {
        handover::until_gone(&daemon);
        let mut refused = 0;
        daemon = loop {
            // The kernel tells so when it has no file of the filesystem any more.
            if wait_for(&connection, PollFlags::empty(), Duration::ZERO)? {
                return Ok(());
            }
            if let Ok(next) = UnixStream::connect(&args.socket) {
                if pass(&next, &connection, Some(&made)).is_ok() {
                    break next;
                }
                refused += 1;
                ensure!(refused < REFUSED_MAX, "no daemon serves the connection");
            }
            if !is_there(&args.mountpoint, mount.device)? {
                // The kernel ends a connection that no process has.
                return Ok(());
            }
            std::thread::park_timeout(RETRY_PAUSE);
        };
    }
}

/// Passes the connection to a daemon. Returns what was agreed with the kernel when the daemon serves it.
fn pass(
    daemon: &UnixStream,
    connection: &OwnedFd,
    made: Option<&Handshake>,
) -> io::Result<Handshake> {
    handover::send(daemon, connection.as_fd(), made)?;
    handover::confirmed(daemon)
}

/// Waits for an event. Returns whether it came in time; an error or the end of the file counts.
fn wait_for(file: impl AsFd, event: PollFlags, timeout: Duration) -> io::Result<bool> {
    let file = file.as_fd();
    let mut events = [PollFd::new(&file, event)];
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    let came = rustix::io::retry_on_intr(|| poll(&mut events, Some(&timeout)))?;
    Ok(came > 0)
}
