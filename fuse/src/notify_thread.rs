//! The one thread that tells the kernel something unasked.
//!
//! An invalidation takes the lock of a directory, a page or an inode. A reader that waits for an answer may hold
//! that lock, and a FUSE thread that waited for it could not give the answer: the mount would hang. So no reply
//! ever waits for a notification; notifications wait here, one after another if need be.

use crate::backend::Backend;
use crate::device::Device;
use crate::notifier::{Command, Commands};
use crate::prune::Pruner;
use crate::push::{PushQueue, Pusher};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::sync::mpsc::error::TryRecvError;

/// How much less important this thread is than the threads of readers, in `nice` units.
const NICENESS: i32 = 5;

/// Starts the thread. It ends on [`Notifier::stop`](crate::Notifier::stop).
pub(crate) fn start(
    commands: Commands,
    device: Arc<Device>,
    backend: Arc<dyn Backend>,
    push: Arc<PushQueue>,
    prune_by_name: bool,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("copperfs-notify".to_owned())
        .spawn(move || {
            step_back();
            let pruner = Pruner::new(Arc::clone(&device), Arc::clone(&backend), prune_by_name);
            let pusher = Pusher::new(Arc::clone(&device), backend, push);
            run(commands, &device, pruner, &pusher);
        })
}

/// Lowers this thread's priority: readers come first. Failure costs nothing but speed.
fn step_back() {
    let result = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
    if let Err(errno) = result {
        tracing::debug!(%errno, "the notifier thread keeps its priority");
    }
}

fn run(commands: Commands, device: &Device, mut pruner: Pruner, pusher: &Pusher) {
    let Commands {
        mut receiver,
        stopped,
        pruning,
    } = commands;
    while let Some(command) = receiver.blocking_recv() {
        obey(command, device);
        // Invalidations first, then one batch of pruning or pushing, then back to the queue.
        loop {
            if stopped.load(Ordering::Acquire) {
                return;
            }
            match receiver.try_recv() {
                Ok(command) => obey(command, device),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    pruning.store(false, Ordering::Release);
                    if !pruner.prune_some() && !pusher.push_some() {
                        break;
                    }
                }
            }
        }
    }
}

/// Carries out one command.
fn obey(command: Command, device: &Device) {
    match command {
        Command::Entry { parent, name } => report(device.invalidate_entry(parent, &name)),
        Command::Inode(ino) => report(device.invalidate_inode(ino)),
        Command::Attributes(ino) => report(device.invalidate_attributes(ino)),
        Command::AllEntries(done) => {
            let result = device.expire_all_entries();
            done.send(result.is_ok()).unwrap_or(());
        }
        Command::Flush(done) => done.send(()).unwrap_or(()),
        // What these announce is looked at after every command.
        Command::Prune | Command::Push | Command::Stop => {}
    }
}

fn report(result: Result<(), Errno>) {
    match result {
        // The mount is gone, and what it held.
        Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => {}
        Err(errno) => tracing::warn!(%errno, "the kernel refused an invalidation"),
    }
}
