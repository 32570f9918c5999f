//! Records which bytes of a file were returned: the hashes of the bytes that readers and the kernel hold.
//!
//! Purpose: when the origin's records show that only the file's status changed, the bytes returned so far
//! are compared with those of the new version. If they agree, readers continue under the new version and
//! never hold a mixture. [`Returned`] is the ledger of one inode, [`ReturnedParts`] its content at one moment.
//!
//! Rules
//! - Bytes are noted before they are returned.
//! - A comparison begins with [`Returned::freeze`]. From then on the ledger takes no new bytes, so that none
//!   are returned that the comparison does not cover. Bytes that it already has may be returned again.
//! - A full ledger is marked as full: then no comparison is possible, and the file does not continue.
//! - A block or run never has two hashes: bytes that differ from those returned earlier, under the same
//!   version, are not returned.
//!
//! Memory: a ledger's memory is counted in the [`Meter`] with which it was created, until it is dropped.
//!
//! Pure: no I/O, no clock. A second read of a one-block file takes no lock and does not allocate.

use super::slices::{BLOCK_PIECES, Part, PartRange};
use crate::num::to_usize;
use copperfs_overlay::ContentHash;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Blocks noted for one file: 8 GiB, in 192 KiB of memory. Beyond it the ledger is full.
pub const BLOCKS_MAX: usize = 8192;
/// Blocks of one file with noted pieces, in 224 KiB of memory. Beyond it the ledger is full.
pub const PIECED_BLOCKS_MAX: usize = 4096;
/// Runs noted for one file, in 128 KiB of memory: 16 GiB of whole stripes. Beyond it the ledger is full.
pub const RUNS_MAX: usize = 16_384;

/// Memory of a ledger with at most one block, including the allocator's overhead.
const STATE_BYTES: u64 = 112;
/// Additional memory of a ledger with more than that, before any entries.
const LEDGER_BYTES: u64 = 144;

/// 128 bits of a hash. They only have to distinguish bytes that an origin has served under one name.
type Short = [u8; 16];

fn short(hash: &ContentHash) -> Short {
    let mut short = [0; 16];
    short.copy_from_slice(&hash.0[..16]);
    short
}

/// The decision on bytes that are about to be returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    /// They may be returned.
    Yes,
    /// A comparison has begun, and does not cover them.
    Frozen,
    /// Other bytes were returned in their place earlier.
    Differs,
}

impl Noted {
    /// For bytes that are in place of earlier ones, and may be the same.
    fn of(same: bool) -> Self {
        if same { Self::Yes } else { Self::Differs }
    }
}

/// The memory, in bytes, of all ledgers and of anything else counted with them.
pub type Meter = Arc<AtomicU64>;

/// The ledger of one inode: see the module. Clones share it.
#[derive(Clone, Debug)]
pub struct Returned(Option<Arc<State>>);

#[derive(Debug)]
struct State {
    meter: Meter,
    /// The memory of this ledger in the meter.
    bytes: AtomicU64,
    /// The file has at most one block.
    single: bool,
    /// The file turned out to be another one, so it never continues.
    dead: AtomicBool,
    /// The block of a file that has only one; `None`: frozen before the block was returned.
    one: OnceLock<Option<Short>>,
    /// All other parts.
    more: OnceLock<Box<Mutex<Ledger>>>,
}

#[derive(Debug, Default)]
struct Ledger {
    account: ReturnedParts,
    frozen: bool,
}

/// The returned parts of one file, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReturnedParts {
    /// Blocks by their index, in order.
    blocks: Vec<(u64, Short)>,
    /// Blocks of which pieces were returned, in order.
    pieces: Vec<ReturnedPieces>,
    /// Runs by offset and length, in order.
    runs: Vec<((u64, u64), Short)>,
    /// All blocks of the file, returned at once. `blocks` is empty then.
    whole: Option<Arc<[ContentHash]>>,
    /// More parts were returned than can be noted.
    full: bool,
}

/// Pieces of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReturnedPieces {
    /// The index of the block.
    pub block: u64,
    /// Which of its pieces, one bit each.
    pieces: [u64; BLOCK_PIECES / 64],
    /// The sum of their hashes, each multiplied by an odd number that depends on its place. Odd numbers are
    /// invertible here, so a different piece changes the sum like a random number.
    sum: Short,
}

impl ReturnedPieces {
    fn new(block: u64) -> Self {
        Self {
            block,
            pieces: [0; BLOCK_PIECES / 64],
            sum: [0; 16],
        }
    }

    fn has(&self, piece: usize) -> bool {
        self.pieces[piece / 64] & (1 << (piece % 64)) != 0
    }

    fn add(&mut self, piece: usize, hash: &ContentHash) {
        self.pieces[piece / 64] |= 1 << (piece % 64);
        let factor = 2 * piece as u128 + 1;
        let hash = u128::from_le_bytes(short(hash)).wrapping_mul(factor);
        let sum = u128::from_le_bytes(self.sum).wrapping_add(hash);
        self.sum = sum.to_le_bytes();
    }

    /// The pieces of the block, in order.
    pub fn pieces(&self) -> impl Iterator<Item = u64> {
        (0..BLOCK_PIECES as u64).filter(|piece| self.has(to_usize(*piece)))
    }

    /// Whether these are the hashes of [`ReturnedPieces::pieces`], in the same order.
    #[must_use]
    pub fn agrees(&self, hashes: &[ContentHash]) -> bool {
        let mut other = Self::new(self.block);
        for (piece, hash) in self.pieces().zip(hashes) {
            other.add(to_usize(piece), hash);
        }
        other == *self
    }
}

impl ReturnedParts {
    /// Whether nothing was returned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether more was returned than is noted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The returned blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        let whole = self.whole.iter().flat_map(|whole| 0..whole.len() as u64);
        self.blocks.iter().map(|(index, _)| *index).chain(whole)
    }

    /// Whether block `index`, which was returned, has this hash.
    #[must_use]
    pub fn agrees(&self, index: u64, hash: &ContentHash) -> bool {
        self.block(index) == Some(short(hash))
    }

    /// The blocks of which pieces were returned.
    #[must_use]
    pub fn pieces(&self) -> &[ReturnedPieces] {
        &self.pieces
    }

    /// The returned runs, by offset and length.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|(run, _)| *run)
    }

    /// Whether the run, which was returned, has this hash.
    #[must_use]
    pub fn run_agrees(&self, run: (u64, u64), hash: &ContentHash) -> bool {
        noted(&self.runs, run) == Some(short(hash))
    }

    /// Heap memory in bytes. The list of hashes from [`Returned::note_whole`] is shared, and not counted.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<(u64, Short)>()
            + self.pieces.capacity() * size_of::<ReturnedPieces>()
            + self.runs.capacity() * size_of::<((u64, u64), Short)>()
    }

    fn block(&self, index: u64) -> Option<Short> {
        if let Some(whole) = &self.whole {
            return whole.get(to_usize(index)).map(short);
        }
        noted(&self.blocks, index)
    }

    /// Whether the noted hash of `part` is the same; `None` if the part is not noted.
    fn says(&self, part: &Part) -> Option<Noted> {
        let known = match part.range {
            PartRange::Block(index) => self.block(index)?,
            PartRange::Piece(piece) => {
                let (block, piece) = split(piece);
                let at = self.pieces.binary_search_by_key(&block, |row| row.block);
                return at
                    .is_ok_and(|at| self.pieces[at].has(piece))
                    .then_some(Noted::Yes);
            }
            PartRange::Run { offset, len } => noted(&self.runs, (offset, len))?,
        };
        Some(Noted::of(known == short(&part.hash)))
    }

    /// Notes `part`, which is not noted yet.
    fn add(&mut self, part: &Part) {
        match part.range {
            PartRange::Block(index) => {
                self.full |= !note(&mut self.blocks, BLOCKS_MAX, index, &part.hash);
            }
            PartRange::Piece(piece) => {
                let (block, piece) = split(piece);
                let at = self.pieces.partition_point(|row| row.block < block);
                if self.pieces.get(at).is_none_or(|row| row.block != block) {
                    if self.pieces.len() >= PIECED_BLOCKS_MAX {
                        self.full = true;
                        return;
                    }
                    self.pieces.insert(at, ReturnedPieces::new(block));
                }
                self.pieces[at].add(piece, &part.hash);
            }
            PartRange::Run { offset, len } => {
                self.full |= !note(&mut self.runs, RUNS_MAX, (offset, len), &part.hash);
            }
        }
    }
}

/// The hash that `list`, which is in order, has for `place`.
fn noted<P: Ord + Copy>(list: &[(P, Short)], place: P) -> Option<Short> {
    let at = list.binary_search_by_key(&place, |(place, _)| *place);
    at.ok().map(|at| list[at].1)
}

/// Inserts the hash of `place`, which `list` does not have. Returns `false` if the list is full.
fn note<P: Ord>(list: &mut Vec<(P, Short)>, max: usize, place: P, hash: &ContentHash) -> bool {
    let fits = list.len() < max;
    if fits {
        let at = list.partition_point(|(other, _)| *other < place);
        list.insert(at, (place, short(hash)));
    }
    fits
}

/// The block of a piece, and the piece's index in the block.
fn split(piece: u64) -> (u64, usize) {
    let pieces = BLOCK_PIECES as u64;
    (piece / pieces, to_usize(piece % pieces))
}

impl Returned {
    /// Creates the ledger of a file of which `account` was returned; `single`: it has at most one block.
    #[must_use]
    pub fn of(mut account: ReturnedParts, single: bool, meter: &Meter) -> Self {
        let is_first = |(index, _): &(u64, Short)| *index == 0;
        let has_one =
            single && account.whole.is_none() && account.blocks.first().is_some_and(is_first);
        let one = has_one.then(|| account.blocks.remove(0).1);
        let state = State {
            meter: Arc::clone(meter),
            bytes: AtomicU64::new(0),
            single,
            dead: AtomicBool::new(false),
            one: one.map_or_else(OnceLock::new, |hash| Some(hash).into()),
            more: OnceLock::new(),
        };
        state.charge(STATE_BYTES);
        if !account.is_empty() {
            state.charge(LEDGER_BYTES + account.heap_bytes() as u64);
            let ledger = Ledger {
                account,
                frozen: false,
            };
            state.more.get_or_init(|| Box::new(Mutex::new(ledger)));
        }
        Self(Some(Arc::new(state)))
    }

    /// Returns a short hash of the only block of a file that has one, if it was returned.
    #[must_use]
    pub fn only_block(&self) -> Option<[u8; 16]> {
        let state = self.0.as_ref()?;
        *state.one.get()?
    }

    /// A ledger for an object without bytes to return. It uses no memory.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Notes that bytes cut from `parts` are about to be returned.
    pub fn note<'a>(&self, parts: impl IntoIterator<Item = &'a Part>) -> Noted {
        let Some(state) = &self.0 else {
            return Noted::Frozen;
        };
        for part in parts {
            let noted = match part.range {
                PartRange::Block(0) if state.single => state.note_one(part),
                _ => state.note_more(part),
            };
            if noted != Noted::Yes {
                return noted;
            }
        }
        Noted::Yes
    }

    /// Notes that all `blocks` of the file are about to be returned.
    pub fn note_whole(&self, blocks: &Arc<[ContentHash]>) -> Noted {
        let state = self.0.as_ref();
        state.map_or(Noted::Frozen, |state| state.note_whole(blocks))
    }

    /// Whether nothing was returned, as far as can be seen without a lock.
    #[must_use]
    pub fn looks_unread(&self) -> bool {
        let unread = |state: &Arc<State>| state.one.get().is_none() && state.more.get().is_none();
        self.0.as_ref().is_none_or(unread)
    }

    /// Stops the ledger from taking new bytes, permanently, and returns its account. To continue, replace
    /// the ledger with a new one.
    #[must_use]
    pub fn freeze(&self) -> ReturnedParts {
        let Some(state) = &self.0 else {
            return ReturnedParts::default();
        };
        let one = *state.one.get_or_init(|| None);
        let mut account = {
            let mut ledger = state.ledger();
            ledger.frozen = true;
            ledger.account.clone()
        };
        if let Some(hash) = one {
            account.blocks.insert(0, (0, hash));
        }
        account
    }

    /// Marks the file as dead: it turned out to be another one, and never continues.
    pub fn die(&self) {
        if let Some(state) = &self.0 {
            state.dead.store(true, Ordering::Release);
        }
    }

    /// Whether it never continues.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.is_dead())
    }

    /// Whether `other` is the same ledger.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        let both = self.0.as_ref().zip(other.0.as_ref());
        both.is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }
}

impl State {
    fn note_one(&self, part: &Part) -> Noted {
        let hash = short(&part.hash);
        match self.one.get_or_init(|| Some(hash)) {
            Some(known) => Noted::of(*known == hash),
            None => self.frozen(),
        }
    }

    /// The answer to bytes that a frozen ledger does not have. A dead file keeps its version permanently,
    /// so its bytes need no comparison.
    fn frozen(&self) -> Noted {
        match self.is_dead() {
            true => Noted::Yes,
            false => Noted::Frozen,
        }
    }

    fn note_more(&self, part: &Part) -> Noted {
        let mut ledger = self.ledger();
        match ledger.account.says(part) {
            Some(noted) => noted,
            None if ledger.frozen => self.frozen(),
            None if ledger.account.full => Noted::Yes,
            None => {
                let before = ledger.account.heap_bytes();
                ledger.account.add(part);
                self.charge((ledger.account.heap_bytes() - before) as u64);
                Noted::Yes
            }
        }
    }

    fn note_whole(&self, blocks: &Arc<[ContentHash]>) -> Noted {
        if self.single
            && let Some(hash) = blocks.first()
        {
            let (range, hash) = (PartRange::Block(0), *hash);
            return self.note_one(&Part { range, hash });
        }
        let mut ledger = self.ledger();
        if let Some(known) = &ledger.account.whole {
            return Noted::of(known == blocks);
        }
        if ledger.frozen {
            return self.frozen();
        }
        let hash_of = |index: u64| blocks.get(to_usize(index)).map(short);
        let mut before = ledger.account.blocks.iter();
        if before.any(|(index, hash)| hash_of(*index) != Some(*hash)) {
            return Noted::Differs;
        }
        ledger.account.blocks = Vec::new();
        ledger.account.whole = Some(Arc::clone(blocks));
        Noted::Yes
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    fn charge(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.meter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Locks the account, for one look-up or insertion in sorted lists, never across an await.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let ledger = self.more.get_or_init(|| {
            self.charge(LEDGER_BYTES);
            Box::default()
        });
        ledger.lock()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.meter.fetch_sub(bytes, Ordering::Relaxed);
    }
}

mod entries;
#[cfg(test)]
mod tests;

pub use entries::ReturnedEntry;
