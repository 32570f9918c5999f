//! The command line.
//!
//! Parses, calls, prints. Errors end here: one message on standard error that says what failed, why,
//! and what to try. Only this module and those below it print.

pub mod doctor;
pub mod flags;
pub mod launch;
pub mod mount;
pub mod record;
pub mod recording;
mod socket;
pub mod start;
pub mod stats;
pub mod unmount;
pub mod warm;

use crate::config::Machine;
use crate::warm::touch;
use clap::{Parser, Subcommand};
use flags::MountFlags;
use launch::LaunchArgs;
use recording::RecordArgs;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use warm::WarmArgs;

/// A per-node, read-only, cooperative caching filesystem.
///
/// Every node of a job mounts the same files. Reads are answered from memory, then by other nodes,
/// and only then by the storage, which sees every file once.
#[derive(Debug, Parser)]
#[command(
    name = "copperfs",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "Examples:\n  \
        copperfs launch --hosts local:4 --origin /usr=file:///usr /tmp/mnt\n  \
        copperfs stats /tmp/mnt/3 --cluster\n  \
        copperfs unmount --all /tmp/mnt\n\n\
        What this machine offers and lacks: copperfs doctor"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount on this node, and return when the mount answers
    #[command(after_help = "Examples:\n  \
            copperfs mount /copper_mnt --origin /lus=file:///lus\n  \
            copperfs mount --config job.toml --hosts hosts.txt --secret-file ~/.job-secret\n  \
            copperfs mount /mnt/data --origin /data=s3://bucket/prefix --memory 20GiB\n\n\
            Flags go before COPPERFS_* variables (COPPERFS_MEMORY), those before the file.")]
    Mount(MountFlags),
    /// Start a node on every host of a list, or several on this machine
    #[command(after_help = "Examples:\n  \
            copperfs launch --hosts local:4 --origin /usr=file:///usr /tmp/mnt\n  \
            copperfs launch --hosts hosts.txt --config job.toml /tmp/copper_mnt\n  \
            copperfs launch --hosts h1,h2,h3 --origin /lus=/lus --arity 8 /copper_mnt\n\n\
            Makes the job secret and hands it over a pipe. If one node fails, all are taken down.")]
    Launch(LaunchArgs),
    /// Take a mount away and end its daemon
    #[command(after_help = "Examples:\n  \
            copperfs unmount /copper_mnt\n  \
            copperfs unmount --all /tmp/mnt    # every node of the launch at /tmp/mnt\n\n\
            A daemon that does not answer is killed; the mount of a dead one is removed.")]
    Unmount {
        /// The mount point, or with --all that of a launch
        mountpoint: PathBuf,
        /// Every node of the launch at MOUNTPOINT
        #[arg(long)]
        all: bool,
        /// Succeed if nothing is there: one node of a launch that is taken down
        #[arg(long, hide = true)]
        if_mounted: bool,
        /// Only what the launch with this id has started, if it has: a launch that gives up
        #[arg(long, hide = true, value_name = "ID")]
        of_launch: Option<String>,
    },
    /// Show what a node, or the whole tree, has done
    #[command(after_help = "Examples:\n  \
            copperfs stats /copper_mnt\n  \
            copperfs stats /copper_mnt --cluster\n  \
            copperfs stats /copper_mnt --cluster --json | jq .total.origin\n\n\
            The keys of the JSON form are stable; docs/cli.md lists them.")]
    Stats {
        /// The mount point
        mountpoint: PathBuf,
        /// All nodes of the tree, not only this one
        #[arg(long)]
        cluster: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Forget what is cached, so that changes at the origin are seen
    #[command(after_help = "Examples:\n  \
            copperfs clear /copper_mnt\n  \
            copperfs clear /copper_mnt /lus/project/venv --cluster\n\n\
            Files that are open go on with the bytes they were opened with.")]
    Clear {
        /// The mount point
        mountpoint: PathBuf,
        /// Only this path and what is below it, as seen in the mount (/lus/x or MOUNTPOINT/lus/x)
        path: Option<PathBuf>,
        /// On all nodes of the tree, not only on this one
        #[arg(long)]
        cluster: bool,
    },
    /// Write down what a program touches on a mount, for `copperfs warm`
    #[command(after_help = "Examples:\n  \
            copperfs record /copper_mnt -o start.profile -- python train.py --steps 0\n  \
            copperfs record start /copper_mnt; ./job.sh; copperfs record stop /copper_mnt -o job.profile\n\n\
            The kernel forgets what it holds of the mount first, so that everything is seen. Ends with\n\
            the program's own status. The format: docs/profiles.md")]
    Record(RecordArgs),
    /// Bring files into the memory of all nodes, before anybody asks for them
    #[command(after_help = "Examples:\n  \
            copperfs warm /copper_mnt --profile start.profile\n  \
            copperfs warm /copper_mnt /lus/project/venv/lib\n  \
            copperfs warm /copper_mnt --profile start.profile --json | jq -c 'select(.event == \"done\")'\n\n\
            Ends with 1 if a node is not warm, which it names, and with 130 when it is interrupted, on\n\
            all nodes. Warm nodes are left as they are. The keys of the JSON lines: docs/profiles.md")]
    Warm(WarmArgs),
    /// Say what this machine offers and lacks, and how to fix it
    #[command(after_help = "Examples:\n  \
            copperfs doctor\n  \
            copperfs doctor --json | jq '.[] | select(.verdict != \"ok\")'\n\n\
            Ends with 1 if a mount cannot work here.")]
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// The background process of a mount; options on standard input
    #[command(hide = true)]
    Daemon {
        /// The mount point, for the process table
        mountpoint: PathBuf,
    },
    /// Does to a mount what a plan on standard input says
    #[command(hide = true)]
    Touch {
        /// The mount point
        mountpoint: PathBuf,
    },
    /// The other side of a remote launch; a bundle on standard input
    #[command(hide = true)]
    StartNode,
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Mount(flags) => mount::mount(flags),
        Command::Launch(args) => launch::launch(args),
        Command::Unmount {
            mountpoint,
            all,
            if_mounted,
            of_launch,
        } => match of_launch {
            Some(id) => unmount::of_launch(&mountpoint, &id, &Machine::inspect()),
            None => unmount::unmount(&mountpoint, all, if_mounted),
        },
        Command::Stats {
            mountpoint,
            cluster,
            json,
        } => stats::stats(&mountpoint, cluster, json),
        Command::Clear {
            mountpoint,
            path,
            cluster,
        } => stats::clear(&mountpoint, path.as_deref(), cluster),
        Command::Record(args) => match recording::record(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Warm(args) => match warm::warm(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Touch { mountpoint } => {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
            touch::serve(&mountpoint, input, output).map_err(anyhow::Error::from)
        }
        Command::Doctor { json } => match doctor::doctor(json) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        // It has said why on its pipe.
        Command::Daemon { mountpoint } => match start::daemon(&mountpoint) {
            Ok(()) => Ok(()),
            Err(_) => return ExitCode::FAILURE,
        },
        Command::StartNode => launch::start_node(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fail(explained(&error));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line for the user; a closed pipe is the user's choice.
fn say(line: impl Display) {
    let _closed = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line on standard error.
fn fail(line: impl Display) {
    let _closed = writeln!(std::io::stderr(), "copperfs: {line}");
}

/// An error and its causes in one line. A cause that the text before it already tells is left out: some
/// errors show theirs.
fn explained(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Aligned columns: the first row is the head; numbers to the right, words to the left.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let numeric = |text: &str| {
        text.is_empty() || text == "-" || text.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut text = String::new();
    let shapes: Vec<(usize, bool)> = (0..COLUMNS)
        .map(|column| {
            let cells = || rows.iter().map(|row| row[column].as_str());
            let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
            let unit = |cell: &str| cell.matches('.').count() < 3 && !cell.contains(':');
            let right = cells().skip(1).all(|cell| numeric(cell) && unit(cell));
            (width, right)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, (width, right)) in row.iter().zip(&shapes) {
            let padding = " ".repeat(width - cell.chars().count());
            if *right {
                line.push_str(&format!("{padding}{cell}  "));
            } else {
                line.push_str(&format!("{cell}{padding}  "));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `text` in lines of at most `width` characters, broken at blanks.
fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            out.push('\n');
            column = 0;
        }
        if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests;
