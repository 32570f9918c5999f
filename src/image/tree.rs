//! The tree that an image shows.

use super::format::{BLOCK_BYTES, device_number, split_xattr, xattr_bytes};
use super::inode::Inode;
use bytes::Bytes;
use copperfs_overlay::{FileKind, ItemPath, XattrList};

/// The longest name of an extended attribute, without its prefix, as of the kernel.
const XATTR_NAME_BYTES_MAX: usize = 255;

/// The longest link target: the kernel reads it into a page, with a zero byte.
const TARGET_BYTES_MAX: usize = 4095;

/// The largest size of a file: one chunk has at most 2^31 blocks.
const FILE_BYTES_MAX: u64 = BLOCK_BYTES << 31;

/// The most bytes of the extended attributes of one file, so that they share a block with their inode and a tail.
const XATTR_BYTES_MAX: usize = 1024;

/// Why a tree cannot have an image. The mount serves it by FUSE then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// A name that no directory can have.
    #[error("{0:?} is no name of a file")]
    Name(Bytes),
    /// A directory has two entries of a name.
    #[error("two entries have the name {0:?}")]
    Twice(Bytes),
    /// An entry was added to something else.
    #[error("{0:?} is added to a file that is no directory")]
    NoDirectory(Bytes),
    /// A file has attributes that the kernel would not take.
    #[error("{name:?}: {what}")]
    Attributes {
        /// The name of the file.
        name: Bytes,
        /// The attribute.
        what: &'static str,
    },
    /// The tree is too large.
    #[error("the tree has more than {0}")]
    TooLarge(&'static str),
}

/// The number of a file in its [`Tree`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    /// The top directory.
    pub const ROOT: Self = Self(0);

    /// The file that was added to its tree as number `number`; the top directory is number 0.
    #[must_use]
    pub fn at(number: u32) -> Self {
        Self(number)
    }

    /// It as an index of a list of all files.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A file and its place.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) inode: Inode,
    pub(super) name: Bytes,
    pub(super) parent: NodeId,
    /// The entries of a directory, in the order of their names once the tree is [`Tree::sorted`].
    pub(super) children: Vec<NodeId>,
}

/// A tree of files, as an image is to show it.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// A tree whose top directory is `root`.
    ///
    /// # Errors
    /// It is no directory, or has attributes that images cannot have.
    pub fn new(root: Inode) -> Result<Self, ImageError> {
        let mut tree = Self { nodes: Vec::new() };
        if root.kind != FileKind::Directory {
            return Err(ImageError::NoDirectory(Bytes::new()));
        }
        tree.push(NodeId::ROOT, Bytes::new(), root)?;
        Ok(tree)
    }

    /// Adds an entry to the directory `parent`. Entries may come in any order.
    ///
    /// # Errors
    /// The name or the attributes cannot be in an image, or `parent` is no directory.
    pub fn add(&mut self, parent: NodeId, name: Bytes, inode: Inode) -> Result<NodeId, ImageError> {
        if ItemPath::check_name(&name).is_err() {
            return Err(ImageError::Name(name));
        }
        let directory = self.nodes.get(parent.index());
        if directory.is_none_or(|directory| directory.inode.kind != FileKind::Directory) {
            return Err(ImageError::NoDirectory(name));
        }
        let id = self.push(parent, name, inode)?;
        self.nodes[parent.index()].children.push(id);
        Ok(id)
    }

    /// Gives a file other extended attributes.
    ///
    /// # Errors
    /// They cannot be in an image.
    pub fn set_xattrs(&mut self, id: NodeId, mut xattrs: XattrList) -> Result<(), ImageError> {
        xattrs.sort_unstable();
        let node = &mut self.nodes[id.index()];
        node.inode.xattrs = xattrs;
        let name = node.name.clone();
        check(&node.inode).map_err(|what| ImageError::Attributes { name, what })
    }

    fn push(&mut self, parent: NodeId, name: Bytes, inode: Inode) -> Result<NodeId, ImageError> {
        if let Err(what) = check(&inode) {
            return Err(ImageError::Attributes { name, what });
        }
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|id| *id < u32::MAX);
        let id = NodeId(id.ok_or(ImageError::TooLarge("2^32 files"))?);
        self.nodes.push(Node {
            inode,
            name,
            parent,
            children: Vec::new(),
        });
        Ok(id)
    }

    /// The tree with the entries of all directories in order.
    ///
    /// # Errors
    /// Two entries of a directory have one name.
    pub fn sorted(mut self) -> Result<Self, ImageError> {
        for at in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[at].children);
            children.sort_unstable_by(|one, other| self.name(*one).cmp(self.name(*other)));
            let mut pairs = children.windows(2);
            if let Some(two) = pairs.find(|two| self.name(two[0]) == self.name(two[1])) {
                return Err(ImageError::Twice(self.nodes[two[0].index()].name.clone()));
            }
            self.nodes[at].children = children;
        }
        Ok(self)
    }

    /// The name of a file in its directory; empty for the top one.
    #[must_use]
    pub fn name(&self, id: NodeId) -> &[u8] {
        &self.nodes[id.index()].name
    }

    /// The directory of a file; of the top directory it is that itself.
    #[must_use]
    pub fn parent(&self, id: NodeId) -> NodeId {
        self.nodes[id.index()].parent
    }

    /// What the image shows of a file.
    #[must_use]
    pub fn inode(&self, id: NodeId) -> &Inode {
        &self.nodes[id.index()].inode
    }

    /// The entries of a directory; in order, if the tree is [`Tree::sorted`].
    #[must_use]
    pub fn children(&self, id: NodeId) -> &[NodeId] {
        &self.nodes[id.index()].children
    }

    /// The entry `name` of a directory, if the tree is [`Tree::sorted`].
    #[must_use]
    pub fn child(&self, id: NodeId, name: &[u8]) -> Option<NodeId> {
        let children = self.children(id);
        let at = children.binary_search_by(|child| self.name(*child).cmp(name));
        Some(children[at.ok()?])
    }

    /// The number of files, the top directory among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// All files: directory by directory from the top, and the entries of each in order.
    pub(super) fn by_directory(&self) -> Vec<NodeId> {
        let mut all = Vec::with_capacity(self.nodes.len());
        all.push(NodeId::ROOT);
        let mut at = 0;
        while let Some(id) = all.get(at).copied() {
            all.extend_from_slice(&self.nodes[id.index()].children);
            at += 1;
        }
        all
    }
}

/// Checks that the kernel takes the attributes of `inode`.
fn check(inode: &Inode) -> Result<(), &'static str> {
    let is_link = inode.kind == FileKind::Symlink;
    let target = inode.link_target.as_deref().filter(|_| is_link);
    let target_fits =
        |target: &[u8]| (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0);
    if is_link && !target.is_some_and(target_fits) {
        return Err("its link target is missing or too long");
    }
    if inode.kind == FileKind::File && inode.size > FILE_BYTES_MAX {
        return Err("its size is above 8 TiB");
    }
    if inode.mtime.nanoseconds >= 1_000_000_000 {
        return Err("its time has more than a second of nanoseconds");
    }
    let is_device = matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
    if is_device && device_number(inode.device).is_none() {
        return Err("the kernel has no such device number");
    }
    let mut twice = inode.xattrs.windows(2);
    if twice.any(|two| two[0].0 >= two[1].0) {
        return Err("its extended attributes are not in order");
    }
    let mut xattrs = inode.xattrs.iter();
    let fits = |(name, _): &(Bytes, Bytes)| {
        split_xattr(name).is_some_and(|(_, suffix)| suffix.len() <= XATTR_NAME_BYTES_MAX)
            && !name.contains(&0)
    };
    if !xattrs.all(fits) || xattr_bytes(&inode.xattrs) > XATTR_BYTES_MAX {
        return Err(
            "its extended attributes have other names than images can have, or too many bytes",
        );
    }
    Ok(())
}
