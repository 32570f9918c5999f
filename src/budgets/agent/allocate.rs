//! Running the allocator on this node: heartbeats, decisions, and the counting of datasets.

use super::super::allocator::Allocator;
use super::super::counter::{CountError, CountProgress, Counted};
use super::super::registry::{Limits, Registry};
use super::follow::{Link, earlier_tree};
use super::{Role, Shared, Status};
use crate::model::{Counting, DatasetDecision, Heartbeat};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);
/// How often the allocator checks the clock, which bounds how late a silent node is noticed.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
/// How often this node reports to its own allocator.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Concurrent counts. Each makes several requests at a time itself.
const COUNTS_MAX: usize = 2;
/// The delay before a failed count is repeated.
const COUNT_RETRY_DELAY: Duration = Duration::from_secs(15);
/// How often each count is checked for a change of its source, such as a new index.
const OUTDATED_INTERVAL: Duration = Duration::from_secs(30);

/// The result of one count, with the dataset's id.
type CountResult = (u64, Result<Counted, CountError>);

/// The running and the failed counts.
#[derive(Default)]
struct Counts {
    running: JoinSet<CountResult>,
    /// Checks whether counts are outdated. Each returns the dataset's id if it is.
    checks: JoinSet<Option<u64>>,
    /// The earliest time of the next attempt, by dataset id.
    failed: BTreeMap<u64, Instant>,
}

/// Removes the allocator when its task ends, also if the task is aborted.
struct AllocatorGuard<'a>(&'a Shared);

impl Drop for AllocatorGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.allocator = None;
        state.counts.clear();
    }
}

/// Runs the allocator, as the root of `tree`, until one can be reached in an earlier tree.
pub(super) async fn allocate(shared: &Shared, tree: usize) -> Link {
    let (guard, mut heartbeat) = begin(shared, tree);
    tracing::info!(tree, "the allocator runs here");
    let mut counts = Counts::default();
    let every = |period| {
        let mut interval = interval(period);
        // After a pause of the process, missed ticks must not cause a burst of heartbeats.
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    };
    let (mut heartbeats, mut ticks) = (every(HEARTBEAT_INTERVAL), every(TICK_INTERVAL));
    let (mut reports, mut checks) = (every(REPORT_INTERVAL), every(OUTDATED_INTERVAL));
    let returning = earlier_tree(shared, tree);
    tokio::pin!(returning);
    let link = loop {
        tokio::select! {
            _ = heartbeats.tick() => {
                heartbeat.count += 1;
                let role = Role::Allocating;
                shared.status.send_replace(Status { tree, role, heartbeat });
            }
            _ = ticks.tick() => {}
            _ = reports.tick() => shared.report_to_own(),
            () = shared.report_soon.notified() => shared.report_to_own(),
            () = shared.allocator_work.notified() => {}
            _ = checks.tick() => counts.check_all(shared),
            Some(counted) = counts.running.join_next() => counts.done(shared, counted),
            Some(outdated) = counts.checks.join_next() => {
                if let (Ok(Some(id)), Some(allocator)) = (outdated, &mut shared.state.lock().allocator) {
                    allocator.counts.remove(&id);
                }
            }
            link = &mut returning, if tree > 0 => break link,
        }
        counts.begin(shared);
        let now = shared.now();
        let mut state = shared.state.lock();
        if let Some(allocator) = &mut state.allocator
            && allocator.tick(now)
        {
            shared.publish(allocator.decision());
        }
    };
    tracing::info!(tree, "the allocator runs elsewhere again");
    drop(guard);
    link
}

fn begin(shared: &Shared, tree: usize) -> (AllocatorGuard<'_>, Heartbeat) {
    let config = &shared.config;
    let (policy, resources) = shared.configured.lock().clone();
    let mut configured = Registry::new(&policy);
    for spec in &config.datasets {
        if let Err(error) = configured.add_dataset(spec.clone(), &Limits::default()) {
            tracing::error!(error = %error.message, dataset = spec.name, "cannot be declared");
        }
    }
    let now = shared.now();
    let mut allocator = Allocator::new(Limits::of(resources), configured, tree, now);
    // Continue from the decision that this node has followed so far.
    let held = Arc::clone(&shared.decision.borrow());
    allocator.adopt(&held, now);
    let mut state = shared.state.lock();
    // A process may become the allocator several times, and each time needs another identity.
    state.allocators_begun += 1;
    let heartbeat = Heartbeat {
        allocator: config.boot.wrapping_add(state.allocators_begun),
        count: 0,
    };
    state.allocator = Some(allocator);
    drop(state);
    (AllocatorGuard(shared), heartbeat)
}

impl Shared {
    fn report_to_own(&self) {
        // The report is made before the lock is taken, because it locks caches and job tables.
        let (now, report) = (self.now(), self.own_report());
        let mut state = self.state.lock();
        if let (Some(allocator), Some(report)) = (&mut state.allocator, report) {
            allocator.record(report, now);
        }
    }
}

impl Counts {
    /// Starts counts of datasets that are not counted yet, up to [`COUNTS_MAX`].
    fn begin(&mut self, shared: &Shared) {
        let now = Instant::now();
        self.failed.retain(|_, again| *again > now);
        let mut state = shared.state.lock();
        let Some(allocator) = &state.allocator else {
            return;
        };
        let due: Vec<DatasetDecision> = allocator
            .uncounted()
            .filter(|one| !state.counts.contains_key(&one.id) && !self.failed.contains_key(&one.id))
            .take(COUNTS_MAX.saturating_sub(self.running.len()))
            .cloned()
            .collect();
        for dataset in due {
            let progress = Arc::new(CountProgress::new(Counting {
                dataset: dataset.name.clone(),
                ..Counting::default()
            }));
            let counting = shared.counter.count(&dataset, Arc::clone(&progress));
            let id = dataset.id;
            state.counts.insert(id, progress);
            drop(self.running.spawn(async move { (id, counting.await) }));
        }
    }

    fn done(&mut self, shared: &Shared, counted: Result<CountResult, JoinError>) {
        let mut state = shared.state.lock();
        let Ok((id, counted)) = counted else {
            // A count panicked, and its dataset is unknown. Without entries all datasets that are not
            // counted yet are started again.
            state.counts.clear();
            return;
        };
        state.counts.remove(&id);
        match (counted, &mut state.allocator) {
            (Ok(counted), Some(allocator)) => allocator.counted(id, counted),
            (Err(error), allocator) => {
                tracing::warn!(%error, "a dataset cannot be counted");
                self.failed.insert(id, Instant::now() + COUNT_RETRY_DELAY);
                if let Some(allocator) = allocator {
                    allocator.count_failed(id, error.to_string());
                }
            }
            (Ok(_), None) => {}
        }
    }

    /// Starts a check of every count's source.
    fn check_all(&mut self, shared: &Shared) {
        let state = shared.state.lock();
        let Some(allocator) = &state.allocator else {
            return;
        };
        for dataset in &allocator.decision().datasets {
            let id = dataset.id;
            let Some(counted) = allocator.counts.get(&id) else {
                continue;
            };
            let checking = shared.counter.is_outdated(dataset, counted.source);
            let check = async move { checking.await.then_some(id) };
            drop(self.checks.spawn(check));
        }
    }
}
