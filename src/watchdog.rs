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
//! then what the daemon tells ([`Told`]), each as a frame ([`pipe`]).
//! It learns that the daemon has died from the signal that the
//! kernel sends on the death of a parent (`PR_SET_PDEATHSIG`). The end of a pipe or a pidfd would not do,
//! because a killed daemon's descriptors stay open while one of its threads hangs. The kernel sends the signal
//! when the thread that started the watchdog ends, so that must be the daemon's main thread.

mod succession;

use crate::process::pipe::{self, read_frame};
use crate::process::{Process, parent_is_dead};
use crate::takeover::{Legacy, Role};
use copperfs_fuse::Abort;
use copperfs_overlay::ItemPath;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, open, openat2};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
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
    /// The number of the daemon among those that serve the same mounts, from one on.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    number: u64,
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
    // Opened before the number is compared: while the parent lives, its number is not given to another process.
    let daemon = Process::open(args.of)?;
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
    let (says_last, last) = oneshot::channel();
    spawn("listen", move || {
        // The input of a daemon that is killed ends, too, without a last word.
        if let Ok(Some(told)) = hear(io::stdin().lock(), &queue) {
            // The receiver is gone if the daemon was killed.
            let _unheard = says_last.send(told);
        }
    })?;
    let mountpoint = args.mountpoint.clone();
    spawn("list", move || run(&mountpoint, &paths))?;
    let program = match last_word(&mut killed, last, died_before).await {
        Some(LastWord::Farewell) => return Ok(()),
        Some(LastWord::Upgrade(new)) => {
            if let Some(daemon) = daemon
                && !daemon.is_dead()
            {
                daemon.signal(Signal::KILL)?;
                let _dead = killed.recv().await;
            }
            Some(new)
        }
        None => None,
    };
    let Some(legacy) = legacy else {
        return means.iter().try_for_each(Abort::cut);
    };
    let served_by = legacy.served_by()?;
    if served_by != args.number && served_by > 0 {
        // The daemon has died before it served. Its predecessor's watchdog, which has started it, starts another one.
        return Ok(());
    }
    let succession = match program {
        _ if served_by == 0 => Err(io::Error::other("it had not begun to serve")),
        Some(program) => succession::upgrade(&args, &legacy, &program).await,
        None => succession::succeed(&args, &legacy, None).await,
    };
    match succession {
        Ok(()) => Ok(()),
        Err(error) => {
            // The log of the daemon is the only one that people read.
            let _unwritable = writeln!(
                std::fs::File::from(legacy.file(Role::Log)?),
                "no other daemon takes over the mounts of the one that has died: {error}. They are cut off"
            );
            means.iter().try_for_each(Abort::cut)
        }
    }
}

/// Waits for the last word of the daemon or for its death. Returns the word, if there was one.
async fn last_word(
    killed: &mut Signals,
    mut last: oneshot::Receiver<LastWord>,
    died_before: bool,
) -> Option<LastWord> {
    // The signal is not sent for a parent that died before it was requested.
    if !died_before {
        tokio::select! {
            _ = killed.recv() => {}
            word = &mut last => {
                if word.is_err() {
                    // The input has ended without a last word.
                    let _dead = killed.recv().await;
                }
                return word.ok();
            }
        }
    }
    // It may have said its last word just before. The input ends with the daemon, unless a thread of it hangs in the
    // kernel.
    let heard = tokio::time::timeout(LAST_WORD_TIMEOUT, last).await;
    heard.ok()?.ok()
}

/// How long the last word of a daemon may take that is dead. A daemon that says one waits for the end of this process, so
/// the word is nearly always here before. Each death costs this time, because the input of a daemon with much memory ends
/// late.
const LAST_WORD_TIMEOUT: Duration = Duration::from_millis(10);

/// Starts a thread, which ends with the process at the latest.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map(|_ends_with_the_process| ())
}

/// What a daemon tells its watchdog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// List this directory of the mount.
    List(ItemPath),
    /// The last word.
    Last(LastWord),
}

/// The last word of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastWord {
    /// The daemon ends in order: there is nothing left to do.
    Farewell,
    /// The daemon is to be killed, and this program takes its mounts over.
    Upgrade(PathBuf),
}

/// The first byte of a last word. No path has it.
const LAST: u8 = b'\0';

impl Told {
    /// Encodes it as a frame on the watchdog's standard input.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Self::List(path) => pipe::frame(path.as_bytes()),
            Self::Last(LastWord::Farewell) => pipe::frame(&[LAST]),
            Self::Last(LastWord::Upgrade(program)) => {
                pipe::frame(&[&[LAST], program.as_os_str().as_bytes()].concat())
            }
        }
    }

    /// Decodes the body of a frame. Returns `None` if it is no message.
    fn parse(body: &[u8]) -> Option<Self> {
        match body.split_first() {
            Some((&LAST, [])) => Some(Self::Last(LastWord::Farewell)),
            Some((&LAST, program)) => {
                let program = OsString::from_vec(program.to_vec());
                Some(Self::Last(LastWord::Upgrade(program.into())))
            }
            _ => ItemPath::parse(body).ok().map(Self::List),
        }
    }
}

/// Queues paths from `input` until the last word, or until the input ends: the daemon was killed.
fn hear(mut input: impl Read, queue: &SyncSender<ItemPath>) -> io::Result<Option<LastWord>> {
    while let Some(body) = read_frame(&mut input, ItemPath::BYTES_MAX)? {
        match Told::parse(&body) {
            Some(Told::Last(word)) => return Ok(Some(word)),
            Some(Told::List(path)) => {
                // Listing is an optimization, so a path that does not fit the queue is dropped.
                let _full = queue.try_send(path);
            }
            None => {}
        }
    }
    Ok(None)
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
            .flat_map(|number| Told::List(path(&format!("dir/{number}"))).frame())
            .collect();
        let (queue, paths) = sync_channel(QUEUE_MAX);
        assert_eq!(hear(&frames[..], &queue).unwrap(), None);
        let after = Told::List(path("dir/1")).frame();
        for word in [
            LastWord::Farewell,
            LastWord::Upgrade("/new/copperfs".into()),
        ] {
            let told = [Told::Last(word.clone()).frame(), after.clone()].concat();
            assert_eq!(hear(&told[..], &queue).unwrap(), Some(word));
        }
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
