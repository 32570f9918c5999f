//! The memory that a client shares: a memfd of fixed size, into which the daemon copies.
//!
//! It is mapped: write(2) would cost half as much again, page by page. Nothing that a client does with it can end the
//! daemon with SIGBUS. Its size is sealed, all of its pages are there, and after [`SharedMemory::new`] the seal
//! `F_SEAL_FUTURE_WRITE` forbids to take one away.

use crate::mapped::Mapped;
use bytes::Bytes;
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The maximum number of bytes that one client shares.
pub(super) const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// The filesystem of memfds with pages of the usual size.
const TMPFS: u64 = 0x0102_1994;

#[derive(Debug)]
pub(super) struct SharedMemory(Mapped);

impl SharedMemory {
    /// Maps `file`. Its size must be sealed, and its pages must be there: they are then charged to the client, and not to
    /// the daemon.
    ///
    /// # Errors
    /// `EINVAL` if it is no such memory, `E2BIG` if it is too large, `EACCES` or `EPERM` if it cannot be written or sealed.
    pub(super) fn new(file: &OwnedFd) -> Result<Self, Errno> {
        let sealed = SealFlags::SHRINK | SealFlags::GROW;
        // Only memory files have seals.
        if !fcntl_get_seals(file)?.contains(sealed) {
            return Err(Errno::INVAL);
        }
        // Huge pages may be missing although they were reserved.
        if u64::try_from(fstatfs(file)?.f_type) != Ok(TMPFS) {
            return Err(Errno::INVAL);
        }
        let bytes = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        let in_bounds = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes <= MEMORY_BYTES_MAX);
        let memory = match in_bounds {
            None => return Err(Errno::TOOBIG),
            Some(0) => return Err(Errno::INVAL),
            Some(bytes) => Self(Mapped::new(file, 0, bytes, false)?),
        };
        // Before this the client may punch holes.
        fcntl_add_seals(file, SealFlags::FUTURE_WRITE)?;
        let there = u64::try_from(fstat(file)?.st_blocks).unwrap_or(0);
        match there.saturating_mul(512) >= bytes {
            true => Ok(memory),
            false => Err(Errno::INVAL),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes() as u64
    }

    /// Copies `pieces` one after the other to `at`. Returns whether the memory has room for them.
    #[must_use]
    pub(super) fn write(&self, at: u64, pieces: &[Bytes]) -> bool {
        let total: usize = pieces.iter().map(Bytes::len).sum();
        let Some(mut at) = usize::try_from(at).ok().filter(|at| {
            let end = at.checked_add(total);
            end.is_some_and(|end| end <= self.0.bytes())
        }) else {
            return false;
        };
        pieces.iter().all(|piece| {
            let written = self.0.write(at, piece);
            at += piece.len();
            written
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, fallocate, memfd_create};
    use std::os::fd::AsRawFd;

    const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

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
        let taken = |file: OwnedFd| SharedMemory::new(&file).map(|memory| memory.bytes());
        assert_eq!(taken(memory(8192, SEALED)), Ok(8192));
        assert_eq!(taken(memory(8192, SealFlags::GROW)), Err(Errno::INVAL));
        assert_eq!(taken(memory(0, SEALED)), Err(Errno::INVAL));
        assert_eq!(
            taken(memory(MEMORY_BYTES_MAX + 1, SEALED)),
            Err(Errno::TOOBIG)
        );
        // Sealed against what the daemon does to it.
        assert_eq!(
            taken(memory(8192, SEALED | SealFlags::WRITE)),
            Err(Errno::PERM)
        );
        assert_eq!(
            taken(memory(8192, SEALED | SealFlags::SEAL)),
            Err(Errno::PERM)
        );
        let file = tempfile::tempfile().unwrap();
        assert_eq!(taken(file.into()), Err(Errno::INVAL));
        let file = memory(8192, SEALED);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap();
        assert_eq!(taken(read_only), Err(Errno::ACCESS));
        let sparse = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&sparse, 1 << 20).unwrap();
        fcntl_add_seals(&sparse, SEALED).unwrap();
        assert_eq!(taken(sparse), Err(Errno::INVAL), "its pages would be ours");
        // A machine without huge pages refuses to make one.
        if let Ok(huge) = memfd_create("test", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB) {
            rustix::fs::ftruncate(&huge, 2 << 20).unwrap();
            fcntl_add_seals(&huge, SEALED).unwrap();
            assert_eq!(taken(huge), Err(Errno::INVAL));
        }
    }

    /// A page that is taken away would be the daemon's when it writes, or end it.
    #[test]
    fn no_page_can_be_taken_away_later() {
        let file = memory(1 << 20, SEALED);
        let shared = SharedMemory::new(&file).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, hole, 0, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM));
        assert!(shared.write(0, &[Bytes::from_static(b"still here")]));
    }

    #[test]
    fn pieces_are_written_one_after_the_other() {
        let file = memory(1 << 20, SEALED);
        let shared = SharedMemory::new(&file).unwrap();
        let pieces: Vec<Bytes> = (0..200_u8)
            .map(|n| vec![n; usize::from(n)].into())
            .collect();
        assert!(shared.write(5, &pieces));
        let due = pieces.concat();
        let mut got = vec![0; due.len()];
        rustix::io::pread(&file, &mut got[..], 5).unwrap();
        assert_eq!(got, due);
        let two = [Bytes::from_static(b"ab")];
        for (at, fits) in [
            ((1 << 20) - 2, true),
            ((1 << 20) - 1, false),
            (u64::MAX, false),
        ] {
            assert_eq!(shared.write(at, &two), fits, "{at}");
        }
    }
}
