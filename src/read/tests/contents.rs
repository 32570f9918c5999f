//! Files with content hashes from an index.

use super::*;

/// Three files of the same `size` and content, all of them known as such.
fn equal_files(size: usize) -> Source {
    let mut source = Source::new(&[("a1", size), ("b1", size), ("c1", size)]);
    for name in ["a1", "b1", "c1"] {
        let hash = ContentHash(*blake3::hash(&source.content(name)).as_bytes());
        source.indexed.insert(name.into(), hash);
    }
    source
}

fn paths_read(source: &Source) -> Vec<String> {
    let reads = source.reads.lock();
    reads.iter().map(|read| read.path.to_string()).collect()
}

async fn read_all(path: &ReadPath, f: &FileRef) -> Result<Bytes, Failure> {
    path.bytes(f, &ReadAhead::default(), 0, small(f.size)).await
}

#[tokio::test]
async fn equal_files_are_fetched_once_whoever_asks() {
    for size in [1000, 2_500_000] {
        let (path, source) = read_path(equal_files(size), options());
        let (a, b) = (file(&path, "a1").await, file(&path, "b1").await);
        assert_eq!(a.id(), b.id());
        let content = source.content("a1");
        assert_eq!(read_all(&path, &a).await.unwrap(), content);
        assert_eq!(path.try_bytes(&b, 0, small(b.size)).unwrap(), content);
        let c = file(&path, "c1").await;
        let child = Files::read(&path, whole(&c)).await.unwrap();
        assert_eq!(collect(child).await.unwrap().0, content);
        // The content hash in a child's request is not used for a file of several blocks.
        let read: &[&str] = if size == 1000 {
            &["/a1"]
        } else {
            &["/a1", "/c1"]
        };
        assert_eq!(paths_read(&source), read);
    }
}

#[tokio::test]
async fn a_file_that_differs_from_its_index_is_stale() {
    let mut source = equal_files(1000);
    source.indexed.insert("b1".into(), ContentHash([3; 32]));
    let (path, _source) = read_path(source, options());
    let b = file(&path, "b1").await;
    let failure = read_all(&path, &b).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Stale);
    assert!(failure.detail.contains("make the index again"), "{failure}");
    let a = file(&path, "a1").await;
    assert!(read_all(&path, &a).await.is_ok());
}

/// A child requests one file with the content hash of another: the bytes that it gets, and that are cached
/// here, are never returned to readers of that content.
#[tokio::test]
async fn a_childs_promise_puts_no_bytes_under_another_files_content() {
    for size in [1000, 2_500_000] {
        let mut source = equal_files(size);
        source
            .files
            .lock()
            .insert(b"x1".to_vec(), (vec![7; size], 0));
        source.indexed.remove(&b"x1"[..]);
        let (path, source) = read_path(source, options());
        let (a, x) = (file(&path, "a1").await, file(&path, "x1").await);
        let lie = ReadRequest {
            content: a.content,
            ..whole(&x)
        };
        let child = Files::read(&path, lie).await.unwrap();
        let lied = collect(child).await.map(|(bytes, _)| bytes);
        let range = RangeRequest {
            path: x.path.clone(),
            version: x.version,
            size: x.size,
            offset: 0,
            len: x.size.min(4096),
            content: a.content,
        };
        Files::read_range(&path, range).await.unwrap();
        assert_eq!(read_all(&path, &a).await.unwrap(), source.content("a1"));
        let child = Files::read(&path, whole(&a)).await.unwrap();
        assert_eq!(collect(child).await.unwrap().0, source.content("a1"));
        // For a file of one block the request fails.
        assert_eq!(lied.is_err(), size == 1000);
    }
}

#[tokio::test]
async fn a_reader_that_joined_an_equal_file_gets_its_own_after_a_change() {
    for size in [1000, 2_500_000] {
        let (path, source) = read_path(equal_files(size), options());
        let (a, b) = (file(&path, "a1").await, file(&path, "b1").await);
        let c = file(&path, "c1").await;
        let content = source.content("b1");
        source.change("a1", vec![0; 10]);
        let child = async { collect(Files::read(&path, whole(&c)).await.unwrap()).await };
        let (stale, own, child) = tokio::join!(read_all(&path, &a), read_all(&path, &b), child);
        assert_eq!(stale.unwrap_err().kind, FailureKind::Stale);
        assert_eq!(own.unwrap(), content);
        assert_eq!(child.unwrap().0, content);
        let read = paths_read(&source);
        assert_eq!(read[0], "/a1");
        let believed = if size == 1000 { 2 } else { 3 };
        assert_eq!(read.len(), believed, "{read:?}");
    }
}
