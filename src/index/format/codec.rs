//! Entries and directory records, each encoded as the difference from the previous one.

use super::FormatError::{self, Damaged};
use super::layout::{DirectoryRecord, EntryRange};
use super::primitive::{
    put, put_signed, put_version, take, take_array, take_bytes, take_signed, take_u32, take_version,
};
use super::{TARGET_BYTES_MAX, XATTRS_BYTES_MAX};
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, ContentHash, Entry, FileKind, ItemPath, Timestamp, XattrList, parts_of,
};

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

/// An entry, and the place of the hashes of its parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexedEntry {
    /// Its name, kind and attributes.
    pub entry: Entry,
    /// The number of the first of its [`parts`](parts) among all parts of the index, or of the log's record. 0 if it
    /// has none.
    pub first_part: u64,
    /// Its extended attributes, in the order of their names; `None` if they are not known. Those of a directory are in
    /// its record.
    pub xattrs: Option<XattrList>,
}

/// The number of parts whose hashes are recorded beside the hash of the whole content.
#[must_use]
pub fn parts(entry: &Entry) -> u64 {
    let known = entry.attributes.as_ref().filter(|known| {
        // Only such attributes are recorded.
        known.content.is_some() && known.version.is_settled() && entry.kind == FileKind::File
    });
    known.map_or(0, |known| parts_of(known.size))
}

/// Attributes that neighbours mostly have in common: the mode, and uid, gid, links and block size.
type Owner = (u16, [u32; 4]);

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

/// Encodes the entries of a run, or directory records. A run begins at the beginning of a block, and a run of
/// entries also at that of a directory.
#[derive(Debug, Default)]
pub struct Encoder(Before);

impl Encoder {
    /// Appends `entry` to `out`. Its parts begin with number `first_part`. More extended attributes than an index can
    /// have are left out, as unknown.
    pub fn entry(
        &mut self,
        out: &mut Vec<u8>,
        entry: &Entry,
        first_part: u64,
        xattrs: Option<&XattrList>,
    ) {
        put_name(out, &mut self.0.name, &entry.name);
        put_attributes(out, &mut self.0, entry.kind, entry.attributes.as_ref());
        if parts(entry) > 0 {
            put(out, first_part);
        }
        if has_xattrs(entry) {
            put_xattrs(out, xattrs);
        }
    }

    /// Appends `record` to `out`.
    pub fn directory(&mut self, out: &mut Vec<u8>, record: &DirectoryRecord) {
        put_name(out, &mut self.0.name, record.path.as_bytes());
        let attributes = Some(&record.attributes);
        put_attributes(out, &mut self.0, FileKind::Directory, attributes);
        put_xattrs(out, record.xattrs.as_ref());
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

/// Decodes the entries of a run, or directory records.
#[derive(Debug)]
pub struct Decoder<'a> {
    /// The bytes that are not decoded yet.
    pub rest: &'a [u8],
    before: Before,
}

impl<'a> Decoder<'a> {
    /// A decoder of the run that begins with `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            before: Before::default(),
        }
    }

    /// Whether everything is decoded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next entry.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn entry(&mut self) -> Result<IndexedEntry, FormatError> {
        self.take_name(ItemPath::NAME_BYTES_MAX)?;
        ItemPath::check_name(&self.before.name).map_err(|_invalid| Damaged("a name"))?;
        let name = Bytes::copy_from_slice(&self.before.name);
        let (kind, attributes) = take_attributes(&mut self.rest, &mut self.before)?;
        let entry = Entry {
            name,
            kind,
            attributes,
        };
        let first_part = match parts(&entry) {
            0 => 0,
            _ => take(&mut self.rest)?,
        };
        let xattrs = match has_xattrs(&entry) {
            true => take_xattrs(&mut self.rest)?,
            false => None,
        };
        Ok(IndexedEntry {
            entry,
            first_part,
            xattrs,
        })
    }

    /// The next directory record. Returns `None` at the end.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn directory(&mut self) -> Result<Option<DirectoryRecord>, FormatError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.take_name(ItemPath::BYTES_MAX)?;
        let path = ItemPath::parse(&self.before.name).ok();
        let path = path.filter(|path| path.as_bytes() == self.before.name);
        let path = path.ok_or(Damaged("a path"))?;
        let (kind, attributes) = take_attributes(&mut self.rest, &mut self.before)?;
        let attributes = attributes.filter(|_| kind == FileKind::Directory);
        let attributes = attributes.ok_or(Damaged("a directory's attributes"))?;
        let xattrs = take_xattrs(&mut self.rest)?;
        let place = match take(&mut self.rest)? {
            0 => None,
            1 => Some(EntryRange::default()),
            more => {
                let (first_block, offset) = (take_u32(&mut self.rest)?, take_u32(&mut self.rest)?);
                let last_block = first_block.checked_add(take_u32(&mut self.rest)?);
                let end = take_u32(&mut self.rest)?;
                Some(EntryRange {
                    end,
                    first_block,
                    offset,
                    last_block: last_block.ok_or(Damaged("a directory's place"))?,
                    entries: more - 1,
                })
            }
        };
        Ok(Some(DirectoryRecord {
            path,
            attributes,
            xattrs,
            place,
        }))
    }

    fn take_name(&mut self, max: usize) -> Result<(), FormatError> {
        let shared = usize::try_from(take(&mut self.rest)?).unwrap_or(usize::MAX);
        let more = take(&mut self.rest)?;
        let before = &mut self.before.name;
        if shared > before.len() || more > (max - shared.min(max)) as u64 {
            return Err(Damaged("a name's length"));
        }
        before.truncate(shared);
        before.extend_from_slice(take_bytes(&mut self.rest, more)?);
        Ok(())
    }
}

/// Whether extended attributes of `entry` are recorded with it. Those of a directory are in its record.
fn has_xattrs(entry: &Entry) -> bool {
    let mut known = entry.attributes.iter();
    entry.kind != FileKind::Directory && known.any(|known| known.version.is_settled())
}

/// Their number + 1, and each name and value; 0 if they are not known.
fn put_xattrs(out: &mut Vec<u8>, xattrs: Option<&XattrList>) {
    let before = out.len();
    let Some(xattrs) = xattrs else {
        return put(out, 0);
    };
    put(out, xattrs.len() as u64 + 1);
    for (name, value) in xattrs {
        for bytes in [name, value] {
            put(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
    }
    if out.len() - before > XATTRS_BYTES_MAX {
        out.truncate(before);
        put(out, 0);
    }
}

fn take_xattrs(rest: &mut &[u8]) -> Result<Option<XattrList>, FormatError> {
    let wrong = Damaged("extended attributes");
    let before = rest.len();
    let Some(count) = take(rest)?.checked_sub(1) else {
        return Ok(None);
    };
    let mut xattrs = XattrList::new();
    for _ in 0..count {
        let mut bytes = || {
            let len = take(rest)?;
            Ok(Bytes::copy_from_slice(take_bytes(rest, len)?))
        };
        let (name, value): (Bytes, Bytes) = (bytes()?, bytes()?);
        if name.is_empty() || name.contains(&0) || before - rest.len() > XATTRS_BYTES_MAX {
            return Err(wrong);
        }
        xattrs.push((name, value));
    }
    Ok(Some(xattrs))
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
    let owner = (
        attributes.mode,
        [
            attributes.uid,
            attributes.gid,
            attributes.links,
            attributes.block_size,
        ],
    );
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
        put(out, owner.0.into());
        for number in owner.1 {
            put(out, number.into());
        }
    }
    put(out, attributes.size);
    let unusual = attributes
        .blocks
        .wrapping_sub(usual_blocks(attributes.size));
    put_signed(out, unusual.cast_signed());
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
    let kind = *KINDS.get(usize::from(flags & 7)).ok_or(Damaged("a type"))?;
    if flags & HAS_ATTRIBUTES == 0 {
        return Ok((kind, None));
    }
    if flags & SAME_OWNER == 0 {
        let mode = take(rest)?;
        let mode = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
        let owner = before.owner(kind);
        owner.0 = mode.ok_or(Damaged("a mode"))?;
        for number in &mut owner.1 {
            *number = take_u32(rest)?;
        }
    }
    let (mode, [uid, gid, links, block_size]) = *before.owner(kind);
    let size = take(rest)?;
    let blocks = usual_blocks(size).wrapping_add(take_signed(rest)?.cast_unsigned());
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
                return Err(Damaged("a link's target"));
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
        mode,
        uid,
        gid,
        links,
        device,
        size,
        blocks,
        block_size,
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
        return Err(Damaged("a time"));
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
