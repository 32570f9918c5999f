//! Many small files of one directory, read one after another by one blocking call.
//!
//! A call and a wake-up for each would cost more than the files. Each file is found, checked, opened
//! and read by the same rules as a single one (see [`super::read`]); what does not pass is left out.
//! Two batches at most are being read for one request, and none before somebody takes them. Who asks for
//! a file of it by itself meanwhile takes it out, so that it is read once.

use super::Shared;
use super::read::{ACTION, Reading};
use crate::origin::ByteRange;
use bytes::Bytes;
use copperfs_overlay::{BundleItem, BundleRequest, BundleStream, ContentHash, Failure, ItemPath};
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
    let planned = Planned::new(&shared, &request);
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
        .inspect(move |_item| planned.hold())
        .boxed()
}

/// The files of a request that are not read yet stand in [`Shared::bundled`]; those that are left when
/// the request ends are taken out.
struct Planned {
    shared: Arc<Shared>,
    paths: Vec<ItemPath>,
}

impl Planned {
    fn new(shared: &Arc<Shared>, request: &BundleRequest) -> Self {
        let names = request.files.iter().map(|file| &file.name);
        let paths: Vec<ItemPath> = names
            .filter_map(|name| request.directory.join(name).ok())
            .collect();
        for path in &paths {
            shared.bundled.insert(path.clone());
        }
        let shared = Arc::clone(shared);
        Self { shared, paths }
    }

    /// Is part of the stream for as long as that is.
    fn hold(&self) {}
}

impl Drop for Planned {
    fn drop(&mut self) {
        for path in &self.paths {
            self.shared.bundled.remove(path);
        }
    }
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
        let path = request.directory.join(&request.files[index].name);
        if path.is_ok_and(|path| shared.bundled.remove(&path).is_none()) {
            continue;
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
