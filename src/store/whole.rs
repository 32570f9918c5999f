//! Whole files for passthrough opens: the kernel reads the store's own file.
//!
//! Such a file is written once, from verified blocks, and its name is the hash of their hashes. Before it
//! is passed to the kernel for the first time, it is read completely from the descriptor that the kernel
//! will get, and each block is compared with its hash. This is done after the file was written, and after a
//! restart.

use super::Store;
use super::catalog::Held;
use super::content;
use super::job::PutWhole;
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

/// How a file version is held for passthrough.
#[derive(Debug)]
pub enum Whole {
    /// Complete and verified.
    Ready(Verified),
    /// From before this process: [`Store::verify_whole`] it first.
    Unverified,
    /// Not at all.
    Absent,
}

/// A whole file that is being written.
#[derive(Debug)]
pub struct WholeWriter {
    file: OwnedFd,
    temporary: Option<String>,
    len: u64,
    hashes: Vec<ContentHash>,
    moment: u64,
    store: Store,
}

impl Store {
    /// How `file` is held.
    #[must_use]
    pub fn whole(&self, file: &FileRef) -> Whole {
        // The kernel would read from the hanging disk itself, without a timeout.
        if !self.0.shared.health.may_read() {
            return Whole::Absent;
        }
        match self.0.shared.catalog.whole_of(file) {
            Some((_, held)) => match (held.open, held.blocks) {
                (Some(file), Some(blocks)) => Whole::Ready(Verified { file, blocks }),
                _ => Whole::Unverified,
            },
            None => Whole::Absent,
        }
    }

    /// The largest file that may be kept whole, in bytes.
    #[must_use]
    pub fn whole_bytes_max(&self) -> u64 {
        self.0.shared.catalog.capacity_bytes() / 2
    }

    /// Reads a whole file that an earlier process has written, and checks every block. Blocks.
    #[must_use]
    pub fn verify_whole(&self, file: &FileRef) -> Option<Arc<OwnedFd>> {
        let shared = &self.0.shared;
        let (unit, mut held) = shared.catalog.whole_of(file)?;
        let blocks = held.blocks.clone()?;
        let opened = shared.directory.open_content(&unit);
        let right =
            opened.and_then(|open| check(&open, file.size, &blocks).map(|right| (open, right)));
        match right {
            Ok((open, true)) => {
                let open = Arc::new(open);
                held.open = Some(Arc::clone(&open));
                shared.catalog.replace(unit, held);
                Some(open)
            }
            Ok((_, false)) | Err(_) => {
                shared.condemn(unit, held.serial);
                self.0.writer.remove(unit);
                None
            }
        }
    }

    /// Begins to write a file of `len` bytes whole, once there is room for it. Blocks.
    ///
    /// # Errors
    /// The disk's, or that it has no room without its reserve.
    pub fn begin_whole(&self, len: u64) -> Result<WholeWriter, Errno> {
        self.0.writer.room(len)?;
        let (file, temporary) = self.0.shared.directory.create()?;
        Ok(WholeWriter {
            file,
            temporary: Some(temporary),
            len: 0,
            hashes: Vec::new(),
            moment: self.moment(),
            store: self.clone(),
        })
    }
}

fn check(open: &OwnedFd, size: u64, blocks: &[ContentHash]) -> Result<bool, Errno> {
    if content::inspect(open)?.0 != size || blocks.len() as u64 != size.div_ceil(BLOCK_BYTES) {
        return Ok(false);
    }
    for (index, hash) in (0..).zip(blocks) {
        let len = ReadRequest::block_len(size, index);
        let bytes = content::read_exactly(open, index * BLOCK_BYTES, len)?;
        let right = bytes.is_some_and(|bytes| blake3::hash(&bytes).as_bytes() == &hash.0);
        if !right {
            return Ok(false);
        }
    }
    Ok(true)
}

impl WholeWriter {
    /// Appends the next block, whose hash is `hash`. All blocks except the last are [`BLOCK_BYTES`] long.
    /// Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn append(&mut self, block: &Bytes, hash: ContentHash) -> Result<(), Errno> {
        content::write_pieces(&self.file, self.len, std::slice::from_ref(block))?;
        self.len += block.len() as u64;
        self.hashes.push(hash);
        Ok(())
    }

    /// Reads the complete file, verifies each block, and adds the file to the content of `file`. Blocks.
    ///
    /// # Errors
    /// The disk's; `IO` if the bytes differ from those written: then nothing is kept.
    pub fn finish(mut self, file: &FileRef) -> Result<Arc<OwnedFd>, Errno> {
        let shared = &self.store.0.shared;
        let open = match &self.temporary {
            Some(temporary) => Arc::new(shared.directory.open_temporary(temporary)?),
            None => return Err(Errno::INVAL),
        };
        if !check(&open, self.len, &self.hashes)? {
            shared.counters.damaged.increment();
            tracing::warn!(path = %file.path, "the bytes read back from the disk differ from those written: dropped");
            return Err(Errno::IO);
        }
        let Some(temporary) = self.temporary.take() else {
            return Err(Errno::INVAL);
        };
        let mut hasher = blake3::Hasher::new();
        for hash in &self.hashes {
            hasher.update(&hash.0);
        }
        let name = ContentHash(*hasher.finalize().as_bytes());
        self.store.0.writer.whole(PutWhole {
            file: file.id(),
            moment: self.moment,
            name,
            held: Held::whole(
                self.len,
                Some(Arc::clone(&open)),
                std::mem::take(&mut self.hashes).into(),
            ),
            temporary,
        });
        Ok(open)
    }
}

impl Drop for WholeWriter {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            self.store.0.shared.directory.discard(temporary);
        }
    }
}
