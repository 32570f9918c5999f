//! `copperfs unmount`: unmounts and ends the daemon.
//!
//! Without `--force` a mount that is in use is left alone, as by umount(8), and its users are named. For a
//! launch, all nodes are asked first, and they are unmounted only if none is in use (`all`).

pub(super) mod all;

use super::daemon::ask_daemon;
use super::launch::together::{HostLine, Outcome};
use super::stats::cluster_reports;
use super::teardown::{ASK_TIMEOUT, Target, Unmounted, of_launch};
use super::{explained, mounted, say};
use crate::config::Machine;
use crate::daemon::mountpoint;
use crate::report::Report;
use anyhow::{Context, bail};
use clap::Args;
use copperfs_fuse::ioctl::client;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a root may take to report the nodes that answer.
const TREE_TIMEOUT: Duration = Duration::from_secs(15);

/// Flags of `unmount`.
#[derive(Debug, Args)]
pub struct UnmountArgs {
    /// The mount, or the directory of a launch, which stands for all of its nodes [default:
    /// COPPERFS_MOUNTPOINT, the mount of the working directory, or the only mount of this user]
    #[arg(value_name = "MOUNT")]
    mountpoint: Option<PathBuf>,
    /// The mount that this configuration file names
    #[arg(long, value_name = "FILE", conflicts_with = "mountpoint")]
    config: Option<PathBuf>,
    /// Every node of the launch that has this mount. All are asked first: if one is in use, none is unmounted
    #[arg(long)]
    all: bool,
    /// Also if it is in use, or a root that other nodes read through: programs that use it get errors
    #[arg(short, long)]
    force: bool,
    /// Succeed if nothing is there: one node of a launch that is taken down
    #[arg(long, hide = true)]
    if_mounted: bool,
    /// Only say whether it is in use
    #[arg(long, hide = true)]
    check: bool,
    /// The other nodes go too: a root may
    #[arg(long, hide = true)]
    with_others: bool,
    /// Say what was done as a line of JSON, for a launch
    #[arg(long, hide = true)]
    report: bool,
    /// Only what the launch with this id has started, if it has: a launch that gives up
    #[arg(long, hide = true, value_name = "ID")]
    of_launch: Option<String>,
}

impl UnmountArgs {
    /// The mount that the flags or their configuration file name.
    ///
    /// # Errors
    /// The file cannot be read, or names none. The default would be another mount.
    fn named(&self, machine: &Machine) -> anyhow::Result<Option<PathBuf>> {
        let Some(file) = &self.config else {
            return Ok(self.mountpoint.clone());
        };
        let point = mounted::point_of_file(file, machine)?;
        let shown = file.display();
        point
            .with_context(|| format!("{shown} has no key mountpoint: name the mount instead"))
            .map(Some)
    }
}

/// Unmounts one mount, or every node of a launch.
///
/// # Errors
/// Nothing is mounted there, it is in use, or it could not be unmounted.
pub fn unmount(args: &UnmountArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let named = args.named(&machine)?;
    let (path, is_launch) = mounted::point(named.as_deref(), &machine)?;
    // This program's own working directory must not keep the mount in use.
    std::env::set_current_dir("/")?;
    if args.report {
        let outcome = match alone(&path, args, &machine) {
            Ok(done) => Outcome::Done(done.map(|done| done.to_string()).unwrap_or_default()),
            Err(error) => Outcome::Failed(explained(&error)),
        };
        HostLine::here(&machine, outcome).say();
        return Ok(());
    }
    let is_one = args.if_mounted || args.check || args.of_launch.is_some();
    if args.all || is_launch && !is_one {
        return all::unmount(&path, args.force, &machine);
    }
    match alone(&path, args, &machine)? {
        Some(done) => say(format_args!("{}: {done}", path.display())),
        None if is_one => {}
        None => bail!("{}", nothing_at(&path, &machine)?),
    }
    Ok(())
}

/// Unmounts one mount as `args` say. Returns `None` if there was nothing to do.
fn alone(path: &Path, args: &UnmountArgs, machine: &Machine) -> anyhow::Result<Option<Unmounted>> {
    if let Some(id) = &args.of_launch {
        return of_launch(path, id, machine);
    }
    let Some(mut target) = Target::find(path, machine) else {
        return Ok(None);
    };
    if !args.force {
        target.is_idle()?;
    }
    if args.check {
        return Ok(None);
    }
    if !args.force && !args.with_others {
        is_followed_by_none(&mut target)?;
    }
    target.take_away(args.force).map(Some)
}

/// Fails if the node is a root and other nodes answer.
fn is_followed_by_none(target: &mut Target) -> anyhow::Result<()> {
    let Some(mount) = target.mounts.last() else {
        return Ok(());
    };
    let readers = readers(mount);
    // A node that does not answer serves no other nodes.
    target.hangs |= readers.is_err();
    let readers = match readers.unwrap_or(0) {
        0 => return Ok(()),
        1 => "another node reads".to_owned(),
        others => format!("{others} other nodes read"),
    };
    let shown = mount.display();
    bail!(
        "{shown} is a root: {readers} storage through it. `copperfs unmount --all {shown}` takes all \
         nodes down, --force this one only"
    )
}

/// The number of other nodes that read through the node at `mount`.
///
/// # Errors
/// It does not answer in time.
fn readers(mount: &Path) -> anyhow::Result<usize> {
    let stats = ask_daemon(mount, ASK_TIMEOUT, client::node_stats)?;
    if !stats.is_ok_and(|stats| Report::from_lines(&stats).role() == "root") {
        return Ok(0);
    }
    // Counts this node too, so one report means that no other node answers.
    let reports = ask_daemon(mount, TREE_TIMEOUT, cluster_reports)?;
    Ok(reports.map_or(0, |reports| reports.nodes.len().saturating_sub(1)))
}

pub(super) fn nothing_at(path: &Path, machine: &Machine) -> anyhow::Result<String> {
    let shown = path.display();
    if let Some(kind) = mountpoint::kind_at(path) {
        return Ok(format!("{shown} is a {kind} mount, not copperfs"));
    }
    let below = mountpoint::copperfs_below(path)?.len();
    if below > 0 {
        return Ok(format!(
            "{shown} is not a copperfs mount, but there are {below} below it: --all"
        ));
    }
    let own = mounted::own_mounts(machine)?;
    Ok(format!(
        "{shown} is not a copperfs mount{}",
        mounted::mounted_here(&own)
    ))
}
