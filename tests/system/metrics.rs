//! Metrics, as monitoring reads them and as they are documented.

use crate::skip;
use crate::support::command::{as_user, has_python_module};
use crate::support::{Mount, Scratch, check, copperfs, is_root, program_for_all, python, run};
use copperfs_fuse::ioctl::client;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A user that owns nothing.
const NOBODY: u32 = 65_534;

/// Sends `GET argv[2]` over the Unix socket `argv[1]`, where `@` stands for an abstract one, and prints the
/// status and the body.
const GET: &str = "import http.client, socket, sys
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1].replace('@', '\\0'))
api = Unix('copperfs', timeout=30)
api.request(sys.argv[3] if len(sys.argv) > 3 else 'GET', sys.argv[2])
answer = api.getresponse()
print(answer.status)
print(answer.read().decode())";

/// A node with all that declares metrics: both mounts, and a store.
struct Full {
    mount: Mount,
    scratch: Scratch,
}

impl Full {
    fn new(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        scratch.file("origin/a", vec![b'a'; 10_000]);
        scratch.file("origin/b", vec![b'b'; 20_000]);
        for name in ["mnt", "data", "disk"] {
            scratch.dir(name);
        }
        scratch.settle();
        let place = |name: &str| scratch.path().join(name);
        let served = format!("/=file://{}", place("origin").display());
        let mut command = copperfs(["mount", "--origin", &served, "--data-mount"]);
        let disk = format!("{}:100MiB", place("disk").display());
        command
            .arg(place("data"))
            .args(["--disk", &disk])
            .args(flags);
        let mount = Mount::at(&place("mnt"), &mut command);
        std::fs::read(mount.path("a")).unwrap();
        std::fs::read(mount.path("b")).unwrap();
        Self { mount, scratch }
    }

    fn owner(&self) -> PathBuf {
        client::sockets(&self.mount.node.point).unwrap().owner
    }

    fn users(&self) -> String {
        format!(
            "@{}",
            client::sockets(&self.mount.node.point).unwrap().users
        )
    }

    fn metrics(&self) -> String {
        let said = check(python().args(["-c", GET]).arg(self.owner()).arg("/metrics"));
        let (status, text) = said.split_once('\n').unwrap();
        assert_eq!(status, "200", "{text}");
        text.to_owned()
    }
}

/// Prometheus' own parser reads the exported metrics, and finds the numbers of `copperfs stats`.
#[test]
fn prometheus_reads_the_metrics() {
    if !is_root() {
        skip!("needs root");
    }
    if !has_python_module("prometheus_client") {
        skip!("needs the Python package prometheus-client");
    }
    let full = Full::new(&[]);
    let file = full.scratch.file("metrics.txt", full.metrics());
    let script = "import sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(open(sys.argv[1]).read()):
    assert family.documentation.endswith('.'), family
    assert family.type in ('counter', 'gauge', 'histogram'), family
    for sample in family.samples:
        labels = ','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))
        print(f'{sample.name}{{{labels}}} {sample.value}')";
    let said = check(python().args(["-c", script]).arg(&file));
    let samples: BTreeMap<&str, f64> = said
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name, value.parse().unwrap()))
        .collect();
    let stats = full.mount.stats();
    for (sample, key) in [
        ("copperfs_origin_opens_total{}", "origin.opens"),
        ("copperfs_origin_read_bytes_total{}", "origin.read_bytes"),
        ("copperfs_cache_bytes{cache=data}", "cache.data.bytes"),
        (
            "copperfs_fuse_requests_total{mount=software,op=read}",
            "fuse.software.requests.read",
        ),
        ("copperfs_data_mount_mounted{}", "data_mount.mounted"),
    ] {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let expected = stats.get(key) as f64;
        assert_eq!(samples.get(sample), Some(&expected), "{sample}: {said}");
    }
    assert!(
        samples["copperfs_origin_read_bytes_total{}"] >= 30_000.0,
        "{said}"
    );
}

/// One row for each metric: name, labels, kind, meaning. `UPDATE_SNAPSHOTS=1` writes it.
#[test]
fn docs_metrics_md_lists_all() {
    if !is_root() {
        skip!("needs root");
    }
    let full = Full::new(&[]);
    let text = full.metrics();
    let mut rows = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let kind = lines
            .next()
            .and_then(|line| line.rsplit(' ').next())
            .unwrap();
        let labels = lines.peek().map_or("", |sample| labels_of(sample));
        rows.push_str(&format!("| `{name}` | {labels} | {kind} | {help} |\n"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let head = "| name | labels | kind | meaning |\n| --- | --- | --- | --- |\n";
    let (before, _) = document.split_once(head).unwrap();
    let wanted = format!("{before}{head}{rows}");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), wanted);
}

/// The names of a sample's labels, without the one of a histogram's buckets.
fn labels_of(sample: &str) -> &str {
    match (sample.find('{'), sample.find('=')) {
        (Some(from), Some(to)) if from < to => match &sample[from + 1..to] {
            "mount" if sample.contains(",op=") => "mount, op",
            "op" if sample.contains(",tier=") => "op, tier",
            "le" => "",
            name => name,
        },
        _ => "",
    }
}

/// What only reads is served to users of the mount, if the mount is open to them; commands are not.
#[test]
fn users_of_the_mount_see_and_do_not_command() {
    if !is_root() {
        skip!("needs root");
    }
    let ask = |socket: &str, request: &[&str]| {
        let mut command = as_user(NOBODY, NOBODY, "/usr/bin/python3");
        run(command.args(["-c", GET, socket]).args(request)).text()
    };
    let open = Full::new(&["--allow-other"]);
    let socket = open.users();
    let stats = ask(&socket, &["/v1/stats"]);
    assert!(
        stats.starts_with("200\n") && stats.contains("\"origin\""),
        "{stats}"
    );
    assert!(ask(&socket, &["/v1/cluster"]).starts_with("200\n"));
    assert!(ask(&socket, &["/v1/clear", "POST"]).starts_with("403\n"));
    assert!(ask(&socket, &["/v1/warm", "POST"]).starts_with("403\n"));
    // The tool finds this socket by itself.
    let program = program_for_all(&open.scratch);
    let mut command = as_user(NOBODY, NOBODY, program.to_str().unwrap());
    let said = run(command.args(["stats", "--all"]).arg(&open.mount.node.point));
    assert!(said.status.success(), "{said:?}");
    let closed = Full::new(&[]);
    assert!(ask(&closed.users(), &["/v1/stats"]).starts_with("403\n"));
}
