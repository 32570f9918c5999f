//! Which entries of a dataset its homes hold, all homes together.
//!
//! Each home tells which of its own items it holds. This node joins the answers to one bit for each
//! entry of the manifest, for the jobs on this node. The answer may be 0.2 s old. An entry
//! whose home cannot be reached counts as not resident.
//!
//! While jobs ask, a task asks the homes at that interval, so that jobs find an answer in memory. The
//! task does not depend on any job's request: the first answer for millions of entries takes longer than
//! a job waits, and must not begin again with each request.

use super::Catalog;
use super::reader::HomeClient;
use crate::model::slots::{SlotTable, layout_of};
use crate::model::{DatasetDecision, Decision, HomeNode};
use crate::num::first_u64;
use bytes::Bytes;
use copperfs_overlay::HeldRequest;
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// The time between two questions to the homes.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum age of an answer that is given without waiting: the interval, and the time of a question.
const AGE_MAX: Duration = Duration::from_millis(200);
/// How long homes are asked after the last request of a job.
const DEMAND_MAX: Duration = Duration::from_secs(2);
/// How long a home may take to answer. After that its items count as not resident. Shorter than a job waits.
const HOME_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a home that did not answer is not asked again.
const REST: Duration = Duration::from_secs(1);
/// The number of a home that does not exist.
const NO_HOME: u16 = u16::MAX;

/// The bits of one dataset.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// The identity of the manifest whose entries they are.
    pub identity: [u8; 32],
    /// Identifies the bits.
    pub state: u64,
    /// A bit for each entry, lowest bit of the first byte first: whether all of its bytes are held.
    pub bits: Bytes,
}

/// Why nothing can be said about a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResidencyError {
    /// It is not declared, as far as this node knows.
    #[error("no dataset of this name is known here")]
    NoDataset,
    /// It has no manifest, so it has no entries.
    #[error("the dataset has no manifest, and so it has no numbered entries")]
    NoManifest,
    /// This node has not loaded the manifest.
    #[error("this node has not loaded the manifest of the dataset yet")]
    NotLoaded,
}

/// Asks the homes. One for each node. Cheap to clone.
#[derive(Clone)]
pub struct Residency(Arc<Inner>);

struct Inner {
    homes: Arc<dyn HomeClient>,
    /// By dataset id. The lock is held for a look-up only.
    datasets: Mutex<HashMap<u64, Arc<Asked>>>,
}

/// A dataset that jobs ask about.
struct Asked {
    /// The last request. Guards nothing else, and is held for a look-up only.
    demand: Mutex<Demand>,
    /// The last answer.
    answer: watch::Sender<Option<Answer>>,
}

/// The last request of a job.
#[derive(Default)]
struct Demand {
    subject: Option<Subject>,
    at: Option<Instant>,
    /// Whether a task asks the homes.
    is_served: bool,
}

/// The entries and the homes that a question is about.
#[derive(Clone)]
struct Subject {
    dataset: u64,
    layout: [u8; 16],
    catalog: Arc<Catalog>,
    homes: Vec<HomeNode>,
}

#[derive(Clone)]
struct Answer {
    layout: [u8; 16],
    at: Instant,
    resident: Resident,
}

/// The state of one dataset, which its task owns.
struct Known {
    layout: [u8; 16],
    catalog: Arc<Catalog>,
    /// The home of each item in the order of the manifest, as an index into `homes`.
    home_of: Vec<u16>,
    /// For each home the last answer.
    homes: Vec<Held>,
    is_joined: bool,
    resident: Resident,
}

/// What one home holds, as far as it is known.
#[derive(Clone, Default)]
struct Held {
    state: u64,
    bits: Bytes,
    /// Until when it is not asked again, because it did not answer.
    rests_until: Option<Instant>,
}

impl Residency {
    /// Creates one that asks by way of `homes`.
    #[must_use]
    pub fn new(homes: Arc<dyn HomeClient>) -> Self {
        Self(Arc::new(Inner {
            homes,
            datasets: Mutex::default(),
        }))
    }

    /// Returns which entries of `dataset` are held, according to `decision` and its entries in `catalog`.
    /// May be cancelled, which does not end the question. Must be called within a runtime.
    pub async fn of(
        &self,
        decision: &Decision,
        dataset: &DatasetDecision,
        catalog: &Arc<Catalog>,
    ) -> Resident {
        let layout = layout_of(catalog.manifest().identity(), &decision.homes);
        let asked = {
            let mut datasets = self.0.datasets.lock();
            let declared = |id: &u64| decision.datasets.iter().any(|one| one.id == *id);
            datasets.retain(|id, _| declared(id));
            Arc::clone(datasets.entry(dataset.id).or_default())
        };
        let mut answers = asked.answer.subscribe();
        let begins = {
            let mut demand = asked.demand.lock();
            demand.at = Some(Instant::now());
            let is_known = demand
                .subject
                .as_ref()
                .is_some_and(|one| one.layout == layout);
            if !is_known {
                demand.subject = Some(Subject {
                    dataset: dataset.id,
                    layout,
                    catalog: Arc::clone(catalog),
                    homes: decision.homes.clone(),
                });
            }
            !std::mem::replace(&mut demand.is_served, true)
        };
        if begins {
            drop(tokio::spawn(serve(Arc::clone(&self.0), Arc::clone(&asked))));
        }
        // As of the request. An answer about millions of entries takes longer than that to come, and would be too old
        // when it comes if its age were counted then.
        let asked_at = Instant::now();
        let is_recent = |answer: &Option<Answer>| {
            let answer = answer.as_ref().filter(|one| one.layout == layout);
            answer.is_some_and(|one| one.at + AGE_MAX > asked_at)
        };
        let found = answers.wait_for(is_recent).await;
        // The sender is in `asked`, so it is there.
        let found = found.ok().and_then(|found| found.clone());
        found.map_or_else(Resident::default, |found| found.resident)
    }
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            demand: Mutex::default(),
            answer: watch::Sender::new(None),
        }
    }
}

/// Lets the next request begin another task, if this one ends early.
struct ServedGuard {
    asked: Arc<Asked>,
    is_over: bool,
}

impl Drop for ServedGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.asked.demand.lock().is_served = false;
        }
    }
}

/// Asks the homes about a dataset until no job has asked for a while.
async fn serve(inner: Arc<Inner>, asked: Arc<Asked>) {
    let mut known: Option<Known> = None;
    let mut guard = ServedGuard {
        asked: Arc::clone(&asked),
        is_over: false,
    };
    loop {
        let subject = {
            let mut demand = asked.demand.lock();
            let is_wanted = demand.at.is_some_and(|at| at.elapsed() < DEMAND_MAX);
            match demand.subject.clone().filter(|_| is_wanted) {
                Some(subject) => subject,
                None => {
                    // Under the lock, so that the next request begins another task.
                    demand.is_served = false;
                    guard.is_over = true;
                    return;
                }
            }
        };
        let same = known.take().filter(|one| one.layout == subject.layout);
        let current = match same {
            Some(same) => same,
            None => {
                let subject = subject.clone();
                elsewhere(move || Known::new(subject)).await
            }
        };
        // Before the question: what the homes say is not older.
        let at = Instant::now();
        let current = inner.ask(&subject, current).await;
        let (layout, resident) = (current.layout, current.resident.clone());
        asked.answer.send_replace(Some(Answer {
            layout,
            at,
            resident,
        }));
        known = Some(current);
        sleep_until(at + ASK_INTERVAL).await;
    }
}

impl Inner {
    /// Asks all homes, and joins their answers.
    async fn ask(&self, subject: &Subject, mut known: Known) -> Known {
        let layout = known.layout;
        let asking = subject.homes.iter().zip(&known.homes).map(|(home, held)| {
            let request = HeldRequest {
                dataset: subject.dataset,
                layout,
                known: held.state,
            };
            let rests = held.rests_until.is_some_and(|until| Instant::now() < until);
            let asking = (!rests).then(|| self.homes.held(home.rank, request));
            async move { Some(timeout(HOME_TIMEOUT, asking?).await) }
        });
        let answers = join_all(asking).await;
        let now = Instant::now();
        let mut changed = !known.is_joined;
        for (held, answer) in known.homes.iter_mut().zip(answers) {
            match answer {
                Some(Ok(Ok(answer))) => {
                    held.rests_until = None;
                    if let Some(bits) = answer.bits {
                        changed = true;
                        *held = Held {
                            state: answer.state,
                            bits,
                            rests_until: None,
                        };
                    }
                }
                // It is silent or cannot be reached, or its decision is another one: a moment later it is not.
                Some(Ok(Err(_)) | Err(_)) => {
                    changed |= !held.bits.is_empty();
                    *held = Held {
                        rests_until: Some(now + REST),
                        ..Held::default()
                    };
                }
                None => {}
            }
        }
        known.is_joined = true;
        if !changed {
            return known;
        }
        elsewhere(move || {
            known.join();
            known
        })
        .await
    }
}

/// Runs `work`, which looks at every item of a dataset, on a thread for such work.
pub(super) async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime shuts down, and drops this task too.
        Err(_cancelled) => std::future::pending().await,
    }
}

impl Known {
    fn new(subject: Subject) -> Self {
        let Subject {
            layout,
            catalog,
            homes,
            ..
        } = subject;
        let table = SlotTable::new(&homes);
        let home_of = catalog.in_order().map(|(item, _)| {
            let home = table.home_of_slot(item.slot());
            home.and_then(|home| u16::try_from(home).ok())
                .unwrap_or(NO_HOME)
        });
        Self {
            layout,
            home_of: home_of.collect(),
            catalog,
            homes: vec![Held::default(); homes.len()],
            is_joined: false,
            resident: Resident::default(),
        }
    }

    /// Joins the answers of the homes: an entry is resident if all of its items are.
    fn join(&mut self) {
        let entries = self.catalog.manifest().len();
        let mut bits = vec![0xff_u8; entries.div_ceil(8)];
        let mut next = vec![0_usize; self.homes.len()];
        for ((_, entry), home) in self.catalog.in_order().zip(&self.home_of) {
            let at = usize::from(*home);
            let held = self
                .homes
                .get(at)
                .zip(next.get_mut(at))
                .is_some_and(|(held, next)| {
                    let position = std::mem::replace(next, *next + 1);
                    let byte = held.bits.get(position / 8).copied().unwrap_or(0);
                    byte >> (position % 8) & 1 == 1
                });
            if !held {
                let entry = entry as usize;
                bits[entry / 8] &= !(1 << (entry % 8));
            }
        }
        // The bits beyond the last entry.
        if !entries.is_multiple_of(8)
            && let Some(last) = bits.last_mut()
        {
            *last &= (1 << (entries % 8)) - 1;
        }
        self.resident = Resident {
            identity: *self.catalog.manifest().identity(),
            // 0 stands for none.
            state: first_u64(blake3::hash(&bits).as_bytes()).max(1),
            bits: bits.into(),
        };
    }
}

#[cfg(test)]
pub(super) mod tests;
