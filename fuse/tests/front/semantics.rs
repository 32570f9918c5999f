//! What applications see: nothing writes, locks are granted, times and attributes are the origin's.

use crate::fixture::{Fixture, python, run};
use crate::memory::Content;
use crate::skipping::{is_root, skipped};
use copperfs_fuse::{FileKind, Ino, Op, Timestamp};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

#[test]
fn every_write_is_refused_as_read_only() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.directory(Ino::ROOT, "d");
    });
    let said = python(
        fixture.root(),
        "import os, errno\n\
         def refused(what, *args, **kw):\n\
         \x20   try: what(*args, **kw)\n\
         \x20   except OSError as e: assert e.errno == errno.EROFS, (what, args, e)\n\
         \x20   else: raise SystemExit(f'{what} {args} was not refused')\n\
         refused(open, 'f', 'w'); refused(open, 'f', 'a'); refused(open, 'f', 'r+'); refused(open, 'new', 'w')\n\
         refused(os.open, 'f', os.O_RDONLY | os.O_TRUNC)\n\
         refused(os.mkdir, 'n'); refused(os.rmdir, 'd'); refused(os.unlink, 'f')\n\
         refused(os.rename, 'f', 'g'); refused(os.link, 'f', 'g'); refused(os.symlink, 'f', 'g')\n\
         refused(os.chmod, 'f', 0o600); refused(os.chown, 'f', 0, 0); refused(os.utime, 'f')\n\
         refused(os.truncate, 'f', 0); refused(os.mknod, 'n'); refused(os.mkfifo, 'n')\n\
         refused(os.setxattr, 'f', 'user.a', b'b'); refused(os.removexattr, 'f', 'user.a')\n\
         print(os.access('f', os.W_OK), os.access('f', os.R_OK))\n",
    );
    assert_eq!(said, "False True\n");
    assert_eq!(std::fs::read(fixture.path("f")).unwrap(), b"content");
}

/// After a remount as writable the kernel sends these requests to the daemon.
#[test]
fn every_write_is_refused_even_where_the_kernel_would_allow_it() {
    if !is_root() {
        return skipped("needs root");
    }
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.directory(Ino::ROOT, "d");
    });
    let remount = run(Command::new("mount")
        .args(["-i", "-o", "remount,rw"])
        .arg(fixture.root()));
    if !remount.status.success() {
        // The kernel or mount(8) cannot remount FUSE, so these requests never reach the daemon.
        return;
    }
    let said = python(
        fixture.root(),
        "import os, errno\n\
         def refused(what, *args):\n\
         \x20   try: what(*args)\n\
         \x20   except OSError as e: assert e.errno == errno.EROFS, (what, args, e)\n\
         \x20   else: raise SystemExit(f'{what} {args} was not refused')\n\
         refused(open, 'new', 'w'); refused(os.open, 'f', os.O_RDONLY | os.O_TRUNC)\n\
         refused(os.mkdir, 'n'); refused(os.rmdir, 'd'); refused(os.unlink, 'f')\n\
         refused(os.rename, 'f', 'g'); refused(os.link, 'f', 'g'); refused(os.symlink, 'f', 'g')\n\
         refused(os.chmod, 'f', 0o600); refused(os.chown, 'f', 0, 0); refused(os.utime, 'f')\n\
         refused(os.truncate, 'f', 0); refused(os.mknod, 'n')\n\
         refused(os.setxattr, 'f', 'user.a', b'b'); refused(os.removexattr, 'f', 'user.a')\n\
         w = os.open('f', os.O_RDWR)\n\
         refused(os.write, w, b'x'); refused(os.posix_fallocate, w, 0, 10)\n\
         print('refused')\n",
    );
    assert_eq!(said, "refused\n");
    assert!(fixture.requests(Op::Write) >= 15);
}

#[test]
fn locks_are_granted_by_the_kernel() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
    });
    let said = python(
        fixture.root(),
        "import fcntl, os, struct\n\
         f = open('f', 'rb')\n\
         fcntl.flock(f, fcntl.LOCK_SH); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); fcntl.flock(f, fcntl.LOCK_UN)\n\
         fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)\n\
         fcntl.fcntl(f, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))\n\
         fcntl.lockf(f, fcntl.LOCK_UN)\n\
         print('granted')\n",
    );
    assert_eq!(said, "granted\n");
    assert_eq!(fixture.requests(Op::Lock), 0);
}

#[test]
fn attributes_and_times_are_the_origins() {
    let fixture = Fixture::new(|memory| {
        let ino = memory.file(Ino::ROOT, "f", "content");
        memory.change(ino, |node| {
            node.attr.mode = 0o4751;
            node.attr.links = 3;
            node.attr.uid = 1234;
            node.attr.gid = 4321;
            node.attr.atime = Timestamp {
                seconds: -2,
                nanoseconds: 800_000_000,
            };
            node.attr.mtime = Timestamp {
                seconds: i64::from(u32::MAX) + 5,
                nanoseconds: 1,
            };
            node.attr.ctime = Timestamp {
                seconds: -86_400 * 365 * 80,
                nanoseconds: 0,
            };
            node.plus = true;
        });
        let again = memory.file(Ino::ROOT, "g", "");
        let attr = memory.change(ino, |node| node.attr);
        memory.change(again, |node| {
            node.attr = copperfs_fuse::Attr { ino: again, ..attr };
            node.plus = false;
        });
    });
    // One learned by a listing, one by a look-up.
    assert_eq!(std::fs::read_dir(fixture.root()).unwrap().count(), 2);
    for name in ["f", "g"] {
        let metadata = std::fs::metadata(fixture.path(name)).unwrap();
        assert_eq!(metadata.mode(), 0o104_751);
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.nlink()),
            (1234, 4321, 3)
        );
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (-2, 800_000_000));
        assert_eq!(
            (metadata.mtime(), metadata.mtime_nsec()),
            (4_294_967_300, 1)
        );
        assert_eq!(
            (metadata.ctime(), metadata.ctime_nsec()),
            (-86_400 * 365 * 80, 0)
        );
        assert_eq!(metadata.blksize(), 4096);
    }
    assert_eq!(fixture.requests(Op::Lookup), 1);
}

#[test]
fn symlinks_are_read_once() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", "content");
        memory.add(
            Ino::ROOT,
            "l",
            FileKind::Symlink,
            Content::Symlink("f".into()),
        );
    });
    for _ in 0..5 {
        assert_eq!(std::fs::read(fixture.path("l")).unwrap(), b"content");
        assert_eq!(
            std::fs::read_link(fixture.path("l")).unwrap().to_str(),
            Some("f")
        );
    }
    assert_eq!(fixture.requests(Op::Readlink), 1);
}

#[test]
fn extended_attributes_follow_the_protocol() {
    let fixture = Fixture::new(|memory| {
        let ino = memory.file(Ino::ROOT, "f", "content");
        memory.change(ino, |node| {
            node.xattrs = vec![
                ("user.small".into(), "value".into()),
                ("user.empty".into(), "".into()),
                ("user.big".into(), vec![b'b'; 60_000].into()),
            ];
        });
    });
    let said = python(
        fixture.root(),
        "import os, errno\n\
         assert os.listxattr('f') == ['user.small', 'user.empty', 'user.big'], os.listxattr('f')\n\
         assert os.getxattr('f', 'user.small') == b'value'\n\
         assert os.getxattr('f', 'user.empty') == b''\n\
         assert os.getxattr('f', 'user.big') == b'b' * 60000\n\
         try: os.getxattr('f', 'user.none')\n\
         except OSError as e: assert e.errno == errno.ENODATA, e\n\
         import ctypes\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         assert libc.getxattr(b'f', b'user.small', None, 0) == 5\n\
         buffer = ctypes.create_string_buffer(4)\n\
         assert libc.getxattr(b'f', b'user.small', buffer, 4) == -1 and ctypes.get_errno() == errno.ERANGE\n\
         assert libc.listxattr(b'f', buffer, 4) == -1 and ctypes.get_errno() == errno.ERANGE\n\
         assert libc.listxattr(b'f', None, 0) == 31\n\
         print('ok')\n",
    );
    assert_eq!(said, "ok\n");
}

#[test]
fn data_and_holes_are_found() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", vec![1; 100_000]);
    });
    let said = python(
        fixture.root(),
        "import os, errno\n\
         fd = os.open('f', os.O_RDONLY)\n\
         assert os.lseek(fd, 7, os.SEEK_DATA) == 7\n\
         assert os.lseek(fd, 7, os.SEEK_HOLE) == 50000\n\
         assert os.lseek(fd, 60000, os.SEEK_HOLE) == 60000\n\
         assert os.lseek(fd, -1, os.SEEK_END) == 99999\n\
         for offset, whence in ((60000, os.SEEK_DATA), (100000, os.SEEK_HOLE)):\n\
         \x20   try: os.lseek(fd, offset, whence)\n\
         \x20   except OSError as e: assert e.errno == errno.ENXIO, e\n\
         \x20   else: raise SystemExit('no error')\n\
         print('ok')\n",
    );
    assert_eq!(said, "ok\n");
}

#[test]
fn statfs_is_not_zero() {
    let fixture = Fixture::new(|_| {});
    let said = python(
        fixture.root(),
        "import os\ns = os.statvfs('.')\n\
         print(s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, s.f_frsize, s.f_namemax)\n",
    );
    assert_eq!(said, "1000 500 400 77 7 4096 4096 255\n");
}

#[test]
fn the_mount_is_a_read_only_copperfs_without_suid_and_devices() {
    let fixture = Fixture::new(|_| {});
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = fixture.root().to_str().unwrap();
    let line = text.lines().find(|line| line.contains(root)).unwrap();
    let flags = line.split(' ').nth(5).unwrap();
    for flag in ["ro", "nosuid", "nodev"] {
        assert!(flags.split(',').any(|f| f == flag), "{line}");
    }
    assert!(line.contains(" - fuse.copperfs copperfs ro,"), "{line}");
    assert!(line.ends_with("default_permissions"), "{line}");
}

#[test]
fn programs_run_from_the_mount() {
    let fixture = Fixture::new(|memory| {
        let script = memory.file(Ino::ROOT, "script", "#!/bin/sh\necho ran $1\n");
        let binary = memory.file(Ino::ROOT, "true", std::fs::read("/bin/true").unwrap());
        for ino in [script, binary] {
            memory.change(ino, |node| node.attr.mode = 0o755);
        }
    });
    let output = run(Command::new(fixture.path("script")).arg("well"));
    assert_eq!(output.stdout, b"ran well\n");
    assert!(
        run(&mut Command::new(fixture.path("true")))
            .status
            .success()
    );
}

#[test]
fn special_reads_and_fsync_are_harmless() {
    let fixture = Fixture::new(|memory| {
        memory.file(Ino::ROOT, "f", vec![7; 10_000]);
    });
    let file = std::fs::File::open(fixture.path("f")).unwrap();
    file.sync_all().unwrap();
    let mut bytes = [0; 100];
    assert_eq!(file.read_at(&mut bytes, 9_950).unwrap(), 50);
    assert_eq!(file.read_at(&mut bytes, 10_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut bytes, u64::from(u32::MAX)).unwrap(), 0);
    let copy = tempfile::NamedTempFile::new().unwrap();
    std::fs::copy(fixture.path("f"), copy.path()).unwrap();
    assert_eq!(std::fs::read(copy.path()).unwrap(), vec![7; 10_000]);
    assert_eq!(
        copy.path().metadata().unwrap().permissions().mode() & 0o777,
        0o644
    );
}
