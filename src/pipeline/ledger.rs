//! The pipelines that were submitted on this node and read one dataset. Pure; time is an argument.

use super::delivery::{Counted, Delivery};
use super::line::{Consume, Tasks};
use crate::model::{CountBatch, OwnerId, PipelineReport};
use copperfs_policy::references::{JobTable, SubmitError, Submitted};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The number of ended jobs whose attempts are remembered, so that a late submission of an earlier one is ignored.
const ENDED_MAX: usize = 4096;

/// A job of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The job's name.
    pub job: Arc<str>,
}

/// What is known of a live job besides its tasks.
#[derive(Debug, Clone)]
pub(super) struct JobRecord {
    /// The name of the run.
    pub(super) app: String,
    /// The user that has submitted it.
    pub(super) user: u32,
    pub(super) consume: Consume,
    pub(super) began: Duration,
    pub(super) expires: Duration,
    /// References that count for the limit of its tenant: those that its tasks listed, or the number of its tasks or files
    /// if there are more of them.
    pub(super) references: usize,
    /// Its inputs, each with the size in bytes, for people.
    pub(super) files: Arc<[(Box<str>, u64)]>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The dataset's name.
    pub(super) name: String,
    pub(super) table: JobTable<JobKey, Box<str>, u64>,
    /// The live jobs.
    pub(super) jobs: HashMap<JobKey, JobRecord>,
    /// The tenants of the live jobs with each name.
    tenants: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// Ended jobs, the oldest first.
    ended: VecDeque<JobKey>,
    /// The items that jobs refer to.
    items: HashMap<u64, Item>,
    /// Bytes of items with a count above 0.
    bytes: u64,
    pub(super) delivery: Delivery,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    len: u32,
    is_referenced: bool,
}

impl Counted for JobTable<JobKey, Box<str>, u64> {
    fn count(&self, key: u64) -> u32 {
        Self::count(self, &key)
    }

    fn keys(&self) -> impl Iterator<Item = u64> {
        self.counts().map(|(key, _)| *key)
    }
}

/// A job whose inputs were found.
pub(super) struct ResolvedJob {
    pub(super) key: JobKey,
    pub(super) attempt: u64,
    pub(super) record: JobRecord,
    /// The tasks, each with the keys of its items.
    pub(super) tasks: Tasks<u64>,
    /// The items, each with its length in bytes.
    pub(super) items: HashMap<u64, u32>,
}

impl Ledger {
    pub(super) fn new(owner: OwnerId, dataset: u64, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            table: JobTable::default(),
            jobs: HashMap::new(),
            tenants: HashMap::new(),
            ended: VecDeque::new(),
            items: HashMap::new(),
            bytes: 0,
            delivery: Delivery::new(owner, dataset),
        }
    }

    /// Takes a job. An earlier attempt of it is replaced.
    ///
    /// # Errors
    /// See [`JobTable::submit`].
    pub(super) fn submit(&mut self, job: ResolvedJob) -> Result<Submitted, SubmitError<Box<str>>> {
        let mut changed = BTreeSet::new();
        let (ids, ends, keys) = job.tasks.into_parts();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let inputs = starts
            .zip(&ends)
            .map(|(start, end)| keys[start..*end].iter().copied());
        let tasks = ids.into_iter().zip(inputs);
        let key = job.key.clone();
        let submitted = self.table.submit(key, job.attempt, tasks, &mut changed)?;
        if submitted == Submitted::Accepted {
            for (key, len) in job.items {
                let is_referenced = false;
                self.items.entry(key).or_insert(Item { len, is_referenced });
            }
            self.ended.retain(|ended| *ended != job.key);
            let tenants = self.tenants.entry(Arc::clone(&job.key.job)).or_default();
            if !tenants.contains(&job.key.tenant) {
                tenants.push(Arc::clone(&job.key.tenant));
            }
            self.jobs.insert(job.key, job.record);
        }
        self.follow(changed);
        Ok(submitted)
    }

    /// Returns whether the task is one of a live job.
    pub(super) fn done(&mut self, job: &JobKey, task: &str) -> bool {
        let mut changed = BTreeSet::new();
        let is_known = self.table.done(job, &Box::from(task), &mut changed);
        self.follow(changed);
        is_known
    }

    /// Returns whether the task is one of a live job, and has not ended.
    pub(super) fn fail(&mut self, job: &JobKey, task: &str) -> bool {
        let mut changed = BTreeSet::new();
        let is_known = self.table.fail(job, &Box::from(task), &mut changed);
        self.follow(changed);
        is_known
    }

    /// Returns whether the job was live.
    pub(super) fn end(&mut self, job: &JobKey) -> bool {
        let mut changed = BTreeSet::new();
        let was_live = self.table.end(job, &mut changed);
        self.follow(changed);
        if self.jobs.remove(job).is_some() {
            self.ended.push_back(job.clone());
            if let Some(tenants) = self.tenants.get_mut(&job.job) {
                tenants.retain(|tenant| *tenant != job.tenant);
                if tenants.is_empty() {
                    self.tenants.remove(&job.job);
                }
            }
        }
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.table.forget(&oldest);
        }
        if self.jobs.is_empty() {
            // No task can take its references back.
            self.items = HashMap::new();
        }
        was_live
    }

    /// Forgets the attempts of ended jobs: their dataset is gone, and another one may have the same name.
    pub(super) fn forget_ended(&mut self) {
        for job in self.ended.drain(..) {
            self.table.forget(&job);
        }
    }

    /// Releases the references of a task to items that its process has read. `task` is `job/task`, and both parts may
    /// contain slashes.
    pub(super) fn read(&mut self, user: u32, task: &str, items: &[u64]) {
        let mut changed = BTreeSet::new();
        let reads = |record: &JobRecord| record.consume == Consume::Read && record.user == user;
        for (at, _) in task.match_indices('/') {
            let (job, task) = (&task[..at], Box::from(&task[at + 1..]));
            let Some((job, tenants)) = self.tenants.get_key_value(job) else {
                continue;
            };
            for tenant in tenants {
                let key = JobKey {
                    tenant: Arc::clone(tenant),
                    job: Arc::clone(job),
                };
                if self.jobs.get(&key).is_some_and(reads) {
                    for item in items {
                        self.table.consume(&key, &task, item, &mut changed);
                    }
                }
            }
        }
        self.follow(changed);
    }

    /// Returns the live jobs that have expired at `now`.
    pub(super) fn expired(&self, now: Duration) -> Vec<JobKey> {
        let expired = self.jobs.iter().filter(|(_, record)| record.expires <= now);
        expired.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the next batch of counts for a home.
    pub(super) fn next(&mut self, rank: u32, now: Duration) -> Option<CountBatch> {
        self.delivery.next(rank, &self.table, now)
    }

    pub(super) fn report(&self, dataset: u64) -> PipelineReport {
        PipelineReport {
            dataset,
            jobs: u32::try_from(self.jobs.len()).unwrap_or(u32::MAX),
            references: self.table.references() as u64,
            bytes: self.bytes,
        }
    }

    /// Follows changes of counts.
    fn follow(&mut self, changed: BTreeSet<u64>) {
        for key in &changed {
            if let Some(item) = self.items.get_mut(key) {
                let is_referenced = self.table.count(key) > 0;
                match (item.is_referenced, is_referenced) {
                    (false, true) => self.bytes += u64::from(item.len),
                    (true, false) => self.bytes -= u64::from(item.len),
                    _ => {}
                }
                item.is_referenced = is_referenced;
            }
        }
        self.delivery.changed(changed);
    }
}

#[cfg(test)]
mod tests;
