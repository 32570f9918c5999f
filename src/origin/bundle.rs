//! The files of a bundle.

use super::{ByteRange, with_hash};
use bytes::Bytes;
use copperfs_overlay::{BundleItem, BundleRequest};

/// The files to read for `request`, each with its index; invalid names are left out.
pub(super) fn ranges(request: BundleRequest) -> impl Iterator<Item = (usize, ByteRange)> {
    let BundleRequest { directory, files } = request;
    files
        .into_iter()
        .enumerate()
        .filter_map(move |(index, file)| {
            let range = ByteRange {
                path: directory.join(&file.name).ok()?,
                version: file.version,
                size: file.size,
                offset: 0,
                length: file.size,
            };
            Some((index, range))
        })
}

pub(super) fn item_of(index: usize, bytes: Bytes) -> BundleItem {
    let (bytes, hash) = with_hash(bytes);
    BundleItem { index, bytes, hash }
}
