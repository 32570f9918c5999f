use super::*;
use crate::tests::{assert_near, dataset, job, totals};
use proptest::prelude::*;
use std::collections::HashMap;

/// The hit ratio of each scan in an LRU cache of `capacity` bytes, in steady state.
fn lru_hit_ratios(capacity: f64, scans: &[Scan], datasets: usize) -> Vec<f64> {
    let span_s = lru_characteristic_time(capacity, scans, datasets);
    hit_ratios_after(span_s, scans, datasets)
}

fn scan(dataset: usize, size: f64, rate: f64) -> Scan {
    Scan {
        dataset,
        size,
        rate,
    }
}

#[test]
fn the_two_curves() {
    for (tau, hit, touched) in [
        (0.0, 0.0, 0.0),
        (0.5, 0.125, 0.5 - 1.0 / 48.0),
        (1.0, 0.5, 5.0 / 6.0),
        (1.5, 0.875, 1.0 - 1.0 / 48.0),
        (2.0, 1.0, 1.0),
        (f64::INFINITY, 1.0, 1.0),
    ] {
        assert_near(lru_hit(tau), hit, 1e-12);
        assert_near(lru_touched(tau), touched, 1e-12);
    }
    // `touched` is the integral of the miss ratio.
    let step = 1e-4;
    let mut integral = 0.0;
    for at in 0..20_000 {
        let tau = f64::from(at) * step;
        integral += step * (1.0 - lru_hit(tau + step / 2.0));
        assert!((integral - lru_touched(tau + step)).abs() < 1e-8);
    }
}

#[test]
fn one_job_with_half_of_its_dataset() {
    let hits = lru_hit_ratios(0.5, &[scan(0, 1.0, 1.0)], 1);
    // τ - τ³/6 = 1/2 at τ = 0.5240; uniform caching would hit 50 %.
    assert_near(hits[0], 0.524_f64.powi(2) / 2.0, 1e-3);
    assert_eq!(lru_hit_ratios(1.0, &[scan(0, 1.0, 1.0)], 1), [1.0]);
    assert_eq!(lru_hit_ratios(0.0, &[scan(0, 1.0, 1.0)], 1), [0.0]);
    assert_eq!(lru_hit_ratios(1.0, &[], 0), [0.0; 0]);
    // A stopped job holds nothing and hits nothing.
    let hits = lru_hit_ratios(0.5, &[scan(0, 1.0, 0.0), scan(1, 1.0, 1.0)], 2);
    assert_eq!(hits[0], 0.0);
    assert!(hits[1] > 0.1);
}

/// An LRU cache with a clock value for each item.
struct Lru {
    used: HashMap<(usize, usize), u64>,
    order: std::collections::BTreeMap<u64, (usize, usize)>,
    clock: u64,
    capacity: usize,
}

impl Lru {
    fn read(&mut self, item: (usize, usize)) -> bool {
        self.clock += 1;
        let before = self.used.insert(item, self.clock);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.clock, item);
        if self.order.len() > self.capacity {
            let (_, oldest) = self.order.pop_first().unwrap();
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

/// Hit ratios of jobs that read `(dataset, items, items per turn)` through a real LRU.
fn measured(capacity: usize, jobs: &[(usize, usize, usize)]) -> Vec<f64> {
    let mut state = 7_u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let mut lru = Lru {
        used: HashMap::new(),
        order: std::collections::BTreeMap::new(),
        clock: 0,
        capacity,
    };
    let mut orders: Vec<Vec<usize>> = jobs
        .iter()
        .map(|(_, items, _)| (0..*items).collect())
        .collect();
    // Jobs begin at different points of their epochs.
    let mut places: Vec<usize> = jobs.iter().map(|(_, items, _)| random(*items)).collect();
    let mut counts = vec![(0.0, 0.0); jobs.len()];
    for turn in 0..60_000 {
        for (at, (dataset, items, pace)) in jobs.iter().enumerate() {
            for _ in 0..*pace {
                if places[at] == 0 {
                    for last in (1..*items).rev() {
                        orders[at].swap(last, random(last + 1));
                    }
                }
                let hit = lru.read((*dataset, orders[at][places[at]]));
                places[at] = (places[at] + 1) % items;
                if turn > 10_000 {
                    counts[at].0 += f64::from(u8::from(hit));
                    counts[at].1 += 1.0;
                }
            }
        }
    }
    counts.iter().map(|(hits, reads)| hits / reads).collect()
}

/// Returns the largest error of the formula over several capacities.
fn error(jobs: &[(usize, usize, usize)]) -> f64 {
    let count = |items: usize| f64::from(u32::try_from(items).unwrap());
    let scans: Vec<Scan> = jobs
        .iter()
        .map(|(dataset, items, pace)| scan(*dataset, count(*items), count(*pace)))
        .collect();
    let all: usize = jobs.iter().map(|(_, items, _)| items).sum();
    let mut worst: f64 = 0.0;
    for capacity in [all / 4, all / 2, all * 4 / 5] {
        let found = measured(capacity, jobs);
        let said = lru_hit_ratios(count(capacity), &scans, jobs.len());
        for (found, said) in found.iter().zip(&said) {
            worst = worst.max((found - said).abs());
        }
    }
    worst
}

#[test]
fn the_formula_agrees_with_a_real_lru() {
    // Different sizes read at different paces, with epochs that drift past each other.
    let jobs = [
        (0, 1_013, 2),
        (1, 1_499, 1),
        (2, 607, 1),
        (3, 1_999, 3),
        (4, 811, 1),
        (5, 1_223, 2),
    ];
    // The formula has one time for all; with a few jobs it really swings with their epochs.
    let (few, many) = (error(&jobs[..2]), error(&jobs));
    assert!(few < 0.05, "{few}");
    assert!(many < 0.02, "{many}");
}

#[test]
fn jobs_that_share_a_dataset_help_each_other() {
    let jobs = [(0, 1_000, 2), (0, 1_000, 1), (1, 1_000, 1)];
    let scans = [
        scan(0, 1_000.0, 2.0),
        scan(0, 1_000.0, 1.0),
        scan(1, 1_000.0, 1.0),
    ];
    let found = measured(800, &jobs);
    let said = lru_hit_ratios(800.0, &scans, 2);
    for (found, said) in found.iter().zip(&said) {
        // An approximation: within five points.
        assert!((found - said).abs() < 0.05, "{found} {said}");
    }
    assert!(said[1] > said[2], "{said:?}");
}

#[test]
fn static_caches_are_private() {
    let problem = Problem {
        totals: totals(8.0, 800.0, 10.0),
        datasets: vec![dataset("a", 150.0)],
        jobs: vec![
            job("x", 0, 5.0, 1.0),
            job("y", 0, 5.0, 4.0),
            job("z", 0, 5.0, 0.0),
        ],
    };
    let answer = fixed(&problem);
    let caches: Vec<f64> = answer.jobs.iter().map(|share| share.cache).collect();
    assert_eq!(caches, [100.0, 150.0, 0.0]);
    // Bytes in both caches count twice.
    assert_eq!(answer.datasets[0].cache, 250.0);
    assert_eq!(answer.jobs[1].remote_io, 0.0);
}

#[test]
fn lru_rates_and_hits_agree() {
    let problem = Problem {
        totals: totals(8.0, 1_000.0, 60.0),
        datasets: vec![dataset("a", 700.0), dataset("b", 900.0)],
        jobs: vec![job("x", 0, 50.0, 1.0), job("y", 1, 70.0, 1.0)],
    };
    let answer = lru(&problem);
    let scans: Vec<Scan> = answer
        .jobs
        .iter()
        .zip(&problem.jobs)
        .map(|(share, job)| {
            scan(
                job.dataset,
                problem.datasets[job.dataset].size,
                share.throughput,
            )
        })
        .collect();
    for (hit, share) in lru_hit_ratios(1_000.0, &scans, 2).iter().zip(&answer.jobs) {
        assert_near(share.hit_ratio, *hit, 1e-4);
    }
}

proptest! {
    /// At the characteristic time the touched bytes fill the cache.
    #[test]
    fn the_cache_is_full_at_that_time(
        jobs in prop::collection::vec((0..5_usize, 0.0..1e9_f64), 1..12),
        sizes in prop::collection::vec(1e9..1e13_f64, 5),
        part in 0.0..1.1_f64,
    ) {
        let scans: Vec<Scan> = jobs.iter().map(|(at, rate)| scan(*at, sizes[*at], *rate)).collect();
        let read = lru_occupancy(f64::INFINITY, &scans, 5).iter().sum::<f64>();
        let capacity = part * read;
        let span_s = lru_characteristic_time(capacity, &scans, 5);
        let held: f64 = lru_occupancy(span_s, &scans, 5).iter().sum();
        prop_assert!((held - capacity.min(read)).abs() <= 1e-9 * read, "{held} {capacity}");
        for hit in lru_hit_ratios(capacity, &scans, 5) {
            prop_assert!((0.0..=1.0).contains(&hit));
        }
    }
}
