//! Reads from storage, which requests lead or join.

use super::super::ROOM_UNIT;
use super::Share;
use crate::dataset::fetch::{Fetched, WantedItem, fetch};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use crate::store::ItemBlock;
use copperfs_overlay::{Failure, Files};
use copperfs_policy::keep::Reserved;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};

/// The answer of a flight, once it is complete. Closed without an answer if the flight was aborted.
pub(in crate::dataset::home) type Pending = watch::Receiver<Option<Result<Fetched, Failure>>>;

/// Waits for a flight's answer. Returns `None` if the flight was aborted.
pub(in crate::dataset::home) async fn wait_done(
    mut pending: Pending,
) -> Option<Result<Fetched, Failure>> {
    let answer = pending.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}

/// A read from storage that requests may join.
#[derive(Debug)]
pub(super) struct Flight {
    /// The bytes of the item that it reads.
    pub(super) range: Range<u64>,
    pub(super) pending: Pending,
}

/// How to answer a request.
pub(in crate::dataset::home) enum Next {
    /// It is held here, in this share.
    Held(Arc<Share>, Arc<ItemStore>),
    /// It is being read.
    Join {
        pending: Pending,
        /// It has been read, and is about to be kept.
        is_done: bool,
    },
    /// It would be read, but costs more than the payment.
    Unpaid {
        /// In bytes.
        cost: u64,
    },
    /// It is to be read with [`Lead::fly`].
    Lead(Lead, Pending),
}

/// The duty to read an item. If it is dropped early, its reservation is released, and waiting
/// requests see that the flight was aborted.
pub(in crate::dataset::home) struct Lead {
    pub(super) share: Arc<Share>,
    pub(super) item: ItemId,
    pub(super) range: Range<u64>,
    pub(super) cost: u64,
    pub(super) room: Option<Reserved<ItemId>>,
    pub(super) answer: watch::Sender<Option<Result<Fetched, Failure>>>,
}

impl Lead {
    /// Returns the number of bytes that it reads.
    pub(in crate::dataset::home) fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the number of bytes that are to be kept.
    pub(in crate::dataset::home) fn admits(&self) -> u64 {
        let len = self.range.end - self.range.start;
        self.room.as_ref().map_or(0, |_| len)
    }

    /// Reads the item, answers, and keeps it. First waits until enough bytes in flight have
    /// arrived.
    pub(in crate::dataset::home) async fn fly(
        mut self,
        wanted: WantedItem,
        source: Arc<dyn Files>,
        through: bool,
        room: Arc<Semaphore>,
    ) {
        let units = u32::try_from(self.cost().div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _permit = room.acquire_many_owned(units).await;
        let outcome = fetch(&*source, &wanted, self.range.clone(), through).await;
        let item_store = self.share.was_read(&outcome, self.cost);
        let item_store = item_store.filter(|_| self.room.is_some());
        let (Ok(fetched), Some(item_store)) = (&outcome, item_store) else {
            // A later request starts another flight.
            self.end(false);
            self.answer.send_replace(Some(outcome));
            return;
        };
        let blocks = fetched.blocks();
        // Answer before the item is written, so that requests do not wait for a disk.
        self.answer.send_replace(Some(outcome));
        let kept = item_store.keep(self.item, blocks).await;
        self.end(kept);
    }

    /// Keeps an item that was not read from storage. Returns whether it is held.
    pub(in crate::dataset::home) async fn keep(
        mut self,
        item_store: &ItemStore,
        blocks: Vec<ItemBlock>,
    ) -> bool {
        let kept = item_store.keep(self.item, blocks).await;
        self.end(kept);
        self.share.holds(&self.item)
    }

    /// Gives the reserved room back, without an item.
    pub(in crate::dataset::home) fn give_back(mut self) {
        if let Some(room) = self.room.take() {
            self.share.state.lock().cache.abort(room);
        }
    }

    /// Ends the flight, so that no further request joins it. `kept`: the item store has its bytes.
    fn end(&mut self, kept: bool) {
        let (item, mut state) = (self.item, self.share.state.lock());
        match self.room.take() {
            // The home of the item may have changed during the flight.
            Some(room) if kept && state.placement.at_home(item.slot()) => {
                let mut gone = Vec::new();
                let kept = state.cache.commit(room, &mut gone);
                gone.extend((!kept).then_some(item));
                state.evict(&gone);
            }
            Some(room) => {
                state.cache.abort(room);
                // Also if it was not kept: older bytes of it may have been given up during the flight.
                state.evict(&[item]);
                if !kept {
                    state.lose(item);
                }
            }
            None => {}
        }
        if let Some(flights) = state.flights.get_mut(&item) {
            let own = self.answer.subscribe();
            flights.retain(|flight| !flight.pending.same_channel(&own));
            if flights.is_empty() {
                state.flights.remove(&item);
            }
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.end(false);
    }
}
