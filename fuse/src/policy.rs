//! Which FUSE features a mount requests from the kernel in INIT: caching, and messages that are not sent.
//!
//! Figures are ratios to a native warm filesystem (operations per CPU-second), measured for this project on
//! kernel 6.18.
//!
//! | feature | gain | cost |
//! | --- | --- | --- |
//! | zero-message open and opendir ([`OpenMode::ZeroMessage`]) | open+read+close of 20 KB warm .84 (else .25-.56); a tree walk 1.12 | the daemon sees no opens, so it can neither count nor attribute them |
//! | READDIRPLUS | a cold walk .42 (else .2); push needs it | attributes of entries that no program needs, where they are ready |
//! | READDIRPLUS_AUTO ([`ReaddirPlus::Auto`]) | only the first batch of a listing carries attributes, unless names in it were looked up | push reaches only the first batch of a large directory |
//! | CACHE_SYMLINKS | a link is read once | none: an inode number belongs to one version |
//! | PARALLEL_DIROPS | look-ups in one directory do not wait for each other | none |
//! | ASYNC_READ | read-ahead in parallel | none |
//! | ASYNC_DIO, with tracked opens | the kernel has several direct reads of an image under way: 1 GiB takes .11 s instead of .20 s | none |
//! | EXPLICIT_INVAL_DATA | a changed mtime or size never drops pages by itself | none: an inode number belongs to one version |
//! | `max_background` 1024 and more | hundreds of hanging misses leave hits alone (the default of 16 freezes the mount) | as many requests in the daemon |
//! | POSIX_ACL, if the mount's options say so | an ACL's mask is not mistaken for a group's right | one GETXATTR per inode that another user accesses |
//! | passthrough ([`OpenMode::Passthrough`]) | 1 GiB second read 1.15, mmap 1.08 | CAP_SYS_ADMIN; an OPEN and a RELEASE message per open (small files .48) |
//!
//! Never requested: `POSIX_LOCKS`, `FLOCK_LOCKS` (without them the kernel handles locks itself, as on a local
//! filesystem), `WRITEBACK_CACHE`, `ATOMIC_O_TRUNC` (nothing is written), `AUTO_INVAL_DATA`. The TTLs of names,
//! absent names and attributes come from the backend with every answer.

use crate::counters::Counters;
use crate::in_hand::InHandRecord;
use crate::passthrough::PassthroughRecord;
use crate::quarantine::Quarantine;
use fuser::{InitFlags, KernelConfig};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Which opens are messages to the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OpenMode {
    /// Open, release, opendir and releasedir send no messages, so the daemon does not see opens. For
    /// software trees.
    #[default]
    ZeroMessage,
    /// Every open and release is a message ([`crate::Backend::open`]). Cached pages and listings stay valid
    /// across opens. For mounts whose opens are counted or attributed to a job.
    Tracked,
    /// Like `Tracked`, and reads of files that have a complete local copy bypass the daemon. For big files.
    /// Needs CAP_SYS_ADMIN and kernel 6.9.
    Passthrough,
}

/// When listings carry attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReaddirPlus {
    /// Every READDIR is a READDIRPLUS. Push needs this.
    #[default]
    Always,
    /// The kernel decides: it sends READDIRPLUS for the first batch, and later while names are looked up.
    Auto,
}

/// Options of a mount, which is always `ro,nosuid,nodev,default_permissions`.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// An existing, empty directory.
    pub mountpoint: PathBuf,
    /// Which opens are reported to the backend.
    pub open: OpenMode,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// When listings carry attributes.
    pub readdir_plus: ReaddirPlus,
    /// Whether the kernel enforces POSIX ACLs; for mounts that several users share.
    pub posix_acl: bool,
    /// FUSE threads, at least 1. They never wait for an answer.
    pub threads: usize,
    /// The runtimes on which READs wait, each for parts of files; none: the runtime of the mount.
    pub lanes: Vec<Handle>,
    /// Whether every opendir and closedir is a message. For a backend whose listings change without
    /// invalidations: at each opendir it decides whether the kernel may use the cached listing.
    pub track_opendir: bool,
    /// Background requests (read-ahead) in the daemon at most. Below 1024, hanging misses slow hits.
    pub max_background: u16,
    /// How long a request waits for its answer before it fails with EIO. Requests to all nodes
    /// (cluster-wide statistics, `clear`) wait twice as long.
    pub request_timeout: Duration,
    /// Bytes pushed into the page cache at most for inodes that the kernel still knows, checked once per batch.
    /// 0: nothing is pushed.
    pub push_bytes_max: u64,
    /// Free inodes by invalidating names, as kernels older than 6.18 require, even if the kernel supports
    /// pruning by inode.
    pub prune_by_name: bool,
    /// Have the kernel send requests again in a take-over, if it can (since 6.9). Otherwise they fail.
    pub resend: bool,
    /// Keeps the numbers of requests in hand for a successor.
    pub in_hand: Option<Arc<dyn InHandRecord>>,
    /// Keeps the opens for a successor, if reads may bypass the daemon.
    pub opens: Option<Arc<dyn PassthroughRecord>>,
    /// Decides about requests that may have killed an earlier daemon of the mount.
    pub quarantine: Option<Arc<dyn Quarantine>>,
    /// The counters to use; keep a clone to read them.
    pub counters: Arc<Counters>,
}

impl MountOptions {
    /// Returns the default options for `mountpoint`.
    #[must_use]
    pub fn new(mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            open: OpenMode::default(),
            allow_other: false,
            readdir_plus: ReaddirPlus::default(),
            posix_acl: false,
            threads: 2,
            lanes: Vec::new(),
            track_opendir: false,
            max_background: 4096,
            request_timeout: Duration::from_secs(30),
            push_bytes_max: 512 << 20,
            prune_by_name: false,
            resend: true,
            in_hand: None,
            opens: None,
            quarantine: None,
            counters: Arc::default(),
        }
    }
}

impl MountOptions {
    /// Requests the features of these options. Returns the optional ones that the kernel grants.
    ///
    /// # Errors
    /// The kernel lacks a required feature.
    pub(crate) fn negotiate(&self, config: &mut KernelConfig) -> io::Result<InitFlags> {
        let offered = config.capabilities();
        let mut optional = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_MAX_PAGES;
        if self.readdir_plus == ReaddirPlus::Auto {
            optional |= InitFlags::FUSE_READDIRPLUS_AUTO;
        }
        let mut required = InitFlags::empty();
        if self.posix_acl {
            required |= InitFlags::FUSE_POSIX_ACL;
        }
        match self.open {
            OpenMode::ZeroMessage => {
                optional |= InitFlags::FUSE_NO_OPEN_SUPPORT;
                if !self.track_opendir {
                    optional |= InitFlags::FUSE_NO_OPENDIR_SUPPORT;
                }
            }
            // Without this a file that is open for direct reads cannot be mapped shared.
            OpenMode::Tracked => {
                optional |= InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP | InitFlags::FUSE_ASYNC_DIO;
            }
            OpenMode::Passthrough => {
                required |= InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
                // With depth 1 the backing file must be on a plain filesystem, not on an overlay, and an
                // overlay may be mounted on top of this mount.
                config.set_max_stack_depth(1).map_err(refused)?;
            }
        }
        config.add_capabilities(required).map_err(missing)?;
        config
            .add_capabilities(optional & offered)
            .map_err(missing)?;
        let missed = optional & !offered;
        if !missed.is_empty() {
            tracing::info!(?missed, "this kernel offers less than copperfs can use");
        }
        // This also limits the size of a READ, to 256 pages. Nothing is ever written.
        config.set_max_write(1 << 20).map_err(refused)?;
        config
            .set_max_background(self.max_background.max(1))
            .map_err(refused)?;
        // max_readahead keeps fuser's default, which is the most that the kernel offers.
        Ok(optional & offered)
    }
}

fn missing(flags: InitFlags) -> io::Error {
    let advice = if flags.contains(InitFlags::FUSE_PASSTHROUGH) {
        "open mode passthrough takes Linux 6.9 or later, built with CONFIG_FUSE_PASSTHROUGH; open mode \
         tracked works on this one"
            .to_owned()
    } else if flags.contains(InitFlags::FUSE_POSIX_ACL) {
        "it does not enforce POSIX ACLs; mount without them (--posix-acl off)".to_owned()
    } else {
        format!("its FUSE has no {flags:?}")
    };
    io::Error::new(io::ErrorKind::Unsupported, advice)
}

fn refused<T: std::fmt::Display>(nearest: T) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a limit was refused, {nearest} would do"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_kernel_feature_is_reported_with_an_alternative() {
        let said = |flags| missing(flags).to_string();
        let both = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        assert!(said(both).contains("Linux 6.9") && said(both).contains("tracked"));
        assert!(said(InitFlags::FUSE_POSIX_ACL).contains("--posix-acl off"));
        assert!(said(InitFlags::FUSE_MAX_PAGES).contains("FUSE_MAX_PAGES"));
    }
}
