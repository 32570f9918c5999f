//! Who waits for a file that a bundle is to bring does not wait for all those before it: after a moment
//! the file is asked for by itself, and comes from whoever has it first.
//!
//! The delay avoids a second transfer of the files that the bundle brings in time, which are most of them.
//! Storage reads the file only once in any case (`origin::Once`).

use super::blocks::{FileRef, landed};
use super::flight::{Flight, Progress};
use super::{Block, Inner, ReadPath};
use bytes::BytesMut;
use copperfs_overlay::{BlockPart, Failure, FailureKind, ReadRequest, ReadStream};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a reader waits for a bundle alone: a round trip to most storage and a little more.
const MOMENT: Duration = Duration::from_millis(30);

impl ReadPath {
    /// Waits for a block of `file`.
    pub(super) async fn landed_soon(
        &self,
        file: &FileRef,
        flight: &Arc<Flight>,
    ) -> Result<Block, Failure> {
        if flight.is_bundled() {
            if let Ok(landed) = timeout(MOMENT, landed(flight)).await {
                return landed;
            }
            self.urge(file, flight);
        }
        landed(flight).await
    }

    /// Waits for the next change of `flight`, the first block of `file`.
    pub(super) async fn changed_soon(
        &self,
        file: &FileRef,
        flight: &Arc<Flight>,
        progress: &mut watch::Receiver<Progress>,
    ) -> Result<(), watch::error::RecvError> {
        if flight.is_bundled() {
            if let Ok(changed) = timeout(MOMENT, progress.changed()).await {
                return changed;
            }
            self.urge(file, flight);
        }
        progress.changed().await
    }

    fn urge(&self, file: &FileRef, flight: &Arc<Flight>) {
        if flight.urge() {
            let urgent = Urgent {
                inner: Arc::clone(&self.0),
                file: file.clone(),
                flight: Arc::clone(flight),
            };
            drop(self.0.runtime.spawn(urgent.run()));
        }
    }
}

/// The request for one file of a bundle. Dropped with its runtime, it leaves nobody waiting.
struct Urgent {
    inner: Arc<Inner>,
    file: FileRef,
    flight: Arc<Flight>,
}

impl Urgent {
    async fn run(self) {
        match self.fetch().await {
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

    async fn fetch(&self) -> Result<(Block, ReadStream), Failure> {
        let request = ReadRequest {
            path: self.file.path.clone(),
            version: self.file.version,
            size: self.file.size,
            first_block: 0,
            block_count: 1,
            content: self.file.content,
            through: false,
        };
        let mut charge = self.inner.room.fetch(self.file.size).await;
        let mut parts = charge.awaiting(self.inner.source.read(request)).await?;
        let mut bytes = BytesMut::new();
        while let Some(part) = charge.awaiting(parts.next()).await {
            match part? {
                BlockPart::Bytes(more) if bytes.len() as u64 <= self.file.size => {
                    charge.begin().await;
                    bytes.extend_from_slice(&more);
                }
                BlockPart::Bytes(_) => break,
                BlockPart::Restart => bytes.clear(),
                BlockPart::End(hash) if bytes.len() as u64 == self.file.size => {
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
        if !self.flight.land() {
            return;
        }
        let key = self.file.key(0);
        match &outcome {
            Ok(block) => self.inner.land(key, &self.flight, block, self.file.size),
            Err(_) => self.inner.end_flight(&key, &self.flight),
        }
        self.flight.finish(outcome);
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
