//! Divides a path at the mount point that it leads through. The mount itself is not touched: links on the way to the
//! mount point are followed, and the path below it is taken as written.

use crate::daemon::mountpoint;
use anyhow::Context;
use copperfs_fuse::mountinfo::{self, MountEntry};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// The maximum number of links followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// How long look-ups in the filesystems on the way to a path may take.
pub(super) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The copperfs mount that contains the absolute `path`, and the rest of the path below its mount point. Takes bounded
/// time: the path may lead through other mounts that hang.
///
/// # Errors
/// The way to it cannot be looked at.
pub(super) fn divided(path: &Path) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
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
        if mountinfo::at(mounts, &next).is_some_and(|it| it.is_copperfs()) {
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
pub(super) fn within(path: &Path) -> PathBuf {
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
