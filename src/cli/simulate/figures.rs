//! Charts of runs, modelled on SiloD's figures 8 to 16.

use super::sweep::Sweep;
use crate::num::whole;
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
    let throughput: &[Curve] = &[("throughput", |sample| sample.throughput)];
    let resources: &[Curve] = &[
        ("ideal throughput", |sample| sample.ideal_throughput),
        ("real throughput", |sample| sample.throughput),
        ("remote IO", |sample| sample.remote_io),
    ];
    let cache: &[Curve] = &[
        ("effective", |sample| sample.effective_cache),
        ("allocated", |sample| sample.allocated_cache),
    ];
    let fairness: &[Curve] = &[("fairness", |sample| sample.fairness)];
    let title = "Total job throughput (figure 9)";
    let throughput = over_time(runs, title, ("MB/s", 1e-6), throughput);
    put("throughput.svg", throughput.lines()?)?;
    let title = "Ideal and real throughput, remote IO (figure 11)";
    let resources = over_time(runs, title, ("MB/s", 1e-6), resources);
    put("resources.svg", resources.lines()?)?;
    let title = "Effective and allocated cache (figure 8)";
    let cache = over_time(runs, title, ("TB", 1e-12), cache);
    put("effective-cache.svg", cache.lines()?)?;
    let title = "Fairness ratio (Eq. 8), mean over jobs";
    let fairness = over_time(runs, title, ("", 1.0), fairness);
    put("fairness.svg", fairness.lines()?)?;
    put("jct-distribution.svg", distribution(runs).lines()?)?;
    let groups = groups(runs);
    let title = "Average job completion time";
    let jct = bars(runs, &groups, title, |run| run.outcome.jct_mean_s);
    put("jct.svg", jct.bars(&groups)?)?;
    let makespan = bars(runs, &groups, "Makespan", |run| run.outcome.makespan_s);
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

/// A curve's or a bar's name in the legend, and its points.
type Named = (String, Vec<(f64, f64)>);

fn chart(title: &str, (x, y): (&str, &str), named: impl IntoIterator<Item = Named>) -> Chart {
    let series = named.into_iter().map(|(name, points)| Series {
        name,
        points,
        ..Series::default()
    });
    Chart {
        title: title.to_owned(),
        x: x.to_owned(),
        y: y.to_owned(),
        series: series.collect(),
        ..Chart::default()
    }
}

/// A chart with the curves of every run over time, in a unit and scaled by its factor.
fn over_time(runs: &[Run], title: &str, (y, factor): (&str, f64), curves: &[Curve]) -> Chart {
    let curve = |run: &Run, &(kind, value): &Curve| {
        // A single curve needs no name beside that of the run.
        let name = match curves {
            [_] => name(run, runs),
            _ => format!("{}: {kind}", name(run, runs)),
        };
        let samples = run.outcome.samples.iter();
        let points = samples.map(|sample| (sample.at_s / 3600.0, value(sample) * factor));
        (name, points.collect())
    };
    let of_run = |run| curves.iter().map(move |one| curve(run, one));
    chart(title, ("time (hours)", y), runs.iter().flat_map(of_run))
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
    let title = "Distribution of job completion times (figure 10b)";
    let axes = ("job completion time (hours)", "% of jobs");
    chart(title, axes, runs.iter().map(curve))
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

fn bars(runs: &[Run], groups: &[String], title: &str, value: fn(&Run) -> f64) -> Chart {
    let bar = |run: &Run| {
        let scheduler = scheduler_name(run.scheduler);
        let group = (0_u32..).zip(groups).find(|(_, name)| *name == scheduler);
        let group = group.map_or(0.0, |(group, _)| f64::from(group));
        (run.system.name().to_owned(), (group, value(run) / 3600.0))
    };
    let title = format!("{title} (figures 10a and 12)");
    chart(&title, ("", "hours"), together(runs.iter().map(bar)))
}

fn swept(sweep: &Sweep, runs: &[Run]) -> Chart {
    let (axis, factor) = sweep.parameter.axis();
    let point = |run: &Run| {
        let at = run.at.unwrap_or(0.0) * factor;
        (name(run, runs), (at, run.outcome.jct_mean_s / 3600.0))
    };
    let title = format!("Average job completion time by {}", sweep.parameter.name());
    chart(&title, (axis, "hours"), together(runs.iter().map(point)))
}

/// Figure 16a.
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
    let axes = ("iterations (thousands)", "% of items presented");
    chart("Pacing functions (figure 16a)", axes, curves)
}
