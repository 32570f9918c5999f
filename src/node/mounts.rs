//! The mounts of a node: the software mount, and beside it the data mount if one was asked for.
//!
//! Both are mounted and unmounted together. When another process unmounts the software mount, the daemon ends. When
//! another process unmounts only the data mount, the log and `status` say so, and the daemon continues.

use super::NodeError;
use super::data::DataFiles;
use super::datasets::Datasets;
use super::front::{Front, Promises};
use super::watchdog::Watchdog;
use crate::config::{OpenMode, Settings};
use copperfs_fuse::{self as fuse, Abort};
use copperfs_overlay::Attributes;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The mounts of a running node. Dropping it unmounts.
pub(super) struct Mounts {
    software: fuse::Mount,
    data: Option<(fuse::Mount, Arc<DataFiles<Datasets>>)>,
    /// Kept alive for its drop.
    _watchdog: Option<Watchdog>,
}

impl Mounts {
    /// Mounts both, or neither: `front`, and beside it the configured data mount.
    ///
    /// # Errors
    /// One cannot be mounted. Then none is.
    pub(super) async fn mount(
        settings: &Settings,
        front: &Front,
        root: Attributes,
        runtime: Handle,
    ) -> Result<Self, NodeError> {
        let (backend, options) = (Arc::new(front.clone()), options(settings));
        declare(front, "software", &options.counters);
        let data = settings.data_mount.as_ref().map(|point| {
            let items = Arc::new(front.parts.datasets.clone());
            let files = Arc::new(DataFiles::new(items, settings.page_cache));
            let front = front.beside(root, Arc::clone(&files));
            (data_options(settings, point), front, files)
        });
        let second = data
            .as_ref()
            .map(|(options, front, _)| (options.clone(), front.clone()));
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
        let lister = watchdog.as_ref().map(|watchdog| watchdog.lister.clone());
        front.connect(&software, lister);
        let data = second.zip(data).map(|(mount, (_, front, files))| {
            front.connect(&mount, None);
            declare(&front, "data", mount.counters());
            files.declare(&front.parts.cluster.registry().scope("data_mount"));
            (mount, files)
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

fn options(settings: &Settings) -> fuse::MountOptions {
    fuse::MountOptions {
        open: settings.open,
        allow_other: settings.allow_other,
        readdir_plus: settings.readdir_plus,
        posix_acl: settings.posix_acl,
        threads: settings.fuse_threads,
        track_opendir: settings.lease.is_some(),
        max_background: settings.max_background,
        request_timeout: settings.request_timeout,
        push_bytes_max: if settings.push.enabled {
            settings.push.bytes_max
        } else {
            0
        },
        ..fuse::MountOptions::new(&settings.mountpoint)
    }
}

/// The options of the data mount: like the software mount, but the daemon sees every open, and nothing is pushed, so that
/// every byte for a dataset's reader is requested.
fn data_options(settings: &Settings, point: &Path) -> fuse::MountOptions {
    fuse::MountOptions {
        mountpoint: point.to_owned(),
        open: OpenMode::Tracked,
        push_bytes_max: 0,
        ..options(settings)
    }
}

/// Declares the counters of one of the daemon's mounts.
fn declare(front: &Front, mount: &'static str, counters: &fuse::Counters) {
    let registry = front.parts.cluster.registry();
    counters.declare(registry, mount);
    let inodes = registry.scope("inodes").label("mount", mount);
    front.inodes.declare(&inodes);
}
