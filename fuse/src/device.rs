//! Writes to `/dev/fuse`: notifications, and the one reply that fuser cannot encode.
//!
//! The descriptor refers to the open file that fuser reads from, so messages written here belong to the same
//! connection. fuser's own `Notifier` is not used because it hides ENOENT, which tells the push that the
//! kernel does not know an inode yet.
//!
//! A notification may block in the kernel on the lock of a directory or a page, which a reader that waits
//! for an answer may hold. So only the notifier thread sends them.

use crate::backend::Ino;
use crate::in_hand::DISTANCE;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// `enum fuse_notify_code` of the kernel's ABI.
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_INVAL_ENTRY: i32 = 3;
const NOTIFY_STORE: i32 = 4;
const NOTIFY_RESEND: i32 = 7;
const NOTIFY_INC_EPOCH: i32 = 8;
const NOTIFY_PRUNE: i32 = 9;

/// `FUSE_DEV_IOC_BACKING_CLOSE` of the kernel's ABI.
const BACKING_CLOSE: Opcode = opcode::write::<u32>(229, 2);

/// Inodes in one PRUNE message; the kernel processes this number in one batch.
pub(crate) const PRUNE_MAX: usize = 512;

/// Bytes of `struct fuse_out_header`.
const HEADER_BYTES: usize = 16;

/// The connection of one mount.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    /// Duplicates the descriptor `fuse`.
    pub(crate) fn duplicate(fuse: impl AsFd) -> std::io::Result<Self> {
        Ok(Self(fuse.as_fd().try_clone_to_owned()?))
    }

    /// Invalidates `name` in `parent`, existing or not, and for a directory every name below it. Succeeds if
    /// the kernel has not cached the name.
    pub(crate) fn invalidate_entry(&self, parent: Ino, name: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(name.len()).or(Err(Errno::NAMETOOLONG))?;
        let (parent, length) = (parent.0.to_ne_bytes(), length.to_ne_bytes());
        let parts: [&[u8]; 5] = [&parent, &length, &[0; 4], name, &[0]];
        unless_unknown(self.notify(NOTIFY_INVAL_ENTRY, &parts))
    }

    /// Invalidates the attributes of an inode, and its data or listing if `data` is set.
    pub(crate) fn invalidate_inode(&self, ino: Ino, data: bool) -> Result<(), Errno> {
        // Offset 0 and length 0 mean all data, and a negative offset means no data.
        let offset = if data { 0_i64 } else { -1 };
        let (ino, offset) = (ino.0.to_ne_bytes(), offset.to_ne_bytes());
        unless_unknown(self.notify(NOTIFY_INVAL_INODE, &[&ino, &offset, &[0; 8]]))
    }

    /// Makes the kernel look up every cached name again, including absent names. Fails with `INVAL` on
    /// kernels before 6.16.
    pub(crate) fn expire_all_entries(&self) -> Result<(), Errno> {
        self.notify(NOTIFY_INC_EPOCH, &[])
    }

    /// Drops those of `inos` that are not in use. Fails with `INVAL` on kernels before 6.18.
    pub(crate) fn prune(&self, inos: &[Ino]) -> Result<(), Errno> {
        let count = u32::try_from(inos.len()).or(Err(Errno::INVAL))?;
        // `struct fuse_notify_prune_out`: the count, then reserved fields.
        let inos: Vec<u8> = inos.iter().flat_map(|ino| ino.0.to_ne_bytes()).collect();
        self.notify(NOTIFY_PRUNE, &[&count.to_ne_bytes(), &[0; 12], &inos])
    }

    /// Stores bytes into the page cache. Fails with `NOENT` if the kernel does not know the inode.
    pub(crate) fn store(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(bytes.len()).or(Err(Errno::INVAL))?;
        let (ino, offset) = (ino.0.to_ne_bytes(), offset.to_ne_bytes());
        let parts: [&[u8]; 5] = [&ino, &offset, &length.to_ne_bytes(), &[0; 4], bytes];
        self.notify(NOTIFY_STORE, &parts)
    }

    /// Has the kernel send the requests again that have no answer. Fails with `INVAL` on kernels before 6.9.
    pub(crate) fn resend(&self) -> Result<(), Errno> {
        self.notify(NOTIFY_RESEND, &[])
    }

    /// Answers the requests with these numbers that were read and have no answer with EIO. Returns how many there were.
    pub(crate) fn fail(&self, numbers: Range<u64>) -> Result<u64, Errno> {
        let mut failed = 0;
        for unique in numbers.step_by(DISTANCE) {
            match self.write(-Errno::IO.raw_os_error(), unique, &[]) {
                Ok(()) => failed += 1,
                // The kernel waits for no answer to this one.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(failed)
    }

    /// Ends the registration of a local file that has served reads. The kernel keeps the file for those that have it open.
    pub(crate) fn close_backing(&self, id: u32) -> Result<(), Errno> {
        // SAFETY: the kernel reads one `u32` for this opcode, and refuses a number that it does not know.
        #[expect(unsafe_code, reason = "see above")]
        unsafe {
            ioctl(&self.0, Setter::<BACKING_CLOSE, u32>::new(id))
        }
    }

    /// Returns another descriptor of the same open file.
    pub(crate) fn file(&self) -> std::io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Answers request `unique` with `bytes`.
    pub(crate) fn reply(&self, unique: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.write(0, unique, &[bytes])
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        // Unique 0 marks a notification, whose code is in the error field.
        self.write(code, 0, parts)
    }

    fn write(&self, error: i32, unique: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&u32::try_from(length).or(Err(Errno::INVAL))?.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let parts = parts.iter().filter(|part| !part.is_empty());
        let mut slices = vec![IoSlice::new(&header)];
        slices.extend(parts.map(|part| IoSlice::new(part)));
        // The device accepts a message completely or not at all, so there are no short writes.
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, &slices)).map(|_| ())
    }
}

/// Treats an unknown inode or name as success: there is nothing to invalidate.
fn unless_unknown(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        other => other,
    }
}
