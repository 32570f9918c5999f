//! Indexes of real directories: made, read, resumed and served.

use super::partial::{Partial, Sorted};
use super::serve::IndexLocation;
use super::walk::{WalkOptions, Walker, write_index};
use super::write::Existing;
use super::*;
use crate::origin::{NamespaceRules, OriginOptions, OriginSpec, Origins, SymlinkPolicy};
use crate::testing::path;
use bytes::Bytes;
use copperfs_overlay::{
    Attributes, BundleRequest, BundleStream, Entry, FailureKind, FileKind, Files, FilesFuture,
    FilesystemUsage, ItemPath, Leased, ListRequest, Listed, ReadRequest, ReadStream, StatAnswers,
    StatRequest, XattrList,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::sync::Semaphore;

mod making;
mod serving;

fn spec(prefix: &str, root: &Path) -> OriginSpec {
    OriginSpec {
        prefix: path(prefix),
        uri: format!("file://{}", root.display()),
        options: BTreeMap::new(),
    }
}

fn options(symlinks: SymlinkPolicy) -> OriginOptions {
    OriginOptions {
        symlinks,
        listing_attributes_max: 100,
        ..OriginOptions::default()
    }
}

/// Storage that counts its requests, and lists no more directories than it has permits.
#[derive(Clone)]
struct Storage(Arc<Counted>);

struct Counted {
    origins: Origins,
    lists: AtomicU64,
    stats: AtomicU64,
    permits: Semaphore,
}

impl Storage {
    fn of(specs: &[OriginSpec], symlinks: SymlinkPolicy) -> Self {
        Self(Arc::new(Counted {
            origins: Origins::open(specs, &options(symlinks)).unwrap(),
            lists: AtomicU64::new(0),
            stats: AtomicU64::new(0),
            permits: Semaphore::new(1 << 20),
        }))
    }

    /// As an index is made of it.
    fn raw(root: &Path) -> Self {
        Self::of(&[spec("/", root)], SymlinkPolicy::Keep)
    }

    fn asked(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.0.lists), read(&self.0.stats))
    }
}

impl Files for Storage {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        let this = Arc::clone(&self.0);
        Box::pin(async move {
            this.permits.acquire().await.unwrap().forget();
            this.lists.fetch_add(1, Ordering::Relaxed);
            this.origins.list(request).await
        })
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.0.stats.fetch_add(1, Ordering::Relaxed);
        self.0.origins.stat(request)
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        self.0.origins.read(request)
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        self.0.origins.bundle(request)
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.0.origins.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.0.origins.usage(path)
    }
}

fn walker(files: Storage, hash: bool) -> Walker {
    let options = WalkOptions {
        concurrency: 4,
        hash,
    };
    Walker::new(Arc::new(files), options, Arc::default(), Vec::new())
}

/// The index of `root` in `target`.
async fn make(root: &Path, target: &Path, hash: bool) -> Totals {
    let uri = format!("file://{}", root.display());
    let mut log = Partial::open(target, &uri, hash, false).unwrap();
    let walking = walker(Storage::raw(root), hash);
    assert!(walking.walk(&uri, &mut log).await.unwrap().is_empty());
    let totals = write_index(&log, target, &uri, hash, 1_800_000_000, Existing::Replace).unwrap();
    log.remove();
    totals
}

async fn open(target: &Path) -> Result<Index, IndexError> {
    Index::open(Arc::new(LocalFile::open(target)?)).await
}

/// A tree with directories deep and wide, links, and names that begin alike.
fn plant(root: &Path) {
    for number in 0..40 {
        let directory = root.join(format!("set/dir{:02}/sub", number % 20));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("f{number}")), [7; 100]).unwrap();
    }
    std::fs::create_dir_all(root.join("empty")).unwrap();
    std::fs::create_dir_all(root.join("wide")).unwrap();
    for number in 0..2000 {
        std::fs::write(
            root.join(format!("wide/{number:x}-{}", "n".repeat(60))),
            b"",
        )
        .unwrap();
    }
    std::os::unix::fs::symlink("/nowhere", root.join("out")).unwrap();
    std::os::unix::fs::symlink(root.join("set"), root.join("wide/zz-in")).unwrap();
    std::fs::write(root.join("set.tar"), vec![1; 3_000_000]).unwrap();
}

/// Everything that `files` shows below `top`, by path.
async fn everything(files: &dyn Files, top: ItemPath) -> BTreeMap<ItemPath, Option<Attributes>> {
    let mut found = BTreeMap::new();
    let mut queue = vec![top];
    while let Some(directory) = queue.pop() {
        let mut cursor = None;
        loop {
            let page = files
                .list_page(directory.clone(), cursor, 1000)
                .await
                .unwrap();
            for entry in page.entries {
                let child = directory.join(&entry.name).unwrap();
                if entry.kind == FileKind::Directory {
                    queue.push(child.clone());
                }
                assert!(found.insert(child, entry.attributes).is_none());
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
    }
    found
}
