//! The files behind a data file, found by position.
//!
//! One sequence of bytes, so that it can lie in memory that outlives a daemon:
//! ```text
//! 8 bytes       CPFSEXT3
//! 8, 8, 8       the number of files, of directories, and of steps
//! 8             the size of the data file
//! 12 each       of each file the number of its first block (4), and the position of its record (8)
//! 8 each        of each directory the position of its record
//! 8 each        of each [`Step`] the number of its file (4), and of the part (4)
//! records       of directories their paths, of files [`Record`], in postcard's form
//! ```

use super::format::BLOCK_BYTES;
use super::layout::Layout;
use super::tree::{NodeId, Tree};
use copperfs_overlay::{ContentHash, ItemPath, Timestamp, Version};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"CPFSEXT3";
const HEADER_BYTES: usize = 40;
const FILE_BYTES: usize = 12;
const DIRECTORY_BYTES: usize = 8;
const STEP_BYTES: usize = 8;

/// The state of a file's bytes, beside its path and size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Its version.
    pub version: Version,
    /// The hash of all its bytes, where it is known.
    pub content: Option<ContentHash>,
}

/// A part of a file that a recorded program has read: [`BLOCK_BYTES`](copperfs_overlay::BLOCK_BYTES) from a multiple of
/// them, or less at the end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step<F> {
    /// The file.
    pub file: F,
    /// The number of the part in the file.
    pub part: u32,
}

/// A file with content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its path below the top of the tree.
    pub path: ItemPath,
    /// Its size in bytes.
    pub size: u64,
    /// Its last modification.
    pub mtime: Timestamp,
    /// The state of its bytes.
    pub state: State,
}

/// The stored form of a file.
#[derive(Serialize, Deserialize)]
struct Record<'a> {
    /// The number of its directory.
    directory: u32,
    name: &'a [u8],
    size: u64,
    mtime: Timestamp,
    version: Version,
    content: Option<ContentHash>,
}

/// A part of a range of the data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of a file.
    File {
        /// The number of the file, in the order of the data file.
        file: usize,
        /// The position in it, in bytes.
        offset: u64,
        /// The number of bytes, at least 1.
        len: u64,
    },
    /// This many zeros behind a file's content, at least 1.
    Zeros(u64),
}

/// The bytes are no extents, or are damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table of extents is damaged")]
pub struct Damaged;

/// The files behind a data file, in bytes that [`encode`] has made.
#[derive(Debug)]
pub struct Extents<B> {
    bytes: B,
    files: usize,
    directories: usize,
    steps: usize,
    size: u64,
}

/// The table of the files of `tree`, whose contents are in `layout`. `state` returns the state of a file's bytes; `steps`
/// are those of a profile, in its order.
#[must_use]
pub fn encode(
    tree: &Tree,
    layout: &Layout,
    state: impl Fn(NodeId) -> State,
    steps: &[Step<NodeId>],
) -> Vec<u8> {
    let mut directories: HashMap<NodeId, u32> = HashMap::new();
    let (mut of_directories, mut of_files) = (Vec::new(), Vec::new());
    let mut records = Vec::new();
    for (id, size) in layout.files() {
        let parent = tree.parent(*id);
        let next = u32::try_from(of_directories.len()).unwrap_or(u32::MAX);
        let directory = *directories.entry(parent).or_insert_with(|| {
            of_directories.push(records.len() as u64);
            put(&mut records, &path(tree, parent));
            next
        });
        let State { version, content } = state(*id);
        let record = Record {
            directory,
            name: tree.name(*id),
            size: *size,
            mtime: tree.inode(*id).mtime,
            version,
            content,
        };
        of_files.push((
            layout.first_block(*id).unwrap_or_default(),
            records.len() as u64,
        ));
        put(&mut records, &record);
    }
    // Only of files that have steps: a tree may have a million others.
    let named: HashSet<NodeId> = steps.iter().map(|step| step.file).collect();
    let files = layout.files().iter().map(|(id, _)| *id).zip(0..);
    let numbers: HashMap<NodeId, u32> = files.filter(|(id, _)| named.contains(id)).collect();
    let steps: Vec<(u32, u32)> = (steps.iter())
        .filter_map(|step| Some((*numbers.get(&step.file)?, step.part)))
        .collect();
    let tables = FILE_BYTES * of_files.len()
        + DIRECTORY_BYTES * of_directories.len()
        + STEP_BYTES * steps.len();
    let base = (HEADER_BYTES + tables) as u64;
    let mut out = Vec::with_capacity(HEADER_BYTES + tables + records.len());
    out.extend(MAGIC);
    out.extend((of_files.len() as u64).to_le_bytes());
    out.extend((of_directories.len() as u64).to_le_bytes());
    out.extend((steps.len() as u64).to_le_bytes());
    out.extend(layout.size().to_le_bytes());
    for (first, at) in of_files {
        out.extend(first.to_le_bytes());
        out.extend((base + at).to_le_bytes());
    }
    for at in of_directories {
        out.extend((base + at).to_le_bytes());
    }
    for (file, part) in steps {
        out.extend(file.to_le_bytes());
        out.extend(part.to_le_bytes());
    }
    out.extend(records);
    out
}

/// Appends `value`. A vector grows as needed, so it cannot fail.
fn put(records: &mut Vec<u8>, value: &impl Serialize) {
    let written = postcard::to_io(value, &mut *records);
    debug_assert!(written.is_ok(), "a vector takes all bytes");
}

/// The path of a directory below the top of its tree.
fn path(tree: &Tree, directory: NodeId) -> ItemPath {
    let mut names = Vec::new();
    let mut at = directory;
    while at != NodeId::ROOT {
        names.push(tree.name(at));
        at = tree.parent(at);
    }
    names.reverse();
    // The names were checked when they were added; only the whole may be too long, and then no reader can name it.
    ItemPath::parse(&names.join(&b'/')).unwrap_or_default()
}

impl<B: AsRef<[u8]>> Extents<B> {
    /// Those in `bytes`.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn open(bytes: B) -> Result<Self, Damaged> {
        let all = bytes.as_ref();
        if all.get(..8) != Some(&MAGIC[..]) {
            return Err(Damaged);
        }
        // No more than there are bytes, so that the products below fit.
        let count = |at| {
            let count = u64_at(all, at).and_then(|count| usize::try_from(count).ok());
            count.filter(|count| *count <= all.len()).ok_or(Damaged)
        };
        let (files, directories, steps) = (count(8)?, count(16)?, count(24)?);
        let size = u64_at(all, 32).ok_or(Damaged)?;
        let tables = FILE_BYTES * files + DIRECTORY_BYTES * directories + STEP_BYTES * steps;
        if HEADER_BYTES + tables > all.len() {
            return Err(Damaged);
        }
        Ok(Self {
            files,
            directories,
            steps,
            size,
            bytes,
        })
    }

    /// The size of the data file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The number of files with content.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files
    }

    /// File number `file`.
    ///
    /// # Errors
    /// There is none, or the table is damaged.
    pub fn file(&self, file: usize) -> Result<Extent, Damaged> {
        let all = self.bytes.as_ref();
        let at = (file < self.files).then_some(HEADER_BYTES + file * FILE_BYTES + 4);
        let record: Record<'_> = self.record(at.and_then(|at| u64_at(all, at)))?;
        let directory = usize::try_from(record.directory).ok();
        let directory = directory.filter(|number| *number < self.directories);
        let tables = HEADER_BYTES + self.files * FILE_BYTES;
        let at = directory.and_then(|number| u64_at(all, tables + number * DIRECTORY_BYTES));
        let directory: ItemPath = self.record(at)?;
        Ok(Extent {
            path: directory.join(record.name).map_err(|_invalid| Damaged)?,
            size: record.size,
            mtime: record.mtime,
            state: State {
                version: record.version,
                content: record.content,
            },
        })
    }

    /// The steps of the profile, in its order, each with the number of its file.
    pub fn steps(&self) -> impl Iterator<Item = Step<usize>> {
        let tables = HEADER_BYTES + self.files * FILE_BYTES + self.directories * DIRECTORY_BYTES;
        let all = self.bytes.as_ref().get(tables..).unwrap_or_default();
        all.chunks_exact(STEP_BYTES)
            .take(self.steps)
            .filter_map(|step| {
                let (file, part) = step.split_first_chunk()?;
                let file = usize::try_from(u32::from_le_bytes(*file)).ok()?;
                let part = u32::from_le_bytes(*part.first_chunk()?);
                Some(Step { file, part })
            })
    }

    /// The position of file number `file` in the data file, in bytes.
    #[must_use]
    pub fn position(&self, file: usize) -> u64 {
        let at = HEADER_BYTES + file.min(self.files) * FILE_BYTES;
        let first = self.bytes.as_ref().get(at..at + 4);
        let first = first.and_then(|first| first.try_into().ok());
        u64::from(first.map_or(0, u32::from_le_bytes)) * BLOCK_BYTES
    }

    /// Divides a range of the data file into the files that lie there and the zeros behind them. What is beyond the data
    /// file is left out.
    ///
    /// # Errors
    /// The table is damaged.
    pub fn pieces(&self, range: Range<u64>) -> Result<Vec<Piece>, Damaged> {
        let (mut at, end) = (range.start, range.end.min(self.size));
        let mut pieces = Vec::new();
        let mut file = self.files_before(at).saturating_sub(1);
        while at < end && file < self.files {
            let (begin, next) = (self.position(file), file + 1);
            let limit = if next < self.files {
                self.position(next)
            } else {
                self.size
            };
            let last = begin.checked_add(self.file_size(file)?).ok_or(Damaged)?;
            if begin > at || limit <= at || last > limit {
                return Err(Damaged);
            }
            if at < last {
                let len = last.min(end) - at;
                let offset = at - begin;
                pieces.push(Piece::File { file, offset, len });
                at += len;
            }
            if at < end && at < limit {
                let len = limit.min(end) - at;
                pieces.push(Piece::Zeros(len));
                at += len;
            }
            file = next;
        }
        Ok(pieces)
    }

    /// The number of files that begin at `at` or before it.
    fn files_before(&self, at: u64) -> usize {
        let (mut low, mut high) = (0, self.files);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.position(middle) <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The size of file number `file` in bytes.
    ///
    /// # Errors
    /// There is none, or the table is damaged.
    pub fn file_size(&self, file: usize) -> Result<u64, Damaged> {
        if file >= self.files {
            return Err(Damaged);
        }
        let at = u64_at(self.bytes.as_ref(), HEADER_BYTES + file * FILE_BYTES + 4);
        let record: Record<'_> = self.record(at)?;
        Ok(record.size)
    }

    fn record<'a, T: Deserialize<'a>>(&'a self, at: Option<u64>) -> Result<T, Damaged> {
        let at = at.and_then(|at| usize::try_from(at).ok());
        let rest = at.and_then(|at| self.bytes.as_ref().get(at..));
        let (value, _) =
            postcard::take_from_bytes(rest.ok_or(Damaged)?).map_err(|_invalid| Damaged)?;
        Ok(value)
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}
