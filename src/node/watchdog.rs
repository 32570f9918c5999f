//! The daemon's handle of the watchdog process, whose own code is [`crate::watchdog`].

use crate::process::Companion;
use crate::takeover::Legacy;
use crate::watchdog::{LastWord, Told};
use copperfs_fuse::Abort;
use copperfs_overlay::ItemPath;
use std::convert::Infallible;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};

/// The maximum number of messages that wait. Further directories are not listed.
const QUEUE_MAX: usize = 64;
/// The pause before another watchdog is started; it doubles with each one that cannot be started.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long the watchdog may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What a watchdog gets.
pub(super) struct Post {
    /// The software mount.
    pub(super) mountpoint: PathBuf,
    /// Abort the connections of the mounts.
    pub(super) means: Vec<Abort>,
    /// What a successor of this daemon gets, if there is to be one.
    pub(super) legacy: Option<Arc<Legacy>>,
    /// When earlier daemons of these mounts have died, in seconds since 1970.
    pub(super) died: Vec<u64>,
    /// The number of this daemon: see [`crate::takeover::Estate::number`].
    pub(super) number: u64,
}

/// The watchdog process. It ends when this is dropped.
pub(super) struct Watchdog {
    post: Post,
    process: Mutex<Option<WatchdogProcess>>,
    waiting: Mutex<mpsc::Receiver<Told>>,
    line: WatchdogLine,
}

/// The line to the watchdog. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct WatchdogLine(mpsc::Sender<Told>);

impl WatchdogLine {
    /// Has the watchdog list `directory` on this node's own mount, unless too many directories wait already.
    pub(super) fn list(&self, directory: &ItemPath) {
        if self.0.try_send(Told::List(directory.clone())).is_err() {
            tracing::trace!(%directory, "not listed ahead");
        }
    }

    /// Has the watchdog kill this daemon and start that of `program`.
    pub(super) async fn upgrade(&self, program: PathBuf) {
        let told = Told::Last(LastWord::Upgrade(program));
        // Fails only at the end of the daemon.
        let _ending = self.0.send(told).await;
    }
}

impl Watchdog {
    /// Starts the process. It runs this same program, even if its file was replaced on disk. Must be called on a thread
    /// that lives as long as the daemon: the end of this thread tells the watchdog that the daemon was killed.
    pub(super) fn start(post: Post) -> Self {
        let process = WatchdogProcess::start(&post);
        let process = process.inspect_err(|error| tracing::warn!(%error, "no watchdog yet"));
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        Self {
            process: Mutex::new(process.ok()),
            waiting: Mutex::new(waiting),
            line: WatchdogLine(queue),
            post,
        }
    }

    /// Returns what a successor of this daemon gets, if there is to be one.
    pub(super) fn legacy(&self) -> Option<Arc<Legacy>> {
        self.post.legacy.clone()
    }

    pub(super) fn line(&self) -> &WatchdogLine {
        &self.line
    }

    /// Passes messages on, and starts another watchdog when this one has ended. Must run on the same thread as
    /// [`Watchdog::start`].
    pub(super) async fn keep(&self) -> Infallible {
        let (mut process, mut waiting) = (self.process.lock().await, self.waiting.lock().await);
        let mut pause = RESTART_PAUSE;
        loop {
            if let Some(running) = &mut *process {
                running.serve(&mut waiting).await;
                tracing::warn!("the watchdog has ended: another one is started");
                *process = None;
            }
            tokio::time::sleep(pause).await;
            match WatchdogProcess::start(&self.post) {
                Ok(started) => {
                    *process = Some(started);
                    pause = RESTART_PAUSE;
                }
                Err(error) => {
                    pause = (pause * 2).min(RESTART_PAUSE_MAX);
                    tracing::warn!(%error, "no watchdog: it is tried again in {pause:?}");
                }
            }
        }
    }
}

impl Watchdog {
    /// Ends the process. It has the lock of this daemon and its sockets, which are free when this returns.
    pub(super) async fn end(mut self) {
        let Some(mut process) = self.process.get_mut().take() else {
            return;
        };
        process.dismiss();
        if tokio::time::timeout(END_TIMEOUT, process.child.wait())
            .await
            .is_err()
        {
            tracing::warn!("the watchdog does not end");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(process) = self.process.get_mut() {
            process.dismiss();
        }
    }
}

/// One watchdog process.
struct WatchdogProcess {
    child: Child,
    socket: UnixStream,
    /// The same socket, for the farewell, which cannot wait.
    own_end: net::UnixStream,
}

impl WatchdogProcess {
    /// Tells it that nothing is left to do.
    fn dismiss(&mut self) {
        // If it does not arrive, a successor finds that there is no mount any more, and ends.
        let farewell = Told::Last(LastWord::Farewell).frame();
        let _gone = self.own_end.write_all(&farewell);
    }

    fn start(post: &Post) -> io::Result<Self> {
        let (ours, theirs) = net::UnixStream::pair()?;
        post.means.iter().try_for_each(|means| means.send(&ours))?;
        let legacy = post.legacy.as_deref();
        legacy.map_or(Ok(()), |legacy| legacy.send(&ours))?;
        let died: Vec<String> = post.died.iter().map(u64::to_string).collect();
        let mut command = Companion::Watchdog.command();
        command
            .arg(format!("--of={}", std::process::id()))
            .arg(format!("--connections={}", post.means.len()))
            .arg(format!("--legacy={}", legacy.map_or(0, Legacy::count)))
            .arg(format!("--number={}", post.number))
            .args((!died.is_empty()).then(|| format!("--died={}", died.join(","))))
            .arg("--")
            .arg(&post.mountpoint)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        let child = Command::from(command).spawn()?;
        ours.set_nonblocking(true)?;
        let own_end = ours.try_clone()?;
        Ok(Self {
            child,
            socket: UnixStream::from_std(ours)?,
            own_end,
        })
    }

    /// Passes messages on until the process has ended.
    async fn serve(&mut self, waiting: &mut mpsc::Receiver<Told>) {
        loop {
            tokio::select! {
                ended = self.child.wait() => {
                    tracing::debug!(?ended, "the end of the watchdog");
                    return;
                }
                Some(told) = waiting.recv() => {
                    if let Err(error) = self.socket.write_all(&told.frame()).await {
                        // Its end follows.
                        tracing::debug!(%error, "the watchdog does not listen");
                    }
                }
            }
        }
    }
}
