//! A journal in memory that outlives the process: records of what the next process has to know.
//!
//! Another process holds the same memory file, so its bytes stay when the writer is killed between any two
//! instructions. Records are opaque here, and absolute: a later record about the same thing replaces an earlier
//! one. So records may be repeated, and a snapshot is a dump of all live things, written while other records are
//! written.
//!
//! Layout, all numbers in little-endian:
//! - at byte 128, the number of the daemon that has begun to serve last ([`served_by`]), or zero.
//! - two header slots of 64 bytes. The valid one with the higher sequence number holds the offset of the first
//!   frame that counts. They are written in turn, so that one is always whole.
//! - frames from byte 4096 on, without gaps: the length of the body (u32), the CRC-64/NVME of the frame's offset and
//!   body, and the body. The body is a sequence of records, each with its length (u16) before it.
//!
//! A frame is written at once by [`Journal::commit`], into mapped memory, because a system call for each open file would
//! be a part of its cost that shows. The bytes after the last frame are zero. A torn frame has no valid checksum, and ends the journal for
//! the reader; no reply depends on it yet, because the writer answers after the commit.
//!
//! The bytes before the first frame that counts are given back to the system.

#[cfg(test)]
pub(crate) mod killed;
mod latest;
mod medium;
#[cfg(test)]
mod tests;

pub use latest::Latest;
pub use medium::{Medium, MemoryFile};

use crate::failpoint;
use crate::num::to_usize;
use parking_lot::Mutex;
use serde::Serialize;
use std::io;
use std::sync::Arc;

/// Begins each header.
const MAGIC: [u8; 8] = *b"cfjournl";
/// The version of the format.
pub const FORMAT: u32 = 4;
/// The offset of the first frame of a new journal.
const FIRST_FRAME: u64 = 4096;
/// The distance of the header slots.
const SLOT_BYTES: u64 = 64;
/// The offset of the number of the daemon that serves.
const SERVED_BY: u64 = 2 * SLOT_BYTES;
/// The bytes of a header: magic, format, sequence number, offset of the first frame, and their checksum.
const HEADER_BYTES: usize = 8 + 4 + 8 + 8 + 8;
/// The bytes before the body of a frame.
const FRAME_HEAD: usize = 4 + 8;
/// The maximum length of a frame's body. Longer ones are divided.
const FRAME_MAX: usize = 256 << 10;
/// The maximum length of a record.
pub const RECORD_MAX: usize = u16::MAX as usize;
/// A snapshot that would save fewer bytes than this is not worthwhile.
const SNAPSHOT_MIN: u64 = 256 << 10;

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("the journal cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It has no valid header.
    #[error("the journal has no valid header")]
    NoHeader,
    /// Another version of copperfs has written it.
    #[error("the journal has format {found}, and this program reads format {FORMAT}")]
    Format {
        /// The format that was found.
        found: u32,
    },
}

/// See the module.
pub struct Journal<M: ?Sized> {
    state: Mutex<State>,
    medium: M,
}

/// The records of one part of the node in the node's journal. Cheap to clone.
#[derive(Clone)]
pub struct JournalPart {
    journal: Arc<Journal<dyn Medium + Send + Sync>>,
    tag: u8,
}

impl JournalPart {
    /// Makes the part whose records begin with `tag`.
    #[must_use]
    pub fn new(journal: Arc<Journal<impl Medium + Send + Sync + 'static>>, tag: u8) -> Self {
        Self { journal, tag }
    }

    /// Adds a record: see [`Journal::put`].
    pub fn put(&self, record: &impl Serialize, replaced: u64) {
        self.append(&mut self.journal.state.lock(), record, replaced);
    }

    /// As [`JournalPart::put`], for records that have a number in common with those before them. `record` makes one,
    /// and is told whether it may leave the number out: whether the last record that this part has put with this
    /// method is in the same frame and has the same number.
    pub fn put_with<R: Serialize>(
        &self,
        common: u64,
        record: impl FnOnce(bool) -> R,
        replaced: u64,
    ) {
        let mut state = self.journal.state.lock();
        let common = Some((self.tag, common));
        let record = record(state.common == common);
        state.common = common;
        self.append(&mut state, &record, replaced);
    }

    fn append(&self, state: &mut State, record: &impl Serialize, replaced: u64) {
        let mut frame = std::mem::take(&mut state.frame);
        let begin = frame.len();
        // Its length comes when it is known.
        frame.extend_from_slice(&[0, 0, self.tag]);
        let mut frame = match postcard::to_extend(record, frame) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::error!(%error, "a record cannot be encoded: no other daemon can take over");
                state.broken = true;
                return;
            }
        };
        match u16::try_from(frame.len() - begin - 2) {
            Ok(length) => frame[begin..begin + 2].copy_from_slice(&length.to_le_bytes()),
            Err(_too_long) => {
                frame.truncate(begin);
                state.common = None;
            }
        }
        state.frame = frame;
        state.replaced += replaced;
        self.journal.write_if_long(state);
    }

    /// See [`Journal::commit`].
    pub fn commit(&self) {
        self.journal.commit();
    }
}

struct State {
    /// The next frame: room for its head, and the records that are not committed yet.
    frame: Vec<u8>,
    /// The tag and the number of the last of them that was put by [`JournalPart::put_with`].
    common: Option<(u8, u64)>,
    /// The offset of the first frame that counts.
    start: u64,
    /// The offset of the next frame.
    end: u64,
    /// The bytes that say nothing any more, by what was told with the records.
    replaced: u64,
    /// The sequence number of the last header.
    sequence: u64,
    /// A write has failed: the journal is of no use any more.
    broken: bool,
}

impl<M: Medium> Journal<M> {
    /// Begins an empty journal.
    ///
    /// # Errors
    /// The medium cannot be written.
    pub fn create(medium: M) -> io::Result<Self> {
        let state = State {
            frame: vec![0; FRAME_HEAD],
            common: None,
            start: FIRST_FRAME,
            end: FIRST_FRAME,
            replaced: 0,
            sequence: 0,
            broken: false,
        };
        medium.write_at(&header(0, FIRST_FRAME), 0)?;
        Ok(Self {
            medium,
            state: Mutex::new(state),
        })
    }

    /// Checks that this program can read the journal in `medium`, which another process may be writing.
    ///
    /// # Errors
    /// It has no header, or another format.
    pub fn check(medium: &M) -> Result<(), JournalError> {
        read_header(medium).map(drop)
    }

    /// Reads the journal that another process has left, and continues it. Passes each record to `replay`, from the
    /// oldest to the newest.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn adopt(medium: M, mut replay: impl FnMut(&[u8])) -> Result<Self, JournalError> {
        let (sequence, start) = read_header(&medium)?;
        let mut end = start;
        let mut frame = Vec::new();
        while read_frame(&medium, end, &mut frame)? {
            end += (FRAME_HEAD + frame.len()) as u64;
            records(&frame).for_each(&mut replay);
        }
        // What follows was torn.
        medium.truncate(end)?;
        let state = State {
            frame: vec![0; FRAME_HEAD],
            common: None,
            start,
            end,
            replaced: 0,
            sequence,
            broken: false,
        };
        Ok(Self {
            medium,
            state: Mutex::new(state),
        })
    }
}

impl<M: Medium + ?Sized> Journal<M> {
    /// Adds a record, which is not committed yet. The caller holds the lock of the thing that the record is about, so
    /// that records about it have the order of its changes. A record above [`RECORD_MAX`] bytes is left out. `replaced`: about
    /// how many bytes of the journal a snapshot saves because of this record.
    pub fn put(&self, record: &[u8], replaced: u64) {
        let Ok(length) = u16::try_from(record.len()) else {
            return;
        };
        let mut state = self.state.lock();
        state.frame.extend_from_slice(&length.to_le_bytes());
        state.frame.extend_from_slice(record);
        state.replaced += replaced;
        self.write_if_long(&mut state);
    }

    fn write_if_long(&self, state: &mut State) {
        if state.frame.len() > FRAME_MAX / 2 {
            self.write_frame(state);
        }
    }

    /// Returns when all records that were put before are in the medium.
    pub fn commit(&self) {
        self.write_frame(&mut self.state.lock());
    }

    /// Returns whether a quarter of the journal or more says nothing any more, so that a snapshot is worthwhile.
    #[must_use]
    pub fn is_snapshot_due(&self) -> bool {
        let state = self.state.lock();
        state.replaced > SNAPSHOT_MIN && state.replaced > (state.end - state.start) / 4
    }

    /// Returns the bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let state = self.state.lock();
        state.end - state.start + FIRST_FRAME
    }

    /// Returns whether a write has failed since the beginning. Then no successor can continue it.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    /// Replaces all earlier records by those that `dump` puts, and by those that others put meanwhile. `dump` puts one
    /// record of each live thing. One snapshot at a time.
    ///
    /// # Errors
    /// The medium cannot be written. Then the earlier records still count.
    pub fn snapshot(&self, dump: impl FnOnce()) -> io::Result<()> {
        let (begin, replaced) = {
            let mut state = self.state.lock();
            self.write_frame(&mut state);
            (state.end, state.replaced)
        };
        failpoint::hit("snapshot.begun");
        dump();
        failpoint::hit("snapshot.dumped");
        let mut state = self.state.lock();
        self.write_frame(&mut state);
        if state.broken {
            return Err(io::Error::other("a write has failed"));
        }
        let sequence = state.sequence + 1;
        let slot = sequence % 2 * SLOT_BYTES;
        self.medium.write_at(&header(sequence, begin), slot)?;
        failpoint::hit("snapshot.valid");
        let given_up = state.start..begin;
        (state.sequence, state.start) = (sequence, begin);
        state.replaced -= replaced;
        self.medium.release(given_up)?;
        failpoint::hit("snapshot.released");
        Ok(())
    }

    /// Notes that the daemon with this number serves: see [`served_by`]. The number is above zero.
    ///
    /// # Errors
    /// The medium cannot be written.
    pub fn serve(&self, number: u64) -> io::Result<()> {
        self.medium.write_at(&number.to_le_bytes(), SERVED_BY)
    }

    fn write_frame(&self, state: &mut State) {
        state.common = None;
        if state.frame.len() > FRAME_HEAD && !state.broken {
            let head = frame_head(state.end, &state.frame[FRAME_HEAD..]);
            state.frame[..FRAME_HEAD].copy_from_slice(&head);
            match self.medium.append(&state.frame, state.end) {
                Ok(()) => state.end += state.frame.len() as u64,
                Err(error) => {
                    tracing::error!(%error, "the journal cannot be written: no other daemon can take over");
                    state.broken = true;
                }
            }
        }
        state.frame.truncate(FRAME_HEAD);
    }
}

/// Returns the number of the daemon that has begun to serve last, according to the journal in `medium`; zero: none has.
///
/// # Errors
/// The medium cannot be read.
pub fn served_by(medium: &impl Medium) -> io::Result<u64> {
    let mut number = [0; 8];
    let read = medium.read_at(&mut number, SERVED_BY)?;
    Ok(if read < number.len() {
        0
    } else {
        u64::from_le_bytes(number)
    })
}

/// Returns the head of the frame with `body` at `offset`.
fn frame_head(offset: u64, body: &[u8]) -> [u8; FRAME_HEAD] {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut head = [0; FRAME_HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&checksum(offset, body));
    head
}

fn checksum(offset: u64, body: &[u8]) -> [u8; 8] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&offset.to_le_bytes());
    digest.update(body);
    digest.finalize().to_le_bytes()
}

fn header(sequence: u64, start: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&sequence.to_le_bytes());
    header.extend_from_slice(&start.to_le_bytes());
    let checksum = checksum(0, &header);
    header.extend_from_slice(&checksum);
    header
}

/// Returns the sequence number and the offset of the first frame of the newest valid header.
fn read_header(medium: &impl Medium) -> Result<(u64, u64), JournalError> {
    let mut newest = Err(JournalError::NoHeader);
    for slot in 0..2 {
        let mut bytes = [0; HEADER_BYTES];
        if medium.read_at(&mut bytes, slot * SLOT_BYTES)? < HEADER_BYTES {
            continue;
        }
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let (told, check) = bytes.split_at(HEADER_BYTES - 8);
        if !told.starts_with(&MAGIC) {
            continue;
        }
        let found = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        // No format has the number zero: the writer was killed before it.
        if found != FORMAT && found != 0 {
            return Err(JournalError::Format { found });
        }
        if checksum(0, told) != *check {
            continue;
        }
        let (sequence, start) = (number(12), number(20));
        if !matches!(newest, Ok((known, _)) if known > sequence) {
            newest = Ok((sequence, start));
        }
    }
    newest
}

/// Reads the body of the frame at `offset`. Returns whether there is a whole one.
fn read_frame(medium: &impl Medium, offset: u64, body: &mut Vec<u8>) -> io::Result<bool> {
    let mut head = [0; FRAME_HEAD];
    if medium.read_at(&mut head, offset)? < FRAME_HEAD {
        return Ok(false);
    }
    let length = to_usize(u32::from_le_bytes([head[0], head[1], head[2], head[3]]).into());
    if length == 0 || length > FRAME_MAX {
        return Ok(false);
    }
    body.resize(length, 0);
    let read = medium.read_at(body, offset + FRAME_HEAD as u64)?;
    Ok(read == length && checksum(offset, body) == head[4..])
}

/// Returns the records of a frame's body.
fn records(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = body.split_first_chunk()?;
        let (record, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        body = rest;
        Some(record)
    })
}
