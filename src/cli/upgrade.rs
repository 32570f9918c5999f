//! `copperfs upgrade`: another version of the daemon takes a mount over.

mod all;

use super::daemon::{ask_daemon, client_of, run};
use super::launch::together::{HostLine, Outcome};
use super::teardown::ASK_TIMEOUT;
use super::{explained, mounted, say};
use crate::config::Machine;
use crate::control::client::{ClientError, ControlClient};
use crate::daemon::mountpoint::is_copperfs;
use crate::report::Report;
use anyhow::{Context, bail};
use clap::Args;
use copperfs_fuse::ioctl::client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the mount may take until it answers again: the other program gets 5 s, and then the program before takes
/// over.
const TIMEOUT: Duration = Duration::from_secs(70);
/// The pause between two looks at the daemon.
const PAUSE: Duration = Duration::from_millis(20);

/// Flags of `upgrade`.
#[derive(Debug, Args)]
pub struct UpgradeArgs {
    /// The mount, or the directory of a launch, which stands for all of its nodes [default:
    /// COPPERFS_MOUNTPOINT, the mount of the working directory, or the only mount of this user]
    #[arg(value_name = "MOUNT")]
    mountpoint: Option<PathBuf>,
    /// The program to change to, on every host at this path [default: this program; with --all the one that
    /// the nodes were launched with]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Every node of the launch that has this mount: leaves first, roots one by one. All are asked first: if one cannot change,
    /// none does
    #[arg(long)]
    all: bool,
    /// Only say whether the daemon could be replaced
    #[arg(long)]
    dry_run: bool,
    /// Say what was done as a line of JSON, for a launch
    #[arg(long, hide = true)]
    report: bool,
    /// With --report: only say which node this is, and its role
    #[arg(long, hide = true)]
    which: bool,
    /// With --report: only if it is one of these nodes
    #[arg(long, hide = true, value_name = "NAME", value_delimiter = ',')]
    nodes: Option<Vec<String>>,
}

/// Replaces the daemon of one mount, or of every node of a launch.
///
/// # Errors
/// The other program cannot take over, or did not; then the program before goes on.
pub fn upgrade(args: &UpgradeArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let (path, is_launch) = mounted::point(args.mountpoint.as_deref(), &machine)?;
    let given = args.program.as_ref();
    let given = given.map(|program| machine.working_dir.join(program));
    if args.all || is_launch && !args.report {
        return all::upgrade(&path, given.as_deref(), args.dry_run, &machine);
    }
    let program = match given {
        Some(program) => program,
        None => own_program()?,
    };
    if args.report {
        let outcome = of_launch(&path, &program, args);
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(explained(&error)));
        HostLine::here(&machine, outcome).say();
        return Ok(());
    }
    say(alone(&path, &program, args.dry_run)?);
    Ok(())
}

/// What one host of a launch does.
fn of_launch(path: &Path, program: &Path, args: &UpgradeArgs) -> anyhow::Result<Outcome> {
    let own = || {
        let stats = ask_daemon(path, ASK_TIMEOUT, client::node_stats)??;
        Ok::<_, anyhow::Error>(Report::from_lines(&stats))
    };
    if args.which {
        let own = own()?;
        let (name, role) = (own.node().to_owned(), own.role().to_owned());
        return Ok(Outcome::Node { name, role });
    }
    if let (Some(nodes), own) = (&args.nodes, own()?)
        && !nodes.iter().any(|name| *name == own.node())
    {
        return Ok(Outcome::Done(String::new()));
    }
    alone(path, program, args.dry_run).map(Outcome::Done)
}

/// The file of this program.
fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file; name it with --program")
}

/// Replaces the daemon of the mount at `path`. Returns what was done.
fn alone(path: &Path, program: &Path, dry_run: bool) -> anyhow::Result<String> {
    let shown = path.display();
    if !is_copperfs(path) {
        bail!("{shown} is not a copperfs mount");
    }
    let client = client_of(path)?;
    let request = json!({ "program": program, "dry_run": dry_run });
    run(async move {
        let before = client.ask("GET", "/v1/daemon", None).await?;
        let start = Instant::now();
        let fit = match client.ask("POST", "/v1/upgrade", Some(&request)).await {
            Ok(fit) => Some(fit),
            // The daemon may die before its answer has arrived.
            Err(ClientError::Silent { .. }) if !dry_run => None,
            Err(error) => return Err(error).with_context(|| format!("{shown} is not upgraded")),
        };
        if let (true, Some(fit)) = (dry_run, fit) {
            let version = super::daemon::text(&fit, "version");
            return Ok(format!("{shown} can change to copperfs {version}"));
        }
        let after = successor(&client, &before).await;
        let after = after.with_context(|| format!("{shown} does not answer since the upgrade"))?;
        if let Some(reason) = after["refused"].as_str() {
            bail!("{shown} goes on with the version before: {reason}");
        }
        // The first request of a reader waits for the successor, too.
        let asked = path.to_owned();
        ask_daemon(&asked, ASK_TIMEOUT, client::sockets)??;
        let [old, new] = [&before, &after].map(|it| super::daemon::text(it, "version"));
        let (pid, seconds) = (&after["pid"], start.elapsed().as_secs_f64());
        Ok(format!(
            "{shown}: copperfs {old} -> {new} (pid {pid}) in {seconds:.1} s"
        ))
    })
}

/// Waits for the daemon that follows `before`.
async fn successor(client: &ControlClient, before: &Value) -> anyhow::Result<Value> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let answer = client.ask("GET", "/v1/daemon", None).await;
        match answer {
            // While a successor starts, it does not know yet which one it is.
            Ok(daemon) if daemon.is_object() && daemon["generation"] != before["generation"] => {
                return Ok(daemon);
            }
            Ok(_) => {}
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_not_yet) => {}
        }
        if Instant::now() >= deadline {
            bail!("the daemon was not replaced");
        }
        tokio::time::sleep(PAUSE).await;
    }
}
