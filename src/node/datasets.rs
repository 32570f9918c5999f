//! The wiring of datasets: this node as a home of items, as a node where jobs read, and as a link between the allocator
//! and the nodes below.

use super::data::{ItemOpening, Items};
use super::ladder;
use super::origins::reached;
use crate::budgets::{BudgetAgent, BudgetAgentConfig, DatasetCounter, Neighbours, ServedPaths};
use crate::config::{self, Settings};
use crate::dataset::Catalog;
use crate::dataset::chunk_readers::ChunkReaders;
use crate::dataset::contents::Contents;
use crate::dataset::home::{Home, HomeOptions};
use crate::dataset::manifests::{CatalogLoader, Manifests};
use crate::dataset::reader::{DatasetReader, HomeClient, OpenDatasetFile, Opening};
use crate::dataset::residency::{Residency, ResidencyError, Resident};
use crate::dataset::task_reads::TaskReads;
use crate::job::{Activities, JobName, Proc, Process, Readers};
use crate::model::{
    self, Command, CommandError, Decision, NodeReport, OriginReaders, OwnerId, PipelineMessage,
    PipelineReply, Resources, ShareReport,
};
use crate::origin::Origins;
use crate::pipeline::{PipelineNode, Pipelines};
use crate::read::{FileRef, ReadPath};
use crate::takeover::Estate;
use bytes::Bytes;
use copperfs_metrics::{Kind, Scope, Unit};
use copperfs_overlay::{
    ContentHash, Failure, FailureKind, Files, HeldAnswer, HeldRequest, Insertion, ItemAnswer,
    ItemPath, ItemRequest, Overlay, RangeAnswer, Steering, Upstream,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::JoinHandle;

/// How often a home looks whether a chunk has been loaded. It is a walk over the chunk's entries at home here,
/// and only after a change.
const LOADED_INTERVAL: Duration = Duration::from_millis(200);
/// How often a node looks at storage that does not answer, to know whether it could read it by itself.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// A node without a place in the member list reports under a rank above all of these.
const GUESTS_FROM: u32 = 1 << 31;

/// The datasets' parts of this node. Cheap to clone.
#[derive(Clone)]
pub(super) struct Datasets(Arc<Inner>);

impl std::ops::Deref for Datasets {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

pub(super) struct Inner {
    pub(super) home: Home,
    pub(super) reader: DatasetReader,
    catalogs: CatalogLoader,
    residency: Residency,
    pub(super) contents: Contents,
    pub(super) chunk_readers: ChunkReaders,
    pub(super) pipelines: Pipelines,
    pub(super) agent: BudgetAgent,
    peers: Arc<Peers>,
    readers: Arc<Readers>,
    activities: Arc<Activities>,
    this: ThisNode,
    /// The bytes that this node reports to have for datasets. It may hold fewer for a while.
    capacity: AtomicU64,
    /// This node reads datasets, or declares some.
    wanted: bool,
    reports: AtomicU64,
    /// The decision that the home here follows.
    applied: Mutex<Arc<Decision>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Storage, if this node may read it by itself.
    origins: Option<Arc<Origins>>,
    /// [`NodeReport::origins`].
    reached: Mutex<Vec<ItemPath>>,
}

/// The identity of this node among the others.
#[derive(Clone)]
struct ThisNode {
    rank: u32,
    name: String,
    /// A random number, drawn at each start of the process.
    boot: u64,
}

impl ThisNode {
    fn of(settings: &Settings) -> Self {
        let name = match settings.identity {
            config::NodeIdentity::Member(rank) => {
                settings.members.get(rank).map(|m| m.name.clone())
            }
            config::NodeIdentity::Guest(ref name) => Some(name.clone()),
        };
        let name = name.unwrap_or_default();
        let rank = settings.rank().and_then(|rank| u32::try_from(rank).ok());
        let rank = rank.unwrap_or_else(|| {
            let hash = blake3::hash(name.as_bytes());
            let [a, b, c, d, ..] = *hash.as_bytes();
            GUESTS_FROM | u32::from_le_bytes([a, b, c, d])
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            rank,
            name,
            boot: now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(0)),
        }
    }
}

/// Homes, this node among them.
struct Peers {
    own: u32,
    home: Home,
    /// The connections to the other homes; set when this node listens.
    overlay: OnceLock<copperfs_overlay::Homes>,
}

impl Peers {
    /// The connections to the other homes.
    fn others(&self) -> Result<copperfs_overlay::Homes, Failure> {
        let starting = || Failure::new(FailureKind::Unavailable, "this node does not listen yet");
        self.overlay.get().cloned().ok_or_else(starting)
    }
}

/// The parts of this node that its pipelines use.
struct OfPipelines {
    peers: Arc<Peers>,
    read: Arc<OnceLock<ReadPath>>,
    reader: DatasetReader,
    agent: BudgetAgent,
}

impl PipelineNode for OfPipelines {
    fn files(&self) -> Option<Arc<dyn Files>> {
        Some(Arc::new(self.read.get()?.clone()))
    }

    fn catalog(&self, dataset: u64) -> Option<Arc<Catalog>> {
        self.reader.catalog(dataset)
    }

    fn task_reads(&self) -> Arc<TaskReads> {
        Arc::clone(self.reader.task_reads())
    }

    fn jobs_changed(&self) {
        self.agent.report_soon();
    }

    fn send(
        &self,
        rank: u32,
        message: PipelineMessage,
    ) -> BoxFuture<'static, Result<PipelineReply, Failure>> {
        if rank == self.peers.own {
            return answer_message(self.peers.home.clone(), None, message).boxed();
        }
        let others = self.peers.others();
        async move {
            let rank = usize::try_from(rank).unwrap_or(usize::MAX);
            let message = Bytes::from(model::encode(&message));
            let reply = others?.message(rank, message).await?;
            model::decode(&reply).map_err(|error| corrupt(&error))
        }
        .boxed()
    }
}

/// Answers a message about pipelines, of this node to its home or of another one.
async fn answer_message(
    home: Home,
    pipelines: Option<Pipelines>,
    message: PipelineMessage,
) -> Result<PipelineReply, Failure> {
    let answering = tokio::task::spawn_blocking(move || match message {
        PipelineMessage::Counts(batch) => home.count(&batch),
        PipelineMessage::Flush { dataset } => home.flush(dataset),
        PipelineMessage::Reads(batch) => {
            if let Some(pipelines) = pipelines {
                pipelines.reads(&batch);
            }
            Ok(PipelineReply::Done)
        }
    });
    let stopped = |_| Failure::new(FailureKind::Unavailable, "this node is shutting down");
    answering.await.map_err(stopped)?
}

fn corrupt(error: &model::FormatError) -> Failure {
    let detail = format!("a message about pipelines: {error}");
    Failure::new(FailureKind::Corrupt, detail)
}

impl HomeClient for Peers {
    fn held(
        &self,
        rank: u32,
        request: HeldRequest,
    ) -> BoxFuture<'static, Result<HeldAnswer, Failure>> {
        if rank == self.own {
            let home = self.home.clone();
            return async move { home.held(request).await }.boxed();
        }
        let others = self.others();
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        async move { others?.held(rank, request).await }.boxed()
    }

    fn content(
        &self,
        rank: u32,
        hash: ContentHash,
    ) -> BoxFuture<'static, Result<Option<Bytes>, Failure>> {
        if rank == self.own {
            let home = self.home.clone();
            return async move { Ok(home.content(hash).await) }.boxed();
        }
        let others = self.others();
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        async move { others?.content(rank, hash).await }.boxed()
    }

    fn insert(
        &self,
        rank: u32,
        hash: ContentHash,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<Insertion, Failure>> {
        if rank == self.own {
            let home = self.home.clone();
            return async move { Ok(home.insert(hash, bytes).await) }.boxed();
        }
        let others = self.others();
        let rank = usize::try_from(rank).unwrap_or(usize::MAX);
        async move { others?.insert(rank, hash, bytes).await }.boxed()
    }

    fn ask(
        &self,
        rank: Option<u32>,
        request: ItemRequest,
    ) -> BoxFuture<'static, Result<ItemAnswer, Failure>> {
        let (home, others) = (self.home.clone(), self.others());
        let rank = rank.filter(|rank| *rank != self.own);
        async move {
            let Some(rank) = rank else {
                return home.item(request).await;
            };
            let rank = usize::try_from(rank).unwrap_or(usize::MAX);
            others?.item(rank, request).await
        }
        .boxed()
    }

    fn try_ask(&self, rank: u32, request: &ItemRequest) -> Option<Vec<RangeAnswer>> {
        (rank == self.own).then(|| self.home.try_item(request))?
    }
}

impl Datasets {
    /// Creates all parts, idle. `origins` is storage, where this node reaches it itself. The datasets are counted by
    /// way of `read`. Must be called within a runtime.
    pub(super) fn new(
        settings: &Settings,
        upstream: &Upstream,
        origins: Option<&Arc<Origins>>,
        read: &ReadPath,
    ) -> Self {
        let (storage, capacity) = ladder::dataset_room(settings, &settings.cache);
        let this = ThisNode::of(settings);
        let options = HomeOptions {
            capacity,
            storage,
            seed: this.boot,
            in_flight_bytes_max: HomeOptions::IN_FLIGHT_BYTES_MAX,
        };
        let roots: Arc<dyn Files> = Arc::new(upstream.at(0));
        let own = origins.map(|origins| Arc::clone(origins) as Arc<dyn Files>);
        let home = Home::new(options, Arc::new(upstream.direct()), own);
        let peers = Arc::new(Peers {
            own: this.rank,
            home: home.clone(),
            overlay: OnceLock::new(),
        });
        let activities = Arc::new(Activities::default());
        let readers = Arc::new(Readers::new(Proc::at(Path::new("/proc"))));
        let reader = DatasetReader::new(
            Arc::clone(&peers) as Arc<dyn HomeClient>,
            Arc::clone(&readers),
            Arc::clone(&activities),
            settings.request_timeout,
        );
        let read = Arc::new(OnceLock::from(read.clone()));
        let manifests = Manifests::new(Arc::clone(&roots), Arc::clone(&read));
        let catalogs = CatalogLoader::new(manifests, home.clone(), reader.clone());
        let config = BudgetAgentConfig {
            name: this.name.clone(),
            boot: this.boot,
            datasets: settings.datasets.clone(),
            policy: settings.allocation_policy.clone(),
            resources: resources(settings),
        };
        let files = Arc::clone(&read);
        let counter = DatasetCounter::new(ServedPaths::of(settings), roots, read);
        let contents = Contents::new(Arc::clone(&peers) as Arc<dyn HomeClient>, reader.clone());
        let agent = BudgetAgent::new(config, Arc::new(upstream.clone()), Arc::new(counter));
        let owner = OwnerId {
            rank: this.rank,
            boot: this.boot,
        };
        let node = Arc::new(OfPipelines {
            peers: Arc::clone(&peers),
            read: files,
            reader: reader.clone(),
            agent: agent.clone(),
        });
        let pipelines = Pipelines::new(owner, settings.max_refs_per_tenant, node, agent.watch());
        Self(Arc::new(Inner {
            home,
            pipelines,
            reader,
            catalogs,
            residency: Residency::new(Arc::clone(&peers) as Arc<dyn HomeClient>),
            contents,
            chunk_readers: ChunkReaders::default(),
            agent,
            peers,
            readers,
            activities,
            this,
            capacity: AtomicU64::new(capacity),
            wanted: settings.data_mount.is_some() || !settings.datasets.is_empty(),
            reports: AtomicU64::new(0),
            applied: Mutex::default(),
            tasks: Mutex::default(),
            origins: origins.cloned(),
            reached: Mutex::default(),
        }))
    }

    /// Continues with the jobs of a predecessor and with the decision that it followed, and keeps the present ones for
    /// a successor. Called before [`Datasets::start`].
    pub(super) fn outlive(&self, estate: &mut Estate) {
        // First the jobs, because the decision has their limits.
        let (journal, jobs) = estate.take_jobs();
        self.activities.outlive(&journal, jobs);
        if let Some(followed) = estate.take_followed() {
            self.apply(&Arc::new(followed.clone()));
            self.agent.follow(&followed);
        }
        let keep = estate.keep_decision();
        let mut decisions = self.agent.watch();
        drop(tokio::spawn(async move {
            loop {
                let decision = Arc::clone(&decisions.borrow_and_update());
                keep(&decision);
                if decisions.changed().await.is_err() {
                    return;
                }
            }
        }));
    }

    /// Tells the journal of all jobs, for its snapshot.
    pub(super) fn tell_all(&self) {
        self.activities.tell_all();
    }

    /// Begins to send reports and to follow decisions.
    pub(super) fn start(&self, overlay: &Overlay) {
        drop(self.peers.overlay.set(overlay.homes().clone()));
        self.pipelines.start();
        let this = self.clone();
        let following = tokio::spawn(async move {
            let mut decisions = this.agent.watch();
            loop {
                let decision = Arc::clone(&decisions.borrow_and_update());
                let applying = this.clone();
                // Shares that shrink evict, on a disk perhaps.
                let applied = tokio::task::spawn_blocking(move || applying.apply(&decision));
                drop(applied.await);
                tokio::select! {
                    changed = decisions.changed() => if changed.is_err() {
                        return;
                    },
                    // With the entries of a dataset the home knows how many bytes its chunks need.
                    () = this.catalogs.loaded() => {}
                }
            }
        });
        let this = self.clone();
        let loading = tokio::spawn(async move {
            let mut before = 0;
            loop {
                tokio::time::sleep(LOADED_INTERVAL).await;
                // A thread for it would keep all threads for blocking work from ending.
                if !this.home.has_chunks() {
                    before = 0;
                    continue;
                }
                let home = this.home.clone();
                let counting = tokio::task::spawn_blocking(move || home.loaded_chunks());
                let loaded = counting.await.unwrap_or(before);
                if loaded != before {
                    before = loaded;
                    this.agent.report_soon();
                }
            }
        });
        let mut tasks = vec![following, loading];
        if let Some(origins) = self.origins.clone() {
            let looking = self
                .clone()
                .look_at_storage(overlay.upstream().clone(), origins);
            tasks.push(tokio::spawn(looking));
        }
        self.tasks.lock().extend(tasks);
        let this = self.clone();
        let report = Arc::new(move || this.report());
        if self.wanted {
            self.agent.start(report);
        } else {
            self.agent.stand_by(report);
        }
    }

    /// Ends the tasks of [`Datasets::start`]. When it returns, all writes to the disk are complete.
    pub(super) async fn stop(&self) {
        self.agent.stop();
        self.pipelines.stop();
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.home.close().await;
    }

    /// See [`Readers::may_speak`].
    pub(super) fn may_speak(&self, job: &str, user: u32, process: Option<Process>) -> bool {
        let job = job.parse::<JobName>().ok();
        job.is_none_or(|job| self.readers.may_speak(&job, user, process, Instant::now()))
    }

    /// Changes the bytes for datasets: those that this node reports to have, and those that it may hold now. A reported
    /// change moves items between nodes, so a shortage that passes is not reported. Blocks while items are evicted.
    pub(super) fn resize(&self, reported: u64, now: u64) {
        if self.capacity.swap(reported, Ordering::Relaxed) != reported {
            self.agent.report_soon();
        }
        self.home.set_capacity(now);
        let decision = Arc::clone(&self.agent.watch().borrow());
        self.home.apply(&decision, self.this.rank, &self.this.name);
    }

    fn apply(&self, decision: &Arc<Decision>) {
        self.home.apply(decision, self.this.rank, &self.this.name);
        *self.applied.lock() = Arc::clone(decision);
        self.reader.apply(decision, self.this.rank);
        self.catalogs.apply(decision);
    }

    /// Finds out which origins this node reads by itself, once a dataset is declared whose homes might do so. Before that
    /// a node need not touch storage.
    async fn look_at_storage(self, upstream: Upstream, origins: Arc<Origins>) {
        let by_roots = |decision: &Arc<Decision>| {
            let mut datasets = decision.datasets.iter();
            datasets.any(|one| one.origin_readers == OriginReaders::Roots)
        };
        let mut decisions = self.agent.watch();
        if decisions.wait_for(by_roots).await.is_err() || self.home.capacity() == 0 {
            return;
        }
        drop(decisions);
        loop {
            match reached(&upstream, &origins).await {
                Ok(found) => {
                    *self.reached.lock() = found;
                    return self.agent.report_soon();
                }
                Err(failure) => tracing::debug!(%failure, "no storage of this node's own"),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn report(&self) -> NodeReport {
        let decision = Arc::clone(&self.agent.watch().borrow());
        // The decision may contain terms for jobs that have just begun here. Not a later one: a home that does not know
        // a dataset yet refuses its readers.
        let applied = Arc::clone(&self.applied.lock());
        self.reader.apply(&applied, self.this.rank);
        self.reader.tidy();
        // The last reads of a job that pauses have no open after them.
        self.activities.commit();
        let proc = &self.readers.proc;
        let runs = |process| proc.runs(process);
        let readings = self.chunk_readers.report(self.this.rank, &decision, runs);
        let mut jobs = self.activities.reports(proc, Instant::now());
        let id = |name: &str| decision.dataset(name).map(|one| one.id);
        for job in &mut jobs {
            let substitutes = |dataset| self.chunk_readers.has_read(dataset, &job.job);
            // It fetches entries ahead, and reads them again in its mini-batches. That is no deviation, also after
            // its processes have ended.
            if id(&job.dataset).is_some_and(substitutes) {
                job.irregular = false;
            }
        }
        self.chunk_readers.retain_jobs(|dataset, name| {
            let mut jobs = jobs.iter();
            jobs.any(|job| job.job == name && id(&job.dataset) == Some(dataset))
        });
        NodeReport {
            rank: self.this.rank,
            name: self.this.name.clone(),
            boot: self.this.boot,
            count: self.reports.fetch_add(1, Ordering::Relaxed) + 1,
            follows: decision.serial,
            capacity: self.capacity.load(Ordering::Relaxed),
            shares: self.home.report(),
            jobs,
            readings,
            pipelines: self.pipelines.report(),
            origins: self.reached.lock().clone(),
        }
    }
}

/// The configured resources that an allocator divides.
fn resources(settings: &Settings) -> Resources {
    Resources {
        remote_io: settings.remote_io,
        gpus: settings.gpus,
        pipelines_percent: settings.pipelines_percent,
    }
}

impl Neighbours for Upstream {
    fn trees(&self) -> usize {
        Self::trees(self)
    }

    fn is_root_of(&self, tree: usize) -> bool {
        Self::is_root_of(self, tree)
    }

    fn steer(&self, tree: usize) -> BoxFuture<'static, Result<Steering, Failure>> {
        let this = self.clone();
        async move { Self::steer(&this, tree).await }.boxed()
    }

    fn command(&self, tree: usize, command: Bytes) -> BoxFuture<'static, Result<Bytes, Failure>> {
        let this = self.clone();
        async move { Self::command(&this, tree, command).await }.boxed()
    }
}

impl Items for Datasets {
    type Item = OpenDatasetFile;

    fn is_uncached(item: &OpenDatasetFile) -> bool {
        item.is_uncached()
    }

    fn open(&self, pid: u32, path: &ItemPath, file: &FileRef) -> ItemOpening<OpenDatasetFile> {
        let known = self.activities.count();
        match self.reader.open(pid, path, file) {
            None => ItemOpening::None,
            Some(Opening::Ready(opened)) => {
                self.meet(known);
                ItemOpening::Ready(opened)
            }
            Some(Opening::Later(opening)) => {
                let this = self.clone();
                ItemOpening::Later(opening.inspect(move |_| this.meet(known)).boxed())
            }
        }
    }
}

impl Datasets {
    /// Declares the counters of items at home here, and of readers here.
    pub(super) fn declare(&self, datasets: &Scope) {
        use {Kind::Gauge, Unit::Bytes, Unit::Count};
        let read = |number: fn(&ShareReport) -> u64| {
            let home = self.home.clone();
            move || home.report().iter().map(number).sum()
        };
        let help = "Bytes of datasets that may be held on this node.";
        datasets.computed("share_bytes", Gauge, Bytes, help, read(|share| share.share));
        let help = "Bytes of datasets that are held on this node.";
        datasets.computed("bytes", Gauge, Bytes, help, read(|share| share.cached));
        let help =
            "Items of datasets that are held on this node: files, and stripes of larger ones.";
        datasets.computed("items", Gauge, Count, help, read(|share| share.items));
        let help = "Bytes that this node read from storage, or had a root read, for datasets.";
        let origin = read(|share| share.origin_bytes);
        datasets.computed("origin_bytes", Gauge, Bytes, help, origin);
        self.home.declare(datasets);
        self.reader.declare(datasets);
    }

    /// Answers a message of another member.
    pub(super) async fn message(&self, message: Bytes) -> Result<Bytes, Failure> {
        let message = model::decode(&message).map_err(|error| corrupt(&error))?;
        let pipelines = Some(self.pipelines.clone());
        let reply = answer_message(self.home.clone(), pipelines, message).await?;
        Ok(model::encode(&reply).into())
    }

    /// Returns which entries of the dataset `name` are held by its homes.
    ///
    /// # Errors
    /// See [`ResidencyError`].
    pub(super) async fn resident(&self, name: &str) -> Result<Resident, ResidencyError> {
        let decision = Arc::clone(&self.agent.watch().borrow());
        let dataset = decision.dataset(name).ok_or(ResidencyError::NoDataset)?;
        if dataset.manifest.is_none() {
            return Err(ResidencyError::NoManifest);
        }
        let catalog = self.reader.catalog(dataset.id);
        let catalog = catalog.ok_or(ResidencyError::NotLoaded)?;
        Ok(self.residency.of(&decision, dataset, &catalog).await)
    }

    /// Returns for each hash whether an item with it is resident: one that the manifest of a public dataset
    /// names.
    pub(super) async fn look_up(&self, hashes: Vec<ContentHash>) -> Vec<bool> {
        let decision = Arc::clone(&self.agent.watch().borrow());
        let mut known = Vec::new();
        for dataset in decision.datasets.iter().filter(|one| !one.is_private) {
            if let Some(catalog) = self.reader.catalog(dataset.id) {
                let resident = self.residency.of(&decision, dataset, &catalog).await;
                known.push((catalog, resident));
            }
        }
        self.contents.look_up(known, hashes).await
    }

    /// Has the allocator use the policy and the resources of `settings` instead of those of `before`, where they differ,
    /// and keeps them for an allocator on this node.
    ///
    /// # Errors
    /// The allocator refuses them, or cannot be reached. Of a change of both, the policy may have been changed.
    pub(super) async fn reconfigure(
        &self,
        before: &Settings,
        settings: &Settings,
    ) -> Result<(), CommandError> {
        // Without an allocator there is nothing to tell: one that begins here finds the new values.
        if self.agent.is_running() {
            if resources(before) != resources(settings) {
                let command = Command::SetResources(resources(settings));
                self.agent.command(command).await.map(drop)?;
            }
            if before.allocation_policy != settings.allocation_policy {
                let command = Command::SetPolicy(settings.allocation_policy.clone());
                self.agent.command(command).await.map(drop)?;
            }
        }
        let policy = &settings.allocation_policy;
        self.agent.configure(policy, resources(settings));
        self.pipelines
            .set_references_max(settings.max_refs_per_tenant);
        Ok(())
    }

    /// If there are more jobs than `known`, reports soon, because a new job waits for its terms.
    fn meet(&self, known: usize) {
        if self.activities.count() != known {
            self.agent.report_soon();
        }
    }
}
