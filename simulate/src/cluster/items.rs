//! Item granularity: every job shuffles its dataset each epoch and reads it through a real cache,
//! in mini-batches that are loaded while others are computed.
//!
//! A job's loader fetches one batch at a time, up to [`AHEAD`] batches ahead of the GPUs. The
//! missing items of a batch come over the link, which is shared among the loaders that fetch,
//! evenly or by the policy's weights. Items are scaled: datasets have thousands, not millions, and
//! a batch has enough of them that misses average out.
//!
//! A dataset that is kept in chunks has a cache of its own kind (`chunked`), and its jobs choose resident
//! items for a batch (`substitution`). If the policy has the choice, such jobs are measured
//! (`measured`), and the dataset may have a uniform cache or none at other times.

mod chunked;
mod link;
mod measured;
mod passes;
mod store;
mod substitution;

use super::simulation::{Simulation, has_options, keep, slot, slot_sets};
use super::{ChoiceChange, ClusterError, Outcome, Sample, Scenario, System, Workload};
use crate::num::{index, index_f64};
use crate::random::Random;
use chunked::Chunked;
use copperfs_policy::{Choice, Keep, Mode};
use std::collections::{BTreeSet, VecDeque};
use store::{Lru, Uniform};
use substitution::Substitution;

/// The maximum number of batches that a loader prepares: the default of current data loaders (two
/// for each of several workers).
const AHEAD: u32 = 4;
/// The maximum number of items read in a run, which takes minutes.
const READS_MAX: f64 = 2e9;
/// The maximum number of items of all datasets, which take half a gigabyte.
const ITEMS_MAX: f64 = 64e6;
/// A remainder in bytes that counts as fetched, because of rounding.
const NOTHING: f64 = 1e-3;

/// The state of a job's loader and GPUs.
#[derive(Debug, Default)]
struct Pipeline {
    /// The order of items in this epoch.
    order: Vec<u32>,
    /// The loader's position in it.
    at: usize,
    /// Bytes that the loader has not begun to fetch.
    unread: f64,
    /// The batch that is being fetched.
    batch: Option<Batch>,
    /// Bytes of it that have yet to arrive.
    fetching: f64,
    /// The prepared batches.
    ready: VecDeque<Batch>,
    /// The batch on the GPUs, and when it will be done.
    computing: Option<(Batch, f64)>,
    /// When the last batch was done.
    done: f64,
    /// The part of the link that the policy allocates to it.
    planned: f64,
    /// How it reads a dataset that is kept in chunks.
    substitution: Substitution,
}

impl Pipeline {
    /// Returns the bytes that it fetches now: its own misses before those of all.
    fn remote(&mut self) -> &mut f64 {
        if self.fetching > NOTHING {
            &mut self.fetching
        } else {
            &mut self.substitution.requested
        }
    }
}

/// A batch of a loader.
#[derive(Debug, Default)]
struct Batch {
    /// The number of its items.
    count: usize,
    /// The number of those that are not cached.
    misses: usize,
    /// Those of them that are cached when all have arrived.
    missing: Vec<u32>,
    /// Whether it is the first one of an epoch.
    begins: bool,
    /// How its look-ups were answered.
    mode: Mode,
}

/// The items of one dataset.
#[derive(Debug, Clone, Copy)]
struct ItemRange {
    count: u32,
    /// The number of the first one among the items of all datasets.
    first: u32,
}

struct Engine<'a> {
    state: Simulation<'a>,
    /// The cache of each slot, except for an LRU cache.
    slots: Vec<Uniform>,
    lru: Option<Lru>,
    /// The caches of the datasets that are kept in chunks.
    chunked: Vec<Option<Chunked>>,
    /// Bytes of an item.
    item: f64,
    /// The items of each dataset.
    sets: Vec<ItemRange>,
    random: Random,
    pipelines: Vec<Pipeline>,
    /// Bytes that jobs have read while they were measured without a cache.
    probe_bytes: f64,
    /// Whether a report has changed a measurement since the last look.
    is_measured: bool,
    /// The changes of the policy's choices.
    choices: Vec<ChoiceChange>,
}

pub(super) fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    let mut engine = Engine::new(scenario, workload)?;
    while !engine.state.is_over() {
        engine.step()?;
    }
    let chunked = engine.chunked.into_iter().flatten();
    let spans = chunked.flat_map(|cache| cache.spans);
    Ok(Outcome {
        chunks: spans.collect(),
        probe_bytes: engine.probe_bytes,
        choices: engine.choices,
        ..engine.state.finish()
    })
}

/// Returns a random number below `end`.
fn below(random: &mut Random, end: usize) -> usize {
    index(random.unit() * index_f64(end)).min(end - 1)
}

/// Puts items into a random order (Fisher and Yates).
fn shuffle(items: &mut [u32], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(random, last + 1));
    }
}

/// Returns this number of items, each once, in a random order.
fn shuffled(items: u32, random: &mut Random) -> Vec<u32> {
    let mut order: Vec<u32> = (0..items).collect();
    shuffle(&mut order, random);
    order
}

/// Returns the bytes of an item, such that the largest dataset that fits into the cache has the
/// requested number of items.
fn item_bytes(scenario: &Scenario, workload: &Workload) -> Result<f64, ClusterError> {
    let sizes = || workload.datasets.iter().map(|set| set.size);
    let fitting = sizes().filter(|&size| size <= scenario.cache);
    let largest = fitting.reduce(f64::max);
    let largest = largest.unwrap_or_else(|| sizes().fold(f64::INFINITY, f64::min));
    let item = largest / f64::from(scenario.items);
    let reads = workload.jobs.iter().map(|job| job.work).sum::<f64>() / item;
    let slots = slot_sets(scenario, workload).into_iter();
    let held = slots.map(|set| workload.datasets[set].size).sum::<f64>() / item;
    // Both time and memory are bounded before anything is allocated.
    if reads > READS_MAX || held > ITEMS_MAX {
        return Err(ClusterError::TooManyItems {
            reads,
            max: READS_MAX,
        });
    }
    Ok(item)
}

impl<'a> Engine<'a> {
    fn new(scenario: &'a Scenario, workload: &'a Workload) -> Result<Self, ClusterError> {
        let item = item_bytes(scenario, workload)?;
        let mut first = 0;
        let mut sets = Vec::new();
        for set in &workload.datasets {
            let count = u32::try_from(index((set.size / item).round().max(1.0))).unwrap_or(1);
            sets.push(ItemRange { count, first });
            first += count;
        }
        // An LRU cache without room for one item would not work.
        let capacity = index((scenario.cache / item).round().max(1.0));
        let uniform = |set: usize| Uniform::new(sets[set].count as usize);
        let is_lru = scenario.system == System::Alluxio;
        let mut slots = slot_sets(scenario, workload);
        slots.retain(|_| !is_lru);
        let mut state = Simulation::new(scenario, workload);
        let mut chunked = Vec::new();
        for (set, items) in sets.iter().enumerate() {
            let is_fixed = keep(scenario, workload, set) == Keep::Chunks;
            if !is_fixed && !has_options(scenario, workload, set) {
                chunked.push(None);
                continue;
            }
            let cache = Chunked::new(scenario, &workload.datasets[set], items.count)?;
            if is_fixed {
                state.fixed_budgets[set] = Some(index_f64(cache.room()) * item);
            }
            chunked.push(Some(cache));
        }
        Ok(Self {
            state,
            slots: slots.into_iter().map(uniform).collect(),
            lru: is_lru.then(|| Lru::new(first, capacity)),
            chunked,
            item,
            sets,
            random: Random::new(scenario.seed),
            pipelines: workload.jobs.iter().map(|_| Pipeline::default()).collect(),
            probe_bytes: 0.0,
            is_measured: false,
            choices: Vec::new(),
        })
    }

    fn step(&mut self) -> Result<(), ClusterError> {
        self.state.count_step()?;
        // Both are evaluated: a job may end at the moment at which another is submitted.
        let changed = self.state.arrive() | self.retire() | self.measure();
        if changed {
            self.divide();
        }
        if self.state.is_over() {
            return Ok(());
        }
        let epochs = self.feed_all();
        if changed || epochs {
            self.plan();
        }
        self.share_link();
        let seconds = self.seconds();
        let sample = self.sample();
        self.state.advance(seconds, &sample);
        for at in 0..self.state.active.len() {
            let job = self.state.active[at];
            let line = &mut self.pipelines[job];
            *line.remote() -= self.state.progress[job].remote * seconds;
            if line.fetching <= NOTHING
                && let Some(mut batch) = line.batch.take()
            {
                line.fetching = 0.0;
                let missing = std::mem::take(&mut batch.missing);
                line.ready.push_back(batch);
                for item in missing {
                    self.keep(job, item);
                }
            }
            self.keep_requested(job);
            let line = &mut self.pipelines[job];
            // A batch that is done leaves the GPUs.
            if let Some((batch, until)) = line
                .computing
                .take_if(|(_, until)| *until <= self.state.now)
            {
                let (bytes, seconds) = (index_f64(batch.count) * self.item, until - line.done);
                let progress = &mut self.state.progress[job];
                progress.left -= bytes;
                progress.rate = bytes / seconds;
                line.done = until;
                self.report(job, &batch, seconds);
            }
        }
        Ok(())
    }

    /// Feeds all jobs, until no chunk comes or goes by it. Returns whether an epoch began.
    fn feed_all(&mut self) -> bool {
        let mut epochs = false;
        loop {
            let (now, random) = (self.state.now, &mut self.random);
            let caches = self.chunked.iter_mut().flatten();
            caches.for_each(|cache| cache.turn(now, random));
            let before = self.changes();
            for at in 0..self.state.active.len() {
                let job = self.state.active[at];
                epochs |= self.feed(job);
                self.request(job);
            }
            if self.changes() == before {
                return epochs;
            }
        }
    }

    /// Returns the number of changes of all chunks.
    fn changes(&self) -> u64 {
        let caches = self.chunked.iter().flatten();
        caches.map(|cache| cache.changes).sum()
    }

    /// Gives the next batches to the GPUs and the loader. Returns whether an epoch began.
    fn feed(&mut self, job: usize) -> bool {
        let ideal = self.state.ideal(job) * self.state.progress[job].share;
        let line = &mut self.pipelines[job];
        if line.computing.is_none()
            && let Some(batch) = line.ready.pop_front()
        {
            let bytes = index_f64(batch.count) * self.item;
            line.computing = Some((batch, self.state.now + bytes / ideal));
        }
        let ready = u32::try_from(line.ready.len()).unwrap_or(u32::MAX);
        if line.batch.is_some() || ready >= AHEAD || line.unread < 0.5 * self.item {
            return false;
        }
        let Some(batch) = self.next_batch(job) else {
            return false;
        };
        let line = &mut self.pipelines[job];
        line.fetching = index_f64(batch.misses) * self.item;
        line.unread -= index_f64(batch.count) * self.item;
        let begins = batch.begins;
        line.batch = Some(batch);
        begins
    }

    /// Returns the next batch, unless the job has to wait for it.
    fn next_batch(&mut self, job: usize) -> Option<Batch> {
        let left = index((self.pipelines[job].unread / self.item).round().max(1.0));
        let count = left.min(self.state.scenario.batch as usize);
        if self.chunked[self.state.workload.jobs[job].dataset].is_some() {
            return self.substituted(job, count);
        }
        let items = self.next_items(job, count);
        let mut missing = Vec::new();
        for &item in &items {
            let number = self.number(job, item);
            if !self.has(job, item) {
                missing.push(item);
            } else if let Some(lru) = &mut self.lru {
                lru.touch(number);
            }
        }
        Some(Batch {
            count: items.len(),
            misses: missing.len(),
            missing,
            // The first batch of an epoch ends at its own length.
            begins: self.pipelines[job].at == items.len(),
            mode: Mode::Cached,
        })
    }

    /// Returns the next items in the job's order, up to `count`.
    fn next_items(&mut self, job: usize, count: usize) -> Vec<u32> {
        let wanted = &self.state.workload.jobs[job];
        let items = self.sets[wanted.dataset].count;
        let line = &mut self.pipelines[job];
        if let Some(curriculum) = &wanted.curriculum {
            let read = wanted.work - line.unread;
            let iteration = index(read / curriculum.batch_bytes) as u64;
            let presented = index(curriculum.pace(iteration) * f64::from(items)).max(1);
            let draw = |_| u32::try_from(below(&mut self.random, presented)).unwrap_or(0);
            return (0..count).map(draw).collect();
        }
        if line.at == line.order.len() {
            // A new epoch: every item once, in a new order.
            line.order = shuffled(items, &mut self.random);
            line.at = 0;
        }
        let end = (line.at + count).min(line.order.len());
        let batch = line.order[line.at..end].to_vec();
        line.at = end;
        batch
    }

    fn slot(&self, job: usize) -> usize {
        slot(self.state.scenario, self.state.workload, job)
    }

    /// Returns the number of an item among the items of all datasets.
    fn number(&self, job: usize, item: u32) -> u32 {
        self.sets[self.state.workload.jobs[job].dataset].first + item
    }

    fn has(&self, job: usize, item: u32) -> bool {
        match &self.lru {
            Some(lru) => lru.has(self.number(job, item)),
            None => self.slots[self.slot(job)].has(item),
        }
    }

    /// Caches a fetched item, if there is room.
    fn keep(&mut self, job: usize, item: u32) {
        let (slot, number) = (self.slot(job), self.number(job, item));
        match &mut self.lru {
            Some(lru) => lru.touch(number),
            None => self.slots[slot].insert(item),
        }
    }

    /// Returns whether two chunks of a dataset are kept now.
    fn is_in_chunks(&self, set: usize) -> bool {
        self.chunked[set].is_some()
            && (self.state.fixed_budgets[set].is_some()
                || self.state.choices[set] == Choice::Chunks)
    }

    /// Returns the seconds until the next event.
    fn seconds(&self) -> f64 {
        let mut next = self.state.until_submission();
        for &job in &self.state.active {
            let line = &self.pipelines[job];
            if line.batch.is_some() && line.fetching <= NOTHING {
                return 0.0;
            }
            let left = [line.fetching, line.substitution.requested];
            if let Some(left) = left.into_iter().find(|&left| left > NOTHING) {
                next = next.min(left / self.state.progress[job].remote);
            }
            if let Some((_, until)) = &line.computing {
                next = next.min((until - self.state.now).max(0.0));
            }
        }
        let deadlines = self.chunked.iter().flatten();
        let deadlines = deadlines.map(|cache| cache.until_deadline(self.state.now));
        deadlines.fold(next, f64::min)
    }

    fn sample(&mut self) -> Sample {
        let mut sample = self.state.sample();
        if let Some(lru) = &self.lru {
            sample.allocated_cache = self.state.scenario.cache;
            sample.cached = index_f64(lru.len()) * self.item;
        } else {
            let active = self.state.active.iter();
            // Jobs may share a slot.
            let used: BTreeSet<usize> = active.map(|&job| self.slot(job)).collect();
            for slot in used {
                let chunked = self.chunked.get(slot).and_then(Option::as_ref);
                let (items, budget) = match chunked.filter(|_| self.is_in_chunks(slot)) {
                    Some(cache) => (cache.len(), cache.capacity()),
                    None => (self.slots[slot].len(), self.slots[slot].budget),
                };
                sample.allocated_cache += index_f64(budget) * self.item;
                sample.cached += index_f64(items) * self.item;
            }
        }
        sample.throughput = 0.0;
        for at in 0..self.state.active.len() {
            let job = self.state.active[at];
            let line = &self.pipelines[job];
            // A job's rate is that of its last batch. While it waits for the next one it reads nothing.
            if line.computing.is_some() {
                sample.throughput += self.state.ideal(job) * self.state.progress[job].share;
            }
            if let Some(batch) = &line.batch {
                let hits = 1.0 - index_f64(batch.misses) / index_f64(batch.count);
                self.state.progress[job].hit = hits;
            }
            // The mean over the readers of a dataset.
            let size = self.state.dataset_size(job) / self.readers(job);
            sample.effective_cache += self.state.progress[job].hit * size;
        }
        sample
    }

    /// Removes jobs that have computed everything. Returns whether there are any.
    fn retire(&mut self) -> bool {
        // Sums of items are rounded, so compare with half an item.
        let half = 0.5 * self.item;
        let private = self.state.scenario.system == System::Coordl;
        let mut done = Vec::new();
        self.state.retire(|job, progress| {
            let is_done = progress.left < half;
            if is_done {
                done.push(job);
            }
            is_done
        });
        for &job in &done {
            self.state.probing.ended(&self.state.workload.jobs[job].id);
            self.end(job);
            self.pipelines[job] = Pipeline::default();
            if private {
                self.slots[job].set_budget(0, &mut self.random);
            }
        }
        !done.is_empty()
    }

    /// Starts the jobs that fit, and divides the resources.
    fn divide(&mut self) {
        while let Some(job) = self.state.start_next() {
            self.pipelines[job].unread = self.state.workload.jobs[job].work;
            self.pipelines[job].done = self.state.now;
        }
        let were_in_chunks: Vec<bool> = (0..self.chunked.len())
            .map(|set| self.is_in_chunks(set))
            .collect();
        let before = self.state.choices.clone();
        self.state.divide();
        self.note_choices(&before);
        for at in 0..self.slots.len() {
            // A budget of a whole dataset is all of its items, however they were rounded.
            let items = index((self.state.budgets[at] / self.item).round());
            let in_chunks = at < self.chunked.len() && self.is_in_chunks(at);
            self.slots[at].set_budget(if in_chunks { 0 } else { items }, &mut self.random);
        }
        for (set, was_in_chunks) in were_in_chunks.into_iter().enumerate() {
            let is_in_chunks = self.is_in_chunks(set);
            let Some(cache) = &mut self.chunked[set] else {
                continue;
            };
            if is_in_chunks {
                // The policy's two chunks are those of the bytes, which may be an item less.
                let room = index((self.state.budgets[set] / self.item).round());
                let chosen = self.state.fixed_budgets[set].is_none();
                cache.set_capacity(if chosen { cache.room() } else { room });
            } else if was_in_chunks {
                cache.set_capacity(0);
            }
            if is_in_chunks != was_in_chunks {
                self.switch(set, is_in_chunks);
            }
        }
    }
}
