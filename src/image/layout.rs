//! The order of the contents in the data file.

use super::format::{BLOCK_BYTES, LARGE_BYTES_MIN};
use super::tree::{ImageError, NodeId, Tree};
use copperfs_overlay::FileKind;

/// The mark of files without content.
const NONE: u32 = u32::MAX;

/// The place of each file's content in the data file. A content begins at a multiple of [`BLOCK_BYTES`], and zeros follow
/// it up to the next one. The contents of [large](LARGE_BYTES_MIN) files are behind all others.
#[derive(Debug)]
pub struct Layout {
    /// The first block of each file, by its number in the tree.
    first: Vec<u32>,
    /// The files with content, in their order, with their sizes.
    files: Vec<(NodeId, u64)>,
    blocks: u32,
}

impl Layout {
    /// The contents of `tree`: of small files and then of large ones those of `wanted` first, in that order, then the others
    /// by directory. Files that are read together then lie together, and a start of a recorded program is a few long reads.
    ///
    /// # Errors
    /// The contents have more than 2^32 blocks (16 TiB).
    pub fn new(tree: &Tree, wanted: &[NodeId]) -> Result<Self, ImageError> {
        let mut layout = Self {
            first: vec![NONE; tree.count()],
            files: Vec::new(),
            blocks: 0,
        };
        let order = tree.by_directory();
        let all = || wanted.iter().chain(&order).copied();
        let is_large = |id: &NodeId| tree.inode(*id).size >= LARGE_BYTES_MIN;
        for id in all().filter(|id| !is_large(id)) {
            layout.append(tree, id)?;
        }
        for id in all().filter(is_large) {
            layout.append(tree, id)?;
        }
        Ok(layout)
    }

    /// Appends the content of a file, unless it is there already or the file has none.
    fn append(&mut self, tree: &Tree, id: NodeId) -> Result<(), ImageError> {
        let inode = tree.inode(id);
        let has_content = inode.kind == FileKind::File && inode.size > 0;
        if !has_content || self.first[id.index()] != NONE {
            return Ok(());
        }
        let blocks = u32::try_from(inode.size.div_ceil(BLOCK_BYTES)).ok();
        let end = blocks.and_then(|blocks| self.blocks.checked_add(blocks));
        let end = end.ok_or(ImageError::TooLarge("2^32 blocks of content (16 TiB)"))?;
        self.first[id.index()] = self.blocks;
        self.files.push((id, inode.size));
        self.blocks = end;
        Ok(())
    }

    /// The size of the data file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// The files with content, in the order of the data file, with their sizes in bytes.
    #[must_use]
    pub fn files(&self) -> &[(NodeId, u64)] {
        &self.files
    }

    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The first block of a file's content in the data file; `None` if it has no content.
    pub(super) fn first_block(&self, id: NodeId) -> Option<u32> {
        Some(self.first[id.index()]).filter(|first| *first != NONE)
    }

    /// The position of a file's content in the data file, in bytes; `None` if it has no content.
    #[must_use]
    pub fn position(&self, id: NodeId) -> Option<u64> {
        Some(u64::from(self.first_block(id)?) * BLOCK_BYTES)
    }
}
