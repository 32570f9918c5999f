//! Counts the kernel's requests to one mount, by operation.

use copperfs_metrics::{Counter, Gauge, Histogram, Kind, Registry, Unit};
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
    /// FORGET and BATCH_FORGET, counted per forgotten inode, not per message.
    Forget "forget",
    /// GETATTR.
    Getattr "getattr",
    /// READLINK.
    Readlink "readlink",
    /// OPEN. A zero-message mount gets one, which is answered ENOSYS.
    Open "open",
    /// RELEASE.
    Release "release",
    /// READ.
    Read "read",
    /// OPENDIR. A zero-message mount gets one, as for `Open`.
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
    /// Requests that would write, answered EROFS.
    Write "write",
}

/// Counters of one mount.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [Counter; Op::ALL.len()],
    /// Latencies of the requests that a FUSE thread answered from memory.
    at_once: [Histogram; Op::ALL.len()],
    /// Latencies of the requests that were answered later, because the answer needed another tier.
    later: [Histogram; Op::ALL.len()],
    /// Bytes returned by READ.
    pub(crate) read_bytes: Counter,
    /// Requests dropped because their reader was killed.
    pub interrupted: Counter,
    /// Files pushed into the page cache.
    pub push_files: Counter,
    /// Bytes pushed into the page cache.
    pub(crate) push_bytes: Counter,
    /// Inodes in the push queue; 0 when every push is done.
    pub push_pending: Gauge,
    /// Requests that FUSE threads handle at this moment; the push yields to them.
    pub(crate) active: AtomicU64,
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
            let latency = latency.label("op", op.name());
            latency
                .label("answered", "at_once")
                .histogram("", help, &self.at_once[op as usize]);
            latency
                .label("answered", "later")
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

    /// Returns the number of requests of this kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize].get()
    }

    /// Returns the number of requests that expect an answer (all but FORGET).
    #[must_use]
    pub fn messages(&self) -> u64 {
        answered().map(|op| self.requests(op)).sum()
    }

    /// Counts a request, and marks it as active until the guard is dropped.
    pub(crate) fn begin(&self, op: Op) -> ActiveRequest<'_> {
        self.add(op, 1);
        // Relaxed: the count only guides the push, and orders no other memory.
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveRequest {
            counters: self,
            op,
            start: Instant::now(),
            later: false,
        }
    }

    pub(crate) fn add(&self, op: Op, count: u64) {
        self.requests[op as usize].add(count);
    }
}

fn answered() -> impl Iterator<Item = Op> {
    Op::ALL.iter().copied().filter(|&op| op != Op::Forget)
}

/// A request that a FUSE thread handles. Dropping it records the request as answered, unless the answer
/// comes [later](Self::answer_later).
pub(crate) struct ActiveRequest<'a> {
    counters: &'a Counters,
    op: Op,
    start: Instant,
    later: bool,
}

impl ActiveRequest<'_> {
    /// When the FUSE thread began to handle it.
    pub(crate) fn start(&self) -> Instant {
        self.start
    }

    /// Ends the FUSE thread's part. The returned function records the time from the request to its call, which
    /// comes after the answer.
    pub(crate) fn answer_later(mut self) -> impl FnOnce() + Send + use<> {
        self.later = true;
        let (histogram, start) = (self.counters.later[self.op as usize].clone(), self.start);
        move || histogram.observe(start.elapsed())
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.counters.active.fetch_sub(1, Ordering::Relaxed);
        if !self.later {
            self.counters.at_once[self.op as usize].observe(self.start.elapsed());
        }
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
    fn a_request_is_active_while_its_guard_lives() {
        let counters = Counters::default();
        let guard = counters.begin(Op::Read);
        assert_eq!(counters.active.load(Ordering::Relaxed), 1);
        drop(guard);
        assert_eq!(counters.active.load(Ordering::Relaxed), 0);
        assert_eq!(counters.messages(), 1);
        let answered = counters.begin(Op::Read).answer_later();
        let counts = || {
            let of = |kind: &[Histogram]| kind[Op::Read as usize].snapshot().count();
            (of(&counters.at_once), of(&counters.later))
        };
        assert_eq!(counts(), (1, 0));
        answered();
        assert_eq!(counts(), (1, 1));
    }
}
