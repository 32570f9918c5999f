//! Stays in the foreground while a mount has a daemon: the first one, or a successor.
//!
//! A scheduler or a container manager tracks the process that it has started. The daemons cannot be that process, because
//! one follows another. So it starts the first daemon, waits for the end of the last one, and passes signals on.

use super::daemon::run;
use crate::daemon::runtime_dir;
use crate::process::Process;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};
use tokio::task::spawn_blocking;

/// The pause between two looks for the daemon: a successor may just be starting.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts a daemon with `start`, which returns its runtime directory, and waits until the mount has no daemon any more.
/// SIGTERM and SIGINT end it, and `ending` is called then. Returns whether the last daemon has ended in order. `start`
/// returns `None` if there is none.
///
/// # Errors
/// Those of `start`, or the directory cannot be read.
pub(super) fn with_daemon(
    start: impl FnOnce() -> anyhow::Result<Option<PathBuf>> + Send + 'static,
    ending: impl Fn(),
) -> anyhow::Result<bool> {
    run(async {
        // Before the daemon begins, so that no signal ends this process alone.
        let mut signals = Signals::listen()?;
        let mut ends = signal(SignalKind::child())?;
        let mut starting = spawn_blocking(start);
        let directory = loop {
            tokio::select! {
                started = &mut starting => match started?? {
                    Some(directory) => break directory,
                    None => return Ok(true),
                },
                told = signals.next() => children().into_iter().for_each(|child| {
                    let _gone = kill_process(child, told);
                }),
            }
        };
        let waiting = directory.clone();
        let mut ended = spawn_blocking(move || runtime_dir::wait_until_free(&waiting));
        // The daemon that was told to end. If it was being killed, the next one has to be told.
        let mut told_to_end = None;
        loop {
            let told = tokio::select! {
                ended = &mut ended => return Ok(ended??),
                told = signals.next() => Some(told),
                () = reap(&mut ends) => continue,
                () = tokio::time::sleep(PAUSE), if told_to_end.is_some() => None,
            };
            let present = tokio::select! {
                ended = &mut ended => return Ok(ended??),
                present = daemon(&directory) => present,
            };
            if told.is_none() && told_to_end == Some(present.pid) {
                continue;
            }
            let told = told.unwrap_or(Signal::TERM);
            if told == Signal::TERM {
                if told_to_end.is_none() {
                    ending();
                }
                told_to_end = Some(present.pid);
            }
            let _gone = present.signal(told);
        }
    })
}

/// The signals to this process.
struct Signals {
    terminate: Arrivals,
    interrupt: Arrivals,
    reopen: Arrivals,
    hang_up: Arrivals,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
            // The terminal of a launch is closed, which does not concern the daemon.
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns the next signal for the daemon. Cancel safe.
    async fn next(&mut self) -> Signal {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Signal::TERM,
                _ = self.interrupt.recv() => return Signal::TERM,
                _ = self.reopen.recv() => return Signal::USR1,
                _ = self.hang_up.recv() => {}
            }
        }
    }
}

/// Waits for the end of children. In a container the orphans of all processes become children of this one.
async fn reap(child: &mut Arrivals) {
    let _ended = child.recv().await;
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let of_thread = |thread: io::Result<std::fs::DirEntry>| {
        let listed = std::fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        let numbers = listed
            .split_whitespace()
            .filter_map(|number| number.parse().ok());
        Some(numbers.filter_map(Pid::from_raw).collect::<Vec<_>>())
    };
    threads.filter_map(of_thread).flatten().collect()
}

/// Returns the daemon that runs, or the next one that will.
async fn daemon(runtime_dir: &Path) -> Process {
    loop {
        let holder = runtime_dir::holder(runtime_dir);
        let daemon = holder.and_then(|holder| holder.process());
        if let Some(daemon) = daemon.filter(|daemon| !daemon.is_dead()) {
            return daemon;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
