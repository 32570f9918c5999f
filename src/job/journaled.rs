//! The records from which the next daemon continues the jobs of this node.
//!
//! A record says what has happened to one job or item, and is made under the lock of that thing. So the state
//! after any number of records is one that the daemon has had, or had a moment later. A snapshot has the whole
//! state of each job ([`Record::Saved`] to [`Record::Whole`]), which replaces all that earlier records say of
//! it.
//!
//! Records of reads are not committed by themselves, because a read should cost no system call for them. They
//! are committed with the next open, or within a second. So the last reads before a daemon is killed may be
//! unknown to the next one. Payments are different ([`TokensLeft`]).

use super::identity::Process;
use super::meter::RecentBytes;
use super::progress::{EpochCounts, ItemOutcome, Progress, ProgressPart};
use super::rate::{WindowEnd, Windows};
use crate::journal::JournalPart;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// How precise the times of reads are: a record more for each.
pub(super) const TIME_STEP: Duration = Duration::from_millis(100);

/// Converts times. All processes of a machine have the same numbers until it starts again.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    at: Instant,
    /// The milliseconds since the machine has started, at this time.
    ms: u64,
}

impl Clock {
    /// Returns that of this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let ms = i128::from(now.tv_sec) * 1000 + i128::from(now.tv_nsec) / 1_000_000;
        Self {
            at: Instant::now(),
            ms: u64::try_from(ms).unwrap_or(0),
        }
    }

    pub(super) fn ms(&self, time: Instant) -> u64 {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (after, before) = (
            time.saturating_duration_since(self.at),
            self.at.saturating_duration_since(time),
        );
        (self.ms.saturating_add(ms(after))).saturating_sub(ms(before))
    }

    /// Returns the time of a millisecond. One that cannot be is the clock's own.
    pub(super) fn instant(&self, ms: u64) -> Instant {
        let after = Duration::from_millis(ms.saturating_sub(self.ms));
        let before = Duration::from_millis(self.ms.saturating_sub(ms));
        let time = self.at.checked_add(after);
        time.and_then(|time| time.checked_sub(before))
            .unwrap_or(self.at)
    }
}

/// A read of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ItemRead {
    /// The daemon has answered.
    Answered(ItemOutcome),
    /// The kernel's page cache had these bytes.
    PageCached(u64),
}

impl ItemRead {
    pub(super) fn counts(self) -> EpochCounts {
        match self {
            Self::Answered(outcome) => EpochCounts::of_read(outcome),
            Self::PageCached(bytes) => EpochCounts::of_page_cache(bytes),
        }
    }
}

/// The tokens of a job, as far as they are known without a record for each read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TokensLeft {
    /// The largest number of bytes that was ever taken at once. A bucket owes no more than one take, except for
    /// the bytes of `owed`. So this is the debt of a daemon that was killed, at the most.
    pub(super) largest: u64,
    /// The bytes that were owed at this time, by the limit at that time.
    pub(super) owed: u64,
    /// In milliseconds of the [`Clock`].
    pub(super) at: u64,
    /// Bytes per second.
    pub(super) limit: Option<u64>,
}

/// All of a job's reading of a dataset but for the long parts of its progress, and its tokens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedJob<'a> {
    pub(super) of: JobOf<'a>,
    /// When it was active last.
    pub(super) active: u64,
    pub(super) progress: Cow<'a, Progress>,
    pub(super) windows: Windows,
    /// When the measurements of bytes have begun.
    pub(super) began: u64,
    pub(super) throughput: Cow<'a, RecentBytes>,
    pub(super) remote: Cow<'a, RecentBytes>,
    pub(super) probe_bytes: u64,
    pub(super) own_bytes: u64,
    pub(super) processes: Cow<'a, [Process]>,
}

/// A job and the dataset that it reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct JobOf<'a> {
    /// `None`: all readers that belong to no job.
    pub(super) job: Option<Cow<'a, str>>,
    pub(super) dataset: Cow<'a, str>,
    /// The table with the numbers of the dataset's items.
    pub(super) table: u32,
}

/// See the module. Encoded by postcard, so new kinds come last. `id` is the number of a job and dataset, which
/// is never used again.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record<'a> {
    /// A job begins to read a dataset.
    Began { id: u32, of: JobOf<'a>, at: u64 },
    /// It was forgotten.
    Forgotten { id: u32 },
    /// An item has a number: see [`super::progress::Ordinals`].
    Item { table: u32, number: u32, tag: u32 },
    /// The same for many.
    Items {
        table: u32,
        first: u32,
        tags: Cow<'a, [u32]>,
    },
    /// The time of the records of a job that follow.
    Time { id: u32, at: u64 },
    /// An item was read.
    Read {
        id: u32,
        item: Option<u32>,
        read: ItemRead,
    },
    /// An item was read while the job was measured without a cache.
    Uncached { id: u32, bytes: u64, charged: u64 },
    /// The job has read bytes with its own credentials.
    Own { id: u32, bytes: u64 },
    /// How many items an epoch has here, and on how many nodes it reads.
    Expects {
        id: u32,
        items: Option<u64>,
        nodes: u32,
    },
    /// A process of the job reads here.
    Process { id: u32, process: Process },
    /// A window of the estimate of its ideal rate has ended.
    Window { id: u32, end: WindowEnd },
    /// Its tokens.
    Tokens { id: u32, left: TokensLeft },
    /// The beginning of a job's whole state.
    Saved { id: u32, job: Box<SavedJob<'a>> },
    /// A part of that.
    Part { id: u32, part: ProgressPart<'a> },
    /// The end of it. Without this it does not count.
    Whole { id: u32 },
}

/// About the bytes of a record.
const RECORD_BYTES: u64 = 16;

/// The journal of one job and dataset. Cheap to clone.
#[derive(Clone)]
pub(super) struct JobJournal {
    part: JournalPart,
    pub(super) id: u32,
    pub(super) clock: Clock,
}

impl JobJournal {
    pub(super) fn new(part: JournalPart, id: u32, clock: Clock) -> Self {
        Self { part, id, clock }
    }

    /// Adds a record, which a snapshot makes superfluous.
    pub(super) fn put(&self, record: &Record<'_>) {
        self.part.put(record, RECORD_BYTES);
    }

    /// Adds a record of a snapshot.
    pub(super) fn put_saved(&self, record: &Record<'_>) {
        self.part.put(record, 0);
    }

    /// Adds a record, and commits all.
    pub(super) fn commit(&self, record: &Record<'_>) {
        self.put(record);
        self.part.commit();
    }
}

impl std::fmt::Debug for JobJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("JobJournal");
        shown.field("id", &self.id).finish_non_exhaustive()
    }
}
