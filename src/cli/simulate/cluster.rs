//! `copperfs simulate cluster`: the command line of the cluster's model.

use super::figures::{self, Run};
use super::sweep::{Sweep, sweep};
use super::{plot, shown_rate};
use crate::cli::{Table, percent, print};
use crate::num::whole;
use anyhow::Context;
use clap::Args;
use copperfs_policy::amounts::ByteSize;
use copperfs_policy::keep::{Keep, UnknownKeep};
use copperfs_simulate::cluster::trace::{bytes, from_csv, from_toml, rate};
use copperfs_simulate::cluster::{Granularity, Scenario, Scheduler, System, Workload, run};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum length of a file. A year of the largest clusters' jobs fits.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Options of `simulate cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// The jobs: a CSV trace, or a TOML file that may also describe the cluster
    #[arg(value_name = "FILE.toml|TRACE.csv")]
    file: PathBuf,
    /// Number of GPUs
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// Size of the cache, all nodes together
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    cache: Option<f64>,
    /// Bandwidth of storage for all nodes together
    #[arg(long, value_name = "RATE", value_parser = rate)]
    remote_io: Option<f64>,
    /// Scheduler of GPUs. Several, separated by commas, are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fifo")]
    scheduler: Vec<Scheduler>,
    /// System that divides cache and remote IO. Several, separated by commas, are compared
    #[arg(long, value_delimiter = ',', default_value = "silod", value_parser = systems,
          value_name = "silod|alluxio|coordl|quiver|all")]
    system: Vec<Systems>,
    /// Precision of the simulation
    #[arg(long, value_enum, default_value = "fluid")]
    granularity: Granularity,
    /// Rule for the cached part of one dataset, or of all. It replaces the rule in the file (silod and
    /// quiver only)
    #[arg(long, value_delimiter = ',', value_parser = rule,
          value_name = "[DATASET=]auto|uniform|chunks|none")]
    keep: Vec<Rule>,
    /// With --granularity item: number of items of the largest dataset that fits into the cache
    #[arg(long, value_name = "N", default_value_t = Scenario::default().items)]
    items: u32,
    /// With --granularity item: number of items of a mini-batch
    #[arg(long, value_name = "N", default_value_t = Scenario::default().batch)]
    batch: u32,
    /// Seed of the orders of reads, of evictions, and of the choice of jobs that share datasets
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Factor by which the ideal rates of all jobs are multiplied
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    gpu_speed: f64,
    /// Divide remote IO evenly under silod too, instead of allocating it by the policy
    #[arg(long)]
    no_remote_io_allocation: bool,
    /// Simulate each combination with several values of a parameter: remote-io=RATE,…,
    /// gpu-speed=FACTOR,… or sharing=PART,…
    #[arg(long, value_name = "PARAMETER=VALUES", value_parser = sweep)]
    sweep: Option<Sweep>,
    /// Print JSON, with all jobs, and samples over time. Units are seconds, bytes, and bytes per second
    #[arg(long)]
    json: bool,
    /// Draw figures like those of SiloD's paper. They are one below the other in the file PATH if that
    /// ends with .svg, otherwise each is a file in the directory PATH
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
}

/// One cache system, or all.
#[derive(Debug, Clone)]
struct Systems(Vec<System>);

fn systems(text: &str) -> Result<Systems, String> {
    if text == "all" {
        return Ok(Systems(System::ALL.to_vec()));
    }
    let found = <System as clap::ValueEnum>::from_str(text, true);
    found.map(|one| Systems(vec![one])).map_err(|_unsaid| {
        format!("{text:?} is not a system. Write silod, alluxio, coordl, quiver, or all")
    })
}

/// A rule of one dataset, or of all.
#[derive(Debug, Clone)]
struct Rule {
    dataset: Option<String>,
    keep: Keep,
}

fn rule(text: &str) -> Result<Rule, String> {
    let (dataset, keep) = match text.rsplit_once('=') {
        Some((dataset, keep)) => (Some(dataset.to_owned()), keep),
        None => (None, text),
    };
    let keep = keep
        .parse()
        .map_err(|error: UnknownKeep| error.to_string())?;
    Ok(Rule { dataset, keep })
}

/// Simulates and prints.
pub(super) fn simulate(args: &ClusterArgs) -> anyhow::Result<()> {
    let (scenario, workload) = args.load()?;
    let runs = args.runs(&scenario, &workload)?;
    let sweep = args.sweep.as_ref();
    let written = match &args.plot {
        Some(path) => plot::write(path, &figures::charts(sweep, &runs, &workload))?,
        None => Vec::new(),
    };
    let value = as_json(&scenario, sweep, &runs);
    print(args.json, &value, |_| report(sweep, &runs))?;
    plot::say_wrote(&written);
    Ok(())
}

impl ClusterArgs {
    /// Runs every requested combination.
    fn runs(&self, scenario: &Scenario, workload: &Workload) -> anyhow::Result<Vec<Run>> {
        let points: Vec<Option<f64>> = match &self.sweep {
            None => vec![None],
            Some(sweep) => sweep.values.iter().copied().map(Some).collect(),
        };
        let mut runs = Vec::new();
        for &scheduler in &self.scheduler {
            for &system in self.system.iter().flat_map(|some| &some.0) {
                for &at in &points {
                    let mut one = Scenario {
                        scheduler,
                        system,
                        ..scenario.clone()
                    };
                    let mut workload = Cow::Borrowed(workload);
                    if let (Some(sweep), Some(value)) = (&self.sweep, at) {
                        sweep.set(value, &mut one, &mut workload)?;
                    }
                    let outcome = run(&one, &workload)?;
                    runs.push(Run {
                        scheduler,
                        system,
                        at,
                        outcome,
                    });
                }
            }
        }
        Ok(runs)
    }

    fn load(&self) -> anyhow::Result<(Scenario, Workload)> {
        let text = read(&self.file)?;
        let toml = self.file.extension().is_some_and(|end| end == "toml");
        let loaded = if toml {
            from_toml(&text)
        } else {
            from_csv(&text).map(|workload| (Default::default(), workload))
        };
        let (cluster, mut workload) = loaded.with_context(|| self.file.display().to_string())?;
        for rule in &self.keep {
            rule.apply(&mut workload)?;
        }
        let file = self.file.display();
        let missing = |flag: &str| format!("{flag} is missing, and {file} does not set it");
        let (gpus, cache) = (self.gpus.or(cluster.gpus), self.cache.or(cluster.cache));
        let remote_io = self.remote_io.or(cluster.remote_io);
        let default = Scenario::default();
        let scenario = Scenario {
            gpus: gpus.with_context(|| missing("--gpus"))?,
            cache: cache.with_context(|| missing("--cache"))?,
            remote_io: remote_io.with_context(|| missing("--remote-io"))?,
            remote_io_allocation: !self.no_remote_io_allocation,
            granularity: self.granularity,
            gpu_speed: self.gpu_speed,
            items: self.items,
            batch: self.batch,
            seed: self.seed,
            chunk_size: cluster.chunk_size.unwrap_or(default.chunk_size),
            evict_after_s: cluster.evict_after_s.unwrap_or(default.evict_after_s),
            ..default
        };
        Ok((scenario, workload))
    }
}

impl Rule {
    fn apply(&self, workload: &mut Workload) -> anyhow::Result<()> {
        let is_meant = |name: &str| self.dataset.as_deref().is_none_or(|wanted| wanted == name);
        let sets = workload.datasets.iter_mut();
        let mut meant = sets.filter(|set| is_meant(&set.name)).peekable();
        anyhow::ensure!(
            meant.peek().is_some(),
            "--keep: there is no dataset {:?} in the file",
            self.dataset.as_deref().unwrap_or("")
        );
        meant.for_each(|set| set.keep = self.keep);
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(
        text.len() as u64 <= FILE_BYTES_MAX,
        "{} has more than {} MiB",
        path.display(),
        FILE_BYTES_MAX >> 20
    );
    Ok(text)
}

fn as_json(scenario: &Scenario, sweep: Option<&Sweep>, runs: &[Run]) -> Value {
    let run = |run: &Run| {
        let mut value = json!({ "scheduler": run.scheduler, "system": run.system });
        if let (Some(sweep), Some(at)) = (sweep, run.at) {
            value["sweep"] = json!({ sweep.parameter.name(): at });
        }
        value["outcome"] = json!(run.outcome);
        value
    };
    let runs: Vec<Value> = runs.iter().map(run).collect();
    json!({
        "cluster": {
            "gpus": scenario.gpus,
            "cache_bytes": scenario.cache,
            "remote_io_bytes_per_s": scenario.remote_io,
            "granularity": scenario.granularity,
            "gpu_speed": scenario.gpu_speed,
            "remote_io_allocation": scenario.remote_io_allocation,
            "seed": scenario.seed,
        },
        "runs": runs,
    })
}

fn report(sweep: Option<&Sweep>, runs: &[Run]) -> String {
    let swept = sweep.map_or("", |sweep| sweep.parameter.name());
    let minutes = |seconds: f64| format!("{:.0}", seconds / 60.0);
    let ratio = |ratio: f64| format!("{ratio:.2}");
    let effective = |run: &Run| percent(run.outcome.effective_cache_ratio);
    Table::of(runs)
        .column("scheduler", |run| figures::scheduler_name(run.scheduler))
        .column("cache", |run| run.system.name())
        .column(swept, |run| {
            let shown = sweep
                .zip(run.at)
                .map(|(sweep, at)| sweep.parameter.shown(at));
            shown.unwrap_or_default()
        })
        .column("JCT (min)", |run| minutes(run.outcome.jct_mean_s))
        .column("makespan (min)", |run| minutes(run.outcome.makespan_s))
        .column("fairness", |run| ratio(run.outcome.fairness_mean))
        .column("least fairness", |run| ratio(run.outcome.fairness_min_mean))
        .column("effective cache", |run| effective(run))
        .column("remote IO", |run| shown_rate(run.outcome.remote_io_mean))
        .column("from storage", |run| {
            ByteSize(whole(run.outcome.remote_bytes)).to_string()
        })
        .text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: ClusterArgs,
    }

    fn parse(flags: &str) -> Result<ClusterArgs, String> {
        let words = ["simulate"].into_iter().chain(flags.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(line.args)
    }

    #[test]
    fn flags_need_units_and_known_names() {
        for (flags, wanted) in [
            ("t.csv --cache 2", "has no unit"),
            ("t.csv --cache 0TB", "must be above zero"),
            ("t.csv --cache=-1TB", "no number in front"),
            ("t.csv --remote-io 200MB", "does not end with /s"),
            ("t.csv --remote-io 200/s", "has no unit"),
            (
                "t.csv --scheduler lifo",
                "possible values: fifo, sjf, gavel",
            ),
            ("t.csv --system arc", "is not a system"),
            ("t.csv --sweep cache=1TB", "cannot be varied"),
            ("t.csv --keep a=all", "is not a rule of what is kept"),
            ("", "FILE.toml|TRACE.csv"),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(wanted), "{flags}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_or_says_too_little_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.csv");
        let mut args = parse("t.csv --gpus 8 --cache 1TB").unwrap();
        args.file = path.clone();
        let error = format!("{:#}", args.load().unwrap_err());
        assert!(
            error.contains("cannot read") && error.contains("t.csv"),
            "{error}"
        );
        let columns = copperfs_simulate::cluster::trace::COLUMNS.join(",");
        std::fs::write(&path, format!("{columns}\na,0,m,d,1e9,1,1e6,1e9\n")).unwrap();
        let error = format!("{:#}", args.load().unwrap_err());
        assert!(error.starts_with("--remote-io is missing"), "{error}");
        std::fs::write(&path, format!("{columns}\na,0,m,d,1e9,1,0,1e9\n")).unwrap();
        let error = format!("{:#}", args.load().unwrap_err());
        assert!(error.contains("t.csv: line 2: ideal rate"), "{error}");
    }

    #[test]
    fn rules_are_set_for_one_dataset_or_for_all() {
        let flags = "x.toml --keep none,imagenet=chunks";
        let mut args = parse(flags).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        args.file = root.join("config/simulate-quiver-mix.toml");
        let (scenario, workload) = args.load().unwrap();
        let rules: Vec<Keep> = workload.datasets.iter().map(|set| set.keep).collect();
        assert_eq!(rules, [Keep::Chunks, Keep::None, Keep::None]);
        assert_eq!((scenario.chunk_size, scenario.evict_after_s), (15e9, 60.0));
        args.keep = vec![rule("imagnet=none").unwrap()];
        let error = args.load().unwrap_err().to_string();
        assert!(error.contains("no dataset \"imagnet\""), "{error}");
    }

    #[test]
    fn runs_are_printed_as_text_and_json_and_drawn() {
        let directory = tempfile::tempdir().unwrap();
        let mut args = parse("x.toml --system silod,quiver --scheduler fifo,gavel").unwrap();
        args.file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/simulate-8v100.toml");
        let (scenario, workload) = args.load().unwrap();
        let runs = args.runs(&scenario, &workload).unwrap();
        assert_eq!(runs.len(), 4);
        let text = report(None, &runs);
        assert!(
            text.lines().count() == 5 && text.contains("Gavel"),
            "{text}"
        );
        let printed = as_json(&scenario, None, &runs);
        assert_eq!(printed["runs"][1]["system"], "quiver");
        assert_eq!(printed["cluster"]["remote_io_bytes_per_s"], 2e8);
        let jobs = &printed["runs"][0]["outcome"]["jobs"];
        assert_eq!(jobs.as_array().unwrap().len(), 5);
        let charts = figures::charts(None, &runs, &workload);
        for chart in &charts {
            assert!(
                chart.heading().contains("simulated without"),
                "{}",
                chart.heading()
            );
        }
        let drawn = plot::write(directory.path(), &charts).unwrap();
        let files = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!((drawn.len(), files), (13, 13));
        let reach: Vec<_> = charts[1..5].iter().map(|chart| chart.reach).collect();
        assert!(
            reach[0].1 > 0.0 && reach.iter().all(|one| *one == reach[0]),
            "{reach:?}"
        );
        args.sweep = Some(sweep("gpu-speed=1,2").unwrap());
        let runs = args.runs(&scenario, &workload).unwrap();
        let charts = figures::charts(args.sweep.as_ref(), &runs, &workload);
        let drawn = plot::write(directory.path(), &charts).unwrap();
        assert_eq!(drawn, [directory.path().join("sweep.svg")]);
        let text = report(args.sweep.as_ref(), &runs);
        assert!(text.contains("gpu-speed") && text.contains("2 ×"), "{text}");
        assert_eq!(charts[0].series.len(), 4);
        assert!(charts[0].series.iter().all(|curve| curve.points.len() == 2));
        let text = std::fs::read_to_string(&drawn[0]).unwrap();
        assert!(
            text.contains("by GPU speed") && !text.contains("NaN"),
            "{text}"
        );
    }
}
