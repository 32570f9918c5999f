//! What runs show, drawn after SiloD's figures 8 to 16.

use super::sweep::Sweep;
use anyhow::Context;
use copperfs_simulate::chart::{Chart, Series};
use copperfs_simulate::cluster::{Outcome, Sample, Scheduler, System, Workload};
use std::path::Path;

/// A run, and where it stands in the comparison.
pub(super) struct Run {
    pub(super) scheduler: Scheduler,
    pub(super) system: System,
    /// The sweep's value.
    pub(super) at: Option<f64>,
    pub(super) outcome: Outcome,
}

/// What is read off a sample.
type Value = fn(&Sample) -> f64;

/// Draws what the runs give into `directory`, which is made.
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
    put("throughput.svg", throughput(runs).lines()?)?;
    put("resources.svg", resources(runs).lines()?)?;
    put("effective-cache.svg", effective(runs).lines()?)?;
    put(
        "fairness.svg",
        over_time(
            runs,
            "Fairness ratio (Eq. 8), mean over jobs",
            "",
            1.0,
            |s| s.fairness,
        )
        .lines()?,
    )?;
    put("jct-distribution.svg", distribution(runs).lines()?)?;
    let groups = groups(runs);
    let bars = |title: &str, value: fn(&Run) -> f64| bars(runs, title, value).bars(&groups);
    put(
        "jct.svg",
        bars("Average job completion time", |run| run.outcome.jct_mean_s)?,
    )?;
    put(
        "makespan.svg",
        bars("Makespan", |run| run.outcome.makespan_s)?,
    )?;
    if workload.jobs.iter().any(|job| job.curriculum.is_some()) {
        put("pacing.svg", pacing(workload).lines()?)?;
    }
    Ok(())
}

fn scheduler(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::Fifo => "FIFO",
        Scheduler::Sjf => "SJF",
        Scheduler::Gavel => "Gavel",
    }
}

/// A run's name in a legend; the scheduler where there are several.
fn name(run: &Run, runs: &[Run]) -> String {
    if runs.iter().all(|other| other.scheduler == run.scheduler) {
        run.system.name().to_owned()
    } else {
        format!("{} {}", scheduler(run.scheduler), run.system.name())
    }
}

fn over_time(runs: &[Run], title: &str, y: &str, factor: f64, value: Value) -> Chart {
    let series = |run: &Run| Series {
        name: name(run, runs),
        points: points(run, factor, value),
        ..Series::default()
    };
    Chart {
        title: title.to_owned(),
        x: "time (hours)".to_owned(),
        y: y.to_owned(),
        series: runs.iter().map(series).collect(),
        ..Chart::default()
    }
}

fn points(run: &Run, factor: f64, value: Value) -> Vec<(f64, f64)> {
    let samples = run.outcome.samples.iter();
    samples
        .map(|sample| (sample.at_s / 3600.0, value(sample) * factor))
        .collect()
}

fn throughput(runs: &[Run]) -> Chart {
    let title = "Total job throughput (figure 9)";
    over_time(runs, title, "MB/s", 1e-6, |sample| sample.throughput)
}

fn resources(runs: &[Run]) -> Chart {
    let mut chart = over_time(
        runs,
        "Ideal and real throughput, remote IO (figure 11)",
        "MB/s",
        1e-6,
        |s| s.throughput,
    );
    chart.series.clear();
    for run in runs {
        let kinds: [(&str, Value); 3] = [
            ("ideal throughput", |sample| sample.ideal_throughput),
            ("real throughput", |sample| sample.throughput),
            ("remote IO", |sample| sample.remote_io),
        ];
        for (kind, value) in kinds {
            chart.series.push(Series {
                name: format!("{}: {kind}", name(run, runs)),
                points: points(run, 1e-6, value),
                ..Series::default()
            });
        }
    }
    chart
}

fn effective(runs: &[Run]) -> Chart {
    let title = "Effective and allocated cache (figure 8)";
    let mut chart = over_time(runs, title, "TB", 1e-12, |sample| sample.effective_cache);
    chart.series.clear();
    for run in runs {
        let kinds: [(&str, Value); 2] = [
            ("effective", |sample| sample.effective_cache),
            ("allocated", |sample| sample.allocated_cache),
        ];
        for (kind, value) in kinds {
            chart.series.push(Series {
                name: format!("{}: {kind}", name(run, runs)),
                points: points(run, 1e-12, value),
                ..Series::default()
            });
        }
    }
    chart
}

fn distribution(runs: &[Run]) -> Chart {
    let series = |run: &Run| {
        let mut hours: Vec<f64> = run
            .outcome
            .jobs
            .iter()
            .map(|job| job.jct_s / 3600.0)
            .collect();
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
        let name = scheduler(run.scheduler).to_owned();
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
            .position(|name| name == scheduler(run.scheduler));
        let group = f64::from(u32::try_from(group.unwrap_or(0)).unwrap_or(0));
        let point = (group, value(run) / 3600.0);
        let name = run.system.name();
        match chart.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => chart.series.push(Series {
                name: name.to_owned(),
                points: vec![point],
                ..Series::default()
            }),
        }
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
        let name = name(run, runs);
        let point = (
            run.at.unwrap_or(0.0) * factor,
            run.outcome.jct_mean_s / 3600.0,
        );
        match chart.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => chart.series.push(Series {
                name,
                points: vec![point],
                ..Series::default()
            }),
        }
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
