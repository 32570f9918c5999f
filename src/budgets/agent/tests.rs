//! Budget agents of a whole cluster in one process, connected in memory, with a paused clock.

use super::*;
use crate::budgets::{CountError, CountProgress, Counted};
use crate::model::{
    DatasetDecision, DecisionFrame, JobSpec, OriginReaders, ReportFrame, Resources, Serial,
    ShareReport,
};
use copperfs_overlay::{ItemPath, Member, Membership, NodeIdentity, steering};
use futures_util::FutureExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::task::AbortHandle;
use tokio::time::sleep;

const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;

/// How long it takes until the children of a dead node notice its death.
const DEATH_KNOWN: Duration = Duration::from_millis(1_500);

struct Node {
    agent: BudgetAgent,
    alive: Arc<AtomicBool>,
    /// The streams that it serves.
    serving: Arc<Mutex<Vec<AbortHandle>>>,
}

#[derive(Clone)]
struct World(Arc<Inside>);

struct Inside {
    members: Vec<Member>,
    roots: Vec<usize>,
    nodes: Mutex<Vec<Option<Node>>>,
    boots: AtomicU64,
}

/// The connections of one node.
struct Links {
    world: World,
    rank: usize,
    membership: Membership,
}

impl Links {
    /// Returns the nearest live ancestor.
    async fn ancestor(
        world: World,
        membership: Membership,
        tree: usize,
    ) -> Result<(usize, BudgetAgent), Failure> {
        for rank in membership.ancestors(tree) {
            if let Some(agent) = world.agent(rank) {
                return Ok((rank, agent));
            }
            sleep(Duration::from_millis(250)).await;
        }
        std::future::pending().await
    }
}

impl Neighbours for Links {
    fn trees(&self) -> usize {
        self.membership.trees()
    }

    fn is_root_of(&self, tree: usize) -> bool {
        self.membership.is_root_of(tree)
    }

    fn steer(&self, tree: usize) -> BoxFuture<'static, Result<Steering, Failure>> {
        let (world, membership, rank) = (self.world.clone(), self.membership.clone(), self.rank);
        async move {
            let (above, agent) = Self::ancestor(world.clone(), membership, tree).await?;
            let ((up, heard), (told, down)) = (steering::latest(), steering::latest());
            let child = format!("n{rank}");
            let serving = tokio::spawn(async move {
                drop(agent.service_steer(child, tree, heard, told).await);
            });
            world.with(above, |node| {
                node.serving.lock().push(serving.abort_handle());
            });
            Ok(Steering { up, down })
        }
        .boxed()
    }

    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        let (world, membership) = (self.world.clone(), self.membership.clone());
        async move {
            let (_, agent) = Self::ancestor(world, membership, tree).await?;
            agent.service_command(tree, command).await
        }
        .boxed()
    }
}

/// Counts every dataset as 3 GB, except for one that is named "missing".
struct Sizes;

impl Counter for Sizes {
    fn count(
        &self,
        dataset: &DatasetDecision,
        _progress: Arc<CountProgress>,
    ) -> BoxFuture<'static, Result<Counted, CountError>> {
        let counted = Counted {
            items: 1,
            bytes: 16_384 * 200_000,
            slots: vec![200_000; 16_384],
            identity: None,
            entries: 0,
            source: 0,
        };
        let counted = match dataset.name.as_str() {
            "missing" => Err(CountError::Listing {
                path: dataset.path.clone(),
                failure: Failure::new(FailureKind::NotFound, "no such directory"),
            }),
            _ => Ok(counted),
        };
        async move {
            sleep(Duration::from_millis(200)).await;
            counted
        }
        .boxed()
    }

    fn is_outdated(&self, _: &DatasetDecision, _: u64) -> BoxFuture<'static, bool> {
        std::future::ready(false).boxed()
    }
}

fn dataset(name: &str) -> DatasetSpec {
    let path = format!("/d/{name}");
    DatasetSpec::new(name, ItemPath::parse(path.as_bytes()).unwrap())
}

impl World {
    fn new(count: usize, roots: &[usize]) -> Self {
        let members = (0..count).map(|rank| Member {
            name: format!("n{rank}"),
            address: format!("n{rank}:1"),
        });
        let inside = Inside {
            members: members.collect(),
            roots: roots.to_vec(),
            nodes: Mutex::new((0..count).map(|_| None).collect()),
            boots: AtomicU64::new(1),
        };
        Self(Arc::new(inside))
    }

    fn with<T>(&self, rank: usize, act: impl FnOnce(&Node) -> T) -> Option<T> {
        self.0.nodes.lock()[rank].as_ref().map(act)
    }

    fn agent(&self, rank: usize) -> Option<BudgetAgent> {
        let living = |node: &Node| {
            let alive = node.alive.load(Ordering::Relaxed);
            alive.then(|| node.agent.clone())
        };
        self.with(rank, living).flatten()
    }

    /// Starts a new process of node `rank`.
    fn boot(&self, rank: usize) {
        let (members, roots) = (self.0.members.clone(), self.0.roots.clone());
        let membership = Membership::new(members, 3, roots, NodeIdentity::Member(rank)).unwrap();
        let boot = self.0.boots.fetch_add(1, Ordering::Relaxed) << 8;
        let config = BudgetAgentConfig {
            name: format!("n{rank}"),
            boot,
            datasets: vec![dataset("configured")],
            policy: "greedy".into(),
            resources: Resources {
                remote_io: Some(100 * MB),
                gpus: Some(8),
                pipelines_percent: 20,
            },
        };
        let links = Links {
            world: self.clone(),
            rank,
            membership,
        };
        let agent = BudgetAgent::new(config, Arc::new(links), Arc::new(Sizes));
        let (watch, counts) = (agent.watch(), AtomicU64::new(0));
        agent.start(Arc::new(move || {
            report(
                rank,
                boot,
                &watch.borrow(),
                counts.fetch_add(1, Ordering::Relaxed),
            )
        }));
        let node = Node {
            agent,
            alive: Arc::new(AtomicBool::new(true)),
            serving: Arc::default(),
        };
        self.0.nodes.lock()[rank] = Some(node);
    }

    /// Kills the process of node `rank`.
    fn kill(&self, rank: usize) {
        let node = self.0.nodes.lock()[rank].take().unwrap();
        node.alive.store(false, Ordering::Relaxed);
        node.agent.stop();
        tokio::spawn(async move {
            sleep(DEATH_KNOWN).await;
            for stream in node.serving.lock().drain(..) {
                stream.abort();
            }
        });
    }

    fn living(&self) -> Vec<usize> {
        let all = 0..self.0.members.len();
        all.filter(|rank| self.agent(*rank).is_some()).collect()
    }

    fn decision(&self, rank: usize) -> Arc<Decision> {
        Arc::clone(&self.agent(rank).unwrap().watch().borrow())
    }

    /// Waits until all live nodes follow one decision that `fits`, and returns it.
    async fn agree(&self, within: Duration, fits: impl Fn(&Decision) -> bool) -> Arc<Decision> {
        let deadline = Instant::now() + within;
        loop {
            let all: Vec<Arc<Decision>> = self
                .living()
                .into_iter()
                .map(|rank| self.decision(rank))
                .collect();
            let same = all.windows(2).all(|pair| pair[0].serial == pair[1].serial);
            if same && fits(&all[0]) {
                return Arc::clone(&all[0]);
            }
            let serials: Vec<String> = all.iter().map(|one| one.serial.to_string()).collect();
            assert!(Instant::now() < deadline, "{serials:?} {:?}", all[0]);
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ask(&self, rank: usize, command: Command) -> Result<Reply, CommandError> {
        self.agent(rank).unwrap().command(command).await
    }

    async fn allocator(&self, rank: usize) -> String {
        match self.ask(rank, Command::Overview).await {
            Ok(Reply::Overview(overview)) => overview.allocator,
            other => panic!("{other:?}"),
        }
    }
}

/// Every node is a home of 1 GB and holds its shares. Nodes with odd ranks read for a job.
fn report(rank: usize, boot: u64, decision: &Decision, count: u64) -> NodeReport {
    let rank = u32::try_from(rank).unwrap();
    let home = decision.homes.iter().position(|home| home.rank == rank);
    let shares = decision.datasets.iter().map(|one| {
        let share = home.map_or(0, |home| one.share(&decision.homes, home));
        ShareReport {
            dataset: one.id,
            cached: share,
            items: 1,
            share,
            ..ShareReport::default()
        }
    });
    let reads = crate::model::JobReport {
        job: "run:j".into(),
        dataset: "configured".into(),
        ..Default::default()
    };
    NodeReport {
        rank,
        name: format!("n{rank}"),
        boot,
        count: count + 1,
        follows: decision.serial,
        capacity: GB,
        shares: shares.collect(),
        jobs: if rank % 2 == 1 {
            vec![reads]
        } else {
            Vec::new()
        },
        readings: Vec::new(),
        pipelines: Vec::new(),
        origins: Vec::new(),
    }
}

/// Budgets and rates.
fn terms(decision: &Decision) -> Vec<(String, u64)> {
    let budgets = decision
        .datasets
        .iter()
        .map(|one| (one.name.clone(), one.budget));
    let jobs = decision.jobs.iter().flat_map(|job| {
        let nodes = job.nodes.iter();
        let nodes = nodes.map(|node| (format!("{}@{}", job.name, node.rank), node.remote_io));
        [(job.name.clone(), job.remote_io.unwrap_or(0))]
            .into_iter()
            .chain(nodes)
    });
    budgets.chain(jobs).collect()
}

/// Returns whether `a` and `b` differ only by noise.
fn alike(a: &Decision, b: &Decision) -> bool {
    let (a, b) = (terms(a), terms(b));
    a.len() == b.len()
        && a.iter()
            .zip(&b)
            .all(|((n, x), (m, y))| n == m && x.abs_diff(*y) * 20 <= *x.max(y))
}

/// Thirteen nodes in trees of arity 3 with two roots, in a steady state.
async fn settled() -> (World, Arc<Decision>) {
    let world = World::new(13, &[0, 6]);
    for rank in 0..13 {
        world.boot(rank);
    }
    let first = world
        .agree(Duration::from_secs(5), |all| all.homes.len() == 13)
        .await;
    assert_eq!(first.serial.term, 1);
    let spec = JobSpec {
        name: "run:k".into(),
        dataset: "configured".into(),
        ideal_rate: Some(30 * MB),
        gpus: 2,
        epochs: None,
        owner: None,
    };
    world.ask(12, Command::AddJob(spec)).await.unwrap();
    world
        .ask(5, Command::AddDataset(dataset("b")))
        .await
        .unwrap();
    let pin = Command::AllocateCacheSize {
        dataset: "b".into(),
        size: Some(GB),
    };
    world.ask(6, pin).await.unwrap();
    let ready = |all: &Decision| {
        all.datasets
            .iter()
            .all(|one| one.size > 0 && !one.homed.is_empty())
            && all.jobs.len() == 3
            && all.dataset("b").is_some_and(|b| b.budget == GB)
    };
    world.agree(Duration::from_secs(5), ready).await;
    // Until effective hit ratios are known, too.
    sleep(Duration::from_secs(12)).await;
    let settled = world.agree(Duration::from_secs(5), ready).await;
    (world, settled)
}

#[tokio::test(start_paused = true)]
async fn all_nodes_follow_one_decision_and_any_node_accepts_commands() {
    let (world, decision) = settled().await;
    assert_eq!(decision.cache_total, 13 * GB);
    assert_eq!(decision.job("run:j").unwrap().nodes.len(), 6);
    assert_eq!(
        decision.dataset("configured").unwrap().size,
        16_384 * 200_000
    );
    assert_eq!(world.allocator(11).await, "n0");
    // Refusals are returned unchanged.
    let refused = world
        .ask(12, Command::AddDataset(dataset("b")))
        .await
        .unwrap_err();
    assert_eq!(refused.kind, crate::model::ErrorKind::Conflict);
    assert!(refused.message.contains("there is a dataset"), "{refused}");
    // Every node has a change within a second.
    world.ask(9, Command::EndJob("run:k".into())).await.unwrap();
    world
        .agree(Duration::from_secs(1), |all| all.job("run:k").is_none())
        .await;
    // The decision says why a dataset cannot be counted.
    world
        .ask(9, Command::AddDataset(dataset("missing")))
        .await
        .unwrap();
    let trouble = |all: &Decision| {
        all.dataset("missing")
            .is_some_and(|one| one.trouble.is_some())
    };
    let decision = world.agree(Duration::from_secs(2), trouble).await;
    let missing = decision.dataset("missing").unwrap();
    let trouble = missing.trouble.as_ref().unwrap().to_string();
    assert!(trouble.contains("no such directory"), "{trouble}");
    assert_eq!(missing.origin_readers, OriginReaders::Roots);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_allocator_restores_its_state_from_other_nodes() {
    let (world, before) = settled().await;
    world.kill(0);
    sleep(Duration::from_millis(400)).await;
    world.boot(0);
    let anew = |all: &Decision| all.serial.term > before.serial.term && alike(all, &before);
    let after = world.agree(Duration::from_secs(5), anew).await;
    assert_eq!(after.homes, before.homes);
    assert_eq!(world.allocator(12).await, "n0");
    assert!(
        world
            .ask(3, Command::AddDataset(dataset("c")))
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn the_allocator_moves_to_the_next_root_and_comes_back() {
    let (world, before) = settled().await;
    world.kill(0);
    let moved = |all: &Decision| all.serial.term > before.serial.term;
    let after = world.agree(Duration::from_secs(5), moved).await;
    // Budgets and rates are unchanged; the dead node times out later.
    assert!(alike(&after, &before), "{before:?}\n{after:?}");
    assert_eq!(world.allocator(12).await, "n6");
    // A command to it is not lost when the first root is back.
    world
        .ask(12, Command::AddDataset(dataset("c")))
        .await
        .unwrap();
    let without = world
        .agree(Duration::from_secs(8), |all| all.homes.len() == 12)
        .await;
    assert!(without.dataset("c").is_some());
    world.boot(0);
    let back = |all: &Decision| {
        all.serial.term > without.serial.term && all.homes.len() == 13 && all.dataset("c").is_some()
    };
    world.agree(Duration::from_secs(15), back).await;
    assert_eq!(world.allocator(12).await, "n0");
    sleep(Duration::from_secs(10)).await;
    let settled = world.agree(Duration::from_secs(5), back).await;
    assert!(settled.dataset("b").is_some_and(|b| b.budget == GB));
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_costs_only_its_own_home() {
    let (world, before) = settled().await;
    // It has nodes below it.
    let inner = 1;
    world.kill(inner);
    for _ in 0..100 {
        sleep(Duration::from_millis(50)).await;
        let homes = world.decision(0).homes.len();
        assert!(
            (12..=13).contains(&homes),
            "{homes}: the nodes below are alive"
        );
    }
    let without = world
        .agree(Duration::from_secs(1), |all| all.homes.len() == 12)
        .await;
    assert!(without.homes.iter().all(|home| home.rank != 1));
    world.boot(inner);
    world
        .agree(Duration::from_secs(5), |all| alike(all, &before))
        .await;
}

#[tokio::test(start_paused = true)]
async fn budgets_and_rates_are_the_same_after_random_restarts() {
    for seed in 1..6_u64 {
        let (world, before) = settled().await;
        let mut state = seed;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..6 {
            let rank = usize::try_from(random(13)).unwrap();
            // One root stays alive, so that the decision survives.
            let other_root = |root: usize| world.agent(6 - root).is_some();
            let may = (rank != 0 && rank != 6) || other_root(rank);
            match world.agent(rank) {
                Some(_) if may => world.kill(rank),
                Some(_) => {}
                None => world.boot(rank),
            }
            sleep(Duration::from_millis(random(4_000))).await;
        }
        for rank in 0..13 {
            if world.agent(rank).is_none() {
                world.boot(rank);
            }
        }
        sleep(Duration::from_secs(20)).await;
        let same = |all: &Decision| alike(all, &before) && all.homes == before.homes;
        world.agree(Duration::from_secs(10), same).await;
        for rank in 0..13 {
            world.agent(rank).unwrap().stop();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_node_allocates_and_a_disconnected_node_keeps_its_decision() {
    let world = World::new(2, &[0]);
    world.boot(0);
    world
        .agree(Duration::from_secs(3), |all| all.homes.len() == 1)
        .await;
    world.boot(1);
    let both = world
        .agree(Duration::from_secs(3), |all| all.homes.len() == 2)
        .await;
    world.kill(0);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.decision(1).serial, both.serial);
    let error = world.ask(1, Command::Overview).await.unwrap_err();
    assert_eq!(error.kind, crate::model::ErrorKind::Unavailable);
    assert!(error.to_string().contains("copperfs status"), "{error}");
}

#[test]
fn malformed_frames_are_refused() {
    let serial = Serial { term: 1, count: 1 };
    assert!(decode::<ForwardedCommand>(&[1, 0, 255, 255, 255, 255]).is_err());
    assert!(decode::<DecisionFrame>(b"").is_err());
    let mut frame = encode(&ReportFrame {
        serial,
        ..Default::default()
    });
    assert_eq!(decode::<ReportFrame>(&frame).unwrap().serial, serial);
    frame[0] = 9;
    let error = decode::<ReportFrame>(&frame).unwrap_err().to_string();
    assert!(error.contains("same copperfs"), "{error}");
}
