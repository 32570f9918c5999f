//! Further tests of POSIX directories.

use crate::fixtures::{Backend, Posix, list_all, names, path, pattern, read, read_whole, stat};
use crate::skipping::is_root;
use crate::waiting::until_some;
use bytes::Bytes;
use copperfs::origin::{ByteRange, OriginOptions, PosixOrigin};
use copperfs_overlay::{FailureKind, FileKind, Timestamp};
use futures_util::StreamExt;
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Gid, Uid};
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[tokio::test]
async fn names_are_bytes() {
    let posix = Posix::new();
    let raw: &[&[u8]] = &[
        b"not\xff\xfeutf8",
        b"new\nline",
        b"tab\tand\x01",
        &[b'x'; 255],
        b" ",
    ];
    for name in raw {
        std::fs::write(posix.path().join(OsStr::from_bytes(name)), name).expect("a file");
    }
    let listing = posix
        .origin()
        .list(path(""), None, 100)
        .await
        .expect("a listing");
    let listed: BTreeSet<&[u8]> = listing
        .entries
        .iter()
        .map(|entry| &entry.name[..])
        .collect();
    assert_eq!(listed, raw.iter().copied().collect());
    let asked = raw
        .iter()
        .map(|name| Bytes::copy_from_slice(name))
        .collect();
    for answer in posix.origin().stat(path(""), asked).await.expect("answers") {
        assert_eq!(answer.expect("a file").kind, FileKind::File);
    }
}

#[tokio::test]
async fn attributes_are_the_files_own() {
    let posix = Posix::new();
    posix.put("f", b"12345".to_vec()).await;
    let file = posix.file("f");
    std::fs::set_permissions(&file, Permissions::from_mode(0o6751)).expect("mode");
    std::fs::hard_link(&file, posix.file("second")).expect("a link");
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: -2,
            tv_nsec: 500_000_000,
        },
        last_modification: Timespec {
            tv_sec: -1,
            tv_nsec: 999_999_999,
        },
    };
    utimensat(CWD, &file, &times, rustix::fs::AtFlags::empty()).expect("times");
    let found = stat(posix.origin(), "f").await.expect("attributes");
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds,
    };
    assert_eq!(found.mtime, time(-1, 999_999_999));
    assert_eq!(found.atime, time(-2, 500_000_000));
    assert_eq!((found.mode, found.size, found.links), (0o6751, 5, 2));
    // Reading leaves the access time alone, where the daemon may.
    read_whole(posix.origin(), "f").await.expect("bytes");
    let after = stat(posix.origin(), "f").await.expect("attributes");
    assert_eq!(after.atime, found.atime);
    assert_eq!(after.version, found.version);
}

#[tokio::test]
async fn a_directorys_version_outlives_its_entries_and_not_itself() {
    let posix = Posix::new();
    posix.put("d/f", Vec::new()).await;
    let first = stat(posix.origin(), "d").await.expect("it").version;
    posix.put("d/g", Vec::new()).await;
    assert_eq!(stat(posix.origin(), "d").await.expect("it").version, first);
    std::fs::rename(posix.file("d"), posix.file("old")).expect("a rename");
    posix.put("d/f", Vec::new()).await;
    assert_ne!(stat(posix.origin(), "d").await.expect("it").version, first);
}

#[tokio::test]
async fn links_are_shown_and_never_followed() {
    let posix = Posix::new();
    posix.put("dir/f", b"x".to_vec()).await;
    symlink("/etc", posix.file("out")).expect("a link");
    symlink("dir", posix.file("in")).expect("a link");
    symlink("loop", posix.file("loop")).expect("a link");
    let origin = posix.origin();
    let out = stat(origin, "out").await.expect("a link");
    assert_eq!((out.kind, out.size), (FileKind::Symlink, 4));
    assert_eq!(out.link_target.as_deref(), Some(&b"/etc"[..]));
    let file = stat(origin, "dir/f").await.expect("a file");
    for through in ["out/passwd", "in/f", "loop/x"] {
        let failure = stat(origin, through).await.expect_err(through);
        assert!(
            matches!(
                failure.kind,
                FailureKind::SymlinkLoop | FailureKind::NotADirectory
            ),
            "{through}: {failure:?}"
        );
        assert!(read(origin, through, &file, 0, 1).await.is_err());
        assert!(origin.list(path(through), None, 1).await.is_err());
    }
    assert!(origin.list(path("in"), None, 1).await.is_err());
    let failure = read(origin, "in", &file, 0, 1).await.expect_err("a link");
    assert_eq!(failure.kind, FailureKind::Unsupported);
}

#[tokio::test]
async fn special_files_are_shown_and_never_opened() {
    let posix = Posix::new();
    let fifo = posix.file("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a pipe");
    let socket = std::os::unix::net::UnixListener::bind(posix.file("socket")).expect("a socket");
    let origin = posix.origin();
    for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket)] {
        let found = stat(origin, name).await.expect(name);
        assert_eq!(found.kind, kind);
        let reading =
            tokio::time::timeout(Duration::from_secs(5), read(origin, name, &found, 0, 0));
        let failure = reading.await.expect("no hang").expect_err("not opened");
        assert_eq!(failure.kind, FailureKind::Unsupported);
    }
    drop(socket);
}

#[tokio::test]
async fn a_change_while_reading_is_stale_and_never_short_or_mixed() {
    let posix = Posix::new();
    let content = pattern(9 << 20);
    let changes: [fn(&PathBuf); 4] = [
        |file| {
            File::options()
                .write(true)
                .open(file)
                .expect("it")
                .set_len(2 << 20)
                .expect("cut");
        },
        |file| {
            let mut file = File::options().append(true).open(file).expect("it");
            file.write_all(b"more").expect("growth");
        },
        |file| {
            let file = File::options().write(true).open(file).expect("it");
            file.write_all_at(b"other", 8 << 20)
                .expect("a change in place");
        },
        |file| std::fs::remove_file(file).expect("removal"),
    ];
    for change in changes {
        posix.put("f", content.clone()).await;
        let found = stat(posix.origin(), "f").await.expect("attributes");
        let range = ByteRange {
            path: path("f"),
            version: found.version,
            size: found.size,
            offset: 0,
            length: found.size,
        };
        let mut stream = posix.origin().open(range).await.expect("a stream");
        let mut before = stream
            .next()
            .await
            .expect("a piece")
            .expect("bytes")
            .to_vec();
        change(&posix.file("f"));
        let failure = loop {
            match stream.next().await.expect("an end with a failure") {
                Ok(piece) => before.extend_from_slice(&piece),
                Err(failure) => break failure,
            }
        };
        assert_eq!(failure.kind, FailureKind::Stale);
        assert!(
            before == content[..before.len()],
            "what came before is of the old version"
        );
        assert!(before.len() < content.len());
    }
}

#[tokio::test]
async fn sparse_files_read_as_zeros() {
    let posix = Posix::new();
    let file = File::create(posix.file("sparse")).expect("a file");
    file.set_len(64 << 20).expect("a hole");
    file.write_all_at(b"end", (64 << 20) - 3).expect("an end");
    let found = stat(posix.origin(), "sparse").await.expect("attributes");
    assert!(found.blocks * 512 < found.size);
    let bytes = read(posix.origin(), "sparse", &found, (64 << 20) - 5, 5)
        .await
        .expect("bytes");
    assert_eq!(bytes, b"\0\0end");
}

#[tokio::test]
async fn extended_attributes_pass_through() {
    let posix = Posix::new();
    posix.put("f", Vec::new()).await;
    if xattr::set(posix.file("f"), "user.one", b"1\0binary").is_err() {
        return; // this filesystem has none
    }
    xattr::set(posix.file("f"), "user.empty", b"").expect("an attribute");
    // Only root may set or see this attribute, so readers must not see it.
    let _other_users = xattr::set(posix.file("f"), "trusted.secret", b"of the administrator");
    let mut list = posix.origin().xattrs(path("f")).await.expect("a list");
    assert!(
        list.iter().all(|(name, _)| !name.starts_with(b"trusted.")),
        "{list:?}"
    );
    list.retain(|(name, _)| name.starts_with(b"user."));
    list.sort();
    let pair = |name: &'static str, value: &'static [u8]| (Bytes::from(name), Bytes::from(value));
    assert_eq!(
        list,
        [pair("user.empty", b""), pair("user.one", b"1\0binary")]
    );
    let failure = posix
        .origin()
        .xattrs(path("none"))
        .await
        .expect_err("no file");
    assert_eq!(failure.kind, FailureKind::NotFound);
}

#[tokio::test]
async fn usage_is_the_filesystems() {
    let posix = Posix::new();
    let usage = posix.origin().usage(path("")).await.expect("usage");
    assert!(usage.blocks > 0 && usage.block_size >= 512 && usage.name_max >= 255);
}

#[tokio::test]
async fn large_directories_come_without_attributes() {
    let posix = Posix::with(&OriginOptions {
        listing_attributes_max: 10,
        ..OriginOptions::default()
    });
    posix.fill("ten", 10).await;
    posix.fill("eleven", 11).await;
    let with = |dir: &'static str| {
        let list = posix.origin().list(path(dir), None, 100);
        async move {
            let entries = list.await.expect("a listing").entries;
            entries
                .iter()
                .filter(|entry| entry.attributes.is_some())
                .count()
        }
    };
    assert_eq!(with("ten").await, 10);
    assert_eq!(with("eleven").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_thousand_entries_page() {
    const COUNT: usize = 200_000;
    let posix = Posix::new();
    posix.fill("huge", COUNT).await;
    let pages = list_all(
        posix.origin(),
        "huge",
        copperfs_overlay::LISTING_ENTRIES_MAX,
    )
    .await
    .expect("pages");
    assert!(pages[0].next.is_some(), "it counts as large");
    let distinct: BTreeSet<&Bytes> = pages
        .iter()
        .flat_map(|page| &page.entries)
        .map(|entry| &entry.name)
        .collect();
    assert_eq!(distinct.len(), COUNT);
}

#[tokio::test]
async fn a_cursor_of_a_replaced_directory_is_stale() {
    let posix = Posix::new();
    posix.fill("d", 10).await;
    let first = posix
        .origin()
        .list(path("d"), None, 3)
        .await
        .expect("a page");
    std::fs::rename(posix.file("d"), posix.file("old")).expect("a rename");
    posix.fill("d", 10).await;
    let second = posix.origin().list(path("d"), first.next, 3).await;
    assert_eq!(
        second.expect_err("another directory").kind,
        FailureKind::Stale
    );
}

/// Runs `work` on a thread with an ordinary user's rights, if this test runs as root. Threads that it
/// starts inherit them.
fn as_ordinary_user(work: impl Future<Output = ()> + Send) {
    let thread = || {
        if is_root() {
            let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
            rustix::thread::set_thread_groups(&[]).expect("no groups");
            rustix::thread::set_thread_res_gid(group, group, group).expect("the group");
            rustix::thread::set_thread_res_uid(user, user, user).expect("the user");
        }
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(work);
    };
    std::thread::scope(|scope| scope.spawn(thread).join()).expect("it works");
}

#[test]
fn permissions_are_those_of_the_daemons_user() {
    let posix = Posix::new();
    let mode = |name: &str, mode| {
        std::fs::set_permissions(posix.file(name), Permissions::from_mode(mode)).expect("mode");
    };
    for name in ["search", "closed"] {
        std::fs::create_dir(posix.file(name)).expect("a directory");
        std::fs::write(posix.file(name).join("f"), b"x").expect("a file");
    }
    std::fs::write(posix.file("secret"), b"x").expect("a file");
    mode("", 0o755);
    mode("search", 0o111);
    mode("closed", 0o000);
    mode("secret", 0o000);
    as_ordinary_user(async {
        let origin = posix.origin();
        let denied = origin
            .list(path("search"), None, 9)
            .await
            .expect_err("not to be listed");
        assert_eq!(denied.kind, FailureKind::PermissionDenied);
        assert_eq!(stat(origin, "search/f").await.expect("by name").size, 1);
        assert_eq!(read_whole(origin, "search/f").await.expect("bytes"), b"x");
        let denied = stat(origin, "closed/f").await.expect_err("closed");
        assert_eq!(denied.kind, FailureKind::PermissionDenied);
        let denied = read_whole(origin, "secret")
            .await
            .expect_err("not to be read");
        assert_eq!(denied.kind, FailureKind::PermissionDenied);
        assert!(denied.detail.contains("/secret"), "{}", denied.detail);
    });
    mode("search", 0o755);
    mode("closed", 0o755);
}

/// A mounted filesystem that never answers: a FUSE device without a reader.
pub(crate) struct Hanging {
    point: PathBuf,
    device: Option<File>,
}

impl Hanging {
    pub(crate) fn mount(point: PathBuf, kind: &str) -> Option<Self> {
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .ok()?;
        let data = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let data = CString::new(data).expect("text");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hanging", &point, kind, flags, data.as_c_str()).ok()?;
        Some(Self {
            point,
            device: Some(device),
        })
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // Closing the device ends the connection and wakes all waiting processes.
        drop(self.device.take());
        unmount(&self.point, UnmountFlags::DETACH).ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_hangs_costs_its_attributes_only() {
    let posix = Posix::with(&OriginOptions {
        // Long enough for fifty attributes on a busy machine.
        listing_attributes_timeout: Duration::from_secs(2),
        hang_timeout: Duration::from_secs(3),
        posix_concurrency: 4,
        ..OriginOptions::default()
    });
    posix.fill("d", 50).await;
    std::fs::create_dir(posix.file("d/hang")).expect("a directory");
    let Some(hanging) = Hanging::mount(posix.file("d/hang"), "fuse") else {
        return; // needs privilege
    };
    let origin = posix.origin();
    let begin = Instant::now();
    // More often than there are places for blocking calls.
    for _ in 0..6 {
        let listing = origin.list(path("d"), None, 1000).await.expect("a listing");
        assert_eq!(listing.entries.len(), 51);
        for entry in &listing.entries {
            assert_eq!(
                entry.attributes.is_some(),
                entry.name != "hang",
                "{:?}",
                entry.name
            );
        }
    }
    for _ in 0..3 {
        let failure = stat(origin, "d/hang").await.expect_err("it hangs");
        assert_eq!(failure.kind, FailureKind::Unavailable, "{}", failure.detail);
        assert_eq!(
            stat(origin, "d/0000001").await.expect("a neighbour").size,
            0
        );
    }
    let below = origin
        .list(path("d/hang"), None, 9)
        .await
        .expect_err("it hangs");
    assert_eq!(below.kind, FailureKind::Unavailable);
    // Four calls wait for their timeout, and each listing for its own: 24 s.
    assert!(begin.elapsed() < Duration::from_secs(60));
    drop(hanging);
    // Whoever hung is back: the name is an ordinary directory again.
    until_some(Duration::from_secs(10), "nothing hangs", async || {
        stat(origin, "d/hang").await.ok()
    })
    .await;
    assert_eq!(names(origin, "d/hang").await, Vec::<String>::new());
}

#[test]
fn errors_about_a_root_have_a_remedy() {
    let dir = crate::cleanup::directory();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").expect("a file");
    let options = OriginOptions::default();
    let missing = PosixOrigin::open(&dir.path().join("none"), &options)
        .err()
        .expect("missing");
    let text = missing.to_string();
    assert!(
        text.contains("No such file") && text.contains("mounted on this node"),
        "{text}"
    );
    let text = PosixOrigin::open(&file, &options)
        .err()
        .expect("a file")
        .to_string();
    assert!(text.contains("name a directory"), "{text}");
}
