//! Bytes of one version of one file.
//!
//! The file is found (`O_PATH`), checked to be a regular file of the version wanted, and only then
//! opened for reading, by its descriptor: the path is not walked twice and a device or pipe is never
//! opened. After each piece was read, the version is checked again with the filesystem's servers before the
//! piece is returned; so a change at any moment, growth and truncation included, ends the stream with
//! `Stale`.
//!
//! The times of a file with an unsettled version may not show a further change yet. So the file is read
//! whole, in one call, and twice. The bytes of the second read are returned as far as they equal those of
//! the first, so they are the file's bytes at the moment between the two.

use super::Shared;
use super::attributes::{filesystem_of, granularity_of, kind, status, status_now, times, version};
use super::filesystem::Filesystem;
use crate::num::to_usize;
use crate::origin::failure::{stale, worded};
use crate::origin::{ByteRange, ByteStream, HashedStream, now_ns};
use bytes::Bytes;
use copperfs_overlay::{
    BLOCK_BYTES, ContentHash, Failure, FailureKind, FileKind, Standing, UNSETTLED_BYTES_MAX,
};
use futures_util::stream::{self, StreamExt};
use rustix::buffer::spare_capacity;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags, Statx, fadvise, open as open_path};
use rustix::io::{Errno, pread};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(super) const ACTION: &str = "read";

/// The first piece is small enough to be on its way soon …
const FIRST_PIECE_BYTES: u64 = 1 << 20;
/// … and the others large enough for a parallel filesystem.
const PIECE_BYTES: u64 = 4 << 20;

pub(super) struct Reading {
    file: OwnedFd,
    /// The filesystem of the file; it does not change for an open descriptor.
    filesystem: Filesystem,
    range: ByteRange,
    /// Bytes handed on so far.
    done: u64,
    /// For an unsettled version: the hashes of all blocks from the first read.
    before: Option<Vec<ContentHash>>,
}

/// Answers [`crate::origin::Origin::open`]: opens the file and reads the first piece in one go.
pub(super) async fn open(shared: Arc<Shared>, range: ByteRange) -> Result<ByteStream, Failure> {
    let path = range.path.clone();
    let (reading, first) = Arc::clone(&shared)
        .run(ACTION, path, move |shared, _| {
            let mut reading = Reading::begin(shared, range)?;
            let first = reading.piece(shared, FIRST_PIECE_BYTES)?;
            Ok((reading, first))
        })
        .await?;
    let rest = stream::try_unfold(reading, move |mut reading| {
        let shared = Arc::clone(&shared);
        async move {
            if reading.done == reading.range.length {
                return Ok(None);
            }
            let path = reading.range.path.clone();
            let (reading, piece) = shared
                .run(ACTION, path, move |shared, _| {
                    let piece = reading.piece(shared, PIECE_BYTES)?;
                    Ok((reading, piece))
                })
                .await?;
            Ok(Some((piece, reading)))
        }
    });
    if first.is_empty() {
        return Ok(stream::empty().boxed());
    }
    Ok(stream::iter([Ok(first)]).chain(rest).boxed())
}

/// Blocks of one answer that are read at a time: while one is hashed, the next is on its way.
const BLOCKS_AT_ONCE: usize = 2;
/// What the kernel is asked to have ready behind a block, each time so many bytes are read.
const ADVICE_BYTES: u64 = 4 << 20;

/// Answers [`crate::origin::Origin::blocks`]: each block is read, checked and hashed in one go on a
/// blocking thread, and not copied after that.
pub(super) async fn blocks(shared: Arc<Shared>, range: ByteRange) -> Result<HashedStream, Failure> {
    let path = range.path.clone();
    let (reading, first) = Arc::clone(&shared)
        .run(ACTION, path.clone(), move |shared, _| {
            let reading = Reading::begin(shared, range)?;
            let first = match reading.range.length {
                0 => None,
                _ => Some(reading.block(shared, 0)?),
            };
            Ok((Arc::new(reading), first))
        })
        .await?;
    let count = reading.range.length.div_ceil(BLOCK_BYTES);
    let rest = stream::iter(1..count).map(move |index| {
        let (shared, reading) = (Arc::clone(&shared), Arc::clone(&reading));
        shared.run(ACTION, path.clone(), move |shared, _| {
            reading.block(shared, index)
        })
    });
    let first = stream::iter(first.map(Ok));
    Ok(first.chain(rest.buffered(BLOCKS_AT_ONCE)).boxed())
}

impl Reading {
    /// Block `index` of the range, verified to be of the version wanted.
    fn block(&self, shared: &Shared, index: u64) -> Result<(Bytes, ContentHash), Failure> {
        let start = index * BLOCK_BYTES;
        let len = (self.range.length - start).min(BLOCK_BYTES);
        let behind = start + len;
        if start.is_multiple_of(ADVICE_BYTES)
            && let Some(ahead) = NonZeroU64::new((self.range.length - behind).min(2 * ADVICE_BYTES))
        {
            self.advise(self.range.offset + behind, ahead);
        }
        let bytes = self.verified(shared, self.range.offset + start, len)?;
        let hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        Ok((bytes, hash))
    }

    /// Has the kernel read what will be asked for. Advice only: a filesystem that cannot read ahead loses
    /// nothing.
    fn advise(&self, offset: u64, len: NonZeroU64) {
        fadvise(&self.file, offset, Some(len), Advice::WillNeed).ok();
    }

    /// `len` bytes from `offset` of the file, of the version wanted.
    fn verified(&self, shared: &Shared, offset: u64, len: u64) -> Result<Bytes, Failure> {
        let path = &self.range.path;
        let failed = |errno| shared.failure(ACTION, path, errno);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let bytes = read_exactly(&self.file, offset, len)
            .map_err(failed)?
            .ok_or_else(|| stale(&shared.label, path, "the file has become shorter"))?;
        let status = status_now(&self.file, b"").map_err(failed)?;
        let same = version(&status, &self.filesystem).is_state_of(&self.range.version);
        if !same || !self.is_as_before(offset, &bytes) {
            return Err(stale(
                &shared.label,
                path,
                "the file has changed while it was read",
            ));
        }
        Ok(bytes)
    }

    /// Whether `bytes`, which begin at a block, equal those of the first read.
    fn is_as_before(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(before) = &self.before else {
            return true;
        };
        let first = to_usize(offset / BLOCK_BYTES);
        let blocks = bytes.chunks(to_usize(BLOCK_BYTES)).enumerate();
        offset.is_multiple_of(BLOCK_BYTES)
            && blocks
                .map(|(nth, block)| (before.get(first + nth), blake3::hash(block)))
                .all(|(before, now)| before.is_some_and(|before| before.0 == *now.as_bytes()))
    }

    /// Does the first read of a whole file with an unsettled version.
    fn read_before(&mut self, shared: &Shared) -> Result<(), Failure> {
        let mut before = Vec::new();
        let mut at = 0;
        while at < self.range.size {
            let len = (self.range.size - at).min(BLOCK_BYTES);
            let bytes = self.verified(shared, at, len)?;
            before.push(ContentHash(*blake3::hash(&bytes).as_bytes()));
            at += len;
        }
        self.before = Some(before);
        Ok(())
    }

    pub(super) fn begin(shared: &Shared, range: ByteRange) -> Result<Self, Failure> {
        let path = &range.path;
        let found = shared
            .open_at(path, OFlags::PATH)
            .map_err(|errno| match errno {
                // The asker has seen the file in the version that it names: it changed.
                Errno::NOENT | Errno::NOTDIR => stale(&shared.label, path, "the file is gone"),
                errno => shared.failure(ACTION, path, errno),
            })?;
        let failed = |errno| shared.failure(ACTION, path, errno);
        let mut status = status(&found, b"").map_err(failed)?;
        let filesystem =
            filesystem_of(&shared.filesystems, &found, b"", &status).map_err(failed)?;
        let is_wanted = |status: &Statx| {
            let version = version(status, &filesystem);
            version.is_state_of(&range.version) && status.stx_size == range.size
        };
        if !is_wanted(&status) || !range.version.is_settled() {
            // A cached status may be older than the one that the caller has seen.
            status = status_now(&found, b"").map_err(failed)?;
        }
        match kind(&status) {
            Some(FileKind::File) => {}
            Some(FileKind::Directory) => {
                return Err(shared.failure(ACTION, path, Errno::ISDIR));
            }
            _ => {
                let cause = "not a regular file; special files are shown and not opened";
                let kind = FailureKind::Unsupported;
                return Err(worded(kind, &shared.label, ACTION, path, &cause, ""));
            }
        }
        if !is_wanted(&status) {
            return Err(stale(&shared.label, path, "the file has changed"));
        }
        let unsettled = match range.version.standing() {
            Standing::Unsettled(_) if !shared.admits(&range, &status) => {
                let cause =
                    "the file is too young to be read under this version, or was read already";
                return Err(stale(&shared.label, path, cause));
            }
            standing => matches!(standing, Standing::Unsettled(_)),
        };
        let fits = range
            .offset
            .checked_add(range.length)
            .is_some_and(|end| end <= range.size);
        if !fits {
            return Err(shared.failure(ACTION, path, Errno::INVAL));
        }
        let file = reopen(shared, &found).map_err(|errno| shared.failure(ACTION, path, errno))?;
        let mut reading = Self {
            file,
            filesystem,
            range,
            done: 0,
            before: None,
        };
        if unsettled {
            reading.read_before(shared)?;
        }
        Ok(reading)
    }

    /// The next bytes, at most `limit`, verified to be of the version wanted.
    pub(super) fn piece(&mut self, shared: &Shared, limit: u64) -> Result<Bytes, Failure> {
        let left = self.range.length - self.done;
        let start = self.range.offset + self.done;
        let bytes = self.verified(shared, start, left.min(limit))?;
        self.done += left.min(limit);
        if let Some(ahead) = NonZeroU64::new((left - left.min(limit)).min(PIECE_BYTES)) {
            self.advise(start + left.min(limit), ahead);
        }
        Ok(bytes)
    }
}

impl Shared {
    /// Whether `range` of the file with this status may be read under an unsettled version.
    fn admits(&self, range: &ByteRange, status: &Statx) -> bool {
        let whole = range.offset == 0 && range.length == range.size;
        let old = self.sightings.is_old(times(status), now_ns());
        whole && range.size <= UNSETTLED_BYTES_MAX && !old && {
            let (path, granularity) = (range.path.as_bytes(), granularity_of(status));
            (self.sightings).admits(path, &range.version, granularity, Instant::now())
        }
    }
}

/// Opens for reading what an `O_PATH` descriptor stands for, without touching its access time if that
/// is allowed. `O_NONBLOCK`: never waits for a lease or a pipe's writer.
fn reopen(shared: &Shared, found: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if !shared.atime_only.load(Ordering::Relaxed) {
        match open_path(&path, flags | OFlags::NOATIME, Mode::empty()) {
            Err(Errno::PERM) => shared.atime_only.store(true, Ordering::Relaxed),
            result => return result,
        }
    }
    open_path(&path, flags, Mode::empty())
}

/// `len` bytes from `offset`; `None` if the file ends before.
fn read_exactly(file: &OwnedFd, offset: u64, len: usize) -> Result<Option<Bytes>, Errno> {
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let at = offset + u64::try_from(bytes.len()).unwrap_or(u64::MAX - offset);
        match pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(len);
    Ok(Some(bytes.into()))
}
