//! The queue of invalidations, which one thread (`notify_thread`) sends to the kernel.
//!
//! Bounds: at most [`QUEUE_MAX`] invalidations are queued. When the queue is full their senders wait (they
//! are tasks, never FUSE threads), so none is lost. Pushes have their own queue, which drops what does not
//! fit (see [`push`](crate::push)). An invalidation is sent before every push.

use crate::backend::Ino;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;
use tokio::sync::oneshot;

/// Invalidations in the queue at most. When it is full their senders wait.
pub const QUEUE_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) enum Command {
    Entry {
        parent: Ino,
        name: Bytes,
    },
    Inode {
        ino: Ino,
        data: bool,
    },
    AllEntries(oneshot::Sender<bool>),
    Flush(oneshot::Sender<()>),
    /// Wakes the thread, which looks for inodes to drop, for files to push and for the stop flag after every
    /// command.
    Wake,
}

/// Queues notifications to the kernel of one mount. After the end of the mount every call returns at once
/// without effect.
///
/// # Deadlocks
/// Wait for none of these calls in a future that a lookup, readdir or read of the same mount waits for: the kernel accepts
/// no invalidation in a directory until the lookups in it are answered, and none of a page that is being read. Until
/// then the queue may be full.
#[derive(Clone, Debug)]
pub struct Notifier {
    commands: mpsc::Sender<Command>,
    pub(crate) flags: Arc<Flags>,
}

impl Notifier {
    /// Makes the kernel forget the inode of `name` in `parent`, or that the name does not exist. If it is a
    /// directory, the kernel also forgets every name below it, existing or not. Open files and working
    /// directories keep their inode.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_entry(&self, parent: Ino, name: Bytes) {
        self.send(Command::Entry { parent, name }).await;
    }

    /// Makes the kernel forget the attributes of an inode, and the data of a file or the listing of a
    /// directory. [`invalidate_entry`](Self::invalidate_entry) drops the listing of the parent only if the
    /// kernel has cached the name, so a change of a directory needs both calls.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_inode(&self, ino: Ino) {
        self.send(Command::Inode { ino, data: true }).await;
    }

    /// Makes the kernel forget the attributes of an inode; its data stays.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_attributes(&self, ino: Ino) {
        self.send(Command::Inode { ino, data: false }).await;
    }

    /// Makes the kernel look up every name of the mount again, including absent names. Listings and
    /// attributes stay cached. Returns `false` if the kernel does not support it (before 6.16).
    ///
    /// Waits until the kernel has accepted this and everything queued before.
    pub async fn expire_all_entries(&self) -> bool {
        let (done, answer) = oneshot::channel();
        self.send(Command::AllEntries(done)).await;
        answer.await.unwrap_or(true)
    }

    /// Waits until the kernel has accepted every invalidation queued before. A pending look-up in a directory
    /// with an invalidated name delays this until it is answered. Cancel-safe.
    pub async fn flush(&self) {
        let (done, answer) = oneshot::channel();
        self.send(Command::Flush(done)).await;
        // An error means that the mount has ended.
        answer.await.unwrap_or(());
    }

    /// Whether the mount has ended, so that no call has an effect.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.commands.is_closed()
    }

    /// Wakes the thread to drop inodes ([`Backend::prunable`](crate::Backend::prunable)). Never waits.
    pub fn prune(&self) {
        self.wake();
    }

    /// Wakes the thread to look for work. Never waits.
    pub(crate) fn wake(&self) {
        // One wake-up is enough until the thread has begun to look. If the queue is full the thread is awake,
        // and it looks for work before it sleeps.
        if !self.flags.wake_queued.swap(true, Ordering::AcqRel) {
            self.commands.try_send(Command::Wake).unwrap_or(());
        }
    }

    /// Makes the thread end after its current command. Does not wait for it.
    pub(crate) fn stop(&self) {
        // Release: the flag must be visible when the thread handles the wake-up below.
        self.flags.stopped.store(true, Ordering::Release);
        // Even if another wake-up is queued: the thread may have looked at the flag already.
        self.commands.try_send(Command::Wake).unwrap_or(());
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::trace!("nothing to notify: the mount has ended");
        }
    }
}

/// State of the notifier thread that senders change without a command.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) stopped: AtomicBool,
    /// Set while a wake-up is queued.
    pub(crate) wake_queued: AtomicBool,
}

/// Creates the queue of a notifier thread.
pub(crate) fn queue() -> (Notifier, mpsc::Receiver<Command>) {
    let (commands, receiver) = mpsc::channel(QUEUE_MAX);
    let flags = Arc::default();
    (Notifier { commands, flags }, receiver)
}
