//! The life of a daemon: from settings to a mount that answers, and to its end.
//!
//! [`crate::node`] is the node itself; this module is the process around it. It binds the process to CPUs,
//! locks the pid file, removes a stale mount, runs the async runtime, and turns SIGTERM and SIGINT into an
//! orderly shutdown with a time limit. It adds no timers to an idle daemon.
//! (A node whose caches hold something looks at the memory at least every 10 s: see [`crate::pressure`].)

pub mod busy;
pub mod mountpoint;
pub mod runtime_dir;

use crate::config::Settings;
use crate::node::{Node, NodeError, Reloadable};
use crate::origin::POSIX_THREADS;
use crate::pressure::keep_large_buffers_sparse;
use crate::process::Process;
use crate::takeover::Estate;
use copperfs_fuse::{MountError, NOTIFIER};
use runtime_dir::{DATA_MOUNT_FILE, LOG_FILE, MOUNT_FILE, PidFile, RuntimeDirError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// How long an orderly shutdown may take. Afterwards the process exits at once.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// Why a daemon does not start, or fails. The `Display` form includes advice for the user.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The mount point cannot be used.
    #[error(transparent)]
    Mountpoint(#[from] MountError),
    /// One mount point is within the other, after links are resolved.
    #[error(
        "--data-mount: {} and the mount point {} must be two directories, neither within the other",
        data_mount.display(),
        mount.display()
    )]
    MountWithinMount {
        /// The software mount.
        mount: PathBuf,
        /// The data mount.
        data_mount: PathBuf,
    },
    /// The runtime directory cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The CPUs cannot be used.
    #[error(
        "--cpus: cannot run on CPUs {cpus:?}: {source}; nproc and taskset -p $$ show which there are"
    )]
    Cpus {
        /// The CPUs of the option.
        cpus: Vec<usize>,
        /// The failure of the system call.
        source: io::Error,
    },
    /// The process cannot be set up.
    #[error("cannot set up the daemon: {0}")]
    Process(#[from] io::Error),
    /// The node does not start or failed.
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// How a daemon begins.
pub enum Begin {
    /// It mounts.
    New,
    /// It takes the mounts of a daemon over that has died.
    Takeover(Box<Estate>),
}

/// Runs a node until a signal ends it. `settings` come from the options of `reloadable`, which commands can change.
/// `ready` is called once, when the mount answers.
///
/// # Errors
/// The node cannot start (before `ready`), or fails (after it).
pub fn run(
    settings: Settings,
    reloadable: Reloadable,
    begin: Begin,
    ready: impl FnOnce(),
) -> Result<(), DaemonError> {
    crate::process::leave_no_core();
    keep_large_buffers_sparse();
    bind_to_cpus(&settings.threads.cpus)?;
    raise_file_limit();
    runtime_dir::prepare(&settings.runtime_dir)?;
    let runtime_dir = settings.runtime_dir.clone();
    let (pid_file, estate) = match begin {
        Begin::New => {
            free_killed(&runtime_dir, &settings.mountpoint);
            let pid_file = PidFile::lock(&runtime_dir)?;
            let base = runtime_dir.parent();
            if let Some(base) = base.filter(|base| runtime_dir::is_base(base)) {
                runtime_dir::sweep(base);
            }
            make_way(&settings)?;
            mountpoint::detach_stale(&runtime_dir::hidden_top(&runtime_dir));
            let estate = settings.takeover.then(|| {
                let estate = Estate::new(&reloadable.encoded(), pid_file.file()?);
                estate.inspect_err(|error| tracing::warn!(%error, "no other daemon can take over"))
            });
            let estate = estate.and_then(Result::ok);
            (pid_file, estate)
        }
        Begin::Takeover(estate) => {
            let pid_file = PidFile::adopt(&runtime_dir, estate.lock()?)?;
            (pid_file, Some(*estate))
        }
    };
    let left = left_by_launch(&settings);
    let (mount, data_mount) = (settings.mountpoint.clone(), settings.data_mount.clone());
    runtime_dir::note(&runtime_dir, MOUNT_FILE, Some(&mount))?;
    runtime_dir::note(&runtime_dir, DATA_MOUNT_FILE, data_mount.as_deref())?;
    runtime_dir::note(&runtime_dir, LOG_FILE, settings.log.file.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.threads.workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("copperfs")
        .enable_all()
        .build()?;
    let handle = runtime.handle().clone();
    let result = runtime.block_on(Box::pin(live(
        settings,
        (estate, reloadable),
        handle,
        ready,
    )));
    // Readers may still hang in the kernel, and threads with them, so the threads are not joined.
    runtime.shutdown_background();
    // The node usually unmounts itself. The note about the data mount stays if a mount stays, because a later
    // command needs it to find the mount.
    let mut gone = true;
    for mount in data_mount.iter().chain([&mount]) {
        if let Err(error) = mountpoint::detach_all(mount) {
            gone = false;
            tracing::warn!(%error, mount = %mount.display(), "the mount stays behind");
        }
    }
    if gone {
        let _unwritable = runtime_dir::note(&runtime_dir, DATA_MOUNT_FILE, None);
    }
    for path in left {
        let _absent = std::fs::remove_file(path);
    }
    drop(pid_file);
    result
}

/// Threads for blocking calls, started on demand. The stores of a node occupy far fewer when they hang (16 reads
/// each). Origins have their own threads.
const BLOCKING_THREADS: usize = 512;

async fn live(
    settings: Settings,
    (estate, reloadable): (Option<Estate>, Reloadable),
    handle: tokio::runtime::Handle,
    ready: impl FnOnce(),
) -> Result<(), DaemonError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut reopen = signal(SignalKind::user_defined1())?;
    let log = reloadable.log.clone();
    let mount = settings.mountpoint.clone();
    let options = reloadable.options.shown().into_iter();
    let options = options.filter(|option| option.source.is_some());
    let options: Vec<String> = options
        .map(|option| format!("{}={}", option.key, option.value.unwrap_or_default()))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, options = options.join(" "), "begins");
    let node = tokio::select! {
        node = Node::start(settings, reloadable, estate, handle) => node?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tracing::info!(mount = %mount.display(), pid = std::process::id(), "the mount answers");
    ready();
    let (told, shutdown) = tokio::sync::oneshot::channel();
    let run = node.run(async {
        // An error means that the sender is gone, which ends the node as well.
        let _ended: Result<(), _> = shutdown.await;
    });
    tokio::pin!(run);
    let signal = loop {
        tokio::select! {
            result = &mut run => return Ok(result?),
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            // The terminal of a launch is closed, which does not concern the daemon.
            _ = hang_up.recv() => {}
            // Another program has renamed the log, as logrotate does.
            _ = reopen.recv() => if let Err(error) = log.reopen() {
                tracing::warn!(%error, "the log cannot be opened again: it stays the file that it was");
            },
        }
    };
    tracing::info!(signal, "ending");
    let _still_there = told.send(());
    tokio::select! {
        result = tokio::time::timeout(SHUTDOWN_TIMEOUT, run) => match result {
            Ok(result) => result?,
            Err(_elapsed) => tracing::warn!("the node took too long to end; leaving"),
        },
        _ = terminate.recv() => tracing::warn!("told twice; leaving at once"),
        _ = interrupt.recv() => tracing::warn!("told twice; leaving at once"),
    }
    Ok(())
}

/// How long a killed daemon may take to exit after its mounts are aborted.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until the dead daemon of `runtime_dir` writes nothing any more, for 5 s at most. Then all of its
/// threads have ended, or those that have not hang in the kernel: with a notification, until the next daemon answers the
/// READ that has locked the page, or in storage. They hold the daemon's files, so the next daemon does not bind its
/// address again.
pub fn await_death(runtime_dir: &Path) {
    let before = runtime_dir::holder(runtime_dir).and_then(|holder| holder.process());
    let Some(before) = before else {
        return;
    };
    let begun = Instant::now();
    while !matches!(before.wait(DEATH_LOOK), Ok(true)) {
        let threads = before.threads();
        let may_hang = |name: &String| [NOTIFIER, POSIX_THREADS].contains(&name.as_str());
        if !threads.is_empty() && threads.iter().all(may_hang) {
            return;
        }
        if begun.elapsed() > DEATH_TIMEOUT {
            tracing::warn!(pid = before.pid, "the daemon before hangs in the kernel");
            return;
        }
    }
}

/// How often the threads of a daemon that has died are examined.
const DEATH_LOOK: Duration = Duration::from_millis(10);

/// If the daemon of `runtime_dir`, mounted at `mount`, was killed but cannot exit, aborts its connections. Such a
/// daemon has a thread that hangs in the kernel on its own mount, and keeps its files and its lock.
pub fn free_killed(runtime_dir: &Path, mount: &Path) {
    // A holder without a visible process is in another pid namespace. It holds its lock, so it is alive.
    let process = runtime_dir::holder(runtime_dir).and_then(|holder| holder.process());
    let Some(process) = process.filter(Process::is_dead) else {
        return;
    };
    tracing::warn!(
        pid = process.pid,
        "a killed daemon hangs in the kernel: its mounts are cut off"
    );
    let noted = runtime_dir::noted(runtime_dir, DATA_MOUNT_FILE);
    for mount in noted.as_deref().into_iter().chain([mount]) {
        if let Err(error) = copperfs_fuse::abort(mount) {
            tracing::warn!(%error, mount = %mount.display(), "cannot be cut off");
        }
    }
    // If mounts remain after that, the next command that needs the mount point reports it.
    let _ended = process.wait(DEATH_TIMEOUT);
}

/// Checks that the mounts of `settings` can be made, and removes mounts that a killed daemon left there.
///
/// # Errors
/// A mount point cannot be used.
pub fn make_way(settings: &Settings) -> Result<(), DaemonError> {
    free_killed(&settings.runtime_dir, &settings.mountpoint);
    // The killed daemon may have had its data mount at another path.
    if let Some(left) = runtime_dir::noted(&settings.runtime_dir, DATA_MOUNT_FILE) {
        mountpoint::detach_stale(&left);
    }
    let mount = copperfs_fuse::prepare_mountpoint(&settings.mountpoint)?;
    let Some(path) = &settings.data_mount else {
        return Ok(());
    };
    let data_mount = copperfs_fuse::prepare_mountpoint(path)?;
    if data_mount.starts_with(&mount) || mount.starts_with(&data_mount) {
        return Err(DaemonError::MountWithinMount { mount, data_mount });
    }
    Ok(())
}

/// The files that a launch left in the runtime directory, including the secret. A secret file outside of that
/// directory belongs to the user and is kept.
fn left_by_launch(settings: &Settings) -> Vec<PathBuf> {
    let mark = settings.runtime_dir.join(runtime_dir::LAUNCH_FILE);
    if !mark.exists() {
        return Vec::new();
    }
    let mut left = Vec::from_iter(settings.secret_file.clone());
    left.retain(|path| path.parent() == Some(&settings.runtime_dir));
    left.push(mark);
    left
}

/// Binds this thread, and all threads that it will start, to `cpus`.
fn bind_to_cpus(cpus: &[usize]) -> Result<(), DaemonError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpus.is_empty() {
        return Ok(());
    }
    let error = |source| DaemonError::Cpus {
        cpus: cpus.to_vec(),
        source,
    };
    if cpus.iter().any(|cpu| *cpu >= CpuSet::MAX_CPU) {
        return Err(error(io::Error::other("no such CPU")));
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(|errno| error(errno.into()))
}

/// Raises the limit of descriptors to the hard limit, because origins and connections need many.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
