//! Who gets what now: the step from the jobs that run to budgets and rates, through
//! [`crate::allocator`].
//!
//! Budgets follow from a policy when the jobs that run change. Rates follow from effective hit
//! ratios, which change with every epoch; they are divided as the policy divides them.

use super::progress::Progress;
use super::{Scenario, Scheduler, System, Workload};
use crate::allocator::max_min::equal_throughputs;
use crate::allocator::performance::{remote_io, silod_perf};
use crate::allocator::water::{fill, fill_weighted};
use crate::allocator::{Allocation, Dataset, Job, Policy, Problem, Totals};

/// How often the GPU time that jobs bound by data leave is given to others (Gavel with Eq. 9). After
/// the second time the parts change by less than a per cent.
const REBALANCES: usize = 2;
/// GPU time that a job bound by data keeps beyond what it uses, so that it sees when it no longer is.
const SLACK: f64 = 1.05;

/// Decides.
#[derive(Debug)]
pub(super) struct Control<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    /// The policy's ranks of the jobs that run, in their order.
    ranks: Vec<usize>,
    /// Where a dataset stands in the problem at hand.
    places: Vec<Option<usize>>,
    needs: Vec<f64>,
    weights: Vec<f64>,
}

/// The policy that divides cache and remote IO.
fn policy(scenario: &Scenario) -> Policy {
    match (scenario.system, scenario.scheduler) {
        (System::Silod, Scheduler::Fifo | Scheduler::Sjf) => Policy::Greedy,
        (System::Silod, Scheduler::Gavel) => Policy::MaxMin,
        (System::Quiver, _) => Policy::Benefit,
        (System::Coordl, _) => Policy::Static,
        (System::Alluxio, _) => Policy::Lru,
    }
}

impl<'a> Control<'a> {
    pub(super) fn new(scenario: &'a Scenario, workload: &'a Workload) -> Self {
        Self {
            scenario,
            workload,
            ranks: Vec::new(),
            places: vec![None; workload.datasets.len()],
            needs: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// `f*`.
    pub(super) fn ideal(&self, job: usize) -> f64 {
        self.workload.jobs[job].ideal_rate * self.scenario.gpu_speed
    }

    /// What a job's place in the queue goes by; the least is first.
    pub(super) fn score(&self, job: usize) -> f64 {
        if self.scenario.scheduler != Scheduler::Sjf {
            return 0.0;
        }
        let wanted = &self.workload.jobs[job];
        if self.scenario.system == System::Silod {
            let set = &self.workload.datasets[wanted.dataset];
            let alone = Problem {
                totals: self.totals(),
                datasets: vec![dataset(set)],
                jobs: vec![self.job(job, 0, 1.0, wanted.work)],
            };
            let scores = Policy::Sjf.allocate(&alone).jobs;
            return scores[0].score.unwrap_or(f64::INFINITY);
        }
        // Eq. 6 with the one resource that the baselines' schedulers know.
        f64::from(wanted.gpus) / f64::from(self.scenario.gpus) * wanted.work / self.ideal(job)
    }

    /// After the jobs that run have changed: their parts of the GPUs, what an equal share would give
    /// them, and (but for an LRU cache) the budget of each slot.
    pub(super) fn divide(
        &mut self,
        active: &[usize],
        progress: &mut [Progress],
        budgets: &mut [f64],
    ) {
        self.share_gpus(active, progress);
        let mut problem = self.problem(active, progress);
        for (&job, equal) in active.iter().zip(equal_throughputs(&problem)) {
            progress[job].equal = equal;
        }
        if self.scenario.system == System::Alluxio {
            return;
        }
        let policy = policy(self.scenario);
        let mut allocation = policy.allocate(&problem);
        if policy == Policy::MaxMin {
            for _ in 0..REBALANCES {
                if !self.rebalance(active, progress, &allocation) {
                    break;
                }
                for (job, &at) in problem.jobs.iter_mut().zip(active) {
                    job.ideal_rate = self.ideal(at) * progress[at].share;
                }
                allocation = policy.allocate(&problem);
            }
        }
        budgets.fill(0.0);
        for (&job, (wanted, share)) in active.iter().zip(problem.jobs.iter().zip(&allocation.jobs))
        {
            if self.scenario.system == System::Coordl {
                budgets[job] = share.cache;
            } else {
                let set = self.workload.jobs[job].dataset;
                budgets[set] = allocation.datasets[wanted.dataset].cache;
            }
        }
        self.ranks.clear();
        self.ranks.extend(allocation.jobs.iter().map(|job| job.order));
    }

    fn totals(&self) -> Totals {
        Totals {
            gpus: f64::from(self.scenario.gpus),
            cache: self.scenario.cache,
            remote_io: self.scenario.remote_io,
        }
    }

    fn job(&self, job: usize, dataset: usize, share: f64, left: f64) -> Job {
        let wanted = &self.workload.jobs[job];
        Job {
            id: wanted.id.clone(),
            dataset,
            ideal_rate: self.ideal(job) * share,
            gpus: f64::from(wanted.gpus) * share,
            work: Some(left),
            hit_ratio: None,
            remote_io: None,
        }
    }

    fn problem(&mut self, active: &[usize], progress: &[Progress]) -> Problem {
        let mut datasets = Vec::new();
        let mut jobs = Vec::with_capacity(active.len());
        for &job in active {
            let set = self.workload.jobs[job].dataset;
            let place = *self.places[set].get_or_insert_with(|| {
                datasets.push(dataset(&self.workload.datasets[set]));
                datasets.len() - 1
            });
            let now = &progress[job];
            jobs.push(self.job(job, place, now.share, now.left));
        }
        for &job in active {
            self.places[self.workload.jobs[job].dataset] = None;
        }
        Problem {
            totals: self.totals(),
            datasets,
            jobs,
        }
    }

    /// Under Gavel all jobs have the same part of the time; under the others they have their GPUs.
    fn share_gpus(&self, active: &[usize], progress: &mut [Progress]) {
        let gpus = |&job: &usize| f64::from(self.workload.jobs[job].gpus);
        let wanted: f64 = active.iter().map(gpus).sum();
        let share = (f64::from(self.scenario.gpus) / wanted).min(1.0);
        for &job in active {
            progress[job].share = share;
        }
    }

    /// Eq. 9 sees which jobs data holds back: what they leave of their GPUs' time goes to the others,
    /// evenly. Whether there was any.
    fn rebalance(
        &self,
        active: &[usize],
        progress: &mut [Progress],
        allocation: &Allocation,
    ) -> bool {
        let gpus = |job: usize| f64::from(self.workload.jobs[job].gpus);
        let needs: Vec<f64> = active
            .iter()
            .zip(&allocation.jobs)
            .map(|(&job, share)| {
                let used = share.throughput / self.ideal(job) * SLACK;
                if used < progress[job].share {
                    used * gpus(job)
                } else {
                    gpus(job)
                }
            })
            .collect();
        let weights: Vec<f64> = active.iter().map(|&job| gpus(job)).collect();
        let given = fill_weighted(f64::from(self.scenario.gpus), &needs, &weights);
        let mut moved = 0.0_f64;
        for (&job, given) in active.iter().zip(given) {
            let share = given / gpus(job);
            moved = moved.max((share / progress[job].share - 1.0).abs());
            progress[job].share = share;
        }
        moved > 0.01
    }

    /// With the hit ratios as they are now: what each job reads, and what of it from storage.
    pub(super) fn rates(&mut self, active: &[usize], progress: &mut [Progress]) {
        self.needs.clear();
        self.weights.clear();
        for &job in active {
            let now = &progress[job];
            let ideal = self.ideal(job) * now.share;
            self.needs.push(remote_io(ideal, now.hit));
            self.weights.push(remote_io(now.equal, now.hit));
        }
        let total = self.scenario.remote_io;
        let fair = self.scenario.scheduler == Scheduler::Gavel
            && self.scenario.system == System::Silod
            && self.scenario.remote_io_allocation;
        let given = if fair {
            fill_weighted(total, &self.needs, &self.weights)
        } else {
            fill(total, &self.needs)
        };
        for (&job, given) in active.iter().zip(given) {
            let ideal = self.ideal(job) * progress[job].share;
            let now = &mut progress[job];
            now.rate = silod_perf(ideal, given, now.hit);
            now.remote = remote_io(now.rate, now.hit);
        }
    }
}

fn dataset(set: &super::Dataset) -> Dataset {
    Dataset {
        name: set.name.clone(),
        size: set.size,
        budget: None,
    }
}
