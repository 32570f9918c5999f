//! Backends filled with files, and small helpers over them.

use bytes::Bytes;
use copperfs::origin::{
    ByteRange, ObjectOrigin, Origin, OriginOptions, OriginSpec, PosixOrigin, Retries,
};
use copperfs_overlay::{Attributes, Failure, ItemPath, Listing};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use object_store::aws::AmazonS3Builder;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Storage that a test can write to, and the origin that reads it.
pub(crate) trait Backend: Send + Sync {
    fn origin(&self) -> &dyn Origin;
    /// Writes a file, with the directories above it, over what was there.
    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()>;
    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()>;
    /// Fills directory `name` with `count` empty files `0000000`, ….
    fn fill<'a>(&'a self, name: &'a str, count: usize) -> BoxFuture<'a, ()>;
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

pub(crate) async fn stat(origin: &dyn Origin, file: &str) -> Result<Attributes, Failure> {
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

pub(crate) struct Posix {
    dir: tempfile::TempDir,
    origin: PosixOrigin,
}

impl Posix {
    pub(crate) fn new() -> Self {
        Self::with(&OriginOptions::default())
    }

    pub(crate) fn with(options: &OriginOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
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

/// Hard links, but for one in 50,000 (ext4 allows 65,000): new inodes are what takes time.
fn fill(dir: &Path, count: usize) {
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

/// An object store, reached by the test directly.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: &'static str,
    origin: ObjectOrigin,
    server: Option<S3Server>,
}

impl Objects {
    /// In memory, below a prefix, with a neighbour whose name begins alike.
    pub(crate) async fn memory() -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let neighbour = object_store::path::Path::from("base/topx/neighbour");
        store.put(&neighbour, "x".into()).await.expect("an object");
        let prefix = "base/top";
        let top = object_store::path::Path::from(prefix);
        let origin = ObjectOrigin::over(Arc::clone(&store), &top, "memory", &quick());
        Self {
            store,
            prefix,
            origin,
            server: None,
        }
    }

    /// A real S3 server. The credentials come by the environment, the rest by options.
    pub(crate) async fn s3() -> Self {
        let server = S3Server::start().await;
        std::fs::create_dir(server.root.path().join("bucket/top")).expect("a directory");
        let store = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(&server.endpoint)
            .with_allow_http(true)
            .with_access_key_id(S3Server::KEY)
            .with_secret_access_key(S3Server::SECRET)
            .build()
            .expect("a client");
        let spec = server.spec("s3://bucket/top");
        let origin = ObjectOrigin::connect(&spec, &server.options(S3Server::SECRET)).expect("it");
        Self {
            store: Arc::new(store),
            prefix: "top",
            origin,
            server: Some(server),
        }
    }

    fn key(&self, path: &str) -> object_store::path::Path {
        object_store::path::Path::parse(format!("{}/{path}", self.prefix)).expect("a key")
    }
}

impl Backend for Objects {
    fn origin(&self) -> &dyn Origin {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.store
                .put(&self.key(path), content.into())
                .await
                .expect("an object");
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.store.delete(&self.key(path)).await.expect("removal");
        })
    }

    fn fill<'a>(&'a self, name: &'a str, count: usize) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(server) = &self.server {
                // What the server serves is a directory: faster than ten thousand uploads.
                fill(
                    &server
                        .root
                        .path()
                        .join("bucket")
                        .join(self.prefix)
                        .join(name),
                    count,
                );
                // The server looks at its directories again after its `--dir-cache-time`.
                tokio::time::sleep(Duration::from_millis(1_100)).await;
                return;
            }
            for i in 0..count {
                self.put(&format!("{name}/{i:07}"), Vec::new()).await;
            }
        })
    }
}

/// `rclone serve s3` over a directory of its own, on loopback, ended on drop.
pub(crate) struct S3Server {
    child: Child,
    pub(crate) root: tempfile::TempDir,
    pub(crate) endpoint: String,
}

impl S3Server {
    pub(crate) const KEY: &'static str = "the-test-key";
    pub(crate) const SECRET: &'static str = "the-test-secret";

    pub(crate) async fn start() -> Self {
        let rclone = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/rclone");
        assert!(
            rclone.exists(),
            "no S3 server here: run scripts/test-servers"
        );
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("bucket")).expect("a bucket");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("its address");
        drop(free);
        let child = Command::new(rclone)
            .args(["serve", "s3", "--addr", &address.to_string()])
            .args(["--config", "", "--cache-dir"])
            .arg(root.path().join("cache"))
            .args(["--dir-cache-time", "1s", "--auth-key"])
            .arg(format!("{},{}", Self::KEY, Self::SECRET))
            .arg(root.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the S3 server");
        let server = Self {
            child,
            root,
            endpoint: format!("http://{address}"),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(Instant::now() < deadline, "the S3 server does not come up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server
    }

    pub(crate) fn spec(&self, uri: &str) -> OriginSpec {
        OriginSpec {
            prefix: path("data"),
            uri: uri.to_owned(),
            options: BTreeMap::from([
                ("endpoint".to_owned(), self.endpoint.clone()),
                ("allow_http".to_owned(), "true".to_owned()),
            ]),
        }
    }

    pub(crate) fn options(&self, secret: &str) -> OriginOptions {
        OriginOptions {
            env: BTreeMap::from([
                ("AWS_ACCESS_KEY_ID".to_owned(), Self::KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY".to_owned(), secret.to_owned()),
                ("AWS_SOMETHING_ELSE".to_owned(), "ignored".to_owned()),
            ]),
            ..quick()
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
