//! Reading an item from storage, once for all who want it meanwhile.

use super::ROOM_UNIT;
use super::share::{Share, covers};
use crate::dataset::fetch::{Fetched, Wanted, fetch};
use crate::dataset::item::ItemId;
use crate::dataset::shelf::Shelf;
use crate::dataset::uniform::Reserved;
use copperfs_overlay::{Failure, Files};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// The answer of a flight, once it is there; closed without one when the flight died.
pub(super) type Pending = watch::Receiver<Option<Result<Fetched, Failure>>>;

/// A flight, as those see it who may join.
#[derive(Debug)]
pub(super) struct Flight {
    id: u64,
    /// Which bytes of the stripe it brings.
    extent: Range<u64>,
    pending: Pending,
}

/// What to do about a request.
#[derive(Debug)]
pub(super) enum Next {
    /// It is held here.
    Held(Arc<Shelf>),
    /// It is being read; `true`: it has been, and is about to be kept.
    Join(Pending, bool),
    /// It would be read, for more than was paid.
    Unpaid {
        /// In bytes.
        cost: u64,
    },
    /// It is to be read: [`Lead::fly`].
    Lead(Lead, Pending),
}

/// The right, and the duty, to read. Dropped before it has ended, it takes nobody's room with it, and
/// those who wait see that it died.
#[derive(Debug)]
pub(super) struct Lead {
    share: Arc<Share>,
    item: ItemId,
    id: u64,
    extent: Range<u64>,
    room: Option<Reserved>,
    answer: watch::Sender<Option<Result<Fetched, Failure>>>,
}

impl Flight {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn brings(&self, range: &Range<u64>) -> bool {
        covers(&self.extent, range)
    }

    pub(super) fn pending(&self) -> Pending {
        self.pending.clone()
    }

    pub(super) fn join(&self) -> Next {
        let here = self.pending.borrow().is_some();
        Next::Join(self.pending(), here)
    }
}

impl Lead {
    pub(super) fn new(
        share: Arc<Share>,
        item: ItemId,
        id: u64,
        extent: Range<u64>,
        room: Option<Reserved>,
    ) -> (Self, Flight) {
        let (answer, pending) = watch::channel(None);
        let flight = Flight {
            id,
            extent: extent.clone(),
            pending,
        };
        let lead = Self {
            share,
            item,
            id,
            extent,
            room,
            answer,
        };
        (lead, flight)
    }

    /// Bytes that it reads.
    pub(super) fn cost(&self) -> u64 {
        self.extent.end - self.extent.start
    }

    /// Bytes that are to be kept.
    pub(super) fn admits(&self) -> u64 {
        self.room.as_ref().map_or(0, |_| self.cost())
    }

    /// Reads, answers, and keeps. Waits for room among what is under way first.
    pub(super) async fn fly(
        mut self,
        wanted: Wanted,
        source: Arc<dyn Files>,
        through: bool,
        room: Arc<Semaphore>,
    ) {
        let units = u32::try_from(self.cost().div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _permit = room.acquire_many_owned(units).await;
        let extent = self.extent.clone();
        let outcome = fetch(&*source, &wanted, extent, through).await;
        self.share.was_read(&outcome);
        let shelf = self.room.as_ref().and_then(|_| self.share.shelf());
        let (Ok(fetched), Some(shelf)) = (&outcome, shelf) else {
            // Who comes from here on asks anew.
            self.end(false);
            self.answer.send_replace(Some(outcome));
            return;
        };
        let blocks = fetched.blocks();
        // They need not wait for a disk.
        self.answer.send_replace(Some(outcome));
        let kept = shelf.keep(self.item, blocks).await;
        self.end(kept);
    }

    /// Nobody joins any more.
    fn end(&mut self, kept: bool) {
        let room = self.room.take().map(|room| (room, kept));
        self.share.end(self.item, self.id, room);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Waits for the answer; `None`: the flight died.
pub(super) async fn landed(mut pending: Pending) -> Option<Result<Fetched, Failure>> {
    let answer = pending.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}
