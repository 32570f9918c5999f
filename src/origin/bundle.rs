//! Bundles from storage that knows no better way than to read file by file.

use super::{ByteRange, ByteStream, Origin, Turn, TurnStream, Turns};
use bytes::{Bytes, BytesMut};
use copperfs_overlay::{BundleItem, BundleRequest, ContentHash, Failure, FailureKind};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use std::sync::Arc;

/// Files read at the same time for one request.
const AT_ONCE: usize = 8;

type Opening = BoxFuture<'static, Result<ByteStream, Failure>>;

/// Reads the files separately, a few at a time.
pub(super) fn one_by_one<O: Origin + ?Sized>(
    origin: &O,
    request: BundleRequest,
    turns: &Arc<dyn Turns>,
) -> TurnStream {
    let mut opens: Vec<(usize, u64, Opening)> = Vec::new();
    for (index, range) in ranges(request) {
        opens.push((index, range.size, origin.open(range)));
    }
    let turns = Arc::clone(turns);
    stream::iter(opens)
        .map(move |(index, size, open)| {
            let turns = Arc::clone(&turns);
            async move {
                let turn = turns.begin(index)?;
                item(index, open, size, turn).await
            }
        })
        .buffer_unordered(AT_ONCE)
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

/// Reads file `index` of a bundle in `turn`. Returns `None` if it cannot be read; the bundle leaves it out.
pub(super) async fn item(
    index: usize,
    open: Opening,
    size: u64,
    turn: Turn,
) -> Option<(BundleItem, Turn)> {
    match whole(open, size).await {
        Ok(bytes) => Some((item_of(index, bytes), turn)),
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
