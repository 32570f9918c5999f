//! Large files: read forward, here and there, and by children.

use super::*;
use copperfs_overlay::STRIPE_BLOCKS;

const MIB: u64 = 1 << 20;

fn large() -> ReadOptions {
    ReadOptions {
        sizes: with_data(256 << 20),
        whole_file_max: 1 << 20,
        ..options()
    }
}

impl Source {
    /// The bytes that were requested from it.
    fn bytes_asked(&self, size: u64) -> u64 {
        let blocks = |read: &ReadRequest| {
            let blocks = read.first_block..read.first_block + read.block_count;
            blocks
                .map(|index| ReadRequest::block_len(size, index))
                .sum::<u64>()
        };
        let by_blocks: u64 = self.reads.lock().iter().map(blocks).sum();
        let ranges = self.ranges.lock();
        by_blocks + ranges.iter().map(|range| range.len).sum::<u64>()
    }
}

async fn read(path: &ReadPath, f: &FileRef, ahead: &ReadAhead, offset: u64, size: u32) -> Bytes {
    match path.try_bytes(f, offset, size) {
        Some(bytes) => {
            path.on_hit(f, ahead, offset, size);
            bytes
        }
        None => path.bytes(f, ahead, offset, size).await.unwrap(),
    }
}

#[tokio::test]
async fn a_sequential_reader_gets_blocks_in_few_requests() {
    let (path, source) = read_path(Source::new(&[("f", 40 << 20)]), large());
    let f = file(&path, "f").await;
    let content = source.content("f");
    let ahead = ReadAhead::default();
    for offset in (0..f.size).step_by(1 << 17) {
        let bytes = read(&path, &f, &ahead, offset, 1 << 17).await;
        let at = usize::try_from(offset).unwrap();
        assert_eq!(bytes, &content[at..at + (1 << 17)]);
    }
    let requests = source.reads.lock().len();
    assert!(requests <= 20, "{requests} requests for 40 blocks in order");
    assert_eq!(source.bytes_asked(f.size), f.size, "each byte once");
}

#[tokio::test]
async fn scattered_reads_fetch_only_the_requested_pieces_once() {
    let (path, source) = read_path(Source::new(&[("f", (40 << 20) + 777)]), large());
    let f = file(&path, "f").await;
    let content = source.content("f");
    let ahead = ReadAhead::default();
    let mut asked = 0;
    for block in [31_u64, 3, 17, 8, 25, 12, 38, 20] {
        let offset = block * MIB + 12_288;
        let at = usize::try_from(offset).unwrap();
        assert_eq!(
            read(&path, &f, &ahead, offset, 4096).await,
            &content[at..at + 4096]
        );
        // Again, and a part of it that is not aligned: from here.
        assert_eq!(
            read(&path, &f, &ahead, offset + 5, 100).await,
            &content[at + 5..at + 105]
        );
        asked += 4096;
    }
    assert_eq!(source.bytes_asked(f.size), asked);
    assert!(source.reads.lock().is_empty());
    // Over the border of two blocks, over pieces that are here, and at the end of the file.
    let start = 31 * MIB - 300_000;
    let at = usize::try_from(start).unwrap();
    let bytes = read(&path, &f, &ahead, start, 400_000).await;
    assert_eq!(bytes, &content[at..at + 400_000]);
    let bytes = read(&path, &f, &ahead, f.size - 1000, 9000).await;
    assert_eq!(bytes, &content[content.len() - 1000..]);
    asked += 400_000 + 1000;
    let fetched = source.bytes_asked(f.size);
    assert!(fetched <= asked + 4 * 4096, "{fetched} for {asked}");
    let held = path.stats().data.bytes;
    assert!(
        held >= fetched && held <= fetched + fetched / 8,
        "{held} for {fetched}"
    );
    path.clear(&ItemPath::root());
    assert_eq!(path.stats().data.bytes, 0);
    assert_eq!(path.try_bytes(&f, start, 4096), None);
}

#[tokio::test]
async fn a_cached_block_serves_its_pieces_and_readers_share_requests() {
    let (path, source) = read_path(Source::new(&[("f", 40 << 20)]), large());
    let f = file(&path, "f").await;
    collect(
        Files::read(
            &path,
            ReadRequest {
                block_count: 2,
                ..whole(&f)
            },
        )
        .await
        .unwrap(),
    )
    .await
    .unwrap();
    let ahead = ReadAhead::default();
    path.bytes(&f, &ahead, MIB - 4096, 8192).await.unwrap();
    assert_eq!(source.bytes_asked(f.size), 2 * MIB);

    let closed = source
        .gate
        .acquire_many(small(OPEN_GATE as u64))
        .await
        .unwrap();
    let readers = (0..20_u64).map(|reader| {
        let (path, f) = (path.clone(), f.clone());
        tokio::spawn(async move {
            let ahead = ReadAhead::default();
            path.bytes(&f, &ahead, 9 * MIB + reader % 4 * 4096, 8192)
                .await
        })
    });
    let readers: Vec<_> = readers.collect();
    until(SOON, "all wait for one", || path.stats().coalesced >= 20).await;
    drop(closed);
    for reader in readers {
        assert_eq!(reader.await.unwrap().unwrap().len(), 8192);
    }
    assert_eq!(source.bytes_asked(f.size), 2 * MIB + 5 * 4096);
}

#[tokio::test]
async fn a_childs_range_costs_its_bytes_once_on_every_node_on_the_way() {
    let (root, source) = read_path(Source::new(&[("f", 40 << 20)]), large());
    let middle = alone(&large(), Arc::new(root.clone()));
    let leaves: Vec<_> = (0..3)
        .map(|_| alone(&large(), Arc::new(middle.clone())))
        .collect();
    let f = file(&leaves[0], "f").await;
    let content = source.content("f");
    for leaf in &leaves {
        let bytes = read(leaf, &f, &ReadAhead::default(), 7 * MIB + 4096, 10_000).await;
        let at = 7 * (1 << 20) + 4096;
        assert_eq!(bytes, &content[at..at + 10_000]);
    }
    assert_eq!(source.bytes_asked(f.size), 3 * 4096);
    let request = RangeRequest {
        path: f.path.clone(),
        version: f.version,
        size: f.size,
        offset: STRIPE_BLOCKS * MIB,
        len: 4096,
        content: None,
    };
    let found = middle.read_range(request.clone()).await.unwrap();
    assert_eq!(found.hash.0, *blake3::hash(&found.bytes).as_bytes());
    let wrong = RangeRequest {
        offset: 5,
        ..request
    };
    assert!(middle.read_range(wrong).await.is_err());
}

#[tokio::test]
async fn a_file_that_changed_is_stale_for_scattered_readers_too() {
    let (path, source) = read_path(Source::new(&[("f", 40 << 20)]), large());
    let f = file(&path, "f").await;
    let ahead = ReadAhead::default();
    path.bytes(&f, &ahead, 5 * MIB, 4096).await.unwrap();
    source.change("f", vec![9; 40 << 20]);
    assert!(
        path.try_bytes(&f, 5 * MIB, 4096).is_some(),
        "old bytes, whole"
    );
    let failure = path.bytes(&f, &ahead, 9 * MIB, 4096).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Stale);
    let new = file(&path, "f").await;
    assert_eq!(path.bytes(&new, &ahead, 9 * MIB, 4096).await.unwrap()[0], 9);
}

/// Readers go on while the memory of their node changes, also to less than a request of theirs.
#[tokio::test]
async fn the_memory_changes_under_readers() {
    let (path, source) = read_path(Source::new(&[("f", 64 << 20)]), large());
    let (f, content) = (file(&path, "f").await, Arc::new(source.content("f")));
    let readers = (0..8_u64).map(|reader| {
        let (path, f, content) = (path.clone(), f.clone(), Arc::clone(&content));
        tokio::spawn(async move {
            let ahead = ReadAhead::default();
            let start = reader * 8 * MIB;
            for offset in (start..start + 8 * MIB).step_by(1 << 19) {
                let cut = path.read(&f, &ahead, offset, 1 << 19).await.unwrap();
                let from = usize::try_from(offset).unwrap();
                assert!(cut.bytes == content[from..from + (1 << 19)]);
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for data_bytes in [64 * MIB, 2 * MIB, 16 * MIB].into_iter().cycle().take(200) {
        ReadPath::resize(std::slice::from_ref(&path), &with_data(data_bytes));
        assert!(path.stats().data.bytes <= data_bytes);
        tokio::task::yield_now().await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
    ReadPath::resize(std::slice::from_ref(&path), &with_data(2 * MIB));
    assert!(path.stats().data.bytes <= 2 * MIB);
}

/// What a small node holds stays small, whatever is read of it and by how many.
#[tokio::test]
async fn cache_and_transfers_stay_within_the_limit() {
    let bound = 32 << 20;
    let options = ReadOptions {
        sizes: with_data(bound),
        ..large()
    };
    let (path, source) = read_path(Source::new(&[("f", 200 << 20)]), options);
    let f = file(&path, "f").await;
    let readers = (0..16_u64).map(|reader| {
        let (path, f) = (path.clone(), f.clone());
        tokio::spawn(async move {
            let ahead = ReadAhead::default();
            let start = reader * 12 * MIB;
            for offset in (start..start + 12 * MIB).step_by(1 << 19) {
                read(&path, &f, &ahead, offset, 1 << 19).await;
                assert!(path.stats().data.bytes <= bound * 3 / 4);
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    let (fetched, read) = (source.bytes_asked(f.size), 16 * 12 * MIB);
    assert!(fetched <= read + read / 4, "{fetched} for {read}");
}
