//! Files with a version that storage has denied.

use super::*;

/// A child's read path above its parent's and storage.
fn chain(files: &[(&str, usize)]) -> (ReadPath, Arc<Source>) {
    let (parent, source) = read_path(Source::new(files), options());
    (alone(&options(), Arc::new(parent)), source)
}

#[tokio::test]
async fn no_cache_on_the_way_answers_with_a_version_that_was_denied() {
    let (child, source) = chain(&[("a", 10), ("b", 10), ("c", 10)]);
    let (a, b) = (file(&child, "a").await, file(&child, "b").await);
    source.change("a", b"other text".to_vec());
    source.change("b", b"other text".to_vec());
    let now = child
        .metadata()
        .attributes_unlike(&a.path, a.version)
        .await
        .unwrap();
    assert_ne!(now.value.version, a.version);
    assert_eq!(source.stats.lock().len(), 1);
    let again = child
        .metadata()
        .attributes_unlike(&a.path, a.version)
        .await
        .unwrap();
    assert_eq!(again.value, now.value);
    assert_eq!(source.stats.lock().len(), 1, "it is known");
    // A listing that was renewed since then answers for the next file, and is kept when that file's old
    // version is denied.
    file(&child, "c").await;
    let lists = source.lists.load(Ordering::Relaxed);
    let read = child.bytes(&b, &ReadAhead::default(), 0, 10).await;
    assert_eq!(read.unwrap_err().kind, FailureKind::Stale);
    let now = child
        .metadata()
        .attributes_unlike(&b.path, b.version)
        .await
        .unwrap();
    assert_ne!(now.value.version, b.version);
    assert_eq!(source.stats.lock().len(), 1);
    file(&child, "c").await;
    assert_eq!(source.lists.load(Ordering::Relaxed), lists);
}

#[tokio::test]
async fn one_question_is_asked_for_all_that_were_denied() {
    let (child, source) = chain(&[("a", 10)]);
    let a = file(&child, "a").await;
    source.change("a", b"other text".to_vec());
    let ask = || child.metadata().attributes_unlike(&a.path, a.version);
    let all = futures_util::future::join_all((0..20).map(|_| ask())).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(source.stats.lock().len(), 1);
    source.files.lock().clear();
    let now = all[0].as_ref().unwrap().value.version;
    let gone = child
        .metadata()
        .attributes_unlike(&a.path, now)
        .await
        .unwrap_err();
    assert_eq!(gone.kind, FailureKind::NotFound);
}

/// Bytes returned under one version, as blocks, pieces and streams, are compared with another version.
#[tokio::test]
async fn a_version_is_compared_with_the_returned_bytes_of_another() {
    const SIZE: usize = 5 << 20;
    for whole_file_max in [0, u64::MAX] {
        let options = ReadOptions {
            whole_file_max,
            ..options()
        };
        let (path, source) = read_path(Source::new(&[("f", SIZE)]), options);
        let old = file(&path, "f").await;
        let given = Returned::of(ReturnedParts::default(), false, &Meter::default());
        for (offset, len) in [(5_000, 100), (1 << 20, 1 << 20), ((3 << 20) - 10, 20)] {
            let cut = path.read(&old, &ReadAhead::default(), offset, len).await;
            let cut = cut.unwrap();
            assert_eq!(cut.bytes.len(), usize::try_from(len).unwrap());
            assert_eq!(given.note(cut.parts.iter()), Noted::Yes);
            let again = path.data().try_read(&old, offset, len).unwrap();
            assert_eq!(given.note(again.parts.iter()), Noted::Yes);
        }
        let account = given.freeze();
        let same = source.content("f");
        for (at, agrees) in [
            (None, true),
            (Some((2 << 20) - 1), false),
            (Some(5_050), false),
            (Some(3 << 20), false),
            (Some((4 << 20) + 9), true),
        ] {
            let mut content = same.clone();
            if let Some(at) = at {
                content[at] ^= 1;
            }
            source.change("f", content);
            path.clear(&old.path);
            let new = file(&path, "f").await;
            let has = path.data().has_returned(&new, &account).await.unwrap();
            assert_eq!(has, agrees, "{whole_file_max}, changed at {at:?}");
        }
        // A version that is gone cannot be compared.
        assert!(path.data().has_returned(&old, &account).await.is_err());
    }
}

/// Each node between a reader and storage may use a look at a young file for the granularity after the look
/// reached it, so the look can come back for longer than that.
#[tokio::test(start_paused = true)]
async fn a_denied_look_is_not_answered_by_the_caches_on_the_way() {
    let mut made = Source::new(&[("f", 1)]);
    (made.eager, made.young) = (false, true);
    let (path, _source) = read_path(made, options());
    let f = file(&path, "f").await;
    assert!(!f.version.is_settled());
    let now = path
        .metadata()
        .settled_attributes_of(&f.path, &f.version)
        .await;
    assert!(now.unwrap().value.version.is_settled());
    let now = path.metadata().attributes_of(&f.path).await;
    assert!(now.unwrap().value.version.is_settled());
}
