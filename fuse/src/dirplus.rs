//! READDIRPLUS replies, in which entries with and without attributes may be mixed.
//!
//! In the kernel's protocol an entry with node id 0 carries only a name: `d_ino` and `d_type` reach
//! the program, and no inode is made. fuser's `ReplyDirectoryPlus` writes one number as both node id
//! and `d_ino`, and programs skip names with `d_ino` 0; so a reply that holds such an entry is formed
//! here and written to the device directly. fuser's reply object, dropped unused, then sends an error
//! for a request that is no longer known, which the kernel ignores. `.` and `..` need none of this:
//! the kernel takes neither node id nor attributes from them.

use crate::attr::{bare_attr, file_attr, file_type};
use crate::backend::{Attr, DirEntry, DirPage, FsError, Ino};
use crate::errno::errno;
use crate::shared::Shared;
use fuser::{FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

type Page = Result<Arc<dyn DirPage>, FsError>;

/// Answers READDIR with the page that begins at `offset`.
pub(crate) fn answer(mut reply: ReplyDirectory, page: Page, offset: u64) {
    match page {
        Err(error) => reply.error(errno(error)),
        Ok(page) => {
            let mut next = offset;
            for entry in entries(&*page) {
                next += 1;
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(INodeNo(entry.ino.0), next, file_type(entry.kind), name) {
                    break;
                }
            }
            reply.ok();
        }
    }
}

fn entries(page: &dyn DirPage) -> impl Iterator<Item = DirEntry> + '_ {
    (0..).map_while(|index| page.entry(index))
}

/// An entry of the reply; attributes with the time for which the name may be used.
struct Slot {
    entry: DirEntry,
    offset: u64,
    known: Option<(Attr, Duration)>,
}

/// Answers READDIRPLUS request `unique` with the page that begins at `offset`.
pub(crate) fn answer_plus(
    shared: &Shared,
    unique: u64,
    mut reply: ReplyDirectoryPlus,
    page: Page,
    offset: u64,
) {
    let page = match page {
        Ok(page) => page,
        Err(error) => return reply.error(errno(error)),
    };
    let slots = fill(shared, &mut reply, &*page, offset);
    let learned: Vec<Ino> = slots
        .iter()
        .filter_map(|slot| slot.known.map(|(attr, _)| attr.ino))
        .collect();
    shared.push.offer(&learned);
    let mixed = slots
        .iter()
        .any(|slot| slot.known.is_none() && !is_dot(&slot.entry.name));
    if mixed {
        let mut bytes = Vec::new();
        for slot in &slots {
            encode(slot, &mut bytes);
        }
        if let Err(errno) = shared.device.reply(unique, &bytes) {
            tracing::debug!(%errno, "a READDIRPLUS reply was refused");
        }
        drop(reply);
    } else {
        reply.ok();
    }
    shared.push.start();
}

/// Takes entries until the page ends or the reply is full, in fuser's buffer too: it knows how much
/// the kernel takes, and an entry is equally long in both forms.
fn fill(
    shared: &Shared,
    reply: &mut ReplyDirectoryPlus,
    page: &dyn DirPage,
    offset: u64,
) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (index, entry) in entries(page).enumerate() {
        let offset = offset + index as u64 + 1;
        let known = if entry.plus && !is_dot(&entry.name) {
            page.look_up(index)
        } else {
            None
        };
        let name = OsStr::from_bytes(&entry.name);
        let full = match &known {
            Some((attr, entry_ttl)) => {
                // fuser has one time for both; the shorter is right for both.
                let ttl = attr.ttl.min(*entry_ttl);
                let ino = INodeNo(attr.ino.0);
                reply.add(ino, offset, name, &ttl, &file_attr(attr), Generation(0))
            }
            None => {
                let attr = bare_attr(entry.ino, entry.kind);
                reply.add(
                    attr.ino,
                    offset,
                    name,
                    &Duration::ZERO,
                    &attr,
                    Generation(0),
                )
            }
        };
        if full {
            if let Some((attr, _)) = known {
                shared.backend.forget(attr.ino, 1);
            }
            break;
        }
        slots.push(Slot {
            entry,
            offset,
            known,
        });
    }
    slots
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Appends one `struct fuse_direntplus`, padded to 8 bytes.
fn encode(slot: &Slot, out: &mut Vec<u8>) {
    let (node, attr_ttl, entry_ttl) = match &slot.known {
        Some((attr, entry_ttl)) => (attr.ino.0, attr.ttl, *entry_ttl),
        None => (0, Duration::ZERO, Duration::ZERO),
    };
    // struct fuse_entry_out: nodeid, generation, entry_valid, attr_valid, their nanoseconds.
    for number in [node, 0, entry_ttl.as_secs(), attr_ttl.as_secs()] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    out.extend_from_slice(&entry_ttl.subsec_nanos().to_ne_bytes());
    out.extend_from_slice(&attr_ttl.subsec_nanos().to_ne_bytes());
    encode_attr(slot, out);
    // struct fuse_dirent: ino, off, namelen, type, name.
    let kind = slot.known.map_or(slot.entry.kind, |(attr, _)| attr.kind);
    let ino = slot.known.map_or(slot.entry.ino, |(attr, _)| attr.ino);
    let name = &slot.entry.name;
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&ino.0.to_ne_bytes());
    out.extend_from_slice(&slot.offset.to_ne_bytes());
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&(type_bits(file_type(kind)) >> 12).to_ne_bytes());
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// `struct fuse_attr`: six u64, then ten u32.
fn encode_attr(slot: &Slot, out: &mut Vec<u8>) {
    let Some((attr, _)) = &slot.known else {
        out.resize(out.len() + 88, 0);
        return;
    };
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
    let mode = type_bits(file_type(attr.kind)) | u32::from(attr.mode & 0o7777);
    let (uid, gid) = (attr.uid, attr.gid);
    for number in [mode, attr.links, uid, gid, attr.device, attr.block_size, 0] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
}

/// The type's bits in `st_mode`.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::RegularFile => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
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
            &Slot {
                entry,
                offset: 3,
                known: None,
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
