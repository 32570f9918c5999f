//! Second looks at files whose versions have not settled.
//!
//! A listing, or an answer about a name, may tell of files that are so young that another write would not
//! show in their times. Once it would, this node asks again, in the background and for all of them in one
//! batch a directory, so that readers find settled versions. A reader that comes first asks for all of
//! them, too. A file that changes all the time stays as it is until somebody asks for it.

use super::attributes::{Demand, Found};
use super::directory::Directory;
use super::{Inner, ReadPath};
use bytes::Bytes;
use copperfs_overlay::{Attributes, Entry, Failure, ItemPath, Leased, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Added to the granularity of an origin's times: the origin began to count a little earlier than this
/// node, and is then past it.
const MARGIN: Duration = Duration::from_millis(10);

/// Looks for one reader, at most: a file that changes meanwhile begins anew with each.
const LOOKS_MAX: usize = 3;

impl ReadPath {
    /// The attributes of `path`, for a reader that may not use those of `version` any more, or not yet:
    /// storage has said `Stale`, or has not settled it. While storage still has the data of that version,
    /// this waits for it to settle, which takes the granularity of its times. What is not settled then
    /// has changed again meanwhile.
    ///
    /// # Errors
    /// `NotFound`; faults.
    pub async fn settled_attributes_of(
        &self,
        path: &ItemPath,
        version: &Version,
    ) -> Result<Leased<Attributes>, Failure> {
        for _ in 1..LOOKS_MAX {
            let found = self.leased_attributes_of(path).await?;
            let now = &found.value;
            if now.version.is_settled() || !now.version.has_data_of(version) {
                return Ok(found);
            }
            sleep(now.granularity() + MARGIN).await;
        }
        self.leased_attributes_of(path).await
    }
}

impl Inner {
    /// `directory` has come: asks again for those of its files that have not settled, once they may have.
    pub(super) fn settle_directory(self: &Arc<Self>, path: &ItemPath, directory: &Directory) {
        self.settle_soon(path, &directory.entries);
    }

    /// As [`Inner::settle_directory`], of some names in it.
    pub(super) fn settle_soon<'a>(
        self: &Arc<Self>,
        parent: &ItemPath,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) {
        let unsettled = entries.into_iter().filter(|entry| is_unsettled(entry));
        let mut names: Vec<(Duration, Bytes)> = unsettled
            .filter_map(|entry| {
                let granularity = entry.attributes.as_ref()?.granularity();
                Some((granularity, entry.name.clone()))
            })
            .collect();
        if names.is_empty() {
            return;
        }
        names.sort_unstable();
        let (this, parent) = (Arc::downgrade(self), parent.clone());
        let looking = async move {
            let mut waited = Duration::ZERO;
            while let Some((granularity, _)) = names.first() {
                let granularity = *granularity;
                sleep((granularity + MARGIN).saturating_sub(waited)).await;
                waited = granularity + MARGIN;
                let later = names.partition_point(|(other, _)| *other == granularity);
                let due = names.drain(..later).map(|(_, name)| name);
                let Some(inner) = this.upgrade() else { return };
                let due = due.filter(|name| !inner.knows_settled(&parent, name));
                let due: Vec<Bytes> = due.collect();
                let reading = ReadPath(inner);
                drop(reading.ask_names(&parent, due, Duration::ZERO, Demand::Second));
            }
        };
        drop(self.runtime.spawn(looking));
    }

    /// The names in `directory` of files that had not settled when it came, and are not known by now;
    /// none if `name` is not one of them.
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
        let entries = directory
            .entries
            .iter()
            .filter(|entry| is_unsettled(entry))
            .map(|entry| &entry.name)
            .filter(|name| !self.knows_settled(parent, name));
        let names: BTreeSet<Bytes> = entries.cloned().collect();
        names.into_iter().collect()
    }

    /// Puts what is known by now in the place of attributes that had not settled in `entries`, which are
    /// those of `directory` at `parent` and go to a child.
    pub(super) fn with_settled(
        &self,
        parent: &ItemPath,
        directory: &Directory,
        entries: &mut [Entry],
    ) {
        let entries = entries.iter_mut().enumerate();
        for (at, entry) in entries.filter(|(_, entry)| is_unsettled(entry)) {
            let known = parent.join(&entry.name).ok();
            let known = known.and_then(|path| self.known(&path, Duration::ZERO));
            match known.map(|known| known.into_found()) {
                Some(Found::Attributes(attributes)) => {
                    entry.kind = attributes.kind;
                    entry.attributes = Some(attributes);
                }
                _ if directory.current_attributes(at).is_some() => {}
                _ => entry.attributes = None,
            }
        }
    }

    fn knows_settled(&self, parent: &ItemPath, name: &[u8]) -> bool {
        let known = parent.join(name).ok();
        let known = known.and_then(|path| self.known(&path, Duration::ZERO));
        known.is_some()
    }
}

fn is_unsettled(entry: &Entry) -> bool {
    let known = entry.attributes.as_ref();
    known.is_some_and(|known| !known.version.is_settled())
}
