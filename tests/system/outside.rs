//! A child that requests files that are not served: those of other tenants, excluded ones, and targets of links.
//!
//! The child is this test: a member of the job with its own client of the protocol, so that no kernel, cache or namespace
//! of a well-behaved node is between it and the root's daemon.

use crate::skip;
use crate::support::tree::write_secret;
use crate::support::{Mount, Scratch, copperfs, is_root};
use bytes::Bytes;
use copperfs_overlay::loopback::Port;
use copperfs_overlay::{
    Attributes, BlockPart, Failure, Files, ItemPath, Member, NodeIdentity, OriginFingerprint,
    Overlay, OverlayConfig, ReadRequest, Secret, Service, Upstream,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::Duration;

/// A leaf's service, which receives no requests.
struct Leaf(Upstream);

impl Service for Leaf {
    fn files(&self, attempt: u8) -> Arc<dyn Files> {
        Arc::new(self.0.at(attempt))
    }
    fn report(&self) -> Bytes {
        Bytes::from_static(b"{}")
    }
    fn clear(&self, _path: ItemPath) -> BoxFuture<'static, Result<bool, Failure>> {
        Box::pin(async { Ok(true) })
    }
    fn origins(&self) -> BoxFuture<'static, Result<Vec<OriginFingerprint>, Failure>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn path(text: &str) -> ItemPath {
    ItemPath::parse(text.as_bytes()).unwrap()
}

/// What a child may ask its root.
struct Asker(Box<dyn Files>);

impl Asker {
    async fn stat(&self, dir: &str, name: &str) -> Result<Attributes, Failure> {
        let names = vec![Bytes::copy_from_slice(name.as_bytes())];
        self.0.stat_names(path(dir), names).await?.value.remove(0)
    }

    /// The bytes of a file of one block, of which the child knows size and version.
    async fn read(&self, file: &str, known: &Attributes) -> Result<Vec<u8>, Failure> {
        let request = ReadRequest {
            path: path(file),
            version: known.version,
            size: known.size,
            first_block: 0,
            block_count: 1,
            content: known.content,
            through: false,
        };
        let mut parts = self.0.read(request).await?;
        let mut bytes = Vec::new();
        while let Some(part) = parts.next().await {
            if let BlockPart::Bytes(piece) = part? {
                bytes.extend_from_slice(&piece);
            }
        }
        Ok(bytes)
    }

    /// Fails if the child can get the names in `dir`, or the attributes, bytes or extended attributes of `name` in it. The
    /// child knows its version from another path.
    async fn cannot_see(&self, dir: &str, name: &str, known: &Attributes) {
        let file = format!("{dir}/{name}");
        let listed = self.0.list_page(path(dir), None, 100).await;
        let seen = listed.is_ok_and(|listing| listing.entries.iter().any(|it| it.name == *name));
        assert!(!seen, "{dir} lists {name}");
        let attributes = self.stat(dir, name).await;
        assert!(attributes.is_err(), "{file}: {attributes:?}");
        let bytes = self.read(&file, known).await;
        assert!(bytes.is_err(), "{file}: {bytes:?}");
        let xattrs = self.0.xattrs(path(&file)).await;
        assert!(xattrs.is_err(), "{file}: {xattrs:?}");
    }
}

/// Directories `all/a` and `all/b`, and links that lead out of the first.
fn tenants() -> Scratch {
    let scratch = Scratch::new();
    for file in [
        "all/a/own",
        "all/a/private/key",
        "all/b/theirs",
        "all/beside/file",
    ] {
        scratch.file(file, format!("content of {file}"));
    }
    let dir = scratch.path().join("all");
    // Another name of the excluded file tells its version.
    std::fs::hard_link(dir.join("a/private/key"), dir.join("beside/key")).unwrap();
    symlink("../b", dir.join("a/relative")).unwrap();
    symlink(dir.join("b"), dir.join("a/absolute")).unwrap();
    symlink("../b/theirs", dir.join("a/file")).unwrap();
    symlink("private", dir.join("a/public")).unwrap();
    symlink("/proc/self/root", dir.join("a/magic")).unwrap();
    scratch
}

#[test]
fn a_child_gets_nothing_but_what_is_served() {
    if !is_root() {
        skip!("needs root");
    }
    let scratch = tenants();
    let dir = scratch.path().join("all");
    let secret = scratch.path().join("secret");
    write_secret(&secret);
    let ports = [(); 2].map(|()| Port::udp().unwrap());
    let addresses = [ports[0].address(), ports[1].address()];
    let mut root = copperfs(["mount", "--rank", "0", "--arity", "1", "--exclude"]);
    root.arg(dir.join("a/private"));
    let hosts = format!("{},{}", addresses[0], addresses[1]);
    root.args(["--hosts", &hosts, "--secret-file"]).arg(&secret);
    // All of it is also served as c, to learn the versions: with them a read needs no other permission than the path.
    for (prefix, served) in [("a", "a"), ("b", "b"), ("c", "")] {
        let origin = format!("/{prefix}=file://{}", dir.join(served).display());
        root.args(["--origin", &origin]);
    }
    let _mount = Mount::at(&scratch.dir("mnt"), &mut root);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let member = |rank: usize| Member {
        name: addresses[rank].to_string(),
        address: addresses[rank].to_string(),
    };
    let members = vec![member(0), member(1)];
    let secret = Secret::read_file(&secret).unwrap();
    let config = OverlayConfig {
        arity: 1,
        listen: addresses[1],
        request_timeout: Duration::from_secs(10),
        ..OverlayConfig::new(members, NodeIdentity::Member(1), secret)
    };
    runtime.block_on(async {
        let child = Overlay::start(config, None, |upstream| Arc::new(Leaf(upstream))).unwrap();
        let asker = Asker(Box::new(child.upstream().clone()));
        // What is served is there, and so the versions are right.
        let own = asker.stat("a", "own").await.unwrap();
        assert_eq!(
            asker.read("a/own", &own).await.unwrap(),
            b"content of all/a/own"
        );
        let theirs = asker.stat("b", "theirs").await.unwrap();
        assert!(asker.read("b/theirs", &theirs).await.is_ok());
        let key = asker.stat("c/beside", "key").await.unwrap();
        assert!(asker.read("c/beside/key", &key).await.is_ok());
        let beside = asker.stat("c/beside", "file").await.unwrap();

        // By a link, through or to a path of another tenant.
        for link in ["a/relative", "a/absolute"] {
            asker.cannot_see(link, "theirs", &theirs).await;
        }
        assert!(asker.read("a/file", &theirs).await.is_err());
        for deep in ["a/magic", "a/magic/etc"] {
            asker.cannot_see(deep, "passwd", &theirs).await;
        }
        // Excluded, by its name or a link's.
        asker.cannot_see("a", "private", &key).await;
        asker.cannot_see("a/private", "key", &key).await;
        asker.cannot_see("a/public", "key", &key).await;
        asker.cannot_see("c/a/private", "key", &key).await;
        // Beside, above, absolute: there is no such place.
        asker.cannot_see("a/b", "theirs", &theirs).await;
        asker.cannot_see("beside", "file", &beside).await;
        let absolute = dir.join("beside").display().to_string();
        asker.cannot_see(&absolute, "file", &beside).await;
        asker.cannot_see("etc", "passwd", &own).await;
        asker.cannot_see("proc/self", "environ", &own).await;
        // One tenant's version opens nothing of another's.
        assert!(asker.read("a/own", &theirs).await.is_err());
        child.shutdown().await;
    });
}
