//! Where a journal's bytes are: in a memory file, or in a test's buffer.

use crate::failpoint;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes by their offset. A write that is cut off has written a part of its bytes, from the first on.
pub trait Medium {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// There is no room.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reads up to the end of `buffer` or of the medium. Returns the number of bytes.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Gives the memory of `range` back. Its bytes are undefined after that.
    ///
    /// # Errors
    /// The memory could not be given back.
    fn release(&self, range: Range<u64>) -> io::Result<()>;

    /// Cuts all bytes from `length` on.
    ///
    /// # Errors
    /// It cannot be cut.
    fn truncate(&self, length: u64) -> io::Result<()>;
}

/// A file in memory, which lives as long as a process holds it.
#[derive(Debug)]
pub struct MemoryFile(File);

impl MemoryFile {
    /// Makes an empty one.
    ///
    /// # Errors
    /// The system has no descriptor or no memory for it.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create("copperfs-journal", MemfdFlags::CLOEXEC)?;
        Ok(Self(File::from(file)))
    }
}

impl From<OwnedFd> for MemoryFile {
    fn from(file: OwnedFd) -> Self {
        Self(File::from(file))
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Medium for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        failpoint::hit("journal.write.before");
        if failpoint::is_hit("journal.write.torn") {
            self.0.write_all_at(&bytes[..bytes.len() / 2], offset)?;
            failpoint::die("journal.write.torn");
        }
        self.0.write_all_at(bytes, offset)?;
        failpoint::hit("journal.write.after");
        Ok(())
    }

    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buffer.is_empty() {
            let read = self.0.read_at(buffer, offset)?;
            if read == 0 {
                break;
            }
            total += read;
            offset += read as u64;
            buffer = &mut buffer[read..];
        }
        Ok(total)
    }

    fn release(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if range.is_empty() {
            return Ok(());
        }
        Ok(fallocate(
            &self.0,
            flags,
            range.start,
            range.end - range.start,
        )?)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        Ok(ftruncate(&self.0, length)?)
    }
}
