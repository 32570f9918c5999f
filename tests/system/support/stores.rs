//! Blob stores and web servers on loopback, each over files that a test writes. Installed by
//! `scripts/test-servers`.

use super::command::{Background, check, has_program};
use super::{Scratch, copperfs, eventually};
use copperfs_overlay::loopback::Port;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The programs that serve, if they are all here.
pub fn programs() -> Option<(PathBuf, PathBuf)> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rclone = checkout.join(".venv/bin/rclone");
    let azurite = checkout.join(".servers/node_modules/.bin/azurite-blob");
    (rclone.is_file() && azurite.is_file() && has_program("node")).then_some((rclone, azurite))
}

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Azure,
    /// Google's client at an S3 server without keys, whose interface is the same.
    Google,
    Web,
    WebWithoutRanges,
}

/// A server, and the files that it serves. Its origin is the directory `set` of them.
#[derive(Debug)]
pub struct Store {
    pub protocol: Protocol,
    port: Port,
    root: Scratch,
    _process: Background,
}

impl Store {
    const ACCOUNT: &str = "account";
    pub const KEY: &str = "dGhlLXRlc3Qta2V5LW9mLXRoZS1hY2NvdW50";
    /// A key that the server does not know.
    pub const WRONG_KEY: &str = "YW5vdGhlci1rZXktb2Ytbm9ib2R5";

    #[track_caller]
    pub fn start(protocol: Protocol) -> Self {
        let (rclone, azurite) = programs().expect("the servers: run scripts/test-servers");
        let port = Port::tcp().unwrap();
        let address = port.address();
        let root = Scratch::new();
        root.dir("data/box/set");
        let (data, number) = (root.path().join("data"), address.port().to_string());
        let mut serve = match protocol {
            Protocol::Azure => {
                let mut serve = Command::new(azurite);
                serve.args(["--blobHost", "127.0.0.1", "--blobPort", &number]);
                serve.args(["--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]);
                let account = format!("{}:{}", Self::ACCOUNT, Self::KEY);
                serve
                    .arg("--disableTelemetry")
                    .env("AZURITE_ACCOUNTS", account);
                serve
            }
            Protocol::Google | Protocol::Web => {
                let kind = if protocol == Protocol::Web {
                    "http"
                } else {
                    "s3"
                };
                let mut serve = Command::new(rclone);
                serve.args([
                    "serve",
                    kind,
                    "--addr",
                    &address.to_string(),
                    "--config",
                    "",
                ]);
                serve.args(["--dir-cache-time", "0s", "--cache-dir"]);
                serve.arg(root.dir("cache")).arg(&data);
                serve
            }
            Protocol::WebWithoutRanges => {
                let mut serve = Command::new("python3");
                serve.args([
                    "-m",
                    "http.server",
                    "--bind",
                    "127.0.0.1",
                    &number,
                    "--directory",
                ]);
                serve.arg(&data);
                serve
            }
        };
        serve.current_dir(root.path()).stdin(Stdio::null());
        serve.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Background::spawn(&mut serve);
        eventually(Duration::from_secs(60), "the server is up", || {
            TcpStream::connect(address).is_ok()
        });
        let store = Self {
            protocol,
            port,
            root,
            _process: process,
        };
        if protocol == Protocol::Azure {
            store.upload(&["container:box".to_owned()]);
        }
        store
    }

    /// Waits until the files are old enough for their times to tell versions apart.
    pub fn settle(&self) {
        if self.protocol != Protocol::Azure {
            self.root.settle();
        }
    }

    /// The files of the origin.
    pub fn files(&self) -> PathBuf {
        self.root.path().join("data/box/set")
    }

    /// Writes files of the origin: names and contents.
    #[track_caller]
    pub fn put(&self, files: &[(&str, &[u8])]) {
        let mut uploads = Vec::new();
        for (name, content) in files {
            let path = self.root.file(&format!("data/box/set/{name}"), content);
            uploads.push(format!("file:box/set/{name}={}", path.display()));
        }
        if self.protocol == Protocol::Azure {
            self.upload(&uploads);
        }
    }

    #[track_caller]
    fn upload(&self, what: &[String]) {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure_put.py");
        let mut upload = Command::new("python3");
        upload.arg(program).arg(self.endpoint());
        check(upload.args([Self::ACCOUNT, Self::KEY]).args(what));
    }

    fn endpoint(&self) -> String {
        match self.protocol {
            Protocol::Azure => format!("http://{}/{}", self.port.address(), Self::ACCOUNT),
            _ => format!("http://{}", self.port.address()),
        }
    }

    /// The origin's URI; `container` is the one that is there, or another.
    pub fn uri(&self, container: &str) -> String {
        match self.protocol {
            Protocol::Azure => format!("az://{container}/set"),
            Protocol::Google => format!("gs://{container}/set"),
            Protocol::Web | Protocol::WebWithoutRanges => {
                format!("{}/{container}/set", self.endpoint())
            }
        }
    }

    /// `copperfs mount` of the origin as `/data`, with the variables that a user sets.
    pub fn mount(&self, container: &str, key: &str) -> Command {
        let origin = format!("/data={}", self.uri(container));
        let mut mount = copperfs(["mount", "--request-timeout", "20s", "--origin", &origin]);
        self.tell(key, &mut mount);
        mount
    }

    /// Sets the variables that a user sets.
    pub fn tell(&self, key: &str, mount: &mut Command) {
        match self.protocol {
            Protocol::Azure => {
                mount.env("AZURE_STORAGE_ACCOUNT_NAME", Self::ACCOUNT);
                mount.env("AZURE_STORAGE_ACCOUNT_KEY", key);
                mount.env("AZURE_ENDPOINT", self.endpoint());
                mount.env("AZURE_ALLOW_HTTP", "true");
            }
            Protocol::Google => {
                mount.env("GOOGLE_SKIP_SIGNATURE", "true");
                mount.env("GOOGLE_BASE_URL", self.endpoint());
                mount.env("GOOGLE_ALLOW_HTTP", "true");
            }
            Protocol::Web | Protocol::WebWithoutRanges => {}
        }
    }
}
