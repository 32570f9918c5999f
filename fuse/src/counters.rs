//! What the kernel asked of this mount, by operation: the proof that it asks for little.

use crate::ioctl::StatsBody;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:literal $field:ident,)*) => {
        /// A kind of FUSE request.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op { $($(#[$doc])* $variant,)* }

        impl Op {
            /// All kinds, in the order of the ABI.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Name as in `fuse.requests.<name>`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }

        impl Counters {
            /// Writes `fuse.*` and `push.*` into `stats`; the rest is left as it is.
            pub fn fill(&self, stats: &mut StatsBody) {
                $(stats.$field = self.requests(Op::$variant);)*
                stats.fuse_bytes_read = self.bytes_read.load(Ordering::Relaxed);
                stats.fuse_interrupted = self.interrupted.load(Ordering::Relaxed);
                stats.push_files = self.push_files.load(Ordering::Relaxed);
                stats.push_bytes = self.push_bytes.load(Ordering::Relaxed);
                stats.push_pending = self.push_pending.load(Ordering::Relaxed);
            }
        }
    };
}

operations! {
    /// LOOKUP.
    Lookup "lookup" fuse_requests_lookup,
    /// FORGET and BATCH_FORGET: inodes forgotten, not messages.
    Forget "forget" fuse_requests_forget,
    /// GETATTR.
    Getattr "getattr" fuse_requests_getattr,
    /// READLINK.
    Readlink "readlink" fuse_requests_readlink,
    /// OPEN; on a zero-message mount only the one that is answered ENOSYS.
    Open "open" fuse_requests_open,
    /// RELEASE.
    Release "release" fuse_requests_release,
    /// READ.
    Read "read" fuse_requests_read,
    /// OPENDIR; as `Open`.
    Opendir "opendir" fuse_requests_opendir,
    /// READDIR.
    Readdir "readdir" fuse_requests_readdir,
    /// READDIRPLUS.
    Readdirplus "readdirplus" fuse_requests_readdirplus,
    /// RELEASEDIR.
    Releasedir "releasedir" fuse_requests_releasedir,
    /// FLUSH.
    Flush "flush" fuse_requests_flush,
    /// FSYNC and FSYNCDIR.
    Fsync "fsync" fuse_requests_fsync,
    /// STATFS.
    Statfs "statfs" fuse_requests_statfs,
    /// ACCESS.
    Access "access" fuse_requests_access,
    /// GETXATTR.
    Getxattr "getxattr" fuse_requests_getxattr,
    /// LISTXATTR.
    Listxattr "listxattr" fuse_requests_listxattr,
    /// LSEEK.
    Lseek "lseek" fuse_requests_lseek,
    /// GETLK, SETLK and SETLKW.
    Lock "lock" fuse_requests_lock,
    /// IOCTL.
    Ioctl "ioctl" fuse_requests_ioctl,
    /// Everything that would write, answered EROFS.
    Write "write" fuse_requests_write,
}

/// Counters of one mount, since it was mounted. Cheap to update from any thread; each is exact, but
/// several read together are not a snapshot.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; Op::ALL.len()],
    /// Bytes given in answer to READ.
    pub(crate) bytes_read: AtomicU64,
    /// Requests dropped because their reader was killed.
    pub(crate) interrupted: AtomicU64,
    /// Files pushed into the page cache.
    pub(crate) push_files: AtomicU64,
    /// Bytes pushed into the page cache.
    pub(crate) push_bytes: AtomicU64,
    /// Inodes that wait for the notifier thread to look at them.
    pub(crate) push_pending: AtomicU64,
    /// Requests that a FUSE thread works on at this moment; the push yields to them.
    pub(crate) in_hand: AtomicU64,
}

impl Counters {
    /// How many requests of this kind arrived.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize].load(Ordering::Relaxed)
    }

    /// How many requests arrived that expect an answer (all but FORGET).
    #[must_use]
    pub fn messages(&self) -> u64 {
        Op::ALL
            .iter()
            .filter(|&&op| op != Op::Forget)
            .map(|&op| self.requests(op))
            .sum()
    }

    /// Inodes that wait to be looked at for pushing; 0 once every push is done.
    #[must_use]
    pub fn push_pending(&self) -> u64 {
        self.push_pending.load(Ordering::Acquire)
    }

    /// Files whose bytes were stored into the page cache unasked.
    #[must_use]
    pub fn push_files(&self) -> u64 {
        self.push_files.load(Ordering::Relaxed)
    }

    /// Bytes given in answer to READ.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Requests dropped because their reader was killed.
    #[must_use]
    pub fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Counts a request, and marks it as in hand until the guard goes.
    pub(crate) fn begin(&self, op: Op) -> InHand<'_> {
        self.add(op, 1);
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        InHand(self)
    }

    pub(crate) fn add(&self, op: Op, count: u64) {
        self.requests[op as usize].fetch_add(count, Ordering::Relaxed);
    }
}

/// While it lives, a FUSE thread is at work on a request.
pub(crate) struct InHand<'a>(&'a Counters);

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_reaches_its_field() {
        let counters = Counters::default();
        for (index, &op) in Op::ALL.iter().enumerate() {
            counters.add(op, 100 + index as u64);
        }
        let mut stats = StatsBody::default();
        counters.fill(&mut stats);
        for (index, &op) in Op::ALL.iter().enumerate() {
            let name = format!("fuse.requests.{}", op.name());
            let field = stats.fields().find(|(field, _)| *field == name);
            assert_eq!(
                field.map(|(_, value)| value),
                Some(100 + index as u64),
                "{name}"
            );
        }
    }

    #[test]
    fn a_request_is_in_hand_while_its_guard_lives() {
        let counters = Counters::default();
        let guard = counters.begin(Op::Read);
        assert_eq!(counters.in_hand.load(Ordering::Relaxed), 1);
        drop(guard);
        assert_eq!(counters.in_hand.load(Ordering::Relaxed), 0);
        assert_eq!(counters.messages(), 1);
    }
}
