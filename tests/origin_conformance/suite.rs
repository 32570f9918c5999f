//! What every origin does alike. Each function gets a backend of its own kind, empty where it writes.

use crate::fixtures::{
    Backend, Objects, Posix, list_all, names, path, pattern, read, read_whole, stat,
};
use bytes::Bytes;
use copperfs_overlay::{FailureKind, FileKind};
use std::collections::BTreeSet;

async fn suite(backend: &dyn Backend) {
    lists_names_types_and_attributes(backend).await;
    stats_in_order(backend).await;
    reads_any_range(backend).await;
    failures_say_what_can_be_done(backend).await;
    changes_are_stale(backend).await;
    keeps_unusual_names(backend).await;
    reads_many_at_once(backend).await;
    crate::bundles::gives_bundles(backend).await;
    pages_large_directories(backend).await;
}

async fn lists_names_types_and_attributes(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("list/a", b"one".to_vec()).await;
    backend.put("list/dir/b", b"two".to_vec()).await;
    backend.put("list/dir/deeper/c", b"three".to_vec()).await;
    backend.put("listx/other", b"no".to_vec()).await;
    assert_eq!(names(origin, "list").await, ["a", "dir"]);
    assert_eq!(names(origin, "list/dir").await, ["b", "deeper"]);
    assert!(names(origin, "").await.contains(&"list".to_owned()));
    let listing = origin
        .list(path("list"), None, 100)
        .await
        .expect("a listing");
    assert_eq!(listing.directory.kind, FileKind::Directory);
    assert_eq!(listing.next, None);
    for entry in &listing.entries {
        let name = std::str::from_utf8(&entry.name).expect("text");
        let alone = stat(origin, &format!("list/{name}"))
            .await
            .expect("attributes");
        let along = entry.attributes.as_ref().expect("attributes come along");
        assert_eq!(entry.kind, alone.kind);
        assert_eq!(
            (along.version, along.size, along.mtime, along.mode),
            (alone.version, alone.size, alone.mtime, alone.mode),
            "{name}: the listing and stat agree"
        );
    }
}

async fn stats_in_order(backend: &dyn Backend) {
    backend.put("stat/f", b"12345".to_vec()).await;
    backend.put("stat/d/x", b"1".to_vec()).await;
    let wanted = ["f", "none", "", "d"].map(Bytes::from_static_str);
    let answers = backend
        .origin()
        .stat(path("stat"), wanted.to_vec())
        .await
        .expect("answers");
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| {
            answer
                .as_ref()
                .map(|found| found.kind)
                .map_err(|failure| failure.kind)
        })
        .collect();
    assert_eq!(
        kinds,
        [
            Ok(FileKind::File),
            Err(FailureKind::NotFound),
            Ok(FileKind::Directory),
            Ok(FileKind::Directory),
        ],
        "{answers:?}"
    );
    let file = answers[0].as_ref().expect("a file");
    assert_eq!(file.size, 5);
    assert!(file.mtime.seconds > 1_500_000_000, "a real time");
    let many: Vec<Bytes> = (0..200).map(|i| Bytes::from(format!("none-{i}"))).collect();
    let answers = backend
        .origin()
        .stat(path("stat"), many)
        .await
        .expect("answers");
    assert_eq!(answers.len(), 200);
    assert!(
        answers
            .iter()
            .all(|a| a.as_ref().is_err_and(|f| f.kind == FailureKind::NotFound))
    );
    let none = backend
        .origin()
        .stat(path("stat"), Vec::new())
        .await
        .expect("no answers");
    assert!(none.is_empty());
}

trait FromStaticStr {
    fn from_static_str(text: &'static str) -> Self;
}

impl FromStaticStr for Bytes {
    fn from_static_str(text: &'static str) -> Self {
        Self::from_static(text.as_bytes())
    }
}

async fn reads_any_range(backend: &dyn Backend) {
    const MIB: u64 = 1 << 20;
    let origin = backend.origin();
    let content = pattern(7 * (1 << 20) + 123);
    let size = content.len() as u64;
    backend.put("read/big", content.clone()).await;
    let attributes = stat(origin, "read/big").await.expect("attributes");
    assert_eq!(attributes.size, size);
    for (offset, length) in [
        (0, size),
        (0, 1),
        (0, MIB),
        (MIB - 1, 2),
        (5, 6 * MIB),
        (size - 1, 1),
        (size, 0),
        (3, 0),
    ] {
        let bytes = read(origin, "read/big", &attributes, offset, length)
            .await
            .expect("bytes");
        let index = |at: u64| usize::try_from(at).expect("an index");
        let (from, to) = (index(offset), index(offset + length));
        assert!(bytes == content[from..to], "range {offset}+{length}");
    }
    backend.put("read/empty", Vec::new()).await;
    assert_eq!(
        read_whole(origin, "read/empty").await.expect("nothing"),
        b""
    );
    let beyond = read(origin, "read/big", &attributes, size - 1, 2).await;
    assert_eq!(beyond.expect_err("beyond the end").kind, FailureKind::Io);
}

async fn failures_say_what_can_be_done(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("fail/file", b"x".to_vec()).await;
    let file = stat(origin, "fail/file").await.expect("attributes");
    let kind = |result: Result<_, copperfs_overlay::Failure>| match result {
        Ok(_) => panic!("no failure"),
        Err(failure) => {
            assert!(failure.detail.contains("origin "), "{}", failure.detail);
            failure.kind
        }
    };
    assert_eq!(
        kind(origin.list(path("none"), None, 9).await.map(drop)),
        FailureKind::NotFound
    );
    assert_eq!(
        kind(origin.list(path("fail/file"), None, 9).await.map(drop)),
        FailureKind::NotADirectory
    );
    let below = stat(origin, "fail/file/below")
        .await
        .expect_err("below a file");
    assert!(matches!(
        below.kind,
        FailureKind::NotADirectory | FailureKind::NotFound
    ));
    assert_eq!(
        stat(origin, "fail/none").await.expect_err("none").kind,
        FailureKind::NotFound
    );
    assert_eq!(
        kind(read(origin, "fail", &file, 0, 1).await.map(drop)),
        match () {
            () if backend
                .origin()
                .usage(path(""))
                .await
                .is_ok_and(|u| u.blocks == 1 << 38) =>
            {
                // An object store has no object of that name.
                FailureKind::Stale
            }
            () => FailureKind::IsADirectory,
        }
    );
    let foreign = Some(copperfs_overlay::Cursor(Bytes::from_static(b"?")));
    assert_eq!(
        kind(origin.list(path("fail"), foreign, 9).await.map(drop)),
        FailureKind::Stale
    );
}

async fn changes_are_stale(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("change/f", b"first".to_vec()).await;
    let first = stat(origin, "change/f").await.expect("attributes");
    assert_eq!(
        read(origin, "change/f", &first, 0, 5).await.expect("bytes"),
        b"first"
    );
    backend.put("change/f", b"other".to_vec()).await;
    let stale = read(origin, "change/f", &first, 0, 5).await;
    assert_eq!(stale.expect_err("another version").kind, FailureKind::Stale);
    let second = stat(origin, "change/f").await.expect("attributes");
    assert_ne!(first.version, second.version);
    assert_eq!(
        read(origin, "change/f", &second, 0, 5)
            .await
            .expect("bytes"),
        b"other"
    );
    backend.put("change/f", b"longer now".to_vec()).await;
    let stale = read(origin, "change/f", &second, 0, 5).await;
    assert_eq!(stale.expect_err("longer").kind, FailureKind::Stale);
    backend.put("change/keep", b"x".to_vec()).await;
    backend.remove("change/f").await;
    let gone = read(origin, "change/f", &second, 0, 5).await;
    assert_eq!(gone.expect_err("gone").kind, FailureKind::Stale);
    let missing = stat(origin, "change/f").await;
    assert_eq!(missing.expect_err("gone").kind, FailureKind::NotFound);
}

async fn keeps_unusual_names(backend: &dyn Backend) {
    let origin = backend.origin();
    let long = "n".repeat(255);
    let unusual = [
        "with space",
        "ünï©ødé-文件-🦀",
        "percent%20sign%",
        "plus+and&question?hash#",
        "'quotes\"",
        "back\\slash",
        "-dash",
        "...",
        long.as_str(),
    ];
    for name in unusual {
        backend
            .put(&format!("names/{name}"), name.as_bytes().to_vec())
            .await;
    }
    let mut expected = unusual.map(str::to_owned);
    expected.sort();
    assert_eq!(names(origin, "names").await, expected);
    for name in unusual {
        let content = read_whole(origin, &format!("names/{name}")).await;
        assert_eq!(content.expect(name), name.as_bytes());
    }
    let too_long = Bytes::from(vec![b'n'; 256]);
    let not_utf8 = Bytes::from_static(b"\xff\xfe");
    let control = Bytes::from_static(b"new\nline");
    for name in [too_long, not_utf8, control] {
        let answers = origin
            .stat(path("names"), vec![name])
            .await
            .expect("an answer");
        let kind = answers[0].as_ref().expect_err("no such name").kind;
        assert!(matches!(
            kind,
            FailureKind::NotFound | FailureKind::NameTooLong
        ));
    }
}

async fn reads_many_at_once(backend: &dyn Backend) {
    let origin = backend.origin();
    for i in 0..40_usize {
        backend
            .put(&format!("many-readers/{i}"), pattern(1000 * i))
            .await;
    }
    let reads = (0..40_usize).map(|i| async move {
        let content = read_whole(origin, &format!("many-readers/{i}"))
            .await
            .expect("bytes");
        assert!(content == pattern(1000 * i));
    });
    futures_util::future::join_all(reads).await;
}

async fn pages_large_directories(backend: &dyn Backend) {
    const COUNT: usize = 10_000;
    let origin = backend.origin();
    backend.fill("large", COUNT).await;
    let pages = list_all(origin, "large", 3_000).await.expect("pages");
    assert!(pages.iter().all(|page| page.entries.len() <= 3_000));
    assert!(pages.len() >= 4);
    let entries: Vec<_> = pages.iter().flat_map(|page| &page.entries).collect();
    let distinct: BTreeSet<_> = entries.iter().map(|entry| &entry.name).collect();
    assert_eq!(distinct.len(), COUNT);
    assert_eq!(entries.len(), COUNT, "each name once");
    let whole = list_all(origin, "large", 100_000).await.expect("a listing");
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].entries.len(), COUNT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posix_conforms() {
    suite(&Posix::new()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_in_memory_conform() {
    suite(&Objects::memory().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_s3_server_conforms() {
    suite(&Objects::s3().await).await;
}
