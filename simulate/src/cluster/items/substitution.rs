//! How a job reads a dataset of which two chunks are cached: what is there first, in passes. Meanwhile it
//! fetches a part of what is missing, for all jobs.

use super::chunked::{Chunked, Request};
use super::passes::Passes;
use super::{Batch, Engine, NOTHING, shuffled};
use crate::num::index_f64;
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
    /// Returns the next batch of a job whose dataset is kept in chunks; `None` while it waits.
    pub(super) fn substituted(&mut self, job: usize, count: usize) -> Option<Batch> {
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
            line.passes.take(count, &mut line.batch, |_| true);
            line.count(hits, cache);
            tell(line, cache);
        }
        let mut items = std::mem::take(&mut line.batch);
        Some(Batch {
            count,
            missing: items.split_off(hits),
            begins: false,
        })
    }

    /// Lets a job request missing items of the chunks that are loading, if it has no request.
    pub(super) fn request(&mut self, job: usize) {
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
