//! Trees, layouts and the metadata; in `kernel`, what the kernel shows of it.

mod kernel;

use super::ahead::Ahead;
use super::extents::{Damaged, Extents, Piece, State, Step};
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
    let bytes = extents::encode(&tree, &layout, |_| state(), &[]);
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

/// A table of files of 1 MiB each, and the readers of it. A profile names the parts that are given as (file, part), with files
/// numbered from 1.
fn megabytes(count: u32, steps: &[(u32, u32)]) -> Ahead {
    let mut tree = tree();
    for number in 0..count {
        let name = Bytes::from(format!("{number:04}"));
        tree.add(NodeId::ROOT, name, inode(FileKind::File, 1 << 20))
            .unwrap();
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let step = |(file, part): &(u32, u32)| Step {
        file: NodeId::at(*file),
        part: *part,
    };
    let steps: Vec<_> = steps.iter().map(step).collect();
    let bytes = extents::encode(&tree, &layout, |_| state(), &steps);
    Ahead::new(&Extents::open(bytes).unwrap()).unwrap()
}

/// The files that are requested when the first byte of file number `file` is read, numbered from 0.
fn next(ahead: &mut Ahead, file: usize) -> Vec<usize> {
    let piece = Piece::File {
        file,
        offset: 0,
        len: 1,
    };
    let steps = ahead.on_read(&[piece, Piece::Zeros(7)]);
    steps.iter().map(|step| step.file).collect()
}

#[test]
fn a_profile_is_requested_ahead_in_its_order() {
    // The files 20 to 1, and not the others.
    let steps: Vec<_> = (1..=20).rev().map(|file| (file, 0)).collect();
    let mut ahead = megabytes(40, &steps);
    assert_eq!(next(&mut ahead, 30), [0; 0], "not in the profile");
    // The one that is read and seven behind it.
    let first = [19, 18, 17, 16, 15, 14, 13, 12];
    assert_eq!(next(&mut ahead, 19), first);
    assert_eq!(next(&mut ahead, 19), [0; 0], "they are on their way");
    assert_eq!(next(&mut ahead, 18), [0; 0]);
    assert_eq!(next(&mut ahead, 16), [11, 10, 9]);
    assert_eq!(next(&mut ahead, 30), [0; 0]);
    // The kernel reads ahead of its reader, which wants those in between too.
    let rest: Vec<usize> = (0..9).rev().collect();
    assert_eq!(next(&mut ahead, 1), rest);
    for file in 0..20 {
        assert_eq!(next(&mut ahead, file), [0; 0]);
    }
}

#[test]
fn a_reader_that_begins_far_behind_gets_nothing_before_it() {
    let steps: Vec<_> = (1..=200).map(|file| (file, 0)).collect();
    let mut ahead = megabytes(200, &steps);
    assert_eq!(next(&mut ahead, 0).len(), 8);
    let passed: Vec<usize> = (101..108).collect();
    assert_eq!(next(&mut ahead, 100), passed);
}

#[test]
fn only_the_named_parts_of_a_large_file_are_requested() {
    let mut tree = tree();
    let large = add(&mut tree, "large", FileKind::File, (9 << 20) + 1);
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let [end, first, seventh] = [9, 0, 7].map(|part| Step { file: large, part });
    let other = Step {
        file: NodeId::ROOT,
        part: 0,
    };
    let steps = [end, other, first, seventh];
    let bytes = extents::encode(&tree, &layout, |_| state(), &steps);
    let extents = Extents::open(bytes).unwrap();
    assert_eq!(extents.steps().count(), 3, "a directory has no content");
    let mut ahead = Ahead::new(&extents).unwrap();
    let mut parts = |range| {
        let pieces = extents.pieces(range).unwrap();
        let steps = ahead.on_read(&pieces).iter();
        steps.map(|step| step.part).collect::<Vec<_>>()
    };
    assert_eq!(parts(1 << 20..2 << 20), [0; 0]);
    assert_eq!(parts(0..100), [9, 0, 7]);
}

fn state() -> State {
    State {
        version: Version::of(b"one"),
        content: None,
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
    let steps = [Step {
        file: NodeId::at(3),
        part: 0,
    }];
    let bytes = extents::encode(&tree, &layout, |_| state(), &steps);
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
            drop(Ahead::new(&extents));
        }
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        if let Ok(extents) = Extents::open(bytes) {
            drop((extents.pieces(0..20_000), extents.file(0), extents.file(1)));
            drop(Ahead::new(&extents));
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
