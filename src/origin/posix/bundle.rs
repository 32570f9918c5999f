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
use copperfs_overlay::{
    BundleFile, BundleItem, BundleRequest, BundleStream, ContentHash, Failure, ItemPath,
};
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
    let planned = Arc::new(Planned::new(&shared, &request));
    stream::iter(batches)
        .map(move |batch| {
            let (shared, planned) = (Arc::clone(&shared), Arc::clone(&planned));
            let directory = request.directory.clone();
            async move {
                let work = move |shared: &Arc<Shared>, _: &ItemPath| {
                    Ok(read_batch(shared, &planned, batch))
                };
                let reading = shared.run_for(BATCH_TIME, "read files of", directory, work);
                // A batch that hangs is left out: who needs a file of it asks for that one.
                reading.await.unwrap_or_default()
            }
        })
        .buffered(BATCHES_AT_ONCE)
        .flat_map(|items| stream::iter(items.into_iter().map(Ok)))
        .boxed()
}

/// The files of a request, by index. Those that are not read yet stand in [`Shared::bundled`]; those that
/// are left when the request ends are taken out.
struct Planned {
    shared: Arc<Shared>,
    /// `None`: not a possible name.
    files: Vec<Option<ByteRange>>,
}

impl Planned {
    fn new(shared: &Arc<Shared>, request: &BundleRequest) -> Self {
        let range = |file: &BundleFile| {
            Some(ByteRange {
                path: request.directory.join(&file.name).ok()?,
                version: file.version,
                size: file.size,
                offset: 0,
                length: file.size,
            })
        };
        let files: Vec<_> = request.files.iter().map(range).collect();
        for file in files.iter().flatten() {
            shared.bundled.insert(file.path.clone());
        }
        let shared = Arc::clone(shared);
        Self { shared, files }
    }
}

impl Drop for Planned {
    fn drop(&mut self) {
        for file in self.files.iter().flatten() {
            self.shared.bundled.remove(&file.path);
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

fn read_batch(shared: &Shared, planned: &Planned, batch: Range<usize>) -> Vec<BundleItem> {
    let mut items = Vec::with_capacity(batch.len());
    let begun = Instant::now();
    for index in batch {
        if begun.elapsed() > BATCH_TIME {
            break;
        }
        let Some(file) = &planned.files[index] else {
            continue;
        };
        if shared.bundled.remove(&file.path).is_none() {
            continue;
        }
        match read_file(shared, file.clone()) {
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

fn read_file(shared: &Shared, file: ByteRange) -> Result<Bytes, Failure> {
    if shared.hanging.holds(ACTION, &file.path) {
        return Err(shared.too_slow(ACTION, &file.path));
    }
    let size = file.size;
    Reading::begin(shared, file)?.piece(shared, size)
}
