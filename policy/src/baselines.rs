//! What clusters do without SiloD: one LRU for all (Alluxio), and a private cache for each job
//! (CoorDL), both in steady state.
//!
//! # LRU under training jobs
//! A job reads every item of its dataset once in each epoch of `E` seconds (`d` over its
//! throughput), each epoch in a random order of its own. So the time between two reads of an item
//! by that job is `E + (V - U)·E` with `U`, `V` even in 0..1: it has a triangular distribution over
//! 0..2E. With Che's approximation an LRU cache holds what was read in the last `T` seconds, one `T`
//! for all. With `τ = T/E`:
//!
//! ```text
//! hit(τ)     = P(gap < T)             = τ²/2          τ ≤ 1      1 - (2-τ)²/2   τ ≤ 2     1 beyond
//! touched(τ) = P(read in the last T)  = τ - τ³/6      τ ≤ 1      1 - (2-τ)³/6   τ ≤ 2     1 beyond
//! ```
//!
//! (`touched` is the integral of `1 - hit` over τ, as for every stationary sequence of reads.) `T`
//! is where the datasets' bytes touched add up to the cache. Half of a dataset thus hits 14 %: that
//! is the thrashing of §7.1.1.
//!
//! Jobs that share a dataset are taken as independent: what is cached of it is
//! `1 - Π(1 - touched_i)`, and an item misses only if neither this job nor any other has read it:
//! `hit_j = 1 - (1 - hit(τ_j)) · Π_{i≠j} (1 - touched_i)`. That is an approximation: jobs that started
//! together, or of which one waits for the items of the other, are not independent.

use super::performance::{remote_io, silod_perf};
use super::problem::{Allocation, Problem};
use super::shares::{Caches, Division, Holding, allocation, holdings, job_shares, saved};
use super::water::fill;

/// A job that reads a dataset again and again, as LRU sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scan {
    /// Which dataset: a position in a list of the caller's.
    pub dataset: usize,
    /// The dataset's bytes.
    pub size: f64,
    /// Bytes per second that the job reads, hits and misses.
    pub rate: f64,
}

impl Scan {
    /// A span of time in epochs of this job.
    fn epochs(&self, span_s: f64) -> f64 {
        if self.rate > 0.0 {
            span_s * self.rate / self.size
        } else {
            0.0
        }
    }
}

/// The chance that an item is read again within `tau` epochs: `hit(τ)` of the module's head.
#[must_use]
pub fn lru_hit(tau: f64) -> f64 {
    match tau {
        ..=0.0 => 0.0,
        0.0..=1.0 => tau * tau / 2.0,
        1.0..2.0 => 1.0 - (2.0 - tau).powi(2) / 2.0,
        _ => 1.0,
    }
}

/// The part of a dataset that one job has read in the last `tau` epochs: `touched(τ)`.
#[must_use]
pub fn lru_touched(tau: f64) -> f64 {
    match tau {
        ..=0.0 => 0.0,
        0.0..=1.0 => tau - tau.powi(3) / 6.0,
        1.0..2.0 => 1.0 - (2.0 - tau).powi(3) / 6.0,
        _ => 1.0,
    }
}

/// Bytes of each dataset that were read in the last `span_s` seconds; `datasets` is how many the
/// scans' positions count.
#[must_use]
pub fn lru_occupancy(span_s: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    let mut untouched = vec![1.0; datasets];
    let mut sizes = vec![0.0; datasets];
    for scan in scans {
        untouched[scan.dataset] *= 1.0 - lru_touched(scan.epochs(span_s));
        sizes[scan.dataset] = scan.size;
    }
    untouched
        .iter()
        .zip(&sizes)
        .map(|(untouched, size)| size * (1.0 - untouched))
        .collect()
}

/// For how many seconds an item stays in an LRU cache of `capacity` bytes after it was read.
///
/// Infinite if all that is read fits.
#[must_use]
pub fn lru_characteristic_time(capacity: f64, scans: &[Scan], datasets: usize) -> f64 {
    // Newton's method from 0. What is touched is concave in time, so each step falls short of the
    // solution and the next is smaller: some five reach the precision of f64.
    const STEPS: usize = 60;
    const NARROW: f64 = 1e-13;
    // After two epochs of the slowest, all that is read has been read.
    let longest = scans
        .iter()
        .filter(|scan| scan.rate > 0.0)
        .map(|scan| 2.0 * scan.size / scan.rate)
        .fold(0.0, f64::max);
    let mut parts = vec![(0.0, 1.0, 0.0); datasets];
    if occupied(longest, scans, &mut parts).0 <= capacity {
        return f64::INFINITY;
    }
    let mut span_s = 0.0;
    for _ in 0..STEPS {
        let (sum, slope) = occupied(span_s, scans, &mut parts);
        let step = (capacity - sum) / slope;
        if !step.is_finite() || step <= NARROW * span_s {
            break;
        }
        span_s += step;
    }
    span_s.min(longest)
}

/// The bytes touched in `span_s` seconds, and how many more a second adds. `parts` is room for the
/// size, the part untouched and the change of the part touched of each dataset.
fn occupied(span_s: f64, scans: &[Scan], parts: &mut [(f64, f64, f64)]) -> (f64, f64) {
    parts.fill((0.0, 1.0, 0.0));
    for scan in scans {
        let tau = scan.epochs(span_s);
        let untouched = 1.0 - lru_touched(tau);
        // The derivative of `touched` is `1 - hit`.
        let change = (1.0 - lru_hit(tau)) * scan.epochs(1.0);
        let (size, all, sum) = &mut parts[scan.dataset];
        *size = scan.size;
        *sum = *sum * untouched + change * *all;
        *all *= untouched;
    }
    parts.iter().fold((0.0, 0.0), |(bytes, slope), part| {
        let (size, untouched, change) = part;
        (bytes + size * (1.0 - untouched), slope + size * change)
    })
}

/// The hit ratio of each scan in an LRU cache of `capacity` bytes, in steady state.
#[must_use]
pub fn lru_hit_ratios(capacity: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    let span_s = lru_characteristic_time(capacity, scans, datasets);
    hit_ratios_after(span_s, scans, datasets)
}

fn hit_ratios_after(span_s: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    if span_s.is_infinite() {
        return vec![1.0; scans.len()];
    }
    // The product over all readers of a dataset, and how many factors in it are zero: so that one
    // factor can be taken out again.
    let mut untouched = vec![(1.0, 0_usize); datasets];
    for scan in scans {
        let factor = 1.0 - lru_touched(scan.epochs(span_s));
        let (product, zeros) = &mut untouched[scan.dataset];
        if factor > 0.0 {
            *product *= factor;
        } else {
            *zeros += 1;
        }
    }
    let hit = |scan: &Scan| {
        let tau = scan.epochs(span_s);
        let own = 1.0 - lru_touched(tau);
        let (product, zeros) = untouched[scan.dataset];
        let others = match (zeros, own > 0.0) {
            (0, true) => product / own,
            (1, false) => product,
            _ => 0.0,
        };
        1.0 - (1.0 - lru_hit(tau)) * others
    };
    scans.iter().map(|scan| hit(scan).clamp(0.0, 1.0)).collect()
}

/// One LRU cache for all jobs, as Alluxio keeps it; remote IO is a fair share.
///
/// In and out as for the other policies; a dataset's cache is what LRU holds of it in steady state.
/// Throughput decides what LRU holds, and what it holds decides throughput: rates and hit ratios are
/// iterated from the ideal rates until they agree. A dataset with a budget set by hand is kept out of
/// the LRU and cached uniformly.
///
/// Objective: the remote IO saved at ideal speed, as for [`greedy`](super::greedy::greedy), to
/// compare with.
#[must_use]
pub fn lru(problem: &Problem) -> Allocation {
    let mut caches = Caches::after_budgets(problem);
    let mut holdings = holdings(problem, &caches.given);
    let scanning: Vec<usize> = (0..problem.jobs.len())
        .filter(|&at| caches.open[problem.jobs[at].dataset])
        .collect();
    let (span_s, scans) = settled(problem, caches.left, &scanning, &mut holdings);
    let datasets = problem.datasets.len();
    // With everything in the cache, the time is infinite and all that is read has been touched.
    let held = lru_occupancy(span_s, &scans, datasets);
    for (dataset, held) in held.into_iter().enumerate() {
        caches.give(dataset, held);
    }
    for (&at, hit) in scanning
        .iter()
        .zip(hit_ratios_after(span_s, &scans, datasets))
    {
        holdings[at] = Holding {
            cache: caches.given[problem.jobs[at].dataset],
            hit_ratio: hit,
        };
    }
    let jobs = job_shares(problem, &holdings, Division::Even);
    let objective = saved(problem, &holdings);
    allocation(caches.given, jobs, objective)
}

/// Iterates until throughputs and hit ratios agree.
fn settled(
    problem: &Problem,
    capacity: f64,
    scanning: &[usize],
    holdings: &mut [Holding],
) -> (f64, Vec<Scan>) {
    // Halving the step each time meets the tolerance long before; a bound for what swings.
    const ROUNDS: usize = 100;
    const TOLERANCE: f64 = 1e-7;
    // A job that stands still is seen as one that crawls: its place in the LRU is not undefined then.
    const CRAWL: f64 = 1e-6;
    let mut scans: Vec<Scan> = scanning
        .iter()
        .map(|&at| Scan {
            dataset: problem.jobs[at].dataset,
            size: problem.datasets[problem.jobs[at].dataset].size,
            rate: problem.jobs[at].ideal_rate,
        })
        .collect();
    let datasets = problem.datasets.len();
    let mut span_s = lru_characteristic_time(capacity, &scans, datasets);
    for _ in 0..ROUNDS {
        let hits = hit_ratios_after(span_s, &scans, datasets);
        for (&at, hit) in scanning.iter().zip(hits) {
            holdings[at].hit_ratio = hit;
        }
        let rates = throughputs(problem, holdings);
        let mut moved: f64 = 0.0;
        for (scan, &at) in scans.iter_mut().zip(scanning) {
            let ideal = problem.jobs[at].ideal_rate;
            let wanted = rates[at].max(CRAWL * ideal);
            moved = moved.max((wanted - scan.rate).abs() / ideal);
            scan.rate = f64::midpoint(scan.rate, wanted);
        }
        span_s = lru_characteristic_time(capacity, &scans, datasets);
        if moved <= TOLERANCE {
            break;
        }
    }
    (span_s, scans)
}

/// Steady-state throughputs with a fair share of remote IO.
fn throughputs(problem: &Problem, holdings: &[Holding]) -> Vec<f64> {
    let needs: Vec<f64> = problem
        .jobs
        .iter()
        .zip(holdings)
        .map(|(job, holding)| {
            let need = remote_io(job.ideal_rate, holding.hit_ratio);
            job.remote_io.map_or(need, |by_hand| by_hand.min(need))
        })
        .collect();
    fill(problem.totals.remote_io, &needs)
        .iter()
        .zip(problem.jobs.iter().zip(holdings))
        .map(|(given, (job, holding))| silod_perf(job.ideal_rate, *given, holding.hit_ratio))
        .collect()
}

/// A private cache for each job, as CoorDL keeps it: the disk of the GPUs that it has (§7: 368 GB per
/// V100). Remote IO is a fair share.
///
/// A job with `g` of `G` GPUs caches `min(d, C·g/G)` of its dataset, whatever others cache of the
/// same one, and whether it gains by it. `G` are the cluster's GPUs, or those of all jobs if these are
/// more. So a dataset's cache is the sum of its jobs' private ones and can exceed its size, and what
/// does not fit to a job is lost. A budget set by hand is divided among the dataset's jobs evenly.
///
/// Objective: as for [`lru()`].
#[must_use]
pub fn fixed(problem: &Problem) -> Allocation {
    let caches = Caches::after_budgets(problem);
    let mut readers = vec![0.0; problem.datasets.len()];
    let mut wanted_gpus = 0.0;
    for job in &problem.jobs {
        readers[job.dataset] += 1.0;
        wanted_gpus += job.gpus;
    }
    let gpus = problem.totals.gpus.max(wanted_gpus);
    let mut sums: Vec<f64> = vec![0.0; problem.datasets.len()];
    let mut holdings = Vec::with_capacity(problem.jobs.len());
    for job in &problem.jobs {
        let size = problem.datasets[job.dataset].size;
        let part = if !caches.open[job.dataset] {
            caches.given[job.dataset] / readers[job.dataset]
        } else if gpus > 0.0 {
            caches.left * job.gpus / gpus
        } else {
            0.0
        };
        let cache = part.min(size);
        sums[job.dataset] += cache;
        holdings.push(Holding {
            cache,
            hit_ratio: super::performance::hit_ratio(cache, size),
        });
    }
    let jobs = job_shares(problem, &holdings, Division::Even);
    let objective = saved(problem, &holdings);
    allocation(sums, jobs, objective)
}

#[cfg(test)]
mod tests;
