//! Charts of runs, modelled on SiloD's figures 8 to 16.

use super::sweep::Sweep;
use crate::num::whole;
use copperfs_simulate::chart::{Chart, Series};
use copperfs_simulate::cluster::{Outcome, Sample, Scheduler, System, Workload};

/// A run of one combination of scheduler, cache system and sweep value.
pub(super) struct Run {
    pub(super) scheduler: Scheduler,
    pub(super) system: System,
    /// The sweep's value.
    pub(super) at: Option<f64>,
    pub(super) outcome: Outcome,
}

/// A name in a legend, and the quantity of a sample.
type Curve = (&'static str, fn(&Sample) -> f64);

/// The scope of all charts.
const SCOPE: &str = "simulated without the nodes' network, start-up times and failures";

/// Returns the charts of `runs`.
pub(super) fn charts(sweep: Option<&Sweep>, runs: &[Run], workload: &Workload) -> Vec<Chart> {
    if let Some(sweep) = sweep {
        return vec![swept(sweep, runs)];
    }
    let throughput: Curve = ("throughput", |sample| sample.throughput);
    let resources: &[Curve] = &[
        ("ideal throughput", |sample| sample.ideal_throughput),
        ("real throughput", |sample| sample.throughput),
        ("remote IO", |sample| sample.remote_io),
    ];
    let cache: &[Curve] = &[
        ("effective", |sample| sample.effective_cache),
        ("allocated", |sample| sample.allocated_cache),
    ];
    let fairness: Curve = ("fairness", |sample| sample.fairness);
    let rate = ("rate (MB/s)", 1e-6);
    let resources = each_over_time(runs, rate, resources)
        .into_iter()
        .map(|(run, chart)| Chart {
            file: format!("resources-{}", file_name(&run)),
            title: format!("{run}: ideal and real throughput, and remote IO"),
            note: after("Figure 11"),
            ..chart
        });
    let caches = each_over_time(runs, ("cache (TB)", 1e-12), cache);
    let caches = caches.into_iter().map(|(run, chart)| Chart {
        file: format!("effective-cache-{}", file_name(&run)),
        title: format!("{run}: effective and allocated cache"),
        note: after("Figure 8"),
        ..chart
    });
    let mut charts = vec![Chart {
        file: "throughput".to_owned(),
        title: "Throughput of all jobs".to_owned(),
        note: after("Figure 9"),
        ..over_time(runs, rate, throughput)
    }];
    charts.extend(resources.chain(caches));
    charts.extend([
        Chart {
            file: "fairness".to_owned(),
            title: "Fairness, mean over running jobs".to_owned(),
            note: "Fairness of a job: its throughput divided by that with an equal part of all resources \
                   (Eq. 8 of SiloD, EuroSys '23)."
                .to_owned(),
            ..over_time(runs, ("fairness", 1.0), fairness)
        },
        distribution(runs),
        Chart {
            file: "jct".to_owned(),
            title: "Average job completion time".to_owned(),
            note: after("Figures 10a and 12"),
            ..bars(runs, |run| run.outcome.jct_mean_s)
        },
        Chart {
            file: "makespan".to_owned(),
            title: "Makespan: time from the first submission to the last end".to_owned(),
            note: after("Figures 10a and 12"),
            ..bars(runs, |run| run.outcome.makespan_s)
        },
    ]);
    if workload.jobs.iter().any(|job| job.curriculum.is_some()) {
        charts.push(pacing(workload));
    }
    charts
}

fn after(figure: &str) -> String {
    format!("Like {figure} of SiloD (EuroSys '23).")
}

/// The scheduler's name in tables and legends.
pub(super) fn scheduler_name(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::Fifo => "FIFO",
        Scheduler::Sjf => "SJF",
        Scheduler::Gavel => "Gavel",
    }
}

/// A run's name in a legend. It includes the scheduler if there are several.
fn name(run: &Run, runs: &[Run]) -> String {
    if runs.iter().all(|other| other.scheduler == run.scheduler) {
        run.system.name().to_owned()
    } else {
        format!("{} {}", scheduler_name(run.scheduler), run.system.name())
    }
}

/// A curve's or a bar's name in the legend, and its points.
type Named = (String, Vec<(f64, f64)>);

/// Returns a chart of `named` without a title.
fn chart((x, y): (&str, &str), named: impl IntoIterator<Item = Named>) -> Chart {
    let series = named.into_iter().map(|(name, points)| Series {
        name,
        points,
        ..Series::default()
    });
    Chart {
        scope: SCOPE.to_owned(),
        x: x.to_owned(),
        y: y.to_owned(),
        series: series.collect(),
        ..Chart::default()
    }
}

/// Returns a chart of one quantity of all runs over time, in a unit and scaled by its factor.
fn over_time(runs: &[Run], (y, factor): (&str, f64), (_, value): Curve) -> Chart {
    let curve = |run: &Run| (name(run, runs), points(run, factor, value));
    chart(("time (hours)", y), runs.iter().map(curve))
}

/// Returns a chart of several quantities over time for each run, with its name. All have the same axes.
fn each_over_time(
    runs: &[Run],
    (y, factor): (&str, f64),
    curves: &[Curve],
) -> Vec<(String, Chart)> {
    let one = |run: &Run| {
        let curve = |&(kind, value): &Curve| (kind.to_owned(), points(run, factor, value));
        let chart = chart(("time (hours)", y), curves.iter().map(curve));
        (name(run, runs), chart)
    };
    let mut charts: Vec<(String, Chart)> = runs.iter().map(one).collect();
    let all = charts.iter().flat_map(|(_, chart)| &chart.series);
    let all = all.flat_map(|series| &series.points);
    let reach = all.fold((0.0_f64, 0.0_f64), |(right, top), (x, y)| {
        (right.max(*x), top.max(*y))
    });
    charts.iter_mut().for_each(|(_, chart)| chart.reach = reach);
    charts
}

fn points(run: &Run, factor: f64, value: fn(&Sample) -> f64) -> Vec<(f64, f64)> {
    let samples = run.outcome.samples.iter();
    samples
        .map(|sample| (sample.at_s / 3600.0, value(sample) * factor))
        .collect()
}

/// Returns the name of a run as a part of the name of a file.
fn file_name(run: &str) -> String {
    run.to_lowercase().replace(' ', "-")
}

/// Puts points of the same name together.
fn together(points: impl Iterator<Item = (String, (f64, f64))>) -> Vec<Named> {
    let mut named: Vec<Named> = Vec::new();
    for (name, point) in points {
        match named.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => named.push((name, vec![point])),
        }
    }
    named
}

fn distribution(runs: &[Run]) -> Chart {
    let curve = |run: &Run| {
        let jobs = run.outcome.jobs.iter();
        let mut hours: Vec<f64> = jobs.map(|job| job.jct_s / 3600.0).collect();
        // The curve of the k-th shortest time over k is the distribution.
        hours.sort_unstable_by(f64::total_cmp);
        // A thousand points are more than a screen shows.
        let points = (0..=1000_u16).map(|part| {
            let at = usize::from(part) * (hours.len() - 1) / 1000;
            (hours[at], f64::from(part) / 10.0)
        });
        (name(run, runs), points.collect())
    };
    Chart {
        file: "jct-distribution".to_owned(),
        title: "Distribution of job completion times".to_owned(),
        note: after("Figure 10b"),
        ..chart(
            (
                "job completion time (hours)",
                "jobs that have ended by then (%)",
            ),
            runs.iter().map(curve),
        )
    }
}

fn groups(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in runs.iter().map(|run| scheduler_name(run.scheduler)) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn bars(runs: &[Run], value: fn(&Run) -> f64) -> Chart {
    let groups = groups(runs);
    let bar = |run: &Run| {
        let scheduler = scheduler_name(run.scheduler);
        let group = (0_u32..).zip(&groups).find(|(_, name)| *name == scheduler);
        let group = group.map_or(0.0, |(group, _)| f64::from(group));
        (run.system.name().to_owned(), (group, value(run) / 3600.0))
    };
    let named = together(runs.iter().map(bar));
    Chart {
        groups,
        ..chart(("scheduler", "time (hours)"), named)
    }
}

fn swept(sweep: &Sweep, runs: &[Run]) -> Chart {
    let (axis, factor) = sweep.parameter.axis();
    let point = |run: &Run| {
        let at = run.at.unwrap_or(0.0) * factor;
        (name(run, runs), (at, run.outcome.jct_mean_s / 3600.0))
    };
    let mut chart = chart((axis, "time (hours)"), together(runs.iter().map(point)));
    for series in &mut chart.series {
        series.dots = true;
    }
    Chart {
        file: "sweep".to_owned(),
        title: format!("Average job completion time by {}", sweep.parameter.title()),
        note: after("Figures 14 and 15"),
        ..chart
    }
}

fn pacing(workload: &Workload) -> Chart {
    let curves = workload.jobs.iter().filter_map(|job| {
        let curriculum = job.curriculum?;
        let iterations = job.work / curriculum.batch_bytes;
        let points = (0..=400_u32).map(|part| {
            let at = iterations * f64::from(part) / 400.0;
            // Beyond u64 the pace has long been 1.
            (at / 1e3, curriculum.pace(whole(at)) * 100.0)
        });
        Some((job.id.clone(), points.collect()))
    });
    let axes = ("iterations (thousands)", "items that are presented (%)");
    Chart {
        file: "pacing".to_owned(),
        title: "Pacing functions of the jobs".to_owned(),
        scope: "as given, not simulated".to_owned(),
        note: after("Figure 16a"),
        ..chart(axes, curves)
    }
}
