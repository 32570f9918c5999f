//! The watchdog: a process beside a daemon, for work that no thread of the daemon may do.
//!
//! A thread of the daemon that waits in the kernel for the daemon's own mount cannot be killed after the
//! daemon has received its request (or the READ for the page that it needs). A killed daemon would never
//! answer, and its thread would keep the connection open forever. Therefore
//! - the watchdog lists directories of the mount (for push: see `node::arrivals`), and
//! - when the daemon dies, the watchdog starts another one, which takes its mounts over ([`crate::takeover`]). Where
//!   that is not possible or not wanted, it aborts the connections: the threads that send notifications to the kernel
//!   must be the daemon's, and the abort ends their wait.
//!
//! Standard input is a Unix socket. It delivers the open files that abort the connections, those of the successor, and
//! then the paths of directories to list, each as a frame ([`pipe`]). A frame that is no path says that the daemon ends
//! in order ([`farewell`]); then the watchdog ends.
//! It learns that the daemon has died from the signal that the
//! kernel sends on the death of a parent (`PR_SET_PDEATHSIG`). The end of a pipe or a pidfd would not do,
//! because a killed daemon's descriptors stay open while one of its threads hangs. The kernel sends the signal
//! when the thread that started the watchdog ends, so that must be the daemon's main thread.

use crate::process::parent_is_dead;
use crate::process::pipe::{self, read_frame};
use crate::takeover::{Legacy, READY};
use copperfs_fuse::Abort;
use copperfs_overlay::ItemPath;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, open, openat2};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
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
    /// How many open files a successor of the daemon gets; 0: there is to be none.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    legacy: usize,
    /// When earlier daemons of these mounts have died, in seconds since 1970.
    #[arg(long, value_name = "TIME", value_delimiter = ',')]
    died: Vec<u64>,
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
    let legacy = match args.legacy {
        0 => None,
        count => Some(Legacy::receive(io::stdin(), count)?),
    };
    let (queue, paths) = sync_channel(QUEUE_MAX);
    let (says_farewell, farewell) = oneshot::channel();
    spawn("listen", move || {
        // The input of a daemon that is killed ends, too, but only a farewell means that nothing is left to do.
        if let Ok(Heard::Farewell) = hear(io::stdin().lock(), &queue) {
            // The receiver is gone if the daemon was killed.
            let _unheard = says_farewell.send(());
        }
    })?;
    let mountpoint = args.mountpoint.clone();
    spawn("list", move || run(&mountpoint, &paths))?;
    // The signal is not sent for a parent that died before it was requested.
    if !died_before {
        tokio::select! {
            _ = killed.recv() => {}
            Ok(()) = farewell => return Ok(()),
        }
    }
    let Some(legacy) = legacy else {
        return means.iter().try_for_each(Abort::cut);
    };
    match succeed(&args, &legacy).await {
        Ok(()) => Ok(()),
        Err(error) => {
            // The log of the daemon is the only one that people read.
            let _unwritable = writeln!(
                std::fs::File::from(legacy.log()?),
                "no other daemon takes over the mounts of the one that has died: {error}. They are cut off"
            );
            means.iter().try_for_each(Abort::cut)
        }
    }
}

/// Deaths within [`DEATHS_FOR`] after which the mounts are given up: the daemon dies of something that it finds again.
const DEATHS_MAX: usize = 5;
/// How long a death counts.
const DEATHS_FOR: Duration = Duration::from_secs(60);
/// The wait before the second successor within [`DEATHS_FOR`]; it doubles with each further one.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How long a successor may take until the mounts answer.
const SUCCESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the daemon that takes the mounts over, and waits until they answer.
async fn succeed(args: &WatchdogArgs, legacy: &Legacy) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs();
    let mut died = args.died.clone();
    died.retain(|time| now.abs_diff(*time) < DEATHS_FOR.as_secs());
    if died.len() >= DEATHS_MAX {
        let times = died.len() + 1;
        return Err(io::Error::other(format!(
            "it has died {times} times in a minute"
        )));
    }
    if let Some(before) = died.len().checked_sub(1) {
        tokio::time::sleep(BACK_OFF * (1 << before.min(DEATHS_MAX))).await;
    }
    died.push(now);
    let died: Vec<String> = died.iter().map(u64::to_string).collect();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    legacy.send(&ours)?;
    let mut child = tokio::process::Command::new("/proc/self/exe")
        .arg0("copperfs")
        .arg("daemon")
        .arg(format!("--legacy={}", legacy.count()))
        .arg(format!("--died={}", died.join(",")))
        .arg("--")
        .arg(&args.mountpoint)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(legacy.log()?)
        .spawn()?;
    let mut output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut said = String::new();
    let saying = async {
        let mut buffer = [0; 1024];
        while said != READY {
            let length = output.read(&mut buffer).await?;
            if length == 0 {
                return Err(io::Error::other(match said.trim() {
                    "" => "it has died at once",
                    said => said,
                }));
            }
            said.push_str(&String::from_utf8_lossy(&buffer[..length]));
        }
        Ok(())
    };
    let outcome = tokio::time::timeout(SUCCESSION_TIMEOUT, saying).await;
    let outcome = outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    if outcome.is_err() {
        child.kill().await?;
    }
    outcome
}

/// Starts a thread, which ends with the process at the latest.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(|_ends_with_the_process| ())
}

/// Why the watchdog hears no more.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// The daemon ends in order.
    Farewell,
    /// The input has ended: the daemon was killed.
    End,
}

/// Queues paths from `input` until its end.
fn hear(mut input: impl Read, queue: &SyncSender<ItemPath>) -> io::Result<Heard> {
    while let Some(path) = read_frame(&mut input, ItemPath::BYTES_MAX)? {
        if path == FAREWELL {
            return Ok(Heard::Farewell);
        }
        if let Ok(path) = ItemPath::parse(&path) {
            // Listing is an optimization, so a path that does not fit the queue is dropped.
            let _full = queue.try_send(path);
        }
    }
    Ok(Heard::End)
}

/// No path has this byte.
const FAREWELL: &[u8] = b"\0";

/// The last frame of a daemon that ends in order.
#[must_use]
pub fn farewell() -> Vec<u8> {
    pipe::frame(FAREWELL)
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
        assert_eq!(hear(&frames[..], &queue).unwrap(), Heard::End);
        let last = [farewell(), frame(&path("dir/1"))].concat();
        assert_eq!(hear(&last[..], &queue).unwrap(), Heard::Farewell);
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
