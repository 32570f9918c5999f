//! The daemon's handle of the attendant process, whose own code is [`crate::attendant`].

use crate::process::Companion;
use rustix::thread::{CapabilitySet, capabilities};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

/// The pause before another attendant is started.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// How long an attendant may take to end after it was told.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Keeps an attendant beside the daemon.
pub(super) struct Attendant(mpsc::Sender<oneshot::Sender<()>>);

impl Attendant {
    /// Starts one for the mount at `mountpoint`, whose daemon listens on `socket`. `None` if this process may not mount.
    pub(super) fn start(mountpoint: PathBuf, socket: PathBuf) -> Option<Self> {
        let may = capabilities(None).ok()?.effective;
        if !may.contains(CapabilitySet::SYS_ADMIN) {
            return None;
        }
        let (end, ended) = mpsc::channel(1);
        drop(tokio::spawn(keep(mountpoint, socket, ended)));
        Some(Self(end))
    }

    /// Waits until the attendant has ended, which was told by its last answer. One that does not is killed.
    pub(super) async fn end(&self) {
        let (done, is_done) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            drop(is_done.await);
        }
    }
}

/// Starts another attendant whenever one has ended.
async fn keep(
    mountpoint: PathBuf,
    socket: PathBuf,
    mut ended: mpsc::Receiver<oneshot::Sender<()>>,
) {
    loop {
        let child = spawn(&mountpoint, &socket);
        let mut child = child
            .inspect_err(|error| tracing::warn!(%error, "no attendant yet"))
            .ok();
        let waiting = async {
            if let Some(child) = &mut child {
                drop(child.wait().await);
            }
            tokio::time::sleep(RESTART_PAUSE).await;
        };
        tokio::select! {
            () = waiting => tracing::debug!("the attendant has ended: another one is started"),
            Some(done) = ended.recv() => {
                if let Some(mut child) = child
                    && tokio::time::timeout(END_TIMEOUT, child.wait()).await.is_err()
                {
                    drop(child.kill().await);
                }
                let _not_awaited = done.send(());
                return;
            }
        }
    }
}

fn spawn(mountpoint: &Path, socket: &Path) -> std::io::Result<Child> {
    let mut command = Companion::Attendant.command();
    command
        .arg("--beside")
        .arg(socket)
        .arg("--")
        .arg(mountpoint);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Command::from(command).spawn()
}
