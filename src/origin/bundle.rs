//! Bundles from storage that can only read file by file.

use super::{ByteRange, ByteStream, ClaimFile, ClaimedStream, FileClaim, Origin};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{BundleItem, BundleRequest, ContentHash, Failure, FailureKind};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use std::sync::Arc;

/// Files read at the same time for one request.
const CONCURRENCY: usize = 8;

type Opening = BoxFuture<'static, Result<ByteStream, Failure>>;

/// Reads the files separately, a few at a time.
pub(super) fn one_by_one<O: Origin + ?Sized>(
    origin: &O,
    request: BundleRequest,
    claim: ClaimFile,
) -> ClaimedStream {
    // Collected, because the stream must not borrow the origin.
    let opens: Vec<(usize, u64, Opening)> = ranges(request)
        .map(|(index, range)| (index, range.size, origin.open(range)))
        .collect();
    stream::iter(opens)
        .map(move |(index, size, open)| {
            let claim = Arc::clone(&claim);
            async move { item(index, open, size, claim(index)?).await }
        })
        .buffer_unordered(CONCURRENCY)
        .filter_map(std::future::ready)
        .boxed()
}

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

/// Reads file `index` of a bundle. Returns `None` if it cannot be read; the bundle leaves it out.
pub(super) async fn item(
    index: usize,
    open: Opening,
    size: u64,
    claim: FileClaim,
) -> Option<(BundleItem, FileClaim)> {
    match whole(open, size).await {
        Ok(bytes) => Some((item_of(index, bytes), claim)),
        Err(failure) => {
            tracing::debug!(%failure, "left out of a bundle");
            None
        }
    }
}

pub(super) fn item_of(index: usize, bytes: Bytes) -> BundleItem {
    BundleItem {
        index,
        hash: ContentHash(*blake3::hash(&bytes).as_bytes()),
        bytes,
    }
}

/// Reads a small file. Any other number of bytes than `size` is a fault.
async fn whole(open: Opening, size: u64) -> Result<Bytes, Failure> {
    let mut pieces = open.await?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
        // Checked in each round, so that an endless stream is not collected in memory.
        if bytes.len() as u64 > size {
            break;
        }
    }
    if bytes.len() as u64 != size {
        return Err(Failure::new(FailureKind::Io, "another length than wanted"));
    }
    Ok(bytes.freeze())
}
