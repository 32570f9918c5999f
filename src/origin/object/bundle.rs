//! Many small objects: as many GETs at a time as the store can take.
//!
//! Files of a bundle are fetched ahead of their readers; a reader that asks for one of them meanwhile
//! takes it out, so that its own GET goes first and is the only one.

use super::Inner;
use super::gate::Turn;
use crate::origin::ByteRange;
use crate::origin::bundle::item;
use copperfs_overlay::{BundleItem, BundleRequest, BundleStream};
use dashmap::DashSet;
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;

/// Bytes of one bundle that are under way or wait for those before them.
const BYTES_AT_ONCE: u64 = 8 << 20;
/// Files of one bundle that are under way, at most.
const FILES_AT_ONCE: u64 = 128;

/// Keys of bundles under way that nobody has asked for yet. Bounded by the bundles that the read path
/// has under way.
#[derive(Debug, Default)]
pub(super) struct Bundled(DashSet<String>);

impl Bundled {
    /// Takes `key` out of the bundle that was to bring it; whether there was one.
    pub(super) fn take_out(&self, key: &str) -> bool {
        self.0.remove(key).is_some()
    }
}

/// One file of a bundle, until it is done with.
struct Planned {
    origin: Arc<Inner>,
    key: String,
}

impl Drop for Planned {
    fn drop(&mut self) {
        self.origin.bundled.take_out(&self.key);
    }
}

impl Inner {
    /// The files of `request`, in its order.
    pub(super) fn bundle(self: Arc<Self>, request: BundleRequest) -> BundleStream {
        let BundleRequest { directory, files } = request;
        let largest = files.iter().map(|file| file.size).max().unwrap_or(0);
        let at_once = (BYTES_AT_ONCE / largest.max(1)).clamp(8, FILES_AT_ONCE);
        let planned: Vec<_> = files
            .into_iter()
            .enumerate()
            .filter_map(|(index, file)| {
                let path = directory.join(&file.name).ok()?;
                let key = self.key(&path).ok()?;
                self.bundled.0.insert(key.clone());
                let range = ByteRange {
                    path,
                    version: file.version,
                    size: file.size,
                    offset: 0,
                    length: file.size,
                };
                let origin = Arc::clone(&self);
                Some((index, range, Planned { origin, key }))
            })
            .collect();
        stream::iter(planned)
            .map(|(index, range, planned)| fetch(index, range, planned))
            .buffered(usize::try_from(at_once).unwrap_or(8))
            .filter_map(std::future::ready)
            .map(Ok)
            .boxed()
    }
}

async fn fetch(index: usize, range: ByteRange, planned: Planned) -> Option<BundleItem> {
    let origin = Arc::clone(&planned.origin);
    let permit = origin.gate.enter(Turn::Ahead).await;
    if !origin.bundled.take_out(&planned.key) {
        return None;
    }
    let size = range.size;
    let opening = origin.open_part(planned.key.clone(), range, Turn::Ahead, permit);
    item(index, Box::pin(opening), size).await
}
