//! One request for a run of blocks, and the flights that it fills in order.

use super::flight::Flight;
use super::memory::{Charge, FETCH_BYTES_MAX};
use super::{Data, shutting_down};
use crate::read::file::FileRef;
use copperfs_overlay::{BlockPart, Failure, FailureKind, ReadRequest, ReadStream};
use futures_util::StreamExt;
use std::sync::Arc;

/// The blocks of a run that come next. A reader does not request them separately, because they arrive about
/// as soon.
const NEAR_BLOCKS: usize = 4;

/// See the module.
pub(super) struct Fetch {
    data: Data,
    file: FileRef,
    /// The block of the first of `flights`.
    next_block: u64,
    flights: std::vec::IntoIter<Arc<Flight>>,
}

impl Fetch {
    pub(super) fn new(
        data: Data,
        file: FileRef,
        next_block: u64,
        flights: Vec<Arc<Flight>>,
    ) -> Self {
        Self {
            data,
            file,
            next_block,
            flights: flights.into_iter(),
        }
    }

    pub(super) async fn run(mut self) {
        let data = self.data.clone();
        let block_count = self.flights.len() as u64;
        let request = self.file.request(self.next_block, block_count);
        let block_bytes = ReadRequest::block_len(self.file.size, self.next_block);
        let bytes = block_bytes.saturating_mul(block_count).min(FETCH_BYTES_MAX);
        let mut charge = data.memory().fetch(bytes).await;
        self.mark_near();
        let outcome = match charge
            .awaiting(data.source_of(&self.file).read(request))
            .await
        {
            Ok(stream) => self.fill(stream, &mut charge).await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = outcome {
            data.invalidate_after(&failure, &self.file);
            self.fail_rest(&failure);
        }
    }

    async fn fill(&mut self, mut stream: ReadStream, charge: &mut Charge) -> Result<(), Failure> {
        while let Some(flight) = self.flights.as_slice().first().map(Arc::clone) {
            let filled = match self.mark_near() {
                true => Arc::clone(&flight),
                // A separate request brings this block. Its bytes of this stream go into another buffer,
                // which is used if the separate request has not ended by then.
                false => Arc::new(flight.apart()),
            };
            let hash = loop {
                match charge.awaiting(stream.next()).await {
                    Some(Ok(BlockPart::Bytes(bytes))) => {
                        if filled.is_empty() {
                            charge.begin().await;
                        } else {
                            charge.go_on();
                        }
                        filled.push(bytes)?;
                    }
                    Some(Ok(BlockPart::Restart)) => filled.restart(),
                    Some(Ok(BlockPart::End(hash))) => break hash,
                    Some(Err(failure)) => return Err(failure),
                    None => {
                        let detail = format!("{}: the stream ended too early", self.file.path);
                        return Err(Failure::new(FailureKind::Corrupt, detail));
                    }
                }
            };
            let block = filled.complete(hash)?;
            self.file.check(hash)?;
            let key = self.file.key(self.next_block);
            self.data.complete_first(key, &flight, block);
            self.next_block += 1;
            self.flights.next();
        }
        Ok(())
    }

    /// Marks the blocks that come next. Returns whether this request alone fills the first of them.
    fn mark_near(&self) -> bool {
        let next = self.flights.as_slice().iter().take(NEAR_BLOCKS);
        // In reverse order, so that the result of the first block comes out.
        next.rev().fold(false, |_, flight| flight.come_near())
    }

    /// Fails the remaining blocks, except those that were requested separately.
    fn fail_rest(&mut self, failure: &Failure) {
        for flight in self.flights.by_ref() {
            if flight.leave_run() {
                let key = self.file.key(self.next_block);
                self.data.fail(&key, &flight, failure.clone());
            }
            self.next_block += 1;
        }
    }
}

/// A fetch that is dropped with its runtime must not leave readers waiting.
impl Drop for Fetch {
    fn drop(&mut self) {
        self.fail_rest(&shutting_down());
    }
}
