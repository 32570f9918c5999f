//! Reading a part of a file that is open as a descriptor.

use rustix::buffer::spare_capacity;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, pread};

/// `len` bytes from `offset` of `file`. Returns `None` if the file ends before.
///
/// # Errors
/// Those of `pread`, except for interruptions.
pub(crate) fn read_exactly(
    file: &OwnedFd,
    offset: u64,
    len: usize,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = offset.saturating_add(bytes.len() as u64);
        match pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    // The allocation may be larger than requested.
    bytes.truncate(len);
    Ok(Some(bytes))
}
