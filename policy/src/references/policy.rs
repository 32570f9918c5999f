//! The policies of eviction by name: LRC, and those that it is compared with.

use std::fmt;
use std::str::FromStr;

/// Which resident block is evicted first.
///
/// All but `s3-fifo` evict the block with the least (rank, last use), and differ only in the rank. So an
/// option of a cache ([`Limits`](super::Limits)) means the same under each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EvictionPolicy {
    /// The rank is the reference count. A job counts from its submission on (the paper's LRC-Online,
    /// section III-B).
    #[default]
    Lrc,
    /// The rank is the reference count, and all jobs count from the start (the paper's LRC).
    LrcOffline,
    /// All ranks are 0, so only the last use counts.
    Lru,
    /// The rank is the number of reads and puts of the block so far, also of those before an eviction.
    Lfu,
    /// Three FIFO queues (Yang et al., SOSP '23), as in the caches of a node. It has no ranks: it admits
    /// every block that the cache is large enough for, and spares no undeclared blocks.
    S3Fifo,
    /// The rank falls with the distance of the block's next read (Belady's MIN). It is 0 if the block is
    /// put before it is read, or not read again. With blocks of different sizes this is not the optimum.
    Min,
}

impl EvictionPolicy {
    /// All policies, the default first.
    pub const ALL: [Self; 6] = [
        Self::Lrc,
        Self::LrcOffline,
        Self::Lru,
        Self::Lfu,
        Self::S3Fifo,
        Self::Min,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lrc => "lrc",
            Self::LrcOffline => "lrc-offline",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::S3Fifo => "s3-fifo",
            Self::Min => "min",
        }
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no policy of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a policy of eviction. The policies: lrc (the default), lrc-offline, lru, lfu, \
     s3-fifo, min"
)]
pub struct UnknownEvictionPolicy {
    name: String,
}

impl FromStr for EvictionPolicy {
    type Err = UnknownEvictionPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownEvictionPolicy> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownEvictionPolicy { name: name.into() })
    }
}
