//! `copperfs lrc`: reference counts of pipelines.

use super::say;
use anyhow::Context;
use clap::{Args, Subcommand};
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::{Trace, replay};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The commands of `lrc`.
#[derive(Debug, Subcommand)]
pub enum LrcCommand {
    /// Run a trace of a pipeline through a cache, and print its hits, misses and evictions
    #[command(after_help = "Examples:\n  \
            copperfs lrc replay trace.json\n  \
            copperfs lrc replay trace.json --policy lru | jq .hits\n  \
            echo '{\"cache\":2,\"blocks\":{\"A\":1,\"B\":1,\"C\":1},\"initial_lru_to_mru\":[\"A\",\"B\"],\n    \
            \"events\":[{\"ev\":\"submit\",\"job\":\"j\",\"tasks\":[{\"id\":\"t\",\"in\":[\"A\"]}]},\n      \
            {\"ev\":\"put\",\"block\":\"C\"},\n      \
            {\"ev\":\"read\",\"job\":\"j\",\"task\":\"t\",\"block\":\"A\"}]}' | copperfs lrc replay -\n\n\
            A trace is one JSON object. Events are submit, read, put, done, taskfail, end and flush.\n\
            Sizes, \"cache\" and the option \"floor\" are bytes. \"options\" may set \"admit\" (always or\n\
            compare), \"decrement\" (read or done), \"attribution\" (none or fifo) and \"floor\" (0).\n\
            The answer is one line of JSON: hits, misses, evictions in order, resident blocks and counts.")]
    Replay(ReplayArgs),
}

/// Options of `lrc replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The trace as JSON; - reads standard input
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// lrc, lrc-offline, lru, lfu, s3-fifo or min
    #[arg(long, value_name = "POLICY", default_value = "lrc")]
    policy: String,
}

/// The maximum length of a trace: it is in memory while it is read. Ten million events fit.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Runs the command.
///
/// # Errors
/// The trace cannot be read or is invalid, or the policy does not exist.
pub fn lrc(command: &LrcCommand) -> anyhow::Result<()> {
    let LrcCommand::Replay(args) = command;
    let policy: EvictionPolicy = args.policy.parse().context("--policy")?;
    let trace = read(&args.trace).and_then(|json| Ok(Trace::from_json(&json)?));
    let outcome = trace.and_then(|trace| Ok(replay(&trace, policy)?));
    let outcome = outcome.with_context(|| args.trace.display().to_string())?;
    say(serde_json::to_string(&outcome)?);
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let input: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path)?),
    };
    let mut json = Vec::new();
    input.take(TRACE_BYTES_MAX + 1).read_to_end(&mut json)?;
    anyhow::ensure!(
        json.len() as u64 <= TRACE_BYTES_MAX,
        "larger than 1 GiB. Replay a part of the trace"
    );
    Ok(json)
}
