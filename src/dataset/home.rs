//! The home's service: the node's shares of declared datasets, and the answers to requests for
//! items.
//!
//! An item that is held is returned at once. Any other item is read from storage if the request
//! pays for it, once for all concurrent requests. It is kept if this node is its home and the share
//! has room.
//!
//! It does not decide shares ([`crate::budgets`]), assign homes ([`crate::model::slots`]), hold
//! jobs' tokens, or connect nodes ([`copperfs_overlay::Homes`]).
//!
//! Invariants
//! - Storage is never read without payment: `charged` is the number of bytes read, and at most the
//!   payment.
//! - The bytes held of a dataset never exceed its share, and all shares together never exceed the
//!   capacity.
//! - A fault of the disk costs hits and no request.
//! - A paid flight continues if its requests are cancelled: its item is kept if possible, and no
//!   request pays for it again.
//!
//! Locks, none held across an await: the applied decision, contents, the list of datasets, one dataset,
//! its item store, in that order.

mod at_once;
mod chunks;
mod content;
mod lifetime;
mod pass_on;
mod pipelines;
mod rules;
mod share;

use super::catalog::Catalog;
use super::fetch::{WantedItem, fetch};
use super::item::ItemId;
use super::item_store::ItemBytes;
use super::recency::Recency;
use crate::cache::Fill;
use crate::model::slots::{STRIPE_BYTES, SlotTable};
use crate::model::{DatasetDecision, Decision, HomeNode, OriginReaders, Serial, ShareReport};
use crate::num::to_usize;
use bytes::Bytes;
use copperfs_metrics::{Counter, Scope, Unit};
use copperfs_overlay::{
    ContentHash, Failure, FailureKind, Files, HeldAnswer, HeldRequest, ItemAnswer, ItemPath,
    ItemRequest, RangeAnswer,
};
use copperfs_policy::Policy;
use parking_lot::{Mutex, RwLock};
use share::{GivenUp, Next, Share, wait_done};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// The configuration of a [`Home`].
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// The maximum number of bytes of items, all datasets together. A disk uses up to 4 KiB more
    /// for each block of 1 MiB.
    pub capacity: u64,
    /// Where items are kept.
    pub storage: HomeStorage,
    /// Determines the random evictions.
    pub seed: u64,
    /// The maximum number of bytes in flight from storage, in addition to the capacity; at least
    /// one stripe.
    pub in_flight_bytes_max: u64,
}

impl HomeOptions {
    /// The default of [`HomeOptions::in_flight_bytes_max`]: 32 whole stripes, which keep a fast
    /// network busy over 10 ms of delay.
    pub const IN_FLIGHT_BYTES_MAX: u64 = 128 << 20;
}

/// Where a home keeps items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomeStorage {
    /// In memory, until the process ends.
    Memory,
    /// In the directory `datasets` of the node's store.
    Disk {
        /// The directory of the node's store, which exists.
        directory: PathBuf,
        /// The percentage of its filesystem that is left free.
        reserve_percent: u8,
        /// After how long without an answer it is not used for a while.
        disk_timeout: Duration,
    },
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Home(Arc<Shared>);

struct Shared {
    options: HomeOptions,
    /// At first [`HomeOptions::capacity`].
    capacity: AtomicU64,
    requested: Notify,
    /// How often a decision has left a dataset fewer bytes here.
    shrunk: Counter,
    /// Storage, through the roots.
    roots: Arc<dyn Files>,
    /// Storage, directly from this node.
    own: Option<Arc<dyn Files>>,
    /// Limits bytes in flight, in units of [`ROOM_UNIT`].
    room: Arc<Semaphore>,
    shares: RwLock<HashMap<u64, Arc<Share>>>,
    applied: Mutex<AppliedDecision>,
    /// The eviction order under the policy `lru`. `None`: shares are uniform caches.
    recency: Mutex<Option<Recency>>,
    /// Datasets whose directories are being removed.
    closing: Mutex<HashSet<u64>>,
    /// Guards the decision on an item of known content, which other datasets may have too. Held before the
    /// lock of a dataset.
    contents: Mutex<()>,
    /// Held for reading while a directory is opened, and for writing while directories are removed.
    directories: tokio::sync::RwLock<()>,
    runtime: Handle,
}

/// The unit of [`Shared::room`].
const ROOM_UNIT: u64 = 4096;

/// The last decision that was applied.
#[derive(Default)]
struct AppliedDecision {
    serial: Option<Serial>,
    homes: Vec<HomeNode>,
    placement: Arc<Placement>,
    /// When this process began. `None`: undeclared directories were removed.
    began: Option<Instant>,
    /// Since when this node is no home. It may be one again.
    absent: Option<Instant>,
    /// Since when a dataset is undeclared without having been removed.
    undeclared: HashMap<u64, Instant>,
}

/// The slots whose home is this node.
#[derive(Debug, Default)]
struct Placement {
    homes: SlotTable,
    /// This node's index among the homes. `None`: it is no home.
    here: Option<usize>,
}

impl Placement {
    fn at_home(&self, slot: u16) -> bool {
        self.here.is_some() && self.homes.home_of_slot(slot) == self.here
    }
}

/// The maximum number of attempts for a request whose item turns out to be missing.
const ATTEMPTS_MAX: usize = 4;
/// A request that joined another request's failed flight tries once more itself.
const JOIN_RETRIES: usize = 1;
/// How long requests wait for a share that is being opened after a start. After that they are
/// served without it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

impl Home {
    /// Creates a home without datasets. `roots` serves datasets whose storage the roots read, and
    /// `own` those whose homes read storage; `None`: this node cannot. Must be called within a
    /// runtime, which runs the flights.
    #[must_use]
    pub fn new(options: HomeOptions, roots: Arc<dyn Files>, own: Option<Arc<dyn Files>>) -> Self {
        let in_flight = options.in_flight_bytes_max.max(STRIPE_BYTES);
        let room = to_usize(in_flight / ROOM_UNIT).min(Semaphore::MAX_PERMITS);
        Self(Arc::new(Shared {
            capacity: AtomicU64::new(options.capacity),
            requested: Notify::new(),
            shrunk: Counter::default(),
            options,
            roots,
            own,
            room: Arc::new(Semaphore::new(room)),
            shares: RwLock::default(),
            applied: Mutex::new(AppliedDecision {
                began: Some(Instant::now()),
                ..AppliedDecision::default()
            }),
            recency: Mutex::default(),
            closing: Mutex::default(),
            contents: Mutex::default(),
            directories: tokio::sync::RwLock::default(),
            runtime: Handle::current(),
        }))
    }

    /// Returns this node's capacity for datasets in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.capacity.load(Ordering::Relaxed)
    }

    /// How full it is.
    #[must_use]
    pub fn fill(&self) -> Fill {
        Fill {
            held: self.all().iter().map(|share| share.stats().used).sum(),
            capacity: self.capacity(),
        }
    }

    /// Waits for the next read from storage, or returns at once if there was one since the last call.
    pub async fn requested(&self) {
        self.0.requested.notified().await;
    }

    /// Declares the counters in `datasets`.
    pub fn declare(&self, datasets: &Scope) {
        let help = "Times that a decision has left a dataset fewer bytes on this node.";
        datasets.counter("shrunk", Unit::Count, help, &self.0.shrunk);
    }

    /// Changes the capacity. It takes effect when a decision is applied the next time: apply the present one again.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.capacity.store(bytes, Ordering::Relaxed);
    }

    /// Applies a decision, unless a newer one was applied: shares, placement, new and removed
    /// datasets. This node is the member with this rank and name. If the shares exceed the
    /// capacity, each is reduced in proportion, those of whole datasets last.
    ///
    /// A node that the decision does not name as a home keeps its items for a minute, and so does
    /// one whose dataset is unknown to a new allocator, because both may return.
    pub fn apply(&self, decision: &Decision, rank: u32, name: &str) {
        let mut applied = self.0.applied.lock();
        // An older decision must not undo a newer one.
        if applied.serial.is_some_and(|last| decision.serial < last) {
            return;
        }
        let last = applied.serial.replace(decision.serial);
        let same_term = last.is_some_and(|last| last.term == decision.serial.term);
        let me = |home: &HomeNode| home.rank == rank && home.name == name;
        let here = decision.homes.iter().position(me);
        if applied.homes != decision.homes || applied.placement.here != here {
            applied.homes.clone_from(&decision.homes);
            let homes = SlotTable::new(&decision.homes);
            applied.placement = Arc::new(Placement { homes, here });
        }
        let now = Instant::now();
        applied.absent = here.is_none().then(|| applied.absent.unwrap_or(now));
        self.close_removed(decision, same_term, &mut applied.undeclared, now);
        let away = applied.is_away(now);
        let mut given_up: Vec<(Arc<Share>, GivenUp)> = Vec::new();
        let mut due: Vec<ShareTarget> = Vec::with_capacity(decision.datasets.len());
        for dataset in &decision.datasets {
            let share = self.share_of(dataset);
            given_up.push((
                Arc::clone(&share),
                share.declared(dataset, &applied.placement),
            ));
            let bytes = match here {
                Some(here) => share.bytes_of(dataset, &decision.homes, here),
                None if away => 0,
                None => continue,
            };
            let chunks = dataset
                .resident_bytes_max()
                .filter(|_| dataset.resident.is_some());
            let whole = dataset.size > 0 && dataset.budget >= chunks.unwrap_or(dataset.size);
            due.push(ShareTarget {
                share,
                bytes,
                whole,
            });
        }
        let lru = decision.policy == Policy::Lru.name();
        if lru {
            let capacity = self.capacity();
            let mut recency = self.0.recency.lock();
            let gone = match &mut *recency {
                Some(recency) => recency.set_capacity(capacity),
                None => {
                    *recency = Some(Recency::new(capacity));
                    // Items from before have no position in the order.
                    due.iter().for_each(|due| drop(due.share.shrink(0)));
                    Vec::new()
                }
            };
            drop(recency);
            self.lose_all(&gone);
            due.iter_mut().for_each(|due| due.bytes = capacity);
        } else {
            *self.0.recency.lock() = None;
            self.clamp(&mut due);
        }
        // Shrink before growing, so that the sum never exceeds the capacity.
        for ShareTarget { share, bytes, .. } in &due {
            let shrunk = share.shrink(*bytes);
            self.0.shrunk.add(u64::from(shrunk.is_some()));
            given_up.extend(shrunk.map(|items| (Arc::clone(share), items)));
        }
        for ShareTarget { share, bytes, .. } in &due {
            given_up.push((Arc::clone(share), share.set_bytes(*bytes)));
        }
        // Last, because the room that one dataset gives up may now be that of another with the same items.
        for (share, items) in given_up {
            self.pass_on(&share, items);
        }
    }

    /// Returns the requested bytes, or their price. Dropping the future ends neither a paid read
    /// from storage nor the wait of other requests for it.
    ///
    /// # Errors
    /// Storage's failures, with their kind; `Unavailable` for a dataset that is not known here
    /// (yet); `Unsupported` if this node is to read storage and cannot; `Corrupt` for a request
    /// with an [`ItemRequest::fault`], or for a path outside of its dataset.
    pub async fn item(&self, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        let share = self.share_for(&request)?;
        let wanted = WantedItem::of(&request, share.has_manifest())?;
        if request.is_uncached {
            return self.read_uncached(&share, &wanted, request.payment).await;
        }
        share.opened(OPEN_TIMEOUT).await;
        // Before the look-up, so that room for the item is made under the policy `lru`.
        self.touch(&share, wanted.id, wanted.extent.len, request.payment);
        let mut retries = JOIN_RETRIES;
        // Set while the disk is suspended. Items on it are then treated as missing.
        let mut rests = false;
        for _attempt in 0..ATTEMPTS_MAX {
            match self.next(&share, &wanted, request.payment, rests) {
                Next::Held(holder, item_store) => {
                    let range = wanted.range.clone();
                    if let Some(cut) = item_store.get(&wanted.id, wanted.extent.len, range).await {
                        return Ok(answer(cut, true, 0, 0).await);
                    }
                    rests = item_store.rests();
                    if !rests {
                        holder.lost(&wanted.id);
                    }
                }
                Next::Unpaid { cost } => return Ok(ItemAnswer::Unpaid { cost }),
                Next::Join { pending, is_done } => match wait_done(pending).await {
                    Some(Ok(fetched)) => {
                        if let Some(cut) = fetched.cut(&wanted.range) {
                            return Ok(answer(cut, is_done, 0, 0).await);
                        }
                    }
                    Some(Err(failure)) if retries == 0 || !may_pass(&failure) => {
                        return Err(failure);
                    }
                    Some(Err(_)) => retries -= 1,
                    // The flight was aborted. Try again.
                    None => {}
                },
                Next::Lead(lead, pending) => {
                    self.0.requested.notify_one();
                    let (source, through) = self.source(share.readers())?;
                    let (charged, admitted) = (lead.cost(), lead.admits());
                    let room = Arc::clone(&self.0.room);
                    let flight = lead.fly(wanted.clone(), source, through, room);
                    // The flight is a task of its own, so it continues if this request is
                    // cancelled.
                    drop(self.0.runtime.spawn(flight));
                    let fetched = wait_done(pending).await;
                    let fetched = fetched.ok_or_else(|| vanished(&request))??;
                    let cut = fetched.cut(&wanted.range);
                    let cut = cut.ok_or_else(|| vanished(&request))?;
                    return Ok(answer(cut, false, charged, admitted).await);
                }
            }
        }
        Err(vanished(&request))
    }

    /// Reads storage for one request only, as if there were no cache, so that its job's time without one can
    /// be measured (Quiver, section 5.3).
    async fn read_uncached(
        &self,
        share: &Share,
        wanted: &WantedItem,
        payment: u64,
    ) -> Result<ItemAnswer, Failure> {
        let range = wanted.aligned(share.readers() == OriginReaders::Roots);
        let cost = wanted.cost(&range);
        if payment < cost {
            return Ok(ItemAnswer::Unpaid { cost });
        }
        let (source, through) = self.source(share.readers())?;
        // As for other reads from storage.
        let units = u32::try_from(cost.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let _room = self.0.room.acquire_many(units).await;
        let outcome = fetch(&*source, wanted, range, through).await;
        drop(share.was_read(&outcome, cost));
        let cut = outcome?.cut(&wanted.range);
        let cut = cut.ok_or_else(|| {
            let detail = format!("{}: storage has given other bytes", wanted.file.path);
            Failure::new(FailureKind::Unavailable, detail)
        })?;
        Ok(answer(cut, false, cost, 0).await)
    }

    /// Decides how to answer a request. An item of known content is answered from any dataset that has it
    /// or reads it, so it is read and kept once.
    fn next(&self, share: &Arc<Share>, wanted: &WantedItem, payment: u64, rests: bool) -> Next {
        if wanted.content.is_none() {
            return share.next(wanted, payment, rests);
        }
        let _deciding = self.0.contents.lock();
        let others = self.with_content(share);
        let elsewhere = || others.iter().find_map(|other| other.find(wanted, rests));
        let found = share.find(wanted, rests).or_else(elsewhere);
        found.unwrap_or_else(|| share.next(wanted, payment, rests))
    }

    /// Returns whether a request would be answered without storage and without payment.
    #[must_use]
    pub fn has(&self, request: &ItemRequest) -> bool {
        let Some(share) = self.find(request.dataset) else {
            return false;
        };
        let wanted = WantedItem::of(request, share.has_manifest());
        wanted.is_ok_and(|wanted| {
            let elsewhere = || self.with_content(&share);
            share.holds(&wanted.id)
                || (wanted.content.is_some() && elsewhere().iter().any(|one| one.holds(&wanted.id)))
        })
    }

    /// Sets the items of a dataset that has a manifest.
    pub fn set_catalog(&self, dataset: u64, catalog: &Arc<Catalog>) {
        if let Some(share) = self.find(dataset) {
            let given_up = share.set_catalog(Arc::clone(catalog));
            self.pass_on(&share, given_up);
        }
    }

    /// Returns which of a dataset's items are held here, of those whose home this node is: see
    /// [`copperfs_overlay::Service::held`].
    ///
    /// # Errors
    /// `Unavailable` if the dataset, its entries, or these homes are not known here.
    pub async fn held(&self, request: HeldRequest) -> Result<HeldAnswer, Failure> {
        let unknown = || {
            Failure::new(
                FailureKind::Unavailable,
                "other items or homes are known here",
            )
        };
        let share = self.find(request.dataset).ok_or_else(unknown)?;
        let home = self.clone();
        // It looks at all items at home here.
        let looking = tokio::task::spawn_blocking(move || {
            // Under the lock, so that the items are those of these homes.
            let home_items = share.home_items(&home.0.applied.lock().homes)?;
            // Bits for other homes would be taken for other items.
            (home_items.layout() == request.layout)
                .then(|| share.held(home_items, &home.with_content(&share)))
        });
        let held = looking.await.ok().flatten().ok_or_else(unknown)?;
        let bits = (held.state != request.known).then(|| held.bits.clone());
        let state = held.state;
        Ok(HeldAnswer { state, bits })
    }

    /// Records why the entries of a dataset's manifest are not known here.
    pub fn set_trouble(&self, dataset: u64, trouble: &str) {
        if let Some(share) = self.find(dataset) {
            share.set_trouble(trouble.to_owned());
        }
    }

    /// Drops the items of datasets at `path` and below. A dataset that contains `path` keeps its
    /// items, because a version's bytes do not change, and another version is another item.
    pub fn clear(&self, path: &ItemPath) {
        for share in self.all() {
            if share.path.is_within(path) {
                let bytes = share.stats().share;
                drop(share.set_bytes(0));
                drop(share.set_bytes(bytes));
            }
        }
    }

    /// Returns whether [`Home::clear`] of `path` would affect a dataset.
    #[must_use]
    pub fn is_home_below(&self, path: &ItemPath) -> bool {
        self.all().iter().any(|share| share.path.is_within(path))
    }

    /// Reports on each dataset. Call it about every second, because expired items are dropped only
    /// then.
    #[must_use]
    pub fn report(&self) -> Vec<ShareReport> {
        self.tidy(Instant::now());
        let shares = self.all().into_iter();
        let mut reports: Vec<ShareReport> = shares
            .map(|share| share.report(&self.counted_with(&share)))
            .collect();
        reports.sort_unstable_by_key(|report| report.dataset);
        reports
    }

    /// Returns whether the resident chunks of a dataset are known here.
    #[must_use]
    pub fn has_chunks(&self) -> bool {
        self.all().iter().any(|share| share.has_chunks())
    }

    /// Returns the number of resident chunks that are loaded here, of all datasets. A change of it should be
    /// reported soon, because readers wait for the next chunk.
    #[must_use]
    pub fn loaded_chunks(&self) -> usize {
        let shares = self.all().into_iter();
        let loaded = shares.map(|share| share.loaded_chunks(&self.counted_with(&share)));
        loaded.sum()
    }

    /// Under the policy `lru`, evicts the least recently read items for an item that is read.
    fn touch(&self, share: &Share, item: ItemId, len: u64, payment: u64) {
        let gone = match &mut *self.0.recency.lock() {
            Some(recency) if share.keeps(&item) && (payment >= len || share.holds(&item)) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                recency.read(share.id, item, len)
            }
            _ => return,
        };
        self.lose_all(&gone);
    }

    /// Evicts items of several datasets.
    fn lose_all(&self, items: &[(u64, ItemId)]) {
        for (dataset, item) in items {
            if let Some(share) = self.find(*dataset) {
                share.lost(item);
            }
        }
    }

    /// Returns the other datasets that are looked at when the chunks of a dataset are counted. Each look takes
    /// the locks of all datasets, so there is none for a dataset without chunks.
    fn counted_with(&self, share: &Arc<Share>) -> Vec<Arc<Share>> {
        match share.has_chunks() {
            true => self.with_content(share),
            false => Vec::new(),
        }
    }

    /// Returns the other datasets whose items are known by their content, and may be given for it. The items of a
    /// private dataset are not among them: a manifest can claim any hash, so another dataset's readers could otherwise
    /// get its bytes.
    fn with_content(&self, share: &Arc<Share>) -> Vec<Arc<Share>> {
        let mut all = self.public();
        all.retain(|other| !Arc::ptr_eq(other, share));
        all
    }

    /// Returns the datasets whose items are given to all that know their hashes.
    fn public(&self) -> Vec<Arc<Share>> {
        let mut all = self.all();
        all.retain(|share| share.is_public());
        all
    }

    fn all(&self) -> Vec<Arc<Share>> {
        self.0.shares.read().values().cloned().collect()
    }

    fn find(&self, id: u64) -> Option<Arc<Share>> {
        self.0.shares.read().get(&id).cloned()
    }

    /// Returns the share of a request's dataset.
    fn share_for(&self, request: &ItemRequest) -> Result<Arc<Share>, Failure> {
        let (id, path) = (request.dataset, &request.path);
        let share = self.find(id).ok_or_else(|| {
            let detail = format!("{path}: dataset {id:016x} is not known here");
            Failure::new(FailureKind::Unavailable, detail)
        })?;
        if !path.is_within(&share.path) {
            let detail = format!("{path}: no part of dataset {}", share.name);
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        Ok(share)
    }

    /// Returns the source for reads from storage, and whether it leads through other nodes.
    fn source(&self, readers: OriginReaders) -> Result<(Arc<dyn Files>, bool), Failure> {
        match (readers, &self.0.own) {
            (OriginReaders::Roots, _) => Ok((Arc::clone(&self.0.roots), true)),
            (OriginReaders::Homes, Some(own)) => Ok((Arc::clone(own), false)),
            (OriginReaders::Homes, None) => {
                let detail = "this home cannot read storage itself: declare the dataset with origin_readers = roots, or give every home the origin";
                Err(Failure::new(FailureKind::Unsupported, detail))
            }
        }
    }

    /// Returns the share of a dataset, and creates it if it is new.
    fn share_of(&self, dataset: &DatasetDecision) -> Arc<Share> {
        let mut shares = self.0.shares.write();
        let known = shares.len();
        let share = shares.entry(dataset.id).or_insert_with(|| {
            // Different datasets must not evict the same positions.
            let seed = self.0.options.seed ^ dataset.id;
            let share = Arc::new(Share::new(dataset, seed));
            self.open(&share, known);
            share
        });
        Arc::clone(share)
    }

    /// Reduces the shares to the capacity: in proportion, but whole datasets only after all others.
    /// A job with a whole dataset has next to no remote IO, so a few misses would delay it. For
    /// other jobs a further miss is only one more.
    fn clamp(&self, due: &mut [ShareTarget]) {
        let known = |share: &Arc<Share>| due.iter().any(|due| Arc::ptr_eq(&due.share, share));
        let all = self.all();
        // Shares in their grace period are not part of the decision, but hold bytes.
        let lingers = all.iter().filter(|share| !known(share));
        let lingering: u64 = lingers.map(|share| share.stats().used).sum();
        let capacity = u128::from(self.capacity().saturating_sub(lingering));
        let sum: u128 = due.iter().map(|due| u128::from(due.bytes)).sum();
        let mut over = sum.saturating_sub(capacity);
        for whole in [false, true] {
            let some = || due.iter().filter(|due| due.whole == whole);
            let sum: u128 = some().map(|due| u128::from(due.bytes)).sum();
            let taken = over.min(sum);
            over -= taken;
            for due in due.iter_mut().filter(|due| due.whole == whole) {
                let left = u128::from(due.bytes) * (sum - taken) / sum.max(1);
                due.bytes = u64::try_from(left).unwrap_or(u64::MAX);
            }
        }
    }
}

/// The size that a share is to have.
struct ShareTarget {
    share: Arc<Share>,
    bytes: u64,
    /// Whether the dataset's budget is all of it, or all of its resident chunks.
    whole: bool,
}

/// Answers with `found`. `cached`: it was held; `charged` and `admitted`: the bytes that were read, and kept,
/// for this request. All are nothing if another request has read it.
async fn answer(found: Vec<ItemBytes>, cached: bool, charged: u64, admitted: u64) -> ItemAnswer {
    let mut blocks = Vec::with_capacity(found.len());
    for ItemBytes { bytes, hash } in found {
        // Only a part of a block has no hash yet.
        let hash = match hash {
            Some(hash) => hash,
            None => hash_of(&bytes).await,
        };
        blocks.push(RangeAnswer { bytes, hash });
    }
    ItemAnswer::Bytes {
        blocks,
        cached,
        charged,
        admitted,
    }
}

/// Longer bytes are hashed on another thread, because that takes longer than 0.1 ms.
const HASHED_HERE_MAX: usize = 256 << 10;

async fn hash_of(bytes: &Bytes) -> ContentHash {
    let hash = |bytes: &[u8]| ContentHash(*blake3::hash(bytes).as_bytes());
    if bytes.len() <= HASHED_HERE_MAX {
        return hash(bytes);
    }
    let shared = bytes.clone();
    let hashed = tokio::task::spawn_blocking(move || hash(&shared)).await;
    // Only a runtime that shuts down does not run the task.
    hashed.unwrap_or_else(|_stopped| hash(bytes))
}

/// Returns whether another attempt may succeed.
fn may_pass(failure: &Failure) -> bool {
    use FailureKind::{Corrupt, Io, Unavailable};
    matches!(failure.kind, Unavailable | Corrupt | Io)
}

fn vanished(request: &ItemRequest) -> Failure {
    let detail = format!("{}: the home could not hold on to it", request.path);
    Failure::new(FailureKind::Unavailable, detail)
}

#[cfg(test)]
mod tests;
