//! The lists that a user gives: the order of a dataset's files, or its entries.
//!
//! Every line is one file or one entry, so line numbers in messages follow from the numbers of entries.

use super::items::PlannedEntry;
use super::{ManifestError, io_error};
use copperfs_overlay::{InvalidPath, ItemPath};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The maximum length of a line in bytes: a path of any length, and two numbers.
const LINE_BYTES_MAX: usize = ItemPath::BYTES_MAX + 64;

/// Why a line of a list is wrong. The message has a remedy where it is not obvious.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ListFault {
    /// It has no characters.
    #[error("the line is empty; every line is one path, or one PATH<TAB>OFFSET<TAB>LENGTH")]
    Empty,
    /// It is longer than any path.
    #[error(
        "the line is longer than {LINE_BYTES_MAX} bytes; end every path or entry with a newline, and not with a NUL \
         or a carriage return"
    )]
    TooLong,
    /// Its path is no path.
    #[error(transparent)]
    Path(#[from] InvalidPath),
    /// It is not a path and two numbers.
    #[error("the line is not PATH<TAB>OFFSET<TAB>LENGTH, with two numbers of bytes")]
    Fields,
    /// The dataset has no such file.
    #[error("the dataset has no file {0}; paths are relative to its root")]
    Unknown(ItemPath),
    /// The file is in the order already.
    #[error("{path} is in line {first} already; an order names every file once")]
    Twice {
        /// The file.
        path: ItemPath,
        /// The earlier line.
        first: u64,
    },
    /// The entry reaches beyond its file's end.
    #[error(
        "the entry reaches beyond the end of {path}, which has {size} bytes; OFFSET and LENGTH count bytes, and \
         their sum may not exceed the size. Make the list again if the file has changed"
    )]
    BeyondEnd {
        /// The file.
        path: ItemPath,
        /// Its size.
        size: u64,
    },
    /// The entry has no bytes.
    #[error(
        "the entry has no bytes, and {0} is not empty; remove the line, or give it a LENGTH above zero"
    )]
    NoBytes(ItemPath),
    /// Another entry has some of its bytes.
    #[error(
        "the entry overlaps that of line {other} in {path}; every byte belongs to one entry at most, so shorten or \
         remove one of the two lines"
    )]
    Overlap {
        /// The file.
        path: ItemPath,
        /// The line of the other entry.
        other: u64,
    },
}

/// A wrong line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    /// Its number, from 1.
    pub line: u64,
    /// The cause.
    pub fault: ListFault,
}

impl ListError {
    /// The error of the line that made entry `number`, from 0.
    #[must_use]
    pub fn of_entry(number: usize, fault: ListFault) -> Self {
        Self {
            line: number as u64 + 1,
            fault,
        }
    }

    /// The error for users of the list at `path`.
    #[must_use]
    pub fn in_list(self, path: &Path) -> ManifestError {
        ManifestError::List {
            list: path.to_owned(),
            line: self.line,
            fault: self.fault,
        }
    }
}

/// The ranges of `--entries`, in dataset order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// The files that the list names, each once, in the order of their first lines.
    pub paths: Vec<ItemPath>,
    /// The entries, one for each line. Their files are indexes of `paths`.
    pub entries: Vec<PlannedEntry>,
}

/// Reads an order, one path a line.
///
/// # Errors
/// The list cannot be read; a line is wrong.
pub fn order(list: &Path) -> Result<Vec<ItemPath>, ManifestError> {
    let mut paths = Vec::new();
    lines(list, |line| {
        paths.push(ItemPath::parse(line)?);
        Ok(())
    })?;
    Ok(paths)
}

/// Reads entries, `PATH<TAB>OFFSET<TAB>LENGTH` a line.
///
/// # Errors
/// The list cannot be read; a line is wrong.
pub fn ranges(list: &Path) -> Result<Ranges, ManifestError> {
    let mut ranges = Ranges::default();
    let mut numbers: HashMap<ItemPath, u32> = HashMap::new();
    lines(list, |line| {
        // From the end, because a path may contain tabs.
        let mut fields = line.rsplitn(3, |byte| *byte == b'\t');
        let (length, offset) = (number(fields.next())?, number(fields.next())?);
        let path = ItemPath::parse(fields.next().ok_or(ListFault::Fields)?)?;
        let next = u32::try_from(ranges.paths.len()).unwrap_or(u32::MAX);
        let file = *numbers.entry(path.clone()).or_insert_with(|| {
            ranges.paths.push(path);
            next
        });
        ranges.entries.push(PlannedEntry {
            file,
            offset,
            length,
        });
        Ok(())
    })?;
    Ok(ranges)
}

fn number(field: Option<&[u8]>) -> Result<u64, ListFault> {
    let text = field.and_then(|field| str::from_utf8(field).ok());
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or(ListFault::Fields)
}

/// Calls `parse` for each line of `list`, without its end.
fn lines(
    list: &Path,
    mut parse: impl FnMut(&[u8]) -> Result<(), ListFault>,
) -> Result<(), ManifestError> {
    let failed = io_error("read the list", list);
    let mut reader = BufReader::new(File::open(list).map_err(failed)?);
    let mut bytes = Vec::new();
    for number in 0.. {
        bytes.clear();
        let mut bounded = (&mut reader).take(LINE_BYTES_MAX as u64 + 2);
        if bounded.read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
            break;
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let parsed = match line.len() {
            0 => Err(ListFault::Empty),
            1..=LINE_BYTES_MAX => parse(line),
            _ => Err(ListFault::TooLong),
        };
        parsed.map_err(|fault| ListError::of_entry(number, fault).in_list(list))?;
    }
    Ok(())
}
