//! Unmounts a whole launch in two phases: every node reports whether it is in use, and they are unmounted
//! only if none is.

use super::super::launch::{self, NodeOutcomes};
use super::super::record::{Kind, Record};
use super::super::{explained, fail, say};
use super::{ASK_TIMEOUT, nothing_at};
use crate::cli::daemon::ask_daemon;
use crate::cli::teardown::Target;
use crate::config::Machine;
use crate::daemon::{mountpoint, runtime_dir};
use anyhow::{bail, ensure};
use copperfs_fuse::ioctl::client;
use std::path::{Path, PathBuf};

/// Unmounts one mount on this machine, or asks about it.
type Work<'a> = dyn Fn(Target) -> anyhow::Result<String> + 'a;

/// Unmounts the launch whose directory or mount is `path`, or all mounts below `path`.
///
/// # Errors
/// Without `force`: a node is in use or does not report; then nothing was unmounted. Or some nodes could
/// not be unmounted; they are listed.
pub(super) fn unmount(path: &Path, force: bool, machine: &Machine) -> anyhow::Result<()> {
    let record = launch_of(path, machine)?;
    // Mount points on this machine, in the order of the tree.
    let base = record.as_ref().map_or(path, |record| &record.mountpoint);
    let nodes = record.iter().flat_map(|record| &record.nodes);
    let mut here: Vec<PathBuf> = nodes.map(|node| node.mountpoint.clone()).collect();
    for mount in mountpoint::copperfs_below(base)? {
        if !here.contains(&mount) {
            here.push(mount);
        }
    }
    // Runs `unmount` with some flags for every node on another host, leaves first, or does `work` to every mount
    // of `here`.
    let elsewhere = record.as_ref().filter(|it| it.kind != Kind::Local);
    let each = |flags: &[&str], here: &[PathBuf], work: &Work<'_>| {
        if let Some(record) = elsewhere {
            let ranks: Vec<usize> = (0..record.nodes.len()).rev().collect();
            return launch::unmount(record, &ranks, flags, machine);
        }
        let outcome = |mount: &PathBuf| {
            let target = Target::find(mount, machine)?;
            Some((mount.display().to_string(), work(target)))
        };
        Ok(here.iter().filter_map(outcome).collect())
    };
    if !force {
        // Does not change anything.
        let idle = |mut target: Target| target.is_idle().map(|()| String::new());
        let outcomes = each(&["--if-mounted", "--check"], &here, &idle)?;
        let (busy, all) = (failures(&outcomes).count(), outcomes.len());
        for (node, error) in failures(&outcomes) {
            fail(format_args!("{node}: {}", explained(error)));
        }
        ensure!(
            busy == 0,
            "{busy} of {all} nodes are in use or do not answer: none has been taken down. --force takes \
             all down"
        );
    }
    // Leaves first: a parent that ends early would only make its children retry.
    here.reverse();
    let mut flags = vec!["--if-mounted", "--with-others"];
    flags.extend(force.then_some("--force"));
    let take_away = |target: Target| Ok(target.take_away(force)?.to_string());
    let outcomes = each(&flags, &here, &take_away)?;
    for (node, outcome) in &outcomes {
        match outcome {
            Ok(text) if text.is_empty() => say(format_args!("{node}: nothing was mounted")),
            Ok(text) => say(format_args!("{node}: {text}")),
            Err(error) => fail(format_args!("{node}: {}", explained(error))),
        }
    }
    let (left, all) = (failures(&outcomes).count(), outcomes.len());
    ensure!(left == 0, "{left} of {all} nodes could not be taken down");
    // Removed only after all nodes are down, so that a failed command can be repeated.
    if let Some(record) = record {
        record.remove(machine);
        record.remove_made();
    } else if outcomes.is_empty() {
        bail!("{}", nothing_at(path, machine)?);
    }
    Ok(())
}

pub(in crate::cli) fn failures(
    outcomes: &NodeOutcomes,
) -> impl Iterator<Item = (&String, &anyhow::Error)> {
    let outcomes = outcomes.iter();
    outcomes.filter_map(|(node, outcome)| Some((node, outcome.as_ref().err()?)))
}

/// The record of the launch at `path`, or of the launch that has a node there.
pub(in crate::cli) fn launch_of(path: &Path, machine: &Machine) -> anyhow::Result<Option<Record>> {
    if let Some(record) = Record::load(path, machine)? {
        return Ok(Some(record));
    }
    // Records do not list data mounts; the daemon knows its launch.
    let id = mountpoint::is_copperfs(path).then(|| {
        let sockets = ask_daemon(path, ASK_TIMEOUT, client::sockets).ok()?.ok()?;
        runtime_dir::launch(sockets.owner.parent()?)
    });
    Ok(Record::of_node(path, id.flatten().as_deref(), machine))
}
