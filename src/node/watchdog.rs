//! The daemon's handle of the watchdog process, whose own code is [`crate::watchdog`].

use crate::takeover::Legacy;
use crate::watchdog::{farewell, frame};
use copperfs_fuse::Abort;
use copperfs_overlay::ItemPath;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::path::Path;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The maximum number of directories that wait to be listed. More are not listed.
const QUEUE_MAX: usize = 64;

/// The watchdog process. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Keeps the socket open.
    telling: JoinHandle<()>,
    /// The same socket, for the farewell.
    socket: net::UnixStream,
    pub(super) lister: Lister,
}

/// Lists directories on this node's own mount, by way of the watchdog.
#[derive(Clone, Debug)]
pub(super) struct Lister(mpsc::Sender<ItemPath>);

impl Lister {
    /// Lists `directory` later, unless too many directories wait already.
    pub(super) fn list(&self, directory: &ItemPath) {
        if self.0.try_send(directory.clone()).is_err() {
            tracing::trace!(%directory, "not listed ahead");
        }
    }
}

impl Watchdog {
    /// Starts the process for the mount at `mountpoint`, with the means to abort its connections, and with what a
    /// successor of this daemon gets, if there is to be one. `died`: see [`crate::watchdog`]. It runs this same
    /// program, even if its file was replaced on disk. Must be called on a thread that lives as long as the daemon: the
    /// end of this thread tells the watchdog that the daemon was killed.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        mountpoint: &Path,
        means: &[Abort],
        legacy: Option<&Legacy>,
        died: &[u64],
    ) -> io::Result<Self> {
        let (ours, theirs) = net::UnixStream::pair()?;
        means.iter().try_for_each(|means| means.send(&ours))?;
        if let Some(legacy) = legacy {
            legacy.send(&ours)?;
        }
        let died: Vec<String> = died.iter().map(u64::to_string).collect();
        let mut command = Command::new("/proc/self/exe");
        command
            // Another name than the daemon's, for process lists and `pidof`.
            .arg0("copperfs-watch")
            .arg("watchdog")
            .arg(format!("--of={}", std::process::id()))
            .arg(format!("--connections={}", means.len()))
            .arg(format!("--legacy={}", legacy.map_or(0, Legacy::count)))
            .args((!died.is_empty()).then(|| format!("--died={}", died.join(","))))
            .arg("--")
            .arg(mountpoint)
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        ours.set_nonblocking(true)?;
        let own = ours.try_clone()?;
        let socket = UnixStream::from_std(ours)?;
        // Reap it, so that no zombie stays in the process table.
        drop(tokio::spawn(async move {
            let ended = child.wait().await;
            tracing::debug!(?ended, "the watchdog has ended");
        }));
        let (queue, paths) = mpsc::channel(QUEUE_MAX);
        Ok(Self {
            telling: tokio::spawn(tell(socket, paths)),
            socket: own,
            lister: Lister(queue),
        })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.telling.abort();
        // If it does not arrive, a successor finds that there is no mount any more, and ends.
        let _gone = self.socket.write_all(&farewell());
    }
}

async fn tell(mut socket: UnixStream, mut paths: mpsc::Receiver<ItemPath>) {
    while let Some(path) = paths.recv().await {
        if let Err(error) = socket.write_all(&frame(&path)).await {
            tracing::warn!(%error, "the watchdog is gone: nothing is listed ahead any more");
            return;
        }
    }
}
