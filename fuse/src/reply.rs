//! Sends each kind of answer to the kernel.

use crate::attr::file_attr;
use crate::backend::{Attr, FsError, Lookup, Usage};
use crate::errno::errno;
use bytes::Bytes;
use fuser::{
    Errno, FopenFlags, Generation, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr,
};

/// A reply object of fuser. All of them can send an errno.
pub(crate) trait Reply: Sized + Send + 'static {
    fn refuse(self, error: FsError);

    /// Passes the value of `result` to `send`, or its error to the kernel.
    fn answer<T>(self, result: Result<T, FsError>, send: impl FnOnce(Self, T)) {
        match result {
            Ok(value) => send(self, value),
            Err(error) => self.refuse(error),
        }
    }
}

macro_rules! replies {
    ($($reply:ident)*) => {
        $(impl Reply for $reply {
            fn refuse(self, error: FsError) {
                self.error(errno(error));
            }
        })*
    };
}

replies! {
    ReplyAttr ReplyData ReplyDirectory ReplyDirectoryPlus ReplyEntry ReplyIoctl ReplyLseek ReplyOpen
    ReplyStatfs ReplyXattr
}

pub(crate) fn lookup(reply: ReplyEntry, found: Lookup) {
    match found {
        Lookup::Found(attr) => reply.entry(&attr.ttl, &file_attr(&attr), Generation(0)),
        // The kernel caches an entry with inode 0 as a name that does not exist.
        Lookup::Absent { ttl } => {
            reply.entry(&ttl, &file_attr(&Attr::default()), Generation(0));
        }
    }
}

/// Replies with the value, or with its size if the caller's buffer size `room` is 0.
pub(crate) fn xattr(reply: ReplyXattr, value: &Bytes, room: u32) {
    match u32::try_from(value.len()) {
        Ok(length) if room == 0 => reply.size(length),
        Ok(length) if length <= room => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

pub(crate) fn usage(reply: ReplyStatfs, usage: Usage) {
    reply.statfs(
        usage.blocks,
        usage.blocks_free,
        usage.blocks_available,
        usage.files,
        usage.files_free,
        usage.block_size,
        usage.name_max,
        usage.block_size,
    );
}

pub(crate) fn offset(reply: ReplyLseek, offset: u64) {
    match i64::try_from(offset) {
        Ok(offset) => reply.offset(offset),
        Err(_) => reply.error(Errno::EOVERFLOW),
    }
}

/// Flags for an opened directory. With `keep` the kernel continues to use the listing it has cached.
pub(crate) fn cached_listing(keep: bool) -> FopenFlags {
    let mut flags = FopenFlags::FOPEN_CACHE_DIR;
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, keep);
    flags
}

/// Flags for an opened file. With `direct` its reads bypass the page cache.
pub(crate) fn cached_file(direct: bool) -> FopenFlags {
    let cache = if direct {
        FopenFlags::FOPEN_DIRECT_IO
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    };
    cache | FopenFlags::FOPEN_NOFLUSH
}
