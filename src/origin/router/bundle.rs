//! Bundles: the files of one directory, from the origin that has the directory.

use super::Shared;
use crate::origin::{ClaimFile, ClaimedStream};
use copperfs_overlay::{BundleRequest, Failure};
use futures_util::StreamExt;
use std::sync::Arc;

impl Shared {
    /// The files of `request`. Excluded files, and those that belong to another origin than the directory,
    /// are left out.
    pub(super) fn bundle(
        self: &Arc<Self>,
        mut request: BundleRequest,
        claim: ClaimFile,
    ) -> Result<ClaimedStream, Failure> {
        let (mount, below) = self.resolve(&request.directory)?;
        let filter = self.filter(&request.directory);
        // The original index of each remaining file.
        let mut indices = Vec::with_capacity(request.files.len());
        let mut index = 0;
        request.files.retain(|file| {
            let is_served = request.directory.join(&file.name).is_ok_and(|path| {
                let routed = self.route(&path);
                // A longer prefix may have replaced this entry of the directory.
                routed.is_some_and(|(routed, _)| std::ptr::eq(routed, mount))
                    && !filter.hides(&path)
            });
            if is_served {
                indices.push(index);
            }
            index += 1;
            is_served
        });
        request.directory = below;
        let indices: Arc<[usize]> = indices.into();
        let original: ClaimFile = {
            let indices = Arc::clone(&indices);
            Arc::new(move |index| claim(*indices.get(index)?))
        };
        let counters = Arc::clone(&self.counters);
        let items = mount.origin.bundle(request, original);
        let items = items.map(move |(mut item, claim)| {
            counters.opens.increment();
            counters.read_bytes.add_len(item.bytes.len());
            if let Some(&index) = indices.get(item.index) {
                item.index = index;
            }
            (item, claim)
        });
        Ok(items.boxed())
    }
}
