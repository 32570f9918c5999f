//! A node: the only module that wires the parts together.
//!
//! From the bottom up: storage (on a root) or the connection to the parent, the read path in front of it, the overlay
//! that serves children from the read path, the FUSE front that serves applications from it, and the control sockets.

mod backing;
mod clearing;
mod cluster;
mod control;
mod data;
mod datasets;
mod errors;
mod front;
mod indexed;
mod items;
mod ladder;
mod mounts;
mod service;
mod sweeps;
pub(crate) mod warm;
mod watchdog;

use crate::budgets::DatasetCounter;
use crate::budgets::ServedPaths;
use crate::config::Settings;
use crate::control::ControlServer;
use crate::index::IndexError;
use crate::origin::{
    CoalescedStorage, HangingBound, OriginCounters, OriginError, OriginOptions, Origins, Retries,
};
use crate::read::ReadPath;
use crate::store::{Store, StoreError};
use cluster::{Cluster, Own, process_metrics};
use control::Commands;
use copperfs_fuse as fuse;
use copperfs_metrics::Registry;
use copperfs_overlay::tls::TlsError;
use copperfs_overlay::transport::{KernelNetwork, Network, WithinNetwork};
use copperfs_overlay::{
    Attributes, Failure, Files, ItemPath, Liveness, Orphan, Overlay, OverlayConfig, OverlayError,
    Secret, SecretError, Upstream,
};
use datasets::{Datasets, Ground};
use front::Front;
use indexed::Indexes;
use mounts::{DataMount, Mounts};
use service::NodeService;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use warm::Warmer;

/// How long one attempt to connect to the parent may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a node could not start. The message says what to try.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An origin cannot be served.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The store on the disk cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The job secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Several nodes, but no secret.
    #[error(
        "a tree of {0} nodes needs a job secret: make one with `copperfs launch`, or give the same \
         file to every node with --secret-file"
    )]
    NoSecret(usize),
    /// This node cannot take its place in the tree.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// There was no answer for the root of the namespace.
    #[error("no answer for the root of the namespace: {failure}. {}", advice(.parent.as_deref()))]
    Root {
        /// What happened.
        failure: Failure,
        /// The parent that was asked, `None` on the root.
        parent: Option<String>,
    },
    /// This root's storage could not be looked at.
    #[error("cannot look at this root's storage: {0}")]
    Fingerprint(Failure),
    /// Two roots see different storage.
    #[error(
        "this root and {other} see different storage at {prefix}: is it a local directory on one of \
         them? Roots must share what they serve: name shared directories with --origin, or use one \
         root"
    )]
    OriginsDiffer {
        /// Where.
        prefix: ItemPath,
        /// Which other root.
        other: String,
    },
    /// An index cannot be used.
    #[error("--index: {0}")]
    Index(#[from] IndexError),
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] fuse::MountError),
    /// The mount point could not be freed.
    #[error(transparent)]
    Unmount(#[from] fuse::UnmountError),
    /// A part of the node died.
    #[error("a part of the node died: {0}")]
    Task(tokio::task::JoinError),
    /// Commands cannot be served on TCP.
    #[error(
        "cannot serve commands on --api-listen: {0}. Is the port free, and the address this host's?"
    )]
    ApiListener(#[from] TlsError),
    /// It would have no certificates.
    #[error(
        "--api-listen needs a job secret, whose certificates it asks for: give --secret-file FILE, or \
         leave it out; the API is on its Unix socket anyway"
    )]
    ApiSecret,
    /// The control socket failed.
    #[error(
        "cannot serve the control socket {path}: {source}. Check the directory's owner and space"
    )]
    Control {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn advice(parent: Option<&str>) -> String {
    match parent {
        Some(parent) => format!(
            "Is the daemon on {parent} running, does it have the same host list and secret, and does \
             a firewall let UDP through?"
        ),
        None => "Check the origins with `copperfs doctor` and the log".into(),
    }
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    mounts: Mounts,
    overlay: Arc<Overlay>,
    warmer: Warmer,
    datasets: Datasets,
    /// Kept alive for their drop.
    _control: Vec<ControlServer>,
}

impl Node {
    /// Starts everything that `settings` asks for, from storage up to the mounts. When it returns, the mounts answer.
    /// Must be called within the runtime of `runtime`.
    ///
    /// # Errors
    /// See [`NodeError`]. No mount, socket or task is left behind.
    pub async fn start(
        settings: Settings,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, NodeError> {
        let registry = process_metrics(Instant::now());
        let storage = Storage::open(&settings).await?;
        let files = storage.read_once.clone();
        let files = files.map(|files| Arc::new(files) as Arc<dyn Files>);
        let overlay = Overlay::bind(overlay_config(&settings)?, files)?;
        let parts = Parts::new(&settings, registry, &storage, overlay.upstream(), &runtime);
        let front = Arc::new(OnceLock::new());
        let overlay = Arc::new(overlay.serve(parts.service(&storage, &front)));
        parts.cluster.joined(Arc::clone(&overlay));
        overlay.declare(parts.cluster.registry());

        if let Some(origins) = &storage.origins {
            compare_origins(&overlay, origins).await?;
        }
        let Parts {
            read,
            indexes,
            cluster,
            warmer,
            datasets,
            ..
        } = parts;
        let root = root_attributes(&settings, &overlay, &read, &indexes).await?;
        datasets.start(&overlay);
        let software = front::Parts {
            read,
            promises: mounts::promises(&settings),
            backings: ladder::backings(&settings, storage.store.as_ref(), &runtime),
            store: storage.store,
            cluster: cluster.clone(),
            datasets: datasets.clone(),
        };
        let software = Front::new(software, root.clone());
        let data = DataMount::new(&settings, &software, root, &datasets);
        // The ioctl of a mount returns the sockets' paths, so the sockets must exist before the mount.
        let commands = Commands {
            cluster: cluster.clone(),
            overlay: Arc::clone(&overlay),
            front: software.clone(),
        };
        let servers = control::serve(&settings, &datasets, commands).await?;
        let mounts = Mounts::mount(&settings, &software, data, &cluster, runtime).await?;
        // Before this, `clear` from another node cleared only the caches: there was no kernel to notify.
        drop(front.set(software));
        warmer.mounted();

        Ok(Self {
            _control: servers,
            mounts,
            overlay,
            warmer,
            datasets,
        })
    }

    /// Runs until `shutdown` is ready or the software mount is gone, then unmounts and leaves the tree.
    /// Ends within seconds even if another process still uses a mount.
    ///
    /// # Errors
    /// The mount point could not be freed. The message names the processes that may use it.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), NodeError> {
        tokio::select! {
            () = shutdown => {}
            () = self.mounts.closed() => tracing::info!("unmounted"),
        }
        self.warmer.stop();
        self.datasets.stop().await;
        let unmounted = self.mounts.unmount().await;
        self.overlay.shutdown().await;
        unmounted
    }
}

/// Storage and the local disk, as far as this node uses them.
struct Storage {
    /// The origins, on a root and on nodes that read storage themselves.
    origins: Option<Arc<Origins>>,
    /// The same, or the origins of a home that reads storage only for datasets.
    home_origins: Option<Arc<Origins>>,
    /// The origins, with concurrent reads of a block merged into one.
    read_once: Option<CoalescedStorage>,
    store: Option<Store>,
}

impl Storage {
    async fn open(settings: &Settings) -> Result<Self, NodeError> {
        let origins = open_origins(settings).await?;
        let timeout = origin_options(settings).hang_timeout;
        let read_once = origins
            .clone()
            .map(|origins| CoalescedStorage::new(origins, timeout));
        Ok(Self {
            home_origins: origins.clone().or_else(|| home_origins(settings)),
            read_once,
            store: ladder::open_store(settings).await?,
            origins,
        })
    }
}

/// The parts that need the client for the other nodes, and that this node's service needs.
struct Parts {
    /// By position in an item's order of roots.
    views: Vec<ReadPath>,
    /// The first view, which local readers use.
    read: ReadPath,
    indexes: Indexes,
    cluster: Cluster,
    warmer: Warmer,
    datasets: Datasets,
}

impl Parts {
    fn new(
        settings: &Settings,
        registry: Registry,
        storage: &Storage,
        upstream: &Upstream,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let indexes = Indexes::new(settings, &origin_options(settings), upstream);
        let below = ladder::Below {
            storage: storage.read_once.as_ref(),
            store: storage.store.as_ref(),
            upstream,
            indexes: &indexes,
        };
        let views = ladder::views(settings, &below, runtime);
        let read = views[0].clone();
        let home_origins = storage.home_origins.as_ref();
        declare(&registry, home_origins, &read, storage.store.as_ref());
        let datasets = datasets_of(settings, upstream, home_origins, &read);
        datasets.declare(&registry.scope("datasets"));
        let cluster = Cluster::new(own(settings, registry, home_origins.cloned()));
        let warmer = Warmer::new(read.clone(), settings.mountpoint.clone());
        Self {
            views,
            read,
            indexes,
            cluster,
            warmer,
            datasets,
        }
    }

    fn service(&self, storage: &Storage, front: &Arc<OnceLock<Front>>) -> Arc<NodeService> {
        Arc::new(NodeService {
            views: self.views.clone(),
            cluster: self.cluster.clone(),
            warmer: self.warmer.clone(),
            datasets: self.datasets.clone(),
            origins: storage.origins.clone(),
            store: storage.store.clone(),
            front: Arc::clone(front),
            scan: Arc::new(tokio::sync::Semaphore::new(1)),
        })
    }
}

/// The datasets' parts of this node, idle. They are counted by way of `read`.
fn datasets_of(
    settings: &Settings,
    upstream: &Upstream,
    origins: Option<&Arc<Origins>>,
    read: &ReadPath,
) -> Datasets {
    let (place, capacity) = ladder::dataset_room(settings);
    let served = ServedPaths::of(settings);
    let read = Arc::new(OnceLock::from(read.clone()));
    let counter = DatasetCounter::new(served, Arc::new(upstream.at(0)), read);
    Datasets::new(Ground {
        settings,
        upstream,
        origins,
        counter: Arc::new(counter),
        place,
        capacity,
    })
}

/// Declares the counters of the way to storage. On a node that never reads storage those of storage stay
/// zero.
fn declare(
    registry: &Registry,
    origins: Option<&Arc<Origins>>,
    read: &ReadPath,
    store: Option<&Store>,
) {
    read.declare(registry);
    if let Some(store) = store {
        store.declare(registry);
    }
    match origins {
        Some(origins) => origins.declare(registry),
        None => OriginCounters::default().declare(registry),
    }
}

/// Roots open their origins; other nodes only where they read big files themselves, or everything
/// when they are cut off.
async fn open_origins(settings: &Settings) -> Result<Option<Arc<Origins>>, NodeError> {
    let alone = settings.orphan == Orphan::Origin || settings.bypass_above.is_some();
    if !settings.is_root() && !alone {
        return Ok(None);
    }
    let origins = Origins::open(&settings.origins, &origin_options(settings))?;
    origins.check().await?;
    Ok(Some(Arc::new(origins)))
}

/// The origins of a node that is no root, for the datasets whose homes read storage themselves. They are not
/// used before such a dataset is read, because such a node need not reach storage otherwise.
fn home_origins(settings: &Settings) -> Option<Arc<Origins>> {
    if settings.data_mount.is_none() && settings.datasets.is_empty() {
        return None;
    }
    match Origins::open(&settings.origins, &origin_options(settings)) {
        Ok(origins) => Some(Arc::new(origins)),
        Err(error) => {
            tracing::warn!(%error, "this node cannot read storage by itself: a dataset with \
                origin_readers = homes is not read by it");
            None
        }
    }
}

fn origin_options(settings: &Settings) -> OriginOptions {
    let excluded = settings
        .exclude
        .iter()
        .flatten()
        .chain([&settings.mountpoint])
        .chain(&settings.data_mount);
    let exclude = excluded.filter_map(|path| namespace_path(path)).collect();
    // Storage times out before the nodes that wait for it, so that its reason still reaches them.
    let patience = copperfs_overlay::level_timeouts::of_storage(settings.request_timeout);
    let usual = Retries::default();
    let (hanging_max, _charged) = HangingBound::of_memory(settings.cache.memory_bytes);
    OriginOptions {
        exclude,
        default_exclude: settings.exclude.is_none(),
        symlinks: settings.symlinks,
        listing_attributes_max: settings.listing_attributes_max,
        hang_timeout: patience,
        clock_skew: settings.clock_skew,
        posix_concurrency: settings.posix_concurrency,
        hanging: Arc::new(HangingBound::new(hanging_max)),
        object_concurrency: settings.object_concurrency,
        env: settings.environment.clone(),
        retries: Retries {
            timeout: patience,
            connect_timeout: usual.connect_timeout.min(patience),
            read_timeout: usual.read_timeout.min(patience),
            ..usual
        },
        ..OriginOptions::default()
    }
}

/// A path of the host as a path of the namespace; `None` for one that no request can have, such as one with `..`.
fn namespace_path(path: &Path) -> Option<ItemPath> {
    ItemPath::parse(path.as_os_str().as_bytes()).ok()
}

fn overlay_config(settings: &Settings) -> Result<OverlayConfig, NodeError> {
    let secret = match &settings.secret_file {
        Some(path) => Secret::read_file(path)?,
        None if settings.members.len() > 1 => {
            return Err(NodeError::NoSecret(settings.members.len()));
        }
        None => Secret::generate()?,
    };
    let network: Arc<dyn Network> = match settings.network {
        Some(network) => Arc::new(WithinNetwork(move |address| network.holds(address))),
        None => Arc::new(KernelNetwork),
    };
    Ok(OverlayConfig {
        network,
        arity: settings.arity,
        roots: settings.roots.clone(),
        listen: settings
            .listen
            .unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        request_timeout: settings.request_timeout,
        connect_timeout: CONNECT_TIMEOUT,
        liveness: Liveness {
            probe: settings.silence / 4,
            silence: settings.silence,
        },
        orphan: settings.orphan,
        ..OverlayConfig::new(settings.members.clone(), settings.identity.clone(), secret)
    })
}

/// A name for the users' socket that no other process has, and none can take before this one.
fn users_socket() -> String {
    let random = RandomState::new().hash_one(Instant::now());
    format!("copperfs-{}-{random:016x}", std::process::id())
}

fn own(settings: &Settings, registry: Registry, origins: Option<Arc<Origins>>) -> Own {
    Own {
        registry,
        origins,
        sockets: fuse::Sockets {
            owner: settings.control_socket.clone(),
            users: users_socket(),
        },
        prefixes: settings
            .origins
            .iter()
            .map(|origin| origin.prefix.clone())
            .collect(),
        crossings: settings.crossings,
    }
}

/// How often roots look at their storage again before they refuse to differ, and how long they wait:
/// a file may have appeared between two looks.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Checks that this root and the earlier roots serve the same storage.
async fn compare_origins(overlay: &Overlay, origins: &Origins) -> Result<(), NodeError> {
    let membership = overlay.membership();
    let roots = membership.forest().roots();
    let Some(own) = membership.rank().filter(|own| roots.contains(own)) else {
        return Ok(());
    };
    for (tree, root) in roots.iter().enumerate().filter(|(_, root)| **root < own) {
        let mut difference = None;
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            let theirs = match overlay.upstream().origins(tree).await {
                Ok(theirs) => theirs,
                Err(failure) => {
                    tracing::warn!(tree, %failure, "another root's origins cannot be compared now");
                    difference = None;
                    break;
                }
            };
            let own = origins
                .fingerprints()
                .await
                .map_err(NodeError::Fingerprint)?;
            let differs = own.iter().find(|own| !theirs.contains(own));
            match differs {
                Some(differs) => difference = Some(differs.prefix.clone()),
                None => return Ok(()),
            }
        }
        if let Some(prefix) = difference {
            let other = membership
                .members()
                .get(*root)
                .map_or("", |member| &member.name);
            let other = other.to_owned();
            return Err(NodeError::OriginsDiffer { prefix, other });
        }
    }
    Ok(())
}

async fn root_attributes(
    settings: &Settings,
    overlay: &Overlay,
    read: &ReadPath,
    indexes: &Indexes,
) -> Result<Attributes, NodeError> {
    let connected = overlay.upstream().first_connected();
    // If the parent cannot be reached, the request below fails with the reason.
    drop(tokio::time::timeout(settings.request_timeout, connected).await);
    indexes.open(read).await?;
    let attributes = read.metadata().attributes_of(&ItemPath::root()).await;
    let membership = overlay.membership();
    let parent = membership.ancestors(0).first().copied();
    let parent = parent.and_then(|rank| Some(membership.members().get(rank)?.name.clone()));
    match attributes {
        Ok(attributes) => Ok(attributes.value),
        Err(failure) => Err(NodeError::Root { failure, parent }),
    }
}
