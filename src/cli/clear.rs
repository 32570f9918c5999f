//! `copperfs clear`: drops the cached state of some paths, or of all, and reports whether anything was
//! cached.

use super::daemon::ask_daemon;
use super::mounted::{Found, Named};
use super::{explained, fail, say};
use crate::config::Machine;
use anyhow::ensure;
use clap::Args;
use copperfs_fuse::ioctl::client;
use copperfs_overlay::ItemPath;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the operation may take on all nodes together.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of `clear`.
#[derive(Debug, Args)]
pub struct ClearArgs {
    /// Files, and directories with all below them: paths below the mount point, or as seen within the
    /// mount (/lus/x); with --everything the mount, or the directory of a launch [default: COPPERFS_MOUNTPOINT,
    /// the mount of the working directory, or the only mount of this user]
    #[arg(value_name = "PATH", required_unless_present = "everything")]
    paths: Vec<PathBuf>,
    /// All that is cached
    #[arg(long)]
    everything: bool,
    /// Only on this node
    #[arg(long)]
    this_node: bool,
    /// The mount on which PATH lies, where that is not told by PATH itself
    #[arg(short, long, value_name = "MOUNT")]
    mount: Option<PathBuf>,
}

/// Clears.
///
/// # Errors
/// A path is on no mount or under no origin; then nothing has been cleared. Or a node could not be reached.
pub fn clear(args: &ClearArgs) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    if args.everything {
        return everything(args, &machine);
    }
    // All paths are resolved before the first is cleared.
    let mut found = Vec::with_capacity(args.paths.len());
    for path in &args.paths {
        let named = Named::find(path, args.mount.as_deref(), &machine)?;
        let shown = path.display();
        ensure!(
            !named.inside.is_root(),
            "{shown} is a mount point: name a path below it. `copperfs clear --everything \
             {shown}` clears all of it"
        );
        found.push((shown, named));
    }
    let mut failures = 0;
    for (shown, named) in &found {
        match one(named, args.this_node) {
            Ok(effective) => {
                tell(shown, effective, args.this_node);
                if named.is_absent() {
                    say(format_args!("there is nothing at {shown}"));
                }
            }
            Err(error) => {
                failures += 1;
                fail(format_args!("{shown}: {}", explained(&error)));
            }
        }
    }
    let all = found.len();
    ensure!(failures == 0, "{failures} of {all} paths were not cleared");
    Ok(())
}

/// Clears the path as written, and the target of its links. Returns whether anything was cached.
fn one(named: &Named, this_node: bool) -> anyhow::Result<bool> {
    let mut effective = ask(&named.mount, &named.inside, this_node)?;
    // Links are followed after the path is cleared: this uses their current targets, and caches nothing
    // that is yet to be cleared.
    let real = named.followed();
    if let Some(real) = real.filter(|real| !real.is_within(&named.inside)) {
        effective |= ask(&named.mount, &real, this_node)?;
    }
    Ok(effective)
}

fn everything(args: &ClearArgs, machine: &Machine) -> anyhow::Result<()> {
    ensure!(
        args.paths.len() + usize::from(args.mount.is_some()) <= 1,
        "--everything takes one mount point"
    );
    let path = args.paths.first().or(args.mount.as_ref());
    let found = Found::of(path.map(PathBuf::as_path), machine)?;
    let mount = match (path, found) {
        (Some(path), Found::Mount(_)) => {
            let named = Named::find(path, Some(path), machine)?;
            ensure!(
                named.inside.is_root(),
                "{} is not a mount point, and --everything clears more than that: leave it out to clear \
                 the path, or name {}",
                path.display(),
                named.mount.display()
            );
            named.mount
        }
        (_, found) => found.mount()?,
    };
    let effective = ask(&mount, &ItemPath::root(), args.this_node)?;
    let shown = format_args!("everything of {}", mount.display());
    tell(shown, effective, args.this_node);
    Ok(())
}

fn ask(mount: &Path, path: &ItemPath, this_node: bool) -> anyhow::Result<bool> {
    let path = path.clone();
    let clear = move |mount: &Path| client::clear(mount, path.as_bytes(), !this_node);
    Ok(ask_daemon(mount, TIMEOUT, clear)??)
}

fn tell(path: impl Display, effective: bool, this_node: bool) {
    match (effective, this_node) {
        (true, true) => say(format_args!("cleared {path} on this node")),
        (true, false) => say(format_args!("cleared {path} on all nodes")),
        (false, true) => say(format_args!("nothing of {path} was cached on this node")),
        (false, false) => say(format_args!("nothing of {path} was cached on any node")),
    }
}
