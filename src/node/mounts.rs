//! The mounts of a node: the software mount, and beside it the data mount if one was asked for.
//!
//! Both are mounted and unmounted together. When another process unmounts the software mount, the daemon ends. When
//! another process unmounts only the data mount, the log and `status` say so, and the daemon continues.

use super::NodeError;
use super::data::DataFiles;
use super::datasets::Datasets;
use super::front::{Front, Promises};
use super::lanes::Lanes;
use super::upgrade::Upgrader;
use super::watchdog::{Post, Watchdog};
use crate::config::{CacheSettings, OpenMode, Settings};
use crate::failpoint;
use crate::takeover::Estate;
use copperfs_fuse::{self as fuse, Abort, Handshake};
use copperfs_overlay::Attributes;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The mounts of a running node. Dropping it unmounts.
pub(super) struct Mounts {
    software: fuse::Mount,
    data: Option<(fuse::Mount, Arc<DataFiles<Datasets>>)>,
    watchdog: Watchdog,
    /// Replaces this daemon by another one, if one can take over.
    pub(super) upgrader: Option<Upgrader>,
    /// Takes snapshots of the journal.
    snapshots: Option<JoinHandle<()>>,
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
        mut estate: Option<Estate>,
        (runtime, lanes): (Handle, &Lanes),
    ) -> Result<Self, NodeError> {
        let of_mount = |mount| {
            let estate = estate.as_ref()?;
            Some((estate.quarantine(mount), estate.in_hand(mount)))
        };
        let [first, second] = [0, 1].map(|mount| of_mount(mount).unzip());
        let mut options = options(settings);
        (options.quarantine, options.in_hand) = first;
        options.opens = estate.as_ref().map(Estate::opens);
        let backend = Arc::new(front.clone());
        declare(front, "software", &options.counters);
        let data = settings.data_mount.as_ref().map(|point| {
            let items = Arc::new(front.parts.datasets.clone());
            let handles = estate
                .as_mut()
                .map(Estate::take_handles)
                .unwrap_or_default();
            let files = Arc::new(DataFiles::new(items, settings.page_cache, handles));
            let memory = estate.as_mut().map(|estate| estate.take_memory(1));
            let front = front.beside(root, Arc::clone(&files), memory);
            let mut options = data_options(settings, point, lanes);
            (options.quarantine, options.in_hand) = second;
            (options, front, files)
        });
        let second = data
            .as_ref()
            .map(|(options, front, _)| (options.clone(), front.clone()));
        let inherited = [(); 2].map(|()| estate.as_mut().and_then(Estate::take_mount));
        let mounting = move || {
            let [first, other] = inherited;
            let software = attach(backend, options, &runtime, first)?;
            let second = second
                .map(|(options, front)| attach(Arc::new(front), options, &runtime, other))
                .transpose()?;
            Ok::<_, fuse::MountError>((software, second))
        };
        let mounting = tokio::task::spawn_blocking(mounting);
        let (software, second) = mounting.await.map_err(NodeError::Task)??;
        let mounts = [Some(&software), second.as_ref()].into_iter().flatten();
        let made: Vec<Handshake> = mounts.map(|mount| mount.handshake().clone()).collect();
        if let Some(estate) = &estate {
            failpoint::hit("takeover.untold");
            estate.tell(&made);
            failpoint::hit("takeover.told");
        }
        let watchdog = Watchdog::start(post(&software, second.as_ref(), estate.as_ref()));
        let upgrader = upgrader(settings, estate.as_ref(), &watchdog);
        if let Some(estate) = &estate
            && let Err(error) = estate.serve()
        {
            tracing::warn!(%error, "no other daemon can take over");
        }
        let fronts = [Some(front), data.as_ref().map(|(_, front, _)| front)];
        let fronts: Vec<Front> = fronts.into_iter().flatten().cloned().collect();
        let snapshots = estate.map(|estate| tokio::spawn(take_snapshots(estate, fronts, made)));
        front.connect(&software, Some(watchdog.line().clone()));
        let data = second.zip(data).map(|(mount, (_, front, files))| {
            front.connect(&mount, None);
            declare(&front, "data", mount.counters());
            files.declare(&front.parts.cluster.registry().scope("data_mount"));
            (mount, files)
        });
        Ok(Self {
            software,
            data,
            watchdog,
            upgrader,
            snapshots,
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

    /// Keeps a watchdog beside the daemon. Must run on the daemon's main thread.
    pub(super) async fn keep_watchdog(&self) -> Infallible {
        self.watchdog.keep().await
    }

    /// Unmounts both. Ends within seconds even if another process still uses them.
    ///
    /// # Errors
    /// One could not be unmounted. The daemon no longer serves it.
    pub(super) async fn unmount(self) -> Result<(), NodeError> {
        if let Some(snapshots) = &self.snapshots {
            snapshots.abort();
        }
        // Before the mounts go: nothing is to be taken over.
        self.watchdog.end().await;
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

/// What replaces this daemon on request, if another one can take over.
fn upgrader(settings: &Settings, estate: Option<&Estate>, watchdog: &Watchdog) -> Option<Upgrader> {
    let legacy = watchdog.legacy()?;
    let line = watchdog.line().clone();
    Some(Upgrader::new(settings, legacy, estate?, line))
}

/// What the watchdog gets. Without it no directory is listed ahead, and the mount of a daemon that is killed at a bad
/// moment stays until `unmount`.
fn post(software: &fuse::Mount, data: Option<&fuse::Mount>, estate: Option<&Estate>) -> Post {
    let mounts: Vec<&fuse::Mount> = [Some(software), data].into_iter().flatten().collect();
    let means = mounts.iter().filter_map(|mount| mount.connection());
    let legacy = estate.and_then(|estate| {
        let files = mounts.iter().map(|mount| mount.connection_file());
        let legacy = files.collect::<io::Result<_>>();
        legacy
            .and_then(|files| estate.legacy(files))
            .inspect_err(|error| tracing::warn!(%error, "no other daemon can take over"))
            .ok()
    });
    Post {
        mountpoint: software.mountpoint().to_owned(),
        means: means.filter_map(|number| Abort::of(number).ok()).collect(),
        legacy: legacy.map(Arc::new),
        died: estate.map_or_else(Vec::new, |estate| estate.died().to_vec()),
        number: estate.map_or(0, Estate::number),
    }
}

/// Mounts, or takes over the mount of a daemon that has died.
fn attach(
    backend: Arc<dyn fuse::Backend>,
    options: fuse::MountOptions,
    runtime: &Handle,
    inherited: Option<fuse::Inherited>,
) -> Result<fuse::Mount, fuse::MountError> {
    let Some(inherited) = inherited else {
        return fuse::mount(backend, options, runtime);
    };
    failpoint::hit("takeover.handshake");
    let mount = fuse::take_over(backend, options, runtime, &inherited)?;
    failpoint::hit("takeover.attached");
    Ok(mount)
}

/// How often the journal is examined.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps the journal short.
async fn take_snapshots(estate: Estate, fronts: Vec<Front>, made: Vec<Handshake>) {
    let work = Arc::new((estate, fronts, made));
    loop {
        tokio::time::sleep(SNAPSHOT_INTERVAL).await;
        if !work.0.journal().is_snapshot_due() {
            continue;
        }
        let work = Arc::clone(&work);
        let taking = tokio::task::spawn_blocking(move || {
            let (estate, fronts, made) = &*work;
            estate.journal().snapshot(|| {
                estate.tell(made);
                failpoint::hit("snapshot.half");
                estate.suspects().tell_all();
                fronts.iter().for_each(Front::tell_all);
                // All have the same.
                if let Some(front) = fronts.first() {
                    front.parts.datasets.tell_all();
                }
            })
        });
        if let Ok(Err(error)) = taking.await {
            tracing::warn!(%error, "no snapshot of the journal");
        }
    }
}

/// The memory for names that the kernel of each mount holds, of a node with this `memory`.
pub(super) fn inodes_bytes(settings: &Settings, memory: &CacheSettings) -> u64 {
    let mounts = if settings.data_mount.is_some() { 2 } else { 1 };
    memory.inodes_bytes / mounts
}

/// The promises to the kernel.
pub(super) fn promises(settings: &Settings) -> Promises {
    let push = settings.push;
    Promises {
        inodes_bytes_max: inodes_bytes(settings, &settings.cache),
        ttl: settings.ttl,
        negative_ttl: settings.negative_ttl,
        lease: settings.lease,
        pushes: push.enabled,
        push_file_max: push.file_max_bytes,
    }
}

fn options(settings: &Settings) -> fuse::MountOptions {
    fuse::MountOptions {
        open: settings.open,
        allow_other: settings.allow_other,
        readdir_plus: settings.readdir_plus,
        posix_acl: settings.posix_acl,
        threads: settings.threads.fuse,
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
fn data_options(settings: &Settings, point: &Path, lanes: &Lanes) -> fuse::MountOptions {
    fuse::MountOptions {
        mountpoint: point.to_owned(),
        open: OpenMode::Tracked,
        // A job that waits for its rate keeps a place for each file that it has hinted at, and must leave places to others.
        max_background: u16::MAX,
        lanes: lanes.handles().to_vec(),
        push_bytes_max: 0,
        ..options(settings)
    }
}

/// The options of the filesystem with the files of images: the kernel asks at every open how it should read.
pub(super) fn image_options(settings: &Settings) -> fuse::MountOptions {
    fuse::MountOptions {
        open: OpenMode::Tracked,
        posix_acl: false,
        track_opendir: false,
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
