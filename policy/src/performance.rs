//! SiloDPerf: the rate of a job's reads with given cache and remote IO (§4, Eq. 1-5).
//!
//! All amounts are bytes and bytes per second. A hit ratio is between 0 and 1. With uniform caching
//! it is `c/d` (§2.2); within an epoch only items count that were cached *before* it (§6).

/// The relative difference below which a cache holds the whole dataset: far less than one item, and
/// more than the rounding error of a sum of many shares.
const WHOLE: f64 = 1e-12;

/// Returns the hit ratio of uniform caching: `c/d`, at most 1 (§2.2).
#[must_use]
pub fn hit_ratio(cache: f64, size: f64) -> f64 {
    let ratio = cache / size;
    if ratio >= 1.0 - WHOLE {
        1.0
    } else {
        ratio.max(0.0)
    }
}

/// Returns the hit ratio of `jobs` that read chunks together: each item of a chunk is fetched once
/// for all of them, so each job fetches `1 / jobs` of its reads (Quiver, section 5.2). 0 for fewer
/// than one job.
#[must_use]
pub fn hit_ratio_together(jobs: f64) -> f64 {
    1.0 - 1.0 / jobs.max(1.0)
}

/// Returns the rate at which data can be loaded: `f = b / (1 - c/d)` (Eq. 3). Infinite if
/// everything hits.
#[must_use]
pub fn io_perf(remote_io: f64, hit_ratio: f64) -> f64 {
    if hit_ratio >= 1.0 {
        f64::INFINITY
    } else {
        remote_io / (1.0 - hit_ratio)
    }
}

/// Returns a job's throughput: `min(f*, b / (1 - c/d))` (Eq. 1 and 4).
#[must_use]
pub fn silod_perf(ideal_rate: f64, remote_io: f64, hit_ratio: f64) -> f64 {
    ideal_rate.min(io_perf(remote_io, hit_ratio))
}

/// Returns the remote IO that a job needs to read at `rate`: `b = f · (1 - c/d)` (Eq. 2).
#[must_use]
pub fn remote_io(rate: f64, hit_ratio: f64) -> f64 {
    rate * (1.0 - hit_ratio).max(0.0)
}

/// Returns the remote IO that a byte of cache saves: `f*/d`, in bytes per second per byte (Eq. 5).
#[must_use]
pub fn cache_efficiency(ideal_rate: f64, size: f64) -> f64 {
    ideal_rate / size
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;
    const GB: f64 = 1e9;
    const TB: f64 = 1e12;

    fn near(a: f64, b: f64, relative: f64) -> bool {
        (a - b).abs() <= relative * b.abs()
    }

    #[test]
    fn figure_6_cache_efficiency() {
        // MB/s per GB, as the paper states them.
        let per_gb = |rate, size| cache_efficiency(rate, size) / MB * GB;
        assert!(near(per_gb(114.0 * MB, 143.0 * GB), 0.80, 0.005));
        assert!(near(per_gb(2.0 * MB, 20_971.0 * GB), 9.5e-5, 0.005));
        // §7.1.1, in MB/s per TB.
        let per_tb = |rate, size| cache_efficiency(rate, size) / MB * TB;
        assert!(near(per_tb(114.0 * MB, 1.3 * TB), 87.0, 0.01));
        assert!(near(per_tb(69.0 * MB, 1.3 * TB), 53.0, 0.01));
        assert!(near(per_tb(8.0 * MB, 20.0 * TB), 0.4, 0.01));
    }

    #[test]
    fn the_slower_stage_decides() {
        // Half cached: a byte of remote IO feeds two of reading.
        assert_eq!(silod_perf(114.0, 50.0, 0.5), 100.0);
        assert_eq!(silod_perf(114.0, 60.0, 0.5), 114.0);
        assert_eq!(remote_io(114.0, 0.5), 57.0);
    }

    #[test]
    fn a_whole_dataset_needs_no_remote_io() {
        assert_eq!(hit_ratio(1.3 * TB, 1.3 * TB), 1.0);
        assert_eq!(hit_ratio(2.0 * TB, 1.3 * TB), 1.0);
        assert_eq!(hit_ratio(0.1 + 0.2, 0.3), 1.0, "rounding is not an item");
        assert_eq!(io_perf(0.0, 1.0), f64::INFINITY);
        assert_eq!(silod_perf(114.0, 0.0, 1.0), 114.0);
        assert_eq!(remote_io(114.0, 1.0), 0.0);
    }

    #[test]
    fn jobs_that_read_chunks_share_the_fetches() {
        // n jobs need f*/n each.
        assert_eq!(remote_io(120.0, hit_ratio_together(4.0)), 30.0);
        assert_eq!(hit_ratio_together(1.0), 0.0);
        assert_eq!(hit_ratio_together(0.0), 0.0);
    }

    #[test]
    fn without_cache_or_remote_io() {
        assert_eq!(hit_ratio(0.0, 1.0), 0.0);
        assert_eq!(silod_perf(114.0, 0.0, 0.0), 0.0);
        assert_eq!(silod_perf(114.0, 0.0, 0.9), 0.0);
        assert_eq!(silod_perf(114.0, 30.0, 0.0), 30.0);
    }

    #[test]
    fn efficiency_is_the_remote_io_saved_per_byte() {
        // Eq. 5 is the negative derivative of Eq. 2.
        let (rate, size) = (114.0 * MB, 1.3 * TB);
        let need = |cache: f64| remote_io(rate, hit_ratio(cache, size));
        let saved = (need(0.4 * TB) - need(0.5 * TB)) / (0.1 * TB);
        assert!(near(saved, cache_efficiency(rate, size), 1e-9));
    }
}
