//! Any run of bytes of any file.

use crate::fixtures::{Backend, path, pattern, read, read_whole, stat};
use copperfs::origin::ByteRange;
use copperfs_overlay::FailureKind;
use futures_util::TryStreamExt;
use std::io::{Seek, SeekFrom, Write};

pub(super) async fn reads_any_range(backend: &dyn Backend) {
    const MIB: u64 = 1 << 20;
    let origin = backend.origin();
    // Longer than any piece that is fetched at once, and no multiple of a unit.
    let content = pattern(19 * (1 << 20) + 123);
    let size = content.len() as u64;
    backend.put("read/big", content.clone()).await;
    let attributes = stat(origin, "read/big").await.expect("attributes");
    assert_eq!(attributes.size, size);
    for (offset, length) in [
        (0, size),
        (0, 1),
        (0, MIB),
        (MIB - 1, 2),
        (4 * MIB - 1, 2),
        (8 * MIB - 3, 8 * MIB + 7),
        (5, 6 * MIB),
        (1, size - 1),
        (0, size - 1),
        (size - 1, 1),
        (size - MIB, MIB),
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
    for (offset, length) in [(size - 1, 2), (size, 1), (size + 1, 0), (u64::MAX, 2)] {
        let beyond = read(origin, "read/big", &attributes, offset, length).await;
        let failure = beyond.expect_err("beyond the end");
        assert_eq!(failure.kind, FailureKind::Io, "range {offset}+{length}");
    }
}

pub(super) async fn reads_files_without_bytes(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("read/empty", Vec::new()).await;
    let empty = stat(origin, "read/empty").await.expect("attributes");
    assert_eq!((empty.size, empty.blocks), (0, 0));
    let nothing = read_whole(origin, "read/empty").await.expect("nothing");
    assert_eq!(nothing, b"");
    let beyond = read(origin, "read/empty", &empty, 0, 1).await;
    assert_eq!(beyond.expect_err("a byte").kind, FailureKind::Io);
    // An empty file that has grown has another version, also for an empty range.
    backend.put("read/empty", b"grown".to_vec()).await;
    let grown = read(origin, "read/empty", &empty, 0, 0).await;
    if let Err(failure) = grown {
        assert_eq!(failure.kind, FailureKind::Stale);
    }
}

pub(super) async fn reads_beyond_four_gigabytes(backend: &dyn Backend) {
    const AT: u64 = (4 << 30) + (5 << 20) + 7;
    let origin = backend.origin();
    let content = pattern(3 << 20);
    backend.put("read/sparse", Vec::new()).await;
    let file = backend.directory().join("read/sparse");
    let mut file = std::fs::File::options().write(true).open(file).expect("it");
    file.seek(SeekFrom::Start(AT)).expect("an offset");
    file.write_all(&content).expect("bytes");
    drop(file);
    let attributes = stat(origin, "read/sparse").await.expect("attributes");
    let length = content.len() as u64;
    assert_eq!(attributes.size, AT + length);
    let bytes = read(origin, "read/sparse", &attributes, AT, length).await;
    assert!(bytes.expect("bytes") == content, "the end");
    let bytes = read(origin, "read/sparse", &attributes, AT - 2, 4).await;
    assert_eq!(bytes.expect("bytes"), [0, 0, content[0], content[1]]);
    let bytes = read(origin, "read/sparse", &attributes, (1 << 32) - 1, 2).await;
    assert_eq!(bytes.expect("bytes"), [0, 0], "across 2^32");
    // A reader that stops early causes no further reads.
    let range = ByteRange {
        path: path("read/sparse"),
        version: attributes.version,
        size: attributes.size,
        offset: 0,
        length: attributes.size,
    };
    let mut stream = origin.open(range).await.expect("a stream");
    let first = stream.try_next().await.expect("bytes").expect("a piece");
    assert!(!first.is_empty() && first.iter().all(|byte| *byte == 0));
}
