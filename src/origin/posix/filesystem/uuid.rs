//! The UUID of a local filesystem, if its `f_fsid` does not identify it.

#![expect(
    unsafe_code,
    reason = "only ioctls return the UUID of a filesystem, and no crate here wraps these two"
)]

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, fstat, makedev, open, stat};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};
use std::fs;

/// `struct fsuuid2`.
#[repr(C)]
struct FsUuid {
    len: u8,
    uuid: [u8; 16],
}

/// The size of `struct xfs_fsop_geom_v1`: 112 bytes, with the UUID at offset 64.
#[repr(C, align(8))]
struct XfsGeometry {
    before: [u8; 64],
    uuid: [u8; 16],
    after: [u8; 32],
}

/// `FS_IOC_GETFSUUID` (Linux 6.9).
const GET_UUID: Opcode = opcode::read::<FsUuid>(0x15, 0);
/// `XFS_IOC_FSGEOMETRY_V1`.
const XFS_GEOMETRY: Opcode = opcode::read::<XfsGeometry>(b'X', 100);

/// The UUID, in hexadecimal, of the filesystem on `device` that holds `file`, which may be `O_PATH`. Returns
/// `None` if it has none, or if this process may not read it.
pub(super) fn of(file: &OwnedFd, device: (u32, u32)) -> Option<String> {
    by_ioctl(file)
        .ok()
        .flatten()
        .or_else(|| by_link("/dev/disk/by-uuid", makedev(device.0, device.1)))
}

fn by_ioctl(file: &OwnedFd) -> Result<Option<String>, Errno> {
    // These ioctls need a real descriptor. Devices and pipes must not be opened.
    match FileType::from_raw_mode(fstat(file)?.st_mode) {
        FileType::RegularFile | FileType::Directory => {}
        _ => return Ok(None),
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(&path, flags, Mode::empty())?;
    // SAFETY: the kernel's definition of this request reads nothing and writes one `struct fsuuid2`.
    let answer = unsafe { ioctl(&file, Getter::<GET_UUID, FsUuid>::new()) };
    if let Ok(FsUuid { len, uuid }) = answer {
        let known = uuid.get(..len.into()).unwrap_or(&uuid);
        return Ok(hexadecimal(known));
    }
    // SAFETY: XFS defines this request as one that reads nothing and writes one `struct
    // xfs_fsop_geom_v1`, which has the size of this type; every other filesystem refuses it.
    let geometry = unsafe { ioctl(&file, Getter::<XFS_GEOMETRY, XfsGeometry>::new()) }?;
    Ok(hexadecimal(&geometry.uuid))
}

/// Returns `None` if all bytes are zero.
fn hexadecimal(uuid: &[u8]) -> Option<String> {
    if uuid.iter().all(|&byte| byte == 0) {
        return None;
    }
    Some(uuid.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The name, in the form of [`hexadecimal`], of the link in `directory` that leads to a device.
fn by_link(directory: &str, device: u64) -> Option<String> {
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        let target = stat(entry.path()).ok()?;
        let name = entry.file_name().into_string().ok()?;
        (target.st_rdev == device).then(|| name.replace('-', "").to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_by_uuid_are_found_by_device() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/dev/null", dir.path().join("0F-ab12-CD")).unwrap();
        symlink("/dev/nowhere", dir.path().join("aa")).unwrap();
        let of = |device| by_link(dir.path().to_str().unwrap(), device);
        assert_eq!(of(makedev(1, 3)).as_deref(), Some("0fab12cd"));
        assert_eq!(of(makedev(1, 9)), None);
    }

    #[test]
    fn zeros_are_not_a_uuid() {
        assert_eq!(hexadecimal(&[0; 16]), None);
        assert_eq!(hexadecimal(&[0x0a, 0xff]).as_deref(), Some("0aff"));
    }
}
