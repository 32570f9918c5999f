//! A node: the only place where the parts are wired together.
//!
//! From the bottom up: origins (on the root) or the parent's stub, the read path in front of it, the
//! overlay that serves children from the read path, the FUSE front that serves applications from it,
//! and the control socket.

mod arrivals;
mod backing;
mod cluster;
mod directory;
mod errors;
mod front;
mod service;

use crate::config::{OpenMode, Settings, Toggle};
use crate::control::{Command, ControlSocket};
use crate::origin::{OriginError, OriginOptions, Origins, Retries};
use crate::read::{ReadOptions, ReadPath};
use crate::report::Report;
use backing::Backings;
use cluster::{Cluster, Identity};
use copperfs_fuse as fuse;
use copperfs_overlay::{
    Attributes, Failure, Files, ItemPath, Overlay, OverlayConfig, OverlayError, Parent, Secret,
    SecretError, Tree,
};
use front::{Front, Promises};
use service::NodeService;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long one attempt to connect to the parent may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a node could not start. The message says what to try.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// An origin cannot be served.
    #[error(transparent)]
    Origin(#[from] OriginError),
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
    /// The root of the namespace did not come.
    #[error("no answer for the root of the namespace: {failure}. {}", advice(.parent.as_deref()))]
    Root {
        /// What happened.
        failure: Failure,
        /// The parent that was asked, `None` on the root.
        parent: Option<String>,
    },
    /// The mount failed.
    #[error(transparent)]
    Mount(#[from] fuse::MountError),
    /// The mount point could not be freed.
    #[error(transparent)]
    Unmount(#[from] fuse::UnmountError),
    /// A part of the node died.
    #[error("a part of the node died: {0}")]
    Task(tokio::task::JoinError),
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
    mount: fuse::Mount,
    overlay: Arc<Overlay>,
    /// Held for its drop.
    _control: ControlSocket,
}

impl Node {
    /// Starts everything `settings` asks for. When this returns, the mount answers. Must be called
    /// within the runtime that `runtime` is the handle of.
    ///
    /// # Errors
    /// See [`NodeError`]. Nothing is left behind.
    pub async fn start(
        settings: Settings,
        runtime: tokio::runtime::Handle,
    ) -> Result<Self, NodeError> {
        let started = Instant::now();
        let origins = open_origins(&settings).await?;
        let front = Arc::new(OnceLock::new());
        let mut parts = None;
        let overlay = Overlay::start_with(overlay_config(&settings)?, |parent| {
            let (read, cluster) = ladder(&settings, started, origins, parent, runtime.clone());
            parts = Some((read.clone(), cluster.clone()));
            Arc::new(NodeService {
                read,
                cluster,
                front: Arc::clone(&front),
            })
        })?;
        let overlay = Arc::new(overlay);
        let Some((read, cluster)) = parts else {
            return Err(OverlayError::Config("the overlay made no service".into()).into());
        };
        cluster.joined(Arc::clone(&overlay));

        let root = root_attributes(&settings, &overlay, &read).await?;
        let backings = Backings::new(backing_bytes(&settings), runtime.clone());
        let this = Front::new(read, root, promises(&settings), backings);
        drop(this.cluster.set(cluster.clone()));
        let counters = Arc::new(fuse::Counters::default());
        cluster.mounted(Arc::clone(&counters));
        let options = mount_options(&settings, counters);
        let backend = Arc::new(this.clone());
        let mounting = move || fuse::mount(backend, options, &runtime);
        let mount = tokio::task::spawn_blocking(mounting)
            .await
            .map_err(NodeError::Task)??;
        this.connect(&mount);
        drop(front.set(this));

        let path = &settings.control_socket;
        let control = ControlSocket::serve(path, move |command| answer(cluster.clone(), command))
            .map_err(|source| NodeError::Control {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            mount,
            overlay,
            _control: control,
        })
    }

    /// Runs until `shutdown` is ready or the mount is gone, then unmounts and leaves the tree. Ends
    /// within seconds even if someone still holds the mount.
    ///
    /// # Errors
    /// When the mount point could not be freed: the message says who may hold it.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), NodeError> {
        tokio::select! {
            () = shutdown => {}
            () = self.mount.closed() => tracing::info!("unmounted"),
        }
        let unmounting = tokio::task::spawn_blocking(move || self.mount.unmount());
        let unmounted = unmounting.await.map_err(NodeError::Task)?;
        self.overlay.shutdown().await;
        Ok(unmounted?)
    }
}

async fn answer(cluster: Cluster, command: Command) -> serde_json::Value {
    match command {
        Command::Reports => {
            let reports = cluster.reports().await;
            let nodes: Vec<_> = reports.nodes.into_iter().map(Report::into_json).collect();
            serde_json::json!({ "nodes": nodes, "missing": reports.missing })
        }
    }
}

/// The root opens its origins; other nodes only where they read big files themselves.
async fn open_origins(settings: &Settings) -> Result<Option<Arc<Origins>>, NodeError> {
    if settings.rank > 0 && settings.bypass_above.is_none() {
        return Ok(None);
    }
    let excluded = settings
        .exclude
        .iter()
        .flatten()
        .chain([&settings.mountpoint]);
    let exclude = excluded.filter_map(|path| namespace_path(path)).collect();
    // Storage gives up a little before those who wait for it do, so that its reason still reaches them.
    let patience = settings.request_timeout.mul_f64(0.8);
    let options = OriginOptions {
        exclude,
        default_exclude: settings.exclude.is_none(),
        symlinks: settings.symlinks,
        listing_attributes_max: settings.listing_attributes_max,
        hang_timeout: patience,
        posix_concurrency: settings.posix_concurrency,
        env: settings.environment.clone(),
        retries: Retries {
            timeout: patience,
            ..Retries::default()
        },
        ..OriginOptions::default()
    };
    let origins = Origins::open(&settings.origins, &options)?;
    origins.check().await?;
    Ok(Some(Arc::new(origins)))
}

/// A path of the host as the namespace writes it. One that cannot be written so (with `..` in it, say)
/// names nothing that could be asked for.
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
    Ok(OverlayConfig {
        members: settings.members.clone(),
        rank: settings.rank,
        arity: settings.arity,
        listen: settings
            .listen
            .unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        secret,
        request_timeout: settings.request_timeout,
        connect_timeout: CONNECT_TIMEOUT,
    })
}

/// The read path of this node, in front of its parent or of the origins, and who it is.
fn ladder(
    settings: &Settings,
    started: Instant,
    origins: Option<Arc<Origins>>,
    parent: Option<Parent>,
    runtime: tokio::runtime::Handle,
) -> (ReadPath, Cluster) {
    let storage = origins.clone().map(|origins| origins as Arc<dyn Files>);
    let (source, direct): (Arc<dyn Files>, _) = match parent {
        Some(parent) => (Arc::new(parent), storage),
        None => (
            storage.expect("the root, which has no parent, opens its origins"),
            None,
        ),
    };
    let passthrough_bytes = backing_bytes(settings);
    let read = ReadPath::new(
        ReadOptions {
            policy: settings.cache.policy,
            data_bytes_max: settings.cache.data_bytes - passthrough_bytes,
            attributes_bytes_max: settings.cache.attributes_bytes,
            listings_bytes_max: settings.cache.listings_bytes,
            whole_file_max: settings.whole_file_max,
            bypass_above: settings.bypass_above,
            bundles: settings.bundles,
            listing_entries_max: settings.listing_entries_max,
        },
        source,
        direct,
        runtime,
    );
    (
        read.clone(),
        Cluster::new(identity(settings, started), read, origins),
    )
}

fn identity(settings: &Settings, started: Instant) -> Identity {
    let (rank, nodes) = (settings.rank, settings.members.len());
    let tree = Tree::new(nodes, settings.arity);
    Identity {
        name: settings
            .members
            .get(rank)
            .map(|member| member.name.clone())
            .unwrap_or_default(),
        rank,
        nodes,
        parent: tree.and_then(|tree| tree.parent(rank)),
        has_children: tree.is_some_and(|tree| !tree.children(rank).is_empty()),
        started,
        control_socket: settings.control_socket.clone(),
    }
}

/// The memory that passthrough mounts set aside for whole files: half of the data cache.
fn backing_bytes(settings: &Settings) -> u64 {
    if settings.open == OpenMode::Passthrough {
        settings.cache.data_bytes / 2
    } else {
        0
    }
}

async fn root_attributes(
    settings: &Settings,
    overlay: &Overlay,
    read: &ReadPath,
) -> Result<Attributes, NodeError> {
    let parent = overlay.parent();
    if let Some(parent) = &parent {
        let connected = tokio::time::timeout(settings.request_timeout, parent.first_connected());
        // A parent that never came answers below, with its reason.
        drop(connected.await);
    }
    let attributes = read.attributes_of(&ItemPath::root()).await;
    let parent = parent.map(|parent| parent.member().name.clone());
    attributes.map_err(|failure| NodeError::Root { failure, parent })
}

fn promises(settings: &Settings) -> Promises {
    let push = settings.push;
    Promises {
        ttl: settings.ttl,
        negative_ttl: settings.negative_ttl,
        push_file_max: if push.enabled { push.file_max_bytes } else { 0 },
    }
}

fn mount_options(settings: &Settings, counters: Arc<fuse::Counters>) -> fuse::MountOptions {
    fuse::MountOptions {
        open: settings.open,
        allow_other: settings.allow_other,
        readdir_plus: settings.readdir_plus,
        posix_acl: match settings.posix_acl {
            Toggle::Auto => settings.allow_other,
            Toggle::On => true,
            Toggle::Off => false,
        },
        threads: settings.fuse_threads,
        max_background: settings.max_background,
        push: fuse::PushLimits {
            enabled: settings.push.enabled,
            bytes_max: settings.push.bytes_max,
            ..fuse::PushLimits::default()
        },
        counters,
        ..fuse::MountOptions::new(&settings.mountpoint)
    }
}
