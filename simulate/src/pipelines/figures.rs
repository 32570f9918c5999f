//! Charts of studies, after the figures of the LRC paper.

use super::ranks::{Metric, Ranks};
use super::study::{Row, Study};
use crate::chart::{Chart, Series, thousands};
use crate::num::{as_f64, index_f64};
use copperfs_policy::references::EvictionPolicy;

/// The axis of gains.
const RATIO: &str = "hit ratio divided by that of LRU";
/// Points of a distribution. A screen shows no more.
const POINTS: usize = 200;
/// The scope of all charts: a trace has an order of events, but no times.
const SCOPE: &str = "simulated: cache hits only, no run times";
/// The workload whose progress is shown, if it was studied. Otherwise it is the first one.
const REPRESENTATIVE: &str = "connected-components";

/// Returns the charts of studies of one plan, after Figures 2, 3 and 5 of the LRC paper, Figure 8 for each
/// workload, and Figures 10 and 11 for workloads of tenants.
#[must_use]
pub fn figures(studies: &[Study]) -> Vec<Chart> {
    let mut charts = vec![inactive_shares(studies)];
    let representative = studies
        .iter()
        .find(|study| study.workload == REPRESENTATIVE);
    charts.extend(representative.or(studies.first()).map(progress));
    charts.push(predictors(studies));
    let (tenants, others): (Vec<_>, Vec<_>) =
        studies.iter().partition(|study| study.tenants.is_some());
    charts.extend(others.into_iter().map(hit_ratios));
    if !tenants.is_empty() {
        charts.push(gain_by_cache(&tenants));
        charts.push(gain_by_tenants(&tenants));
    }
    charts
}

impl Study {
    /// Returns the name of the workload, with the number of its tenants.
    #[must_use]
    pub fn name(&self) -> String {
        match self.tenants {
            Some(tenants) => format!("{}, {tenants}", self.workload),
            None => self.workload.clone(),
        }
    }

    fn of_policy(&self, policy: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.policy == policy)
    }

    /// Returns the names of its policies.
    fn policies(&self) -> impl Iterator<Item = &'static str> {
        let names = EvictionPolicy::ALL.into_iter().map(EvictionPolicy::name);
        names.filter(|name| self.of_policy(name).next().is_some())
    }
}

fn inactive_shares(studies: &[Study]) -> Chart {
    let curve = |study: &Study| {
        let largest = study.inactive.iter().max_by_key(|at| at.cache_bytes)?;
        let samples = &largest.inactive.samples;
        let mut shares: Vec<f64> = samples.iter().map(|sample| sample.share()).collect();
        shares.sort_unstable_by(f64::total_cmp);
        Some(named(study.name(), distribution(&shares)))
    };
    Chart {
        x: "inactive part of the cached bytes, which no task reads again (%)".to_owned(),
        y: "part of the run with at most that (%)".to_owned(),
        series: studies.iter().filter_map(curve).collect(),
        note: after(2, " There, the median is 77 %, over 15 applications."),
        ..chart(
            "inactive",
            "Inactive data in the largest cache under LRU".to_owned(),
        )
    }
}

fn progress(study: &Study) -> Chart {
    let largest = study.inactive.iter().max_by_key(|at| at.cache_bytes);
    let samples = largest.map_or(&[][..], |at| &at.inactive.samples);
    let curve = |name: &str, bytes: fn(&super::Sample) -> u64| {
        let points = samples.iter();
        let points = points.map(|one| (one.progress * 100.0, as_f64(bytes(one)) / 1e6));
        named(name.to_owned(), points.collect())
    };
    let title = format!("Cached and inactive data of {} under LRU", study.name());
    Chart {
        x: "progress, in reads and writes (%)".to_owned(),
        y: "data (MB)".to_owned(),
        series: vec![
            curve("cached", |sample| sample.cached_bytes),
            curve("inactive", |sample| sample.inactive_bytes),
        ],
        note: after(3, ""),
        ..chart("progress", title)
    }
}

fn predictors(studies: &[Study]) -> Chart {
    let curve = |metric: Metric| {
        let all = studies.iter().flat_map(|study| &study.ranks);
        let of_metric = all.filter(|ranks| ranks.metric == metric);
        let ranks = of_metric.flat_map(|ranks| ranks.ranks.iter().copied());
        let all = Ranks::new(metric, ranks.collect());
        named(metric.name().to_owned(), distribution(&all.ranks))
    };
    Chart {
        x: "blocks that a metric ranks above the block that is read (%)".to_owned(),
        y: "part of the reads with at most that (%)".to_owned(),
        series: Metric::ALL.into_iter().map(curve).collect(),
        note: after(
            5,
            " There, by reference count, 46 % of the reads are in the first tenth.",
        ),
        ..chart("ranks", "Rank of the block that is read".to_owned())
    }
}

fn hit_ratios(study: &Study) -> Chart {
    let curve = |policy: &'static str| {
        let rows = study.of_policy(policy);
        let points = rows.map(|row| (as_f64(row.cache_bytes) / 1e6, row.hit_ratio));
        dotted(policy.to_owned(), points.collect())
    };
    let file = format!("hit-ratio-{}", file_name(&study.workload));
    Chart {
        x: "cache (MB)".to_owned(),
        y: "hit ratio".to_owned(),
        series: study.policies().map(curve).collect(),
        note: after(8, ""),
        ..chart(
            &file,
            format!("Hit ratio of {} by size of the cache", study.name()),
        )
    }
}

fn gain_by_cache(studies: &[&Study]) -> Chart {
    let curves = studies.iter().flat_map(|study| {
        let rivals = study
            .policies()
            .filter(|policy| *policy != EvictionPolicy::Lru.name());
        rivals.map(|policy| {
            let points = study.of_policy(policy);
            let points =
                points.filter_map(|row| Some((as_f64(row.cache_bytes) / 1e6, row.to_lru?)));
            dotted(
                format!("{policy}: {} tenants", study.tenants.unwrap_or(0)),
                points.collect(),
            )
        })
    });
    Chart {
        x: "cache (MB)".to_owned(),
        y: RATIO.to_owned(),
        series: curves.collect(),
        note: after(10, ""),
        ..chart(
            "gain-by-cache",
            "Gain over LRU by size of the cache".to_owned(),
        )
    }
}

fn gain_by_tenants(studies: &[&Study]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for study in studies {
        let lru = EvictionPolicy::Lru.name();
        for row in study.rows.iter().filter(|row| row.policy != lru) {
            let Some(gain) = row.to_lru else { continue };
            let megabytes = as_f64(row.cache_bytes) / 1e6;
            let shown = thousands(&format!("{megabytes:.0}"));
            let name = format!("{}: cache of {shown} MB", row.policy);
            let point = (index_f64(study.tenants.unwrap_or(0)), gain);
            match series.iter_mut().find(|known| known.name == name) {
                Some(known) => known.points.push(point),
                None => series.push(dotted(name, vec![point])),
            }
        }
    }
    Chart {
        x: "tenants".to_owned(),
        y: RATIO.to_owned(),
        series,
        note: after(11, ""),
        ..chart(
            "gain-by-tenants",
            "Gain over LRU by number of tenants".to_owned(),
        )
    }
}

/// Returns a chart without data, with the scope of all.
fn chart(file: &str, title: String) -> Chart {
    Chart {
        file: file.to_owned(),
        title,
        scope: SCOPE.to_owned(),
        ..Chart::default()
    }
}

fn after(figure: u32, more: &str) -> String {
    format!("Like Figure {figure} of the LRC paper (INFOCOM '17).{more}")
}

/// Returns `name` with dashes in place of all letters that are unusual in names of files.
fn file_name(name: &str) -> String {
    let kept = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '+' => letter,
        _ => '-',
    };
    name.chars().map(kept).collect()
}

/// Returns the points (value, part of the values up to it) of ascending values, both in per cent.
fn distribution(ascending: &[f64]) -> Vec<(f64, f64)> {
    if ascending.is_empty() {
        return Vec::new();
    }
    let point = |part: usize| {
        let at = part * (ascending.len() - 1) / POINTS;
        let below = index_f64(part) / index_f64(POINTS);
        (ascending[at] * 100.0, below * 100.0)
    };
    (0..=POINTS).map(point).collect()
}

fn named(name: String, points: Vec<(f64, f64)>) -> Series {
    Series {
        name,
        points,
        ..Series::default()
    }
}

fn dotted(name: String, points: Vec<(f64, f64)>) -> Series {
    Series {
        dots: true,
        ..named(name, points)
    }
}
