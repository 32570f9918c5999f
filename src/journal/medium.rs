//! Where a journal's bytes are: in a memory file, or in a test's buffer.

use crate::failpoint;
use crate::mapped::Mapped;
use crate::num::to_usize;
use parking_lot::Mutex;
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

    /// As [`Medium::write_at`], after all that was written before, from the end of the last write on. One at a time.
    ///
    /// # Errors
    /// There is no room.
    fn append(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }

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

/// Bytes that are mapped at a time for [`Medium::append`], a multiple of the page size.
const WINDOW_BYTES: u64 = 256 << 10;

/// A file in memory, which lives as long as a process holds it.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    /// The part of the file at whose offset the next bytes are due.
    window: Mutex<Option<Window>>,
}

/// A mapped part of a file.
#[derive(Debug)]
struct Window {
    offset: u64,
    mapped: Mapped,
}

impl Window {
    /// Maps the part of `file` that has `offset`. Its pages are there after that, so that writing to it cannot fail.
    fn around(file: &File, offset: u64) -> io::Result<Self> {
        let start = offset / WINDOW_BYTES * WINDOW_BYTES;
        fallocate(file, FallocateFlags::empty(), start, WINDOW_BYTES)?;
        Ok(Self {
            offset: start,
            mapped: Mapped::new(file, start, to_usize(WINDOW_BYTES), true)?,
        })
    }

    /// Writes `bytes` at `offset` of the file. Returns whether they lie within the window.
    fn write(&self, bytes: &[u8], offset: u64) -> bool {
        let at = offset.checked_sub(self.offset);
        at.is_some_and(|at| self.mapped.write(to_usize(at), bytes))
    }
}

impl MemoryFile {
    /// Makes an empty one.
    ///
    /// # Errors
    /// The system has no descriptor or no memory for it.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create("copperfs-journal", MemfdFlags::CLOEXEC)?;
        Ok(Self::from(file))
    }

    /// Writes `bytes`, which continue those before, and maps the memory that comes next when they reach it.
    fn write_mapped(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut window = self.window.lock();
        if window
            .as_ref()
            .is_some_and(|window| window.write(bytes, offset))
        {
            return Ok(());
        }
        // Once for each window: these bytes are at its border.
        self.file.write_all_at(bytes, offset)?;
        let next = offset + bytes.len() as u64;
        *window = Window::around(&self.file, next)
            .inspect_err(|error| tracing::debug!(%error, "the journal is written by system calls"))
            .ok();
        Ok(())
    }
}

impl From<OwnedFd> for MemoryFile {
    fn from(file: OwnedFd) -> Self {
        Self {
            file: File::from(file),
            window: Mutex::default(),
        }
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Writes `bytes` by `write`, unless a plan has the daemon die before it, in the middle or after it.
fn with_fail_points(bytes: &[u8], write: impl Fn(&[u8]) -> io::Result<()>) -> io::Result<()> {
    failpoint::hit("journal.write.before");
    if failpoint::is_hit("journal.write.torn") {
        write(&bytes[..bytes.len() / 2])?;
        failpoint::die("journal.write.torn");
    }
    write(bytes)?;
    failpoint::hit("journal.write.after");
    Ok(())
}

impl Medium for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        with_fail_points(bytes, |bytes| self.file.write_all_at(bytes, offset))
    }

    fn append(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        with_fail_points(bytes, |bytes| self.write_mapped(bytes, offset))
    }

    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buffer.is_empty() {
            let read = self.file.read_at(buffer, offset)?;
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
            &self.file,
            flags,
            range.start,
            range.end - range.start,
        )?)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        Ok(ftruncate(&self.file, length)?)
    }
}
