//! Which filesystem holds a file: the part of a version that tells equal inode numbers, sizes and times
//! of two filesystems apart.
//!
//! Mounts lie below an origin, so the question is asked of each file and not of the origin. Every `statx`
//! brings the id of the mount at no further cost; the table here says what is known of that mount, and is
//! filled when an id is seen for the first time (`identity` has the rules, some system calls each).
//!
//! A local filesystem (a disk, an image, FUSE) that replaces another one at the same mount point counts a
//! *generation* up, even where both say that they are the same: two copies of one image have one UUID.
//! A filesystem of a server is known by the server, and stays the same when it is mounted again.
//! Generation 0 adds nothing to a version, so that roots with mounts of their own agree.
//!
//! A filesystem without an identity, and one that replaced another, gives versions of
//! [`Standing::Launch`]: nothing is kept under them for a later launch.
//!
//! On kernels before 6.8 the id of a mount that is gone is given to a later one. A filesystem that
//! replaces another one under the same id and device number is taken for the same there.

mod identity;
mod uuid;

use copperfs_fuse::mountinfo::{self, MountEntry};
use copperfs_overlay::Standing;
use identity::Source;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Statx, StatxFlags, fstatvfs};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8): an id that no later mount gets.
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// What `statx` is asked for beside attributes. A kernel that lacks one of them leaves it out.
pub(super) const MOUNT_MASK: StatxFlags = StatxFlags::MNT_ID.union(MNT_ID_UNIQUE);

/// Mounts that are remembered. When there are more, all are forgotten and looked at again; mount points
/// and their generations stay.
const MOUNTS_MAX: usize = 4096;
/// Mount points whose generation is remembered. When there are more, all are forgotten, and each begins
/// with a generation above every earlier one: what is cached of local filesystems is read again.
const POINTS_MAX: usize = 4096;

/// What a version takes from the filesystem that holds the file. Two are equal only if the filesystem's
/// identity and its generation are. The origin's URI is no part of it: within one filesystem the inode number
/// names the file, by whatever path the origin was given, and an index of a subdirectory holds for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Filesystem {
    pub(super) seed: [u8; 16],
    pub(super) standing: Standing,
}

/// The mount that a file was reached through, as far as the kernel tells. The device number tells the
/// subvolumes of one btrfs mount apart; it never leaves this table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MountKey {
    id: MountId,
    device: (u32, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MountId {
    /// Never given twice, and counting up.
    Unique(u64),
    /// Given again once the mount is gone (Linux 5.8 to 6.7).
    Reused(u64),
    /// Not told (before Linux 5.8).
    Untold,
}

impl MountKey {
    pub(super) fn of(status: &Statx) -> Self {
        let told = StatxFlags::from_bits_retain(status.stx_mask);
        let id = if told.contains(MNT_ID_UNIQUE) {
            MountId::Unique(status.stx_mnt_id)
        } else if told.contains(StatxFlags::MNT_ID) {
            MountId::Reused(status.stx_mnt_id)
        } else {
            MountId::Untold
        };
        Self {
            id,
            device: (status.stx_dev_major, status.stx_dev_minor),
        }
    }

    pub(super) fn is_same_mount(self, other: Self) -> bool {
        match (self.id, other.id) {
            (MountId::Untold, MountId::Untold) => self.device == other.device,
            (one, another) => one == another,
        }
    }

    /// Whether this mount was certainly made after the other one.
    pub(super) fn is_later_than(self, other: Self) -> bool {
        matches!((self.id, other.id), (MountId::Unique(one), MountId::Unique(another)) if one > another)
    }

    /// Whether [`MountKey::is_later_than`] can tell at all.
    pub(super) fn has_order(self) -> bool {
        matches!(self.id, MountId::Unique(_))
    }
}

/// The filesystems of one origin.
#[derive(Debug)]
pub(super) struct Filesystems {
    /// Names the origin in the log.
    uri: String,
    /// Guards itself; held for look-ups and insertions, never for a system call.
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    mounts: HashMap<MountKey, Filesystem>,
    points: HashMap<PathBuf, Point>,
    /// The generation of mount points that are not known: 0, until some were forgotten.
    first_generation: u64,
}

/// What is mounted at a mount point, and how many local filesystems were there before it.
#[derive(Clone, Copy, Debug)]
struct Point {
    mount: MountKey,
    generation: u64,
}

/// What is found out about a mount that is seen for the first time.
struct Sighting {
    identity: Option<String>,
    is_local: bool,
    /// Where it is mounted; `None` if it is mounted nowhere any more.
    point: Option<PathBuf>,
}

impl Filesystems {
    pub(super) fn of_origin(uri: String) -> Self {
        Self {
            uri,
            table: RwLock::default(),
        }
    }

    /// The filesystem that holds the file of `status`. `open` gives a descriptor of that file, if only
    /// with `O_PATH`; it is called the first time that this mount is seen.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn of(
        &self,
        status: &Statx,
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<Filesystem, Errno> {
        let mount = MountKey::of(status);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.mounts.get(&mount) {
            return Ok(*known);
        }
        drop(table);
        let file = open()?;
        let sighting = look(&file, mount);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        Ok(table.add(&self.uri, mount, &sighting))
    }
}

impl Table {
    fn add(&mut self, uri: &str, mount: MountKey, sighting: &Sighting) -> Filesystem {
        if let Some(known) = self.mounts.get(&mount) {
            return *known;
        }
        let generation = match &sighting.point {
            _ if !sighting.is_local => 0,
            Some(point) => self.generation_at(point, mount),
            None => 0,
        };
        let detached = sighting.is_local && sighting.point.is_none();
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"copperfs posix origin\0");
        if let Some(identity) = &sighting.identity {
            hasher.update(identity.as_bytes());
        }
        if generation > 0 {
            hasher
                .update(b"\0generation")
                .update(&generation.to_le_bytes());
        }
        if detached {
            // What it replaces, or is replaced by, cannot be told: it is like no other.
            let only = format!("\0{mount:?}");
            hasher.update(only.as_bytes());
        }
        let lasts = sighting.identity.is_some() && generation == 0 && !detached;
        let mut seed = [0; 16];
        seed.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let filesystem = Filesystem {
            seed,
            standing: if lasts {
                Standing::Lasting
            } else {
                Standing::Launch
            },
        };
        tracing::debug!(
            origin = uri,
            ?mount,
            point = ?sighting.point,
            identity = sighting.identity,
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
            .insert(point.to_owned(), Point { mount, generation });
        generation
    }
}

/// Finds out about the mount that `file` was opened through.
fn look(file: &OwnedFd, mount: MountKey) -> Sighting {
    let Some(entry) = mount_of(file) else {
        return Sighting {
            identity: None,
            is_local: true,
            point: None,
        };
    };
    let source = Source::of(&entry);
    let identity = source.identity(
        || fs::read_to_string("/proc/fs/nfsfs/volumes").ok(),
        || Some(fstatvfs(file).ok()?.f_fsid),
        || uuid::of(file, mount.device),
    );
    Sighting {
        identity,
        is_local: source.is_local(),
        point: Some(entry.mountpoint),
    }
}

/// The line of the mount table for the mount that `file` was opened through; `None` if it is mounted
/// nowhere any more.
pub(super) fn mount_of(file: &OwnedFd) -> Option<MountEntry> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let id: u64 = about
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?
        .trim()
        .parse()
        .ok()?;
    let mounts = mountinfo::read().ok()?;
    mounts.into_iter().find(|mount| mount.id == id)
}

#[cfg(test)]
mod tests;
