//! The bound of pending bytes holds for all requests, and answers to questions from before a `clear` are
//! not found after it.

use super::*;

fn small_node() -> ReadOptions {
    ReadOptions {
        sizes: with_data(32 << 20),
        whole_file_max: 8 << 20,
        ..options()
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("f{number:02}")).collect()
}

/// A small node, and its source with files of `len` bytes.
fn node_with(names: &[String], len: usize) -> (ReadPath, Arc<Source>) {
    let files: Vec<(&str, usize)> = names.iter().map(|name| (&name[..], len)).collect();
    let mut source = Source::new(&files);
    source.listable = false;
    read_path(source, small_node())
}

/// Children that request many files at once: each block is fetched once, and the number of concurrent
/// fetches is limited by the room.
#[tokio::test]
async fn fetches_for_greedy_children_wait_for_room() {
    let names = names(24);
    let (path, source) = node_with(&names, 2 << 20);
    let mut children = Vec::new();
    for name in &names {
        let f = file(&path, name).await;
        let path = path.clone();
        children.push(tokio::spawn(async move {
            let answer = Files::read(&path, whole(&f)).await.unwrap();
            collect(answer).await.unwrap().0.len()
        }));
    }
    for child in children {
        assert_eq!(child.await.unwrap(), 2 << 20);
    }
    // The room for fetches is 3 MiB. Each fetch takes one block or two.
    let most = source.begun_most.load(Ordering::Relaxed);
    assert!((1..=3).contains(&most), "{most} fetches at a time");
    assert_eq!(source.blocks_read(), 2 * names.len() as u64, "each once");
}

/// Children that read slowly, and together much more than the cache holds: a block is held until it is sent,
/// so the source is asked for each block once.
#[tokio::test]
async fn blocks_for_many_slow_children_are_fetched_once() {
    const BLOCKS: u64 = 6;
    let names = names(32);
    let (path, source) = node_with(&names, usize::try_from(BLOCKS).unwrap() << 20);
    let mut children = Vec::new();
    for name in &names {
        let f = file(&path, name).await;
        let (path, content) = (path.clone(), source.content(name));
        children.push(tokio::spawn(async move {
            let mut answer = Files::read(&path, whole(&f)).await.unwrap();
            let mut got = Vec::new();
            while let Some(part) = answer.next().await {
                if let BlockPart::Bytes(bytes) = part.unwrap() {
                    got.extend_from_slice(&bytes);
                }
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            assert!(got == content);
        }));
    }
    for child in children {
        child.await.unwrap();
    }
    assert_eq!(source.blocks_read(), BLOCKS * names.len() as u64);
}

/// Children that do not read pin at most half of the room. The others get small copies, and feeds that wait take the room
/// of those that hang.
#[tokio::test(start_paused = true)]
async fn children_that_take_their_time_pin_little_and_get_everything() {
    let (path, source) = read_path(Source::new(&[("f", 6 << 20)]), small_node());
    let f = file(&path, "f").await;
    let content = source.content("f");
    let all = Files::read(&path, whole(&f)).await.unwrap();
    assert!(collect(all).await.unwrap().0 == content);
    let mut slow = Vec::new();
    let (mut pinned, mut copied) = (0, 0);
    for _ in 0..40 {
        let mut answer = Files::read(&path, whole(&f)).await.unwrap();
        let Some(Ok(BlockPart::Bytes(first))) = answer.next().await else {
            panic!("no bytes");
        };
        match first.len() {
            1_048_576 => pinned += 1,
            len => copied += usize::from(len <= 64 << 10),
        }
        slow.push((first, answer));
    }
    assert_eq!((pinned, copied), (1, 39));
    for (first, mut answer) in slow {
        let mut got = first.to_vec();
        while let Some(part) = answer.next().await {
            match part.unwrap() {
                BlockPart::Bytes(bytes) => got.extend_from_slice(&bytes),
                BlockPart::End(_) => {}
                BlockPart::Restart => panic!("nothing was taken back"),
            }
        }
        assert!(got == content);
    }
}

/// Storage with coarse times: the same version with other bytes. After a `clear` new readers get the new
/// bytes, even if an earlier read is still in progress.
#[tokio::test]
async fn bytes_asked_for_before_a_clear_are_not_found_after_it() {
    for bundled in [false, true] {
        let (path, source) = read_path(Source::new(&[("d", 9), ("f", 50_000)]), options());
        let f = file(&path, "f").await;
        source.gate.forget_permits(OPEN_GATE);
        let old = source.content("f");
        let early = {
            let (path, f) = (path.clone(), f.clone());
            tokio::spawn(async move {
                if bundled {
                    path.prefetch(&ItemPath::root(), &["f".into()])
                        .await
                        .unwrap();
                }
                let size = small(f.size);
                path.bytes(&f, &ReadAhead::default(), 0, size).await
            })
        };
        let asked = || {
            let bundles = source.bundles.lock().len();
            source.reads.lock().len() + bundles
        };
        until(SOON, "the early one asks", || asked() == 1).await;
        source.files.lock().get_mut(&b"f"[..]).unwrap().0 = vec![9; 50_000];
        path.clear(&ItemPath::root());
        let late = {
            let (path, f) = (path.clone(), f.clone());
            tokio::spawn(async move {
                let size = small(f.size);
                path.bytes(&f, &ReadAhead::default(), 0, size).await
            })
        };
        until(SOON, "the late one asks, too", || asked() >= 2).await;
        source.gate.add_permits(OPEN_GATE);
        let early = early.await.unwrap().unwrap();
        assert!(early == old || bundled, "it asked before");
        assert_eq!(late.await.unwrap().unwrap(), vec![9; 50_000]);
        let now = path
            .bytes(&f, &ReadAhead::default(), 0, small(f.size))
            .await;
        assert_eq!(now.unwrap(), vec![9; 50_000]);
    }
}

/// A clear of another path does not affect pending reads: the file is read once.
#[tokio::test]
async fn a_clear_elsewhere_voids_nothing() {
    let (path, source) = read_path(Source::new(&[("f", 50_000)]), options());
    let f = file(&path, "f").await;
    source.gate.forget_permits(OPEN_GATE);
    let reading = {
        let (path, f) = (path.clone(), f.clone());
        tokio::spawn(async move { path.bytes(&f, &ReadAhead::default(), 0, 10).await })
    };
    until(SOON, "it is being read", || source.reads.lock().len() == 1).await;
    path.clear(&ItemPath::parse(b"other").unwrap());
    source.gate.add_permits(OPEN_GATE);
    reading.await.unwrap().unwrap();
    assert!(path.try_bytes(&f, 0, 10).is_some());
}
