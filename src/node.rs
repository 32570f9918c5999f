//! A node: the only module that wires the parts together.
//!
//! From the bottom up: storage (on a root) or the connection to the parent, the read path in front of it, the overlay
//! that serves children from the read path, the FUSE front that serves applications from it, and the control sockets.

mod backing;
mod batch_reads;
mod cluster;
mod control;
mod data;
mod datasets;
mod errors;
mod front;
mod indexed;
mod ladder;
mod lanes;
mod memory;
mod metrics;
mod mounts;
mod native;
mod origins;
mod parts;
mod reload;
mod service;
mod sweeps;
mod upgrade;
pub(crate) mod warm;
mod watchdog;

pub use reload::Reloadable;

use crate::batch_reads::BatchReads;
use crate::config::Settings;
use crate::control::ControlServer;
use crate::index::IndexError;
use crate::origin::{OriginCounters, OriginError, Origins};
use crate::read::ReadPath;
use crate::store::{Store, StoreError};
use crate::takeover::{Estate, IMAGES, Role};
use backing::Backings;
use cluster::Cluster;
use control::Commands;
use copperfs_fuse as fuse;
use copperfs_metrics::Registry;
use copperfs_overlay::tls::TlsError;
use copperfs_overlay::transport::{self, Bound, KernelNetwork, Network, WithinNetwork};
use copperfs_overlay::{
    Attributes, Failure, Files, ItemPath, Overlay, OverlayConfig, OverlayError, Secret, SecretError,
};
use datasets::Datasets;
use front::Front;
use indexed::Indexes;
use lanes::Lanes;
use memory::NodeMemory;
use metrics::Metrics;
use mounts::Mounts;
use native::Natives;
use parts::Parts;
use reload::{Reloader, Storage};
use service::{MountedFront, NodeService};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
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
    /// The nodes above this one run another version, or have another secret.
    #[error("this node is not accepted: {0}")]
    Mismatch(String),
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
    /// A directory has no image.
    #[error("--front erofs: {0}. With --front auto, FUSE serves what has no image")]
    Native(String),
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] fuse::MountError),
    /// The mount point could not be freed.
    #[error(transparent)]
    Unmount(#[from] fuse::UnmountError),
    /// There are no threads for the lanes.
    #[error("--lanes: cannot start the threads: {0}; ulimit -u and ulimit -n show the limits")]
    Lanes(#[source] io::Error),
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
pub struct Node {
    mounts: Mounts,
    natives: Option<Natives>,
    overlay: Arc<Overlay>,
    warmer: Warmer,
    datasets: Datasets,
    /// Watches the memory.
    pressure: JoinHandle<()>,
    /// Kept alive for their drop.
    _control: Vec<ControlServer>,
    _batch_reads: BatchReads,
    _lanes: Lanes,
}

impl Node {
    /// Starts everything that `settings` asks for, from storage up to the mounts. When it returns, the mounts answer.
    /// Must be called within the runtime of `runtime`. `reloadable`: the options that `settings` come from. `estate`:
    /// what a successor needs; it has the mounts of a predecessor if there was one.
    ///
    /// # Errors
    /// See [`NodeError`]. No new mount, socket or task is left behind.
    pub async fn start(
        settings: Settings,
        reloadable: Reloadable,
        mut estate: Option<Estate>,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, NodeError> {
        let joined = Joined::join(&settings, estate.as_mut(), &runtime).await?;
        let root = joined.root(&settings, estate.as_ref()).await?;
        let reads_storage = joined.origins.is_some();
        let has_mounts = estate.as_ref().is_some_and(Estate::has_mounts);
        let Joined {
            parts,
            views,
            overlay,
            indexes,
            storage,
            warmer,
            front,
            lanes,
            ..
        } = joined;
        let datasets = parts.datasets.clone();
        if let Some(estate) = &mut estate {
            estate.keep_root(root.clone());
            datasets.outlive(estate);
        }
        datasets.start(&overlay);
        let memory = estate.as_mut().map(|estate| estate.take_memory(0));
        let promises = mounts::promises(&settings);
        let native = (indexes, parts.clone());
        let software = Front::new(parts, promises, root.clone(), None, memory);
        let natives = Natives::new(&settings, native, promises, root.clone());
        if let Some(natives) = &natives {
            let quarantine = estate.as_ref().map(|estate| estate.quarantine(IMAGES));
            natives.inherit(has_mounts, quarantine);
            software.set_images(Arc::new(natives.clone()));
        }
        let memory = NodeMemory::new(settings.clone(), views, software.clone(), reads_storage);
        // The ioctl of a mount returns the sockets' paths, so the sockets must exist before the mount.
        let keep = estate.as_ref().map(Estate::keep_options);
        let parts = (memory.clone(), software.clone(), storage);
        let reloader = Reloader::new(reloadable, &settings, keep, parts);
        let commands = Commands::new(&overlay, &software, natives.clone(), reloader);
        let servers = control::serve(&settings, &commands, estate.as_mut()).await?;
        let batch_reads =
            batch_reads::serve(&settings, &software.parts, lanes.handles()).map_err(|source| {
                let path = software.parts.cluster.sockets().owner.clone();
                NodeError::Control { path, source }
            })?;
        let mounts = Mounts::mount(&settings, &software, root, estate, (runtime, &lanes)).await?;
        // Before this, `clear` from another node cleared only the caches: there was no kernel to notify. On a mount that
        // is taken over it has waited.
        drop(front.send(Some(software)));
        commands.mounted(&mounts);
        if let Some(natives) = &natives {
            let started = natives.start(&settings).await;
            if let Err(reason) = started {
                natives.end().await;
                drop(mounts.unmount().await);
                return Err(NodeError::Native(reason));
            }
        }
        warmer.mounted();
        let watch = memory.watch();

        Ok(Self {
            _control: servers,
            _batch_reads: batch_reads,
            _lanes: lanes,
            mounts,
            natives,
            overlay,
            warmer,
            datasets,
            pressure: tokio::spawn(watch),
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
            never = self.mounts.keep_watchdog() => match never {},
        }
        self.pressure.abort();
        self.warmer.stop();
        self.datasets.stop().await;
        if let Some(natives) = &self.natives {
            natives.end().await;
        }
        let unmounted = self.mounts.unmount().await;
        self.overlay.shutdown().await;
        unmounted
    }
}

/// A node that has its place in the tree, and no mounts yet.
struct Joined {
    parts: Parts,
    views: Vec<ReadPath>,
    overlay: Arc<Overlay>,
    indexes: Indexes,
    origins: Option<Arc<Origins>>,
    storage: Storage,
    warmer: Warmer,
    /// Takes that of the software mount, when there is one.
    front: watch::Sender<Option<Front>>,
    lanes: Lanes,
}

impl Joined {
    async fn join(
        settings: &Settings,
        mut estate: Option<&mut Estate>,
        runtime: &tokio::runtime::Handle,
    ) -> Result<Self, NodeError> {
        let is_successor = estate.as_ref().is_some_and(|estate| estate.has_mounts());
        let takeovers = estate.as_ref().map(|estate| estate.counters());
        let takeovers = takeovers.unwrap_or_default();
        let metrics = Metrics::new(estate.as_deref_mut());
        let registry = metrics.registry();
        let origins = origins::open(settings, is_successor).await?;
        let storage = origins::coalesced(settings, origins.as_ref());
        let store = ladder::open_store(settings, is_successor).await?;
        let files = (storage.clone()).map(|files| Arc::new(files) as Arc<dyn Files>);
        let (sockets, lanes) = sockets_and_lanes(settings, estate)?;
        let overlay = Overlay::bind(overlay_config(settings, sockets, &lanes)?, files)?;
        let upstream = overlay.upstream();
        let indexes = Indexes::new(settings, &origins::options(settings), upstream);
        let (coalesced, disk) = (storage.as_ref(), store.as_ref());
        let views = ladder::views(settings, coalesced, disk, upstream, &indexes, runtime);
        let read = views[0].clone();
        let home_origins = origins.clone();
        let home_origins = home_origins.or_else(|| origins::of_home(settings, is_successor));
        declare(registry, home_origins.as_ref(), &read, disk);
        let datasets = Datasets::new(settings, upstream, home_origins.as_ref(), &read);
        datasets.declare(&registry.scope("datasets"));
        datasets.pipelines.declare(&registry.scope("pipelines"));
        let warmer = Warmer::new(read.clone(), settings.mountpoint.clone());
        let backing_bytes = ladder::backing_bytes(settings, &settings.cache);
        let backings = Backings::new(store.clone(), backing_bytes, runtime.clone());
        let parts = Parts {
            read,
            store,
            backings,
            cluster: Cluster::new(settings, metrics, home_origins.clone()),
            datasets,
        };
        let (mounted, front) = MountedFront::new(is_successor);
        let service = NodeService {
            parts: parts.clone(),
            views: views.clone(),
            warmer: warmer.clone(),
            origins: origins.clone(),
            front,
            scan: Arc::new(tokio::sync::Semaphore::new(1)),
        };
        let overlay = Arc::new(overlay.serve(Arc::new(service)));
        parts.cluster.joined(Arc::clone(&overlay));
        overlay.declare(parts.cluster.registry());
        takeovers.declare(&parts.cluster.registry().scope("takeover"));
        let storage = Storage::new(origins.is_some(), home_origins);
        Ok(Self {
            parts,
            views,
            overlay,
            indexes,
            origins,
            storage,
            warmer,
            front: mounted,
            lanes,
        })
    }

    /// Returns the attributes of the root of the namespace, which an earlier daemon may have known.
    async fn root(
        &self,
        settings: &Settings,
        estate: Option<&Estate>,
    ) -> Result<Attributes, NodeError> {
        let (overlay, read, indexes) = (&self.overlay, &self.parts.read, &self.indexes);
        if let Some(known) = estate.and_then(Estate::root) {
            rejoin(overlay, read, indexes).await;
            return Ok(known.clone());
        }
        origins::compare(overlay, self.origins.as_deref()).await?;
        root_attributes(settings, overlay, read, indexes).await
    }
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

/// The address for other nodes.
fn listen(settings: &Settings) -> SocketAddr {
    let loopback = || ([127, 0, 0, 1], 0).into();
    settings.listen.unwrap_or_else(loopback)
}

/// Returns the sockets for other nodes, and the lanes: as many as the predecessor had, whose sockets stay in use.
fn sockets_and_lanes(
    settings: &Settings,
    estate: Option<&mut Estate>,
) -> Result<(Vec<UdpSocket>, Lanes), NodeError> {
    let has_peers = settings.members.len() > 1 || settings.rank().is_none();
    if !has_peers {
        return Ok((Vec::new(), Lanes::default()));
    }
    let listen = listen(settings);
    // Other nodes do not connect to a guest.
    let accepting = if settings.rank().is_some() {
        settings.threads.lanes
    } else {
        0
    };
    let bind = || transport::bind(listen, accepting);
    let sockets = match estate {
        Some(estate) => estate.sockets(Role::Peers, bind),
        None => bind(),
    };
    let sockets = sockets.map_err(|source| OverlayError::Listen {
        address: listen,
        source,
    })?;
    let lanes = match settings.rank() {
        Some(_) => sockets.len().saturating_sub(1),
        None => settings.threads.lanes,
    };
    Ok((sockets, Lanes::start(lanes).map_err(NodeError::Lanes)?))
}

fn overlay_config(
    settings: &Settings,
    sockets: Vec<UdpSocket>,
    lanes: &Lanes,
) -> Result<OverlayConfig, NodeError> {
    let secret = match &settings.secret_file {
        Some(path) => Secret::read_file(path)?,
        None if settings.members.len() > 1 => {
            return Err(NodeError::NoSecret(settings.members.len()));
        }
        None => Secret::generate()?,
    };
    let listen = listen(settings);
    let mut network: Arc<dyn Network> = match settings.network {
        Some(network) => Arc::new(WithinNetwork(move |address| network.holds(address))),
        None => Arc::new(KernelNetwork),
    };
    if !sockets.is_empty() {
        network = Arc::new(Bound::new(sockets, network));
    }
    Ok(OverlayConfig {
        network,
        listen,
        lanes: lanes.handles().to_vec(),
        arity: settings.arity,
        roots: settings.roots.clone(),
        request_timeout: settings.request_timeout,
        connect_timeout: CONNECT_TIMEOUT,
        silence: settings.silence,
        orphan: settings.orphan,
        ..OverlayConfig::new(settings.members.clone(), settings.identity.clone(), secret)
    })
}

/// How long a successor waits for its parent before its mounts answer. Its readers wait longer, but those of files that
/// it has itself need not.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Takes the place in the tree that the predecessor had. A successor begins also without it, and without storage: its mounts
/// are in use, whatever has failed.
async fn rejoin(overlay: &Overlay, read: &ReadPath, indexes: &Indexes) {
    let connected = overlay.upstream().first_connected();
    drop(tokio::time::timeout(REJOIN_TIMEOUT, connected).await);
    if let Err(error) = indexes.open(read).await {
        tracing::warn!(%error, "names come from storage, and not from an index");
    }
}

async fn root_attributes(
    settings: &Settings,
    overlay: &Overlay,
    read: &ReadPath,
    indexes: &Indexes,
) -> Result<Attributes, NodeError> {
    let connected = overlay.upstream().first_connected();
    tokio::select! {
        // If the parent cannot be reached, the request below fails with the reason.
        _ = tokio::time::timeout(settings.request_timeout, connected) => {}
        reason = overlay.upstream().mismatched() => return Err(NodeError::Mismatch(reason)),
    }
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
