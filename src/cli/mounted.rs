//! The mount that a command is about. All commands find it in one way: as named, or by `COPPERFS_MOUNTPOINT`, or as the
//! mount of the working directory, or as the only mount of this user. The directory of a launch stands for its nodes.
//!
//! A path may be written as programs see it (`/copper_mnt/lus/x`, or relative to the working directory), or as the mount
//! sees it (`/lus/x`). [`Named::followed`] follows the links inside the mount.

use super::daemon::{client_of, run};
use super::place::{LOOKUP_TIMEOUT, divided, within};
use super::print;
use super::record::{Kind, Record};
use crate::config::{Machine, file};
use crate::control::client::ControlClient;
use crate::daemon::mountpoint::{self, canonical, is_copperfs};
use crate::daemon::runtime_dir::{self, DATA_MOUNT_FILE};
use anyhow::{Context, bail};
use clap::Args;
use copperfs_fuse::mountinfo;
use copperfs_overlay::ItemPath;
use serde_json::Value;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Variable that names the mount.
const VARIABLE: &str = "COPPERFS_MOUNTPOINT";

/// The mount that a command asks, as its argument.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct MountArg {
    /// The mount, or the directory of a launch [default: COPPERFS_MOUNTPOINT, the mount of the working
    /// directory, or the only mount of this user]
    #[arg(value_name = "MOUNT")]
    mount: Option<PathBuf>,
}

/// The mount that a command asks, as a flag.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct MountFlag {
    /// The mount to ask, or the directory of a launch [default: COPPERFS_MOUNTPOINT, the mount of the working
    /// directory, or the only mount of this user]
    #[arg(short, long, value_name = "MOUNT")]
    mount: Option<PathBuf>,
}

impl MountArg {
    /// The mount point.
    ///
    /// # Errors
    /// As for [`Found::of`] and [`Found::mount`].
    pub(super) fn find(&self) -> anyhow::Result<PathBuf> {
        find(self.mount.as_deref())
    }
}

impl MountFlag {
    /// The mount point.
    ///
    /// # Errors
    /// As for [`MountArg::find`].
    pub(super) fn find(&self) -> anyhow::Result<PathBuf> {
        find(self.mount.as_deref())
    }

    /// The path that the flag names.
    pub(super) fn named(&self) -> Option<&Path> {
        self.mount.as_deref()
    }

    /// Connects to the daemon.
    ///
    /// # Errors
    /// There is no such mount, or its daemon does not answer.
    pub(super) fn client(&self) -> anyhow::Result<ControlClient> {
        client_of(&self.find()?)
    }

    /// Sends one request.
    ///
    /// # Errors
    /// As [`MountFlag::client`], or the daemon refuses the request.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let client = self.client()?;
        run(async move { Ok(client.ask(method, path, body).await?) })
    }
}

/// Flags of every command that asks a daemon.
#[derive(Debug, Args)]
pub struct AskArgs {
    #[command(flatten)]
    pub(super) mounted: MountFlag,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl AskArgs {
    /// Sends one request, and prints the answer as JSON, or as the text that `told` makes of it.
    ///
    /// # Errors
    /// As [`MountFlag::ask`].
    pub(super) fn show(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        told: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<()> {
        self.print(&self.mounted.ask(method, path, body)?, told)
    }

    /// Prints `answer` as JSON, or as the text that `told` makes of it.
    ///
    /// # Errors
    /// It cannot be serialised.
    pub(super) fn print(
        &self,
        answer: &Value,
        told: impl FnOnce(&Value) -> String,
    ) -> anyhow::Result<()> {
        print(self.json, answer, told)
    }
}

fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    Found::of(named, &Machine::inspect())?.mount()
}

/// What a command is about.
#[derive(Debug)]
pub(super) enum Found {
    /// One mount, absolute and without links.
    Mount(PathBuf),
    /// All nodes of a launch, which was named by its directory.
    Launch(Box<Record>),
}

impl Found {
    /// Finds the mount that is at `named` or contains it, or the launch whose directory it is; without a name the default.
    ///
    /// # Errors
    /// There is none, or there are several to choose from.
    pub(super) fn of(named: Option<&Path>, machine: &Machine) -> anyhow::Result<Self> {
        match named {
            Some(path) => Self::at(&machine.working_dir.join(path), machine),
            None => Self::unnamed(machine),
        }
    }

    fn at(path: &Path, machine: &Machine) -> anyhow::Result<Self> {
        if let Some(found) = Self::look(path, machine)? {
            return Ok(found);
        }
        let shown = path.display();
        let own = own_mounts(machine)?;
        bail!("{shown} is not a copperfs mount{}", mounted_here(&own))
    }

    fn look(path: &Path, machine: &Machine) -> anyhow::Result<Option<Self>> {
        if let Some((mount, _)) = divided(path)? {
            return Ok(Some(Self::Mount(mount)));
        }
        let record = Record::load(&canonical(path), machine)?;
        Ok(record.map(|record| Self::Launch(Box::new(record))))
    }

    fn unnamed(machine: &Machine) -> anyhow::Result<Self> {
        let named = machine.variables.get(VARIABLE);
        if let Some(named) = named.filter(|path| !path.is_empty()) {
            return Self::at(&machine.working_dir.join(named), machine).context(VARIABLE);
        }
        if let Some(found) = Self::look(&machine.working_dir, machine)? {
            return Ok(found);
        }
        let own = own_mounts(machine)?;
        match own.as_slice() {
            [] => match others_mounts()?.as_slice() {
                [] => bail!("this user has no copperfs mount here: name one"),
                others => bail!(
                    "this user has no copperfs mount here: name one. Other users have {}",
                    shown(others)
                ),
            },
            [only] => Ok(Self::Mount(only.clone())),
            [first, ..] => match Record::of_node(first, None, machine) {
                Some(record) if own.iter().all(|mount| record.is_node_here(mount)) => {
                    Ok(Self::Launch(Box::new(record)))
                }
                _ => bail!("name one of the mounts: {}", shown(&own)),
            },
        }
    }

    /// The mount to ask: of a launch its first node that is mounted here.
    ///
    /// # Errors
    /// No node of the launch is mounted here.
    pub(super) fn mount(self) -> anyhow::Result<PathBuf> {
        let record = match self {
            Self::Mount(mount) => return Ok(mount),
            Self::Launch(record) => record,
        };
        let mut points = record.nodes.iter().map(|node| &node.mountpoint);
        match (points.find(|point| is_copperfs(point)), record.kind) {
            (Some(point), _) => Ok(point.clone()),
            (None, Kind::Local) => {
                let at = record.mountpoint.display();
                bail!("no node of the launch at {at} is mounted: copperfs unmount {at}")
            }
            (None, Kind::Remote | Kind::Together) => bail!(
                "the launch at {} is on other hosts: run this on one of them, such as {}",
                record.mountpoint.display(),
                record.nodes.first().map_or("-", |node| &node.name)
            ),
        }
    }
}

/// The mount point that a command named, or found, and whether all nodes of its launch are meant: `named` is the directory
/// of a launch, and no mount.
///
/// # Errors
/// As for [`Found::of`]; a name may be of anything.
pub(super) fn point(named: Option<&Path>, machine: &Machine) -> anyhow::Result<(PathBuf, bool)> {
    let Some(named) = named else {
        return Ok(match Found::of(None, machine)? {
            Found::Mount(mount) => (mount, false),
            Found::Launch(record) => (record.mountpoint, true),
        });
    };
    let path = canonical(&machine.working_dir.join(named));
    let is_launch = !is_copperfs(&path) && Record::load(&path, machine)?.is_some();
    Ok((path, is_launch))
}

/// The mount point that the configuration file at `path` names, if it names one.
///
/// # Errors
/// The file cannot be read.
pub(super) fn point_of_file(path: &Path, machine: &Machine) -> anyhow::Result<Option<PathBuf>> {
    let layer = file::read(path)?.absolute(&machine.working_dir);
    Ok(layer.text("mountpoint").map(PathBuf::from))
}

/// The mount points of this user, without data mounts.
pub(super) fn own_mounts(machine: &Machine) -> anyhow::Result<Vec<PathBuf>> {
    let dirs = runtime_dir::all(&machine.runtime_bases);
    let beside = dirs.filter_map(|dir| runtime_dir::noted(&dir, DATA_MOUNT_FILE));
    let beside: Vec<PathBuf> = beside.collect();
    let mut own: Vec<PathBuf> = mountinfo::all_copperfs(&mountinfo::read()?)
        .filter(|mount| mount.owner == Some(machine.uid))
        .map(|mount| mount.mountpoint.clone())
        .filter(|mount| !beside.contains(mount))
        .collect();
    own.sort();
    own.dedup();
    Ok(own)
}

/// The first mount points of all users.
fn others_mounts() -> anyhow::Result<Vec<PathBuf>> {
    const SHOWN: usize = 5;
    let mounts = mountinfo::read()?;
    let others = mountinfo::all_copperfs(&mounts);
    let points = others.map(|mount| mount.mountpoint.clone());
    Ok(points.take(SHOWN).collect())
}

/// The second part of a message that something is not mounted.
pub(super) fn mounted_here(own: &[PathBuf]) -> String {
    match own {
        [] => ", and this user has none here".to_owned(),
        own => format!("; mounted here: {}", shown(own)),
    }
}

fn shown(mounts: &[PathBuf]) -> String {
    let shown: Vec<String> = mounts.iter().map(|it| it.display().to_string()).collect();
    shown.join(", ")
}

/// A path on a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The mount point, absolute and without links.
    pub(super) mount: PathBuf,
    /// The path inside the mount, as written.
    pub(super) inside: ItemPath,
}

impl Named {
    /// Resolves `path`: on `mount` if one is given, else on the mount that contains it, else on the default mount.
    ///
    /// # Errors
    /// It is on no copperfs mount, or the way to it cannot be looked at.
    pub(super) fn find(
        path: &Path,
        mount: Option<&Path>,
        machine: &Machine,
    ) -> anyhow::Result<Self> {
        let absolute = machine.working_dir.join(path);
        let mount = mount.map(|named| Found::of(Some(named), machine)?.mount());
        let mount = mount.transpose()?;
        let shown = path.display();
        let (mount, inside) = match (divided(&absolute)?, mount) {
            (Some((found, inside)), None) => (found, inside),
            (Some((found, inside)), Some(mount)) if found == mount => (mount, inside),
            (_, Some(mount)) => (mount, path.to_owned()),
            (None, None) if path.is_absolute() => {
                let meant = Found::unnamed(machine).and_then(Found::mount);
                let not = || format!("{shown} is not on a copperfs mount");
                (meant.with_context(not)?, path.to_owned())
            }
            (None, None) => bail!(
                "{shown} is not on a copperfs mount: name a path below its mount point, or, with -m \
                 MOUNT, as the mount sees it"
            ),
        };
        let inside = ItemPath::parse(within(&inside).as_os_str().as_bytes())
            .with_context(|| format!("{shown} cannot be a path in the mount"))?;
        Ok(Self { mount, inside })
    }

    /// Whether nothing is at the path. Asks the mount.
    pub(super) fn is_absent(&self) -> bool {
        let path = self.path();
        let found = mountpoint::within(LOOKUP_TIMEOUT, move || path.symlink_metadata());
        found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn path(&self) -> PathBuf {
        let inside = Path::new(std::ffi::OsStr::from_bytes(self.inside.as_bytes()));
        self.mount.join(inside)
    }

    /// The path after the mount's links are followed, if it is still inside the mount. Asks the mount.
    pub(super) fn followed(&self) -> Option<ItemPath> {
        let path = self.path();
        let real = mountpoint::within(LOOKUP_TIMEOUT, move || canonical(&path)).ok()?;
        let inside = real.strip_prefix(&self.mount).ok()?;
        ItemPath::parse(inside.as_os_str().as_bytes()).ok()
    }
}
