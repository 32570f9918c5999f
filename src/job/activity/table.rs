//! All jobs that read datasets on this node.

use super::{ActivityReport, JobActivity};
use crate::job::identity::{Proc, Reader};
use crate::job::name::JobName;
use crate::job::progress::Ordinals;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Jobs and datasets on one node: more than a node runs at a time, few enough for one report. When it
/// is full the job that was idle the longest is forgotten; it begins anew when it reads again.
pub(super) const ACTIVITIES_MAX: usize = 1024;

type Key = (Option<JobName>, Arc<str>);

/// The table of what jobs do on this node.
#[derive(Debug, Default)]
pub struct Activities {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    activities: HashMap<Key, Arc<JobActivity>>,
    /// The items of each dataset that have been seen here. Bounded as the activities are.
    ordinals: HashMap<Arc<str>, Arc<Mutex<Ordinals>>>,
}

impl Activities {
    /// Of nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The activity of `reader`'s job on `dataset`, made on its first open. `reader`: as
    /// [`Readers::reader`](crate::job::Readers::reader) has found it; without one, or of no job, all
    /// such readers of the dataset together. To be kept with the open file.
    #[must_use]
    pub fn of(&self, reader: Option<&Reader>, dataset: &str, now: Instant) -> Arc<JobActivity> {
        let job = reader.and_then(|reader| reader.job.clone());
        let mut table = self.table.lock();
        let key = (job, Arc::from(dataset));
        let activity = if let Some(activity) = table.activities.get(&key) {
            Arc::clone(activity)
        } else {
            table.add(key, now)
        };
        drop(table);
        if let Some(reader) = reader.filter(|reader| reader.job.is_some()) {
            activity.seen(reader);
        }
        activity
    }

    /// What `job` (`None`: readers of none) does with a dataset here, if anything.
    #[must_use]
    pub fn get(&self, job: Option<&JobName>, dataset: &str) -> Option<Arc<JobActivity>> {
        let key = (job.cloned(), Arc::from(dataset));
        self.table.lock().activities.get(&key).cloned()
    }

    /// The activities of a job, one for each dataset that it reads here.
    #[must_use]
    pub fn of_job(&self, job: &JobName) -> Vec<Arc<JobActivity>> {
        let all = self.all();
        all.into_iter()
            .filter(|activity| activity.job() == Some(job))
            .collect()
    }

    /// How many there are: changes when a job is new here.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().activities.len()
    }

    /// All of them, in no order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<JobActivity>> {
        self.table.lock().activities.values().cloned().collect()
    }

    /// What to report this second, in the order of names. Looks up in `proc` which processes run, so
    /// it is not for a thread that answers requests.
    #[must_use]
    pub fn reports(&self, proc: &Proc, now: Instant) -> Vec<ActivityReport> {
        let mut reports: Vec<ActivityReport> = self
            .all()
            .iter()
            .map(|activity| {
                activity.look(proc);
                activity.report(now)
            })
            .collect();
        reports.sort_by(|a, b| (&a.job, &a.dataset).cmp(&(&b.job, &b.dataset)));
        reports
    }

    /// Forgets a job that has ended, on all datasets. Files that it still has open are counted to the
    /// last, and not reported.
    pub fn forget(&self, job: &JobName) {
        let mut table = self.table.lock();
        table
            .activities
            .retain(|(name, _), _| name.as_ref() != Some(job));
        table.drop_unread();
    }
}

impl Table {
    fn add(&mut self, key: Key, now: Instant) -> Arc<JobActivity> {
        if self.activities.len() >= ACTIVITIES_MAX {
            self.drop_idlest();
        }
        let (job, dataset) = &key;
        let ordinals = self.ordinals.entry(Arc::clone(dataset)).or_default();
        let activity = Arc::new(JobActivity::new(
            job.clone(),
            Arc::clone(dataset),
            Arc::clone(ordinals),
            now,
        ));
        self.activities.insert(key, Arc::clone(&activity));
        activity
    }

    fn drop_idlest(&mut self) {
        let idlest = self
            .activities
            .iter()
            .min_by_key(|(_, activity)| activity.state.lock().active)
            .map(|(key, _)| key.clone());
        if let Some(key) = idlest {
            self.activities.remove(&key);
            self.drop_unread();
        }
    }

    /// Forgets the items of datasets that nobody reads any more.
    fn drop_unread(&mut self) {
        let Self {
            activities,
            ordinals,
        } = self;
        ordinals.retain(|dataset, _| activities.keys().any(|(_, read)| read == dataset));
    }
}

impl JobActivity {
    /// Looks which of its processes still run, and forgets the others.
    fn look(&self, proc: &Proc) {
        let processes = self.state.lock().processes.clone();
        let gone: Vec<_> = processes
            .into_iter()
            .filter(|process| !proc.runs(*process))
            .collect();
        let mut state = self.state.lock();
        state.processes.retain(|process| !gone.contains(process));
        state.running = u32::try_from(state.processes.len()).unwrap_or(u32::MAX);
    }
}
