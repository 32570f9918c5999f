//! Charts of runs, modelled on SiloD's figures 8 to 16.

use super::sweep::Sweep;
use anyhow::Context;
use copperfs_simulate::chart::{Chart, Series};
use copperfs_simulate::cluster::{Outcome, Sample, Scheduler, System, Workload};
use std::path::Path;

/// A run of one combination of scheduler, cache system and sweep value.
pub(super) struct Run {
    pub(super) scheduler: Scheduler,
    pub(super) system: System,
    /// The sweep's value.
    pub(super) at: Option<f64>,
    pub(super) outcome: Outcome,
}

/// A quantity of a sample, and its name in a legend.
type Curve = (&'static str, fn(&Sample) -> f64);

/// Draws the charts of `runs` into `directory`, which is created.
pub(super) fn write(
    directory: &Path,
    sweep: Option<&Sweep>,
    runs: &[Run],
    workload: &Workload,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let put = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(sweep) = sweep {
        return put("sweep.svg", swept(sweep, runs).lines()?);
    }
    let throughput = over_time(
        runs,
        "Total job throughput (figure 9)",
        "MB/s",
        1e-6,
        &[("throughput", |sample| sample.throughput)],
    );
    put("throughput.svg", throughput.lines()?)?;
    let title = "Ideal and real throughput, remote IO (figure 11)";
    let resources = over_time(
        runs,
        title,
        "MB/s",
        1e-6,
        &[
            ("ideal throughput", |sample| sample.ideal_throughput),
            ("real throughput", |sample| sample.throughput),
            ("remote IO", |sample| sample.remote_io),
        ],
    );
    put("resources.svg", resources.lines()?)?;
    let title = "Effective and allocated cache (figure 8)";
    let cache = over_time(
        runs,
        title,
        "TB",
        1e-12,
        &[
            ("effective", |sample| sample.effective_cache),
            ("allocated", |sample| sample.allocated_cache),
        ],
    );
    put("effective-cache.svg", cache.lines()?)?;
    let title = "Fairness ratio (Eq. 8), mean over jobs";
    let fairness = over_time(
        runs,
        title,
        "",
        1.0,
        &[("fairness", |sample| sample.fairness)],
    );
    put("fairness.svg", fairness.lines()?)?;
    put("jct-distribution.svg", distribution(runs).lines()?)?;
    let groups = groups(runs);
    let jct = bars(runs, "Average job completion time", |run| {
        run.outcome.jct_mean_s
    });
    put("jct.svg", jct.bars(&groups)?)?;
    let makespan = bars(runs, "Makespan", |run| run.outcome.makespan_s);
    put("makespan.svg", makespan.bars(&groups)?)?;
    if workload.jobs.iter().any(|job| job.curriculum.is_some()) {
        put("pacing.svg", pacing(workload).lines()?)?;
    }
    Ok(())
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

/// A chart with the curves of every run over time, scaled by `factor`.
fn over_time(runs: &[Run], title: &str, y: &str, factor: f64, curves: &[Curve]) -> Chart {
    let series = |run: &Run, &(kind, value): &Curve| Series {
        // A single curve needs no name beside that of the run.
        name: match curves {
            [_] => name(run, runs),
            _ => format!("{}: {kind}", name(run, runs)),
        },
        points: (run.outcome.samples.iter())
            .map(|sample| (sample.at_s / 3600.0, value(sample) * factor))
            .collect(),
        ..Series::default()
    };
    Chart {
        title: title.to_owned(),
        x: "time (hours)".to_owned(),
        y: y.to_owned(),
        series: (runs.iter())
            .flat_map(|run| curves.iter().map(move |curve| series(run, curve)))
            .collect(),
        ..Chart::default()
    }
}

/// Adds `point` to the series of this name, which is created if it is new.
fn add_point(chart: &mut Chart, name: String, point: (f64, f64)) {
    match chart.series.iter_mut().find(|series| series.name == name) {
        Some(series) => series.points.push(point),
        None => chart.series.push(Series {
            name,
            points: vec![point],
            ..Series::default()
        }),
    }
}

fn distribution(runs: &[Run]) -> Chart {
    let series = |run: &Run| {
        let mut hours: Vec<f64> = run
            .outcome
            .jobs
            .iter()
            .map(|job| job.jct_s / 3600.0)
            .collect();
        // The curve of the k-th shortest time over k is the distribution.
        hours.sort_unstable_by(f64::total_cmp);
        // A thousand points are more than a screen shows.
        let points = (0..=1000_usize).map(|part| {
            let at = part * (hours.len() - 1) / 1000;
            (
                hours[at],
                f64::from(u32::try_from(part).unwrap_or(0)) / 10.0,
            )
        });
        Series {
            name: name(run, runs),
            points: points.collect(),
            ..Series::default()
        }
    };
    Chart {
        title: "Distribution of job completion times (figure 10b)".to_owned(),
        x: "job completion time (hours)".to_owned(),
        y: "% of jobs".to_owned(),
        series: runs.iter().map(series).collect(),
        ..Chart::default()
    }
}

fn groups(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for run in runs {
        let name = scheduler_name(run.scheduler).to_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn bars(runs: &[Run], title: &str, value: fn(&Run) -> f64) -> Chart {
    let groups = groups(runs);
    let mut chart = Chart {
        title: format!("{title} (figures 10a and 12)"),
        y: "hours".to_owned(),
        ..Chart::default()
    };
    for run in runs {
        let group = groups
            .iter()
            .position(|name| name == scheduler_name(run.scheduler));
        let group = f64::from(u32::try_from(group.unwrap_or(0)).unwrap_or(0));
        let point = (group, value(run) / 3600.0);
        add_point(&mut chart, run.system.name().to_owned(), point);
    }
    chart
}

fn swept(sweep: &Sweep, runs: &[Run]) -> Chart {
    let (axis, factor) = sweep.parameter.axis();
    let mut chart = Chart {
        title: format!("Average job completion time by {}", sweep.parameter.name()),
        x: axis.to_owned(),
        y: "hours".to_owned(),
        ..Chart::default()
    };
    for run in runs {
        let at = run.at.unwrap_or(0.0) * factor;
        let point = (at, run.outcome.jct_mean_s / 3600.0);
        add_point(&mut chart, name(run, runs), point);
    }
    chart
}

/// Figure 16a.
fn pacing(workload: &Workload) -> Chart {
    let series = workload.jobs.iter().filter_map(|job| {
        let curriculum = job.curriculum?;
        let iterations = job.work / curriculum.batch_bytes;
        let points = (0..=400_u32).map(|part| {
            let at = iterations * f64::from(part) / 400.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "an iteration's number; beyond u64 the pace has long been 1"
            )]
            let iteration = at as u64;
            (at / 1e3, curriculum.pace(iteration) * 100.0)
        });
        Some(Series {
            name: job.id.clone(),
            points: points.collect(),
            ..Series::default()
        })
    });
    Chart {
        title: "Pacing functions (figure 16a)".to_owned(),
        x: "iterations (thousands)".to_owned(),
        y: "% of items presented".to_owned(),
        series: series.collect(),
        ..Chart::default()
    }
}
