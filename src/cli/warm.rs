//! `copperfs warm`: loads files into the kernels' caches on all nodes, and shows the progress.

use super::daemon::{client_of, list, run};
use super::mounted::{MountFlag, Named};
use super::{INTERRUPTED, counted, fail, say};
use crate::config::Machine;
use crate::control::client::{AnswerLines, ClientError, RequestLines};
use crate::node::warm::ask::Order;
use crate::num::as_f64;
use crate::profile::Profile;
use anyhow::{Context, bail};
use clap::Args;
use copperfs_overlay::ItemPath;
use copperfs_policy::amounts::{ByteRate, ByteSize};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// What `copperfs record` has written
    #[arg(long, value_name = "FILE", conflicts_with = "paths")]
    profile: Option<PathBuf>,
    /// Files, and directories with all below them: paths below the mount point, or as the mount sees them (/lus/x)
    #[arg(value_name = "PATH", required_unless_present = "profile")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    mount: MountFlag,
    /// Print JSON lines, also while it works
    #[arg(long)]
    json: bool,
}

/// Warms.
///
/// # Errors
/// The plan or the mount cannot be used, or not all nodes are warm.
pub fn warm(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let profile = match &args.profile {
        Some(path) => Profile::load(path).with_context(|| path.display().to_string())?,
        None => Profile::default(),
    };
    let machine = Machine::inspect();
    let named = args.paths.iter();
    let named = named.map(|path| Named::find(path, args.mount.named(), &machine));
    let named = named.collect::<anyhow::Result<Vec<_>>>()?;
    let mountpoint = match named.first() {
        Some(first) => first.mount.clone(),
        None => args.mount.find()?,
    };
    if let Some(other) = named.iter().find(|one| one.mount != mountpoint) {
        let (one, other) = (mountpoint.display(), other.mount.display());
        bail!("the paths are on {one} and on {other}: warm one mount after the other");
    }
    // Links are followed as long as they stay inside the mount.
    let below = named.into_iter();
    let below: Vec<ItemPath> = below
        .map(|named| named.followed().unwrap_or(named.inside))
        .collect();
    let bar = (!args.json && std::io::stderr().is_terminal()).then(|| {
        let bar = ProgressBar::new(0).with_style(ProgressStyle::default_spinner());
        bar.set_message("0 B");
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    });
    let client = client_of(&mountpoint)?;
    run(async {
        let (answer, mut request) = client.converse("POST", "/v1/warm").await?;
        let sending = send(&profile, below, &mut request);
        let show = |line: &Value| match (&bar, args.json) {
            (Some(bar), _) => show(bar, line),
            (None, true) => say(line),
            (None, false) => {}
        };
        let warming = async {
            let done = converse(sending, answer, show).await?;
            finish(&done, !args.json)
        };
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

/// Sends the plan: the files of `profile`, and those below some paths.
async fn send(
    profile: &Profile,
    below: Vec<ItemPath>,
    request: &mut RequestLines,
) -> Result<(), ClientError> {
    for access in &profile.accesses {
        request.send(access).await?;
    }
    for path in below {
        request.send(&Order::Below { path }).await?;
    }
    request.send(&Order::End).await?;
    request.flush().await
}

/// Receives the answer, of which it shows each line, while the plan is sent. Returns the last line.
async fn converse(
    sending: impl Future<Output = Result<(), ClientError>>,
    mut answer: AnswerLines,
    show: impl Fn(&Value),
) -> anyhow::Result<Value> {
    let receiving = async {
        loop {
            let line = answer.value().await?;
            show(&line);
            if line["event"] == "done" {
                return Ok::<_, anyhow::Error>(line);
            }
        }
    };
    // If the daemon refuses the plan, its error is more useful than the failure to send the rest of the plan.
    tokio::pin!(receiving);
    tokio::select! {
        biased;
        done = &mut receiving => done,
        told = sending => match told {
            Ok(()) => receiving.await,
            Err(error) => Ok(receiving.await.map_err(|_less| error)?),
        },
    }
}

/// Prints the last line as text, if `words` is set. Returns the exit status.
fn finish(done: &Value, words: bool) -> anyhow::Result<ExitCode> {
    let number = |key: &str| done[key].as_u64().unwrap_or(0);
    let strings = |key: &str| -> Vec<&str> {
        let values = list(done, key).iter();
        values.filter_map(Value::as_str).collect()
    };
    let warm = number("nodes_warm");
    if words {
        let vanished = match number("vanished") {
            0 => String::new(),
            count => format!(", {} no longer there", counted(count, "item", "items")),
        };
        let seconds = as_f64(number("elapsed_ms")) / 1000.0;
        say(format_args!(
            "{} warm: {}, {} in {seconds:.1} s{vanished}",
            counted(warm, "node is", "nodes are"),
            counted(number("items"), "item", "items"),
            ByteSize(number("bytes")),
        ));
    }
    let cold = strings("not_warmed");
    if cold.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let why = match strings("reasons").join("; ") {
        none if none.is_empty() => "they did not answer".to_owned(),
        reasons => reasons,
    };
    bail!(
        "{} warm, {} not, or not wholly: {} ({why}). Warm again when they are back: warm items cost \
         nothing",
        counted(warm, "node is", "nodes are"),
        counted(cold.len(), "is", "are"),
        cold.join(", ")
    )
}

fn show(bar: &ProgressBar, line: &Value) {
    let number = |pointer: &str| line.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    if line["event"] == "done" {
        return bar.finish_and_clear();
    }
    let nodes = number("/nodes").max(1);
    let template = match line["plan"]["complete"] == true {
        true => "{bar:16} {percent:>3}% of {len} items, eta {eta}, {msg}",
        false => "{spinner} {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(number("/plan/items").saturating_mul(nodes));
    bar.set_position(number("/items"));
    let elapsed = number("/elapsed_ms").max(1);
    let rate = number("/bytes").saturating_mul(1000) / elapsed;
    let slowest = match line["slowest"]["node"].as_str() {
        Some(node) => format!(", slowest {node} with {} items", number("/slowest/items")),
        None => String::new(),
    };
    bar.set_message(format!(
        "{}/{nodes} nodes, {} ({}){slowest}",
        number("/nodes_done"),
        ByteSize(number("/bytes")),
        ByteRate(rate),
    ));
}
