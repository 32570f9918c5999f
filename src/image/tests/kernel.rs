//! The kernel shows what the tree has.

#[path = "../../../tests/fixtures/skipping.rs"]
mod skipping;

use super::*;
use proptest::prelude::*;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An image at a mount point, with its data file.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts the image of `tree`. Returns `None`, after it has said so, if this user or this kernel cannot.
    fn new(tree: &Tree, layout: &Layout) -> Option<Self> {
        if !skipping::is_root() {
            skipping::skipped("images are mounted by root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let [image, point] = ["image", "mnt"].map(|name| dir.path().join(name));
        fs::write(&image, write(tree, layout).unwrap()).unwrap();
        // Each device has the contents that the kernel may read from it, and zeros in place of the others.
        let mut devices = [Vec::new(), Vec::new()];
        let extents = extents::encode(tree, layout, |_| state(), &[]);
        let extents = Extents::open(extents).unwrap();
        for piece in extents.pieces(0..layout.size()).unwrap() {
            let end = match piece {
                Piece::File { file, offset, len } => {
                    let (id, size) = layout.files()[file];
                    let device = &mut devices[usize::from(size >= LARGE_BYTES_MIN)];
                    device.extend((offset..offset + len).map(|at| content(id, at)));
                    device.len()
                }
                Piece::Zeros(len) => devices[0].len() + usize::try_from(len).unwrap(),
            };
            devices.iter_mut().for_each(|device| device.resize(end, 0));
        }
        let [small, large] = ["small", "large"].map(|name| dir.path().join(name));
        fs::write(&small, &devices[0]).unwrap();
        fs::write(&large, &devices[1]).unwrap();
        fs::create_dir(&point).unwrap();
        let options = [small, large].map(|device| format!("device={}", device.display()));
        let options = CString::new(options.join(",")).unwrap();
        let flags = MountFlags::RDONLY;
        match rustix::mount::mount(&image, &point, "erofs", flags, options.as_c_str()) {
            Ok(()) => Some(Self(dir)),
            Err(Errno::NODEV | Errno::NOTBLK) => {
                skipping::not_on_this_kernel("mounts no EROFS from files");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn point(&self) -> PathBuf {
        self.0.path().join("mnt")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(self.point(), UnmountFlags::empty()).unwrap();
    }
}

fn content(id: NodeId, at: u64) -> u8 {
    let number = u64::from(id.0) * 0x9E37_79B9 + at * 31 + (at >> 12);
    number.to_le_bytes()[1]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no name has it", |byte| !matches!(byte, 0 | b'/'));
    // Names around those of the dots, and long ones.
    let short = prop::collection::vec(byte, 1..4);
    let dots = prop::collection::vec(prop_oneof![Just(b'.'), Just(b'-'), Just(b'/' + 1)], 1..4);
    let long = (200_usize..256, b'a'..=b'z').prop_map(|(length, byte)| vec![byte; length]);
    let name = prop_oneof![3 => short, 1 => dots, 1 => long];
    name.prop_filter("the dots are there already", |name| {
        !matches!(&name[..], b"." | b"..")
    })
}

fn kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        6 => Just(FileKind::File),
        4 => Just(FileKind::Directory),
        2 => Just(FileKind::Symlink),
        1 => Just(FileKind::Fifo),
        1 => Just(FileKind::Socket),
        1 => Just(FileKind::CharDevice),
        1 => Just(FileKind::BlockDevice),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    // Large files take long to compare.
    prop_oneof![
        10 => Just(0),
        10 => 1..9000_u64,
        10 => Just(4096),
        10 => 8191..8194_u64,
        1 => LARGE_BYTES_MIN - 1..LARGE_BYTES_MIN + 2,
    ]
}

fn any_inode() -> impl Strategy<Value = Inode> {
    let owner = (0..0o10000_u16, any::<u32>(), any::<u32>(), 1..u32::MAX);
    let device = (0..4096_u32, 0..1_u32 << 20);
    let time = (-1_i64 << 40..1_i64 << 40, 0..1_000_000_000_u32);
    let target = prop_oneof![1..80_usize, 3900..4096_usize];
    let xattrs = prop::collection::btree_map(
        "[a-z]{1,12}",
        prop::collection::vec(any::<u8>(), 0..80),
        0..4,
    );
    (kind(), owner, device, time, target, xattrs, size()).prop_map(
        |(kind, (mode, uid, gid, links), (major, minor), time, target, xattrs, size)| Inode {
            kind,
            mode,
            // The kernel has no such owner.
            uid: uid.min(u32::MAX - 1),
            gid: gid.min(u32::MAX - 1),
            links,
            device: rustix::fs::makedev(major, minor),
            size,
            mtime: Timestamp {
                seconds: time.0,
                nanoseconds: time.1,
            },
            link_target: (kind == FileKind::Symlink).then(|| vec![b't'; target].into()),
            xattrs: xattrs
                .into_iter()
                // Users' attributes are for files and directories only.
                .filter(|_| matches!(kind, FileKind::File | FileKind::Directory))
                .map(|(name, value)| (format!("user.{name}").into(), value.into()))
                .collect(),
        },
    )
}

/// Entries, each with a number that selects its directory among those before it.
fn any_tree() -> impl Strategy<Value = Tree> {
    let few = prop::collection::vec((any::<prop::sample::Index>(), name(), any_inode()), 0..80);
    (any_inode(), few).prop_map(|(mut root, entries)| {
        root.kind = FileKind::Directory;
        root.link_target = None;
        let mut tree = Tree::new(root).unwrap();
        let mut directories = vec![NodeId::ROOT];
        let mut known = std::collections::BTreeSet::new();
        for (place, name, inode) in entries {
            let parent = *place.get(&directories);
            if !known.insert((parent, name.clone())) {
                continue;
            }
            let is_directory = inode.kind == FileKind::Directory;
            let id = tree.add(parent, name.into(), inode).unwrap();
            if is_directory {
                directories.push(id);
            }
        }
        tree.sorted().unwrap()
    })
}

#[track_caller]
fn compare(tree: &Tree, id: NodeId, path: &Path) {
    let (inode, found) = (tree.inode(id), fs::symlink_metadata(path).unwrap());
    let kind = rustix::fs::FileType::from_raw_mode(found.mode());
    let expected = match inode.kind {
        FileKind::File => rustix::fs::FileType::RegularFile,
        FileKind::Directory => rustix::fs::FileType::Directory,
        FileKind::Symlink => rustix::fs::FileType::Symlink,
        FileKind::Fifo => rustix::fs::FileType::Fifo,
        FileKind::Socket => rustix::fs::FileType::Socket,
        FileKind::CharDevice => rustix::fs::FileType::CharacterDevice,
        FileKind::BlockDevice => rustix::fs::FileType::BlockDevice,
    };
    assert_eq!(kind, expected, "{path:?}");
    assert_eq!(found.mode() & 0o7777, u32::from(inode.mode), "{path:?}");
    assert_eq!((found.uid(), found.gid()), (inode.uid, inode.gid));
    assert_eq!(found.nlink(), u64::from(inode.links));
    assert_eq!(
        (found.mtime(), found.mtime_nsec()),
        (inode.mtime.seconds, i64::from(inode.mtime.nanoseconds))
    );
    let names = xattrs(path);
    let expected = inode
        .xattrs
        .iter()
        .map(|(name, value)| (name.to_vec(), value.to_vec()));
    assert_eq!(names, expected.collect(), "{path:?}");
    match inode.kind {
        FileKind::File => {
            let bytes = fs::read(path).unwrap();
            assert_eq!(bytes.len() as u64, inode.size);
            assert!(
                (0..).zip(&bytes).all(|(at, byte)| *byte == content(id, at)),
                "{path:?}"
            );
        }
        FileKind::Symlink => {
            let target = fs::read_link(path).unwrap();
            assert_eq!(
                target.as_os_str().as_bytes(),
                inode.link_target.as_deref().unwrap()
            );
        }
        FileKind::CharDevice | FileKind::BlockDevice => assert_eq!(found.rdev(), inode.device),
        FileKind::Directory => {
            let children = tree.children(id);
            let names = fs::read_dir(path)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_vec());
            let names: Vec<Vec<u8>> = names.collect();
            let expected = children.iter().map(|child| tree.name(*child).to_vec());
            assert_eq!(names, expected.collect::<Vec<_>>(), "{path:?}");
            for child in children {
                compare(
                    tree,
                    *child,
                    &path.join(OsStr::from_bytes(tree.name(*child))),
                );
            }
            assert!(fs::symlink_metadata(path.join("\u{1}no such name")).is_err());
            assert_eq!(
                fs::symlink_metadata(path.join(".")).unwrap().ino(),
                found.ino()
            );
        }
        FileKind::Fifo | FileKind::Socket => {}
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split_inclusive(|byte| *byte == 0);
    let value = |name: &[u8]| {
        let name = CStr::from_bytes_with_nul(name).unwrap();
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        (name.to_bytes().to_vec(), value[..length].to_vec())
    };
    names.map(value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn an_image_shows_its_tree(tree in any_tree(), wanted in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let wanted = wanted.iter().map(|at| NodeId::at(u32::try_from(at.index(tree.count())).unwrap()));
        let wanted: Vec<_> = wanted.collect();
        let layout = Layout::new(&tree, &wanted).unwrap();
        if let Some(mounted) = Mounted::new(&tree, &layout) {
            compare(&tree, NodeId::ROOT, &mounted.point());
        }
    }
}

/// The checker of erofs-utils reads each file.
#[test]
fn fsck_finds_nothing() {
    if !skipping::has_program("fsck.erofs") {
        return skipping::skipped("fsck.erofs is not installed (Debian: erofs-utils)");
    }
    let mut tree = tree();
    for number in 0..500 {
        let name = format!("directory{number:->90}").into();
        let directory = tree
            .add(NodeId::ROOT, name, inode(FileKind::Directory, 0))
            .unwrap();
        for number in 0..number {
            let kind = [FileKind::File, FileKind::Symlink, FileKind::Fifo][number % 3];
            let name = format!("file{number:x>30}").into();
            let id = tree
                .add(directory, name, inode(kind, number as u64 * 100))
                .unwrap();
            assert_eq!(tree.parent(id), directory);
        }
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let Some(mounted) = Mounted::new(&tree, &layout) else {
        return;
    };
    // Both in one file, as blocks are numbered: older versions of it read nothing from the second one.
    let [image, small, both] = ["image", "small", "both"].map(|name| mounted.0.path().join(name));
    fs::write(
        &both,
        [fs::read(image).unwrap(), fs::read(&small).unwrap()].concat(),
    )
    .unwrap();
    let mut fsck = std::process::Command::new("fsck.erofs");
    let device = format!("--device={}", small.display());
    fsck.args(["--extract", &device, &device]);
    let done = fsck.arg(both).output();
    let done = done.unwrap();
    let said = String::from_utf8_lossy(&done.stderr) + String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
}

/// Also names that fill blocks, and look-ups among them.
#[test]
fn a_directory_of_many_entries() {
    let mut tree = tree();
    for number in 0..200_000_u32 {
        let name = format!(
            "{:x<width$}{number}",
            "n",
            width = usize::try_from(number % 90).unwrap() + 1
        );
        tree.add(NodeId::ROOT, name.into(), inode(FileKind::File, 1))
            .unwrap();
    }
    let tree = tree.sorted().unwrap();
    let layout = Layout::new(&tree, &[]).unwrap();
    let Some(mounted) = Mounted::new(&tree, &layout) else {
        return;
    };
    let found = fs::read_dir(mounted.point()).unwrap().count();
    assert_eq!(found, 200_000);
    for id in (1..200_000).step_by(997).map(NodeId) {
        let path = mounted.point().join(OsStr::from_bytes(tree.name(id)));
        assert_eq!(fs::read(path).unwrap(), [content(id, 0)]);
    }
}
