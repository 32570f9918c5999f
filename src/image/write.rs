//! Writes the metadata of an image.

use super::directory::{self, Dirent};
use super::format::{
    BLOCK, CHUNK_INDEX_BYTES, Content, INODE_BYTES, SLOT_BYTES, Superblock, device_number,
    put_inode, put_superblock, xattr_bytes,
};
use super::layout::Layout;
use super::space::Space;
use super::tree::{ImageError, Node, NodeId, Tree};
use bytes::Bytes;
use copperfs_overlay::FileKind;

/// A longer rest of a directory has a block of its own. Otherwise most of a block could stay empty before its inode.
const TAIL_BYTES_MAX: usize = 2048;

/// The place of a file in the metadata.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The position of its inode, in bytes.
    inode: usize,
    /// The size of its content in the metadata: of a directory or a link.
    size: usize,
    /// The first block of that, as far as it does not follow the inode.
    first: u32,
}

impl Place {
    fn number(self) -> u64 {
        (self.inode / SLOT_BYTES) as u64
    }
}

/// The bytes of an inode, up to the part of its content that follows it.
fn head_of(node: &Node) -> usize {
    let head = INODE_BYTES + xattr_bytes(&node.inode.xattrs);
    match node.inode.kind {
        FileKind::File if node.inode.size > 0 => {
            head.next_multiple_of(CHUNK_INDEX_BYTES) + CHUNK_INDEX_BYTES
        }
        _ => head,
    }
}

/// The bytes of a content of `size` that follow an inode of `inode` bytes; the others are in blocks.
fn tail_of(size: usize, inode: usize) -> usize {
    let tail = size % BLOCK;
    let fits = tail <= TAIL_BYTES_MAX.min(BLOCK - inode);
    if fits { tail } else { 0 }
}

/// Returns the metadata of the image of `tree`, whose entries must be [sorted](Tree::sorted), with contents as in
/// `layout`. Equal trees have equal images.
///
/// # Errors
/// The metadata would have more than 2^32 blocks.
pub fn write(tree: &Tree, layout: &Layout) -> Result<Vec<u8>, ImageError> {
    let order = tree.by_directory();
    let (places, blocks) = place(tree, &order)?;
    let mut out = vec![0; blocks as usize * BLOCK];
    let mut content = Vec::new();
    for (number, id) in (1..).zip(&order) {
        let (node, place) = (tree.node(*id), places[id.index()]);
        content.clear();
        match node.inode.kind {
            FileKind::Directory => directory::pack(&entries(tree, *id, &places), &mut content),
            FileKind::Symlink => {
                content.extend_from_slice(node.inode.link_target.as_deref().unwrap_or_default());
            }
            _ => {}
        }
        let data = layout.first_block(*id);
        put(&mut out, node, number, place, &content, data);
    }
    let uuid = blake3::hash(&out);
    let root = places[NodeId::ROOT.index()].number();
    let superblock = Superblock {
        // It was placed first.
        root: u16::try_from(root).unwrap_or(u16::MAX),
        inodes: tree.count() as u64,
        blocks,
        data_blocks: layout.blocks(),
        uuid: uuid.as_bytes()[..16].try_into().unwrap_or_default(),
    };
    put_superblock(&mut out[..BLOCK], &superblock);
    Ok(out)
}

/// Places the inodes of all files, and the contents of directories and links. Returns also the number of blocks.
fn place(tree: &Tree, order: &[NodeId]) -> Result<(Vec<Place>, u32), ImageError> {
    let mut space = Space::new();
    let mut places = vec![Place::default(); tree.count()];
    for id in order {
        let node = tree.node(*id);
        let size = match node.inode.kind {
            FileKind::Directory => {
                directory::size(listed(tree, *id).into_iter().map(|(name, _)| name))
            }
            FileKind::Symlink => node.inode.link_target.as_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        let head = head_of(node);
        let tail = tail_of(size, head);
        let inode = space.inode(head + tail);
        let first = space.whole((size - tail).div_ceil(BLOCK));
        places[id.index()] = Place {
            inode,
            size,
            first: u32::try_from(first).map_err(|_too_large| too_large())?,
        };
    }
    let blocks = u32::try_from(space.blocks()).map_err(|_too_large| too_large())?;
    Ok((places, blocks))
}

fn too_large() -> ImageError {
    ImageError::TooLarge("2^32 blocks of names and attributes")
}

/// The entries of a directory in the order of their names, `.` and `..` among them.
fn listed(tree: &Tree, id: NodeId) -> Vec<(&[u8], NodeId)> {
    let node = tree.node(id);
    let mut all: Vec<(&[u8], NodeId)> = Vec::with_capacity(node.children.len() + 2);
    all.extend(
        node.children
            .iter()
            .map(|child| (tree.name(*child), *child)),
    );
    // Names such as `-x` come before both, and `.-x` between them.
    for dots in [(b".".as_slice(), id), (b"..".as_slice(), node.parent)] {
        let at = all.partition_point(|(name, _)| *name < dots.0);
        all.insert(at, dots);
    }
    all
}

/// The entries of a directory, with the numbers of their inodes.
fn entries<'a>(tree: &'a Tree, id: NodeId, places: &[Place]) -> Vec<Dirent<'a>> {
    let listed = listed(tree, id).into_iter();
    let entry =
        |(name, id): (&'a [u8], NodeId)| (name, places[id.index()].number(), tree.inode(id).kind);
    listed.map(entry).collect()
}

/// Writes an inode, and its content in the metadata. `data` is the first block of its content in the data file.
fn put(out: &mut [u8], node: &Node, number: u32, place: Place, content: &[u8], data: Option<u32>) {
    let inode = &node.inode;
    let head = head_of(node);
    let at = place.inode;
    let (size, at_content) = match inode.kind {
        FileKind::File => (inode.size, data.map_or(Content::None, Content::Data)),
        FileKind::Directory | FileKind::Symlink => match tail_of(place.size, head) {
            0 => (place.size as u64, Content::Blocks(place.first)),
            _ => (place.size as u64, Content::Inline(place.first)),
        },
        FileKind::CharDevice | FileKind::BlockDevice => {
            let device = device_number(inode.device).unwrap_or_default();
            (0, Content::Device(device))
        }
        FileKind::Fifo | FileKind::Socket => (0, Content::None),
    };
    put_inode(&mut out[at..], inode, number, size, at_content);
    let (blocks, tail) = content.split_at(content.len() - tail_of(place.size, head));
    out[place.first as usize * BLOCK..][..blocks.len()].copy_from_slice(blocks);
    out[at + head..][..tail.len()].copy_from_slice(tail);
}
