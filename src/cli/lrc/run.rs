//! `copperfs lrc run`: runs a pipeline, and relays what its engine says about its jobs to the daemon.
//!
//! The engine's adapter writes to a socket in a private directory of this run. Everything that can be wrong is checked
//! before the command is started. After that the command goes on whatever happens to the daemon, and the status of the
//! command is that of the run. All jobs end when the command has ended, in whatever way. If this process is killed, the
//! daemon sees that the conversation has broken, and ends them.

mod conversation;
mod engine;
mod listen;
mod place;
mod private_dir;
mod profile_file;
mod relay;
mod run_log;

#[cfg(test)]
mod tests;

pub(super) use profile_file::read as read_profile;

use crate::cli::child::{Signals, exit_code};
use crate::cli::daemon;
use crate::cli::fail;
use crate::cli::mounted::MountFlag;
use crate::config::Machine;
use crate::pipeline::profile::{Expectations, FileOrder, Profile, Recorder};
use anyhow::Context;
use clap::{Args, ValueEnum};
use conversation::Daemon;
use copperfs_policy::amounts::parse_duration;
use engine::{Engine, EngineSetup};
use private_dir::PrivateDir;
use relay::{Defaults, Relay};
use run_log::RunLog;
use serde_json::Number;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// Lines of adapters that wait for the relay. Further ones wait at their connections.
const INPUTS_QUEUED: usize = 64;
/// The longest name of a run, in bytes.
const APP_BYTES_MAX: usize = 128;

/// Flags of `lrc run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The engine that the command uses
    #[arg(long, value_name = "ENGINE")]
    engine: Engine,
    /// The dataset that the pipeline reads [default: the only one]
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    #[command(flatten)]
    mounted: MountFlag,
    /// Where the data mount of this node is [default: as its daemon has noted]
    #[arg(long, value_name = "DIR")]
    data_mount: Option<PathBuf>,
    /// The name of the run, in lists [default: made from CMD]
    #[arg(long, value_name = "NAME", value_parser = app_name)]
    app: Option<String>,
    /// What releases the inputs of a task: its end, or also the first read by a process with its COPPERFS_TASK
    #[arg(
        long,
        value_name = "done|read",
        default_value = "done",
        hide_possible_values = true
    )]
    consume: Consume,
    /// When a job ends by itself if its end is never told
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    expires: Duration,
    /// Keep the jobs of the run in this file, and expect those that it has from the last run
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Write each line of the adapter to this file, with its time and its answer
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    setup: EngineSetup,
    /// The program to run, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The values of `--consume`.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Consume {
    Done,
    Read,
}

/// Runs the pipeline. The status is that of its command.
///
/// # Errors
/// The daemon, the dataset, its root, the engine or the profile is not there or not usable; the command cannot be
/// started.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::inspect();
    let app = args.app.clone();
    let app = app.unwrap_or_else(|| derived_name(&args.command));
    let place = place::find(
        &args.mounted,
        args.dataset.as_deref(),
        args.data_mount.as_deref(),
    )?;
    let dir = PrivateDir::new(&machine.runtime_base())?;
    let setup = engine::set_up(
        args.engine,
        &args.setup,
        &args.command,
        dir.path(),
        &machine,
    )?;
    let last = args.profile.as_deref().map(profile_file::read_last);
    let last = last.transpose()?.flatten();
    let log = args.log.as_deref().map(RunLog::create).transpose()?;
    let mounted = args.mounted.clone();
    let run = Run {
        daemon: Daemon::new(&app, move || mounted.client()),
        defaults: Defaults {
            app,
            dataset: place.dataset,
            consume: match args.consume {
                Consume::Done => "done".into(),
                Consume::Read => "read".into(),
            },
            // Whole seconds, and not 0, which would end each job at once.
            expires_s: Number::from(args.expires.as_secs().max(1)),
        },
        root: place.root,
        dir,
        variables: setup.variables,
        order: setup.order,
        has_adapter: args.engine != Engine::None,
        profile: args.profile.clone(),
        last,
        log,
    };
    daemon::run(run.run(&args.command))
}

/// A run that was checked.
struct Run {
    daemon: Daemon,
    defaults: Defaults,
    /// The path at which the dataset is read.
    root: PathBuf,
    dir: PrivateDir,
    /// The variables of the engine.
    variables: Vec<(String, String)>,
    order: FileOrder,
    /// The engine's adapter is told to connect.
    has_adapter: bool,
    profile: Option<PathBuf>,
    /// The profile of the last run.
    last: Option<Profile>,
    log: Option<RunLog>,
}

impl Run {
    async fn run(self, command: &[OsString]) -> anyhow::Result<ExitCode> {
        // Caught before the first job can be submitted, so that only SIGKILL can prevent their ends.
        let signals = Signals::new()?;
        let socket = self.dir.path().join("socket");
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let conversation = self.daemon.connect().await?;
        let variables = self.variables(&socket)?;
        let variables: Vec<(&str, &str)> = (variables.iter())
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let mut relay = Relay::new(self.defaults.clone(), self.daemon, conversation);
        if self.profile.is_some() {
            let Defaults { app, dataset, .. } = &self.defaults;
            let recorder = Recorder::new(app, dataset, self.order);
            let prefix = format!("{app}-{:08x}", random());
            let expectations = self.last.map(|last| Expectations::new(last, &prefix));
            relay.profile(recorder, expectations);
        }
        if let Some(log) = self.log {
            relay.log(log);
        }
        let (inputs, queue) = mpsc::channel(INPUTS_QUEUED);
        let ((stop, stopped), (finish, finishing)) = (oneshot::channel(), oneshot::channel());
        let relaying = tokio::spawn(relay.run(queue, finishing));
        let listening = tokio::spawn(listen::listen(listener, inputs, self.has_adapter, stopped));
        let status = signals.watch(command, &variables).await;
        // Lines that are on their way are still relayed. The receivers live until they have received.
        let _received = (stop.send(()), finish.send(()));
        let connections = listening.await?;
        let finished = relaying.await?;
        let status = status?;
        if self.has_adapter && connections == 0 {
            fail(
                "warning: the engine has told nothing about its jobs, so none was counted: does the command start this \
                 engine, with this environment? See docs/PIPELINES.md",
            );
        }
        if let (Some(path), Some(recorder)) = (&self.profile, &finished.recorder)
            && status.success()
        {
            keep(path, recorder.profile());
        }
        Ok(exit_code(status))
    }

    /// The environment of the command.
    fn variables(&self, socket: &Path) -> anyhow::Result<Vec<(String, String)>> {
        let text = |path: &Path| {
            let text = path.to_str().map(str::to_owned);
            text.with_context(|| {
                format!(
                    "{} is not UTF-8, so no adapter can be told of it",
                    path.display()
                )
            })
        };
        let Defaults {
            app,
            dataset,
            consume,
            ..
        } = &self.defaults;
        let own = [
            ("COPPERFS_LRC_SOCKET", text(socket)?),
            ("COPPERFS_LRC_DATASET", dataset.clone()),
            ("COPPERFS_LRC_ROOT", text(&self.root)?),
            ("COPPERFS_LRC_APP", app.clone()),
            ("COPPERFS_LRC_CONSUME", consume.clone()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        Ok(own
            .into_iter()
            .chain(self.variables.iter().cloned())
            .collect())
    }
}

/// Writes the profile of a run that ended well. A run without jobs leaves the last profile as it is.
fn keep(path: &Path, profile: &Profile) {
    if profile.jobs.is_empty() {
        let path = path.display();
        fail(format_args!(
            "warning: no job was submitted, so the profile {path} is not written"
        ));
    } else if let Err(error) = profile_file::write(path, profile) {
        // Only a warning: the status is that of the command.
        fail(format_args!("warning: {}", crate::cli::explained(&error)));
    }
}

fn random() -> u32 {
    // The hasher is seeded with random bits.
    let random = RandomState::new().build_hasher().finish();
    u32::try_from(random >> 32).unwrap_or_default()
}

/// A name for the run of `command`: of the script that it runs, else of its program.
fn derived_name(command: &[OsString]) -> String {
    const SCRIPTS: [&str; 7] = ["py", "jar", "sh", "R", "smk", "scala", "sql"];
    let is_script = |word: &&OsString| {
        let extension = Path::new(word).extension().and_then(|it| it.to_str());
        extension.is_some_and(|extension| SCRIPTS.contains(&extension))
    };
    let named = command.iter().find(is_script).or_else(|| command.first());
    let stem = named.and_then(|word| Path::new(word).file_stem());
    let stem = stem.map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let clean = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = stem.chars().map(clean).take(APP_BYTES_MAX).collect();
    if name.is_empty() { "run".into() } else { name }
}

fn app_name(text: &str) -> Result<String, String> {
    if text.is_empty()
        || text.len() > APP_BYTES_MAX
        || text.contains(|c: char| c.is_control() || c == '/')
    {
        return Err(format!(
            "write 1 to {APP_BYTES_MAX} bytes without slashes and control characters, such as daily"
        ));
    }
    Ok(text.to_owned())
}
