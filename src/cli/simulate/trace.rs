//! `copperfs simulate trace`: generates a trace from a seed.

use anyhow::Context;
use clap::Args;
use copperfs_simulate::cluster::generate::{Recipe, generate};
use copperfs_simulate::cluster::trace::to_csv;
use std::path::PathBuf;

/// Options of `simulate trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Number of jobs. 4200 in 14 days keep 400 GPUs busy
    #[arg(long, value_name = "N", default_value_t = 4200)]
    jobs: usize,
    /// Number of days in which the jobs are submitted
    #[arg(long, value_name = "D", default_value_t = 14.0)]
    days: f64,
    /// Part of the jobs that share their dataset with other jobs of the same model, 0 to 1. Each of the
    /// others has a dataset of its own
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    sharing: f64,
    /// Seed of all random values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to write. The default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Generates the trace, and writes it.
pub(super) fn write(args: &TraceArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.days.is_finite() && args.days > 0.0,
        "--days: {} is not possible. Write a number above 0",
        args.days
    );
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.sharing),
        "--sharing: {} is not possible. Write a number from 0 to 1",
        args.sharing
    );
    let made = generate(&Recipe {
        jobs: args.jobs,
        days: args.days,
        sharing: args.sharing,
        seed: args.seed,
    })
    .context("--jobs")?;
    let text = to_csv(&made);
    match &args.output {
        None => crate::cli::say(text.trim_end()),
        Some(path) => {
            std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?;
            super::plot::say_wrote(std::slice::from_ref(path));
        }
    }
    Ok(())
}
