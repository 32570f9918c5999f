//! Many small files of one directory, read one after another by one blocking call.
//!
//! A call and a wake-up for each would cost more than the files. Each file is found, checked, opened
//! and read by the same rules as a single one (see [`super::read`]); what does not pass is left out.
//! Two batches at most are being read for one request, and none before somebody takes them.

use super::Shared;
use super::read::{ACTION, Reading};
use crate::origin::ByteRange;
use bytes::Bytes;
use copperfs_overlay::{BundleItem, BundleRequest, BundleStream, ContentHash, Failure};
use futures_util::stream::{self, StreamExt};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The first batch is small enough to be on its way soon …
const FIRST_BATCH_BYTES: u64 = 128 << 10;
/// … and the others large enough to be worth a thread's while.
const BATCH_BYTES: u64 = 512 << 10;
/// Files of a batch: a slow file system must not keep the first of them back for long.
const BATCH_FILES: usize = 64;
/// How long a batch may take: what it has not read by then is left out.
const BATCH_TIME: Duration = Duration::from_millis(200);
/// Batches of one request that are read at the same time.
const BATCHES_AT_ONCE: usize = 2;

/// Answers [`crate::origin::Origin::bundle`].
pub(super) fn stream(shared: Arc<Shared>, request: BundleRequest) -> BundleStream {
    let batches = batches(&request);
    let request = Arc::new(request);
    stream::iter(batches)
        .map(move |batch| {
            let (shared, request) = (Arc::clone(&shared), Arc::clone(&request));
            async move {
                let directory = request.directory.clone();
                let reading = shared.run("read files of", directory, move |shared, _| {
                    Ok(read_batch(shared, &request, batch))
                });
                // A batch that hangs is left out: who needs a file of it asks for that one.
                reading.await.unwrap_or_default()
            }
        })
        .buffered(BATCHES_AT_ONCE)
        .flat_map(|items| stream::iter(items.into_iter().map(Ok)))
        .boxed()
}

fn batches(request: &BundleRequest) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes, mut limit) = (0, 0, FIRST_BATCH_BYTES);
    for (index, file) in request.files.iter().enumerate() {
        bytes += file.size;
        if bytes >= limit || index + 1 - start >= BATCH_FILES {
            batches.push(start..index + 1);
            (start, bytes, limit) = (index + 1, 0, BATCH_BYTES);
        }
    }
    if start < request.files.len() {
        batches.push(start..request.files.len());
    }
    batches
}

fn read_batch(shared: &Shared, request: &BundleRequest, batch: Range<usize>) -> Vec<BundleItem> {
    let mut items = Vec::with_capacity(batch.len());
    let begun = Instant::now();
    for index in batch {
        if begun.elapsed() > BATCH_TIME {
            break;
        }
        match read_file(shared, request, index) {
            Ok(bytes) => items.push(BundleItem {
                index,
                hash: ContentHash(*blake3::hash(&bytes).as_bytes()),
                bytes,
            }),
            Err(failure) => tracing::debug!(%failure, "left out of a bundle"),
        }
    }
    items
}

fn read_file(shared: &Shared, request: &BundleRequest, index: usize) -> Result<Bytes, Failure> {
    let file = &request.files[index];
    let unnamed = |_invalid| Failure::not_found(&request.directory);
    let range = ByteRange {
        path: request.directory.join(&file.name).map_err(unnamed)?,
        version: file.version,
        size: file.size,
        offset: 0,
        length: file.size,
    };
    if shared.hangs(ACTION, &range.path) {
        return Err(shared.too_slow(ACTION, &range.path));
    }
    Reading::begin(shared, range)?.piece(shared, file.size)
}
