//! A home's answers to messages about the references of pipelines.

use super::Home;
use crate::model::{CountBatch, PipelineReply};
use copperfs_overlay::{Failure, FailureKind};
use tokio::time::Instant;

impl Home {
    /// Applies the counts of an owner to the items at home here.
    ///
    /// # Errors
    /// `Unavailable` if the dataset is not known here.
    pub fn count(&self, batch: &CountBatch) -> Result<PipelineReply, Failure> {
        let share = self.known(batch.dataset)?;
        Ok(PipelineReply::State(share.count(batch, Instant::now())))
    }

    /// Evicts the items of a dataset that were declared by pipelines and have no references.
    ///
    /// # Errors
    /// `Unavailable` if the dataset is not known here.
    pub fn flush(&self, dataset: u64) -> Result<PipelineReply, Failure> {
        let share = self.known(dataset)?;
        let (given_up, bytes) = share.flush();
        let items = given_up.items.len() as u64;
        self.pass_on(&share, given_up);
        Ok(PipelineReply::Flushed { items, bytes })
    }

    fn known(&self, dataset: u64) -> Result<std::sync::Arc<super::Share>, Failure> {
        self.find(dataset).ok_or_else(|| {
            let detail = format!("dataset {dataset:016x} is not known here");
            Failure::new(FailureKind::Unavailable, detail)
        })
    }
}
