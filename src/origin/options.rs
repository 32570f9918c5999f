//! How origins are named and opened. Plain values: `src/config` fills them.

use super::hanging_bound::HangingBound;
use copperfs_overlay::ItemPath;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One origin as the user names it: `--origin /data=s3://bucket/prefix`.
#[derive(Clone, PartialEq, Eq)]
pub struct OriginSpec {
    /// Where it appears below the mount point.
    pub prefix: ItemPath,
    /// `file:///dir` (or a bare absolute path), `s3://bucket/prefix`, `az://container/prefix`,
    /// `gs://bucket/prefix`, `http://host/base`, `https://host/base`.
    pub uri: String,
    /// For object stores, the keys of `object_store` (`region`, `endpoint`, `allow_http`, …). They may
    /// hold credentials and are never shown.
    pub options: BTreeMap<String, String>,
}

/// Without option values: they may be credentials.
impl fmt::Debug for OriginSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginSpec")
            .field("prefix", &self.prefix)
            .field("uri", &super::error::redacted(&self.uri))
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// What becomes of absolute symlinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SymlinkPolicy {
    /// Those whose target lies under a served origin are shown as relative links of matching size, so
    /// that nobody leaves the mount unknowingly.
    #[default]
    Relative,
    /// The origin's own text, for git and rsync.
    Keep,
}

/// What object stores do not tell about a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectAttributes {
    /// Permission bits of files. Set it to `0o555` where programs or scripts are run from objects.
    pub file_mode: u16,
    /// Permission bits of directories.
    pub directory_mode: u16,
    /// Owner; `None`: the daemon's user.
    pub uid: Option<u32>,
    /// Group; `None`: the daemon's group.
    pub gid: Option<u32>,
}

impl Default for ObjectAttributes {
    fn default() -> Self {
        Self {
            file_mode: 0o444,
            directory_mode: 0o555,
            uid: None,
            gid: None,
        }
    }
}

/// How often and how long a request to an object store is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retries {
    /// Repetitions of one request.
    pub max: usize,
    /// No repetition begins later than this after the first attempt.
    pub timeout: Duration,
    /// Wait before the first repetition; it doubles, with jitter, up to `backoff_max`.
    pub backoff: Duration,
    /// Longest wait between two attempts.
    pub backoff_max: Duration,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long a server may send nothing in the middle of an answer.
    pub read_timeout: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            max: 6,
            timeout: Duration::from_secs(30),
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(15),
        }
    }
}

/// Options that all origins share.
#[derive(Clone)]
pub struct OriginOptions {
    /// Paths that are not served. For `file://` origins these are paths of the host (the same as in
    /// the namespace where a directory is served under its own name), for others paths of the
    /// namespace. Put the own mount point here.
    pub exclude: Vec<ItemPath>,
    /// Whether an origin `/` leaves out [`OriginOptions::DEFAULT_EXCLUDE`].
    pub default_exclude: bool,
    /// What becomes of absolute symlinks.
    pub symlinks: SymlinkPolicy,
    /// Directories with more entries are listed without attributes on POSIX origins.
    pub listing_attributes_max: usize,
    /// How long a listing waits for the attributes of its entries.
    pub listing_attributes_timeout: Duration,
    /// How long one POSIX call may take before its asker gets `Unavailable`.
    pub hang_timeout: Duration,
    /// Blocking calls to POSIX origins at a time, per origin.
    pub posix_concurrency: usize,
    /// Bounds the hanging calls of all POSIX origins that are opened with clones of these options.
    pub hanging: Arc<HangingBound>,
    /// Requests to one object store at a time, at most; fewer while it refuses some.
    pub object_concurrency: usize,
    /// The process's environment, of which `AWS_*`, `AZURE_*` and `GOOGLE_*` are used.
    pub env: BTreeMap<String, String>,
    /// The maximum difference between the clocks of storage and of this host. Only times older than this
    /// prove a file's age; younger files are looked at twice.
    pub clock_skew: Duration,
    /// Attributes of objects.
    pub object_attributes: ObjectAttributes,
    /// Retries of object stores.
    pub retries: Retries,
}

impl OriginOptions {
    /// The default of [`OriginOptions::clock_skew`].
    pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
    /// What an origin `/` leaves out: kernel and node-local trees, which are no shared storage.
    pub const DEFAULT_EXCLUDE: [&'static str; 6] =
        ["/proc", "/sys", "/dev", "/run", "/tmp", "/var"];
}

impl Default for OriginOptions {
    fn default() -> Self {
        Self {
            exclude: Vec::new(),
            default_exclude: true,
            symlinks: SymlinkPolicy::default(),
            listing_attributes_max: 2_000,
            listing_attributes_timeout: Duration::from_secs(1),
            hang_timeout: Duration::from_secs(30),
            posix_concurrency: 32,
            hanging: Arc::default(),
            object_concurrency: 64,
            env: BTreeMap::new(),
            clock_skew: Self::CLOCK_SKEW,
            object_attributes: ObjectAttributes::default(),
            retries: Retries::default(),
        }
    }
}

/// Without the environment: it may hold credentials.
impl fmt::Debug for OriginOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginOptions")
            .field("exclude", &self.exclude)
            .field("symlinks", &self.symlinks)
            .field("listing_attributes_max", &self.listing_attributes_max)
            .field("posix_concurrency", &self.posix_concurrency)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
