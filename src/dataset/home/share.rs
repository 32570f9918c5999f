//! One dataset on its home: items held, flights, and their state.

use super::{Placement, ROOM_UNIT};
use crate::dataset::catalog::Catalog;
use crate::dataset::fetch::{Fetched, WantedItem, fetch};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use crate::model::slots::layout_of;
use crate::model::{DatasetDecision, HomeNode, OriginReaders, ShareReport};
use crate::num::first_u64;
use bytes::Bytes;
use copperfs_overlay::{Failure, Files, ItemPath};
use copperfs_policy::keep::{
    Admission, Everything, ItemCache, ItemCacheStats, Keep, Nothing, Reserved, Rule,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
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
    /// The bytes of the item that it reads.
    range: Range<u64>,
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

struct ShareState {
    cache: ItemCache<ItemId>,
    /// Determines, with `catalog`, the rule of `cache`.
    keep: Keep,
    /// The last answer to the question which items are held.
    held: Option<Arc<HeldBits>>,
    /// Whether its items are the entries of a manifest.
    has_manifest: bool,
    /// These entries, once they are known.
    catalog: Option<Arc<Catalog>>,
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
    /// Why the entries of the manifest are not known, if so.
    manifest_trouble: Option<String>,
}

impl Share {
    pub(super) fn new(dataset: &DatasetDecision, seed: u64) -> Self {
        Self {
            id: dataset.id,
            name: dataset.name.clone(),
            path: dataset.path.clone(),
            state: Mutex::new(ShareState {
                cache: ItemCache::new(seed),
                keep: Keep::default(),
                held: None,
                has_manifest: dataset.manifest.is_some(),
                catalog: None,
                flights: HashMap::new(),
                has_share: false,
                restored: Vec::new(),
                item_store: None,
                placement: Arc::default(),
                readers: dataset.origin_readers,
                origin_bytes: 0,
                trouble: None,
                store_trouble: None,
                manifest_trouble: None,
            }),
            opened: watch::channel(false).0,
        }
    }

    pub(super) fn readers(&self) -> OriginReaders {
        self.state.lock().readers
    }

    pub(super) fn has_manifest(&self) -> bool {
        self.state.lock().has_manifest
    }

    pub(super) fn stats(&self) -> ItemCacheStats {
        self.state.lock().cache.stats()
    }

    /// Applies a decision, except for the number of bytes. `placement`: the slots whose home is this node.
    pub(super) fn declared(&self, dataset: &DatasetDecision, placement: &Arc<Placement>) {
        let mut state = self.state.lock();
        state.readers = dataset.origin_readers;
        if state.has_manifest != dataset.manifest.is_some() {
            state.has_manifest = dataset.manifest.is_some();
            state.catalog = None;
            // Items are known by other names from now on.
            state.set_rule(Box::new(Nothing));
            state.choose_rule();
        }
        if state.keep != dataset.keep {
            state.keep = dataset.keep;
            state.choose_rule();
        }
        if !Arc::ptr_eq(&state.placement, placement) {
            state.placement = Arc::clone(placement);
            state.mark_strays();
        }
    }

    /// Sets the items of a dataset with a manifest. Other items are evicted.
    pub(super) fn set_catalog(&self, catalog: Arc<Catalog>) {
        let mut state = self.state.lock();
        // The declaration may have changed while the manifest was read.
        if state.has_manifest {
            state.catalog = Some(catalog);
            state.manifest_trouble = None;
            state.choose_rule();
        }
    }

    /// Records why the entries of the manifest are not known.
    pub(super) fn set_trouble(&self, trouble: String) {
        self.state.lock().manifest_trouble = Some(trouble);
    }

    /// Sets the maximum number of bytes held.
    pub(super) fn set_bytes(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.has_share = true;
        let evicted = state.cache.set_share(bytes);
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
        drop(state.cache.set_share(0));
        state.item_store.take()
    }

    /// Returns how to answer a request without reading storage. `rests`: the item store returns nothing at
    /// the moment.
    pub(super) fn find(self: &Arc<Self>, wanted: &WantedItem, rests: bool) -> Option<Next> {
        self.state.lock().find(self, wanted, rests)
    }

    /// Decides how to answer a request. `rests`: the item store returns nothing at the moment.
    pub(super) fn next(self: &Arc<Self>, wanted: &WantedItem, payment: u64, rests: bool) -> Next {
        let item = wanted.id;
        let mut state = self.state.lock();
        if let Some(found) = state.find(self, wanted, rests) {
            return found;
        }
        // An item of an unsettled version is not kept: no later request can ask for it. An item of known
        // content has no version.
        let lasts = wanted.content.is_some() || wanted.file.version.is_settled();
        let kept = lasts && !wanted.is_loose;
        let room = kept.then(|| state.admit(item, wanted.extent.len)).flatten();
        // An item that is to be kept is read whole.
        let range = if room.is_some() {
            0..wanted.extent.len
        } else {
            wanted.aligned(state.readers == OriginReaders::Roots)
        };
        let cost = wanted.cost(&range);
        if payment < cost {
            if let Some(room) = room {
                state.cache.abort(room);
            }
            return Next::Unpaid { cost };
        }
        let (answer, pending) = watch::channel(None);
        let flight = Flight {
            range: range.clone(),
            pending: pending.clone(),
        };
        state.flights.entry(item).or_default().push(flight);
        let lead = Lead {
            share: Arc::clone(self),
            item,
            range,
            cost,
            room,
            answer,
        };
        Next::Lead(lead, pending)
    }

    /// Returns which of the items at home here are held, by this dataset or by one of `others`, whose items
    /// are known by their content too. `None` if the entries of the dataset are not known.
    pub(super) fn held(&self, homes: &[HomeNode], others: &[Arc<Self>]) -> Option<Arc<HeldBits>> {
        // Before the items are looked at: a change meanwhile is then noticed the next time. The locks of two
        // datasets are never held at once.
        let changes = |share: &Self| share.state.lock().cache.changes();
        let elsewhere = others
            .iter()
            .map(|other| changes(other))
            .fold(0, u64::wrapping_add);
        let state = self.state.lock();
        let catalog = state.catalog.clone()?;
        let layout = layout_of(catalog.manifest().identity(), homes);
        let changes = state.cache.changes().wrapping_add(elsewhere);
        let known = state.held.clone().filter(|known| known.layout == layout);
        let at_home: Arc<[ItemId]> = match known {
            Some(known) if known.changes == changes => return Some(known),
            Some(known) => Arc::clone(&known.at_home),
            None => {
                let items = catalog.in_order().map(|(item, _)| item);
                let here = |item: &ItemId| state.placement.at_home(item.slot());
                items.filter(here).collect()
            }
        };
        // At least one byte, because no frame is empty.
        let mut bits = vec![0_u8; at_home.len().div_ceil(8).max(1)];
        mark(&mut bits, &at_home, &state.cache);
        drop(state);
        for other in others {
            mark(&mut bits, &at_home, &other.state.lock().cache);
        }
        let held = Arc::new(HeldBits {
            layout,
            state: first_u64(blake3::hash(&bits).as_bytes()),
            bits: bits.into(),
            changes,
            at_home,
        });
        self.state.lock().held = Some(Arc::clone(&held));
        Some(held)
    }

    /// Returns whether the rule keeps an item, if there is room.
    pub(super) fn keeps(&self, item: &ItemId) -> bool {
        self.state.lock().cache.keeps(item)
    }

    /// Returns whether an item is held.
    pub(super) fn holds(&self, item: &ItemId) -> bool {
        self.state.lock().cache.holds(item)
    }

    /// Removes an item whose bytes are missing or to be evicted.
    pub(super) fn lost(&self, item: &ItemId) {
        let mut state = self.state.lock();
        if state.cache.remove(item) {
            state.evict(&[*item]);
        }
    }

    /// Records the result of a read from storage. Returns the item store.
    fn was_read(&self, outcome: &Result<Fetched, Failure>, cost: u64) -> Option<Arc<ItemStore>> {
        let mut state = self.state.lock();
        match outcome {
            Ok(_) => {
                state.origin_bytes += cost;
                state.trouble = None;
            }
            Err(failure) => state.trouble = Some(failure.to_string()),
        }
        state.item_store.clone()
    }

    pub(super) fn report(&self) -> ShareReport {
        let state = self.state.lock();
        let stats = state.cache.stats();
        let troubles = [
            &state.trouble,
            &state.manifest_trouble,
            &state.store_trouble,
        ];
        let trouble = troubles.into_iter().flatten().next();
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
    fn find(&self, share: &Arc<Share>, wanted: &WantedItem, rests: bool) -> Option<Next> {
        let covers = |flight: &&Flight| {
            let (read, wanted) = (&flight.range, &wanted.range);
            read.start <= wanted.start && wanted.end <= read.end
        };
        let mut flights = self.flights.get(&wanted.id).into_iter().flatten();
        if let Some(flight) = flights.find(covers) {
            return Some(Next::Join {
                pending: flight.pending.clone(),
                is_done: flight.pending.borrow().is_some(),
            });
        }
        // A suspended disk counts as a miss.
        let item_store = self.item_store.as_ref().filter(|_| !rests);
        let item_store = item_store.filter(|_| self.cache.holds(&wanted.id))?;
        Some(Next::Held(Arc::clone(share), Arc::clone(item_store)))
    }

    fn choose_rule(&mut self) {
        self.set_rule(match (self.keep, &self.catalog) {
            (Keep::None, _) => Box::new(Nothing),
            // The registry accepts no chunks.
            (Keep::Auto | Keep::Uniform | Keep::Chunks, Some(catalog)) => {
                Box::new(Named(Arc::clone(catalog)))
            }
            // The items of an earlier process stay until the catalog is known.
            (Keep::Auto | Keep::Uniform | Keep::Chunks, None) => Box::new(Everything),
        });
    }

    fn set_rule(&mut self, rule: Box<dyn Rule<ItemId>>) {
        let evicted = self.cache.set_rule(rule);
        self.evict(&evicted);
    }

    /// Reserves room for an item, if it is to be kept here.
    fn admit(&mut self, item: ItemId, len: u64) -> Option<Reserved<ItemId>> {
        if self.item_store.is_none() || !self.has_share || !self.placement.at_home(item.slot()) {
            return None;
        }
        let (len, mut evicted) = (u32::try_from(len).ok()?, Vec::new());
        let admission = self.cache.admit(item, len, &mut evicted);
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
        let share = self.cache.stats().share;
        // Without a limit first, so that nothing is evicted before all items are known.
        let mut gone = self.cache.set_share(u64::MAX);
        gone.extend(self.cache.restore(found));
        self.mark_strays();
        gone.extend(self.cache.set_share(share));
        self.evict(&gone);
    }

    fn mark_strays(&mut self) {
        // A node that is temporarily no home keeps its items without preference.
        let placement = Arc::clone(&self.placement);
        self.cache
            .mark_strays(|item| placement.here.is_none() || placement.at_home(item.slot()));
    }

    fn evict(&self, items: &[ItemId]) {
        if let Some(item_store) = &self.item_store
            && !items.is_empty()
        {
            item_store.remove(items);
        }
    }
}

/// Which of the items at home here are held.
pub(super) struct HeldBits {
    pub(super) layout: [u8; 16],
    /// Identifies the bits.
    pub(super) state: u64,
    /// A bit for each item at home here, in the order of the manifest.
    pub(super) bits: Bytes,
    /// The sum of the [`ItemCache::changes`] of which they are.
    changes: u64,
    /// These items.
    at_home: Arc<[ItemId]>,
}

/// Sets the bit of each item that `cache` holds.
fn mark(bits: &mut [u8], items: &[ItemId], cache: &ItemCache<ItemId>) {
    for (at, item) in items.iter().enumerate() {
        bits[at / 8] |= u8::from(cache.holds(item)) << (at % 8);
    }
}

/// Keeps the entries of a manifest.
struct Named(Arc<Catalog>);

impl Rule<ItemId> for Named {
    fn keeps(&self, item: &ItemId) -> bool {
        self.0.entries_of(item).next().is_some()
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.0.manifest().len())
    }
}

/// How to answer a request.
pub(super) enum Next {
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
pub(super) struct Lead {
    share: Arc<Share>,
    item: ItemId,
    range: Range<u64>,
    cost: u64,
    room: Option<Reserved<ItemId>>,
    answer: watch::Sender<Option<Result<Fetched, Failure>>>,
}

impl Lead {
    /// Returns the number of bytes that it reads.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the number of bytes that are to be kept.
    pub(super) fn admits(&self) -> u64 {
        let len = self.range.end - self.range.start;
        self.room.as_ref().map_or(0, |_| len)
    }

    /// Reads the item, answers, and keeps it. First waits until enough bytes in flight have
    /// arrived.
    pub(super) async fn fly(
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

    /// Ends the flight, so that no further request joins it. `kept`: the item store has its bytes.
    fn end(&mut self, kept: bool) {
        let (item, mut state) = (self.item, self.share.state.lock());
        match self.room.take() {
            // The home of the item may have changed during the flight.
            Some(room) if kept && state.placement.at_home(item.slot()) => {
                let committed = state.cache.commit(room);
                let gone = committed.replaced.into_iter();
                let gone: Vec<ItemId> = gone.chain((!committed.kept).then_some(item)).collect();
                state.evict(&gone);
            }
            Some(room) => {
                state.cache.abort(room);
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
