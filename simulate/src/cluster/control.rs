//! The division of GPUs, cache and remote IO among the running jobs, by [`copperfs_policy`].
//!
//! Budgets change when the set of running jobs changes. Rates depend on effective hit ratios, which
//! change with every epoch. If a policy's rates are plain water filling over known values, the
//! filling is called instead of the whole policy; a test compares the two.

use super::simulation::{Simulation, slot, substitutes};
use super::{Scenario, Scheduler, System};
use copperfs_policy::max_min::equal_throughputs;
use copperfs_policy::performance::{remote_io, silod_perf};
use copperfs_policy::water::{fill, fill_weighted};
use copperfs_policy::{Allocation, Choice, Dataset, Job, JobShare, Policy, Problem, Totals};
use std::collections::HashMap;

/// How often unused GPU time of jobs bound by data is redistributed (Gavel with Eq. 9). After the
/// second time the parts change by less than a per cent.
const REBALANCES: usize = 2;
/// The GPU time that a job bound by data keeps, relative to its use, so that it is detected when it
/// is no longer bound.
const SLACK: f64 = 1.05;

/// Returns the policy that divides cache and remote IO.
fn policy(scenario: &Scenario) -> Policy {
    match (scenario.system, scenario.scheduler) {
        (System::Silod, Scheduler::Fifo) => Policy::Greedy,
        (System::Silod, Scheduler::Sjf) => Policy::Sjf,
        (System::Silod, Scheduler::Gavel) => Policy::MaxMin,
        (System::Quiver, _) => Policy::Benefit,
        (System::Coordl, _) => Policy::Static,
        (System::Alluxio, _) => Policy::Lru,
    }
}

impl Simulation<'_> {
    /// Returns a job's ideal rate `f*`.
    pub(super) fn ideal(&self, job: usize) -> f64 {
        self.workload.jobs[job].ideal_rate * self.scenario.gpu_speed
    }

    fn gpus(&self, job: usize) -> f64 {
        f64::from(self.workload.jobs[job].gpus)
    }

    /// Returns a job's key in the queue; the least is first.
    pub(super) fn score(&self, job: usize) -> f64 {
        if self.scenario.scheduler != Scheduler::Sjf {
            return 0.0;
        }
        let wanted = &self.workload.jobs[job];
        if self.scenario.system == System::Silod {
            let alone = Problem {
                totals: self.totals(),
                datasets: vec![self.dataset(wanted.dataset)],
                jobs: vec![self.job(job, 0, 1.0, wanted.work)],
            };
            let scores = Policy::Sjf.allocate(&alone).jobs;
            return scores[0].score.unwrap_or(f64::INFINITY);
        }
        // Eq. 6 with the only resource that the baselines' schedulers know.
        f64::from(wanted.gpus) / f64::from(self.scenario.gpus) * wanted.work / self.ideal(job)
    }

    /// Updates the running jobs' parts of the GPUs, their rates with an equal share, and (except
    /// for an LRU cache) the budget of each slot. Call it when the set of running jobs has changed.
    pub(super) fn divide(&mut self) {
        // Under Gavel all jobs have the same part of the time, under the other schedulers all of it.
        let wanted: f64 = self.active.iter().map(|&job| self.gpus(job)).sum();
        let share = (f64::from(self.scenario.gpus) / wanted).min(1.0);
        for &job in &self.active {
            self.progress[job].share = share;
        }
        let mut problem = self.next_problem();
        for (&job, equal) in self.active.iter().zip(equal_throughputs(&problem)) {
            self.progress[job].equal = equal;
        }
        // An LRU cache has no budgets.
        if self.scenario.system == System::Alluxio {
            return;
        }
        let policy = policy(self.scenario);
        let mut allocation = policy.allocate(&problem);
        if policy == Policy::MaxMin {
            for _ in 0..REBALANCES {
                if !self.rebalance(&allocation) {
                    break;
                }
                for (job, &at) in problem.jobs.iter_mut().zip(&self.active) {
                    job.ideal_rate = self.ideal(at) * self.progress[at].share;
                }
                allocation = policy.allocate(&problem);
            }
        }
        self.budgets.fill(0.0);
        let private = self.scenario.system == System::Coordl;
        self.choices.fill(Choice::None);
        let shares = problem.jobs.iter().zip(&allocation.jobs);
        for (&job, (wanted, share)) in self.active.iter().zip(shares) {
            self.modes[job] = share.mode;
            let given = &allocation.datasets[wanted.dataset];
            self.choices[self.workload.jobs[job].dataset] = given.choice;
            self.budgets[slot(self.scenario, self.workload, job)] =
                if private { share.cache } else { given.cache };
        }
        self.problem = problem;
    }

    fn totals(&self) -> Totals {
        Totals {
            gpus: f64::from(self.scenario.gpus),
            cache: self.scenario.cache,
            remote_io: self.scenario.remote_io,
        }
    }

    fn dataset(&self, set: usize) -> Dataset {
        let Self { workload, .. } = self;
        Dataset {
            name: workload.datasets[set].name.clone(),
            size: workload.datasets[set].size,
            budget: self.fixed_budgets[set],
            chunk_size: Some(self.scenario.chunk_size),
            ..Dataset::default()
        }
    }

    fn job(&self, job: usize, dataset: usize, share: f64, left: f64) -> Job {
        let wanted = &self.workload.jobs[job];
        Job {
            id: wanted.id.clone(),
            dataset,
            ideal_rate: self.ideal(job) * share,
            gpus: self.gpus(job) * share,
            work: Some(left),
            substitutes: substitutes(self.scenario, self.workload, wanted),
            measured: self.probing.times(&wanted.id),
            mode: self.probing.mode(&wanted.id),
            ..Job::default()
        }
    }

    /// Returns the problem of the running jobs.
    fn next_problem(&self) -> Problem {
        let mut datasets = Vec::new();
        let mut places = HashMap::new();
        let job = |&job: &usize| {
            let set = self.workload.jobs[job].dataset;
            let place = *places.entry(set).or_insert_with(|| {
                datasets.push(self.dataset(set));
                datasets.len() - 1
            });
            let now = &self.progress[job];
            self.job(job, place, now.share, now.left)
        };
        let jobs = self.active.iter().map(job).collect();
        Problem {
            totals: self.totals(),
            datasets,
            jobs,
        }
    }

    /// Redistributes the GPU time that jobs bound by data do not use, evenly (Eq. 9). Returns
    /// whether that changes anything.
    fn rebalance(&mut self, allocation: &Allocation) -> bool {
        let need = |(&job, share): (&usize, &JobShare)| {
            // A job that uses all of its time may use more.
            let used = share.throughput / self.ideal(job) * SLACK;
            let is_bound = used < self.progress[job].share;
            self.gpus(job) * if is_bound { used } else { 1.0 }
        };
        let needs: Vec<f64> = self.active.iter().zip(&allocation.jobs).map(need).collect();
        let weights: Vec<f64> = self.active.iter().map(|&job| self.gpus(job)).collect();
        let given = fill_weighted(f64::from(self.scenario.gpus), &needs, &weights);
        let mut moved = 0.0_f64;
        for ((&job, given), gpus) in self.active.iter().zip(given).zip(weights) {
            let share = given / gpus;
            moved = moved.max((share / self.progress[job].share - 1.0).abs());
            self.progress[job].share = share;
        }
        moved > 0.01
    }

    /// Divides remote IO among the running jobs by their current hit ratios: bytes per second for
    /// each, in their order.
    pub(super) fn remote_io(&mut self) -> Vec<f64> {
        let total = self.scenario.remote_io;
        let allocated = self.scenario.system == System::Silod && self.scenario.remote_io_allocation;
        if allocated && self.scenario.scheduler == Scheduler::Sjf {
            for (job, &at) in self.problem.jobs.iter_mut().zip(&self.active) {
                job.hit_ratio = Some(self.progress[at].hit);
                job.work = Some(self.progress[at].left);
            }
            let allocation = Policy::Sjf.allocate(&self.problem);
            return allocation.jobs.iter().map(|job| job.remote_io).collect();
        }
        let running = || self.active.iter().map(|&job| (job, &self.progress[job]));
        let needs: Vec<f64> = running()
            .map(|(job, now)| remote_io(self.ideal(job) * now.share, now.hit))
            .collect();
        if allocated && self.scenario.scheduler == Scheduler::Gavel {
            let weights = running().map(|(_, now)| remote_io(now.equal, now.hit));
            fill_weighted(total, &needs, &weights.collect::<Vec<f64>>())
        } else {
            fill(total, &needs)
        }
    }

    /// Updates each job's rate, and its part from storage.
    pub(super) fn rates(&mut self) {
        let given = self.remote_io();
        for (&job, given) in self.active.iter().zip(given) {
            let ideal = self.ideal(job) * self.progress[job].share;
            let now = &mut self.progress[job];
            now.rate = silod_perf(ideal, given, now.hit);
            now.remote = remote_io(now.rate, now.hit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::generate::{Recipe, generate};
    use super::*;

    #[test]
    fn rates_are_those_of_the_policies() {
        let recipe = Recipe {
            jobs: 60,
            days: 1.0,
            sharing: 0.3,
            seed: 5,
        };
        let workload = generate(&recipe).unwrap();
        let active: Vec<usize> = (0..60).collect();
        for scheduler in [Scheduler::Fifo, Scheduler::Sjf, Scheduler::Gavel] {
            let scenario = Scenario {
                gpus: 60,
                cache: 6e12,
                remote_io: 5e8,
                scheduler,
                ..Scenario::default()
            };
            let mut control = Simulation::new(&scenario, &workload);
            control.active.clone_from(&active);
            for &job in &active {
                control.progress[job].hit = f64::from(u32::try_from(job % 5).unwrap()) / 5.0;
            }
            control.divide();
            let found = control.remote_io();
            let mut problem = control.next_problem();
            for (job, state) in problem.jobs.iter_mut().zip(&control.progress) {
                job.hit_ratio = Some(state.hit);
            }
            // The equal rates were computed before GPUs were redistributed; the policy computes
            // them from its problem.
            for (&job, equal) in active.iter().zip(equal_throughputs(&problem)) {
                control.progress[job].equal = equal;
            }
            let found = if scheduler == Scheduler::Gavel {
                control.remote_io()
            } else {
                found
            };
            let wanted = policy(&scenario).allocate(&problem);
            for (found, wanted) in found.iter().zip(&wanted.jobs) {
                let wanted = wanted.remote_io;
                assert!(
                    (found - wanted).abs() <= 1e-6 * wanted.max(1.0),
                    "{found} {wanted}"
                );
            }
        }
    }
}
