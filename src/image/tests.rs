//! Trees, layouts and the metadata; in `kernel`, what the kernel shows of it.

mod kernel;

use super::*;
use bytes::Bytes;
use copperfs_overlay::{FileKind, Timestamp};

fn inode(kind: FileKind, size: u64) -> Inode {
    Inode {
        kind,
        mode: 0o755,
        uid: 1,
        gid: 2,
        links: 1,
        device: 0,
        size,
        mtime: Timestamp {
            seconds: -5,
            nanoseconds: 7,
        },
        link_target: (kind == FileKind::Symlink).then(|| Bytes::from_static(b"target")),
        xattrs: Vec::new(),
    }
}

fn tree() -> Tree {
    Tree::new(inode(FileKind::Directory, 0)).unwrap()
}

fn add(tree: &mut Tree, name: &'static str, kind: FileKind, size: u64) -> NodeId {
    let name = Bytes::from_static(name.as_bytes());
    tree.add(NodeId::ROOT, name, inode(kind, size)).unwrap()
}

#[test]
fn contents_lie_in_the_order_that_is_wanted() {
    let mut tree = tree();
    let small = add(&mut tree, "small", FileKind::File, 1);
    let large = add(&mut tree, "large", FileKind::File, 2 * BLOCK_BYTES + 1);
    let empty = add(&mut tree, "empty", FileKind::File, 0);
    let exact = add(&mut tree, "exact", FileKind::File, BLOCK_BYTES);
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, [large, empty, large]).unwrap();
    let positions = [large, exact, small, empty].map(|id| layout.position(id));
    assert_eq!(positions, [Some(0), Some(3 * 4096), Some(4 * 4096), None]);
    assert_eq!(layout.size(), 5 * 4096);
    let pieces: Vec<Piece> = layout.pieces(2 * 4096 - 1..1 << 40).collect();
    let file = |id, offset, len| Piece::File { id, offset, len };
    assert_eq!(
        pieces,
        [
            file(large, 2 * 4096 - 1, 2),
            Piece::Zeros(4095),
            file(exact, 0, 4096),
            file(small, 0, 1),
            Piece::Zeros(4095),
        ]
    );
    assert_eq!(
        layout
            .pieces(3 * 4096 - 5..3 * 4096 - 4)
            .collect::<Vec<_>>(),
        [Piece::Zeros(1)]
    );
    assert_eq!(layout.pieces(1 << 40..1 << 41).count(), 0);
}

#[test]
fn the_kernels_parser_gets_no_name_or_attribute_that_it_does_not_expect() {
    let mut tree = tree();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        let name = Bytes::copy_from_slice(name);
        let refused = tree.add(NodeId::ROOT, name.clone(), inode(FileKind::File, 1));
        assert_eq!(refused, Err(ImageError::Name(name)));
    }
    let file = add(&mut tree, "file", FileKind::File, 1);
    let below = tree.add(file, Bytes::from_static(b"x"), inode(FileKind::File, 1));
    assert!(matches!(below, Err(ImageError::NoDirectory(_))));
    let wrong: [fn(&mut Inode); 7] = [
        |inode| inode.size = 1 << 63,
        |inode| inode.mtime.nanoseconds = 1_000_000_000,
        |inode| inode.kind = FileKind::Symlink,
        |inode| {
            inode.kind = FileKind::Symlink;
            inode.link_target = Some(Bytes::from_static(b"a\0b"));
        },
        |inode| {
            inode.kind = FileKind::CharDevice;
            inode.device = rustix::fs::makedev(1 << 12, 0);
        },
        |inode| inode.xattrs = vec![xattr("other.name", 1)],
        |inode| inode.xattrs = vec![xattr("user.large", 4096)],
    ];
    for change in wrong {
        let mut inode = inode(FileKind::File, 1);
        change(&mut inode);
        let refused = tree.add(NodeId::ROOT, Bytes::from_static(b"n"), inode);
        assert!(
            matches!(refused, Err(ImageError::Attributes { .. })),
            "{refused:?}"
        );
    }
    add(&mut tree, "twice", FileKind::Fifo, 0);
    add(&mut tree, "twice", FileKind::Fifo, 0);
    assert!(matches!(tree.sorted(), Err(ImageError::Twice(_))));
}

fn xattr(name: &'static str, bytes: usize) -> Xattr {
    Xattr {
        name: Bytes::from_static(name.as_bytes()),
        value: vec![7; bytes].into(),
    }
}

/// A software tree: the mean directory has 12 files, names have 14 bytes.
#[test]
fn an_entry_takes_at_most_128_bytes() {
    const FILES: u32 = 12;
    let mut tree = tree();
    for directory in 0..2_000_u32 {
        let name = format!("directory{directory:05}").into();
        let directory = tree
            .add(NodeId::ROOT, name, inode(FileKind::Directory, 0))
            .unwrap();
        for file in 0..FILES {
            let name = format!("__file{file:05}.py").into();
            tree.add(directory, name, inode(FileKind::File, 1000))
                .unwrap();
        }
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, []).unwrap();
    let image = write(&tree, &layout).unwrap();
    let each = image.len() / tree.count();
    assert!(each <= 128, "{each} bytes for each of {}", tree.count());
    assert_eq!(image, write(&tree, &layout).unwrap());
}
