//! Many small files of one directory, read one after another by one blocking call.
//!
//! A call and a wake-up for each file would cost more than the files. Each file is found, checked, opened
//! and read by the same rules as a single one (see [`super::read`]); a file that fails a check is left out.
//! At most two batches of a request are read at a time, and none before the stream is polled. Each file is
//! returned as soon as it is read, so that a hanging file does not delay those before it. Each file is
//! claimed first: a file that a reader has requested separately is left to that request.

use super::Shared;
use super::read::{ACTION, Reading};
use crate::origin::bundle::{item_of, ranges};
use crate::origin::{ByteRange, ClaimFile, ClaimedStream, FileClaim};
use bytes::Bytes;
use copperfs_overlay::{BundleItem, BundleRequest, Failure, ItemPath};
use futures_util::{FutureExt, StreamExt, stream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::Instant;

/// The first batch is small enough to be returned soon …
const FIRST_BATCH_BYTES: u64 = 128 << 10;
/// … and the others are large enough to be worth a thread.
const BATCH_BYTES: u64 = 512 << 10;
/// The maximum number of files of a batch. It limits the delay of the last file on a slow filesystem.
const BATCH_FILES: usize = 64;
/// How long a batch may take. Files that it has not read by then are left out.
const BATCH_TIMEOUT: Duration = Duration::from_millis(200);
/// Batches of one request that are read at the same time.
const CONCURRENCY: usize = 2;

type File = (usize, ByteRange);
type ReadFile = (BundleItem, FileClaim);

/// Answers [`crate::origin::Origin::bundle`].
pub(super) fn stream(
    shared: Arc<Shared>,
    request: BundleRequest,
    claim: ClaimFile,
) -> ClaimedStream {
    let directory = request.directory.clone();
    let batches = batches(ranges(request));
    stream::iter(batches)
        .map(move |batch| {
            let claim = Arc::clone(&claim);
            // The channel has room for all files of a batch, so its thread never waits.
            let (sender, items) = channel(BATCH_FILES);
            let shared = Arc::clone(&shared);
            let work = move |shared: &Arc<Shared>, _: &ItemPath| {
                read_batch(shared, &claim, batch, &sender);
                Ok(())
            };
            let reading = shared.run_for(BATCH_TIMEOUT, "read files of", directory.clone(), work);
            // `None` once the batch has ended or hangs. A hanging file and the files after it are left out.
            let reading = Some(reading.boxed());
            stream::unfold((reading, items), |(mut reading, mut items)| async move {
                if let Some(running) = &mut reading {
                    tokio::select! {
                        // Files that were read before the batch ended or began to hang are returned.
                        biased;
                        item = items.recv() => return Some((item?, (reading, items))),
                        _ended = running => {
                            reading = None;
                            // Discard the files that a hanging thread reads later.
                            items.close();
                        }
                    }
                }
                Some((items.recv().await?, (reading, items)))
            })
            .boxed()
        })
        .flatten_unordered(CONCURRENCY)
        .boxed()
}

fn batches(files: impl Iterator<Item = File>) -> Vec<Vec<File>> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes, mut limit) = (Vec::new(), 0, FIRST_BATCH_BYTES);
    for file in files {
        bytes += file.1.size;
        batch.push(file);
        if bytes >= limit || batch.len() >= BATCH_FILES {
            batches.push(std::mem::take(&mut batch));
            (bytes, limit) = (0, BATCH_BYTES);
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

fn read_batch(shared: &Arc<Shared>, claim: &ClaimFile, batch: Vec<File>, items: &Sender<ReadFile>) {
    let begun = Instant::now();
    for (index, file) in batch {
        // After the timeout, or without a receiver, the bytes would be discarded.
        if begun.elapsed() > BATCH_TIMEOUT || items.is_closed() {
            return;
        }
        let Some(claim) = claim(index) else {
            continue;
        };
        match read_file(shared, file) {
            Ok(bytes) => drop(items.try_send((item_of(index, bytes), claim))),
            Err(failure) => tracing::debug!(%failure, "left out of a bundle"),
        }
    }
}

fn read_file(shared: &Arc<Shared>, file: ByteRange) -> Result<Bytes, Failure> {
    if shared.hanging.blocks(ACTION, &file.path) {
        return Err(shared.timed_out(ACTION, &file.path));
    }
    let size = file.size;
    Reading::begin(shared, file)?.verified(0, size)
}
