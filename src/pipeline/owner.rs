//! The pipelines that were submitted on this node: it keeps their tasks, and tells homes the counts of their items.
//!
//! Locks, none held across an await: the ledgers. A large submission holds them for some 100 ms, on a thread for
//! blocking work.

mod read_outs;
mod sending;

use super::ledger::{JobKey, JobRecord, Ledger, ResolvedJob};
use super::line::{JobEvent, LineError, Submission, TaskEvent};
use super::resolve::{Place, Resolved, resolve};
use crate::dataset::Catalog;
use crate::dataset::task_reads::TaskReads;
use crate::model::{
    DatasetDecision, Decision, HomeNode, OwnerId, PipelineMessage, PipelineReply, PipelineReport,
    ReadBatch,
};
use copperfs_metrics::{Counter, Kind, Scope, Unit};
use copperfs_overlay::{Failure, Files};
use copperfs_policy::Keep;
use copperfs_policy::references::{SubmitError, Submitted};
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a job lives that does not say so.
const EXPIRES: Duration = Duration::from_secs(86_400);
/// The longest life of a job: a century.
const EXPIRES_MAX: f64 = 100.0 * 365.0 * 86_400.0;
/// The maximum number of live jobs on a node.
const JOBS_MAX: usize = 100_000;

/// The parts of a node that its pipelines use.
pub trait PipelineNode: Send + Sync + 'static {
    /// Sends a message to the member at `rank`, which may be this node.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be reached; otherwise its own failure.
    fn send(
        &self,
        rank: u32,
        message: PipelineMessage,
    ) -> BoxFuture<'static, Result<PipelineReply, Failure>>;

    /// Returns the source of listings and attributes. `None`: the node has not started yet.
    fn files(&self) -> Option<Arc<dyn Files>>;

    /// Returns the entries of a dataset that has a manifest, once they are known here.
    fn catalog(&self, dataset: u64) -> Option<Arc<Catalog>>;

    /// Returns the reads of tasks on this node.
    fn task_reads(&self) -> Arc<TaskReads>;

    /// Called when jobs begin or end, because budgets depend on them.
    fn jobs_changed(&self);
}

/// The caller of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub user: u32,
    /// Whether it may name other tenants than its own user: it is the owner of the mount, or root.
    pub is_owner: bool,
}

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Accepted {
    /// Whether the attempt was above the job's highest so far.
    pub accepted: bool,
    /// The number of items that its tasks refer to.
    pub blocks: usize,
    /// The first 1,000 paths that do not exist.
    pub unknown_paths: Vec<Box<str>>,
}

/// The maximum number of unknown paths in an answer.
const UNKNOWN_SHOWN: usize = 1000;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Pipelines(Arc<Shared>);

struct Shared {
    owner: OwnerId,
    references_max: AtomicU32,
    node: Arc<dyn PipelineNode>,
    decisions: watch::Receiver<Arc<Decision>>,
    state: Mutex<State>,
    /// Wakes the task that sends.
    work: Notify,
    began: Instant,
    sending: OnceLock<JoinHandle<()>>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    submissions: Counter,
    messages: Counter,
    counts: Counter,
}

#[derive(Default)]
struct State {
    /// By the id of the dataset.
    ledgers: BTreeMap<u64, Ledger>,
    /// The dataset of each live job.
    jobs: HashMap<JobKey, u64>,
    /// References that the live jobs of each tenant listed.
    references: HashMap<Arc<str>, usize>,
}

impl Pipelines {
    /// Creates one without jobs. `owner` is this process, `references_max` the number of references that the jobs of one
    /// tenant may hold, and `decisions` those that `node` follows.
    #[must_use]
    pub fn new(
        owner: OwnerId,
        references_max: u32,
        node: Arc<dyn PipelineNode>,
        decisions: watch::Receiver<Arc<Decision>>,
    ) -> Self {
        Self(Arc::new(Shared {
            owner,
            references_max: AtomicU32::new(references_max),
            node,
            decisions,
            state: Mutex::default(),
            work: Notify::new(),
            began: Instant::now(),
            sending: OnceLock::new(),
            counters: Counters::default(),
        }))
    }

    /// Declares the counters in `pipelines`.
    pub fn declare(&self, pipelines: &Scope) {
        use Unit::{Bytes, Count};
        let read = |number: fn(&Ledger) -> u64| {
            let this = self.clone();
            move || this.0.state.lock().ledgers.values().map(number).sum()
        };
        let help = "Live jobs that were submitted on this node.";
        let jobs = read(|ledger| ledger.jobs.len() as u64);
        pipelines.computed("jobs", Kind::Gauge, Count, help, jobs);
        let help = "References that the tasks of these jobs hold.";
        let references = read(|ledger| ledger.table.references() as u64);
        pipelines.computed("references", Kind::Gauge, Count, help, references);
        let help = "Bytes of the items that these tasks refer to.";
        let bytes = read(|ledger| ledger.report(0).bytes);
        pipelines.computed("referenced_bytes", Kind::Gauge, Bytes, help, bytes);
        let help = "Items whose homes do not know the current count yet.";
        let due = read(|ledger| ledger.delivery.unconfirmed());
        pipelines.computed("unconfirmed", Kind::Gauge, Count, help, due);
        let counters = &self.0.counters;
        let help = "Jobs that were submitted on this node, and accepted.";
        pipelines.counter("submissions", Count, help, &counters.submissions);
        let help = "Messages with counts to homes.";
        pipelines.counter("messages", Count, help, &counters.messages);
        let help = "Counts in these messages.";
        pipelines.counter("counts", Count, help, &counters.counts);
    }

    /// Begins to tell homes of counts. Must be called within a runtime.
    pub fn start(&self) {
        let this = self.clone();
        drop(self.0.sending.set(tokio::spawn(this.send_all())));
    }

    /// Ends the task of [`Pipelines::start`].
    pub fn stop(&self) {
        if let Some(sending) = self.0.sending.get() {
            sending.abort();
        }
    }

    /// Returns the maximum number of references of a submission.
    #[must_use]
    pub fn references_max(&self) -> usize {
        self.0.references_max.load(Ordering::Relaxed) as usize
    }

    /// Changes the number of references that the jobs of one tenant may hold, for further submissions.
    pub fn set_references_max(&self, most: u32) {
        self.0.references_max.store(most, Ordering::Relaxed);
    }

    /// Takes a job. Its counts are on their way to the homes when this returns.
    ///
    /// # Errors
    /// The submission makes no sense, is not allowed, or its files cannot be looked up.
    pub async fn submit(
        &self,
        caller: &Caller,
        submission: Submission,
    ) -> Result<(JobKey, Accepted), LineError> {
        let begun = Instant::now();
        let key = key_of_job(caller, &submission.job)?;
        let decision = Arc::clone(&self.0.decisions.borrow());
        let dataset = kept_by_references(&decision, &submission.dataset)?;
        let (id, name) = (dataset.id, dataset.name.clone());
        let expires = match submission.expires_s {
            Some(seconds) => Duration::from_secs_f64(seconds.min(EXPIRES_MAX)),
            None => EXPIRES,
        };
        let (attempt, consume, user) = (submission.attempt, submission.consume, caller.user);
        let app = submission.app.clone();
        let resolved = resolve(&self.place(dataset)?, submission).await?;
        let now = self.now();
        tracing::debug!(job = %key.job, elapsed = ?begun.elapsed(), "the files of a job are found");
        let this = self.clone();
        let taking = tokio::task::spawn_blocking(move || {
            let Resolved {
                tasks,
                items,
                files,
                mut unknown,
            } = resolved;
            let record = JobRecord {
                app,
                user,
                consume,
                began: now,
                expires: now + expires,
                // Tasks without inputs and files without items take memory too.
                references: tasks.inputs().len().max(tasks.len()).max(files.len()),
                files: files.into(),
            };
            let blocks = items.len();
            let job = ResolvedJob {
                key: key.clone(),
                attempt,
                record,
                tasks,
                items,
            };
            let submitted = this.take(id, &name, job)?;
            tracing::debug!(job = %key.job, elapsed = ?begun.elapsed(), ?submitted, "a job was submitted");
            unknown.truncate(UNKNOWN_SHOWN);
            let accepted = Accepted {
                accepted: submitted == Submitted::Accepted,
                blocks,
                unknown_paths: unknown,
            };
            Ok((key, accepted))
        });
        taking.await.unwrap_or_else(|_stopped| {
            let error = "this node is shutting down";
            Err(LineError::new(error, "Submit the job again later"))
        })
    }

    /// Releases the references of a task that has ended. Returns whether it is one of a live job.
    ///
    /// # Errors
    /// The tenant is another's.
    pub fn done(&self, caller: &Caller, event: &TaskEvent) -> Result<bool, LineError> {
        let key = key_of_job(caller, &event.job)?;
        Ok(self.with_ledger(&key, |ledger| ledger.done(&key, &event.task)))
    }

    /// Gives a task that has failed all of its references again. Returns whether it is one of a live job, and has not
    /// ended.
    ///
    /// # Errors
    /// The tenant is another's.
    pub fn fail(&self, caller: &Caller, event: &TaskEvent) -> Result<bool, LineError> {
        let key = key_of_job(caller, &event.job)?;
        Ok(self.with_ledger(&key, |ledger| ledger.fail(&key, &event.task)))
    }

    /// Ends a job. Returns whether it was live.
    ///
    /// # Errors
    /// The tenant is another's.
    pub fn end(&self, caller: &Caller, event: &JobEvent) -> Result<bool, LineError> {
        let key = key_of_job(caller, event)?;
        Ok(self.end_all(std::slice::from_ref(&key)) > 0)
    }

    /// Ends jobs. Returns the number of those that were live.
    pub fn end_all(&self, keys: &[JobKey]) -> usize {
        let mut state = self.0.state.lock();
        let ended = keys.iter().filter(|key| state.end(key)).count();
        drop(state);
        if ended > 0 {
            self.0.work.notify_one();
            self.0.node.jobs_changed();
        }
        ended
    }

    /// Releases what tasks have read, on whichever node.
    pub fn reads(&self, batch: &ReadBatch) {
        let mut state = self.0.state.lock();
        if let Some(ledger) = state.ledgers.get_mut(&batch.dataset) {
            for reads in &batch.reads {
                ledger.read(reads.user, &reads.task, &reads.items);
            }
        }
        drop(state);
        self.0.work.notify_one();
    }

    /// Evicts the items of a dataset that were declared and have no references, at all homes. Returns their number and
    /// bytes.
    ///
    /// # Errors
    /// There is no such dataset, or a home did not answer.
    pub async fn flush(&self, dataset: &str) -> Result<(u64, u64), LineError> {
        let decision = Arc::clone(&self.0.decisions.borrow());
        let dataset = kept_by_references(&decision, dataset)?.id;
        let flush = |home: &HomeNode| {
            let message = PipelineMessage::Flush { dataset };
            self.0.node.send(home.rank, message)
        };
        let flushing: Vec<_> = decision.homes.iter().map(flush).collect();
        let replies = join_all(flushing).await;
        let names = decision.homes.iter().map(|home| &home.name);
        let (mut items, mut bytes) = (0, 0);
        for (name, reply) in names.zip(replies) {
            match reply {
                Ok(PipelineReply::Flushed {
                    items: more,
                    bytes: of,
                }) => {
                    items += more;
                    bytes += of;
                }
                Ok(_) => {}
                Err(failure) => {
                    let error = format!("{name} did not answer: {failure}");
                    return Err(LineError::new(error, "Flush again when the node is back"));
                }
            }
        }
        Ok((items, bytes))
    }

    /// Returns the pipelines of this node for its report.
    #[must_use]
    pub fn report(&self) -> Vec<PipelineReport> {
        let state = self.0.state.lock();
        let ledgers = state.ledgers.iter();
        ledgers.map(|(id, ledger)| ledger.report(*id)).collect()
    }

    fn place(&self, dataset: &DatasetDecision) -> Result<Place, LineError> {
        let again = "Submit the job again in a moment";
        let starting = || LineError::new("this node has not started yet", again);
        let files = self.0.node.files().ok_or_else(starting)?;
        let catalog = self.0.node.catalog(dataset.id);
        if dataset.manifest.is_some() && catalog.is_none() {
            let error = format!("the manifest of dataset {} is not loaded yet", dataset.name);
            return Err(LineError::new(error, again));
        }
        Ok(Place {
            name: dataset.name.clone(),
            root: dataset.path.clone(),
            catalog,
            files,
            references_max: self.references_max(),
        })
    }

    /// Enters a job into its ledger.
    fn take(&self, id: u64, name: &str, job: ResolvedJob) -> Result<Submitted, LineError> {
        let (key, references) = (job.key.clone(), job.record.references);
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let live = state.jobs.get(&key).copied();
        if live.is_some_and(|live| live != id) {
            let error = format!("job {:?} reads another dataset already", key.job);
            return Err(LineError::new(
                error,
                "End it first, or give this job another name",
            ));
        }
        let of_tenant = state.references.get(&key.tenant).copied().unwrap_or(0);
        let replaced = state.record(&key).map_or(0, |record| record.references);
        let after = of_tenant - replaced + references;
        if after > self.references_max() {
            let error = format!(
                "tenant {:?} would hold {after} references on this node, and {} are allowed",
                key.tenant,
                self.references_max()
            );
            let advice = "End jobs that are over (copperfs lrc ls), or raise --max-refs-per-tenant";
            return Err(LineError::new(error, advice));
        }
        if live.is_none() && state.jobs.len() >= JOBS_MAX {
            let error = format!("{JOBS_MAX} jobs are live on this node already");
            return Err(LineError::new(
                error,
                "End jobs that are over: copperfs lrc ls",
            ));
        }
        let decision = Arc::clone(&self.0.decisions.borrow());
        let owner = self.0.owner;
        let ledger = state.ledgers.entry(id);
        let ledger = ledger.or_insert_with(|| Ledger::new(owner, id, name));
        ledger.delivery.place(&decision.homes);
        let submitted = ledger.submit(job).map_err(|error| match error {
            SubmitError::TaskTwice { task } => {
                let error = format!("task {task:?} is listed twice");
                LineError::new(error, "Give each task of a job a name of its own")
            }
            SubmitError::TooManyReferences => {
                let error = "this node would hold more than 4294967295 references";
                LineError::new(error, "End jobs that are over: copperfs lrc ls")
            }
        })?;
        if submitted == Submitted::Accepted {
            self.0.counters.submissions.increment();
            state.jobs.insert(key.clone(), id);
            state.references.insert(key.tenant, after);
        }
        drop(guard);
        self.0.work.notify_one();
        self.0.node.jobs_changed();
        Ok(submitted)
    }

    fn with_ledger(&self, key: &JobKey, change: impl FnOnce(&mut Ledger) -> bool) -> bool {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let id = state.jobs.get(key);
        let ledger = id.and_then(|id| state.ledgers.get_mut(id));
        let changed = ledger.is_some_and(change);
        drop(guard);
        if changed {
            self.0.work.notify_one();
        }
        changed
    }

    fn now(&self) -> Duration {
        // Above zero, which means that nothing was sent yet.
        self.0.began.elapsed() + Duration::from_secs(3600)
    }
}

impl State {
    fn record(&mut self, key: &JobKey) -> Option<&mut JobRecord> {
        let ledger = self.ledgers.get_mut(self.jobs.get(key)?)?;
        ledger.jobs.get_mut(key)
    }

    /// Returns whether the job was live.
    fn end(&mut self, key: &JobKey) -> bool {
        let references = self.record(key).map_or(0, |record| record.references);
        let Some(id) = self.jobs.remove(key) else {
            return false;
        };
        if let Some(of_tenant) = self.references.get_mut(&key.tenant) {
            *of_tenant -= references;
            if *of_tenant == 0 {
                self.references.remove(&key.tenant);
            }
        }
        let ledger = self.ledgers.get_mut(&id);
        ledger.is_some_and(|ledger| ledger.end(key))
    }
}

/// Returns the job that a caller names.
fn key_of_job(caller: &Caller, event: &JobEvent) -> Result<JobKey, LineError> {
    let own = caller.user.to_string();
    let tenant = match &event.tenant {
        Some(named) if *named != own && !caller.is_owner => {
            let error = format!("tenant {named:?} is another's: you are user {own}");
            let advice = "Leave the tenant out. Only the owner of the mount names other tenants";
            return Err(LineError::new(error, advice));
        }
        Some(named) => named.as_str(),
        None => &own,
    };
    Ok(JobKey {
        tenant: tenant.into(),
        job: event.job.as_str().into(),
    })
}

/// Returns the dataset with this name, which is kept by references.
fn kept_by_references<'a>(
    decision: &'a Decision,
    name: &str,
) -> Result<&'a DatasetDecision, LineError> {
    let Some(dataset) = decision.dataset(name) else {
        let error = format!("there is no dataset {name:?}");
        let by_count = decision
            .datasets
            .iter()
            .filter(|one| one.keep == Keep::References);
        let known: Vec<&str> = by_count.map(|one| one.name.as_str()).take(10).collect();
        let advice = match known.is_empty() {
            true => "Declare it: copperfs dataset add NAME PATH --keep references".to_owned(),
            false => format!("Kept by references: {}", known.join(", ")),
        };
        return Err(LineError::new(error, advice));
    };
    if dataset.keep != Keep::References {
        let error = format!(
            "dataset {name:?} is kept by the rule {}, and not by references",
            dataset.keep
        );
        let advice = format!("copperfs dataset set {name} --keep references");
        return Err(LineError::new(error, advice));
    }
    Ok(dataset)
}

#[cfg(test)]
mod tests;
