//! The directory at the top of an origin, and what becomes of it when another filesystem is mounted there.
//!
//! A descriptor keeps the filesystem that it was opened on, even after `umount -l`. So the mount table is
//! watched (one `poll`, which asks no storage), and when it has changed, the path is opened again: if it
//! leads to a mount that was made later than the one at hand, that one is served from then on.
//!
//! A path that leads to an *earlier* mount shows what was covered, such as an empty mount point: storage
//! is being unmounted, and may come back. The origin goes on with the filesystem that it has.

use super::attributes::status;
use super::filesystem::{MountKey, mount_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// See the module.
#[derive(Debug)]
pub(super) struct Root {
    path: PathBuf,
    /// Guards the assignment only.
    top: RwLock<Top>,
    /// The mount table, and the right to look at the path. A request that finds it taken goes on with the
    /// root at hand, because a look may hang with storage. Taken before `top`.
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct Watch {
    mounts: Option<File>,
    /// The log says already that the path does not lead to the filesystem that is served.
    said: bool,
}

#[derive(Clone, Debug)]
struct Top {
    dir: Arc<OwnedFd>,
    mount: MountKey,
    /// Where that is mounted, if the mount table told.
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
        if self.mount.has_order() && old.mount.has_order() {
            return self.mount.is_later_than(old.mount);
        }
        self.point.is_some() && self.point == old.point
    }
}

/// Opens the top of an origin. Links in its own path are the administrator's business.
pub(super) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

impl Root {
    /// The root at `path`, which is open as `dir`.
    pub(super) fn new(path: &Path, dir: OwnedFd) -> Result<Self, Errno> {
        // Opened before the look: what changes after it is noticed.
        let mounts = File::open("/proc/self/mountinfo").ok();
        Ok(Self {
            path: path.to_owned(),
            top: RwLock::new(Top::of(dir)?),
            watch: Mutex::new(Watch {
                mounts,
                said: false,
            }),
        })
    }

    /// The directory as it stands.
    pub(super) fn now(&self) -> Arc<OwnedFd> {
        let top = self.top.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&top.dir)
    }

    /// Goes on with what is mounted at the path now, if that is another filesystem. Blocks, if storage
    /// does.
    pub(super) fn follow(&self, label: &str) {
        let Ok(mut watch) = self.watch.try_lock() else {
            return;
        };
        if !watch.has_changed() {
            return;
        }
        let old = self
            .top
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let trouble = match open(&self.path).and_then(Top::of) {
            Ok(new) if new.mount.is_same_mount(old.mount) => None,
            Ok(new) if new.replaces(&old) => {
                tracing::info!(origin = label, "another filesystem is mounted here now");
                *self.top.write().unwrap_or_else(PoisonError::into_inner) = new;
                None
            }
            Ok(_) => Some("it was unmounted".to_owned()),
            Err(errno) => Some(errno.to_string()),
        };
        match trouble {
            Some(trouble) if !watch.said => {
                watch.said = true;
                tracing::warn!(
                    origin = label,
                    trouble,
                    "its path does not lead to it any more; it is served until another filesystem is \
                     mounted there"
                );
            }
            Some(_) => {}
            None => watch.said = false,
        }
    }
}

impl Watch {
    /// Whether anything was mounted or unmounted since the last call.
    fn has_changed(&self) -> bool {
        let Some(mounts) = &self.mounts else {
            return false;
        };
        let mut changed = [PollFd::new(mounts, PollFlags::PRI)];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A poll that fails tells nothing: look, to be safe.
        poll(&mut changed, Some(&timeout)) != Ok(0)
    }
}
