//! The ioctl ABI: what `copperfs stats` and `copperfs clear` ask of a mount, usable from any language.
//!
//! Four commands, all with the number's size field in use (a call carries below 16 KiB), on any
//! directory or file of the mount. `include/copperfs_ioctl.h` is the same for C; a test keeps both
//! equal. Integers are in the machine's byte order: an ioctl never leaves the machine. (Nodes that
//! send a [`StatsBody`] to each other encode it themselves.)
//!
//! A later version of [`StatsBody`] only appends fields; its size, and with it the command number,
//! changes, so an old program gets ENOTTY and never a struct that it cannot read.

pub mod client;

use rustix::ioctl::opcode;
use std::fmt;

/// Version of the structs below.
pub const ABI: u32 = 1;
/// The ioctl group.
pub const GROUP: u8 = 0xC7;
/// Longest path in [`encode_clear`] and of the control socket, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// Bytes of `struct copperfs_clear`.
pub const CLEAR_BYTES: usize = 16 + PATH_BYTES_MAX;
/// Bytes of `struct copperfs_control`.
pub const CONTROL_BYTES: usize = 8 + PATH_BYTES_MAX;
/// `flags` of `struct copperfs_clear`: on all nodes, not only on this one.
pub const CLEAR_CLUSTER: u32 = 1;

/// Reads this node's [`StatsBody`].
pub const NODE_STATS: u32 = opcode::read::<[u8; StatsBody::BYTES]>(GROUP, 1);
/// Reads the cluster's summed [`StatsBody`].
pub const CLUSTER_STATS: u32 = opcode::read::<[u8; StatsBody::BYTES]>(GROUP, 2);
/// Drops cached data; only for the mount's owner and root. Returns 1 if anything was cached, 0 if nothing
/// of the path was cached, and ENOENT if no origin covers the path.
pub const CLEAR: u32 = opcode::write::<[u8; CLEAR_BYTES]>(GROUP, 3);
/// Reads the path of the control socket.
pub const CONTROL: u32 = opcode::read::<[u8; CONTROL_BYTES]>(GROUP, 4);

/// A struct of the ABI that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AbiError {
    /// Another version than [`ABI`].
    #[error(
        "ioctl ABI version {0} where {ABI} is spoken: the daemon and this program are of different releases"
    )]
    Version(u32),
    /// A length that contradicts the version.
    #[error("a struct of {got} bytes where {expected} are needed")]
    Length {
        /// What was there.
        got: usize,
        /// What the ABI says.
        expected: usize,
    },
}

/// A node's host name, at most [`NodeName::BYTES_MAX`] bytes; a longer one is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeName([u8; 64]);

impl NodeName {
    /// Longest name in bytes: one byte of the field stays NUL for C.
    pub const BYTES_MAX: usize = 63;

    /// The name, cut to [`NodeName::BYTES_MAX`].
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 64];
        let mut length = name.len().min(Self::BYTES_MAX);
        while !name.is_char_boundary(length) {
            length -= 1;
        }
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        Self(bytes)
    }

    /// As text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn to_text(&self) -> String {
        let length = self.0.iter().position(|&b| b == 0).unwrap_or(64);
        String::from_utf8_lossy(&self.0[..length]).into_owned()
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

/// `role` of a root: it reads the origin.
pub const ROLE_ROOT: u64 = 0;
/// `role` of a node with parent and children.
pub const ROLE_INNER: u64 = 1;
/// `role` of a node without children.
pub const ROLE_LEAF: u64 = 2;
/// `role` of a node on its own.
pub const ROLE_SINGLE: u64 = 3;
/// `parent` of a node that has none.
pub const NO_PARENT: u64 = u64::MAX;
/// `rank` of a node that is not in the member list: it has joined as a guest.
pub const NO_RANK: u64 = u64::MAX;

macro_rules! stats {
    ($($(#[$doc:meta])* $field:ident $name:literal,)*) => {
        /// Counters of one node, or of several summed, in the order of the ABI.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct StatsBody {
            /// Host name; empty in a sum. JSON name: `node`.
            pub node: NodeName,
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Default for StatsBody {
            fn default() -> Self {
                Self { node: NodeName([0; 64]), $($field: 0,)* }
            }
        }

        impl StatsBody {
            /// The C name and the JSON name of each number, in the order of the ABI.
            pub const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), $name),)*];

            fn values(&self) -> [u64; Self::FIELDS.len()] {
                [$(self.$field,)*]
            }

            fn values_mut(&mut self) -> [&mut u64; Self::FIELDS.len()] {
                [$(&mut self.$field,)*]
            }
        }
    };
}

stats! {
    /// Process id of the daemon; 0 in a sum.
    pid "pid",
    /// Place in the member list; [`NO_RANK`] for a guest.
    rank "rank",
    /// [`ROLE_ROOT`], [`ROLE_INNER`], [`ROLE_LEAF`] or [`ROLE_SINGLE`].
    role "role",
    /// Rank of the parent, or [`NO_PARENT`].
    parent "parent",
    /// Nodes that these numbers stand for: 1, or how many were summed.
    nodes "nodes",
    /// Seconds since the daemon started; the longest in a sum.
    uptime_s "uptime_s",
    /// Resident memory of the daemon in bytes.
    rss_bytes "rss_bytes",
    /// LOOKUP requests.
    fuse_requests_lookup "fuse.requests.lookup",
    /// Inodes forgotten.
    fuse_requests_forget "fuse.requests.forget",
    /// GETATTR requests.
    fuse_requests_getattr "fuse.requests.getattr",
    /// READLINK requests.
    fuse_requests_readlink "fuse.requests.readlink",
    /// OPEN requests.
    fuse_requests_open "fuse.requests.open",
    /// RELEASE requests.
    fuse_requests_release "fuse.requests.release",
    /// READ requests.
    fuse_requests_read "fuse.requests.read",
    /// OPENDIR requests.
    fuse_requests_opendir "fuse.requests.opendir",
    /// READDIR requests.
    fuse_requests_readdir "fuse.requests.readdir",
    /// READDIRPLUS requests.
    fuse_requests_readdirplus "fuse.requests.readdirplus",
    /// RELEASEDIR requests.
    fuse_requests_releasedir "fuse.requests.releasedir",
    /// FLUSH requests.
    fuse_requests_flush "fuse.requests.flush",
    /// FSYNC and FSYNCDIR requests.
    fuse_requests_fsync "fuse.requests.fsync",
    /// STATFS requests.
    fuse_requests_statfs "fuse.requests.statfs",
    /// ACCESS requests.
    fuse_requests_access "fuse.requests.access",
    /// GETXATTR requests.
    fuse_requests_getxattr "fuse.requests.getxattr",
    /// LISTXATTR requests.
    fuse_requests_listxattr "fuse.requests.listxattr",
    /// LSEEK requests.
    fuse_requests_lseek "fuse.requests.lseek",
    /// Lock requests.
    fuse_requests_lock "fuse.requests.lock",
    /// IOCTL requests.
    fuse_requests_ioctl "fuse.requests.ioctl",
    /// Requests that would write, answered EROFS.
    fuse_requests_write "fuse.requests.write",
    /// Bytes given in answer to READ.
    fuse_bytes_read "fuse.bytes_read",
    /// Requests dropped because their reader was killed.
    fuse_interrupted "fuse.interrupted",
    /// Blocks held.
    cache_data_entries "cache.data.entries",
    /// Bytes held.
    cache_data_bytes "cache.data.bytes",
    /// Answered from the cache.
    cache_data_hits "cache.data.hits",
    /// Not there.
    cache_data_misses "cache.data.misses",
    /// Given up for room.
    cache_data_evictions "cache.data.evictions",
    /// Attributes held.
    cache_attributes_entries "cache.attributes.entries",
    /// Bytes held.
    cache_attributes_bytes "cache.attributes.bytes",
    /// Answered from the cache.
    cache_attributes_hits "cache.attributes.hits",
    /// Not there.
    cache_attributes_misses "cache.attributes.misses",
    /// Given up for room.
    cache_attributes_evictions "cache.attributes.evictions",
    /// Listings held.
    cache_listings_entries "cache.listings.entries",
    /// Bytes held.
    cache_listings_bytes "cache.listings.bytes",
    /// Answered from the cache.
    cache_listings_hits "cache.listings.hits",
    /// Not there.
    cache_listings_misses "cache.listings.misses",
    /// Given up for room.
    cache_listings_evictions "cache.listings.evictions",
    /// Requests that joined one already under way.
    coalesced "coalesced",
    /// Requests sent to the parent.
    upstream_requests "upstream.requests",
    /// Bytes received from the parent.
    upstream_bytes_received "upstream.bytes_received",
    /// Requests received from children.
    downstream_requests "downstream.requests",
    /// Bytes sent to children.
    downstream_bytes_sent "downstream.bytes_sent",
    /// Files opened at the origin.
    origin_opens "origin.opens",
    /// Bytes read from the origin.
    origin_bytes_read "origin.bytes_read",
    /// Directories listed at the origin.
    origin_listings "origin.listings",
    /// Attributes asked of the origin one by one.
    origin_stats "origin.stats",
    /// Failures of the origin.
    origin_errors "origin.errors",
    /// Blocks whose hash was checked.
    verify_blocks "verify.blocks",
    /// Blocks whose hash was wrong.
    verify_failures "verify.failures",
    /// Files stored into the page cache unasked.
    push_files "push.files",
    /// Bytes stored into the page cache unasked.
    push_bytes "push.bytes",
    /// Inodes that wait to be looked at for pushing.
    push_pending "push.pending",
    /// Moves to another ancestor than the parent, in all trees.
    healing_failovers "healing.failovers",
    /// Moves back to the parent, in all trees.
    healing_returns "healing.returns",
    /// Requests that were asked again because their connection was lost.
    healing_replays "healing.replays",
    /// Wrong blocks of others, each fetched again.
    healing_wrong_blocks "healing.wrong_blocks",
    /// Requests for bundles that this node decided on.
    bundle_requests "bundle.requests",
    /// Files asked for in them.
    bundle_files "bundle.files",
    /// Bytes brought that were of use; of pages stored unasked estimated by samples.
    bundle_useful_bytes "bundle.useful_bytes",
    /// Bytes brought that were of no use so far.
    bundle_wasted_bytes "bundle.wasted_bytes",
    /// Content files in the store.
    disk_entries "disk.entries",
    /// Disk that they take.
    disk_bytes "disk.bytes",
    /// Blocks read from the store.
    disk_hits "disk.hits",
    /// Blocks asked of the store that were not there.
    disk_misses "disk.misses",
    /// Content files dropped for lack of room.
    disk_evictions "disk.evictions",
    /// Content files found torn or changed: dropped, and fetched anew.
    disk_damaged "disk.damaged",
    /// Blocks not kept: the disk was full, slow or faulty.
    disk_dropped "disk.dropped",
    /// Blocks whose bytes were in the store already.
    disk_shared "disk.shared",
    /// Attempts that object stores refused for want of room.
    origin_throttled "origin.throttled",
    /// Requests that object stores may be sent at a time, as things stand.
    origin_concurrency "origin.concurrency",
    /// Data mounts that answer: 1 or 0 of a node.
    data_mount_mounted "data_mount.mounted",
    /// Data mounts that were asked for and are gone: 1 or 0 of a node.
    data_mount_lost "data_mount.lost",
    /// Requests of all kinds that the data mount was sent, FORGET not counted.
    data_mount_requests "data_mount.requests",
    /// OPEN requests of the data mount.
    data_mount_opens "data_mount.opens",
    /// Of these, of files that belong to a dataset.
    data_mount_dataset_opens "data_mount.dataset_opens",
    /// RELEASE requests of the data mount.
    data_mount_releases "data_mount.releases",
    /// Of these, of opens without any READ: what was read of them came from the page cache.
    data_mount_cached_opens "data_mount.cached_opens",
    /// READ requests of the data mount.
    data_mount_reads "data_mount.reads",
    /// Bytes given in answer to these.
    data_mount_bytes_read "data_mount.bytes_read",
    /// Bytes of datasets that may be held here.
    datasets_share_bytes "datasets.share_bytes",
    /// Bytes of datasets that are held here.
    datasets_bytes "datasets.bytes",
    /// Items of datasets that are held here: files, and 4 MiB stripes of larger ones.
    datasets_items "datasets.items",
    /// Bytes that this node has read from storage, or had read by a root, for datasets.
    datasets_origin_bytes "datasets.origin_bytes",
    /// Requests of readers here to homes of items, this node among them.
    datasets_requests "datasets.requests",
    /// Of these, answered with what reading storage costs, for lack of payment.
    datasets_unpaid "datasets.unpaid",
    /// Of these, sent elsewhere because a home could not be reached.
    datasets_elsewhere "datasets.elsewhere",
    /// Bytes of datasets that were read through the software mount: on no job's account.
    datasets_unattributed_bytes "datasets.unattributed_bytes",
    /// Inodes that the kernel holds, in both mounts.
    inodes_entries "inodes.entries",
    /// Memory that they take in the daemon, in bytes; an upper estimate.
    inodes_bytes "inodes.bytes",
    /// Inodes that the kernel dropped at the daemon's request, to free memory.
    inodes_pruned "inodes.pruned",
    /// Calls into POSIX storage that hang now.
    origin_hanging "origin.hanging",
}

impl StatsBody {
    const HEAD: usize = 8 + 64;
    /// Bytes of `struct copperfs_stats`.
    pub const BYTES: usize = Self::HEAD + 8 * Self::FIELDS.len();

    /// JSON name and value of each number, in the order of the ABI.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::FIELDS
            .iter()
            .map(|&(_, name)| name)
            .zip(self.values())
    }

    /// JSON name and place of each number, in the order of the ABI.
    pub fn fields_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut u64)> {
        Self::FIELDS
            .iter()
            .map(|&(_, name)| name)
            .zip(self.values_mut())
    }

    /// Adds the counters of another node. What identifies a node (`node`, `pid`, `rank`, `role`,
    /// `parent`) stays, `uptime_s` becomes the longer one, everything else is summed.
    pub fn add(&mut self, other: &Self) {
        let kept = *self;
        for (mine, theirs) in self.values_mut().into_iter().zip(other.values()) {
            *mine = mine.saturating_add(theirs);
        }
        self.pid = kept.pid;
        self.rank = kept.rank;
        self.role = kept.role;
        self.parent = kept.parent;
        self.uptime_s = kept.uptime_s.max(other.uptime_s);
    }

    /// As `struct copperfs_stats`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        out.extend_from_slice(&ABI.to_ne_bytes());
        out.extend_from_slice(&u32::try_from(Self::BYTES).unwrap_or(0).to_ne_bytes());
        out.extend_from_slice(&self.node.0);
        for value in self.values() {
            out.extend_from_slice(&value.to_ne_bytes());
        }
        out
    }

    /// From `struct copperfs_stats`.
    ///
    /// # Errors
    /// Another version or length than this program's.
    pub fn decode(bytes: &[u8]) -> Result<Self, AbiError> {
        let length = AbiError::Length {
            got: bytes.len(),
            expected: Self::BYTES,
        };
        let version = read_u32(bytes, 0).ok_or(length)?;
        if version != ABI {
            return Err(AbiError::Version(version));
        }
        if bytes.len() != Self::BYTES {
            return Err(length);
        }
        let mut body = Self::default();
        body.node.0.copy_from_slice(&bytes[8..Self::HEAD]);
        for (field, chunk) in body
            .values_mut()
            .into_iter()
            .zip(bytes[Self::HEAD..].chunks_exact(8))
        {
            let mut raw = [0; 8];
            raw.copy_from_slice(chunk);
            *field = u64::from_ne_bytes(raw);
        }
        Ok(body)
    }
}

/// `struct copperfs_clear` for `path`, relative to the mount; empty for all.
///
/// # Errors
/// A path longer than [`PATH_BYTES_MAX`].
pub fn encode_clear(path: &[u8], cluster: bool) -> Result<[u8; CLEAR_BYTES], AbiError> {
    let too_long = AbiError::Length {
        got: path.len(),
        expected: PATH_BYTES_MAX,
    };
    if path.len() > PATH_BYTES_MAX {
        return Err(too_long);
    }
    let length = u32::try_from(path.len()).or(Err(too_long))?;
    let flags = if cluster { CLEAR_CLUSTER } else { 0 };
    let mut out = [0; CLEAR_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&flags.to_ne_bytes());
    out[8..12].copy_from_slice(&length.to_ne_bytes());
    out[16..16 + path.len()].copy_from_slice(path);
    Ok(out)
}

/// Path and `cluster` of a `struct copperfs_clear`; slashes at both ends of the path are dropped.
pub(crate) fn decode_clear(bytes: &[u8]) -> Option<(&[u8], bool)> {
    if bytes.len() != CLEAR_BYTES || read_u32(bytes, 0)? != ABI {
        return None;
    }
    let flags = read_u32(bytes, 4)?;
    let length = usize::try_from(read_u32(bytes, 8)?).ok()?;
    if flags & !CLEAR_CLUSTER != 0 || read_u32(bytes, 12)? != 0 {
        return None;
    }
    let mut path = bytes[16..].get(..length)?;
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    Some((path, flags & CLEAR_CLUSTER != 0))
}

/// `struct copperfs_control` for `path`; `None` if it is too long.
pub(crate) fn encode_control(path: &[u8]) -> Option<Vec<u8>> {
    if path.len() > PATH_BYTES_MAX {
        return None;
    }
    let mut out = vec![0; CONTROL_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&u32::try_from(path.len()).ok()?.to_ne_bytes());
    out[8..8 + path.len()].copy_from_slice(path);
    Some(out)
}

fn decode_control(bytes: &[u8]) -> Result<Vec<u8>, AbiError> {
    let length = AbiError::Length {
        got: bytes.len(),
        expected: CONTROL_BYTES,
    };
    let version = read_u32(bytes, 0).ok_or(length)?;
    if version != ABI {
        return Err(AbiError::Version(version));
    }
    read_u32(bytes, 4)
        .and_then(|count| usize::try_from(count).ok())
        .and_then(|count| bytes.get(8..)?.get(..count))
        .map(<[u8]>::to_vec)
        .ok_or(length)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(raw.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered() -> StatsBody {
        let mut body = StatsBody {
            node: NodeName::new("node17"),
            ..StatsBody::default()
        };
        for (index, field) in body.values_mut().into_iter().enumerate() {
            *field = 1000 + index as u64;
        }
        body
    }

    #[test]
    fn stats_survive_the_trip() {
        let body = numbered();
        let bytes = body.encode();
        assert_eq!(bytes.len(), StatsBody::BYTES);
        assert_eq!(StatsBody::decode(&bytes), Ok(body));
        assert_eq!(body.node.to_text(), "node17");
    }

    #[test]
    fn a_foreign_struct_is_refused() {
        let mut bytes = numbered().encode();
        assert!(matches!(
            StatsBody::decode(&bytes[..bytes.len() - 1]),
            Err(AbiError::Length { .. })
        ));
        assert!(StatsBody::decode(&[]).is_err());
        bytes[0] = 9;
        assert_eq!(StatsBody::decode(&bytes), Err(AbiError::Version(9)));
    }

    #[test]
    fn a_sum_keeps_who_it_is() {
        let mut sum = numbered();
        sum.add(&numbered());
        assert_eq!(sum.pid, 1000);
        assert_eq!(sum.parent, 1003);
        assert_eq!(sum.uptime_s, 1005);
        assert_eq!(sum.rss_bytes, 2012);
        assert_eq!(sum.push_pending, 2 * numbered().push_pending);
    }

    #[test]
    fn clear_and_control_survive_the_trip() {
        let bytes = encode_clear(b"/lus/a\xff/", true).unwrap();
        assert_eq!(decode_clear(&bytes), Some((&b"lus/a\xff"[..], true)));
        assert_eq!(
            decode_clear(&encode_clear(b"", false).unwrap()),
            Some((&b""[..], false))
        );
        assert!(encode_clear(&[b'x'; PATH_BYTES_MAX + 1], false).is_err());
        let control = encode_control(b"/run/x.sock").unwrap();
        assert_eq!(decode_control(&control).unwrap(), b"/run/x.sock");
    }

    #[test]
    fn a_bad_clear_is_refused() {
        let good = encode_clear(b"a", false).unwrap();
        for (at, value) in [(0, 7), (4, 2), (9, 0x20), (12, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(decode_clear(&bad), None, "byte {at}");
        }
        assert_eq!(decode_clear(&good[1..]), None);
    }

    #[test]
    fn a_long_host_name_is_cut_between_characters() {
        let name = NodeName::new(&"ä".repeat(40));
        assert_eq!(name.to_text(), "ä".repeat(31));
    }
}
