//! Backends filled with files, and small helpers over them.

#[cfg(doc)]
use crate::capabilities::Can;
use crate::capabilities::{self, Kind};
use bytes::Bytes;
use copperfs::origin::{ByteRange, Origin, OriginOptions, PosixOrigin, Retries};
use copperfs_overlay::{Attributes, Failure, ItemPath, Listing};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Storage that a test can write to, and the origin that reads it.
pub(crate) trait Backend: Send + Sync {
    fn kind(&self) -> &'static Kind;
    fn origin(&self) -> &dyn Origin;
    /// Writes a file and the directories above it, replacing an existing file.
    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()>;
    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()>;
    /// Fills directory `name` with `count` empty files `0000000`, ….
    fn fill<'a>(&'a self, name: &'a str, count: usize) -> BoxFuture<'a, ()>;
    /// Writes objects under keys that need not be paths, for backends with [`Can::AnyKey`].
    fn put_keys<'a>(&'a self, _keys: &'a [&'a str]) -> BoxFuture<'a, ()> {
        unreachable!("{} holds paths only", self.kind().name)
    }
    /// The directory of the storage, for backends with [`Can::Sparse`].
    fn directory(&self) -> PathBuf {
        unreachable!("{} is no directory", self.kind().name)
    }
}

pub(crate) fn path(text: &str) -> ItemPath {
    ItemPath::parse(text.as_bytes()).expect("a path")
}

pub(crate) async fn list_all(
    origin: &dyn Origin,
    dir: &str,
    limit: usize,
) -> Result<Vec<Listing>, Failure> {
    let mut pages: Vec<Listing> = Vec::new();
    loop {
        let cursor = pages.last().and_then(|page| page.next.clone());
        if cursor.is_none() && !pages.is_empty() {
            return Ok(pages);
        }
        pages.push(origin.list(path(dir), cursor, limit).await?);
        assert!(pages.len() < 100_000, "a listing without end");
    }
}

pub(crate) async fn names(origin: &dyn Origin, dir: &str) -> Vec<String> {
    let pages = list_all(origin, dir, 1_000_000).await.expect("a listing");
    let mut names: Vec<String> = pages
        .iter()
        .flat_map(|page| &page.entries)
        .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
        .collect();
    names.sort();
    names
}

/// Attributes of `file` once its version has settled.
pub(crate) async fn stat(origin: &dyn Origin, file: &str) -> Result<Attributes, Failure> {
    loop {
        let found = look(origin, file).await?;
        if found.version.is_settled() {
            return Ok(found);
        }
        tokio::time::sleep(found.granularity() + Duration::from_millis(10)).await;
    }
}

/// One look at `file`.
pub(crate) async fn look(origin: &dyn Origin, file: &str) -> Result<Attributes, Failure> {
    let (parent, name) = match path(file).split() {
        Some((parent, name)) => (parent, Bytes::copy_from_slice(name)),
        None => (ItemPath::root(), Bytes::new()),
    };
    let answers = origin.stat(parent, vec![name]).await?;
    assert_eq!(answers.len(), 1);
    answers.into_iter().next().expect("one answer")
}

pub(crate) async fn read(
    origin: &dyn Origin,
    file: &str,
    attributes: &Attributes,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, Failure> {
    let range = ByteRange {
        path: path(file),
        version: attributes.version,
        size: attributes.size,
        offset,
        length,
    };
    let pieces: Vec<Bytes> = origin.open(range).await?.try_collect().await?;
    Ok(pieces.concat())
}

pub(crate) async fn read_whole(origin: &dyn Origin, file: &str) -> Result<Vec<u8>, Failure> {
    let attributes = stat(origin, file).await?;
    read(origin, file, &attributes, 0, attributes.size).await
}

/// `len` bytes that repeat nowhere near a block's length.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i ^ (i >> 8) ^ (i >> 16)) % 251).expect("below 251"))
        .collect()
}

/// Quick retries, so that tests of failures end soon.
pub(crate) fn quick() -> OriginOptions {
    OriginOptions {
        retries: Retries {
            max: 3,
            timeout: Duration::from_secs(5),
            backoff: Duration::from_millis(5),
            backoff_max: Duration::from_millis(20),
            connect_timeout: Duration::from_secs(2),
            read_timeout: Duration::from_millis(500),
        },
        ..OriginOptions::default()
    }
}

/// For real servers, on busy machines.
pub(crate) fn patient() -> OriginOptions {
    let mut options = quick();
    options.retries.timeout = Duration::from_secs(30);
    options.retries.read_timeout = Duration::from_secs(20);
    options
}

pub(crate) struct Posix {
    dir: tempfile::TempDir,
    origin: PosixOrigin,
}

impl Posix {
    pub(crate) fn new() -> Self {
        Self::with(&OriginOptions::default())
    }

    pub(crate) fn with(options: &OriginOptions) -> Self {
        let dir = crate::cleanup::directory();
        let origin = PosixOrigin::open(dir.path(), options).expect("the origin");
        Self { dir, origin }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Backend for Posix {
    fn kind(&self) -> &'static Kind {
        &capabilities::POSIX
    }

    fn directory(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn origin(&self) -> &dyn Origin {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let file = self.file(path);
            std::fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
            std::fs::write(file, content).expect("a file");
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move { std::fs::remove_file(self.file(path)).expect("removal") })
    }

    fn fill<'a>(&'a self, name: &'a str, count: usize) -> BoxFuture<'a, ()> {
        Box::pin(async move { fill(&self.file(name), count) })
    }
}

/// Fills a directory with hard links to one in 50,000 files (ext4 allows 65,000 links), because new inodes take
/// time.
pub(crate) fn fill(dir: &Path, count: usize) {
    const LINKS: usize = 50_000;
    std::fs::create_dir_all(dir).expect("a directory");
    let name = |i: usize| dir.join(format!("{i:07}"));
    for i in 0..count {
        if i % LINKS == 0 {
            std::fs::File::create(name(i)).expect("a file");
        } else {
            std::fs::hard_link(name(i - i % LINKS), name(i)).expect("a link");
        }
    }
}
