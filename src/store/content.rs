//! Content files: each is written once, and every read is verified.

use super::directory::Directory;
use super::record::{BlockLocation, BlockOrigin, ContentId, ContentKind};
use crate::num::to_usize;
use crate::pread::read_exactly;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstat};
use rustix::io::{Errno, pwritev};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

const ATTRIBUTE: &str = "user.copperfs";
/// The maximum size of the attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64;

/// The bytes of a block. Returns `None` if they are missing, of another length, or damaged.
///
/// # Errors
/// Those of the disk.
pub(super) fn read(directory: &Directory, block: &BlockLocation) -> Result<Option<Bytes>, Errno> {
    let file = match directory.open_file(&block.content.path()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if block.content.kind == ContentKind::Block && size_of(&file)? != block.len {
        return Ok(None);
    }
    let bytes = read_exactly(&file, block.offset, to_usize(block.len))?;
    let intact = bytes.filter(|bytes| blake3::hash(bytes).as_bytes() == &block.hash.0);
    Ok(intact.map(Bytes::from))
}

/// Writes a block in pieces, and renames its file into place.
///
/// # Errors
/// Those of the disk; no file is left over.
pub(super) fn write(
    directory: &Directory,
    hash: ContentHash,
    pieces: &[Bytes],
    origin: &BlockOrigin,
) -> Result<(), Errno> {
    let (file, temporary) = directory.create()?;
    let written = write_pieces(&file, 0, pieces).and_then(|()| {
        label(&file, origin);
        directory.publish(&temporary, &ContentId::block(hash).path())
    });
    if written.is_err() {
        directory.remove(&temporary);
    }
    written
}

/// Writes all of `pieces` from `offset` on.
pub(super) fn write_pieces(file: &OwnedFd, offset: u64, pieces: &[Bytes]) -> Result<(), Errno> {
    /// The maximum number of pieces in one call (`IOV_MAX`).
    const PIECES_MAX: usize = 1024;
    let mut at = offset;
    for group in pieces.chunks(PIECES_MAX) {
        let mut slices: Vec<IoSlice<'_>> = group.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        // Empty pieces at the end would repeat the loop for ever.
        while rest.iter().any(|slice| !slice.is_empty()) {
            match pwritev(file, rest, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(written) => {
                    at += written as u64;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

/// Stores the origin with the file, if the filesystem supports such attributes.
fn label(file: &OwnedFd, origin: &BlockOrigin) {
    let mut bytes = [0; ATTRIBUTE_BYTES_MAX];
    if let Ok(label) = postcard::to_slice(origin, &mut bytes) {
        fsetxattr(file, ATTRIBUTE, label, XattrFlags::empty()).ok();
    }
}

/// The size of an open file.
pub(super) fn size_of(file: &OwnedFd) -> Result<u64, Errno> {
    Ok(u64::try_from(fstat(file)?.st_size).unwrap_or_default())
}

/// The origin that is stored with a content file.
pub(super) fn origin_of(file: &OwnedFd) -> Option<BlockOrigin> {
    let mut bytes = [0; ATTRIBUTE_BYTES_MAX];
    let len = fgetxattr(file, ATTRIBUTE, &mut bytes).ok()?;
    postcard::from_bytes(bytes.get(..len)?).ok()
}
