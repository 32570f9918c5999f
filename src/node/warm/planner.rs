//! Makes a plan: collects steps into pages, which are sent out while more steps are added.

use crate::profile::ProfileError;
use crate::warm::Step;
use bytes::Bytes;
use copperfs_overlay::wire::{PageWriter, WireError};
use copperfs_overlay::{Failure, ItemPath};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A page that is not full is sent after this time, so that the nodes can begin.
const PAGE_AGE_MAX: Duration = Duration::from_millis(200);
/// The maximum number of paths of one command.
pub(super) const PATHS_MAX: usize = 4096;

/// Why a plan ends early.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlanError {
    #[error("there is no {0} in this mount")]
    NoSuchPath(ItemPath),
    #[error("storage cannot be walked: {0}")]
    Walk(Failure),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("more than {PATHS_MAX} paths: give the directory above them")]
    TooManyPaths,
    #[error("the plan is too long: split it ({0})")]
    TooLong(#[from] WireError),
    #[error("the client has gone")]
    Gone(#[from] io::Error),
    /// The plan is not accepted any more. The reason is reported elsewhere.
    #[error("warming has ended")]
    Ended,
}

/// The length of the plan so far.
#[derive(Debug, Default)]
pub(super) struct Extent {
    pub(super) items: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) complete: AtomicBool,
}

/// Makes pages of steps.
pub(super) struct Planner {
    writer: PageWriter,
    since: Option<Instant>,
    out: mpsc::Sender<Bytes>,
    extent: Arc<Extent>,
}

impl Planner {
    /// A planner that sends its pages to `out`, and counts its steps in `extent`.
    pub(super) fn new(out: mpsc::Sender<Bytes>, extent: Arc<Extent>) -> Self {
        Self {
            writer: PageWriter::default(),
            since: None,
            out,
            extent,
        }
    }

    /// Appends a step. A page goes out when it is full or old.
    ///
    /// # Errors
    /// The plan is too long, or the cluster does not accept any more of it.
    pub(super) async fn add(&mut self, step: Step) -> Result<(), PlanError> {
        let extent = &self.extent;
        extent.items.fetch_add(1, Ordering::Relaxed);
        extent.bytes.fetch_add(step.bytes(), Ordering::Relaxed);
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        let page = match self.writer.push(&step)? {
            None if now - since > PAGE_AGE_MAX => self.writer.finish(),
            page => page,
        };
        self.send(page).await
    }

    /// Sends the rest: the plan is complete.
    ///
    /// # Errors
    /// Like [`Planner::add`].
    pub(super) async fn finish(mut self) -> Result<(), PlanError> {
        let rest = self.writer.finish();
        self.send(rest).await?;
        self.extent.complete.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn send(&mut self, page: Option<Bytes>) -> Result<(), PlanError> {
        let Some(page) = page else {
            return Ok(());
        };
        self.since = None;
        let sent = self.out.send(page).await;
        sent.map_err(|_closed| PlanError::Ended)
    }
}
