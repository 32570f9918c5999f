//! Sends each kind of answer to the kernel.

use crate::attr::file_attr;
use crate::backend::{Attr, FsError, Lookup, OpenDir, Opened, Usage};
use crate::errno::errno;
use crate::ioctl::encode_stats;
use bytes::Bytes;
use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyData, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr,
};

pub(crate) fn lookup(reply: ReplyEntry, result: Result<Lookup, FsError>) {
    match result {
        Ok(Lookup::Found { attr, entry_ttl }) => {
            reply.entry_with_ttls(&attr.ttl, &entry_ttl, &file_attr(&attr), Generation(0));
        }
        // The kernel caches an entry with inode 0 as a name that does not exist.
        Ok(Lookup::Absent { ttl }) => {
            reply.entry(&ttl, &file_attr(&Attr::default()), Generation(0));
        }
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn attr(reply: ReplyAttr, result: Result<Attr, FsError>) {
    match result {
        Ok(attr) => reply.attr(&attr.ttl, &file_attr(&attr)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn data(reply: ReplyData, result: Result<Bytes, FsError>) {
    match result {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn open(reply: ReplyOpen, result: Result<Opened, FsError>) {
    match result {
        Ok(open) => reply.opened(FileHandle(open.handle), cached_file(open.direct)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn opendir(reply: ReplyOpen, result: Result<OpenDir, FsError>) {
    match result {
        Ok(open) => reply.opened(FileHandle(open.handle), cached_listing(open.keep)),
        Err(error) => reply.error(errno(error)),
    }
}

/// Replies with the value, or with its size if the caller's buffer size `room` is 0.
pub(crate) fn xattr(reply: ReplyXattr, result: Result<Bytes, FsError>, room: u32) {
    match result {
        Err(error) => reply.error(errno(error)),
        Ok(bytes) => match u32::try_from(bytes.len()) {
            Ok(length) if room == 0 => reply.size(length),
            Ok(length) if length <= room => reply.data(&bytes),
            _ => reply.error(Errno::ERANGE),
        },
    }
}

pub(crate) fn stats(reply: ReplyIoctl, result: Result<String, FsError>) {
    match result {
        Ok(text) => reply.ioctl(0, &encode_stats(&text)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn usage(reply: ReplyStatfs, result: Result<Usage, FsError>) {
    match result {
        Ok(usage) => reply.statfs(
            usage.blocks,
            usage.blocks_free,
            usage.blocks_available,
            usage.files,
            usage.files_free,
            usage.block_size,
            usage.name_max,
            usage.block_size,
        ),
        Err(error) => reply.error(errno(error)),
    }
}

pub(crate) fn offset(reply: ReplyLseek, result: Result<u64, FsError>) {
    match result.map(i64::try_from) {
        Ok(Ok(offset)) => reply.offset(offset),
        Ok(Err(_)) => reply.error(Errno::EOVERFLOW),
        Err(error) => reply.error(errno(error)),
    }
}

/// Makes ioctl(2) return 1 if the operation had an effect, and 0 otherwise.
pub(crate) fn effect(reply: ReplyIoctl, result: Result<bool, FsError>) {
    match result {
        Ok(effective) => reply.ioctl(i32::from(effective), &[]),
        Err(error) => reply.error(errno(error)),
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
