//! Finds a daemon and its mounts by any of its mount points, and unmounts them.
//!
//! The daemon is the process that holds the lock of the mount's runtime directory. It is identified by the
//! contents of its pid file ([`runtime_dir::Holder`]), and no other process is ever signalled. A daemon in
//! a pid namespace that is not visible from here ends when its mount is taken away.

use super::daemon::ask_daemon;
use super::listed;
use crate::config::{Machine, resolve::instance_name};
use crate::daemon::busy::{self, Device, User};
use crate::daemon::mountpoint::{self, canonical, is_copperfs, within};
use crate::daemon::runtime_dir::{self, DATA_MOUNT_FILE, Holder, MOUNT_FILE};
use crate::daemon::{SHUTDOWN_TIMEOUT, free_killed};
use crate::process::{Process, find_daemon};
use anyhow::{Context, anyhow, bail, ensure};
use copperfs_fuse::ioctl::client;
use copperfs_fuse::mountinfo;
use copperfs_fuse::{MountUse, UnmountError, unmount_idle};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a daemon may take to answer a question about itself.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a scan of all processes may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a helper of the daemon may keep a directory of the mount open.
const HELPER_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the orderly shutdown of a daemon may take.
const END_TIMEOUT: Duration = Duration::from_secs(SHUTDOWN_TIMEOUT.as_secs() + 4);

/// Users of a mount that are named; of further ones only the number is shown.
const USERS_NAMED_MAX: usize = 8;

/// Interval between two checks of a condition that sends no event.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The outcome at one mount point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmounted {
    /// The daemon was signalled, and ended.
    Ended(u32),
    /// The daemon is in another pid namespace; its mount was taken away, and it ended.
    EndedElsewhere,
    /// The daemon had to be killed.
    Killed(u32),
    /// Only the mount of a dead daemon was left.
    Cleaned,
}

impl std::fmt::Display for Unmounted {
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

/// The state of a daemon, as seen from here.
#[derive(Debug)]
enum Daemon {
    /// It runs, and can be signalled.
    Here(Process),
    /// It was killed, but one of its threads hangs in the kernel.
    Killed,
    /// It runs in a pid namespace that is not visible from here.
    Elsewhere(Holder),
    /// There is no daemon.
    Gone,
}

/// A daemon and its mounts.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    /// The paths of the data mount and the software mount, as far as they are known.
    points: Vec<PathBuf>,
    /// Paths with a mount, in the order of unmounting: the data mount first.
    pub(super) mounts: Vec<PathBuf>,
    runtime_dir: Option<PathBuf>,
    daemon: Daemon,
    /// The mount did not answer a question. The thread that asked still waits and uses the mount itself, so
    /// the kernel's use count is not meaningful any more.
    pub(super) hangs: bool,
}

impl Target {
    /// Finds the mount or the daemon at `path` ([`mountpoint::canonical`]). Returns `None` if there is
    /// neither.
    pub(super) fn find(path: &Path, machine: &Machine) -> Option<Self> {
        // The owner according to the kernel: a runtime directory of another user must not be trusted.
        let owner = owner_at(path);
        let mut hangs = false;
        let runtime_dir = runtime_dir_of(path, machine, || {
            owner?;
            let sockets = ask_daemon(path, ASK_TIMEOUT, client::sockets);
            hangs = sockets.is_err();
            sockets.ok()?.ok()?.owner.parent().map(Path::to_owned)
        });
        let user = owner.unwrap_or(machine.uid);
        let daemon = match runtime_dir.as_deref().and_then(runtime_dir::holder) {
            Some(holder) => match holder.process() {
                Some(process) if process.is_dead() => Daemon::Killed,
                Some(process) => Daemon::Here(process),
                None => Daemon::Elsewhere(holder),
            },
            None => find_daemon(path, user).map_or(Daemon::Gone, Daemon::Here),
        };
        let mut points = Vec::new();
        if let Some(dir) = &runtime_dir {
            points.extend(runtime_dir::noted(dir, DATA_MOUNT_FILE));
            points.extend(runtime_dir::noted(dir, MOUNT_FILE));
        }
        // A runtime directory of another user may name any mount, so only mounts of the same user are
        // included.
        points.retain(|point| point == path || owner_at(point) == Some(user));
        if !points.iter().any(|point| point == path) {
            points.push(path.to_owned());
        }
        let mut mounts = points.clone();
        mounts.retain(|point| is_copperfs(point));
        let target = Self {
            path: path.to_owned(),
            points,
            mounts,
            runtime_dir,
            daemon,
            hangs,
        };
        let is_there = !target.mounts.is_empty() || !matches!(target.daemon, Daemon::Gone);
        is_there.then_some(target)
    }

    /// Fails if a process other than copperfs uses one of the mounts, and names the users. The mount of a
    /// dead daemon counts as idle, because nothing can use it any more.
    pub(super) fn is_idle(&mut self) -> anyhow::Result<()> {
        if self.is_dead() {
            return Ok(());
        }
        let users = self.users();
        if !users.is_empty() {
            return Err(self.refusal(&users));
        }
        let natives = self.natives();
        for native in &natives {
            if matches!(copperfs_fuse::mount_use(native), Ok(MountUse::Busy)) {
                return Err(self.refusal(&self.users()));
            }
        }
        // While there are images the kernel itself uses the mount below them.
        let mounts = self.mounts.clone();
        for mount in mounts
            .iter()
            .filter(|mount| !natives.iter().any(|it| it.starts_with(mount)))
        {
            // A helper of the daemon may have a directory open for a moment.
            let idle = || copperfs_fuse::mount_use(mount).map(|used| used != MountUse::Busy);
            if !self.hangs && !until(HELPER_TIMEOUT, idle)? {
                self.is_only_hanging(mount)?;
            }
        }
        Ok(())
    }

    /// The mount points of the images over the mounts.
    fn natives(&self) -> Vec<PathBuf> {
        let mounts = mountinfo::read().unwrap_or_default();
        let over = self
            .mounts
            .iter()
            .flat_map(|mount| mountinfo::natives(&mounts, mount));
        over.map(|native| native.mountpoint.clone()).collect()
    }

    /// Fails if a mount that is in use has users, or a daemon that answers. If its daemon hangs, a helper of it may wait
    /// inside, and nothing else can be said of it.
    fn is_only_hanging(&mut self, mount: &Path) -> anyhow::Result<()> {
        let users = self.users();
        self.hangs = users.is_empty() && ask_daemon(mount, ASK_TIMEOUT, client::sockets).is_err();
        match self.hangs {
            true => Ok(()),
            false => Err(self.refusal(&users)),
        }
    }

    fn is_dead(&self) -> bool {
        matches!(self.daemon, Daemon::Gone | Daemon::Killed)
    }

    /// The users of the mounts, as far as they can be found in time.
    fn users(&self) -> Vec<User> {
        let mut processes = vec![None];
        if let Daemon::Here(process) = &self.daemon {
            // The paths as the daemon sees them, if it has its own mount namespace.
            processes.push(process.shown_as());
        }
        let devices = |process| move |point: &PathBuf| busy::devices_at(point, process);
        let each = processes.into_iter();
        let devices = each.flat_map(|process| self.points.iter().flat_map(devices(process)));
        let mut devices: Vec<Device> = devices.collect();
        devices.sort_unstable();
        devices.dedup();
        let mut points = self.points.clone();
        points.extend(self.hidden_top());
        within(SCAN_TIMEOUT, move || busy::users(&devices, &points)).unwrap_or_default()
    }

    /// Where the daemon's attendant mounts the software mount a second time, if an image lies over all of it.
    fn hidden_top(&self) -> Option<PathBuf> {
        self.runtime_dir.as_deref().map(runtime_dir::hidden_top)
    }

    fn refusal(&self, users: &[User]) -> anyhow::Error {
        let unseen = "a process that is not visible from here (of another user or namespace), or by \
                      the kernel itself (a loop device)";
        let by = match users {
            [] => unseen.to_owned(),
            users => listed(users, USERS_NAMED_MAX),
        };
        let path = self.path.display();
        anyhow!("{path} is in use by {by}. End the program first, or unmount anyway with --force")
    }

    /// Unmounts and ends the daemon; with `force` even if the mounts are in use.
    ///
    /// # Errors
    /// A mount is in use or belongs to another user, or the kernel refuses.
    pub(super) fn take_away(mut self, force: bool) -> anyhow::Result<Unmounted> {
        if !force && !self.is_dead() && !self.hangs {
            self.unmount_idle()?;
        }
        // The software mount is the last point; the data mount comes before it.
        let software = self.points.last().unwrap_or(&self.path);
        let done = match &self.daemon {
            Daemon::Gone | Daemon::Killed => {
                if let (Daemon::Killed, Some(dir)) = (&self.daemon, &self.runtime_dir) {
                    free_killed(dir, software);
                }
                mountpoint::abort_unresponsive(software);
                Unmounted::Cleaned
            }
            Daemon::Here(process) => self.end(process)?,
            Daemon::Elsewhere(holder) => self.end_elsewhere(holder, force)?,
        };
        // A mount of another daemon may be at the path of the data mount by now; it must not be detached.
        for point in &self.points {
            // Only mounts whose daemon is dead are detached at another path than the requested one.
            if *point != self.path && point != software {
                mountpoint::detach_stale(point);
                continue;
            }
            mountpoint::detach_all(point).with_context(|| cannot_take_away(point))?;
        }
        if let Some(hidden) = self.hidden_top() {
            mountpoint::detach_all(&hidden).with_context(|| cannot_take_away(&hidden))?;
        }
        if let Some(dir) = &self.runtime_dir {
            let _gone_already = runtime_dir::note(dir, DATA_MOUNT_FILE, None);
            self.remove_made(dir);
        }
        Ok(done)
    }

    /// Removes the directories that were made for the mounts of the daemon with the runtime directory `dir`.
    fn remove_made(&self, dir: &Path) {
        for note in runtime_dir::MADE_FILES {
            let Some(made) = runtime_dir::noted(dir, note) else {
                continue;
            };
            for point in self.points.iter().filter(|point| point.starts_with(&made)) {
                mountpoint::remove_made(point, &made);
            }
            let _gone_already = runtime_dir::note(dir, note, None);
        }
    }

    /// Unmounts without force. The kernel decides whether a mount is in use.
    fn unmount_idle(&mut self) -> anyhow::Result<()> {
        // The kernel uses the mount below images, and only the daemon has them taken away. That no program uses them was
        // seen before.
        if !self.natives().is_empty() {
            return Ok(());
        }
        for mount in self.mounts.clone() {
            let unmounted = || match unmount_idle(&mount) {
                Ok(()) => Ok(true),
                Err(UnmountError::Busy { .. }) => Ok(false),
                Err(error) => Err(error),
            };
            let cannot = || cannot_take_away(&mount);
            if !self.hangs && !until(HELPER_TIMEOUT, unmounted).with_context(cannot)? {
                self.is_only_hanging(&mount)?;
            }
        }
        Ok(())
    }

    fn end(&self, process: &Process) -> anyhow::Result<Unmounted> {
        let pid = process.pid;
        process
            .signal(Signal::TERM)
            .with_context(|| format!("cannot end the daemon {pid}; it is another user's"))?;
        if process.wait(END_TIMEOUT)? {
            return Ok(Unmounted::Ended(pid));
        }
        // The daemon hangs, and unmounting could hang too, so its connections are aborted first.
        for point in &self.points {
            mountpoint::abort_unresponsive(point);
        }
        mountpoint::detach_all(self.points.last().unwrap_or(&self.path))?;
        if !process.end(Duration::from_secs(1))? {
            bail!("the daemon {pid} cannot be killed: it hangs in the kernel");
        }
        Ok(Unmounted::Killed(pid))
    }

    /// Ends a daemon that cannot be signalled, by unmounting: it ends with its mount.
    fn end_elsewhere(&self, holder: &Holder, force: bool) -> anyhow::Result<Unmounted> {
        if force {
            for mount in &self.mounts {
                copperfs_fuse::abort(mount)
                    .with_context(|| format!("cannot cut off {}", mount.display()))?;
            }
        }
        let dir = self.runtime_dir.as_deref().unwrap_or(&self.path);
        let limit = match self.mounts.is_empty() {
            true => Duration::ZERO,
            false => END_TIMEOUT,
        };
        let ended = until::<anyhow::Error>(limit, || Ok(runtime_dir::holder(dir).is_none()))?;
        ensure!(
            ended,
            "the daemon of {} ({holder}) runs on: this pid namespace does not see it. Run copperfs \
             unmount where it was mounted",
            self.path.display()
        );
        Ok(Unmounted::EndedElsewhere)
    }
}

/// The user that owns the copperfs mount at `path`, if there is one.
fn owner_at(path: &Path) -> Option<u32> {
    let mounts = mountinfo::read().ok()?;
    let mount = mountinfo::at(&mounts, path);
    mount.filter(|mount| mount.is_copperfs())?.owner
}

/// The runtime directory of the daemon with a mount at `path`: found by its name, or by the data mount that
/// it records. If no daemon is alive in either, `say` supplies it.
pub(super) fn runtime_dir_of(
    path: &Path,
    machine: &Machine,
    say: impl FnOnce() -> Option<PathBuf>,
) -> Option<PathBuf> {
    let name = instance_name(path, machine.host_name());
    let named = machine.runtime_bases.iter().map(|base| base.join(&name));
    let is_of = |dir: &PathBuf| runtime_dir::noted(dir, DATA_MOUNT_FILE).as_deref() == Some(path);
    let noted = runtime_dir::all(&machine.runtime_bases).filter(is_of);
    let known: Vec<PathBuf> = named.chain(noted).filter(|dir| dir.is_dir()).collect();
    let alive = known.iter().find(|dir| runtime_dir::holder(dir).is_some());
    let reported = alive.cloned().or_else(say);
    reported.or_else(|| known.first().cloned())
}

/// Polls `condition` until it returns `true`, for at most `limit`. Returns its last result.
fn until<E>(limit: Duration, mut condition: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let (_never, pause) = mpsc::sync_channel::<()>(0);
    let deadline = Instant::now() + limit;
    loop {
        if condition()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        let _elapsed = pause.recv_timeout(POLL_INTERVAL);
    }
}

/// Unmounts the mount that launch `id` has started at `path`, if it has started one, even if it is in use.
///
/// # Errors
/// The kernel refuses.
pub fn of_launch(path: &Path, id: &str, machine: &Machine) -> anyhow::Result<Option<Unmounted>> {
    let path = canonical(path);
    let name = instance_name(&path, machine.host_name());
    let started = |base: &PathBuf| runtime_dir::launch(&base.join(&name)).as_deref() == Some(id);
    if !machine.runtime_bases.iter().any(started) {
        return Ok(None);
    }
    let target = Target::find(&path, machine);
    target.map(|target| target.take_away(true)).transpose()
}
/// The text for a mount that the kernel does not take away.
fn cannot_take_away(mount: &Path) -> String {
    let shown = mount.display();
    match owner_at(mount) {
        Some(owner) if owner != rustix::process::geteuid().as_raw() => format!(
            "cannot take away the mount at {shown}: only its owner (user {owner}) and root may do this"
        ),
        _ => format!("cannot take away the mount at {shown}"),
    }
}
