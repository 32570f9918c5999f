//! Extended attributes, passed through for reading.

use super::Shared;
use super::attributes::{kind, status};
use bytes::Bytes;
use copperfs_overlay::{Failure, FileKind, ItemPath, XattrList};
use rustix::buffer::spare_capacity;
use rustix::fd::AsRawFd;
use rustix::fs::{OFlags, getxattr, listxattr};
use rustix::io::Errno;

pub(super) const ACTION: &str = "read the extended attributes of";

/// The kernel's limit of a list of names and of one value, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The maximum total bytes of names and values of one file; a file with more is refused.
const XATTRS_BYTES_MAX: usize = 512 << 10;

/// Names that only a process with `CAP_SYS_ADMIN` in the initial user namespace may see.
const ADMINISTRATORS: &[u8] = b"trusted.";

/// Returns true if every user who may look at a file may also see that it has the attribute `name`.
///
/// The list is made once, with the daemon's rights, and is then shown to every reader on every node. A
/// kernel hides `trusted.*` from ordinary users, but no node on the way to the reader does. So these names
/// and their values never leave the origin. The other name spaces need no filter: before the reader's
/// kernel returns a value of `user.*`, it checks the right to read the file, and `security.*` and
/// `system.*` are visible to all.
fn is_for_everyone(name: &[u8]) -> bool {
    !name.starts_with(ADMINISTRATORS)
}

/// The extended attributes of `path` that every user may see and the daemon may read.
pub(super) fn all(shared: &Shared, path: &ItemPath) -> Result<XattrList, Failure> {
    let failed = |errno| shared.failure(ACTION, path, errno);
    let opened = shared.open_at(path, OFlags::PATH).map_err(failed)?;
    if kind(&status(&opened, b"").map_err(failed)?) == Some(FileKind::Symlink) {
        // A link can only have security.* here, which no reader of a mount requests.
        return Ok(Vec::new());
    }
    // An O_PATH descriptor has no access to attributes itself; its magic link leads to the same inode.
    let file = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let mut names = Vec::with_capacity(XATTR_BYTES_MAX);
    listxattr(&file, spare_capacity(&mut names)).map_err(failed)?;
    let mut list = XattrList::new();
    let mut total = 0;
    let mut value = Vec::with_capacity(XATTR_BYTES_MAX);
    let names = names.split(|&b| b == 0);
    for name in names.filter(|name| !name.is_empty() && is_for_everyone(name)) {
        value.clear();
        match getxattr(&file, name, spare_capacity(&mut value)) {
            Ok(_) => {}
            // It was removed since it was listed, or the daemon's user may not read it.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP) => continue,
            Err(errno) => return Err(failed(errno)),
        }
        // Checked in each round, so that the memory stays bounded.
        total += name.len() + value.len();
        if total > XATTRS_BYTES_MAX {
            return Err(failed(Errno::TOOBIG));
        }
        list.push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(&value)));
    }
    Ok(list)
}
