use super::*;
use crate::origin::{OriginOptions, OriginSpec, Origins};
use crate::pipeline::line::Line;
use crate::testing::{NamedBytes, manifest, noise, path};
use std::collections::BTreeSet;
use std::fs;

/// A dataset with small files, a file of three stripes, and directories, at `/x/wh`.
struct Tree {
    dir: tempfile::TempDir,
    place: Place,
}

const LARGE: u64 = 2 * STRIPE_BYTES + 5;

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("wh");
        fs::create_dir_all(top.join("day=1/part")).unwrap();
        fs::write(top.join("a"), "abc").unwrap();
        fs::write(top.join("empty"), "").unwrap();
        fs::write(top.join("day=1/b"), "b").unwrap();
        fs::write(top.join("day=1/part/c"), "cc").unwrap();
        fs::write(dir.path().join("outside"), "secret").unwrap();
        fs::File::create(top.join("large"))
            .unwrap()
            .set_len(LARGE)
            .unwrap();
        std::os::unix::fs::symlink("a", top.join("link")).unwrap();
        let origin = OriginSpec {
            prefix: path("/x"),
            uri: format!("file://{}", dir.path().display()),
            options: Default::default(),
        };
        let origins = Origins::open(std::slice::from_ref(&origin), &OriginOptions::default());
        let place = Place {
            name: "warehouse".into(),
            root: path("/x/wh"),
            catalog: None,
            files: Arc::new(origins.unwrap()),
            references_max: 100,
        };
        Self { dir, place }
    }

    async fn resolve(&self, rest: &str) -> Result<Resolved, LineError> {
        let line = format!(r#"{{"v":1,"op":"submit","job":"j","dataset":"warehouse",{rest}}}"#);
        match Line::parse(line.as_bytes(), 1000).unwrap() {
            Line::Submit(submission) => resolve(&self.place, *submission).await,
            other => panic!("{other:?}"),
        }
    }
}

fn stripe(name: &str, stripe: u64) -> u64 {
    key_of(&path(&format!("/x/wh/{name}")), stripe)
}

/// The keys of each task.
fn keys_of(resolved: &Resolved) -> Vec<BTreeSet<u64>> {
    let tasks = resolved.tasks.iter();
    tasks
        .map(|(_, keys)| keys.iter().copied().collect())
        .collect()
}

#[tokio::test]
async fn a_reference_to_bytes_counts_on_each_stripe_that_it_touches() {
    let tree = Tree::new();
    let resolved = tree.resolve(
        r#""files":["a","large","/x/wh/./day=1//b","empty"],"tasks":[
            {"id":"whole","in":[0,1,2,3]},
            {"id":"first","in":[[1,0,1]]},
            {"id":"across","in":[[1,4194303,2]]},
            {"id":"end","in":[[1,8388613,0],[1,8388612,1]]}]"#,
    );
    let resolved = resolved.await.unwrap();
    let large = |number| stripe("large", number);
    let keys: Vec<BTreeSet<u64>> = keys_of(&resolved);
    let whole = [
        stripe("a", 0),
        large(0),
        large(1),
        large(2),
        stripe("day=1/b", 0),
    ];
    assert_eq!(keys[0], BTreeSet::from(whole));
    let parts = [vec![large(0)], vec![large(0), large(1)], vec![large(2)]];
    assert_eq!(keys[1..], parts.map(BTreeSet::from_iter));
    assert_eq!(resolved.items[&large(1)], 4 << 20);
    assert_eq!(resolved.items[&large(2)], 5);
    assert_eq!(resolved.items.len(), 5);
    assert_eq!(resolved.files.len(), 4);
    assert_eq!(resolved.files[2], ("day=1/b".into(), 1));
}

#[tokio::test]
async fn files_that_do_not_exist_are_named_and_a_directory_is_all_below_it() {
    let tree = Tree::new();
    let resolved = tree.resolve(
        r#""tasks":[{"id":"t","inputs":[{"path":"day=1","recursive":true},{"path":"nothing"},
            {"path":"no/where/b"},{"path":"a/b"},{"path":"gone","recursive":true},{"path":"day=1/part"},{"path":"link"}]}]"#,
    );
    let resolved = resolved.await.unwrap();
    let due = BTreeSet::from([stripe("day=1/b", 0), stripe("day=1/part/c", 0)]);
    assert_eq!(keys_of(&resolved), [due]);
    // A directory that is not said to be one has no bytes, and neither has a link.
    let unknown = ["nothing", "no/where/b", "a/b", "gone", "day=1/part", "link"].map(Box::from);
    assert_eq!(resolved.unknown, unknown);
}

#[tokio::test]
async fn paths_outside_and_ranges_beyond_the_file_are_refused() {
    let tree = Tree::new();
    assert!(tree.dir.path().join("outside").exists());
    for (rest, said) in [
        (
            r#""files":["../outside"],"tasks":[{"id":"t","in":[0]}]"#,
            "\"../outside\" lies outside of dataset warehouse",
        ),
        (r#""files":["/x/outside"],"tasks":[]"#, "lies outside"),
        (
            r#""files":["day=1/../../outside"],"tasks":[]"#,
            "lies outside",
        ),
        (r#""files":["/etc/passwd"],"tasks":[]"#, "lies outside"),
        (
            r#""files":["a"],"tasks":[{"id":"t","in":[[0,1,3]]}]"#,
            "reads 3 bytes from 1 on of \"a\", which has 3 bytes",
        ),
        (
            r#""files":["a"],"tasks":[{"id":"t","in":[[0,18446744073709551615,2]]}]"#,
            "which has 3 bytes",
        ),
    ] {
        let refused = tree.resolve(rest).await.unwrap_err();
        assert!(refused.error.contains(said), "{refused}");
    }
    let many = format!(
        r#""files":["large"],"tasks":[{{"id":"t","in":[{}0]}}]"#,
        "0,".repeat(33)
    );
    let refused = tree.resolve(&many).await.unwrap_err();
    assert!(
        refused.error.contains("more than 100 references"),
        "{refused}"
    );
}

/// Entries of a manifest are items, which lie at home by their content.
#[tokio::test]
async fn the_items_of_a_dataset_with_a_manifest_are_its_entries() {
    let mut tree = Tree::new();
    let entry = |name: &str, size, offset, bytes: Vec<u8>| NamedBytes {
        path: name.into(),
        size,
        offset,
        bytes,
    };
    let long = noise("long", PART_BYTES + 10);
    let entries = [
        entry("a", 3, 0, b"abc".to_vec()),
        entry("long", PART_BYTES + 10, 0, long.clone()),
        entry("shard", 10, 0, b"01".to_vec()),
        entry("shard", 10, 4, b"456".to_vec()),
    ];
    tree.place.catalog = Some(Arc::new(Catalog::new(manifest(&entries))));
    let resolved = tree.resolve(
        r#""files":["a","long","shard","day=1/b"],"tasks":[{"id":"t","in":[0,1,2,3]},{"id":"u","in":[[2,3,2]]},
            {"id":"all","in":[]}]"#,
    );
    let resolved = resolved.await.unwrap();
    let key = |bytes: &[u8]| {
        key_of_content(&copperfs_overlay::ContentHash(
            *blake3::hash(bytes).as_bytes(),
        ))
    };
    let part = usize::try_from(PART_BYTES).unwrap();
    let (first, rest) = long.split_at(part);
    let all = [key(b"abc"), key(first), key(rest), key(b"01"), key(b"456")];
    let keys = keys_of(&resolved);
    assert_eq!(keys[0], BTreeSet::from(all));
    assert_eq!(
        keys[1],
        BTreeSet::from([key(b"456")]),
        "bytes 2 and 3 are in no entry"
    );
    // The manifest does not name it, although it lies there.
    assert_eq!(resolved.unknown, [Box::from("day=1/b")]);
    let below = tree.resolve(r#""tasks":[{"id":"t","inputs":[{"path":".","recursive":true}]}]"#);
    assert_eq!(keys_of(&below.await.unwrap()), [BTreeSet::from(all)]);
}

const PART_BYTES: u64 = crate::manifest::format::PART_BYTES;

#[tokio::test]
async fn a_file_that_is_named_as_a_directory_is_that_file() {
    let tree = Tree::new();
    let resolved = tree.resolve(
        r#""tasks":[{"id":"t","inputs":[{"path":"a","recursive":true},{"path":"day=1","recursive":true}]},
            {"id":"u","inputs":[{"path":"a"},{"path":"day=1"}]}]"#,
    );
    let resolved = resolved.await.unwrap();
    let all = ["a", "day=1/b", "day=1/part/c"].map(|name| stripe(name, 0));
    assert_eq!(
        keys_of(&resolved),
        [BTreeSet::from(all), BTreeSet::from([stripe("a", 0)])]
    );
    assert!(resolved.unknown.is_empty());
}

#[tokio::test]
async fn names_and_sizes_get_around_no_limit() {
    let tree = Tree::new();
    // The same directory by many names.
    let spelled =
        (0..40).map(|at| format!(r#"{{"path":"{}day=1","recursive":true}}"#, "./".repeat(at)));
    let spelled: Vec<String> = spelled.collect();
    let line = format!(r#""tasks":[{{"id":"t","inputs":[{}]}}]"#, spelled.join(","));
    let refused = tree.resolve(&line).await.unwrap_err();
    assert!(
        refused.error.contains("more than 100 references"),
        "{refused}"
    );
    // An empty file by many tasks.
    let tasks: Vec<String> = (0..101)
        .map(|at| format!(r#"{{"id":"{at}","in":[0]}}"#))
        .collect();
    let line = format!(r#""files":["empty"],"tasks":[{}]"#, tasks.join(","));
    let refused = tree.resolve(&line).await.unwrap_err();
    assert!(
        refused.error.contains("more than 100 references"),
        "{refused}"
    );
    // A file with more items than fit into memory.
    let huge = fs::File::create(tree.dir.path().join("wh/huge")).unwrap();
    huge.set_len(1 << 43).unwrap();
    for input in ["0", "[0,1,8796093022207]"] {
        let line = format!(r#""files":["huge"],"tasks":[{{"id":"t","in":[{input}]}}]"#);
        let refused = tree.resolve(&line).await.unwrap_err();
        assert!(
            refused.error.contains("more than 100 references"),
            "{refused}"
        );
    }
}
