//! Paths that an origin does not serve, including the mount points of copperfs.
//!
//! A copperfs mount below an origin would lead back to this daemon. Such mounts come and go while the
//! daemon runs, so the mount table is read again whenever it has changed. This process cannot reach a mount
//! point that the table does not show.

use super::mount_watch::MountWatch;
use copperfs_fuse::mountinfo::{self, MountEntry};
use copperfs_overlay::ItemPath;
use parking_lot::Mutex;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The paths, relative to one origin, that it does not serve.
#[derive(Default)]
pub(crate) struct Exclusion {
    fixed: ExcludedPaths,
    /// Locked for one poll, or one read of the mount table.
    mounts: Option<Mutex<CopperfsMounts>>,
}

/// Mount points of copperfs below the host directory `root`.
struct CopperfsMounts {
    root: ItemPath,
    watch: MountWatch,
    /// The fixed paths and the mount points.
    excluded: ExcludedPaths,
}

impl Exclusion {
    /// Excludes `fixed` (relative to the origin), and copperfs mounts below the host directory `root`.
    pub(crate) fn below(root: &Path, fixed: Vec<ItemPath>) -> Self {
        let mut this = Self::of(fixed);
        let root = ItemPath::parse(root.as_os_str().as_bytes()).ok();
        let watched = root.zip(MountWatch::open().ok());
        this.mounts = watched.map(|(root, watch)| {
            let excluded = this.fixed.and_mounts(&root);
            Mutex::new(CopperfsMounts {
                excluded: excluded.unwrap_or_else(|| this.fixed.clone()),
                watch,
                root,
            })
        });
        this
    }

    /// Excludes `fixed` only.
    pub(crate) fn of(fixed: Vec<ItemPath>) -> Self {
        Self {
            fixed: ExcludedPaths(fixed.into()),
            mounts: None,
        }
    }

    /// The current excluded paths, for one request.
    pub(crate) fn snapshot(&self) -> ExcludedPaths {
        let Some(mounts) = &self.mounts else {
            return self.fixed.clone();
        };
        let mut mounts = mounts.lock();
        if mounts.watch.has_changed()
            && let Some(excluded) = self.fixed.and_mounts(&mounts.root)
        {
            mounts.excluded = excluded;
        }
        mounts.excluded.clone()
    }
}

/// The paths of an [`Exclusion`] at one moment.
#[derive(Clone, Default)]
pub(crate) struct ExcludedPaths(Arc<[ItemPath]>);

impl ExcludedPaths {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` is an excluded path or is below one. `/mnt3x` is not below `/mnt3`.
    pub(crate) fn covers(&self, path: &ItemPath) -> bool {
        self.0.iter().any(|excluded| path.is_within(excluded))
    }

    /// These paths, and the mount points of copperfs below `root`, relative to it. Returns `None` if the mount table
    /// cannot be read.
    fn and_mounts(&self, root: &ItemPath) -> Option<Self> {
        let mounts = mountinfo::read().inspect_err(|error| {
            tracing::warn!(%error, "cannot read the mount table; copperfs mounts may be served");
        });
        let points = copperfs_mount_points(mounts.ok()?)
            .filter_map(|point| point.strip_prefix(root))
            .filter(|point| !point.is_root());
        Some(Self(self.0.iter().cloned().chain(points).collect()))
    }
}

fn copperfs_mount_points(mounts: Vec<MountEntry>) -> impl Iterator<Item = ItemPath> {
    mounts
        .into_iter()
        .filter(|mount| mount.is_copperfs())
        .filter_map(|mount| ItemPath::parse(mount.mountpoint.as_os_str().as_bytes()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn a_name_that_begins_alike_is_not_excluded() {
        let exclusion = Exclusion::of(vec![path("mnt3")]);
        let excluded = exclusion.snapshot();
        assert!(excluded.covers(&path("mnt3")));
        assert!(excluded.covers(&path("mnt3/a")));
        assert!(!excluded.covers(&path("mnt3x")));
        assert!(!excluded.covers(&path("mnt")));
        assert!(!excluded.covers(&path("")));
    }

    #[test]
    fn mountinfo_names_copperfs_mounts_only() {
        let text = b"22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw\n\
            90 22 0:50 / /mnt/with\\040space\\134x ro shared:9 master:2 - fuse.copperfs copperfs ro\n\
            91 22 0:51 / /copper ro - fuse.copperfs node3 ro,user_id=0\n\
            92 22 0:52 / /other ro - fuse.sshfs host: ro\n\
            93 22 0:53 broken\n";
        let points: Vec<ItemPath> = copperfs_mount_points(mountinfo::parse(text)).collect();
        assert_eq!(points, [path("mnt/with space\\x"), path("copper")]);
    }

    #[test]
    fn the_mount_table_of_this_process_is_readable() {
        let exclusion = Exclusion::below(Path::new("/"), vec![path("proc")]);
        assert!(exclusion.snapshot().covers(&path("proc/self")));
        assert!(!exclusion.snapshot().covers(&path("usr")));
        assert!(!exclusion.snapshot().is_empty());
    }
}
