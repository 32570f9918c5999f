//! What the kernel may keep, and what it need not ask: decided once per mount, in INIT.
//!
//! Figures are ratios to a native warm filesystem (operations per CPU-second), measured for this
//! project on kernel 6.18.
//!
//! | asked of the kernel | gain | cost |
//! | --- | --- | --- |
//! | zero-message open and opendir ([`OpenMode::ZeroMessage`]) | open+read+close of 20 KB warm .84 (else .25-.56); a tree walk 1.12 | the daemon sees no open, so it can neither count nor attribute them |
//! | READDIRPLUS | a cold walk .42 (else .2); push needs it | attributes of entries that nobody looks at, where they are at hand |
//! | READDIRPLUS_AUTO ([`ReaddirPlus::Auto`]) | only the first batch of a listing carries attributes, unless names in it were looked up | push reaches only the first batch of a large directory |
//! | CACHE_SYMLINKS | a link is read once | none: a version is an inode |
//! | PARALLEL_DIROPS | look-ups in one directory do not wait for each other | none |
//! | ASYNC_READ | read-ahead in parallel | none |
//! | EXPLICIT_INVAL_DATA | a changed mtime or size never drops pages by itself | none: a version is an inode |
//! | `max_background` 1024 and more | hundreds of hanging misses leave hits alone (the default of 16 freezes the mount) | up to that many requests in the daemon |
//! | POSIX_ACL, when told | an ACL's mask is not mistaken for a group's right | one GETXATTR per inode that another user touches |
//! | passthrough ([`OpenMode::Passthrough`]) | 1 GiB second read 1.15, mmap 1.08 | CAP_SYS_ADMIN; an OPEN and a RELEASE message per open (small files .48) |
//!
//! Never asked for: `POSIX_LOCKS`, `FLOCK_LOCKS` (the kernel then grants locks on its own, as on a
//! local filesystem), `WRITEBACK_CACHE`, `ATOMIC_O_TRUNC` (nothing is written), `AUTO_INVAL_DATA`.
//! Long TTLs and negative entries are not set here: the backend gives them with every answer.

use fuser::{InitFlags, KernelConfig};
use std::io;

/// What an open costs, and who sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OpenMode {
    /// No message for open, release, opendir and releasedir. For software trees. The daemon does not
    /// see opens.
    #[default]
    ZeroMessage,
    /// Every open and release is a message ([`crate::Backend::open`]); cached pages and listings stay
    /// valid over opens. Where opens must be seen: counted, attributed to a job.
    Tracked,
    /// As `Tracked`, and reads of files whose bytes lie whole in a local file bypass the daemon.
    /// For big files. Needs CAP_SYS_ADMIN and kernel 6.9.
    Passthrough,
}

/// When listings carry attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReaddirPlus {
    /// Every READDIR is a READDIRPLUS: what push needs.
    #[default]
    Always,
    /// The kernel decides: the first batch, and further ones while names are looked up.
    Auto,
}

/// What the mount's options say about the kernel's cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) open: OpenMode,
    pub(crate) readdir_plus: ReaddirPlus,
    pub(crate) posix_acl: bool,
    pub(crate) see_directories: bool,
    pub(crate) max_background: u16,
}

/// What the kernel granted that the adapter must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Granted {
    /// ENOSYS to OPEN means "never ask again".
    pub(crate) zero_open: bool,
    /// The same for OPENDIR.
    pub(crate) zero_opendir: bool,
}

impl Policy {
    /// Asks the kernel for what this policy needs.
    ///
    /// # Errors
    /// The kernel lacks what the mount cannot do without.
    pub(crate) fn negotiate(&self, config: &mut KernelConfig) -> io::Result<Granted> {
        let offered = config.capabilities();
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_MAX_PAGES;
        if self.readdir_plus == ReaddirPlus::Auto {
            wanted |= InitFlags::FUSE_READDIRPLUS_AUTO;
        }
        let mut needed = InitFlags::empty();
        if self.posix_acl {
            needed |= InitFlags::FUSE_POSIX_ACL;
        }
        match self.open {
            OpenMode::ZeroMessage => {
                wanted |= InitFlags::FUSE_NO_OPEN_SUPPORT;
                if !self.see_directories {
                    wanted |= InitFlags::FUSE_NO_OPENDIR_SUPPORT;
                }
            }
            // Without it a file that is open for direct reads cannot be mapped shared.
            OpenMode::Tracked => wanted |= InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            OpenMode::Passthrough => {
                needed |= InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
                // The backing file must lie on a plain filesystem: depth 1 allows no overlay below,
                // and an overlay above this mount.
                config.set_max_stack_depth(1).map_err(refused)?;
            }
        }
        config.add_capabilities(needed).map_err(missing)?;
        config.add_capabilities(wanted & offered).map_err(missing)?;
        let missed = wanted & !offered;
        if !missed.is_empty() {
            tracing::info!(?missed, "this kernel offers less than copperfs can use");
        }
        // Sets how many pages a READ may ask for, 256; nothing is ever written.
        config.set_max_write(1 << 20).map_err(refused)?;
        config
            .set_max_background(self.max_background.max(1))
            .map_err(refused)?;
        // Read-ahead stays at the most that the kernel offers, which is fuser's default.
        let zero = self.open == OpenMode::ZeroMessage;
        Ok(Granted {
            zero_open: zero && offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT),
            zero_opendir: zero
                && !self.see_directories
                && offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT),
        })
    }
}

fn missing(flags: InitFlags) -> io::Error {
    let what = if flags.contains(InitFlags::FUSE_PASSTHROUGH) {
        "open mode passthrough takes Linux 6.9 or later, built with CONFIG_FUSE_PASSTHROUGH; open mode \
         tracked works on this one"
            .to_owned()
    } else if flags.contains(InitFlags::FUSE_POSIX_ACL) {
        "it does not enforce POSIX ACLs; mount without them (--posix-acl off)".to_owned()
    } else {
        format!("its FUSE has no {flags:?}")
    };
    io::Error::new(io::ErrorKind::Unsupported, what)
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
    fn a_kernel_that_lacks_something_is_told_with_what_to_try() {
        let said = |flags| missing(flags).to_string();
        let both = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        assert!(said(both).contains("Linux 6.9") && said(both).contains("tracked"));
        assert!(said(InitFlags::FUSE_POSIX_ACL).contains("--posix-acl off"));
        assert!(said(InitFlags::FUSE_MAX_PAGES).contains("FUSE_MAX_PAGES"));
    }
}
