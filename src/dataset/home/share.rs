//! One dataset on its home: items held, flights, and their state.

use super::{Placement, ROOM_UNIT};
use crate::dataset::fetch::{Fetched, StripeRequest, fetch};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use crate::dataset::uniform::{Admission, Reserved, Uniform, UniformStats};
use crate::model::{DatasetDecision, OriginReaders, ShareReport};
use copperfs_overlay::{Failure, Files, ItemPath};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The answer of a flight, once it is complete. Closed without an answer if the flight was aborted.
pub(super) type Pending = watch::Receiver<Option<Result<Fetched, Failure>>>;

/// Waits for a flight's answer. Returns `None` if the flight was aborted.
pub(super) async fn wait_done(mut pending: Pending) -> Option<Result<Fetched, Failure>> {
    let answer = pending.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}

/// A read from storage that requests may join.
#[derive(Debug)]
struct Flight {
    /// The bytes of the stripe that it reads.
    extent: Range<u64>,
    pending: Pending,
}

/// See the module.
pub(super) struct Share {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) path: ItemPath,
    state: Mutex<ShareState>,
    /// Whether the item store is open, or cannot be opened.
    opened: watch::Sender<bool>,
}

#[derive(Default)]
struct ShareState {
    uniform: Uniform,
    /// The reads in progress, by item: a few ranges of each.
    flights: HashMap<ItemId, Vec<Flight>>,
    /// Whether a decision has set the share.
    has_share: bool,
    /// Items of an earlier process, until a decision has set the share.
    restored: Vec<(ItemId, u32)>,
    /// The bytes of items. `None`: not open yet, not to be opened, or closed.
    item_store: Option<Arc<ItemStore>>,
    placement: Arc<Placement>,
    readers: OriginReaders,
    origin_bytes: u64,
    /// Why the last read from storage failed, if it did.
    trouble: Option<String>,
    /// Why nothing can be kept, if so.
    store_trouble: Option<String>,
}

impl Share {
    pub(super) fn new(dataset: &DatasetDecision, seed: u64) -> Self {
        Self {
            id: dataset.id,
            name: dataset.name.clone(),
            path: dataset.path.clone(),
            state: Mutex::new(ShareState {
                uniform: Uniform::new(seed),
                readers: dataset.origin_readers,
                ..ShareState::default()
            }),
            opened: watch::channel(false).0,
        }
    }

    pub(super) fn readers(&self) -> OriginReaders {
        self.state.lock().readers
    }

    pub(super) fn stats(&self) -> UniformStats {
        self.state.lock().uniform.stats()
    }

    /// Applies a decision, except for the number of bytes. `placement`: the slots whose home is this node.
    pub(super) fn declared(&self, dataset: &DatasetDecision, placement: &Arc<Placement>) {
        let mut state = self.state.lock();
        state.readers = dataset.origin_readers;
        if !Arc::ptr_eq(&state.placement, placement) {
            state.placement = Arc::clone(placement);
            state.mark_strays();
        }
    }

    /// Sets the maximum number of bytes held.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.has_share = true;
        let evicted = state.uniform.set_share(bytes);
        state.evict(&evicted);
        state.restore();
    }

    /// Like [`Share::set_bytes`], if that is less than now.
    pub(super) fn shrink(&self, bytes: u64) {
        if self.stats().share > bytes {
            self.set_bytes(bytes);
        }
    }

    /// Waits for a while until the item store is open.
    pub(super) async fn opened(&self, time_limit: Duration) {
        let mut opened = self.opened.subscribe();
        if !*opened.borrow_and_update() {
            drop(tokio::time::timeout(time_limit, opened.wait_for(|opened| *opened)).await);
        }
    }

    /// Sets the item store, which holds the items `held`. Items beyond the share are evicted once a
    /// decision has set it.
    pub(super) fn open(&self, item_store: ItemStore, held: Vec<(ItemId, u32)>) {
        let mut state = self.state.lock();
        state.item_store = Some(Arc::new(item_store));
        state.store_trouble = None;
        state.restored = held;
        if state.has_share {
            state.restore();
        }
        drop(state);
        self.opened.send_replace(true);
    }

    /// Records that nothing can be kept for now.
    pub(super) fn cannot_keep(&self, why: String) {
        self.state.lock().store_trouble = Some(why);
        self.opened.send_replace(true);
    }

    /// Evicts everything, and returns the item store.
    pub(super) fn close(&self) -> Option<Arc<ItemStore>> {
        let mut state = self.state.lock();
        drop(state.uniform.set_share(0));
        state.item_store.take()
    }

    /// Decides how to answer a request. `rests`: the item store returns nothing at the moment.
    pub(super) fn next(
        self: &Arc<Self>,
        wanted: &StripeRequest,
        item: ItemId,
        payment: u64,
        rests: bool,
    ) -> Next {
        let mut state = self.state.lock();
        let covers = |flight: &&Flight| {
            let (extent, range) = (&flight.extent, &wanted.range);
            extent.start <= range.start && range.end <= extent.end
        };
        let mut flights = state.flights.get(&item).into_iter().flatten();
        if let Some(flight) = flights.find(covers) {
            return Next::Join {
                pending: flight.pending.clone(),
                is_done: flight.pending.borrow().is_some(),
            };
        }
        // A suspended disk counts as a miss.
        if let Some(item_store) = &state.item_store
            && !rests
            && state.uniform.holds(&item)
        {
            return Next::Held(Arc::clone(item_store));
        }
        // An item of an unsettled version is not kept: no later request can ask for it.
        let settled = wanted.file.version.is_settled();
        let room = settled.then(|| state.admit(item, wanted.len)).flatten();
        // An item that is to be kept is read whole.
        let extent = if room.is_some() {
            0..wanted.len
        } else {
            wanted.aligned(state.readers == OriginReaders::Roots)
        };
        let cost = extent.end - extent.start;
        if payment < cost {
            if let Some(room) = room {
                state.uniform.abort(room);
            }
            return Next::Unpaid { cost };
        }
        let (answer, pending) = watch::channel(None);
        let flight = Flight {
            extent: extent.clone(),
            pending: pending.clone(),
        };
        state.flights.entry(item).or_default().push(flight);
        let lead = Lead {
            share: Arc::clone(self),
            item,
            extent,
            room,
            answer,
        };
        Next::Lead(lead, pending)
    }

    /// Returns whether an item is held.
    pub(super) fn holds(&self, item: &ItemId) -> bool {
        self.state.lock().uniform.holds(item)
    }

    /// Removes an item whose bytes are missing or to be evicted.
    pub(super) fn lost(&self, item: &ItemId) {
        let mut state = self.state.lock();
        if state.uniform.remove(item) {
            state.evict(&[*item]);
        }
    }

    /// Records the result of a read from storage. Returns the item store.
    fn was_read(&self, outcome: &Result<Fetched, Failure>) -> Option<Arc<ItemStore>> {
        let mut state = self.state.lock();
        match outcome {
            Ok(fetched) => {
                state.origin_bytes += fetched.bytes.len() as u64;
                state.trouble = None;
            }
            Err(failure) => state.trouble = Some(failure.to_string()),
        }
        state.item_store.clone()
    }

    pub(super) fn report(&self) -> ShareReport {
        let state = self.state.lock();
        let stats = state.uniform.stats();
        let trouble = state.trouble.as_ref().or(state.store_trouble.as_ref());
        ShareReport {
            dataset: self.id,
            cached: stats.used,
            items: stats.items,
            share: stats.share,
            origin_bytes: state.origin_bytes,
            trouble: trouble.cloned(),
        }
    }
}

impl ShareState {
    /// Reserves room for an item, if it is to be kept here.
    fn admit(&mut self, item: ItemId, len: u64) -> Option<Reserved> {
        if self.item_store.is_none() || !self.has_share || !self.placement.at_home(item.slot()) {
            return None;
        }
        let (len, mut evicted) = (u32::try_from(len).ok()?, Vec::new());
        let admission = self.uniform.admit(item, len, &mut evicted);
        self.evict(&evicted);
        match admission {
            Admission::Reserved(room) => Some(room),
            Admission::Held | Admission::Refused => None,
        }
    }

    /// Restores the items of an earlier process, all at once, so that random evictions choose from
    /// all of them. Strays are evicted first.
    fn restore(&mut self) {
        if self.restored.is_empty() {
            return;
        }
        let found = std::mem::take(&mut self.restored);
        let share = self.uniform.stats().share;
        // Without a limit first, so that nothing is evicted before all items are known.
        let mut gone = self.uniform.set_share(u64::MAX);
        gone.extend(self.uniform.restore(found));
        self.mark_strays();
        gone.extend(self.uniform.set_share(share));
        self.evict(&gone);
    }

    fn mark_strays(&mut self) {
        // A node that is temporarily no home keeps its items without preference.
        let placement = Arc::clone(&self.placement);
        self.uniform
            .mark_strays(|slot| placement.here.is_none() || placement.at_home(slot));
    }

    fn evict(&self, items: &[ItemId]) {
        if let Some(item_store) = &self.item_store
            && !items.is_empty()
        {
            item_store.remove(items);
        }
    }
}

/// How to answer a request.
pub(super) enum Next {
    /// It is held here.
    Held(Arc<ItemStore>),
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
pub(super) struct Lead {
    share: Arc<Share>,
    item: ItemId,
    extent: Range<u64>,
    room: Option<Reserved>,
    answer: watch::Sender<Option<Result<Fetched, Failure>>>,
}

impl Lead {
    /// Returns the number of bytes that it reads.
    pub(super) fn cost(&self) -> u64 {
        self.extent.end - self.extent.start
    }

    /// Returns the number of bytes that are to be kept.
    pub(super) fn admits(&self) -> u64 {
        self.room.as_ref().map_or(0, |_| self.cost())
    }

    /// Reads the item, answers, and keeps it. First waits until enough bytes in flight have
    /// arrived.
    pub(super) async fn fly(
        mut self,
        wanted: StripeRequest,
        source: Arc<dyn Files>,
        through: bool,
        room: Arc<Semaphore>,
    ) {
        let units = u32::try_from(self.cost().div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _permit = room.acquire_many_owned(units).await;
        let extent = self.extent.clone();
        let outcome = fetch(&*source, &wanted, extent, through).await;
        let item_store = self.share.was_read(&outcome);
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

    /// Ends the flight, so that no further request joins it. `kept`: the item store has its bytes.
    fn end(&mut self, kept: bool) {
        let (item, mut state) = (self.item, self.share.state.lock());
        match self.room.take() {
            // The home of the item may have changed during the flight.
            Some(room) if kept && state.placement.at_home(item.slot()) => {
                let committed = state.uniform.commit(room);
                let gone = committed.replaced.into_iter();
                let gone: Vec<ItemId> = gone.chain((!committed.kept).then_some(item)).collect();
                state.evict(&gone);
            }
            Some(room) => {
                state.uniform.abort(room);
                if kept {
                    state.evict(&[item]);
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
