//! Bundles: the files of one directory, from the origin that has the directory.

use super::Origins;
use crate::origin::failure::Cause;
use crate::origin::{ClaimFile, ClaimedStream, Storage};
use copperfs_overlay::{BundleFile, BundleRequest, Failure, ItemPath};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

impl Storage for Origins {
    /// The files of `request`. Excluded files, and those that belong to another origin than the directory,
    /// are left out.
    fn claimed_bundle(
        &self,
        mut request: BundleRequest,
        claim: ClaimFile,
    ) -> Result<ClaimedStream, Failure> {
        let shared = &self.shared;
        let (mount, below) = shared.resolve(&request.directory)?;
        let is_hidden = shared.filter(&request.directory);
        let is_served = |file: &BundleFile| {
            request.directory.join(&file.name).is_ok_and(|path| {
                let routed = shared.route(&path);
                // A longer prefix may have replaced this entry of the directory.
                routed.is_some_and(|(routed, _)| std::ptr::eq(routed, mount)) && !is_hidden(&path)
            })
        };
        let served: Vec<bool> = request.files.iter().map(is_served).collect();
        // A file that is not served cannot be claimed, so the origin leaves it out.
        let claim_served: ClaimFile = Arc::new(move |index| {
            let is_served = served.get(index).is_some_and(|is_served| *is_served);
            is_served.then(|| claim(index)).flatten()
        });
        request.directory = below;
        let counters = Arc::clone(&shared.counters);
        let items = mount.origin.bundle(request, claim_served);
        let items = items.inspect(move |(item, _claim)| {
            counters.opens.increment();
            counters.read_bytes.add_len(item.bytes.len());
        });
        Ok(items.boxed())
    }

    fn timed_out(&self, path: &ItemPath, read_timeout: Duration) -> Failure {
        let mount = self.shared.resolve(path);
        let uri = mount.map_or("of no prefix", |(mount, _)| &mount.uri);
        let failure = Cause::timed_out(read_timeout).failure(uri, "read", path);
        self.shared.counters.failed(&failure);
        failure
    }
}
