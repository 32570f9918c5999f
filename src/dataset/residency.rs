//! Which entries of a dataset its homes hold, all homes together.
//!
//! Each home tells which of its own items it holds. This node joins the answers to one bit for each
//! entry of the manifest, for the jobs on this node. The answer may be a tenth of a second old. An entry
//! whose home cannot be reached counts as not resident.

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
use tokio::time::{Instant, timeout};

/// The maximum age of an answer.
const AGE_MAX: Duration = Duration::from_millis(100);
/// How long a home may take to answer. After that its items count as not resident.
const HOME_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a home that did not answer is not asked again.
const REST: Duration = Duration::from_secs(1);
/// The number of a home that does not exist.
const NO_HOME: u16 = u16::MAX;

/// The bits of one dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resident {
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

/// Asks the homes. One for each node.
pub struct Residency {
    homes: Arc<dyn HomeClient>,
    /// By dataset id. The lock is held for a look-up only.
    datasets: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Option<Known>>>>>,
}

/// The state of one dataset. Its lock is held while homes are asked, so that concurrent requests share
/// one question.
struct Known {
    layout: [u8; 16],
    catalog: Arc<Catalog>,
    /// The home of each item in the order of the manifest, as an index into `homes`.
    home_of: Vec<u16>,
    /// For each home the last answer.
    homes: Vec<Held>,
    asked: Option<Instant>,
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
        Self {
            homes,
            datasets: Mutex::default(),
        }
    }

    /// Returns which entries of `dataset` are held, according to `decision` and its entries in `catalog`.
    /// Takes at most about a second. May be cancelled.
    pub async fn of(
        &self,
        decision: &Decision,
        dataset: &DatasetDecision,
        catalog: &Arc<Catalog>,
    ) -> Resident {
        let known = {
            let mut datasets = self.datasets.lock();
            let declared = |id: &u64| decision.datasets.iter().any(|one| one.id == *id);
            datasets.retain(|id, _| declared(id));
            Arc::clone(datasets.entry(dataset.id).or_default())
        };
        let mut known = known.lock().await;
        let layout = layout_of(catalog.manifest().identity(), &decision.homes);
        let current = match known.take() {
            Some(same) if same.layout == layout => same,
            _ => {
                let (catalog, homes) = (Arc::clone(catalog), decision.homes.clone());
                elsewhere(move || Known::new(layout, catalog, &homes)).await
            }
        };
        let recent = current.asked.is_some_and(|asked| asked.elapsed() < AGE_MAX);
        let current = match recent {
            true => current,
            false => self.ask(dataset.id, current, &decision.homes).await,
        };
        let resident = current.resident.clone();
        *known = Some(current);
        resident
    }

    /// Asks all homes, and joins their answers.
    async fn ask(&self, dataset: u64, mut known: Known, homes: &[HomeNode]) -> Known {
        let layout = known.layout;
        let asking = homes.iter().zip(&known.homes).map(|(home, held)| {
            let request = HeldRequest {
                dataset,
                layout,
                known: held.state,
            };
            let rests = held.rests_until.is_some_and(|until| Instant::now() < until);
            let asking = (!rests).then(|| self.homes.held(home.rank, request));
            async move { Some(timeout(HOME_TIMEOUT, asking?).await) }
        });
        let answers = join_all(asking).await;
        let now = Instant::now();
        let mut changed = known.asked.is_none();
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
        known.asked = Some(now);
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
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime shuts down, and drops this task too.
        Err(_cancelled) => std::future::pending().await,
    }
}

impl Known {
    fn new(layout: [u8; 16], catalog: Arc<Catalog>, homes: &[HomeNode]) -> Self {
        let table = SlotTable::new(homes);
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
            asked: None,
            resident: Resident {
                state: 0,
                bits: Bytes::new(),
            },
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
            // 0 stands for none.
            state: first_u64(blake3::hash(&bits).as_bytes()).max(1),
            bits: bits.into(),
        };
    }
}

#[cfg(test)]
mod tests;
