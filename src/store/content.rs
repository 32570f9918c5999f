//! Content files: written once, checked at every read.

use super::catalog::Place;
use super::directory::Directory;
use super::unit::{Kind, Unit};
use crate::num::to_usize;
use bytes::Bytes;
use copperfs_overlay::ContentHash;
use rustix::buffer::spare_capacity;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstat};
use rustix::io::{Errno, pread, pwritev};
use serde::{Deserialize, Serialize};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// Whose bytes a content file was first written for: kept beside it, so that a lost index can be made
/// again from the files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) file: [u8; 16],
    pub(super) moment: u64,
    pub(super) index: u64,
}

const ATTRIBUTE: &str = "user.copperfs";
/// More of the attribute is never read.
const ATTRIBUTE_BYTES_MAX: usize = 64;

/// The bytes at `place`, if they are what they should be; `None` if they are not there, too few, too
/// many, or others.
///
/// # Errors
/// The disk's.
pub(super) fn read(directory: &Directory, place: &Place) -> Result<Option<Bytes>, Errno> {
    let file = match directory.open_content(&place.unit) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    if place.unit.kind == Kind::Block {
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if size != place.len {
            return Ok(None);
        }
    }
    let Some(bytes) = read_exactly(&file, place.offset, place.len)? else {
        return Ok(None);
    };
    let right = blake3::hash(&bytes).as_bytes() == &place.hash.0;
    Ok(right.then(|| bytes.into()))
}

pub(super) fn read_exactly(
    file: &OwnedFd,
    offset: u64,
    len: u64,
) -> Result<Option<Vec<u8>>, Errno> {
    let len = to_usize(len);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = offset + bytes.len() as u64;
        match pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(len);
    Ok(Some(bytes))
}

/// Writes a block in pieces and gives it its place.
///
/// # Errors
/// The disk's; nothing is left behind.
pub(super) fn write(
    directory: &Directory,
    hash: ContentHash,
    pieces: &[Bytes],
    origin: &Origin,
) -> Result<(), Errno> {
    let (file, temporary) = directory.create()?;
    let written = write_pieces(&file, 0, pieces).and_then(|()| {
        label(&file, origin);
        directory.publish(&temporary, &Unit::block(hash))
    });
    if written.is_err() {
        directory.discard(&temporary);
    }
    written
}

/// Writes all of `pieces` from `offset` on.
pub(super) fn write_pieces(file: &OwnedFd, offset: u64, pieces: &[Bytes]) -> Result<(), Errno> {
    /// Most pieces in one call (`IOV_MAX`).
    const AT_ONCE: usize = 1024;
    let mut at = offset;
    for group in pieces.chunks(AT_ONCE) {
        let mut slices: Vec<IoSlice<'_>> = group.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        // Empty pieces at the end would be written for ever.
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

/// Notes whose bytes these are. Filesystems without such attributes do without.
fn label(file: &OwnedFd, origin: &Origin) {
    let mut bytes = [0; ATTRIBUTE_BYTES_MAX];
    if let Ok(label) = postcard::to_slice(origin, &mut bytes) {
        fsetxattr(file, ATTRIBUTE, label, XattrFlags::empty()).ok();
    }
}

/// Size and label of a content file.
pub(super) fn inspect(file: &OwnedFd) -> Result<(u64, Option<Origin>), Errno> {
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or_default();
    let mut bytes = [0; ATTRIBUTE_BYTES_MAX];
    let origin = fgetxattr(file, ATTRIBUTE, &mut bytes)
        .ok()
        .and_then(|len| postcard::from_bytes(bytes.get(..len)?).ok());
    Ok((size, origin))
}
