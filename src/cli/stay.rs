//! Stays in the foreground while a mount has a daemon: the first one, or a successor.
//!
//! A scheduler or a container manager tracks the process that it has started. The daemons cannot be that process, because
//! one follows another. So it starts the first daemon, waits for the end of the last one, and passes signals on.

use super::daemon::run;
use crate::daemon::runtime_dir;
use rustix::process::{Signal, WaitOptions, waitpid};
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The pause before a signal is passed on again, if there was no daemon to pass it to: a successor is just starting.
const PAUSE: Duration = Duration::from_millis(50);

/// Waits until the mount of `runtime_dir` has no daemon any more. SIGTERM and SIGINT end it. Returns whether the last one
/// has ended in order.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn until_end(runtime_dir: &Path) -> anyhow::Result<bool> {
    run(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut reopen = signal(SignalKind::user_defined1())?;
        let mut child = signal(SignalKind::child())?;
        let directory = runtime_dir.to_owned();
        let mut ended =
            tokio::task::spawn_blocking(move || runtime_dir::wait_until_free(&directory));
        loop {
            let told = tokio::select! {
                ended = &mut ended => return Ok(ended??),
                _ = terminate.recv() => Signal::TERM,
                _ = interrupt.recv() => Signal::TERM,
                _ = reopen.recv() => Signal::USR1,
                // The terminal of a launch is closed, which does not concern the daemon.
                _ = hang_up.recv() => continue,
                // In a container the orphans of all processes come to this one.
                _ = child.recv() => {
                    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
                    continue;
                }
            };
            tokio::select! {
                ended = &mut ended => return Ok(ended??),
                () = pass_on(runtime_dir, told) => {}
            }
        }
    })
}

/// Sends a signal to the daemon that runs, or to the one that will.
async fn pass_on(runtime_dir: &Path, told: Signal) {
    loop {
        let holder = runtime_dir::holder(runtime_dir);
        let daemon = holder.and_then(|holder| holder.process());
        if daemon.is_some_and(|daemon| !daemon.is_dead() && daemon.signal(told).is_ok()) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
