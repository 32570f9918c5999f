//! The settings of a node: every value resolved, checked and in its own type.
//!
//! This module is data only. Its siblings read flags, the environment, the file and the defaults. Code that
//! receives settings does not read the environment or a configuration file again.

pub use crate::cache::EvictionPolicy;
pub use crate::index::{FileLocation, IndexSpec};
pub use crate::model::DatasetSpec;
pub use crate::origin::{OriginSpec, SymlinkPolicy};
pub use copperfs_fuse::{OpenMode, ReaddirPlus};
use copperfs_overlay::ItemPath;
pub use copperfs_overlay::{Member, NodeIdentity, Orphan};
use copperfs_policy::amounts::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// All settings of a node. No `Debug`: the environment and the origins' options hold credentials.
#[derive(Clone)]
pub struct Settings {
    /// The mount point: absolute.
    pub mountpoint: PathBuf,
    /// How the kernel reads the software mount.
    pub images: ImageSettings,
    /// The mount point of the second mount, which is for datasets: absolute, and neither within the first mount
    /// point nor around it.
    pub data_mount: Option<PathBuf>,
    /// Whether the kernel may cache the pages of the data mount.
    pub page_cache: bool,
    /// The served storage, and its prefixes below the mount point. At least one, with distinct prefixes.
    pub origins: Vec<OriginSpec>,
    /// The indexes, for prefixes whose names they list.
    pub indexes: Vec<IndexSpec>,
    /// The variables that origins use (`AWS_*`, `AZURE_*`, `GOOGLE_*`, `HOME`). They hold credentials.
    pub environment: BTreeMap<String, String>,
    /// Absolute paths of POSIX origins that are not served; `None`: the default list of the origin.
    pub exclude: Option<Vec<PathBuf>>,
    /// Every node of the instance in the order of the tree, including this node unless it joins as a guest. A single-node mount has
    /// one member.
    pub members: Vec<Member>,
    /// This node's identity in the member list.
    pub identity: NodeIdentity,
    /// The rack of all members, if every rack is an instance of its own.
    pub rack: Option<String>,
    /// The ranks of the nodes that read storage.
    pub roots: Vec<usize>,
    /// The behaviour of this node when it is disconnected from every root.
    pub orphan: Orphan,
    /// How long a parent may be silent while requests are in progress.
    pub silence: Duration,
    /// The UDP address to listen on; `None` in a single-node mount without `--listen`.
    pub listen: Option<SocketAddr>,
    /// If a member's name has addresses in this network, only those are used.
    pub network: Option<NetworkPrefix>,
    /// The number of edges that cross switches, if a topology has ordered `members`.
    pub crossings: Option<Crossings>,
    /// Children per node of the tree, at least 1.
    pub arity: usize,
    /// The file with the job secret. Set whenever `listen` is.
    pub secret_file: Option<PathBuf>,
    /// The threads of the daemon.
    pub threads: ThreadSettings,
    /// The form in which absolute symlinks are served.
    pub symlinks: SymlinkPolicy,
    /// How files are opened.
    pub open: OpenMode,
    /// Whether users other than the owner may use the mount.
    pub allow_other: bool,
    /// Whether POSIX ACLs are enforced by the kernel.
    pub posix_acl: bool,
    /// When READDIRPLUS is used.
    pub readdir_plus: ReaddirPlus,
    /// Bounds of the caches.
    pub cache: CacheSettings,
    /// The store on a disk.
    pub disk: Option<DiskSettings>,
    /// Files up to this many bytes are fetched whole on their first read.
    pub whole_file_max: u64,
    /// Whether small files of a directory are fetched together.
    pub bundles: bool,
    /// Every node itself reads files above this many bytes from storage; `None`: never.
    pub bypass_above: Option<u64>,
    /// A POSIX directory with up to this many entries is listed with attributes.
    pub listing_attributes_max: usize,
    /// Directories with more entries are listed in pages, and looked up by name.
    pub listing_entries_max: usize,
    /// Concurrent system calls on POSIX origins (root only).
    pub posix_concurrency: usize,
    /// Concurrent requests to one object store (root only), at most.
    pub object_concurrency: usize,
    /// How long a request may take, upstream or at an origin, before readers see EIO.
    pub request_timeout: Duration,
    /// The maximum difference between the clocks of storage and of the roots.
    pub clock_skew: Duration,
    /// How long names, attributes and listings may be used after they were read from storage: not zero; `None`:
    /// until they are cleared. The same on all nodes.
    pub lease: Option<Duration>,
    /// How long the kernel may use names and attributes without another request.
    pub ttl: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_ttl: Duration,
    /// Push of small files into the kernel's page cache.
    pub push: PushSettings,
    /// Requests the kernel may have in flight in the background (read-ahead and the like).
    pub max_background: u16,
    /// The directory with this mount's own files (pid, log, control socket): mode 0700, owned by this user.
    pub runtime_dir: PathBuf,
    /// The Unix socket of the control plane, mode 0600, in `runtime_dir`.
    pub control_socket: PathBuf,
    /// Datasets that are declared from the start.
    pub datasets: Vec<DatasetSpec>,
    /// The share of each node's cache that datasets never touch, in per cent.
    pub shared_reserve_percent: u8,
    /// Bytes per second that all nodes together may read from storage for datasets; `None`: no limit.
    pub remote_io: Option<u64>,
    /// The name of the policy that decides budgets and rates: one of [`copperfs_policy::Policy`].
    pub allocation_policy: String,
    /// The part of the cache for datasets that the references of pipelines can give to datasets, in per cent.
    pub pipelines_percent: u8,
    /// The number of references that the pipelines of one tenant may hold on this node.
    pub max_refs_per_tenant: u32,
    /// GPUs of the cluster, if jobs are to be checked against them.
    pub gpus: Option<u32>,
    /// The TCP address on which commands are served besides the Unix sockets.
    pub api_listen: Option<SocketAddr>,
    /// The log.
    pub log: LogSettings,
    /// Stay in the foreground instead of becoming a daemon.
    pub foreground: bool,
    /// Another daemon takes the mounts over when this one dies.
    pub takeover: bool,
}

/// How the kernel reads the software mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrontChoice {
    /// It asks the daemon for everything.
    Fuse,
    /// It has images of the directories that never change, where that is possible.
    Auto,
    /// It has images, or the mount fails.
    EroFs,
}

/// Images over directories of the software mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageSettings {
    /// Whether there are any.
    pub front: FrontChoice,
    /// The directories of the namespace that they serve. None is within another.
    pub directories: Vec<ItemPath>,
    /// The profile in whose order their contents lie.
    pub profile: Option<FileLocation>,
}

/// A store on a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskSettings {
    /// Its directory: absolute.
    pub directory: PathBuf,
    /// The bytes that it may take.
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
    /// The eviction policy.
    pub policy: EvictionPolicy,
}

/// The threads of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadSettings {
    /// Their CPUs; empty: all.
    pub cpus: Vec<usize>,
    /// Those that answer requests of the kernel, for each mount.
    pub fuse: usize,
    /// The worker threads of the async runtime.
    pub workers: usize,
    /// Those that carry items of datasets between nodes; 0: the workers do.
    pub lanes: usize,
}

/// Push of small files into the kernel's page cache, before programs read them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushSettings {
    /// Whether files are pushed.
    pub enabled: bool,
    /// The largest file that is pushed.
    pub file_max_bytes: u64,
    /// Pushed bytes that the kernel may hold at a time.
    pub bytes_max: u64,
}

/// The log of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSettings {
    /// A `tracing` filter: `warn`, `info`, `copperfs=debug`, …
    pub level: String,
    /// The file; standard error if the daemon is in the foreground and no file is named.
    pub file: Option<PathBuf>,
}

/// Attributes and listings each get one part in 20 of the memory.
const METADATA_SHARE: u64 = 20;
/// Names that the kernel holds may take one part in 10 of the memory.
const INODES_SHARE: u64 = 10;

impl CacheSettings {
    /// Divides `memory_bytes` among the caches.
    #[must_use]
    pub fn new(memory_bytes: u64, policy: EvictionPolicy) -> Self {
        let metadata_bytes = memory_bytes / METADATA_SHARE;
        let inodes_bytes = memory_bytes / INODES_SHARE;
        Self {
            memory_bytes,
            data_bytes: memory_bytes - 2 * metadata_bytes - inodes_bytes,
            attributes_bytes: metadata_bytes,
            listings_bytes: metadata_bytes,
            inodes_bytes,
            policy,
        }
    }
}

impl Settings {
    /// This node's rank; `None` for a guest.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self.identity {
            NodeIdentity::Member(rank) => Some(rank),
            NodeIdentity::Guest(_) => None,
        }
    }

    /// Whether this node reads storage as a root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.rank().is_some_and(|rank| self.roots.contains(&rank))
    }
}

/// A network: `10.12.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPrefix {
    pub(super) address: IpAddr,
    pub(super) bits: u32,
}

impl NetworkPrefix {
    /// Whether `address` is in the network.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        let (differ, width) = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a) ^ u32::from(b)), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b), 128_u32),
            _ => return false,
        };
        let host_bits = width.saturating_sub(self.bits);
        differ.checked_shr(host_bits).unwrap_or(0) == 0
    }
}

/// The number of edges of the tree, and of those that join hosts on different switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossings {
    /// Edges of the tree, or of all trees.
    pub edges: usize,
    /// Edges that cross switches in the order of the host list.
    pub given: usize,
    /// Edges that cross switches in the order that is used.
    pub used: usize,
}
