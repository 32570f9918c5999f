//! The home's service: the shares of declared datasets that this node holds, and the items that it gives
//! to whoever asks.
//!
//! An item that is held is given at once. One that is not is read from storage, if the request pays for
//! it, once for all who ask meanwhile; it is kept if it is at home here and the share has room.
//!
//! What it does not do: decide shares ([`crate::budgets`]), say who is at home where ([`super::slots`]),
//! hold jobs' tokens, or travel ([`copperfs_overlay::Homes`]).
//!
//! Invariants
//! - Storage is never read without payment: `charged` is what was read, and at most the payment.
//! - What is held of a dataset is never above its share, and the shares are together never above the
//!   capacity.
//! - Trouble with the disk costs hits and no request.
//! - A flight that somebody has paid for ends, also when nobody waits for it any more: what it brings is
//!   kept if it may be, and nobody pays twice.
//!
//! Locks, none held across an await: what was applied, the list of datasets, one dataset, its item_store, in
//! that order.

mod flight;
mod lifetime;
mod share;

use super::fetch::Wanted;
use super::item::ItemId;
use super::item_store::Cut;
use super::recency::Recency;
use crate::model::slots::{Homes, STRIPE_BYTES};
use crate::model::{DatasetDecision, Decision, HomeNode, OriginReaders, Serial, ShareReport};
use crate::num::to_usize;
use copperfs_overlay::{
    ContentHash, Failure, FailureKind, Files, ItemAnswer, ItemPath, ItemRequest,
};
use copperfs_policy::Policy;
use flight::landed;
use lifetime::Absence;
use parking_lot::{Mutex, RwLock};
use share::{Next, Share};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// What a [`Home`] is made with.
#[derive(Clone, Debug)]
pub struct HomeOptions {
    /// Bytes of items that it may hold, all datasets together. A disk takes up to 4 KiB more for each
    /// block of 1 MiB.
    pub capacity: u64,
    /// Where they lie.
    pub place: HomePlace,
    /// Which items go when a share shrinks.
    pub seed: u64,
    /// Bytes that may be under way from storage, beside the capacity; at least one stripe.
    pub in_flight_bytes_max: u64,
}

impl HomeOptions {
    /// What [`HomeOptions::in_flight_bytes_max`] is by default: 32 whole stripes, which keep a fast
    /// network busy over 10 ms of delay.
    pub const IN_FLIGHT_BYTES_MAX: u64 = 128 << 20;
}

/// Where a home keeps items.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HomePlace {
    /// In memory: gone with the process.
    Memory,
    /// Below `datasets` in a directory, the node's store's.
    Disk {
        /// That directory; it exists.
        directory: PathBuf,
        /// The share of its filesystem that is left free, in per cent.
        reserve_percent: u8,
    },
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Home(Arc<Inner>);

struct Inner {
    options: HomeOptions,
    /// Storage by way of the roots.
    roots: Arc<dyn Files>,
    /// Storage itself.
    own: Option<Arc<dyn Files>>,
    /// Bytes under way, in units of [`ROOM_UNIT`].
    room: Arc<Semaphore>,
    shares: RwLock<HashMap<u64, Arc<Share>>>,
    applied: Mutex<Applied>,
    /// Under the policy `lru`: what goes next. `None`: shares are uniform caches.
    recency: Mutex<Option<Recency>>,
    /// Datasets whose directories are being taken away.
    closing: Mutex<HashSet<u64>>,
    /// Opening takes it to read, removing what nobody knows to write.
    directories: tokio::sync::RwLock<()>,
    runtime: Handle,
}

/// The unit in which bytes under way are counted.
const ROOM_UNIT: u64 = 4096;

/// What the last decision said.
struct Applied {
    serial: Option<Serial>,
    homes: Vec<HomeNode>,
    placement: Arc<Placement>,
    absence: Absence,
}

/// Which slots are at home here.
#[derive(Debug)]
struct Placement {
    homes: Homes,
    /// This node's position among the homes; `None`: it is none.
    here: Option<usize>,
}

impl Placement {
    fn at_home(&self, slot: u16) -> bool {
        self.here.is_some() && self.homes.home_of_slot(slot) == self.here
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

/// A request whose item turns out not to be there is looked at anew so often.
const LOOKS_MAX: usize = 4;
/// Who joined a flight that failed asks once more: it was somebody else's attempt.
const RETRIES: usize = 1;
/// How long requests wait for a share that is being opened after a start, before they are served
/// without it.
const OPENING: Duration = Duration::from_secs(5);

impl Home {
    /// A home without datasets. `roots` is asked for those whose storage the roots read, `own` for those
    /// whose homes do; `None`: this node cannot. To be called within a runtime, which does the work.
    #[must_use]
    pub fn new(options: HomeOptions, roots: Arc<dyn Files>, own: Option<Arc<dyn Files>>) -> Self {
        let in_flight = options.in_flight_bytes_max.max(STRIPE_BYTES);
        let room = to_usize(in_flight / ROOM_UNIT).min(Semaphore::MAX_PERMITS);
        let placement = Arc::new(Placement {
            homes: Homes::new(&[]),
            here: None,
        });
        Self(Arc::new(Inner {
            options,
            roots,
            own,
            room: Arc::new(Semaphore::new(room)),
            shares: RwLock::default(),
            applied: Mutex::new(Applied {
                serial: None,
                homes: Vec::new(),
                placement,
                absence: Absence::new(Instant::now()),
            }),
            recency: Mutex::default(),
            closing: Mutex::default(),
            directories: tokio::sync::RwLock::default(),
            runtime: Handle::current(),
        }))
    }

    /// Bytes that this node has for datasets.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.options.capacity
    }

    /// Follows a decision, unless it has a newer one: shares, placement, datasets that are new or gone.
    /// This node is the member of this rank and name. Where the shares are together above the capacity,
    /// each gets its part of it, those of datasets that are cached whole first.
    ///
    /// A node that the decision does not name as a home keeps what it has for a minute, and so does one
    /// whose dataset is unknown to a new allocator: both may be back.
    pub fn apply(&self, decision: &Decision, rank: u32, name: &str) {
        let mut applied = self.0.applied.lock();
        if applied.serial.is_some_and(|last| decision.serial < last) {
            return;
        }
        let same_term = applied
            .serial
            .is_some_and(|s| s.term == decision.serial.term);
        applied.serial = Some(decision.serial);
        let me = |home: &HomeNode| home.rank == rank && home.name == name;
        let here = decision.homes.iter().position(me);
        if applied.homes != decision.homes || applied.placement.here != here {
            applied.homes.clone_from(&decision.homes);
            let homes = Homes::new(&decision.homes);
            applied.placement = Arc::new(Placement { homes, here });
        }
        let now = Instant::now();
        applied.absence.of_node(here.is_none(), now);
        self.let_go(decision, same_term, &mut applied.absence, now);
        let away = applied.absence.is_over(now);
        let mut due: Vec<Due> = Vec::with_capacity(decision.datasets.len());
        for dataset in &decision.datasets {
            let share = self.share_of(dataset);
            let bytes = match here {
                Some(here) => dataset.share(&decision.homes, here),
                None if away => 0,
                None => {
                    share.place(&applied.placement);
                    continue;
                }
            };
            let whole = dataset.size > 0 && dataset.budget >= dataset.size;
            due.push(Due {
                share,
                bytes,
                whole,
            });
        }
        let lru = decision.policy == Policy::Lru.name();
        {
            let mut recency = self.0.recency.lock();
            if !lru {
                *recency = None;
            } else if recency.is_none() {
                *recency = Some(Recency::new(self.0.options.capacity));
                // What lies there has no place in the order.
                due.iter().for_each(|due| due.share.shrink(0));
            }
        }
        if lru {
            due.iter_mut()
                .for_each(|due| due.bytes = self.0.options.capacity);
        } else {
            self.clamp(&mut due);
        }
        // What shrinks shrinks first, so that the sum is never above the capacity.
        for Due { share, bytes, .. } in &due {
            share.place(&applied.placement);
            share.shrink(*bytes);
        }
        for Due { share, bytes, .. } in &due {
            share.set_bytes(*bytes);
        }
    }

    /// Gives the bytes that are asked for, or says what they cost. Dropping the future ends neither a
    /// read of storage that was paid for nor the waiting of others for it.
    ///
    /// # Errors
    /// Storage's, by their kind; `Unavailable` for a dataset that is not known here (yet);
    /// `Unsupported` where this node is to read storage and cannot; `Corrupt` for a request with an
    /// [`ItemRequest::fault`], or for what is no part of its dataset.
    pub async fn item(&self, request: ItemRequest) -> Result<ItemAnswer, Failure> {
        let wanted = Wanted::of(&request)?;
        let share = self.known(&request)?;
        share.opened(OPENING).await;
        let item = ItemId::of(&wanted.file, wanted.stripe);
        self.touch(&share, item, wanted.len, request.payment);
        let mut retries = RETRIES;
        // The disk gives nothing at the moment: what it holds is passed by.
        let mut rests = false;
        for _look in 0..LOOKS_MAX {
            match share.next(&wanted, item, request.payment, rests) {
                Next::Held(item_store) => {
                    if let Some(cut) = item_store
                        .get(&item, wanted.len, wanted.range.clone())
                        .await
                    {
                        return Ok(answer(cut, Paid::Cached).await);
                    }
                    rests = item_store.rests();
                    if !rests {
                        share.lost(&item);
                    }
                }
                Next::Unpaid { cost } => return Ok(ItemAnswer::Unpaid { cost }),
                Next::Join(pending, here) => match landed(pending).await {
                    Some(Ok(fetched)) => {
                        if let Some(cut) = fetched.cut(&wanted.range) {
                            let paid = if here { Paid::Cached } else { Paid::Joined };
                            return Ok(answer(cut, paid).await);
                        }
                    }
                    Some(Err(failure)) if retries == 0 || !may_pass(&failure) => {
                        return Err(failure);
                    }
                    Some(Err(_)) => retries -= 1,
                    // Whoever led died.
                    None => {}
                },
                Next::Lead(lead, pending) => {
                    let (source, through) = self.source(share.readers())?;
                    let paid = Paid::Led {
                        charged: lead.cost(),
                        admitted: lead.admits(),
                    };
                    let room = Arc::clone(&self.0.room);
                    let flight = lead.fly(wanted.clone(), source, through, room);
                    drop(self.0.runtime.spawn(flight));
                    match landed(pending).await {
                        Some(Ok(fetched)) => {
                            let cut = fetched.cut(&wanted.range);
                            let cut = cut.ok_or_else(|| vanished(&request))?;
                            return Ok(answer(cut, paid).await);
                        }
                        Some(Err(failure)) => return Err(failure),
                        None => return Err(vanished(&request)),
                    }
                }
            }
        }
        Err(vanished(&request))
    }

    /// Whether a request would be answered from what is held: without storage, and without payment.
    #[must_use]
    pub fn has(&self, request: &ItemRequest) -> bool {
        let (Some(share), Ok(wanted)) = (self.find(request.dataset), Wanted::of(request)) else {
            return false;
        };
        share.holds(&ItemId::of(&wanted.file, wanted.stripe))
    }

    /// Drops what is held of the datasets at `path` and below. Of one that reaches above it nothing goes:
    /// a version's bytes do not change, and what is another version is asked for anew.
    pub fn clear(&self, path: &ItemPath) {
        for share in self.all() {
            if share.path().is_within(path) {
                let bytes = share.stats().share;
                share.set_bytes(0);
                share.set_bytes(bytes);
            }
        }
    }

    /// Whether [`Home::clear`] of `path` would affect a dataset.
    #[must_use]
    pub fn is_home_below(&self, path: &ItemPath) -> bool {
        self.all().iter().any(|share| share.path().is_within(path))
    }

    /// What is held of each dataset. To be asked every second or so: what was given up for some time
    /// only goes then.
    #[must_use]
    pub fn report(&self) -> Vec<ShareReport> {
        self.tidy(Instant::now());
        let mut reports: Vec<_> = self.all().iter().map(|share| share.report()).collect();
        reports.sort_unstable_by_key(|report| report.dataset);
        reports
    }

    /// Under the policy `lru` what was read longest ago makes way for an item that is read.
    fn touch(&self, share: &Share, item: ItemId, len: u64, payment: u64) {
        let gone = match &mut *self.0.recency.lock() {
            Some(recency) if payment >= len || share.holds(&item) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                recency.read(share.id(), item, len)
            }
            _ => return,
        };
        for (dataset, item) in gone {
            if let Some(share) = self.find(dataset) {
                share.lost(&item);
            }
        }
    }

    fn all(&self) -> Vec<Arc<Share>> {
        let shares = self.0.shares.read();
        shares.values().map(Arc::clone).collect()
    }

    fn find(&self, id: u64) -> Option<Arc<Share>> {
        let shares = self.0.shares.read();
        shares.get(&id).map(Arc::clone)
    }

    /// The dataset of a request.
    fn known(&self, request: &ItemRequest) -> Result<Arc<Share>, Failure> {
        let Some(share) = self.find(request.dataset) else {
            let id = request.dataset;
            let detail = format!("{}: dataset {id:016x} is not known here", request.path);
            return Err(Failure::new(FailureKind::Unavailable, detail));
        };
        if !request.path.is_within(share.path()) {
            let (path, name) = (&request.path, share.name());
            let detail = format!("{path}: no part of dataset {name}");
            return Err(Failure::new(FailureKind::Corrupt, detail));
        }
        Ok(share)
    }

    /// Who is asked for storage, and whether that is by way of other nodes.
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

    /// The share of a dataset, made if it is new.
    fn share_of(&self, dataset: &DatasetDecision) -> Arc<Share> {
        let mut shares = self.0.shares.write();
        let known = shares.len();
        let share = shares.entry(dataset.id).or_insert_with(|| {
            let seed = self.0.options.seed ^ dataset.id;
            let share = Arc::new(Share::new(dataset, seed));
            self.open(&share, known);
            share
        });
        share.declared(dataset);
        Arc::clone(share)
    }

    /// Takes from the shares what they are above the capacity: from each its part, but nothing from
    /// datasets that are cached whole as long as others have something. A job with a whole dataset is
    /// given next to no remote IO, and a few misses would hold it up; to others a miss more is one more.
    fn clamp(&self, due: &mut [Due]) {
        let known = |share: &Arc<Share>| due.iter().any(|due| Arc::ptr_eq(&due.share, share));
        let all = self.all();
        let lingers = all.iter().filter(|share| !known(share));
        let lingering: u64 = lingers.map(|share| share.stats().used).sum();
        let capacity = u128::from(self.0.options.capacity.saturating_sub(lingering));
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

/// What a share is to be.
struct Due {
    share: Arc<Share>,
    bytes: u64,
    /// The dataset's budget is all of it.
    whole: bool,
}

/// How an answer came about.
#[derive(Clone, Copy, Debug)]
enum Paid {
    /// It was here.
    Cached,
    /// Somebody else read it.
    Joined,
    /// It was read for this request.
    Led { charged: u64, admitted: u64 },
}

async fn answer(cut: Cut, paid: Paid) -> ItemAnswer {
    let (charged, admitted) = match paid {
        Paid::Led { charged, admitted } => (charged, admitted),
        Paid::Cached | Paid::Joined => (0, 0),
    };
    let hash = match cut.hash {
        Some(hash) => hash,
        None => hash_of(cut.bytes.clone()).await,
    };
    ItemAnswer::Bytes {
        bytes: cut.bytes,
        hash,
        cached: matches!(paid, Paid::Cached),
        charged,
        admitted,
    }
}

/// Above so many bytes hashing is done elsewhere: it takes longer than 0.1 ms.
const HASHED_HERE_MAX: usize = 256 << 10;

async fn hash_of(bytes: bytes::Bytes) -> ContentHash {
    let hash = |bytes: &[u8]| ContentHash(*blake3::hash(bytes).as_bytes());
    if bytes.len() <= HASHED_HERE_MAX {
        return hash(&bytes);
    }
    let again = bytes.clone();
    match tokio::task::spawn_blocking(move || hash(&again)).await {
        Ok(hash) => hash,
        Err(_) => hash(&bytes),
    }
}

/// Whether another attempt may fare better.
fn may_pass(failure: &Failure) -> bool {
    use FailureKind as Kind;
    matches!(failure.kind, Kind::Unavailable | Kind::Corrupt | Kind::Io)
}

fn vanished(request: &ItemRequest) -> Failure {
    let detail = format!("{}: the home could not hold on to it", request.path);
    Failure::new(FailureKind::Unavailable, detail)
}

#[cfg(test)]
mod tests;
