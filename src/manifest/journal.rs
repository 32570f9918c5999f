//! An unfinished manifest: a log of the hashes so far, beside the target.
//!
//! Hashes are appended as they complete, in any order, each with the path and the version of its file. So a
//! command that was interrupted reads only the files that are not in the log, or have another version now. The
//! manifest is written from the log, so memory holds only the position of each hash. A truncated record at the end
//! is dropped.

use super::format::parts_of;
use super::items::DatasetFile;
use super::{ManifestError, beside, io_error};
use crate::num::to_usize;
use copperfs_overlay::{ContentHash, Version};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"CPFSMPT1";
/// Bytes before a record: its length and the first half of its BLAKE3 hash.
const FRAME_BYTES: usize = 4 + 16;
/// Bytes of an entry before its hash: its offset and its length.
const ENTRY_HEAD_BYTES: usize = 16;

/// The hashes of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hashed {
    /// The entry's first byte in its file.
    pub offset: u64,
    /// The entry's length.
    pub length: u64,
    /// The hash of all its bytes.
    pub hash: ContentHash,
    /// The hashes of its parts, if it is long.
    pub parts: Vec<[u8; 32]>,
}

/// An entry that the journal has the hash of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known<'a> {
    /// The path of its file.
    pub path: &'a [u8],
    /// The size of its file.
    pub size: u64,
    /// The version of its file.
    pub version: Version,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Where its hash is, for [`Journal::read`].
    pub position: u64,
}

/// The file of a journal. Without records it is removed at the end, so that a command that fails early leaves
/// nothing behind.
struct JournalFile {
    file: File,
    path: PathBuf,
    has_records: bool,
}

impl Drop for JournalFile {
    fn drop(&mut self) {
        if !self.has_records
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "this stays behind");
        }
    }
}

/// A journal whose records are not read yet.
pub struct UnreadJournal {
    inner: JournalFile,
    /// The position of the first record.
    first: u64,
}

/// See the module.
pub struct Journal {
    inner: JournalFile,
    /// Bytes of complete records.
    len: u64,
}

impl UnreadJournal {
    /// Opens the journal for `target`, or creates it.
    ///
    /// # Errors
    /// It is of another dataset than `uri`; another process has it; it cannot be written.
    pub fn open(target: &Path, uri: &str) -> Result<Self, ManifestError> {
        let path = beside(target, ".partial");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => ManifestError::NoDirectory(target.to_owned()),
            _ => io_error("open", &path)(error),
        })?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_held| ManifestError::Busy(target.to_owned()))?;
        let mut inner = JournalFile {
            file,
            path,
            // It is kept until it is known to be ours and empty.
            has_records: true,
        };
        match inner.frame_at(0)? {
            Some(head) if head.starts_with(MAGIC) => {
                let was = &head[MAGIC.len()..];
                if was != uri.as_bytes() {
                    return Err(ManifestError::Other {
                        path: inner.path.clone(),
                        was: String::from_utf8_lossy(was).into_owned(),
                        wanted: uri.to_owned(),
                    });
                }
                let first = (FRAME_BYTES + head.len()) as u64;
                Ok(Self { inner, first })
            }
            // An unfinished index, for example.
            Some(_) => Err(ManifestError::Other {
                path: inner.path.clone(),
                was: "something else than a manifest".to_owned(),
                wanted: uri.to_owned(),
            }),
            None => {
                inner.has_records = false;
                let first = inner.put(0, &[MAGIC, uri.as_bytes()].concat())?;
                Ok(Self { inner, first })
            }
        }
    }

    /// Calls `known` for every entry in the journal, in the order in which they were appended.
    ///
    /// # Errors
    /// It cannot be read or cut.
    pub fn replay(self, mut known: impl FnMut(Known<'_>)) -> Result<Journal, ManifestError> {
        let Self { mut inner, first } = self;
        let mut len = first;
        while let Some(record) = inner.frame_at(len)? {
            replay_record(&record, len + FRAME_BYTES as u64, &mut known);
            len += (FRAME_BYTES + record.len()) as u64;
        }
        inner.has_records = len > first;
        let cut = inner.file.set_len(len);
        cut.map_err(io_error("cut", &inner.path))?;
        Ok(Journal { inner, len })
    }
}

impl Journal {
    /// Appends `entries` of `file`. Returns the position of the hash of each, for [`Journal::read`].
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append(
        &mut self,
        file: &DatasetFile,
        entries: &[Hashed],
    ) -> Result<Vec<u64>, ManifestError> {
        let path = file.path.as_bytes();
        let mut record = Vec::new();
        // At most ItemPath::BYTES_MAX.
        record.extend_from_slice(&(path.len() as u64).to_le_bytes());
        record.extend_from_slice(path);
        record.extend_from_slice(&file.size.to_le_bytes());
        record.extend_from_slice(&file.version.to_bytes());
        let mut positions = Vec::with_capacity(entries.len());
        for entry in entries {
            record.extend_from_slice(&entry.offset.to_le_bytes());
            record.extend_from_slice(&entry.length.to_le_bytes());
            positions.push(self.len + (FRAME_BYTES + record.len()) as u64);
            record.extend_from_slice(&entry.hash.0);
            record.extend_from_slice(entry.parts.as_flattened());
        }
        self.len = self.inner.put(self.len, &record)?;
        self.inner.has_records = true;
        Ok(positions)
    }

    /// The hash at `position`, which is of an entry of `length` bytes, and those of its parts.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(
        &self,
        position: u64,
        length: u64,
    ) -> Result<(ContentHash, Vec<[u8; 32]>), ManifestError> {
        let mut hashes = vec![[0; 32]; to_usize(1 + parts_of(length))];
        let read = self
            .inner
            .file
            .read_exact_at(hashes.as_flattened_mut(), position);
        read.map_err(io_error("read", &self.inner.path))?;
        let hash = hashes.remove(0);
        Ok((ContentHash(hash), hashes))
    }

    /// Removes the journal, after the manifest is complete.
    pub fn remove(mut self) {
        self.inner.has_records = false;
    }
}

impl JournalFile {
    /// Writes a frame at `position`. Returns the position after it.
    fn put(&mut self, position: u64, payload: &[u8]) -> Result<u64, ManifestError> {
        let failed = io_error("write", &self.path);
        let len = u32::try_from(payload.len());
        let len = len.map_err(|_large| failed(std::io::Error::other("a record above 4 GiB")))?;
        let sum = blake3::hash(payload);
        let frame = [&len.to_le_bytes()[..], &sum.as_bytes()[..16], payload].concat();
        self.file.write_all_at(&frame, position).map_err(failed)?;
        Ok(position + frame.len() as u64)
    }

    /// The payload of the complete frame at `position`. Returns `None` at the end, and for a truncated frame.
    fn frame_at(&self, position: u64) -> Result<Option<Vec<u8>>, ManifestError> {
        let failed = io_error("read", &self.path);
        let file_bytes = self.file.metadata().map_err(failed)?.len();
        let begin = position + FRAME_BYTES as u64;
        if begin > file_bytes {
            return Ok(None);
        }
        let mut frame = [0; FRAME_BYTES];
        self.file
            .read_exact_at(&mut frame, position)
            .map_err(failed)?;
        let (len, sum) = frame.split_at(4);
        let len = len.first_chunk().copied().map_or(0, u32::from_le_bytes);
        // Checked before the allocation, because the length may be garbage.
        if begin + u64::from(len) > file_bytes {
            return Ok(None);
        }
        let mut payload = vec![0; len as usize];
        self.file
            .read_exact_at(&mut payload, begin)
            .map_err(failed)?;
        let is_whole = blake3::hash(&payload).as_bytes().starts_with(sum);
        Ok(is_whole.then_some(payload))
    }
}

/// Calls `known` for every entry of `record`, whose first byte is at `position`. A record of another program ends
/// early.
fn replay_record(record: &[u8], position: u64, known: &mut impl FnMut(Known<'_>)) {
    let mut rest = record;
    let Some((path, size, version)) = take_file(&mut rest) else {
        return;
    };
    while let Some((head, tail)) = rest.split_first_chunk::<ENTRY_HEAD_BYTES>() {
        let (offset, length) = head.split_at(8);
        let number = |bytes: &[u8]| bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let (offset, length) = (number(offset), number(length));
        let hashes = parts_of(length).saturating_add(1).saturating_mul(32);
        let Some((_, next)) = tail.split_at_checked(to_usize(hashes)) else {
            return;
        };
        known(Known {
            path,
            size,
            version,
            offset,
            length,
            position: position + (record.len() - tail.len()) as u64,
        });
        rest = next;
    }
}

fn take_file<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], u64, Version)> {
    let (len, tail) = rest.split_first_chunk()?;
    let (path, tail) = tail.split_at_checked(to_usize(u64::from_le_bytes(*len)))?;
    let (size, tail) = tail.split_first_chunk()?;
    let (version, tail) = tail.split_first_chunk::<{ Version::BYTES }>()?;
    *rest = tail;
    Some((
        path,
        u64::from_le_bytes(*size),
        Version::from_bytes(version)?,
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::manifest::make::MakeOptions;
    use crate::testing::path;
    use tempfile::TempDir;

    fn file(name: &str) -> DatasetFile {
        DatasetFile {
            path: path(name),
            size: 10,
            version: Version::of(name.as_bytes()),
            content: None,
            parts: Box::default(),
        }
    }

    fn hashed(offset: u64, length: u64) -> Hashed {
        let noise = crate::testing::noise(offset.to_le_bytes(), 32 * parts_of(length));
        Hashed {
            offset,
            length,
            hash: ContentHash([u8::try_from(offset % 256).unwrap(); 32]),
            parts: noise.as_chunks().0.to_vec(),
        }
    }

    /// Begins a journal for `options`, with a record.
    pub(in crate::manifest) fn begin(options: &MakeOptions) {
        let journal = UnreadJournal::open(&options.target, &options.uri).unwrap();
        let mut journal = journal.replay(|_| ()).unwrap();
        journal.append(&file("a"), &[hashed(0, 10)]).unwrap();
    }

    #[test]
    fn hashes_come_back_and_a_truncated_record_is_dropped() {
        let out = TempDir::new().unwrap();
        let target = out.path().join("m");
        let open = || UnreadJournal::open(&target, "file:///a").unwrap();
        let entries = [hashed(0, 10), hashed(10, 9 << 20)];
        let mut journal = open().replay(|_| panic!("it is new")).unwrap();
        let first = journal.append(&file("x/y"), &entries).unwrap();
        let second = journal.append(&file("z"), &entries[..1]).unwrap();
        for (position, entry) in first
            .iter()
            .chain(&second)
            .zip(entries.iter().chain(&entries))
        {
            let read = journal.read(*position, entry.length).unwrap();
            assert_eq!(read, (entry.hash, entry.parts.clone()));
        }
        drop(journal);
        let replayed = |cut: u64| {
            let path = beside(&target, ".partial");
            let len = std::fs::metadata(&path).unwrap().len();
            let log = File::options().write(true).open(&path).unwrap();
            log.set_len(len - cut).unwrap();
            let mut found = Vec::new();
            let journal = open().replay(|known| {
                assert_eq!(
                    (known.size, known.version),
                    (10, file(str::from_utf8(known.path).unwrap()).version)
                );
                found.push((
                    known.path.to_vec(),
                    known.offset,
                    known.length,
                    known.position,
                ));
            });
            drop(journal.unwrap());
            found
        };
        let both = replayed(0);
        assert_eq!(both.len(), 3);
        assert_eq!(both[1], (b"x/y".to_vec(), 10, 9 << 20, first[1]));
        assert_eq!(both[2], (b"z".to_vec(), 0, 10, second[0]));
        assert_eq!(replayed(1), both[..2]);
        assert_eq!(replayed(1), []);
        assert!(
            !beside(&target, ".partial").exists(),
            "an empty journal goes"
        );
    }

    #[test]
    fn garbage_is_no_record() {
        for record in [
            &b""[..],
            b"\xff\xff\xff\xff\xff\xff\xff\xff",
            &[0; 49],
            &[0; 60],
            &[0xff; 400],
        ] {
            replay_record(record, 0, &mut |known| panic!("{known:?} in {record:?}"));
        }
    }
}
