//! `copperfs logs`: shows the log of a daemon, also after its end.

use super::mounted::Found;
use super::options::{log_of, options};
use super::record::{Kind, Node, Record};
use super::unmount::all::launch_of;
use crate::config::Machine;
use crate::daemon::mountpoint::canonical;
use anyhow::{Context, bail};
use clap::Args;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Flags of `logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The mount, or the directory of a launch [default: COPPERFS_MOUNTPOINT, the mount of the working
    /// directory, or the only mount of this user]
    #[arg(value_name = "MOUNT")]
    mount: Option<PathBuf>,
    /// Of this node of the launch: its name, or its number in the list of hosts from 0 on
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Go on with new lines until interrupted
    #[arg(short, long)]
    follow: bool,
    /// The number of lines to begin with
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
}

/// Shows the log. Becomes tail(1), of this machine or by ssh.
///
/// # Errors
/// There is no such mount, node or log, or tail or ssh cannot be run.
pub fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::inspect();
    let mut mount = match &args.mount {
        Some(path) => canonical(&machine.working_dir.join(path)),
        None => Found::of(None, &machine)?.mount()?,
    };
    let record = launch_of(&mount, &machine)?;
    if let Some(wanted) = &args.node {
        let record = record.with_context(|| {
            let shown = mount.display();
            format!("--node: {shown} belongs to no launch that this machine knows")
        })?;
        let node = node_of(&record, wanted)?;
        if record.kind != Kind::Local {
            return on_host(&record, node, args);
        }
        mount.clone_from(&node.mountpoint);
    } else if let Some(first) = record.filter(|it| it.kind == Kind::Local && it.mountpoint == mount)
    {
        // The directory of a launch stands for its nodes.
        mount = first
            .nodes
            .into_iter()
            .next()
            .map_or(mount, |node| node.mountpoint);
    }
    let log = readable_log(&mount, &machine)?;
    let mut tail = Command::new("tail");
    tail.arg("-n").arg(args.lines.to_string());
    tail.args(args.follow.then_some("-F"));
    let error = tail.arg("--").arg(&log).exec();
    Err(error).with_context(|| format!("cannot run tail; the log is {}", log.display()))
}

/// The log of the daemon that serves `mount`, or has served it last.
///
/// # Errors
/// None is known, or it cannot be read.
fn readable_log(mount: &Path, machine: &Machine) -> anyhow::Result<PathBuf> {
    let shown = mount.display();
    let log = log_of(mount, options(mount).as_ref(), machine).with_context(|| {
        format!(
            "no log is known for {shown}: nothing was mounted there by this user in the last week"
        )
    })?;
    let looked = std::fs::metadata(&log);
    looked.with_context(|| format!("cannot read the log of {shown}, {}", log.display()))?;
    Ok(log)
}

/// The node that `wanted` names or numbers.
fn node_of<'a>(record: &'a Record, wanted: &str) -> anyhow::Result<&'a Node> {
    let by_name = record
        .nodes
        .iter()
        .find(|node| node.name == wanted || node.host == wanted);
    let by_number = || record.nodes.get(wanted.parse::<usize>().ok()?);
    by_name.or_else(by_number).with_context(|| {
        let last = record.nodes.len().saturating_sub(1);
        format!("there is no node {wanted:?}: the nodes of this launch are 0 to {last}")
    })
}

/// Runs this command on the host of `node`.
fn on_host(record: &Record, node: &Node, args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let Some((ssh, options)) = record.ssh.split_first() else {
        bail!("run copperfs logs on {} itself", node.host);
    };
    let mut command = Command::new(ssh);
    command.args(options).arg(&node.host).arg("--");
    command.arg(&record.program).arg("logs").arg("-n");
    command.arg(args.lines.to_string());
    command
        .args(args.follow.then_some("-f"))
        .arg(&node.mountpoint);
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {ssh}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_or_numbered() {
        let node = |name: &str| Node {
            name: name.into(),
            address: format!("{name}.cluster:7470"),
            host: format!("{name}.cluster"),
            mountpoint: "/copper_mnt".into(),
            rack: None,
        };
        let record = Record {
            id: "1".into(),
            kind: Kind::Remote,
            mountpoint: "/copper_mnt".into(),
            nodes: vec![node("nid7"), node("nid8")],
            ssh: vec!["ssh".into()],
            starter: Vec::new(),
            program: "copperfs".into(),
            made: Vec::new(),
        };
        for (wanted, due) in [("nid8", "nid8"), ("0", "nid7"), ("nid7.cluster", "nid7")] {
            assert_eq!(node_of(&record, wanted).unwrap().name, due);
        }
        let error = node_of(&record, "2").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no node \"2\": the nodes of this launch are 0 to 1"
        );
    }
}
