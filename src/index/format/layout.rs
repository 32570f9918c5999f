//! The header, the tail, and the record of a directory.

use super::FormatError::{self, Damaged};
use super::primitive::{put, put_version, take, take_array, take_bytes, take_u32, take_version};
use super::{
    BLOCK_PARTS, BLOCK_RAW_MAX, Checksum, FORMAT, MAGIC, PART_HASH_BYTES, TAIL_RAW_MAX,
    URI_BYTES_MAX, checksum, pack, unpack,
};
use copperfs_overlay::{Attributes, ItemPath, Version, XattrList};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 256;
const HEADER_SUM_AT: usize = HEADER_BYTES - 16;
const HASHED: u32 = 1;

/// The number of items in an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Totals {
    /// Directories, including the top.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Links and special files.
    pub others: u64,
    /// Bytes of all regular files.
    pub bytes: u64,
    /// Directories that could not be listed, and are requested from their origin.
    pub unlisted: u64,
}

impl Totals {
    /// Everything except the top directory.
    #[must_use]
    pub fn entries(&self) -> u64 {
        let all = self.directories.saturating_add(self.files);
        all.saturating_add(self.others).saturating_sub(1)
    }

    fn numbers(&mut self) -> [&mut u64; 5] {
        [
            &mut self.directories,
            &mut self.files,
            &mut self.others,
            &mut self.bytes,
            &mut self.unlisted,
        ]
    }
}

/// The header of an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whether the index has hashes of files' contents.
    pub hashed: bool,
    /// Length of the whole index.
    pub file_bytes: u64,
    /// Position of the tail.
    pub tail_offset: u64,
    /// Stored length of the tail.
    pub tail_stored: u32,
    /// Unpacked length of the tail.
    pub tail_raw: u32,
    /// Checksum of the stored tail.
    pub tail_sum: Checksum,
    /// When it was finished, in seconds since 1970.
    pub made_at: i64,
    /// The number of items.
    pub totals: Totals,
    /// The version of the tree's top directory.
    pub top: Version,
}

impl Header {
    /// The encoded header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&if self.hashed { HASHED } else { 0 }.to_le_bytes());
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        out.extend_from_slice(&self.tail_offset.to_le_bytes());
        out.extend_from_slice(&self.tail_stored.to_le_bytes());
        out.extend_from_slice(&self.tail_raw.to_le_bytes());
        out.extend_from_slice(&self.tail_sum);
        out.extend_from_slice(&self.made_at.to_le_bytes());
        let mut totals = self.totals;
        for number in totals.numbers() {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_version(&mut out, &self.top);
        out.resize(HEADER_SUM_AT, 0);
        let sum = checksum(&out);
        out.extend_from_slice(&sum);
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes the header of a file of `file_bytes` bytes that begins with `bytes`.
    ///
    /// # Errors
    /// It is not an index, has another format, is incomplete, or damaged.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(FormatError::NotAnIndex);
        }
        let mut rest = &bytes[MAGIC.len()..];
        let format = u32::from_le_bytes(take_array(&mut rest)?);
        if format != FORMAT {
            return Err(FormatError::Version(format));
        }
        let Some(bytes) = bytes.get(..HEADER_BYTES) else {
            return Err(FormatError::Torn {
                expected: HEADER_BYTES as u64,
                found: bytes.len() as u64,
            });
        };
        if checksum(&bytes[..HEADER_SUM_AT]) != bytes[HEADER_SUM_AT..] {
            return Err(Damaged("its header's checksum"));
        }
        let flags = u32::from_le_bytes(take_array(&mut rest)?);
        let mut header = Self {
            hashed: flags & HASHED != 0,
            file_bytes: u64::from_le_bytes(take_array(&mut rest)?),
            tail_offset: u64::from_le_bytes(take_array(&mut rest)?),
            tail_stored: u32::from_le_bytes(take_array(&mut rest)?),
            tail_raw: u32::from_le_bytes(take_array(&mut rest)?),
            tail_sum: take_array(&mut rest)?,
            made_at: i64::from_le_bytes(take_array(&mut rest)?),
            totals: Totals::default(),
            top: Version::from_data([0; 16]),
        };
        for number in header.totals.numbers() {
            *number = u64::from_le_bytes(take_array(&mut rest)?);
        }
        header.top = take_version(&mut rest)?;
        if header.file_bytes != file_bytes {
            return Err(FormatError::Torn {
                expected: header.file_bytes,
                found: file_bytes,
            });
        }
        let end = header.tail_offset.checked_add(header.tail_stored.into());
        let large = header.tail_raw as usize > TAIL_RAW_MAX || header.tail_stored > header.tail_raw;
        if end != Some(file_bytes) || large || header.tail_offset < HEADER_BYTES as u64 {
            return Err(Damaged("its tail's place"));
        }
        Ok(header)
    }
}

/// The location of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// Position in the file.
    pub offset: u64,
    /// Stored length.
    pub stored: u32,
    /// Unpacked length, at most [`BLOCK_RAW_MAX`].
    pub raw: u32,
    /// Checksum of the stored bytes.
    pub sum: Checksum,
}

/// The tail of an index, which has the locations of all blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// The indexed URI, without credentials.
    pub uri: String,
    /// The blocks of entries, in order.
    pub entries: Vec<BlockLocation>,
    /// The blocks of directory records, each with its first path, in ascending order.
    pub directories: Vec<(ItemPath, BlockLocation)>,
    /// The blocks of hashes of parts, in order. All but the last one have [`BLOCK_PARTS`] hashes.
    pub parts: Vec<BlockLocation>,
}

/// The contents of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Entries,
    Directories,
    Parts,
}

impl Tail {
    /// The stored form, and the unpacked length.
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, usize) {
        let mut raw = Vec::new();
        put(&mut raw, self.uri.len() as u64);
        raw.extend_from_slice(self.uri.as_bytes());
        let of = |kind| move |block| (kind, block, None);
        let mut blocks: Vec<(BlockKind, &BlockLocation, Option<&ItemPath>)> = Vec::new();
        blocks.extend(self.entries.iter().map(of(BlockKind::Entries)));
        blocks.extend(self.parts.iter().map(of(BlockKind::Parts)));
        let directories = self.directories.iter();
        blocks
            .extend(directories.map(|(first, block)| (BlockKind::Directories, block, Some(first))));
        // Only lengths are stored, so the blocks must be in the order of the file.
        blocks.sort_by_key(|(_, block, _)| block.offset);
        put(&mut raw, blocks.len() as u64);
        for (kind, block, first) in blocks {
            put_block(&mut raw, kind, block, first);
        }
        (pack(&raw), raw.len())
    }

    /// Decodes the tail for `header`.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn decode(stored: &[u8], header: &Header) -> Result<Self, FormatError> {
        let raw = unpack(stored, header.tail_raw as usize, &header.tail_sum)?;
        let mut rest = &raw[..];
        let uri_len = take(&mut rest)?;
        if uri_len > URI_BYTES_MAX as u64 {
            return Err(Damaged("its URI"));
        }
        let uri = String::from_utf8_lossy(take_bytes(&mut rest, uri_len)?).into_owned();
        let blocks = take(&mut rest)?;
        let mut tail = Self {
            uri,
            ..Self::default()
        };
        let mut offset = HEADER_BYTES as u64;
        for _ in 0..blocks {
            let (kind, block) = take_block(&mut rest, &mut offset)?;
            match kind {
                BlockKind::Entries => tail.entries.push(block),
                BlockKind::Parts => tail.add_parts(block)?,
                BlockKind::Directories => {
                    let len = take(&mut rest)?;
                    let first = ItemPath::parse(take_bytes(&mut rest, len)?);
                    let first = first.map_err(|_invalid| Damaged("a path"))?;
                    tail.add_directories(first, block)?;
                }
            }
        }
        if offset != header.tail_offset || !rest.is_empty() {
            return Err(Damaged("its blocks' lengths"));
        }
        Ok(tail)
    }

    fn add_directories(
        &mut self,
        first: ItemPath,
        block: BlockLocation,
    ) -> Result<(), FormatError> {
        let last = self.directories.last();
        if last.is_some_and(|(last, _)| *last >= first) {
            return Err(Damaged("the order of its directories"));
        }
        self.directories.push((first, block));
        Ok(())
    }

    fn add_parts(&mut self, block: BlockLocation) -> Result<(), FormatError> {
        let hashes = |block: &BlockLocation| u64::from(block.raw) / PART_HASH_BYTES as u64;
        let is_whole = (block.raw as usize).is_multiple_of(PART_HASH_BYTES);
        let is_large = hashes(&block) > BLOCK_PARTS;
        let before = self.parts.last();
        if !is_whole || is_large || before.is_some_and(|before| hashes(before) != BLOCK_PARTS) {
            return Err(Damaged("a block's length"));
        }
        self.parts.push(block);
        Ok(())
    }
}

fn put_block(out: &mut Vec<u8>, kind: BlockKind, block: &BlockLocation, first: Option<&ItemPath>) {
    let number = match kind {
        BlockKind::Entries => 0,
        BlockKind::Directories => 1,
        BlockKind::Parts => 2,
    };
    put(out, u64::from(block.stored) << 2 | number);
    put(out, block.raw.into());
    out.extend_from_slice(&block.sum);
    if let Some(first) = first {
        put(out, first.as_bytes().len() as u64);
        out.extend_from_slice(first.as_bytes());
    }
}

/// Blocks follow one another, so only their lengths are stored.
fn take_block(
    rest: &mut &[u8],
    offset: &mut u64,
) -> Result<(BlockKind, BlockLocation), FormatError> {
    let length = take(rest)?;
    let kind = match length & 3 {
        0 => BlockKind::Entries,
        1 => BlockKind::Directories,
        2 => BlockKind::Parts,
        _ => return Err(Damaged("the kind of a block")),
    };
    let stored = u32::try_from(length >> 2).map_err(|_large| Damaged("a block's length"))?;
    let block = BlockLocation {
        offset: *offset,
        stored,
        raw: take_u32(rest)?,
        sum: take_array(rest)?,
    };
    if block.raw as usize > BLOCK_RAW_MAX || block.stored > block.raw || block.stored == 0 {
        return Err(Damaged("a block's length"));
    }
    *offset = offset
        .checked_add(block.stored.into())
        .ok_or(Damaged("a block's length"))?;
    Ok((kind, block))
}

/// The location of a directory's entries. The default is that of a directory without entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryRange {
    /// The block with the first entry.
    pub first_block: u32,
    /// Position of the first entry in that block, unpacked.
    pub offset: u32,
    /// The block with the last entry. All blocks in between have only entries of this directory.
    pub last_block: u32,
    /// End of the last entry in that block, unpacked.
    pub end: u32,
    /// The number of entries.
    pub entries: u64,
}

/// The record of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryRecord {
    /// Its path, relative to the top.
    pub path: ItemPath,
    /// Its attributes.
    pub attributes: Attributes,
    /// Its extended attributes, in the order of their names; `None` if they are not known.
    pub xattrs: Option<XattrList>,
    /// The location of its entries; `None` if it could not be listed.
    pub place: Option<EntryRange>,
}
