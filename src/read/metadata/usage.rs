//! Usage of filesystems: requested once at a time, and reused for some seconds.
//!
//! Usage changes constantly, and all jobs of a node may ask for it at once. So each node requests it once
//! per directory, for all callers together, and reuses the answer for [`LEASE`]. Children ask their parent,
//! which does the same, so storage is asked once for all of them.

use super::Metadata;
use crate::read::single_flight::{Lead, SingleFlight};
use copperfs_overlay::{Failure, FilesystemUsage, ItemPath};
use dashmap::DashMap;
use std::time::{Duration, Instant};

/// How long an answer is used after its request. Each node further down may use it for as long again.
const LEASE: Duration = Duration::from_secs(5);
/// Directories with cached usage. Beyond it all of them are forgotten.
const KEPT_MAX: usize = 1024;

/// The cached usage, and the requests in progress.
#[derive(Default)]
pub(super) struct Usages {
    pub(super) known: DashMap<ItemPath, (Instant, FilesystemUsage)>,
    pub(super) flights: SingleFlight<ItemPath, FilesystemUsage>,
}

impl Metadata {
    /// Usage of the filesystem that holds `path`. Each node on the way may add some seconds to its age.
    ///
    /// # Errors
    /// Failures of the source.
    pub async fn usage(&self, path: &ItemPath) -> Result<FilesystemUsage, Failure> {
        let usages = &self.flights().usages;
        let known = || {
            let (asked, usage) = *usages.known.get(path)?;
            (asked.elapsed() < LEASE).then_some(usage)
        };
        if let Some(usage) = known() {
            return Ok(usage);
        }
        let begin = |lead: Lead<ItemPath, FilesystemUsage>| {
            let this = self.clone();
            drop(self.0.runtime.spawn(async move {
                let asked = Instant::now();
                let answer = this.0.source.usage(lead.key().clone()).await;
                if let Ok(usage) = &answer {
                    let known = &this.flights().usages.known;
                    if known.len() >= KEPT_MAX {
                        known.clear();
                    }
                    known.insert(lead.key().clone(), (asked, *usage));
                }
                lead.answer(answer);
            }));
        };
        let requested = usages.flights.request(path, known, begin);
        requested.answer(path).await
    }
}
