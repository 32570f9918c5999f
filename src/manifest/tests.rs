//! Manifests of real directories: made, resumed, refused and opened.

use super::format::{Entry, PART_BYTES};
use super::hash::Progress;
use super::make::{MakeOptions, Selection, make};
use super::names::{Names, root_in};
use super::*;
use crate::index::partial::Partial;
use crate::index::walk::{WalkOptions, Walker, write_index};
use crate::index::write::Existing;
use crate::index::{Index, LocalFile};
use crate::origin::{OriginOptions, OriginSpec, Origins, SymlinkPolicy};
use crate::testing::{noise, path};
use copperfs_overlay::{
    BundleRequest, BundleStream, Files, FilesFuture, FilesystemUsage, Leased, ListRequest, Listed,
    ReadRequest, ReadStream, StatAnswers, StatRequest, XattrList,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::sync::Semaphore;

mod making;
mod refused;
mod writing;

/// Called with the path of a file before it is read alone.
type Hook = Box<dyn Fn(&ItemPath) -> Result<(), Failure> + Send + Sync>;

/// Storage that counts the bytes read, has no bundles unless wanted, and reads no more files than it has permits.
#[derive(Clone)]
struct Storage(Arc<Watched>);

struct Watched {
    origins: Origins,
    has_bundles: bool,
    listings: AtomicU64,
    reads: AtomicU64,
    permits: Semaphore,
    hook: Hook,
}

impl Storage {
    fn new(root: &Path, has_bundles: bool, hook: Hook) -> Self {
        let spec = OriginSpec {
            prefix: ItemPath::root(),
            uri: uri(root),
            options: BTreeMap::new(),
        };
        let options = OriginOptions {
            symlinks: SymlinkPolicy::Keep,
            ..OriginOptions::default()
        };
        Self(Arc::new(Watched {
            origins: Origins::open(&[spec], &options).unwrap(),
            has_bundles,
            listings: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            permits: Semaphore::new(1 << 20),
            hook,
        }))
    }

    /// Storage in which every file is read alone.
    fn of(root: &Path) -> Self {
        Self::new(root, false, Box::new(|_| Ok(())))
    }

    /// The number of reads so far.
    fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::Relaxed)
    }

    fn permit(&self, reads: usize) {
        self.0.permits.forget_permits(1 << 20);
        self.0.permits.add_permits(reads);
    }
}

impl Files for Storage {
    fn list(&self, request: ListRequest) -> FilesFuture<Listed> {
        self.0.listings.fetch_add(1, Ordering::Relaxed);
        self.0.origins.list(request)
    }

    fn stat(&self, request: StatRequest) -> FilesFuture<Leased<StatAnswers>> {
        self.0.origins.stat(request)
    }

    fn read(&self, request: ReadRequest) -> FilesFuture<ReadStream> {
        let this = Arc::clone(&self.0);
        Box::pin(async move {
            this.permits.acquire().await.unwrap().forget();
            this.reads.fetch_add(1, Ordering::Relaxed);
            (this.hook)(&request.path)?;
            this.origins.read(request).await
        })
    }

    fn bundle(&self, request: BundleRequest) -> FilesFuture<BundleStream> {
        if self.0.has_bundles {
            return self.0.origins.bundle(request);
        }
        crate::testing::refuse()
    }

    fn xattrs(&self, path: ItemPath) -> FilesFuture<Leased<XattrList>> {
        self.0.origins.xattrs(path)
    }

    fn usage(&self, path: ItemPath) -> FilesFuture<FilesystemUsage> {
        self.0.origins.usage(path)
    }
}

fn uri(root: &Path) -> String {
    format!("file://{}", root.display())
}

/// A dataset, and a directory for its manifest.
struct Scene {
    root: TempDir,
    out: TempDir,
}

impl Scene {
    fn new(files: &[(&str, u64)]) -> Self {
        let scene = Self {
            root: TempDir::new().unwrap(),
            out: TempDir::new().unwrap(),
        };
        for (name, size) in files {
            scene.plant(name, &noise(name, *size));
        }
        scene
    }

    fn plant(&self, name: &str, content: &[u8]) {
        let path = self.root.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn target(&self) -> PathBuf {
        self.out.path().join("manifest")
    }

    fn list(&self, text: &str) -> PathBuf {
        let path = self.out.path().join("list");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn options(&self, selection: Selection) -> MakeOptions {
        MakeOptions {
            target: self.target(),
            uri: uri(self.root.path()),
            selection,
            concurrency: 4,
        }
    }

    async fn make(&self, selection: Selection) -> Result<Manifest, ManifestError> {
        self.make_with(selection, &Storage::of(self.root.path()), None)
            .await
    }

    /// Makes a manifest with bytes from `storage`, and names from it too or from an index.
    async fn make_with(
        &self,
        selection: Selection,
        storage: &Storage,
        index: Option<Names>,
    ) -> Result<Manifest, ManifestError> {
        let names = index.unwrap_or_else(|| Names::Storage(walker(storage, false)));
        let options = self.options(selection);
        let (files, progress) = (Arc::new(storage.clone()), Arc::default());
        let header = make(&options, &names, files, || 1_800_000_000, &progress).await?;
        let known = progress.known.load(Ordering::Relaxed);
        assert_eq!(known, header.counts.entries, "all entries are counted");
        let manifest = Manifest::open(&options.target)?;
        assert_eq!(*manifest.header(), header);
        Ok(manifest)
    }

    async fn refused(&self, selection: Selection) -> String {
        let refused = self.make(selection).await.err().unwrap().to_string();
        assert!(!self.target().exists(), "{refused}");
        refused
    }

    /// An index of the dataset, with the hashes of its files.
    async fn index(&self) -> Names {
        let (file, uri) = (self.out.path().join("index"), uri(self.root.path()));
        let mut log = Partial::open(&file, &uri, true, false).unwrap();
        let walking = walker(&Storage::of(self.root.path()), true);
        assert!(walking.walk(&uri, &mut log).await.unwrap().is_empty());
        write_index(&log, &file, &uri, true, 0, Existing::Replace).unwrap();
        log.remove();
        let index = Index::open(Arc::new(LocalFile::open(&file).unwrap()))
            .await
            .unwrap();
        let root = root_in(&index, &uri).unwrap();
        let (index, own) = (Box::new(index), Vec::new());
        Names::Index { index, root, own }
    }
}

fn walker(storage: &Storage, hash: bool) -> Walker {
    let options = WalkOptions {
        concurrency: 4,
        hash,
    };
    Walker::new(
        Arc::new(storage.clone()),
        options,
        Arc::default(),
        Vec::new(),
    )
}

/// The entries of `manifest`: path, offset, length.
fn places(manifest: &Manifest) -> Vec<(String, u64, u64)> {
    let entries = (0..manifest.len()).map(|number| manifest.entry(number).unwrap());
    let place = |entry: Entry| {
        let path = manifest.path(entry.file).unwrap();
        let path = String::from_utf8(path.to_vec()).unwrap();
        (path, entry.offset, entry.length)
    };
    entries.map(place).collect()
}

/// Checks every hash of `manifest` against the bytes below `root`.
fn check_hashes(manifest: &Manifest, root: &Path) {
    let hash = |bytes: &[u8]| *blake3::hash(bytes).as_bytes();
    for (number, (path, offset, length)) in places(manifest).into_iter().enumerate() {
        let bytes = std::fs::read(root.join(&path)).unwrap();
        let bytes = &bytes[to_usize(offset)..to_usize(offset + length)];
        assert_eq!(manifest.hashes()[number], hash(bytes), "{path} {offset}");
        let parts = bytes.chunks(to_usize(PART_BYTES)).map(hash);
        let wanted: Vec<[u8; 32]> = match length > PART_BYTES {
            true => parts.collect(),
            false => Vec::new(),
        };
        assert_eq!(manifest.parts(number), wanted, "{path} {offset}");
    }
}
