//! An unfinished index: a log of the directories listed so far, beside the target.
//!
//! The log is also the queue of the walk: directories are taken from its records in order, and their listings
//! are appended in the same order. So the number of records determines which directories are left after an
//! interruption, and no walk holds its queue in memory. A truncated record is dropped. At the end the records
//! are sorted by path, in runs of bounded memory.

use super::format::{
    Decoder, DirectoryRecord, Encoder, EntryRange, FormatError, PART_HASH_BYTES, checksum, parts,
};
use super::write::{beside, io_error};
use super::{IndexError, WalkedEntry};
use crate::num::to_usize;
use copperfs_overlay::{Attributes, ItemPath};
use rustix::fs::FlockOperation;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

mod sort;

pub use sort::Sorted;

const MAGIC: &[u8] = b"CPFSPRT2";
/// The maximum length of the first frame: its URI is at most that long, with the option after it.
const FRAMES_BEGIN_MAX: u64 = 8 << 10;
/// Bytes of the number of parts in a record.
const COUNT_BYTES: usize = 4;
/// Bytes before a record: its length and its checksum.
const FRAME_BYTES: usize = 4 + 16;
/// The maximum number of directories that cannot be listed. A walk with more of them is given up, because they
/// probably have a common cause.
pub const FAILURES_MAX: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub struct Partial {
    file: File,
    path: PathBuf,
    /// Bytes of complete records.
    len: u64,
    /// The position of the first record.
    pub first: u64,
    /// Directories whose listing was appended, including failed ones.
    pub done: u64,
    /// Directories that could not be listed, by path.
    pub failed: BTreeMap<ItemPath, Attributes>,
}

/// A record of the log: a directory and its entries.
#[derive(Debug)]
pub struct Record {
    /// Its path and attributes; the presence of a place means that it was listed.
    pub directory: DirectoryRecord,
    /// Whether it is a retry of a directory that had failed.
    pub again: bool,
    payload: Vec<u8>,
    /// The position of the hashes of parts, before which their number is.
    parts_at: usize,
    entries_at: usize,
    name: PathBuf,
}

impl Record {
    /// Its entries, in the order of their names.
    pub fn entries(&self) -> impl Iterator<Item = Result<WalkedEntry, IndexError>> + '_ {
        let mut decoder = Decoder::new(self.payload.get(self.entries_at..).unwrap_or_default());
        let hashes = self.payload.get(self.parts_at..self.entries_at);
        let (hashes, _) = hashes.unwrap_or_default().as_chunks::<PART_HASH_BYTES>();
        std::iter::from_fn(move || {
            let next = (!decoder.is_empty()).then(|| {
                let indexed = decoder.entry()?;
                let first = to_usize(indexed.first_part);
                let count = to_usize(parts(&indexed.entry));
                let own = hashes.get(first..).and_then(|rest| rest.get(..count));
                Ok(WalkedEntry {
                    parts: own.ok_or(FormatError::Damaged("a file's parts"))?.to_vec(),
                    entry: indexed.entry,
                    xattrs: indexed.xattrs,
                })
            })?;
            Some(next.map_err(|source| damaged(&self.name, source)))
        })
    }
}

impl Partial {
    /// Opens the log for `target`, or creates it. It may exist only if `resume`.
    ///
    /// # Errors
    /// It exists and must not be resumed, or it was begun with other parameters; another process has it; it cannot
    /// be written.
    pub fn open(target: &Path, uri: &str, hash: bool, resume: bool) -> Result<Self, IndexError> {
        let path = beside(target, ".partial");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(io_error("open", &path))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_held| IndexError::Busy(path.clone()))?;
        let wanted = format!("{uri}{}", if hash { " with --hash" } else { "" });
        let mut this = Self {
            file,
            path,
            len: 0,
            first: 0,
            done: 0,
            failed: BTreeMap::new(),
        };
        if this.file_bytes()? > 0 && !resume {
            return Err(IndexError::Begun(this.path));
        }
        match this.frame_at(0)? {
            Some(head) if head.starts_with(MAGIC) => {
                let was = String::from_utf8_lossy(&head[MAGIC.len()..]).into_owned();
                if was != wanted {
                    let path = this.path;
                    return Err(IndexError::Other { path, was, wanted });
                }
                this.len = (FRAME_BYTES + head.len()) as u64;
                this.first = this.len;
                while let Some((record, next)) = this.record_at(this.len)? {
                    this.note(&record.directory, record.again);
                    this.len = next;
                }
            }
            Some(_) => return Err(IndexError::Foreign(this.path)),
            // A first frame that was cut off is short.
            None if this.file_bytes()? > FRAMES_BEGIN_MAX => {
                return Err(IndexError::Foreign(this.path));
            }
            None => {
                this.put(&[MAGIC, wanted.as_bytes()].concat())?;
                this.first = this.len;
            }
        }
        let cut = this.file.set_len(this.len);
        cut.map_err(io_error("cut", &this.path))?;
        Ok(this)
    }

    fn note(&mut self, directory: &DirectoryRecord, again: bool) {
        self.done += u64::from(!again);
        if directory.place.is_some() {
            self.failed.remove(&directory.path);
        } else {
            let attributes = directory.attributes.clone();
            self.failed.insert(directory.path.clone(), attributes);
        }
    }

    /// Appends a directory with its entries in the order of their names. `None`: it could not be listed.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn append(
        &mut self,
        mut directory: DirectoryRecord,
        entries: Option<&[WalkedEntry]>,
        again: bool,
    ) -> Result<(), IndexError> {
        directory.place = entries.map(|_| EntryRange::default());
        let mut payload = vec![u8::from(again)];
        Encoder::default().directory(&mut payload, &directory);
        let entries = entries.unwrap_or_default();
        let hashes: Vec<_> = entries.iter().flat_map(|entry| &entry.parts).collect();
        let count = u32::try_from(hashes.len()).map_err(|_large| self.too_large())?;
        payload.extend_from_slice(&count.to_le_bytes());
        for hash in hashes {
            payload.extend_from_slice(hash);
        }
        let (mut encoder, mut first_part) = (Encoder::default(), 0);
        for walked in entries {
            let xattrs = walked.xattrs.as_ref();
            encoder.entry(&mut payload, &walked.entry, first_part, xattrs);
            first_part += walked.parts.len() as u64;
        }
        self.put(&payload)?;
        self.note(&directory, again);
        Ok(())
    }

    /// The record at `offset`, and the position of the next one. Returns `None` at the end.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn record_at(&self, offset: u64) -> Result<Option<(Record, u64)>, IndexError> {
        let Some(payload) = self.frame_at(offset)? else {
            return Ok(None);
        };
        let next = offset + (FRAME_BYTES + payload.len()) as u64;
        let wrong = |source| damaged(&self.path, source);
        let empty = || wrong(FormatError::Damaged("an empty record"));
        let (again, rest) = payload.split_first().ok_or_else(empty)?;
        // The payload is one directory record, followed by the hashes of parts, and by entries.
        let mut decoder = Decoder::new(rest);
        let directory = decoder.directory().map_err(wrong)?.ok_or_else(empty)?;
        let (count, after) = (decoder.rest.split_first_chunk::<COUNT_BYTES>()).ok_or_else(empty)?;
        let parts_at = payload.len() - after.len();
        let bytes = PART_HASH_BYTES.saturating_mul(u32::from_le_bytes(*count) as usize);
        let record = Record {
            directory,
            again: *again == 1,
            parts_at,
            entries_at: parts_at.saturating_add(bytes),
            payload,
            name: self.path.clone(),
        };
        Ok(Some((record, next)))
    }

    /// The payload of the complete frame at `offset`. Returns `None` at the end, and for a truncated frame.
    fn frame_at(&self, offset: u64) -> Result<Option<Vec<u8>>, IndexError> {
        let mut frame = [0; FRAME_BYTES];
        if !self.fill(&mut frame, offset)? {
            return Ok(None);
        }
        let (len, sum) = frame.split_at(4);
        let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]);
        // Checked before the allocation, because the length may be garbage.
        let end = offset + FRAME_BYTES as u64 + u64::from(len);
        if end > self.file_bytes()? {
            return Ok(None);
        }
        let mut payload = vec![0; len as usize];
        let there = self.fill(&mut payload, offset + FRAME_BYTES as u64)?;
        Ok((there && checksum(&payload) == sum).then_some(payload))
    }

    fn file_bytes(&self) -> Result<u64, IndexError> {
        let status = self.file.metadata();
        Ok(status.map_err(io_error("read", &self.path))?.len())
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<bool, IndexError> {
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(io_error("read", &self.path)(error)),
        }
    }

    fn too_large(&self) -> IndexError {
        let cause = "a directory with more than 4 GiB of names and hashes";
        io_error("write", &self.path)(std::io::Error::other(cause))
    }

    fn put(&mut self, payload: &[u8]) -> Result<(), IndexError> {
        let failed = io_error("write", &self.path);
        let len = u32::try_from(payload.len()).map_err(|_large| self.too_large())?;
        let frame = [&len.to_le_bytes()[..], &checksum(payload)].concat();
        let mut at = self.len;
        for bytes in [&frame[..], payload] {
            self.file.write_all_at(bytes, at).map_err(failed)?;
            at += bytes.len() as u64;
        }
        self.len = at;
        self.file.flush().map_err(failed)
    }

    /// Removes the log, after the index is complete.
    pub fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "this stays behind");
        }
    }
}

fn damaged(path: &Path, source: FormatError) -> IndexError {
    IndexError::Format {
        name: path.display().to_string(),
        source,
    }
}
