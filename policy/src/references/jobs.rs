//! The table of jobs: the tasks of each submitted job, and the references that they still hold.
//!
//! Invariants: the count of a block is the number of references to it that are held, and is never
//! negative. A job that is not live holds none. A task that has ended holds none until its job is
//! submitted again.

mod held;

use held::{Held, LiveJob, Reference};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// The submitted jobs and their references, by job `J` (with its tenant), task `T` and block `B`.
///
/// Methods that change counts add each block whose count may have changed to `changed`, perhaps more
/// than once. Callers read the new numbers from [`count`](Self::count). `changed` may be a list that is
/// used at once, or a set that is sent as one batch of absolute counts.
#[derive(Debug, Clone)]
pub struct JobTable<J, T, B> {
    jobs: HashMap<J, Record<T, B>>,
    held: Held<B>,
    /// The age of the next accepted submission: ages grow, so the oldest live job has the least.
    next_age: u64,
}

/// A job that was submitted at least once.
#[derive(Debug, Clone)]
struct Record<T, B> {
    /// The highest attempt so far.
    attempt: u64,
    /// `None`: the job has ended.
    live: Option<LiveJob<T, B>>,
}

/// The result of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The job is live, and is the youngest.
    Accepted,
    /// The attempt is not above the job's highest so far. Nothing has changed.
    Ignored,
}

/// Why a submission was refused. The table is as before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError<T: Debug> {
    /// Two tasks of the job have the same name.
    #[error("task {task:?} is listed twice. Give each task of a job a name of its own")]
    TaskTwice {
        /// The name.
        task: T,
    },
    /// The table would hold 2^32 references or more.
    #[error("more than 4294967295 references in all. End jobs, or submit them with fewer inputs")]
    TooManyReferences,
}

/// A job in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStatus<'a, J> {
    /// The job.
    pub job: &'a J,
    /// The highest attempt that was submitted.
    pub attempt: u64,
    /// Whether the job has been submitted and has not ended since.
    pub is_live: bool,
    /// Tasks of the attempt; 0 if the job has ended.
    pub tasks: usize,
    /// Tasks that have ended.
    pub tasks_ended: usize,
    /// References that the tasks listed, held or not; 0 if the job has ended.
    pub references: usize,
}

/// A task of a live job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskStatus<'a, T> {
    /// Its name.
    pub task: &'a T,
    /// Whether it has ended.
    pub has_ended: bool,
    /// References that it listed.
    pub listed: usize,
    /// References that it holds.
    pub held: usize,
}

impl<J, T, B> Default for JobTable<J, T, B> {
    fn default() -> Self {
        Self {
            jobs: HashMap::new(),
            held: Held::default(),
            next_age: 0,
        }
    }
}

impl<J, T, B> JobTable<J, T, B>
where
    J: Eq + Hash,
    T: Eq + Hash + Clone + Debug,
    B: Ord + Hash + Clone,
{
    /// Takes a job with its tasks, each of which holds one reference to each different block of its
    /// inputs. An earlier attempt of the job loses all its references, and the order of jobs has it as
    /// the youngest (LRC, section III-B: counts begin when the job is submitted).
    ///
    /// # Errors
    /// The tasks are invalid: see [`SubmitError`]. Nothing has changed.
    pub fn submit<I: IntoIterator<Item = B>>(
        &mut self,
        job: J,
        attempt: u64,
        tasks: impl IntoIterator<Item = (T, I)>,
        changed: &mut impl Extend<B>,
    ) -> Result<Submitted, SubmitError<T>> {
        let last = self.jobs.get(&job).map(|record| record.attempt);
        if last.is_some_and(|last| attempt <= last) {
            return Ok(Submitted::Ignored);
        }
        let live = LiveJob::new(self.next_age, tasks)?;
        // Counts are `u32`, so that no count overflows if all references are to one block.
        let total = self.held.len() + live.listed();
        if u32::try_from(total).is_err() {
            return Err(SubmitError::TooManyReferences);
        }
        self.end(&job, changed);
        self.next_age += 1;
        for reference in live.all_references() {
            self.held.hold(reference, changed);
        }
        let live = Some(live);
        self.jobs.insert(job, Record { attempt, live });
        Ok(Submitted::Accepted)
    }

    /// Releases the reference of a task to a block, after the task has read it. Returns whether the task
    /// held it.
    pub fn consume(&mut self, job: &J, task: &T, block: &B, changed: &mut impl Extend<B>) -> bool {
        let live = self.jobs.get(job).and_then(|record| record.live.as_ref());
        let Some((live, &task)) = live.and_then(|live| Some((live, live.positions.get(task)?)))
        else {
            return false;
        };
        let (block, age) = (block.clone(), live.age);
        self.held.release(&Reference { block, age, task }, changed)
    }

    /// Releases one reference to the block: of the oldest live job that holds one, that of its first listed
    /// task that does. Returns whether there was one.
    pub fn consume_oldest(&mut self, block: &B, changed: &mut impl Extend<B>) -> bool {
        let oldest = self.held.oldest(block);
        oldest.is_some_and(|oldest| self.held.release(&oldest, changed))
    }

    /// Ends a task for this attempt of its job: it releases its references. Returns whether the task is
    /// one of a live job.
    pub fn done(&mut self, job: &J, task: &T, changed: &mut impl Extend<B>) -> bool {
        let Some((live, task)) = self.live_task(job, task) else {
            return false;
        };
        live.tasks[task].has_ended = true;
        let references: Vec<_> = live.references(task).collect();
        for reference in references {
            self.held.release(&reference, changed);
        }
        true
    }

    /// Takes back what a failed task has consumed, because the task will run again: it holds all its
    /// references, unless it has ended. Returns whether it is a task of a live job that has not ended.
    pub fn fail(&mut self, job: &J, task: &T, changed: &mut impl Extend<B>) -> bool {
        let Some((live, task)) = self.live_task(job, task) else {
            return false;
        };
        if live.tasks[task].has_ended {
            return false;
        }
        let references: Vec<_> = live.references(task).collect();
        for reference in references {
            self.held.hold(reference, changed);
        }
        true
    }

    /// Ends a job: all its references go. Its highest attempt is remembered, so that a late submission
    /// of an earlier one is ignored. Returns whether it was live.
    pub fn end(&mut self, job: &J, changed: &mut impl Extend<B>) -> bool {
        let ended = self.jobs.get_mut(job).and_then(|record| record.live.take());
        let Some(live) = ended else { return false };
        for reference in live.all_references() {
            self.held.release(&reference, changed);
        }
        true
    }

    /// Forgets a job that has ended, with its highest attempt, to bound the memory of a table that lives
    /// long. Returns whether it was known and had ended.
    pub fn forget(&mut self, job: &J) -> bool {
        let has_ended = (self.jobs.get(job)).is_some_and(|record| record.live.is_none());
        has_ended && self.jobs.remove(job).is_some()
    }

    /// Returns the number of references to the block that are held.
    #[must_use]
    pub fn count(&self, block: &B) -> u32 {
        self.held.count(block)
    }

    /// Returns the blocks with a count above 0, in no order.
    pub fn counts(&self) -> impl Iterator<Item = (&B, u32)> {
        self.held.counts()
    }

    /// Returns the number of references that are held.
    #[must_use]
    pub fn references(&self) -> usize {
        self.held.len()
    }

    /// Returns all jobs, in no order.
    pub fn jobs(&self) -> impl Iterator<Item = JobStatus<'_, J>> {
        self.jobs.iter().map(|(job, record)| {
            let tasks = record.live.as_ref().map_or(&[][..], |live| &live.tasks);
            JobStatus {
                job,
                attempt: record.attempt,
                is_live: record.live.is_some(),
                tasks: tasks.len(),
                tasks_ended: tasks.iter().filter(|task| task.has_ended).count(),
                references: tasks.last().map_or(0, |task| task.inputs_end as usize),
            }
        })
    }

    /// Returns the tasks of a live job, in the order in which they were listed.
    pub fn tasks(&self, job: &J) -> impl Iterator<Item = TaskStatus<'_, T>> {
        let live = self.jobs.get(job).and_then(|record| record.live.as_ref());
        let mut names: Vec<(&T, u32)> = live
            .iter()
            .flat_map(|live| live.positions.iter().map(|(task, at)| (task, *at)))
            .collect();
        names.sort_unstable_by_key(|(_, at)| *at);
        names.into_iter().filter_map(move |(task, at)| {
            let (live, at) = (live?, at as usize);
            let references = || live.references(at);
            Some(TaskStatus {
                task,
                has_ended: live.tasks[at].has_ended,
                listed: references().count(),
                held: references().filter(|one| self.held.contains(one)).count(),
            })
        })
    }

    fn live_task(&mut self, job: &J, task: &T) -> Option<(&mut LiveJob<T, B>, usize)> {
        let live = self.jobs.get_mut(job)?.live.as_mut()?;
        let position = *live.positions.get(task)?;
        Some((live, position as usize))
    }
}

#[cfg(test)]
mod tests;
