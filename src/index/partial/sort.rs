//! The records of a log in the order of their paths. Runs that fit into memory are sorted and written to
//! temporary files, and then merged. Of several records of one directory the last one is returned.

use super::Partial;
use crate::index::IndexError;
use crate::index::write::{beside, io_error};
use copperfs_overlay::ItemPath;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// Memory of one run, in bytes of paths: more than a million directories.
const RUN_BYTES: usize = 64 << 20;
/// The memory of a path beside its bytes.
const PATH_BYTES: usize = 48;

/// A record's path and position in the log.
type Key = (ItemPath, u64);

/// Keys in order, from memory or from a file.
type Run = Box<dyn Iterator<Item = io::Result<Key>>>;

/// The positions of records, by path.
pub struct Sorted {
    runs: Vec<Run>,
    /// The first key of each run that is left.
    heads: BinaryHeap<Reverse<(Key, usize)>>,
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
        let failed = io_error("sort", &log.path);
        let mut runs: Vec<Run> = Vec::new();
        let (mut keys, mut bytes, mut at) = (Vec::new(), 0, log.first);
        while let Some((record, next)) = log.record_at(at)? {
            bytes += record.directory.path.as_bytes().len() + PATH_BYTES;
            keys.push((record.directory.path, at));
            at = next;
            if bytes >= run_bytes {
                runs.push(to_disk(log, std::mem::take(&mut keys)).map_err(failed)?);
                bytes = 0;
            }
        }
        keys.sort_unstable();
        runs.push(Box::new(keys.into_iter().map(Ok)));
        let mut this = Self {
            runs,
            heads: BinaryHeap::new(),
        };
        for run in 0..this.runs.len() {
            this.advance(run).map_err(failed)?;
        }
        Ok(this)
    }

    fn advance(&mut self, run: usize) -> io::Result<()> {
        if let Some(key) = self.runs[run].next() {
            self.heads.push(Reverse((key?, run)));
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
        for number in [at, path.len() as u64] {
            out.write_all(&number.to_le_bytes())?;
        }
        out.write_all(path)?;
    }
    let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.seek(SeekFrom::Start(0))?;
    let mut file = BufReader::new(file);
    Ok(Box::new(std::iter::from_fn(move || {
        read_key(&mut file).transpose()
    })))
}

fn read_key(file: &mut BufReader<File>) -> io::Result<Option<Key>> {
    if file.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut head = [[0; 8]; 2];
    file.read_exact(head.as_flattened_mut())?;
    let [at, len] = head.map(u64::from_le_bytes);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mut path = vec![0; len.min(ItemPath::BYTES_MAX)];
    file.read_exact(&mut path)?;
    let path = ItemPath::parse(&path).map_err(io::Error::other)?;
    Ok(Some((path, at)))
}
