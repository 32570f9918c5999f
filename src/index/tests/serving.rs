//! Serving a prefix from its index.

use super::super::format::DirectoryRecord;
use super::*;

/// An index of `root` that answers at `prefix` before `storage`.
async fn serve(
    prefix: &str,
    specs: &[OriginSpec],
    options: &OriginOptions,
    target: &Path,
) -> (Storage, IndexedFiles) {
    let storage = Storage::of(specs, options.symlinks);
    let rules = Arc::new(NamespaceRules::new(specs, options));
    let place = IndexLocation::Local(target.to_owned());
    let indexed = Arc::new(IndexedPrefix::new(path(prefix), place, rules));
    indexed.open(&specs[0].uri).await.unwrap();
    let files = IndexedFiles::new(Arc::new(storage.clone()), &[indexed]);
    (storage, files)
}

fn without_time(
    mut found: BTreeMap<ItemPath, Option<Attributes>>,
) -> BTreeMap<ItemPath, Attributes> {
    found
        .iter_mut()
        .map(|(path, attributes)| {
            let mut attributes = attributes.take().unwrap();
            // A young file settles soon, and each observation changes its access time.
            attributes.version = attributes
                .version
                .standing_as(copperfs_overlay::Standing::Lasting);
            attributes.atime = attributes.mtime;
            (path.clone(), attributes)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_come_from_the_index_as_from_storage_and_without_asking_it() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    plant(root.path());
    let target = out.path().join("i");
    make(root.path(), &target, false).await;
    let specs = [spec("/data", root.path())];
    let options = options(SymlinkPolicy::Relative);
    let (storage, files) = serve("/data", &specs, &options, &target).await;
    let found = without_time(everything(&files, path("data")).await);
    assert_eq!(storage.asked(), (0, 0));

    let all = OriginOptions {
        listing_attributes_max: usize::MAX,
        ..options.clone()
    };
    let origins = Origins::open(&specs, &all).unwrap();
    let mut native = BTreeMap::new();
    for (found, attributes) in everything(&origins, path("data")).await {
        let (parent, name) = found.split().unwrap();
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => {
                let names = vec![Bytes::copy_from_slice(name)];
                origins
                    .stat_names(parent, names)
                    .await
                    .unwrap()
                    .value
                    .remove(0)
                    .unwrap()
            }
        };
        native.insert(found, Some(attributes));
    }
    assert_eq!(found, without_time(native));
    let link = &found[&path("data/wide/zz-in")];
    assert_eq!(link.link_target.as_deref(), Some(&b"../set"[..]));

    let names = |names: &[&'static str]| names.iter().map(|name| Bytes::from(*name)).collect();
    let stat = files
        .stat_names(path("data"), names(&["", "set.tar", "none"]))
        .await;
    let stat = stat.unwrap().value;
    assert_eq!(stat[0].as_ref().unwrap().kind, FileKind::Directory);
    assert_eq!(stat[1].as_ref().unwrap().size, 3_000_000);
    assert_eq!(stat[2].as_ref().unwrap_err().kind, FailureKind::NotFound);
    for (wrong, kind) in [
        ("data/none", FailureKind::NotFound),
        ("data/none/deeper", FailureKind::NotFound),
        ("data/set.tar", FailureKind::NotADirectory),
    ] {
        let refused = files.list_page(path(wrong), None, 10).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{wrong}");
    }
    assert_eq!(storage.asked(), (0, 0));
    // Above the prefix, storage answers.
    files.list_page(path(""), None, 10).await.unwrap();
    assert_eq!(storage.asked().0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn excluded_paths_and_other_prefixes_are_not_served_from_the_index() {
    let (root, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let out = TempDir::new().unwrap();
    for name in ["a/hidden", "b/nested", "c"] {
        std::fs::create_dir_all(root.path().join(name)).unwrap();
    }
    std::fs::write(root.path().join("a/hidden/f"), b"x").unwrap();
    std::fs::write(other.path().join("here"), b"x").unwrap();
    let target = out.path().join("i");
    make(root.path(), &target, false).await;
    let specs = [
        spec("/data", root.path()),
        spec("/data/b/nested", other.path()),
    ];
    let hidden = root.path().join("a/hidden");
    let options = OriginOptions {
        exclude: vec![path(hidden.to_str().unwrap())],
        ..options(SymlinkPolicy::Relative)
    };
    let (storage, files) = serve("/data", &specs, &options, &target).await;
    let list = async |name: &str| {
        let listing = files.list_page(path(name), None, 10).await?;
        let names = listing.entries.into_iter();
        Ok::<_, Failure>(names.map(|entry| entry.name).collect::<Vec<_>>())
    };
    assert!(list("data/a").await.unwrap().is_empty());
    assert_eq!(
        list("data/a/hidden").await.unwrap_err().kind,
        FailureKind::NotFound
    );
    assert!(list("data/c").await.unwrap().is_empty());
    assert_eq!(storage.asked().0, 0);
    assert_eq!(list("data/b/nested").await.unwrap(), ["here"]);
    assert_eq!(list("data/b").await.unwrap(), ["nested"]);
    assert_eq!(storage.asked().0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_is_stale_until_the_index_is_replaced_and_cleared() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::write(root.path().join("f"), b"old").unwrap();
    let target = out.path().join("i");
    make(root.path(), &target, false).await;
    let specs = [spec("/data", root.path())];
    let options = options(SymlinkPolicy::Relative);
    let (_, files) = serve("/data", &specs, &options, &target).await;
    let read = async || {
        let found = files.stat_names(path("data"), vec![Bytes::from("f")]).await;
        let found = found.unwrap().value.remove(0).unwrap();
        let request = ReadRequest {
            path: path("data/f"),
            version: found.version,
            size: found.size,
            first_block: 0,
            block_count: 1,
            content: found.content,
            through: false,
        };
        files.read(request).await.map(|_parts| found.size)
    };
    assert_eq!(read().await.unwrap(), 3);
    std::fs::write(root.path().join("f"), b"newer").unwrap();
    let stale = read().await.unwrap_err();
    assert_eq!(stale.kind, FailureKind::Stale);
    assert!(stale.detail.contains("make the index again"), "{stale}");
    make(root.path(), &target, false).await;
    assert!(
        read().await.is_err(),
        "an index is what it is until it is cleared"
    );
    files.forget(&path("elsewhere"));
    assert!(read().await.is_err());
    files.forget(&path("data/f"));
    assert_eq!(read().await.unwrap(), 5);
    std::fs::remove_file(root.path().join("f")).unwrap();
    assert_eq!(read().await.unwrap_err().kind, FailureKind::Stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_could_not_be_listed_is_asked_for() {
    let (root, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::create_dir_all(root.path().join("d/e")).unwrap();
    let target = out.path().join("i");
    let mut log = Partial::open(&target, "x", false, false).unwrap();
    let walking = walker(Storage::raw(root.path()), false);
    walking.walk("x", &mut log).await.unwrap();
    let (record, _) = log.record_at(log.first).unwrap().unwrap();
    let directory = DirectoryRecord {
        path: path("d"),
        ..record.directory
    };
    log.append(directory, None, true).unwrap();
    let totals = write_index(&log, &target, "x", false, 0, Existing::Keep).unwrap();
    assert_eq!(totals.unlisted, 1);
    let specs = [spec("/data", root.path())];
    let options = options(SymlinkPolicy::Relative);
    let (storage, files) = serve("/data", &specs, &options, &target).await;
    let listing = files.list_page(path("data/d"), None, 10).await.unwrap();
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(storage.asked().0, 1);
    assert!(
        files
            .list_page(path("data/d/e"), None, 10)
            .await
            .unwrap()
            .entries
            .is_empty()
    );
    assert_eq!(storage.asked().0, 1);
}
