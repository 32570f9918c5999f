//! Batches of files for clients: how their paths become files, and the rights to read them.

use super::control;
use super::data::{ItemOpening, Items};
use super::errors::fs_error;
use super::parts::Parts;
use crate::batch_reads::{BatchReads, Credentials, FileSource, Permissions, SOCKET_SUFFIX};
use crate::config::Settings;
use crate::dataset::reader::OpenDatasetFile;
use crate::num::to_usize;
use crate::read::{FileRef, ReadAhead};
use bytes::Bytes;
use copperfs_fuse::mountinfo;
use copperfs_overlay::{Attributes, BLOCK_BYTES, Failure, FailureKind, FileKind, ItemPath};
use futures_util::future::join_all;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use tokio::runtime::Handle;

/// The number of the root directory.
const ROOT_INODE: u64 = 1;
/// The extended attribute of an access control list.
const ACL: &[u8] = b"system.posix_acl_access";

/// The files of this node.
struct NodeFiles {
    parts: Parts,
    /// The mount points.
    mounts: Vec<PathBuf>,
    /// The mounts enforce access control lists.
    posix_acl: bool,
}

/// A file of a client.
struct OpenFile {
    file: FileRef,
    reading: Reading,
}

enum Reading {
    /// It belongs to a dataset.
    Item(OpenDatasetFile),
    Other(ReadAhead),
}

/// Serves clients, each on one of `lanes` if there are any, until the result is dropped.
///
/// # Errors
/// The socket cannot be created.
pub(super) fn serve(
    settings: &Settings,
    parts: &Parts,
    lanes: &[Handle],
) -> io::Result<BatchReads> {
    let mounts = [Some(&settings.mountpoint), settings.data_mount.as_ref()];
    let files = NodeFiles {
        parts: parts.clone(),
        mounts: mounts.into_iter().flatten().cloned().collect(),
        posix_acl: settings.posix_acl,
    };
    let name = format!("{}{SOCKET_SUFFIX}", parts.cluster.sockets().users);
    let scope = parts.cluster.registry().scope("batch_reads");
    BatchReads::serve((&name, lanes), files, control::admits(settings), &scope)
}

impl NodeFiles {
    /// The attributes of `path`.
    async fn attributes(&self, path: &ItemPath) -> Result<Attributes, Errno> {
        let metadata = self.parts.read.metadata();
        match metadata.try_attributes_of(path) {
            Some(known) => Ok(known.value),
            None => Ok(metadata
                .attributes_of(path)
                .await
                .map_err(|failure| errno(&failure))?
                .value),
        }
    }

    /// Whether `client` has the right that `has` looks at.
    async fn check(
        &self,
        client: &Credentials,
        path: &ItemPath,
        attributes: &Attributes,
        has: impl Fn(&Credentials, Permissions) -> bool,
    ) -> Result<(), Errno> {
        let permissions = Permissions {
            uid: attributes.uid,
            gid: attributes.gid,
            mode: attributes.mode,
        };
        if !has(client, permissions) {
            return Err(Errno::ACCESS);
        }
        if !self.posix_acl || client.uid == attributes.uid {
            return Ok(());
        }
        // The bits of a file with a list tell nothing about other users than its owner.
        let metadata = self.parts.read.metadata();
        let known = match metadata.try_xattrs(path) {
            Some(known) => known,
            None => metadata.xattrs(path).await,
        };
        match known {
            Ok(known) if known.iter().any(|(name, _)| name == ACL) => Err(Errno::ACCESS),
            Ok(_) => Ok(()),
            Err(failure) if failure.kind == FailureKind::Unsupported => Ok(()),
            Err(failure) => Err(errno(&failure)),
        }
    }

    /// Whether `client` may look names up in the directory `path`, and reaches it without a link.
    async fn check_directory(&self, client: &Credentials, path: &ItemPath) -> Result<(), Errno> {
        let above = std::iter::successors(Some(path.clone()), |at| Some(at.split()?.0));
        let mut from_root: Vec<ItemPath> = above.collect();
        from_root.reverse();
        for at in from_root {
            let directory = self.attributes(&at).await?;
            if directory.kind != FileKind::Directory {
                // A link is followed by the mount only.
                return Err(Errno::NOTDIR);
            }
            self.check(client, &at, &directory, Credentials::may_search)
                .await?;
        }
        Ok(())
    }

    /// Opens the file at `path`, in a directory in which `client` may look names up.
    async fn open_in_directory(
        &self,
        client: &Credentials,
        path: &ItemPath,
    ) -> Result<OpenFile, Errno> {
        let attributes = self.attributes(path).await?;
        match attributes.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.check(client, path, &attributes, Credentials::may_read)
            .await?;
        let file = FileRef::of(path.clone(), &attributes);
        let reading = match self.parts.datasets.open(client.pid, path, &file) {
            ItemOpening::None => Reading::Other(ReadAhead::default()),
            ItemOpening::Ready(item) => Reading::Item(item),
            ItemOpening::Later(item) => Reading::Item(item.await),
        };
        Ok(OpenFile { file, reading })
    }
}

impl FileSource for NodeFiles {
    type File = OpenFile;

    fn is_root(&self, directory: &OwnedFd) -> bool {
        // Without a request to the mount, whose daemon this is.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(status) = statx(directory, "", flags, StatxFlags::INO) else {
            return false;
        };
        let device = (status.stx_dev_major, status.stx_dev_minor);
        let mounts = mountinfo::read().unwrap_or_default();
        let mut own = self
            .mounts
            .iter()
            .filter_map(|at| mountinfo::at(&mounts, at));
        status.stx_ino == ROOT_INODE && own.any(|mount| mount.device == device)
    }

    async fn open(
        &self,
        client: &Credentials,
        paths: &[&ItemPath],
    ) -> Vec<Result<OpenFile, Errno>> {
        // The files of a batch often lie together, and their directories are looked at once.
        let mut directories = HashMap::new();
        for path in paths {
            if let Some((parent, _name)) = path.split()
                && !directories.contains_key(&parent)
            {
                let found = self.check_directory(client, &parent).await;
                directories.insert(parent, found);
            }
        }
        let directories = &directories;
        let opens = paths.iter().map(|path| async move {
            let (parent, _name) = path.split().ok_or(Errno::ISDIR)?;
            directories
                .get(&parent)
                .copied()
                .unwrap_or(Err(Errno::IO))?;
            self.open_in_directory(client, path).await
        });
        join_all(opens).await
    }

    fn size(file: &OpenFile) -> u64 {
        file.file.size
    }

    async fn read(&self, open: &OpenFile, range: Range<u64>) -> Result<Vec<Bytes>, Errno> {
        let mut pieces = Vec::with_capacity(1);
        let mut at = range.start;
        while at < range.end {
            // Block by block, so that none is joined with another.
            let end = range.end.min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
            let size = u32::try_from(end - at).unwrap_or(u32::MAX);
            let cut = match &open.reading {
                Reading::Item(item) => match item.try_read(at, size) {
                    Some(cut) => Ok(cut),
                    None => item.read(&open.file, at, size).await,
                },
                Reading::Other(streams) => {
                    self.parts.read.read(&open.file, streams, at, size).await
                }
            };
            let cut = cut.map_err(|failure| errno(&failure))?;
            if cut.bytes.len() != to_usize(end - at) {
                return Err(Errno::IO);
            }
            pieces.push(cut.bytes);
            at = end;
        }
        Ok(pieces)
    }
}

/// The errno for a client, as in the mount. It reads the file by its path after that, and gets the mount's own answer.
fn errno(failure: &Failure) -> Errno {
    Errno::from_raw_os_error(fs_error(failure.kind).raw_os_error())
}
