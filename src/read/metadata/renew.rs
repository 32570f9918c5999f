//! Finds the new version of a file that is being read.

use super::Metadata;
use super::directory::{CachedLookup, LookupOutcome};
use super::names::Demand;
use bytes::Bytes;
use copperfs_overlay::{Attributes, Failure, ItemPath, Leased, Version};

impl Metadata {
    /// Whether another version of `path` than `denied` is cached.
    pub(in crate::read) fn knows_another(&self, path: &ItemPath, denied: Version) -> bool {
        self.cached_unlike(path, denied).is_some()
    }

    /// The cached answer about `path`, if it has another version than `denied`.
    fn cached_unlike(&self, path: &ItemPath, denied: Version) -> Option<CachedLookup> {
        let (parent, name) = path.split()?;
        let cached = self.peek_name(&parent, name)?;
        let is_other =
            matches!(&cached.value, LookupOutcome::Attributes(known) if known.version != denied);
        is_other.then_some(cached)
    }

    /// The attributes of `path`, after storage has denied its version `denied`: from the caches if they
    /// have another version, else from storage. No cache on the way answers with the denied version.
    ///
    /// # Errors
    /// `NotFound`; failures of the source.
    pub async fn attributes_unlike(
        &self,
        path: &ItemPath,
        denied: Version,
    ) -> Result<Leased<Attributes>, Failure> {
        let Some((parent, name)) = path.split() else {
            return self.attributes_of(path).await;
        };
        let absent = || Failure::not_found(path);
        if let Some(cached) = self.cached_unlike(path, denied) {
            return Ok(cached.attributes().ok_or_else(absent)?.leased());
        }
        if !denied.is_settled() {
            self.forget_unsettled(path);
        } else if self.peek_name(&parent, name).is_some() {
            self.forget_attributes(path);
        }
        let name = Bytes::copy_from_slice(name);
        let look_again = || self.cached_unlike(path, denied);
        let begin = |lead| {
            let leads = vec![(name.clone(), lead)];
            let stat = (self.clone()).stat(parent.clone(), leads, Demand::Denied(denied));
            drop(self.0.runtime.spawn(stat));
        };
        let requested = (self.flights().attributes).request(path, look_again, begin);
        let answer = requested.answer(path).await?;
        let answer = answer.attributes().ok_or_else(absent)?;
        if answer.value.version != denied {
            return Ok(answer.leased());
        }
        // This reader may have joined an ordinary question, which a cache on the way answered.
        self.attributes_at_source(path, denied).await
    }

    /// The attributes of `path`, after storage has denied its version `denied`: from storage, whatever the caches have.
    ///
    /// # Errors
    /// As [`attributes_unlike`](Self::attributes_unlike).
    pub(super) async fn attributes_at_source(
        &self,
        path: &ItemPath,
        denied: Version,
    ) -> Result<Leased<Attributes>, Failure> {
        let Some((parent, name)) = path.split() else {
            return self.attributes_of(path).await;
        };
        let name = Bytes::copy_from_slice(name);
        self.0.source.stat_one(parent, name, Some(denied)).await
    }
}
