//! The identities of files and blocks in the caches.

use super::slices::PIECE_BYTES;
use copperfs_overlay::{
    Attributes, BLOCK_BYTES, ContentHash, Failure, FailureKind, ItemPath, ReadRequest, Version,
};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::OnceLock;

/// Identifies a file's bytes in the block cache. A hash of the content and size if the content is known, so
/// that equal files share their blocks; of the path and version otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct FileId([u8; 16]);

impl FileId {
    /// The identity with this hash, as [`FileId::as_bytes`] returned it.
    #[must_use]
    pub fn of(hash: [u8; 16]) -> Self {
        Self(hash)
    }

    /// The identity of one version of the file at `path`.
    #[must_use]
    pub fn of_place(path: &ItemPath, version: Version) -> Self {
        Self::hashed(&[&version.to_bytes(), path.as_bytes()])
    }

    /// Like [`FileId::of_place`], for a version that is valid in one launch only. No other process creates
    /// this identity, so data that an earlier process kept on a disk under such a version is never found.
    fn of_launch(path: &ItemPath, version: Version) -> Self {
        static PROCESS: OnceLock<[u64; 2]> = OnceLock::new();
        let process = PROCESS.get_or_init(|| {
            let random = RandomState::new();
            [random.hash_one(0), random.hash_one(1)]
        });
        let [one, two] = process.map(u64::to_le_bytes);
        Self::hashed(&[b"launch", &one, &two, &version.to_bytes(), path.as_bytes()])
    }

    fn hashed(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(id)
    }

    /// The hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// One version of one file.
#[derive(Clone, Debug)]
pub struct FileRef {
    /// Its path.
    pub path: ItemPath,
    /// The version.
    pub version: Version,
    /// Its size in bytes.
    pub size: u64,
    /// The hash of all its bytes, where an index knows it.
    pub content: Option<ContentHash>,
    /// See [`FileRef::id`]. Computed once, because a hit of a dataset's item may need none.
    id: OnceLock<FileId>,
}

impl FileRef {
    /// The file at `path` in state `version`, `size` bytes long, of `content` where that is known.
    #[must_use]
    pub fn new(path: ItemPath, version: Version, size: u64, content: Option<ContentHash>) -> Self {
        Self {
            path,
            version,
            size,
            content,
            id: OnceLock::new(),
        }
    }

    /// The file that another node requests. The content hash in the request is used only for a file of one
    /// block, because only then can the bytes be checked against it. Otherwise this file's bytes could be
    /// returned to readers of the content with that hash.
    pub(crate) fn requested(
        path: ItemPath,
        version: Version,
        size: u64,
        content: Option<ContentHash>,
    ) -> Self {
        let content = content.filter(|_| size.div_ceil(BLOCK_BYTES) == 1);
        Self::new(path, version, size, content)
    }

    /// The file at `path` that `attributes` describe.
    #[must_use]
    pub fn of(path: ItemPath, attributes: &Attributes) -> Self {
        Self::new(
            path,
            attributes.version,
            attributes.size,
            attributes.content,
        )
    }

    /// Refuses a block that cannot be part of the content that an index promised. Only a file of one
    /// block can be judged: its block's hash is the file's.
    pub(super) fn check(&self, hash: ContentHash) -> Result<(), Failure> {
        match self.content {
            Some(content) if self.block_count() == 1 && content != hash => {
                let detail = format!(
                    "{}: it changed since it was indexed; make the index again",
                    self.path
                );
                Err(Failure::new(FailureKind::Stale, detail))
            }
            _ => Ok(()),
        }
    }

    /// A request for `block_count` of its blocks from `first_block` on, to be cached by each node on the way.
    pub(super) fn request(&self, first_block: u64, block_count: u64) -> ReadRequest {
        ReadRequest {
            path: self.path.clone(),
            version: self.version,
            size: self.size,
            first_block,
            block_count,
            content: self.content,
            through: false,
        }
    }

    /// The name of this version in the block cache.
    #[must_use]
    pub fn id(&self) -> FileId {
        *self.id.get_or_init(|| match &self.content {
            Some(content) => FileId::hashed(&[b"content", &content.0, &self.size.to_le_bytes()]),
            None if self.version.outlives_launch() => FileId::of_place(&self.path, self.version),
            None => FileId::of_launch(&self.path, self.version),
        })
    }

    pub(super) fn key(&self, index: u64) -> BlockKey {
        BlockKey {
            file: self.id(),
            index,
            piece: WHOLE,
        }
    }

    /// The key of one piece of block `index`.
    pub(super) fn piece_key(&self, index: u64, piece: u64) -> BlockKey {
        BlockKey {
            file: self.id(),
            index,
            piece: u16::try_from(piece).unwrap_or(WHOLE),
        }
    }

    /// The range of the file that has `key`; empty beyond the file's end.
    pub(super) fn range_of(&self, key: BlockKey) -> Range<u64> {
        let base = key.index.saturating_mul(BLOCK_BYTES);
        let (start, len) = match key.piece {
            WHOLE => (base, BLOCK_BYTES),
            piece => (
                base.saturating_add(u64::from(piece) * PIECE_BYTES),
                PIECE_BYTES,
            ),
        };
        start.min(self.size)..start.saturating_add(len).min(self.size)
    }

    /// Whether a later process may use its cached data: its content is known, or its version differs from
    /// that of every later state.
    #[must_use]
    pub fn outlives_launch(&self) -> bool {
        self.content.is_some() || self.version.outlives_launch()
    }

    /// The number of its blocks.
    pub(super) fn block_count(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct BlockKey {
    pub(super) file: FileId,
    pub(super) index: u64,
    /// Which piece of the block, or [`WHOLE`].
    pub(super) piece: u16,
}

impl BlockKey {
    pub(super) fn is_piece(self) -> bool {
        self.piece != WHOLE
    }
}

/// In [`BlockKey::piece`]: all of the block, which has far fewer pieces than this.
const WHOLE: u16 = u16::MAX;
