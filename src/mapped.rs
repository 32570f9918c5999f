//! A part of a file that is mapped, for copies into it without a system call.
//!
//! Other processes may map the same file, so there is never a reference to its bytes. An access ends the process with
//! SIGBUS if the file is shorter than the part, or if there is no memory for a page: the caller sees to both before it
//! maps.

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

/// See the module.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: NonNull<c_void>,
    bytes: usize,
}

#[expect(unsafe_code, reason = "the pointer is not tied to a thread")]
// SAFETY: the mapping belongs to the process. `write` only copies bytes into it, which nothing here reads.
unsafe impl Send for Mapped {}
#[expect(unsafe_code, reason = "the pointer is not tied to a thread")]
// SAFETY: see above. Two writes to one place would leave either's bytes, or a mixture; which, is a matter of the readers in
// other processes.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `bytes` of `file` from `offset`, a multiple of the page size, for writing. With `populate` there is no page fault
    /// later, and pages that the file does not have yet are this process's.
    ///
    /// # Errors
    /// Those of mmap(2).
    #[expect(unsafe_code, reason = "mmap(2) has no safe form")]
    pub(crate) fn new(
        file: impl AsFd,
        offset: u64,
        bytes: usize,
        populate: bool,
    ) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut flags = MapFlags::SHARED;
        flags.set(MapFlags::POPULATE, populate);
        // SAFETY: the kernel chooses a free address, so no other memory is concerned.
        let start = unsafe { mmap(ptr::null_mut(), bytes, rights, flags, file, offset) }?;
        let start = NonNull::new(start).ok_or(Errno::INVAL)?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `bytes` to the offset `at` in the part. Returns whether they fit; otherwise nothing is written.
    #[must_use]
    #[expect(
        unsafe_code,
        reason = "other processes use the memory, so there is no reference to it"
    )]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let end = at.checked_add(bytes.len());
        let fits = end.is_some_and(|end| end <= self.bytes);
        if fits {
            // SAFETY: the destination lies in the mapping, as checked above, which lives as long as `self`. It does not
            // overlap memory that Rust knows. Its pages are there (see the module).
            unsafe {
                let to = self.start.as_ptr().cast::<u8>().add(at);
                ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        fits
    }
}

impl Drop for Mapped {
    #[expect(unsafe_code, reason = "munmap(2) has no safe form")]
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no pointer to it is left.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        if let Err(error) = unmapped {
            tracing::debug!(%error, "a part of a file stays mapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_in_the_file_and_nothing_beside_it() {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 3 * 4096).unwrap();
        let mapped = Mapped::new(&file, 4096, 4096, true).unwrap();
        assert_eq!(mapped.bytes(), 4096);
        assert!(mapped.write(4094, b"ab"));
        assert!(mapped.write(4096, b""));
        for (at, bytes) in [(4095, &b"cd"[..]), (4097, b""), (usize::MAX, b"e")] {
            assert!(!mapped.write(at, bytes));
        }
        drop(mapped);
        let mut found = [1; 4];
        file.read_exact_at(&mut found, 4096 + 4093).unwrap();
        assert_eq!(found, *b"\0ab\0");
        assert_eq!(Mapped::new(&file, 1, 4096, true).unwrap_err(), Errno::INVAL);
    }
}
