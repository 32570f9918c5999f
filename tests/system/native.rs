//! Images over directories of the mount (`--front`): they show what FUSE shows, at the speed of the kernel.

use crate::silent_files::SilentFiles;
use crate::skipping::not_on_this_kernel;
use crate::support::command::as_user;
use crate::support::fixture::{NOBODY, checksums, files_with_rights, noise};
use crate::support::kernel::{anonymous_bytes, signal};
use crate::support::takeover::{Daemons, processes};
use crate::support::{
    Mount, Scratch, Tree, check, copperfs, errno, eventually, is_root, program_for_all, python,
    run, within,
};
use copperfs_fuse::mountinfo;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// A file that an image of the mount is read from. Only the attendant reaches it, and root by the attendant's descriptors.
fn image_file(mount: &Mount, name: &str) -> PathBuf {
    let [attendant] = processes("attend", &mount.point)[..] else {
        panic!("not one attendant")
    };
    let files = fs::read_dir(format!("/proc/{attendant}/fd")).unwrap();
    let mut files = files.map(|file| file.unwrap().path().join(name));
    let found = files.find(|file| fs::metadata(file).is_ok());
    found.expect("the attendant has the filesystem with the files")
}

/// Reads counters by ioctl.
const STATS_EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuse/examples/stats.py");

/// An origin with an index beside it.
struct Indexed {
    origin: Scratch,
    index: PathBuf,
    _beside: Scratch,
}

impl Indexed {
    fn new(fill: impl FnOnce(&Scratch)) -> Self {
        let (origin, beside) = (Scratch::new(), Scratch::new());
        fill(&origin);
        let index = beside.path().join("index");
        let this = Self {
            origin,
            index,
            _beside: beside,
        };
        this.origin.settle();
        this.make();
        this
    }

    /// Makes the index, again if there is one.
    fn make(&self) {
        let mut build = copperfs(["index", "build", "--force", "-o"]);
        check(build.arg(&self.index).arg(self.origin.path()));
    }

    fn flags(&self) -> Vec<String> {
        vec![
            format!("--origin=/lus=file://{}", self.origin.path().display()),
            format!("--index=/lus=file://{}", self.index.display()),
        ]
    }

    fn mount(&self, flags: &[&str]) -> Mount {
        let own = self.flags();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        Mount::serving(&[&own[..], flags].concat())
    }
}

/// Whether images can be mounted here.
fn has_images() -> bool {
    if !is_root() {
        crate::skipping::skipped("images are mounted by root");
        return false;
    }
    let one = Indexed::new(|origin| drop(origin.file("x", "x")));
    let mount = one.mount(&["--front=auto"]);
    let reason = images(&mount)[0]["why_not"].as_str().map(str::to_owned);
    if reason
        .as_deref()
        .is_some_and(|reason| reason.contains("this kernel"))
    {
        not_on_this_kernel("mounts no EROFS from files");
        return false;
    }
    assert_eq!(reason, None);
    true
}

/// What the daemon says of its images.
#[track_caller]
fn images(mount: &Mount) -> Vec<Value> {
    let mut ask = copperfs(["api", "GET", "/v1/images", "--mount"]);
    let answer: Value = serde_json::from_str(&check(ask.arg(&mount.point))).unwrap();
    answer["images"].as_array().unwrap().clone()
}

/// Whether the kernel has an image of `path`, as the kernel says.
fn is_native(path: &Path) -> bool {
    let mounts = mountinfo::read().unwrap();
    let natives = mountinfo::natives(&mounts, path);
    natives.iter().any(|native| native.mountpoint == path)
}

#[track_caller]
fn becomes_native(path: &Path) {
    eventually(SOON, "the kernel has an image", || is_native(path));
}

/// Files of all kinds.
fn all_kinds(origin: &Scratch) {
    let path = |name: &str| origin.path().join(name);
    files_with_rights(origin);
    origin.file("empty", "");
    origin.file("one", "1");
    origin.file("page", noise(1, 4096));
    origin.file("deep/er/and/deeper/large", noise(2, 3_000_001));
    origin.file("deep/small", noise(3, 20_000));
    origin.hole("hole", 1 << 20, &[300_000]);
    origin.dir("empty-directory");
    for number in 0..1200 {
        origin.file(&format!("many/file-{number:04}"), format!("{number}"));
    }
    let odd = OsStr::from_bytes(b"deep/\xff \n\\odd");
    fs::write(origin.path().join(odd), "odd").unwrap();
    fs::write(path(&format!("deep/{}", "n".repeat(255))), "long").unwrap();
    fs::hard_link(path("one"), path("deep/hard")).unwrap();
    symlink("deep/small", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    symlink(path("deep"), path("absolute")).unwrap();
    symlink("/usr/bin/env", path("outside")).unwrap();
    let make = |name: &str, kind, device| {
        mknodat(CWD, path(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make(
        "device",
        FileType::CharacterDevice,
        rustix::fs::makedev(1, 3),
    );
    xattr::set(path("one"), "user.one", b"value").unwrap();
    xattr::set(path("deep"), "user.of-directory", b"\0binary").unwrap();
    let odd_mode = fs::Permissions::from_mode(0o4751);
    fs::set_permissions(path("page"), odd_mode).unwrap();
    let old = rustix::fs::Timespec {
        tv_sec: -5,
        tv_nsec: 999_999_999,
    };
    let times = rustix::fs::Timestamps {
        last_access: old,
        last_modification: old,
    };
    let follow = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(CWD, path("empty"), &times, follow).unwrap();
}

/// What `stat`, `readdir`, `readlink` and `listxattr` show, but for what docs/SEMANTICS.md lists: the size of directories.
fn looks(root: &Path) -> String {
    let script = "find . -printf '%p %y %m %U %G %n %T@ %l ' \\( -type d -printf '\\n' -o -printf '%s\\n' \\) | sort;
        find . -print0 | sort -z | xargs -0 getfattr -h -d -m - --absolute-names";
    check(Command::new("bash").args(["-c", script]).current_dir(root))
}

/// The same names, attributes, targets, extended attributes and contents; and the daemon is asked for bytes alone.
#[test]
fn an_image_shows_what_fuse_shows() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(all_kinds);
    let fuse = indexed.mount(&[]);
    let erofs = indexed.mount(&["--front=erofs"]);
    assert!(is_native(&erofs.path("lus")) && !is_native(&fuse.path("lus")));
    assert_eq!(images(&erofs)[0]["image"], 1);
    assert!(images(&fuse).is_empty());
    // The threads of another FUSE connection have buffers of 16 MiB each, of which they use a page.
    let [more, less] = [&erofs, &fuse].map(|mount| anonymous_bytes(mount.pid));
    assert!(more < less + (8 << 20), "{more} bytes, by FUSE {less}");
    let status = |mount: &Mount| check(copperfs(["status"]).arg(&mount.point));
    assert!(status(&erofs).ends_with("\n\n/lus: the kernel has an image\n"));
    assert!(!status(&fuse).contains("/lus"));
    let before = erofs.stats();
    assert_eq!(looks(&erofs.path("lus")), looks(&fuse.path("lus")));
    let after = erofs.stats();
    for message in [
        "lookup",
        "getattr",
        "readdirplus",
        "readlink",
        "getxattr",
        "listxattr",
    ] {
        let key = format!("fuse.software.requests.{message}");
        // The way to the directory itself.
        assert!(after.since(&before, &key) <= 2, "{key}");
    }
    let expected = checksums(indexed.origin.path());
    assert_eq!(checksums(&erofs.path("lus")), expected);
    let bytes = erofs.stats().get("origin.read_bytes");
    let stored: u64 = check(
        Command::new("find")
            .arg(indexed.origin.path())
            .args(["-type", "f", "-printf", "%s\\n"]),
    )
    .lines()
    .map(|size| size.parse::<u64>().unwrap())
    .sum();
    assert!(bytes <= stored + (1 << 20), "{bytes} of {stored}");
    assert_eq!(errno(fs::metadata(erofs.path("lus/none"))), Errno::NOENT);
    assert_eq!(errno(fs::write(erofs.path("lus/new"), "x")), Errno::ROFS);
    assert_eq!(errno(File::open(erofs.path("lus/device"))), Errno::ACCESS);
    assert_eq!(
        fs::read_link(erofs.path("lus/absolute")).unwrap(),
        fs::read_link(fuse.path("lus/absolute")).unwrap()
    );
}

/// Every difference of the sheet in docs/SEMANTICS.md.
#[test]
fn the_differences_to_fuse_are_those_of_the_sheet() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| {
        origin.file("b", noise(1, 5000));
        origin.file("a", "a");
        origin.file("d/e", "e");
    });
    let fuse = indexed.mount(&[]);
    let erofs = indexed.mount(&["--front=erofs"]);
    let of =
        |mount: &Mount, name: &str| fs::symlink_metadata(mount.path("lus").join(name)).unwrap();
    let (image, ordinary) = (of(&erofs, "b"), of(&fuse, "b"));
    // Another filesystem, with small numbers of inodes that the next image gives to other files.
    assert_ne!(image.dev(), of(&erofs, "..").dev());
    assert_eq!(ordinary.dev(), of(&fuse, "..").dev());
    assert!(image.ino() < 1000 && ordinary.ino() > 1 << 16);
    // Storage's allocation and times but for the last write are not known to it.
    assert_eq!((image.blocks(), image.blksize()), (16, 4096));
    let times = |meta: &fs::Metadata| {
        [
            (meta.atime(), meta.atime_nsec()),
            (meta.ctime(), meta.ctime_nsec()),
        ]
    };
    assert_eq!(times(&image), [(image.mtime(), image.mtime_nsec()); 2]);
    assert_eq!(of(&erofs, "d").len(), 40);
    // In the order of their bytes.
    let listed = fs::read_dir(erofs.path("lus")).unwrap();
    let names: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a", "b", "d"]);
    // Neither the space nor the names of storage.
    let usage = rustix::fs::statfs(erofs.path("lus")).unwrap();
    assert_eq!(usage.f_bavail, 0);
    // A file that has changed at the origin.
    fs::write(indexed.origin.path().join("b"), noise(2, 6000)).unwrap();
    assert_eq!(errno(fs::read(fuse.path("lus/b"))), Errno::STALE);
    assert_eq!(errno(fs::read(erofs.path("lus/b"))), Errno::IO);
    eventually(SOON, "the log says so", || {
        erofs.log().contains("changed since it was indexed")
    });
    assert_eq!(images(&erofs)[0]["changed"], serde_json::json!(["/lus/b"]));
    let said = check(copperfs(["status"]).arg(&erofs.point));
    assert!(
        said.contains("changed since it was indexed: /lus/b"),
        "{said}"
    );
    assert_eq!(fs::read(erofs.path("lus/a")).unwrap(), b"a");
    assert_eq!(fs::read(erofs.path("lus/d/e")).unwrap(), b"e");
    // Another status: the image shows the one that was indexed.
    let before = of(&erofs, "a").mode();
    let mode = fs::Permissions::from_mode(0o444);
    fs::set_permissions(indexed.origin.path().join("a"), mode).unwrap();
    assert_eq!(fs::read(erofs.path("lus/a")).unwrap(), b"a");
    assert_eq!(of(&erofs, "a").mode(), before);
    // Only the mount itself takes ioctls.
    let ioctl = |path: &Path| {
        let mut reader = python();
        run(reader.arg(STATS_EXAMPLE).arg(path))
    };
    assert!(ioctl(&fuse.path("lus/a")).status.success());
    assert!(ioctl(&erofs.path("")).status.success());
    let refused = ioctl(&erofs.path("lus/a"));
    assert!(refused.stderr.contains("[Errno 25]"), "{refused:?}");
}

/// `clear` shows the index as it is then. Open files and mappings stay, and a third image waits until they are closed.
#[test]
fn clear_makes_another_image_and_open_files_keep_theirs() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| drop(origin.file("file", "generation 1")));
    let mount = indexed.mount(&["--front=erofs"]);
    let file = mount.path("lus/file");
    let mut open = Vec::new();
    for generation in 2..5 {
        // After that FUSE serves the directory, whose open files have the bytes that the caches have.
        if generation < 4 {
            open.push(File::open(&file).unwrap());
        }
        let text = format!("generation {generation}");
        // Another file, as installers write it: the open one is not changed.
        let new = indexed.origin.file("new", &text);
        let before = fs::read(&file).unwrap();
        fs::rename(new, indexed.origin.path().join("file")).unwrap();
        indexed.origin.settle();
        indexed.make();
        mount.clear("/lus");
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        for (number, open) in (1..).zip(&open) {
            let mut bytes = vec![0; before.len()];
            open.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, format!("generation {number}").as_bytes());
        }
        if generation == 2 {
            becomes_native(&mount.path("lus"));
        }
    }
    eventually(SOON, "a third image waits", || {
        let why = images(&mount)[0]["why_not"].to_string();
        why.contains("two earlier images")
    });
    assert!(!is_native(&mount.path("lus")));
    drop(open);
    becomes_native(&mount.path("lus"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "generation 4");
}

/// Another daemon takes over the data file of the image, which the kernel goes on to read.
#[test]
fn a_successor_serves_the_image_of_its_predecessor() {
    if !has_images() {
        return;
    }
    let content = noise(7, 5_000_000);
    let indexed = Indexed::new(|origin| drop(origin.file("large", &content)));
    let mount = indexed.mount(&["--front=erofs"]);
    let mut file = File::open(mount.path("lus/large")).unwrap();
    let mut bytes = vec![0; 1_000_000];
    file.read_exact(&mut bytes).unwrap();
    let mut daemons = Daemons::of(&mount);
    for _ in 0..2 {
        daemons.kill();
        assert!(is_native(&mount.path("lus")));
    }
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == content, "other bytes");
    eventually(SOON, "the attendant is back", || {
        images(&mount)[0]["image"] == 1
    });
    mount.clear("/lus");
    becomes_native(&mount.path("lus"));
    assert!(fs::read(mount.path("lus/large")).unwrap() == content);
    eventually(SOON, "another image", || images(&mount)[0]["image"] == 2);
    check(copperfs(["unmount"]).arg(&mount.point));
    eventually(SOON, "no attendant stays", || {
        processes("attend", &mount.point).is_empty()
    });
    daemons.are_gone();
}

/// Without a successor the image goes with the daemon, and nothing wrong is read.
#[test]
fn the_image_of_a_dead_daemon_is_taken_away() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| drop(origin.file("large", noise(7, 5_000_000))));
    let mount = indexed.mount(&["--front=erofs", "--no-takeover"]);
    let cached = fs::read(mount.path("lus/large")).unwrap();
    assert_eq!(cached.len(), 5_000_000);
    mount.kill();
    eventually(SOON, "no image", || !is_native(&mount.path("lus")));
    assert_eq!(errno(fs::read(mount.path("lus/large"))), Errno::NOTCONN);
    eventually(SOON, "no attendant", || {
        processes("attend", &mount.point).is_empty()
    });
    check(copperfs(["unmount"]).arg(&mount.point));
    assert!(!mount.is_mounted());
}

/// A daemon may die while the attendant or the kernel waits for it, and before it has said that it serves the connection.
#[test]
fn a_daemon_dies_while_an_image_is_mounted() {
    if !has_images() {
        return;
    }
    let content = noise(3, 3 << 20);
    let indexed = Indexed::new(|origin| drop(origin.file("large", &content)));
    let scratch = Scratch::new();
    // The attendant opens three files of an image, then the kernel two. So these are files of the second image.
    for (by, visit) in [("attendant", 6), ("kernel", 9)] {
        let plan = scratch.file(by, format!("images.open={visit}\nimages.served=1\n"));
        let mount = |name: &str, flags: &[&str]| {
            let mut mount = copperfs(["mount", "--front=erofs"]);
            mount.env("COPPERFS_FAILPOINTS", &plan);
            mount.args(indexed.flags()).args(flags);
            Mount::at(&scratch.dir(&format!("{by}-{name}")), &mut mount)
        };
        let served = mount("served", &[]);
        served.clear("/lus");
        let daemons = Daemons::of(&served);
        eventually(SOON, "two daemons die", || {
            let died = fs::read_to_string(plan.with_added_extension("died"));
            died.is_ok_and(|died| died.lines().count() == 2)
        });
        becomes_native(&served.path("lus"));
        assert!(fs::read(served.path("lus/large")).unwrap() == content);
        check(copperfs(["unmount"]).arg(&served.point));
        daemons.are_gone();
        // No successor comes, and no process waits for ever.
        fs::write(&plan, format!("images.open={visit}\n")).unwrap();
        let alone = mount("alone", &["--no-takeover"]);
        drop(run(alone.clearing("/lus").arg("--this-node")));
        eventually(SOON, "no attendant", || {
            let words = ["attend", "keep"];
            let mut words = words.iter();
            words.all(|word| processes(word, &alone.point).is_empty())
        });
        assert_eq!(errno(fs::read(alone.path("lus/large"))), Errno::NOTCONN);
        check(copperfs(["unmount"]).arg(&alone.point));
    }
}

/// The process that keeps the connection of an image may be killed, and then the daemon.
#[test]
fn an_image_whose_connection_is_lost_is_replaced() {
    if !has_images() {
        return;
    }
    let content = noise(3, 300_000);
    let indexed = Indexed::new(|origin| {
        for name in ["before", "between", "after"] {
            origin.file(name, &content);
        }
    });
    let mount = indexed.mount(&["--front=erofs"]);
    let read = |name: &str| fs::read(mount.path("lus").join(name));
    assert!(read("before").unwrap() == content);
    let [keeper] = processes("keep", &mount.point)[..] else {
        panic!("not one keeper")
    };
    signal(keeper, Signal::KILL);
    assert!(read("between").unwrap() == content);
    let mut daemons = Daemons::of(&mount);
    daemons.kill();
    eventually(SOON, "another image", || {
        images(&mount)[0]["image"].as_u64() == Some(2)
    });
    assert!(read("after").unwrap() == content);
}

/// Another attendant follows one that was killed, and the image of the first one is replaced.
#[test]
fn another_attendant_follows_a_killed_one() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| drop(origin.file("file", "content")));
    let mount = indexed.mount(&["--front=erofs"]);
    let [attendant] = processes("attend", &mount.point)[..] else {
        panic!("not one attendant")
    };
    signal(attendant, Signal::KILL);
    assert_eq!(fs::read(mount.path("lus/file")).unwrap(), b"content");
    eventually(SOON, "another one", || {
        processes("attend", &mount.point)
            .first()
            .is_some_and(|now| *now != attendant)
    });
    eventually(SOON, "a new image", || images(&mount)[0]["image"] == 2);
    assert!(is_native(&mount.path("lus")));
    assert_eq!(fs::read(mount.path("lus/file")).unwrap(), b"content");
    // An image that was unmounted by hand stays away until `clear`.
    check(Command::new("umount").arg(mount.path("lus")));
    assert_eq!(fs::read(mount.path("lus/file")).unwrap(), b"content");
    mount.clear("/lus");
    becomes_native(&mount.path("lus"));
}

/// An image over all of the mount, whose commands still reach the daemon; and a mount in use is not unmounted.
#[test]
fn an_image_of_the_whole_mount() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| {
        origin.file("dir/file", "content");
        origin.file("secret", "secret");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(origin.path().join("secret"), mode).unwrap();
    });
    let flags: Vec<String> = indexed
        .flags()
        .iter()
        .map(|flag| flag.replace("/lus=", "/="))
        .collect();
    let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    flags.push("--front=erofs");
    let alone = Scratch::new();
    let refused = Mount::try_at(&alone.dir("mnt"), copperfs(["mount"]).args(&flags));
    assert!(refused.unwrap_err().refused().contains("--allow-other"));
    flags.push("--allow-other");
    let mount = Mount::serving(&flags);
    assert!(is_native(&mount.point));
    let user = |path: &str| run(as_user(NOBODY, NOBODY, "cat").arg(mount.path(path)));
    assert_eq!(user("dir/file").text(), "content");
    assert!(user("secret").refused().contains("Permission denied"));
    // All users may look, also at the daemon below the image.
    let program = program_for_all(&alone);
    let mut stats = as_user(NOBODY, NOBODY, program.to_str().unwrap());
    check(stats.arg("stats").arg(&mount.point));
    let below = mount.path("dir");
    assert!(mount.stats().get("pid") > 0);
    check(copperfs(["stats"]).arg(&below));
    let listed = check(&mut copperfs(["list"]));
    assert_eq!(
        listed.matches(&*mount.point.display().to_string()).count(),
        1
    );
    let mut user = Command::new("sleep");
    let mut user = user.arg("60").current_dir(&below).spawn().unwrap();
    let refused = run(copperfs(["unmount"]).arg(&mount.point));
    assert!(refused.refused().contains("sleep"), "{refused:?}");
    user.kill().unwrap();
    user.wait().unwrap();
    assert!(is_native(&mount.point));
    mount.clear("/dir");
    becomes_native(&mount.point);
    mount.clear("/");
    becomes_native(&mount.point);
    check(copperfs(["unmount"]).arg(&mount.point));
    let left = mountinfo::read().unwrap();
    assert!(
        !left
            .iter()
            .any(|it| it.mountpoint.starts_with(&mount.point))
    );
}

/// A file that has changed fails alone, whatever the kernel reads with it.
#[test]
fn neighbours_of_a_changed_file_are_read() {
    if !has_images() {
        return;
    }
    let name = |number: u64| format!("file-{number:02}");
    let content = |number: u64| noise(number, 3000);
    let indexed = Indexed::new(|origin| {
        for number in 0..40 {
            origin.file(&name(number), content(number));
        }
    });
    fs::write(indexed.origin.path().join(name(20)), noise(99, 3000)).unwrap();
    indexed.origin.settle();
    let mount = indexed.mount(&["--front=erofs"]);
    for number in 0..40 {
        let read = fs::read(mount.path("lus").join(name(number)));
        match number {
            20 => assert_eq!(errno(read), Errno::IO),
            _ => assert!(read.unwrap() == content(number), "{number}"),
        }
    }
    // Its status alone may change.
    let later = name(30);
    mount.clear("/lus");
    becomes_native(&mount.path("lus"));
    let mode = fs::Permissions::from_mode(0o400);
    fs::set_permissions(indexed.origin.path().join(&later), mode).unwrap();
    indexed.origin.settle();
    assert!(fs::read(mount.path("lus").join(&later)).unwrap() == content(30));
}

/// The kernel reads several files at once. One whose storage hangs delays its neighbours in the data file for some seconds.
#[test]
fn neighbours_of_a_file_that_hangs_are_read() {
    if !has_images() {
        return;
    }
    let healthy = |number: u64| format!("healthy/file-{number}");
    let content = |number: u64| noise(number, 3000);
    let mut silent = None;
    let indexed = Indexed::new(|origin| {
        silent = Some(SilentFiles::mount(&origin.dir("silent")).unwrap());
        for number in 0..10 {
            origin.file(&healthy(number), content(number));
        }
        let files = (0..10).flat_map(|number| [healthy(number), format!("silent/one/{number:04}")]);
        let line = |file| {
            format!(r#"{{"op":"read","path":"/lus/{file}","size":3000,"offset":0,"len":3000}}"#)
        };
        let lines: Vec<String> = files.map(line).collect();
        origin.file("profile", lines.join("\n"));
    });
    let profile = indexed.origin.path().join("profile");
    let profile = format!("--native-profile={}", profile.display());
    let mount = indexed.mount(&["--front=erofs", "--request-timeout=10m", &profile]);
    for number in 0..10 {
        let path = mount.path("lus").join(healthy(number));
        let read = within(Duration::from_secs(20), move || fs::read(path));
        assert!(read.unwrap() == content(number), "{number}");
    }
    // A daemon whose calls hang in a FUSE server cannot end.
    silent.unwrap().answer();
}

/// The kernel has what it read in pages of the image. Large files are read without pages of the data file, and those of
/// small files are dropped when nothing was read for a while.
#[test]
fn what_was_read_is_not_held_twice() {
    if !has_images() {
        return;
    }
    let content = noise(1, 40 << 20);
    let small = |number: u64| noise(number, 60 << 10);
    let indexed = Indexed::new(|origin| {
        origin.file("large", &content);
        for number in 0..400 {
            origin.file(&format!("small/{number}"), small(number));
        }
    });
    let mount = indexed.mount(&["--front=erofs"]);
    let held = |path: &Path| -> u64 {
        let mut ask = Command::new("fincore");
        let ask = ask.args(["--bytes", "--noheadings", "--output", "RES"]);
        check(ask.arg(path)).trim().parse().unwrap()
    };
    let [data_of_small, data_of_large] = ["1.small", "1.large"].map(|it| image_file(&mount, it));
    assert!(fs::read(mount.path("lus/large")).unwrap() == content);
    assert_eq!(held(&data_of_large) + held(&data_of_small), 0);
    // The machine may have reclaimed a page of its own accord.
    assert!(held(&mount.path("lus/large")) > 39 << 20);
    for number in 0..400 {
        let file = mount.path(format!("lus/small/{number}"));
        assert!(fs::read(file).unwrap() == small(number));
    }
    assert!(held(&data_of_small) > 0);
    eventually(SOON, "the pages are dropped", || held(&data_of_small) == 0);
    let before = mount.stats();
    assert!(fs::read(mount.path("lus/large")).unwrap() == content);
    assert!(fs::read(mount.path("lus/small/7")).unwrap() == small(7));
    let read = mount.stats().since(&before, "fuse.images.read_bytes");
    assert!(read < 1 << 20, "{read} bytes");
}

/// Where there can be no image, FUSE serves the directory, and `auto` says why.
#[test]
fn what_has_no_image_is_served_by_fuse() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| drop(origin.file("file", "content")));
    for (flags, reason) in [
        (&["--freshness=ttl=10s"][..], "--freshness"),
        (&["--native=/lus/none"][..], "no directory /lus/none"),
        (&["--native=/lus/file"][..], "no directory /lus/file"),
    ] {
        let mount = indexed.mount(&[&["--front=auto"], flags].concat());
        let state = &images(&mount)[0];
        let why = state["why_not"].as_str().unwrap_or_default();
        assert!(why.contains(reason), "{flags:?}: {state}");
        assert!(mount.log().contains(reason), "{flags:?}");
        assert_eq!(fs::read(mount.path("lus/file")).unwrap(), b"content");
        let own = indexed.flags();
        let mut refused = copperfs(["mount", "--front=erofs"]);
        refused.args(&own).args(flags);
        let point = Scratch::new();
        let refused = Mount::try_at(&point.dir("mnt"), &mut refused).unwrap_err();
        assert!(refused.refused().contains("--front"), "{refused:?}");
    }
    // Storage that cannot say whether there are extended attributes.
    let mut refused = copperfs(["mount", "--front=erofs", "--origin=/x=s3://bucket"]);
    let point = Scratch::new();
    let refused = Mount::try_at(&point.dir("mnt"), &mut refused).unwrap_err();
    assert!(refused.refused().contains("--index"), "{refused:?}");
    // Two directories of one index, one within the other.
    let indexed = Indexed::new(|origin| {
        origin.file("sw/bin/tool", "tool");
        origin.file("sw-old/tool", "old");
        origin.file("data/x", "x");
    });
    let flags = ["--front=erofs", "--native=/lus/sw", "--native=/lus/sw/bin"];
    let mount = indexed.mount(&flags);
    assert!(is_native(&mount.path("lus/sw")) && !is_native(&mount.path("lus")));
    assert_eq!(images(&mount).len(), 1);
    assert_eq!(
        checksums(&mount.path("lus")),
        checksums(indexed.origin.path())
    );
}

/// A recording sees every access, because FUSE serves everything meanwhile.
#[test]
fn a_recording_sees_what_an_image_would_hide() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| drop(origin.file("dir/file", "content")));
    let mount = indexed.mount(&["--front=erofs"]);
    assert_eq!(fs::read(mount.path("lus/dir/file")).unwrap(), b"content");
    let out = Scratch::new();
    let profile = out.path().join("profile");
    let mut record = copperfs(["record", "--mount"]);
    record.arg(&mount.point).arg("-o").arg(&profile).arg("--");
    check(record.arg("cat").arg(mount.path("lus/dir/file")));
    let recorded = fs::read_to_string(&profile).unwrap();
    assert!(
        recorded.contains("\"read\"") && recorded.contains("/lus/dir/file"),
        "{recorded}"
    );
    becomes_native(&mount.path("lus"));
    assert_eq!(fs::read(mount.path("lus/dir/file")).unwrap(), b"content");
}

/// The index may lie in the directory that it is of.
#[test]
fn the_index_of_a_directory_may_lie_in_it() {
    if !has_images() {
        return;
    }
    let origin = Scratch::new();
    origin.file("dir/file", "content");
    let index = origin.path().join("own.index");
    check(
        copperfs(["index", "build", "-o"])
            .arg(&index)
            .arg(origin.path()),
    );
    let served = format!("--origin=/lus=file://{}", origin.path().display());
    let mount = Mount::serving(&[&served, "--index=/lus=/lus/own.index", "--front=erofs"]);
    assert!(is_native(&mount.path("lus")));
    assert_eq!(checksums(&mount.path("lus")), checksums(origin.path()));
}

/// The mount below an image may read through local files.
#[test]
fn an_image_lies_over_a_mount_with_passthrough() {
    if !has_images() {
        return;
    }
    let content = noise(5, 3_000_000);
    let indexed = Indexed::new(|origin| {
        origin.file("sw/file", &content);
        origin.file("other/file", &content);
    });
    let flags = ["--front=erofs", "--native=/lus/sw", "--open=passthrough"];
    let mount = indexed.mount(&flags);
    assert!(is_native(&mount.path("lus/sw")));
    for file in ["lus/sw/file", "lus/other/file"] {
        assert!(fs::read(mount.path(file)).unwrap() == content, "{file}");
    }
}

/// `warm` fills the kernel's caches of an image, too.
#[test]
fn an_image_is_warmed() {
    if !has_images() {
        return;
    }
    let indexed = Indexed::new(|origin| {
        for number in 0..100 {
            origin.file(&format!("dir/file-{number}"), noise(number, 30_000));
        }
    });
    let mount = indexed.mount(&["--front=erofs"]);
    check(copperfs(["warm"]).arg(mount.path("lus/dir")));
    let before = mount.stats();
    let expected = checksums(indexed.origin.path());
    assert_eq!(checksums(&mount.path("lus")), expected);
    for front in ["software", "images"] {
        let reads = format!("fuse.{front}.requests.read");
        assert_eq!(mount.stats().since(&before, &reads), 0);
    }
}

/// All nodes of a tree have images of an index that each of them reads through the tree, and storage gives each file once.
#[test]
fn all_nodes_of_a_tree_have_images() {
    if !has_images() {
        return;
    }
    let origin = Scratch::new();
    for number in 0..300 {
        origin.file(
            &format!("dir-{}/file-{number}", number % 3),
            noise(number, 10_000),
        );
    }
    let index = origin.path().join("own.index");
    origin.settle();
    check(
        copperfs(["index", "build", "-o"])
            .arg(&index)
            .arg(origin.path()),
    );
    let served = format!("--origin=/lus=file://{}", origin.path().display());
    let flags = [&served, "--index=/lus=/lus/own.index", "--front=erofs"];
    let tree = Tree::launch_with(3, 1, &flags);
    let expected = checksums(origin.path());
    for rank in [2, 1, 0] {
        assert!(is_native(&tree.path(rank, "lus")), "{rank}");
        assert_eq!(checksums(&tree.path(rank, "lus")), expected, "{rank}");
    }
    let read = tree.root().stats().get("origin.read_bytes");
    let stored = 3_000_000 + fs::metadata(&index).unwrap().len();
    assert!(
        (stored..stored + 200_000).contains(&read),
        "{read} of {stored}"
    );
    // All nodes see another index after one `clear`.
    fs::write(origin.path().join("dir-0/new"), "new").unwrap();
    origin.settle();
    check(
        copperfs(["index", "build", "--force", "-o"])
            .arg(&index)
            .arg(origin.path()),
    );
    tree.root().clear_everywhere("/lus");
    for rank in 0..3 {
        assert_eq!(
            fs::read(tree.path(rank, "lus/dir-0/new")).unwrap(),
            b"new",
            "{rank}"
        );
        becomes_native(&tree.path(rank, "lus"));
    }
}

/// File number `number` of [`Recorded`], below the origin.
fn recorded_file(number: u64) -> String {
    format!("d{}/file-{number:02}", number % 3)
}

fn recorded_content(number: u64) -> Vec<u8> {
    noise(number, 20_000)
}

/// An origin with a profile in it.
struct Recorded(Indexed);

impl Recorded {
    /// With a profile that reads the files of these numbers.
    fn new(order: &[u64]) -> Self {
        let this = Self(Indexed::new(|origin| {
            for number in 0..20 {
                origin.file(&recorded_file(number), recorded_content(number));
            }
        }));
        this.record(order);
        this
    }

    fn profile(&self) -> PathBuf {
        self.0.origin.path().join("start.profile")
    }

    fn flag(&self) -> String {
        format!("--native-profile={}", self.profile().display())
    }

    fn record(&self, order: &[u64]) {
        let read = |file: &str| {
            format!(r#"{{"op":"read","path":"/lus/{file}","size":20000,"offset":0,"len":20000}}"#)
        };
        let files = order.iter().map(|number| recorded_file(*number));
        let lines: Vec<String> = files
            .chain(["gone".into()])
            .map(|file| read(&file))
            .collect();
        self.write(&lines.join("\n"));
    }

    fn write(&self, profile: &str) {
        fs::write(self.profile(), profile).unwrap();
        self.0.origin.settle();
        self.0.make();
    }
}

/// The contents lie in the order of a profile, and the node requests the next files when a program begins with the first.
#[test]
fn contents_lie_in_the_order_of_a_profile() {
    if !has_images() {
        return;
    }
    let recorded = Recorded::new(&[17, 4, 9, 11]);
    let mount = recorded.0.mount(&["--front=erofs", &recorded.flag()]);
    let read_first = |image: u64| {
        let data = image_file(&mount, &format!("{image}.small"));
        let mut bytes = vec![0; 20_000];
        let file = File::open(data).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = mount.stats();
    assert!(read_first(1) == recorded_content(17));
    eventually(SOON, "the others are requested", || {
        mount.stats().since(&before, "bundle.files") >= 3
    });
    // A changed profile makes another image.
    recorded.record(&[3, 17]);
    mount.clear("/lus");
    becomes_native(&mount.path("lus"));
    assert!(read_first(2) == recorded_content(3));
    for number in [17, 5, 4, 3] {
        let file = mount.path("lus").join(recorded_file(number));
        assert!(
            fs::read(file).unwrap() == recorded_content(number),
            "{number}"
        );
    }
}

/// Without an index there is no image, and the reason is said.
#[test]
fn no_index_is_a_reason_against_an_image() {
    let origin = Scratch::new();
    origin.file("file", "text");
    let origin = format!("--origin=file://{}", origin.path().display());
    for flag in ["--front=auto", "--native-profile=/nowhere/start.profile"] {
        let mount = Mount::serving(&[&origin, flag]);
        let state = &images(&mount)[0];
        assert_eq!(state["path"], "/", "{flag}");
        let why = state["why_not"].as_str().unwrap();
        assert!(why.contains("--index"), "{flag}: {why}");
        let status = check(copperfs(["status"]).arg(&mount.point));
        assert!(
            status.contains(&format!("/: served by FUSE: {why}")),
            "{status}"
        );
        assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "text");
    }
}

/// A profile that cannot be read gives no image, and the reason is said.
#[test]
fn a_wrong_profile_is_a_reason_against_an_image() {
    if !has_images() {
        return;
    }
    let recorded = Recorded::new(&[1]);
    let mount = recorded.0.mount(&["--front=erofs", &recorded.flag()]);
    recorded.write("no profile\n");
    mount.clear("/lus");
    eventually(SOON, "the reason", || {
        let why = images(&mount)[0]["why_not"].to_string();
        why.contains("line 1 of the profile") && why.contains("start.profile")
    });
    let file = mount.path("lus").join(recorded_file(3));
    assert!(fs::read(file).unwrap() == recorded_content(3));
    let (alone, own) = (Scratch::new(), recorded.0.flags());
    let flags = own.iter().map(String::as_str);
    let none = ["--front=erofs", "--native-profile=/nowhere/start.profile"];
    let mut mount = copperfs(["mount"]);
    let refused = Mount::try_at(&alone.dir("mnt"), mount.args(flags.chain(none)));
    assert!(
        refused
            .unwrap_err()
            .refused()
            .contains("/nowhere/start.profile")
    );
}
