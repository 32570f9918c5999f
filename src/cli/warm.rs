//! `copperfs warm`: loads files into the kernels' caches on all nodes, and shows the progress.

use super::daemon::{client_of, run};
use super::place::Named;
use super::{fail, say};
use crate::config::Machine;
use crate::control::client::{AnswerLines, RequestLines};
use crate::daemon::mountpoint::canonical;
use crate::node::warm::ask::Order;
use crate::profile::Profile;
use anyhow::{Context, bail};
use clap::Args;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// The mount point
    mountpoint: PathBuf,
    /// What `copperfs record` has written
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    profile: Option<PathBuf>,
    /// Files, and directories with all below them, as seen in the mount (/lus/x or MOUNTPOINT/lus/x)
    #[arg(value_name = "PATH", required_unless_present = "profile")]
    paths: Vec<PathBuf>,
    /// Print JSON lines, as when standard error is no terminal
    #[arg(long)]
    json: bool,
}

/// The exit status of a program that was interrupted, as in a shell.
const INTERRUPTED: u8 = 130;

/// Warms.
///
/// # Errors
/// The plan or the mount cannot be used, or not all nodes are warm.
pub fn warm(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let mountpoint = canonical(&args.mountpoint);
    let plan = match &args.profile {
        Some(path) => {
            let profile = Profile::load(path).with_context(|| path.display().to_string())?;
            Plan::Profile(profile)
        }
        None => {
            let machine = Machine::inspect();
            let below = args.paths.iter();
            let below = below.map(|path| inside(&mountpoint, path, &machine));
            Plan::Below(below.collect::<anyhow::Result<_>>()?)
        }
    };
    let bar = (!args.json && std::io::stderr().is_terminal()).then(|| {
        let bar = ProgressBar::new(0);
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    });
    let client = client_of(&mountpoint)?;
    run(async {
        let (answer, request) = client.converse("POST", "/v1/warm").await?;
        let warming = converse(plan, answer, request, bar.as_ref());
        tokio::select! {
            outcome = warming => outcome,
            _ = tokio::signal::ctrl_c() => {
                // The end of the connection stops the warming on all nodes.
                fail("stopped; what has come stays where it is");
                Ok(ExitCode::from(INTERRUPTED))
            }
        }
    })
}

/// The files to load.
enum Plan {
    Profile(Profile),
    Below(Vec<ItemPath>),
}

/// The path inside the mount that `path` refers to. Links are followed as long as they stay inside.
fn inside(mountpoint: &Path, path: &Path, machine: &Machine) -> anyhow::Result<ItemPath> {
    let named = Named::find(path, Some(mountpoint), machine)?;
    Ok(named.followed().unwrap_or(named.inside))
}

async fn converse(
    plan: Plan,
    mut answer: AnswerLines,
    mut request: RequestLines,
    bar: Option<&ProgressBar>,
) -> anyhow::Result<ExitCode> {
    let sending = async {
        match plan {
            Plan::Profile(profile) => {
                for access in &profile.accesses {
                    request.send(access).await?;
                }
            }
            Plan::Below(paths) => {
                for path in paths {
                    request.send(&Order::Below { path }).await?;
                }
            }
        }
        request.send(&Order::End).await?;
        request.flush().await
    };
    let receiving = async {
        loop {
            let line = answer.value().await?;
            match bar {
                Some(bar) => show(bar, &line),
                None => say(&line),
            }
            if line["event"] == "done" {
                return Ok::<_, anyhow::Error>(line);
            }
        }
    };
    // If the daemon refuses the plan, its error is more useful than the failure to send the rest of the plan.
    tokio::pin!(receiving);
    let done = tokio::select! {
        biased;
        done = &mut receiving => done?,
        told = sending => match told {
            Ok(()) => receiving.await?,
            Err(error) => receiving.await.map_err(|_less| error)?,
        },
    };
    finish(&done, bar.is_some())
}

/// Prints the last line as text, if `words` is set. Returns the exit status.
fn finish(done: &Value, words: bool) -> anyhow::Result<ExitCode> {
    let number = |key: &str| done[key].as_u64().unwrap_or(0);
    let strings = |key: &str| -> Vec<&str> {
        let list = done[key].as_array();
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    };
    let warm = number("nodes_warm");
    if words {
        let vanished = match number("vanished") {
            0 => String::new(),
            count => format!(", {count} items no longer there"),
        };
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let seconds = number("elapsed_ms") as f64 / 1000.0;
        say(format_args!(
            "{warm} nodes are warm: {} items, {} in {seconds:.1} s{vanished}",
            number("items"),
            ByteSize(number("bytes")),
        ));
    }
    let cold = strings("not_warmed");
    if cold.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let reasons = strings("reasons").join("; ");
    let why = if reasons.is_empty() {
        "they did not answer".to_owned()
    } else {
        reasons
    };
    bail!(
        "{warm} nodes are warm, {} are not, or not wholly: {} ({why}). Warm again when they are back: \
         what is warm costs nothing",
        cold.len(),
        cold.join(", ")
    )
}

fn show(bar: &ProgressBar, line: &Value) {
    let number = |pointer: &str| line.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    if line["event"] == "done" {
        return bar.finish_and_clear();
    }
    let nodes = number("/nodes").max(1);
    let complete = line["plan"]["complete"] == true;
    let template = if complete {
        "{bar:16} {percent:>3}% of {len} items, eta {eta}, {msg}"
    } else {
        "{spinner} {msg}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(number("/plan/items").saturating_mul(nodes));
    bar.set_position(number("/items"));
    let elapsed = number("/elapsed_ms").max(1);
    let rate = number("/bytes").saturating_mul(1000) / elapsed;
    let slowest = match line["slowest"]["node"].as_str() {
        Some(node) => format!(", slowest {node} at {}", number("/slowest/items")),
        None => String::new(),
    };
    bar.set_message(format!(
        "{}/{nodes} nodes, {} ({}){slowest}",
        number("/nodes_done"),
        ByteSize(number("/bytes")),
        ByteRate(rate),
    ));
}
