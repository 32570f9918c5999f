//! Second looks at files whose versions have not settled.
//!
//! A listing, or an answer about a name, may contain files so young that a further write would not show in
//! their times. Once a write would show, this node asks again in the background, in one batch per
//! directory, so that readers find settled versions. A reader that comes earlier asks for the whole batch,
//! too. A file that changes constantly stays unsettled until a reader asks for it.

use super::Metadata;
use super::directory::{Directory, LookupOutcome, settles_after};
use super::names::Demand;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Entry, Failure, ItemPath, Leased, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Added to the granularity of an origin's times, because the origin's look was slightly later than this
/// node's request.
const MARGIN: Duration = Duration::from_millis(10);

/// The maximum number of looks for one reader: a file that changes meanwhile starts again with each look.
const LOOKS_MAX: usize = 3;

impl Metadata {
    /// The attributes of `path`, for a reader that cannot use those of `version`: storage has answered
    /// `Stale`, or the version has not settled. While storage still has the data of that version, this
    /// waits for it to settle, which takes the granularity of its times. If the result is still not
    /// settled, the file has changed again.
    ///
    /// # Errors
    /// `NotFound`; failures of the source.
    pub async fn settled_attributes_of(
        &self,
        path: &ItemPath,
        version: &Version,
    ) -> Result<Leased<Attributes>, Failure> {
        let mut found = self.attributes_of(path).await?;
        let known = found.value.version;
        // An index describes the file as it was, however often storage denies that.
        let is_described = known.has_data_of(version) && !known.is_state_of(version);
        if is_described {
            found = self.attributes_at_source(path, *version).await?;
        }
        for _ in 1..LOOKS_MAX {
            let now = &found.value;
            if now.version.is_settled() || !now.version.has_data_of(version) {
                break;
            }
            let look = now.version;
            sleep(now.granularity() + MARGIN).await;
            // Each node on the way may reuse an answer for the granularity after it received it. So the caches
            // on the way must not answer with this one.
            found = match is_described {
                true => self.attributes_at_source(path, look).await?,
                false => self.attributes_unlike(path, look).await?,
            };
        }
        Ok(found)
    }

    /// Asks again for files of directory `parent`, once they may have settled: `unsettled` are the results of
    /// [`settles_after`], and their names.
    pub(super) fn settle_soon(
        &self,
        parent: &ItemPath,
        unsettled: impl IntoIterator<Item = (Duration, Bytes)>,
    ) {
        let mut names: BTreeMap<Duration, BTreeSet<Bytes>> = BTreeMap::new();
        for (after, name) in unsettled {
            names.entry(after).or_default().insert(name);
        }
        if names.is_empty() {
            return;
        }
        // A task that waits for long must not keep the caches alive.
        let (this, parent) = (Arc::downgrade(&self.0), parent.clone());
        let looking = async move {
            let mut waited = Duration::ZERO;
            for (granularity, names) in names {
                sleep((granularity + MARGIN).saturating_sub(waited)).await;
                waited = granularity + MARGIN;
                let Some(inner) = this.upgrade() else { return };
                let metadata = Self(inner);
                let due = names.into_iter();
                let due = due
                    .filter(|name| !metadata.knows_settled(&parent, name))
                    .collect();
                drop(metadata.request_names(&parent, due, Duration::ZERO, Demand::Second));
            }
        };
        drop(self.0.runtime.spawn(looking));
    }

    /// The names in `directory` of files that were unsettled when it arrived and are still not known as
    /// settled. Empty if `name` is not one of them.
    pub(super) fn unsettled_with(
        &self,
        parent: &ItemPath,
        name: &[u8],
        directory: &Directory,
    ) -> Vec<Bytes> {
        let position = directory.position(name);
        if !position.is_some_and(|at| is_unsettled(&directory.entries[at])) {
            return Vec::new();
        }
        let unsettled = directory.entries.iter().filter(|entry| is_unsettled(entry));
        let names = unsettled.map(|entry| &entry.name);
        let names: BTreeSet<&Bytes> = names
            .filter(|name| !self.knows_settled(parent, name))
            .collect();
        names.into_iter().cloned().collect()
    }

    /// Replaces unsettled attributes in `entries`, which are those of `directory` at `parent` and are sent
    /// to a child, with newer cached ones. Removes expired ones.
    pub(super) fn with_settled(
        &self,
        parent: &ItemPath,
        directory: &Directory,
        entries: &mut [Entry],
    ) {
        let entries = entries.iter_mut().enumerate();
        for (at, entry) in entries.filter(|(_, entry)| is_unsettled(entry)) {
            let known = self.cached_name(parent, &entry.name, Duration::ZERO);
            match known.map(|known| known.value) {
                Some(LookupOutcome::Attributes(attributes)) => {
                    entry.kind = attributes.kind;
                    entry.attributes = Some(attributes);
                }
                _ if directory.current_attributes(at).is_some() => {}
                _ => entry.attributes = None,
            }
        }
    }

    pub(super) fn knows_settled(&self, parent: &ItemPath, name: &[u8]) -> bool {
        self.cached_name(parent, name, Duration::ZERO).is_some()
    }
}

fn is_unsettled(entry: &Entry) -> bool {
    let known = entry.attributes.as_ref();
    known.is_some_and(|known| settles_after(known).is_some())
}
