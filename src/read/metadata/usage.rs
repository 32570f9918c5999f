//! Usage of filesystems: requested once at a time, and reused for some seconds.
//!
//! Usage changes constantly, and all jobs of a node may ask for it at once. So each node requests it once
//! per directory, for all callers together, and reuses the answer for [`LEASE`]. Children ask their parent,
//! which does the same, so storage is asked once for all of them.

use super::{Metadata, wait_answer};
use crate::read::single_flight::{Joined, SingleFlight};
use copperfs_overlay::{Failure, FilesystemUsage, ItemPath};
use dashmap::DashMap;
use std::time::{Duration, Instant};

/// How long an answer is used after its request. Each node further down may use it for as long again.
const LEASE: Duration = Duration::from_secs(5);
/// Directories with cached usage. Beyond it all of them are forgotten.
const KEPT_MAX: usize = 1024;

/// The cached usage, and the requests in progress.
#[derive(Debug)]
pub(super) struct Usages {
    known: DashMap<ItemPath, (Instant, FilesystemUsage)>,
    flights: SingleFlight<ItemPath, Result<FilesystemUsage, Failure>>,
}

impl Usages {
    pub(super) fn new() -> Self {
        Self {
            known: DashMap::new(),
            flights: SingleFlight::new(),
        }
    }

    fn get(&self, path: &ItemPath) -> Option<FilesystemUsage> {
        let known = self.known.get(path)?;
        let (asked, usage) = *known;
        (asked.elapsed() < LEASE).then_some(usage)
    }

    fn keep(&self, path: ItemPath, asked: Instant, usage: FilesystemUsage) {
        if self.known.len() >= KEPT_MAX {
            self.known.clear();
        }
        self.known.insert(path, (asked, usage));
    }

    /// Forgets all answers, and detaches the requests in progress.
    pub(super) fn clear(&self) {
        self.known.clear();
        self.flights.forget_all();
    }
}

impl Metadata {
    /// Usage of the filesystem that holds `path`. Each node on the way may add some seconds to its age.
    ///
    /// # Errors
    /// Failures of the source.
    pub async fn usage(&self, path: &ItemPath) -> Result<FilesystemUsage, Failure> {
        let usages = &self.flights().usages;
        if let Some(usage) = usages.get(path) {
            return Ok(usage);
        }
        let pending = match usages.flights.join(path, || usages.get(path).map(Ok)) {
            Joined::Answered(known) => return known,
            Joined::Follow(pending) => pending,
            Joined::Lead(lead, pending) => {
                let this = self.clone();
                drop(self.0.runtime.spawn(async move {
                    let asked = Instant::now();
                    let answer = this.0.source.usage(lead.key().clone()).await;
                    if let Ok(usage) = &answer {
                        let usages = &this.flights().usages;
                        usages.keep(lead.key().clone(), asked, *usage);
                    }
                    lead.answer(answer);
                }));
                pending
            }
        };
        wait_answer(pending, path).await
    }
}
