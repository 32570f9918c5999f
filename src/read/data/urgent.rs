//! Separate requests for blocks that readers wait for at the end of a bundle or of a run.
//!
//! A reader does not wait for everything before its block. After a short time the block is requested
//! separately, and is taken from the request that brings it first. The delay avoids a second transfer of
//! the blocks that arrive in time, which are most of them. Storage reads the block once in any case
//! (`origin::Once`).

use super::Data;
use super::blocks::FetchKind;
use super::flight::{Flight, Route};
use crate::read::file::FileRef;
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a reader waits for a bundle alone: a round trip to most storage and a little more.
const BUNDLE_DELAY: Duration = Duration::from_millis(30);
/// How long a reader waits for a run alone. On a fast network a run arrives within this time.
pub(in crate::read) const RUN_DELAY: Duration = Duration::from_secs(1);

/// How long a reader waits for `flight`, a block of `file`, before the block is requested separately.
/// `None`: it is not.
fn delay(file: &FileRef, flight: &Flight) -> Option<Duration> {
    match flight.route() {
        Route::Bundled => Some(BUNDLE_DELAY),
        // All blocks under an unsettled version come from one request.
        Route::Queued => file.version.is_settled().then_some(RUN_DELAY),
        Route::Near | Route::Urged | Route::Landed => None,
    }
}

impl Data {
    /// Waits for `coming`, a change of `flight`, a block of `file`. Requests the block separately after a while.
    pub(in crate::read) async fn or_urge<T>(
        &self,
        file: &FileRef,
        flight: &Arc<Flight>,
        coming: impl Future<Output = T>,
    ) -> T {
        let mut coming = pin!(coming);
        if let Some(delay) = delay(file, flight) {
            if let Ok(here) = timeout(delay, &mut coming).await {
                return here;
            }
            if flight.urge() {
                self.launch(file, FetchKind::Urgent, slice::from_ref(flight));
            }
        }
        coming.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::epoch::Epoch;
    use copperfs_overlay::{ItemPath, Standing, Version};

    fn flight() -> Flight {
        let file = FileRef::new(ItemPath::root(), Version::of(b"f"), 1, None);
        Flight::new(file.key(0), file.path, Epoch::default().now(), 1)
    }

    /// Bytes under an unsettled version must come from one request.
    #[test]
    fn a_block_of_an_unsettled_version_is_never_requested_separately() {
        let version = Version::of(b"f");
        let file = |version| FileRef::new(ItemPath::root(), version, 4 << 20, None);
        let settled = file(version);
        let unsettled = file(version.standing_as(Standing::Unsettled(1)));
        let flight = flight();
        assert_eq!(delay(&unsettled, &flight), None);
        assert_eq!(delay(&settled, &flight), Some(RUN_DELAY));
        flight.come_near();
        assert_eq!(delay(&settled, &flight), None);
    }

    #[test]
    fn a_flight_ends_once() {
        let near = flight();
        assert!(near.come_near() && near.come_near());
        assert!(!near.urge() && near.route() == Route::Near);
        assert!(near.leave_run() && !near.land());

        let urged = flight();
        assert!(urged.urge() && !urged.urge());
        assert!(!urged.come_near() && !urged.leave_run());
        assert!(urged.land() && !urged.land());

        let bundled = flight();
        bundled.give_to_bundle();
        assert!(bundled.leave_bundle() && bundled.route() == Route::Queued);
        assert!(bundled.leave_run() && !bundled.urge());
    }
}
