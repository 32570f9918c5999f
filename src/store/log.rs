//! The index: an append-only log of what the catalog must know again after a restart.
//!
//! A header of 16 bytes, then frames: length (u32), the first four bytes of the payload's BLAKE3, and
//! the payload, a postcard [`Record`]; integers little-endian. The log is never flushed to the disk by
//! force, except by `clear`: what a crash takes costs a fetch, and a frame that is torn ends the log.

use super::catalog::{Catalog, Cleared, Held};
use super::directory::{Directory, StoreError, errno_of};
use super::record::Record;
use super::unit::Unit;
use crate::read::FileId;
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

const HEADER: &[u8; 16] = b"copperfs index 1";
const FRAME_HEAD: usize = 8;
/// The largest payload: the hashes of a whole file of 256 GiB, or the longest path.
const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// Appended bytes that are held back until somebody flushes, or this many have come together: some fifty
/// small files, which a process that is killed leaves for the sweep to find.
const BUFFER_BYTES: usize = 8 << 10;
/// A log is written anew when it is twice as long as it was after the last time, and longer than this.
const COMPACT_BYTES_MIN: u64 = 4 << 20;

impl Record {
    /// Appends the frame of this record. Records that are too large are left out.
    fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; FRAME_HEAD]);
        let Ok(mut bytes) = postcard::to_extend(self, std::mem::take(into)) else {
            return;
        };
        let payload = &bytes[start + FRAME_HEAD..];
        if payload.len() > PAYLOAD_BYTES_MAX {
            bytes.truncate(start);
            *into = bytes;
            return;
        }
        let len = u32::try_from(payload.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        let check = check(payload);
        bytes[start..start + 4].copy_from_slice(&len);
        bytes[start + 4..start + FRAME_HEAD].copy_from_slice(&check);
        *into = bytes;
    }
}

fn check(payload: &[u8]) -> [u8; 4] {
    let hash = blake3::hash(payload);
    let mut check = [0; 4];
    check.copy_from_slice(&hash.as_bytes()[..4]);
    check
}

/// Splits the next record off `bytes`; `None` at the end or where the log is torn.
fn decode(bytes: &mut &[u8]) -> Option<Record> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEAD)?;
    let (len, sum) = head.split_at(4);
    let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
    if len > PAYLOAD_BYTES_MAX {
        return None;
    }
    let (payload, rest) = rest.split_at_checked(len)?;
    if check(payload) != *sum {
        return None;
    }
    let record = postcard::from_bytes(payload).ok()?;
    *bytes = rest;
    Some(record)
}

/// The log of an open store.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    /// Bytes in the file.
    len: u64,
    /// As long as this it is written anew.
    compact_at: u64,
    buffer: Vec<u8>,
    /// Records were lost: it must be written anew before it can be trusted again.
    broken: bool,
}

/// Reads the index into `catalog`; gives the log, and the content files for which there is no room any
/// more.
///
/// # Errors
/// The index cannot be opened or read at all. What is damaged in it is forgotten.
pub(super) fn replay(
    directory: &Directory,
    catalog: &Catalog,
) -> Result<(Log, Vec<Unit>), StoreError> {
    let failed = |action| {
        let path = directory.path().to_owned();
        move |source| StoreError::Io {
            action,
            path,
            source,
        }
    };
    let file = directory
        .open_index()
        .map_err(|errno| failed("open the index of")(errno.into()))?;
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(failed("read the index of"))?;
    let mut evicted = Vec::new();
    let mut whole = HEADER.len();
    if let Some(mut rest) = bytes.strip_prefix(HEADER) {
        while let Some(record) = decode(&mut rest) {
            learn(catalog, record, &mut evicted);
        }
        whole = bytes.len() - rest.len();
        if !rest.is_empty() {
            tracing::warn!(
                store = %directory.path().display(),
                bytes = rest.len(),
                "the index of the store is torn: its end is forgotten"
            );
        }
    } else {
        file.set_len(0).map_err(failed("write the index of"))?;
        file.write_all(HEADER)
            .map_err(failed("write the index of"))?;
    }
    file.set_len(whole as u64)
        .map_err(failed("write the index of"))?;
    let log = Log {
        file,
        len: whole as u64,
        compact_at: (2 * whole as u64).max(COMPACT_BYTES_MIN),
        buffer: Vec::new(),
        broken: false,
    };
    Ok((log, evicted))
}

fn learn(catalog: &Catalog, record: Record, evicted: &mut Vec<Unit>) {
    match record {
        Record::Content { hash, len } => {
            evicted.extend(catalog.hold(Unit::block(hash), Held::block(u64::from(len))));
        }
        Record::Block {
            file,
            moment,
            index,
            hash,
        } => {
            catalog.reach(moment);
            catalog.note(FileId::of(file), moment, index, hash);
        }
        Record::Whole {
            file,
            moment,
            name,
            len,
            blocks,
        } => {
            catalog.reach(moment);
            catalog.note_whole(FileId::of(file), moment, name, &blocks);
            let held = Held::whole(len, None, blocks.into());
            evicted.extend(catalog.hold(Unit::whole(name), held));
        }
        Record::Gone { whole, name } => {
            let unit = if whole {
                Unit::whole(name)
            } else {
                Unit::block(name)
            };
            evicted.retain(|other| *other != unit);
            catalog.forget(&unit);
        }
        Record::Cleared { path, until } => catalog.cleared(Cleared { path, until }),
    }
}

impl Log {
    /// Adds a record; [`Log::flush`] makes it outlive the process.
    pub(super) fn append(&mut self, record: &Record) {
        record.encode(&mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Hands what was added to the kernel.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.file.write_all(&self.buffer) {
            Ok(()) => self.len += self.buffer.len() as u64,
            // Half a frame may be there, behind which nothing would be found.
            Err(error) => {
                tracing::debug!(%error, "cannot write the index of the store");
                self.broken = true;
            }
        }
        self.buffer.clear();
    }

    /// Waits until what was added is on the disk.
    pub(super) fn sync(&mut self) {
        self.flush();
        drop(self.file.sync_data());
    }

    /// The file is gone, or what it says is: it is to be written anew.
    pub(super) fn lost(&mut self) {
        self.broken = true;
    }

    pub(super) fn wants_compaction(&self) -> bool {
        self.broken || self.len >= self.compact_at
    }

    /// Writes the log anew, from what the catalog holds.
    ///
    /// # Errors
    /// The disk's; the old log stays in use.
    pub(super) fn compact(
        &mut self,
        directory: &Directory,
        catalog: &Catalog,
    ) -> Result<(), Errno> {
        let (file, temporary) = directory.create()?;
        match write_anew(file, catalog) {
            Ok((file, len)) => {
                directory.publish_index(&temporary)?;
                *self = Self {
                    file,
                    len,
                    compact_at: (2 * len).max(COMPACT_BYTES_MIN),
                    buffer: Vec::new(),
                    broken: false,
                };
                Ok(())
            }
            Err(error) => {
                directory.discard(&temporary);
                Err(errno_of(&error))
            }
        }
    }
}

fn write_anew(file: OwnedFd, catalog: &Catalog) -> std::io::Result<(File, u64)> {
    let mut file = File::from(file);
    let mut buffer = HEADER.to_vec();
    let mut len = 0;
    let mut outcome = Ok(());
    catalog.for_each_record(|record| {
        record.encode(&mut buffer);
        if buffer.len() >= BUFFER_BYTES && outcome.is_ok() {
            outcome = file.write_all(&buffer);
            len += buffer.len() as u64;
            buffer.clear();
        }
    });
    outcome?;
    file.write_all(&buffer)?;
    Ok((file, len + buffer.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_overlay::{ContentHash, ItemPath};
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Record> {
        let hash = any::<[u8; 32]>().prop_map(ContentHash);
        prop_oneof![
            (hash.clone(), any::<u32>()).prop_map(|(hash, len)| Record::Content { hash, len }),
            (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), hash.clone()).prop_map(
                |(file, moment, index, hash)| Record::Block {
                    file,
                    moment,
                    index,
                    hash
                }
            ),
            (any::<bool>(), hash).prop_map(|(whole, name)| Record::Gone { whole, name }),
            any::<u64>().prop_map(|until| Record::Cleared {
                path: ItemPath::parse(b"/a/b").unwrap(),
                until
            }),
        ]
    }

    proptest! {
        /// Whatever is cut off or changed: what comes before it is read, and nothing false after it.
        #[test]
        fn a_torn_log_ends_where_it_is_torn(
            all in prop::collection::vec(records(), 1..20),
            cut in any::<prop::sample::Index>(),
            flip in any::<Option<prop::sample::Index>>(),
        ) {
            let mut bytes = Vec::new();
            let mut ends = Vec::new();
            for record in &all {
                record.encode(&mut bytes);
                ends.push(bytes.len());
            }
            let cut = cut.index(bytes.len() + 1);
            bytes.truncate(cut);
            let flip = flip.filter(|_| cut > 0).map(|flip| flip.index(cut));
            if let Some(at) = flip {
                bytes[at] ^= 1;
            }
            let whole = ends.iter().take_while(|end| **end <= flip.unwrap_or(cut).min(cut)).count();
            let mut rest = &bytes[..];
            let mut read = Vec::new();
            while let Some(record) = decode(&mut rest) {
                read.push(record);
            }
            prop_assert_eq!(&read[..], &all[..whole]);
        }
    }
}
