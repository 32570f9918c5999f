//! One dataset on its home: its items, its rule, and the answers to requests.

mod counts;
mod flight;
mod held;

use super::Placement;
use super::chunks::HomeChunks;
use super::rules::{Named, Resident};
use crate::dataset::catalog::Catalog;
use crate::dataset::fetch::{Fetched, WantedItem};
use crate::dataset::item::ItemId;
use crate::dataset::item_store::ItemStore;
use crate::model::{DatasetDecision, HomeNode, OriginReaders, ShareReport};
use copperfs_overlay::{Failure, ItemPath, RangeAnswer};
use copperfs_policy::chunks::{ChunkLayout, ChunkReport, ResidentChunk};
use copperfs_policy::keep::{
    Admission, Everything, ItemCache, ItemCacheStats, Keep, Nothing, Reserved, Rule,
};
use counts::Counts;
use flight::Flight;
pub(super) use flight::{Lead, Next, wait_done};
use held::{ChunkState, HeldBits, HomeItems};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The number of items that are removed from the item store under one lock: less than a millisecond.
const DISCARDED_PER_STEP: usize = 64;

/// See the module.
pub(super) struct Share {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) path: ItemPath,
    state: Mutex<ShareState>,
    /// Whether the item store is open, or cannot be opened.
    opened: watch::Sender<bool>,
}

/// Items that a dataset has given up, whose bytes are still there. If this is dropped, they are evicted. Must not be
/// dropped under the lock of the share.
#[must_use = "other datasets may take the items"]
pub(super) struct GivenUp {
    pub(super) share: Arc<Share>,
    pub(super) items: Vec<ItemId>,
    pub(super) item_store: Option<Arc<ItemStore>>,
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(item_store) = &self.item_store {
            self.share.discard(item_store, &self.items);
        }
    }
}

struct ShareState {
    cache: ItemCache<ItemId>,
    /// Determines, with `resident` and `catalog`, the rule of `cache`.
    keep: Keep,
    /// The resident chunks, if the dataset is kept in chunks.
    resident: Option<(ChunkLayout, Vec<u32>)>,
    /// The items of these chunks, once the entries are known.
    chunks: Option<Arc<HomeChunks>>,
    /// The references of pipelines, whether items are kept by them or not.
    counts: Counts,
    /// The items of these chunks that could not be read or kept.
    lost: HashSet<ItemId>,
    /// The last report on these chunks.
    counted: Option<(ChunkState, Vec<ChunkReport>)>,
    /// The items whose home this node is, as of the last question which of them are held.
    home_items: Option<Arc<HomeItems>>,
    /// The last answer to that question.
    held: Option<Arc<HeldBits>>,
    /// Whether its items are the entries of a manifest.
    has_manifest: bool,
    /// Whether its items are given to readers by their path only.
    is_private: bool,
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
                resident: None,
                chunks: None,
                counts: Counts::default(),
                lost: HashSet::new(),
                counted: None,
                home_items: None,
                held: None,
                has_manifest: dataset.manifest.is_some(),
                is_private: dataset.is_private,
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

    /// Returns whether its items are known by their content, and given for it.
    pub(super) fn is_public(&self) -> bool {
        let state = self.state.lock();
        state.has_manifest && !state.is_private
    }

    pub(super) fn stats(&self) -> ItemCacheStats {
        self.state.lock().cache.stats()
    }

    /// Applies a decision, except for the number of bytes. `placement`: the slots whose home is this node.
    pub(super) fn declared(
        self: &Arc<Self>,
        dataset: &DatasetDecision,
        placement: &Arc<Placement>,
    ) -> GivenUp {
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        state.readers = dataset.origin_readers;
        state.is_private = dataset.is_private;
        if state.has_manifest != dataset.manifest.is_some() {
            state.has_manifest = dataset.manifest.is_some();
            state.catalog = None;
            // Items are known by other names from now on.
            gone.extend(state.cache.set_rule(Box::new(Nothing)));
            gone.extend(state.choose_rule());
        }
        let chunk = |one: &ResidentChunk| one.chunk;
        let resident = dataset.resident.as_ref().zip(dataset.layout().ok());
        let resident =
            resident.map(|(chunks, layout)| (layout, chunks.iter().map(chunk).collect()));
        if state.keep != dataset.keep || state.resident != resident {
            (state.keep, state.resident) = (dataset.keep, resident);
            gone.extend(state.choose_rule());
        }
        if !Arc::ptr_eq(&state.placement, placement) {
            state.placement = Arc::clone(placement);
            state.mark_strays();
            state.find_chunks();
        }
        self.give_up(&state, gone)
    }

    /// Returns the number of bytes that `dataset` may have here, at the home with this index.
    pub(super) fn bytes_of(
        &self,
        dataset: &DatasetDecision,
        homes: &[HomeNode],
        home: usize,
    ) -> u64 {
        let state = self.state.lock();
        match (&state.chunks, dataset.resident_bytes_max()) {
            // All items of the resident chunks that are at home here. Their part of the chunks may differ from
            // this home's part of the dataset.
            (Some(chunks), Some(whole)) => {
                let budget = u128::from(dataset.budget.min(whole));
                let bytes = u128::from(chunks.bytes()) * budget / u128::from(whole.max(1));
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
            _ => dataset.share(homes, home),
        }
    }

    /// Sets the items of a dataset with a manifest, and gives up others.
    pub(super) fn set_catalog(self: &Arc<Self>, catalog: Arc<Catalog>) -> GivenUp {
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        // The declaration may have changed while the manifest was read.
        if state.has_manifest {
            state.catalog = Some(catalog);
            state.manifest_trouble = None;
            gone = state.choose_rule();
        }
        self.give_up(&state, gone)
    }

    /// Records why the entries of the manifest are not known.
    pub(super) fn set_trouble(&self, trouble: String) {
        self.state.lock().manifest_trouble = Some(trouble);
    }

    /// Sets the maximum number of bytes held.
    pub(super) fn set_bytes(self: &Arc<Self>, bytes: u64) -> GivenUp {
        let mut state = self.state.lock();
        state.has_share = true;
        if bytes > state.cache.stats().share {
            // What had no room may have it now.
            state.lost.clear();
        }
        let evicted = state.cache.set_share(bytes);
        state.restore();
        self.give_up(&state, evicted)
    }

    /// Like [`Share::set_bytes`], if that is less than now.
    pub(super) fn shrink(self: &Arc<Self>, bytes: u64) -> Option<GivenUp> {
        (self.stats().share > bytes).then(|| self.set_bytes(bytes))
    }

    fn give_up(self: &Arc<Self>, state: &ShareState, items: Vec<ItemId>) -> GivenUp {
        GivenUp {
            share: Arc::clone(self),
            items,
            item_store: state.item_store.clone(),
        }
    }

    /// Removes the bytes of items that were given up from `item_store`, unless they have been admitted again since: the
    /// bytes are then the new ones.
    pub(super) fn discard(&self, item_store: &ItemStore, items: &[ItemId]) {
        for items in items.chunks(DISCARDED_PER_STEP) {
            let state = self.state.lock();
            let is_back =
                |item: &&ItemId| state.cache.holds(item) || state.flights.contains_key(item);
            let gone = items.iter().filter(|item| !is_back(item));
            let gone: Vec<ItemId> = gone.copied().collect();
            if !gone.is_empty() {
                // Under the lock, so that none of them is admitted meanwhile.
                item_store.remove(&gone);
            }
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

    /// Holds nothing from now on. Returns the item store, and the items that are still in it.
    pub(super) fn close(&self) -> (Option<Arc<ItemStore>>, Vec<ItemId>) {
        let mut state = self.state.lock();
        let items = state.cache.set_share(0);
        (state.item_store.take(), items)
    }

    /// Returns how to answer a request without reading storage. `rests`: the item store returns nothing at
    /// the moment.
    pub(super) fn find(self: &Arc<Self>, wanted: &WantedItem, rests: bool) -> Option<Next> {
        self.state.lock().find(self, wanted, rests)
    }

    /// Returns the requested blocks if the item is held in memory and no request reads it again.
    pub(super) fn try_get(&self, wanted: &WantedItem) -> Option<Vec<RangeAnswer>> {
        let mut state = self.state.lock();
        if state.flights.contains_key(&wanted.id) || !state.cache.holds(&wanted.id) {
            return None;
        }
        let found = (state.item_store.as_ref()?).try_get(&wanted.id, wanted.range.clone())?;
        state.cache.touch(&wanted.id);
        state.counts.hits += 1;
        Some(found)
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
        let lasts = lasts && !wanted.is_loose;
        let kept = lasts && state.would_admit(item, wanted.extent.len);
        if lasts && !kept {
            state.lose(item);
        }
        // An item that is to be kept is read whole.
        let range = if kept {
            0..wanted.extent.len
        } else {
            wanted.aligned(state.readers == OriginReaders::Roots)
        };
        let cost = wanted.cost(&range);
        // Before anything is evicted for the item.
        if payment < cost {
            return Next::Unpaid { cost };
        }
        let room = kept.then(|| state.admit(item, wanted.extent.len)).flatten();
        state.counts.misses += 1;
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

    /// Returns whether the rule keeps an item, if there is room.
    pub(super) fn keeps(&self, item: &ItemId) -> bool {
        self.state.lock().cache.keeps(item)
    }

    /// Returns whether an item is held.
    pub(super) fn holds(&self, item: &ItemId) -> bool {
        self.state.lock().cache.holds(item)
    }

    /// Returns whether its manifest names one of these items.
    pub(super) fn names(&self, items: &[ItemId]) -> bool {
        let state = self.state.lock();
        let named = |item: &ItemId| {
            let catalog = state.catalog.as_ref();
            catalog.is_some_and(|catalog| catalog.entries_of(item).next().is_some())
        };
        // Not `any`, which would end with the first.
        items.iter().fold(false, |found, item| found | named(item))
    }

    /// Returns the first of these items that is held, with its length in bytes.
    pub(super) fn held_item(&self, items: &[ItemId]) -> Option<(ItemId, u64, Arc<ItemStore>)> {
        let state = self.state.lock();
        let held = |item: &ItemId| Some((*item, u64::from(state.cache.len_of(item)?)));
        let (item, len) = items.iter().find_map(held)?;
        Some((item, len, Arc::clone(state.item_store.as_ref()?)))
    }

    /// Returns the length of an item that its manifest names.
    pub(super) fn len_of(&self, item: &ItemId) -> Option<u64> {
        self.state.lock().catalog.as_ref()?.len_of(item)
    }

    /// Reserves room for an item whose bytes are there. Requests for it wait until it is kept.
    pub(super) fn reserve(
        self: &Arc<Self>,
        item: ItemId,
        len: u64,
    ) -> Option<(Lead, Arc<ItemStore>)> {
        let mut state = self.state.lock();
        let item_store = Arc::clone(state.item_store.as_ref()?);
        let room = state.would_admit(item, len).then(|| state.admit(item, len));
        let room = room.flatten()?;
        let (answer, pending) = watch::channel(None);
        let range = 0..len;
        let flight = Flight {
            range: range.clone(),
            pending,
        };
        state.flights.entry(item).or_default().push(flight);
        drop(state);
        let lead = Lead {
            share: Arc::clone(self),
            item,
            range,
            cost: 0,
            room: Some(room),
            answer,
        };
        Some((lead, item_store))
    }

    /// Removes an item whose bytes are missing or to be evicted.
    pub(super) fn lost(&self, item: &ItemId) {
        let mut state = self.state.lock();
        if state.cache.remove(item) {
            state.evict(&[*item]);
        }
    }

    /// Records the result of a read from storage. Returns the item store.
    pub(super) fn was_read(
        &self,
        outcome: &Result<Fetched, Failure>,
        cost: u64,
    ) -> Option<Arc<ItemStore>> {
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

    /// `others`: the other datasets whose items are known by their content.
    pub(super) fn report(&self, others: &[Arc<Self>]) -> ShareReport {
        let chunks = self.chunk_reports(others);
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
            chunks,
            by_count: state.count_report(),
        }
    }
}

impl ShareState {
    fn find(&mut self, share: &Arc<Share>, wanted: &WantedItem, rests: bool) -> Option<Next> {
        let covers = |flight: &&Flight| {
            let (read, wanted) = (&flight.range, &wanted.range);
            read.start <= wanted.start && wanted.end <= read.end
        };
        let mut flights = self.flights.get(&wanted.id).into_iter().flatten();
        if let Some(flight) = flights.find(covers) {
            self.counts.hits += 1;
            return Some(Next::Join {
                pending: flight.pending.clone(),
                is_done: flight.pending.borrow().is_some(),
            });
        }
        // A suspended disk counts as a miss.
        let item_store = self.item_store.as_ref().filter(|_| !rests);
        let item_store = Arc::clone(item_store.filter(|_| self.cache.holds(&wanted.id))?);
        self.cache.touch(&wanted.id);
        self.counts.hits += 1;
        Some(Next::Held(Arc::clone(share), item_store))
    }

    /// Returns the items that are not kept any more. Their bytes are still there.
    fn choose_rule(&mut self) -> Vec<ItemId> {
        let rule: Box<dyn Rule<ItemId>> = match (self.keep, &self.catalog, &self.resident) {
            // A dataset of chunks that cannot be divided into them keeps nothing, and says so.
            (Keep::None, ..) | (Keep::Chunks, Some(_), None) => Box::new(Nothing),
            // The items of an earlier process stay until the catalog is known.
            (_, None, _) => Box::new(Everything),
            (_, Some(catalog), Some((layout, chunks))) => Box::new(Resident {
                catalog: Arc::clone(catalog),
                layout: *layout,
                chunks: chunks.clone(),
            }),
            (_, Some(catalog), None) => Box::new(Named(Arc::clone(catalog))),
        };
        let gone = self.cache.set_rule(rule);
        self.keep_by_count(self.keep == Keep::References);
        self.find_chunks();
        gone
    }

    /// Finds the items of the resident chunks.
    fn find_chunks(&mut self) {
        let resident = self.resident.as_ref().zip(self.catalog.as_ref());
        self.chunks = resident.map(|((layout, chunks), catalog)| {
            let is_at_home = |slot| self.placement.at_home(slot);
            Arc::new(HomeChunks::new(catalog, *layout, chunks, is_at_home))
        });
        self.counted = None;
        let cache = &self.cache;
        self.lost.retain(|item| cache.keeps(item));
    }

    /// Records that an item of a resident chunk cannot be read or kept here. It counts as loaded, and stays a
    /// miss.
    fn lose(&mut self, item: ItemId) {
        let is_due = self.chunks.is_some() && self.has_share && self.placement.at_home(item.slot());
        if is_due && self.cache.keeps(&item) {
            self.lost.insert(item);
        }
    }

    /// Returns the length of an item that may be kept here.
    fn len_here(&self, item: ItemId, len: u64) -> Option<u32> {
        let is_here = self.has_share && self.placement.at_home(item.slot());
        let has_store = is_here && self.item_store.is_some();
        has_store.then(|| u32::try_from(len).ok()).flatten()
    }

    /// Returns whether an item is to be kept here, and whether there would be room for it.
    fn would_admit(&self, item: ItemId, len: u64) -> bool {
        let len = self.len_here(item, len);
        len.is_some_and(|len| self.cache.would_admit(&item, len))
    }

    /// Reserves room for an item for which there would be room.
    fn admit(&mut self, item: ItemId, len: u64) -> Option<Reserved<ItemId>> {
        let (len, mut evicted) = (self.len_here(item, len)?, Vec::new());
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
