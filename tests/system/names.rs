//! Names and kinds of files that programs do not expect: bytes, links, devices, crowds.

use crate::skip;
use crate::support::fixture::{cached, noise};
use crate::support::{Mount, Scratch, check, errno, is_root, sh, within};
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn names_are_bytes() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let names: Vec<OsString> = [
        b"not utf-8 \xff\xfe\x80".to_vec(),
        b"new\nline".to_vec(),
        b"\x01control\x7f".to_vec(),
        b" leading and trailing ".to_vec(),
        b"-rf".to_vec(),
        "日本語 ü".as_bytes().to_vec(),
        vec![b'n'; 255],
        vec![0xfe; 255],
        b"back\\slash 'quote' \"double\"".to_vec(),
        b"...".to_vec(),
    ]
    .into_iter()
    .map(OsString::from_vec)
    .collect();
    for name in &names {
        fs::create_dir(origin.path().join(name)).unwrap();
        fs::write(origin.path().join(name).join(name), name.as_bytes()).unwrap();
    }
    let mount = Mount::of(origin.path());
    let listed: HashSet<OsString> = fs::read_dir(&mount.node.point)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(listed, names.iter().cloned().collect());
    for name in &names {
        let inside = mount.path(name).join(name);
        assert_eq!(fs::read(&inside).unwrap(), name.as_bytes(), "{name:?}");
        assert_eq!(
            errno(fs::read(mount.path(name).join("no such"))),
            Errno::NOENT
        );
    }
    assert_eq!(
        errno(fs::metadata(mount.path("n".repeat(256)))),
        Errno::NAMETOOLONG
    );
    assert_eq!(
        errno(
            fs::metadata(mount.path("...").join("..."))
                .and_then(|_| fs::metadata(mount.path("...").join("...").join("x")))
        ),
        Errno::NOTDIR
    );
    for name in &names {
        let mut clear = crate::support::copperfs(["clear"]);
        check(clear.arg(mount.path(name)));
        assert_eq!(
            fs::read(mount.path(name).join(name)).unwrap(),
            name.as_bytes(),
            "{name:?}"
        );
    }
}

/// Relative links are as they are; absolute ones into the origin stay in the mount; those that lead
/// out say where; loops are loops.
#[test]
fn links_lead_where_they_say() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let outside = Scratch::new();
    let target = origin.file("lib/deep/target", "target");
    let stranger = outside.file("stranger", "stranger");
    let link = |text: &Path, name: &str| symlink(text, origin.path().join(name)).unwrap();
    link(Path::new("lib/deep/target"), "relative");
    link(Path::new("../lib/deep"), "lib/up");
    link(&target, "absolute");
    link(&target, "lib/deep/absolute");
    link(&origin.path().join("lib"), "absolute_dir");
    link(&origin.path().join("lib/../lib/./deep/target"), "winding");
    link(&origin.path().join("nothing"), "dangling");
    link(&stranger, "leaving");
    link(Path::new("loop_b"), "loop_a");
    link(Path::new("loop_a"), "loop_b");
    link(Path::new("self"), "self");
    let text = |path: &Path| fs::read_link(path).unwrap();

    let mount = Mount::of(origin.path());
    for name in [
        "relative",
        "lib/up/target",
        "absolute",
        "lib/deep/absolute",
        "absolute_dir/deep/target",
        "winding",
    ] {
        assert_eq!(fs::read(mount.path(name)).unwrap(), b"target", "{name}");
    }
    for name in ["relative", "lib/up", "leaving", "loop_a"] {
        assert_eq!(
            text(&mount.path(name)),
            text(&origin.path().join(name)),
            "{name}"
        );
    }
    assert_eq!(text(&mount.path("absolute")), Path::new("lib/deep/target"));
    assert_eq!(text(&mount.path("lib/deep/absolute")), Path::new("target"));
    assert_eq!(text(&mount.path("dangling")), Path::new("nothing"));
    for name in [
        "relative",
        "absolute",
        "winding",
        "leaving",
        "lib/deep/absolute",
    ] {
        let size = fs::symlink_metadata(mount.path(name)).unwrap().size();
        assert_eq!(
            size,
            text(&mount.path(name)).as_os_str().len() as u64,
            "{name}"
        );
    }
    assert_eq!(errno(fs::read(mount.path("dangling"))), Errno::NOENT);
    for name in ["loop_a", "self"] {
        assert_eq!(errno(fs::read(mount.path(name))), Errno::LOOP, "{name}");
    }
    let resolved = fs::canonicalize(mount.path("absolute")).unwrap();
    assert!(resolved.starts_with(&mount.node.point), "{resolved:?}");

    let kept = Mount::with(origin.path(), &["--symlinks", "keep"]);
    for name in ["relative", "absolute", "absolute_dir", "leaving"] {
        assert_eq!(
            text(&kept.path(name)),
            text(&origin.path().join(name)),
            "{name}"
        );
    }
}

/// FIFOs, sockets and devices are shown with their types. Opening one has no effect at the origin.
#[test]
fn special_files_are_shown_and_not_opened() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let node = |name: &str, kind: FileType, device: u64| {
        mknodat(
            CWD,
            origin.path().join(name),
            kind,
            Mode::from_raw_mode(0o666),
            device,
        )
        .unwrap();
    };
    node("fifo", FileType::Fifo, 0);
    node("zero", FileType::CharacterDevice, makedev(1, 5));
    node("block", FileType::BlockDevice, makedev(7, 300));
    let _listener = std::os::unix::net::UnixListener::bind(origin.path().join("socket")).unwrap();
    let mount = Mount::of(origin.path());
    let meta = |name: &str| fs::symlink_metadata(mount.path(name)).unwrap();
    assert!(meta("fifo").file_type().is_fifo());
    assert!(meta("socket").file_type().is_socket());
    assert!(meta("zero").file_type().is_char_device());
    assert!(meta("block").file_type().is_block_device());
    assert_eq!(meta("zero").rdev(), makedev(1, 5));
    assert_eq!(meta("block").rdev(), makedev(7, 300));
    for name in ["zero", "block"] {
        assert_eq!(
            errno(fs::File::open(mount.path(name))),
            Errno::ACCESS,
            "{name}"
        );
    }
    assert!(std::os::unix::net::UnixStream::connect(mount.path("socket")).is_err());
    // The kernel opens a FIFO itself, as one of this node's; the origin's own must not notice.
    let fifo = mount.path("fifo");
    let opened = within(Duration::from_secs(5), move || {
        open(fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
    });
    let far_end = open(
        origin.path().join("fifo"),
        OFlags::WRONLY | OFlags::NONBLOCK,
        Mode::empty(),
    );
    assert_eq!(
        far_end.unwrap_err(),
        Errno::NXIO,
        "somebody reads the origin's FIFO ({opened:?})"
    );
    assert_eq!(mount.stats().get("origin.opens"), 0);
}

/// A directory of 200,000 entries lists whole and once, and its names are found, and not found,
/// without a listing for each.
#[test]
fn a_directory_of_200_000_entries() {
    if !is_root() {
        skip!("needs root");
    }
    const COUNT: usize = 200_000;
    let origin = cached("crowd", |dir| {
        fs::create_dir(dir.join("crowd")).unwrap();
        for number in 0..COUNT {
            let name = dir.join(format!("crowd/{}-{number}", "entry"));
            drop(fs::File::create(name).unwrap());
        }
        fs::write(dir.join("crowd/entry-77"), "content").unwrap();
        Ok(())
    });
    crate::support::fixture::settle(&origin.join("crowd/entry-77"));
    let mount = Mount::of(&origin);
    let crowd = mount.path("crowd");
    assert_eq!(fs::read(crowd.join("entry-77")).unwrap(), b"content");
    assert_eq!(
        errno(fs::metadata(crowd.join("entry-200001"))),
        Errno::NOENT
    );
    let list = || {
        let names: HashSet<OsString> = fs::read_dir(&crowd)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names.len(), COUNT);
        assert!(
            names.contains(OsStr::new("entry-0")) && names.contains(OsStr::new("entry-199999"))
        );
    };
    list();
    let listed = mount.stats();
    let counted = sh("ls -U \"$1\" | sort | uniq | wc -l", &[&crowd]);
    assert_eq!(counted.trim(), COUNT.to_string());
    for number in (0..COUNT).step_by(COUNT / 50) {
        fs::metadata(crowd.join(format!("entry-{number}"))).unwrap();
        assert_eq!(
            errno(fs::metadata(crowd.join(format!("entry-{number}x")))),
            Errno::NOENT
        );
    }
    let stats = mount.stats();
    let asked = stats.since(&listed, "origin.stats");
    assert!(
        asked <= 200,
        "100 names were asked for, {asked} asked at the origin"
    );
    for number in (0..COUNT).step_by(COUNT / 50) {
        assert_eq!(
            errno(fs::metadata(crowd.join(format!("entry-{number}x")))),
            Errno::NOENT
        );
    }
    assert_eq!(
        mount.stats().since(&stats, "origin.stats"),
        0,
        "what does not exist is remembered"
    );
}

/// A mount point below its own origin: it does not serve itself, and another path that begins with its name is not
/// affected.
#[test]
fn a_mount_below_its_own_origin_does_not_serve_itself() {
    if !is_root() {
        skip!("needs root");
    }
    let origin = Scratch::new();
    let content = noise(7, 10_000);
    origin.file("mnt3x/file", &content);
    origin.file("mnt/file", &content);
    let point = origin.dir("mnt3");
    let flag = format!("/=file://{}", origin.path().display());
    let mount = Mount::at(
        &point,
        &mut crate::support::copperfs(["mount", "--origin", &flag]),
    );
    let top = mount.node.point.clone();
    within(Duration::from_secs(20), move || {
        assert_eq!(fs::read(top.join("mnt3x/file")).unwrap(), content);
        assert_eq!(fs::read(top.join("mnt/file")).unwrap(), content);
        let found = check(Command::new("find").arg(&top).args(["-name", "file"]));
        assert_eq!(found.lines().count(), 2, "{found}");
        assert_eq!(errno(fs::metadata(top.join("mnt3/mnt3x"))), Errno::NOENT);
    });
}
