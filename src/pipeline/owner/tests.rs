//! Owners with homes that are boards of counts, and files of a real directory.

use super::sending::BATCH_INTERVAL;
use super::*;
use crate::model::CountBatch;
use crate::model::Serial;
use crate::model::slots::key_of;
use crate::origin::{OriginOptions, OriginSpec, Origins};
use crate::pipeline::line::Line;
use crate::testing::{SOON, path};
use copperfs_overlay::FailureKind;
use copperfs_policy::references::{Batch, CountBoard};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use tokio::time::sleep;

/// The rest of the cluster: homes, and files.
struct Fake {
    homes: Mutex<BTreeMap<u32, CountBoard<OwnerId, u64>>>,
    /// Homes that do not answer.
    down: Mutex<Vec<u32>>,
    /// Counts that were sent.
    sent: Mutex<usize>,
    origins: Option<Arc<Origins>>,
    task_reads: Arc<TaskReads>,
    _dir: tempfile::TempDir,
}

impl Default for Pipelines {
    fn default() -> Self {
        let (_, decisions) = watch::channel(Arc::default());
        Self::new(
            OwnerId { rank: 0, boot: 1 },
            1000,
            Fake::new(false),
            decisions,
        )
    }
}

impl Fake {
    fn new(has_files: bool) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let large = std::fs::File::create(dir.path().join("large")).unwrap();
        large.set_len(9 << 20).unwrap();
        let origin = OriginSpec {
            prefix: path("/x/wh"),
            uri: format!("file://{}", dir.path().display()),
            options: BTreeMap::new(),
        };
        let open = || Origins::open(std::slice::from_ref(&origin), &OriginOptions::default());
        Arc::new(Self {
            homes: Mutex::default(),
            down: Mutex::default(),
            sent: Mutex::default(),
            origins: has_files.then(|| Arc::new(open().unwrap())),
            task_reads: Arc::default(),
            _dir: dir,
        })
    }

    /// The sum of the counts of an item at all homes.
    fn total(&self, name: &str, stripe: u64) -> u32 {
        let key = key_of(&path(&format!("/x/wh/{name}")), stripe);
        self.homes
            .lock()
            .values()
            .map(|home| home.total(&key))
            .sum()
    }

    fn totals(&self) -> [u32; 4] {
        [("a", 0), ("b", 0), ("large", 0), ("large", 2)]
            .map(|(name, stripe)| self.total(name, stripe))
    }
}

impl PipelineNode for Fake {
    fn send(
        &self,
        rank: u32,
        message: PipelineMessage,
    ) -> BoxFuture<'static, Result<PipelineReply, Failure>> {
        let reply = match message {
            _ if self.down.lock().contains(&rank) => {
                Err(Failure::new(FailureKind::Unavailable, "down"))
            }
            PipelineMessage::Counts(CountBatch {
                owner,
                from,
                to,
                counts,
                ..
            }) => {
                *self.sent.lock() += counts.len();
                let mut homes = self.homes.lock();
                let batch = Batch {
                    from,
                    to,
                    counts: &counts,
                };
                let state = homes
                    .entry(rank)
                    .or_default()
                    .apply(owner, batch, &mut Vec::new());
                Ok(PipelineReply::State(state))
            }
            PipelineMessage::Flush { .. } => Ok(PipelineReply::Flushed {
                items: 2,
                bytes: 10,
            }),
            PipelineMessage::Reads(_) => panic!("this node is the only owner"),
        };
        std::future::ready(reply).boxed()
    }

    fn files(&self) -> Option<Arc<dyn Files>> {
        Some(Arc::clone(self.origins.as_ref()?) as Arc<dyn Files>)
    }

    fn catalog(&self, _dataset: u64) -> Option<Arc<Catalog>> {
        None
    }

    fn task_reads(&self) -> Arc<TaskReads> {
        Arc::clone(&self.task_reads)
    }

    fn jobs_changed(&self) {}
}

struct Cluster {
    pipelines: Pipelines,
    fake: Arc<Fake>,
    decisions: watch::Sender<Arc<Decision>>,
}

fn homes(ranks: &[u32]) -> Vec<HomeNode> {
    let home = |rank: &u32| HomeNode {
        rank: *rank,
        name: format!("n{rank}"),
        capacity: 100,
    };
    ranks.iter().map(home).collect()
}

fn decision(ranks: &[u32]) -> Arc<Decision> {
    let dataset = |name: &str, id, keep| DatasetDecision {
        name: name.into(),
        id,
        path: path(&format!("/x/{name}")),
        keep,
        ..DatasetDecision::default()
    };
    Arc::new(Decision {
        serial: Serial { term: 1, count: 1 },
        homes: homes(ranks),
        datasets: vec![
            dataset("wh", 5, Keep::References),
            dataset("other", 6, Keep::Uniform),
        ],
        ..Decision::default()
    })
}

impl Cluster {
    fn new() -> Self {
        let fake = Fake::new(true);
        let (decisions, watched) = watch::channel(decision(&[0, 1, 2]));
        let owner = OwnerId { rank: 0, boot: 1 };
        let node = Arc::clone(&fake) as Arc<dyn PipelineNode>;
        let pipelines = Pipelines::new(owner, 20, node, watched);
        pipelines.start();
        Self {
            pipelines,
            fake,
            decisions,
        }
    }

    async fn submit(&self, caller: &Caller, rest: &str) -> Result<Accepted, LineError> {
        let line = format!(r#"{{"v":1,"op":"submit","job":"j",{rest}}}"#);
        match Line::parse(line.as_bytes(), 1000).unwrap() {
            Line::Submit(submission) => {
                let submitted = self.pipelines.submit(caller, *submission).await;
                submitted.map(|(_, accepted)| accepted)
            }
            other => panic!("{other:?}"),
        }
    }

    async fn wait_for(&self, totals: [u32; 4]) {
        let waiting = async {
            while self.fake.totals() != totals {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(SOON, waiting).await;
        assert!(
            waited.is_ok(),
            "{:?} instead of {totals:?}",
            self.fake.totals()
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.pipelines.stop();
    }
}

const USER: Caller = Caller {
    user: 1000,
    is_owner: false,
};

const TASKS: &str = r#""dataset":"wh","files":["a","b","large","gone"],"tasks":[
    {"id":"t","in":[0,1,2]},{"id":"u","in":[0,[2,0,1]]},{"id":"v","in":[3]}]"#;

fn task(task: &str) -> TaskEvent {
    TaskEvent {
        job: JobEvent {
            tenant: None,
            job: "j".into(),
        },
        task: task.into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn homes_know_the_counts_of_their_items_until_the_job_ends() {
    let cluster = Cluster::new();
    let accepted = cluster.submit(&USER, TASKS).await.unwrap();
    let due = Accepted {
        accepted: true,
        blocks: 5,
        unknown_paths: vec!["gone".into()],
    };
    assert_eq!(accepted, due);
    cluster.wait_for([2, 1, 2, 1]).await;
    assert!(cluster.pipelines.done(&USER, &task("u")).unwrap());
    cluster.wait_for([1, 1, 1, 1]).await;
    assert!(
        !cluster.pipelines.fail(&USER, &task("u")).unwrap(),
        "it has ended"
    );
    assert!(!cluster.pipelines.done(&USER, &task("nothing")).unwrap());
    let [report] = &cluster.pipelines.report()[..] else {
        panic!("one dataset")
    };
    assert_eq!(
        (report.dataset, report.jobs, report.references, report.bytes),
        (5, 1, 5, (9 << 20) + 2)
    );
    assert_eq!(cluster.pipelines.jobs(Some(1000)).len(), 1);
    assert!(
        cluster.pipelines.jobs(Some(7)).is_empty(),
        "it is another user's"
    );
    let tasks = cluster.pipelines.tasks(None, "1000", "j").unwrap();
    let told: Vec<(&str, bool, usize, usize)> = tasks
        .iter()
        .map(|one| (&*one.task, one.ended, one.references, one.held))
        .collect();
    assert_eq!(
        told,
        [("t", false, 5, 5), ("u", true, 2, 0), ("v", false, 0, 0)]
    );
    let counts = cluster.pipelines.counts(None, "wh", "", 100).unwrap();
    let told: Vec<(&str, u64, u32)> = counts
        .iter()
        .map(|one| (&*one.path, one.offset, one.count))
        .collect();
    let stripe = 4 << 20;
    let due = [
        ("a", 0, 1),
        ("b", 0, 1),
        ("large", 0, 1),
        ("large", stripe, 1),
        ("large", 2 * stripe, 1),
    ];
    assert_eq!(told, due);
    assert_eq!(
        cluster
            .pipelines
            .counts(None, "wh", "large", 2)
            .unwrap()
            .len(),
        2
    );
    assert!(cluster.pipelines.end(&USER, &task("").job).unwrap());
    assert!(!cluster.pipelines.end(&USER, &task("").job).unwrap());
    cluster.wait_for([0; 4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_home_that_is_new_or_comes_back_gets_all_counts() {
    let cluster = Cluster::new();
    *cluster.fake.down.lock() = vec![0, 1, 2];
    cluster.submit(&USER, TASKS).await.unwrap();
    sleep(BATCH_INTERVAL * 3).await;
    assert_eq!(cluster.fake.totals(), [0; 4]);
    cluster.fake.down.lock().clear();
    cluster.wait_for([2, 1, 2, 1]).await;
    // All restart: the next beat notices it.
    cluster.fake.homes.lock().clear();
    cluster.wait_for([2, 1, 2, 1]).await;
    // Other nodes are the homes now.
    cluster.fake.homes.lock().clear();
    cluster.decisions.send_replace(decision(&[3, 4]));
    cluster.wait_for([2, 1, 2, 1]).await;
    assert_eq!(
        cluster
            .fake
            .homes
            .lock()
            .keys()
            .filter(|rank| **rank > 2)
            .count(),
        2
    );
    // The dataset is kept by another rule: its jobs are over.
    let mut other = (*decision(&[3, 4])).clone();
    other.datasets[0].keep = Keep::Uniform;
    cluster.decisions.send_replace(Arc::new(other.clone()));
    cluster.wait_for([0; 4]).await;
    assert!(cluster.pipelines.jobs(None).is_empty());
    // By the rule again: the same attempt is a new one, however soon it comes.
    cluster.decisions.send_replace(decision(&[3, 4]));
    for _ in 0..2 {
        let answer = cluster.submit(&USER, TASKS).await.unwrap();
        assert!(answer.accepted);
        cluster.pipelines.follow(&other);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_expires_and_a_later_attempt_replaces_it() {
    let cluster = Cluster::new();
    cluster
        .submit(&USER, &format!(r#""expires_s":0.4,{TASKS}"#))
        .await
        .unwrap();
    cluster.wait_for([2, 1, 2, 1]).await;
    cluster.wait_for([0; 4]).await;
    let again = cluster.submit(&USER, TASKS).await.unwrap();
    assert!(!again.accepted, "the attempt is not a later one");
    let one = r#""attempt":1,"dataset":"wh","files":["b"],"tasks":[{"id":"t","in":[0]}]"#;
    assert!(cluster.submit(&USER, one).await.unwrap().accepted);
    cluster.wait_for([0, 1, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_tasks_are_told_by_their_node() {
    let cluster = Cluster::new();
    cluster
        .submit(&USER, &format!(r#""consume":"read",{TASKS}"#))
        .await
        .unwrap();
    cluster.wait_for([2, 1, 2, 1]).await;
    let task = |name: &str, user| crate::job::Task {
        user,
        name: name.into(),
    };
    let a = key_of(&path("/x/wh/a"), 0);
    cluster.fake.task_reads.add(5, &task("j/t", 1000), a);
    cluster.fake.task_reads.add(5, &task("j/u", 7), a);
    cluster.wait_for([1, 1, 2, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn submissions_that_are_not_allowed_are_refused() {
    let cluster = Cluster::new();
    let other = r#""tenant":"1001","dataset":"wh","files":["a"],"tasks":[{"id":"t","in":[0]}]"#;
    for (rest, said, advised) in [
        (
            other,
            "tenant \"1001\" is another's: you are user 1000",
            "Leave the tenant out",
        ),
        (
            r#""dataset":"nope","tasks":[]"#,
            "there is no dataset \"nope\"",
            "Kept by references: wh",
        ),
        (
            r#""dataset":"other","tasks":[]"#,
            "is kept by the rule uniform",
            "dataset set other --keep references",
        ),
        (
            r#""dataset":"wh","files":["a"],"tasks":[{"id":"t","in":[0]},{"id":"t","in":[0]}]"#,
            "\"t\" is listed twice",
            "a name of its own",
        ),
    ] {
        let refused = cluster.submit(&USER, rest).await.unwrap_err();
        assert!(
            refused.error.contains(said) && refused.advice.contains(advised),
            "{refused}"
        );
    }
    let owner = Caller {
        user: 0,
        is_owner: true,
    };
    assert!(cluster.submit(&owner, other).await.unwrap().accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_holds_a_bounded_number_of_references() {
    let cluster = Cluster::new();
    // 20 are allowed.
    let tasks = |job: &str, tasks: usize| {
        let tasks: Vec<String> = (0..tasks)
            .map(|at| format!(r#"{{"id":"{at}","in":[0]}}"#))
            .collect();
        format!(
            r#""job":"{job}","dataset":"wh","files":["a"],"tasks":[{}]"#,
            tasks.join(",")
        )
    };
    assert!(
        cluster
            .submit(&USER, &tasks("one", 15))
            .await
            .unwrap()
            .accepted
    );
    let refused = cluster.submit(&USER, &tasks("two", 6)).await.unwrap_err();
    assert!(
        refused
            .error
            .contains("would hold 21 references on this node, and 20 are allowed"),
        "{refused}"
    );
    assert!(
        cluster
            .submit(&USER, &tasks("two", 5))
            .await
            .unwrap()
            .accepted
    );
    // What ends makes room, and so does an attempt that is replaced.
    let again = format!(r#""attempt":1,{}"#, tasks("one", 15));
    assert!(cluster.submit(&USER, &again).await.unwrap().accepted);
    assert!(
        cluster
            .pipelines
            .end(
                &USER,
                &JobEvent {
                    tenant: None,
                    job: "one".into()
                }
            )
            .unwrap()
    );
    assert!(
        cluster
            .submit(&USER, &tasks("three", 15))
            .await
            .unwrap()
            .accepted
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_goes_to_all_homes() {
    let cluster = Cluster::new();
    assert_eq!(cluster.pipelines.flush("wh").await, Ok((6, 30)));
    cluster.fake.down.lock().push(1);
    let refused = cluster.pipelines.flush("wh").await.unwrap_err();
    assert!(
        refused.error.contains("n1 did not answer: down"),
        "{refused}"
    );
    assert!(cluster.pipelines.flush("other").await.is_err());
}
