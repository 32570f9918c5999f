//! Real servers on loopback, each a process of its own that ends with its guard. Installed by
//! `scripts/test-servers`.

use crate::fixtures::{path, patient};
use crate::waiting::until_some;
use copperfs::origin::{OriginOptions, OriginSpec};
use copperfs_overlay::loopback::Port;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Node takes its time to load Azurite, more of it on a machine that is busy.
const STARTUP_MAX: Duration = Duration::from_secs(60);

/// A process that listens, ended on drop.
struct Process {
    child: Child,
    port: Port,
}

impl Process {
    /// Runs the command that `command` returns for a free port, and waits until it answers.
    async fn start(what: &str, command: impl Fn(SocketAddr) -> Command) -> Self {
        let port = Port::tcp().expect("a port");
        let address = port.address();
        let child = command(address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut process = Self { child, port };
        until_some(STARTUP_MAX, format!("{what} comes up"), async || {
            let ended = process.child.try_wait().expect("its state");
            assert!(ended.is_none(), "{what} ended: {ended:?}");
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A program that `scripts/test-servers` installs, by its place in the checkout.
fn installed(place: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
    assert!(
        program.exists(),
        "{place} is missing: run scripts/test-servers"
    );
    program
}

fn rclone(protocol: &str, address: SocketAddr, state: &Path) -> Command {
    let mut command = Command::new(installed(".venv/bin/rclone"));
    command
        .args(["serve", protocol, "--addr", &address.to_string()])
        .args(["--config", "", "--cache-dir"])
        .arg(state.join("cache"));
    command
}

fn text<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    let owned = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    owned.into()
}

fn with_env<const N: usize>(env: [(&str, &str); N]) -> OriginOptions {
    OriginOptions {
        env: text(env),
        ..patient()
    }
}

fn spec(uri: String, options: BTreeMap<String, String>) -> OriginSpec {
    OriginSpec {
        prefix: path("data"),
        uri,
        options,
    }
}

/// `rclone serve s3` over a directory of its own. It answers Amazon's protocol, and for requests without a signature
/// Google's, whose XML interface differs in its credentials only.
pub(crate) struct S3Server {
    process: Process,
    root: tempfile::TempDir,
}

impl S3Server {
    pub(crate) const KEY: &'static str = "the-test-key";
    pub(crate) const SECRET: &'static str = "the-test-secret";

    pub(crate) async fn start() -> Self {
        let keys = format!("{},{}", Self::KEY, Self::SECRET);
        Self::with(&["--auth-key", &keys]).await
    }

    /// Whoever comes is let in.
    pub(crate) async fn without_keys() -> Self {
        Self::with(&[]).await
    }

    async fn with(arguments: &[&str]) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let bucket = root.path().join("data/bucket");
        std::fs::create_dir_all(bucket).expect("a bucket");
        let process = Process::start("the S3 server", |address| {
            let mut command = rclone("s3", address, root.path());
            command.args(["--dir-cache-time", "1s"]).args(arguments);
            command.arg(root.path().join("data"));
            command
        })
        .await;
        Self { process, root }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.process.port.address())
    }

    /// The bucket, as files.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.path().join("data/bucket")
    }

    pub(crate) fn spec(&self, uri: &str) -> OriginSpec {
        let options = text([
            ("endpoint", self.endpoint().as_str()),
            ("allow_http", "true"),
        ]);
        spec(uri.to_owned(), options)
    }

    pub(crate) fn options(&self, secret: &str) -> OriginOptions {
        with_env([
            ("AWS_ACCESS_KEY_ID", Self::KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_SOMETHING_ELSE", "ignored"),
        ])
    }

    /// A `gs://` origin: Google's client at this server.
    pub(crate) fn google(&self, uri: &str) -> OriginSpec {
        let options = text([
            ("base_url", self.endpoint().as_str()),
            ("allow_http", "true"),
            ("skip_signature", "true"),
        ]);
        spec(uri.to_owned(), options)
    }
}

/// Azurite, Microsoft's emulator of Azure Blob Storage, all in memory.
pub(crate) struct AzureServer {
    process: Process,
    /// Its working directory.
    _root: tempfile::TempDir,
}

impl AzureServer {
    pub(crate) const ACCOUNT: &'static str = "account";
    pub(crate) const KEY: &'static str = "dGhlLXRlc3Qta2V5LW9mLXRoZS1hY2NvdW50";

    pub(crate) async fn start() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let process = Process::start("Azurite", |address| {
            let mut command = Command::new(installed(".servers/node_modules/.bin/azurite-blob"));
            command
                .args(["--blobHost", "127.0.0.1", "--blobPort"])
                .arg(address.port().to_string())
                .args(["--inMemoryPersistence", "--skipApiVersionCheck"])
                .args(["--disableTelemetry", "--silent"])
                .current_dir(root.path())
                .env(
                    "AZURITE_ACCOUNTS",
                    format!("{}:{}", Self::ACCOUNT, Self::KEY),
                );
            command
        })
        .await;
        Self {
            process,
            _root: root,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}/{}", self.process.port.address(), Self::ACCOUNT)
    }

    pub(crate) fn spec(&self, uri: &str) -> OriginSpec {
        let options = text([
            ("endpoint", self.endpoint().as_str()),
            ("allow_http", "true"),
        ]);
        spec(uri.to_owned(), options)
    }

    pub(crate) fn options(&self, key: &str) -> OriginOptions {
        with_env([
            ("AZURE_STORAGE_ACCOUNT_NAME", Self::ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", key),
        ])
    }
}

/// `python3 -m http.server PORT --directory DIR`, with a backlog of more than five connections.
const WITHOUT_RANGES: &str = "
import functools, http.server, sys
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[2])
Server((\"127.0.0.1\", int(sys.argv[1])), files).serve_forever()
";

/// A plain web server over a directory.
pub(crate) struct WebServer {
    process: Process,
    root: tempfile::TempDir,
}

impl WebServer {
    /// `rclone serve http`: Go's own file server, with ranges.
    pub(crate) async fn with_ranges() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("base")).expect("a directory");
        let process = Process::start("the web server", |address| {
            let mut command = rclone("http", address, root.path());
            command.args(["--dir-cache-time", "0s"]).arg(root.path());
            command
        })
        .await;
        Self { process, root }
    }

    /// Python's server, which sends the whole file for every range.
    pub(crate) async fn without_ranges() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("base")).expect("a directory");
        let process = Process::start("the web server", |address| {
            let mut command = Command::new("python3");
            command
                .args(["-c", WITHOUT_RANGES, &address.port().to_string()])
                .arg(root.path());
            command
        })
        .await;
        Self { process, root }
    }

    /// The directory that the origin is.
    pub(crate) fn base(&self) -> PathBuf {
        self.root.path().join("base")
    }

    pub(crate) fn spec(&self) -> OriginSpec {
        let uri = format!("http://{}/base", self.process.port.address());
        spec(uri, BTreeMap::new())
    }
}
