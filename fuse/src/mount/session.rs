//! The running side of a mount: fuser's threads, the notifier, what waits; and how they all end.

use super::abort::Abort;
use super::fusermount::{Connection, Via, disconnect};
use super::readahead;
use super::{MountError, MountOptions, MountState, UnmountError, mount_state};
use crate::adapter::Adapter;
use crate::backend::Backend;
use crate::device::Device;
use crate::interrupt::Pending;
use crate::mountinfo;
use crate::notifier::{self, Notifier};
use crate::notify_thread;
use crate::policy::Policy;
use crate::push::{Push, PushQueue};
use crate::shared::Shared;
use fuser::SessionACL;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How long a session may take to notice that its mount is gone. One that is still alive then is
/// held by somebody: an open file after a lazy unmount, or another mount namespace.
const END_GRACE: Duration = Duration::from_millis(300);
/// How long an aborted session may take to end.
const ABORT_GRACE: Duration = Duration::from_millis(1000);

/// The end of a session, for those who wait for it.
#[derive(Debug)]
pub(super) struct Ended {
    /// For those who wait in a thread. Guards only the flag.
    flag: Mutex<bool>,
    changed: Condvar,
    /// For those who wait in a task.
    sender: watch::Sender<bool>,
}

impl Ended {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flag: Mutex::new(false),
            changed: Condvar::new(),
            sender: watch::Sender::new(false),
        })
    }

    fn set(&self) {
        *self.flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        self.sender.send_replace(true);
    }

    pub(super) async fn wait(&self) {
        let mut receiver = self.sender.subscribe();
        if receiver.wait_for(|&ended| ended).await.is_err() {
            tracing::trace!("the session went without a word");
        }
    }

    fn wait_timeout(&self, timeout: Duration) -> bool {
        let flag = self.flag.lock().unwrap_or_else(PoisonError::into_inner);
        let (flag, _) = self
            .changed
            .wait_timeout_while(flag, timeout, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        *flag
    }
}

/// A mounted, running session.
#[derive(Debug)]
pub(super) struct Session {
    mountpoint: PathBuf,
    via: Via,
    /// Device number of the mount; the minor one names the connection.
    device: Option<(u32, u32)>,
    ended: Arc<Ended>,
    pending: Arc<Pending>,
    notifier: Notifier,
}

/// The device number of the mount at `mountpoint`, if the mount is found.
fn connection_of(mountpoint: &Path) -> Option<(u32, u32)> {
    let mounts = mountinfo::read().ok()?;
    mountinfo::at(&mounts, mountpoint).map(|mount| mount.device)
}

impl Session {
    /// Shakes hands with the kernel and starts the threads. On an error nothing stays mounted.
    pub(super) fn start(
        backend: Arc<dyn Backend>,
        options: &MountOptions,
        runtime: &Handle,
        connection: Connection,
    ) -> Result<(Self, Notifier, Push), MountError> {
        let Connection {
            fuse,
            mountpoint,
            via,
        } = connection;
        let undo = |error| {
            if let Err(error) = disconnect(&mountpoint, via) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot undo a mount"
                );
            }
            error
        };
        let device = Device::duplicate(&fuse).map_err(MountError::Start);
        let device = Arc::new(device.map_err(undo)?);
        let (notifier, commands) = notifier::queue();
        let push = Arc::new(PushQueue::new(
            options.push,
            Arc::clone(&options.counters),
            notifier.clone(),
        ));
        let pending = Pending::start(runtime, Arc::clone(&options.counters));
        let shared = Arc::new(Shared {
            backend: Arc::clone(&backend),
            counters: Arc::clone(&options.counters),
            device: Arc::clone(&device),
            push: Arc::clone(&push),
            owner: rustix::process::geteuid().as_raw(),
        });
        let adapter = {
            let (pending, patience) = (Arc::clone(&pending), options.request_timeout);
            Adapter::new(shared, pending, Policy::of(options), patience)
        };
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        let session = fuser::Session::from_fd(adapter, fuse, SessionACL::All, config)
            .map_err(MountError::Handshake)
            .map_err(undo)?;
        let ended = Ended::new();
        let by_name = options.prune_by_name;
        notify_thread::start(commands, device, backend, Arc::clone(&push), by_name)
            .and_then(|_thread_ends_on_stop| {
                run(
                    session,
                    Arc::clone(&ended),
                    Arc::clone(&pending),
                    notifier.clone(),
                )
            })
            .map_err(MountError::Start)
            .map_err(undo)
            .inspect_err(|_| {
                notifier.stop();
                pending.close();
            })?;
        let connection = connection_of(&mountpoint);
        if let Some(device) = connection {
            readahead::widen(device);
        }
        let session = Self {
            mountpoint,
            via,
            device: connection,
            ended,
            pending,
            notifier: notifier.clone(),
        };
        Ok((session, notifier, Push(push)))
    }

    /// The number of its connection, if it could be found.
    pub(super) fn connection(&self) -> Option<u32> {
        self.device.map(|(_, minor)| minor)
    }

    pub(super) fn ended(&self) -> Arc<Ended> {
        Arc::clone(&self.ended)
    }

    pub(super) fn wait_ended(&self, timeout: Duration) -> bool {
        self.ended.wait_timeout(timeout)
    }

    /// Unmounts and ends the daemon's side.
    pub(super) fn end(self) -> Result<(), UnmountError> {
        let unmounted = if self.is_mounted() {
            disconnect(&self.mountpoint, self.via)
        } else {
            Ok(())
        };
        if !self.wait_ended(END_GRACE) {
            self.abort();
            if !self.wait_ended(ABORT_GRACE) {
                // Without fusectl there is no way to end threads that wait in the kernel; the end
                // of the process does it.
                tracing::warn!("the FUSE session is held by somebody and cannot be aborted");
            }
        }
        self.pending.close();
        self.notifier.stop();
        unmounted
    }

    /// Whether what is mounted at the mount point is still this session's: somebody may have
    /// unmounted it by hand, and mounted something else.
    fn is_mounted(&self) -> bool {
        if self.wait_ended(Duration::ZERO) {
            // The device number may have been given away. A mount left behind by the end of its
            // connection is told by what it answers.
            return matches!(mount_state(&self.mountpoint), Ok(MountState::Stale));
        }
        let Ok(mounts) = mountinfo::read() else {
            return true;
        };
        mountinfo::at(&mounts, &self.mountpoint)
            .is_some_and(|mount| self.device.is_none_or(|device| device == mount.device))
    }

    /// Cuts the connection: everybody inside gets ENOTCONN or ECONNABORTED.
    fn abort(&self) {
        let Some((_, minor)) = self.device else {
            return;
        };
        if let Err(error) = Abort::of(minor).and_then(|means| means.cut()) {
            tracing::debug!(%error, "cannot abort the FUSE connection");
        }
    }
}

impl Policy {
    fn of(options: &MountOptions) -> Self {
        Self {
            open: options.open,
            readdir_plus: options.readdir_plus,
            posix_acl: options.posix_acl,
            see_directories: options.see_directories,
            max_background: options.max_background,
        }
    }
}

/// Runs fuser's threads in a thread that outlives them and cleans up behind them.
fn run(
    session: fuser::Session<Adapter>,
    ended: Arc<Ended>,
    pending: Arc<Pending>,
    notifier: Notifier,
) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("copperfs-fuse".to_owned())
        .spawn(move || {
            if let Err(error) = session.run() {
                tracing::error!(%error, "the FUSE session failed");
            }
            pending.close();
            notifier.stop();
            ended.set();
        })
        .map(|_thread_ends_with_the_session| ())
}
