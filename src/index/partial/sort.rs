//! The records of a log in the order of their paths. Runs that fit into memory are sorted and written to
//! temporary files, and then merged. Of several records of one directory the last one is returned.

use super::Partial;
use crate::index::IndexError;
use crate::index::write::{beside, io_error};
use copperfs_overlay::ItemPath;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// Memory of one run, in bytes of paths: more than a million directories.
const RUN_BYTES: usize = 64 << 20;
/// The memory of a path beside its bytes.
const PATH_BYTES: usize = 48;

/// A record's path and position in the log.
type Key = (ItemPath, u64);

/// The positions of records, by path.
#[derive(Debug)]
pub struct Sorted {
    runs: Vec<Run>,
    /// The first key of each run that is left.
    heads: BinaryHeap<Reverse<(Key, usize)>>,
}

#[derive(Debug)]
enum Run {
    Memory(std::vec::IntoIter<Key>),
    Disk(BufReader<File>),
}

impl Sorted {
    /// Sorts the records of `log`.
    ///
    /// # Errors
    /// The log cannot be read, or a run cannot be written.
    pub fn new(log: &Partial) -> Result<Self, IndexError> {
        Self::in_runs(log, RUN_BYTES)
    }

    pub(in crate::index) fn in_runs(log: &Partial, run_bytes: usize) -> Result<Self, IndexError> {
        let mut runs = Vec::new();
        let (mut keys, mut bytes, mut at) = (Vec::new(), 0, log.first());
        while let Some((record, next)) = log.record_at(at)? {
            bytes += record.directory.path.as_bytes().len() + PATH_BYTES;
            keys.push((record.directory.path, at));
            at = next;
            if bytes >= run_bytes {
                let full = std::mem::take(&mut keys);
                let run = to_disk(log, full);
                runs.push(run.map_err(|source| io_error("sort", &log.path, source))?);
                bytes = 0;
            }
        }
        keys.sort_unstable();
        runs.push(Run::Memory(keys.into_iter()));
        let mut this = Self {
            runs,
            heads: BinaryHeap::new(),
        };
        for run in 0..this.runs.len() {
            this.advance(run)
                .map_err(|source| io_error("sort", &log.path, source))?;
        }
        Ok(this)
    }

    fn advance(&mut self, run: usize) -> io::Result<()> {
        let key = match &mut self.runs[run] {
            Run::Memory(keys) => keys.next(),
            Run::Disk(file) => read_key(file)?,
        };
        if let Some(key) = key {
            self.heads.push(Reverse((key, run)));
        }
        Ok(())
    }

    /// The position in the log of the next directory's record.
    ///
    /// # Errors
    /// A run cannot be read.
    pub fn next_record(&mut self) -> io::Result<Option<u64>> {
        let Some(Reverse((mut last, run))) = self.heads.pop() else {
            return Ok(None);
        };
        self.advance(run)?;
        while let Some(Reverse((key, run))) = self.heads.peek()
            && key.0 == last.0
        {
            let run = *run;
            last = key.clone();
            self.heads.pop();
            self.advance(run)?;
        }
        Ok(Some(last.1))
    }
}

/// Writes a sorted run to an unlinked file.
fn to_disk(log: &Partial, mut keys: Vec<Key>) -> io::Result<Run> {
    keys.sort_unstable();
    let path = beside(&log.path, ".run");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true);
    let file = file.open(&path)?;
    std::fs::remove_file(&path)?;
    let mut out = BufWriter::new(file);
    for (path, at) in keys {
        let path = path.as_bytes();
        let len = u32::try_from(path.len()).unwrap_or(u32::MAX);
        out.write_all(&len.to_le_bytes())?;
        out.write_all(&at.to_le_bytes())?;
        out.write_all(path)?;
    }
    let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(Run::Disk(BufReader::new(file)))
}

fn read_key(file: &mut BufReader<File>) -> io::Result<Option<Key>> {
    let mut head = [0; 12];
    match file.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (len, at) = head.split_at(4);
    let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
    let mut offset = [0; 8];
    offset.copy_from_slice(at);
    let mut path = vec![0; len.min(ItemPath::BYTES_MAX)];
    file.read_exact(&mut path)?;
    let path = ItemPath::parse(&path).map_err(io::Error::other)?;
    Ok(Some((path, u64::from_le_bytes(offset))))
}
