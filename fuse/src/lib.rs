//! The FUSE front of copperfs.
//!
//! Purpose: answer the kernel. This crate owns the mount, the kernel-cache policy, the translation of
//! failures to errno, the notifications (invalidate, push) and the ioctl ABI. It knows nothing of
//! trees, origins or caches: what is in the filesystem it asks of an implementation of [`Backend`].
//!
//! A request's way: `adapter` → [`Backend`] → `adapter` (at hand), or `interrupt` → the runtime →
//! `adapter` (waited for). Towards the kernel, unasked: [`Notifier`] → `notify_thread` (one thread) →
//! `device`.
//!
//! Invariants: no FUSE thread blocks; no reply waits for a notification; a mount is always
//! `ro,nosuid,nodev,default_permissions`; errno is decided in `errno` alone.

mod adapter;
mod attr;
pub mod backend;
pub mod counters;
mod device;
mod dirplus;
mod errno;
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
mod repeats;
mod reply;
mod shared;

pub use backend::{
    Answer, Attr, Backend, Backing, DirEntry, DirPage, FileKind, FsError, Ino, Lookup, OpenDir,
    Opened, Reader, StatsAge, Timestamp, Usage,
};
pub use counters::{Counters, Op};
pub use ioctl::Sockets;
pub use mount::{
    Abort, Mount, MountError, MountOptions, MountState, NonEmpty, UnmountError, abort, detach,
    is_busy, make_way, mount, mount_state, resolve, unmount_idle,
};
pub use notifier::Notifier;
pub use policy::{OpenMode, ReaddirPlus};
pub use push::{Push, PushLimits};
