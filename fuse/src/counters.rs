//! Requests of the kernel to one mount, by operation.

use copperfs_metrics::{Counter, Gauge, Histogram, Kind, Registry, Unit};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// A kind of FUSE request.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Op { $($(#[$doc])* $variant,)* }

        impl Op {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The operation's name in metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

operations! {
    /// LOOKUP.
    Lookup "lookup",
    /// FORGET and BATCH_FORGET: inodes forgotten, not messages.
    Forget "forget",
    /// GETATTR.
    Getattr "getattr",
    /// READLINK.
    Readlink "readlink",
    /// OPEN; on a zero-message mount only the one that is answered ENOSYS.
    Open "open",
    /// RELEASE.
    Release "release",
    /// READ.
    Read "read",
    /// OPENDIR; as `Open`.
    Opendir "opendir",
    /// READDIR.
    Readdir "readdir",
    /// READDIRPLUS.
    Readdirplus "readdirplus",
    /// RELEASEDIR.
    Releasedir "releasedir",
    /// FLUSH.
    Flush "flush",
    /// FSYNC and FSYNCDIR.
    Fsync "fsync",
    /// STATFS.
    Statfs "statfs",
    /// ACCESS.
    Access "access",
    /// GETXATTR.
    Getxattr "getxattr",
    /// LISTXATTR.
    Listxattr "listxattr",
    /// LSEEK.
    Lseek "lseek",
    /// GETLK, SETLK and SETLKW.
    Lock "lock",
    /// IOCTL.
    Ioctl "ioctl",
    /// Everything that would write, answered EROFS.
    Write "write",
}

/// Counters of one mount.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [Counter; Op::ALL.len()],
    /// Latencies of the requests that a FUSE thread answered from memory.
    at_once: [Histogram; Op::ALL.len()],
    /// Latencies of the requests that were answered later, because a tier below was asked.
    later: [Histogram; Op::ALL.len()],
    /// Bytes returned by READ.
    pub(crate) read_bytes: Counter,
    /// Requests dropped because their reader was killed.
    pub(crate) interrupted: Counter,
    /// Files pushed into the page cache.
    pub(crate) push_files: Counter,
    /// Bytes pushed into the page cache.
    pub(crate) push_bytes: Counter,
    /// Inodes that wait for the notifier thread to look at them.
    pub(crate) push_pending: Gauge,
    /// Requests that a FUSE thread works on at this moment; the push yields to them.
    pub(crate) in_hand: AtomicU64,
}

impl Counters {
    /// Declares the counters in `registry`. `mount` distinguishes the mounts of one daemon.
    pub fn declare(&self, registry: &Registry, mount: &'static str) {
        use Unit::{Bytes, Count};
        let fuse = registry.scope("fuse").label("mount", mount);
        let requests = fuse.scope("requests");
        for &op in Op::ALL {
            let help = "Requests of the kernel; of FORGET, the inodes forgotten.";
            let counter = &self.requests[op as usize];
            requests
                .label("op", op.name())
                .counter("", Count, help, counter);
        }
        let messages: Vec<Counter> = answered()
            .map(|op| self.requests[op as usize].clone())
            .collect();
        let latency = fuse.scope("latency_seconds");
        for op in answered() {
            let help =
                "Time from a request of the kernel to its answer: at once, from memory, or later.";
            let of = latency.label("op", op.name());
            of.label("answered", "at_once")
                .histogram("", help, &self.at_once[op as usize]);
            of.label("answered", "later")
                .histogram("", help, &self.later[op as usize]);
        }
        let help = "Requests of the kernel that expect an answer: all but FORGET.";
        fuse.computed("messages", Kind::Counter, Count, help, move || {
            messages.iter().map(Counter::get).sum()
        });
        let help = "Bytes returned by READ.";
        fuse.counter("read_bytes", Bytes, help, &self.read_bytes);
        let help = "Requests dropped because their reader was killed.";
        fuse.counter("interrupted", Count, help, &self.interrupted);
        let push = registry.scope("push").label("mount", mount);
        let help = "Files stored into the page cache before a program reads them.";
        push.counter("files", Count, help, &self.push_files);
        let help = "Bytes stored into the page cache before a program reads them.";
        push.counter("bytes", Bytes, help, &self.push_bytes);
        let help = "Inodes that wait to be considered for a push; 0 after every push is done.";
        push.gauge("pending", Count, help, &self.push_pending);
    }

    /// The number of requests of this kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize].get()
    }

    /// The number of requests that expect an answer (all but FORGET).
    #[must_use]
    pub fn messages(&self) -> u64 {
        answered().map(|op| self.requests(op)).sum()
    }

    /// Inodes that wait to be considered for a push; 0 after every push is done.
    #[must_use]
    pub fn push_pending(&self) -> u64 {
        self.push_pending.get()
    }

    /// Files stored into the page cache before a program read them.
    #[must_use]
    pub fn push_files(&self) -> u64 {
        self.push_files.get()
    }

    /// Bytes returned by READ.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }

    /// Requests dropped because their reader was killed.
    #[must_use]
    pub fn interrupted(&self) -> u64 {
        self.interrupted.get()
    }

    /// Counts a request, and marks it as in hand until the guard goes.
    pub(crate) fn begin(&self, op: Op) -> InHand<'_> {
        self.add(op, 1);
        self.in_hand.fetch_add(1, Ordering::Relaxed);
        InHand {
            counters: self,
            op,
            begun: Instant::now(),
            later: Cell::new(false),
        }
    }

    pub(crate) fn add(&self, op: Op, count: u64) {
        self.requests[op as usize].add(count);
    }
}

fn answered() -> impl Iterator<Item = Op> {
    Op::ALL.iter().copied().filter(|&op| op != Op::Forget)
}

/// While it lives, a FUSE thread is at work on a request. Its drop is the answer, unless that comes
/// [later](InHand::later).
pub(crate) struct InHand<'a> {
    counters: &'a Counters,
    op: Op,
    begun: Instant,
    later: Cell<bool>,
}

impl InHand<'_> {
    /// The answer will come later; the returned latency is observed then.
    pub(crate) fn later(&self) -> Latency {
        self.later.set(true);
        Latency {
            histogram: self.counters.later[self.op as usize].clone(),
            begun: self.begun,
        }
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.counters.in_hand.fetch_sub(1, Ordering::Relaxed);
        if !self.later.get() {
            self.counters.at_once[self.op as usize].observe(self.begun.elapsed());
        }
    }
}

/// The time since a request came.
pub(crate) struct Latency {
    histogram: Histogram,
    begun: Instant,
}

impl Latency {
    /// The request has been answered.
    pub(crate) fn observe(self) {
        self.histogram.observe(self.begun.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_reaches_its_metric() {
        let (counters, registry) = (Counters::default(), Registry::default());
        counters.declare(&registry, "software");
        for (index, &op) in Op::ALL.iter().enumerate() {
            counters.add(op, 100 + index as u64);
        }
        let json = registry.snapshot().to_json();
        for (index, &op) in Op::ALL.iter().enumerate() {
            let value = &json["fuse"]["software"]["requests"][op.name()];
            assert_eq!(value.as_u64(), Some(100 + index as u64), "{op:?}");
        }
        assert_eq!(json["fuse"]["software"]["messages"], counters.messages());
    }

    #[test]
    fn a_request_is_in_hand_while_its_guard_lives() {
        let counters = Counters::default();
        let guard = counters.begin(Op::Read);
        assert_eq!(counters.in_hand.load(Ordering::Relaxed), 1);
        drop(guard);
        assert_eq!(counters.in_hand.load(Ordering::Relaxed), 0);
        assert_eq!(counters.messages(), 1);
        let latency = counters.begin(Op::Read).later();
        let counts = || {
            let of = |kind: &[Histogram]| kind[Op::Read as usize].snapshot().count();
            (of(&counters.at_once), of(&counters.later))
        };
        assert_eq!(counts(), (1, 0));
        latency.observe();
        assert_eq!(counts(), (1, 1));
    }
}
