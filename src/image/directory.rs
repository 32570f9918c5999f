//! Packs the entries of a directory into blocks.
//!
//! The entries are in the order of their names' bytes, `.` and `..` among them. A block begins with its entries, and
//! their names follow in the same order. The kernel looks a name up by halves, first among blocks, then within one.

use super::format::{BLOCK, DIRENT_BYTES, put_dirent};
use copperfs_overlay::FileKind;

/// An entry: name, inode number, type.
pub(super) type Dirent<'a> = (&'a [u8], u64, FileKind);

/// The size of a directory with `names`, which are in order: whole blocks, and the used bytes of the last one.
pub(super) fn size<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> usize {
    let (mut whole, mut used) = (0, 0);
    for name in names {
        let needed = DIRENT_BYTES + name.len();
        if used + needed > BLOCK {
            whole += 1;
            used = 0;
        }
        used += needed;
    }
    whole * BLOCK + used
}

/// Appends the blocks of a directory with `entries`, which are in the order of their names, to `out`. The last block ends
/// with its last name.
pub(super) fn pack(entries: &[Dirent<'_>], out: &mut Vec<u8>) {
    let mut rest = entries;
    while !rest.is_empty() {
        let mut used = 0;
        let fits = |(name, ..): &&Dirent<'_>| {
            used += DIRENT_BYTES + name.len();
            used <= BLOCK
        };
        let count = rest.iter().take_while(fits).count();
        let (block, others) = rest.split_at(count);
        let base = out.len();
        let heads = count * DIRENT_BYTES;
        out.resize(base + heads, 0);
        for (at, (name, inode, kind)) in block.iter().enumerate() {
            let name_at = u16::try_from(out.len() - base).unwrap_or(u16::MAX);
            put_dirent(&mut out[base + at * DIRENT_BYTES..], *inode, name_at, *kind);
            out.extend_from_slice(name);
        }
        if !others.is_empty() {
            out.resize(base + BLOCK, 0);
        }
        rest = others;
    }
}
