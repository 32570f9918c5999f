use super::*;
use crate::index::partial::Partial;
use crate::index::walk::{Progress, WalkOptions, Walker, write_index};
use crate::index::write::Existing;
use crate::model::DatasetSpec;
use crate::model::slots::STRIPE_BYTES;
use crate::origin::OriginSpec;
use crate::origin::{OriginOptions, Origins};
use crate::testing::path;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tree with small files, a file of several stripes, a link, and an empty directory.
struct Tree {
    dir: tempfile::TempDir,
    origins: Arc<Origins>,
    counter: DatasetCounter,
}

const LARGE: u64 = 2 * STRIPE_BYTES + 5;

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let set = dir.path().join("set");
        fs::create_dir_all(set.join("a/deep")).unwrap();
        fs::create_dir(set.join("empty")).unwrap();
        for at in 0..30 {
            fs::write(set.join(format!("a/deep/{at:03}")), vec![1; 100 + at]).unwrap();
        }
        let large = fs::File::create(set.join("large")).unwrap();
        large.set_len(LARGE).unwrap();
        std::os::unix::fs::symlink("large", set.join("link")).unwrap();
        fs::write(dir.path().join("beside"), "not part of it").unwrap();
        let origin = OriginSpec {
            prefix: path("/data"),
            uri: format!("file://{}", dir.path().display()),
            options: BTreeMap::new(),
        };
        let options = OriginOptions {
            listing_attributes_max: 10,
            ..OriginOptions::default()
        };
        let origins = Origins::open(std::slice::from_ref(&origin), &options).unwrap();
        let served = ServedPaths {
            origins: vec![origin],
            mounts: Vec::new(),
        };
        let origins = Arc::new(origins);
        let files = Arc::clone(&origins) as Arc<dyn Files>;
        Self {
            counter: DatasetCounter::new(served, files, Arc::default()),
            origins,
            dir,
        }
    }

    async fn walked(&self, at: &str) -> Result<Counted, CountError> {
        let files = Arc::clone(&self.origins) as Arc<dyn Files>;
        walk(files, path(at), Tally::new(Arc::default())).await
    }

    /// Creates an index of the directory `below`.
    async fn index(&self, below: &str) -> std::path::PathBuf {
        let root = self.dir.path().join(below);
        let uri = format!("file://{}", root.display());
        let origin = OriginSpec {
            prefix: ItemPath::root(),
            uri: uri.clone(),
            options: BTreeMap::new(),
        };
        let origins = Origins::open(&[origin], &OriginOptions::default()).unwrap();
        let name = below.replace('/', "-");
        let output = self.dir.path().join(format!("{name}.index"));
        let mut log = Partial::open(&output, &uri, false, false).unwrap();
        let options = WalkOptions {
            concurrency: 4,
            hash: false,
        };
        let progress = Arc::new(Progress::default());
        let walker = Walker::new(Arc::new(origins), options, progress, Vec::new());
        walker.walk(&uri, &mut log).await.unwrap();
        write_index(&log, &output, &uri, false, 1, Existing::Keep).unwrap();
        log.remove();
        output
    }

    async fn indexed(&self, at: &str, index: &Path) -> Result<Counted, CountError> {
        // As a file of this host, not of the namespace.
        let index = format!("file://{}", index.display());
        let dataset = DatasetDecision {
            index: Some(index),
            ..DatasetDecision::from(DatasetSpec::new("set", path(at)))
        };
        self.counter.clone().counted(dataset, Arc::default()).await
    }
}

#[tokio::test]
async fn a_walk_and_an_index_count_the_same() {
    let tree = Tree::new();
    let walked = tree.walked("/data/set").await.unwrap();
    let small: u64 = (100..130).sum();
    assert_eq!((walked.items, walked.bytes), (33, small + LARGE));
    assert_eq!(walked.slots.len(), SLOTS);
    assert_eq!(walked.slots.iter().sum::<u64>(), walked.bytes);
    let slot = |file: &str, stripe| usize::from(slot_of(&path(file), stripe));
    let last = slot("/data/set/large", 2);
    assert!(walked.slots[last] >= 5 && walked.slots[slot("/data/set/large", 0)] >= STRIPE_BYTES);
    // An index of the dataset, and one of a tree that contains it.
    for below in ["set", ""] {
        let index = tree.index(below).await;
        let mut indexed = tree.indexed("/data/set", &index).await.unwrap();
        assert_ne!(indexed.source, 0);
        indexed.source = 0;
        assert!(indexed == walked, "{below:?}");
    }
    // A dataset may be one file.
    let one = tree.walked("/data/set/large").await.unwrap();
    assert_eq!((one.items, one.bytes), (3, LARGE));
    let none = tree.walked("/data/set/empty").await.unwrap();
    assert_eq!((none.items, none.bytes), (0, 0));
}

#[tokio::test]
async fn errors_say_why_a_dataset_cannot_be_counted() {
    let tree = Tree::new();
    let missing = tree.walked("/data/nowhere").await.unwrap_err().to_string();
    assert!(
        missing.contains("/data/nowhere cannot be counted"),
        "{missing}"
    );
    let index = tree.index("set/a").await;
    let error = tree
        .indexed("/data/set", &index)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not hold /data/set"), "{error}");
    let index = tree.index("set").await;
    let error = tree.indexed("/data/set/a/nowhere", &index).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("/data/set/a/nowhere is not in its index"),
        "{error}"
    );
    fs::write(&index, "torn").unwrap();
    let error = tree
        .indexed("/data/set", &index)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not an index"), "{error}");
}

#[tokio::test]
async fn a_count_is_outdated_when_its_index_is_replaced() {
    let tree = Tree::new();
    let index = tree.index("set").await;
    let counted = tree.indexed("/data/set", &index).await.unwrap();
    let dataset = DatasetDecision::from(DatasetSpec {
        index: Some(format!("file://{}", index.display())),
        ..DatasetSpec::new("a", path("/data/set"))
    });
    assert!(!tree.counter.is_outdated(&dataset, counted.source).await);
    fs::write(tree.dir.path().join("set/more"), "more").unwrap();
    fs::remove_file(&index).unwrap();
    assert!(
        !tree.counter.is_outdated(&dataset, counted.source).await,
        "a missing index is no other index"
    );
    let index = tree.index("set").await;
    assert!(tree.counter.is_outdated(&dataset, counted.source).await);
    let anew = tree.indexed("/data/set", &index).await.unwrap();
    assert_eq!(anew.bytes, counted.bytes + 4);
}
