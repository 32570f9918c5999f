//! Bundles from storage that knows no better way than to read file by file.

use super::{ByteRange, ByteStream, Origin};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{
    BundleItem, BundleRequest, BundleStream, ContentHash, Failure, FailureKind,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;

/// Files read at the same time for one request.
const AT_ONCE: usize = 8;

type Opening = BoxFuture<'static, Result<ByteStream, Failure>>;

/// Each file by itself, a few at a time, in the order of the request.
pub(super) fn one_by_one<O: Origin + ?Sized>(origin: &O, request: BundleRequest) -> BundleStream {
    let BundleRequest { directory, files } = request;
    let mut opens: Vec<(usize, u64, Opening)> = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        if let Ok(path) = directory.join(&file.name) {
            let range = ByteRange {
                path,
                version: file.version,
                size: file.size,
                offset: 0,
                length: file.size,
            };
            opens.push((index, file.size, origin.open(range)));
        }
    }
    stream::iter(opens)
        .map(|(index, size, open)| item(index, open, size))
        .buffered(AT_ONCE)
        .filter_map(std::future::ready)
        .map(Ok)
        .boxed()
}

/// File `index` of a bundle; `None` when it cannot be read: it is left out.
pub(super) async fn item(index: usize, open: Opening, size: u64) -> Option<BundleItem> {
    match whole(open, size).await {
        Ok(bytes) => Some(BundleItem {
            index,
            hash: ContentHash(*blake3::hash(&bytes).as_bytes()),
            bytes,
        }),
        Err(failure) => {
            tracing::debug!(%failure, "left out of a bundle");
            None
        }
    }
}

/// All of a small file; anything but `size` bytes is a fault.
async fn whole(open: Opening, size: u64) -> Result<Bytes, Failure> {
    let mut pieces = open.await?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() as u64 > size {
            break;
        }
    }
    if bytes.len() as u64 != size {
        return Err(Failure::new(FailureKind::Io, "another length than wanted"));
    }
    Ok(bytes.freeze())
}
