//! Finds the mount that a command refers to, and the path inside it.
//!
//! A path may be written as programs see it (`/copper_mnt/lus/x`, or relative to the working directory), or
//! as the mount sees it (`/lus/x`). The mount itself is not touched: links on the way to the mount point
//! are followed, and the path below the mount point is taken as written. [`Named::followed`] follows the
//! links inside the mount.

use crate::config::Machine;
use crate::daemon::mountpoint;
use crate::daemon::runtime_dir::{self, DATA_MOUNT_FILE};
use anyhow::{Context, bail};
use copperfs_fuse::mountinfo::{self, COPPERFS_FSTYPE, MountEntry};
use copperfs_overlay::ItemPath;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The maximum number of links followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// How long look-ups in the filesystems on the way to a path may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Variable that names the mount.
const VARIABLE: &str = "COPPERFS_MOUNTPOINT";

/// A path on a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The mount point, absolute and without links.
    pub(super) mount: PathBuf,
    /// The path inside the mount, as written.
    pub(super) inside: ItemPath,
}

impl Named {
    /// Resolves `path`: on `mount` if one is given, else on the mount that contains it, else on the default
    /// mount.
    ///
    /// # Errors
    /// It is on no copperfs mount, or the way to it cannot be looked at.
    pub(super) fn find(
        path: &Path,
        mount: Option<&Path>,
        machine: &Machine,
    ) -> anyhow::Result<Self> {
        let absolute = machine.working_dir.join(path);
        let mount = mount.map(|named| mount_of(&machine.working_dir.join(named)));
        let mount = mount.transpose()?;
        let shown = path.display();
        let (mount, inside) = match (divided(&absolute)?, mount) {
            (Some((found, inside)), None) => (found, inside),
            (Some((found, inside)), Some(mount)) if found == mount => (mount, inside),
            (_, Some(mount)) => (mount, path.to_owned()),
            (None, None) if path.is_absolute() => {
                let meant = default_mount(machine);
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

    /// The path after the mount's links are followed, if it is still inside the mount. Asks the mount.
    pub(super) fn followed(&self) -> Option<ItemPath> {
        let inside = Path::new(std::ffi::OsStr::from_bytes(self.inside.as_bytes()));
        let path = self.mount.join(inside);
        let real = mountpoint::within(LOOKUP_TIMEOUT, move || mountpoint::canonical(&path)).ok()?;
        let inside = real.strip_prefix(&self.mount).ok()?;
        ItemPath::parse(inside.as_os_str().as_bytes()).ok()
    }
}

/// The copperfs mount that is at `path` or contains it.
fn mount_of(path: &Path) -> anyhow::Result<PathBuf> {
    let found = divided(path)?;
    let (mount, _) =
        found.with_context(|| format!("{} is not on a copperfs mount", path.display()))?;
    Ok(mount)
}

/// The default mount: the one that the variable names, the one that contains the working directory, or the
/// only mount of this user.
///
/// # Errors
/// There is none, or there are several.
pub(super) fn default_mount(machine: &Machine) -> anyhow::Result<PathBuf> {
    let named = machine.variables.get(VARIABLE);
    if let Some(named) = named.filter(|path| !path.is_empty()) {
        return mount_of(&machine.working_dir.join(named)).context(VARIABLE);
    }
    if let Some((mount, _)) = divided(&machine.working_dir)? {
        return Ok(mount);
    }
    let dirs = runtime_dir::all(&machine.runtime_bases);
    let beside = dirs.filter_map(|dir| runtime_dir::noted(&dir, DATA_MOUNT_FILE));
    let beside: Vec<PathBuf> = beside.collect();
    let mut own: Vec<PathBuf> = mountinfo::read()?
        .into_iter()
        .filter(|mount| mount.fstype == COPPERFS_FSTYPE && mount.owner == Some(machine.uid))
        .map(|mount| mount.mountpoint)
        .filter(|mount| !beside.contains(mount))
        .collect();
    own.sort();
    own.dedup();
    match own.as_slice() {
        [] => bail!("no copperfs of this user is mounted here"),
        [only] => Ok(only.clone()),
        several => {
            let shown: Vec<String> = several.iter().map(|it| it.display().to_string()).collect();
            bail!("name one of the mounts: {}", shown.join(", "))
        }
    }
}

/// Like [`divide`], in bounded time: the path may lead through other mounts that hang.
fn divided(path: &Path) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    let asked = path.to_owned();
    let link = |path: &Path| std::fs::read_link(path);
    let divide = move || divide(&asked, &mountinfo::read()?, &link);
    let divided = mountpoint::within(LOOKUP_TIMEOUT, divide).flatten();
    divided.with_context(|| format!("cannot resolve the path {}", path.display()))
}

/// The copperfs mount among `mounts` that contains the absolute `path`, and the rest of the path below its
/// mount point. `link` reads links outside of the mount.
fn divide(
    path: &Path,
    mounts: &[MountEntry],
    link: &dyn Fn(&Path) -> io::Result<PathBuf>,
) -> io::Result<Option<(PathBuf, PathBuf)>> {
    // The words of a path, the last one first.
    let words = |path: &Path| -> Vec<OsString> {
        let words = path.components().rev();
        let named = words.filter(|it| !matches!(it, Component::CurDir | Component::RootDir));
        named.map(|it| it.as_os_str().to_owned()).collect()
    };
    let mut ahead = words(path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    let mut mount: Option<PathBuf> = None;
    while let Some(word) = ahead.pop() {
        if word == ".." {
            // `..` at the mount point leads out of the mount.
            if mount.as_deref() == Some(at.as_path()) {
                mount = None;
            }
            at.pop();
            continue;
        }
        let next = at.join(&word);
        if mountinfo::at(mounts, &next).is_some_and(|it| it.fstype == COPPERFS_FSTYPE) {
            mount = Some(next.clone());
        }
        // Links inside the mount are not followed here, because that would access the mount.
        if mount.is_none()
            && let Ok(target) = link(&next)
        {
            links += 1;
            if links > LINKS_MAX {
                return Err(rustix::io::Errno::LOOP.into());
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            ahead.extend(words(&target));
            continue;
        }
        at = next;
    }
    Ok(mount.map(|mount| {
        let inside = at.strip_prefix(&mount).map(Path::to_owned);
        (mount, inside.unwrap_or_default())
    }))
}

/// `path` as a path of a mount's namespace, without `.` and `..`.
fn within(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts() -> Vec<MountEntry> {
        mountinfo::parse(
            b"1 0 8:1 / / rw - ext4 /dev/sda rw\n\
              2 1 0:50 / /m/0 ro - fuse.copperfs copperfs ro,user_id=0\n\
              3 1 0:51 / /m/1 ro - fuse.copperfs copperfs ro,user_id=0\n",
        )
    }

    fn at(path: &str) -> Option<(String, String)> {
        let link = |path: &Path| match path.to_str() {
            Some("/here") => Ok(PathBuf::from("m/0")),
            Some("/loop") => Ok(PathBuf::from("/loop")),
            // A link inside the mount must not be read.
            Some("/m/0/l") => panic!("the mount was asked"),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let found = divide(Path::new(path), &mounts(), &link).unwrap();
        found.map(|(mount, inside)| (mount.display().to_string(), inside.display().to_string()))
    }

    #[test]
    fn a_path_is_divided_at_its_mount_point() {
        let on = |mount: &str, inside: &str| Some((mount.to_owned(), inside.to_owned()));
        assert_eq!(at("/m/0/t/d/a"), on("/m/0", "t/d/a"));
        assert_eq!(at("/m/./0//t/../u"), on("/m/0", "u"));
        assert_eq!(at("/here/l/x"), on("/m/0", "l/x"));
        assert_eq!(at("/m/0/../1/x"), on("/m/1", "x"));
        assert_eq!(at("/m/0"), on("/m/0", ""));
        assert_eq!(at("/m/0/.."), None);
        assert_eq!(at("/m"), None);
        assert_eq!(at("/elsewhere/m/0"), None);
        let endless = |_: &Path| Ok(PathBuf::from("/loop"));
        assert!(divide(Path::new("/loop"), &mounts(), &endless).is_err());
    }

    #[test]
    fn a_path_of_the_namespace_is_cleaned() {
        assert_eq!(within(Path::new("/lus//a/./b/../c")), Path::new("lus/a/c"));
        assert_eq!(within(Path::new("../x")), Path::new("x"));
    }
}
