//! A running mount: the threads of fuser, the notifier, pending requests, and the end of them all.

use super::abort::Abort;
use super::handshake::{self, Handshake};
use super::state::{disconnect, mount_state};
use super::{Inherited, MountError, MountOptions, MountState, UnmountError, readahead};
use crate::adapter::Adapter;
use crate::backend::Backend;
use crate::counters::Counters;
use crate::device::Device;
use crate::in_hand::InHand;
use crate::interrupt::Pending;
use crate::mountinfo;
use crate::notifier::{self, Notifier};
use crate::notify_thread;
use crate::passthrough::PassthroughOpens;
use crate::push::Push;
use crate::repeats::TimedOutRequests;
use crate::shared::Shared;
use fuser::InitFlags;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How long a session may take to notice that its mount is gone. A session that is still alive then is
/// held by an open file after a lazy unmount, or by another mount namespace.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// How long an aborted session may take to end.
const ABORT_TIMEOUT: Duration = Duration::from_millis(1000);

/// A mounted filesystem. Dropping it unmounts, as [`Mount::unmount`] does.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    /// Device number of the mount; its minor number is the number of the FUSE connection.
    device: Option<(u32, u32)>,
    /// Disconnected by the end of the session, for threads that wait for it.
    ended: Mutex<mpsc::Receiver<Infallible>>,
    /// The same, for tasks.
    closed: watch::Receiver<()>,
    pending: Arc<Pending>,
    notifier: Notifier,
    push: Arc<Push>,
    counters: Arc<Counters>,
    handshake: Handshake,
    /// The connection.
    fuse: Device,
    unmounted: bool,
}

impl Mount {
    /// Performs the INIT handshake on `fuse`, unless it is `inherited` from an earlier daemon, and starts the threads.
    /// After an error the caller unmounts.
    pub(super) fn start(
        backend: Arc<dyn Backend>,
        options: MountOptions,
        runtime: &Handle,
        mountpoint: PathBuf,
        fuse: &OwnedFd,
        inherited: Option<&Inherited>,
    ) -> Result<Self, MountError> {
        let counters = Arc::clone(&options.counters);
        let (notifier, commands) = notifier::queue();
        let push = Push::new(
            options.push_bytes_max,
            Arc::clone(&counters),
            notifier.clone(),
        );
        let push = Arc::new(push);
        let pending = Arc::new(Pending::start(runtime, &options.lanes, &counters));
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        let resend = options.resend;
        let own = Device::duplicate(fuse).map_err(MountError::Start)?;
        let in_hand = options.in_hand.clone().map(InHand::new);
        let earlier = inherited.map_or(&[][..], |inherited| &inherited.opens);
        let opens = PassthroughOpens::new(earlier, options.opens.clone());
        let shared = Arc::new(Shared {
            backend,
            options,
            device: Device::duplicate(fuse).map_err(MountError::Start)?,
            push: Arc::clone(&push),
            pending: Arc::clone(&pending),
            opens,
            timed_out: TimedOutRequests::default(),
            in_hand,
            owner: rustix::process::geteuid().as_raw(),
        });
        let adapter = Adapter {
            shared: Arc::clone(&shared),
            granted: InitFlags::empty(),
        };
        let (session, handshake) = match inherited {
            None => handshake::first(adapter, fuse, config)?,
            Some(inherited) => {
                let made = &inherited.handshake;
                let session = handshake::again(adapter, fuse, config, made)?;
                // Before the threads of this session have requests in hand, too.
                inherited.end_requests(&own, resend);
                (session, made.clone())
            }
        };
        let (ending, ended) = mpsc::sync_channel(0);
        let (closing, closed) = watch::channel(());
        let mut mount = Self {
            mountpoint,
            device: None,
            ended: Mutex::new(ended),
            closed,
            pending,
            notifier,
            push,
            counters,
            handshake,
            fuse: own,
            // Until the session runs, dropping `mount` must not unmount: the caller does.
            unmounted: true,
        };
        notify_thread::start(commands, Arc::clone(&mount.notifier.flags), shared)
            .and_then(|_ends_on_stop| mount.run(session, (ending, closing)))
            .inspect_err(|_| mount.stop_daemon_side())
            .map_err(MountError::Start)?;
        mount.unmounted = false;
        let mounts = mountinfo::read().unwrap_or_default();
        mount.device = mountinfo::at(&mounts, &mount.mountpoint).map(|entry| entry.device);
        if let Some(device) = mount.device {
            readahead::raise(device);
        }
        Ok(mount)
    }

    /// Runs fuser's threads, in a thread that cleans up after them and drops `end`.
    fn run(
        &self,
        session: fuser::Session<Adapter>,
        end: impl Send + 'static,
    ) -> std::io::Result<()> {
        let (pending, notifier) = (Arc::clone(&self.pending), self.notifier.clone());
        std::thread::Builder::new()
            .name("copperfs-fuse".to_owned())
            .spawn(move || {
                if let Err(error) = session.run() {
                    tracing::error!(%error, "the FUSE session failed");
                }
                pending.close();
                notifier.stop();
                drop(end);
            })
            .map(|_ends_with_the_session| ())
    }

    /// Returns the mount point: absolute, without symlinks.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns the number of the FUSE connection, for [`Abort::of`]; `None` if it could not be found.
    #[must_use]
    pub fn connection(&self) -> Option<u32> {
        self.device.map(|(_, minor)| minor)
    }

    /// Returns what was agreed with the kernel, which a daemon needs that takes the connection over.
    #[must_use]
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Returns the connection: the same open file as this mount's, so that requests in it do not end while one of the
    /// holders lives.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn connection_file(&self) -> std::io::Result<OwnedFd> {
        self.fuse.file()
    }

    /// Returns the queue of invalidations.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Returns the queue of files to push into the page cache.
    #[must_use]
    pub fn push(&self) -> Arc<Push> {
        Arc::clone(&self.push)
    }

    /// Returns the counters of requests.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Completes when the session has ended, for any reason (including `umount` by hand). Does not borrow
    /// the mount. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.clone();
        async move {
            // Nothing is ever sent; the sender goes with the session.
            drop(closed.changed().await);
        }
    }

    /// Waits at most `timeout` for the end of the session, blocking. Returns whether it has ended.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.ended.lock().recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }

    /// Unmounts, lazily if the mount is in use. Pending requests are answered EINTR.
    ///
    /// Blocks for less than 2 s, plus the time of fusermount3. Ends the daemon's side even if the mount is
    /// still held: readers in another mount namespace get ENOTCONN.
    ///
    /// # Errors
    /// The mount point could not be removed. The daemon's side has ended all the same.
    pub fn unmount(mut self) -> Result<(), UnmountError> {
        self.unmount_once()
    }

    fn unmount_once(&mut self) -> Result<(), UnmountError> {
        if std::mem::replace(&mut self.unmounted, true) {
            return Ok(());
        }
        let result = if self.is_mounted() {
            disconnect(&self.mountpoint)
        } else {
            Ok(())
        };
        if !self.wait_closed(END_TIMEOUT) {
            // Aborting the connection makes every reader get ENOTCONN or ECONNABORTED.
            if let Some(connection) = self.connection()
                && let Err(error) = Abort::of(connection).and_then(|connection| connection.cut())
            {
                tracing::debug!(%error, "cannot abort the FUSE connection");
            }
            if !self.wait_closed(ABORT_TIMEOUT) {
                // Without fusectl nothing can end threads that wait in the kernel, except the end of
                // the process.
                tracing::warn!("the FUSE session is held by somebody and cannot be aborted");
            }
        }
        self.stop_daemon_side();
        result
    }

    fn stop_daemon_side(&self) {
        self.pending.close();
        self.notifier.stop();
    }

    /// Whether the filesystem at the mount point is still this session's. A user may have unmounted it by
    /// hand, and mounted another one.
    fn is_mounted(&self) -> bool {
        if self.wait_closed(Duration::ZERO) {
            // The device number may be in use by another mount now, so it proves nothing. A mount whose
            // connection has ended is recognized by its error.
            return matches!(mount_state(&self.mountpoint), Ok(MountState::Stale));
        }
        let Ok(mounts) = mountinfo::read() else {
            return true;
        };
        mountinfo::at(&mounts, &self.mountpoint)
            .is_some_and(|mount| self.device.is_none_or(|device| device == mount.device))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount_once() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "unmounting failed"
            );
        }
    }
}
