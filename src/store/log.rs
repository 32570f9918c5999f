//! The index: an append-only log of the records from which a later process restores the catalog.
//!
//! A header of 16 bytes, then frames: length (u32), the first four bytes of the payload's BLAKE3, and
//! the payload, a postcard [`Record`]; integers little-endian. Only `clear` forces the log to the disk. Records
//! that are lost in a crash cost a fetch, and a torn frame ends the log.

use super::catalog::{Catalog, ContentEntry};
use super::directory::{Directory, INDEX, StoreError};
use super::record::{ContentId, Record};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

const HEADER: &[u8; 16] = b"copperfs index 1";
const FRAME_HEAD: usize = 8;
/// The largest payload: the hashes of a whole file of 256 GiB, or the longest path.
const PAYLOAD_BYTES_MAX: usize = 8 << 20;
/// The size of the buffer of appended records: some fifty small files. The sweep adopts the files whose
/// records are lost when the process is killed.
const BUFFER_BYTES: usize = 8 << 10;
/// A log is compacted when it is twice as long as it was after the last time, and longer than this.
const COMPACT_BYTES_MIN: u64 = 4 << 20;

impl Record {
    /// Appends the frame of this record. Records that are too large are left out.
    fn encode(&self, into: &mut Vec<u8>) {
        if let Ok(payload) = postcard::to_stdvec(self)
            && payload.len() <= PAYLOAD_BYTES_MAX
            && let Ok(len) = u32::try_from(payload.len())
        {
            into.extend_from_slice(&len.to_le_bytes());
            into.extend_from_slice(&check(&payload));
            into.extend_from_slice(&payload);
        }
    }
}

fn check(payload: &[u8]) -> [u8; 4] {
    let hash = blake3::hash(payload);
    let mut check = [0; 4];
    check.copy_from_slice(&hash.as_bytes()[..4]);
    check
}

/// Splits the next record off `bytes`. Returns `None` at the end, and at a torn frame.
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
pub(super) struct Log {
    file: File,
    /// Bytes in the file.
    len: u64,
    /// The length at which it is compacted.
    compact_at: u64,
    buffer: Vec<u8>,
    /// Records were lost, or the file is lost or outdated, so it must be compacted before it can be trusted
    /// again.
    pub(super) is_broken: bool,
}

/// Reads the index into `catalog`. Returns the log, and the content files that no longer fit into the store.
///
/// # Errors
/// The index cannot be opened or read at all. Damaged records are ignored.
pub(super) fn replay(
    directory: &Directory,
    catalog: &Catalog,
) -> Result<(Log, Vec<ContentId>), StoreError> {
    let failed = |action| StoreError::on(&directory.path, action);
    let opened = directory.open_index().map_err(std::io::Error::from);
    let mut file = File::from(opened.map_err(failed("open the index of"))?);
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(failed("read the index of"))?;
    let mut evicted = Vec::new();
    let mut len = HEADER.len();
    if let Some(mut rest) = bytes.strip_prefix(HEADER) {
        while let Some(record) = decode(&mut rest) {
            apply(catalog, record, &mut evicted);
        }
        len = bytes.len() - rest.len();
        if !rest.is_empty() {
            tracing::warn!(
                store = %directory.path.display(),
                bytes = rest.len(),
                "the index of the store is torn: its end is forgotten"
            );
        }
    } else {
        file.set_len(0).map_err(failed("write the index of"))?;
        file.write_all(HEADER)
            .map_err(failed("write the index of"))?;
    }
    // Records after a torn frame would never be found.
    file.set_len(len as u64)
        .map_err(failed("write the index of"))?;
    Ok((Log::new(file, len as u64), evicted))
}

/// Applies a record to the catalog. Adds the content files that no longer fit to `evicted`.
fn apply(catalog: &Catalog, record: Record, evicted: &mut Vec<ContentId>) {
    match record {
        Record::Content { hash, len } => {
            let entry = ContentEntry::block(u64::from(len));
            evicted.extend(catalog.add(ContentId::block(hash), entry));
        }
        Record::Block { origin, hash } => {
            catalog.reach(origin.moment);
            catalog.record(&origin, hash);
        }
        Record::Whole {
            file,
            moment,
            name,
            len,
            blocks,
        } => {
            catalog.reach(moment);
            catalog.record_whole(file, moment, name, &blocks);
            let entry = ContentEntry::whole(len, None, blocks.into());
            evicted.extend(catalog.add(ContentId::whole(name), entry));
        }
        Record::Gone(content) => {
            evicted.retain(|other| *other != content);
            catalog.forget(&content);
        }
        Record::Cleared(clear) => catalog.add_clear(clear),
    }
}

impl Log {
    fn new(file: File, len: u64) -> Self {
        Self {
            file,
            len,
            compact_at: (2 * len).max(COMPACT_BYTES_MIN),
            buffer: Vec::new(),
            is_broken: false,
        }
    }

    /// Adds a record, which survives the process after [`Log::flush`].
    pub(super) fn append(&mut self, record: &Record) {
        record.encode(&mut self.buffer);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Writes the buffered records.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        match self.file.write_all(&self.buffer) {
            Ok(()) => self.len += self.buffer.len() as u64,
            // Records after a partial frame would never be found.
            Err(error) => {
                tracing::debug!(%error, "cannot write the index of the store");
                self.is_broken = true;
            }
        }
        self.buffer.clear();
    }

    /// Waits until all records are on the disk.
    pub(super) fn sync(&mut self) {
        self.flush();
        // Without it, a crash may lose the records; the content is checked in any case.
        drop(self.file.sync_data());
    }

    pub(super) fn wants_compaction(&self) -> bool {
        self.is_broken || self.len >= self.compact_at
    }

    /// Replaces the log by a new one with the records of the catalog.
    ///
    /// # Errors
    /// Those of the disk; the old log stays in use.
    pub(super) fn compact(
        &mut self,
        directory: &Directory,
        catalog: &Catalog,
    ) -> Result<(), Errno> {
        let (file, temporary) = directory.create()?;
        match write_all_records(file, catalog) {
            Ok((file, len)) => {
                directory.publish(&temporary, INDEX)?;
                *self = Self::new(file, len);
                Ok(())
            }
            Err(error) => {
                directory.remove(&temporary);
                Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            }
        }
    }
}

fn write_all_records(file: OwnedFd, catalog: &Catalog) -> std::io::Result<(File, u64)> {
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
    use crate::read::FileId;
    use crate::store::record::{BlockOrigin, Clear};
    use copperfs_overlay::{ContentHash, ItemPath};
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Record> {
        let hash = any::<[u8; 32]>().prop_map(ContentHash);
        prop_oneof![
            (hash.clone(), any::<u32>()).prop_map(|(hash, len)| Record::Content { hash, len }),
            (any::<[u8; 16]>(), any::<u64>(), any::<u64>(), hash.clone()).prop_map(
                |(file, moment, index, hash)| Record::Block {
                    origin: BlockOrigin::new(FileId::of(file), moment, index),
                    hash
                }
            ),
            (any::<bool>(), hash).prop_map(|(whole, name)| Record::Gone(match whole {
                true => ContentId::whole(name),
                false => ContentId::block(name),
            })),
            any::<u64>().prop_map(|until| Record::Cleared(Clear {
                path: ItemPath::parse(b"/a/b").unwrap(),
                until
            })),
        ]
    }

    #[test]
    fn records_have_their_documented_form() {
        let bytes = |record| postcard::to_stdvec(&record).unwrap();
        let hash = ContentHash([7; 32]);
        let gone = |kind| [&[3, kind][..], &[7; 32]].concat();
        assert_eq!(bytes(Record::Gone(ContentId::block(hash))), gone(0));
        assert_eq!(bytes(Record::Gone(ContentId::whole(hash))), gone(1));
        let origin = BlockOrigin::new(FileId::of([9; 16]), 2, 3);
        let block = [&[1][..], &[9; 16], &[2, 3], &[7; 32]].concat();
        assert_eq!(bytes(Record::Block { origin, hash }), block);
        let path = ItemPath::parse(b"/a/b").unwrap();
        let cleared = Record::Cleared(Clear { path, until: 5 });
        assert_eq!(bytes(cleared), b"\x04\x03a/b\x05");
    }

    proptest! {
        /// For any cut or changed byte, all records before it are read, and no false ones after it.
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
