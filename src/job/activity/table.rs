//! All jobs that read datasets on this node.

use super::JobActivity;
use crate::job::identity::{Proc, Reader};
use crate::job::name::JobName;
use crate::job::progress::Ordinals;
use crate::model::JobReport;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// The maximum number of pairs of job and dataset on a node: more than a node runs at a time, and few
/// enough for one report. When the table is full, the pair that was idle the longest is forgotten. It
/// starts again with its next read.
pub(super) const ACTIVITIES_MAX: usize = 1024;

type Key = (Option<JobName>, Arc<str>);

/// The activities of all jobs on this node.
#[derive(Debug, Default)]
pub struct Activities {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    activities: HashMap<Key, Arc<JobActivity>>,
    /// The observed items of each dataset. Bounded like the activities.
    ordinals: HashMap<Arc<str>, Arc<Mutex<Ordinals>>>,
}

impl Activities {
    /// Returns the activity of `reader`'s job on `dataset`, and creates it on the first open. Readers
    /// without a job share one activity for each dataset. The caller keeps it with the open file.
    #[must_use]
    pub fn of(&self, reader: Option<&Reader>, dataset: &str, now: Instant) -> Arc<JobActivity> {
        let job = reader.and_then(|reader| reader.job.clone());
        let mut table = self.table.lock();
        let key = (job, Arc::from(dataset));
        let activity = match table.activities.get(&key) {
            Some(activity) => Arc::clone(activity),
            None => table.add(key, now),
        };
        drop(table);
        if let Some(reader) = reader.filter(|reader| reader.job.is_some()) {
            activity.observe(reader);
        }
        activity
    }

    /// Returns the number of activities, which changes when a job begins to read here.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.lock().activities.len()
    }

    /// Returns all activities, in no particular order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<JobActivity>> {
        self.table.lock().activities.values().cloned().collect()
    }

    /// Returns this second's reports, ordered by name. Not for a thread that answers requests, because it
    /// looks up in `proc` which processes run.
    #[must_use]
    pub fn reports(&self, proc: &Proc, now: Instant) -> Vec<JobReport> {
        // The table is not locked while `/proc` is read.
        let mut all = self.all();
        all.sort_by(|a, b| (&a.job, &a.dataset).cmp(&(&b.job, &b.dataset)));
        let reports = all.iter().map(|activity| activity.report(proc, now));
        reports.collect()
    }
}

impl Table {
    fn add(&mut self, key: Key, now: Instant) -> Arc<JobActivity> {
        if self.activities.len() >= ACTIVITIES_MAX {
            self.drop_idlest();
        }
        let (job, dataset) = key.clone();
        let ordinals = Arc::clone(self.ordinals.entry(Arc::clone(&dataset)).or_default());
        let activity = Arc::new(JobActivity::new(job, dataset, ordinals, now));
        self.activities.insert(key, Arc::clone(&activity));
        activity
    }

    fn drop_idlest(&mut self) {
        let idlest = self
            .activities
            .iter()
            .min_by_key(|(_, activity)| activity.measured.lock().active)
            .map(|(key, _)| key.clone());
        if let Some(key) = idlest {
            self.activities.remove(&key);
            let mut left = self.activities.keys();
            // The ordinals of a dataset are useless without a reader.
            if !left.any(|(_, dataset)| *dataset == key.1) {
                self.ordinals.remove(&key.1);
            }
        }
    }
}
