//! Requests that may have killed an earlier daemon of the mount, and the decision about them.
//!
//! When a daemon has died, its successor has the kernel send the requests again that have no answer
//! ([`crate::take_over`]). One of them may be the cause of the death, and would kill the successor, too. The kernel
//! marks these requests, so that the user of this crate can decide which of them are handled, and when.

use crate::backend::{FsError, Ino};
use crate::counters::Op;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::fmt;

/// Marks the number of a request that was sent before (`FUSE_UNIQUE_RESEND` of the kernel's ABI).
const RESENT: u64 = 1 << 63;

/// What a request asks for, without the range of a read: if one range of a file kills the daemon, others may, too.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Subject {
    /// The operation.
    pub op: Op,
    /// The inode; of a look-up, the directory.
    pub ino: Ino,
    /// The name that is looked up, or that of an extended attribute. Otherwise empty.
    pub name: Bytes,
}

/// The permission to handle a request. Dropped when the request is answered.
pub type Pass = Box<dyn Send>;

/// When a request is handled: the permission comes later, or there is an error in its place.
pub type Admission = BoxFuture<'static, Result<Pass, FsError>>;

/// Decides about requests that may have killed an earlier daemon.
pub trait Quarantine: fmt::Debug + Send + Sync + 'static {
    /// Returns whether all requests are to be admitted, and not only those that were sent before. Called for each
    /// request.
    fn is_active(&self) -> bool;

    /// Admits a request. `resent`: its number on this connection, if an earlier daemon has received it, too. `None`: it
    /// is handled at once.
    fn admit(&self, subject: Subject, resent: Option<u64>) -> Option<Admission>;
}

/// Returns the number that the kernel has given the request which came as `unique`.
pub(crate) fn number(unique: u64) -> u64 {
    unique & !RESENT
}

/// Returns its number if it was sent before.
pub(crate) fn resent(unique: u64) -> Option<u64> {
    (unique & RESENT != 0).then_some(number(unique))
}
