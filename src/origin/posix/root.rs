//! The top directory of an origin, and its replacement when another filesystem is mounted there.
//!
//! A descriptor keeps the filesystem on which it was opened, even after `umount -l`. So the mount table is
//! watched ([`MountWatch`]). After a change the path is opened again. If it leads to a mount that was made
//! later than the current one, the origin switches to it.
//!
//! A path that leads to an *earlier* mount shows a directory that was covered before, such as an empty
//! mount point: the storage was unmounted, and may come back. The origin then stays with its current
//! filesystem.

use super::attributes::status;
use super::filesystem::{MountKey, mount_of};
use crate::origin::mount_watch::MountWatch;
use parking_lot::{Mutex, RwLock};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module.
pub(super) struct Root {
    path: PathBuf,
    /// Locked for the assignment only. `None`: it is not open yet.
    top: RwLock<Option<Top>>,
    /// The mount table, and the right to open the path. A request that finds it locked uses the current
    /// root, because opening may hang with the storage. Taken before `top`.
    follow: Mutex<Follow>,
}

struct Follow {
    mounts: Option<MountWatch>,
    /// The log already has a line that the path does not lead to the filesystem that is served.
    is_logged: bool,
}

#[derive(Clone)]
struct Top {
    dir: Arc<OwnedFd>,
    mount: MountKey,
    /// The mount point, if the mount table has it.
    point: Option<PathBuf>,
}

impl Top {
    fn of(dir: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            mount: MountKey::of(&status(&dir, b"")?),
            point: mount_of(&dir).map(|mount| mount.mountpoint),
            dir: Arc::new(dir),
        })
    }

    /// Whether this was mounted over `old`, or in its place.
    fn replaces(&self, old: &Self) -> bool {
        if self.mount.is_same_mount(old.mount) {
            return false;
        }
        // Ids of new kernels increase, so the later mount is known. Otherwise only a mount at the same point counts.
        match self.mount.age_order(old.mount) {
            Some(order) => order.is_gt(),
            None => self.point.is_some() && self.point == old.point,
        }
    }
}

/// Opens the top directory of an origin. Links in the origin's own path are followed.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

impl Root {
    /// The root at `path`, which is open as `dir`; `None`: the first request opens it.
    pub(super) fn new(path: &Path, dir: Option<OwnedFd>) -> Result<Self, Errno> {
        // Opened before the directory is examined, so that later changes are noticed.
        let mounts = MountWatch::open().ok();
        Ok(Self {
            path: path.to_owned(),
            top: RwLock::new(dir.map(Top::of).transpose()?),
            follow: Mutex::new(Follow {
                mounts,
                is_logged: false,
            }),
        })
    }

    /// The current directory. Blocks if it is not open yet and the storage blocks.
    pub(super) fn dir(&self) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(top) = &*self.top.read() {
            return Ok(Arc::clone(&top.dir));
        }
        let opened = Top::of(open(&self.path)?)?;
        let mut top = self.top.write();
        // Another request may have opened it meanwhile.
        Ok(Arc::clone(&top.get_or_insert(opened).dir))
    }

    /// Switches to the filesystem that is mounted at the path now, if it replaces the current one. Blocks
    /// if the storage blocks.
    pub(super) fn follow(&self, label: &str) {
        // Another request follows already. It may hang with the storage, so this one does not wait.
        let Some(mut follow) = self.follow.try_lock() else {
            return;
        };
        if !follow.mounts.as_ref().is_some_and(MountWatch::has_changed) {
            return;
        }
        let Some(old) = self.top.read().clone() else {
            return;
        };
        let trouble = match open(&self.path).and_then(Top::of) {
            Ok(new) if new.mount.is_same_mount(old.mount) => None,
            Ok(new) if new.replaces(&old) => {
                tracing::info!(origin = label, "another filesystem is mounted here now");
                *self.top.write() = Some(new);
                None
            }
            Ok(_) => Some("it was unmounted".to_owned()),
            Err(errno) => Some(errno.to_string()),
        };
        let was_logged = std::mem::replace(&mut follow.is_logged, trouble.is_some());
        if let Some(trouble) = trouble.filter(|_| !was_logged) {
            tracing::warn!(
                origin = label,
                trouble,
                "the origin's path no longer leads to this filesystem; it is served until another one is \
                 mounted there"
            );
        }
    }
}
