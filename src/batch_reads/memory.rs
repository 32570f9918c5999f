//! The memory that a client shares: a memfd of fixed size, into which the daemon writes.
//!
//! It is written with pwrite(2) and never mapped, so nothing that a client does with it can harm the daemon.

use bytes::Bytes;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::{Errno, pwritev};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// The maximum number of bytes that one client shares.
pub(super) const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of slices in one write.
const SLICES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct SharedMemory {
    file: OwnedFd,
    bytes: u64,
}

impl SharedMemory {
    /// Checks `file`. Its size must be sealed, and its pages must be there: they are then charged to the client, and
    /// not to the daemon.
    ///
    /// # Errors
    /// `EINVAL` if it is no such memory, `E2BIG` if it is too large.
    pub(super) fn new(file: OwnedFd) -> Result<Self, Errno> {
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        // Only memory files have seals.
        if !fcntl_get_seals(&file)?.contains(sealed) {
            return Err(Errno::INVAL);
        }
        let status = fstat(&file)?;
        let bytes = u64::try_from(status.st_size).unwrap_or(0);
        let there = u64::try_from(status.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        match bytes {
            0 => Err(Errno::INVAL),
            bytes if bytes > MEMORY_BYTES_MAX => Err(Errno::TOOBIG),
            bytes if there < bytes => Err(Errno::INVAL),
            bytes => Ok(Self { file, bytes }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `pieces` one after the other from `at` on. Takes as long as a copy.
    ///
    /// # Errors
    /// The client has opened the memory for reading only, or has sealed it against writes.
    pub(super) fn write(&self, at: u64, pieces: &[Bytes]) -> Result<(), Errno> {
        let mut at = at;
        for some in pieces.chunks(SLICES_MAX) {
            let mut slices: Vec<IoSlice<'_>> =
                some.iter().map(|piece| IoSlice::new(piece)).collect();
            let mut left = &mut slices[..];
            while left.iter().any(|slice| !slice.is_empty()) {
                let written = match pwritev(&self.file, left, at) {
                    Ok(0) => return Err(Errno::IO),
                    Ok(written) => written,
                    Err(Errno::INTR) => continue,
                    Err(errno) => return Err(errno),
                };
                at += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fcntl_add_seals, memfd_create};

    /// Memory of `bytes` with these seals, whose pages are there.
    pub(in crate::batch_reads) fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("test", flags).unwrap();
        if bytes > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        }
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn only_sealed_memory_of_bounded_size_is_taken() {
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        let taken = |file| SharedMemory::new(file).map(|memory| memory.bytes());
        assert_eq!(taken(memory(8192, sealed)), Ok(8192));
        assert_eq!(taken(memory(8192, SealFlags::GROW)), Err(Errno::INVAL));
        assert_eq!(taken(memory(0, sealed)), Err(Errno::INVAL));
        assert_eq!(
            taken(memory(MEMORY_BYTES_MAX + 1, sealed)),
            Err(Errno::TOOBIG)
        );
        let file = tempfile::tempfile().unwrap();
        assert_eq!(taken(file.into()), Err(Errno::INVAL));
        let sparse = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&sparse, 1 << 20).unwrap();
        fcntl_add_seals(&sparse, sealed).unwrap();
        assert_eq!(taken(sparse), Err(Errno::INVAL), "its pages would be ours");
    }

    #[test]
    fn pieces_are_written_one_after_the_other() {
        let file = memory(1 << 20, SealFlags::SHRINK | SealFlags::GROW);
        let shared = SharedMemory::new(file.try_clone().unwrap()).unwrap();
        let pieces: Vec<Bytes> = (0..200_u8)
            .map(|n| vec![n; usize::from(n)].into())
            .collect();
        shared.write(5, &pieces).unwrap();
        let due = pieces.concat();
        let mut got = vec![0; due.len()];
        rustix::io::pread(&file, &mut got[..], 5).unwrap();
        assert_eq!(got, due);
        assert_eq!(
            shared.write((1 << 20) - 1, &[Bytes::from_static(b"ab")]),
            Err(Errno::PERM),
            "it does not grow"
        );
    }

    #[test]
    fn memory_that_cannot_be_written_is_reported() {
        let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        let shared = SharedMemory::new(memory(8192, sealed)).unwrap();
        let piece = Bytes::from_static(b"a");
        assert_eq!(shared.write(0, &[piece]), Err(Errno::PERM));
    }
}
