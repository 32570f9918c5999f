//! Claims on blocks: locks that keep two requests from reading the same bytes from storage.
//!
//! A request claims a block, or a range of it, before it reads it, and holds the claim until the bytes are
//! cached where the next request looks for them.
//!
//! A bundle is requested long before its last file is read, and other requests may want some of its
//! files by then. So an origin claims a file right before it reads it ([`ClaimFile`]), and returns the
//! claim together with the bytes.

use copperfs_overlay::{BundleItem, ItemPath, Version};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use futures_util::stream::BoxStream;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::Notify;

/// Claims file `index` of a bundle. Returns `None` if another request has read the file or is reading it;
/// the bundle then leaves the file out.
pub type ClaimFile = Arc<dyn Fn(usize) -> Option<FileClaim> + Send + Sync>;

/// The right to read one file of a bundle, until it is dropped.
#[derive(Default)]
pub struct FileClaim {
    pub(super) _block: Option<BlockClaim>,
}

/// Grants every claim, for a bundle that competes with no other request.
#[must_use]
pub fn claim_any() -> ClaimFile {
    Arc::new(|_index| Some(FileClaim::default()))
}

/// The files of a bundle in the order in which their reads complete, each with its claim. Files of another
/// version, files that cannot be read, and files that could not be claimed are left out.
pub type ClaimedStream = BoxStream<'static, (BundleItem, FileClaim)>;

/// A block of one version of one file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockKey {
    pub(crate) path: ItemPath,
    pub(crate) version: Version,
    pub(crate) index: u64,
}

/// The claims that are held on one block.
#[derive(Default)]
struct HeldClaims {
    /// The whole block is claimed.
    whole: bool,
    /// Offsets in the file; they do not overlap. Bounded by the concurrent reads of the read path.
    ranges: Vec<Range<u64>>,
}

/// All claims on the blocks of one node's storage.
#[derive(Default)]
pub(crate) struct BlockClaims {
    /// Contains an entry only while a claim is held. Locked briefly, never across an await.
    blocks: DashMap<BlockKey, HeldClaims>,
    /// Notified whenever a claim is dropped.
    released: Notify,
}

impl BlockClaims {
    /// Claims all of `block`, or `range` of it. Returns `None` if a conflicting claim is held.
    pub(crate) fn try_claim(
        self: &Arc<Self>,
        block: &BlockKey,
        range: Option<&Range<u64>>,
    ) -> Option<BlockClaim> {
        let mut held = self.blocks.entry(block.clone()).or_default();
        // A claim on the whole block conflicts with another one on the whole block only: bytes that were read as ranges
        // are read again with their block. A claim on a range also conflicts with overlapping ranges.
        let overlaps = |other: &Range<u64>| {
            range.is_some_and(|range| range.start < other.end && other.start < range.end)
        };
        if held.whole || held.ranges.iter().any(overlaps) {
            return None;
        }
        match range {
            Some(range) => held.ranges.push(range.clone()),
            None => held.whole = true,
        }
        Some(BlockClaim {
            claims: Arc::clone(self),
            block: block.clone(),
            range: range.cloned(),
        })
    }

    /// Like [`BlockClaims::try_claim`], but waits until no conflicting claim is held.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        block: &BlockKey,
        range: Option<&Range<u64>>,
    ) -> BlockClaim {
        loop {
            let mut released = pin!(self.released.notified());
            // Registered before the check, so that no release is missed.
            released.as_mut().enable();
            if let Some(claim) = self.try_claim(block, range) {
                return claim;
            }
            released.await;
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

/// A claim on a block or on a range of it, until it is dropped.
pub struct BlockClaim {
    claims: Arc<BlockClaims>,
    block: BlockKey,
    range: Option<Range<u64>>,
}

impl Drop for BlockClaim {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.claims.blocks.entry(self.block.clone()) {
            let held = entry.get_mut();
            match &self.range {
                Some(range) => held.ranges.retain(|other| other != range),
                None => held.whole = false,
            }
            if !held.whole && held.ranges.is_empty() {
                entry.remove();
            }
        }
        // After the entry is unlocked, because a woken request locks it.
        self.claims.released.notify_waiters();
    }
}
