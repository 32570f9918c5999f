//! Paths that an origin does not serve, copperfs mounts among them.
//!
//! A copperfs mount below an origin would lead back to this daemon. Such mounts come and go while the
//! daemon runs, so `/proc/self/mountinfo` is read again whenever the kernel says that it changed (one
//! `poll` a question). A mount point hidden from this process cannot be reached by it either.

use copperfs_fuse::mountinfo;
use copperfs_overlay::ItemPath;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The paths, relative to one origin, that it does not serve.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    fixed: Vec<ItemPath>,
    mounts: Option<CopperMounts>,
}

/// Mount points of copperfs below the host directory `root`, relative to it.
#[derive(Debug)]
struct CopperMounts {
    root: ItemPath,
    /// Guards the open mountinfo and what was last read from it; held for one poll, or one read.
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    file: File,
    points: Arc<[ItemPath]>,
}

impl Exclusion {
    /// Excludes `fixed` (relative to the origin), and copperfs mounts below the host directory `root`.
    pub(crate) fn below(root: &Path, fixed: Vec<ItemPath>) -> Self {
        let mounts = ItemPath::parse(root.as_os_str().as_bytes())
            .ok()
            .zip(File::open("/proc/self/mountinfo").ok())
            .map(|(root, file)| CopperMounts::new(root, file));
        Self { fixed, mounts }
    }

    /// Excludes `fixed` only.
    pub(crate) fn of(fixed: Vec<ItemPath>) -> Self {
        Self {
            fixed,
            mounts: None,
        }
    }

    /// The exclusion as it stands now, for one request.
    pub(crate) fn now(&self) -> Hidden<'_> {
        Hidden {
            fixed: &self.fixed,
            points: self.mounts.as_ref().map(CopperMounts::points),
        }
    }
}

/// A view of an [`Exclusion`] at one moment.
#[derive(Debug)]
pub(crate) struct Hidden<'a> {
    fixed: &'a [ItemPath],
    points: Option<Arc<[ItemPath]>>,
}

impl Hidden<'_> {
    /// Whether nothing at all is hidden.
    pub(crate) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Whether `path` is an excluded path or lies below one. `/mnt3x` is not below `/mnt3`.
    pub(crate) fn covers(&self, path: &ItemPath) -> bool {
        self.all().any(|hidden| path.is_within(hidden))
    }

    fn all(&self) -> impl Iterator<Item = &ItemPath> {
        self.fixed
            .iter()
            .chain(self.points.iter().flat_map(|points| points.iter()))
    }
}

impl CopperMounts {
    fn new(root: ItemPath, file: File) -> Self {
        let mut table = Table {
            file,
            points: Arc::from([]),
        };
        table.read(&root);
        Self {
            root,
            table: Mutex::new(table),
        }
    }

    fn points(&self) -> Arc<[ItemPath]> {
        let mut table = self.table.lock();
        let mut changed = [PollFd::new(&table.file, PollFlags::PRI)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A poll that fails tells nothing: read again, to be safe.
        if poll(&mut changed, Some(&timeout)).map_or(true, |count| count > 0) {
            table.read(&self.root);
        }
        Arc::clone(&table.points)
    }
}

impl Table {
    fn read(&mut self, root: &ItemPath) {
        let mut text = Vec::new();
        let read = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.read_to_end(&mut text));
        match read {
            Ok(_) => {
                self.points = copper_mount_points(&text)
                    .filter_map(|point| point.strip_prefix(root))
                    .filter(|point| !point.is_root())
                    .collect();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the mount table; copperfs mounts may be served");
            }
        }
    }
}

/// Mount points of copperfs filesystems in the text of a mountinfo file.
fn copper_mount_points(text: &[u8]) -> impl Iterator<Item = ItemPath> {
    mountinfo::parse(text)
        .into_iter()
        .filter(|mount| mount.fstype == mountinfo::COPPERFS_FSTYPE)
        .filter_map(|mount| ItemPath::parse(mount.mountpoint.as_os_str().as_bytes()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn a_name_that_begins_alike_is_not_excluded() {
        let exclusion = Exclusion::of(vec![path("mnt3")]);
        let hidden = exclusion.now();
        assert!(hidden.covers(&path("mnt3")));
        assert!(hidden.covers(&path("mnt3/a")));
        assert!(!hidden.covers(&path("mnt3x")));
        assert!(!hidden.covers(&path("mnt")));
        assert!(!hidden.covers(&path("")));
    }

    #[test]
    fn mountinfo_names_copperfs_mounts_only() {
        let text = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw\n\
            90 22 0:50 / /mnt/with\\040space\\134x ro shared:9 master:2 - fuse.copperfs copperfs ro\n\
            91 22 0:51 / /copper ro - fuse.copperfs node3 ro,user_id=0\n\
            92 22 0:52 / /other ro - fuse.sshfs host: ro\n\
            93 22 0:53 broken\n";
        let points: Vec<ItemPath> = copper_mount_points(text).collect();
        assert_eq!(points, [path("mnt/with space\\x"), path("copper")]);
    }

    #[test]
    fn the_own_mount_table_reads() {
        let exclusion = Exclusion::below(Path::new("/"), vec![path("proc")]);
        assert!(exclusion.now().covers(&path("proc/self")));
        assert!(!exclusion.now().covers(&path("usr")));
        assert!(!exclusion.now().is_empty());
    }
}
