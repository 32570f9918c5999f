//! Trees, layouts and the metadata; in `kernel`, what the kernel shows of it.

mod kernel;

use super::ahead::{Ahead, Next};
use super::extents::{Damaged, Extents, Piece, State};
use super::*;
use bytes::Bytes;
use copperfs_overlay::{FileKind, Timestamp, Version};

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

/// They are read on their own, so the kernel's read-ahead over small files must not meet them.
#[test]
fn large_files_lie_behind_small_ones() {
    let mut tree = tree();
    let first = add(&mut tree, "a", FileKind::File, LARGE_BYTES_MIN + 1);
    let small = add(&mut tree, "b", FileKind::File, LARGE_BYTES_MIN - 1);
    let wanted = add(&mut tree, "c", FileKind::File, LARGE_BYTES_MIN);
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[wanted]).unwrap();
    let positions = [small, wanted, first].map(|id| layout.position(id).unwrap());
    assert_eq!(positions, [0, LARGE_BYTES_MIN, 2 * LARGE_BYTES_MIN]);
}

#[test]
fn contents_lie_in_the_order_that_is_wanted() {
    let mut tree = tree();
    let small = add(&mut tree, "small", FileKind::File, 1);
    let large = add(&mut tree, "large", FileKind::File, 2 * BLOCK_BYTES + 1);
    let empty = add(&mut tree, "empty", FileKind::File, 0);
    let exact = add(&mut tree, "exact", FileKind::File, BLOCK_BYTES);
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[large, empty, large]).unwrap();
    let positions = [large, exact, small, empty].map(|id| layout.position(id));
    assert_eq!(positions, [Some(0), Some(3 * 4096), Some(4 * 4096), None]);
    assert_eq!(layout.size(), 5 * 4096);
    let bytes = extents::encode(&tree, &layout, |_| state());
    let extents = Extents::open(&bytes[..]).unwrap();
    assert_eq!((extents.size(), extents.count()), (5 * 4096, 3));
    let file = |file, offset, len| Piece::File { file, offset, len };
    assert_eq!(
        extents.pieces(2 * 4096 - 1..1 << 40).unwrap(),
        [
            file(0, 2 * 4096 - 1, 2),
            Piece::Zeros(4095),
            file(1, 0, 4096),
            file(2, 0, 1),
            Piece::Zeros(4095),
        ]
    );
    let zero = extents.pieces(3 * 4096 - 5..3 * 4096 - 4).unwrap();
    assert_eq!(zero, [Piece::Zeros(1)]);
    assert_eq!(extents.pieces(1 << 40..1 << 41).unwrap(), []);
    assert_eq!(extents.pieces(0..0).unwrap(), []);
    let small = extents.file(2).unwrap();
    assert_eq!((small.path.as_bytes(), small.size), (&b"small"[..], 1));
    assert_eq!(small.state, state());
    assert_eq!(extents.file(3), Err(Damaged));
}

/// A table of files of 1 MiB each, of which a profile names all bytes of the first `wanted`, but little of the second one.
fn megabytes(count: usize, wanted: u32) -> Vec<u8> {
    let mut tree = tree();
    for number in 0..count {
        let name = Bytes::from(format!("{number:04}"));
        tree.add(NodeId::ROOT, name, inode(FileKind::File, 1 << 20))
            .unwrap();
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let named = |id: NodeId| match u32::try_from(id.index()).unwrap() {
        2 if wanted >= 2 => 1,
        id if (1..=wanted).contains(&id) => 1 << 20,
        _ => 0,
    };
    extents::encode(&tree, &layout, |id| State {
        wanted: named(id),
        ..state()
    })
}

/// The files that are requested when the reader reads file number `file`, as (number, bytes).
fn next(ahead: &mut Ahead, file: usize, extents: &Extents<Vec<u8>>) -> Vec<(usize, u64)> {
    let end = extents.position(file) + (1 << 20);
    let next = ahead.on_read(end, file, extents);
    let number = |next: &Next| next.file.path.to_string()[1..].parse().unwrap();
    let next = next.unwrap();
    next.iter().map(|next| (number(next), next.bytes)).collect()
}

#[test]
fn files_of_a_profile_are_requested_ahead_in_its_order() {
    let extents = Extents::open(megabytes(40, 20)).unwrap();
    let mut ahead = Ahead::default();
    // Eight behind the first one. Of the second file the recorded program has read little.
    let first: Vec<_> = (1..9)
        .map(|file| {
            (
                file,
                if file == 1 {
                    copperfs_overlay::BLOCK_BYTES
                } else {
                    1 << 20
                },
            )
        })
        .collect();
    assert_eq!(next(&mut ahead, 0, &extents), first);
    assert_eq!(next(&mut ahead, 0, &extents), [], "they are on their way");
    assert_eq!(next(&mut ahead, 2, &extents), []);
    let more: Vec<_> = (9..12).map(|file| (file, 1 << 20)).collect();
    assert_eq!(next(&mut ahead, 3, &extents), more);
    // Up to the last one that it names.
    assert_eq!(next(&mut ahead, 18, &extents), [(19, 1 << 20)]);
    assert_eq!(next(&mut ahead, 19, &extents), []);
    assert_eq!(next(&mut ahead, 30, &extents), []);
}

fn state() -> State {
    State {
        version: Version::of(b"one"),
        content: None,
        wanted: 0,
    }
}

#[test]
fn files_are_found_by_their_place_below_the_top() {
    let mut tree = tree();
    let below = add(&mut tree, "below", FileKind::Directory, 0);
    let name = |name: &'static str| Bytes::from_static(name.as_bytes());
    let deep = tree.add(below, name("deep"), inode(FileKind::Directory, 0));
    let deep = deep.unwrap();
    for file in ["one", "two"] {
        tree.add(deep, name(file), inode(FileKind::File, 5000))
            .unwrap();
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let bytes = extents::encode(&tree, &layout, |_| state());
    let extents = Extents::open(&bytes[..]).unwrap();
    let paths = [0, 1].map(|file| extents.file(file).unwrap().path);
    assert_eq!(
        paths.map(|path| path.as_bytes().to_vec()),
        [b"below/deep/one".to_vec(), b"below/deep/two".to_vec()]
    );
    assert_eq!(extents.position(1), 8192);
    // Cut off or changed, it is refused, or shows other files; it ends the process never.
    for cut in 0..bytes.len() {
        if let Ok(extents) = Extents::open(&bytes[..cut]) {
            drop((extents.pieces(0..20_000), extents.file(0), extents.file(1)));
        }
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        if let Ok(extents) = Extents::open(bytes) {
            drop((extents.pieces(0..20_000), extents.file(0), extents.file(1)));
        }
    }
}

#[test]
fn a_tree_arrives_as_it_was_sent() {
    let mut tree = tree();
    let file = add(&mut tree, "z", FileKind::File, 7);
    let directory = add(&mut tree, "d", FileKind::Directory, 0);
    add(&mut tree, "l", FileKind::Symlink, 0);
    let mut other = inode(FileKind::File, 9000);
    other.xattrs = vec![xattr("user.a", 9)];
    let name = Bytes::from_static(b"f");
    let wanted = tree.add(directory, name, other).unwrap();
    let tree = tree.sorted().unwrap();
    let bytes = transfer::encode(&tree, &[wanted, file]);
    let (arrived, order) = transfer::decode(&bytes).unwrap();
    let image = |tree: &Tree, wanted: &[NodeId]| {
        let layout = Layout::new(tree, wanted).unwrap();
        write(tree, &layout).unwrap()
    };
    assert_eq!(image(&arrived, &order), image(&tree, &[wanted, file]));
    for cut in 0..bytes.len() {
        assert!(transfer::decode(&bytes[..cut]).is_err(), "{cut}");
    }
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
        |inode| inode.size = (8 << 40) + 1,
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

fn xattr(name: &'static str, bytes: usize) -> (Bytes, Bytes) {
    (Bytes::from_static(name.as_bytes()), vec![7; bytes].into())
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
    let layout = Layout::new(&tree, &[]).unwrap();
    let image = write(&tree, &layout).unwrap();
    let each = image.len() / tree.count();
    assert!(each <= 128, "{each} bytes for each of {}", tree.count());
    assert_eq!(image, write(&tree, &layout).unwrap());
}
