//! `copperfs list`: the mounts of this machine.

use super::daemon::ask_daemon;
use super::mounted::own_mounts;
use super::options::{log_of, options, value};
use super::stats::duration;
use super::teardown::ASK_TIMEOUT;
use super::{Table, or_dash, print};
use crate::config::Machine;
use crate::report::Report;
use clap::Args;
use copperfs_fuse::ioctl::client;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

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
    let machine = Arc::new(Machine::inspect());
    let asking = own_mounts(&machine)?.into_iter();
    // Several daemons may hang, so all are asked at once.
    let asking: Vec<_> = asking
        .map(|mount| {
            let machine = Arc::clone(&machine);
            std::thread::spawn(move || about(mount, &machine))
        })
        .collect();
    let found = asking.into_iter().filter_map(|asked| asked.join().ok());
    let found: Vec<Listed> = found.collect();
    print(args.json, &found, |found| text(found))
}

fn about(mount: PathBuf, machine: &Machine) -> Listed {
    let report = ask_daemon(&mount, ASK_TIMEOUT, client::node_stats);
    let report = report.ok().and_then(Result::ok);
    let report = report.map(|lines| Report::from_lines(&lines));
    let count = |key| report.as_ref().map(|report| report.counter(key));
    let options = options(&mount);
    let origins = options.as_ref().and_then(|told| value(told, "origin"));
    Listed {
        node: report.as_ref().map(|report| report.node().to_owned()),
        role: report.as_ref().map(|report| report.role().to_owned()),
        pid: count("pid"),
        uptime_seconds: count("uptime_seconds"),
        origins: origins
            .map(|origins| origins.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        log: log_of(&mount, options.as_ref(), machine),
        mount,
    }
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
