//! Makes an image of a directory, from its index.

use super::order::{self, Order, OrderError};
use crate::image::extents::{self, State, Step};
use crate::image::{ImageError, Inode, Layout, NodeId, Tree, transfer};
use crate::index::serve::{WholeDirectory, WholeError};
use crate::index::{FileLocation, IndexedPrefix};
use crate::read::ReadPath;
use bytes::Bytes;
use copperfs_overlay::{Attributes, BLOCK_BYTES, Failure, FileKind, ItemPath, XattrList};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The number of files whose extended attributes are requested one by one: the index's own file, and few others.
const REQUESTED_MAX: usize = 16;

/// The most steps of a profile that are requested ahead of a reader: a terabyte.
const STEPS_MAX: usize = 1 << 20;

/// What an image is made of.
pub(super) struct Made {
    /// Names and attributes, for the process that writes the image.
    pub(super) tree: Bytes,
    /// The files behind the data file.
    pub(super) extents: Vec<u8>,
    /// The number of files.
    pub(super) files: usize,
}

/// Why a directory has no image.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error(transparent)]
    Index(#[from] WholeError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("the extended attributes of {0} are not known; make the index again")]
    Xattrs(ItemPath),
    #[error("{0} was changed just before the index was made; make it again")]
    Unsettled(ItemPath),
    #[error("cannot look at a file that the index does not describe: {0}")]
    Requested(Failure),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("the work was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A tree that grows directory by directory.
struct Growing {
    tree: Tree,
    /// The numbers of directories, by their paths.
    directories: HashMap<ItemPath, NodeId>,
    /// Of each file of the tree its identity.
    states: Vec<State>,
    /// The files whose extended attributes the index does not have.
    unknown: Vec<(NodeId, ItemPath)>,
    /// Files that were changed just before they were looked at, each with its directory: the index's own file is.
    unsettled: Vec<(NodeId, ItemPath)>,
}

/// Makes the image of the directory `top` from `index`, with contents in the order of `profile`, if there is one. Extended
/// attributes that the index does not have are read through `read`.
///
/// # Errors
/// See [`BuildError`]: FUSE has to serve the directory.
pub(super) async fn build(
    top: &ItemPath,
    index: &IndexedPrefix,
    profile: Option<&FileLocation>,
    read: &ReadPath,
) -> Result<Made, BuildError> {
    let order = match profile {
        Some(profile) => order::read(profile, read).await?,
        None => Order::default(),
    };
    let mut growing: Option<Growing> = None;
    let grow = |directory| match &mut growing {
        Some(growing) => growing.take(directory),
        None => {
            growing = Some(Growing::new(directory)?);
            Ok(())
        }
    };
    index.whole::<BuildError>(top, grow).await?;
    let mut growing = growing.ok_or_else(|| WholeError::NoDirectory(top.clone()))?;
    for (parent, path) in std::mem::take(&mut growing.unsettled) {
        let attributes = settled(&path, read).await?;
        if let Some((_, name)) = path.split() {
            let name = Bytes::copy_from_slice(name);
            growing.add(parent, name, &attributes, None, || path.clone())?;
        }
    }
    if let Some((_, path)) = growing.unknown.get(REQUESTED_MAX) {
        return Err(BuildError::Xattrs(path.clone()));
    }
    for (id, path) in std::mem::take(&mut growing.unknown) {
        let xattrs = read.metadata().xattrs(&path).await;
        let xattrs = xattrs.map_err(BuildError::Requested)?;
        growing.tree.set_xattrs(id, xattrs.to_vec())?;
    }
    // A million names take a second.
    tokio::task::spawn_blocking(move || growing.finish(&order)).await?
}

/// The attributes of a file that was changed a moment ago, when no further write can hide behind its times.
async fn settled(path: &ItemPath, read: &ReadPath) -> Result<Attributes, BuildError> {
    let metadata = read.metadata();
    let first = metadata.attributes_of(path).await;
    let first = first.map_err(BuildError::Requested)?.value.version;
    let now = metadata.settled_attributes_of(path, &first).await;
    let now = now.map_err(BuildError::Requested)?.value;
    match now.version.is_settled() {
        true => Ok(now),
        false => Err(BuildError::Unsettled(path.clone())),
    }
}

impl Growing {
    /// Begins with the top directory and its entries.
    fn new(top: WholeDirectory) -> Result<Self, BuildError> {
        let mut growing = Self {
            tree: Tree::new(inode(&top.attributes, top.xattrs.as_ref()))?,
            directories: HashMap::from([(top.path.clone(), NodeId::ROOT)]),
            states: vec![state(&top.attributes)],
            unknown: Vec::new(),
            unsettled: Vec::new(),
        };
        growing.note(NodeId::ROOT, top.xattrs.as_ref(), || top.path.clone());
        growing.add_entries(NodeId::ROOT, top)?;
        Ok(growing)
    }

    fn take(&mut self, directory: WholeDirectory) -> Result<(), BuildError> {
        let path = directory.path.clone();
        let missing = || WholeError::NoDirectory(path.clone());
        let (parent, name) = path.split().ok_or_else(missing)?;
        let parent = *self.directories.get(&parent).ok_or_else(missing)?;
        let name = Bytes::copy_from_slice(name);
        let id = self.add(
            parent,
            name,
            &directory.attributes,
            directory.xattrs.as_ref(),
            || path.clone(),
        )?;
        self.directories.insert(path.clone(), id);
        self.add_entries(id, directory)
    }

    fn add_entries(&mut self, id: NodeId, directory: WholeDirectory) -> Result<(), BuildError> {
        let above = directory.path;
        for entry in directory.entries {
            let name = entry.name.clone();
            let path = || above.join(&name).unwrap_or_else(|_too_long| above.clone());
            let (attributes, xattrs) = (&entry.attributes, entry.xattrs.as_ref());
            let is_file = attributes.kind == FileKind::File;
            if is_file && !attributes.version.is_settled() {
                if self.unsettled.len() >= REQUESTED_MAX {
                    return Err(BuildError::Unsettled(path()));
                }
                self.unsettled.push((id, path()));
                continue;
            }
            self.add(id, entry.name, attributes, xattrs, path)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        parent: NodeId,
        name: Bytes,
        attributes: &Attributes,
        xattrs: Option<&XattrList>,
        path: impl Fn() -> ItemPath,
    ) -> Result<NodeId, BuildError> {
        let id = self.tree.add(parent, name, inode(attributes, xattrs))?;
        self.states.push(state(attributes));
        self.note(id, xattrs, path);
        Ok(id)
    }

    /// Notes a file whose extended attributes are not known.
    fn note(&mut self, id: NodeId, xattrs: Option<&XattrList>, path: impl Fn() -> ItemPath) {
        if xattrs.is_none() && self.unknown.len() <= REQUESTED_MAX {
            self.unknown.push((id, path()));
        }
    }

    fn finish(self, order: &Order) -> Result<Made, BuildError> {
        let tree = self.tree.sorted()?;
        let found = order.files.iter().map(|path| {
            let (above, name) = path.split()?;
            tree.child(*self.directories.get(&above)?, name)
        });
        let found: Vec<Option<NodeId>> = found.collect();
        let wanted: Vec<NodeId> = found.iter().copied().flatten().collect();
        let layout = Layout::new(&tree, &wanted)?;
        let reads = order.reads.iter();
        let reads = reads.filter_map(|(number, bytes)| Some((found[*number]?, bytes.clone())));
        let steps = steps(&tree, reads);
        Ok(Made {
            tree: transfer::encode(&tree, &wanted).into(),
            extents: extents::encode(&tree, &layout, |id| self.states[id.index()], &steps),
            files: tree.count(),
        })
    }
}

/// The parts of files that `reads` are about, each once.
fn steps(tree: &Tree, reads: impl Iterator<Item = (NodeId, Range<u64>)>) -> Vec<Step<NodeId>> {
    let parts = reads.flat_map(|(file, bytes)| {
        // The file may be another one than the recorded program has read.
        let end = bytes.end.min(tree.inode(file).size);
        let parts = bytes.start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
        parts.map_while(move |part| {
            let part = u32::try_from(part).ok()?;
            Some(Step { file, part })
        })
    });
    let mut seen = HashSet::new();
    let first = parts.filter(|step| seen.insert(*step));
    first.take(STEPS_MAX).collect()
}

fn inode(attributes: &Attributes, xattrs: Option<&XattrList>) -> Inode {
    Inode::new(attributes, xattrs.cloned().unwrap_or_default())
}

fn state(attributes: &Attributes) -> State {
    State {
        version: attributes.version,
        content: attributes.content,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_overlay::Timestamp;

    fn inode(kind: FileKind, size: u64) -> Inode {
        Inode {
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size,
            mtime: Timestamp {
                seconds: 0,
                nanoseconds: 0,
            },
            link_target: None,
            xattrs: Vec::new(),
        }
    }

    /// A profile is a file that anybody may have written, of files that may have changed since.
    #[test]
    fn steps_are_parts_that_the_files_have_and_not_too_many() {
        let mut tree = Tree::new(inode(FileKind::Directory, 0)).unwrap();
        let mut add = |name, size| {
            let name = Bytes::from_static(name);
            let file = inode(FileKind::File, size);
            tree.add(NodeId::ROOT, name, file).unwrap()
        };
        let small = add(b"small", 10);
        let large = add(b"large", 2 * BLOCK_BYTES + 1);
        let huge = add(b"huge", 1 << 42);
        let found = |reads: &[(NodeId, Range<u64>)]| {
            let steps = steps(&tree, reads.iter().cloned());
            let steps = steps.iter().map(|step| (step.file, step.part));
            steps.collect::<Vec<_>>()
        };
        let end = 2 * BLOCK_BYTES;
        let reads = [
            (large, end - 1..u64::MAX),
            (small, 0..10),
            (large, 0..5000),
            (large, 100..200),
            (small, 10..20),
            (large, u64::MAX - 1..u64::MAX),
            (large, 5..5),
        ];
        assert_eq!(
            found(&reads),
            [(large, 1), (large, 2), (small, 0), (large, 0)]
        );
        assert_eq!(found(&[(huge, 0..u64::MAX)]).len(), STEPS_MAX);
    }
}
