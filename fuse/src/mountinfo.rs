//! Reads the mounts from `/proc/self/mountinfo`, without a request to any filesystem.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Filesystem type of copperfs mounts.
pub const COPPERFS_FSTYPE: &str = "fuse.copperfs";

/// Filesystem type of images.
const NATIVE_FSTYPE: &str = "erofs";

/// The name of the file with the metadata of an image that copperfs has mounted, the last word of its mount's source.
pub const NATIVE_NAME: &str = "copperfs.erofs";

/// The fields of one line of mountinfo that copperfs uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Id of the mount.
    pub id: u64,
    /// Major and minor device number. For a FUSE mount the minor is the number of the connection.
    pub device: (u32, u32),
    /// The mount point, as this process sees it.
    pub mountpoint: PathBuf,
    /// Filesystem type, [`COPPERFS_FSTYPE`] for copperfs.
    pub fstype: String,
    /// The mounted device or name.
    pub source: String,
    /// The user that mounted it, for a FUSE mount.
    pub owner: Option<u32>,
    /// The group of that user.
    pub group: Option<u32>,
}

impl MountEntry {
    /// Whether it is a copperfs, and no image over one.
    #[must_use]
    pub fn is_copperfs(&self) -> bool {
        self.fstype == COPPERFS_FSTYPE
    }

    /// Whether it is an image that shows a part of a copperfs, and lies over it.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.fstype == NATIVE_FSTYPE
            && Path::new(&self.source).file_name() == Some(NATIVE_NAME.as_ref())
    }
}

/// Returns all mounts that this process sees, in the order in which they were mounted.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the topmost mount exactly at `path`, which must be absolute and without symlinks. An image that lies over a
/// copperfs does not count: it is a part of that one.
#[must_use]
pub fn at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let mut mounts = mounts.iter().rev();
    mounts.find(|mount| mount.mountpoint == path && !mount.is_native())
}

/// Returns the images that lie over the copperfs at `path` or over directories of it, the last one first.
#[must_use]
pub fn natives<'a>(mounts: &'a [MountEntry], path: &Path) -> Vec<&'a MountEntry> {
    let within = |mount: &&MountEntry| mount.is_native() && mount.mountpoint.starts_with(path);
    mounts.iter().rev().filter(within).collect()
}

/// Returns the mounts of copperfs, without those that only serve to reach one that an image covers.
pub fn all_copperfs(mounts: &[MountEntry]) -> impl Iterator<Item = &MountEntry> {
    let serves = |mount: &MountEntry| {
        let of = |other: &&MountEntry| other.is_copperfs() && other.device == mount.device;
        let mut of = mounts.iter().filter(of);
        of.any(|other| uncovered(mounts, &other.mountpoint) == mount.mountpoint && *other != *mount)
    };
    let all = mounts.iter().filter(|mount| mount.is_copperfs());
    all.filter(move |mount| !serves(mount))
}

/// Returns the path of the copperfs that contains `path`, as far as the mounts tell.
#[must_use]
pub fn around<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a Path> {
    let around = mounts
        .iter()
        .filter(|mount| mount.is_copperfs() && path.starts_with(&mount.mountpoint));
    let longest = around.max_by_key(|mount| mount.mountpoint.as_os_str().len());
    longest.map(|mount| mount.mountpoint.as_path())
}

/// Returns a path at which the copperfs at `path` can be reached, even if an image lies over all of it: the path of
/// another mount of the same filesystem.
#[must_use]
pub fn uncovered<'a>(mounts: &'a [MountEntry], path: &'a Path) -> &'a Path {
    let is_covered = |path: &Path| {
        let mut above = mounts.iter().rev().filter(|mount| mount.mountpoint == path);
        above.next().is_some_and(MountEntry::is_native)
    };
    let Some(mount) = at(mounts, path).filter(|_| is_covered(path)) else {
        return path;
    };
    let same = |other: &&MountEntry| other.device == mount.device && !is_covered(&other.mountpoint);
    let mut others = mounts.iter().filter(same);
    others.next().map_or(path, |other| &other.mountpoint)
}

/// Parses a mountinfo file. Lines that cannot be parsed are skipped: the mount of another filesystem must not
/// make copperfs fail.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    let mut fields = line.split(|&b| b == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = fields.nth(1)?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let fstype = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let options = fields.next().unwrap_or_default();
    let option = |name: &[u8]| {
        let mut options = options.split(|&b| b == b',');
        options.find_map(|option| text(option.strip_prefix(name)?).parse().ok())
    };
    let device = text(device);
    let (major, minor) = device.split_once(':')?;
    Some(MountEntry {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint: PathBuf::from(OsString::from_vec(mountpoint)),
        fstype: text(&fstype),
        source: text(&source),
        owner: option(b"user_id="),
        group: option(b"group_id="),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Decodes the escapes of the kernel, which writes space, tab, newline, backslash and hash as a backslash and
/// three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n\
        41 36 0:77 / /mnt3x rw - fuse.copperfs copperfs ro\n\
        42 36 0:78 / /a\\040b\\134040\\012c rw shared:3 master:9 - fuse.copperfs x\\040y ro,user_id=0\n\
        43 36 0:79 / /mnt2 rw - tmpfs none rw\n\
        garbage\n\n44 36 0:80\n";

    #[test]
    fn lines_are_parsed_and_broken_ones_skipped() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[0].device, (98, 0));
        assert_eq!(mounts[2].id, 42);
        assert_eq!(mounts[2].fstype, COPPERFS_FSTYPE);
        assert_eq!(mounts[2].source, "x y");
        assert_eq!((mounts[1].owner, mounts[2].owner), (None, Some(0)));
    }

    #[test]
    fn octal_escapes_are_decoded_once() {
        let mounts = parse(SAMPLE);
        assert_eq!(mounts[2].mountpoint, Path::new("/a b\\040\nc"));
        assert_eq!(unescape(b"\\377\\400\\04"), b"\xff\\400\\04");
    }

    #[test]
    fn a_path_is_matched_whole_and_topmost_first() {
        let mounts = parse(SAMPLE);
        assert_eq!(at(&mounts, Path::new("/mnt3")), None);
        assert_eq!(at(&mounts, Path::new("/mnt3x")).map(|m| m.id), Some(41));
        assert_eq!(at(&mounts, Path::new("/mnt2")).map(|m| m.id), Some(43));
    }

    #[test]
    fn an_image_is_a_part_of_the_mount_below_it() {
        let mounts = parse(
            b"1 0 8:1 / / rw - ext4 /dev/sda rw\n\
              2 1 0:50 / /m ro - fuse.copperfs copperfs ro,user_id=0\n\
              3 2 0:60 / /m/lus ro - erofs /proc/self/fd/9/copperfs.erofs ro\n\
              4 2 0:61 / /m/own ro - erofs /x.erofs ro\n\
              5 1 0:51 / /n ro - fuse.copperfs copperfs ro,user_id=0\n\
              6 1 0:51 / /run/n ro - fuse.copperfs copperfs ro,user_id=0\n\
              7 5 0:62 / /n ro - erofs /proc/self/fd/9/copperfs.erofs ro\n",
        );
        let id = |path: &str| at(&mounts, Path::new(path)).map(|mount| mount.id);
        assert_eq!((id("/m"), id("/m/lus"), id("/n")), (Some(2), None, Some(5)));
        let over = |path: &str| -> Vec<u64> {
            let over = natives(&mounts, Path::new(path));
            over.into_iter().map(|mount| mount.id).collect()
        };
        assert_eq!(
            (over("/m"), over("/n"), over("/run")),
            (vec![3], vec![7], vec![])
        );
        let path = |path: &'static str| uncovered(&mounts, Path::new(path)).to_owned();
        assert_eq!(path("/m"), Path::new("/m"));
        let all: Vec<u64> = all_copperfs(&mounts).map(|mount| mount.id).collect();
        assert_eq!(all, [2, 5]);
        let of = |path: &str| around(&mounts, Path::new(path)).map(Path::to_owned);
        assert_eq!(of("/m/lus/x"), Some("/m".into()));
        assert_eq!(of("/x"), None);
        assert_eq!(path("/n"), Path::new("/run/n"));
    }

    #[test]
    fn this_machine_has_a_root() {
        let mounts = read().unwrap();
        assert!(at(&mounts, Path::new("/")).is_some());
    }
}
