//! Identities of items. Pure.

use crate::model::slots::{SLOTS, STRIPE_BYTES, key_of};
use crate::num::{first_u64, to_usize};
use crate::read::{FileId, FileRef};
use copperfs_overlay::{BLOCK_BYTES, ContentHash, Extent, STRIPE_BLOCKS};
use copperfs_policy::keep::Item;

/// One version of an item, in 16 bytes: its key (a hash of path and stripe, whose low bits are its
/// slot), its number of blocks, whether it is valid in a later launch, and its version (a hash of
/// the file's identity, size and stripe). For an item of known content, key and version are parts of
/// its hash.
///
/// A store keeps the items of a dataset under these names. So after a restart they tell each item's
/// home, and whether the item is complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ItemId([u8; 16]);

/// The number of blocks in a stripe.
const BLOCKS_MAX: u8 = 4;
const _: () = assert!(BLOCKS_MAX as u64 == STRIPE_BLOCKS);
/// Added to the number of blocks if the item's version is not valid in a later launch.
const ONE_LAUNCH: u8 = 0x80;
/// The low bits of a key, which are the slot.
const SLOT_MASK: u16 = 0x3fff;
const _: () = assert!(SLOT_MASK as usize + 1 == SLOTS);

impl ItemId {
    /// Returns the identity of a stripe of a file version.
    #[must_use]
    pub fn of(file: &FileRef, stripe: Extent) -> Self {
        let blocks = u8::try_from(stripe.len.div_ceil(BLOCK_BYTES)).unwrap_or(BLOCKS_MAX);
        let stripe = stripe.start / STRIPE_BYTES;
        let mut hasher = blake3::Hasher::new();
        hasher.update(file.id().as_bytes());
        hasher.update(&file.size.to_le_bytes());
        hasher.update(&stripe.to_le_bytes());
        let mut id = [0; 16];
        id[..8].copy_from_slice(&key_of(&file.path, stripe).to_le_bytes());
        let lasting = file.outlives_launch();
        id[8] = blocks | if lasting { 0 } else { ONE_LAUNCH };
        id[9..].copy_from_slice(&hasher.finalize().as_bytes()[..7]);
        Self(id)
    }

    /// Returns the identity of an item of known content, wherever it lies.
    #[must_use]
    pub fn of_content(content: &ContentHash, len: u64) -> Self {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&content.0[..8]);
        id[8] = u8::try_from(len.div_ceil(BLOCK_BYTES)).unwrap_or(BLOCKS_MAX);
        id[9..].copy_from_slice(&content.0[8..15]);
        Self(id)
    }

    /// Returns the identities of all items that may have this content: one for each number of blocks.
    #[must_use]
    pub fn all_of_content(content: &ContentHash) -> [Self; BLOCKS_MAX as usize] {
        std::array::from_fn(|blocks| Self::of_content(content, (blocks as u64 + 1) * BLOCK_BYTES))
    }

    /// Restores an identity that a store returns after a restart. Returns `None` if it is not an item's, or
    /// if it belongs to an earlier launch.
    #[must_use]
    pub fn from_file(file: FileId) -> Option<Self> {
        let id = *file.as_bytes();
        (1..=BLOCKS_MAX).contains(&id[8]).then_some(Self(id))
    }

    /// Returns the name under which a store keeps it.
    #[must_use]
    pub fn file(&self) -> FileId {
        FileId::of(self.0)
    }

    /// Returns its slot: see [`crate::model::slot_of`].
    #[must_use]
    pub fn slot(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]]) & SLOT_MASK
    }

    /// Returns the number of its blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        to_usize(u64::from(self.0[8] & !ONE_LAUNCH))
    }
}

impl Item for ItemId {
    fn key(&self) -> u64 {
        first_u64(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::slots::stripe_extent;
    use crate::model::{items_of, slot_of};
    use copperfs_overlay::{ItemPath, Standing, Version};

    #[test]
    fn an_item_tells_its_slot_its_blocks_and_its_version() {
        let path = ItemPath::parse(b"lus/data/large.bin").unwrap();
        let size = (9 << 20) + 5;
        let old = FileRef::new(path.clone(), Version::from_data([1; 16]), size, None);
        let new = FileRef::new(path.clone(), Version::from_data([2; 16]), size, None);
        for stripe in 0..items_of(size) {
            let extent = stripe_extent(size, stripe);
            let item = ItemId::of(&old, extent);
            assert_eq!(item.slot(), slot_of(&path, stripe));
            assert_eq!(item.blocks(), [4, 4, 2][usize::try_from(stripe).unwrap()]);
            assert_eq!(ItemId::from_file(item.file()), Some(item));
            let later = ItemId::of(&new, extent);
            assert!(later.key() == item.key() && later != item);
        }
        let longer = FileRef::new(path, Version::from_data([1; 16]), size + 1, None);
        let first = stripe_extent(size, 0);
        assert_ne!(ItemId::of(&old, first), ItemId::of(&longer, first));
        assert_eq!(ItemId::from_file(FileId::of([0; 16])), None);
        assert_eq!(ItemId::from_file(FileId::of([0xff; 16])), None);
    }

    #[test]
    fn an_item_of_one_launch_is_none_after_it() {
        let path = ItemPath::parse(b"lus/data/item").unwrap();
        let lasting = Version::from_data([1; 16]);
        let size = 3 << 20;
        let all = stripe_extent(size, 0);
        for standing in [Standing::Launch, Standing::Unsettled(7)] {
            let version = lasting.standing_as(standing);
            let item = ItemId::of(&FileRef::new(path.clone(), version, size, None), all);
            assert_eq!((item.blocks(), item.slot()), (3, slot_of(&path, 0)));
            assert_eq!(ItemId::from_file(item.file()), None);
            let content = Some(ContentHash([5; 32]));
            let known = ItemId::of(&FileRef::new(path.clone(), version, size, content), all);
            assert_eq!(ItemId::from_file(known.file()), Some(known));
        }
    }
}
