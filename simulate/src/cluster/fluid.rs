//! From event to event: submission, end of an epoch, end of a job, and, where hit ratios move
//! within epochs, short steps in between.

use super::control::Control;
use super::lru::Lru;
use super::outcome::{Recorder, state};
use super::progress::{Filling, Progress};
use super::schedule::Queue;
use super::uniform::Uniform;
use super::{ClusterError, Outcome, STEPS_MAX, Scenario, System, Workload};

/// Bytes that are none: what rounding leaves of an epoch or of a job.
const NOTHING: f64 = 1.0;

#[derive(Debug)]
enum Cache {
    Uniform(Uniform),
    Lru(Lru),
}

struct Fluid<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    control: Control<'a>,
    queue: Queue,
    cache: Cache,
    progress: Vec<Progress>,
    active: Vec<usize>,
    budgets: Vec<f64>,
    now: f64,
    finished: usize,
}

pub(super) fn run(scenario: &Scenario, workload: &Workload) -> Result<Outcome, ClusterError> {
    let cache = match scenario.system {
        System::Alluxio => Cache::Lru(Lru::new(scenario, workload)),
        _ => Cache::Uniform(Uniform::new(scenario, workload)),
    };
    let slots = match &cache {
        Cache::Uniform(uniform) => uniform.slots(),
        Cache::Lru(_) => 0,
    };
    let progress = workload.jobs.iter().map(|job| Progress {
        left: job.work,
        ..Progress::default()
    });
    let mut fluid = Fluid {
        scenario,
        workload,
        control: Control::new(scenario, workload),
        queue: Queue::new(scenario),
        cache,
        progress: progress.collect(),
        active: Vec::new(),
        budgets: vec![0.0; slots],
        now: 0.0,
        finished: 0,
    };
    let mut recorder = Recorder::new();
    while fluid.finished < workload.jobs.len() {
        fluid.step(&mut recorder)?;
    }
    Ok(recorder.finish(workload, &fluid.progress))
}

impl Fluid<'_> {
    fn step(&mut self, recorder: &mut Recorder) -> Result<(), ClusterError> {
        recorder.steps += 1;
        if recorder.steps > STEPS_MAX {
            return Err(ClusterError::Endless {
                days: self.now / 86_400.0,
                finished: self.finished,
                jobs: self.workload.jobs.len(),
            });
        }
        self.control.rates(&self.active, &mut self.progress);
        let seconds = self.seconds();
        let mut sample = state(
            (self.scenario, self.workload),
            &self.active,
            &self.progress,
            self.queue.waiting(),
        );
        let before = self.measure();
        match &mut self.cache {
            Cache::Uniform(uniform) => uniform.advance(seconds, &mut self.progress),
            Cache::Lru(lru) => lru.advance(seconds, &self.progress),
        }
        let after = self.measure();
        sample.allocated_cache = before.allocated;
        sample.cached = f64::midpoint(before.cached, after.cached);
        sample.effective_cache = f64::midpoint(before.effective, after.effective);
        recorder.add(self.now, seconds, &sample);
        self.now += seconds;
        let changed =
            self.read(seconds) | self.queue.arrive(self.workload, &self.control, self.now);
        if changed {
            self.divide();
        }
        if let Cache::Lru(lru) = &mut self.cache {
            lru.settle(seconds, &mut self.progress);
        }
        Ok(())
    }

    fn measure(&self) -> Filling {
        match &self.cache {
            Cache::Uniform(uniform) => uniform.measure(&self.progress),
            Cache::Lru(lru) => lru.measure(&self.progress),
        }
    }

    /// How long nothing happens.
    fn seconds(&self) -> f64 {
        let mut next = match self.workload.jobs.get(self.queue.submitted()) {
            Some(job) => (job.submit - self.now).max(0.0),
            None => f64::INFINITY,
        };
        for &job in &self.active {
            let now = &self.progress[job];
            let size = self.workload.datasets[self.workload.jobs[job].dataset].size;
            next = next.min(now.left.min(size - now.read) / now.rate);
        }
        if !self.active.is_empty() {
            next = next.min(match &self.cache {
                Cache::Uniform(uniform) => uniform.step(&self.progress),
                Cache::Lru(lru) => lru.step(&self.progress),
            });
        }
        next
    }

    /// All jobs have read for so long; whether one has finished.
    fn read(&mut self, seconds: f64) -> bool {
        let before = self.active.len();
        let (workload, progress) = (self.workload, &mut self.progress);
        let (cache, queue, now) = (&mut self.cache, &mut self.queue, self.now);
        self.active.retain(|&job| {
            let size = workload.datasets[workload.jobs[job].dataset].size;
            let state = &mut progress[job];
            let bytes = state.rate * seconds;
            state.left -= bytes;
            state.read += bytes;
            if state.left < NOTHING {
                state.finished = Some(now);
                queue.finish(workload.jobs[job].gpus);
                match cache {
                    Cache::Uniform(uniform) => uniform.finish(workload, job),
                    Cache::Lru(lru) => lru.finish(workload, job),
                }
                return false;
            }
            if size - state.read < NOTHING {
                state.read = 0.0;
                match cache {
                    Cache::Uniform(uniform) => uniform.epoch(workload, job, state),
                    Cache::Lru(lru) => lru.epoch(workload, job),
                }
            }
            true
        });
        self.finished += before - self.active.len();
        before != self.active.len()
    }

    /// Starts what fits and gives everybody a part anew.
    fn divide(&mut self) {
        while let Some(job) = self.queue.start(self.workload) {
            self.active.push(job);
            self.progress[job].started = Some(self.now);
            match &mut self.cache {
                Cache::Uniform(uniform) => {
                    uniform.start(self.workload, job, &mut self.progress[job]);
                }
                Cache::Lru(lru) => lru.start(self.workload, job, self.now),
            }
        }
        let (active, progress) = (&self.active, &mut self.progress);
        self.control.divide(active, progress, &mut self.budgets);
        if let Cache::Uniform(uniform) = &mut self.cache {
            uniform.set_budgets(&self.budgets, progress);
        }
    }
}
