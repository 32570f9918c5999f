//! Attributes are the origin's, and nothing can be written.

use crate::skip;
use crate::support::kernel::mount_at;
use crate::support::{Mount, Scratch, check, errno, is_root, python};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(atime),
        last_modification: time(mtime),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Everything that `lstat` says but for device and inode number, which are the mount's own.
fn attributes(path: &Path) -> impl PartialEq + std::fmt::Debug + use<> {
    let meta = fs::symlink_metadata(path).unwrap();
    // Whoever reads a link changes its access time, and copperfs has read it.
    let atime = if meta.is_symlink() {
        (0, 0)
    } else {
        (meta.atime(), meta.atime_nsec())
    };
    let times = [
        atime,
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ];
    let identity = (meta.mode(), meta.uid(), meta.gid(), meta.nlink());
    (
        identity,
        meta.size(),
        meta.blocks(),
        meta.blksize(),
        meta.rdev(),
        times,
    )
}

/// Mode, owner, size, links and times with nanoseconds, before 1970 too, of files, directories and
/// links: looked up one by one, and from a listing.
#[test]
fn attributes_are_the_origins() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let modes = [0o000, 0o400, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o1777];
    for (number, mode) in modes.into_iter().enumerate() {
        let file = origin.file(&format!("modes/{mode:o}"), vec![b'x'; number * 1000]);
        chown(&file, Some(1000 + mode), Some(2000 + mode)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    let moments = [
        (0, 0),
        (1, 1),
        (-1, 0),
        (-1, 999_999_999),
        (-86_400 * 365, 123_456_789),
        (1_700_000_000, 987_654_321),
        (5_000_000_000, 500_000_000),
    ];
    for (number, moment) in moments.into_iter().enumerate() {
        let file = origin.file(&format!("times/f{number}"), "x");
        set_times(&file, (moment.0 + 7, moment.1), moment);
        let dir = origin.dir(&format!("times/d{number}"));
        set_times(&dir, moment, moment);
        let link = origin.path().join(format!("times/l{number}"));
        symlink("f0", &link).unwrap();
        set_times(&link, moment, moment);
    }
    fs::hard_link(
        origin.path().join("modes/644"),
        origin.path().join("modes/twin"),
    )
    .unwrap();
    for plus in ["auto", "always"] {
        let mount = Mount::with(origin.path(), &["--readdir-plus", plus, "--push=off"]);
        for dir in ["modes", "times"] {
            for listed in [false, true] {
                let mut count = 0;
                for entry in fs::read_dir(origin.path().join(dir)).unwrap() {
                    let name = Path::new(dir).join(entry.unwrap().file_name());
                    let native = attributes(&origin.path().join(&name));
                    assert_eq!(
                        native,
                        attributes(&mount.path(&name)),
                        "{name:?}, listed: {listed}"
                    );
                    count += 1;
                }
                assert!(count >= modes.len());
                assert_eq!(fs::read_dir(mount.path(dir)).unwrap().count(), count);
            }
        }
        for dir in ["", "modes", "times"] {
            // Listing it has changed its access time.
            let about = |path: &Path| {
                let meta = fs::metadata(path).unwrap();
                let mtime = (meta.mtime(), meta.mtime_nsec());
                (meta.mode(), meta.nlink(), meta.size(), mtime)
            };
            assert_eq!(about(&origin.path().join(dir)), about(&mount.path(dir)));
        }
        assert_eq!(
            fs::read(mount.path("modes/twin")).unwrap(),
            vec![b'x'; 2000]
        );
    }
}

/// Where attributes do not come with a listing (it is long), they come one by one or in batches, and
/// are the same.
#[test]
fn attributes_of_a_long_directory_come_on_demand() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    for number in 0..300_u16 {
        let file = origin.file(&format!("dir/f{number}"), vec![b'x'; number.into()]);
        set_times(&file, (0, 0), (i64::from(number), 5));
    }
    origin.settle();
    let mount = Mount::with(origin.path(), &["--listing-attributes-max", "100"]);
    assert_eq!(fs::metadata(mount.path("dir/f7")).unwrap().len(), 7);
    let one = mount.stats();
    assert!(
        one.get("origin.stats") <= 2,
        "one stat asked, {} done",
        one.get("origin.stats")
    );
    for entry in fs::read_dir(mount.path("dir")).unwrap() {
        let name = Path::new("dir").join(entry.unwrap().file_name());
        assert_eq!(
            attributes(&origin.path().join(&name)),
            attributes(&mount.path(&name))
        );
    }
    let all = mount.stats();
    assert!(
        all.get("origin.stats") <= 302,
        "each once: {}",
        all.get("origin.stats")
    );
}

/// A `.pyc` stays valid: Python trusts the source's time and size as the mount shows them.
#[test]
fn compiled_python_stays_valid() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let source = origin.file("module.py", "VALUE = 5\n");
    set_times(&source, (0, 0), (1_600_000_000, 123_456_789));
    check(python().args(["-m", "compileall", "-q"]).arg(origin.path()));
    let mount = Mount::of(origin.path());
    let mut import = python();
    import
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env("PYTHONPATH", &mount.node.point);
    let finished =
        crate::support::run(import.args(["-S", "-v", "-c", "import module; print(module.VALUE)"]));
    assert_eq!(finished.text(), "5\n");
    let about: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| line.contains("/mnt/"))
        .collect();
    assert!(
        about.iter().any(|line| line.contains("matches")),
        "{about:#?}"
    );
    assert!(
        !about
            .iter()
            .any(|line| line.contains("wrote") || line.contains("could not create")),
        "{about:#?}"
    );
}

#[test]
fn extended_attributes_are_passed_through() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let file = origin.file("file", "x");
    if xattr::set(&file, "user.text", b"some text").is_err() {
        skip!("the temporary directory has no extended attributes");
    }
    xattr::set(&file, "user.binary", b"\0\xff\0").unwrap();
    xattr::set(&file, "user.empty", b"").unwrap();
    xattr::set(origin.path(), "user.top", b"of the mount").unwrap();
    // Only administrators may see it. The daemon runs as root and sees it, so without a filter all readers
    // would.
    xattr::set(&file, "trusted.secret", b"1").unwrap();
    let mount = Mount::of(origin.path());
    let mounted = mount.path("file");
    assert_eq!(xattr::get(&mounted, "trusted.secret").unwrap(), None);
    assert_eq!(
        xattr::get(&mounted, "user.text").unwrap().unwrap(),
        b"some text"
    );
    assert_eq!(
        xattr::get(&mounted, "user.binary").unwrap().unwrap(),
        b"\0\xff\0"
    );
    assert_eq!(xattr::get(&mounted, "user.empty").unwrap().unwrap(), b"");
    assert_eq!(xattr::get(&mounted, "user.none").unwrap(), None);
    assert_eq!(
        xattr::get(&mount.node.point, "user.top").unwrap().unwrap(),
        b"of the mount"
    );
    let names = |path: &Path| {
        let mut names: Vec<_> = xattr::list(path).unwrap().collect();
        names.sort();
        names
    };
    let mut everybodys = names(&file);
    everybodys.retain(|name| name != "trusted.secret");
    assert_eq!(names(&mounted), everybodys);
    assert_eq!(
        errno(xattr::set(&mounted, "user.text", b"other")),
        Errno::ROFS
    );
}

#[test]
fn statfs_tells_of_the_origins_filesystem() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let mount = Mount::of(origin.path());
    let native = rustix::fs::statvfs(origin.path()).unwrap();
    let mounted = rustix::fs::statvfs(&mount.node.point).unwrap();
    assert_eq!(
        mounted.f_blocks * mounted.f_frsize,
        native.f_blocks * native.f_frsize
    );
    assert_eq!(mounted.f_namemax, 255);
    assert!(mounted.f_blocks > 0 && mounted.f_bsize > 0 && mounted.f_files > 0);
}

#[test]
fn the_mount_is_read_only_without_set_user_id_and_devices() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let mount = Mount::with(origin.path(), &["--allow-other"]);
    let (options, kind) = mount_at(&mount.node.point).unwrap();
    assert_eq!(kind, "fuse.copperfs");
    let options: Vec<&str> = options.split(',').collect();
    for wanted in ["ro", "nosuid", "nodev"] {
        assert!(options.contains(&wanted), "{options:?}");
    }
}

/// Whatever would write says so, and is not answered with success.
#[test]
fn writes_answer_erofs() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("dir/file", "content");
    let mount = Mount::of(origin.path());
    let file = mount.path("dir/file");
    let other = mount.path("dir/other");
    let read_only = [
        ("create", errno(fs::File::create(&other).map(drop))),
        (
            "open to write",
            errno(fs::File::options().write(true).open(&file).map(drop)),
        ),
        (
            "open to append",
            errno(fs::File::options().append(true).open(&file).map(drop)),
        ),
        (
            "truncate",
            errno(
                fs::File::options()
                    .write(true)
                    .truncate(true)
                    .open(&file)
                    .map(drop),
            ),
        ),
        ("unlink", errno(fs::remove_file(&file))),
        ("rename", errno(fs::rename(&file, &other))),
        ("link", errno(fs::hard_link(&file, &other))),
        ("symlink", errno(symlink("file", &other))),
        ("mkdir", errno(fs::create_dir(&other))),
        ("rmdir", errno(fs::remove_dir(mount.path("dir")))),
        (
            "chmod",
            errno(fs::set_permissions(
                &file,
                fs::Permissions::from_mode(0o777),
            )),
        ),
        ("chown", errno(chown(&file, Some(1), Some(1)))),
    ];
    for (operation, number) in read_only {
        assert_eq!(number, Errno::ROFS, "{operation}");
    }
    let handle = fs::File::open(&file).unwrap();
    assert_eq!(errno(handle.write_at(b"x", 0)), Errno::BADF);
    assert_eq!(
        fs::read(origin.path().join("dir/file")).unwrap(),
        b"content"
    );
}

/// Sparse files read right, whatever is told of their holes, and a program that seeks by them gets
/// all the data.
#[test]
fn sparse_and_empty_files_read_right() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    origin.file("empty", "");
    let sparse = fs::File::create(origin.path().join("sparse")).unwrap();
    sparse.set_len(200 << 20).unwrap();
    sparse.write_at(b"in the middle", 100 << 20).unwrap();
    sparse.write_at(b"end", (200 << 20) - 3).unwrap();
    let mount = Mount::of(origin.path());
    assert_eq!(fs::read(mount.path("empty")).unwrap(), b"");
    let mounted = fs::File::open(mount.path("sparse")).unwrap();
    assert_eq!(mounted.metadata().unwrap().len(), 200 << 20);
    let mut piece = [1; 64];
    mounted.read_exact_at(&mut piece, (100 << 20) - 10).unwrap();
    assert_eq!(&piece[..24], b"\0\0\0\0\0\0\0\0\0\0in the middle\0");
    assert_eq!(mounted.read_at(&mut piece, (200 << 20) - 3).unwrap(), 3);
    assert_eq!(&piece[..3], b"end");
    assert_eq!(mounted.read_at(&mut piece, 200 << 20).unwrap(), 0);
    let copy = Scratch::new();
    crate::support::sh(
        "cp --sparse=always \"$1\" \"$3/copy\"; cmp \"$2\" \"$3/copy\"",
        &[
            &mount.path("sparse"),
            &origin.path().join("sparse"),
            &copy.path(),
        ],
    );
}
