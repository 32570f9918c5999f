//! The FUSE front of copperfs.
//!
//! This crate answers the kernel. It contains the mount, the kernel-cache policy, the mapping of failures to
//! errno, the notifications (invalidate, push) and the ioctl ABI. It knows nothing of trees, origins or
//! caches: an implementation of [`Backend`] provides the contents of the filesystem.
//!
//! The path of a request: `adapter` → [`Backend`] → `reply` if the answer is ready, otherwise `adapter` →
//! [`Backend`] → `interrupt` → the runtime → `reply`. The path of a notification: [`Notifier`] →
//! `notify_thread` (one thread) → `device`.
//!
//! Invariants: no FUSE thread blocks; no reply waits for a notification; a mount is always
//! `ro,nosuid,nodev,default_permissions`; only `errno` decides on an errno.

mod adapter;
mod attr;
pub mod backend;
pub mod counters;
pub mod descriptors;
mod device;
mod dirplus;
mod errno;
pub mod handover;
mod in_hand;
mod interrupt;
pub mod ioctl;
pub mod mount;
pub mod mountinfo;
pub mod notifier;
mod notify_thread;
mod passthrough;
pub mod policy;
mod prune;
pub mod push;
pub mod quarantine;
mod repeats;
mod reply;
mod shared;

pub use backend::{
    Answer, Attr, Backend, Backing, DirEntry, DirPage, FileKind, FsError, Ino, Lookup, OpenDir,
    Opened, Response, StatsAge, Timestamp, Usage,
};
pub use counters::{Counters, Op};
pub use in_hand::InHandRecord;
pub use ioctl::Sockets;
pub use mount::{
    Abort, Handshake, Inherited, Mount, MountError, MountOptions, MountState, MountUse, Session,
    UnmountError, abort, detach, mount, mount_state, mount_use, prepare_mountpoint,
    raise_read_ahead, resolve, take_over, unmount_idle,
};
pub use notifier::Notifier;
pub use notify_thread::NOTIFIER;
pub use passthrough::{PassthroughOpen, PassthroughRecord};
pub use policy::{OpenMode, ReaddirPlus};
pub use push::Push;
pub use quarantine::Quarantine;
