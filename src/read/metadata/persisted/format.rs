//! One listing as a file. `docs/format.md` is the specification.

use crate::read::metadata::Directory;
use copperfs_overlay::{Attributes, Cursor, Entry, ItemPath, Listing};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

const MAGIC: &[u8; 8] = b"CPFSLIST";
/// A file of another version is not used. Raised with every change of the format below, the
/// fields of [`Attributes`] included.
const VERSION: u32 = 2;
/// Magic, version, length of the path, unpacked length, hash.
const HEADER_BYTES: usize = 8 + 4 + 2 + 4 + 32;
/// Unpacked bytes of a listing at most: 100,000 entries with names of 255 bytes and attributes.
const RAW_BYTES_MAX: usize = 64 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormatError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a listing of this version")]
    Foreign,
    #[error("torn, or changed by somebody else")]
    Torn,
    #[error("of {0} bytes, which is too large")]
    TooLarge(u64),
    #[error("cannot be encoded")]
    Unencodable,
}

/// The name of the file for directory `path`.
pub(super) fn file_name(path: &ItemPath) -> String {
    let hash = blake3::hash(path.as_bytes());
    hash.to_hex()[..32].to_owned()
}

/// Whether [`file_name`] could return `name`.
pub(super) fn is_file_name(name: &[u8]) -> bool {
    name.len() == 32 && name.iter().all(u8::is_ascii_hexdigit)
}

/// Encoding and decoding.
pub(super) struct Record;

impl Record {
    /// The bytes of the file for `directory`, which is the first page of `path`.
    pub(super) fn encode(path: &ItemPath, directory: &Directory) -> Result<Vec<u8>, FormatError> {
        let entries = settled(&directory.entries);
        let content = (&directory.attributes, entries, directory.next.as_ref());
        let raw = postcard::to_stdvec(&content).map_err(|_error| FormatError::Unencodable)?;
        if raw.len() > RAW_BYTES_MAX {
            return Err(FormatError::TooLarge(raw.len() as u64));
        }
        let packed = lz4_flex::block::compress(&raw);
        let path = path.as_bytes();
        let lengths = (u16::try_from(path.len()), u32::try_from(raw.len()));
        let (Ok(path_len), Ok(raw_len)) = lengths else {
            return Err(FormatError::Unencodable);
        };
        let version = VERSION.to_le_bytes();
        let (path_len, raw_len) = (path_len.to_le_bytes(), raw_len.to_le_bytes());
        let header = [&MAGIC[..], &version, &path_len, &raw_len].concat();
        let hash = hash_of(&header, path, &packed);
        Ok([&header[..], hash.as_bytes(), path, &packed].concat())
    }

    /// The listing of `path` in `file`; `None` if there is no such file.
    pub(super) fn read(file: &Path, path: &ItemPath) -> Result<Option<Listing>, FormatError> {
        let mut file = match File::open(file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let len = file.metadata()?.len();
        let most = RAW_BYTES_MAX + RAW_BYTES_MAX / 64 + HEADER_BYTES + ItemPath::BYTES_MAX;
        if len > most as u64 {
            return Err(FormatError::TooLarge(len));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Self::decode(&bytes, path).map(Some)
    }

    pub(super) fn decode(bytes: &[u8], wanted: &ItemPath) -> Result<Listing, FormatError> {
        let (path_len, rest) = path_len(bytes)?;
        let (&raw_len, rest) = rest.split_first_chunk::<4>().ok_or(FormatError::Torn)?;
        let (hash, rest) = rest.split_first_chunk::<32>().ok_or(FormatError::Torn)?;
        let (path, packed) = rest.split_at_checked(path_len).ok_or(FormatError::Torn)?;
        let header = &bytes[..HEADER_BYTES - 32];
        if hash_of(header, path, packed) != *hash {
            return Err(FormatError::Torn);
        }
        if path != wanted.as_bytes() {
            return Err(FormatError::Foreign);
        }
        let raw_len = usize::try_from(u32::from_le_bytes(raw_len)).unwrap_or(usize::MAX);
        if raw_len > RAW_BYTES_MAX {
            return Err(FormatError::TooLarge(raw_len as u64));
        }
        let mut raw = vec![0; raw_len];
        let unpacked = lz4_flex::block::decompress_into(packed, &mut raw);
        if unpacked.ok() != Some(raw_len) {
            return Err(FormatError::Torn);
        }
        type Content = (Attributes, Vec<Entry>, Option<Cursor>);
        let Ok(((directory, entries, next), [])) = postcard::take_from_bytes::<Content>(&raw)
        else {
            return Err(FormatError::Torn);
        };
        let is_foreign = |entry: &Entry| ItemPath::check_name(&entry.name).is_err();
        if entries.iter().any(is_foreign) {
            return Err(FormatError::Torn);
        }
        Ok(Listing {
            directory,
            entries,
            next,
        })
    }
}

/// Entries without the attributes of unsettled versions. Each of these belongs to one look, so no later
/// listing has them.
fn settled(entries: &[Entry]) -> Cow<'_, [Entry]> {
    let is_settled = |entry: &Entry| {
        let known = entry.attributes.as_ref();
        known.is_none_or(|known| known.version.is_settled())
    };
    if entries.iter().all(is_settled) {
        return Cow::Borrowed(entries);
    }
    let mut entries = entries.to_vec();
    for entry in entries.iter_mut().filter(|entry| !is_settled(entry)) {
        entry.attributes = None;
    }
    Cow::Owned(entries)
}

/// Of which directory `file` is, if it can be told. Nothing is verified.
pub(super) fn path_of(file: &Path) -> Option<ItemPath> {
    let mut start = Vec::with_capacity(HEADER_BYTES + 256);
    let most = (HEADER_BYTES + ItemPath::BYTES_MAX) as u64;
    File::open(file)
        .ok()?
        .take(most)
        .read_to_end(&mut start)
        .ok()?;
    let (path_len, _) = path_len(&start).ok()?;
    let path = start.get(HEADER_BYTES..HEADER_BYTES + path_len)?;
    ItemPath::parse(path).ok()
}

/// Checks magic and version. Returns the length of the path, and the bytes after it.
fn path_len(bytes: &[u8]) -> Result<(usize, &[u8]), FormatError> {
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(FormatError::Foreign)?;
    let (&version, rest) = rest.split_first_chunk::<4>().ok_or(FormatError::Foreign)?;
    if magic != MAGIC || u32::from_le_bytes(version) != VERSION {
        return Err(FormatError::Foreign);
    }
    let (&len, rest) = rest.split_first_chunk::<2>().ok_or(FormatError::Torn)?;
    Ok((u16::from_le_bytes(len).into(), rest))
}

/// Of everything but itself.
fn hash_of(header: &[u8], path: &[u8], packed: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(path).update(packed);
    hasher.finalize()
}
