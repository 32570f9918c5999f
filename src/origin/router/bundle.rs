//! Bundles: the files of one directory, from the origin that has the directory.

use super::Shared;
use crate::origin::turns::Renumbered;
use crate::origin::{TurnStream, Turns};
use copperfs_overlay::{BundleRequest, Failure};
use futures_util::StreamExt;
use std::sync::Arc;

impl Shared {
    /// What is excluded, or belongs to another origin than the directory does, is left out.
    pub(super) fn bundle(
        self: &Arc<Self>,
        mut request: BundleRequest,
        turns: Arc<dyn Turns>,
    ) -> Result<TurnStream, Failure> {
        let (mount, below) = self.resolve(&request.directory)?;
        let view = self.view(&request.directory);
        let mut places = Vec::with_capacity(request.files.len());
        let mut place = 0;
        request.files.retain(|file| {
            let kept = request.directory.join(&file.name).is_ok_and(|path| {
                let same = self
                    .route(&path)
                    .is_some_and(|(routed, _)| std::ptr::eq(routed, mount));
                same && !view.hides(&path)
            });
            if kept {
                places.push(place);
            }
            place += 1;
            kept
        });
        request.directory = below;
        let places: Arc<[usize]> = places.into();
        let turns = Arc::new(Renumbered {
            places: Arc::clone(&places),
            turns,
        });
        let counters = Arc::clone(&self.counters);
        let items = mount.origin.bundle(request, turns);
        let items = items.map(move |(mut item, turn)| {
            counters.opened();
            counters.read(item.bytes.len());
            if let Some(&place) = places.get(item.index) {
                item.index = place;
            }
            (item, turn)
        });
        Ok(items.boxed())
    }
}
