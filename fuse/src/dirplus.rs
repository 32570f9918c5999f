//! READDIR and READDIRPLUS replies. READDIRPLUS may mix entries with and without attributes.
//!
//! In the kernel's protocol an entry with node id 0 carries only a name: the program sees its `d_ino` and
//! `d_type`, and the kernel creates no inode. fuser's `ReplyDirectoryPlus` writes one number as both node
//! id and `d_ino`, and programs skip names whose `d_ino` is 0. So a reply with such an entry is encoded here
//! and written to the device directly. fuser's reply object, dropped unused, then sends an error for a
//! request that the kernel no longer knows, which the kernel ignores. `.` and `..` do not need this: the
//! kernel ignores their node ids and attributes.

use crate::attr::{file_attr, file_type};
use crate::backend::{Attr, DirEntry, DirPage, Ino};
use crate::shared::Shared;
use fuser::{Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `struct fuse_entry_out`, with its 88 bytes of attributes.
const ENTRY_OUT_BYTES: usize = 40 + 88;

/// Answers READDIR with the page that begins at `offset`.
pub(crate) fn reply(mut reply: ReplyDirectory, page: &dyn DirPage, offset: u64) {
    for (entry, next) in entries(page).zip(offset + 1..) {
        let name = OsStr::from_bytes(&entry.name);
        if reply.add(INodeNo(entry.ino.0), next, file_type(entry.kind), name) {
            break;
        }
    }
    reply.ok();
}

fn entries(page: &dyn DirPage) -> impl Iterator<Item = DirEntry> + '_ {
    (0..).map_while(|index| page.entry(index))
}

/// One entry of a READDIRPLUS reply.
struct PlusEntry {
    entry: DirEntry,
    /// The directory offset after this entry.
    offset: u64,
    attributes: Option<Attr>,
}

/// Answers READDIRPLUS request `unique` with the page that begins at `offset`.
pub(crate) fn reply_plus(
    shared: &Shared,
    unique: u64,
    mut reply: ReplyDirectoryPlus,
    page: &dyn DirPage,
    offset: u64,
) {
    let entries = fill(shared, &mut reply, page, offset);
    let inos: Vec<Ino> = entries
        .iter()
        .filter_map(|entry| Some(entry.attributes?.ino))
        .collect();
    // Offered before the reply, so that a program that has read the listing finds them counted as pending.
    shared.push.queue(&inos);
    let mixed = entries
        .iter()
        .any(|plus| plus.attributes.is_none() && !is_dot(&plus.entry.name));
    shared.backend.commit();
    if mixed {
        let mut bytes = Vec::new();
        for entry in &entries {
            encode(entry, &mut bytes);
        }
        if let Err(errno) = shared.device.reply(unique, &bytes) {
            tracing::debug!(%errno, "a READDIRPLUS reply was refused");
        }
        // Only now: dropping it sends an error, which the kernel ignores after the reply above.
        drop(reply);
    } else {
        reply.ok();
    }
    shared.push.start();
}

/// Takes entries until the page ends or the reply is full. The entries are added to fuser's buffer even if
/// it is not sent: fuser knows the kernel's limit, and an entry has the same length in both encodings.
fn fill(
    shared: &Shared,
    reply: &mut ReplyDirectoryPlus,
    page: &dyn DirPage,
    offset: u64,
) -> Vec<PlusEntry> {
    let mut filled = Vec::new();
    for (index, entry) in entries(page).enumerate() {
        let offset = offset + index as u64 + 1;
        let attributes = if entry.plus && !is_dot(&entry.name) {
            page.look_up(index)
        } else {
            None
        };
        let attr = attributes.unwrap_or(Attr {
            ino: entry.ino,
            kind: entry.kind,
            ..Attr::default()
        });
        let (ino, name) = (INodeNo(attr.ino.0), OsStr::from_bytes(&entry.name));
        let file = file_attr(&attr);
        if reply.add(ino, offset, name, &attr.ttl, &file, Generation(0)) {
            // The reply does not carry this entry, so the kernel never learns of its reference.
            if attributes.is_some() {
                shared.backend.forget(attr.ino, 1);
            }
            break;
        }
        filled.push(PlusEntry {
            entry,
            offset,
            attributes,
        });
    }
    filled
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Appends one `struct fuse_direntplus`, padded to 8 bytes.
fn encode(plus: &PlusEntry, out: &mut Vec<u8>) {
    let entry = &plus.entry;
    // `struct fuse_entry_out`: nodeid, generation, entry_valid, attr_valid, their nanoseconds, attr.
    match &plus.attributes {
        Some(attr) => {
            let (seconds, nanoseconds) = (attr.ttl.as_secs(), attr.ttl.subsec_nanos());
            for number in [attr.ino.0, 0, seconds, seconds] {
                out.extend_from_slice(&number.to_ne_bytes());
            }
            out.extend_from_slice(&nanoseconds.to_ne_bytes().repeat(2));
            encode_attr(attr, out);
        }
        None => out.resize(out.len() + ENTRY_OUT_BYTES, 0),
    }
    // `struct fuse_dirent`: ino, off, namelen, type, name.
    let (ino, kind) = plus
        .attributes
        .map_or((entry.ino, entry.kind), |attr| (attr.ino, attr.kind));
    let length = u32::try_from(entry.name.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&ino.0.to_ne_bytes());
    out.extend_from_slice(&plus.offset.to_ne_bytes());
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&(kind as u32).to_ne_bytes());
    out.extend_from_slice(&entry.name);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Appends one `struct fuse_attr`: six u64, then ten u32.
fn encode_attr(attr: &Attr, out: &mut Vec<u8>) {
    for number in [attr.ino.0, attr.size, attr.blocks] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    let times = [attr.atime, attr.mtime, attr.ctime];
    for time in times {
        out.extend_from_slice(&time.seconds.to_ne_bytes());
    }
    for time in times {
        out.extend_from_slice(&time.nanoseconds.to_ne_bytes());
    }
    let mode = (attr.kind as u32) << 12 | u32::from(attr.mode & 0o7777);
    let (uid, gid) = (attr.uid, attr.gid);
    for number in [mode, attr.links, uid, gid, attr.device, attr.block_size, 0] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::FileKind;
    use bytes::Bytes;

    #[test]
    fn an_entry_has_the_kernels_layout() {
        let entry = DirEntry {
            name: Bytes::from_static(b"abcdefghi"),
            kind: FileKind::Symlink,
            ino: Ino(77),
            plus: false,
        };
        let mut out = Vec::new();
        encode(
            &PlusEntry {
                entry,
                offset: 3,
                attributes: None,
            },
            &mut out,
        );
        // entry_out 40 + attr 88 + dirent 24 = 152, then the name, padded.
        assert_eq!(out.len(), 152 + 16);
        assert!(out[..128].iter().all(|&b| b == 0), "node id and attributes");
        assert_eq!(out[128..136], 77u64.to_ne_bytes());
        assert_eq!(out[136..144], 3u64.to_ne_bytes());
        assert_eq!(out[144..148], 9u32.to_ne_bytes());
        assert_eq!(out[148..152], 10u32.to_ne_bytes());
        assert_eq!(&out[152..161], b"abcdefghi");
    }
}
