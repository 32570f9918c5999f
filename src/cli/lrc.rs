//! `copperfs lrc`: reference counts of pipelines.

mod profile;
mod run;
mod show;
mod tell;
mod trace;

use super::mounted::AskArgs;
use super::say;
use anyhow::Context;
use clap::{Args, Subcommand};
use copperfs_policy::references::EvictionPolicy;
use copperfs_policy::references::replay::{Trace, replay};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The commands of `lrc`.
#[derive(Debug, Subcommand)]
pub enum LrcCommand {
    /// Tell of jobs: which files their tasks will read
    #[command(after_help = "Examples:\n  \
            copperfs lrc submit jobs.json\n  \
            echo '{\"v\":1,\"op\":\"submit\",\"job\":\"daily\",\"dataset\":\"warehouse\",\"files\":[\"a.parquet\"],\n    \
            \"tasks\":[{\"id\":\"scan\",\"in\":[0]}]}' | copperfs lrc submit -\n\n\
            Each JSON object is answered by a line. docs/PIPELINES.md describes them.")]
    Submit(tell::SubmitArgs),
    /// Tell that a task has ended: it releases its inputs
    Done(tell::TaskArgs),
    /// Tell that a task has failed and will run again
    #[command(name = "taskfail")]
    TaskFail(tell::TaskArgs),
    /// End a job: all its references go
    End(tell::EndArgs),
    /// List the live jobs
    #[command(visible_alias = "list")]
    Ls(AskArgs),
    /// Show the tasks of a live job
    Show(show::ShowArgs),
    /// Show how often items will still be read
    #[command(after_help = "Examples:\n  \
            copperfs lrc counts warehouse\n  \
            copperfs lrc counts warehouse day=2026-11-24")]
    Counts(show::CountsArgs),
    /// Evict the items of a dataset that jobs have declared and no task will read
    FlushZero(show::FlushArgs),
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
    /// Run a pipeline, and count what its jobs will read
    #[command(after_help = "Examples:\n  \
            copperfs lrc run --engine spark --dataset warehouse -- spark-submit daily.py\n  \
            copperfs lrc run --engine snakemake --profile calls.profile -- snakemake --cores 8\n  \
            copperfs lrc run --engine dask --log daily.log -- python daily.py\n  \
            copperfs lrc run --engine none -- ./own-engine.sh\n\n\
            The status is that of the program, and signals are passed on to it. Its jobs end when it has\n\
            ended, in whatever way. What each engine needs, and the lines of one's own: docs/PIPELINES.md")]
    Run(run::RunArgs),
    /// Show the profile of a pipeline: its jobs, and from which earlier jobs their inputs are known
    #[command(after_help = "Examples:\n  \
            copperfs lrc profile daily.profile\n  \
            copperfs lrc profile daily.profile --json | jq '.jobs[].known_from'")]
    Profile(profile::ProfileArgs),
    /// Make a trace for `lrc replay` from the log of a run
    #[command(after_help = "Examples:\n  \
            copperfs lrc trace daily.log --sizes /copper_data/lus/warehouse --cache 10GB | copperfs lrc replay -\n  \
            copperfs lrc trace daily.log --sizes /lus/warehouse --cache 10GB > daily.json\n\n\
            A task reads its inputs just before its end. Blocks are named PATH#STRIPE, and are 4 MiB or less.")]
    Trace(trace::TraceArgs),
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
/// The daemon cannot be reached, or refuses; the trace cannot be read or is invalid, or the policy does not exist; the
/// pipeline cannot be run.
pub fn lrc(command: &LrcCommand) -> anyhow::Result<ExitCode> {
    match command {
        LrcCommand::Run(args) => return run::run(args),
        LrcCommand::Submit(args) => tell::submit(args),
        LrcCommand::Done(args) => tell::task("done", args),
        LrcCommand::TaskFail(args) => tell::task("taskfail", args),
        LrcCommand::End(args) => tell::end(args),
        LrcCommand::Ls(how) => show::ls(how),
        LrcCommand::Show(args) => show::show(args),
        LrcCommand::Counts(args) => show::counts(args),
        LrcCommand::FlushZero(args) => show::flush_zero(args),
        LrcCommand::Replay(args) => replay_trace(args),
        LrcCommand::Profile(args) => profile::profile(args),
        LrcCommand::Trace(args) => trace::trace(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn replay_trace(args: &ReplayArgs) -> anyhow::Result<()> {
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
