//! `copperfs list`: the mounts of this machine.

use super::daemon::{ask_daemon, client_of, list as elements, run};
use super::mounted::own_mounts;
use super::stats::duration;
use super::teardown::ASK_TIMEOUT;
use super::{Table, or_dash, print};
use crate::config::Machine;
use crate::daemon::mountpoint::within;
use crate::daemon::runtime_dir::{self, LOG_FILE};
use crate::report::Report;
use clap::Args;
use copperfs_fuse::ioctl::client;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Flags of `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A mount, and what its daemon says. A daemon that does not answer says nothing.
#[derive(Debug, Serialize)]
struct Listed {
    mount: PathBuf,
    node: Option<String>,
    role: Option<String>,
    pid: Option<u64>,
    uptime_seconds: Option<u64>,
    origins: Vec<String>,
    log: Option<PathBuf>,
}

/// Lists the mounts of this user.
///
/// # Errors
/// The kernel's list of mounts cannot be read.
pub fn list(args: &ListArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let asking = own_mounts(&machine)?.into_iter();
    // Several daemons may hang, so all are asked at once.
    let asking: Vec<_> = asking
        .map(|mount| std::thread::spawn(move || about(mount)))
        .collect();
    let found = asking.into_iter().filter_map(|asked| asked.join().ok());
    let found: Vec<Listed> = found.collect();
    print(args.json, &found, |found| text(found))
}

fn about(mount: PathBuf) -> Listed {
    let report = ask_daemon(&mount, ASK_TIMEOUT, client::node_stats);
    let report = report.ok().and_then(Result::ok);
    let report = report.map(|lines| Report::from_lines(&lines));
    let count = |key| report.as_ref().map(|report| report.counter(key));
    let options = options(&mount).unwrap_or_default();
    let log = value(&options, "log_file").map(PathBuf::from);
    Listed {
        node: report.as_ref().map(|report| report.node().to_owned()),
        role: report.as_ref().map(|report| report.role().to_owned()),
        pid: count("pid"),
        uptime_seconds: count("uptime_seconds"),
        origins: value(&options, "origin")
            .map(|origins| origins.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        log: log.or_else(|| noted_log(&mount)),
        mount,
    }
}

/// The options of the daemon at `mount`, within a short time.
pub(super) fn options(mount: &Path) -> Option<Value> {
    let mount = mount.to_owned();
    within(ASK_TIMEOUT, move || {
        let client = client_of(&mount)?;
        run(async move { Ok(client.ask("GET", "/v1/options", None).await?) })
    })
    .ok()?
    .ok()
}

/// The value of the option `key`.
pub(super) fn value<'a>(options: &'a Value, key: &str) -> Option<&'a str> {
    let mut options = elements(options, "options").iter();
    options.find(|option| option["key"] == key)?["value"].as_str()
}

/// The log that the daemon at `mount` has noted at its start.
fn noted_log(mount: &Path) -> Option<PathBuf> {
    let sockets = ask_daemon(mount, ASK_TIMEOUT, client::sockets).ok()?.ok()?;
    runtime_dir::noted(sockets.owner.parent()?, LOG_FILE)
}

fn text(found: &[Listed]) -> String {
    if found.is_empty() {
        return "this user has no copperfs mount here".to_owned();
    }
    Table::of(found)
        .column("mount", |one| one.mount.display().to_string())
        .column("node", |one| or_dash(one.node.as_ref()))
        .column("role", |one| or_dash(one.role.as_ref()))
        .column("pid", |one| or_dash(one.pid))
        .column("up", |one| or_dash(one.uptime_seconds.map(duration)))
        .column("origins", |one| one.origins.join(" "))
        .column("log", |one| {
            or_dash(one.log.as_ref().map(|log| log.display().to_string()))
        })
        .text()
}
