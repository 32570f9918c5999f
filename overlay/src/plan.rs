//! A plan as it lies on a node: its pages in order, opaque, read by several at their own pace.

mod progress;

use crate::wire::WireError;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

pub(crate) use progress::{Board, News};
pub use progress::{Laggard, Tally, WarmProgress};

/// Plans that lie on a node at a time; further ones are broken off at once.
pub(crate) const PLANS_MAX: usize = 8;
/// Most bytes of a plan, packed. One that is longer is refused.
const PLAN_BYTES_MAX: usize = 128 << 20;

/// A plan on a node, as far as it has come. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plan(Arc<PlanInner>);

#[derive(Debug)]
struct PlanInner {
    /// The pages and their bytes. Held for look-ups only.
    pages: Mutex<(Vec<Bytes>, usize)>,
    /// How many pages there are, and whether those are all.
    extent: watch::Sender<(usize, bool)>,
}

impl Default for Plan {
    fn default() -> Self {
        Self(Arc::new(PlanInner {
            pages: Mutex::default(),
            extent: watch::Sender::new((0, false)),
        }))
    }
}

impl Plan {
    /// Adds a page.
    pub(crate) fn push(&self, page: Bytes) -> Result<(), WireError> {
        let count = {
            let mut pages = self.0.pages.lock();
            pages.1 += page.len();
            if pages.1 > PLAN_BYTES_MAX {
                let (got, max) = (pages.1 as u64, PLAN_BYTES_MAX as u64);
                let what = "bytes of a plan";
                return Err(WireError::TooMany { what, got, max });
            }
            pages.0.push(page);
            pages.0.len()
        };
        self.0.extent.send_replace((count, false));
        Ok(())
    }

    pub(crate) fn end(&self) {
        self.0.extent.send_modify(|extent| extent.1 = true);
    }

    pub(crate) fn reader(&self) -> PlanReader {
        PlanReader {
            extent: self.0.extent.subscribe(),
            plan: self.clone(),
            next: 0,
        }
    }
}

/// One reader's place in a plan.
#[derive(Debug)]
pub struct PlanReader {
    plan: Plan,
    extent: watch::Receiver<(usize, bool)>,
    next: usize,
}

impl PlanReader {
    /// The next page, once it has come; `None` behind the last. May be cancelled.
    pub async fn page(&mut self) -> Option<Bytes> {
        let next = self.next;
        let come = self
            .extent
            .wait_for(|(count, ended)| *count > next || *ended);
        // The sender lives as long as `self.plan`.
        drop(come.await.ok()?);
        let page = self.plan.0.pages.lock().0.get(next).cloned()?;
        self.next += 1;
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn each_reader_has_a_place_of_its_own() {
        let plan = Plan::default();
        let mut early = plan.reader();
        assert!(early.page().now_or_never().is_none(), "nothing has come");
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
    fn a_plan_has_a_bound() {
        let plan = Plan::default();
        let page = Bytes::from(vec![0; 32 << 20]);
        let pushed = (0..5).map(|_| plan.push(page.clone()));
        assert_eq!(pushed.filter(Result::is_ok).count(), 4);
    }
}
