//! A change at the origin makes another version, and no read ever mixes two.

use super::kind_of;
use crate::capabilities::{Can, SameBytes};
use crate::fixtures::{Backend, path, read, stat};
use copperfs::origin::ByteRange;
use copperfs_overlay::{FailureKind, Version};
use futures_util::TryStreamExt;
use std::collections::HashSet;

pub(super) async fn changes_are_stale(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("change/f", b"first".to_vec()).await;
    let first = stat(origin, "change/f").await.expect("attributes");
    let bytes = read(origin, "change/f", &first, 0, 5).await;
    assert_eq!(bytes.expect("bytes"), b"first");
    backend.put("change/f", b"other".to_vec()).await;
    // The whole, the beginning, the middle and the end of the old version.
    for (offset, length) in [(0, 5), (0, 1), (2, 2), (4, 1)] {
        let stale = read(origin, "change/f", &first, offset, length).await;
        assert_eq!(kind_of(stale), FailureKind::Stale, "{offset}+{length}");
    }
    let second = stat(origin, "change/f").await.expect("attributes");
    assert_ne!(first.version, second.version);
    let bytes = read(origin, "change/f", &second, 0, 5).await;
    assert_eq!(bytes.expect("bytes"), b"other");
    for (content, what) in [("longer now", "longer"), ("short", "back"), ("", "empty")] {
        backend.put("change/f", content.into()).await;
        let stale = read(origin, "change/f", &second, 0, 5).await;
        assert_eq!(kind_of(stale), FailureKind::Stale, "{what}");
    }
    // Truncated before the range, and in the middle of it.
    for left in [10, 9_000, 9_500] {
        backend.put("change/f", vec![1; 10_000]).await;
        let long = stat(origin, "change/f").await.expect("attributes");
        backend.put("change/f", vec![1; left]).await;
        let stale = read(origin, "change/f", &long, 9_000, 900).await;
        assert_eq!(kind_of(stale), FailureKind::Stale, "cut to {left}");
    }
}

pub(super) async fn each_write_is_a_version(backend: &dyn Backend) {
    let origin = backend.origin();
    let mut seen: HashSet<Version> = HashSet::new();
    for write in 0..8_u8 {
        backend.put("writes/f", vec![write; 100]).await;
        let alone = stat(origin, "writes/f").await.expect("attributes");
        assert!(seen.insert(alone.version), "write {write}");
        if backend.kind().can(Can::List) {
            let listing = origin.list(path("writes"), None, 10).await;
            let entry = listing.expect("a listing").entries.remove(0);
            let along = entry.attributes.expect("attributes");
            assert_eq!(
                along.version, alone.version,
                "write {write}: in the listing"
            );
        }
    }
}

/// Both results are right, because the old bytes equal the new ones.
pub(super) async fn the_same_bytes_again(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("again/f", b"the same".to_vec()).await;
    let first = stat(origin, "again/f").await.expect("attributes");
    let again = stat(origin, "again/f").await.expect("attributes");
    assert_eq!(first.version, again.version, "not written");
    backend.put("again/f", b"the same".to_vec()).await;
    let written = stat(origin, "again/f").await.expect("attributes");
    let found = if written.version == first.version {
        SameBytes::SameVersion
    } else {
        SameBytes::AnotherVersion
    };
    assert_eq!(found, backend.kind().same_bytes);
    let bytes = read(origin, "again/f", &written, 0, 8).await;
    assert_eq!(bytes.expect("bytes"), b"the same");
}

/// More bytes than the sockets and buffers between a server and its reader have room for.
const LARGE: usize = 48 << 20;

pub(super) async fn replaced_while_being_read(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("replace/f", vec![1; LARGE]).await;
    let old = stat(origin, "replace/f").await.expect("attributes");
    let whole = ByteRange {
        path: path("replace/f"),
        version: old.version,
        size: old.size,
        offset: 0,
        length: old.size,
    };
    let mut stream = origin.open(whole).await.expect("a stream");
    let mut bytes = stream
        .try_next()
        .await
        .expect("bytes")
        .expect("a piece")
        .to_vec();
    backend.put("replace/f", vec![2; LARGE]).await;
    let failure = loop {
        match stream.try_next().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => break None,
            Err(failure) => break Some(failure),
        }
    };
    // Only the last piece proves the version of all pieces.
    match failure {
        None => assert!(bytes.len() == LARGE && bytes.iter().all(|byte| *byte == 1)),
        Some(failure) => {
            assert!(bytes.len() < LARGE, "all was handed on: {}", failure.detail);
            let kinds = [FailureKind::Stale, FailureKind::Unavailable];
            assert!(kinds.contains(&failure.kind), "{}", failure.detail);
        }
    }
    let stale = read(origin, "replace/f", &old, 0, 10).await;
    assert_eq!(kind_of(stale), FailureKind::Stale);
    let new = stat(origin, "replace/f").await.expect("attributes");
    let bytes = read(origin, "replace/f", &new, old.size - 10, 10).await;
    assert_eq!(bytes.expect("bytes"), [2; 10]);
}

pub(super) async fn gone_is_gone(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("gone/keep", b"x".to_vec()).await;
    backend.put("gone/f", b"12345".to_vec()).await;
    let there = stat(origin, "gone/f").await.expect("attributes");
    backend.remove("gone/f").await;
    let gone = read(origin, "gone/f", &there, 0, 5).await;
    assert_eq!(kind_of(gone), FailureKind::Stale);
    let missing = stat(origin, "gone/f").await;
    assert_eq!(kind_of(missing), FailureKind::NotFound);
    // Again under the same name, but with another version.
    backend.put("gone/f", b"54321".to_vec()).await;
    let back = read(origin, "gone/f", &there, 0, 5).await;
    assert_eq!(kind_of(back), FailureKind::Stale);
}

/// A directory of an object store exists while there is a key below it.
pub(super) async fn gone_with_the_last_file(backend: &dyn Backend) {
    let origin = backend.origin();
    backend.put("last/stay", b"x".to_vec()).await;
    backend.put("last/dir/f", b"x".to_vec()).await;
    backend.remove("last/dir/f").await;
    let dir = stat(origin, "last/dir").await;
    let listing = origin.list(path("last/dir"), None, 10).await;
    if backend.kind().can(Can::Directories) {
        dir.expect("the directory");
        assert_eq!(listing.expect("it").entries.len(), 0);
    } else {
        assert_eq!(kind_of(dir), FailureKind::NotFound);
        assert_eq!(kind_of(listing), FailureKind::NotFound);
        let names = crate::fixtures::names(origin, "last").await;
        assert_eq!(names, ["stay"]);
    }
}
