//! The processes on this node that read datasets by chunks.
//!
//! Each one tells which chunks it reads, and which it has exhausted. The node keeps that
//! ([`Reading`]), and reports it to the allocator, which changes the resident chunks
//! ([`copperfs_policy::chunks::Rotation`]). A process that ends gives back everything.

use crate::job::Process;
use crate::model::{Decision, ReadingReport};
use copperfs_policy::chunks::{
    ChunkLayout, READERS_MAX, Reader, Reading, Referred, Released, ResidentChunk,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// The maximum number of readers on a node: many more than the processes that train there.
const NODE_READERS_MAX: usize = READERS_MAX / 16;
/// The maximum length of a job's name in bytes. Reports contain the names.
const JOB_BYTES_MAX: usize = 128;
/// How long a reader may be silent if its process is unknown, as that of another PID namespace is.
const SILENT_MAX: Duration = Duration::from_secs(600);

/// A process that reads a dataset for a job.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ChunkReader {
    /// The dataset's [`crate::model::DatasetDecision::id`].
    pub dataset: u64,
    /// The job's name.
    pub job: String,
    /// Its number among several readers of one process.
    pub rank: u32,
    /// The process, if known.
    pub process: Option<Process>,
}

/// Why a reader is not heard. Its `Display` says what to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReaderError {
    /// The name of its job is empty or too long.
    #[error("a job's name has 1 to {JOB_BYTES_MAX} bytes")]
    JobName,
    /// There are too many.
    #[error("{NODE_READERS_MAX} processes read by chunks on this node already")]
    TooMany,
}

/// See the module. The lock is held for the arithmetic of one call.
#[derive(Debug, Default)]
pub struct ChunkReaders(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    readers: HashMap<ChunkReader, State>,
    /// The number of the next new reader.
    next: u32,
}

#[derive(Debug)]
struct State {
    number: u32,
    reading: Reading,
    heard: Instant,
}

impl ChunkReaders {
    /// Records that `reader` needs the chunks of its dataset from now on. Returns false if that is known.
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn join(&self, reader: ChunkReader) -> Result<bool, ReaderError> {
        let is_new = !self.0.lock().readers.contains_key(&reader);
        self.with(reader, |_| is_new)
    }

    /// Records that `reader` reads `chunk`, if it is among the `resident` ones: see [`Reading::refer`].
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn refer(
        &self,
        reader: ChunkReader,
        chunk: u32,
        resident: &[ResidentChunk],
    ) -> Result<Referred, ReaderError> {
        self.with(reader, |reading| reading.refer(chunk, resident))
    }

    /// Records that `reader` does not read `chunk` any more: see [`Reading::release`].
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn release(
        &self,
        reader: ChunkReader,
        layout: &ChunkLayout,
        chunk: u32,
        is_exhausted: bool,
    ) -> Result<Released, ReaderError> {
        let release = |reading: &mut Reading| reading.release(layout, chunk, is_exhausted);
        self.with(reader, release)
    }

    fn with<T>(
        &self,
        reader: ChunkReader,
        change: impl FnOnce(&mut Reading) -> T,
    ) -> Result<T, ReaderError> {
        if reader.job.is_empty() || reader.job.len() > JOB_BYTES_MAX {
            return Err(ReaderError::JobName);
        }
        let mut known = self.0.lock();
        if !known.readers.contains_key(&reader) && known.readers.len() >= NODE_READERS_MAX {
            return Err(ReaderError::TooMany);
        }
        let Known { readers, next } = &mut *known;
        let state = readers.entry(reader).or_insert_with(|| {
            *next = next.wrapping_add(1);
            State {
                number: *next,
                reading: Reading::default(),
                heard: Instant::now(),
            }
        });
        state.heard = Instant::now();
        Ok(change(&mut state.reading))
    }

    /// Returns the state of all readers on the node with this `rank`. Forgets those whose process does not
    /// run, those that have been silent for long, and those of datasets that cannot be kept in chunks.
    pub fn report(
        &self,
        rank: u32,
        decision: &Decision,
        runs: impl Fn(Process) -> bool,
    ) -> Vec<ReadingReport> {
        let processes: Vec<ChunkReader> = self.0.lock().readers.keys().cloned().collect();
        // Looked up without the lock, because a read of `/proc` may block.
        let ended = processes.into_iter().filter(|one| {
            let process = one.process;
            process.is_some_and(|process| !runs(process))
        });
        let ended: Vec<ChunkReader> = ended.collect();
        let mut known = self.0.lock();
        for one in &ended {
            known.readers.remove(one);
        }
        known.readers.retain(|reader, state| {
            let mut datasets = decision.datasets.iter();
            let dataset = datasets.find(|one| one.id == reader.dataset);
            let Some(dataset) = dataset.filter(|one| one.may_be_in_chunks()) else {
                return false;
            };
            // An eviction ends references.
            let resident = || dataset.resident.iter().flatten();
            let is_resident = |chunk: &u32| resident().any(|one| one.chunk == *chunk);
            state.reading.refers.retain(is_resident);
            reader.process.is_some() || state.heard.elapsed() < SILENT_MAX
        });
        let report = |(reader, state): (&ChunkReader, &State)| ReadingReport {
            dataset: reader.dataset,
            reader: Reader {
                job: reader.job.clone(),
                // Unique among all nodes.
                part: u64::from(rank) << 32 | u64::from(state.number),
            },
            reading: state.reading.clone(),
        };
        let mut reports: Vec<ReadingReport> = known.readers.iter().map(report).collect();
        // In one order, so that equal reports are equal.
        reports.sort_unstable_by_key(|one| one.reader.part);
        reports
    }
}

#[cfg(test)]
mod tests;
