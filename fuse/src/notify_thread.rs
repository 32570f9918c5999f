//! The thread that sends notifications to the kernel.
//!
//! An invalidation takes the lock of a directory, a page or an inode. A reader that waits for an answer may
//! hold that lock. If the FUSE thread that must send this answer waited for the lock, the mount would hang.
//! So no reply ever waits for a notification: this one thread sends them, one after another.

use crate::device::Device;
use crate::notifier::{Command, Flags};
use crate::prune::prune_batch;
use crate::shared::Shared;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::sync::mpsc::{self, error::TryRecvError};

/// Priority of this thread below that of readers, in `nice` units.
const NICENESS: i32 = 5;

/// The name of the thread, which may hang in the kernel after its process was killed.
pub const NOTIFIER: &str = "copperfs-notify";

/// Starts the thread. It ends on [`Notifier::stop`](crate::Notifier::stop).
pub(crate) fn start(
    mut commands: mpsc::Receiver<Command>,
    flags: Arc<Flags>,
    shared: Arc<Shared>,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(NOTIFIER.to_owned())
        .spawn(move || {
            let niced =
                rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
            if let Err(errno) = niced {
                tracing::debug!(%errno, "the notifier thread keeps its priority");
            }
            run(&mut commands, &flags, &shared);
        })
}

fn run(commands: &mut mpsc::Receiver<Command>, flags: &Flags, shared: &Shared) {
    let (device, backend) = (&shared.device, &*shared.backend);
    let mut by_name = shared.options.prune_by_name;
    while let Some(command) = commands.blocking_recv() {
        execute(command, device);
        // All queued invalidations are sent before each batch of pruning or pushing.
        loop {
            if flags.stopped.load(Ordering::Acquire) {
                return;
            }
            match commands.try_recv() {
                Ok(command) => execute(command, device),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    // Cleared before the look: work that comes later queues another wake-up.
                    flags.wake_queued.store(false, Ordering::Release);
                    if !prune_batch(device, backend, &mut by_name)
                        && !shared.push.push_batch(device, backend)
                    {
                        break;
                    }
                }
            }
        }
    }
}

fn execute(command: Command, device: &Device) {
    match command {
        Command::Entry { parent, name } => report(device.invalidate_entry(parent, &name)),
        Command::Inode { ino, data } => report(device.invalidate_inode(ino, data)),
        Command::AllEntries(done) => {
            // The sender may have been cancelled.
            done.send(device.expire_all_entries().is_ok()).unwrap_or(());
        }
        Command::Flush(done) => done.send(()).unwrap_or(()),
        Command::Wake => {}
    }
}

fn report(result: Result<(), Errno>) {
    match result {
        // After the end of the mount the kernel holds nothing to invalidate.
        Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => {}
        Err(errno) => tracing::warn!(%errno, "the kernel refused an invalidation"),
    }
}
