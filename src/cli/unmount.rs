//! `copperfs unmount`: takes the mount away and always ends its daemon.

use super::launch::together::{self, Outcome, Said};
use super::record::{Kind, Record};
use super::{explained, launch, say};
use crate::config::{Machine, resolve::instance_name};
use crate::daemon::mountpoint;
use crate::daemon::process::{Process, find_daemon, is_dead};
use crate::daemon::{SHUTDOWN_TIMEOUT, free_killed, runtime_dir};
use anyhow::{Context, bail};
use copperfs_fuse::ioctl::client;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take to say its id.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// What was done at a mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The daemon was told to end, and did.
    Ended(u32),
    /// The daemon had to be killed.
    Killed(u32),
    /// There was only the mount of a daemon long gone.
    Cleaned,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(pid) => write!(f, "unmounted (daemon {pid} ended)"),
            Self::Killed(pid) => {
                write!(f, "unmounted (daemon {pid} did not answer and was killed)")
            }
            Self::Cleaned => f.write_str("unmounted (its daemon was gone already)"),
        }
    }
}

/// Unmounts `path`; with `all`, every node of the launch there. With `if_mounted`, nothing there is
/// fine too.
///
/// # Errors
/// Nothing is mounted there, or something could not be taken away.
pub fn unmount(path: &Path, all: bool, if_mounted: bool) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let path = mountpoint::canonical(path);
    if all {
        return unmount_all(&path, &machine);
    }
    match one(&path, &machine)? {
        Some(done) => say(format_args!("{}: {done}", path.display())),
        None if if_mounted => {}
        None => bail!("{}", nothing_at(&path)?),
    }
    Ok(())
}

fn nothing_at(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    if let Some(kind) = mountpoint::kind_at(path) {
        return Ok(format!("{shown} is a {kind} mount, not copperfs"));
    }
    let below = mountpoint::copperfs_below(path)?;
    Ok(if below.is_empty() {
        let others: Vec<String> = mountpoint::copperfs_below(Path::new("/"))?
            .iter()
            .map(|mount| mount.display().to_string())
            .collect();
        match others.as_slice() {
            [] => format!("no copperfs is mounted at {shown}, nor anywhere here"),
            _ => format!(
                "no copperfs is mounted at {shown}; there is {}",
                others.join(", ")
            ),
        }
    } else {
        format!(
            "no copperfs is mounted at {shown}, but {} below it: --all",
            below.len()
        )
    })
}

fn unmount_all(path: &Path, machine: &Machine) -> anyhow::Result<()> {
    let record = Record::load(path, machine)?;
    let mut failures = 0;
    let mut count = 0;
    if let Some(record) = record.as_ref().filter(|record| record.kind != Kind::Local) {
        let outcomes = match record.kind {
            Kind::Together => together::unmount(record, &[], machine)?,
            Kind::Remote | Kind::Local => launch::remote::take_down(record),
        };
        for (node, outcome) in outcomes {
            count += 1;
            failures += usize::from(outcome.is_err());
            match outcome {
                Ok(text) if text.is_empty() => say(format_args!("{node}: nothing was mounted")),
                Ok(text) => say(format_args!("{node}: {text}")),
                Err(error) => super::fail(format_args!("{node}: {}", explained(&error))),
            }
        }
    } else {
        let mut mounts: Vec<PathBuf> = record
            .iter()
            .flat_map(|record| record.nodes.iter().map(|node| node.mountpoint.clone()))
            .collect();
        for mount in mountpoint::copperfs_below(path)? {
            if !mounts.contains(&mount) {
                mounts.push(mount);
            }
        }
        // Leaves first: a parent that goes early would only cost its children retries.
        for mount in mounts.iter().rev() {
            match one(mount, machine) {
                Ok(Some(done)) => say(format_args!("{}: {done}", mount.display())),
                Ok(None) => continue,
                Err(error) => {
                    failures += 1;
                    let why = explained(&error);
                    super::fail(format_args!("{}: {why}", mount.display()));
                }
            }
            count += 1;
        }
    }
    if failures > 0 {
        bail!("{failures} of {count} nodes could not be taken down");
    }
    if let Some(record) = record {
        record.remove(machine);
    } else if count == 0 {
        bail!("{}", nothing_at(path)?);
    }
    Ok(())
}

/// Takes away what is at `path`, or only what the launch `id` has started there, and says so to the
/// launch that runs this on all hosts. Nothing there is fine.
///
/// # Errors
/// None: a failure is said.
pub fn report(path: &Path, id: Option<&str>) -> anyhow::Result<()> {
    let machine = Machine::inspect();
    let path = mountpoint::canonical(path);
    let done = match id {
        Some(id) => of_launch(&path, id, &machine),
        None => one(&path, &machine),
    };
    let outcome = match done {
        Ok(done) => Outcome::Down(done.map(|done| done.to_string()).unwrap_or_default()),
        Err(error) => Outcome::Failed(explained(&error)),
    };
    Said::here(&machine, outcome).say();
    Ok(())
}

/// Takes away what the launch `id` has started at `path`, if it has.
///
/// # Errors
/// The kernel refuses.
pub fn of_launch(path: &Path, id: &str, machine: &Machine) -> anyhow::Result<Option<Done>> {
    let path = mountpoint::canonical(path);
    let name = instance_name(&path, machine.host_name());
    let file = machine
        .runtime_base(machine.uid)
        .join(name)
        .join(runtime_dir::LAUNCH_FILE);
    if std::fs::read_to_string(file).is_ok_and(|found| found == id) {
        return one(&path, machine);
    }
    Ok(None)
}

/// Takes away the mount at `path` and its daemon; `None` if there is neither.
///
/// # Errors
/// It is another user's, or the kernel refuses.
pub fn one(path: &Path, machine: &Machine) -> anyhow::Result<Option<Done>> {
    let mounted = mountpoint::is_copperfs(path);
    let pid = daemon_of(path, mounted, machine);
    let name = instance_name(path, machine.host_name());
    let runtime_dir = machine.runtime_base(machine.uid).join(name);
    let data_mount = runtime_dir::noted_data_mount(&runtime_dir);
    if !mounted && pid.is_none() && !data_mount.as_deref().is_some_and(mountpoint::is_copperfs) {
        return Ok(None);
    }
    let done = match pid.map(Process::open).transpose()?.flatten() {
        None => {
            mountpoint::cut_off(path);
            Done::Cleaned
        }
        Some(process) if is_dead(process.pid) => {
            free_killed(&runtime_dir, path);
            mountpoint::cut_off(path);
            Done::Cleaned
        }
        Some(process) => {
            let pid = process.pid;
            process
                .signal(rustix::process::Signal::TERM)
                .with_context(|| format!("cannot end the daemon {pid}; it is another user's"))?;
            if process.wait(SHUTDOWN_TIMEOUT + Duration::from_secs(4))? {
                Done::Ended(pid)
            } else {
                // It hangs, and so may whoever would take its mount away: first what holds it.
                data_mount
                    .iter()
                    .for_each(|mount| mountpoint::cut_off(mount));
                mountpoint::cut_off(path);
                mountpoint::detach_all(path)?;
                if !process.end(Duration::from_secs(1))? {
                    bail!("the daemon {pid} cannot be killed: it hangs in the kernel");
                }
                Done::Killed(pid)
            }
        }
    };
    mountpoint::detach_all(path)
        .with_context(|| format!("cannot take away the mount at {}", path.display()))?;
    if let Some(data_mount) = data_mount {
        // Not the mount of another daemon, which may have come there since.
        mountpoint::take_away_stale(&data_mount);
        let _gone_already = runtime_dir::note_data_mount(&runtime_dir, None);
    }
    Ok(Some(done))
}

/// The daemon's process id: from the lock of its pid file, from the process table, or from itself.
fn daemon_of(path: &Path, mounted: bool, machine: &Machine) -> Option<u32> {
    let name = instance_name(path, machine.host_name());
    let dir = machine.runtime_base(machine.uid).join(name);
    if let Some(pid) = runtime_dir::running(&dir).or_else(|| find_daemon(path)) {
        return Some(pid);
    }
    if !mounted {
        return None;
    }
    let asked = path.to_owned();
    let body = mountpoint::within(ASK_TIMEOUT, move || client::node_stats(&asked))
        .ok()?
        .ok()?;
    let pid = u32::try_from(body.pid).ok()?;
    // A number from another pid namespace may be anybody's here.
    let process = Process::open(pid).ok()??;
    process.is_called("copperfs").then_some(pid)
}
