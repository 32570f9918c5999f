//! Bundles: the common behaviour of all origins, and the files that are never in a bundle.

use crate::fixtures::{Backend, Posix, path, stat};
use bytes::Bytes;
use copperfs::origin::{ClaimedStream, OriginOptions, OriginSpec, Origins, claim_any};
use copperfs_overlay::{BundleFile, BundleItem, BundleRequest, BundleStream, Files, Version};
use futures_util::StreamExt;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::time::Duration;

fn file(name: &str, version: Version, size: u64) -> BundleFile {
    BundleFile {
        name: Bytes::copy_from_slice(name.as_bytes()),
        version,
        size,
        content: None,
    }
}

fn byte(number: usize) -> u8 {
    u8::try_from(number % 251).expect("a byte")
}

async fn collect(items: BundleStream) -> Vec<(usize, Bytes)> {
    let collecting = items.map(|item| {
        let BundleItem { index, bytes, hash } = item.expect("an item");
        assert_eq!(hash.0, *blake3::hash(&bytes).as_bytes());
        (index, bytes)
    });
    let collecting = collecting.collect();
    tokio::time::timeout(Duration::from_secs(20), collecting)
        .await
        .expect("no hang")
}

fn without_claims(items: ClaimedStream) -> BundleStream {
    items.map(|(item, _claim)| Ok(item)).boxed()
}

/// Files arrive whole and in the requested version; the others are left out.
pub(crate) async fn gives_bundles(backend: &dyn Backend) {
    let origin = backend.origin();
    let mut files = Vec::new();
    for number in 0..150_usize {
        let name = format!("f{number}");
        backend
            .put(&format!("bundle/{name}"), vec![byte(number); 100 + number])
            .await;
        let found = stat(origin, &format!("bundle/{name}"))
            .await
            .expect("attributes");
        files.push(file(&name, found.version, found.size));
    }
    backend.put("bundle/f3", b"changed".to_vec()).await;
    backend.remove("bundle/f4").await;
    files[5].size += 1;
    files[6].version = Version::from_data([9; 16]);
    let request = BundleRequest {
        directory: path("bundle"),
        files,
    };
    let mut items = collect(without_claims(origin.bundle(request, claim_any()))).await;
    items.sort_by_key(|(index, _)| *index);
    let indices: Vec<usize> = items.iter().map(|(index, _)| *index).collect();
    let wanted: Vec<usize> = (0..150).filter(|index| !(3..=6).contains(index)).collect();
    assert_eq!(indices, wanted);
    for (index, bytes) in items {
        assert_eq!(bytes, vec![byte(index); 100 + index]);
    }
}

/// Links are not followed and special files not opened, even if the request implies another type.
#[tokio::test]
async fn a_bundle_holds_regular_files_only() {
    let posix = Posix::new();
    posix.put("dir/f", b"x".to_vec()).await;
    symlink("f", posix.file("dir/link")).expect("a link");
    let fifo = posix.file("dir/fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a pipe");
    std::fs::create_dir(posix.file("dir/sub")).expect("a directory");
    let origin = posix.origin();
    let mut files = Vec::new();
    for name in ["link", "fifo", "sub", "f"] {
        let found = stat(origin, &format!("dir/{name}")).await.expect(name);
        files.push(file(name, found.version, 1));
    }
    let request = BundleRequest {
        directory: path("dir"),
        files,
    };
    let items = collect(without_claims(origin.bundle(request, claim_any()))).await;
    assert_eq!(items, [(3, Bytes::from_static(b"x"))]);
}

/// Excluded paths and those of another origin are left out; the returned files are counted.
#[tokio::test]
async fn a_bundle_has_only_files_that_its_directory_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    let real = dir.path().canonicalize().expect("a path");
    for name in ["hidden", "shown", "other"] {
        std::fs::write(real.join(name), b"secret").expect("a file");
    }
    let other = tempfile::tempdir().expect("a directory");
    let spec = |prefix: &str, at: &std::path::Path| OriginSpec {
        prefix: path(prefix),
        uri: format!("file://{}", at.display()),
        options: BTreeMap::new(),
    };
    let options = OriginOptions {
        exclude: vec![path(real.join("hidden").to_str().expect("text"))],
        ..OriginOptions::default()
    };
    let specs = [spec("d", &real), spec("d/other", other.path())];
    let files = Origins::open(&specs, &options).expect("origins");
    // The versions as a client knows them that has read the storage directly.
    let bare = Origins::open(&[spec("d", &real)], &OriginOptions::default()).expect("origins");
    let names = ["hidden", "other", "shown"].map(|name| Bytes::from_static(name.as_bytes()));
    let found = bare
        .stat_names(path("d"), names.to_vec())
        .await
        .expect("answers")
        .value;
    let wanted = names.iter().zip(found).map(|(name, found)| BundleFile {
        name: name.clone(),
        version: found.expect("attributes").version,
        size: 6,
        content: None,
    });
    let request = BundleRequest {
        directory: path("d"),
        files: wanted.collect(),
    };
    let items = collect(files.bundle(request.clone()).await.expect("a bundle")).await;
    assert_eq!(items, [(2, Bytes::from_static(b"secret"))]);
    let counters = files.counters();
    assert_eq!((counters.opens.get(), counters.read_bytes.get()), (1, 6));
    let elsewhere = BundleRequest {
        directory: path("nowhere"),
        ..request
    };
    assert!(files.bundle(elsewhere).await.is_err());
}
