//! `copperfs job`: declares and runs jobs.
//!
//! `run` waits for its program, and then ends the job. If `run` itself is killed, the program continues and is
//! still recognised by its environment. The nodes end the job when its processes are gone
//! ([`crate::job::ENDED_AFTER`]).

#[cfg(test)]
pub(super) mod tests;

use super::amount::{amount_or_null, told};
use super::child::{Signals, exit_code};
use super::daemon;
use super::dataset::OneArgs;
use super::fail;
use super::job_table::{self, Daemon, JobRegistry};
use super::mounted::{AskArgs, MountFlag};
use crate::control::client::ClientError;
use crate::job::{JobName, JobNameError};
use crate::model::JobSpec;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use copperfs_policy::amounts::ByteRate;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

/// How long the request that ends a job may take. Without it, the nodes notice the end later.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long `job run` waits for the nodes' last reports at the end: they come each second.
const REPORT_TIMEOUT: Duration = Duration::from_secs(4);
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// What is done with jobs.
#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Run a program as a job that reads a dataset
    #[command(after_help = "Examples:\n  \
            copperfs job run --dataset imagenet -- python train.py\n  \
            copperfs job run --dataset imagenet --ideal-rate 114MB/s --gpus 4 --epochs 90 \\\n      \
            --name resnet-7 -- torchrun --nproc-per-node 4 train.py\n\n\
            The program finds COPPERFS_JOB and COPPERFS_DATASET in its environment. Signals are passed \
            on to it, and its status is that of this command. At its end, its reads are summed up on \
            standard error.")]
    Run(RunArgs),
    /// Declare a job that is run by other means
    #[command(after_help = "Examples:\n  \
            copperfs job add slurm:1234 --dataset imagenet --ideal-rate 114MB/s --gpus 4 --epochs 90")]
    Add(job_table::AddArgs),
    /// Change the rate of a job by hand
    #[command(after_help = "Examples:\n  \
            copperfs job set slurm:1234 --remote-io 50MB/s\n  \
            copperfs job set slurm:1234 --remote-io auto       # as the policy decides")]
    Set(SetArgs),
    /// List the jobs: declared, and seen
    List(ListArgs),
    /// Show a job: its progress, its share and its hit ratio. Of a job that has ended, its reads
    Show(OneArgs),
    /// End a job, and release its share
    #[command(visible_alias = "rm")]
    End(OneArgs),
}

/// Flags of `job list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The jobs that have ended, the last one first: 64 at most
    #[arg(long)]
    ended: bool,
    #[command(flatten)]
    how: AskArgs,
}

/// Flags of `job set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Its name; run: may be left out
    name: String,
    /// The rate at which all its nodes together may read from storage: 50MB/s, 1.6Gbit/s; auto: as the policy decides
    #[arg(long, value_name = "RATE|auto", allow_hyphen_values = true)]
    remote_io: String,
    #[command(flatten)]
    how: AskArgs,
}

/// Flags of `job run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The dataset that it reads
    #[arg(long, value_name = "NAME")]
    dataset: String,
    /// What it reads per second when data is not its bottleneck [default: estimated from its reads]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    ideal_rate: Option<ByteRate>,
    /// GPUs that it uses
    #[arg(long, value_name = "N", default_value_t = 1)]
    gpus: u32,
    /// Epochs that it runs, for its expected end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    epochs: Option<u32>,
    /// Do not name the job at the start, and do not sum up its reads at the end
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    mounted: MountFlag,
    /// Its name: run:NAME in lists [default: of the dataset and a number]
    #[arg(long, value_name = "NAME", value_parser = own_name)]
    name: Option<String>,
    /// The program to run, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Does it. The status is that of the program that was run.
///
/// # Errors
/// The job cannot be declared, or its program cannot be started.
pub fn job(command: &JobCommand) -> anyhow::Result<ExitCode> {
    match command {
        JobCommand::Run(args) => {
            let registry = Daemon(args.mounted.client()?);
            return daemon::run(run(args, &registry));
        }
        JobCommand::Add(args) => job_table::add(args),
        JobCommand::List(ListArgs { ended: false, how }) => {
            how.show("GET", "/v1/jobs", None, job_table::jobs)
        }
        JobCommand::List(ListArgs { ended: true, how }) => {
            how.show("GET", job_table::ENDED, None, job_table::ended_jobs)
        }
        JobCommand::Set(SetArgs {
            name,
            remote_io,
            how,
        }) => {
            let body = json!({ "rate": amount_or_null(remote_io) });
            let told = |_: &Value| format!("{name}: remote IO {}", told(remote_io));
            how.print(&ask(how, "PUT", (name, "/remote-io"), Some(&body))?, told)
        }
        JobCommand::Show(OneArgs { name, how }) => show(name, how),
        JobCommand::End(OneArgs { name, how }) => {
            let told = |_: &Value| format!("{name} has ended");
            how.print(&ask(how, "DELETE", (name, ""), None)?, told)
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn run(args: &RunArgs, registry: &impl JobRegistry) -> anyhow::Result<ExitCode> {
    let own = args.name.clone();
    let own = own.unwrap_or_else(|| generated(&args.dataset));
    let job = JobSpec {
        name: JobName::of_kind("run", &own)
            .with_context(|| format!("{own:?} cannot name a job: give another --name"))?
            .to_string(),
        dataset: args.dataset.clone(),
        ideal_rate: args.ideal_rate.map(|rate| rate.0),
        gpus: args.gpus,
        epochs: args.epochs,
        // The daemon determines the owner from the credentials of the connection.
        owner: None,
    };
    // Caught before the job is declared, so that only SIGKILL can prevent its end from being reported.
    let signals = Signals::new()?;
    registry.add(&job).await?;
    if !args.quiet {
        let (name, dataset) = (&job.name, &job.dataset);
        fail(format_args!(
            "job {name} reads {dataset}; its progress: copperfs job show {own}"
        ));
    }
    let variables = [
        ("COPPERFS_JOB", own.as_str()),
        ("COPPERFS_DATASET", args.dataset.as_str()),
    ];
    let status = signals.watch(&args.command, &variables).await;
    let ended = tokio::time::timeout(END_TIMEOUT, registry.end(&job.name)).await;
    if let Err(error) = ended.unwrap_or_else(|_late| bail!("no answer")) {
        let why = super::explained(&error);
        // Only a warning: the exit status is that of the program.
        fail(format_args!(
            "warning: the end of {} could not be told: {why}. The nodes notice it in half a minute",
            job.name
        ));
    } else if !args.quiet && status.is_ok() {
        sum_up(&job.name, registry).await;
    }
    Ok(exit_code(status?))
}

/// Tells what the job has read, as soon as every node has reported.
async fn sum_up(name: &str, registry: &impl JobRegistry) {
    let reported = async {
        loop {
            match registry.ended(name).await {
                Ok(Some(job)) if job["complete"] != true => {}
                known => return known,
            }
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    };
    match tokio::time::timeout(REPORT_TIMEOUT, reported).await {
        Ok(Ok(Some(job))) => fail(job_table::ended(&job).trim_end()),
        // The summary is missed by people only.
        Ok(Ok(None) | Err(_)) | Err(_) => fail(format_args!("{name} has ended")),
    }
}

fn show(name: &str, how: &AskArgs) -> anyhow::Result<()> {
    let missing = match ask(how, "GET", (name, ""), None) {
        Ok(job) => return how.print(&job, job_table::one),
        Err(missing) if is_missing(&missing) => missing,
        Err(error) => return Err(error),
    };
    let jobs = how.mounted.ask("GET", job_table::ENDED, None)?;
    let full = format!("run:{name}");
    let job = job_table::ended_of(&jobs, name).or_else(|| job_table::ended_of(&jobs, &full));
    how.print(job.ok_or(missing)?, job_table::ended)
}

/// Whether there is no job of the name.
fn is_missing(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(ClientError::Refused { status: 404, .. })
    )
}

/// Sends a request about a job. Its name may lack the kind, as for `job run --name`.
fn ask(
    how: &AskArgs,
    method: &str,
    (name, part): (&str, &str),
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let ask = |name: &str| {
        how.mounted
            .ask(method, &format!("{}{part}", job_table::path(name)), body)
    };
    ask(name).or_else(|error| {
        match is_missing(&error) && !name.contains(':') {
            // The first message names the job as the user has.
            true => ask(&format!("run:{name}")).map_err(|_missing_too| error),
            false => Err(error),
        }
    })
}

/// A name that is unique to this run: the dataset's name, and 32 random bits.
fn generated(dataset: &str) -> String {
    // The hasher is seeded with random bits.
    let random = RandomState::new().build_hasher().finish();
    format!("{dataset}-{:08x}", random >> 32)
}

fn own_name(text: &str) -> Result<String, JobNameError> {
    format!("run:{text}").parse::<JobName>()?;
    Ok(text.to_owned())
}
