//! The daemon's side of a FUSE connection: the threads of fuser, the notifier, and pending requests.

use super::handshake::{self, Handshake};
use super::{Inherited, MountError, MountOptions};
use crate::adapter::Adapter;
use crate::backend::Backend;
use crate::counters::Counters;
use crate::device::Device;
use crate::in_hand::InHand;
use crate::interrupt::Pending;
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
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// A connection that is served. It ends when the kernel has no mount of it any more. Dropping this answers pending requests
/// with EINTR, and ends no mount.
#[derive(Debug)]
pub struct Session {
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
}

impl Session {
    /// Serves `fuse`, a connection whose filesystem this or another process has made: performs the INIT handshake, unless it
    /// is `inherited` from an earlier daemon, and starts the threads. `options.mountpoint` is not used. Blocks until the
    /// kernel has sent INIT, which it does when the filesystem is made.
    ///
    /// # Errors
    /// As [`take_over`](super::take_over).
    pub fn start(
        backend: Arc<dyn Backend>,
        options: MountOptions,
        runtime: &Handle,
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
        let serving = Self {
            ended: Mutex::new(ended),
            closed,
            pending,
            notifier,
            push,
            counters,
            handshake,
            fuse: own,
        };
        notify_thread::start(commands, Arc::clone(&serving.notifier.flags), shared)
            .and_then(|_ends_on_stop| serving.run(session, (ending, closing)))
            .map_err(MountError::Start)?;
        Ok(serving)
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

    /// Returns what was agreed with the kernel, which a daemon needs that takes the connection over.
    #[must_use]
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Returns the connection: the same open file as this session's, so that requests in it do not end while one of the
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
    /// the session. Cancel-safe.
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

    /// Answers pending requests, and ends the notifier.
    pub(super) fn stop(&self) {
        self.pending.close();
        self.notifier.stop();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}
