//! Answers the kernel's requests for the files of images.

use super::{Natives, files};
use crate::failpoint;
use bytes::Bytes;
use copperfs_fuse::{
    Answer, Attr, Backend, Backing, DirPage, FileKind, FsError, Ino, Lookup, OpenDir, Opened,
    Response, Sockets, StatsAge, Usage,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

/// One directory with the files, whose names are never listed. Only the attendant looks them up, and only the kernel reads
/// the contents, so nearly all other requests are refused.
impl Backend for Natives {
    fn lookup(&self, parent: Ino, name: &OsStr) -> Response<Lookup> {
        match parent {
            Ino::ROOT => {
                let found = self.0.files.look_up(name.as_bytes(), self.0.owner);
                Ok(Answer::Ready(found))
            }
            _ => Err(FsError::NotADirectory),
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Some(number) = self.0.files.forget(ino, count) {
            self.gone(number);
        }
    }

    fn getattr(&self, ino: Ino) -> Response<Attr> {
        if ino != Ino::ROOT {
            return self.0.files.attr(ino, self.0.owner).map(Answer::Ready);
        }
        Ok(Answer::Ready(Attr {
            ino,
            kind: FileKind::Directory,
            mode: 0o500,
            uid: self.0.owner,
            links: 2,
            ttl: files::TTL,
            ..Attr::default()
        }))
    }

    fn open(&self, _thread: u32, ino: Ino) -> Response<Opened> {
        failpoint::hit("images.open");
        Ok(Answer::Ready(Opened {
            handle: 0,
            direct: files::is_direct(ino),
        }))
    }

    fn release(&self, _ino: Ino, _handle: u64) {}

    fn read(&self, ino: Ino, _handle: u64, offset: u64, size: u32) -> Response<Bytes> {
        self.0.files.read(ino, offset, size)
    }

    fn backing(&self, _ino: Ino) -> Response<Option<Backing>> {
        Ok(Answer::Ready(None))
    }

    fn readlink(&self, _ino: Ino) -> Response<Bytes> {
        Err(FsError::InvalidArgument)
    }

    fn opendir(&self, _ino: Ino) -> Response<OpenDir> {
        Err(FsError::PermissionDenied)
    }

    fn readdir(&self, _ino: Ino, _handle: u64, _offset: u64) -> Response<Arc<dyn DirPage>> {
        Err(FsError::PermissionDenied)
    }

    fn statfs(&self, _ino: Ino) -> Response<Usage> {
        Ok(Answer::Ready(Usage::default()))
    }

    fn getxattr(&self, _ino: Ino, _name: &OsStr) -> Response<Bytes> {
        Err(FsError::Unsupported)
    }

    fn listxattr(&self, _ino: Ino) -> Response<Bytes> {
        Err(FsError::Unsupported)
    }

    fn lseek(&self, _ino: Ino, _offset: u64, _hole: bool) -> Response<u64> {
        Err(FsError::Unsupported)
    }

    fn pushable(&self, _inos: &[Ino]) -> Vec<(Ino, Bytes)> {
        Vec::new()
    }

    fn node_stats(&self) -> String {
        String::new()
    }

    fn cluster_stats(&self, _age: StatsAge) -> Response<String> {
        Err(FsError::Unsupported)
    }

    fn sockets(&self) -> Sockets {
        Sockets {
            owner: PathBuf::new(),
            users: String::new(),
        }
    }

    fn clear(&self, _path: Bytes, _cluster: bool) -> Response<bool> {
        Err(FsError::Unsupported)
    }
}
