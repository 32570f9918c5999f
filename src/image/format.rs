//! The structures of EROFS on the disk, as far as images need them. All numbers are little-endian.
//!
//! The kernel's `fs/erofs/erofs_fs.h` defines them. Images use extended inodes of 64 bytes, contents that are contiguous
//! (`FLAT_PLAIN`) or follow their inode (`FLAT_INLINE`), or that lie in the data file (`CHUNK_BASED`, with one chunk). The
//! device table has the data file twice, once for small and once for large files.

use super::inode::Inode;
use bytes::Bytes;
use copperfs_overlay::FileKind;
use crc_fast::{CrcAlgorithm, checksum};

/// The size of a block in bytes.
pub const BLOCK_BYTES: u64 = BLOCK as u64;

/// [`BLOCK_BYTES`], for positions in memory.
pub(super) const BLOCK: usize = 1 << BLOCK_BITS;

/// The base-2 logarithm of [`BLOCK_BYTES`].
const BLOCK_BITS: u8 = 12;

/// The superblock's position.
const SUPERBLOCK_AT: usize = 1024;
const SUPERBLOCK_BYTES: usize = 128;
const MAGIC: u32 = 0xE0F5_E1E2;

/// A checksum of the first block is present.
const COMPAT_CHECKSUM: u32 = 1;
/// `mtime` of the inodes is the time of modification, not of a status change.
const COMPAT_MTIME: u32 = 2;
/// Some contents are described by chunks.
const INCOMPAT_CHUNKED_FILE: u32 = 4;
/// Some contents are on other devices.
const INCOMPAT_DEVICE_TABLE: u32 = 8;
/// The numbers of the devices that are the data file: as small files are read from it, and as large ones are.
const SMALL_DEVICE: u16 = 1;
const LARGE_DEVICE: u16 = 2;
const DEVICES: u16 = 2;

/// Files of at least this size in bytes are large.
pub const LARGE_BYTES_MIN: u64 = 64 << 10;

/// The position of the device table, and the size of an entry, which is also the unit of that position.
const DEVICES_AT: usize = SUPERBLOCK_AT + SUPERBLOCK_BYTES;
const DEVICE_BYTES: usize = 128;

/// The first byte that inodes may use.
pub(super) const FIRST_FREE: usize = DEVICES_AT + DEVICES as usize * DEVICE_BYTES;

/// The unit of inode numbers: an inode with number *n* begins at byte 32 *n*.
pub(super) const SLOT_BYTES: usize = 32;

/// The size of an inode without extended attributes and content.
pub(super) const INODE_BYTES: usize = 64;

/// The size of the index of a chunk, which is also the unit of its position.
pub(super) const CHUNK_INDEX_BYTES: usize = 8;

/// The size of a directory entry without its name.
pub(super) const DIRENT_BYTES: usize = 12;

/// The header of the extended attributes of an inode, and of each of them.
const XATTRS_HEADER_BYTES: usize = 12;
const XATTR_HEADER_BYTES: usize = 4;

/// The prefixes of extended attributes' names that have a number. Longer ones come first.
const XATTR_PREFIXES: [(&[u8], u8); 5] = [
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"security.", 6),
    (b"trusted.", 4),
    (b"user.", 1),
];

/// Where an inode has its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// There is none.
    None,
    /// Consecutive blocks from this one on.
    Blocks(u32),
    /// Consecutive blocks of the data file from this one on.
    Data(u32),
    /// Blocks from this one on, and the rest behind the inode.
    Inline(u32),
    /// The number of a device.
    Device(u32),
}

/// Writes the inode `number` at the beginning of `out`, with its extended attributes. `size` is that of its content.
pub(super) fn put_inode(out: &mut [u8], inode: &Inode, number: u32, size: u64, content: Content) {
    /// The version bit of extended inodes.
    const EXTENDED: u16 = 1;
    const FLAT_PLAIN: u16 = 0;
    const FLAT_INLINE: u16 = 2 << 1;
    const CHUNK_BASED: u16 = 4 << 1;
    let (layout, union) = match content {
        Content::None => (FLAT_PLAIN, 0),
        Content::Data(_) => (CHUNK_BASED, chunk_format(size)),
        Content::Blocks(first) | Content::Device(first) => (FLAT_PLAIN, first),
        Content::Inline(first) => (FLAT_INLINE, first),
    };
    let mut fields = Fields::of(out);
    fields.u16(EXTENDED | layout);
    fields.u16(xattr_count(&inode.xattrs));
    fields.u16(type_bits(inode.kind) | (inode.mode & 0o7777));
    fields.u16(0);
    fields.u64(size);
    fields.u32(union);
    fields.u32(number);
    fields.u32(inode.uid);
    fields.u32(inode.gid);
    fields.u64(inode.mtime.seconds.cast_unsigned());
    fields.u32(inode.mtime.nanoseconds);
    fields.u32(inode.links);
    fields.zeros(16);
    put_xattrs(&mut fields, &inode.xattrs);
    if let Content::Data(first) = content {
        fields.align(CHUNK_INDEX_BYTES);
        fields.u16(0);
        fields.u16(match size {
            LARGE_BYTES_MIN.. => LARGE_DEVICE,
            _ => SMALL_DEVICE,
        });
        fields.u32(first);
    }
}

/// The description of chunks of which one has room for `size` bytes. They have indexes, which name a device.
fn chunk_format(size: u64) -> u32 {
    const INDEXES: u32 = 0x20;
    let blocks = size.div_ceil(BLOCK_BYTES).max(1);
    INDEXES | blocks.next_power_of_two().trailing_zeros()
}

/// The bytes that the extended attributes take behind an inode.
pub(super) fn xattr_bytes(xattrs: &[(Bytes, Bytes)]) -> usize {
    match xattrs {
        [] => 0,
        all => XATTRS_HEADER_BYTES + all.iter().map(xattr_entry_bytes).sum::<usize>(),
    }
}

fn xattr_entry_bytes((name, value): &(Bytes, Bytes)) -> usize {
    let (_, suffix) = split_xattr(name).unwrap_or((0, name));
    (XATTR_HEADER_BYTES + suffix.len() + value.len()).next_multiple_of(4)
}

/// The number of words of extended attributes, as an inode counts them: the header is one of them.
fn xattr_count(xattrs: &[(Bytes, Bytes)]) -> u16 {
    let bytes = xattr_bytes(xattrs);
    match bytes.checked_sub(XATTRS_HEADER_BYTES) {
        Some(entries) => u16::try_from(entries / 4 + 1).unwrap_or(u16::MAX),
        None => 0,
    }
}

fn put_xattrs(fields: &mut Fields<'_>, xattrs: &[(Bytes, Bytes)]) {
    if xattrs.is_empty() {
        return;
    }
    // No filter of names, and no attributes shared with other inodes.
    fields.zeros(XATTRS_HEADER_BYTES);
    for (name, value) in xattrs {
        let (prefix, suffix) = split_xattr(name).unwrap_or((0, name));
        let used = XATTR_HEADER_BYTES + suffix.len() + value.len();
        fields.u8(u8::try_from(suffix.len()).unwrap_or(u8::MAX));
        fields.u8(prefix);
        fields.u16(u16::try_from(value.len()).unwrap_or(u16::MAX));
        fields.bytes(suffix);
        fields.bytes(value);
        fields.zeros(used.next_multiple_of(4) - used);
    }
}

/// The number of the prefix of an extended attribute's name, and the rest of the name. `None` if EROFS has no number
/// for it.
pub(super) fn split_xattr(name: &[u8]) -> Option<(u8, &[u8])> {
    let mut prefixes = XATTR_PREFIXES.iter();
    prefixes.find_map(|(prefix, number)| {
        let suffix = name.strip_prefix(*prefix)?;
        // Access control lists have no further name; all others have one.
        (prefix.ends_with(b".") != suffix.is_empty()).then_some((*number, suffix))
    })
}

/// A directory entry: its name begins `name_at` bytes after the beginning of its block.
pub(super) fn put_dirent(out: &mut [u8], inode: u64, name_at: u16, kind: FileKind) {
    let kind = match kind {
        FileKind::File => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    };
    let mut fields = Fields::of(out);
    fields.u64(inode);
    fields.u16(name_at);
    fields.u8(kind);
    fields.u8(0);
}

fn type_bits(kind: FileKind) -> u16 {
    match kind {
        FileKind::File => 0o100_000,
        FileKind::Directory => 0o040_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Fifo => 0o010_000,
        FileKind::Socket => 0o140_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::BlockDevice => 0o060_000,
    }
}

/// The number of a device file as inodes have it (the kernel's `new_encode_dev`), from that of `makedev`. `None` if the
/// kernel has no such device: majors have 12 bits, minors 20.
pub(super) fn device_number(device: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12))
}

/// The numbers of a superblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superblock {
    /// The number of the top directory's inode.
    pub(super) root: u16,
    pub(super) inodes: u64,
    /// Blocks of the metadata.
    pub(super) blocks: u32,
    /// Blocks of the data file.
    pub(super) data_blocks: u32,
    pub(super) uuid: [u8; 16],
}

/// Writes the superblock and the device table into the first block, which must be complete otherwise: it has a checksum.
pub(super) fn put_superblock(first_block: &mut [u8], superblock: &Superblock) {
    let mut fields = Fields::of(&mut first_block[SUPERBLOCK_AT..]);
    fields.u32(MAGIC);
    fields.u32(0);
    fields.u32(COMPAT_CHECKSUM | COMPAT_MTIME);
    fields.u8(BLOCK_BITS);
    fields.u8(0);
    fields.u16(superblock.root);
    fields.u64(superblock.inodes);
    // The base of the times of compact inodes, which images do not have.
    fields.zeros(12);
    fields.u32(superblock.blocks);
    // Inodes are numbered from the beginning, and no extended attributes are shared.
    fields.zeros(8);
    fields.bytes(&superblock.uuid);
    // The volume's name.
    fields.zeros(16);
    fields.u32(INCOMPAT_CHUNKED_FILE | INCOMPAT_DEVICE_TABLE);
    // Compression.
    fields.u16(0);
    // The number of further devices, and the position of their table.
    fields.u16(DEVICES);
    fields.u16(u16::try_from(DEVICES_AT / DEVICE_BYTES).unwrap_or(u16::MAX));
    let devices = first_block[DEVICES_AT..FIRST_FREE].chunks_exact_mut(DEVICE_BYTES);
    for device in devices {
        let mut device = Fields::of(device);
        // Its tag.
        device.zeros(64);
        device.u32(superblock.data_blocks);
    }
    // Without the last inversion, as the kernel computes it.
    let block = &first_block[SUPERBLOCK_AT..];
    let sum = !u32::try_from(checksum(CrcAlgorithm::Crc32Iscsi, block)).unwrap_or_default();
    first_block[SUPERBLOCK_AT + 4..][..4].copy_from_slice(&sum.to_le_bytes());
}

/// Writes fields one after another. It has room for all of them, because the positions come from [`super::space`].
struct Fields<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn of(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn align(&mut self, unit: usize) {
        self.zeros(self.at.next_multiple_of(unit) - self.at);
    }

    fn zeros(&mut self, count: usize) {
        self.out[self.at..][..count].fill(0);
        self.at += count;
    }

    fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}
