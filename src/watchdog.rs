//! The watchdog: a process beside a daemon, for work that no thread of the daemon may do.
//!
//! A thread of the daemon that waits in the kernel for the daemon's own mount cannot be killed after the
//! daemon has received its request (or the READ for the page that it needs). A killed daemon would never
//! answer, and its thread would keep the connection open forever. Therefore
//! - the watchdog lists directories of the mount (for push: see `node::arrivals`), and
//! - the watchdog aborts the connections when the daemon is killed. The threads that send notifications to
//!   the kernel must be the daemon's; the abort ends their wait.
//!
//! Standard input is a Unix socket. It delivers the descriptors that abort the connections, and then the paths
//! of directories to list, each as a frame ([`pipe`]).
//! The watchdog ends with its standard input. It learns that the daemon was killed from the signal that the
//! kernel sends on the death of a parent (`PR_SET_PDEATHSIG`). The end of a pipe or a pidfd would not do,
//! because a killed daemon's descriptors stay open while one of its threads hangs. The kernel sends the signal
//! when the thread that started the watchdog ends, so that must be the daemon's main thread.

use crate::process::parent_is_dead;
use crate::process::pipe::{self, read_frame};
use copperfs_fuse::Abort;
use copperfs_overlay::ItemPath;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, open, openat2};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// Directories that wait to be listed. Further directories are not listed.
const QUEUE_MAX: usize = 64;

/// Bytes of a listing read at a time, as many as the kernel requests.
const LISTED_BYTES: usize = 128 << 10;

/// The connections to watch.
#[derive(Debug, Clone, clap::Args)]
pub struct WatchdogArgs {
    /// The mount point
    mountpoint: PathBuf,
    /// Process id of the daemon
    #[arg(long, value_name = "PID")]
    of: u32,
    /// How many FUSE connections to cut when the daemon is killed. The means come first on standard input,
    /// a Unix socket.
    #[arg(long, value_name = "COUNT")]
    connections: usize,
}

/// Runs the watchdog until its standard input ends or the daemon is killed.
///
/// # Errors
/// It cannot be set up.
pub fn serve(args: WatchdogArgs) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(watch(args))
}

async fn watch(args: WatchdogArgs) -> io::Result<()> {
    let mut killed = signal(SignalKind::user_defined1())?;
    // These signals are meant for the daemon, but may be sent to the whole process group.
    let _not_heard = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    set_parent_process_death_signal(Some(Signal::USR1))?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    // Both process ids are of this pid namespace; `/proc` may show another one.
    let died_before = parent != Some(args.of) || parent_is_dead();
    // The daemon opened these for its own connections. Connection numbers alone may have been reused by now.
    let means = (0..args.connections)
        .filter_map(|_| Abort::receive(io::stdin()).transpose())
        .collect::<io::Result<Vec<_>>>()?;
    let (queue, paths) = sync_channel(QUEUE_MAX);
    let (input_ends, ended) = oneshot::channel();
    spawn("listen", move || {
        let outcome = hear(io::stdin().lock(), &queue);
        // The receiver is gone if the daemon was killed.
        let _unheard = input_ends.send(outcome);
    })?;
    spawn("list", move || run(&args.mountpoint, &paths))?;
    // The signal is not sent for a parent that died before it was requested.
    if !died_before {
        tokio::select! {
            _ = killed.recv() => {}
            outcome = ended => return outcome.unwrap_or(Ok(())),
        }
    }
    means.iter().try_for_each(Abort::cut)
}

/// Starts a thread, which ends with the process at the latest.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(|_ends_with_the_process| ())
}

/// Queues paths from `input` until its end.
fn hear(mut input: impl Read, queue: &SyncSender<ItemPath>) -> io::Result<()> {
    while let Some(path) = read_frame(&mut input, ItemPath::BYTES_MAX)? {
        if let Ok(path) = ItemPath::parse(&path) {
            // Listing is an optimization, so a path that does not fit the queue is dropped.
            let _full = queue.try_send(path);
        }
    }
    Ok(())
}

/// `path` as a frame on the watchdog's standard input.
#[must_use]
pub fn frame(path: &ItemPath) -> Vec<u8> {
    pipe::frame(path.as_bytes())
}

fn run(mountpoint: &Path, paths: &Receiver<ItemPath>) {
    while let Ok(path) = paths.recv() {
        // Listing is an optimization. A program that reads the directory gets the error itself.
        let _not_listed = list(mountpoint, &path);
    }
}

/// Reads a directory of the mount to its end. Stays within the mount: follows no link and enters no other
/// mount. Only that directory is held open, so that an unmount is blocked no longer than the listing takes.
fn list(mountpoint: &Path, path: &ItemPath) -> Result<(), rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let top = open(mountpoint, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let below = OsStr::from_bytes(if path.is_root() {
        b"."
    } else {
        path.as_bytes()
    });
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let directory = openat2(&top, below, flags, Mode::empty(), inside)?;
    drop(top);
    let mut room = Vec::with_capacity(LISTED_BYTES);
    let mut entries = RawDir::new(directory, room.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        entry?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn paths_come_through_and_too_many_are_left_out() {
        let frames: Vec<u8> = (0..QUEUE_MAX + 9)
            .flat_map(|number| frame(&path(&format!("dir/{number}"))))
            .collect();
        let (queue, paths) = sync_channel(QUEUE_MAX);
        hear(&frames[..], &queue).unwrap();
        drop(queue);
        let heard: Vec<ItemPath> = paths.iter().collect();
        assert_eq!(heard.len(), QUEUE_MAX);
        assert_eq!(heard[3], path("dir/3"));
    }

    #[test]
    fn broken_frames_end_it() {
        let (queue, _paths) = sync_channel(1);
        assert!(hear(&u32::MAX.to_le_bytes()[..], &queue).is_err());
        assert!(hear(&[3, 0, 0, 0, b'x'][..], &queue).is_err());
        hear(&[][..], &queue).unwrap();
    }

    #[test]
    fn a_directory_is_listed_and_nothing_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        list(dir.path(), &ItemPath::root()).unwrap();
        list(dir.path(), &path("a/b")).unwrap();
        assert!(list(dir.path(), &path("out/proc")).is_err());
        assert!(list(dir.path(), &path("gone")).is_err());
    }
}
