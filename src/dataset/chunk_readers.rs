//! The processes on this node that read datasets by chunks.
//!
//! Each one tells which chunks it reads, and which it has exhausted. The node keeps that
//! ([`Reading`]), and reports it to the allocator, which changes the resident chunks
//! ([`copperfs_policy::chunks::Rotation`]). A process that ends gives back everything. No chunk waits for one that has
//! been silent for long.

use crate::job::Process;
use crate::model::{Decision, ReadingReport};
use copperfs_policy::chunks::{
    ChunkLayout, READERS_MAX, Reader, Reading, Referred, Released, ResidentChunk,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

/// The maximum number of readers on a node: many more than the processes that train there.
const NODE_READERS_MAX: usize = READERS_MAX / 16;
/// The maximum number of readers of one process, whatever ranks it names.
const PROCESS_READERS_MAX: usize = 64;
/// The maximum number of readers of one user: a part of all, so that no user takes the place of the others.
const USER_READERS_MAX: usize = NODE_READERS_MAX / 4;
/// The maximum length of a job's name in bytes. Reports contain the names.
const JOB_BYTES_MAX: usize = 128;
/// A reader that has been silent for longer than this is not reported, so no chunk waits for it: its process may have
/// stopped training. Its state is kept while its process runs. If the process is unknown, as that of another PID
/// namespace is, the reader is forgotten.
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
    /// The id of its user, if known.
    pub user: Option<u32>,
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
    /// Its process is too many readers already.
    #[error("this process is {PROCESS_READERS_MAX} readers already, each with a rank of its own")]
    TooManyOfProcess,
    /// Its user has too many.
    #[error("{USER_READERS_MAX} processes of this user read by chunks on this node already")]
    TooManyOfUser,
}

/// See the module. The lock is held for the arithmetic of one call.
#[derive(Debug, Default)]
pub struct ChunkReaders(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    readers: HashMap<ChunkReader, State>,
    /// The datasets and jobs of readers, also of those that have ended.
    jobs: HashSet<(u64, String)>,
    /// The number of the next new reader.
    next: u32,
}

#[derive(Debug)]
struct State {
    number: u32,
    reading: Reading,
    heard: Instant,
}

impl State {
    fn is_heard(&self) -> bool {
        self.heard.elapsed() < SILENT_MAX
    }
}

impl Known {
    fn remember_job(&mut self, reader: &ChunkReader) {
        // One too many is known while its readers run.
        if self.jobs.len() < NODE_READERS_MAX {
            self.jobs.insert((reader.dataset, reader.job.clone()));
        }
    }

    /// Checks that a new reader may be added.
    fn check_room(&self, reader: &ChunkReader) -> Result<(), ReaderError> {
        let count = |same: &dyn Fn(&ChunkReader) -> bool| {
            self.readers.keys().filter(|known| same(known)).count()
        };
        if self.readers.len() >= NODE_READERS_MAX {
            return Err(ReaderError::TooMany);
        }
        let of_process = |known: &ChunkReader| known.process == reader.process;
        if reader.process.is_some() && count(&of_process) >= PROCESS_READERS_MAX {
            return Err(ReaderError::TooManyOfProcess);
        }
        let of_user = |known: &ChunkReader| known.user == reader.user;
        if reader.user.is_some() && count(&of_user) >= USER_READERS_MAX {
            return Err(ReaderError::TooManyOfUser);
        }
        Ok(())
    }
}

impl ChunkReaders {
    /// Records that `reader` needs the chunks of its dataset from now on, in its epoch `epoch` if it states one
    /// ([`Reading::begin`]), except for those that it has `exhausted`. Returns false if all of that is known.
    /// Chunks that the `layout` does not have are ignored.
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn join(
        &self,
        reader: ChunkReader,
        layout: &ChunkLayout,
        epoch: Option<u64>,
        exhausted: &[u32],
    ) -> Result<bool, ReaderError> {
        self.change(reader, |reading, is_new| {
            let before = reading.clone();
            if let Some(epoch) = epoch {
                reading.begin(epoch);
            }
            for &chunk in exhausted {
                let _may_not_refer = reading.release(layout, chunk, true);
            }
            (is_new || *reading != before, true)
        })
    }

    /// Records that `reader` reads `chunk`, if it is among the `resident` ones: see [`Reading::refer`].
    ///
    /// # Errors
    /// See [`ReaderError`].
    pub fn refer(
        &self,
        reader: ChunkReader,
        epoch: Option<u64>,
        chunk: u32,
        resident: &[ResidentChunk],
    ) -> Result<Referred, ReaderError> {
        self.change(reader, |reading, _| {
            let referred = reading.refer(epoch, chunk, resident);
            (
                referred,
                matches!(referred, Referred::Now | Referred::Already),
            )
        })
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
        self.change(reader, |reading, _| {
            let released = reading.release(layout, chunk, is_exhausted);
            (released, released != Released::NoSuchChunk)
        })
    }

    /// Records that the readers of `process` still read `dataset`: it asks which entries are resident.
    pub fn hear(&self, dataset: u64, process: Process) {
        let mut known = self.0.lock();
        for (reader, state) in &mut known.readers {
            if reader.dataset == dataset && reader.process == Some(process) {
                state.heard = Instant::now();
            }
        }
    }

    /// Changes the state of a reader. `change` is told whether the reader is new, and returns with its answer whether
    /// the request was accepted: a refused one makes no reader known.
    fn change<T>(
        &self,
        reader: ChunkReader,
        change: impl FnOnce(&mut Reading, bool) -> (T, bool),
    ) -> Result<T, ReaderError> {
        if reader.job.is_empty() || reader.job.len() > JOB_BYTES_MAX {
            return Err(ReaderError::JobName);
        }
        let mut known = self.0.lock();
        let heard = Instant::now();
        if let Some(state) = known.readers.get_mut(&reader) {
            state.heard = heard;
            let (answer, _) = change(&mut state.reading, false);
            known.remember_job(&reader);
            return Ok(answer);
        }
        known.check_room(&reader)?;
        let mut reading = Reading::default();
        let (answer, accepted) = change(&mut reading, true);
        if accepted {
            known.next = known.next.wrapping_add(1);
            let number = known.next;
            let state = State {
                number,
                reading,
                heard,
            };
            known.remember_job(&reader);
            known.readers.insert(reader, state);
        }
        Ok(answer)
    }

    /// Returns whether a process of `job` reads or has read the dataset by chunks.
    #[must_use]
    pub fn has_read(&self, dataset: u64, job: &str) -> bool {
        let known = self.0.lock();
        let mut readers = known.readers.keys();
        known.jobs.contains(&(dataset, job.to_owned()))
            || readers.any(|reader| reader.dataset == dataset && reader.job == job)
    }

    /// Forgets the datasets and jobs for which `is_kept` is false, but not their readers that run.
    pub fn retain_jobs(&self, is_kept: impl Fn(u64, &str) -> bool) {
        let mut known = self.0.lock();
        known.jobs.retain(|(dataset, job)| is_kept(*dataset, job));
    }

    /// Returns the state of the readers on the node with this `rank` that have not been silent for long. Forgets those
    /// whose process does not run, silent ones whose process is unknown, and those of datasets that cannot be kept in
    /// chunks.
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
            reader.process.is_some() || state.is_heard()
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
        let heard = known.readers.iter().filter(|(_, state)| state.is_heard());
        let mut reports: Vec<ReadingReport> = heard.map(report).collect();
        // In one order, so that equal reports are equal.
        reports.sort_unstable_by_key(|one| one.reader.part);
        reports
    }
}

#[cfg(test)]
mod tests;
