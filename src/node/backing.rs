//! Backing files of passthrough opens: real files with a whole content, which are sealed against writing.
//!
//! With a passthrough open the kernel reads a file directly, without messages to the daemon. With a disk store that
//! file is the store's own. Otherwise it is an unnamed file in memory, filled from the read path. A cache with its own
//! limit keeps it, and the kernel keeps it while it is open.
//!
//! The files in memory are in a tmpfs that this node mounts for itself, because only then may they have huge pages.
//! With small pages a mapped file needs a hundred times as many page-table entries, and reads are slower than from
//! the page cache of a disk filesystem. Where the mount is refused, each file is a `memfd`.

use crate::cache::{Cache, EvictionPolicy, Fill};
use crate::namespace::Inode;
use crate::num::to_usize;
use crate::read::{Cut, FileId, PartRange, ReadAhead, ReadPath};
use crate::store::{Store, Verified, Whole, WholeWriter};
use copperfs_overlay::{BLOCK_BYTES, ContentHash, ItemPath, ReadRequest};
use dashmap::DashSet;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Smaller files are faster through the daemon and the page cache (measured: passthrough is faster above about
/// 1 MiB).
const WORTH_BYTES_MIN: u64 = 1 << 20;
/// Concurrent fills and verifications. Other files wait for a place; until then they are read through the
/// daemon.
const FILLS_MAX: usize = 16;
/// Bytes copied in one step while a memory file is filled: a block.
const COPY_BYTES: u32 = 1 << 20;
const _: () = assert!(COPY_BYTES as u64 == BLOCK_BYTES);

/// The backing files of a node.
#[derive(Clone)]
pub(super) struct Backings(Arc<Inner>);

struct Inner {
    /// By version of a file, not by inode: the kernel may forget an inode and look it up again.
    files: Cache<FileId, Kept>,
    /// Versions whose file is being filled.
    filling: DashSet<FileId>,
    /// Limits concurrent fills and verifications, so that a hanging disk occupies a bounded number of
    /// threads.
    fills: Semaphore,
    medium: Medium,
    runtime: Handle,
}

/// The medium of the files.
enum Medium {
    Memory(Memory),
    Store(Store),
}

#[derive(Clone, Debug)]
struct Kept {
    file: Verified,
    /// The path of the file with these bytes, for `clear`.
    path: ItemPath,
}

/// The memory for files without a store.
#[derive(Debug)]
enum Memory {
    /// A tmpfs with huge pages, which is mounted at no path.
    Huge(OwnedFd),
    /// A `memfd` for each file.
    Memfd,
}

impl Backings {
    /// Files of the disk `store`, which has its own limit, or else in memory, at most `bytes_max` bytes of them; 0: none.
    pub(super) fn new(store: Option<Store>, bytes_max: u64, runtime: Handle) -> Self {
        let medium = match store {
            Some(store) => Medium::Store(store),
            None if bytes_max == 0 => Medium::Memory(Memory::Memfd),
            None => Medium::Memory(Memory::new()),
        };
        Self(Arc::new(Inner {
            files: Cache::new(EvictionPolicy::S3Fifo, bytes_max),
            filling: DashSet::new(),
            fills: Semaphore::new(FILLS_MAX),
            medium,
            runtime,
        }))
    }

    /// The local file of `inode`, if it is complete and verified; otherwise starts to fill or to verify
    /// one, if the file is worth it and fits.
    pub(super) fn of(&self, read: &ReadPath, inode: &Arc<Inode>) -> Option<Verified> {
        let size = inode.file.size;
        let bytes_max = match &self.0.medium {
            Medium::Memory(_) => self.0.files.capacity_bytes(),
            Medium::Store(store) => store.whole_bytes_max(),
        };
        if !(WORTH_BYTES_MIN..=bytes_max).contains(&size) {
            return None;
        }
        let id = inode.file.id();
        let ready = match &self.0.medium {
            Medium::Memory(_) => self.0.files.get(&id).map(|kept| kept.file),
            Medium::Store(store) => match store.whole(&inode.file) {
                Whole::Ready(file) => Some(file),
                Whole::Unverified | Whole::Absent => None,
            },
        };
        if ready.is_some() || !self.0.filling.insert(id) {
            return ready;
        }
        let (this, read, inode) = (self.clone(), read.clone(), Arc::clone(inode));
        drop(self.0.runtime.spawn(async move {
            // The semaphore is never closed.
            let _turn = this.0.fills.acquire().await.ok();
            if let Err(error) = this.bring(&read, &inode).await {
                tracing::warn!(path = %inode.path(), %error, "not passed through");
            }
            this.0.filling.remove(&id);
        }));
        None
    }

    async fn bring(&self, read: &ReadPath, inode: &Arc<Inode>) -> Result<(), FillError> {
        match &self.0.medium {
            Medium::Memory(memory) => {
                let kept = Kept {
                    file: fill(memory, read, inode).await?,
                    path: inode.path().clone(),
                };
                self.0.files.insert(inode.file.id(), kept, inode.file.size);
            }
            Medium::Store(store) => {
                let (checking, inode_) = (store.clone(), Arc::clone(inode));
                let check = move || checking.verify_whole(&inode_.file);
                if tokio::task::spawn_blocking(check).await?.is_none() {
                    fill_store(store, read, inode).await?;
                }
            }
        }
        Ok(())
    }

    /// How full the memory for files is.
    pub(super) fn fill(&self) -> Fill {
        self.0.files.fill()
    }

    /// Changes the bound on the files in memory. Those in a store have the bound of the store. A file that the kernel
    /// has open stays until it is closed.
    pub(super) fn resize(&self, bytes_max: u64) {
        self.0.files.set_capacity(bytes_max);
    }

    /// Drops the files of `path` and below from memory. A file that the kernel has open stays until it is closed.
    pub(super) fn clear(&self, path: &ItemPath) {
        self.0
            .files
            .remove_where(|_, kept| kept.path.is_within(path));
    }
}

impl Memory {
    fn new() -> Self {
        match huge_tmpfs() {
            Ok(mount) => Self::Huge(mount),
            Err(error) => {
                tracing::info!(%error, "no tmpfs with huge pages: passed-through files have small ones");
                Self::Memfd
            }
        }
    }

    /// An empty file for `size` bytes.
    fn create(&self, size: u64) -> rustix::io::Result<OwnedFd> {
        let file = match self {
            Self::Huge(mount) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                rustix::fs::openat(mount, ".", flags, Mode::RUSR | Mode::WUSR)?
            }
            Self::Memfd => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                rustix::fs::memfd_create("copperfs", flags)?
            }
        };
        rustix::fs::ftruncate(&file, size)?;
        Ok(file)
    }

    /// The complete `file`, sealed against writing.
    fn close(&self, file: OwnedFd) -> rustix::io::Result<OwnedFd> {
        match self {
            Self::Huge(_) => rustix::fs::open(
                format!("/proc/self/fd/{}", file.as_raw_fd()),
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            ),
            Self::Memfd => {
                let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
                rustix::fs::fcntl_add_seals(&file, seals)?;
                Ok(file)
            }
        }
    }
}

/// A tmpfs that is mounted at no path. Needs CAP_SYS_ADMIN, as passthrough does. It has no size limit of its own;
/// the cache has one.
fn huge_tmpfs() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [
        ("huge", "within_size"),
        ("size", "0"),
        ("nr_inodes", "0"),
        ("mode", "0700"),
    ] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )
}

type FillError = Box<dyn std::error::Error + Send + Sync>;

/// Writes all blocks of a file into one file of the store.
async fn fill_store(store: &Store, read: &ReadPath, inode: &Inode) -> Result<(), FillError> {
    let (opening, size) = (store.clone(), inode.file.size);
    let mut writer = tokio::task::spawn_blocking(move || opening.begin_whole(size)).await??;
    let ahead = ReadAhead::default();
    let mut offset = 0;
    while offset < inode.file.size {
        let cut = read.read(&inode.file, &ahead, offset, COPY_BYTES).await?;
        let hash = hash_of_block(&cut, offset, inode.file.size)?;
        offset += cut.bytes.len() as u64;
        let append = move || -> Result<WholeWriter, rustix::io::Errno> {
            writer.append(&cut.bytes, hash)?;
            Ok(writer)
        };
        writer = tokio::task::spawn_blocking(append).await??;
    }
    let file = inode.file.clone();
    tokio::task::spawn_blocking(move || writer.finish(&file)).await??;
    Ok(())
}

async fn fill(memory: &Memory, read: &ReadPath, inode: &Inode) -> Result<Verified, FillError> {
    let file = memory.create(inode.file.size)?;
    let ahead = ReadAhead::default();
    let mut blocks = Vec::new();
    let mut offset = 0;
    while offset < inode.file.size {
        let cut = read.read(&inode.file, &ahead, offset, COPY_BYTES).await?;
        blocks.push(hash_of_block(&cut, offset, inode.file.size)?);
        let mut written = 0;
        while written < cut.bytes.len() {
            written += rustix::io::pwrite(&file, &cut.bytes[written..], offset + written as u64)?;
        }
        offset += cut.bytes.len() as u64;
    }
    Ok(Verified {
        file: Arc::new(memory.close(file)?),
        blocks: blocks.into(),
    })
}

/// The hash of the whole block that begins at `offset`, if `cut` is exactly that block.
fn hash_of_block(cut: &Cut, offset: u64, size: u64) -> Result<ContentHash, FillError> {
    let index = offset / BLOCK_BYTES;
    let whole = cut.bytes.len() == to_usize(ReadRequest::block_len(size, index));
    let mut parts = cut.parts.iter();
    match (parts.next(), parts.next()) {
        (Some(part), None) if whole && part.range == PartRange::Block(index) => Ok(part.hash),
        _ => Err("a block did not come as one".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_file_can_be_read_and_not_written() {
        for memory in [Memory::new(), Memory::Memfd] {
            let file = memory.create(3).unwrap();
            assert_eq!(rustix::io::pwrite(&file, b"abc", 0), Ok(3));
            let file = memory.close(file).unwrap();
            let mut bytes = [0; 4];
            assert_eq!(rustix::io::pread(&file, &mut bytes, 0), Ok(3));
            assert_eq!(&bytes, b"abc\0");
            assert!(rustix::io::pwrite(&file, b"x", 0).is_err(), "{memory:?}");
            assert!(rustix::fs::ftruncate(&file, 9).is_err(), "{memory:?}");
        }
    }
}
