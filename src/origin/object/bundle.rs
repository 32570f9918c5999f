//! Many small objects: as many concurrent GETs as the store can handle.
//!
//! A bundle's files are prefetched for their readers, and claimed first: a file that a reader requests
//! earlier is fetched for the reader, and left out of the bundle.

use super::Shared;
use super::gate::Priority;
use crate::num::to_usize;
use crate::origin::bundle::{item, ranges};
use crate::origin::{ByteRange, ClaimFile, ClaimedStream, FileClaim};
use copperfs_overlay::{BundleItem, BundleRequest};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;

/// Bytes of one bundle that are requested at the same time.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// Files of one bundle that are requested at the same time, at most.
const FILES_AT_ONCE: u64 = 128;

impl Shared {
    /// The files of `request`, in the order in which their reads complete.
    pub(super) fn bundle(
        self: Arc<Self>,
        request: BundleRequest,
        claim: ClaimFile,
    ) -> ClaimedStream {
        let largest = request.files.iter().map(|file| file.size).max();
        let at_once = (BYTES_AT_ONCE / largest.unwrap_or(0).max(1)).clamp(8, FILES_AT_ONCE);
        let files: Vec<_> = ranges(request).collect();
        stream::iter(files)
            .map(move |(index, range)| Arc::clone(&self).fetch(index, range, Arc::clone(&claim)))
            .buffer_unordered(to_usize(at_once))
            .filter_map(std::future::ready)
            .boxed()
    }

    async fn fetch(
        self: Arc<Self>,
        index: usize,
        range: ByteRange,
        claim: ClaimFile,
    ) -> Option<(BundleItem, FileClaim)> {
        let key = self.key(&range.path).ok()?;
        // Claimed after the wait, in which another request may have read the file.
        let permit = self.connection.gate.enter(Priority::Prefetch).await;
        let claim = claim(index)?;
        let size = range.size;
        let opening = self.open_part(key, range, Priority::Prefetch, permit);
        item(index, Box::pin(opening), size, claim).await
    }
}
