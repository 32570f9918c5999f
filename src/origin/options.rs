//! Plain values that name origins and say how to open them. `src/config` fills them.

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
    /// For object stores, the keys of `object_store` (`region`, `endpoint`, `allow_http`, …), the `profile` of
    /// Amazon's tools, and `owner` and `mode` of its files. They may hold credentials and are never shown.
    pub options: BTreeMap<String, String>,
}

/// Leaves out the values of options, because they may be credentials.
impl fmt::Debug for OriginSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginSpec")
            .field("prefix", &self.prefix)
            .field("uri", &super::error::redacted(&self.uri))
            .field("options", &self.options.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// How absolute symlinks are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SymlinkPolicy {
    /// Links whose target is below a served origin are shown as relative links of matching size, so that
    /// readers do not leave the mount without noticing.
    #[default]
    Relative,
    /// Links are shown with the origin's own text, for git and rsync.
    Keep,
}

/// The retries of a request to an object store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retries {
    /// The maximum number of retries of one request.
    pub max: usize,
    /// No retry begins later than this after the first attempt.
    pub timeout: Duration,
    /// The delay before the first retry. It doubles, with jitter, up to `backoff_max`.
    pub backoff: Duration,
    /// The maximum delay between two attempts.
    pub backoff_max: Duration,
    /// The timeout for a connection.
    pub connect_timeout: Duration,
    /// The timeout for the next bytes of an answer.
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
    /// Whether directories are opened, and their errors found, only when they are first read. Storage may not answer at
    /// present.
    pub opens_later: bool,
    /// Paths that are not served. For `file://` origins these are paths of the host (they equal those of
    /// the namespace if a directory is served under its own name), for others paths of the namespace. The
    /// own mount point belongs here.
    pub exclude: Vec<ItemPath>,
    /// Whether an origin `/` leaves out [`OriginOptions::DEFAULT_EXCLUDE`].
    pub default_exclude: bool,
    /// How absolute symlinks are shown.
    pub symlinks: SymlinkPolicy,
    /// Directories with more entries are listed without attributes on POSIX origins.
    pub listing_attributes_max: usize,
    /// The timeout of a listing for the attributes of its entries.
    pub listing_attributes_timeout: Duration,
    /// The timeout of one POSIX call, after which its caller gets `Unavailable`.
    pub hang_timeout: Duration,
    /// The maximum number of concurrent blocking calls to one POSIX origin.
    pub posix_concurrency: usize,
    /// Bounds the hanging calls of all POSIX origins that are opened with clones of these options.
    pub hanging: Arc<HangingBound>,
    /// The maximum number of concurrent requests to one object store. Fewer are sent while it refuses some.
    pub object_concurrency: usize,
    /// The environment of the process. The variables `AWS_*`, `AZURE_*`, `GOOGLE_*` and `HOME` are used.
    pub env: BTreeMap<String, String>,
    /// The maximum difference between the clocks of storage and of this host. Only times older than this
    /// prove a file's age; younger files are examined twice.
    pub clock_skew: Duration,
    /// Retries of object stores.
    pub retries: Retries,
}

impl OriginOptions {
    /// The default of [`OriginOptions::clock_skew`].
    pub const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);
    /// Paths that an origin `/` leaves out: kernel and node-local trees, which are no shared storage.
    pub const DEFAULT_EXCLUDE: [&'static str; 6] =
        ["/proc", "/sys", "/dev", "/run", "/tmp", "/var"];
}

impl Default for OriginOptions {
    fn default() -> Self {
        Self {
            opens_later: false,
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
            retries: Retries::default(),
        }
    }
}
