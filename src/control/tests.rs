//! The commands of a node that is alone, over its sockets; and their document against what it answers.

use super::client::{ClientError, ControlClient};
use super::plan::PLANS_MAX;
use super::request::{Access, Peer};
use super::router::{document, router, routes};
use super::*;
use crate::budgets::{BudgetAgentConfig, CountError, CountProgress, Counted, Counter, Neighbours};
use crate::config::reload::{self as options, Options};
use crate::config::{Layer, OriginSpec};
use crate::dataset::chunk_readers::ChunkReaders;
use crate::dataset::contents::{Inserted, TooLarge};
use crate::dataset::residency::{ResidencyError, Resident};
use crate::job::Process;
use crate::model::CountReport;
use crate::model::{
    ChunkOptions, Counting, DatasetDecision, DatasetSpec, Decision, EndedJob, IdealRate,
    JobDecision, JobNode, JobReport, JobTotals, NodeReport, OriginReaders, Overview, RateSource,
    Resources, ShareReport,
};
use crate::pipeline::Pipelines;
use crate::record::Recorder;
use crate::takeover::successor::Fit;
use crate::takeover::upgrade::{Incarnation, UpgradeError};
use crate::testing::{SOON, path};
use crate::waiting::until;
use axum::body::Body;
use bytes::Bytes;
use copperfs_fuse::Sockets;
use copperfs_metrics::{Registry, Snapshot};
use copperfs_overlay::{ContentHash, Failure, FailureKind, ItemPath, Steering};
use copperfs_policy::benefit::JobState;
use copperfs_policy::chunks::{ChunkState, ResidentChunk};
use copperfs_policy::{Keep, Mode, Part, Times};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::{Map, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

mod floods;

/// A node without neighbours.
struct Alone;

impl Neighbours for Alone {
    fn trees(&self) -> usize {
        1
    }

    fn is_root_of(&self, _tree: usize) -> bool {
        true
    }

    fn steer(&self, _tree: usize) -> BoxFuture<'static, Result<Steering, Failure>> {
        std::future::ready(Err(Failure::new(FailureKind::Unsupported, "alone"))).boxed()
    }

    fn command(&self, _tree: usize, _command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        std::future::ready(Err(Failure::new(FailureKind::Unsupported, "alone"))).boxed()
    }
}

struct Sizes;

impl Counter for Sizes {
    fn count(
        &self,
        dataset: &DatasetDecision,
        _progress: Arc<CountProgress>,
    ) -> BoxFuture<'static, Result<Counted, CountError>> {
        let hollow = dataset.path.as_bytes().ends_with(b"hollow");
        let bytes = if hollow || dataset.name == "empty" {
            0
        } else {
            16_384_000
        };
        let counted = Counted {
            items: bytes / 1000,
            bytes,
            slots: vec![bytes / 16_384; 16_384],
            identity: None,
            entries: dataset.manifest.as_ref().map_or(0, |_| bytes / 1000),
            source: 0,
        };
        std::future::ready(Ok(counted)).boxed()
    }

    fn is_outdated(&self, _: &DatasetDecision, _: u64) -> BoxFuture<'static, bool> {
        std::future::ready(false).boxed()
    }
}

/// The bytes of the item [`large`], and of the answer about the dataset `huge`.
const LARGE_BYTES: usize = 1 << 20;
const HUGE_BYTES: usize = 4 << 20;

/// The hash of an item of [`LARGE_BYTES`].
fn large() -> ContentHash {
    ContentHash([8; 32])
}

/// The bytes of a [`large`] item, which are counted.
struct Large {
    bytes: Vec<u8>,
    count: Arc<AtomicUsize>,
}

impl Large {
    fn item(count: &Arc<AtomicUsize>) -> Bytes {
        count.fetch_add(1, Relaxed);
        Bytes::from_owner(Self {
            bytes: vec![0; LARGE_BYTES],
            count: Arc::clone(count),
        })
    }
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

/// Looks hashes up.
type Looks = Box<dyn Fn(Vec<ContentHash>) -> BoxFuture<'static, Vec<bool>> + Send + Sync>;

/// The hash of an item.
fn abc() -> ContentHash {
    ContentHash(*blake3::hash(b"abc").as_bytes())
}

/// A node whose commands do little.
#[derive(Default)]
struct Idle {
    registry: Registry,
    recorder: Recorder,
    chunk_readers: ChunkReaders,
    pipelines: Pipelines,
    /// The [`large`] items that are in memory.
    large_items: Arc<AtomicUsize>,
    /// Takes the place of the look-ups.
    looks: Option<Looks>,
}

impl NodeCommands for Idle {
    fn images(&self) -> NodeImages {
        NodeImages::default()
    }

    fn attend(&self, attendance: Attendance) -> BoxFuture<'static, WantedImages> {
        let wanted = WantedImages {
            images: attendance.mounted,
            ends: false,
        };
        std::future::ready(wanted).boxed()
    }

    fn metrics(&self) -> Snapshot {
        self.registry.snapshot()
    }

    fn report(&self) -> Value {
        json!({ "node": "n0" })
    }

    fn cluster(&self, recent: bool) -> BoxFuture<'static, Value> {
        std::future::ready(json!({ "nodes": [], "missing": [], "recent": recent })).boxed()
    }

    fn clear(&self, path: ItemPath, cluster: bool) -> BoxFuture<'static, Result<bool, Failure>> {
        let cleared = match path.as_bytes() {
            b"none" => Err(Failure::not_found(&path)),
            b"away" => Err(Failure::new(FailureKind::Unavailable, "not on n7")),
            _ => Ok(cluster),
        };
        std::future::ready(cleared).boxed()
    }

    fn options(&self) -> BoxFuture<'static, Vec<options::ShownOption>> {
        let options = Options::new(Layer::default(), None);
        std::future::ready(options.shown()).boxed()
    }

    /// The option `log_level` can change, and `arity` cannot.
    fn reload(
        &self,
        request: options::Request,
    ) -> BoxFuture<'static, Result<Reloaded, ReloadError>> {
        let before = Options::new(Layer::default(), None);
        let none = BTreeMap::new();
        let next = before.after(&request, &none);
        let reloaded = next.map_err(ReloadError::from).and_then(|next| {
            let changed = before.changes(&next, &none, &none);
            options::check(&changed)?;
            Ok(Reloaded {
                changed,
                renewed: vec!["s3://bucket".into()],
                config: Some("/job.toml".into()),
            })
        });
        std::future::ready(reloaded).boxed()
    }

    /// Every path exists except those that contain `nothing`.
    fn look_up(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>> {
        let missing = path.as_bytes().ends_with(b"nothing");
        std::future::ready(match missing {
            true => Err(Failure::not_found(&path)),
            false => Ok(()),
        })
        .boxed()
    }

    /// The dataset `held` has two entries, of which the second is held.
    fn resident(&self, dataset: String) -> BoxFuture<'static, Result<Resident, ResidencyError>> {
        std::future::ready(match dataset.as_str() {
            "held" => Ok(Resident {
                identity: [1; 32],
                state: 0xabc,
                bits: vec![2].into(),
            }),
            "huge" => Ok(Resident {
                bits: vec![0; HUGE_BYTES].into(),
                ..Resident::default()
            }),
            "plain" => Err(ResidencyError::NoManifest),
            "new" => Err(ResidencyError::NotLoaded),
            _ => Err(ResidencyError::NoDataset),
        })
        .boxed()
    }

    /// The item `abc` is resident.
    fn look_up_content(&self, hashes: Vec<ContentHash>) -> BoxFuture<'static, Vec<bool>> {
        if let Some(looks) = &self.looks {
            return looks(hashes);
        }
        let found = hashes.iter().map(|hash| *hash == abc());
        std::future::ready(found.collect()).boxed()
    }

    fn get_content(
        &self,
        hashes: Vec<ContentHash>,
    ) -> BoxFuture<'static, Result<Vec<Option<Bytes>>, TooLarge>> {
        let item = |hash| match hash == large() {
            true => Some(Large::item(&self.large_items)),
            false => (hash == abc()).then(|| Bytes::from_static(b"abc")),
        };
        let items = hashes.into_iter().map(item).collect();
        std::future::ready(Ok(items)).boxed()
    }

    fn insert_content(
        &self,
        _from: Option<u32>,
        items: Vec<(ContentHash, Bytes)>,
    ) -> BoxFuture<'static, Vec<Inserted>> {
        let outcome = |(hash, bytes): (ContentHash, Bytes)| match (hash == abc(), bytes.len()) {
            (true, 3) => Inserted::Kept,
            (true, 0) => Inserted::NoItem,
            (true, _) => Inserted::OtherBytes,
            (false, _) => Inserted::Unnamed,
        };
        std::future::ready(items.into_iter().map(outcome).collect()).boxed()
    }

    /// The job `run:theirs` is that of user 7.
    fn may_speak(&self, job: &str, user: u32, _process: Option<Process>) -> bool {
        job != "run:theirs" || user == 7
    }

    fn chunk_readers(&self) -> &ChunkReaders {
        &self.chunk_readers
    }

    fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }

    fn incarnation(&self) -> Option<Incarnation> {
        Some(Incarnation {
            version: "1".into(),
            pid: 7,
            generation: 0,
            refused: None,
        })
    }

    fn upgrade(
        &self,
        program: PathBuf,
        _dry_run: bool,
    ) -> BoxFuture<'static, Result<Fit, UpgradeError>> {
        let fit = Fit {
            version: "2".into(),
            wire: "w".into(),
        };
        let result = match program.to_str() {
            Some("/fits") => Ok(fit),
            Some("/busy") => Err(UpgradeError::Busy),
            _ => Err(UpgradeError::Unfit {
                program,
                reason: std::io::ErrorKind::NotFound.into(),
            }),
        };
        std::future::ready(result).boxed()
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn show_all_accesses(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }

    /// Sends back what it is sent.
    fn warm(&self, conversation: Conversation) -> BoxFuture<'static, std::io::Result<()>> {
        let Conversation { mut lines, answer } = conversation;
        async move {
            while let Some(line) = lines.next().await? {
                answer.send(&serde_json::from_slice(&line)?).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

fn control(agent: &BudgetAgent) -> Control {
    let node = Arc::new(Idle::default());
    Control::new(node, agent.clone(), served())
}

/// The answer to a request of the owner.
async fn answer(control: &Control, user: Option<u32>, request: (&str, &str, &[u8])) -> Answer {
    answer_to(control, Access::Host, user, request).await
}

/// The answer to a request of a client with this access.
async fn answer_to(
    control: &Control,
    access: Access,
    user: Option<u32>,
    request: (&str, &str, &[u8]),
) -> Answer {
    let (method, path, body) = request;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .extension(Peer {
            user,
            ..Peer::default()
        })
        .extension(access)
        .body(Body::from(body.to_vec()))
        .unwrap();
    let response = router(control.clone(), access)
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    Answer {
        status,
        // 204 has no body.
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

fn served() -> ServedPaths {
    ServedPaths {
        origins: vec![OriginSpec {
            prefix: path("/lus"),
            uri: "file:///lus".into(),
            options: BTreeMap::new(),
        }],
        mounts: vec!["/copper_data".into()],
    }
}

struct Node {
    agent: BudgetAgent,
    client: ControlClient,
    socket: PathBuf,
    server: ControlServer,
    _dir: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let config = BudgetAgentConfig {
            name: "n0".into(),
            boot: 1,
            datasets: vec![DatasetSpec::new("configured", path("/lus/configured"))],
            policy: "greedy".into(),
            resources: Resources {
                remote_io: Some(200_000_000),
                gpus: Some(4),
                pipelines_percent: 20,
            },
        };
        let agent = BudgetAgent::new(config, Arc::new(Alone), Arc::new(Sizes));
        let counts = AtomicU64::new(1);
        agent.start(Arc::new(move || NodeReport {
            rank: 0,
            name: "n0".into(),
            boot: 1,
            count: counts.fetch_add(1, Relaxed),
            follows: Default::default(),
            capacity: 10_000_000,
            shares: Vec::new(),
            jobs: Vec::new(),
            readings: Vec::new(),
            pipelines: Vec::new(),
            origins: Vec::new(),
        }));
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let users = format!("copperfs-test-{}", dir.path().display());
        let server = ControlServer::for_owner(&socket, control(&agent)).unwrap();
        let sockets = Sockets {
            owner: socket.clone(),
            users,
        };
        Self {
            agent,
            client: ControlClient::new(sockets),
            socket,
            server,
            _dir: dir,
        }
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Result<Value, ClientError> {
        let body = (!body.is_null()).then_some(&body);
        self.client.ask(method, path, body).await
    }

    /// The status and the words of a refusal.
    async fn refused(&self, method: &str, path: &str, body: Value) -> (u16, String) {
        match self.ask(method, path, body).await {
            Err(error @ ClientError::Refused { status, .. }) => (status, error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// What comes back for these very bytes.
    async fn raw(&self, request: &[u8]) -> String {
        let mut stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.agent.stop();
    }
}

/// A dataset with a wrong path is not declared, so the corrected request is the first of its name. An
/// existing dataset is replaced only on request, and stays if the new declaration is invalid.
#[tokio::test]
async fn a_dataset_is_declared_where_something_is_and_anew_when_asked() {
    let node = Node::start();
    let at = |path: &str, replace: bool| json!({ "name": "set", "path": path, "replace": replace });
    let declared = async || {
        let all = node.ask("GET", "/v1/datasets", Value::Null).await.unwrap();
        let all = all["datasets"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["name"] == "set")
    };
    for replace in [false, true] {
        let slip = at("/lus/nothing", replace);
        let (status, said) = node.refused("POST", "/v1/datasets", slip).await;
        assert!(
            status == 422 && said.contains("nothing at /lus/nothing"),
            "{said}"
        );
        assert_eq!(declared().await, None);
    }
    let right = at("/lus/set", false);
    node.ask("POST", "/v1/datasets", right.clone())
        .await
        .unwrap();
    let job = json!({ "id": "run:j", "dataset": "set" });
    node.ask("POST", "/v1/jobs", job).await.unwrap();
    let (status, said) = node.refused("POST", "/v1/datasets", right).await;
    assert!(status == 409 && said.contains("--replace"), "{said}");
    let other = at("/lus/other", true);
    let replaced = node.ask("POST", "/v1/datasets", other).await.unwrap();
    assert_eq!(replaced["path"], "/lus/other");
    let job = node
        .ask("GET", "/v1/jobs/run%3Aj", Value::Null)
        .await
        .unwrap();
    assert_eq!(job["dataset"], "set", "its job goes on");
    // A refused request changes nothing.
    for refused in ["/lus/configured/below", "/lus/nothing"] {
        node.refused("POST", "/v1/datasets", at(refused, true))
            .await;
        assert_eq!(declared().await.unwrap()["path"], "/lus/other");
    }
    // An empty dataset is noticed only after it was declared: then the earlier declaration is restored.
    let hollow = at("/lus/hollow", true);
    let (status, said) = node.refused("POST", "/v1/datasets", hollow).await;
    assert!(status == 422 && said.contains("size zero"), "{said}");
    assert_eq!(declared().await.unwrap()["path"], "/lus/other");
}

/// A job belongs to the user who declares it; root declares jobs for other users.
#[tokio::test]
async fn a_job_belongs_to_the_user_that_declares_it() {
    let node = Node::start();
    let control = control(&node.agent);
    for (uid, owner) in [(1000, Some(1000)), (0, None)] {
        let name = format!("run:of-{uid}");
        let body = json!({ "id": name, "dataset": "configured" }).to_string();
        let request = ("POST", "/v1/jobs", body.as_bytes());
        let answer = answer(&control, Some(uid), request).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let decision = Arc::clone(&node.agent.watch().borrow());
        assert_eq!(decision.job(&name).unwrap().owner, owner);
    }
}

/// Silent clients cannot lock out others, however many they are: the longest idle one is replaced.
#[tokio::test]
async fn silent_clients_keep_nobody_out() {
    let node = Node::start();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::UnixStream::connect(&node.socket).await.unwrap());
    }
    // Each silent client would be dropped after ten seconds; the answer comes without that wait.
    let begun = std::time::Instant::now();
    let nodes = node.ask("GET", "/v1/nodes", Value::Null).await.unwrap();
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1);
    assert!(
        begun.elapsed() < Duration::from_secs(9),
        "{:?}",
        begun.elapsed()
    );
    // The first clients were dropped, the last ones are still served.
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0);
    let last = silent.last_mut().unwrap();
    last.write_all(b"GET /v1/nodes HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    last.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
}

#[tokio::test]
async fn datasets_and_jobs_are_declared_given_and_taken_back() {
    let node = Node::start();
    let mode = std::fs::metadata(&node.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let body = json!({ "name": "a", "path": "/copper_data/lus/a", "budget": "2MB" });
    let added = node.ask("POST", "/v1/datasets", body).await.unwrap();
    assert_eq!(added["path"], "/lus/a");
    assert_eq!(
        (&added["size"], &added["items"]),
        (&json!(16_384_000), &json!(16_384))
    );
    assert_eq!(
        (&added["budget"], &added["pinned"]),
        (&json!(2_000_000), &json!(2_000_000))
    );
    let body = json!({ "id": "slurm:7", "dataset": "a", "ideal_rate": "50MB/s", "gpus": 4 });
    let job = node.ask("POST", "/v1/jobs", body).await.unwrap();
    assert_eq!(
        (&job["ideal_rate"], &job["ideal_rate_source"]),
        (&json!(50_000_000), &json!("declared"))
    );
    assert!(
        job["remote_io_allowed"].as_u64().unwrap() >= 44_000_000,
        "{job}"
    );
    let rate = json!({ "rate": 1_000_000 });
    node.ask("PUT", "/v1/jobs/slurm%3A7/remote-io", rate)
        .await
        .unwrap();
    let job = node
        .ask("GET", "/v1/jobs/slurm%3A7", Value::Null)
        .await
        .unwrap();
    assert_eq!(
        (&job["remote_io_allowed"], &job["remote_io_pinned"]),
        (&json!(1_000_000), &json!(1_000_000))
    );
    node.ask("PUT", "/v1/datasets/a/cache", json!({ "size": null }))
        .await
        .unwrap();
    node.ask("PUT", "/v1/policy", json!({ "policy": "max-min" }))
        .await
        .unwrap();
    let all = node
        .ask("GET", "/v1/allocation", Value::Null)
        .await
        .unwrap();
    assert_eq!(
        (&all["policy"], &all["allocator"]),
        (&json!("max-min"), &json!("n0"))
    );
    assert_eq!(all["datasets"][1]["pinned"], Value::Null);
    assert_eq!(all["nodes"][0]["capacity"], 10_000_000);
    node.ask("DELETE", "/v1/jobs/slurm:7", Value::Null)
        .await
        .unwrap();
    node.ask("DELETE", "/v1/datasets/a", Value::Null)
        .await
        .unwrap();
    let left = node.ask("GET", "/v1/datasets", Value::Null).await.unwrap();
    assert_eq!(left["datasets"].as_array().unwrap().len(), 1);
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
#[tokio::test]
async fn refusals_contain_advice() {
    let node = Node::start();
    let add = |name: &str, path: &str| json!({ "name": name, "path": path });
    let cases = [
        (
            "POST",
            "/v1/datasets",
            add("configured", "/lus/x"),
            409,
            "copperfs dataset rm configured",
        ),
        (
            "POST",
            "/v1/datasets",
            add("x", "/lus/configured/x"),
            409,
            "overlaps",
        ),
        (
            "POST",
            "/v1/datasets",
            add("x", "/home/x"),
            422,
            "served are: /lus",
        ),
        (
            "POST",
            "/v1/datasets",
            add("empty", "/lus/empty"),
            422,
            "has size zero",
        ),
        (
            "POST",
            "/v1/datasets",
            json!({ "name": "x" }),
            400,
            "Give one of the two",
        ),
        (
            "POST",
            "/v1/datasets",
            json!({ "name": "x", "pth": "/lus/x" }),
            400,
            "unknown field",
        ),
        (
            "POST",
            "/v1/jobs",
            json!({ "id": "j", "dataset": "x" }),
            422,
            "is on no dataset",
        ),
        (
            "POST",
            "/v1/jobs",
            json!({ "id": "j", "dataset": "configured", "gpus": 5 }),
            409,
            "has 4",
        ),
        (
            "POST",
            "/v1/jobs",
            json!({ "id": "j", "dataset": "configured", "ideal_rate": "5" }),
            400,
            "no unit",
        ),
        (
            "POST",
            "/v1/jobs",
            json!({ "id": "j", "dataset": "configured", "ideal_rate": 0 }),
            422,
            "of zero",
        ),
        (
            "PUT",
            "/v1/datasets/configured/cache",
            json!({ "size": "1TB" }),
            409,
            "more than there is",
        ),
        (
            "PUT",
            "/v1/policy",
            json!({ "policy": "gredy" }),
            422,
            "Did you mean greedy?",
        ),
        ("GET", "/v1/jobs/x", Value::Null, 404, "copperfs job list"),
        ("DELETE", "/v1/jobs/x", Value::Null, 404, "there is no job"),
        ("GET", "/v2", Value::Null, 404, "openapi.json"),
        ("DELETE", "/v1/nodes", Value::Null, 405, "It takes GET"),
    ];
    for (method, path, body, status, hint) in cases {
        let (found, text) = node.refused(method, path, body.clone()).await;
        assert!(
            found == status && text.contains(hint),
            "{method} {path} {body}: {found} {text}"
        );
    }
    let left = node.ask("GET", "/v1/datasets", Value::Null).await.unwrap();
    assert_eq!(left["datasets"].as_array().unwrap().len(), 1, "{left}");
}

/// Large requests wait for each other, to limit their memory; small ones do not wait.
#[tokio::test]
async fn large_requests_are_held_few_at_a_time() {
    let node = Node::start();
    let head =
        b"POST /v1/plan HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\nconnection: close\r\n\r\n";
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut client = tokio::net::UnixStream::connect(&node.socket).await.unwrap();
        client.write_all(head).await.unwrap();
        slow.push(client);
    }
    // Both have their places when their requests are being answered.
    for _ in 0..50 {
        node.ask("GET", "/v1/datasets", Value::Null).await.unwrap();
    }
    let third = [&head[..], &[b' '; 100_000]].concat();
    let third = node.raw(&third);
    let mut third = std::pin::pin!(third);
    for _ in 0..50 {
        let small = node.ask("GET", "/v1/datasets", Value::Null);
        tokio::select! {
            biased;
            answer = &mut third => panic!("answered before its turn: {answer}"),
            small = small => drop(small.unwrap()),
        }
    }
    drop(slow);
    let answer = third.await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}

#[tokio::test]
async fn invalid_http_and_large_bodies_are_refused() {
    let node = Node::start();
    assert!(
        node.raw(b"nonsense\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 400")
    );
    let large = b"POST /v1/plan HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\nconnection: close\r\n\r\n";
    let answer = node.raw(large).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let patch = b"PATCH /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = node.raw(patch).await;
    assert!(
        answer.contains("405") && answer.contains("allow: GET,HEAD,POST"),
        "{answer}"
    );
    // It is gone with its owner.
    let socket = node.socket.clone();
    let node = {
        let mut node = node;
        let other = tempfile::tempdir().unwrap();
        let control = control(&node.agent);
        node.server = ControlServer::for_owner(&other.path().join("x"), control).unwrap();
        node
    };
    assert!(!socket.exists());
    let error = node.ask("GET", "/v1/nodes", Value::Null).await.unwrap_err();
    assert!(
        error.to_string().contains("cannot reach the daemon"),
        "{error}"
    );
}

fn problem(jobs: usize) -> Vec<u8> {
    let jobs: Vec<Value> = (0..jobs)
        .map(|job| json!({"id": format!("j{job}"), "dataset": "A", "ideal_rate": "114MB/s"}))
        .collect();
    let problem = json!({
        "totals": {"gpus": jobs.len(), "cache": "2TB", "remote_io": "200MB/s"},
        "datasets": [{"name": "A", "size": "1.3TB"}],
        "jobs": jobs,
    });
    problem.to_string().into_bytes()
}

/// The runtime's only worker must serve reads while plans are computed.
#[tokio::test]
async fn plans_are_worked_out_beside_the_runtime_and_more_than_a_few_are_refused() {
    let node = Node::start();
    let control = control(&node.agent);
    let body = problem(500);
    let plan = ("POST", "/v1/plan", &body[..]);
    // The poll that takes the request must not compute the plan: it would occupy the worker.
    assert!(answer(&control, None, plan).now_or_never().is_none());

    let turn = Arc::clone(&control.plans.turn)
        .acquire_owned()
        .await
        .unwrap();
    // The plan above was cancelled, and its place becomes free again.
    let places = PLANS_MAX;
    let free = || control.plans.admission.available_permits();
    until(SOON, "all permits are free", || free() == places).await;
    let mut asked = Vec::new();
    for _ in 0..places {
        let (control, body) = (control.clone(), body.clone());
        asked.push(tokio::spawn(async move {
            answer(&control, None, ("POST", "/v1/plan", &body)).await
        }));
    }
    until(SOON, "no permit is free", || free() == 0).await;
    let refused = answer(&control, None, plan).await;
    assert_eq!(refused.status, 503);
    let said = refused.body["error"].as_str().unwrap();
    assert!(said.contains("16 plans"), "{said}");
    // Other requests are answered meanwhile.
    assert_eq!(
        answer(&control, None, ("GET", "/v1/jobs", b""))
            .await
            .status,
        200
    );
    drop(turn);
    for asked in asked {
        let answer = asked.await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// Users see, and only the owner changes.
#[tokio::test]
async fn users_may_use_routes_that_only_read() {
    let node = Node::start();
    let name = format!("copperfs-test-users-{}", std::process::id());
    let own = rustix::process::getuid().as_raw();
    let server = ControlServer::for_users(&name, control(&node.agent), move |uid| uid == own);
    let _server = server.unwrap();
    let ask = async |name: &str, request: &str| {
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let stream = std::os::unix::net::UnixStream::connect_addr(&address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut stream = tokio::net::UnixStream::from_std(stream).unwrap();
        let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    for (request, status) in [
        ("GET /v1/stats", 200),
        ("GET /metrics", 200),
        ("GET /v1/datasets", 200),
        ("POST /v1/clear", 403),
        ("POST /v1/datasets", 403),
        ("DELETE /v1/datasets/configured", 403),
        ("POST /v1/recording", 403),
        ("POST /v1/warm", 403),
        ("PUT /v1/datasets", 405),
        ("GET /v1/nothing", 404),
    ] {
        let answer = ask(&name, request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
    let answer = ask(&name, "GET /v1/cluster").await;
    assert!(answer.contains("\"recent\":true"), "{answer}");
    let closed = format!("{name}-closed");
    let _server = ControlServer::for_users(&closed, control(&node.agent), |_| false).unwrap();
    let answer = ask(&closed, "GET /v1/stats").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// Lines go both ways at the same time, as in a plan that is made while it is carried out.
#[tokio::test]
async fn a_conversation_goes_both_ways() {
    let node = Node::start();
    let (mut answer, mut request) = node.client.converse("POST", "/v1/warm").await.unwrap();
    for number in 0..3 {
        request.send(&json!({ "number": number })).await.unwrap();
        request.flush().await.unwrap();
        assert_eq!(answer.value().await.unwrap()["number"], number);
    }
    for number in 0..10_000 {
        let sending = async {
            request.send(&json!({ "number": number })).await.unwrap();
            request.flush().await.unwrap();
        };
        let ((), line) = tokio::join!(sending, answer.value());
        assert_eq!(line.unwrap()["number"], number);
    }
    drop(request);
    let error = answer.line().await.unwrap_err();
    assert!(error.to_string().contains("gone away"), "{error}");
}

/// A recording belongs to its connection, or lasts until it is stopped.
#[tokio::test]
async fn recordings_are_started_stopped_and_discarded() {
    let node = Node::start();
    let (status, said) = node.refused("DELETE", "/v1/recording", Value::Null).await;
    assert!(status == 409 && said.contains("record start"), "{said}");
    node.ask("POST", "/v1/recording", Value::Null)
        .await
        .unwrap();
    let (status, said) = node.refused("POST", "/v1/recording", Value::Null).await;
    assert!(status == 409 && said.contains("already"), "{said}");
    let discarded = node
        .ask("DELETE", "/v1/recording?discard=true", Value::Null)
        .await;
    assert_eq!(discarded.unwrap(), json!({ "discarded": 0 }));

    let (mut answer, mut request) = node.client.converse("POST", "/v1/record").await.unwrap();
    assert_eq!(answer.value().await.unwrap(), json!({ "recording": true }));
    let refused = node
        .client
        .converse("POST", "/v1/record")
        .await
        .err()
        .unwrap();
    assert!(refused.to_string().contains("already"), "{refused}");
    request.send(&json!({ "enough": true })).await.unwrap();
    request.flush().await.unwrap();
    let head = answer.value().await.unwrap();
    assert_eq!(head, json!({ "accesses": 0, "full": false }));

    let (answer, request) = node.client.converse("POST", "/v1/record").await.unwrap();
    drop((answer, request));
    for attempt in 0.. {
        match node.ask("POST", "/v1/recording", Value::Null).await {
            Ok(_) => break,
            Err(_still) => assert!(
                attempt < 1000,
                "a killed command leaves its recording behind"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn clearing_is_answered_with_its_effect() {
    let node = Node::start();
    let clear = |path: &str, cluster: bool| json!({ "path": path, "cluster": cluster });
    for cluster in [true, false] {
        let answer = node.ask("POST", "/v1/clear", clear("/lus", cluster)).await;
        assert_eq!(answer.unwrap(), json!({ "cleared": cluster }));
    }
    for (body, status) in [
        (clear("/none", false), 404),
        (clear("/away", true), 503),
        (clear("/a/../b", false), 400),
        (json!({ "paths": [] }), 400),
    ] {
        let (refused, said) = node.refused("POST", "/v1/clear", body).await;
        assert_eq!(refused, status, "{said}");
    }
}

/// One of everything, so that every key is there.
#[expect(clippy::too_many_lines, reason = "one of everything")]
fn full() -> Overview {
    let dataset = DatasetDecision {
        name: "a".into(),
        id: 1,
        path: path("/lus/a"),
        uri: None,
        size: 1000,
        items: 10,
        index: None,
        manifest: Some(path("/lus/a.manifest")),
        identity: Some([1; 32]),
        entries: 100,
        origin_readers: OriginReaders::Roots,
        keep: Keep::Chunks,
        chunk_options: ChunkOptions::default(),
        is_private: false,
        resident: Some(vec![ResidentChunk {
            chunk: 3,
            state: ChunkState::Loading,
            held: 4,
            lost: 1,
            entries: 10,
        }]),
        pinned: None,
        budget: 500,
        homed: vec![1000],
        owners: vec![0],
        trouble: None,
    };
    let job = JobDecision {
        name: "j".into(),
        dataset: Some("a".into()),
        declared: true,
        owner: None,
        ideal_rate: None,
        gpus: 1,
        epochs: Some(3),
        irregular: false,
        mode: Mode::Probe,
        measured: Some(JobState {
            job: "j".into(),
            times: Some(Times {
                uncached_s: 0.5,
                whole_s: Some(0.1),
                chunks_s: Some(0.2),
                part: Some(Part {
                    cached_s: 0.3,
                    hit_ratio: 0.4,
                }),
            }),
            uncached_s: None,
            given_up: 0,
        }),
        pinned: None,
        remote_io: Some(100),
        nodes: vec![JobNode {
            rank: 0,
            remote_io: 100,
        }],
    };
    let report = NodeReport {
        rank: 0,
        name: "n0".into(),
        boot: 1,
        count: 1,
        follows: Default::default(),
        capacity: 1000,
        shares: vec![ShareReport {
            dataset: 1,
            cached: 250,
            items: 3,
            share: 500,
            origin_bytes: 7,
            trouble: Some("storage is gone".into()),
            chunks: Vec::new(),
            by_count: Some(CountReport {
                referenced: 100,
                unreferenced: 100,
                undeclared: 50,
                hits: 8,
                misses: 4,
                evicted: 2,
            }),
        }],
        readings: Vec::new(),
        pipelines: Vec::new(),
        jobs: vec![JobReport {
            job: "j".into(),
            dataset: "a".into(),
            epoch: 1,
            items: 5,
            bytes: 500,
            hit_bytes: 100,
            total_bytes: 1500,
            throughput: 50,
            epochs: vec![(0, 1000, 0)],
            ..JobReport::default()
        }],
        origins: Vec::new(),
    };
    Overview {
        allocator: "n0".into(),
        decision: Decision {
            policy: "greedy".into(),
            cache_total: 1000,
            remote_io_total: Some(100),
            homes: vec![crate::model::HomeNode {
                rank: 0,
                name: "n0".into(),
                capacity: 1000,
            }],
            datasets: vec![dataset],
            jobs: vec![job],
            ..Decision::default()
        },
        reports: vec![report],
        rates: vec![IdealRate {
            job: "j".into(),
            rate: 80,
            source: RateSource::Estimated,
            confidence: 0.5,
            hit_ratio: 0.25,
        }],
        ended: vec![EndedJob {
            job: "run:i".into(),
            totals: JobTotals {
                bytes: 1500,
                epochs: [(0, (1000, 0)), (1, (500, 300))].into(),
                ..JobTotals::default()
            },
            ..EndedJob::default()
        }],
        counting: vec![Counting {
            dataset: "a".into(),
            directories: 1,
            items: 2,
            bytes: 3,
        }],
        gpus: Some(8),
    }
}
/// The storage of a dataset is only called readable by its homes if each of them has said so.
#[test]
fn homes_can_read_if_each_of_them_has_looked() {
    let can = |all: &Overview| views::dataset(all, "a").unwrap()["homes_can_read"] == true;
    let mut all = full();
    let at = all.decision.datasets[0].path.clone();
    all.decision.datasets[0].origin_readers = OriginReaders::Roots;
    assert!(!can(&all));
    all.reports[0].origins = vec![at.join(b"below").unwrap()];
    assert!(!can(&all), "of another place");
    all.reports[0].origins = vec![at];
    assert!(can(&all));
    all.decision.homes.push(crate::model::HomeNode {
        rank: 1,
        name: "n1".into(),
        capacity: 1000,
    });
    assert!(!can(&all), "one has said nothing");
    all.decision.datasets[0].origin_readers = OriginReaders::Homes;
    assert!(can(&all), "they do");
}

#[test]
fn views_show_the_reported_values() {
    let all = views::allocation(&full());
    let (dataset, job) = (&all["datasets"][0], &all["jobs"][0]);
    assert_eq!(
        (&dataset["cached"], &dataset["cached_ratio"]),
        (&json!(250), &json!(0.25))
    );
    assert_eq!(dataset["homes"][0]["share"], 500);
    assert_eq!(dataset["trouble"], "n0: storage is gone");
    assert_eq!(
        (&job["progress"], &job["hit_ratio"]),
        (&json!(0.5), &json!(0.2))
    );
    // Three epochs of 1000 bytes, 1500 read, at 50 a second.
    assert_eq!(job["eta_s"], 30);
    assert_eq!(job["past_epochs"][0]["hit_ratio"], 0.0);
    assert_eq!(job["nodes"][0]["remote_io_allowed"], 100);
    let ended = views::ended_jobs(&full());
    assert_eq!(ended["jobs"][0]["hit_ratio"], 0.2);
    assert_eq!(
        all["cache"],
        json!({ "total": 1000, "budgeted": 500, "cached": 250 })
    );
}

#[test]
fn the_document_has_every_route() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    let mut documented = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            documented.insert((method.to_ascii_uppercase(), path.clone()));
        }
    }
    let served: BTreeSet<(String, String)> = routes()
        .iter()
        .map(|(method, path, ..)| ((*method).to_owned(), (*path).to_owned()))
        .collect();
    assert_eq!(documented, served);
}

/// Every key of `value` is in `schema`, and the other way round; so are those within.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolved(document, schema);
    match value {
        Value::Object(object) => {
            let empty = Map::new();
            let properties = schema["properties"].as_object().unwrap_or(&empty);
            let wanted: BTreeSet<&String> = properties.keys().collect();
            let found: BTreeSet<&String> = object.keys().collect();
            assert_eq!(found, wanted, "{at}");
            for (key, value) in object {
                check(document, &properties[key], value, &format!("{at}.{key}"));
            }
        }
        Value::Array(items) => {
            assert!(!items.is_empty(), "{at} shows nothing to check");
            check(document, &schema["items"], &items[0], &format!("{at}[]"));
        }
        _ => {}
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let schema = match schema["oneOf"].as_array() {
        Some(choices) => &choices[0],
        None => schema,
    };
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

#[test]
fn the_document_has_every_field() {
    let document = document();
    let all = full();
    let of = |path: &str, method: &str, status: &str| {
        document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"].clone()
    };
    for (path, value) in [
        ("/v1/allocation", views::allocation(&all)),
        ("/v1/datasets", views::datasets(&all)),
        ("/v1/datasets/{name}", views::dataset(&all, "a").unwrap()),
        (
            "/v1/datasets/{name}/homes",
            views::homes(&all.decision, "a").unwrap(),
        ),
        ("/v1/jobs", views::jobs(&all)),
        ("/v1/jobs/{id}", views::job(&all, "j").unwrap()),
        ("/v1/ended-jobs", views::ended_jobs(&all)),
        ("/v1/nodes", views::nodes(&all)),
    ] {
        check(&document, &of(path, "get", "200"), &value, path);
    }
    let refusal = ControlError::missing("job", "j").0.body;
    check(
        &document,
        &of("/v1/jobs/{id}", "get", "404"),
        &refusal,
        "a refusal",
    );
    // What may be asked: every documented key is taken, and no other.
    let keys = |name: &str| -> Map<String, Value> {
        let schema = &document["components"]["schemas"][name]["properties"];
        schema
            .as_object()
            .unwrap()
            .keys()
            .map(|key| (key.clone(), Value::Null))
            .collect()
    };
    let mut dataset = keys("DatasetRequest");
    dataset["name"] = json!("a");
    requests::parse::<requests::DatasetRequest>(Value::Object(dataset).to_string().as_bytes())
        .unwrap();
    let mut job = keys("JobRequest");
    job["id"] = json!("j");
    job["dataset"] = json!("a");
    requests::parse::<requests::JobRequest>(Value::Object(job).to_string().as_bytes()).unwrap();
}

/// A reload changes all options or none, and says which; it is for the owner on the node itself.
#[tokio::test]
async fn a_reload_names_what_changes_and_what_cannot() {
    let node = Node::start();
    let named = |key: &str, value: &str| {
        json!({ "options": {
            key: { "source": "flag", "values": [{ "text": value }] },
        }})
    };
    let body = named("log_level", "debug");
    let reloaded = node.ask("POST", "/v1/reload", body.clone()).await.unwrap();
    let changed = json!([{ "key": "log_level", "from": "info", "to": "debug" }]);
    assert_eq!(reloaded["changed"], changed);
    let document = document();
    let schema = &document["components"]["schemas"]["Reloaded"];
    check(&document, schema, &reloaded, "a reload");
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let schema = &document["components"]["schemas"]["ReloadRequest"]["properties"];
    assert_eq!(keys(schema), keys(&json!(options::Request::default())));
    let (status, said) = node
        .refused("POST", "/v1/reload", named("arity", "8"))
        .await;
    assert!(
        status == 409 && said.contains("arity is 4, and --arity asks for 8"),
        "{said}"
    );
    let (status, said) = node
        .refused("POST", "/v1/reload", named("artiy", "8"))
        .await;
    assert!(
        status == 400 && said.contains("did you mean arity?"),
        "{said}"
    );
    let control = control(&node.agent);
    let body = named("arity", "8").to_string();
    let post = ("POST", "/v1/reload", body.as_bytes());
    let refused = answer_to(&control, Access::Host, Some(7), post).await;
    assert_eq!(refused.body["keys"], json!(["arity"]));
    assert_eq!(
        answer_to(&control, Access::Users, Some(7), post)
            .await
            .status,
        403
    );
    assert_eq!(
        answer_to(&control, Access::Owner, None, post).await.status,
        403
    );
}

/// A program is changed by the owner on the node itself only.
#[tokio::test]
async fn an_upgrade_needs_the_owner_on_the_node() {
    let node = Node::start();
    let control = control(&node.agent);
    let ask = async |access, program: &str| {
        let body = json!({ "program": program }).to_string();
        let request = ("POST", "/v1/upgrade", body.as_bytes());
        answer_to(&control, access, Some(7), request).await
    };
    let done = ask(Access::Host, "/fits").await;
    assert_eq!(done.body, json!({ "version": "2", "wire": "w" }));
    assert_eq!(ask(Access::Host, "/busy").await.status, 409);
    assert_eq!(ask(Access::Host, "/absent").await.status, 422);
    assert_eq!(ask(Access::Host, "fits").await.status, 400);
    assert_eq!(ask(Access::Owner, "/fits").await.status, 403);
    assert_eq!(ask(Access::Users, "/fits").await.status, 403);
}

/// `POST` to the chunks of the dataset `chunked`, with the job `run:a`.
async fn post_chunks(control: &Control, path: &str, more: &str) -> Answer {
    let path = format!("/v1/datasets/chunked/chunks{path}");
    let body = format!(r#"{{"job": "run:a"{more}}}"#);
    answer(control, None, ("POST", &path, body.as_bytes())).await
}

/// Users may not refer to chunks, or report times, in the name of another user's job.
#[tokio::test]
async fn nobody_speaks_for_the_job_of_another_user() {
    let node = Node::start();
    let control = control(&node.agent);
    let add = json!({
        "name": "chunked", "path": "/lus/chunked", "manifest": "/lus/chunked.manifest",
        "keep": "chunks",
    });
    let add = add.to_string();
    answer(&control, None, ("POST", "/v1/datasets", add.as_bytes())).await;
    let times = r#"{"dataset": "chunked", "mode": "cached", "batches": 1, "seconds": 1, "hits": 0, "misses": 1}"#;
    let join = r#"{"job": "run:theirs"}"#;
    let unref = r#"{"job": "run:theirs", "exhausted": true}"#;
    for (path, body) in [
        ("/v1/datasets/chunked/chunks", join),
        ("/v1/datasets/chunked/chunks/0/ref", join),
        ("/v1/datasets/chunked/chunks/0/unref", unref),
        ("/v1/jobs/run%3Atheirs/report", times),
    ] {
        let ask = async |access, user| {
            answer_to(
                &control,
                access,
                Some(user),
                ("POST", path, body.as_bytes()),
            )
            .await
            .status
        };
        assert_eq!(ask(Access::Users, 8).await, 403, "{path}");
        assert_ne!(ask(Access::Users, 7).await, 403, "{path}");
        assert_ne!(ask(Access::Owner, 8).await, 403, "{path}");
    }
}

#[tokio::test]
async fn readers_state_their_epoch_and_their_exhausted_chunks() {
    let node = Node::start();
    let control = control(&node.agent);
    let add = json!({
        "name": "chunked", "path": "/lus/chunked", "manifest": "/lus/chunked.manifest",
        "keep": "chunks",
    });
    let add = add.to_string();
    answer(&control, None, ("POST", "/v1/datasets", add.as_bytes())).await;
    for (path, more, status) in [
        (
            "",
            r#", "epoch": 9007199254740991, "exhausted": [1, 9]"#,
            200,
        ),
        ("", r#", "exhausted": [1, 10]"#, 404),
        ("", r#", "epoch": -1"#, 400),
        // It is not resident.
        ("/3/ref", r#", "epoch": 1"#, 409),
        ("/3/ref", r#", "exhausted": []"#, 400),
    ] {
        let answered = post_chunks(&control, path, more).await;
        assert_eq!(answered.status, status, "{path} {more}: {answered:?}");
    }
}

#[tokio::test]
async fn jobs_read_chunk_after_chunk() {
    let node = Node::start();
    let control = control(&node.agent);
    let add = json!({
        "name": "chunked", "path": "/lus/chunked", "manifest": "/lus/chunked.manifest",
        "keep": "chunks", "evict_after_s": 5,
    });
    let add = add.to_string();
    let added = answer(&control, None, ("POST", "/v1/datasets", add.as_bytes())).await;
    assert_eq!(
        (added.status, &added.body["evict_after_s"]),
        (201, &5.0.into())
    );
    let shown = answer(&control, None, ("GET", "/v1/datasets/chunked/chunks", b"")).await;
    let shape = (&shown.body["stripes"], &shown.body["entries"]);
    assert_eq!((shown.status, shape), (200, (&10.into(), &16_384.into())));
    assert_eq!(shown.body["resident"], json!([]), "no job reads");

    // The report of the test's node has no readings, so the decision comes from the allocator's own node.
    let joined = post_chunks(&control, "", r#", "rank": 1"#).await;
    assert_eq!((joined.status, &joined.body), (200, &shown.body));
    let gone = post_chunks(&control, "/3/ref", "").await;
    assert_eq!((gone.status, &gone.body["chunks"]), (409, &shown.body));
    assert!(
        gone.body["error"]
            .as_str()
            .unwrap()
            .contains("chunk 3 of chunked is not resident")
    );
    let released = post_chunks(&control, "/3/unref", r#", "exhausted": true"#).await;
    assert_eq!(released.status, 200);
    let none = post_chunks(&control, "/10/unref", r#", "exhausted": true"#).await;
    assert_eq!(none.status, 404);
    assert!(
        none.body["error"].as_str().unwrap().contains("0 to 9"),
        "{none:?}"
    );
    for (path, more, status) in [
        ("/3/unref", "", 400),
        ("/3/ref", r#", "more": 1"#, 400),
        ("/x/ref", "", 400),
    ] {
        assert_eq!(
            post_chunks(&control, path, more).await.status,
            status,
            "{path} {more}"
        );
    }
    let nameless = (
        "POST",
        "/v1/datasets/chunked/chunks",
        br#"{"job": ""}"#.as_slice(),
    );
    assert_eq!(answer(&control, None, nameless).await.status, 422);

    let keep = (
        "PUT",
        "/v1/datasets/chunked/keep",
        br#"{"keep": "uniform"}"#.as_slice(),
    );
    assert_eq!(answer(&control, None, keep).await.status, 200);
    let refused = post_chunks(&control, "/3/ref", "").await;
    assert!(
        refused.body["try"]
            .as_str()
            .unwrap()
            .contains("--keep chunks"),
        "{refused:?}"
    );
    for (name, status) in [("configured", 409), ("nothing", 404)] {
        let path = format!("/v1/datasets/{name}/chunks");
        let found = answer(&control, None, ("GET", &path, b"")).await;
        assert_eq!(found.status, status, "{name}: {found:?}");
    }
}
