//! Unmounts a whole launch in two phases: every node reports whether it is in use, and they are unmounted
//! only if none is.

use super::super::launch::{remote, together};
use super::super::record::{Kind, Record};
use super::super::{explained, fail, say};
use super::{ASK_TIMEOUT, nothing_at};
use crate::cli::teardown::Target;
use crate::config::Machine;
use crate::daemon::mountpoint::{self, within};
use crate::daemon::runtime_dir;
use anyhow::bail;
use copperfs_fuse::ioctl::client;
use std::path::{Path, PathBuf};

/// The name of each node and its report.
type NodeOutcomes = Vec<(String, anyhow::Result<String>)>;

/// Unmounts the launch whose directory or mount is `path`, or all mounts below `path`.
///
/// # Errors
/// Without `force`: a node is in use or does not report; then nothing was unmounted. Or some nodes could
/// not be unmounted; they are listed.
pub(super) fn unmount(path: &Path, force: bool, machine: &Machine) -> anyhow::Result<()> {
    let record = launch_of(path, machine)?;
    let launch = Launch::of(record.as_ref(), path, machine)?;
    if !force {
        launch.is_idle()?;
    }
    let outcomes = launch.take_down(force)?;
    let failures = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.is_err())
        .count();
    for (node, outcome) in &outcomes {
        match outcome {
            Ok(text) if text.is_empty() => say(format_args!("{node}: nothing was mounted")),
            Ok(text) => say(format_args!("{node}: {text}")),
            Err(error) => fail(format_args!("{node}: {}", explained(error))),
        }
    }
    if failures > 0 {
        bail!(
            "{failures} of {} nodes could not be taken down",
            outcomes.len()
        );
    }
    // Removed only after all nodes are down, so that a failed command can be repeated.
    if let Some(record) = record {
        record.remove(machine);
    } else if outcomes.is_empty() {
        bail!("{}", nothing_at(path)?);
    }
    Ok(())
}

/// The record of the launch at `path`, or of the launch that has a node there.
fn launch_of(path: &Path, machine: &Machine) -> anyhow::Result<Option<Record>> {
    if let Some(record) = Record::load(path, machine)? {
        return Ok(Some(record));
    }
    if !mountpoint::is_copperfs(path) {
        return Record::of_node(path, None, machine);
    }
    // Records do not list data mounts; the daemon knows its launch.
    let asked = path.to_owned();
    let sockets = within(ASK_TIMEOUT, move || client::sockets(&asked));
    let sockets = sockets.ok().and_then(Result::ok);
    let id = sockets.and_then(|sockets| runtime_dir::launch(sockets.owner.parent()?));
    Record::of_node(path, id.as_deref(), machine)
}

/// The nodes to unmount.
enum Launch<'a> {
    /// On this machine; these mount points, in the order of the tree.
    Here(Vec<PathBuf>, &'a Machine),
    /// Over ssh, one command for each node.
    Remote(&'a Record),
    /// By one command for all nodes.
    Together(&'a Record, &'a Machine),
}

impl<'a> Launch<'a> {
    fn of(record: Option<&'a Record>, path: &Path, machine: &'a Machine) -> anyhow::Result<Self> {
        Ok(match record {
            Some(record) if record.kind == Kind::Together => Self::Together(record, machine),
            Some(record) if record.kind == Kind::Remote => Self::Remote(record),
            record => {
                let base = record.map_or(path, |record| &record.mountpoint);
                let nodes = record.iter().flat_map(|record| &record.nodes);
                let mut mounts: Vec<PathBuf> = nodes.map(|node| node.mountpoint.clone()).collect();
                for mount in mountpoint::copperfs_below(base)? {
                    if !mounts.contains(&mount) {
                        mounts.push(mount);
                    }
                }
                Self::Here(mounts, machine)
            }
        })
    }

    /// Fails unless every node reports that it is not in use. Does not change anything.
    fn is_idle(&self) -> anyhow::Result<()> {
        let outcomes: NodeOutcomes = match self {
            Self::Here(mounts, machine) => {
                let ask = |mount: &PathBuf| {
                    let target = Target::find(mount, machine)?;
                    let idle = target.is_idle().map(|()| String::new());
                    Some((mount.display().to_string(), idle))
                };
                mounts.iter().filter_map(ask).collect()
            }
            Self::Remote(record) => remote::each(record, &["--if-mounted", "--check"]),
            Self::Together(record, machine) => together::unmount(record, &["--check"], machine)?,
        };
        let mut busy = 0;
        for (node, outcome) in &outcomes {
            if let Err(error) = outcome {
                busy += 1;
                fail(format_args!("{node}: {}", explained(error)));
            }
        }
        if busy > 0 {
            bail!(
                "{busy} of {} nodes are in use or do not answer: none has been taken down. --force takes \
                 all down",
                outcomes.len()
            );
        }
        Ok(())
    }

    fn take_down(&self, force: bool) -> anyhow::Result<NodeOutcomes> {
        let mut flags = vec!["--with-others"];
        flags.extend(force.then_some("--force"));
        Ok(match self {
            // Leaves first: a parent that ends early would only make its children retry.
            Self::Here(mounts, machine) => {
                let take = |mount: &PathBuf| {
                    let done = Target::find(mount, machine)?.take_away(force);
                    let done = done.map(|done| done.to_string());
                    Some((mount.display().to_string(), done))
                };
                mounts.iter().rev().filter_map(take).collect()
            }
            Self::Remote(record) => remote::each(record, &[&["--if-mounted"], &flags[..]].concat()),
            Self::Together(record, machine) => together::unmount(record, &flags, machine)?,
        })
    }
}
