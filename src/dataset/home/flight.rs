//! Reading an item from storage, once for all who want it meanwhile.

use crate::dataset::fetch::Fetched;
use copperfs_overlay::Failure;
use std::ops::Range;
use tokio::sync::watch;

/// The answer of a flight, once it is there; closed without one when the flight died.
pub(super) type Pending = watch::Receiver<Option<Result<Fetched, Failure>>>;

/// A flight, as those see it who may join.
#[derive(Debug)]
pub(super) struct Flight {
    id: u64,
    /// Which bytes of the stripe it brings.
    extent: Range<u64>,
    pending: Pending,
}

impl Flight {
    pub(super) fn new(id: u64, extent: Range<u64>, pending: Pending) -> Self {
        Self {
            id,
            extent,
            pending,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn brings(&self, range: &Range<u64>) -> bool {
        covers(&self.extent, range)
    }

    pub(super) fn pending(&self) -> Pending {
        self.pending.clone()
    }

    /// Whether its answer is there already.
    pub(super) fn has_landed(&self) -> bool {
        self.pending.borrow().is_some()
    }
}

/// Waits for the answer; `None`: the flight died.
pub(super) async fn landed(mut pending: Pending) -> Option<Result<Fetched, Failure>> {
    let answer = pending.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}

/// Whether `outer` holds all of `inner`.
pub(super) fn covers(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
