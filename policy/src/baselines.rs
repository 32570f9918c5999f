//! Clusters without SiloD, in steady state: one LRU cache for all jobs (Alluxio), and a private
//! cache for each job (CoorDL).
//!
//! # LRU under training jobs
//! A job reads every item of its dataset once in each epoch of `E` seconds (`d` divided by its
//! throughput), each epoch in another random order. So the time between two reads of an item by
//! that job is `E + (V - U)·E` with `U`, `V` uniform in 0..1, which has a triangular distribution
//! over 0..2E. By Che's approximation an LRU cache holds the items read in the last `T` seconds,
//! with one `T` for all items. With `τ = T/E`:
//!
//! ```text
//! hit(τ)     = P(gap < T)             = τ²/2          τ ≤ 1      1 - (2-τ)²/2   τ ≤ 2     1 beyond
//! touched(τ) = P(read in the last T)  = τ - τ³/6      τ ≤ 1      1 - (2-τ)³/6   τ ≤ 2     1 beyond
//! ```
//!
//! (`touched` is the integral of `1 - hit` over τ, as for every stationary sequence of reads.) `T`
//! is the time at which the touched bytes of all datasets fill the cache. With half of a dataset in
//! the cache, only 14 % of reads hit: that is the thrashing of §7.1.1.
//!
//! Jobs that share a dataset are assumed to be independent: `1 - Π(1 - touched_i)` of it is cached,
//! and an item misses only if neither this job nor any other has read it: `hit_j = 1 - (1 -
//! hit(τ_j)) · Π_{i≠j} (1 - touched_i)`. That is an approximation: jobs that started together, or
//! that wait for each other's items, are not independent.

use super::performance::{hit_ratio, remote_io, silod_perf};
use super::problem::{Allocation, Job, JobShare, Problem};
use super::shares::{Caches, Holding, evenly, holdings, readers};
use super::times::Mode;
use super::water::fill;

/// A job that reads a dataset again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scan {
    /// The dataset: an index into a list of the caller.
    pub dataset: usize,
    /// The dataset's bytes.
    pub size: f64,
    /// Bytes per second that the job reads, including hits.
    pub rate: f64,
}

impl Scan {
    /// Converts a span of time to epochs of this job.
    fn epochs(&self, span_s: f64) -> f64 {
        if self.rate > 0.0 {
            span_s * self.rate / self.size
        } else {
            0.0
        }
    }
}

/// Returns the probability that an item is read again within `tau` epochs: `hit(τ)` of the module
/// documentation.
#[must_use]
pub fn lru_hit(tau: f64) -> f64 {
    match tau {
        ..=0.0 => 0.0,
        0.0..=1.0 => tau * tau / 2.0,
        1.0..2.0 => 1.0 - (2.0 - tau).powi(2) / 2.0,
        _ => 1.0,
    }
}

/// Returns the fraction of a dataset that one job has read in the last `tau` epochs: `touched(τ)`.
#[must_use]
pub fn lru_touched(tau: f64) -> f64 {
    match tau {
        ..=0.0 => 0.0,
        0.0..=1.0 => tau - tau.powi(3) / 6.0,
        1.0..2.0 => 1.0 - (2.0 - tau).powi(3) / 6.0,
        _ => 1.0,
    }
}

/// Returns the bytes of each of the `datasets` datasets that were read in the last `span_s`
/// seconds.
#[must_use]
pub fn lru_occupancy(span_s: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    let mut parts = vec![(0.0, 1.0, 0.0); datasets];
    occupied(span_s, scans, &mut parts);
    let bytes = |(size, untouched, _)| size * (1.0 - untouched);
    parts.into_iter().map(bytes).collect()
}

/// Returns how many seconds an item stays in an LRU cache of `capacity` bytes after a read.
///
/// Infinite if everything that is read fits.
#[must_use]
pub fn lru_characteristic_time(capacity: f64, scans: &[Scan], datasets: usize) -> f64 {
    // Newton's method from 0. The touched bytes are concave in time, so no step passes the
    // solution. About five steps reach the precision of f64.
    const STEPS: usize = 60;
    const NARROW: f64 = 1e-13;
    // Within two epochs of the slowest job everything has been read.
    let moving = scans.iter().filter(|scan| scan.rate > 0.0);
    let epochs = moving.map(|scan| 2.0 * scan.size / scan.rate);
    let longest = epochs.fold(0.0, f64::max);
    let mut parts = vec![(0.0, 1.0, 0.0); datasets];
    if occupied(longest, scans, &mut parts).0 <= capacity {
        return f64::INFINITY;
    }
    let mut span_s = 0.0;
    for _ in 0..STEPS {
        let (sum, slope) = occupied(span_s, scans, &mut parts);
        // The slope is 0 when everything has been touched, which makes the step infinite.
        let step = (capacity - sum) / slope;
        if !step.is_finite() || step <= NARROW * span_s {
            break;
        }
        span_s += step;
    }
    span_s.min(longest)
}

/// Returns the bytes touched in `span_s` seconds, and their derivative. `parts` is scratch space
/// for each dataset's size, untouched fraction, and derivative of the touched fraction.
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

/// Returns the hit ratio of each scan if an item stays in the cache for `span_s` seconds after a read.
fn hit_ratios_after(span_s: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    if span_s.is_infinite() {
        return vec![1.0; scans.len()];
    }
    // The product over all readers of a dataset, and its number of zero factors, so that one factor
    // can be removed again.
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

/// One LRU cache for all jobs, like Alluxio's; remote IO is a fair share.
///
/// Input and output as for the other policies; a dataset's cache is the part that LRU holds of it
/// in steady state. Throughput determines what LRU holds, and that determines throughput, so rates
/// and hit ratios are iterated from the ideal rates until they agree. A dataset with a manual
/// budget is cached uniformly, outside the LRU cache.
///
/// Objective: the remote IO saved at ideal speed, as for [`greedy`](super::greedy::greedy), for
/// comparison.
#[must_use]
pub fn lru(problem: &Problem) -> Allocation {
    // The iteration may end far from where it would with sums in another order, so there is one order.
    let (datasets, jobs) = (&problem.datasets, &problem.jobs);
    let mut by_name: Vec<usize> = (0..datasets.len()).collect();
    by_name.sort_by_key(|&at| &datasets[at].name);
    let mut by_id: Vec<usize> = (0..jobs.len()).collect();
    by_id.sort_by_key(|&at| &jobs[at].id);
    let mut place = vec![0; datasets.len()];
    for (new, &old) in by_name.iter().enumerate() {
        place[old] = new;
    }
    let job = |&at: &usize| Job {
        dataset: place[jobs[at].dataset],
        ..jobs[at].clone()
    };
    let sorted = Problem {
        totals: problem.totals,
        datasets: by_name.iter().map(|&at| datasets[at].clone()).collect(),
        jobs: by_id.iter().map(job).collect(),
    };
    let mut answer = sorted_lru(&sorted);
    let shares = place.iter().map(|&at| answer.datasets[at]);
    answer.datasets = shares.collect();
    let mut shares: Vec<(usize, JobShare)> = by_id.into_iter().zip(answer.jobs).collect();
    shares.sort_by_key(|(at, _)| *at);
    let back = shares
        .into_iter()
        .map(|(order, share)| JobShare { order, ..share });
    answer.jobs = back.collect();
    answer
}

fn sorted_lru(problem: &Problem) -> Allocation {
    let mut caches = Caches::after_budgets(problem);
    let mut holdings = holdings(problem, &caches.given);
    let scanning: Vec<usize> = (0..problem.jobs.len())
        .filter(|&at| {
            let job = &problem.jobs[at];
            caches.open[job.dataset] && job.mode == Mode::Cached
        })
        .collect();
    let (span_s, scans) = settled(problem, caches.left, &scanning, &mut holdings);
    let datasets = problem.datasets.len();
    // If everything fits, the time is infinite and every item has been touched.
    let held = lru_occupancy(span_s, &scans, datasets);
    for (dataset, held) in held.into_iter().enumerate() {
        caches.give(dataset, held);
    }
    let hits = hit_ratios_after(span_s, &scans, datasets);
    for (&at, hit_ratio) in scanning.iter().zip(hits) {
        let cache = caches.given[problem.jobs[at].dataset];
        holdings[at] = Holding {
            cache,
            hit_ratio,
            delayed: true,
        };
    }
    evenly(problem, &caches.given, &holdings)
}

/// Iterates until throughputs and hit ratios agree. Returns the characteristic time, and the scans
/// with their rates.
fn settled(
    problem: &Problem,
    capacity: f64,
    scanning: &[usize],
    holdings: &mut [Holding],
) -> (f64, Vec<Scan>) {
    // Steps to half of the distance meet the tolerance long before. Bounds an oscillation.
    const ROUNDS: usize = 100;
    const TOLERANCE: f64 = 1e-7;
    // A stopped job is treated as a very slow one, because its part of the LRU cache would be
    // undefined.
    const CRAWL: f64 = 1e-6;
    let scanned = scanning.iter().map(|&at| &problem.jobs[at]);
    let mut scans: Vec<Scan> = scanned
        .map(|job| Scan {
            dataset: job.dataset,
            size: problem.datasets[job.dataset].size,
            rate: job.ideal_rate,
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
            // Half of the distance, because full steps may oscillate.
            scan.rate = f64::midpoint(scan.rate, wanted);
        }
        span_s = lru_characteristic_time(capacity, &scans, datasets);
        if moved <= TOLERANCE {
            break;
        }
    }
    (span_s, scans)
}

/// Returns steady-state throughputs with a fair share of remote IO.
fn throughputs(problem: &Problem, holdings: &[Holding]) -> Vec<f64> {
    let jobs = || problem.jobs.iter().zip(holdings);
    let need = |(job, holding): (&Job, &Holding)| {
        let need = remote_io(job.ideal_rate, holding.hit_ratio);
        job.remote_io.map_or(need, |by_hand| by_hand.min(need))
    };
    let needs: Vec<f64> = jobs().map(need).collect();
    let given = fill(problem.totals.remote_io, &needs);
    jobs()
        .zip(given)
        .map(|((job, holding), given)| silod_perf(job.ideal_rate, given, holding.hit_ratio))
        .collect()
}

/// A private cache for each job, like CoorDL's: the disk of its GPUs (§7: 368 GB per V100). Remote
/// IO is a fair share.
///
/// A job with `g` of `G` GPUs caches `min(d, C·g/G)` of its dataset, whatever other jobs cache of
/// the same dataset, and whether or not it gains by it. `G` is the cluster's number of GPUs, or
/// that of all jobs if higher. So a dataset's cache is the sum of its jobs' private caches and can
/// exceed its size, and cache that a job cannot use is lost. A manual budget is divided evenly
/// among the dataset's jobs.
///
/// Objective: as for [`lru()`].
#[must_use]
pub fn fixed(problem: &Problem) -> Allocation {
    let caches = Caches::after_budgets(problem);
    let readers = readers(problem);
    let wanted_gpus: f64 = problem.jobs.iter().map(|job| job.gpus).sum();
    let gpus = problem.totals.gpus.max(wanted_gpus);
    let mut sums: Vec<f64> = vec![0.0; problem.datasets.len()];
    let mut holdings = Vec::with_capacity(problem.jobs.len());
    for job in &problem.jobs {
        if job.mode != Mode::Cached {
            holdings.push(Holding::MISSES);
            continue;
        }
        let size = problem.datasets[job.dataset].size;
        let part = match caches.open[job.dataset] {
            false => caches.given[job.dataset] / readers[job.dataset],
            true if gpus > 0.0 => caches.left * job.gpus / gpus,
            true => 0.0,
        };
        let cache = part.min(size);
        // Copies of the same bytes count twice, because they take room twice.
        sums[job.dataset] += cache;
        holdings.push(Holding {
            cache,
            hit_ratio: hit_ratio(cache, size),
            delayed: true,
        });
    }
    evenly(problem, &sums, &holdings)
}

#[cfg(test)]
mod tests;
