//! The queue of notifications to the kernel: what to forget, and what to hold. One thread sends them
//! (`notify_thread`).
//!
//! Bounds: [`QUEUE_MAX`] invalidations are queued; when the queue is full their senders wait (they
//! are tasks, never FUSE threads), so none is lost. Pushes have a queue of their own that drops what
//! does not fit (see [`push`](crate::push)); an invalidation goes ahead of every push.

use crate::backend::Ino;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;
use tokio::sync::oneshot;

/// Invalidations in the queue at most; then their senders wait.
pub const QUEUE_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) enum Command {
    Entry {
        parent: Ino,
        name: Bytes,
    },
    Inode(Ino),
    Attributes(Ino),
    AllEntries(oneshot::Sender<bool>),
    Flush(oneshot::Sender<()>),
    /// There are inodes to drop.
    Prune,
    /// The push queue is no longer empty.
    Push,
    /// The flag says so.
    Stop,
}

/// Queues notifications to the kernel of one mount. After the end of the mount there is nothing to
/// forget, and every call returns at once.
///
/// # Do not call
/// from a future that a lookup, readdir or read of the same mount waits for and then wait for
/// [`flush`](Self::flush): the kernel does not take an invalidation of a directory before the
/// lookups in it are answered.
#[derive(Clone, Debug)]
pub struct Notifier {
    commands: mpsc::Sender<Command>,
    stopped: Arc<AtomicBool>,
    pruning: Arc<AtomicBool>,
}

impl Notifier {
    /// Lets the kernel forget what `name` in `parent` is, or that it does not exist. If it is a
    /// directory, every name below it, present or absent, is forgotten with it; open files and
    /// working directories go on with the inode that they have.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_entry(&self, parent: Ino, name: Bytes) {
        self.send(Command::Entry { parent, name }).await;
    }

    /// Lets the kernel forget attributes, and the data of a file or the listing of a directory.
    /// [`invalidate_entry`](Self::invalidate_entry) alone drops the listing only if the kernel holds
    /// that very name: call both.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_inode(&self, ino: Ino) {
        self.send(Command::Inode(ino)).await;
    }

    /// Makes the kernel forget the attributes of an inode; its data stays.
    ///
    /// Waits for room in the queue, not for the kernel.
    pub async fn invalidate_attributes(&self, ino: Ino) {
        self.send(Command::Attributes(ino)).await;
    }

    /// Makes the kernel ask again for every name of the mount, absent ones included, in one message.
    /// Listings and attributes are not touched. `false` if the kernel (older than 6.16) cannot.
    ///
    /// Waits until the kernel has taken this and everything queued before.
    pub async fn expire_all_entries(&self) -> bool {
        let (done, answer) = oneshot::channel();
        self.send(Command::AllEntries(done)).await;
        answer.await.unwrap_or(true)
    }

    /// Waits until the kernel has taken every invalidation queued before. A look-up that hangs in a
    /// directory whose name is invalidated delays this until it is answered. May be dropped.
    pub async fn flush(&self) {
        let (done, answer) = oneshot::channel();
        self.send(Command::Flush(done)).await;
        // An error says that the mount has ended.
        answer.await.unwrap_or(());
    }

    /// Wakes the thread to drop inodes ([`Backend::prunable`]). Never waits: a full queue means that the
    /// thread is awake, and it asks for inodes to drop before it sleeps.
    pub fn prune(&self) {
        // One message is enough until the thread has begun to look.
        if !self.pruning.swap(true, Ordering::AcqRel) {
            self.commands.try_send(Command::Prune).unwrap_or(());
        }
    }

    /// Says that there is something to push. Never waits: a full queue means that the thread is
    /// awake, and it looks at the pushes before it sleeps.
    pub(crate) fn wake_for_push(&self) {
        self.commands.try_send(Command::Push).unwrap_or(());
    }

    /// Ends the thread after the command that it is at; does not wait.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // A full queue means that the thread is awake, and it looks at the flag.
        self.commands.try_send(Command::Stop).unwrap_or(());
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::trace!("nothing to notify: the mount has ended");
        }
    }
}

/// The thread's end of the queue.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) receiver: mpsc::Receiver<Command>,
    pub(crate) stopped: Arc<AtomicBool>,
    /// A prune message is queued, and the thread has not handled it yet.
    pub(crate) pruning: Arc<AtomicBool>,
}

/// A queue for the notifier thread, before it runs.
pub(crate) fn queue() -> (Notifier, Commands) {
    let (commands, receiver) = mpsc::channel(QUEUE_MAX);
    let stopped = Arc::new(AtomicBool::new(false));
    let pruning = Arc::new(AtomicBool::new(false));
    (
        Notifier {
            commands,
            stopped: Arc::clone(&stopped),
            pruning: Arc::clone(&pruning),
        },
        Commands {
            receiver,
            stopped,
            pruning,
        },
    )
}
