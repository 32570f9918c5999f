//! How each kind of answer is put to the kernel.

use crate::attr::{bare_attr, file_attr};
use crate::backend::{Attr, FileKind, FsError, Ino, Lookup, Usage};
use crate::errno::errno;
use crate::ioctl::encode_stats;
use bytes::Bytes;
use fuser::{
    Errno, Generation, ReplyAttr, ReplyData, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyStatfs,
    ReplyXattr,
};

pub(crate) fn lookup(reply: ReplyEntry, result: Result<Lookup, FsError>) {
    match result {
        Ok(Lookup::Found { attr, entry_ttl }) => {
            reply.entry_with_ttls(&attr.ttl, &entry_ttl, &file_attr(&attr), Generation(0));
        }
        // Inode 0 is "does not exist, and you may remember that".
        Ok(Lookup::Absent { ttl }) => {
            reply.entry(&ttl, &bare_attr(Ino(0), FileKind::File), Generation(0));
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

/// Size 0 asks how much room is needed.
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

/// The ioctl returns 1 if the operation had an effect, and 0 otherwise.
pub(crate) fn done(reply: ReplyIoctl, result: Result<bool, FsError>) {
    match result {
        Ok(effective) => reply.ioctl(i32::from(effective), &[]),
        Err(error) => reply.error(errno(error)),
    }
}
