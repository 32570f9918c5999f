//! Item by item: every job shuffles its dataset each epoch and reads it through a real cache, in
//! mini-batches that are loaded while others are computed.
//!
//! A job's loader fetches one batch at a time and runs ahead of the GPUs by [`AHEAD`] batches. The
//! batch's missing items come over the link, which is shared among the loaders that fetch, evenly or
//! by the policy's weights. Its items are scaled: datasets have thousands, not millions, and a batch
//! has enough of them that their misses average out.

mod store;

use super::control::Control;
use super::outcome::{Recorder, index, index_f64, state};
use super::progress::Progress;
use super::schedule::Queue;
use super::{ClusterError, Outcome, STEPS_MAX, Scenario, System, Workload};
use crate::random::Random;
use copperfs_policy::water::fill_weighted;
use store::{Lru, Uniform};

/// Batches that a loader has ready at most: what data loaders of today do by default (two for each
/// of several workers).
const AHEAD: u32 = 4;
/// Most items that are read in a run: minutes.
const READS_MAX: f64 = 2e9;
/// Most items of all datasets: half a gigabyte of them.
const ITEMS_MAX: f64 = 64e6;
/// What of a batch counts as fetched, in bytes: rounding.
const NOTHING: f64 = 1e-3;

#[derive(Debug)]
enum Cache {
    Uniform(Vec<Uniform>),
    Lru(Lru),
}

/// What a job's loader and GPUs are doing.
#[derive(Debug, Default)]
struct Pipeline {
    /// The epoch's order.
    order: Vec<u32>,
    /// Where in it the loader is.
    at: usize,
    /// Bytes that the loader has still to start on.
    unread: f64,
    /// Items of the batch that is being fetched, to be cached when it is there.
    missing: Vec<u32>,
    /// Bytes of that batch, and what is left to fetch; nothing under way if there are none.
    batch: f64,
    fetching: f64,
    /// Batches that are ready: bytes.
    ready: std::collections::VecDeque<f64>,
    /// The batch on the GPUs, and when it will be done.
    computing: Option<(f64, f64)>,
    /// When the last one was done.
    done: f64,
    /// What the policy gives it of the link.
    planned: f64,
}

struct Engine<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    control: Control<'a>,
    queue: Queue,
    cache: Cache,
    item: f64,
    /// Items of each dataset, and where they begin among all.
    sets: Vec<(u32, u32)>,
    random: Random,
    pipelines: Vec<Pipeline>,
    progress: Vec<Progress>,
    active: Vec<usize>,
    budgets: Vec<f64>,
    now: f64,
    finished: usize,
}

pub(super) fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    let mut engine = Engine::new(scenario, workload)?;
    let mut recorder = Recorder::new();
    while engine.finished < workload.jobs.len() {
        engine.step(&mut recorder)?;
    }
    Ok(recorder.finish(workload, &engine.progress))
}

/// A number below `end`.
fn below(random: &mut Random, end: usize) -> usize {
    index(random.unit() * index_f64(end)).min(end - 1)
}

/// Bytes of an item: so that the largest dataset that fits into the cache has as many as are wanted.
fn item_bytes(scenario: &Scenario, workload: &Workload) -> Result<f64, ClusterError> {
    let sizes = || workload.datasets.iter().map(|set| set.size);
    let fitting = sizes()
        .filter(|&size| size <= scenario.cache)
        .fold(0.0, f64::max);
    let largest = if fitting > 0.0 {
        fitting
    } else {
        sizes().fold(f64::INFINITY, f64::min)
    };
    let item = largest / f64::from(scenario.items);
    let reads = workload.jobs.iter().map(|job| job.work).sum::<f64>() / item;
    let private = scenario.system == System::Coordl;
    let of_jobs = || {
        workload
            .jobs
            .iter()
            .map(|job| workload.datasets[job.dataset].size)
    };
    let held = if private {
        of_jobs().sum::<f64>()
    } else {
        sizes().sum()
    } / item;
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
            let items = u32::try_from(index((set.size / item).round().max(1.0))).unwrap_or(1);
            sets.push((items, first));
            first += items;
        }
        let capacity = index((scenario.cache / item).round().max(1.0));
        let uniform = |at: usize| Uniform::new(sets[at].0 as usize);
        let cache = match scenario.system {
            System::Alluxio => Cache::Lru(Lru::new(first, capacity)),
            System::Coordl => Cache::Uniform(
                workload
                    .jobs
                    .iter()
                    .map(|job| uniform(job.dataset))
                    .collect(),
            ),
            _ => Cache::Uniform((0..sets.len()).map(uniform).collect()),
        };
        let slots = match &cache {
            Cache::Uniform(slots) => slots.len(),
            Cache::Lru(_) => 0,
        };
        let progress = workload.jobs.iter().map(|job| Progress {
            left: job.work,
            ..Progress::default()
        });
        Ok(Self {
            scenario,
            workload,
            control: Control::new(scenario, workload),
            queue: Queue::new(scenario),
            cache,
            item,
            sets,
            random: Random::new(scenario.seed),
            pipelines: workload.jobs.iter().map(|_| Pipeline::default()).collect(),
            progress: progress.collect(),
            active: Vec::new(),
            budgets: vec![0.0; slots],
            now: 0.0,
            finished: 0,
        })
    }

    fn step(&mut self, recorder: &mut Recorder) -> Result<(), ClusterError> {
        recorder.steps += 1;
        if recorder.steps > STEPS_MAX {
            return Err(ClusterError::Endless {
                days: self.now / 86_400.0,
                finished: self.finished,
                jobs: self.workload.jobs.len(),
            });
        }
        let changed = self.queue.arrive(self.workload, &self.control, self.now) | self.retire();
        if changed {
            self.divide();
        }
        if self.finished == self.workload.jobs.len() {
            return Ok(());
        }
        let mut epochs = false;
        for at in 0..self.active.len() {
            epochs |= self.feed(self.active[at]);
        }
        if changed || epochs {
            self.plan();
        }
        self.share_link();
        let seconds = self.seconds();
        self.record(recorder, seconds);
        self.now += seconds;
        for at in 0..self.active.len() {
            let job = self.active[at];
            let line = &mut self.pipelines[job];
            line.fetching -= self.progress[job].remote * seconds;
            if line.batch > 0.0 && line.fetching <= NOTHING {
                line.ready.push_back(line.batch);
                line.batch = 0.0;
                line.fetching = 0.0;
                let missing = std::mem::take(&mut line.missing);
                self.keep(job, &missing);
                self.pipelines[job].missing = missing;
            }
            self.compute(job);
        }
        Ok(())
    }

    /// Ends the batch on the GPUs if it is done.
    fn compute(&mut self, job: usize) {
        let line = &mut self.pipelines[job];
        if let Some((bytes, until)) = line.computing
            && until <= self.now
        {
            let state = &mut self.progress[job];
            state.left -= bytes;
            state.rate = bytes / (until - line.done);
            line.done = until;
            line.computing = None;
        }
    }

    /// Puts the next batch on the GPUs, and the loader to work; whether with that an epoch began.
    fn feed(&mut self, job: usize) -> bool {
        let ideal = self.control.ideal(job) * self.progress[job].share;
        let line = &mut self.pipelines[job];
        if line.computing.is_none()
            && let Some(bytes) = line.ready.pop_front()
        {
            line.computing = Some((bytes, self.now + bytes / ideal));
        }
        let ready = u32::try_from(line.ready.len()).unwrap_or(u32::MAX);
        if line.batch > 0.0 || ready >= AHEAD || line.unread < 0.5 * self.item {
            return false;
        }
        let items = self.next_batch(job);
        let begins = self.pipelines[job].at == items.len();
        let mut missing = std::mem::take(&mut self.pipelines[job].missing);
        missing.clear();
        for &item in &items {
            if self.has(job, item) {
                if let Cache::Lru(lru) = &mut self.cache {
                    lru.touch(self.sets[self.workload.jobs[job].dataset].1 + item);
                }
            } else {
                missing.push(item);
            }
        }
        let line = &mut self.pipelines[job];
        line.batch = index_f64(items.len()) * self.item;
        line.fetching = index_f64(missing.len()) * self.item;
        line.unread -= line.batch;
        line.missing = missing;
        begins
    }

    /// The items of the next batch.
    fn next_batch(&mut self, job: usize) -> Vec<u32> {
        let wanted = &self.workload.jobs[job];
        let (items, _) = self.sets[wanted.dataset];
        let line = &mut self.pipelines[job];
        let left = index((line.unread / self.item).round().max(1.0));
        let count = left.min(self.scenario.batch as usize);
        if let Some(curriculum) = &wanted.curriculum {
            let read = wanted.work - line.unread;
            let iteration = index(read / curriculum.batch_bytes) as u64;
            let presented = index(curriculum.pace(iteration) * f64::from(items)).max(1);
            let draw = |_| u32::try_from(below(&mut self.random, presented)).unwrap_or(0);
            return (0..count).map(draw).collect();
        }
        if line.at == line.order.len() {
            // A new epoch: everything once, in a new order (Fisher and Yates).
            line.order.clear();
            line.order.extend(0..items);
            for last in (1..line.order.len()).rev() {
                line.order.swap(last, below(&mut self.random, last + 1));
            }
            line.at = 0;
        }
        let end = (line.at + count).min(line.order.len());
        let batch = line.order[line.at..end].to_vec();
        line.at = end;
        batch
    }

    fn slot(&self, job: usize) -> usize {
        match self.scenario.system {
            System::Coordl => job,
            _ => self.workload.jobs[job].dataset,
        }
    }

    fn has(&self, job: usize, item: u32) -> bool {
        match &self.cache {
            Cache::Uniform(slots) => slots[self.slot(job)].has(item),
            Cache::Lru(lru) => lru.has(self.sets[self.workload.jobs[job].dataset].1 + item),
        }
    }

    /// Caches what was fetched.
    fn keep(&mut self, job: usize, missing: &[u32]) {
        let slot = self.slot(job);
        let first = self.sets[self.workload.jobs[job].dataset].1;
        for &item in missing {
            match &mut self.cache {
                Cache::Uniform(slots) => slots[slot].insert(item),
                Cache::Lru(lru) => lru.touch(first + item),
            }
        }
    }

    /// What the policy gives each job, from what it really hits: the unread items that are cached.
    fn plan(&mut self) {
        if self.scenario.system != System::Silod || !self.scenario.remote_io_allocation {
            return;
        }
        for &job in &self.active {
            let line = &self.pipelines[job];
            let unread = line.order.get(line.at..).unwrap_or(&[]);
            if !unread.is_empty() {
                let cached = unread.iter().filter(|&&item| self.has(job, item)).count();
                self.progress[job].hit = index_f64(cached) / index_f64(unread.len());
            }
        }
        let given = self.control.remote_io(&self.active, &self.progress);
        for (&job, given) in self.active.iter().zip(given) {
            self.pipelines[job].planned = given;
        }
    }

    /// Divides the link among the loaders that fetch: evenly, or as planned.
    fn share_link(&mut self) {
        let planned = self.scenario.system == System::Silod && self.scenario.remote_io_allocation;
        // Nobody who misses an item waits for ever because none was foreseen.
        let least = self.scenario.remote_io * 1e-6;
        let line = |&job: &usize| &self.pipelines[job];
        let need = |job| {
            if line(job).fetching > NOTHING {
                f64::INFINITY
            } else {
                0.0
            }
        };
        let weight = |job| {
            if planned {
                line(job).planned.max(least)
            } else {
                1.0
            }
        };
        let needs: Vec<f64> = self.active.iter().map(need).collect();
        let weights: Vec<f64> = self.active.iter().map(weight).collect();
        let given = fill_weighted(self.scenario.remote_io, &needs, &weights);
        for (&job, given) in self.active.iter().zip(given) {
            self.progress[job].remote = given;
        }
    }

    fn seconds(&self) -> f64 {
        let mut next = match self.workload.jobs.get(self.queue.submitted()) {
            Some(job) => (job.submit - self.now).max(0.0),
            None => f64::INFINITY,
        };
        for &job in &self.active {
            let line = &self.pipelines[job];
            if line.batch > 0.0 {
                let rate = self.progress[job].remote;
                let left = line.fetching.max(0.0);
                next = next.min(if left > NOTHING { left / rate } else { 0.0 });
            }
            if let Some((_, until)) = line.computing {
                next = next.min((until - self.now).max(0.0));
            }
        }
        next
    }

    fn record(&mut self, recorder: &mut Recorder, seconds: f64) {
        let mut sample = state(
            (self.scenario, self.workload),
            &self.active,
            &self.progress,
            self.queue.waiting(),
        );
        match &self.cache {
            Cache::Lru(lru) => {
                sample.allocated_cache = self.scenario.cache;
                sample.cached = index_f64(lru.len()) * self.item;
            }
            Cache::Uniform(slots) => {
                let mut seen: Vec<usize> = self.active.iter().map(|&job| self.slot(job)).collect();
                seen.sort_unstable();
                seen.dedup();
                for slot in seen {
                    sample.allocated_cache += index_f64(slots[slot].budget()) * self.item;
                    sample.cached += index_f64(slots[slot].len()) * self.item;
                }
            }
        }
        for &job in &self.active {
            let line = &self.pipelines[job];
            if line.batch > 0.0 {
                let hits = 1.0 - index_f64(line.missing.len()) * self.item / line.batch;
                self.progress[job].hit = hits;
            }
            let size = self.workload.datasets[self.workload.jobs[job].dataset].size;
            sample.effective_cache += self.progress[job].hit * size;
        }
        recorder.add(self.now, seconds, &sample);
    }

    /// Jobs that have computed all leave.
    fn retire(&mut self) -> bool {
        let before = self.active.len();
        let half = 0.5 * self.item;
        let (progress, pipelines) = (&mut self.progress, &mut self.pipelines);
        let (queue, workload, now) = (&mut self.queue, self.workload, self.now);
        let cache = &mut self.cache;
        let private = self.scenario.system == System::Coordl;
        let random = &mut self.random;
        self.active.retain(|&job| {
            if progress[job].left >= half {
                return true;
            }
            progress[job].finished = Some(now);
            pipelines[job] = Pipeline::default();
            queue.finish(workload.jobs[job].gpus);
            if let (true, Cache::Uniform(slots)) = (private, &mut *cache) {
                slots[job].set_budget(0, random);
            }
            false
        });
        self.finished += before - self.active.len();
        before != self.active.len()
    }

    fn divide(&mut self) {
        while let Some(job) = self.queue.start(self.workload) {
            self.active.push(job);
            self.progress[job].started = Some(self.now);
            self.pipelines[job].unread = self.workload.jobs[job].work;
            self.pipelines[job].done = self.now;
        }
        self.control
            .divide(&self.active, &mut self.progress, &mut self.budgets);
        if let Cache::Uniform(slots) = &mut self.cache {
            for (slot, budget) in slots.iter_mut().zip(&self.budgets) {
                // A budget of a whole dataset is all of its items, however they were rounded.
                let items = index((budget / self.item).round());
                slot.set_budget(items, &mut self.random);
            }
        }
    }
}
