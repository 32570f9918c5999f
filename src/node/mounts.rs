//! The mounts of a node: the software mount, and beside it the data mount if one was asked for.
//!
//! Both are mounted and unmounted together. When another process unmounts the software mount, the daemon ends. When
//! another process unmounts only the data mount, the log and `status` say so, and the daemon continues.

use super::NodeError;
use super::cluster::Cluster;
use super::data::DataFiles;
use super::datasets::Datasets;
use super::front::{Front, Promises};
use super::watchdog::Watchdog;
use crate::config::{OpenMode, Settings};
use crate::namespace::InodeTable;
use copperfs_fuse::{self as fuse, Abort};
use copperfs_metrics::Registry;
use copperfs_overlay::Attributes;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;

/// A data mount before it is mounted.
pub(super) struct DataMount {
    point: PathBuf,
    front: Front,
    files: Arc<DataFiles>,
}

impl DataMount {
    /// The configured data mount, beside the mount of `front`. `datasets` finds the dataset of a file.
    pub(super) fn new(
        settings: &Settings,
        front: &Front,
        root: Attributes,
        datasets: &Datasets,
    ) -> Option<Self> {
        let point = settings.data_mount.clone()?;
        let items = Arc::new(datasets.clone());
        let files = Arc::new(DataFiles::new(Some(items), settings.page_cache));
        let front = front.beside(root, Arc::clone(&files));
        Some(Self {
            point,
            front,
            files,
        })
    }
}

/// The mounts of a running node. Dropping it unmounts.
#[derive(Debug)]
pub(super) struct Mounts {
    software: fuse::Mount,
    data: Option<(fuse::Mount, Arc<DataFiles>)>,
    /// Kept alive for its drop.
    _watchdog: Option<Watchdog>,
}

impl Mounts {
    /// Mounts both, or neither.
    ///
    /// # Errors
    /// One cannot be mounted. Then none is.
    pub(super) async fn mount(
        settings: &Settings,
        front: &Front,
        data: Option<DataMount>,
        cluster: &Cluster,
        runtime: Handle,
    ) -> Result<Self, NodeError> {
        let counters = Arc::new(fuse::Counters::default());
        declare(cluster.registry(), "software", &counters, &front.inodes);
        let options = options(settings, counters);
        let second = data.as_ref().map(|data| {
            let counters = Arc::new(fuse::Counters::default());
            (data_options(settings, data, counters), data.front.clone())
        });
        let backend = Arc::new(front.clone());
        let mounting = move || {
            let software = fuse::mount(backend, options, &runtime)?;
            let second = second
                .map(|(options, front)| fuse::mount(Arc::new(front), options, &runtime))
                .transpose()?;
            Ok::<_, fuse::MountError>((software, second))
        };
        let mounting = tokio::task::spawn_blocking(mounting);
        let (software, second) = mounting.await.map_err(NodeError::Task)??;
        let watchdog = start_watchdog(&software, second.as_ref());
        front.connect(&software, watchdog.as_ref().map(Watchdog::lister));
        let data = second.zip(data).map(|(mount, data)| {
            data.front.connect(&mount, None);
            let registry = cluster.registry();
            declare(registry, "data", mount.counters(), &data.front.inodes);
            data.files.declare(&registry.scope("data_mount"));
            (mount, data.files)
        });
        Ok(Self {
            software,
            data,
            _watchdog: watchdog,
        })
    }

    /// Completes when the software mount is gone.
    pub(super) async fn closed(&self) {
        let mut software = std::pin::pin!(self.software.closed());
        if let Some((mount, files)) = &self.data {
            tokio::select! {
                () = &mut software => return,
                () = mount.closed() => {}
            }
            files.lose();
            let point = mount.mountpoint().display();
            tracing::warn!(%point, "the data mount is gone; the software mount stays");
        }
        software.await;
    }

    /// Unmounts both. Ends within seconds even if another process still uses them.
    ///
    /// # Errors
    /// One could not be unmounted. The daemon no longer serves it.
    pub(super) async fn unmount(self) -> Result<(), NodeError> {
        let unmounting = tokio::task::spawn_blocking(move || {
            let data = self.data.map_or(Ok(()), |(mount, files)| {
                let unmounted = mount.unmount();
                files.lose();
                unmounted
            });
            self.software.unmount().and(data)
        });
        Ok(unmounting.await.map_err(NodeError::Task)??)
    }
}

/// Starts the watchdog. Without it no directory is listed ahead, and the mount of a daemon that is killed at a bad moment
/// stays until `unmount`. Must not run on a thread for blocking tasks: see [`Watchdog::start`].
fn start_watchdog(software: &fuse::Mount, data: Option<&fuse::Mount>) -> Option<Watchdog> {
    let connections = [Some(software), data].into_iter().flatten();
    let means: Vec<Abort> = connections
        .filter_map(fuse::Mount::connection)
        .filter_map(|number| Abort::of(number).ok())
        .collect();
    Watchdog::start(software.mountpoint(), &means)
        .inspect_err(|error| tracing::warn!(%error, "no watchdog beside this daemon"))
        .ok()
}

/// The promises to the kernel.
pub(super) fn promises(settings: &Settings) -> Promises {
    let push = settings.push;
    let mounts = if settings.data_mount.is_some() { 2 } else { 1 };
    Promises {
        inodes_bytes_max: settings.cache.inodes_bytes / mounts,
        ttl: settings.ttl,
        negative_ttl: settings.negative_ttl,
        lease: settings.lease,
        push_file_max: if push.enabled { push.file_max_bytes } else { 0 },
    }
}

fn options(settings: &Settings, counters: Arc<fuse::Counters>) -> fuse::MountOptions {
    fuse::MountOptions {
        open: settings.open,
        allow_other: settings.allow_other,
        readdir_plus: settings.readdir_plus,
        posix_acl: settings.posix_acl,
        threads: settings.fuse_threads,
        track_opendir: settings.lease.is_some(),
        max_background: settings.max_background,
        request_timeout: settings.request_timeout,
        push: fuse::PushLimits {
            enabled: settings.push.enabled,
            bytes_max: settings.push.bytes_max,
        },
        counters,
        ..fuse::MountOptions::new(&settings.mountpoint)
    }
}

/// The options of the data mount: like the software mount, but the daemon sees every open, and nothing is pushed, so that
/// every byte for a dataset's reader is requested.
fn data_options(
    settings: &Settings,
    data: &DataMount,
    counters: Arc<fuse::Counters>,
) -> fuse::MountOptions {
    fuse::MountOptions {
        mountpoint: data.point.clone(),
        open: OpenMode::Tracked,
        push: fuse::PushLimits {
            enabled: false,
            ..fuse::PushLimits::default()
        },
        ..options(settings, counters)
    }
}

/// Declares the counters of one of the daemon's mounts.
fn declare(
    registry: &Registry,
    mount: &'static str,
    counters: &fuse::Counters,
    inodes: &Arc<InodeTable>,
) {
    counters.declare(registry, mount);
    inodes.declare(&registry.scope("inodes").label("mount", mount));
}
