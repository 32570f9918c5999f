//! A daemon and its mounts, found by any of its mount points, and how they are taken away.
//!
//! The daemon is the process that holds the lock of the mount's runtime directory, and is known by what
//! it has written there ([`runtime_dir::Holder`]): nothing else is ever signalled. One in a pid namespace
//! that is not seen from here is ended by taking its mount away.

use crate::config::{Machine, resolve::instance_name};
use crate::daemon::busy::{self, Device, User};
use crate::daemon::mountpoint::{self, is_copperfs, within};
use crate::daemon::process::{Process, find_daemon};
use crate::daemon::runtime_dir::{self, Holder};
use crate::daemon::{SHUTDOWN_TIMEOUT, free_killed};
use anyhow::{Context, bail};
use copperfs_fuse::ioctl::client;
use copperfs_fuse::mountinfo;
use copperfs_fuse::{UnmountError, unmount_idle};
use rustix::process::Signal;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long looking through all processes may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a helper of the daemon may have a directory of the mount open.
const HELPER_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a daemon may take for an orderly end.
const END_TIMEOUT: Duration = Duration::from_secs(SHUTDOWN_TIMEOUT.as_secs() + 4);

/// Between two looks at what cannot be waited for.
const LOOK: Duration = Duration::from_millis(50);

/// What was done at a mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The daemon was told to end, and did.
    Ended(u32),
    /// Its mount was taken away from a daemon in another pid namespace, and it ended.
    EndedElsewhere,
    /// The daemon had to be killed.
    Killed(u32),
    /// There was only the mount of a daemon long gone.
    Cleaned,
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(pid) => write!(f, "unmounted (daemon {pid} ended)"),
            Self::EndedElsewhere => {
                f.write_str("unmounted (its daemon, in another pid namespace, ended)")
            }
            Self::Killed(pid) => {
                write!(f, "unmounted (daemon {pid} did not answer and was killed)")
            }
            Self::Cleaned => f.write_str("unmounted (its daemon was gone already)"),
        }
    }
}

/// A daemon as it is seen from here.
#[derive(Debug)]
enum Daemon {
    /// It runs, and can be signalled.
    Here(Process),
    /// It was killed, and a thread of it hangs in the kernel.
    Killed,
    /// It runs in a pid namespace that is not seen from here.
    Elsewhere(Holder),
    /// There is none.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    /// The software mount and the data mount, as far as they are known.
    points: Vec<PathBuf>,
    /// Those that are there, in the order in which they go: the data mount first.
    mounts: Vec<PathBuf>,
    runtime_dir: Option<PathBuf>,
    daemon: Daemon,
    /// A question to the mount was not answered. The thread that asked it is left behind and uses the
    /// mount itself, so that the kernel's count says nothing any more.
    hangs: bool,
}

impl Target {
    /// What is at `path` ([`mountpoint::canonical`]); `None`: neither a mount nor a daemon.
    pub(super) fn find(path: &Path, machine: &Machine) -> Option<Self> {
        let owner = owner_at(path);
        let mut hangs = false;
        let runtime_dir = runtime_dir_of(path, machine, || {
            let said = owner.map(|_| control_socket(path));
            hangs = matches!(said, Some(Err(_)));
            said?.ok()?
        });
        let holder = runtime_dir.as_deref().and_then(runtime_dir::holder);
        let daemon = match holder {
            Some(holder) => match holder.process() {
                Some(process) if process.is_dead() => Daemon::Killed,
                Some(process) => Daemon::Here(process),
                None => Daemon::Elsewhere(holder),
            },
            None => {
                find_daemon(path, owner.unwrap_or(machine.uid)).map_or(Daemon::Gone, Daemon::Here)
            }
        };
        let mut points = Vec::new();
        if let Some(dir) = &runtime_dir {
            points.extend(runtime_dir::noted_data_mount(dir));
            points.extend(runtime_dir::noted_mount(dir));
        }
        // A directory of another user may name any mount: only those of the same user go with this one.
        points
            .retain(|point| point == path || owner_at(point) == Some(owner.unwrap_or(machine.uid)));
        if !points.iter().any(|point| point == path) {
            points.push(path.to_owned());
        }
        let mounts: Vec<PathBuf> = points
            .iter()
            .filter(|it| is_copperfs(it))
            .cloned()
            .collect();
        if mounts.is_empty() && matches!(daemon, Daemon::Gone) {
            return None;
        }
        Some(Self {
            path: path.to_owned(),
            points,
            mounts,
            runtime_dir,
            daemon,
            hangs,
        })
    }

    /// A question to the mount was not answered in time.
    pub(super) fn does_not_answer(&mut self) {
        self.hangs = true;
    }

    /// One of its mounts that is there.
    pub(super) fn mounted(&self) -> Option<&PathBuf> {
        self.mounts.last()
    }

    /// Fails if anything but copperfs itself uses one of the mounts, and says what does. A mount whose
    /// daemon is dead serves nothing any more: it is not in use.
    pub(super) fn is_idle(&self) -> anyhow::Result<()> {
        if self.is_dead() {
            return Ok(());
        }
        let users = self.users();
        if !users.is_empty() {
            return Err(self.refusal(&users));
        }
        for mount in self.mounts.iter().filter(|_| !self.hangs) {
            // A helper of the daemon may have a directory open for a moment.
            let idle = || copperfs_fuse::is_busy(mount).map(|busy| busy != Some(true));
            if !until(HELPER_TIMEOUT, idle)? {
                return Err(self.refusal(&self.users()));
            }
        }
        Ok(())
    }

    fn is_dead(&self) -> bool {
        matches!(self.daemon, Daemon::Gone | Daemon::Killed)
    }

    /// What uses the mounts, as far as it can be told in time.
    fn users(&self) -> Vec<User> {
        // As the daemon sees them where it has a mount namespace of its own.
        let shown = match &self.daemon {
            Daemon::Here(process) => process.shown_as(),
            _ => None,
        };
        let seen = |shown| {
            self.points
                .iter()
                .filter_map(move |it| busy::device_at(it, shown))
        };
        let mut devices: Vec<Device> = seen(None).collect();
        if shown.is_some() {
            devices.extend(seen(shown));
        }
        devices.sort_unstable();
        devices.dedup();
        let points = self.points.clone();
        within(SCAN_TIMEOUT, move || busy::users(&devices, &points)).unwrap_or_default()
    }

    fn refusal(&self, users: &[User]) -> anyhow::Error {
        let by = if users.is_empty() {
            "something that is not seen from here: a process of another user or namespace, or the \
             kernel itself (a loop device)"
                .to_owned()
        } else {
            busy::named(users)
        };
        anyhow::anyhow!(
            "{} is in use by {by}. End that first, or take it away all the same with --force",
            self.path.display()
        )
    }

    /// Takes the mounts away and ends the daemon; with `force` also if they are in use.
    ///
    /// # Errors
    /// It is in use, another user's, or the kernel refuses.
    pub(super) fn take_away(self, force: bool) -> anyhow::Result<Done> {
        if !force && !self.is_dead() && !self.hangs {
            self.unmount_idle()?;
        }
        let software = self.points.last().unwrap_or(&self.path);
        let done = match &self.daemon {
            Daemon::Gone => {
                mountpoint::cut_off(software);
                Done::Cleaned
            }
            Daemon::Killed => {
                if let Some(dir) = &self.runtime_dir {
                    free_killed(dir, software);
                }
                mountpoint::cut_off(software);
                Done::Cleaned
            }
            Daemon::Here(process) => self.end(process)?,
            Daemon::Elsewhere(holder) => self.end_elsewhere(holder, force)?,
        };
        // Not the mount of another daemon, which may have come to the data mount's place since.
        for point in &self.points {
            if *point != self.path && point != software {
                mountpoint::take_away_stale(point);
                continue;
            }
            mountpoint::detach_all(point)
                .with_context(|| format!("cannot take away the mount at {}", point.display()))?;
        }
        if let Some(dir) = &self.runtime_dir {
            let _gone_already = runtime_dir::note_data_mount(dir, None);
        }
        Ok(done)
    }

    /// Unmounts without force: from here on the kernel's own word decides.
    fn unmount_idle(&self) -> anyhow::Result<()> {
        for mount in &self.mounts {
            let unmounted = || match unmount_idle(mount) {
                Ok(()) => Ok(true),
                Err(UnmountError::Busy { .. }) => Ok(false),
                Err(error) => Err(error),
            };
            let unmounted = until(HELPER_TIMEOUT, unmounted);
            let gone = unmounted
                .with_context(|| format!("cannot take away the mount at {}", mount.display()))?;
            if !gone {
                return Err(self.refusal(&self.users()));
            }
        }
        Ok(())
    }

    fn end(&self, process: &Process) -> anyhow::Result<Done> {
        let pid = process.pid;
        process
            .signal(Signal::TERM)
            .with_context(|| format!("cannot end the daemon {pid}; it is another user's"))?;
        if process.wait(END_TIMEOUT)? {
            return Ok(Done::Ended(pid));
        }
        // It hangs, and so may whatever would take its mounts away: first what holds it.
        for point in &self.points {
            mountpoint::cut_off(point);
        }
        mountpoint::detach_all(self.points.last().unwrap_or(&self.path))?;
        if !process.end(Duration::from_secs(1))? {
            bail!("the daemon {pid} cannot be killed: it hangs in the kernel");
        }
        Ok(Done::Killed(pid))
    }

    /// Ends a daemon that cannot be signalled: it ends when its mount does.
    fn end_elsewhere(&self, holder: &Holder, force: bool) -> anyhow::Result<Done> {
        if force {
            for mount in &self.mounts {
                copperfs_fuse::abort(mount)
                    .with_context(|| format!("cannot cut off {}", mount.display()))?;
            }
        }
        let dir = self.runtime_dir.as_deref().unwrap_or(&self.path);
        let limit = if self.mounts.is_empty() {
            Duration::ZERO
        } else {
            END_TIMEOUT
        };
        let ended = until::<anyhow::Error>(limit, || Ok(runtime_dir::holder(dir).is_none()))?;
        if !ended {
            bail!(
                "the daemon of {} ({holder}) runs on: this pid namespace does not see it. Run \
                 copperfs unmount where it was mounted",
                self.path.display()
            );
        }
        Ok(Done::EndedElsewhere)
    }
}

/// The user whose copperfs is mounted at `path`, if one is.
fn owner_at(path: &Path) -> Option<u32> {
    let mounts = mountinfo::read().ok()?;
    let mount = mountinfo::at(&mounts, path)?;
    (mount.fstype == mountinfo::COPPERFS_FSTYPE)
        .then_some(mount.owner)
        .flatten()
}

/// The runtime directory of the daemon with a mount at `path`: by its name, by the data mount that it
/// notes, or, where neither is of one that lives, as `say` has it.
fn runtime_dir_of(
    path: &Path,
    machine: &Machine,
    say: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let name = instance_name(path, machine.host_name());
    let named = machine.runtime_bases.iter().map(|base| base.join(&name));
    let noted = runtime_dir::with_data_mount(&machine.runtime_bases, path);
    let known: Vec<PathBuf> = named.chain(noted).filter(|dir| dir.is_dir()).collect();
    let alive = known.iter().find(|dir| runtime_dir::holder(dir).is_some());
    alive
        .cloned()
        .or_else(say)
        .or_else(|| known.into_iter().next())
}

/// Where the daemon of the mount at `path` says that its runtime directory is; an error if it does not
/// answer in time.
fn control_socket(path: &Path) -> io::Result<Option<PathBuf>> {
    let asked = path.to_owned();
    let said = within(super::ASK_TIMEOUT, move || client::control_socket(&asked))?;
    Ok(said
        .ok()
        .and_then(|socket| socket.parent().map(Path::to_owned)))
}

/// Tries until it is so, at most `limit`; whether it is.
fn until<E>(limit: Duration, mut is_so: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let (_never, pause) = mpsc::sync_channel::<()>(0);
    let deadline = Instant::now() + limit;
    loop {
        if is_so()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        let _elapsed = pause.recv_timeout(LOOK);
    }
}
