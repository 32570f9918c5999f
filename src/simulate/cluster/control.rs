//! Who gets what now: the step from what runs to budgets and rates, through [`crate::allocator`].

use super::outcome::index_f64;
use super::progress::Progress;
use super::waterfill::{Want, level};
use super::{Scenario, Scheduler, System, Workload};

/// Times the GPU time that jobs bound by data leave is given to others (Gavel with Eq. 9). Each time
/// takes a solution; after the second the changes are below a per cent.
const REBALANCES: usize = 2;

/// Decides, and keeps room to work in.
#[derive(Debug)]
pub(super) struct Control<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    wants: Vec<Want>,
    order: Vec<(f64, usize)>,
}

impl<'a> Control<'a> {
    pub(super) fn new(scenario: &'a Scenario, workload: &'a Workload) -> Self {
        Self {
            scenario,
            workload,
            wants: Vec::new(),
            order: Vec::new(),
        }
    }

    /// `f*`.
    pub(super) fn ideal(&self, job: usize) -> f64 {
        self.workload.jobs[job].ideal_rate * self.scenario.gpu_speed
    }

    fn size(&self, job: usize) -> f64 {
        self.workload.datasets[self.workload.jobs[job].dataset].size
    }

    /// What a job's place in the queue goes by; the least is first.
    pub(super) fn score(&self, job: usize) -> f64 {
        let wanted = &self.workload.jobs[job];
        let gpus = f64::from(wanted.gpus) / f64::from(self.scenario.gpus);
        let duration = wanted.work / self.ideal(job);
        match (self.scenario.scheduler, self.scenario.system) {
            (Scheduler::Fifo | Scheduler::Gavel, _) => 0.0,
            (Scheduler::Sjf, System::Silod) => {
                let d = self.size(job);
                let c = d.min(self.scenario.cache);
                let at = |c: f64| {
                    let miss = 1.0 - c / d;
                    let t = self.ideal(job).min(self.scenario.remote_io / miss);
                    (gpus + c / self.scenario.cache + t * miss / self.scenario.remote_io)
                        * wanted.work
                        / t
                };
                at(0.0).min(at(c))
            }
            (Scheduler::Sjf, _) => gpus * duration,
        }
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
        self.equal_shares(active, progress);
        budgets.fill(0.0);
        let cache = self.scenario.cache;
        match self.scenario.system {
            System::Alluxio => {}
            System::Coordl => {
                for &job in active {
                    let gpus = f64::from(self.workload.jobs[job].gpus) * progress[job].share;
                    budgets[job] = (cache * gpus / f64::from(self.scenario.gpus)).min(self.size(job));
                }
            }
            System::Silod | System::Quiver => {
                let mut eff = vec![0.0; self.workload.datasets.len()];
                for &job in active {
                    let ds = self.workload.jobs[job].dataset;
                    eff[ds] += self.ideal(job) * progress[job].share / self.workload.datasets[ds].size;
                }
                let mut order: Vec<usize> = (0..eff.len()).filter(|&d| eff[d] > 0.0).collect();
                order.sort_by(|&a, &b| eff[b].total_cmp(&eff[a]).then(a.cmp(&b)));
                let mut left = cache;
                for d in order {
                    let size = self.workload.datasets[d].size;
                    let mut g = size.min(left);
                    if self.scenario.system == System::Quiver && g < size {
                        g = 0.0;
                    }
                    budgets[d] = g;
                    left -= g;
                }
            }
        }
    }

    fn share_gpus(&self, active: &[usize], progress: &mut [Progress]) {
        let wanted: f64 = active
            .iter()
            .map(|&job| f64::from(self.workload.jobs[job].gpus))
            .sum();
        let share = (f64::from(self.scenario.gpus) / wanted).min(1.0);
        for &job in active {
            progress[job].share = share;
        }
    }

    fn equal_shares(&self, active: &[usize], progress: &mut [Progress]) {
        let jobs = index_f64(active.len());
        for &job in active {
            let miss = 1.0 - (self.scenario.cache / jobs / self.size(job)).min(1.0);
            let io = self.scenario.remote_io / jobs;
            let ideal = self.ideal(job) * progress[job].share;
            progress[job].equal = if miss * ideal <= io { ideal } else { io / miss };
        }
    }

    /// With the hit ratios as they are now: what each job reads, and what of it from storage.
    pub(super) fn rates(&mut self, active: &[usize], progress: &mut [Progress]) {
        let allocated = self.scenario.system == System::Silod
            && self.scenario.remote_io_allocation
            && self.scenario.scheduler == Scheduler::Gavel;
        self.wants.clear();
        for &job in active {
            let now = &progress[job];
            let ideal = self.ideal(job) * now.share;
            let miss = 1.0 - now.hit;
            self.wants.push(if allocated {
                Want {
                    most: ideal,
                    weight: now.equal,
                    cost: miss,
                }
            } else {
                Want {
                    most: ideal * miss,
                    weight: 1.0,
                    cost: 1.0,
                }
            });
        }
        let level = level(&self.wants, self.scenario.remote_io, &mut self.order);
        for (&job, want) in active.iter().zip(&self.wants) {
            let ideal = self.ideal(job) * progress[job].share;
            let now = &mut progress[job];
            let miss = 1.0 - now.hit;
            // What is free is not held back by what the level is for others.
            let got = if want.cost > 0.0 {
                want.most.min(level * want.weight)
            } else {
                want.most
            };
            now.rate = if allocated {
                got
            } else if want.most <= got {
                ideal
            } else {
                got / miss
            };
            now.remote = now.rate * miss;
        }
    }
}
