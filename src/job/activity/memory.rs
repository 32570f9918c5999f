//! What an activity leaves to the next daemon, and how that one continues it. See
//! [`crate::job::journaled`].

#[cfg(test)]
mod tests;

use super::measured::Measured;
use super::{ACTIVITIES_MAX, Activities, DatasetItems, JobActivity, Key};
use crate::job::JobName;
use crate::job::journaled::{Clock, JobJournal, JobOf, Record, SavedJob, TokensLeft};
use crate::job::meter::Recent;
use crate::job::progress::Ordinals;
use crate::job::tokens::Tokens;
use crate::journal::JournalPart;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The jobs of a journal, while it is read.
#[derive(Debug)]
pub struct RememberedJobs {
    clock: Clock,
    now: Instant,
    jobs: HashMap<u32, RememberedJob>,
    /// Jobs of which a snapshot has told a part.
    unfinished: HashMap<u32, RememberedJob>,
    tokens: HashMap<u32, TokensLeft>,
    tables: HashMap<u32, Ordinals>,
    /// The largest number of a job or a table.
    last: u32,
}

#[derive(Debug)]
struct RememberedJob {
    key: Key,
    table: u32,
    measured: Measured,
}

impl RememberedJob {
    /// `None` if its name is none.
    fn new(of: &JobOf<'_>, active: Instant) -> Option<Self> {
        let job: Option<JobName> = match &of.job {
            Some(name) => Some(name.parse().ok()?),
            None => None,
        };
        Some(Self {
            key: (job, Arc::from(&*of.dataset)),
            table: of.table,
            measured: Measured::new(active),
        })
    }

    fn of_saved(saved: SavedJob<'_>, clock: &Clock, now: Instant) -> Option<Self> {
        let mut job = Self::new(&saved.of, clock.instant(saved.active))?;
        let began = clock.instant(saved.began);
        let measured = &mut job.measured;
        measured.progress = saved.progress.into_owned();
        measured.estimator.restore(saved.windows, now);
        measured.throughput = Recent::continued(began, saved.throughput.into_owned());
        measured.remote = Recent::continued(began, saved.remote.into_owned());
        measured.probe_bytes = saved.probe_bytes;
        measured.own_bytes = saved.own_bytes;
        for process in &*saved.processes {
            measured.observe(*process);
        }
        Some(job)
    }
}

impl Default for RememberedJobs {
    fn default() -> Self {
        Self::new(Clock::of_machine(), Instant::now())
    }
}

impl RememberedJobs {
    /// Creates an empty table at `now`.
    #[must_use]
    pub fn new(clock: Clock, now: Instant) -> Self {
        Self {
            clock,
            now,
            jobs: HashMap::new(),
            unfinished: HashMap::new(),
            tokens: HashMap::new(),
            tables: HashMap::new(),
            last: 0,
        }
    }

    /// Takes the next record. One that cannot be read, or that belongs to no known job, is ignored.
    pub fn take(&mut self, record: &[u8]) {
        match postcard::from_bytes(record) {
            Ok(record) => self.replay(record),
            Err(error) => tracing::debug!(%error, "a record of no job"),
        }
    }

    fn replay(&mut self, record: Record<'_>) {
        match record {
            Record::Began { id, of, at } => {
                self.last = self.last.max(id).max(of.table);
                let job = RememberedJob::new(&of, self.clock.instant(at));
                self.jobs.extend(job.map(|job| (id, job)));
            }
            Record::Forgotten { id } => {
                self.jobs.remove(&id);
                self.unfinished.remove(&id);
                self.tokens.remove(&id);
            }
            Record::Item { table, number, tag } => {
                let table = self.tables.entry(table).or_default();
                table.restore(number, &[tag]);
            }
            Record::Items { table, first, tags } => {
                let table = self.tables.entry(table).or_default();
                table.restore(first, &tags);
            }
            Record::Tokens { id, left } => drop(self.tokens.insert(id, left)),
            Record::Saved { id, job } => {
                self.last = self.last.max(id).max(job.of.table);
                let job = RememberedJob::of_saved(*job, &self.clock, self.now);
                self.unfinished.extend(job.map(|job| (id, job)));
            }
            Record::Part { id, part } => {
                if let Some(job) = self.unfinished.get_mut(&id) {
                    job.measured.progress.add_part(part);
                }
            }
            Record::Whole { id } => {
                let job = self.unfinished.remove(&id);
                self.jobs.extend(job.map(|job| (id, job)));
            }
            Record::Time { id, at } => {
                let at = self.clock.instant(at);
                self.change(id, |measured| measured.active = at);
            }
            Record::Read { id, item, read } => self.change(id, |measured| {
                measured.read(item, &read.counts(), measured.active);
            }),
            Record::Uncached { id, bytes, charged } => self.change(id, |measured| {
                measured.read_uncached(bytes, charged, measured.active);
            }),
            Record::Own { id, bytes } => self.change(id, |measured| {
                measured.read_by_itself(bytes, measured.active);
            }),
            Record::Expects { id, items, nodes } => self.change(id, |measured| {
                measured.progress.expect(items, nodes);
            }),
            Record::Process { id, process } => self.change(id, |measured| {
                measured.observe(process);
            }),
            Record::Window { id, end } => {
                let now = self.now;
                self.change(id, |measured| measured.estimator.add(end, now));
            }
        }
    }

    fn change(&mut self, id: u32, change: impl FnOnce(&mut Measured)) {
        if let Some(job) = self.jobs.get_mut(&id) {
            change(&mut job.measured);
        }
    }
}

impl JobActivity {
    /// Tells the journal that it has begun.
    pub(super) fn tell_begin(&self, now: Instant) {
        if let Some(journal) = &self.journal {
            let (id, of, at) = (journal.id, self.of(), journal.clock.ms(now));
            journal.put(&Record::Began { id, of, at });
        }
    }

    fn of(&self) -> JobOf<'_> {
        let name = self.job.as_ref().map(JobName::as_str);
        JobOf {
            job: name.map(Cow::Borrowed),
            dataset: Cow::Borrowed(&self.dataset),
            table: self.items.table,
        }
    }

    /// Tells the journal that it has left the table. Open files may still use it.
    pub(super) fn forget(&self) {
        let mut measured = self.measured.lock();
        measured.is_forgotten = true;
        if let Some(journal) = &self.journal {
            journal.put(&Record::Forgotten { id: journal.id });
        }
    }

    /// Tells the journal its whole state, for a snapshot.
    fn save(&self) {
        let Some(journal) = &self.journal else {
            return;
        };
        let id = journal.id;
        let mut measured = self.measured.lock();
        if measured.is_forgotten {
            return;
        }
        let measured = &mut *measured;
        let clock = &journal.clock;
        let (began, throughput) = measured.throughput.parts();
        let (_, remote) = measured.remote.parts();
        let job = Box::new(SavedJob {
            of: self.of(),
            active: clock.ms(measured.active),
            progress: Cow::Borrowed(&measured.progress),
            windows: measured.estimator.windows(),
            began: clock.ms(began),
            throughput: Cow::Borrowed(throughput),
            remote: Cow::Borrowed(remote),
            probe_bytes: measured.probe_bytes,
            own_bytes: measured.own_bytes,
            processes: Cow::Borrowed(&measured.processes),
        });
        // The lock is held until the end, so that no read comes between. A large dataset has a few hundred parts.
        journal.put_saved(&Record::Saved { id, job });
        measured.progress.parts(|part| {
            journal.put_saved(&Record::Part { id, part });
        });
        journal.put_saved(&Record::Whole { id });
        measured.told = measured.active;
        self.tokens.save();
    }
}

impl Activities {
    /// Continues the jobs of an earlier daemon, if there was one, and keeps all jobs in `journal` from now on. Called
    /// before the first open.
    pub fn outlive(&self, journal: &JournalPart, remembered: RememberedJobs) {
        let RememberedJobs {
            clock,
            now,
            jobs,
            tokens,
            mut tables,
            last,
            ..
        } = remembered;
        let mut table = self.table.lock();
        table.journal = Some((journal.clone(), clock));
        table.next = table.next.max(last);
        let mut items: HashMap<u32, Arc<DatasetItems>> = HashMap::new();
        for (id, job) in jobs.into_iter().take(ACTIVITIES_MAX) {
            let number = job.table;
            let items = items.entry(number).or_insert_with(|| {
                let ordinals = Mutex::new(tables.remove(&number).unwrap_or_default());
                Arc::new(DatasetItems {
                    table: number,
                    ordinals,
                })
            });
            let journal = JobJournal::new(journal.clone(), id, clock);
            let left = tokens.get(&id).copied().unwrap_or_default();
            let mut measured = job.measured;
            measured.reported.0 = now;
            let activity = Arc::new(JobActivity {
                job: job.key.0.clone(),
                dataset: Arc::clone(&job.key.1),
                items: Arc::clone(items),
                tokens: Arc::new(Tokens::resumed(journal.clone(), left)),
                journal: Some(journal),
                measured: Mutex::new(measured),
            });
            table.of.insert(job.key, activity);
        }
    }

    /// Commits the records of the reads so far.
    pub fn commit(&self) {
        // The table is not locked meanwhile, because opens wait for it.
        let journal = self.table.lock().journal.clone();
        if let Some((journal, _)) = journal {
            journal.commit();
        }
    }

    /// Tells the journal of all jobs, for its snapshot.
    pub fn tell_all(&self) {
        let mut tables: HashMap<u32, Arc<DatasetItems>> = HashMap::new();
        for activity in self.all() {
            let Some(journal) = &activity.journal else {
                return;
            };
            let table = activity.items.table;
            tables.entry(table).or_insert_with(|| {
                let items = Arc::clone(&activity.items);
                for (first, tags) in items.ordinals.lock().parts() {
                    let tags = Cow::Borrowed(tags);
                    journal.put_saved(&Record::Items { table, first, tags });
                }
                items
            });
            activity.save();
        }
    }
}
