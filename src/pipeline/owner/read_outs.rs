//! Pipelines of a node, for people and tools.

use super::{Pipelines, kept_by_references};
use crate::model::slots::{items_of, key_of, key_of_content, stripe_extent};
use crate::pipeline::ledger::JobKey;
use crate::pipeline::line::LineError;
use crate::pipeline::view::{ItemCount, JobView, TaskView};
use copperfs_overlay::ItemPath;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Pipelines {
    /// Returns the live jobs, by tenant and name: those of one user, or all.
    #[must_use]
    pub fn jobs(&self, user: Option<u32>) -> Vec<JobView> {
        let now = self.now();
        let state = self.0.state.lock();
        let mut views: Vec<JobView> = Vec::new();
        for ledger in state.ledgers.values() {
            for status in ledger.table.jobs().filter(|status| status.is_live) {
                let record = ledger.jobs.get(status.job);
                let record = record.filter(|record| user.is_none_or(|user| record.user == user));
                let view = |record| JobView::new(&ledger.name, &status, record, now);
                views.extend(record.map(view));
            }
        }
        views.sort_by(|a, b| (&a.tenant, &a.job).cmp(&(&b.tenant, &b.job)));
        views
    }

    /// Returns the tasks of a live job. `None`: there is no such job, or it is another user's.
    #[must_use]
    pub fn tasks(&self, user: Option<u32>, tenant: &str, job: &str) -> Option<Vec<TaskView>> {
        let key = JobKey {
            tenant: tenant.into(),
            job: job.into(),
        };
        let state = self.0.state.lock();
        let ledger = state.ledgers.get(state.jobs.get(&key)?)?;
        let record = ledger.jobs.get(&key)?;
        if user.is_some_and(|user| record.user != user) {
            return None;
        }
        let tasks = ledger.table.tasks(&key);
        Some(tasks.map(TaskView::from).collect())
    }

    /// Returns the counts of the items of a dataset below `below` (relative to its root; empty: all of it) that the
    /// jobs of this node refer to or have referred to, in the order of their paths, at most `count_max`. The jobs are
    /// those of one user, or all.
    ///
    /// # Errors
    /// There is no such dataset.
    pub fn counts(
        &self,
        user: Option<u32>,
        dataset: &str,
        below: &str,
        count_max: usize,
    ) -> Result<Vec<ItemCount>, LineError> {
        let decision = Arc::clone(&self.0.decisions.borrow());
        let dataset = kept_by_references(&decision, dataset)?;
        let catalog = self.0.node.catalog(dataset.id);
        let state = self.0.state.lock();
        let Some(ledger) = state.ledgers.get(&dataset.id) else {
            return Ok(Vec::new());
        };
        let records = ledger.jobs.values();
        let records = records.filter(|record| user.is_none_or(|user| record.user == user));
        let is_below = |name: &str| {
            let rest = name.strip_prefix(below.trim_matches('/'));
            rest.is_some_and(|rest| below.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        let files = records.flat_map(|record| record.files.iter());
        let files = files.filter(|(name, _)| is_below(name));
        let files: BTreeMap<&str, u64> = files.map(|(name, size)| (&**name, *size)).collect();
        let items = files
            .into_iter()
            .flat_map(|(name, size)| (0..items_of(size)).map(move |stripe| (name, size, stripe)));
        let view = |(name, size, stripe): (&str, u64, u64)| {
            let extent = stripe_extent(size, stripe);
            let key = match &catalog {
                Some(catalog) => {
                    let piece = catalog.piece_at(name.as_bytes(), size, extent.start)?;
                    key_of_content(piece.content.as_ref()?)
                }
                None => key_of(&join(&dataset.path, name)?, stripe),
            };
            Some(ItemCount {
                path: name.to_owned(),
                offset: extent.start,
                len: extent.len,
                count: ledger.table.count(&key),
            })
        };
        Ok(items.filter_map(view).take(count_max).collect())
    }
}

fn join(root: &ItemPath, name: &str) -> Option<ItemPath> {
    let mut names = name.split('/').filter(|name| !name.is_empty());
    names
        .try_fold(root.clone(), |path, name| path.join(name.as_bytes()))
        .ok()
}
