//! The FUSE front of copperfs.
//!
//! Purpose: answer the kernel. This crate owns the mount, the kernel-cache policy, the translation of
//! failures to errno, the notifications (invalidate, push) and the ioctl ABI. It knows nothing of
//! trees, origins or caches: what is in the filesystem it asks of an implementation of [`Backend`].

pub mod backend;
pub mod ioctl;

pub use backend::{
    Answer, Attr, Backend, Backing, DirEntry, DirPage, FileKind, FsError, Ino, Lookup, Reader,
    Timestamp, Usage,
};
