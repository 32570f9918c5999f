//! A tree as bytes, from the daemon that knows it to the process that writes and mounts its image.
//!
//! The second one has more rights, so it takes names and attributes alone, checks them as it would those of any stranger
//! ([`Tree::add`]), and lays out all structures itself.

use super::inode::Inode;
use super::tree::{ImageError, NodeId, Tree};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const MAGIC: [u8; 8] = *b"CPFSTRE1";

/// Why bytes are no tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransferError {
    /// The bytes are of another version, or cut off.
    #[error("these are no names and attributes for an image")]
    Damaged,
    /// No image can show this.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// A file, after all directories above it.
#[derive(Serialize, Deserialize)]
struct Entry {
    /// The number of its directory among all entries, in their order.
    parent: u32,
    name: Bytes,
    inode: Inode,
}

/// The bytes of `tree` and of the files whose contents come first in its layout.
#[must_use]
pub fn encode(tree: &Tree, wanted: &[NodeId]) -> Vec<u8> {
    let order = tree.by_directory();
    let mut numbers = vec![0_u32; tree.count()];
    for (number, id) in (0..).zip(&order) {
        numbers[id.index()] = number;
    }
    let mut out = MAGIC.to_vec();
    let wanted: Vec<u32> = wanted.iter().map(|id| numbers[id.index()]).collect();
    let count = u32::try_from(order.len()).unwrap_or(u32::MAX);
    put(&mut out, &(count, wanted));
    for id in order {
        let entry = Entry {
            parent: numbers[tree.parent(id).index()],
            name: Bytes::copy_from_slice(tree.name(id)),
            inode: tree.inode(id).clone(),
        };
        put(&mut out, &entry);
    }
    out
}

/// Appends `value`. A vector grows as needed, so it cannot fail.
fn put(out: &mut Vec<u8>, value: &impl Serialize) {
    let written = postcard::to_io(value, &mut *out);
    debug_assert!(written.is_ok(), "a vector takes all bytes");
}

/// The tree in `bytes`, sorted, and the files whose contents come first.
///
/// # Errors
/// See [`TransferError`].
pub fn decode(bytes: &[u8]) -> Result<(Tree, Vec<NodeId>), TransferError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(TransferError::Damaged)?;
    let ((count, wanted), rest): ((u32, Vec<u32>), _) = take(rest)?;
    let (root, mut rest): (Entry, _) = take(rest)?;
    let mut tree = Tree::new(root.inode)?;
    while !rest.is_empty() {
        let (entry, after): (Entry, _) = take(rest)?;
        let parent = NodeId::at(entry.parent);
        // Entries are numbered as they come.
        let _number = tree.add(parent, entry.name, entry.inode)?;
        rest = after;
    }
    let is_whole = tree.count() == count as usize;
    if !is_whole || !wanted.iter().all(|number| *number < count) {
        return Err(TransferError::Damaged);
    }
    let wanted = wanted.into_iter().map(NodeId::at).collect();
    Ok((tree.sorted()?, wanted))
}

fn take<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), TransferError> {
    postcard::take_from_bytes(bytes).map_err(|_invalid| TransferError::Damaged)
}
