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
    fixed: Vec<ItemPath>,
    mounts: Option<CopperfsMounts>,
}

/// Mount points of copperfs below the host directory `root`, relative to it.
struct CopperfsMounts {
    root: ItemPath,
    /// Locked for one poll, or one read of the mount table.
    table: Mutex<Table>,
}

struct Table {
    watch: MountWatch,
    points: Arc<[ItemPath]>,
}

impl Exclusion {
    /// Excludes `fixed` (relative to the origin), and copperfs mounts below the host directory `root`.
    pub(crate) fn below(root: &Path, fixed: Vec<ItemPath>) -> Self {
        let mounts = ItemPath::parse(root.as_os_str().as_bytes())
            .ok()
            .zip(MountWatch::open().ok())
            .map(|(root, watch)| CopperfsMounts {
                table: Mutex::new(Table {
                    points: copperfs_mounts(&root).unwrap_or_default(),
                    watch,
                }),
                root,
            });
        Self { fixed, mounts }
    }

    /// Excludes `fixed` only.
    pub(crate) fn of(fixed: Vec<ItemPath>) -> Self {
        Self {
            fixed,
            mounts: None,
        }
    }

    /// The current excluded paths, for one request.
    pub(crate) fn snapshot(&self) -> ExcludedPaths<'_> {
        ExcludedPaths {
            fixed: &self.fixed,
            points: self.mounts.as_ref().map(CopperfsMounts::points),
        }
    }
}

/// The paths of an [`Exclusion`] at one moment.
pub(crate) struct ExcludedPaths<'a> {
    fixed: &'a [ItemPath],
    points: Option<Arc<[ItemPath]>>,
}

impl ExcludedPaths<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Whether `path` is an excluded path or is below one. `/mnt3x` is not below `/mnt3`.
    pub(crate) fn covers(&self, path: &ItemPath) -> bool {
        self.all().any(|excluded| path.is_within(excluded))
    }

    fn all(&self) -> impl Iterator<Item = &ItemPath> {
        self.fixed
            .iter()
            .chain(self.points.iter().flat_map(|points| points.iter()))
    }
}

impl CopperfsMounts {
    fn points(&self) -> Arc<[ItemPath]> {
        let mut table = self.table.lock();
        if table.watch.has_changed()
            && let Some(points) = copperfs_mounts(&self.root)
        {
            table.points = points;
        }
        Arc::clone(&table.points)
    }
}

/// The mount points of copperfs below `root`, relative to it. Returns `None` if the mount table cannot be
/// read.
fn copperfs_mounts(root: &ItemPath) -> Option<Arc<[ItemPath]>> {
    let mounts = mountinfo::read().inspect_err(|error| {
        tracing::warn!(%error, "cannot read the mount table; copperfs mounts may be served");
    });
    let points = copperfs_mount_points(mounts.ok()?)
        .filter_map(|point| point.strip_prefix(root))
        .filter(|point| !point.is_root());
    Some(points.collect())
}

fn copperfs_mount_points(mounts: Vec<MountEntry>) -> impl Iterator<Item = ItemPath> {
    mounts
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
