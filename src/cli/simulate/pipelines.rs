//! `copperfs simulate pipelines`: the command line of the model of pipelines.

mod tables;

use super::plot;
use crate::cli::print;
use anyhow::Context;
use clap::Args;
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::Trace;
use copperfs_simulate::pipelines::{
    CacheSize, PAPER, Pipeline, Plan, READ_ONLY, Study, TENANTS, Workload, figures, study,
    summaries,
};
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum length of a file. It is in memory while it is read.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// The maximum number of seeds. Each is a trace in memory.
const SEEDS_MAX: u64 = 1000;

/// Options of `simulate pipelines`.
#[derive(Debug, Args)]
pub struct PipelinesArgs {
    /// A named workload, a TOML file of workloads, or a JSON trace of `lrc replay`. The names are
    /// pagerank, pregel, connected-components and svd++ (paper: all four), samples, nightly, windows and
    /// scanner (read-only: all four), and tenants
    #[arg(value_name = "WORKLOAD|FILE")]
    workload: String,
    /// Policies of eviction that are compared: lrc, lrc-offline, lru, lfu, s3-fifo, min
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "lrc,lrc-offline,lru,lfu,s3-fifo,min"
    )]
    policy: Vec<String>,
    /// Sizes of the cache: in per cent of the inputs (all blocks that are read), or with a unit
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "5%,10%,20%,30%,40%,60%"
    )]
    cache: Vec<CacheSize>,
    /// Hit ratios for which the smallest sufficient cache is searched
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', default_value = "0.5,0.7",
          value_parser = hit_ratio)]
    hit_ratio: Vec<f64>,
    /// With the workload tenants: the numbers of tenants, each of which is simulated
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    tenants: Vec<usize>,
    /// First seed of the sizes of blocks and of the order of tasks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds. All results are means over them
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// Print JSON, with inactive data over time. Sizes are in bytes
    #[arg(long)]
    json: bool,
    /// Draw figures like those of the LRC paper (2, 3, 5, 8; with tenants 10, 11). They are one below the
    /// other in the file PATH if that ends with .svg, otherwise each is a file in the directory PATH
    #[arg(long, value_name = "PATH")]
    plot: Option<PathBuf>,
}

fn hit_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.trim().parse().ok();
    let ratio = ratio.filter(|ratio| *ratio > 0.0 && *ratio < 1.0);
    ratio.ok_or_else(|| format!("{text:?} is not a hit ratio. Write a number between 0 and 1: 0.7"))
}

/// Simulates and prints.
pub(super) fn simulate(args: &PipelinesArgs) -> anyhow::Result<()> {
    let studies = args.studies()?;
    let written = match &args.plot {
        Some(path) => plot::write(path, &figures(&studies))?,
        None => Vec::new(),
    };
    let value = json!({
        "seed": args.seed,
        "seeds": args.seeds,
        "workloads": studies,
        "summary": summaries(&studies),
    });
    print(args.json, &value, |_| tables::report(&studies))?;
    plot::say_wrote(&written);
    Ok(())
}

impl PipelinesArgs {
    fn studies(&self) -> anyhow::Result<Vec<Study>> {
        let policies = self.policy.iter().map(|name| name.parse());
        let plan = Plan {
            policies: policies
                .collect::<Result<Vec<EvictionPolicy>, _>>()
                .context("--policy")?,
            caches: self.cache.clone(),
            hit_ratios: self.hit_ratio.clone(),
        };
        let mut studies = Vec::new();
        for mut pipelines in self.pipelines()? {
            let name = pipelines[0].name.clone();
            studies.push(study(&mut pipelines, &plan).with_context(|| name)?);
        }
        Ok(studies)
    }

    /// Returns the traces of each workload, one for each seed.
    fn pipelines(&self) -> anyhow::Result<Vec<Vec<Pipeline>>> {
        let names: &[&str] = match self.workload.as_str() {
            "paper" => &PAPER,
            "read-only" => &READ_ONLY,
            TENANTS => &[TENANTS],
            name => match Workload::named(name) {
                Some(workload) => return self.traces(&[workload]),
                None => return self.file(Path::new(name)),
            },
        };
        let workloads = names.iter().filter_map(|name| Workload::named(name));
        self.traces(&workloads.collect::<Vec<_>>())
    }

    fn traces(&self, workloads: &[Workload]) -> anyhow::Result<Vec<Vec<Pipeline>>> {
        let mut variants = Vec::new();
        for workload in workloads {
            for &tenants in &self.tenants {
                let variant = workload.with_tenants(tenants);
                variants.push(variant.with_context(|| {
                    format!("--tenants: the workload {:?} has none", workload.name)
                })?);
            }
            if self.tenants.is_empty() {
                variants.push(workload.clone());
            }
        }
        let seeds = (0..self.seeds).map(|more| self.seed.wrapping_add(more));
        let of_variant = |variant: &Workload| {
            let traces = seeds.clone().map(|seed| variant.pipeline(seed));
            Ok(traces.collect::<Result<Vec<_>, _>>()?)
        };
        variants.iter().map(of_variant).collect()
    }

    fn file(&self, path: &Path) -> anyhow::Result<Vec<Vec<Pipeline>>> {
        let text = read(path).with_context(|| {
            format!(
                "cannot read {}. The workloads: {}, {}, {TENANTS}; paper, read-only",
                path.display(),
                PAPER.join(", "),
                READ_ONLY.join(", ")
            )
        })?;
        if path.extension().is_some_and(|end| end == "toml") {
            let workloads = String::from_utf8(text).map_err(anyhow::Error::from);
            let workloads = workloads.and_then(|text| Ok(Workload::from_toml(&text)?));
            return self.traces(&workloads.with_context(|| path.display().to_string())?);
        }
        anyhow::ensure!(
            self.tenants.is_empty(),
            "--tenants: a recorded trace has its own tenants"
        );
        let trace = Trace::from_json(&text).with_context(|| path.display().to_string())?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(vec![vec![Pipeline::recorded(name.into_owned(), trace)]])
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    anyhow::ensure!(
        text.len() as u64 <= FILE_BYTES_MAX,
        "it is larger than 1 GiB. Simulate a part of it"
    );
    Ok(text)
}

#[cfg(test)]
mod tests;
