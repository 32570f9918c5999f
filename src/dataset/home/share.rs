//! One dataset on its home: what is held, what is under way, and how it fares.

use super::flight::{Flight, Pending};
use super::{Placement, ROOM_UNIT};
use crate::dataset::fetch::{Fetched, Wanted, alignment, fetch};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use crate::dataset::uniform::{Admission, Reserved, Uniform, UniformStats};
use crate::model::slots::Homes;
use crate::model::{DatasetDecision, OriginReaders, ShareReport};
use copperfs_overlay::{Failure, Files, ItemPath};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// See the module.
pub(super) struct Share {
    id: u64,
    name: String,
    path: ItemPath,
    state: Mutex<State>,
    /// The item_store is open, or cannot be.
    opened: watch::Sender<bool>,
}

struct State {
    uniform: Uniform,
    /// What is being read, by item; a few runs of bytes of each.
    flights: HashMap<ItemId, Vec<Flight>>,
    /// Tells flights apart.
    flights_begun: u64,
    /// A decision has said how much may be held.
    known: bool,
    /// What the item_store held when it was opened, before that.
    found: Vec<(ItemId, u32)>,
    /// Where the bytes are; `None`: not open yet, not to be opened, or closed.
    item_store: Option<Arc<ItemStore>>,
    placement: Arc<Placement>,
    readers: OriginReaders,
    origin_bytes: u64,
    /// Why the last read of storage failed.
    trouble: Option<String>,
    /// Why nothing can be kept.
    no_item_store: Option<String>,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Share {
    pub(super) fn new(dataset: &DatasetDecision, seed: u64) -> Self {
        let placement = Placement {
            homes: Homes::new(&[]),
            here: None,
        };
        Self {
            id: dataset.id,
            name: dataset.name.clone(),
            path: dataset.path.clone(),
            state: Mutex::new(State {
                uniform: Uniform::new(seed),
                flights: HashMap::new(),
                flights_begun: 0,
                known: false,
                found: Vec::new(),
                item_store: None,
                placement: Arc::new(placement),
                readers: dataset.origin_readers,
                origin_bytes: 0,
                trouble: None,
                no_item_store: None,
            }),
            opened: watch::channel(false).0,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> &ItemPath {
        &self.path
    }

    pub(super) fn readers(&self) -> OriginReaders {
        self.state.lock().readers
    }

    pub(super) fn stats(&self) -> UniformStats {
        self.state.lock().uniform.stats()
    }

    /// What a decision says of it, but for its bytes.
    pub(super) fn declared(&self, dataset: &DatasetDecision) {
        self.state.lock().readers = dataset.origin_readers;
    }

    /// What is at home here from now on.
    pub(super) fn place(&self, placement: &Arc<Placement>) {
        let mut state = self.state.lock();
        if !Arc::ptr_eq(&state.placement, placement) {
            state.placement = Arc::clone(placement);
            state.mark_strays();
        }
    }

    /// Bytes that it may hold from now on.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.known = true;
        let evicted = state.uniform.set_share(bytes);
        state.take_off(&evicted);
        state.restore();
    }

    /// As [`Share::set_bytes`], if that is less than now.
    pub(super) fn shrink(&self, bytes: u64) {
        if self.stats().share > bytes {
            self.set_bytes(bytes);
        }
    }

    /// Waits until the item_store is open, for a while.
    pub(super) async fn opened(&self, patience: Duration) {
        let mut opened = self.opened.subscribe();
        if !*opened.borrow_and_update() {
            drop(tokio::time::timeout(patience, opened.wait_for(|opened| *opened)).await);
        }
    }

    /// The item_store is open, and holds these. What is beyond the share goes, once a decision has said what
    /// that is.
    pub(super) fn open(&self, item_store: ItemStore, held: Vec<(ItemId, u32)>) {
        let mut state = self.state.lock();
        state.item_store = Some(Arc::new(item_store));
        state.no_item_store = None;
        state.found = held;
        if state.known {
            state.restore();
        }
        drop(state);
        self.opened.send_replace(true);
    }

    /// Nothing can be kept, for now.
    pub(super) fn cannot_keep(&self, why: String) {
        self.state.lock().no_item_store = Some(why);
        self.opened.send_replace(true);
    }

    /// Nothing is held from now on; gives what it was held on.
    pub(super) fn close(&self) -> Option<Arc<ItemStore>> {
        let mut state = self.state.lock();
        drop(state.uniform.set_share(0));
        state.item_store.take()
    }

    /// What to do about a request. `rests`: the item_store gives nothing at the moment.
    pub(super) fn next(
        self: &Arc<Self>,
        wanted: &Wanted,
        item: ItemId,
        payment: u64,
        rests: bool,
    ) -> Next {
        let mut state = self.state.lock();
        let under_way = state.flights.get(&item).into_iter().flatten();
        if let Some(flight) = under_way.into_iter().find(|f| f.brings(&wanted.range)) {
            return Next::Join(flight.pending(), flight.has_landed());
        }
        if let Some(item_store) = &state.item_store
            && !rests
            && state.uniform.holds(&item)
        {
            return Next::Held(Arc::clone(item_store));
        }
        // An item of an unsettled version is not kept: no later request can ask for it.
        let settled = wanted.file.version.is_settled();
        let room = settled.then(|| state.admit(item, wanted.len)).flatten();
        let extent = if room.is_some() {
            0..wanted.len
        } else {
            let through = state.readers == OriginReaders::Roots;
            wanted.aligned(alignment(through))
        };
        let cost = extent.end - extent.start;
        if payment < cost {
            if let Some(room) = room {
                state.uniform.abort(room);
            }
            return Next::Unpaid { cost };
        }
        state.flights_begun += 1;
        let id = state.flights_begun;
        let (lead, flight) = Lead::new(Arc::clone(self), item, id, extent, room);
        let pending = flight.pending();
        state.flights.entry(item).or_default().push(flight);
        Next::Lead(lead, pending)
    }

    /// Whether an item is held.
    pub(super) fn holds(&self, item: &ItemId) -> bool {
        self.state.lock().uniform.holds(item)
    }

    /// The bytes of an item that was held are gone, or to go.
    pub(super) fn lost(&self, item: &ItemId) {
        let mut state = self.state.lock();
        if state.uniform.remove(item) {
            state.take_off(&[*item]);
        }
    }

    /// Storage was read, or not.
    pub(super) fn was_read(&self, outcome: &Result<Fetched, Failure>) {
        let mut state = self.state.lock();
        match outcome {
            Ok(fetched) => {
                state.origin_bytes += fetched.bytes.len() as u64;
                state.trouble = None;
            }
            Err(failure) => state.trouble = Some(failure.to_string()),
        }
    }

    /// Where to keep what was reserved for.
    pub(super) fn item_store(&self) -> Option<Arc<ItemStore>> {
        self.state.lock().item_store.as_ref().map(Arc::clone)
    }

    /// A flight has ended. `room`: what was reserved for it, and whether the item_store has its bytes.
    pub(super) fn end(&self, item: ItemId, id: u64, room: Option<(Reserved, bool)>) {
        let mut state = self.state.lock();
        match room {
            Some((room, true)) => {
                let mut gone = Vec::new();
                if state.placement.at_home(item.slot()) {
                    let committed = state.uniform.commit(room);
                    gone.extend(committed.replaced);
                    gone.extend((!committed.kept).then_some(item));
                } else {
                    state.uniform.abort(room);
                    gone.push(item);
                }
                state.take_off(&gone);
            }
            Some((room, false)) => state.uniform.abort(room),
            None => {}
        }
        if let Some(flights) = state.flights.get_mut(&item) {
            flights.retain(|flight| flight.id() != id);
            if flights.is_empty() {
                state.flights.remove(&item);
            }
        }
    }

    pub(super) fn report(&self) -> ShareReport {
        let state = self.state.lock();
        let stats = state.uniform.stats();
        ShareReport {
            dataset: self.id,
            cached: stats.used,
            items: stats.items,
            share: stats.share,
            origin_bytes: state.origin_bytes,
            trouble: state
                .trouble
                .clone()
                .or_else(|| state.no_item_store.clone()),
        }
    }
}

impl State {
    /// Room for an item, if it is to be kept here.
    fn admit(&mut self, item: ItemId, len: u64) -> Option<Reserved> {
        if self.item_store.is_none() || !self.known || !self.placement.at_home(item.slot()) {
            return None;
        }
        let mut evicted = Vec::new();
        let admission = self
            .uniform
            .admit(item, u32::try_from(len).ok()?, &mut evicted);
        self.take_off(&evicted);
        match admission {
            Admission::Reserved(room) => Some(room),
            Admission::Held | Admission::Refused => None,
        }
    }

    /// Takes up what was found on the item_store, all at once, so that what goes is drawn from all of it;
    /// what is not at home here goes first.
    fn restore(&mut self) {
        if self.found.is_empty() {
            return;
        }
        let found = std::mem::take(&mut self.found);
        let share = self.uniform.stats().share;
        let mut gone = self.uniform.set_share(u64::MAX);
        gone.extend(self.uniform.restore(found));
        self.mark_strays();
        gone.extend(self.uniform.set_share(share));
        self.take_off(&gone);
    }

    fn mark_strays(&mut self) {
        // A node that is no home for now keeps what it has without a preference.
        let placement = Arc::clone(&self.placement);
        self.uniform
            .place(|slot| placement.here.is_none() || placement.at_home(slot));
    }

    fn take_off(&self, items: &[ItemId]) {
        if let Some(item_store) = &self.item_store
            && !items.is_empty()
        {
            item_store.remove(items);
        }
    }
}

/// What to do about a request.
#[derive(Debug)]
pub(super) enum Next {
    /// It is held here.
    Held(Arc<ItemStore>),
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

impl Lead {
    pub(super) fn new(
        share: Arc<Share>,
        item: ItemId,
        id: u64,
        extent: Range<u64>,
        room: Option<Reserved>,
    ) -> (Self, Flight) {
        let (answer, pending) = watch::channel(None);
        let flight = Flight::new(id, extent.clone(), pending);
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
        let item_store = self.room.as_ref().and_then(|_| self.share.item_store());
        let (Ok(fetched), Some(item_store)) = (&outcome, item_store) else {
            // Who comes from here on asks anew.
            self.end(false);
            self.answer.send_replace(Some(outcome));
            return;
        };
        let blocks = fetched.blocks();
        // They need not wait for a disk.
        self.answer.send_replace(Some(outcome));
        let kept = item_store.keep(self.item, blocks).await;
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
