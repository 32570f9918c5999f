//! The command line.
//!
//! Parses flags, calls the library, and prints results. An error becomes one message on standard error, with the
//! failure, its reason and advice. Only this module and its children print.

pub mod allocation;
mod amount;
pub mod api;
pub mod bench;
mod child;
pub mod clear;
pub mod config;
mod daemon;
pub mod dataset;
pub mod doctor;
pub mod flags;
mod help;
pub mod index;
pub mod job;
pub mod job_table;
pub mod launch;
pub mod list;
pub mod logs;
pub mod lrc;
mod made;
pub mod manifest;
pub mod mount;
mod mounted;
mod options;
mod output;
mod place;
pub mod plan;
pub mod record;
pub mod recording;
pub mod reload;
pub mod secret;
pub mod simulate;
pub mod start;
pub mod stats;
pub mod status;
mod stay;
pub mod teardown;
pub mod top;
pub mod unmount;
pub mod upgrade;
pub mod warm;

use self::output::{fail, say, say_bytes};
use self::stats::grouped;
use crate::attendant::{self, AttendArgs, KeepArgs};
use crate::warm::touch;
use crate::watchdog::{self, WatchdogArgs};
use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A per-node, read-only, cooperative caching filesystem.
///
/// Every node of a job mounts the same files. Reads are answered from memory, then by other nodes,
/// and only then by the storage, which sees every file once.
#[derive(Debug, Parser)]
#[command(
    name = "copperfs",
    version,
    max_term_width = 100,
    after_help = "Examples:\n  \
        copperfs launch -n 4 /usr /tmp/mnt\n  \
        copperfs stats /tmp/mnt --all\n  \
        copperfs unmount /tmp/mnt\n\n\
        What this machine offers and lacks: copperfs doctor"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount on this node, and return when the mount answers
    #[command(
        override_usage = "copperfs mount [OPTIONS] [SOURCE...] [MOUNT]",
        after_help = "Examples:\n  \
            copperfs mount s3://bucket/prefix /mnt/data\n  \
            copperfs mount /lus=/lus /data=s3://bucket/prefix /copper_mnt --memory 20GiB\n  \
            copperfs mount --config job.toml --hosts hosts.txt --secret-file ~/.job-secret\n\n\
            Precedence: flags, then COPPERFS_* variables (e.g. COPPERFS_MEMORY=8GiB), then the file.\n\
            --no-push turns the switch --push off; so for the others."
    )]
    Mount(flags::MountFlags),
    /// Start a node on every host of a list, or several nodes on this machine
    #[command(
        override_usage = "copperfs launch [OPTIONS] [SOURCE...] [MOUNT]",
        after_help = "Examples:\n  \
            copperfs launch -n 4 /usr /tmp/mnt\n  \
            copperfs launch --hosts hosts.txt --config job.toml /tmp/copper_mnt\n  \
            copperfs launch --hosts h1,h2,h3 /lus=/lus /copper_mnt --arity 8\n\n\
            Makes the job secret and hands it over a pipe. If one node fails, all are taken down."
    )]
    Launch(launch::LaunchArgs),
    /// Unmount, and end the daemon
    #[command(
        visible_alias = "umount",
        after_help = "Examples:\n  \
            copperfs unmount /copper_mnt\n  \
            copperfs unmount /tmp/mnt           # every node of the launch at /tmp/mnt\n  \
            copperfs unmount --force /copper_mnt\n\n\
            A mount in use stays, and its users are named; --force unmounts it anyway. A root alone stays,\n\
            too, while other nodes read through it. A daemon that does not answer is killed; the mount of a\n\
            dead one is removed."
    )]
    Unmount(unmount::UnmountArgs),
    /// Replace the daemon of a mount by another version, while the mount is in use
    #[command(after_help = "Examples:\n  \
            copperfs upgrade /copper_mnt                       # to the version of this program\n  \
            copperfs upgrade /copper_mnt --program /opt/copperfs-0.2/copperfs\n  \
            copperfs upgrade /tmp/mnt                          # every node of the launch at /tmp/mnt\n\n\
            For mounts with --takeover. Programs that read wait for a moment. What is in memory is lost; a\n\
            store on a disk stays. If the other version does not answer within 5 s, the version before\n\
            goes on.")]
    Upgrade(upgrade::UpgradeArgs),
    /// Make the secret of a job, for nodes that are started one by one
    #[command(after_help = "Examples:\n  \
            copperfs secret ~/.job-secret                      # a new one: --secret-file of every node\n  \
            copperfs secret /etc/copperfs/site.key             # once, as root: the same on all nodes\n  \
            copperfs secret /run/copperfs-jobs/77/secret --site-key /etc/copperfs/site.key \\\n      \
            --job 77 --owner 1000:1000                      # in a Prolog: the same on all its nodes\n\n\
            The secret is never shown. Whoever can read the file can read what the job reads.")]
    Secret(secret::SecretArgs),
    /// Show the counters of a node, or of all nodes
    #[command(after_help = "Examples:\n  \
            copperfs stats\n  \
            copperfs stats /copper_mnt --all\n  \
            copperfs stats --all --json | jq .total.origin\n\n\
            The keys of the JSON form are stable; docs/cli.md lists them.")]
    Stats(stats::StatsArgs),
    /// List the mounts of this machine
    #[command(after_help = "Examples:\n  \
            copperfs list\n  \
            copperfs list --json | jq -r '.[].mount'")]
    List(list::ListArgs),
    /// Show the log of a mount, also after its daemon has ended
    #[command(after_help = "Examples:\n  \
            copperfs logs\n  \
            copperfs logs /tmp/mnt --node 2 -f\n  \
            copperfs logs -n 1000 /copper_mnt | grep WARN")]
    Logs(logs::LogsArgs),
    /// Check a configuration file, or show the options of a mount
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs config check job.toml\n  \
            copperfs config show /copper_mnt\n  \
            copperfs config show --changed --json"
    )]
    Config(config::ConfigCommand),
    /// Show the tree of nodes: which are missing, and which have moved
    #[command(after_help = "Examples:\n  \
            copperfs status /copper_mnt\n  \
            copperfs status /copper_mnt --tree 1 --full\n  \
            copperfs status /copper_mnt --json | jq -r '.missing[]'\n\n\
            Ends with 0 only if all nodes answer and none is stranded (cut off from every ancestor \
            in a tree). A node that has moved to another ancestor works; it goes back by itself.\n\
            lag: the round trip to the node above.")]
    Status(status::StatusArgs),
    /// Show the activity of each node, live
    #[command(after_help = "Examples:\n  \
            copperfs top /copper_mnt\n  \
            copperfs top /copper_mnt --interval 5s\n\n\
            q quits, the arrows choose the order, / filters. Needs a terminal; without one:\n\
            copperfs stats --all --json")]
    Top(top::TopArgs),
    /// Drop cached data on all nodes, so that changes in storage are seen
    #[command(after_help = "Examples:\n  \
            copperfs clear /copper_mnt/lus/project/venv\n  \
            copperfs clear -m /copper_mnt /lus/project/venv   # as seen within the mount\n  \
            copperfs clear --everything /copper_mnt\n\n\
            Files that are open go on with the bytes they were opened with.")]
    Clear(clear::ClearArgs),
    /// Change options of a mount that stays: log, rates, policy, sizes, credentials
    #[command(after_help = "Examples:\n  \
            copperfs reload /copper_mnt --log-level debug\n  \
            copperfs reload /copper_mnt                 # the file and the credentials again\n  \
            copperfs reload /copper_mnt --config new.toml --dry-run\n\n\
            An option that only a new mount can change is named, and then nothing changes. Without\n\
            flags, or with --config, the variables COPPERFS_*, AWS_*, AZURE_* and GOOGLE_* count too;\n\
            with other flags only these. docs/SEMANTICS.md says what else there is to know.")]
    Reload(reload::ReloadArgs),
    /// Record the files that a program uses, for `copperfs warm`
    #[command(after_help = "Examples:\n  \
            copperfs record -o start.profile -- python train.py --steps 0\n  \
            copperfs record start /copper_mnt; ./job.sh; copperfs record stop /copper_mnt -o job.profile\n\n\
            The kernel forgets what it holds of the mount first, so that everything is seen. Ends with\n\
            the program's own status. The format: docs/profiles.md")]
    Record(recording::RecordArgs),
    /// Load files into the memory of all nodes, before they are read
    #[command(after_help = "Examples:\n  \
            copperfs warm --profile start.profile\n  \
            copperfs warm /copper_mnt/lus/project/venv/lib\n  \
            copperfs warm --profile start.profile --json | jq -c 'select(.event == \"done\")'\n\n\
            Ends with 1 if a node is not warm, which it names, and with 130 when it is interrupted, on\n\
            all nodes. Warm nodes are left as they are. The keys of the JSON lines: docs/profiles.md")]
    Warm(warm::WarmArgs),
    /// Write a tree's names and attributes to a file, so that mounts need not list it
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs index build s3://bucket/train -o train.index --hash\n  \
            copperfs index update train.index\n  \
            copperfs index show train.index --json | jq .files\n\n\
            For mounts and launches with --index. An index that was interrupted goes on with --resume; its\n\
            state is FILE.partial. Ends with 1 if directories cannot be listed."
    )]
    Index(index::IndexCommand),
    /// Run training jobs, and declare them to the cluster
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs job run --dataset imagenet --ideal-rate 114MB/s -- python train.py\n  \
            copperfs job run --help\n\n\
            Who reads is recognised by Slurm's, PBS's, Kubernetes' or torchrun's job too: docs/JOBS.md"
    )]
    Job(job::JobCommand),
    /// Declare datasets, which are cached once and within a budget
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs dataset add imagenet /copper_data/lus/imagenet --index /lus/imagenet/.index\n  \
            copperfs dataset list\n  \
            copperfs dataset show imagenet --json | jq .cached_ratio"
    )]
    Dataset(dataset::DatasetCommand),
    /// Show or change the policy that divides cache and remote IO
    #[command(after_help = "Examples:\n  \
            copperfs policy\n  \
            copperfs policy max-min\n\n\
            The policies: docs/ALLOCATOR.md")]
    Policy(allocation::PolicyArgs),
    /// Show the budget of every dataset and the rate of every job, and their use
    #[command(after_help = "Examples:\n  \
            copperfs allocation\n  \
            copperfs dataset set imagenet --budget 120GB       # set one by hand\n  \
            copperfs job set slurm:1234 --remote-io 50MB/s")]
    Allocation(mounted::AskArgs),
    /// Check what this machine offers and lacks, and how to fix it
    #[command(after_help = "Examples:\n  \
            copperfs doctor\n  \
            copperfs doctor --origin /data=az://container/prefix\n  \
            copperfs doctor --hosts hosts.txt\n  \
            copperfs doctor --bundle report.tar.gz\n  \
            copperfs doctor --json | jq '.[] | select(.verdict != \"ok\")'\n\n\
            Ends with 1 if a mount cannot work here.")]
    Doctor {
        #[command(flatten)]
        args: doctor::DoctorArgs,
    },
    /// Compute how a policy divides cache and remote IO, without a cluster
    #[command(after_help = "Examples:\n  \
            copperfs plan problem.json\n  \
            copperfs plan problem.json --policy max-min --json | jq .jobs\n  \
            echo '{\"totals\":{\"gpus\":8,\"cache\":\"2TB\",\"remote_io\":\"200MB/s\"},\n    \
            \"datasets\":[{\"name\":\"A\",\"size\":\"1.3TB\"}],\n    \
            \"jobs\":[{\"id\":\"r0\",\"dataset\":\"A\",\"ideal_rate\":\"114MB/s\",\"gpus\":1}]}' | copperfs plan -\n\n\
            Numbers are bytes and bytes per second; texts have a unit: TB decimal, TiB binary.\n\
            Policies, optional fields and the output's: docs/ALLOCATOR.md")]
    Plan(plan::PlanArgs),
    /// Run pipelines whose files are kept by reference counts (LRC)
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs lrc replay trace.json\n  \
            copperfs lrc replay trace.json --policy lru | jq .hits"
    )]
    Lrc(lrc::LrcCommand),
    /// Simulate starts, clusters and pipelines
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs simulate tree --nodes 8300 --arity 4 --link 25GB/s --hop 2us\n  \
            copperfs simulate tree --help"
    )]
    Simulate(simulate::SimulateCommand),
    /// Measure the cost of the tree and of images on this machine
    #[command(
        subcommand,
        after_help = "Examples:\n  \
            copperfs bench tree --nodes 31 --arity 2\n  \
            copperfs bench hop --bulk 1GiB\n  \
            copperfs bench image"
    )]
    Bench(bench::BenchCommand),
    /// Send a request to the HTTP interface of a daemon
    #[command(after_help = "Examples:\n  \
            copperfs api GET /v1/allocation\n  \
            copperfs api PUT /v1/policy '{\"policy\": \"max-min\"}'\n  \
            copperfs api --socket                           # its path, for curl --unix-socket\n\n\
            The requests: docs/openapi.json, or GET /openapi.json")]
    Api(api::ApiArgs),
    /// Write a script that completes commands in a shell
    #[command(after_help = "Examples:\n  \
            copperfs completions bash > ~/.local/share/bash-completion/completions/copperfs\n  \
            copperfs completions zsh > ~/.zfunc/_copperfs\n  \
            copperfs completions fish > ~/.config/fish/completions/copperfs.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_help = "Examples:\n  \
            copperfs man ~/.local/share/man/man1; man copperfs-mount")]
    Man {
        /// The directory, which is made if it is missing
        directory: PathBuf,
    },
    /// The background process of a mount; options on standard input
    #[command(hide = true)]
    Daemon {
        /// The mount point, for the process table
        mountpoint: PathBuf,
        /// How many open files of a daemon that has died come on standard input
        #[arg(long, default_value_t = 0)]
        legacy: usize,
        #[command(flatten)]
        before: start::BeforeArgs,
    },
    /// Stands by a daemon: lists directories for it, and frees its mounts when it is killed
    #[command(hide = true)]
    Watchdog(WatchdogArgs),
    /// Mount the images of another user's mount, as root (--front), until the mount is gone
    #[command(after_help = "Examples:\n  \
            copperfs attend /copper_mnt      # in a Prolog, after copperfs mount --front auto as the user\n\n\
            Returns when the first images are mounted, and leaves a process behind. The mount of root needs\n\
            none: its daemon starts one.")]
    Attend(AttendArgs),
    /// Passes a FUSE connection on standard input to the daemons of a mount
    #[command(hide = true)]
    Keep(KeepArgs),
    /// Does to a mount what a plan on standard input says
    #[command(hide = true)]
    Touch {
        /// The mount point
        mountpoint: PathBuf,
    },
    /// The other side of doctor --hosts; a task on standard input
    #[command(hide = true)]
    Probe,
    /// The other side of a remote launch; a bundle on standard input
    #[command(hide = true)]
    StartNode {
        /// One of many tasks that were given the same bundle: stay until the daemon ends
        #[arg(long)]
        together: bool,
        /// The bundle is in this file
        #[arg(long, value_name = "FILE")]
        bundle: Option<PathBuf>,
        /// Only say the host and the number of this task
        #[arg(long)]
        who: bool,
    },
}

/// The exit status of a program that was interrupted, as in a shell.
const INTERRUPTED: u8 = 130;

/// The user has interrupted a command. The message tells how to go on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Interrupted(&'static str);

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let parsed = Cli::from_arg_matches(&cli().get_matches());
    let parsed = parsed.unwrap_or_else(|error| error.exit());
    match run(parsed.command) {
        Ok(code) => match output::lost() {
            Some(error) if code == ExitCode::SUCCESS => {
                fail(format!("cannot write the output: {error}"));
                ExitCode::FAILURE
            }
            _ => code,
        },
        Err(error) => {
            fail(explained(&error));
            match error.downcast_ref::<child::CannotRun>() {
                _ if error.is::<Interrupted>() => ExitCode::from(INTERRUPTED),
                Some(error) => error.code(),
                None => ExitCode::FAILURE,
            }
        }
    }
}

/// The definition of the program's arguments.
fn cli() -> clap::Command {
    // At the top it shows the help of all commands below.
    let inner = |command: clap::Command| command.disable_help_subcommand(true);
    help::grouped(Cli::command().mut_subcommands(inner))
}

/// Attends a mount, or starts a process that does.
fn attend(args: &AttendArgs) -> anyhow::Result<()> {
    if args.stays() {
        return attendant::attend(args);
    }
    say(attendant::start(args.mountpoint())?);
    Ok(())
}

/// Writes the manual pages of all commands.
fn man(directory: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write manual pages into {}", directory.display());
    std::fs::create_dir_all(directory).with_context(cannot)?;
    clap_mangen::generate_to(cli(), directory).with_context(cannot)
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    let code = |succeeded: bool| ExitCode::from(u8::from(!succeeded));
    match command {
        Command::Status(args) => return status::status(&args).map(code),
        Command::Doctor { args } => return doctor::doctor(args).map(code),
        Command::Record(args) => return recording::record(args),
        Command::Warm(args) => return warm::warm(&args),
        Command::Index(args) => return index::index(&args),
        Command::Job(command) => return job::job(&command),
        Command::Lrc(command) => return lrc::lrc(&command),
        // It has reported the error on its pipe already.
        Command::Daemon {
            mountpoint,
            legacy,
            before,
        } => return Ok(code(start::daemon(&mountpoint, legacy, before).is_ok())),
        Command::Mount(flags) => mount::mount(flags),
        Command::Launch(args) => launch::launch(args),
        Command::Unmount(args) => unmount::unmount(&args),
        Command::Upgrade(args) => upgrade::upgrade(&args),
        Command::Stats(args) => stats::stats(&args),
        Command::List(args) => list::list(&args),
        Command::Logs(args) => return logs::logs(&args),
        Command::Config(command) => config::config(&command),
        Command::Api(args) => api::api(&args),
        Command::Completions { shell } => {
            // Not written by clap_complete, which panics when the pipe is closed.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli(), "copperfs", &mut script);
            say_bytes(&script);
            Ok(())
        }
        Command::Man { directory } => man(&directory),
        Command::Top(args) => top::top(&args),
        Command::Clear(args) => clear::clear(&args),
        Command::Reload(args) => reload::reload(&args),
        Command::Attend(args) => attend(&args),
        Command::Keep(args) => attendant::keep(&args),
        Command::Watchdog(args) => watchdog::serve(args).context("the watchdog has failed"),
        Command::Touch { mountpoint } => {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            touch::serve(&mountpoint, input, output).map_err(anyhow::Error::from)
        }
        Command::Plan(args) => plan::plan(&args),
        Command::Dataset(command) => dataset::dataset(&command),
        Command::Policy(args) => allocation::policy(&args),
        Command::Allocation(how) => allocation::allocation(&how),
        Command::Simulate(command) => simulate::simulate(command),
        Command::Bench(command) => bench::bench(command),
        Command::StartNode { who: true, .. } => {
            launch::together::print_host();
            Ok(())
        }
        Command::StartNode {
            together: true,
            bundle,
            ..
        } => launch::together::start_node(bundle.as_deref()),
        Command::StartNode { .. } => launch::start_node(),
        Command::Secret(args) => secret::secret(&args),
        Command::Probe => doctor::probe(),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Prints `value` as JSON, or as the text that `told` makes of it.
fn print<T: Serialize>(
    json: bool,
    value: &T,
    told: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    match json {
        true => say(serde_json::to_string_pretty(value)?),
        false => say(told(value).trim_end()),
    }
    Ok(())
}

/// A number of things, such as `1 file`.
fn counted<N: TryInto<u64>>(number: N, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    let name = if number == 1 { one } else { many };
    format!("{} {name}", grouped(number))
}

/// An error and its causes in one line. A cause that the text already contains is skipped, because some errors
/// include their causes.
fn explained(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The first `most` of `items`, and the number of the others.
fn listed<T: Display>(items: &[T], most: usize) -> String {
    let shown: Vec<String> = items.iter().take(most).map(T::to_string).collect();
    let shown = shown.join(", ");
    match items.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// A ratio in per cent.
fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// `value`, or a dash.
fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A table with aligned columns, and a row for each item. The first line has the titles. Columns of numbers are
/// aligned to the right, others to the left.
struct Table<T> {
    items: Vec<T>,
    lines: Vec<String>,
}

impl<T> Table<T> {
    fn of(items: impl IntoIterator<Item = T>) -> Self {
        let items: Vec<T> = items.into_iter().collect();
        let lines = vec![String::new(); items.len() + 1];
        Self { items, lines }
    }

    /// Adds a column with the `cell` of each item.
    fn column<C: ToString>(mut self, title: &str, cell: impl Fn(&T) -> C) -> Self {
        let is_number = |text: &String| {
            let unit = text.matches('.').count() < 3 && !text.contains(':');
            let digit = text.starts_with(|c: char| c.is_ascii_digit());
            unit && (digit || text.is_empty() || text == "-")
        };
        let mut cells = vec![title.to_owned()];
        cells.extend(self.items.iter().map(|item| cell(item).to_string()));
        let width = cells.iter().map(|cell| cell.chars().count()).max();
        let width = width.unwrap_or(0);
        let right = cells[1..].iter().all(is_number);
        for (line, cell) in self.lines.iter_mut().zip(cells) {
            line.push_str(&match right {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            });
        }
        self
    }

    fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| line.trim_end());
        lines.flat_map(|line| [line, "\n"]).collect()
    }
}

#[cfg(test)]
mod tests;
