//! What an image shows of one file, apart from its name and content.

use bytes::Bytes;
use copperfs_overlay::{Attributes, FileKind, Timestamp, XattrList};
use serde::{Deserialize, Serialize};

/// What an image shows of one file, apart from its name and content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (`07777`).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub links: u32,
    /// Device number of a device file (`makedev` encoding).
    pub device: u64,
    /// Size in bytes of a regular file.
    pub size: u64,
    /// Last modification, which the kernel shows as the time of access and of status change too.
    pub mtime: Timestamp,
    /// The target of a symlink.
    pub link_target: Option<Bytes>,
    /// Extended attributes, in the order of their names.
    pub xattrs: XattrList,
}

impl Inode {
    /// The inode of a file with `attributes` and `xattrs`.
    #[must_use]
    pub fn new(attributes: &Attributes, mut xattrs: XattrList) -> Self {
        xattrs.sort_unstable();
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            links: attributes.links,
            device: attributes.device,
            size: attributes.size,
            mtime: attributes.mtime,
            link_target: attributes.link_target.clone(),
            xattrs,
        }
    }
}
