//! One open file of a dataset.

mod at_once;
mod reading;

use super::Shared;
use super::held::{HeldBlock, HeldItem};
use crate::dataset::catalog::Piece;
use crate::job::{ItemOutcome, JobActivity, Task};
use crate::model::slots::{
    STRIPE_BYTES, key_of, key_of_content, slot_of, slot_of_content, stripe_extent,
};
use crate::num::first_u64;
use crate::read::{Cut, FileId, FileRef, Part, PartRange};
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Extent, Failure, ItemRequest, RangeAnswer, Standing, Version,
};
use copperfs_policy::Mode;
use parking_lot::Mutex;
use reading::Reading;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Items up to this size are fetched whole on their first read, at any offset.
const WHOLE_MAX: u64 = 1 << 20;
/// A run of this many bytes at the beginning of an item has the whole item fetched.
const BEGIN_MIN: u64 = 64 << 10;
/// So does any read after this many bytes in sequence.
const STREAK_MIN: u64 = 1 << 20;
/// How far from the end of the read before a read of the same sequence may begin, as the kernel reads ahead.
const NEAR_BYTES: u64 = 1 << 20;
/// The maximum number of items of a file that count as read if the page cache has answered all
/// reads.
const UNREAD_ITEMS_MAX: usize = 1 << 16;

/// See the module. Cheap to clone. It counts as closed when the last clone is dropped.
#[derive(Clone)]
pub struct OpenDatasetFile(Arc<Open>);

struct Open {
    reader: Arc<Shared>,
    dataset: u64,
    /// The bytes of the file's path that are the dataset's.
    root_bytes: usize,
    file: FileRef,
    activity: Arc<JobActivity>,
    /// Whether its job was measured without a cache when the file was opened.
    is_uncached: bool,
    pid: u32,
    /// The task of a pipeline that reads it.
    task: Option<Task>,
    /// [`place_hash`] of the file, computed once.
    place: OnceLock<u64>,
    /// Guards the arithmetic of one call. Never held across an await.
    state: Mutex<OpenState>,
    /// Held while a whole item is fetched. Other readers then find it in memory.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct OpenState {
    /// The whole item that was read last.
    held: Option<Arc<HeldItem>>,
    /// The bytes that were read one after the other.
    streak: Streak,
    /// The item that is being read.
    current: Option<CurrentItem>,
    /// Whether any byte was requested.
    touched: bool,
}

/// Consecutive reads of a file, so far.
#[derive(Clone, Copy, Default)]
struct Streak {
    /// The offset at which the last one ended.
    next: u64,
    bytes: u64,
}

impl Streak {
    /// Whether a read at `offset` continues it. Reads that the kernel has sent at the same time may be handled in any order.
    fn is_continued_at(self, offset: u64) -> bool {
        offset.abs_diff(self.next) <= NEAR_BYTES
    }

    fn add(&mut self, run: Run) {
        let before = if self.is_continued_at(run.offset) {
            self.bytes
        } else {
            0
        };
        *self = Self {
            next: run.offset + run.len,
            bytes: before + run.len,
        };
    }
}

/// An item that is being read, until it is counted.
struct CurrentItem {
    extent: Extent,
    started: Instant,
    /// Its bytes are those returned to the reader.
    outcome: ItemOutcome,
    counted: bool,
}

/// Consecutive bytes within one piece.
#[derive(Clone, Copy)]
struct Run {
    piece: Piece,
    /// The offset in the file.
    offset: u64,
    len: u64,
}

impl Run {
    /// All bytes of a piece.
    fn whole(piece: Piece) -> Self {
        let Extent { start, len } = piece.extent;
        Self {
            piece,
            offset: start,
            len,
        }
    }
}

/// Returns `blocks`, which begin at `start` of `file`, with the parts that they are. A whole file of one block is block 0.
fn held_blocks(file: &FileRef, start: u64, blocks: Vec<RangeAnswer>) -> Vec<HeldBlock> {
    let mut next = start;
    let held = |block: RangeAnswer| {
        let RangeAnswer { bytes, hash } = block;
        let (start, len) = (next, bytes.len() as u64);
        next += len;
        let range = if file.size <= BLOCK_BYTES && len == file.size {
            PartRange::Block(0)
        } else {
            PartRange::Run { offset: start, len }
        };
        let part = Part { range, hash };
        HeldBlock { start, bytes, part }
    };
    blocks.into_iter().map(held).collect()
}

impl OpenDatasetFile {
    /// An open of `file` by thread `pid`, for `task`. `root_bytes`: how many bytes of its path are the dataset's.
    pub(super) fn new(
        reader: Arc<Shared>,
        (dataset, root_bytes): (u64, usize),
        file: FileRef,
        activity: Arc<JobActivity>,
        (pid, task): (u32, Option<Task>),
    ) -> Self {
        Self(Arc::new(Open {
            reader,
            dataset,
            root_bytes,
            file,
            is_uncached: activity.mode() == Mode::Probe,
            activity,
            pid,
            task,
            place: OnceLock::new(),
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Whether its job is measured without a cache, so that the kernel must not answer from its page cache.
    #[must_use]
    pub fn is_uncached(&self) -> bool {
        self.0.is_uncached
    }

    /// The version of the file that was opened.
    #[must_use]
    pub fn version(&self) -> Version {
        self.0.file.version
    }

    /// Bytes from `offset`, `size` of them or up to the file's end, of the version in `file`. Waits for
    /// tokens if storage has to be read and the job has none; that time does not count against the request's
    /// time limit. May be cancelled.
    ///
    /// # Errors
    /// `Stale` if the file no longer has that version; `Io` at the time limit; the failure of its home, or of
    /// this node itself if no home can be reached.
    pub async fn read(&self, file: &FileRef, offset: u64, size: u32) -> Result<Cut, Failure> {
        let open = &self.0;
        let _waiting = open.activity.waits(open.pid, Instant::now());
        let mut reading = Reading::new(open, file);
        let mut cuts = Vec::with_capacity(1);
        for run in open.runs(offset, size) {
            cuts.push(reading.read(run).await?);
        }
        Ok(Cut::joined(cuts))
    }

    /// The hash of `len` bytes of `file` from `offset`, a run that [`OpenDatasetFile::read`] has returned
    /// under another version. The bytes are requested from the home and charged like any other read.
    ///
    /// # Errors
    /// Like [`OpenDatasetFile::read`].
    pub async fn hash(
        &self,
        file: &FileRef,
        offset: u64,
        len: u64,
    ) -> Result<ContentHash, Failure> {
        let piece = self.0.piece_at(offset);
        let run = Run { piece, offset, len };
        let (blocks, _cost) = Reading::new(&self.0, file).ask(run).await?;
        Ok(match blocks.as_slice() {
            [only] => only.hash,
            // It was a block of an item that is divided in another way now.
            blocks => RangeAnswer::of(RangeAnswer::joined(blocks)).hash,
        })
    }
}

impl Open {
    /// Returns the piece with byte `offset` of the file: an item of the manifest, or a stripe.
    fn piece_at(&self, offset: u64) -> Piece {
        let size = self.file.size;
        let named = self.reader.catalog(self.dataset).and_then(|catalog| {
            let path = self.file.path.as_bytes().get(self.root_bytes..)?;
            let path = path.strip_prefix(b"/").unwrap_or(path);
            catalog.piece_at(path, size, offset)
        });
        let stripe = || stripe_extent(size, offset / STRIPE_BYTES);
        named.unwrap_or_else(|| Piece {
            extent: stripe(),
            content: None,
        })
    }

    /// Splits a read into runs, one for each piece.
    fn runs(&self, offset: u64, size: u32) -> impl Iterator<Item = Run> {
        let end = offset.saturating_add(size.into());
        let end = end.min(self.file.size);
        let mut offset = offset;
        std::iter::from_fn(move || {
            let from = offset;
            let piece = (from < end).then(|| self.piece_at(from))?;
            offset = piece.extent.end().min(end);
            Some(Run {
                piece,
                offset: from,
                len: offset.checked_sub(from).filter(|len| *len > 0)?,
            })
        })
    }

    /// Returns whether the reader of `run`, with which a read begins, is likely to read the whole item: it begins with a long
    /// run, or has read in sequence for long. A sample in a large shard is some consecutive reads, and the shard's header a
    /// short one at the beginning.
    fn is_sequential(&self, run: Run) -> bool {
        let begins = run.offset == run.piece.extent.start;
        let streak = self.state.lock().streak;
        let goes_on = streak.is_continued_at(run.offset) && streak.bytes >= STREAK_MIN;
        begins && run.len >= BEGIN_MIN.min(run.piece.extent.len) || goes_on
    }

    /// Returns whether the piece is always fetched whole: a small file, or a small entry of a manifest.
    fn is_small(&self, piece: Piece) -> bool {
        let len = match piece.content {
            Some(_) => piece.extent.len,
            None => self.file.size,
        };
        len <= WHOLE_MAX
    }

    /// Returns the slot of a piece.
    fn slot_of(&self, piece: Piece) -> u16 {
        match &piece.content {
            Some(content) => slot_of_content(content),
            None => slot_of(&self.file.path, piece.extent.start / STRIPE_BYTES),
        }
    }

    /// Returns the request for a run of `file`, the open file in any version.
    fn request(&self, file: &FileRef, run: Run, payment: u64) -> ItemRequest {
        // The hash of a file that is one item.
        let of_file = file.content;
        let of_file = of_file.filter(|_| run.piece.extent.len == file.size);
        ItemRequest {
            dataset: self.dataset,
            path: file.path.clone(),
            version: file.version,
            size: file.size,
            item: run.piece.extent,
            content: run.piece.content.or(of_file),
            wanted: Extent {
                start: run.offset,
                len: run.len,
            },
            job: self.activity.job.as_ref().map_or(0, |job| job.id()),
            payment,
            is_uncached: self.is_uncached,
        }
    }

    /// Returns the current item, which has these bytes. Another one is counted first.
    fn current<'a>(
        &self,
        state: &'a mut OpenState,
        extent: Extent,
        started: Instant,
    ) -> &'a mut CurrentItem {
        if state.current.as_ref().is_some_and(|at| at.extent != extent) {
            self.count(state);
            state.current = None;
        }
        if state.current.is_none() {
            self.read_by_task(extent.start);
        }
        state.current.get_or_insert_with(|| CurrentItem {
            extent,
            started,
            outcome: ItemOutcome {
                cached: true,
                ..ItemOutcome::default()
            },
            counted: false,
        })
    }

    /// Records that `run` was returned to the reader.
    fn give(&self, state: &mut OpenState, run: Run) {
        state.touched = true;
        state.streak.add(run);
        let extent = run.piece.extent;
        let current = self.current(state, extent, Instant::now());
        current.outcome.bytes += run.len;
        // Bytes may be read more than once; the item counts once.
        if current.outcome.bytes >= extent.len {
            self.count(state);
        }
    }

    /// Records that its task has read the item that begins at byte `start`.
    fn read_by_task(&self, start: u64) {
        if let Some(task) = &self.task {
            let piece = self.piece_at(start);
            let item = match &piece.content {
                Some(content) => key_of_content(content),
                None => key_of(&self.file.path, start / STRIPE_BYTES),
            };
            self.reader.task_reads.add(self.dataset, task, item);
        }
    }

    /// The identity of the item that begins at byte `start`, for the jobs of this node.
    fn item_hash(&self, start: u64) -> u64 {
        let place = self.place.get_or_init(|| place_hash(&self.file));
        // Spread, so that items of two files do not collide.
        place ^ start.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Counts the current item, once.
    fn count(&self, state: &mut OpenState) {
        let Some(current) = state.current.as_mut().filter(|current| !current.counted) else {
            return;
        };
        current.counted = true;
        let outcome = ItemOutcome {
            bytes: current.outcome.bytes.min(current.extent.len),
            ..current.outcome
        };
        let item = self.item_hash(current.extent.start);
        let now = Instant::now();
        match self.is_uncached {
            true => self.activity.read_uncached(outcome, now),
            false => self.activity.read(item, outcome, current.started, now),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        self.count(&mut state);
        if self.is_uncached {
            return;
        }
        let now = Instant::now();
        // A file that was never read counts with all of its items, because the page cache has
        // answered.
        let count = if state.touched { 1 } else { UNREAD_ITEMS_MAX };
        let mut next = Some(0);
        let items = std::iter::from_fn(|| {
            let extent = self.piece_at(next?).extent;
            next = (extent.end() < self.file.size).then_some(extent.end());
            Some(extent)
        });
        for extent in items.take(count) {
            if !state.touched {
                self.read_by_task(extent.start);
            }
            let item = self.item_hash(extent.start);
            self.activity.closed(item, extent.len, !state.touched, now);
        }
    }
}

/// The identity of a file for the jobs of this node; it does not change with the file's status or standing.
pub(super) fn place_hash(file: &FileRef) -> u64 {
    let version = file.version.with_change([0; 8]);
    let id = FileId::of_place(&file.path, version.standing_as(Standing::Lasting));
    first_u64(id.as_bytes())
}
