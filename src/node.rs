//! A node: the only module that wires the parts together.
//!
//! From the bottom up: storage (on a root) or the connection to the parent, the read path in front of it, the overlay
//! that serves children from the read path, the FUSE front that serves applications from it, and the control sockets.

mod backing;
mod cluster;
mod control;
mod data;
mod datasets;
mod errors;
mod front;
mod indexed;
mod ladder;
mod memory;
mod mounts;
mod parts;
mod reload;
mod service;
mod sweeps;
mod upgrade;
pub(crate) mod warm;
mod watchdog;

pub use reload::Reloadable;

use crate::config::Settings;
use crate::control::ControlServer;
use crate::index::IndexError;
use crate::origin::{
    CoalescedStorage, HangingBound, OriginCounters, OriginError, OriginOptions, Origins, Retries,
};
use crate::read::ReadPath;
use crate::store::{Store, StoreError};
use crate::takeover::Estate;
use backing::Backings;
use cluster::{Cluster, process_metrics};
use control::Commands;
use copperfs_fuse as fuse;
use copperfs_metrics::Registry;
use copperfs_overlay::tls::TlsError;
use copperfs_overlay::transport::{KernelNetwork, Network, WithinNetwork};
use copperfs_overlay::{
    Attributes, Failure, Files, ItemPath, Orphan, Overlay, OverlayConfig, OverlayError, Secret,
    SecretError,
};
use datasets::Datasets;
use front::Front;
use indexed::Indexes;
use memory::NodeMemory;
use mounts::Mounts;
use parts::Parts;
use reload::{Reloader, Storage};
use service::NodeService;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
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
pub struct Node {
    mounts: Mounts,
    overlay: Arc<Overlay>,
    warmer: Warmer,
    datasets: Datasets,
    /// Watches the memory.
    pressure: JoinHandle<()>,
    /// Kept alive for their drop.
    _control: Vec<ControlServer>,
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
        let registry = process_metrics(Instant::now());
        let origins = open_origins(&settings).await?;
        let storage = coalesced(&settings, origins.as_ref());
        let store = ladder::open_store(&settings).await?;
        let files = (storage.clone()).map(|files| Arc::new(files) as Arc<dyn Files>);
        let overlay = Overlay::bind(overlay_config(&settings)?, files)?;
        let upstream = overlay.upstream();
        let indexes = Indexes::new(&settings, &origin_options(&settings), upstream);
        let (coalesced, disk) = (storage.as_ref(), store.as_ref());
        let views = ladder::views(&settings, coalesced, disk, upstream, &indexes, &runtime);
        let read = views[0].clone();
        let home_origins = origins.clone().or_else(|| home_origins(&settings));
        declare(&registry, home_origins.as_ref(), &read, disk);
        let datasets = Datasets::new(&settings, upstream, home_origins.as_ref(), &read);
        datasets.declare(&registry.scope("datasets"));
        datasets.pipelines.declare(&registry.scope("pipelines"));
        let warmer = Warmer::new(read.clone(), settings.mountpoint.clone());
        let backing_bytes = ladder::backing_bytes(&settings, &settings.cache);
        let backings = Backings::new(store.clone(), backing_bytes, runtime.clone());
        let parts = Parts {
            read,
            store,
            backings,
            cluster: Cluster::new(&settings, registry, home_origins.clone()),
            datasets: datasets.clone(),
        };
        let front = Arc::new(OnceLock::new());
        let service = NodeService {
            parts: parts.clone(),
            views: views.clone(),
            warmer: warmer.clone(),
            origins: origins.clone(),
            front: Arc::clone(&front),
            scan: Arc::new(tokio::sync::Semaphore::new(1)),
        };
        let overlay = Arc::new(overlay.serve(Arc::new(service)));
        parts.cluster.joined(Arc::clone(&overlay));
        overlay.declare(parts.cluster.registry());

        compare_origins(&overlay, origins.as_deref()).await?;
        let root = root_attributes(&settings, &overlay, &parts.read, &indexes).await?;
        if let Some(estate) = &mut estate {
            datasets.outlive(estate);
        }
        datasets.start(&overlay);
        let memory = estate.as_mut().map(|estate| estate.take_memory(0));
        let promises = mounts::promises(&settings);
        let software = Front::new(parts, promises, root.clone(), None, memory);
        let memory = NodeMemory::new(settings.clone(), views, software.clone(), storage.is_some());
        // The ioctl of a mount returns the sockets' paths, so the sockets must exist before the mount.
        let storage = Storage::new(origins.is_some(), home_origins);
        let keep = estate.as_ref().map(Estate::keep_options);
        let parts = (memory.clone(), software.clone(), storage);
        let reloader = Reloader::new(reloadable, &settings, keep, parts);
        let commands = Commands::new(&overlay, &software, reloader);
        let servers = control::serve(&settings, &commands).await?;
        let mounts = Mounts::mount(&settings, &software, root, estate, runtime).await?;
        // Before this, `clear` from another node cleared only the caches: there was no kernel to notify.
        drop(front.set(software));
        commands.mounted(&mounts);
        warmer.mounted();
        let watch = memory.watch();

        Ok(Self {
            _control: servers,
            mounts,
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
        let unmounted = self.mounts.unmount().await;
        self.overlay.shutdown().await;
        unmounted
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

/// Storage with equal requests merged, where this node reads it.
fn coalesced(settings: &Settings, origins: Option<&Arc<Origins>>) -> Option<CoalescedStorage> {
    let timeout = origin_options(settings).hang_timeout;
    let origins = origins.cloned();
    origins.map(|origins| CoalescedStorage::new(origins, timeout))
}

fn origin_options(settings: &Settings) -> OriginOptions {
    let excluded = settings
        .exclude
        .iter()
        .flatten()
        .chain([&settings.mountpoint])
        .chain(&settings.data_mount);
    // No request can have a path that is not one of the namespace, such as one with `..`.
    let exclude = excluded.filter_map(|path| ItemPath::parse(path.as_os_str().as_bytes()).ok());
    // Storage times out before the nodes that wait for it, so that its reason still reaches them.
    let patience = copperfs_overlay::level_timeouts::of_storage(settings.request_timeout);
    let usual = Retries::default();
    let (hanging_max, _charged) = HangingBound::of_memory(settings.cache.memory_bytes);
    OriginOptions {
        exclude: exclude.collect(),
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
        silence: settings.silence,
        orphan: settings.orphan,
        ..OverlayConfig::new(settings.members.clone(), settings.identity.clone(), secret)
    })
}

/// How often roots look at their storage again before they refuse to differ, and how long they wait:
/// a file may have appeared between two looks.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Checks that this root and the earlier roots serve the same storage.
async fn compare_origins(overlay: &Overlay, origins: Option<&Origins>) -> Result<(), NodeError> {
    let Some(origins) = origins else {
        return Ok(());
    };
    let membership = overlay.membership();
    let roots = membership.forest().roots();
    let Some(own) = membership.rank().filter(|own| roots.contains(own)) else {
        return Ok(());
    };
    for (tree, root) in roots.iter().enumerate().filter(|(_, root)| **root < own) {
        for look in 1..=LOOKS {
            let theirs = match overlay.upstream().origins(tree).await {
                Ok(theirs) => theirs,
                Err(failure) => {
                    tracing::warn!(tree, %failure, "another root's origins cannot be compared now");
                    break;
                }
            };
            let own = origins.fingerprints().await;
            let own = own.map_err(NodeError::Fingerprint)?;
            let Some(differs) = own.iter().find(|own| !theirs.contains(own)) else {
                return Ok(());
            };
            if look == LOOKS {
                let other = membership.members().get(*root);
                return Err(NodeError::OriginsDiffer {
                    prefix: differs.prefix.clone(),
                    other: other.map_or_else(String::new, |member| member.name.clone()),
                });
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
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
