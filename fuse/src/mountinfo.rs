//! Reads the mounts from `/proc/self/mountinfo`, without a request to any filesystem.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Filesystem type of copperfs mounts.
pub const COPPERFS_FSTYPE: &str = "fuse.copperfs";

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
}

/// Returns all mounts that this process sees, in the order in which they were mounted.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Returns the topmost mount exactly at `path`, which must be absolute and without symlinks.
#[must_use]
pub fn at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rev().find(|mount| mount.mountpoint == path)
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
    let mut options = fields.next().unwrap_or_default().split(|&b| b == b',');
    let owner = options.find_map(|option| text(option.strip_prefix(b"user_id=")?).parse().ok());
    let device = text(device);
    let (major, minor) = device.split_once(':')?;
    Some(MountEntry {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        mountpoint: PathBuf::from(OsString::from_vec(mountpoint)),
        fstype: text(&fstype),
        source: text(&source),
        owner,
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
    fn this_machine_has_a_root() {
        let mounts = read().unwrap();
        assert!(at(&mounts, Path::new("/")).is_some());
    }
}
