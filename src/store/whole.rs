//! Whole files for passthrough opens: the kernel reads the store's own file.
//!
//! Such a file is written once, from verified blocks, and its name is the hash of their hashes. Before it
//! is passed to the kernel for the first time, it is read completely from the descriptor that the kernel
//! will get, and each block is compared with its hash. This happens after the file was written, and again
//! after a restart.

use super::Store;
use super::catalog::ContentEntry;
use super::content;
use super::job::PutWhole;
use crate::num::to_usize;
use crate::pread::read_exactly;
use crate::read::FileRef;
use bytes::Bytes;
use copperfs_overlay::{BLOCK_BYTES, ContentHash, ReadRequest};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A complete file of which each block was verified. It is read-only.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// The hashes of its blocks.
    pub blocks: Arc<[ContentHash]>,
}

/// The state of a file version for passthrough.
#[derive(Debug)]
pub enum Whole {
    /// Complete and verified.
    Ready(Verified),
    /// Written by an earlier process. It needs [`Store::verify_whole`] first.
    Unverified,
    /// Not in the store.
    Absent,
}

/// A whole file that is being written.
pub struct WholeWriter {
    file: OwnedFd,
    /// Its path, until it is handed over. Empty from then on.
    temporary: String,
    len: u64,
    hashes: Vec<ContentHash>,
    moment: u64,
    store: Store,
}

impl Store {
    /// The state of `file`.
    #[must_use]
    pub fn whole(&self, file: &FileRef) -> Whole {
        // The kernel would read from the hanging disk itself, without a timeout.
        if !self.shared.health.may_read() {
            return Whole::Absent;
        }
        let Some((_, entry)) = self.shared.catalog.whole_of(file) else {
            return Whole::Absent;
        };
        match (entry.open, entry.blocks) {
            (Some(file), Some(blocks)) => Whole::Ready(Verified { file, blocks }),
            _ => Whole::Unverified,
        }
    }

    /// The largest file that may be kept whole, in bytes.
    #[must_use]
    pub fn whole_bytes_max(&self) -> u64 {
        self.shared.catalog.contents.capacity_bytes() / 2
    }

    /// Reads a whole file that an earlier process has written, and checks every block. This call blocks.
    #[must_use]
    pub fn verify_whole(&self, file: &FileRef) -> Option<Arc<OwnedFd>> {
        let shared = &self.shared;
        let (content, mut entry) = shared.catalog.whole_of(file)?;
        let blocks = entry.blocks.clone()?;
        let opened = shared.directory.open_file(&content.path());
        match opened.and_then(|open| Ok((is_intact(&open, file.size, &blocks)?, open))) {
            Ok((true, open)) => {
                let open = Arc::new(open);
                entry.open = Some(Arc::clone(&open));
                (shared.catalog.contents).update(&content, |held| *held = entry);
                Some(open)
            }
            Ok((false, _)) | Err(_) => {
                shared.condemn(content, entry.serial);
                self.writer.remove(content);
                None
            }
        }
    }

    /// Begins to write a whole file of `len` bytes, after making room for it. This call blocks.
    ///
    /// # Errors
    /// Those of the disk; `NOSPC` if it has no room beside its reserve.
    pub fn begin_whole(&self, len: u64) -> Result<WholeWriter, Errno> {
        self.writer.make_room(len)?;
        let (file, temporary) = self.shared.directory.create()?;
        Ok(WholeWriter {
            file,
            temporary,
            len: 0,
            hashes: Vec::new(),
            moment: self.shared.catalog.moment(),
            store: self.clone(),
        })
    }
}

/// Whether the file has this size and these blocks.
fn is_intact(open: &OwnedFd, size: u64, blocks: &[ContentHash]) -> Result<bool, Errno> {
    if content::size_of(open)? != size || blocks.len() as u64 != size.div_ceil(BLOCK_BYTES) {
        return Ok(false);
    }
    for (index, hash) in (0..).zip(blocks) {
        let len = ReadRequest::block_len(size, index);
        let bytes = read_exactly(open, index * BLOCK_BYTES, to_usize(len))?;
        if bytes.is_none_or(|bytes| blake3::hash(&bytes).as_bytes() != &hash.0) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl WholeWriter {
    /// Appends the next block, whose hash is `hash`. All blocks except the last are [`BLOCK_BYTES`] long. This
    /// call blocks.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn append(&mut self, block: &Bytes, hash: ContentHash) -> Result<(), Errno> {
        content::write_pieces(&self.file, self.len, std::slice::from_ref(block))?;
        self.len += block.len() as u64;
        self.hashes.push(hash);
        Ok(())
    }

    /// Reads the complete file, verifies each block, and adds it to the store as the content of `file`. This
    /// call blocks.
    ///
    /// # Errors
    /// Those of the disk; `IO` if the bytes differ from the written ones. The file is then removed.
    pub fn finish(mut self, file: &FileRef) -> Result<Arc<OwnedFd>, Errno> {
        let shared = &self.store.shared;
        let open = Arc::new(shared.directory.open_file(&self.temporary)?);
        if !is_intact(&open, self.len, &self.hashes)? {
            shared.counters.damaged.increment();
            tracing::warn!(path = %file.path, "the bytes read back from the disk differ from those written: dropped");
            return Err(Errno::IO);
        }
        let mut hasher = blake3::Hasher::new();
        for hash in &self.hashes {
            hasher.update(&hash.0);
        }
        let hashes = std::mem::take(&mut self.hashes);
        self.store.writer.put_whole(PutWhole {
            file: file.id(),
            moment: self.moment,
            name: ContentHash(*hasher.finalize().as_bytes()),
            entry: ContentEntry::whole(self.len, Some(Arc::clone(&open)), hashes.into()),
            // From here on, the writer's thread renames or removes the file.
            temporary: std::mem::take(&mut self.temporary),
        });
        Ok(open)
    }
}

impl Drop for WholeWriter {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            self.store.shared.directory.remove(&self.temporary);
        }
    }
}
