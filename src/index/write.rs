//! Writes an index: directories in the order of their paths, to a temporary file beside the target, which is
//! renamed when it is complete.

use super::format::{
    BLOCK_PARTS, BLOCK_RAW_TARGET, BlockLocation, DIRECTORIES_RAW_TARGET, DirectoryRecord, Encoder,
    EntryRange, HEADER_BYTES, Header, PART_HASH_BYTES, Tail, Totals, checksum, pack,
};
use super::{IndexError, WalkedEntry};
use copperfs_overlay::{FileKind, ItemPath, Version};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// How to treat an existing file at the path of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it, and write no index: the existing one may have cost a read of all storage.
    Keep,
    /// Replace it in one step when the new index is complete.
    Replace,
}

impl Existing {
    /// Checks that the index may be written to `target`.
    ///
    /// # Errors
    /// `Exists` if there is a file that must be kept.
    pub fn check(self, target: &Path) -> Result<(), IndexError> {
        if self == Self::Keep && target.symlink_metadata().is_ok() {
            return Err(IndexError::Exists(target.to_owned()));
        }
        Ok(())
    }

    /// Renames the complete file `from` to `to`.
    fn rename(self, from: &Path, to: &Path) -> Result<(), IndexError> {
        let failed = io_error("finish", to);
        if self == Self::Replace {
            return std::fs::rename(from, to).map_err(failed);
        }
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(IndexError::Exists(to.to_owned())),
            // Some network filesystems do not support NOREPLACE.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.check(to)?;
                std::fs::rename(from, to).map_err(failed)
            }
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// A block that is not full yet.
#[derive(Debug, Default)]
struct OpenBlock {
    raw: Vec<u8>,
    encoder: Encoder,
}

/// See the module.
#[derive(Debug)]
pub struct IndexWriter {
    existing: Existing,
    file: BufWriter<File>,
    /// The temporary file, and the target.
    path: PathBuf,
    target: PathBuf,
    offset: u64,
    tail: Tail,
    entries: OpenBlock,
    directories: OpenBlock,
    /// The first path of the current block of directories.
    first: Option<ItemPath>,
    /// The hashes of parts that are in no block yet.
    parts: Vec<u8>,
    /// The number of hashes of parts so far.
    part_count: u64,
    totals: Totals,
    top: Version,
}

impl IndexWriter {
    /// Begins an index of `uri` for the file `target`.
    ///
    /// # Errors
    /// The target exists and must be kept, or the temporary file cannot be created.
    pub fn create(target: &Path, uri: &str, existing: Existing) -> Result<Self, IndexError> {
        existing.check(target)?;
        let path = beside(target, ".new");
        let file = File::create(&path).map_err(io_error("make", &path))?;
        let mut this = Self {
            existing,
            file: BufWriter::with_capacity(1 << 20, file),
            target: target.to_owned(),
            path,
            offset: HEADER_BYTES as u64,
            tail: Tail {
                uri: uri.to_owned(),
                ..Tail::default()
            },
            entries: OpenBlock::default(),
            directories: OpenBlock::default(),
            first: None,
            parts: Vec::new(),
            part_count: 0,
            totals: Totals::default(),
            top: Version::from_data([0; 16]),
        };
        this.put(&[0; HEADER_BYTES])?;
        Ok(this)
    }

    /// Adds a directory, whose path must follow the previous one, with its entries in the order of their names.
    /// `None`: it could not be listed.
    ///
    /// # Errors
    /// Those of the entries; the file cannot be written.
    pub fn directory(
        &mut self,
        mut record: DirectoryRecord,
        entries: Option<impl Iterator<Item = Result<WalkedEntry, IndexError>>>,
    ) -> Result<(), IndexError> {
        self.totals.directories += 1;
        if record.path.is_root() {
            self.top = record.attributes.version;
        }
        record.place = match entries {
            Some(entries) => Some(self.run(entries)?),
            None => {
                self.totals.unlisted += 1;
                None
            }
        };
        if self.directories.raw.len() >= DIRECTORIES_RAW_TARGET {
            self.close_directories()?;
        }
        self.first.get_or_insert_with(|| record.path.clone());
        let block = &mut self.directories;
        block.encoder.directory(&mut block.raw, &record);
        Ok(())
    }

    fn run(
        &mut self,
        entries: impl Iterator<Item = Result<WalkedEntry, IndexError>>,
    ) -> Result<EntryRange, IndexError> {
        let mut place = EntryRange::default();
        for entry in entries {
            let WalkedEntry {
                entry,
                parts,
                xattrs,
            } = entry?;
            let first_part = self.part_count;
            self.put_parts(&parts)?;
            if self.entries.raw.len() >= BLOCK_RAW_TARGET {
                self.close_entries()?;
            }
            match entry.kind {
                // Counted by its own record.
                FileKind::Directory => {}
                FileKind::File => {
                    self.totals.files += 1;
                    let size = entry.attributes.as_ref().map_or(0, |found| found.size);
                    self.totals.bytes = self.totals.bytes.saturating_add(size);
                }
                _ => self.totals.others += 1,
            }
            let (number, block) = (narrow(self.tail.entries.len()), &mut self.entries);
            if place.entries == 0 {
                block.encoder = Encoder::default();
                place.first_block = number;
                place.offset = narrow(block.raw.len());
            }
            let xattrs = xattrs.as_ref();
            block
                .encoder
                .entry(&mut block.raw, &entry, first_part, xattrs);
            place.entries += 1;
            place.last_block = number;
            place.end = narrow(block.raw.len());
        }
        Ok(place)
    }

    fn put_parts(&mut self, parts: &[[u8; PART_HASH_BYTES]]) -> Result<(), IndexError> {
        for part in parts {
            self.parts.extend_from_slice(part);
            self.part_count += 1;
            if self.part_count.is_multiple_of(BLOCK_PARTS) {
                self.close_parts()?;
            }
        }
        Ok(())
    }

    fn close_parts(&mut self) -> Result<(), IndexError> {
        let raw = std::mem::take(&mut self.parts);
        if !raw.is_empty() {
            let block = self.block(&raw)?;
            self.tail.parts.push(block);
        }
        Ok(())
    }

    fn close_entries(&mut self) -> Result<(), IndexError> {
        let raw = std::mem::take(&mut self.entries).raw;
        if !raw.is_empty() {
            let block = self.block(&raw)?;
            self.tail.entries.push(block);
        }
        Ok(())
    }

    fn close_directories(&mut self) -> Result<(), IndexError> {
        if let Some(first) = self.first.take() {
            let raw = std::mem::take(&mut self.directories).raw;
            let block = self.block(&raw)?;
            self.tail.directories.push((first, block));
        }
        Ok(())
    }

    fn block(&mut self, raw: &[u8]) -> Result<BlockLocation, IndexError> {
        let stored = pack(raw);
        let block = BlockLocation {
            offset: self.offset,
            stored: narrow(stored.len()),
            raw: narrow(raw.len()),
            sum: checksum(&stored),
        };
        self.put(&stored)?;
        self.offset += stored.len() as u64;
        Ok(block)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), IndexError> {
        let written = self.file.write_all(bytes);
        written.map_err(io_error("write", &self.path))
    }

    /// Completes the index and renames it to its target. `made_at` is in seconds since 1970.
    ///
    /// # Errors
    /// The file cannot be written or renamed, or a file that must be kept has appeared at the target.
    pub fn finish(mut self, hashed: bool, made_at: i64) -> Result<Totals, IndexError> {
        self.close_entries()?;
        self.close_directories()?;
        self.close_parts()?;
        let (stored, raw) = self.tail.encode();
        self.put(&stored)?;
        let header = Header {
            hashed,
            file_bytes: self.offset + stored.len() as u64,
            tail_offset: self.offset,
            tail_stored: narrow(stored.len()),
            tail_raw: narrow(raw),
            tail_sum: checksum(&stored),
            made_at,
            totals: self.totals,
            top: self.top,
        };
        let mut completing = || -> io::Result<()> {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header.encode())?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        let failed = io_error("finish", &self.target);
        completing().map_err(failed)?;
        if let Err(error) = self.existing.rename(&self.path, &self.target) {
            let _gone = std::fs::remove_file(&self.path);
            return Err(error);
        }
        // The parent of a relative path may be empty.
        let directory = self.target.parent().unwrap_or(Path::new("")).join(".");
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(failed)?;
        Ok(self.totals)
    }
}

/// `path` with `suffix` after its name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the error of `action` on the file at `path`.
pub(super) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl Fn(io::Error) -> IndexError + Copy {
    move |source| IndexError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Lengths and counts here are far below the maximum.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
