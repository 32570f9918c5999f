//! Separate requests for blocks that readers wait for at the end of a bundle or of a run.
//!
//! A reader does not wait for everything before its block. After a short time the block is requested
//! separately, and is taken from the request that brings it first. The delay avoids a second transfer of
//! the blocks that arrive in time, which are most of them. Storage reads the block once in any case
//! (`origin::Once`).

use super::blocks::wait_done;
use super::flight::{Behind, Flight, Progress};
use super::memory::Charge;
use super::{Block, Data, shutting_down};
use crate::read::file::FileRef;
use bytes::BytesMut;
use copperfs_overlay::{BlockPart, Failure, FailureKind, ReadRequest, ReadStream};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a reader waits for a bundle alone: a round trip to most storage and a little more.
const BUNDLE_DELAY: Duration = Duration::from_millis(30);
/// How long a reader waits for a run alone. On a fast network a run arrives within this time.
pub(in crate::read) const RUN_DELAY: Duration = Duration::from_secs(1);

/// How long a reader waits for `flight`, a block of `file`, before the block is requested separately.
/// `None`: it is not.
fn delay(file: &FileRef, flight: &Flight) -> Option<Duration> {
    match flight.behind() {
        Behind::Bundle => Some(BUNDLE_DELAY),
        // All blocks under an unsettled version come from one request.
        Behind::Run => file.version.is_settled().then_some(RUN_DELAY),
        Behind::Nothing => None,
    }
}

impl Data {
    /// Waits for `flight`, block `index` of `file`, and requests the block separately after a while.
    pub(super) async fn wait_done_or_urge(
        &self,
        file: &FileRef,
        index: u64,
        flight: &Arc<Flight>,
    ) -> Result<Block, Failure> {
        if let Some(delay) = delay(file, flight) {
            if let Ok(done) = timeout(delay, wait_done(flight)).await {
                return done;
            }
            self.fetch_urgently(file, index, flight);
        }
        wait_done(flight).await
    }

    /// Waits for the next change of `flight`, block `index` of `file`, and requests the block separately
    /// after a while.
    pub(super) async fn wait_change_or_urge(
        &self,
        file: &FileRef,
        index: u64,
        flight: &Arc<Flight>,
        progress: &mut watch::Receiver<Progress>,
    ) -> Result<(), watch::error::RecvError> {
        if let Some(delay) = delay(file, flight) {
            if let Ok(changed) = timeout(delay, progress.changed()).await {
                return changed;
            }
            self.fetch_urgently(file, index, flight);
        }
        progress.changed().await
    }

    fn fetch_urgently(&self, file: &FileRef, index: u64, flight: &Arc<Flight>) {
        if flight.urge() {
            let urgent = Urgent {
                data: self.clone(),
                file: file.clone(),
                index,
                flight: Arc::clone(flight),
            };
            drop(self.0.runtime.spawn(urgent.run()));
        }
    }
}

/// The separate request for one block.
struct Urgent {
    data: Data,
    file: FileRef,
    index: u64,
    flight: Arc<Flight>,
}

impl Urgent {
    async fn run(self) {
        let len = ReadRequest::block_len(self.file.size, self.index);
        let charge = self.data.memory().urgent(len).await;
        if self.flight.has_landed() {
            return;
        }
        match self.fetch(len, charge).await {
            Ok((block, stream)) => {
                self.data
                    .complete_first(self.file.key(self.index), &self.flight, block);
                // The block's turn at storage ends with this stream. The stream must end after the block is
                // cached, or a bundle would read the block again.
                drop(stream);
            }
            Err(failure) => {
                self.data.invalidate_after(&failure, &self.file);
                self.fail(failure);
            }
        }
    }

    async fn fetch(&self, len: u64, mut charge: Charge) -> Result<(Block, ReadStream), Failure> {
        let request = self.file.request(self.index, 1);
        let mut parts = charge
            .awaiting(self.data.source_of(&self.file).read(request))
            .await?;
        let mut bytes = BytesMut::new();
        while let Some(part) = charge.awaiting(parts.next()).await {
            match part? {
                BlockPart::Bytes(more) if bytes.len() as u64 <= len => {
                    charge.begin().await;
                    bytes.extend_from_slice(&more);
                }
                BlockPart::Bytes(_) => break,
                BlockPart::Restart => bytes.clear(),
                BlockPart::End(hash) if bytes.len() as u64 == len => {
                    self.file.check(hash)?;
                    let block = Block {
                        bytes: bytes.freeze(),
                        hash,
                        path: self.file.path.clone(),
                    };
                    return Ok((block, parts));
                }
                BlockPart::End(_) => break,
            }
        }
        let detail = format!("{}: a block of another length", self.file.path);
        Err(Failure::new(FailureKind::Corrupt, detail))
    }

    /// Fails the flight, unless the run brought the block first.
    fn fail(&self, failure: Failure) {
        if self.flight.land() {
            let key = self.file.key(self.index);
            self.data.fail(&key, &self.flight, failure);
        }
    }
}

/// A request that is dropped with its runtime must not leave readers waiting.
impl Drop for Urgent {
    fn drop(&mut self) {
        self.fail(shutting_down());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::epoch::Epoch;
    use copperfs_overlay::{ItemPath, Standing, Version};

    fn flight() -> Flight {
        Flight::new(ItemPath::root(), Epoch::default().now(), 1)
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
        assert!(!near.urge() && near.behind() == Behind::Nothing);
        assert!(near.leave_run() && !near.land());

        let urged = flight();
        assert!(urged.urge() && !urged.urge());
        assert!(!urged.come_near() && !urged.leave_run());
        assert!(urged.land() && !urged.land());

        let bundled = flight();
        bundled.give_to_bundle();
        assert!(bundled.leave_bundle() && bundled.behind() == Behind::Run);
        assert!(bundled.leave_run() && !bundled.urge());
    }
}
