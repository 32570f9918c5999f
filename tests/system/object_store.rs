//! A real S3 server as the origin, and what happens when it goes away.

use crate::skip;
use crate::support::command::{has_program, run};
use crate::support::fixture::{checksums, noise};
use crate::support::{Background, Mount, Scratch, copperfs, errno, eventually, is_root};
use copperfs_overlay::loopback::Port;
use rustix::io::Errno;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `scripts/test-servers` puts it there; a user may have it anyway.
pub(crate) fn rclone() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/rclone");
    if own.is_file() {
        return Some(own);
    }
    has_program("rclone").then(|| "rclone".into())
}

/// `rclone serve s3` over a directory, on loopback.
pub(crate) struct Server {
    port: Port,
    process: Option<Background>,
    program: PathBuf,
    root: Scratch,
    keys: (String, String),
}

impl Server {
    pub(crate) fn start(program: PathBuf) -> Self {
        Self::with_keys(program, ("test-key".to_owned(), "test-secret".to_owned()))
    }

    /// A server that lets in only the holder of these keys.
    pub(crate) fn with_keys(program: PathBuf, keys: (String, String)) -> Self {
        let port = Port::tcp().unwrap();
        let root = Scratch::new();
        root.dir("data/bucket");
        let mut server = Self {
            port,
            process: None,
            program,
            root,
            keys,
        };
        server.up();
        server
    }

    fn up(&mut self) {
        let mut serve = Command::new(&self.program);
        serve.args([
            "serve",
            "s3",
            "--addr",
            &self.port.address().to_string(),
            "--config",
            "",
        ]);
        serve
            .args(["--dir-cache-time", "1s", "--auth-key"])
            .arg(format!("{},{}", self.keys.0, self.keys.1));
        serve
            .arg("--cache-dir")
            .arg(self.root.dir("cache"))
            .arg(self.root.dir("data"));
        serve
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(Background::spawn(&mut serve));
        let address = self.port.address();
        eventually(Duration::from_secs(30), "the S3 server is up", || {
            TcpStream::connect(address).is_ok()
        });
    }

    /// Stops it without notice to its clients, or continues it.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.process.as_ref().unwrap().signal(signal);
    }

    /// Starts it again at the same address, for the holder of other keys only.
    pub(crate) fn change_keys(&mut self, keys: (String, String)) {
        self.down();
        self.keys = keys;
        self.up();
    }

    fn down(&mut self) {
        self.process = None;
    }

    /// The bucket, as files.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.root.path().join("data/bucket")
    }

    pub(crate) fn mount(&self, scratch: &Scratch, flags: &[&str]) -> Mount {
        let mut mount = copperfs(["mount", "--origin", "/data=s3://bucket/set"]);
        Mount::at(&scratch.dir("mnt"), self.let_in(mount.args(flags)))
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.port.address())
    }

    /// The options of an origin in a configuration file, with which this server lets in.
    pub(crate) fn options(&self) -> String {
        let (key, secret) = &self.keys;
        format!(
            "[origin.options]\naws_region = \"us-east-1\"\naws_allow_http = \"true\"\n\
             aws_endpoint = \"http://{}\"\naws_access_key_id = \"{key}\"\n\
             aws_secret_access_key = \"{secret}\"\n",
            self.port.address()
        )
    }

    /// Lets `command` reach this server.
    pub(crate) fn let_in<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("AWS_ACCESS_KEY_ID", &self.keys.0)
            .env("AWS_SECRET_ACCESS_KEY", &self.keys.1)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ENDPOINT", self.endpoint())
            .env("AWS_ALLOW_HTTP", "true")
    }
}

fn fill(bucket: &Path) {
    for number in 0..40 {
        let path = bucket.join(format!("set/dir{}/f{number}", number % 4));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(number, usize::try_from(number).unwrap() * 997)).unwrap();
    }
    fs::write(bucket.join("set/large"), noise(99, 9 << 20)).unwrap();
    fs::write(bucket.join("beside"), "not in the prefix").unwrap();
}

/// Every byte arrives, each object is requested once, and only objects under the prefix are visible.
#[test]
fn a_bucket_reads_as_a_directory() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    fill(&server.bucket());
    let scratch = Scratch::new();
    let mount = server.mount(&scratch, &[]);
    let expected = checksums(&server.bucket().join("set"));
    assert_eq!(checksums(&mount.path("data")), expected);
    assert_eq!(checksums(&mount.path("data")), expected);
    let stats = mount.stats();
    // One of the forty is empty.
    assert_eq!(stats.get("origin.opens"), 40);
    let bytes: u64 = (0..40).map(|number| number * 997).sum();
    assert_eq!(stats.get("origin.read_bytes"), bytes + (9 << 20));
    assert_eq!(errno(fs::metadata(mount.path("data/none"))), Errno::NOENT);
    assert_eq!(errno(fs::metadata(mount.path("data/beside"))), Errno::NOENT);
    let (native, mounted) = (server.bucket().join("set/large"), mount.path("data/large"));
    let mtime = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let apart = mtime(&native)
        .duration_since(mtime(&mounted))
        .unwrap_or_default();
    assert!(
        apart < Duration::from_secs(2),
        "the store's times are the files'"
    );
    let shown =
        fs::read_to_string(format!("/proc/{}/cmdline", mount.pid.as_raw_nonzero())).unwrap();
    let secret = server.keys.1.as_str();
    assert!(!shown.contains(secret) && !mount.log().contains(secret));
}

/// The server goes down: cached files are served, other files are an error within the time limit, and when the server is
/// back, so are the files.
#[test]
fn a_server_that_goes_down_and_comes_back() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let mut server = Server::start(program);
    fill(&server.bucket());
    let scratch = Scratch::new();
    let mount = server.mount(&scratch, &["--request-timeout", "3s"]);
    assert!(fs::read(mount.path("data/dir1/f5")).unwrap() == noise(5, 5 * 997));
    server.down();
    let start = Instant::now();
    assert_eq!(errno(fs::read(mount.path("data/dir1/f9"))), Errno::IO);
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "EIO after {:?}",
        start.elapsed()
    );
    assert!(fs::read(mount.path("data/dir1/f5")).unwrap() == noise(5, 5 * 997));
    assert!(mount.stats().get("origin.errors") > 0);
    server.up();
    eventually(Duration::from_secs(20), "the file is read", || {
        fs::read(mount.path("data/dir1/f9")).is_ok_and(|content| content == noise(9, 9 * 997))
    });
}

/// A prefix that is misspelt would be an empty directory.
#[test]
fn a_prefix_without_an_object_is_told_at_the_mount() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    fill(&server.bucket());
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    for (prefix, warns) in [("sett", true), ("set", false)] {
        let mut mount = copperfs(["mount"]);
        mount.arg(format!("/data=s3://bucket/{prefix}")).arg(&point);
        let mounted = run(server.let_in(&mut mount));
        let unmounted = run(copperfs(["unmount"]).arg(&point));
        assert!(
            mounted.status.success() && unmounted.status.success(),
            "{mounted:?}"
        );
        let warning = "warning: no object lies below s3://bucket/sett: check";
        assert_eq!(mounted.stderr.contains(warning), warns, "{mounted:?}");
    }
}

/// Keys that the server does not take, and a server that is not there, are refused at mount time with
/// a message that names the origin and no secret.
#[test]
fn a_store_that_refuses() {
    if !is_root() {
        skip!("needs root");
    }
    let Some(program) = rclone() else {
        skip!("no S3 server: run scripts/test-servers")
    };
    let server = Server::start(program);
    fill(&server.bucket());
    let scratch = Scratch::new();
    let point = scratch.dir("mnt");
    let mut mount = copperfs([
        "mount",
        "--origin",
        "/data=s3://bucket/set",
        "--request-timeout",
        "3s",
    ]);
    mount
        .env("AWS_ACCESS_KEY_ID", &server.keys.0)
        .env("AWS_SECRET_ACCESS_KEY", "wrong-secret");
    mount
        .env("AWS_ENDPOINT", format!("http://{}", server.port.address()))
        .env("AWS_ALLOW_HTTP", "true");
    match Mount::try_at(&point, &mut mount) {
        Err(finished) => {
            let message = finished.refused();
            assert!(message.contains("s3://bucket/set"), "{message}");
            assert!(!message.contains("wrong-secret"), "{message}");
        }
        // The store receives no request before the first access.
        Ok(mount) => {
            let number = errno(fs::read_dir(mount.path("data")).map(drop));
            assert!(matches!(number, Errno::IO | Errno::ACCESS), "{number}");
            assert!(mount.log().contains("s3://bucket"), "{}", mount.log());
            assert!(!mount.log().contains("wrong-secret"));
        }
    }
}
