//! What a node is started with: every value resolved, checked and in its own type.
//!
//! This module is data only. How it comes about (flags, environment, file, defaults) is the business
//! of its siblings; nobody behind it reads the environment or a configuration file again.

pub use crate::cache::EvictionPolicy;
pub use crate::index::{IndexFile, IndexSpec};
pub use crate::model::DatasetSpec;
pub use crate::origin::{OriginSpec, SymlinkPolicy};
pub use copperfs_fuse::{OpenMode, ReaddirPlus};
pub use copperfs_overlay::{Member, NodeIdentity, Orphan};
use copperfs_policy::amounts::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Everything a node needs to know to start.
#[derive(Clone)]
pub struct Settings {
    /// Where the filesystem is mounted: absolute.
    pub mountpoint: PathBuf,
    /// Where it is mounted a second time, for datasets: absolute, and neither within the mount point
    /// nor around it.
    pub data_mount: Option<PathBuf>,
    /// Whether the kernel may cache what is read through the data mount.
    pub page_cache: bool,
    /// What is served, and where below the mount point. Prefixes are distinct; at least one.
    pub origins: Vec<OriginSpec>,
    /// Prefixes whose names come from an index.
    pub indexes: Vec<IndexSpec>,
    /// `object_store`'s usual variables (`AWS_*`, `AZURE_*`, `GOOGLE_*`, and proxies), read once,
    /// here. They hold credentials: [`Settings`]' `Debug` shows their names only.
    pub environment: BTreeMap<String, String>,
    /// Absolute paths of POSIX origins that are not served; `None`: the default list of the origin.
    pub exclude: Option<Vec<PathBuf>>,
    /// Every node of the tree in order, this one included unless it joins as a guest. Exactly one in
    /// a single-node mount.
    pub members: Vec<Member>,
    /// This node's place among them.
    pub identity: NodeIdentity,
    /// The nodes that touch storage, by rank.
    pub roots: Vec<usize>,
    /// What this node does when it is cut off from every root.
    pub orphan: Orphan,
    /// How long a parent may be silent while requests are under way.
    pub silence: Duration,
    /// The UDP address to listen on; `None` in a single-node mount that was not told to listen.
    pub listen: Option<SocketAddr>,
    /// Of the addresses that a member's name stands for, those in this network are meant, if there are
    /// any.
    pub network: Option<NetworkPrefix>,
    /// How many edges of the tree cross switches, where `members` were ordered by a topology.
    pub crossings: Option<Crossings>,
    /// Children per node of the tree, at least 1.
    pub arity: usize,
    /// The job secret, a file only its owner may read. Always there when `listen` is.
    pub secret_file: Option<PathBuf>,
    /// CPUs for the daemon's service threads; empty: all.
    pub cpus: Vec<usize>,
    /// How absolute symlinks are shown.
    pub symlinks: SymlinkPolicy,
    /// What opening a file costs and gives.
    pub open: OpenMode,
    /// Whether users other than the owner may use the mount.
    pub allow_other: bool,
    /// Whether POSIX ACLs are enforced by the kernel. `Auto`: when `allow_other` is set.
    pub posix_acl: Toggle,
    /// When READDIRPLUS is used.
    pub readdir_plus: ReaddirPlus,
    /// Bounds of the caches.
    pub cache: CacheSettings,
    /// Where file data is kept on a disk, too.
    pub disk: Option<DiskSettings>,
    /// Files up to this many bytes are brought whole on their first read.
    pub whole_file_max: u64,
    /// Small files of a directory are brought together.
    pub bundles: bool,
    /// Files above this many bytes are read from storage by every node itself; `None`: never.
    pub bypass_above: Option<u64>,
    /// Up to so many entries, a POSIX directory's attributes come with its listing.
    pub listing_attributes_max: usize,
    /// Directories with more entries are paged and looked up by name.
    pub listing_entries_max: usize,
    /// Concurrent system calls on POSIX origins (root only).
    pub posix_concurrency: usize,
    /// Concurrent requests to one object store (root only), at most.
    pub object_concurrency: usize,
    /// How long a request may take, upstream or at an origin, before readers see EIO.
    pub request_timeout: Duration,
    /// The maximum difference between the clocks of storage and of the roots.
    pub clock_skew: Duration,
    /// Until when names, attributes and listings may be used. The same on all nodes.
    pub freshness: Freshness,
    /// How long the kernel may use names and attributes unasked.
    pub ttl: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_ttl: Duration,
    /// Unasked transfer of small files into the kernel's page cache.
    pub push: PushSettings,
    /// Threads that answer the kernel.
    pub fuse_threads: usize,
    /// Requests the kernel may have in flight in the background (read-ahead and the like).
    pub max_background: u16,
    /// Worker threads of the async runtime.
    pub worker_threads: usize,
    /// Directory of this mount's own files (pid, log, control socket): 0700, this user's.
    pub runtime_dir: PathBuf,
    /// Unix socket for lists that do not fit an ioctl, mode 0600, in `runtime_dir`.
    pub control_socket: PathBuf,
    /// Datasets that are declared from the start.
    pub datasets: Vec<DatasetSpec>,
    /// The share of each node's cache that datasets never touch, in per cent.
    pub shared_reserve_percent: u8,
    /// Bytes per second that storage gives for datasets, all nodes together; `None`: no limit.
    pub remote_io: Option<u64>,
    /// How budgets and rates are decided, by name: one of [`copperfs_policy::Policy`].
    pub allocation_policy: String,
    /// GPUs of the cluster, if jobs are to be checked against them.
    pub gpus: Option<u32>,
    /// The TCP address on which commands are served besides the Unix sockets.
    pub api_listen: Option<SocketAddr>,
    /// Where messages go.
    pub log: LogSettings,
    /// Stay in the foreground instead of becoming a daemon.
    pub foreground: bool,
}

/// Until when names, attributes and listings may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    /// Until they are cleared.
    #[default]
    Job,
    /// For so long after storage was asked; not zero.
    Ttl(Duration),
}

impl Freshness {
    /// The length of a lease; `None`: it ends with a clear.
    #[must_use]
    pub const fn lease(self) -> Option<Duration> {
        match self {
            Self::Job => None,
            Self::Ttl(length) => Some(length),
        }
    }
}

/// On, off, or what suits the other settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Toggle {
    /// What suits.
    #[default]
    Auto,
    /// On.
    On,
    /// Off.
    Off,
}

/// A store on a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskSettings {
    /// Its directory: absolute.
    pub directory: PathBuf,
    /// Bytes that it may take.
    pub size: Size,
    /// The share of its filesystem that is left free, in per cent.
    pub reserve_percent: u8,
}

/// Bounds of the caches, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSettings {
    /// All caches together: the sum of the four below.
    pub memory_bytes: u64,
    /// File data.
    pub data_bytes: u64,
    /// Attributes.
    pub attributes_bytes: u64,
    /// Directory listings.
    pub listings_bytes: u64,
    /// Names that the kernel holds for this node's mounts.
    pub inodes_bytes: u64,
    /// What is evicted first.
    pub policy: EvictionPolicy,
}

/// Unasked transfer of small files into the kernel's page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushSettings {
    /// Whether it is done.
    pub enabled: bool,
    /// The largest file that is pushed.
    pub file_max_bytes: u64,
    /// Pushed bytes that the kernel may hold at a time.
    pub bytes_max: u64,
}

/// Where messages go and how many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSettings {
    /// A `tracing` filter: `warn`, `info`, `copperfs=debug`, …
    pub level: String,
    /// The file; standard error when in the foreground and no file was named.
    pub file: Option<PathBuf>,
}

impl Settings {
    /// This node's place in the list; `None` for one that joins.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self.identity {
            NodeIdentity::Member(rank) => Some(rank),
            NodeIdentity::Guest(_) => None,
        }
    }

    /// Whether this node touches storage.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.rank().is_some_and(|rank| self.roots.contains(&rank))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("mountpoint", &self.mountpoint)
            .field("origins", &self.origins)
            .field("environment", &self.environment.keys())
            .field("members", &self.members.len())
            .field("identity", &self.identity)
            .field("listen", &self.listen)
            .field("arity", &self.arity)
            .field("open", &self.open)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// A network: `10.12.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPrefix {
    pub(super) address: IpAddr,
    pub(super) bits: u32,
}

impl NetworkPrefix {
    /// Whether `address` lies in it.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        let keep = |width: u32| width.saturating_sub(self.bits);
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = u32::from(a) ^ u32::from(b);
                differ.checked_shr(keep(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = u128::from(a) ^ u128::from(b);
                differ.checked_shr(keep(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// How many edges of the tree there are, and how many of them join hosts on different switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossings {
    /// Edges of the tree, or of all trees.
    pub edges: usize,
    /// Crossing ones in the order that was given.
    pub given: usize,
    /// Crossing ones in the order that is used.
    pub used: usize,
}
