//! A node's turn: runs the allocator, gives signs of life, has datasets counted.

use super::super::allocator::{Allocator, AllocatorConfig};
use super::super::registry::{Limits, Registry};
use super::link::{Link, return_to};
use super::{CountProgress, Inner, Station};
use crate::budgets::counted::Counted;
use crate::model::{Beat, DatasetDecision};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// So often the allocator gives a sign of life.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// So often it looks at the clock: a node that fell silent is noticed no later than this.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// So often this node tells its own allocator what it has to report.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Datasets that are counted at a time: each walks with several requests already.
const COUNTS_MAX: usize = 2;
/// A dataset that could not be counted is tried again after so long.
const COUNT_AGAIN: Duration = Duration::from_secs(15);
/// So often it is asked whether a count is out of date: an index may have been made anew.
const OUTDATED_EVERY: Duration = Duration::from_secs(30);

/// The counts under way and to come.
struct Counts {
    running: JoinSet<(u64, Result<Counted, String>)>,
    outdated: JoinSet<Option<u64>>,
    /// Not to be tried before.
    failed: BTreeMap<u64, Instant>,
}

/// The allocator is not to outlive its turn, however that ends.
struct Reign<'a>(&'a Inner);

impl Drop for Reign<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.allocator = None;
        state.counts.clear();
    }
}

/// Is the allocator, as the root of `tree`, until one can be reached in a tree before it.
pub(super) async fn allocate(inner: &Inner, tree: usize) -> Link {
    let (reign, mut beat) = begin(inner, tree);
    tracing::info!(tree, "the allocator runs here");
    let mut counts = Counts {
        running: JoinSet::new(),
        outdated: JoinSet::new(),
        failed: BTreeMap::new(),
    };
    let every = |period| {
        let mut interval = interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    };
    let (mut beats, mut ticks) = (every(BEAT_EVERY), every(TICK_EVERY));
    let (mut reports, mut outdated) = (every(REPORT_EVERY), every(OUTDATED_EVERY));
    let returning = return_to(inner, tree);
    tokio::pin!(returning);
    let link = loop {
        tokio::select! {
            _ = beats.tick() => {
                beat.count += 1;
                inner.pulse.send_modify(|pulse| {
                    pulse.station = Station::Allocating(tree);
                    pulse.beat = beat;
                });
            }
            _ = ticks.tick() => {}
            _ = reports.tick() => inner.report_to_own(),
            () = inner.soon.notified() => inner.report_to_own(),
            () = inner.work.notified() => {}
            _ = outdated.tick() => counts.look_again(inner),
            Some(counted) = counts.running.join_next() => counts.done(inner, counted),
            Some(outdated) = counts.outdated.join_next() => counts.outdated(inner, outdated),
            link = &mut returning, if tree > 0 => break link,
        }
        counts.begin(inner);
        let now = inner.now();
        let mut state = inner.state.lock();
        if let Some(allocator) = &mut state.allocator
            && allocator.tick(now)
        {
            inner.publish(allocator);
        }
    };
    tracing::info!(tree, "the allocator runs elsewhere again");
    drop(reign);
    link
}

fn begin(inner: &Inner, tree: usize) -> (Reign<'_>, Beat) {
    let config = &inner.config;
    let mut configured = Registry::new(&config.policy);
    for spec in &config.datasets {
        if let Err(error) = configured.add_dataset(spec.clone(), &Limits::default()) {
            tracing::error!(%error, dataset = spec.name, "cannot be declared");
        }
    }
    let limits = AllocatorConfig {
        remote_io: config.remote_io,
        gpus: config.gpus,
    };
    let now = inner.now();
    let mut allocator = Allocator::new(limits, configured, tree, now);
    let held = Arc::clone(&inner.decision.borrow());
    allocator.heard_decision(&held, now);
    let mut state = inner.state.lock();
    state.reigns += 1;
    let beat = Beat {
        allocator: config.boot.wrapping_add(state.reigns),
        count: 0,
    };
    state.allocator = Some(allocator);
    drop(state);
    (Reign(inner), beat)
}

impl Inner {
    fn report_to_own(&self) {
        let (now, report) = (self.now(), self.own_report());
        let mut state = self.state.lock();
        if let (Some(allocator), Some(report)) = (&mut state.allocator, report) {
            allocator.heard(report, now);
        }
    }
}

impl Counts {
    /// Begins counts of what is not counted, as far as there is room.
    fn begin(&mut self, inner: &Inner) {
        let now = Instant::now();
        self.failed.retain(|_, again| *again > now);
        let mut state = inner.state.lock();
        let Some(allocator) = &state.allocator else {
            return;
        };
        let wanted: Vec<DatasetDecision> = allocator
            .uncounted()
            .filter(|one| !state.counts.contains_key(&one.id) && !self.failed.contains_key(&one.id))
            .take(COUNTS_MAX.saturating_sub(self.running.len()))
            .cloned()
            .collect();
        for dataset in wanted {
            let progress = Arc::new(CountProgress::default());
            let counting = inner.counter.count(&dataset, Arc::clone(&progress));
            let id = dataset.id;
            state.counts.insert(id, (dataset.name, progress));
            drop(self.running.spawn(async move { (id, counting.await) }));
        }
    }

    fn done(
        &mut self,
        inner: &Inner,
        counted: Result<(u64, Result<Counted, String>), tokio::task::JoinError>,
    ) {
        let mut state = inner.state.lock();
        let Ok((id, counted)) = counted else {
            // Which one it was is not known: all that are not running any more begin anew.
            state.counts.clear();
            return;
        };
        state.counts.remove(&id);
        if let Err(error) = &counted {
            tracing::warn!(%error, "a dataset cannot be counted");
            self.failed.insert(id, Instant::now() + COUNT_AGAIN);
        }
        if let Some(allocator) = &mut state.allocator {
            allocator.counted(id, counted);
        }
    }

    /// Asks of every count whether it is out of date.
    fn look_again(&mut self, inner: &Inner) {
        let state = inner.state.lock();
        let Some(allocator) = &state.allocator else {
            return;
        };
        for dataset in &allocator.decision().datasets {
            let Some(counted) = allocator.count_of(dataset.id) else {
                continue;
            };
            let (id, asked) = (
                dataset.id,
                inner.counter.is_outdated(dataset, counted.source),
            );
            drop(
                self.outdated
                    .spawn(async move { asked.await.then_some(id) }),
            );
        }
    }

    fn outdated(&self, inner: &Inner, id: Result<Option<u64>, tokio::task::JoinError>) {
        if let (Ok(Some(id)), Some(allocator)) = (id, &mut inner.state.lock().allocator) {
            allocator.recount(id);
        }
    }
}
