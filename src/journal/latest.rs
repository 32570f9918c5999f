//! One value in memory that outlives the process: the latest one that was written.
//!
//! For a value that is replaced as a whole, and may be long. Two places take turns, and so do two headers: a writer that
//! is killed leaves the value before. A header is that of a journal, and in it the offset of a frame.

use super::{
    FIRST_FRAME, FRAME_HEAD, JournalError, Medium, SLOT_BYTES, checksum, frame_head, header,
    read_header,
};
use crate::num::to_usize;
use parking_lot::Mutex;
use std::io;

/// The distance of the two places. A medium has memory only where something was written.
const PLACE_BYTES: u64 = 1 << 32;
/// The maximum length of a value.
pub(super) const VALUE_MAX: usize = 256 << 20;

/// See the module.
pub struct Latest<M> {
    medium: M,
    /// The sequence number of the last header; `None` before the first value.
    sequence: Mutex<Option<u64>>,
}

impl<M: Medium> Latest<M> {
    /// Begins without a value.
    #[must_use]
    pub fn create(medium: M) -> Self {
        Self {
            medium,
            sequence: Mutex::new(None),
        }
    }

    /// Reads the value that another process has left, if there is one, and continues.
    ///
    /// # Errors
    /// The medium cannot be read, or another version of copperfs has written it.
    pub fn adopt(medium: M) -> Result<(Self, Option<Vec<u8>>), JournalError> {
        let (sequence, place) = match read_header(&medium) {
            Ok(found) => found,
            Err(JournalError::NoHeader) => return Ok((Self::create(medium), None)),
            Err(error) => return Err(error),
        };
        let mut head = [0; FRAME_HEAD];
        let mut value = None;
        if medium.read_at(&mut head, place)? == FRAME_HEAD {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            let length = to_usize(length.into()).min(VALUE_MAX);
            let mut bytes = vec![0; length];
            let read = medium.read_at(&mut bytes, place + FRAME_HEAD as u64)?;
            value = (read == length && checksum(place, &bytes) == head[4..]).then_some(bytes);
        }
        let latest = Self {
            medium,
            sequence: Mutex::new(Some(sequence)),
        };
        Ok((latest, value))
    }

    /// Replaces the value. When it returns, the next process finds this one.
    ///
    /// # Errors
    /// The value is too long, or there is no memory: the value before stays.
    pub fn write(&self, value: &[u8]) -> io::Result<()> {
        if value.len() > VALUE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut last = self.sequence.lock();
        let sequence = last.map_or(0, |last| last + 1);
        let place = |sequence: u64| FIRST_FRAME + sequence % 2 * PLACE_BYTES;
        let at = place(sequence);
        self.medium.write_at(&frame_head(at, value), at)?;
        self.medium.write_at(value, at + FRAME_HEAD as u64)?;
        let slot = sequence % 2 * SLOT_BYTES;
        self.medium.write_at(&header(sequence, at), slot)?;
        *last = Some(sequence);
        let before = place(sequence + 1);
        self.medium.release(before..before + PLACE_BYTES / 2)
    }
}
