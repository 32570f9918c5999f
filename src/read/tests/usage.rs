//! Usage of filesystems.

use super::*;
use futures_util::future::try_join_all;

/// A thousand questions on four leaves of one root are one request to storage while a lease lasts, and one
/// more after `clear`.
#[tokio::test]
async fn usage_is_asked_of_storage_once_for_all_leaves() {
    let (root, source) = read_path(Source::new(&[("a", 10)]), options());
    let leaves: Vec<ReadPath> = (0..4)
        .map(|_| alone(&options(), Arc::new(root.clone())))
        .collect();
    let all = async || {
        let questions = (0..1000).map(|number| {
            let leaf = leaves[number % 4].clone();
            async move { leaf.metadata().usage(&ItemPath::root()).await }
        });
        try_join_all(questions).await.unwrap()
    };
    assert_eq!(all().await.len(), 1000);
    all().await;
    assert_eq!(source.usages.load(Ordering::Relaxed), 1);
    for path in leaves.iter().chain([&root]) {
        path.clear(&ItemPath::root());
    }
    all().await;
    assert_eq!(source.usages.load(Ordering::Relaxed), 2);
}

/// Failures are not cached.
#[tokio::test]
async fn usage_that_fails_is_asked_for_again() {
    let mut source = Source::new(&[("a", 10)]);
    source.gate = Semaphore::new(0);
    let (path, source) = read_path(source, options());
    source.gate.close();
    let asking = path.clone();
    // The source panics, and so its request is cancelled.
    let failed = asking.metadata().usage(&ItemPath::root()).await;
    assert_eq!(failed.unwrap_err().kind, FailureKind::Unavailable);
    path.metadata().usage(&ItemPath::root()).await.unwrap_err();
    assert_eq!(source.usages.load(Ordering::Relaxed), 2);
}
