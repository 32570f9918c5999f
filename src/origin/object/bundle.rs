//! Many small objects: as many GETs at a time as the store can take.
//!
//! A bundle's files are fetched ahead of their readers, each in its turn: a file that a reader requests
//! first is fetched for the reader, and left out of the bundle.

use super::Inner;
use super::gate::Turn as Place;
use crate::origin::bundle::{item, ranges};
use crate::origin::{ByteRange, Turn, TurnStream, Turns};
use copperfs_overlay::{BundleItem, BundleRequest};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;

/// Bytes of one bundle that are requested at the same time.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// Files of one bundle that are under way, at most.
const FILES_AT_ONCE: u64 = 128;

impl Inner {
    /// The files of `request`, in the order in which their reads complete.
    pub(super) fn bundle(
        self: Arc<Self>,
        request: BundleRequest,
        turns: Arc<dyn Turns>,
    ) -> TurnStream {
        let largest = request.files.iter().map(|file| file.size).max();
        let at_once = (BYTES_AT_ONCE / largest.unwrap_or(0).max(1)).clamp(8, FILES_AT_ONCE);
        let files: Vec<_> = ranges(request).collect();
        stream::iter(files)
            .map(move |(index, range)| Arc::clone(&self).fetch(index, range, Arc::clone(&turns)))
            .buffer_unordered(usize::try_from(at_once).unwrap_or(8))
            .filter_map(std::future::ready)
            .boxed()
    }

    async fn fetch(
        self: Arc<Self>,
        index: usize,
        range: ByteRange,
        turns: Arc<dyn Turns>,
    ) -> Option<(BundleItem, Turn)> {
        let key = self.key(&range.path).ok()?;
        let permit = self.gate.enter(Place::Ahead).await;
        let turn = turns.begin(index)?;
        let size = range.size;
        let opening = self.open_part(key, range, Place::Ahead, permit);
        item(index, Box::pin(opening), size, turn).await
    }
}
