//! Object stores and web servers that a test can fill.

use crate::capabilities::{self, Kind};
use crate::fixtures::{Backend, fill, patient, quick};
use crate::servers::{AzureServer, S3Server, WebServer};
use copperfs::origin::{ObjectOrigin, Origin};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Uploads at a time: enough to keep a server busy.
const UPLOADS: usize = 32;

/// The location of the objects.
enum Server {
    Memory,
    /// A bucket that is a directory.
    S3(S3Server),
    Azure(AzureServer),
}

/// An object store, written to by the test directly.
pub(crate) struct Objects {
    kind: &'static Kind,
    store: Arc<dyn ObjectStore>,
    prefix: &'static str,
    origin: ObjectOrigin,
    server: Server,
}

impl Objects {
    /// In memory, below a prefix, with a neighbour whose name begins alike.
    pub(crate) async fn memory() -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let neighbour = Path::from("base/topx/neighbour");
        store.put(&neighbour, "x".into()).await.expect("an object");
        let top = Path::from("base/top");
        let origin = ObjectOrigin::over(Arc::clone(&store), &top, "memory", &quick());
        Self {
            kind: &capabilities::MEMORY,
            store,
            prefix: "base/top",
            origin,
            server: Server::Memory,
        }
    }

    /// A real S3 server. The credentials come by the environment, the rest by options.
    pub(crate) async fn s3() -> Self {
        let server = S3Server::start().await;
        let spec = server.spec("s3://bucket/top");
        let origin = ObjectOrigin::connect(&spec, &server.options(S3Server::SECRET)).expect("it");
        Self::in_bucket(&capabilities::S3, server, origin)
    }

    /// Google's client. No package offers a server with Google's XML interface, which this client uses. It differs from
    /// S3's in its credentials only, so an S3 server without credentials serves it.
    pub(crate) async fn google() -> Self {
        let server = S3Server::without_keys().await;
        let spec = server.google("gs://bucket/top");
        let origin = ObjectOrigin::connect(&spec, &patient()).expect("the origin");
        Self::in_bucket(&capabilities::GOOGLE, server, origin)
    }

    fn in_bucket(kind: &'static Kind, server: S3Server, origin: ObjectOrigin) -> Self {
        std::fs::create_dir(server.bucket().join("top")).expect("a directory");
        let store = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(server.endpoint())
            .with_allow_http(true)
            .with_access_key_id(S3Server::KEY)
            .with_secret_access_key(S3Server::SECRET)
            .build()
            .expect("a client");
        Self {
            kind,
            store: Arc::new(store),
            prefix: "top",
            origin,
            server: Server::S3(server),
        }
    }

    /// Azurite, with a container of its own.
    pub(crate) async fn azure() -> Self {
        let server = AzureServer::start().await;
        upload(&server, &["box"], &[]);
        let spec = server.spec("az://box/top");
        let origin = ObjectOrigin::connect(&spec, &server.options(AzureServer::KEY)).expect("it");
        let store = MicrosoftAzureBuilder::new()
            .with_container_name("box")
            .with_endpoint(server.endpoint())
            .with_allow_http(true)
            .with_account(AzureServer::ACCOUNT)
            .with_access_key(AzureServer::KEY)
            .build()
            .expect("a client");
        Self {
            kind: &capabilities::AZURE,
            store: Arc::new(store),
            prefix: "top",
            origin,
            server: Server::Azure(server),
        }
    }

    fn key(&self, path: &str) -> Path {
        Path::parse(format!("{}/{path}", self.prefix)).expect("a key")
    }
}

impl Backend for Objects {
    fn kind(&self) -> &'static Kind {
        self.kind
    }

    fn origin(&self) -> &dyn Origin {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let key = self.key(path);
            self.store.put(&key, content.into()).await.expect(path);
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.store.delete(&self.key(path)).await.expect("removal");
        })
    }

    fn fill<'a>(&'a self, name: &'a str, count: usize) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Server::S3(server) = &self.server {
                // The server serves a directory, which is faster to fill than ten thousand uploads.
                fill(&server.bucket().join(self.prefix).join(name), count);
                // The server looks at its directories again after its `--dir-cache-time`.
                tokio::time::sleep(Duration::from_millis(1_100)).await;
                return;
            }
            let uploads = futures_util::stream::iter(0..count).map(|i| async move {
                self.put(&format!("{name}/{i:07}"), Vec::new()).await;
            });
            uploads.buffer_unordered(UPLOADS).collect::<()>().await;
        })
    }

    fn put_keys<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, ()> {
        let Server::Azure(server) = &self.server else {
            unreachable!("{} holds paths only", self.kind.name)
        };
        Box::pin(async move {
            let keys: Vec<String> = keys.iter().map(|key| format!("box/top/{key}")).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            upload(server, &[], &keys);
        })
    }
}

/// Makes containers, and one-byte blobs with arbitrary keys: `object_store` can do neither.
pub(crate) fn upload(server: &AzureServer, containers: &[&str], keys: &[&str]) {
    const PROGRAM: &str = include_str!("../azure_put.py");
    let containers = containers.iter().map(|name| format!("container:{name}"));
    let keys = keys.iter().map(|name| format!("blob:{name}"));
    let made = Command::new("python3")
        .args(["-c", PROGRAM, &server.endpoint()])
        .args([AzureServer::ACCOUNT, AzureServer::KEY])
        .args(containers.chain(keys))
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
}

/// A web server. Its files are written to its directory.
pub(crate) struct Web {
    kind: &'static Kind,
    server: WebServer,
    origin: ObjectOrigin,
    /// Times of modification are whole seconds: each write gets another one.
    writes: AtomicU64,
}

impl Web {
    pub(crate) async fn with_ranges() -> Self {
        Self::over(&capabilities::WEB, WebServer::with_ranges().await)
    }

    pub(crate) async fn without_ranges() -> Self {
        let kind = &capabilities::WEB_WITHOUT_RANGES;
        Self::over(kind, WebServer::without_ranges().await)
    }

    fn over(kind: &'static Kind, server: WebServer) -> Self {
        let origin = ObjectOrigin::connect(&server.spec(), &patient()).expect("the origin");
        Self {
            kind,
            server,
            origin,
            writes: AtomicU64::new(0),
        }
    }
}

impl Backend for Web {
    fn kind(&self) -> &'static Kind {
        self.kind
    }

    fn origin(&self) -> &dyn Origin {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let file = self.server.base().join(path);
            std::fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
            std::fs::write(&file, content).expect("a file");
            let write = self.writes.fetch_add(1, Ordering::Relaxed);
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800 + 10 * write);
            let file = std::fs::File::options().write(true).open(&file);
            file.and_then(|file| file.set_modified(time))
                .expect("its time");
        })
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            std::fs::remove_file(self.server.base().join(path)).expect("removal");
        })
    }

    fn fill<'a>(&'a self, _name: &'a str, _count: usize) -> BoxFuture<'a, ()> {
        unreachable!("{} lists nothing", self.kind.name)
    }

    fn directory(&self) -> PathBuf {
        self.server.base()
    }
}
