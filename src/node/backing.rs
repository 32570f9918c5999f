//! Real files behind passthrough opens: whole contents in sealed memory files.
//!
//! A passthrough open hands the kernel a file that it reads without asking. Until there is a store on
//! disk, that file is a `memfd`, filled from the read path and sealed, held within a bound of its own
//! in a cache, and for as long as the kernel has it open.

use crate::cache::{Cache, EvictionPolicy};
use crate::namespace::Inode;
use crate::num::to_usize;
use crate::read::ReadPath;
use copperfs_fuse::Backing;
use dashmap::DashSet;
use rustix::fs::{MemfdFlags, SealFlags};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Files below this size are faster through the daemon and the page cache than passed through
/// (measured: passthrough wins above about 1 MiB).
const WORTH_BYTES_MIN: u64 = 1 << 20;
/// Bytes copied at a time while a memory file is filled.
const COPY_BYTES: u32 = 1 << 20;

/// The memory files of a node.
#[derive(Clone)]
pub(super) struct Backings(Arc<Inner>);

struct Inner {
    files: Cache<u64, Backing>,
    /// Inodes whose file is being filled.
    filling: DashSet<u64>,
    runtime: tokio::runtime::Handle,
}

impl fmt::Debug for Backings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backings")
            .field("files", &self.0.files)
            .finish_non_exhaustive()
    }
}

impl Backings {
    /// None yet, and never more than `bytes_max`.
    pub(super) fn new(bytes_max: u64, runtime: tokio::runtime::Handle) -> Self {
        let files = Cache::new(EvictionPolicy::S3Fifo, bytes_max);
        Self(Arc::new(Inner {
            files,
            filling: DashSet::new(),
            runtime,
        }))
    }

    /// The memory file of `inode`, if it is complete; otherwise starts to fill one, if the file is
    /// worth it and fits.
    pub(super) fn of(&self, read: &ReadPath, inode: &Arc<Inode>) -> Option<Backing> {
        let size = inode.file.size;
        if !(WORTH_BYTES_MIN..=self.0.files.capacity_bytes()).contains(&size) {
            return None;
        }
        if let Some(file) = self.0.files.get(&inode.number) {
            return Some(file);
        }
        if self.0.filling.insert(inode.number) {
            let (this, read, inode) = (self.clone(), read.clone(), Arc::clone(inode));
            drop(self.0.runtime.spawn(async move {
                match fill(&read, &inode).await {
                    Ok(file) => {
                        this.0.files.insert(inode.number, Arc::new(file), size);
                    }
                    Err(error) => {
                        tracing::warn!(path = %inode.path(), %error, "not passed through");
                    }
                }
                this.0.filling.remove(&inode.number);
            }));
        }
        None
    }

    /// The kernel no longer knows the inode, or it was cleared.
    pub(super) fn forget(&self, number: u64) {
        self.0.files.remove(&number);
    }
}

async fn fill(
    read: &ReadPath,
    inode: &Inode,
) -> Result<OwnedFd, Box<dyn std::error::Error + Send + Sync>> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("copperfs", flags)?;
    rustix::fs::ftruncate(&file, inode.file.size)?;
    let mut offset = 0;
    while offset < inode.file.size {
        let bytes = read
            .read(&inode.file, &inode.ahead, offset, COPY_BYTES)
            .await?;
        let mut written = 0;
        while written < bytes.len() {
            written += rustix::io::pwrite(&file, &bytes[written..], offset + written as u64)?;
        }
        if bytes.is_empty() {
            return Err("the file ended too early".into());
        }
        offset += bytes.len() as u64;
        debug_assert!(to_usize(offset) > 0);
    }
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK,
    )?;
    Ok(file)
}
