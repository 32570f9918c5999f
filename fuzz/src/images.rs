//! The writer of images, whose metadata the kernel parses: whatever an origin or a peer says of its files, the image is
//! one that a reader understands, and shows what was written. The writer belongs to the program, which takes long to
//! build, so its module is included by links. The reader here follows docs/image-format.md.

use crate::alloc;
use crate::image::ahead::Ahead;
use crate::image::extents::{self, Extents, State, Step};
use crate::image::{self, BLOCK_BYTES, Inode, LARGE_BYTES_MIN, Layout, NodeId, Tree, transfer};
use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use copperfs_overlay::{FileKind, Timestamp, Version};
use std::ops::Range;

const BLOCK: usize = BLOCK_BYTES as usize;

/// A tree out of arbitrary names and attributes; those that no image can have are refused.
pub fn images(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(Some(tree)) = tree(&mut input) else {
        return;
    };
    let wanted: Vec<u32> = input.arbitrary().unwrap_or_default();
    let count = u32::try_from(tree.count()).expect("few files");
    let wanted = wanted.into_iter().map(|id| NodeId::at(id % count));
    let wanted: Vec<_> = wanted.collect();
    let Ok(layout) = Layout::new(&tree, &wanted) else {
        return;
    };
    if let Ok(metadata) = image::write(&tree, &layout) {
        let mut reader = Reader {
            metadata: &metadata,
            tree: &tree,
            layout: &layout,
            used: vec![0..1408],
        };
        reader.check();
    }
}

fn tree(input: &mut Unstructured<'_>) -> Result<Option<Tree>> {
    let mut root = inode(input)?;
    root.kind = FileKind::Directory;
    root.xattrs.clear();
    let Ok(mut tree) = Tree::new(root) else {
        return Ok(None);
    };
    let mut all = vec![NodeId::ROOT];
    while !input.is_empty() && all.len() < 2_000 {
        let parent = *input.choose(&all)?;
        let mut name: Vec<u8> = input.arbitrary()?;
        let times = input.int_in_range(1..=40)?;
        name = name.repeat(times);
        let inode = inode(input)?;
        all.extend(tree.add(parent, name.into(), inode));
    }
    Ok(tree.sorted().ok())
}

fn inode(input: &mut Unstructured<'_>) -> Result<Inode> {
    let kinds = [
        FileKind::Directory,
        FileKind::Directory,
        FileKind::File,
        FileKind::Symlink,
        FileKind::Fifo,
        FileKind::Socket,
        FileKind::CharDevice,
        FileKind::BlockDevice,
    ];
    let link_target: Option<Vec<u8>> = input.arbitrary()?;
    let xattrs: Vec<(Vec<u8>, Vec<u8>)> = input.arbitrary()?;
    let xattr = |(name, value): (Vec<u8>, Vec<u8>)| ([b"user.", &*name].concat().into(), value.into());
    let large = input.ratio(1, 50)?;
    Ok(Inode {
        kind: *input.choose(&kinds)?,
        mode: input.arbitrary()?,
        uid: input.arbitrary()?,
        gid: input.arbitrary()?,
        links: input.arbitrary()?,
        device: input.arbitrary()?,
        size: if large { input.arbitrary()? } else { input.int_in_range(0..=20_000)? },
        mtime: Timestamp {
            seconds: input.arbitrary()?,
            nanoseconds: input.int_in_range(0..=1_000_000_000)?,
        },
        link_target: link_target.map(Bytes::from),
        xattrs: xattrs.into_iter().map(xattr).collect(),
    })
}

/// A tree from a daemon, which the attendant reads with more rights than the daemon has; and the table of an image's files.
pub fn trees(data: &[u8]) {
    let bound = data.len() * TREE_PER_BYTE + SLACK_BYTES;
    let tree = alloc::within(bound, || transfer::decode(data).ok());
    if let Some((tree, wanted)) = tree
        && let Ok(layout) = Layout::new(&tree, &wanted)
        && let Ok(metadata) = image::write(&tree, &layout)
    {
        assert_eq!(metadata.len() % BLOCK, 0);
    }
    if let Ok(extents) = Extents::open(data) {
        let pieces = extents.pieces(0..extents.size().min(1 << 20));
        drop((extents.file(0), extents.file(extents.count())));
        if let (Ok(pieces), Ok(mut ahead)) = (pieces, Ahead::new(&extents)) {
            for piece in pieces.chunks(3) {
                let next = ahead.on_read(piece);
                assert!(next.len() <= extents.steps().count());
            }
        }
    }
}

/// Memory that a tree may take beside a multiple of its bytes.
const SLACK_BYTES: usize = 512 << 10;
/// Memory that a byte of a tree may cost: an entry has at least 20, and takes some hundred bytes.
const TREE_PER_BYTE: usize = 64;

/// A small tree, and the table of its files.
pub fn tree_seeds() -> Vec<Vec<u8>> {
    let seeds = seeds();
    let mut found = Vec::new();
    for seed in seeds {
        let Ok(Some(tree)) = tree(&mut Unstructured::new(&seed)) else {
            continue;
        };
        found.push(transfer::encode(&tree, &[NodeId::ROOT]));
        if let Ok(layout) = Layout::new(&tree, &[]) {
            let state = State {
                version: Version::of(b"seed"),
                content: None,
            };
            let numbers = 0..u32::try_from(tree.count()).expect("few files");
            let steps = numbers.map(|id| Step { file: NodeId::at(id), part: 0 });
            let steps: Vec<_> = steps.collect();
            found.push(extents::encode(&tree, &layout, |_| state, &steps));
        }
    }
    found
}

/// Reads an image, and compares it with the tree.
struct Reader<'a> {
    metadata: &'a [u8],
    tree: &'a Tree,
    layout: &'a Layout,
    /// The bytes that something has: nothing else may have them.
    used: Vec<Range<usize>>,
}

impl Reader<'_> {
    fn check(&mut self) {
        assert_eq!(self.metadata.len() % BLOCK, 0);
        assert_eq!(self.u32(1024), 0xE0F5_E1E2);
        assert_eq!(self.u64(1024 + 16), self.tree.count() as u64);
        assert_eq!(self.u32(1024 + 36) as usize * BLOCK, self.metadata.len());
        for device in [1152, 1280] {
            assert_eq!(u64::from(self.u32(device + 64)) * BLOCK_BYTES, self.layout.size());
        }
        let root = u64::from(self.u16(1024 + 14));
        // Each with its number in the tree, and the numbers of its inode and of its directory's.
        let mut left = vec![(NodeId::ROOT, root, root)];
        let mut seen = 0;
        while let Some((id, number, parent)) = left.pop() {
            seen += 1;
            self.file(id, number, parent, &mut left);
        }
        assert_eq!(seen, self.tree.count());
        self.used.sort_by_key(|range| range.start);
        for two in self.used.windows(2) {
            assert!(two[0].end <= two[1].start, "{two:?}");
        }
    }

    fn file(&mut self, id: NodeId, number: u64, parent: u64, left: &mut Vec<(NodeId, u64, u64)>) {
        let (at, inode) = (usize::try_from(number * 32).expect("in memory"), self.tree.inode(id));
        let (format, words) = (self.u16(at), usize::from(self.u16(at + 2)));
        assert_eq!(self.u16(at + 4) & 0o7777, inode.mode & 0o7777);
        assert_eq!((self.u32(at + 24), self.u32(at + 28)), (inode.uid, inode.gid));
        assert_eq!(self.u64(at + 32).cast_signed(), inode.mtime.seconds);
        assert_eq!(self.u32(at + 40), inode.mtime.nanoseconds);
        assert_eq!(self.u32(at + 44), inode.links);
        let head = 64 + if words > 0 { 12 + (words - 1) * 4 } else { 0 };
        self.xattrs(&self.metadata[at + 64..at + head], &inode.xattrs);
        let (size, first) = (self.u64(at + 8), self.u32(at + 16) as usize);
        match inode.kind {
            FileKind::File => {
                assert_eq!(size, inode.size);
                let mut end = at + head;
                if let Some(position) = self.layout.position(id) {
                    // Chunks with indexes, of which one has room for all of it.
                    assert_eq!((format, first & !0x1f), (9, 0x20));
                    assert!(BLOCK_BYTES << (first & 0x1f) >= size);
                    let chunk = end.next_multiple_of(8);
                    let device = if size < LARGE_BYTES_MIN { 1 } else { 2 };
                    assert_eq!((self.u16(chunk), self.u16(chunk + 2)), (0, device));
                    assert_eq!(u64::from(self.u32(chunk + 4)) * BLOCK_BYTES, position);
                    end = chunk + 8;
                    assert_eq!(at / BLOCK, (end - 1) / BLOCK, "over the end of a block");
                } else {
                    assert_eq!(format, 1);
                }
                self.used.push(at..end);
            }
            FileKind::Directory | FileKind::Symlink => {
                let size = usize::try_from(size).expect("in memory");
                let content = self.content(at, head, format, size, first);
                match &inode.link_target {
                    Some(target) if inode.kind == FileKind::Symlink => assert_eq!(content, target[..]),
                    _ => self.directory(id, number, parent, &content, left),
                }
            }
            _ => {
                assert_eq!((format, size), (1, 0));
                self.used.push(at..at + head);
            }
        }
    }

    /// The content of an inode in the metadata.
    fn content(&mut self, at: usize, head: usize, format: u16, size: usize, first: usize) -> Vec<u8> {
        let tail = if format == 5 { size % BLOCK } else { 0 };
        assert!(format == 1 || tail > 0);
        let inline = at..at + head + tail;
        assert_eq!(inline.start / BLOCK, (inline.end - 1) / BLOCK, "over the end of a block");
        let blocks = first * BLOCK..first * BLOCK + size - tail;
        let content = [&self.metadata[blocks.clone()], &self.metadata[at + head..inline.end]].concat();
        self.used.push(inline);
        if !blocks.is_empty() {
            self.used.push(blocks.start..blocks.end.next_multiple_of(BLOCK));
        }
        content
    }

    fn directory(
        &self,
        id: NodeId,
        number: u64,
        parent: u64,
        content: &[u8],
        left: &mut Vec<(NodeId, u64, u64)>,
    ) {
        let mut names: Vec<(&[u8], u64)> = Vec::new();
        for block in content.chunks(BLOCK) {
            let count = usize::from(u16::from_le_bytes([block[8], block[9]])) / 12;
            for at in 0..count {
                let head = |at: usize| &block[at * 12..][..12];
                let begin = |at| usize::from(u16::from_le_bytes([head(at)[8], head(at)[9]]));
                let end = if at + 1 < count { begin(at + 1) } else { block.len() };
                let name = &block[begin(at)..end];
                // Zeros fill the rest of a block.
                let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
                assert!(length == name.len() || at + 1 == count);
                let inode = u64::from_le_bytes(head(at)[..8].try_into().expect("8 bytes"));
                names.push((&name[..length], inode));
            }
        }
        assert!(names.windows(2).all(|two| two[0].0 < two[1].0), "names are not in order");
        let children = self.tree.children(id);
        for (dots, expected) in [(&b"."[..], number), (b"..", parent)] {
            let at = names.iter().position(|(name, _)| *name == dots);
            assert_eq!(names.remove(at.expect("the dots")).1, expected);
        }
        assert_eq!(names.len(), children.len());
        for ((name, inode), child) in names.into_iter().zip(children.iter().copied()) {
            assert_eq!(name, self.tree.name(child));
            left.push((child, inode, number));
        }
    }

    fn xattrs(&self, mut found: &[u8], expected: &[(Bytes, Bytes)]) {
        if found.is_empty() {
            assert!(expected.is_empty());
            return;
        }
        found = &found[12..];
        for (full_name, full_value) in expected {
            let (name, value) = (usize::from(found[0]), usize::from(u16::from_le_bytes([found[2], found[3]])));
            assert_eq!(found[1], 1, "user.");
            assert_eq!([b"user.", &found[4..4 + name]].concat(), *full_name);
            assert_eq!(found[4 + name..][..value], *full_value);
            found = &found[(4 + name + value).next_multiple_of(4)..];
        }
        assert!(found.is_empty());
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.metadata[at..][..2].try_into().expect("2 bytes"))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.metadata[at..][..4].try_into().expect("4 bytes"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.metadata[at..][..8].try_into().expect("8 bytes"))
    }
}

/// Noise, of which trees are made.
pub fn seeds() -> Vec<Vec<u8>> {
    let noise = |seed: u8| {
        let mut bytes = vec![0; 4_000];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    };
    (0..4).map(noise).collect()
}
