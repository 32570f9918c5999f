//! A listing in transfer: its entries so far, and the children that receive them as they arrive.

use super::directory::Directory;
use super::lease::Lease;
use copperfs_overlay::{
    Entry, Failure, FailureKind, Listing, ListingHead, ListingPart, ListingStream,
};
use futures_util::{StreamExt, stream};
use std::sync::Arc;
use tokio::sync::watch;

/// Entries that are copied for a child at a time.
const BATCH_ENTRIES: usize = 1024;

/// See the module. Owned by the task that fills it, so that its followers learn when that task dies. The state is
/// locked for a copy of at most [`BATCH_ENTRIES`], never across an await.
#[derive(Debug, Default)]
pub(super) struct Arriving(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// Its lease is the one beside it.
    head: Option<(ListingHead, Lease)>,
    entries: Vec<Entry>,
    /// The number of restarts of the listing.
    restarts: u32,
    end: Option<Result<Arc<Directory>, Failure>>,
}

impl Arriving {
    /// Receives a listing. Returns all of it and its lease, which `grant` makes from its head.
    pub(super) async fn fill(
        &self,
        listing: ListingStream,
        grant: impl Fn(&ListingHead) -> Lease,
    ) -> Result<(Listing, Lease), Failure> {
        let ListingStream {
            mut head,
            mut parts,
        } = listing;
        let mut lease = grant(&head);
        (self.0).send_modify(|state| state.head = Some((head.clone(), lease)));
        while let Some(part) = parts.next().await {
            match part? {
                ListingPart::Entries(more) => {
                    self.0.send_modify(|state| state.entries.extend(more));
                }
                ListingPart::Restart(anew) => {
                    (lease, head) = (grant(&anew), anew);
                    self.0.send_modify(|state| {
                        state.head = Some((head.clone(), lease));
                        state.entries.clear();
                        state.restarts += 1;
                    });
                }
            }
        }
        let mut entries = Vec::new();
        let (come, due) = (self.0.borrow().entries.len(), head.entries);
        if come != due {
            let detail = format!("a listing ended after {come} of {due} entries");
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        // Children that have not received all of them get the rest from the directory.
        (self.0).send_modify(|state| entries = std::mem::take(&mut state.entries));
        let listing = Listing {
            directory: head.directory,
            entries,
            next: head.next,
        };
        Ok((listing, lease))
    }

    /// Ends the transfer. By then the entries of [`Arriving::fill`] are in the directory.
    pub(super) fn end(&self, outcome: Result<Arc<Directory>, Failure>) {
        self.0.send_modify(|state| state.end = Some(outcome));
    }

    pub(super) fn follower(&self) -> Follower {
        Follower {
            state: self.0.subscribe(),
            sent: 0,
            restarts: 0,
        }
    }
}

/// A head with the remainder of its lease.
fn remaining((head, lease): &(ListingHead, Lease)) -> ListingHead {
    ListingHead {
        lease: lease.remaining(),
        ..head.clone()
    }
}

/// A child that is sent a listing.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    state: watch::Receiver<State>,
    sent: usize,
    restarts: u32,
}

impl Follower {
    pub(super) fn follows(&self, arriving: &Arriving) -> bool {
        self.state.same_channel(&arriving.0.subscribe())
    }

    /// The listing as it arrives; `None` when it ended before its head came.
    pub(super) async fn listing(mut self) -> Option<ListingStream> {
        let head = {
            let has_begun = |state: &State| state.head.is_some() || state.end.is_some();
            let state = self.state.wait_for(has_begun).await.ok()?;
            self.restarts = state.restarts;
            remaining(state.head.as_ref()?)
        };
        let parts = stream::unfold(Some(self), |follower| async move {
            let mut follower = follower?;
            let part = follower.next().await?;
            let more = part.is_ok().then_some(follower);
            Some((part, more))
        });
        Some(ListingStream {
            head,
            parts: parts.boxed(),
        })
    }

    async fn next(&mut self) -> Option<Result<ListingPart, Failure>> {
        let is_ready = |state: &State| {
            let more = state.entries.len() > self.sent;
            more || state.restarts != self.restarts || state.end.is_some()
        };
        let Ok(state) = self.state.wait_for(is_ready).await else {
            let detail = "the listing was given up";
            return Some(Err(Failure::new(FailureKind::Unavailable, detail)));
        };
        if let (true, Some(head)) = (state.restarts != self.restarts, &state.head) {
            (self.restarts, self.sent) = (state.restarts, 0);
            return Some(Ok(ListingPart::Restart(remaining(head))));
        }
        let entries = match &state.end {
            Some(Ok(directory)) => &directory.entries,
            Some(Err(failure)) => return Some(Err(failure.clone())),
            None => &state.entries,
        };
        let end = entries.len().min(self.sent + BATCH_ENTRIES);
        let batch = entries.get(self.sent..end)?;
        self.sent = end;
        (!batch.is_empty()).then(|| Ok(ListingPart::Entries(batch.to_vec())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use copperfs_overlay::{Attributes, FileKind, Timestamp, Version};
    use tokio::sync::mpsc;

    fn head(entries: usize) -> ListingHead {
        let time = Timestamp {
            seconds: 0,
            nanoseconds: 0,
        };
        ListingHead {
            directory: Attributes {
                kind: FileKind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                links: 1,
                device: 0,
                size: 0,
                blocks: 0,
                block_size: 4096,
                atime: time,
                mtime: time,
                ctime: time,
                version: Version::of(b"d"),
                link_target: None,
                content: None,
            },
            next: None,
            entries,
            lease: None,
        }
    }

    fn lasting(_head: &ListingHead) -> Lease {
        Lease::LASTING
    }

    fn entries(names: std::ops::Range<usize>) -> ListingPart {
        let entry = |i: usize| Entry {
            name: Bytes::from(format!("{i:05}")),
            kind: FileKind::File,
            attributes: None,
        };
        ListingPart::Entries(names.map(entry).collect())
    }

    /// A listing of `count` entries whose parts are sent by the test.
    fn listing(count: usize) -> (mpsc::Sender<ListingPart>, ListingStream) {
        let (sender, mut parts) = mpsc::channel(8);
        let parts = stream::poll_fn(move |cx| parts.poll_recv(cx)).map(Ok);
        let stream = ListingStream {
            head: head(count),
            parts: parts.boxed(),
        };
        (sender, stream)
    }

    #[tokio::test]
    async fn a_child_has_the_first_entries_before_the_last_have_come() {
        let arriving = Arriving::default();
        let follower = arriving.follower();
        let (sender, stream) = listing(3000);
        let filling = tokio::spawn(async move {
            let (listing, lease) = arriving.fill(stream, lasting).await.unwrap();
            let directory = Arc::new(Directory::new(listing, lease));
            arriving.end(Ok(Arc::clone(&directory)));
            directory
        });
        sender.send(entries(0..10)).await.unwrap();
        let mut child = follower.clone().listing().await.unwrap();
        let late = follower.listing().await.unwrap();
        assert_eq!(child.head.entries, 3000);
        assert_eq!(child.parts.next().await, Some(Ok(entries(0..10))));
        sender.send(entries(10..3000)).await.unwrap();
        drop(sender);
        // A slow child receives the rest from the complete listing.
        assert_eq!(filling.await.unwrap().entries.len(), 3000);
        assert_eq!(
            child.collect().await.map_err(|f| f.kind),
            Err(FailureKind::Corrupt)
        );
        assert_eq!(late.collect().await.unwrap().entries.len(), 3000);
    }

    #[tokio::test]
    async fn a_listing_that_begins_anew_does_so_for_children_too() {
        let arriving = Arriving::default();
        let follower = arriving.follower();
        let (sender, stream) = listing(3);
        let filling = tokio::spawn(async move {
            let filled = arriving.fill(stream, lasting).await;
            (arriving, filled)
        });
        sender.send(entries(0..2)).await.unwrap();
        let mut child = follower.listing().await.unwrap();
        assert_eq!(child.parts.next().await, Some(Ok(entries(0..2))));
        sender.send(ListingPart::Restart(head(1))).await.unwrap();
        assert_eq!(
            child.parts.next().await,
            Some(Ok(ListingPart::Restart(head(1))))
        );
        sender.send(entries(7..8)).await.unwrap();
        assert_eq!(child.parts.next().await, Some(Ok(entries(7..8))));
        drop(sender);
        let (arriving, filled) = filling.await.unwrap();
        assert_eq!(filled.unwrap().0.entries.len(), 1);
        arriving.end(Err(Failure::new(FailureKind::Unavailable, "gone")));
        assert!(child.parts.next().await.unwrap().is_err());
        assert_eq!(child.parts.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn children_do_not_wait_for_a_task_that_has_died() {
        let soon = std::time::Duration::from_secs(1);
        let arriving = Arriving::default();
        let early = tokio::spawn(arriving.follower().listing());
        tokio::task::yield_now().await;
        drop(arriving);
        let early = tokio::time::timeout(soon, early).await.unwrap();
        assert!(early.unwrap().is_none(), "it died before the head came");

        let arriving = Arriving::default();
        let follower = arriving.follower();
        let (sender, stream) = listing(3);
        let filling = tokio::spawn(async move { arriving.fill(stream, lasting).await.is_ok() });
        sender.send(entries(0..2)).await.unwrap();
        let mut child = follower.listing().await.unwrap();
        assert_eq!(child.parts.next().await, Some(Ok(entries(0..2))));
        filling.abort();
        let next = tokio::time::timeout(soon, child.parts.next()).await;
        let failure = next.unwrap().unwrap().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable);
        assert_eq!(child.parts.next().await, None);
    }
}
