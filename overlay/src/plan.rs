//! A plan in memory: its pages in order, opaque, read by several readers at their own pace.

mod progress;

use crate::wire::WireError;
use bytes::Bytes;
use tokio::sync::watch;

pub(crate) use progress::{ProgressBoard, WarmUpdate};
pub use progress::{SlowestNode, Tally, WarmProgress};

/// Plans in a node's memory at a time; further ones are broken off at once.
pub(crate) const PLANS_MAX: usize = 8;
/// Most bytes of a plan, packed. A longer one is refused.
const PLAN_BYTES_MAX: usize = 128 << 20;

/// A plan on a node, as far as it has arrived. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Plan(watch::Sender<PlanState>);

#[derive(Debug, Default)]
struct PlanState {
    pages: Vec<Bytes>,
    /// Bytes of all pages.
    bytes: usize,
    /// No further pages follow.
    complete: bool,
}

impl Plan {
    /// Adds a page.
    pub(crate) fn push(&self, page: Bytes) -> Result<(), WireError> {
        let mut bytes = 0;
        self.0.send_modify(|state| {
            state.bytes += page.len();
            bytes = state.bytes;
            if bytes <= PLAN_BYTES_MAX {
                state.pages.push(page);
            }
        });
        match bytes <= PLAN_BYTES_MAX {
            true => Ok(()),
            false => Err(WireError::TooMany {
                what: "bytes of a plan",
                got: bytes as u64,
                max: PLAN_BYTES_MAX as u64,
            }),
        }
    }

    /// Marks the plan as complete.
    pub(crate) fn end(&self) {
        self.0.send_modify(|state| state.complete = true);
    }

    /// Returns a reader that begins at the first page.
    pub(crate) fn reader(&self) -> PlanReader {
        PlanReader {
            state: self.0.subscribe(),
            _plan: self.clone(),
            next: 0,
        }
    }
}

/// A reader's position in a plan.
#[derive(Debug)]
pub struct PlanReader {
    state: watch::Receiver<PlanState>,
    /// Keeps the channel open: without it, a plan that is broken off would look complete.
    _plan: Plan,
    next: usize,
}

impl PlanReader {
    /// Returns the next page, once it has arrived; `None` after the last. Cancel safe.
    pub async fn page(&mut self) -> Option<Bytes> {
        let next = self.next;
        let arrived = self
            .state
            .wait_for(|state| state.pages.len() > next || state.complete);
        let page = arrived.await.ok()?.pages.get(next).cloned()?;
        self.next += 1;
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn each_reader_has_its_own_position() {
        let plan = Plan::default();
        let mut early = plan.reader();
        assert!(early.page().now_or_never().is_none(), "no page has arrived");
        for page in [&b"1"[..], b"2"] {
            plan.push(Bytes::copy_from_slice(page)).unwrap();
        }
        assert_eq!(early.page().await.as_deref(), Some(&b"1"[..]));
        let mut late = plan.reader();
        plan.end();
        for reader in [&mut early, &mut late] {
            while let Some(page) = reader.page().await {
                assert_eq!(page.len(), 1);
            }
            assert!(reader.page().await.is_none());
        }
        assert_eq!((early.next, late.next), (2, 2));
    }

    #[test]
    fn a_plan_is_bounded() {
        let plan = Plan::default();
        let page = Bytes::from(vec![0; 32 << 20]);
        let pushed = (0..5).map(|_| plan.push(page.clone()));
        assert_eq!(pushed.filter(Result::is_ok).count(), 4);
    }
}
