//! Entries and directory records, each encoded as the difference from the previous one.

use super::layout::{DirectoryRecord, EntryRange};
use super::primitive::{
    damaged, put, put_signed, put_version, signed, take, take_array, take_bytes, take_signed,
    take_u32, take_version, unsigned,
};
use super::{FormatError, TARGET_BYTES_MAX};
use bytes::Bytes;
use copperfs_overlay::{Attributes, ContentHash, Entry, FileKind, ItemPath, Timestamp};

const KINDS: [FileKind; 7] = [
    FileKind::File,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// Bits of an entry's flags. The lowest three are the file's type.
const SAME_OWNER: u8 = 1 << 3;
const ATIME_IS_MTIME: u8 = 1 << 4;
const CTIME_IS_MTIME: u8 = 1 << 5;
const HAS_CONTENT: u8 = 1 << 6;
const HAS_ATTRIBUTES: u8 = 1 << 7;

/// Attributes that neighbours mostly have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Owner {
    mode: u16,
    uid: u32,
    gid: u32,
    links: u32,
    block_size: u32,
}

impl Owner {
    fn of(attributes: &Attributes) -> Self {
        Self {
            mode: attributes.mode,
            uid: attributes.uid,
            gid: attributes.gid,
            links: attributes.links,
            block_size: attributes.block_size,
        }
    }
}

/// The previous entry, from which the next one differs. Each run begins with a default one.
#[derive(Clone, Debug, Default)]
struct Before {
    name: Vec<u8>,
    directories: Owner,
    others: Owner,
    seconds: i64,
}

impl Before {
    fn owner(&mut self, kind: FileKind) -> &mut Owner {
        match kind {
            FileKind::Directory => &mut self.directories,
            _ => &mut self.others,
        }
    }
}

/// Encodes the entries of a run.
#[derive(Debug, Default)]
pub struct EntryEncoder(Before);

impl EntryEncoder {
    /// Begins a new run: at the beginning of a block, and of a directory.
    pub fn reset(&mut self) {
        self.0 = Before::default();
    }

    /// Appends `entry` to `out`.
    pub fn push(&mut self, out: &mut Vec<u8>, entry: &Entry) {
        put_name(out, &mut self.0.name, &entry.name);
        put_attributes(out, &mut self.0, entry.kind, entry.attributes.as_ref());
    }
}

/// Decodes the entries of a run.
#[derive(Debug)]
pub struct EntryDecoder<'a> {
    rest: &'a [u8],
    before: Before,
}

impl<'a> EntryDecoder<'a> {
    /// A decoder of the run that begins with `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            before: Before::default(),
        }
    }

    /// Whether all entries are decoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next entry.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn entry(&mut self) -> Result<Entry, FormatError> {
        take_name(
            &mut self.rest,
            &mut self.before.name,
            ItemPath::NAME_BYTES_MAX,
        )?;
        ItemPath::check_name(&self.before.name).map_err(|_invalid| damaged("a name"))?;
        let name = Bytes::copy_from_slice(&self.before.name);
        let (kind, attributes) = take_attributes(&mut self.rest, &mut self.before)?;
        Ok(Entry {
            name,
            kind,
            attributes,
        })
    }
}

/// Encodes directory records.
#[derive(Debug, Default)]
pub struct DirectoryEncoder(Before);

impl DirectoryEncoder {
    /// Begins a new run: at the beginning of a block.
    pub fn reset(&mut self) {
        self.0 = Before::default();
    }

    /// Appends `record` to `out`.
    pub fn push(&mut self, out: &mut Vec<u8>, record: &DirectoryRecord) {
        put_name(out, &mut self.0.name, record.path.as_bytes());
        let attributes = Some(&record.attributes);
        put_attributes(out, &mut self.0, FileKind::Directory, attributes);
        match &record.place {
            None => put(out, 0),
            Some(place) => {
                put(out, place.entries.saturating_add(1));
                if place.entries > 0 {
                    put(out, place.first_block.into());
                    put(out, place.offset.into());
                    put(out, (place.last_block - place.first_block).into());
                    put(out, place.end.into());
                }
            }
        }
    }
}

/// Decodes directory records.
#[derive(Debug)]
pub struct DirectoryDecoder<'a> {
    rest: &'a [u8],
    before: Before,
}

impl<'a> DirectoryDecoder<'a> {
    /// A decoder of the records that begin with `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            before: Before::default(),
        }
    }

    /// The bytes after the decoded records.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next record. Returns `None` at the end.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn record(&mut self) -> Result<Option<DirectoryRecord>, FormatError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        take_name(&mut self.rest, &mut self.before.name, ItemPath::BYTES_MAX)?;
        let path = ItemPath::parse(&self.before.name).map_err(|_invalid| damaged("a path"))?;
        if path.as_bytes() != self.before.name {
            return Err(damaged("a path"));
        }
        let (kind, attributes) = take_attributes(&mut self.rest, &mut self.before)?;
        let attributes = attributes.filter(|_| kind == FileKind::Directory);
        let attributes = attributes.ok_or(damaged("a directory's attributes"))?;
        let place = match take(&mut self.rest)? {
            0 => None,
            1 => Some(EntryRange::EMPTY),
            more => {
                let (first_block, offset) = (take_u32(&mut self.rest)?, take_u32(&mut self.rest)?);
                let last_block = first_block.checked_add(take_u32(&mut self.rest)?);
                let end = take_u32(&mut self.rest)?;
                Some(EntryRange {
                    end,
                    first_block,
                    offset,
                    last_block: last_block.ok_or(damaged("a directory's place"))?,
                    entries: more - 1,
                })
            }
        };
        Ok(Some(DirectoryRecord {
            path,
            attributes,
            place,
        }))
    }
}

fn put_attributes(
    out: &mut Vec<u8>,
    before: &mut Before,
    kind: FileKind,
    attributes: Option<&Attributes>,
) {
    let number = KINDS.iter().position(|known| *known == kind);
    let mut flags = u8::try_from(number.unwrap_or(0)).unwrap_or(0);
    // Unsettled versions never match later ones, so the index leaves out such attributes.
    let Some(attributes) = attributes.filter(|known| known.version.is_settled()) else {
        out.push(flags);
        return;
    };
    let owner = Owner::of(attributes);
    let known = before.owner(kind);
    let bits = [
        (HAS_ATTRIBUTES, true),
        (SAME_OWNER, *known == owner),
        (ATIME_IS_MTIME, attributes.atime == attributes.mtime),
        (CTIME_IS_MTIME, attributes.ctime == attributes.mtime),
        (HAS_CONTENT, attributes.content.is_some()),
    ];
    for (bit, is_set) in bits {
        flags |= if is_set { bit } else { 0 };
    }
    out.push(flags);
    if flags & SAME_OWNER == 0 {
        *known = owner;
        put(out, owner.mode.into());
        for number in [owner.uid, owner.gid, owner.links, owner.block_size] {
            put(out, number.into());
        }
    }
    put(out, attributes.size);
    put_signed(
        out,
        signed(
            attributes
                .blocks
                .wrapping_sub(usual_blocks(attributes.size)),
        ),
    );
    let mtime = attributes.mtime;
    put_signed(out, mtime.seconds.wrapping_sub(before.seconds));
    put(out, mtime.nanoseconds.into());
    before.seconds = mtime.seconds;
    for (bit, time) in [
        (CTIME_IS_MTIME, attributes.ctime),
        (ATIME_IS_MTIME, attributes.atime),
    ] {
        if flags & bit == 0 {
            put_signed(out, time.seconds.wrapping_sub(mtime.seconds));
            put(out, time.nanoseconds.into());
        }
    }
    put_version(out, &attributes.version);
    match kind {
        FileKind::Symlink => {
            let target = attributes.link_target.as_deref().unwrap_or_default();
            put(out, target.len() as u64);
            out.extend_from_slice(target);
        }
        FileKind::CharDevice | FileKind::BlockDevice => put(out, attributes.device),
        _ => {}
    }
    if let Some(content) = &attributes.content {
        out.extend_from_slice(&content.0);
    }
}

fn take_attributes(
    rest: &mut &[u8],
    before: &mut Before,
) -> Result<(FileKind, Option<Attributes>), FormatError> {
    let [flags] = take_array(rest)?;
    let kind = *KINDS.get(usize::from(flags & 7)).ok_or(damaged("a type"))?;
    if flags & HAS_ATTRIBUTES == 0 {
        return Ok((kind, None));
    }
    if flags & SAME_OWNER == 0 {
        let mode = take(rest)?;
        let mode = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
        *before.owner(kind) = Owner {
            mode: mode.ok_or(damaged("a mode"))?,
            uid: take_u32(rest)?,
            gid: take_u32(rest)?,
            links: take_u32(rest)?,
            block_size: take_u32(rest)?,
        };
    }
    let owner = *before.owner(kind);
    let size = take(rest)?;
    let blocks = usual_blocks(size).wrapping_add(unsigned(take_signed(rest)?));
    let mtime = take_time(rest, before.seconds)?;
    before.seconds = mtime.seconds;
    let mut time = |bit: u8| {
        if flags & bit == 0 {
            take_time(rest, mtime.seconds)
        } else {
            Ok(mtime)
        }
    };
    let (ctime, atime) = (time(CTIME_IS_MTIME)?, time(ATIME_IS_MTIME)?);
    let version = take_version(rest)?;
    let link_target = match kind {
        FileKind::Symlink => {
            let len = take(rest)?;
            if len > TARGET_BYTES_MAX as u64 {
                return Err(damaged("a link's target"));
            }
            Some(Bytes::copy_from_slice(take_bytes(rest, len)?))
        }
        _ => None,
    };
    let device = match kind {
        FileKind::CharDevice | FileKind::BlockDevice => take(rest)?,
        _ => 0,
    };
    let content = match flags & HAS_CONTENT {
        0 => None,
        _ => Some(ContentHash(take_array(rest)?)),
    };
    let attributes = Attributes {
        kind,
        mode: owner.mode,
        uid: owner.uid,
        gid: owner.gid,
        links: owner.links,
        device,
        size,
        blocks,
        block_size: owner.block_size,
        atime,
        mtime,
        ctime,
        version,
        // The hash stays valid, because it belongs to this version.
        link_target,
        content,
    };
    Ok((kind, Some(attributes)))
}

/// The usual disk space of a file of `size` bytes, in units of 512 bytes.
fn usual_blocks(size: u64) -> u64 {
    size.div_ceil(512)
}

fn take_time(rest: &mut &[u8], base: i64) -> Result<Timestamp, FormatError> {
    let seconds = base.wrapping_add(take_signed(rest)?);
    let nanoseconds = take_u32(rest)?;
    if nanoseconds > 999_999_999 {
        return Err(damaged("a time"));
    }
    Ok(Timestamp {
        seconds,
        nanoseconds,
    })
}

/// Encodes a name as the length of the prefix that it shares with the previous one, and the rest.
fn put_name(out: &mut Vec<u8>, before: &mut Vec<u8>, name: &[u8]) {
    let shared = before.iter().zip(name).take_while(|(a, b)| a == b).count();
    put(out, shared as u64);
    put(out, (name.len() - shared) as u64);
    out.extend_from_slice(&name[shared..]);
    before.truncate(shared);
    before.extend_from_slice(&name[shared..]);
}

fn take_name(rest: &mut &[u8], before: &mut Vec<u8>, max: usize) -> Result<(), FormatError> {
    let shared = usize::try_from(take(rest)?).unwrap_or(usize::MAX);
    let more = take(rest)?;
    if shared > before.len() || more > (max - shared.min(max)) as u64 {
        return Err(damaged("a name's length"));
    }
    before.truncate(shared);
    before.extend_from_slice(take_bytes(rest, more)?);
    Ok(())
}
