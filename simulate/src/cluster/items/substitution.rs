//! A job that takes items in any order reads the resident ones first, in passes. While two chunks are cached it
//! fetches a part of the missing items, for all jobs.

use super::chunked::{Chunked, Request};
use super::passes::Passes;
use super::{Batch, Engine, NOTHING, shuffled};
use crate::num::index_f64;
use copperfs_policy::Mode;
use copperfs_policy::chunks::Reading;

/// The state of a job in its epoch.
#[derive(Debug, Default)]
pub(super) struct Substitution {
    reading: Reading,
    passes: Passes,
    /// The number of unread items of each chunk.
    unread: Vec<usize>,
    /// The items of the next batch that were found so far.
    batch: Vec<u32>,
    /// The changes of the cache before the last look-up in vain.
    seen: Option<u64>,
    /// The missing items that it fetches, and the bytes of them that have yet to arrive.
    request: Request,
    pub(super) requested: f64,
    /// Whether it takes no part in the rotation of chunks: it reads without a cache for a while.
    is_away: bool,
}

impl Substitution {
    fn is_over(&self) -> bool {
        self.passes.len() + self.batch.len() == 0
    }

    fn begin(&mut self, order: Vec<u32>, cache: &Chunked) {
        self.reading.begin_epoch();
        self.unread = vec![0; cache.layout().stripes() as usize];
        for &item in &order {
            self.unread[cache.chunk_of(item) as usize] += 1;
        }
        self.passes = Passes::new(order);
        self.seen = None;
    }

    pub(super) fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Forgets the last look-up, and gives up what it has requested: the dataset has another cache from now on.
    pub(super) fn turn(&mut self, cache: &mut Chunked) {
        self.seen = None;
        self.requested = 0.0;
        cache.give_back(std::mem::take(&mut self.request));
    }

    /// Looks for resident items until the batch has `count`. Returns whether the chunks have changed to
    /// which the job refers or that it has exhausted.
    fn look_up(&mut self, count: usize, cache: &Chunked) -> bool {
        if self.seen == Some(cache.changes) {
            return false;
        }
        let before = self.reading.clone();
        self.reading.follow(&cache.resident());
        let refers = &self.reading.refers;
        let may_read = |item| cache.has(item) && refers.contains(&cache.chunk_of(item));
        let found = self.batch.len();
        self.passes.take(count, &mut self.batch, may_read);
        self.count(found, cache);
        if self.batch.len() < count {
            self.seen = Some(cache.changes);
            // Items of a loaded chunk for which there was no room stay misses.
            let refers = self.reading.refers.clone().into_iter();
            for chunk in refers.filter(|&chunk| !cache.is_loading(chunk)) {
                let _was_referred = self.reading.release(cache.layout(), chunk, true);
            }
        }
        self.reading != before
    }

    /// Counts the items of the batch from the position `first` on as read.
    fn count(&mut self, first: usize, cache: &Chunked) {
        for &item in &self.batch[first..] {
            let chunk = cache.chunk_of(item);
            self.unread[chunk as usize] -= 1;
            if self.unread[chunk as usize] == 0 {
                let _may_be_a_miss = self.reading.release(cache.layout(), chunk, true);
            }
        }
    }

    /// Whether items that it may read will come.
    fn waits(&self, cache: &Chunked) -> bool {
        let mut refers = self.reading.refers.iter();
        refers.any(|&chunk| cache.is_loading(chunk))
    }
}

impl Engine<'_> {
    /// Returns the next batch of a job that takes resident items first; `None` while it waits.
    pub(super) fn substituted(&mut self, job: usize, count: usize) -> Option<Batch> {
        let set = self.state.workload.jobs[job].dataset;
        let mode = self.mode(job);
        if !self.is_in_chunks(set) {
            return self.of_all(job, count, mode);
        }
        self.take_part(job, mode == Mode::Cached);
        if mode != Mode::Cached {
            return self.of_all(job, count, mode);
        }
        let wanted = &self.state.workload.jobs[job];
        let cache = self.chunked[wanted.dataset].as_mut()?;
        let line = &mut self.pipelines[job].substitution;
        let (now, random) = (self.state.now, &mut self.random);
        let order = (line.is_over()).then(|| shuffled(self.sets[wanted.dataset].count, random));
        let mut tell = |line: &Substitution, cache: &mut Chunked| {
            cache.hear(&wanted.id, &line.reading, now);
            cache.turn(now, random);
        };
        if let Some(order) = order {
            line.begin(order, cache);
            tell(line, cache);
        }
        let count = count.min(line.passes.len() + line.batch.len());
        while line.look_up(count, cache) {
            tell(line, cache);
        }
        let hits = line.batch.len();
        if hits < count {
            if line.waits(cache) {
                return None;
            }
            // No resident item can fill the batch, so the rest of it are misses.
            for chunk in cache.last_to_come() {
                let of_it = |item| cache.chunk_of(item) == chunk;
                if line.unread[chunk as usize] > 0 {
                    line.passes.take(count, &mut line.batch, of_it);
                }
            }
            line.passes.take(count, &mut line.batch, |_| true);
            line.count(hits, cache);
            tell(line, cache);
        }
        let misses = std::mem::take(&mut line.batch).len() - hits;
        Some(Batch {
            count,
            misses,
            // Only requested items are cached in chunks.
            missing: Vec::new(),
            begins: false,
            mode,
        })
    }

    /// Lets a job leave the rotation of chunks while it reads without a cache, so that no other job waits for it, and
    /// come back.
    fn take_part(&mut self, job: usize, takes_part: bool) {
        let wanted = &self.state.workload.jobs[job];
        let line = &mut self.pipelines[job].substitution;
        let Some(cache) = &mut self.chunked[wanted.dataset] else {
            return;
        };
        if line.is_away != takes_part {
            return;
        }
        line.is_away = !takes_part;
        line.turn(cache);
        if takes_part {
            cache.hear(&wanted.id, &line.reading, self.state.now);
        } else {
            line.reading.refers.clear();
            cache.end(&wanted.id);
        }
    }

    /// Returns the next batch of such a job while its dataset is not kept in chunks, or while it is to read
    /// without a cache.
    fn of_all(&mut self, job: usize, count: usize, mode: Mode) -> Option<Batch> {
        let (set, slot) = (self.state.workload.jobs[job].dataset, self.slot(job));
        let cache = self.chunked[set].as_ref()?;
        let line = &mut self.pipelines[job].substitution;
        let begins = line.is_over();
        if begins {
            line.begin(shuffled(self.sets[set].count, &mut self.random), cache);
        }
        let count = count.min(line.passes.len() + line.batch.len());
        let found = line.batch.len();
        let held = &self.slots[slot];
        if mode == Mode::Cached && held.len() > 0 {
            line.passes
                .take(count, &mut line.batch, |item| held.has(item));
        }
        let hits = line.batch.len();
        line.passes.take(count, &mut line.batch, |_| true);
        line.count(found, cache);
        let mut items = std::mem::take(&mut line.batch);
        let missing = items.split_off(hits);
        let is_kept = mode == Mode::Cached;
        Some(Batch {
            count,
            misses: missing.len(),
            missing: if is_kept { missing } else { Vec::new() },
            begins,
            mode,
        })
    }

    /// Lets a job request missing items of the chunks that are loading, if it has no request.
    pub(super) fn request(&mut self, job: usize) {
        let set = self.state.workload.jobs[job].dataset;
        if self.chunked[set].is_none() || !self.is_in_chunks(set) || self.mode(job) != Mode::Cached
        {
            return;
        }
        let Some(cache) = &mut self.chunked[self.state.workload.jobs[job].dataset] else {
            return;
        };
        let line = &mut self.pipelines[job].substitution;
        if line.request.items.is_empty() && !line.is_over() {
            line.request = cache.request(self.state.scenario.batch as usize);
            line.requested = index_f64(line.request.items.len()) * self.item;
        }
    }

    /// Caches the requested items of a job, if all have arrived.
    pub(super) fn keep_requested(&mut self, job: usize) {
        let line = &mut self.pipelines[job].substitution;
        if line.requested <= NOTHING
            && !line.request.items.is_empty()
            && let Some(cache) = &mut self.chunked[self.state.workload.jobs[job].dataset]
        {
            cache.keep(std::mem::take(&mut line.request));
        }
    }

    /// Ends a job: the others fetch the items that it has requested.
    pub(super) fn end(&mut self, job: usize) {
        let ended = &self.state.workload.jobs[job];
        if let Some(cache) = &mut self.chunked[ended.dataset] {
            cache.end(&ended.id);
            cache.give_back(std::mem::take(
                &mut self.pipelines[job].substitution.request,
            ));
        }
    }
}
