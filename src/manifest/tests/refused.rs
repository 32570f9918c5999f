//! Bad input, each with its message.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_order_names_every_file_once() {
    let scene = Scene::new(&[("a", 1), ("b/c", 2), ("d", 3)]);
    for (list, wanted) in [
        ("d\nb/c\n", "leaves out 1 files of the dataset, /a for one"),
        ("d\nb/c\ne\na\n", "list:3: the dataset has no file /e"),
        ("d\nb/c\na\nb/c\n", "list:4: /b/c is in line 2 already"),
        ("d\n\nb/c\na\n", "list:2: the line is empty"),
        ("d\nb/../a\n", "list:2: not a path"),
        ("b\na\nd\n", "list:1: the dataset has no file /b"),
    ] {
        let said = scene.refused(Selection::Order(scene.list(list))).await;
        assert!(said.contains(wanted), "{list:?}: {said}");
    }
    let long = scene.list(&"x".repeat(5000));
    let said = scene.refused(Selection::Order(long)).await;
    assert!(said.contains("list:1: the line is longer than"), "{said}");
    assert!(
        said.contains("end every path or entry with a newline"),
        "{said}"
    );
    let said = scene.refused(Selection::Order("/nowhere".into())).await;
    assert!(said.contains("cannot read the list /nowhere"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_lie_within_their_files_and_share_no_byte() {
    let scene = Scene::new(&[("a", 100), ("b", 50), ("empty", 0)]);
    for (list, wanted) in [
        (
            "a\t0\t50\nb\t0\t50\na\t49\t2\n",
            "list:3: the entry overlaps that of line 1 in /a",
        ),
        (
            "a\t0\t50\na\t0\t50\n",
            "list:2: the entry overlaps that of line 1 in /a",
        ),
        (
            "empty\t0\t0\nempty\t0\t0\n",
            "list:2: the entry overlaps that of line 1 in /empty",
        ),
        (
            "b\t0\t51\n",
            "list:1: the entry reaches beyond the end of /b, which has 50 bytes",
        ),
        (
            "b\t18446744073709551615\t2\n",
            "list:1: the entry reaches beyond",
        ),
        (
            "b\t5\t0\n",
            "list:1: the entry has no bytes, and /b is not empty",
        ),
        ("a\t0\t5\nc\t0\t5\n", "list:2: the dataset has no file /c"),
        (
            "a\t0\n",
            "list:1: the line is not PATH<TAB>OFFSET<TAB>LENGTH",
        ),
        (
            "a\t0\t-5\n",
            "list:1: the line is not PATH<TAB>OFFSET<TAB>LENGTH",
        ),
        ("", "has no file"),
    ] {
        let said = scene.refused(Selection::Entries(scene.list(list))).await;
        assert!(said.contains(wanted), "{list:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_entry_names_the_remedy() {
    let scene = Scene::new(&[("a", 100)]);
    for (list, remedy) in [
        (
            "a\t0\t50\na\t49\t2\n",
            "shorten or remove one of the two lines",
        ),
        ("a\t90\t20\n", "Make the list again if the file has changed"),
        (
            "a\t5\t0\n",
            "remove the line, or give it a LENGTH above zero",
        ),
    ] {
        let said = scene.refused(Selection::Entries(scene.list(list))).await;
        assert!(said.contains(remedy), "{list:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_dataset_has_no_manifest() {
    let scene = Scene::new(&[]);
    let said = scene.refused(Selection::ByPath).await;
    assert!(
        said.contains("has no file, and a manifest needs at least one"),
        "{said}"
    );
    let left = std::fs::read_dir(scene.out.path()).unwrap().count();
    assert_eq!(left, 0, "nothing is left behind");
}

/// A file that is written to while it is read never gets a hash of mixed states, and what is done is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_is_named() {
    let scene = Scene::new(&[("a", 5_000_000), ("b", 10)]);
    let changing = scene.root.path().join("a");
    let hook: Hook = Box::new(move |path| {
        if path.as_bytes() == b"a" {
            std::fs::write(&changing, b"other").unwrap();
        }
        Ok(())
    });
    let storage = Storage::new(scene.root.path(), false, hook);
    let made = scene.make_with(Selection::ByPath, &storage, None).await;
    let said = made.err().unwrap().to_string();
    assert!(
        said.starts_with("/a changed before its hash was complete"),
        "{said}"
    );
    assert!(
        said.contains("wait until nothing writes to the dataset"),
        "{said}"
    );
    let storage = Storage::of(scene.root.path());
    let made = scene
        .make_with(Selection::ByPath, &storage, None)
        .await
        .unwrap();
    check_hashes(&made, scene.root.path());
    assert_eq!(storage.reads(), 1, "the other file is not read again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changed_since_it_was_indexed_is_named() {
    let scene = Scene::new(&[("a", 5_000_000), ("b", 10)]);
    let index = scene.index().await;
    scene.plant("a", &noise("new", 5_000_000));
    let storage = Storage::of(scene.root.path());
    // A range, because the index has the hash of the whole.
    let list = scene.list("a\t0\t100\n");
    let made = scene
        .make_with(Selection::Entries(list), &storage, Some(index))
        .await;
    let said = made.err().unwrap().to_string();
    assert!(
        said.contains("/a changed") && said.contains("make the index again"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_files_are_all_named_up_to_a_bound() {
    let names: Vec<String> = (0..30).map(|number| format!("f{number:02}")).collect();
    let files: Vec<(&str, u64)> = names.iter().map(|name| (&name[..], 5)).collect();
    for (refuse, count) in [("f0", 10), ("f03", 1), ("f", 10)] {
        let scene = Scene::new(&files);
        let hook: Hook =
            Box::new(
                move |path| match path.as_bytes().starts_with(refuse.as_bytes()) {
                    true => Err(Failure::new(
                        FailureKind::PermissionDenied,
                        "permission denied",
                    )),
                    false => Ok(()),
                },
            );
        let storage = Storage::new(scene.root.path(), false, hook);
        let made = scene.make_with(Selection::ByPath, &storage, None).await;
        let said = made.err().unwrap().to_string();
        let named = said.matches("cannot be read: permission denied\n").count();
        assert_eq!(named, count, "{said}");
        assert!(
            said.ends_with("make the files readable, and run the same command again"),
            "{said}"
        );
        assert!(!scene.target().exists());
    }
}

/// The entries of a task that died are missing, which is never taken for a complete manifest.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_dies_ends_the_manifest() {
    let scene = Scene::new(&[("a", 5), ("b", 5)]);
    let hook: Hook = Box::new(|path| {
        assert_ne!(path.as_bytes(), b"a", "this test wants a panic");
        Ok(())
    });
    let storage = Storage::new(scene.root.path(), false, hook);
    let made = scene.make_with(Selection::ByPath, &storage, None).await;
    assert!(matches!(made.err(), Some(ManifestError::Task(_))));
    assert!(!scene.target().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_that_cannot_be_written_are_refused_before_storage_is_read() {
    let mut scene = Scene::new(&[("a", 1)]);
    let storage = Storage::of(scene.root.path());
    let names = Names::Storage(walker(&storage, false));
    let attempt = async |options: &MakeOptions| {
        let files: Arc<dyn Files> = Arc::new(storage.clone());
        let made = make(options, &names, files, || 0, &Arc::new(Progress::default())).await;
        made.err().unwrap().to_string()
    };
    let mut options = scene.options(Selection::ByPath);
    options.target = scene.out.path().join("none/manifest");
    let said = attempt(&options).await;
    assert!(
        said.contains("its directory does not exist; make it"),
        "{said}"
    );
    options.target = scene.out.path().to_owned();
    let said = attempt(&options).await;
    assert!(
        said.contains("cannot write") && said.contains("directory"),
        "{said}"
    );
    options.target = scene.target();
    let held = journal::UnreadJournal::open(&options.target, &options.uri).unwrap();
    let said = attempt(&options).await;
    assert!(said.contains("is being written by another"), "{said}");
    drop(held);
    assert_eq!(storage.reads(), 0);
    assert_eq!(storage.0.listings.load(Ordering::Relaxed), 0);

    // Begun for another dataset, or not a manifest at all.
    let partial = scene.out.path().join("manifest.partial");
    let other = scene.options(Selection::ByPath);
    scene.root = TempDir::new().unwrap();
    journal::tests::begin(&other);
    let said = scene.refused(Selection::ByPath).await;
    assert!(said.contains("was begun for file://"), "{said}");
    assert!(partial.exists(), "the work of another command is kept");
    std::fs::remove_file(&partial).unwrap();
    let index = Partial::open(&scene.target(), "file:///x", false, false).unwrap();
    drop(index);
    let said = scene.refused(Selection::ByPath).await;
    assert!(said.contains("was begun for something else"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_costs_nothing_that_is_done() {
    let scene = Scene::new(&[("a", 1), ("b", 2)]);
    // Every write to it fails as on a full disk.
    let full = |name: &str| {
        let link = scene.out.path().join(name);
        std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        link
    };
    for name in ["manifest.partial", "manifest.new"] {
        let link = full(name);
        let said = scene.refused(Selection::ByPath).await;
        assert!(said.contains("No space left on device"), "{said}");
        assert!(
            said.contains("Free some space and run the same command again"),
            "{said}"
        );
        assert!(!link.is_symlink(), "{name} is removed");
    }
    let storage = Storage::of(scene.root.path());
    let made = scene.make_with(Selection::ByPath, &storage, None).await;
    check_hashes(&made.unwrap(), scene.root.path());
    assert_eq!(storage.reads(), 0, "both hashes were in the journal");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_of_another_tree_is_refused() {
    let scene = Scene::new(&[("a", 1)]);
    let Names::Index { index, .. } = scene.index().await else {
        panic!("an index was made");
    };
    let own = uri(scene.root.path());
    assert_eq!(root_in(&index, &own).unwrap(), ItemPath::root());
    assert_eq!(
        root_in(&index, &format!("{own}/b/c/")).unwrap(),
        path("b/c")
    );
    for other in [format!("{own}x"), "s3://bucket".to_owned()] {
        let said = root_in(&index, &other).unwrap_err().to_string();
        assert!(said.contains("is not below it"), "{said}");
    }
    // A directory that the index does not have.
    let root = path("b");
    let own = Vec::new();
    let names = Names::Index { index, root, own };
    let storage = Storage::of(scene.root.path());
    let made = scene
        .make_with(Selection::ByPath, &storage, Some(names))
        .await;
    let said = made.err().unwrap().to_string();
    assert!(said.contains("has no listing of /"), "{said}");
}

#[test]
fn a_manifest_that_is_cut_or_foreign_is_named() {
    let scene = Scene::new(&[]);
    let target = scene.target();
    let open = || Manifest::open(&target).err().unwrap().to_string();
    assert!(open().contains("cannot read the manifest"));
    std::fs::write(&target, b"#!/bin/sh\n").unwrap();
    assert!(open().contains("it is not a manifest"), "{}", open());
    let files: [testing::File<'_>; 1] = [(b"a", 3, 1)];
    let good = testing::encoded(&files, &[testing::entry("abc", 0, 0, 3)]);
    std::fs::write(&target, &good).unwrap();
    assert!(Manifest::open(&target).is_ok());
    std::fs::write(&target, &good[..good.len() - 1]).unwrap();
    assert!(open().contains("Copy it again"), "{}", open());
    assert!(open().contains("manifest"), "{}", open());
}
