//! Identifies the filesystem that holds a file. This part of a version distinguishes two filesystems with
//! equal inode numbers, sizes and times.
//!
//! Mounts may be below an origin, so the filesystem is determined for each file and not for the origin.
//! Every `statx` returns the id of the mount at no further cost. The table here maps it to a filesystem,
//! and is filled when an id appears for the first time (`identity` has the rules; it takes a few system
//! calls).
//!
//! If a local filesystem (a disk, an image, FUSE) replaces another one at the same mount point, the
//! *generation* of the mount point increases, even if both report the same identity: two copies of one
//! image have one UUID. A filesystem on a server is identified by the server, and stays the same when it is
//! mounted again. Generation 0 adds nothing to a version, so that roots with separate mounts agree.
//!
//! A filesystem without an identity, and one that replaced another, has versions of [`Standing::Launch`]:
//! data cached under them is not used in a later launch.
//!
//! Kernels before 6.8 reuse the ids of mounts. There, a filesystem that replaces another one with the same
//! id and device number is not noticed.

mod identity;
mod uuid;

use crate::origin::truncated;
use copperfs_fuse::mountinfo::{self, MountEntry};
use copperfs_overlay::Standing;
use parking_lot::RwLock;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Statx, StatxFlags, fstatvfs};
use rustix::io::Errno;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): an id that is never reused.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// Fields that `statx` returns in addition to attributes. A kernel without one of them omits it.
pub(super) const MOUNT_MASK: StatxFlags = StatxFlags::MNT_ID.union(MNT_ID_UNIQUE);

/// Remembered mounts. At this number all are forgotten and looked up again; mount points and their
/// generations stay.
const MOUNTS_MAX: usize = 4096;
/// Mount points with a remembered generation. At this number all are forgotten, and each starts with a
/// generation above all earlier ones, so cached data of local filesystems is read again.
const POINTS_MAX: usize = 4096;

/// The part of a version that stands for the filesystem. Two are equal only if the filesystems' identities
/// and generations are. The origin's URI is not included: within one filesystem the inode number names the
/// file, independent of the path of the origin, and an index of a subdirectory stays valid for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Filesystem {
    pub(super) seed: [u8; 16],
    pub(super) standing: Standing,
}

/// The mount through which a file was reached, as far as the kernel reports it. The device number
/// distinguishes the subvolumes of one btrfs mount; it is used only within this table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MountKey {
    id: MountId,
    device: (u32, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MountId {
    /// Increasing, and never reused.
    Unique(u64),
    /// Reused after the mount is gone (Linux 5.8 to 6.7).
    Reused(u64),
    /// Not reported (before Linux 5.8).
    Unknown,
}

impl MountKey {
    pub(super) fn of(status: &Statx) -> Self {
        let fields = StatxFlags::from_bits_retain(status.stx_mask);
        let id = if fields.contains(MNT_ID_UNIQUE) {
            MountId::Unique(status.stx_mnt_id)
        } else if fields.contains(StatxFlags::MNT_ID) {
            MountId::Reused(status.stx_mnt_id)
        } else {
            MountId::Unknown
        };
        Self {
            id,
            device: (status.stx_dev_major, status.stx_dev_minor),
        }
    }

    pub(super) fn is_same_mount(self, other: Self) -> bool {
        match (self.id, other.id) {
            (MountId::Unknown, MountId::Unknown) => self.device == other.device,
            (one, another) => one == another,
        }
    }

    /// Whether this mount was made before or after `other`, if that is known.
    pub(super) fn age_order(self, other: Self) -> Option<Ordering> {
        match (self.id, other.id) {
            (MountId::Unique(one), MountId::Unique(another)) => Some(one.cmp(&another)),
            _ => None,
        }
    }
}

/// The filesystems of one origin.
pub(super) struct Filesystems {
    /// Names the origin in the log.
    uri: String,
    /// Held for look-ups and insertions, never during a system call.
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    mounts: HashMap<MountKey, Filesystem>,
    points: HashMap<PathBuf, MountPoint>,
    /// The generation of unknown mount points: 0, until known ones were forgotten.
    first_generation: u64,
}

/// The mount at a mount point, and the number of local filesystems that it has replaced there.
struct MountPoint {
    mount: MountKey,
    generation: u64,
}

/// The facts about a mount that appears for the first time.
struct MountFacts {
    identity: Option<String>,
    is_local: bool,
    /// Its mount point; `None` if it is no longer mounted anywhere.
    point: Option<PathBuf>,
}

impl Filesystems {
    pub(super) fn of_origin(uri: String) -> Self {
        Self {
            uri,
            table: RwLock::default(),
        }
    }

    /// The filesystem that holds the file of `status`. `open` returns a descriptor of that file, which may
    /// be `O_PATH`; it is called only when this mount appears for the first time.
    ///
    /// # Errors
    /// The errors of `open`.
    pub(super) fn of(
        &self,
        status: &Statx,
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<Filesystem, Errno> {
        let mount = MountKey::of(status);
        if let Some(known) = self.table.read().mounts.get(&mount) {
            return Ok(*known);
        }
        let file = open()?;
        let facts = mount_facts(&file, mount);
        let mut table = self.table.write();
        Ok(table.add(&self.uri, mount, &facts))
    }
}

impl Table {
    fn add(&mut self, uri: &str, mount: MountKey, facts: &MountFacts) -> Filesystem {
        if let Some(known) = self.mounts.get(&mount) {
            return *known;
        }
        let generation = match &facts.point {
            Some(point) if facts.is_local => self.generation_at(point, mount),
            _ => 0,
        };
        let detached = facts.is_local && facts.point.is_none();
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"copperfs posix origin\0");
        if let Some(identity) = &facts.identity {
            hasher.update(identity.as_bytes());
        }
        if generation > 0 {
            hasher.update(b"\0generation");
            hasher.update(&generation.to_le_bytes());
        }
        if detached {
            // Without a mount point, replacements cannot be detected, so this mount is distinct from all
            // others.
            hasher.update(format!("\0{mount:?}").as_bytes());
        }
        let lasts = facts.identity.is_some() && generation == 0 && !detached;
        let filesystem = Filesystem {
            seed: truncated(&hasher),
            standing: if lasts {
                Standing::Lasting
            } else {
                Standing::Launch
            },
        };
        tracing::debug!(
            origin = uri,
            ?mount,
            point = ?facts.point,
            identity = facts.identity,
            generation,
            "a filesystem is seen for the first time"
        );
        if self.mounts.len() >= MOUNTS_MAX {
            self.mounts.clear();
        }
        self.mounts.insert(mount, filesystem);
        filesystem
    }

    fn generation_at(&mut self, point: &Path, mount: MountKey) -> u64 {
        if let Some(known) = self.points.get_mut(point) {
            if !known.mount.is_same_mount(mount) {
                known.generation += 1;
                known.mount = mount;
            }
            return known.generation;
        }
        if self.points.len() >= POINTS_MAX {
            let highest = self.points.values().map(|known| known.generation).max();
            self.first_generation = highest.unwrap_or_default().max(self.first_generation) + 1;
            self.points.clear();
        }
        let generation = self.first_generation;
        self.points
            .insert(point.to_owned(), MountPoint { mount, generation });
        generation
    }
}

/// Collects the facts about the mount through which `file` was opened.
fn mount_facts(file: &OwnedFd, mount: MountKey) -> MountFacts {
    let Some(entry) = mount_of(file) else {
        return MountFacts {
            identity: None,
            is_local: true,
            point: None,
        };
    };
    let identity = identity::identity(
        &entry,
        || fs::read_to_string("/proc/fs/nfsfs/volumes").ok(),
        || Some(fstatvfs(file).ok()?.f_fsid),
        || uuid::of(file, mount.device),
    );
    MountFacts {
        identity,
        is_local: identity::is_local(&entry),
        point: Some(entry.mountpoint),
    }
}

/// The entry of the mount table for the mount through which `file` was opened; `None` if it is no longer
/// mounted anywhere.
pub(super) fn mount_of(file: &OwnedFd) -> Option<MountEntry> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let id = about
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?;
    let id: u64 = id.trim().parse().ok()?;
    let mounts = mountinfo::read().ok()?;
    mounts.into_iter().find(|mount| mount.id == id)
}

#[cfg(test)]
mod tests;
