//! A reader that needs a block at the end of a bundle or of a run does not wait for everything before it.
//! After a while the block is requested separately, and comes from the request that has it first.
//!
//! The delay avoids a second transfer of the blocks that arrive in time, which are most of them. Storage
//! reads the block only once in any case (`origin::Once`).

use super::blocks::landed;
use super::file::FileRef;
use super::flight::{Behind, Flight, Progress};
use super::room::Charge;
use super::{Block, Inner, ReadPath};
use bytes::BytesMut;
use copperfs_overlay::{BlockPart, Failure, FailureKind, ReadRequest, ReadStream};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a reader waits for a bundle alone: a round trip to most storage and a little more.
const BUNDLE_MOMENT: Duration = Duration::from_millis(30);
/// How long a reader waits for a run alone. On a fast network a run arrives within this time.
pub(super) const RUN_MOMENT: Duration = Duration::from_secs(1);

/// How long a reader waits for `flight`, a block of `file`, before it is requested separately. `None`: it is
/// not.
pub(super) fn moment(file: &FileRef, flight: &Flight) -> Option<Duration> {
    match flight.behind() {
        Behind::Bundle => Some(BUNDLE_MOMENT),
        // All blocks under an unsettled version come from one request.
        Behind::Run => file.version.is_settled().then_some(RUN_MOMENT),
        Behind::Nothing => None,
    }
}

impl ReadPath {
    /// Waits for `flight`, block `index` of `file`.
    pub(super) async fn landed_soon(
        &self,
        file: &FileRef,
        index: u64,
        flight: &Arc<Flight>,
    ) -> Result<Block, Failure> {
        if let Some(moment) = moment(file, flight) {
            if let Ok(landed) = timeout(moment, landed(flight)).await {
                return landed;
            }
            self.urge(file, index, flight);
        }
        landed(flight).await
    }

    /// Waits for the next change of `flight`, block `index` of `file`.
    pub(super) async fn changed_soon(
        &self,
        file: &FileRef,
        index: u64,
        flight: &Arc<Flight>,
        progress: &mut watch::Receiver<Progress>,
    ) -> Result<(), watch::error::RecvError> {
        if let Some(moment) = moment(file, flight) {
            if let Ok(changed) = timeout(moment, progress.changed()).await {
                return changed;
            }
            self.urge(file, index, flight);
        }
        progress.changed().await
    }

    fn urge(&self, file: &FileRef, index: u64, flight: &Arc<Flight>) {
        if flight.urge() {
            let urgent = Urgent {
                inner: Arc::clone(&self.0),
                file: file.clone(),
                index,
                flight: Arc::clone(flight),
            };
            drop(self.0.runtime.spawn(urgent.run()));
        }
    }
}

/// The separate request for one block. Dropped with its runtime, it leaves nobody waiting.
struct Urgent {
    inner: Arc<Inner>,
    file: FileRef,
    index: u64,
    flight: Arc<Flight>,
}

impl Urgent {
    async fn run(self) {
        let len = ReadRequest::block_len(self.file.size, self.index);
        let charge = self.inner.room.urgent(len).await;
        if self.flight.has_landed() {
            return;
        }
        match self.fetch(len, charge).await {
            Ok((block, reading)) => {
                self.end(Ok(block));
                // The block's turn at storage ends with this stream. The stream must end after the block is
                // cached, or a bundle would read the block again.
                drop(reading);
            }
            Err(failure) => {
                self.inner.look_again_after(&failure, &self.file);
                self.end(Err(failure));
            }
        }
    }

    async fn fetch(&self, len: u64, mut charge: Charge) -> Result<(Block, ReadStream), Failure> {
        let request = ReadRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            first_block: self.index,
            block_count: 1,
            content: self.file.content,
            through: false,
        };
        let mut parts = charge.awaiting(self.inner.source.read(request)).await?;
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

    fn end(&self, outcome: Result<Block, Failure>) {
        let key = self.file.key(self.index);
        match outcome {
            Ok(block) => self.inner.land_first(key, &self.flight, block),
            Err(failure) if self.flight.land() => {
                self.inner.end_flight(&key, &self.flight);
                self.flight.finish(Err(failure));
            }
            Err(_) => {}
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.end(Err(Failure::new(
            FailureKind::Unavailable,
            "the node is shutting down",
        )));
    }
}
