//! What is at a mount point, told without ever waiting for a daemon that does not answer.
//!
//! `/proc/self/mountinfo` says what is mounted; only a copperfs mount whose daemon is in doubt is
//! asked itself, on a thread that may be left behind.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mount may take to say whether its daemon lives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub mountpoint: PathBuf,
    /// Type of the filesystem, as in `fuse.copperfs`.
    pub kind: String,
    /// What is mounted.
    pub source: String,
    /// The user that mounted it, if it is a FUSE filesystem.
    pub owner: Option<u32>,
}

impl Mounted {
    /// Whether it is one of ours.
    #[must_use]
    pub fn is_copperfs(&self) -> bool {
        self.kind == "fuse.copperfs" || (self.kind == "fuse" && self.source == "copperfs")
    }
}

/// What a mount point is like, seen by someone who wants to mount there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// An empty directory.
    Free,
    /// There is nothing.
    Missing,
    /// There is something else than a directory.
    NotADirectory,
    /// A directory with entries that a mount would hide.
    NotEmpty,
    /// It may not be looked at.
    Unreadable(String),
    /// A copperfs whose daemon answers.
    Live(Mounted),
    /// A copperfs whose daemon is gone.
    Stale(Mounted),
    /// Another filesystem.
    Foreign(Mounted),
}

/// All mounts of this mount namespace, the topmost last.
///
/// # Errors
/// `/proc` is not there.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    Ok(parse_mountinfo(&fs::read("/proc/self/mountinfo")?))
}

/// The copperfs mounts at `path` and below.
///
/// # Errors
/// `/proc` is not there.
pub fn copperfs_below(path: &Path) -> io::Result<Vec<Mounted>> {
    let mut found = mounts()?;
    found.retain(|mount| mount.is_copperfs() && mount.mountpoint.starts_with(path));
    found.sort_by(|a, b| natural(&a.mountpoint).cmp(&natural(&b.mountpoint)));
    Ok(found)
}

/// Order that puts `/m/10` behind `/m/9`.
fn natural(path: &Path) -> (usize, PathBuf) {
    (path.as_os_str().len(), path.to_owned())
}

/// The topmost mount at exactly `path`.
///
/// # Errors
/// `/proc` is not there.
pub fn mounted_at(path: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounts()?
        .into_iter()
        .rfind(|mount| mount.mountpoint == path))
}

/// Looks at `path`.
///
/// # Errors
/// `/proc` is not there.
pub fn inspect(path: &Path) -> io::Result<State> {
    if let Some(mount) = mounted_at(path)? {
        if !mount.is_copperfs() {
            // A directory that is a mount of its own (a tmpfs made for this) may still be free.
            return Ok(match directory_state(path) {
                State::Free => State::Free,
                _ => State::Foreign(mount),
            });
        }
        return Ok(match answers(path) {
            Ok(()) => State::Live(mount),
            Err(error) if is_stale(&error) => State::Stale(mount),
            // It hangs, or refuses this user: somebody is there.
            Err(_) => State::Live(mount),
        });
    }
    Ok(directory_state(path))
}

/// Whether `error` is what the mount of a dead FUSE daemon answers.
#[must_use]
pub fn is_stale(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number == Some(rustix::io::Errno::NOTCONN.raw_os_error())
        || number == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
}

/// Waits, but not for ever, until the mount answers for its root.
///
/// # Errors
/// What the mount answers, or `TimedOut`.
pub fn answers(path: &Path) -> io::Result<()> {
    let owned = path.to_owned();
    within(ANSWER_TIMEOUT, move || {
        rustix::fs::statvfs(&owned)
            .map(drop)
            .map_err(io::Error::from)
    })
}

/// Runs `ask`, which may hang in the kernel, on a thread that is left behind after `timeout`.
///
/// # Errors
/// Those of `ask`, or `TimedOut`.
pub fn within<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("ask-mount".into())
        .spawn(move || sender.send(ask()))?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {timeout:?}"),
        ))
    })
}

fn directory_state(path: &Path) -> State {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => State::Missing,
        Err(error) => State::Unreadable(error.to_string()),
        Ok(meta) if !meta.is_dir() => State::NotADirectory,
        Ok(_) => match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
            Ok(true) => State::NotEmpty,
            Ok(false) => State::Free,
            // Searchable but not listable: whether it is empty is not ours to know.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => State::Free,
            Err(error) => State::Unreadable(error.to_string()),
        },
    }
}

/// Takes the mount at `path` away even if it is in use or its daemon is dead: at once for new users,
/// for those inside when they are done.
///
/// # Errors
/// Neither the system call nor `fusermount3` may.
pub fn detach(path: &Path) -> io::Result<()> {
    use rustix::mount::{UnmountFlags, unmount};
    match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        // Nothing is mounted there (any more).
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
        Err(_) => {}
    }
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            io::Error::new(error.kind(), format!("cannot run fusermount3: {error}"))
        })?;
    if output.status.success() || mounted_at(path)?.is_none() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(text))
}

fn parse_mountinfo(text: &[u8]) -> Vec<Mounted> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source rw,user_id=0`
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let mountpoint = unescape(fields.nth(4)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?).to_string_lossy().into_owned();
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    let owner = options
        .split(',')
        .find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    Some(Mounted {
        mountpoint: PathBuf::from(mountpoint),
        kind,
        source,
        owner,
    })
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            rest = &tail[3..];
        } else {
            out.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(out)
}

/// `path` absolute and without symlinks in its directories, as mountinfo shows it. The last component
/// itself is not touched, so a dead mount there does no harm.
#[must_use]
pub fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some(name) = absolute.file_name().filter(|name| name.as_bytes() != b"..") else {
        return absolute;
    };
    let Some(parent) = absolute.parent() else {
        return absolute;
    };
    let joined = fs::canonicalize(parent).map_or_else(|_| absolute.clone(), |dir| dir.join(name));
    // A mount point that is itself a symlink is mounted at its target.
    match fs::symlink_metadata(&joined) {
        Ok(meta) if meta.is_symlink() => fs::canonicalize(&joined).unwrap_or(joined),
        _ => joined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_blanks_and_optional_fields() {
        let text = b"36 35 98:0 / / rw,noatime shared:1 master:2 - ext4 /dev/root rw\n\
            40 36 0:50 / /mnt/a\\040b\\134c ro,nosuid - fuse.copperfs copperfs ro,user_id=1000,group_id=0\n\
            41 36 0:51 / /mnt/x rw - fuse copperfs rw,user_id=0\nshort line\n";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 3);
        assert!(!mounts[0].is_copperfs());
        assert_eq!(mounts[1].mountpoint, Path::new("/mnt/a b\\c"));
        assert_eq!(mounts[1].owner, Some(1000));
        assert!(mounts[1].is_copperfs() && mounts[2].is_copperfs());
    }

    #[test]
    fn states_of_directories() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(inspect(dir.path()).unwrap(), State::Free);
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(inspect(dir.path()).unwrap(), State::NotEmpty);
        assert_eq!(inspect(&file).unwrap(), State::NotADirectory);
        assert_eq!(inspect(&dir.path().join("gone")).unwrap(), State::Missing);
        assert!(matches!(
            inspect(Path::new("/proc")).unwrap(),
            State::Foreign(_)
        ));
    }

    #[test]
    fn a_mount_that_never_answers_is_not_waited_for() {
        let (_open, closed) = mpsc::sync_channel::<()>(0);
        let error = within(Duration::from_millis(20), move || {
            closed.recv().map_err(io::Error::other)
        })
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn canonical_follows_directories_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(real.join("d")).unwrap();
        std::os::unix::fs::symlink(real.join("d"), real.join("l")).unwrap();
        assert_eq!(canonical(&real.join("l")), real.join("d"));
        assert_eq!(canonical(&real.join("l/new")), real.join("d/new"));
        assert_eq!(canonical(&real.join("d/")), real.join("d"));
    }
}
