//! Listings of any length, in pages of any length.

use crate::fixtures::{Backend, list_all, path};
use copperfs_overlay::FileKind;
use std::collections::BTreeSet;

pub(super) async fn pages_small(backend: &dyn Backend) {
    let origin = backend.origin();
    for number in 0..7 {
        backend
            .put(&format!("small/f{number}"), b"x".to_vec())
            .await;
        for below in 0..3 {
            let file = format!("small/d{number}/{below}");
            backend.put(&file, b"x".to_vec()).await;
        }
    }
    let mut expected: Vec<(String, FileKind)> = (0..7)
        .flat_map(|number| {
            let dir = (format!("d{number}"), FileKind::Directory);
            [dir, (format!("f{number}"), FileKind::File)]
        })
        .collect();
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    for limit in [1, 2, 3, 5, 13, 14, 15] {
        let pages = list_all(origin, "small", limit).await.expect("pages");
        assert!(pages.iter().all(|page| page.entries.len() <= limit));
        let entries = pages.iter().flat_map(|page| &page.entries);
        let mut found: Vec<(String, FileKind)> = entries
            .map(|entry| {
                (
                    String::from_utf8_lossy(&entry.name).into_owned(),
                    entry.kind,
                )
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, expected, "limit {limit}");
    }
    // A cursor may be used again, by a client that has lost the answer.
    let first = origin.list(path("small"), None, 4).await.expect("a page");
    let mut again = Vec::new();
    for _ in 0..2 {
        let page = origin.list(path("small"), first.next.clone(), 4).await;
        let page = page.expect("the second page");
        let names = page.entries.into_iter().map(|entry| entry.name);
        again.push(names.collect::<BTreeSet<_>>());
    }
    assert_eq!(again[0], again[1]);
}

pub(super) async fn pages_large_directories(backend: &dyn Backend) {
    let origin = backend.origin();
    let count = backend.kind().many;
    backend.fill("large", count).await;
    // No divisor of it, nor of the maximum page of a store.
    let limit = count * 3 / 10 + 7;
    let pages = list_all(origin, "large", limit).await.expect("pages");
    assert!(pages.iter().all(|page| page.entries.len() <= limit));
    assert!(pages.len() >= 4);
    let entries: Vec<_> = pages.iter().flat_map(|page| &page.entries).collect();
    let distinct: BTreeSet<_> = entries.iter().map(|entry| &entry.name).collect();
    assert_eq!(distinct.len(), count);
    assert_eq!(entries.len(), count, "each name once");
    let last = format!("{:07}", count - 1);
    assert!(distinct.contains(&bytes::Bytes::from(last)));
    let whole = list_all(origin, "large", 1_000_000)
        .await
        .expect("a listing");
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].entries.len(), count);
}
