//! Bytes of one version of one file.
//!
//! The file is found (`O_PATH`), checked to be a regular file of the requested version, and only then
//! opened for reading, by its descriptor: the path is not resolved twice, and a device or pipe is never
//! opened. After each piece was read, the version is checked again with the filesystem's servers before the
//! piece is returned. So any change, growth and truncation included, ends the stream with `Stale`.
//!
//! The times of a file with an unsettled version may not show a further change yet. So the file is read
//! whole, in one call, and twice. The bytes of the second read are returned as far as they equal those of
//! the first, so they are the file's bytes at the moment between the two.

use super::Shared;
use super::attributes::{filesystem_of, fresh_status, kind, status, times, version};
use super::filesystem::Filesystem;
use crate::num::to_usize;
use crate::origin::failure::Cause;
use crate::origin::{ByteRange, now_ns};
use crate::pread::read_exactly;
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, Failure, FailureKind, FileKind, Standing, UNSETTLED_BYTES_MAX,
};
use futures_util::stream::{self, BoxStream, StreamExt};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags, Statx, fadvise, open as open_path};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) const ACTION: &str = "read";

/// Pieces of one answer that are read at the same time: while one is hashed, the next is read.
const PIECES_AT_ONCE: usize = 2;
/// Each time this many bytes are read, the kernel is advised to read twice as many ahead.
const ADVICE_BYTES: u64 = 4 << 20;

/// An open file of the requested version.
pub(super) struct Reading {
    shared: Arc<Shared>,
    file: OwnedFd,
    /// The filesystem of the file; it does not change for an open descriptor.
    filesystem: Filesystem,
    range: ByteRange,
    /// For an unsettled version: the hashes of all blocks from the first read. Otherwise empty.
    first_hashes: Vec<blake3::Hash>,
}

/// Answers [`crate::origin::Origin::open`] and [`crate::origin::Origin::blocks`]: the range in pieces of the length of a
/// block. A single call reads and checks each piece and converts it by `finish`, and it is not copied after that. The
/// first call also opens the file.
pub(super) async fn pieces<T: Send + 'static>(
    shared: Arc<Shared>,
    range: ByteRange,
    finish: fn(Bytes) -> T,
) -> Result<BoxStream<'static, Result<T, Failure>>, Failure> {
    let path = range.path.clone();
    let (reading, first) = Arc::clone(&shared)
        .run(ACTION, path.clone(), move |shared, _| {
            let reading = Reading::begin(shared, range)?;
            let first = match reading.range.length {
                0 => None,
                _ => Some(finish(reading.piece(0)?)),
            };
            Ok((Arc::new(reading), first))
        })
        .await?;
    let count = reading.range.length.div_ceil(BLOCK_BYTES);
    let rest = stream::iter(1..count).map(move |index| {
        let reading = Arc::clone(&reading);
        Arc::clone(&shared).run(ACTION, path.clone(), move |_, _| {
            reading.piece(index).map(finish)
        })
    });
    let first = stream::iter(first.map(Ok));
    Ok(first.chain(rest.buffered(PIECES_AT_ONCE)).boxed())
}

impl Reading {
    /// Piece `index` of the range, verified to be of the requested version.
    fn piece(&self, index: u64) -> Result<Bytes, Failure> {
        let start = index * BLOCK_BYTES;
        let len = (self.range.length - start).min(BLOCK_BYTES);
        let end = start + len;
        if start.is_multiple_of(ADVICE_BYTES)
            && let Some(ahead) = NonZeroU64::new((self.range.length - end).min(2 * ADVICE_BYTES))
        {
            let offset = self.range.offset + end;
            // A filesystem that cannot read ahead may refuse the advice.
            fadvise(&self.file, offset, Some(ahead), Advice::WillNeed).ok();
        }
        self.verified(self.range.offset + start, len)
    }

    /// `len` bytes from `offset` of the file, of the requested version.
    pub(super) fn verified(&self, offset: u64, len: u64) -> Result<Bytes, Failure> {
        let (shared, path) = (&self.shared, &self.range.path);
        let failed = |errno| shared.failure(ACTION, path, errno);
        let stale = |text| shared.failure(ACTION, path, Cause::stale(text));
        let bytes = read_exactly(&self.file, offset, to_usize(len))
            .map_err(failed)?
            .ok_or_else(|| stale("the file has become shorter"))?;
        // After the read: a version that was checked before it would prove nothing about the bytes.
        let status = fresh_status(&self.file, b"").map_err(failed)?;
        let same = version(&status, &self.filesystem).is_state_of(&self.range.version);
        if !same || !self.equals_first_read(offset, &bytes) {
            return Err(stale("the file has changed while it was read"));
        }
        Ok(bytes.into())
    }

    /// Whether `bytes`, which begin at a block, equal those of the first read.
    fn equals_first_read(&self, offset: u64, bytes: &[u8]) -> bool {
        let blocks = bytes.chunks(to_usize(BLOCK_BYTES));
        let first = self.first_hashes.iter().copied();
        let first = first
            .skip(to_usize(offset / BLOCK_BYTES))
            .take(blocks.len());
        self.first_hashes.is_empty()
            || (offset.is_multiple_of(BLOCK_BYTES) && first.eq(blocks.map(blake3::hash)))
    }

    /// Opens the file of `range`, if it is of the requested version.
    pub(super) fn begin(shared: &Arc<Shared>, range: ByteRange) -> Result<Self, Failure> {
        let path = &range.path;
        let failed = |errno| shared.failure(ACTION, path, errno);
        let stale = |text| shared.failure(ACTION, path, Cause::stale(text));
        let found = shared
            .open_at(path, OFlags::PATH)
            .map_err(|errno| match errno {
                // It existed in the requested version, so it has changed.
                Errno::NOENT | Errno::NOTDIR => stale("the file is gone"),
                errno => failed(errno),
            })?;
        let mut status = status(&found, b"").map_err(failed)?;
        let filesystem =
            filesystem_of(&shared.filesystems, &found, b"", &status).map_err(failed)?;
        let is_requested = |status: &Statx| {
            let version = version(status, &filesystem);
            version.is_state_of(&range.version) && status.stx_size == range.size
        };
        // The check of a settled version is repeated after each read, so a cached status is enough here.
        if !is_requested(&status) || !range.version.is_settled() {
            // A cached status may be older than the one that the caller has seen.
            status = fresh_status(&found, b"").map_err(failed)?;
        }
        match kind(&status) {
            Some(FileKind::File) => {}
            Some(FileKind::Directory) => return Err(failed(Errno::ISDIR)),
            _ => {
                let text = "not a regular file; special files are shown and not opened";
                let cause = Cause::new(FailureKind::Unsupported, text);
                return Err(shared.failure(ACTION, path, cause));
            }
        }
        if !is_requested(&status) {
            return Err(stale("the file has changed"));
        }
        let is_unsettled = matches!(range.version.standing(), Standing::Unsettled(_));
        if is_unsettled && !shared.admits(&range, &status) {
            return Err(stale(
                "the file is too young to be read under this version, or was read already",
            ));
        }
        let end = range.offset.checked_add(range.length);
        if end.is_none_or(|end| end > range.size) {
            return Err(failed(Errno::INVAL));
        }
        let file = reopen(shared, &found).map_err(failed)?;
        let mut reading = Self {
            shared: Arc::clone(shared),
            file,
            filesystem,
            range,
            first_hashes: Vec::new(),
        };
        if is_unsettled {
            let size = reading.range.size;
            let first_read = (0..size).step_by(to_usize(BLOCK_BYTES)).map(|at| {
                let block = reading.verified(at, (size - at).min(BLOCK_BYTES))?;
                Ok(blake3::hash(&block))
            });
            reading.first_hashes = first_read.collect::<Result<_, Failure>>()?;
        }
        Ok(reading)
    }
}

impl Shared {
    /// Whether `range` of the file with this status may be read under an unsettled version.
    fn admits(&self, range: &ByteRange, status: &Statx) -> bool {
        let is_whole = range.offset == 0 && range.length == range.size;
        if !is_whole || range.size > UNSETTLED_BYTES_MAX {
            return false;
        }
        let (path, times) = (range.path.as_bytes(), times(status));
        !self.settling.is_old(times, now_ns())
            && (self.settling).admit_read(path, &range.version, times.granularity, Instant::now())
    }
}

/// Opens the file of an `O_PATH` descriptor for reading, without a change of its access time if that is
/// allowed. `O_NONBLOCK`, so that it never waits for a lease or a pipe's writer.
fn reopen(shared: &Shared, found: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if !shared.noatime_refused.load(Ordering::Relaxed) {
        match open_path(&path, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => shared.noatime_refused.store(true, Ordering::Relaxed),
            result => return result,
        }
    }
    open_path(&path, flags, Mode::empty())
}
