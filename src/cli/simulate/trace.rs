//! `copperfs simulate trace`: a trace from a seed.

use anyhow::Context;
use clap::Args;
use copperfs_simulate::cluster::generate::{Recipe, generate};
use copperfs_simulate::cluster::trace::to_csv;
use std::path::PathBuf;

/// Options of `simulate trace`.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Jobs; 4200 in 14 days keep 400 GPUs busy
    #[arg(long, value_name = "N", default_value_t = 4200)]
    jobs: usize,
    /// Days over which they are submitted
    #[arg(long, value_name = "D", default_value_t = 14.0)]
    days: f64,
    /// Part of the jobs, 0 to 1, that share their dataset with others of its name; the rest have one
    /// of their own
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    sharing: f64,
    /// For everything in it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to; the default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Makes the trace.
pub(super) fn write(args: &TraceArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.days.is_finite() && args.days > 0.0,
        "--days: {} is no length of time: it must be above zero",
        args.days
    );
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.sharing),
        "--sharing: {} is no part of a whole: write 0 to 1",
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
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("cannot write {}", path.display()))?,
    }
    Ok(())
}
