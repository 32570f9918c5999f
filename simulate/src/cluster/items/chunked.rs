//! A dataset of which two chunks are cached: the product's rotation, with items behind it.

use super::super::{ChunkSpan, ClusterError, Dataset, Scenario};
use super::shuffle;
use crate::num::whole;
use crate::random::Random;
use copperfs_policy::chunks::{
    Change, ChunkLayout, ChunkReport, RESIDENT_MAX, Reader, Reading, ResidentChunk, Rotation,
};
use std::time::Duration;

/// The maximum number of recorded times of chunks. Later ones are left out.
const SPANS_MAX: usize = 1 << 16;

/// The items of a resident chunk.
#[derive(Debug)]
struct Stock {
    /// The number of this residence.
    number: u64,
    chunk: u32,
    /// Items that no job has requested yet, in random order.
    missing: Vec<u32>,
    /// The number of items that jobs are fetching.
    fetched: usize,
    held: Vec<u32>,
    /// Items for which there is no room.
    lost: Vec<u32>,
}

/// Missing items that one job fetches for all.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// The residence for which they are. Afterwards the chunk may have been evicted, or loaded again.
    number: u64,
    pub(super) items: Vec<u32>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Chunked {
    dataset: String,
    rotation: Rotation,
    /// The chunk of each item.
    chunks: Vec<u32>,
    is_held: Vec<bool>,
    stocks: Vec<Stock>,
    capacity: usize,
    /// The number of chunks that have come in.
    brought: u64,
    /// The number of items and chunks that have come and gone. After a look-up in vain a job looks again
    /// only when it has changed.
    pub(super) changes: u64,
    pub(super) spans: Vec<ChunkSpan>,
}

/// Returns a simulated time as the rotation knows it.
pub(super) fn clock(seconds: f64) -> Duration {
    Duration::from_micros(whole((seconds * 1e6).round()))
}

impl Chunked {
    /// Creates the empty cache of a dataset with this number of items.
    ///
    /// # Errors
    /// The dataset has too few items for its chunks.
    pub(super) fn new(
        scenario: &Scenario,
        set: &Dataset,
        items: u32,
    ) -> Result<Self, ClusterError> {
        let (bytes, chunk) = (whole(set.size.ceil()), whole(scenario.chunk_size));
        let layout = ChunkLayout::new(items.into(), bytes, chunk);
        let layout = layout.map_err(|source| ClusterError::Chunks {
            dataset: set.name.clone(),
            source,
        })?;
        let chunk = |item: u32| layout.chunk_of(item.into()).unwrap_or(0);
        Ok(Self {
            dataset: set.name.clone(),
            rotation: Rotation::new(layout, clock(scenario.evict_after_s)),
            chunks: (0..items).map(chunk).collect(),
            is_held: vec![false; items as usize],
            stocks: Vec::new(),
            capacity: 0,
            brought: 0,
            changes: 0,
            spans: Vec::new(),
        })
    }

    pub(super) fn layout(&self) -> &ChunkLayout {
        self.rotation.layout()
    }

    /// Returns the number of items for which it needs room: those of the largest chunk, twice.
    pub(super) fn room(&self) -> usize {
        let chunks = 0..self.layout().stripes();
        let largest = chunks.map(|chunk| self.layout().chunk_entries(chunk)).max();
        RESIDENT_MAX * usize::try_from(largest.unwrap_or(0)).unwrap_or(usize::MAX / RESIDENT_MAX)
    }

    /// Returns the chunks that are not resident, the one that comes last in the ring first. A job that misses
    /// items of it needs it less when it comes, and the chunks before it as much as the other jobs do.
    pub(super) fn last_to_come(&self) -> Vec<u32> {
        let stripes = self.layout().stripes();
        let newest = self.stocks.last().map_or(0, |stock| stock.chunk);
        let others = (1..stripes).map(|back| (newest + stripes - back) % stripes);
        let is_resident = |chunk: &u32| self.stocks.iter().any(|stock| stock.chunk == *chunk);
        others.filter(|chunk| !is_resident(chunk)).collect()
    }

    /// Returns the number of items for which there is room.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn resident(&self) -> Vec<ResidentChunk> {
        self.rotation.resident()
    }

    pub(super) fn chunk_of(&self, item: u32) -> u32 {
        self.chunks[item as usize]
    }

    pub(super) fn has(&self, item: u32) -> bool {
        self.is_held[item as usize]
    }

    /// Returns the number of items that it holds.
    pub(super) fn len(&self) -> usize {
        self.stocks.iter().map(|stock| stock.held.len()).sum()
    }

    /// Whether further items of this chunk will come.
    pub(super) fn is_loading(&self, chunk: u32) -> bool {
        let mut stocks = self.stocks.iter().filter(|stock| stock.chunk == chunk);
        stocks.any(|stock| stock.fetched > 0 || !stock.missing.is_empty())
    }

    /// Sets the number of items for which there is room. What it has held too much is lost, and what was
    /// lost and has room now is missing again.
    pub(super) fn set_capacity(&mut self, items: usize) {
        let mut surplus = self.len().saturating_sub(items);
        let mut room = items.saturating_sub(self.len());
        for stock in self.stocks.iter_mut().rev() {
            let kept = stock.held.len().saturating_sub(surplus);
            surplus -= stock.held.len() - kept;
            for item in stock.held.split_off(kept) {
                self.is_held[item as usize] = false;
                stock.lost.push(item);
            }
            let lost = stock.lost.len().saturating_sub(room);
            room -= stock.lost.len() - lost;
            stock.missing.extend(stock.lost.drain(lost..));
        }
        self.capacity = items;
        self.changes += 1;
        self.tell();
    }

    /// Takes the state of a job.
    pub(super) fn hear(&mut self, job: &str, reading: &Reading, now: f64) {
        // The rotation hears a bounded number of readers. Another job reads what they bring in, and
        // fetches the rest itself.
        let _is_heard = self.rotation.hear(&reader(job), reading, clock(now));
    }

    /// Forgets a job that has ended.
    pub(super) fn end(&mut self, job: &str) {
        self.rotation.retain_readers(|reader| reader.job != job);
    }

    /// Applies the rotation's rules.
    pub(super) fn turn(&mut self, now: f64, random: &mut Random) {
        for change in self.rotation.advance(clock(now)) {
            match change {
                Change::Evicted { chunk, is_forced } => {
                    let at = self.stocks.iter().position(|stock| stock.chunk == chunk);
                    if let Some(at) = at {
                        let stock = self.stocks.remove(at);
                        self.drop(&stock, now, is_forced);
                    }
                }
                Change::Loading { chunk } => self.bring(chunk, now, random),
            }
        }
    }

    fn bring(&mut self, chunk: u32, now: f64, random: &mut Random) {
        let items = self.layout().ranges(chunk).flatten();
        let mut missing: Vec<u32> = items.filter_map(|item| u32::try_from(item).ok()).collect();
        shuffle(&mut missing, random);
        self.stocks.push(Stock {
            chunk,
            missing,
            number: self.brought,
            fetched: 0,
            held: Vec::new(),
            lost: Vec::new(),
        });
        self.brought += 1;
        if self.spans.len() < SPANS_MAX {
            self.spans.push(ChunkSpan {
                dataset: self.dataset.clone(),
                chunk,
                from_s: now,
                until_s: None,
                is_forced: false,
            });
        }
        self.changes += 1;
    }

    fn drop(&mut self, stock: &Stock, now: f64, is_forced: bool) {
        for &item in &stock.held {
            self.is_held[item as usize] = false;
        }
        let is_open = |span: &&mut ChunkSpan| span.chunk == stock.chunk && span.until_s.is_none();
        if let Some(span) = self.spans.iter_mut().find(is_open) {
            span.until_s = Some(now);
            span.is_forced = is_forced;
        }
        self.changes += 1;
    }

    /// Returns up to `count` missing items for a job to fetch, of the older chunk first. Each item is given
    /// to one job only: co-operative misses (Quiver, section 5.2).
    pub(super) fn request(&mut self, count: usize) -> Request {
        let missing = |stock: &&mut Stock| !stock.missing.is_empty();
        let Some(stock) = self.stocks.iter_mut().find(missing) else {
            return Request::default();
        };
        let rest = stock.missing.len().saturating_sub(count);
        let items = stock.missing.split_off(rest);
        stock.fetched += items.len();
        Request {
            number: stock.number,
            items,
        }
    }

    /// Takes back a request that the job will not fetch.
    pub(super) fn give_back(&mut self, mut request: Request) {
        if let Some(stock) = self.stock(&request) {
            stock.fetched -= request.items.len();
            stock.missing.append(&mut request.items);
        }
    }

    /// Takes the items of a request that were fetched.
    pub(super) fn keep(&mut self, request: Request) {
        let room = self.capacity.saturating_sub(self.len());
        let Some(stock) = self.stock(&request) else {
            return;
        };
        let mut items = request.items;
        stock.fetched -= items.len();
        stock.lost.extend(items.drain(room.min(items.len())..));
        stock.held.extend(&items);
        for item in items {
            self.is_held[item as usize] = true;
        }
        self.changes += 1;
        self.tell();
    }

    /// Reports to the rotation, as the one home of all items.
    fn tell(&mut self) {
        let reports = self.stocks.iter().map(|stock| ChunkReport {
            chunk: stock.chunk,
            held: stock.held.len() as u64,
            lost: stock.lost.len() as u64,
            pending: 0,
        });
        self.rotation.report(0, &reports.collect::<Vec<_>>());
    }

    fn stock(&mut self, request: &Request) -> Option<&mut Stock> {
        let mut stocks = self.stocks.iter_mut();
        stocks.find(|stock| stock.number == request.number && !request.items.is_empty())
    }

    /// Returns the seconds until time is up for a chunk.
    pub(super) fn until_deadline(&self, now: f64) -> f64 {
        let deadline = self.rotation.deadline();
        // At least one step of the rotation's clock, so that time goes on.
        deadline.map_or(f64::INFINITY, |at| (at.as_secs_f64() - now).max(1e-6))
    }
}

fn reader(job: &str) -> Reader {
    Reader {
        job: job.to_owned(),
        part: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_policy::Keep;

    const SECOND: f64 = 1.0;

    /// A hundred items in ten chunks, with room for `capacity`, and a job that needs them.
    fn cache(capacity: usize) -> (Chunked, Random) {
        let set = Dataset {
            name: "d".to_owned(),
            size: 1e9,
            keep: Keep::Chunks,
        };
        let mut cache = Chunked::new(&Scenario::default(), &set, 100).unwrap();
        let mut random = Random::new(1);
        cache.set_capacity(capacity);
        cache.hear("a", &Reading::default(), 0.0);
        cache.turn(0.0, &mut random);
        (cache, random)
    }

    #[test]
    fn each_missing_item_is_requested_once_the_older_chunk_first() {
        let (mut cache, _) = cache(100);
        assert_eq!(cache.room(), 20);
        let requests = [7, 7, 7, 7].map(|count| cache.request(count));
        let chunks = requests
            .each_ref()
            .map(|request| cache.chunk_of(request.items[0]));
        assert_eq!(chunks, [0, 0, 1, 1]);
        let mut all: Vec<u32> = requests
            .iter()
            .flat_map(|request| request.items.clone())
            .collect();
        all.sort_unstable();
        let wanted = (0..100).filter(|item| item % 10 < 2);
        assert!(all.iter().copied().eq(wanted), "{all:?}");
        assert!(cache.request(1).items.is_empty() && cache.is_loading(1));
        let [first, .., last] = requests;
        cache.give_back(last);
        assert_eq!(cache.request(9).items.len(), 3);
        cache.keep(first);
        assert_eq!(cache.len(), 7);
    }

    #[test]
    fn items_for_which_there_is_no_room_are_lost_until_there_is() {
        let (mut cache, _) = cache(12);
        for _ in 0..2 {
            let request = cache.request(10);
            cache.keep(request);
        }
        let states = |cache: &Chunked| {
            cache
                .resident()
                .iter()
                .map(|held| (held.held, held.lost))
                .collect::<Vec<_>>()
        };
        assert_eq!(states(&cache), [(10, 0), (2, 8)]);
        assert!(!cache.is_loading(1));
        cache.set_capacity(5);
        assert_eq!(states(&cache), [(5, 5), (0, 10)]);
        assert_eq!((0..100).filter(|&item| cache.has(item)).count(), 5);
        cache.set_capacity(20);
        assert!(cache.is_loading(0) && cache.is_loading(1));
        for _ in 0..2 {
            let request = cache.request(20);
            cache.keep(request);
        }
        assert_eq!(states(&cache), [(10, 0), (10, 0)]);
    }

    #[test]
    fn a_request_for_an_evicted_chunk_comes_to_nothing() {
        let (mut cache, mut random) = cache(100);
        let (kept, given_back) = (cache.request(5), cache.request(5));
        let mut reading = Reading::default();
        for chunk in [0, 1] {
            let _not_referred = reading.release(cache.layout(), chunk, true);
        }
        cache.hear("a", &reading, SECOND);
        cache.turn(SECOND, &mut random);
        assert_eq!(
            cache
                .resident()
                .iter()
                .map(|held| held.chunk)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        cache.keep(kept);
        cache.give_back(given_back);
        assert_eq!(cache.len(), 0);
        let gone = cache
            .spans
            .iter()
            .filter(|span| span.until_s == Some(SECOND));
        assert_eq!(gone.count(), 2);
    }
}
