//! What becomes a manifest, in which order, and what is read for it.

use super::*;
use crate::testing::SOON;
use crate::waiting::until;

/// Directories between files, an empty file, one of several blocks, and long ones.
const TREE: [(&str, u64); 8] = [
    ("a/x", 100),
    ("a-b", 300_000),
    ("a.empty", 0),
    ("b/c/long", 2 * PART_BYTES + 5),
    ("b/c/part", PART_BYTES),
    ("b/d", 3_000_000),
    ("z/1", 7),
    ("z/2", 8),
];

fn whole(files: &[(&str, u64)]) -> Vec<(String, u64, u64)> {
    let entry = |(name, size): &(&str, u64)| ((*name).to_owned(), 0, *size);
    files.iter().map(entry).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_is_an_entry_by_path() {
    let scene = Scene::new(&TREE);
    let root = scene.root.path();
    std::os::unix::fs::symlink("a/x", root.join("link")).unwrap();
    std::fs::create_dir(root.join("nothing")).unwrap();
    for has_bundles in [false, true] {
        let storage = Storage::new(root, has_bundles, Box::new(|_| Ok(())));
        let made = scene.make_with(Selection::ByPath, &storage, None).await;
        let manifest = made.unwrap();
        let mut wanted = whole(&TREE);
        wanted.sort();
        assert_eq!(places(&manifest), wanted);
        check_hashes(&manifest, root);
        // Three files are small, and the empty one is not read.
        assert_eq!(storage.reads(), if has_bundles { 4 } else { 7 });
        let left = std::fs::read_dir(scene.out.path()).unwrap().count();
        assert_eq!(left, 1, "only the manifest is left");
        assert_eq!(manifest.header().made_at, 1_800_000_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_kept() {
    let scene = Scene::new(&[("a", 10), ("b/c", 20), ("d", 0)]);
    let list = scene.list("d\nb/c\n/a");
    let manifest = scene.make(Selection::Order(list)).await.unwrap();
    assert_eq!(
        places(&manifest),
        whole(&[("d", 0), ("b/c", 20), ("a", 10)])
    );
    // Files are in the order of their first entries.
    assert_eq!(manifest.path(0), Some(&b"d"[..]));
    check_hashes(&manifest, scene.root.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_ranges_of_shards_and_each_shard_is_read_once() {
    let mib = 1 << 20;
    let scene = Scene::new(&[
        ("s/1", 9 * mib),
        ("s/2\tx", 700),
        ("empty", 0),
        ("other", 5),
    ]);
    let wanted = [
        ("s/2\tx", 650, 50),
        ("s/1", 3 * mib, 5 * mib),
        ("s/1", 10, 20),
        ("s/2\tx", 0, 600),
        ("s/1", 30, mib),
        ("empty", 0, 0),
        ("s/1", 9 * mib - 1, 1),
    ];
    let line = |(path, offset, length): &(&str, u64, u64)| format!("{path}\t{offset}\t{length}\n");
    let list = scene.list(&wanted.iter().map(line).collect::<String>());
    let storage = Storage::of(scene.root.path());
    let made = scene
        .make_with(Selection::Entries(list), &storage, None)
        .await;
    let manifest = made.unwrap();
    let wanted = wanted.map(|(path, offset, length)| (path.to_owned(), offset, length));
    assert_eq!(places(&manifest), wanted);
    check_hashes(&manifest, scene.root.path());
    assert_eq!(manifest.files(), 3);
    assert_eq!(storage.reads(), 2);
    assert_eq!(storage.0.listings.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_with_hashes_spares_all_reads_but_those_for_ranges() {
    let scene = Scene::new(&TREE);
    let wanted = scene.make(Selection::ByPath).await.unwrap();
    let index = scene.index().await;
    let storage = Storage::of(scene.root.path());
    let made = scene
        .make_with(Selection::ByPath, &storage, Some(index))
        .await;
    let manifest = made.unwrap();
    assert_eq!(manifest.identity(), wanted.identity());
    assert_eq!(places(&manifest), places(&wanted));
    assert_eq!(storage.0.listings.load(Ordering::Relaxed), 0);
    assert_eq!(storage.reads(), 0);
    // The long file has parts, which are those that a read would give.
    check_hashes(&manifest, scene.root.path());
    // Ranges are not in the index.
    let list = scene.list("b/d\t5\t10\nz/1\t0\t7\n");
    let index = scene.index().await;
    let made = scene
        .make_with(Selection::Entries(list), &storage, Some(index))
        .await;
    check_hashes(&made.unwrap(), scene.root.path());
    assert_eq!(storage.reads(), 1, "z/1 is whole, but not b/d");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_manifest_goes_on_and_reads_only_the_rest() {
    let files: Vec<(String, u64)> = (0..20)
        .map(|n| (format!("d{}/f{n:02}", n % 3), 100 + n))
        .collect();
    let files: Vec<(&str, u64)> = files
        .iter()
        .map(|(name, size)| (&name[..], *size))
        .collect();
    let scene = Scene::new(&files);
    let whole = scene.make(Selection::ByPath).await.unwrap();
    std::fs::remove_file(scene.target()).unwrap();
    let partial = scene.out.path().join("manifest.partial");

    let storage = Storage::of(scene.root.path());
    storage.permit(12);
    let records = || std::fs::metadata(&partial).map_or(0, |meta| meta.len());
    tokio::select! {
        made = scene.make_with(Selection::ByPath, &storage, None) => panic!("it hangs: {:?}", made.err()),
        () = until(SOON, "it is out of permits", || storage.reads() == 12 && records() > 1500) => {}
    }
    assert!(!scene.target().exists());
    // A power cut: the last record is cut off. And a file of the first one is replaced; files are read in any order.
    let log = std::fs::read(&partial).unwrap();
    let place = |name: &str| log.windows(name.len()).position(|at| at == name.as_bytes());
    let (_, first) = (files
        .iter()
        .filter_map(|(name, _)| Some((place(name)?, *name)))
        .min())
    .unwrap();
    let cut = File::options().write(true).open(&partial).unwrap();
    cut.set_len(records() - 3).unwrap();
    let size = files.iter().find(|(name, _)| *name == first).unwrap().1;
    scene.plant(first, &noise("another", size));
    let storage = Storage::of(scene.root.path());
    let made = scene
        .make_with(Selection::ByPath, &storage, None)
        .await
        .unwrap();
    check_hashes(&made, scene.root.path());
    assert_eq!(places(&made), places(&whole));
    assert_eq!(storage.reads(), 20 - 12 + 2);
    assert!(!partial.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_compared_with_the_files_of_today() {
    let scene = Scene::new(&[("a", 10), ("b", 10), ("c", 10)]);
    let manifest = scene.make(Selection::ByPath).await.unwrap();
    let root = scene.root.path();
    let mut permissions = std::fs::metadata(root.join("b")).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(root.join("b"), permissions).unwrap();
    scene.plant("c", &noise("other", 10));
    let names = ["a", "b", "c"].map(|name| Bytes::from_static(name.as_bytes()));
    let storage = Storage::of(root);
    let now = storage
        .stat_names(ItemPath::root(), names.to_vec())
        .await
        .unwrap();
    let found: Vec<Freshness> = (0..)
        .zip(now.value)
        .map(|(file, now)| manifest.freshness(file, &now.unwrap()))
        .collect();
    let wanted = [
        Freshness::Same,
        Freshness::StatusChanged,
        Freshness::Changed,
    ];
    assert_eq!(found, wanted);
}
