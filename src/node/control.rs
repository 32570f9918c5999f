//! The wiring of the control plane: its two sockets, and TCP if it is configured.

use super::front::Front;
use super::mounts::Mounts;
use super::native::Natives;
use super::reload::Reloader;
use super::upgrade::Upgrader;
use super::{NodeError, warm};
use crate::budgets::ServedPaths;
use crate::config::Settings;
use crate::config::reload::{Request, ShownOption};
use crate::control::{
    Attendance, Control, ControlServer, Conversation, NodeCommands, NodeImages, ReloadError,
    Reloaded, WantedImages,
};
use crate::dataset::chunk_readers::ChunkReaders;
use crate::dataset::contents::{Inserted, TooLarge};
use crate::dataset::residency::{ResidencyError, Resident};
use crate::job::Process;
use crate::pipeline::Pipelines;
use crate::record::Recorder;
use crate::takeover::successor::Fit;
use crate::takeover::upgrade::{Incarnation, UpgradeError};
use crate::takeover::{Estate, Role};
use bytes::Bytes;
use copperfs_fuse::StatsAge;
use copperfs_metrics::Snapshot;
use copperfs_overlay::tls::{TlsError, TlsListener};
use copperfs_overlay::{ContentHash, Failure, ItemPath, Overlay, Secret};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The parts of the node that carry out commands.
#[derive(Clone)]
pub(super) struct Commands {
    overlay: Arc<Overlay>,
    front: Front,
    natives: Option<Natives>,
    reloader: Arc<Reloader>,
    /// Set when the mounts answer, if another daemon can take them over.
    upgrader: Arc<OnceLock<Upgrader>>,
}

impl Commands {
    pub(super) fn new(
        overlay: &Arc<Overlay>,
        front: &Front,
        natives: Option<Natives>,
        reloader: Reloader,
    ) -> Self {
        Self {
            overlay: Arc::clone(overlay),
            front: front.clone(),
            natives,
            reloader: Arc::new(reloader),
            upgrader: Arc::default(),
        }
    }

    /// Told when the mounts answer.
    pub(super) fn mounted(&self, mounts: &Mounts) {
        if let Some(upgrader) = mounts.upgrader.clone() {
            drop(self.upgrader.set(upgrader));
        }
    }
}

impl NodeCommands for Commands {
    fn metrics(&self) -> Snapshot {
        self.front.parts.cluster.metrics()
    }

    fn report(&self) -> Value {
        self.front.parts.cluster.own_report().into_json()
    }

    fn cluster(&self, recent: bool) -> BoxFuture<'static, Value> {
        let cluster = self.front.parts.cluster.clone();
        let age = if recent {
            StatsAge::Recent
        } else {
            StatsAge::New
        };
        async move { cluster.reports(age).await.to_json() }.boxed()
    }

    fn clear(&self, path: ItemPath, cluster: bool) -> BoxFuture<'static, Result<bool, Failure>> {
        let front = self.front.clone();
        async move {
            let nodes = &front.parts.cluster;
            if !nodes.serves(&path) {
                return Err(Failure::not_found(&path));
            }
            match cluster {
                true => nodes.clear(path).await,
                false => Ok(front.clear(&path).await),
            }
        }
        .boxed()
    }

    fn options(&self) -> BoxFuture<'static, Vec<ShownOption>> {
        let reloader = Arc::clone(&self.reloader);
        async move { reloader.options().await }.boxed()
    }

    fn reload(&self, request: Request) -> BoxFuture<'static, Result<Reloaded, ReloadError>> {
        let reloader = Arc::clone(&self.reloader);
        // A client that disconnects must not leave half of it applied.
        let reloading = tokio::spawn(async move { reloader.reload(request).await });
        async move { reloading.await? }.boxed()
    }

    fn look_up(&self, path: ItemPath) -> BoxFuture<'static, Result<(), Failure>> {
        let read = self.front.parts.read.clone();
        async move { read.metadata().attributes_of(&path).await.map(drop) }.boxed()
    }

    fn resident(&self, dataset: String) -> BoxFuture<'static, Result<Resident, ResidencyError>> {
        let datasets = self.front.parts.datasets.clone();
        async move { datasets.resident(&dataset).await }.boxed()
    }

    fn look_up_content(&self, hashes: Vec<ContentHash>) -> BoxFuture<'static, Vec<bool>> {
        let datasets = self.front.parts.datasets.clone();
        async move { datasets.look_up(hashes).await }.boxed()
    }

    fn get_content(
        &self,
        hashes: Vec<ContentHash>,
    ) -> BoxFuture<'static, Result<Vec<Option<Bytes>>, TooLarge>> {
        let contents = self.front.parts.datasets.contents.clone();
        async move { contents.get(hashes).await }.boxed()
    }

    fn insert_content(
        &self,
        from: Option<u32>,
        items: Vec<(ContentHash, Bytes)>,
    ) -> BoxFuture<'static, Vec<Inserted>> {
        let contents = self.front.parts.datasets.contents.clone();
        async move { contents.insert(from, items).await }.boxed()
    }

    fn may_speak(&self, job: &str, user: u32, process: Option<Process>) -> bool {
        self.front.parts.datasets.may_speak(job, user, process)
    }

    fn pipelines(&self) -> &Pipelines {
        &self.front.parts.datasets.pipelines
    }

    fn chunk_readers(&self) -> &ChunkReaders {
        &self.front.parts.datasets.chunk_readers
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.upgrader.get().map(Upgrader::incarnation)
    }

    fn upgrade(
        &self,
        program: PathBuf,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<Fit, UpgradeError>> {
        let upgrader = self.upgrader.get().cloned();
        async move {
            let upgrader = upgrader.ok_or(UpgradeError::NoTakeover)?;
            upgrader.upgrade(program, dry_run).await
        }
        .boxed()
    }

    fn recorder(&self) -> &Recorder {
        &self.front.recorder
    }

    fn images(&self) -> NodeImages {
        self.natives
            .as_ref()
            .map_or_else(NodeImages::default, Natives::states)
    }

    fn attend(&self, attendance: Attendance) -> BoxFuture<'static, WantedImages> {
        let natives = self.natives.clone();
        async move {
            match natives {
                Some(natives) => natives.attend(attendance).await,
                // There will never be an image.
                None => WantedImages {
                    images: BTreeMap::new(),
                    ends: true,
                },
            }
        }
        .boxed()
    }

    fn show_all_accesses(&self) -> BoxFuture<'static, ()> {
        let front = self.front.clone();
        async move { front.show_all_accesses().await }.boxed()
    }

    fn warm(&self, conversation: Conversation) -> BoxFuture<'static, io::Result<()>> {
        let (overlay, read) = (Arc::clone(&self.overlay), self.front.parts.read.clone());
        async move { warm::ask::ask(&overlay, &read, conversation).await }.boxed()
    }
}

/// Returns whether a user with an id may use the mount.
pub(super) fn admits(settings: &Settings) -> impl Fn(u32) -> bool + Send + 'static {
    let (uid, open) = (rustix::process::geteuid().as_raw(), settings.allow_other);
    move |user| open || user == uid || user == 0
}

/// Serves the configured sockets until the result is dropped. `front` is that of the software mount.
///
/// # Errors
/// A socket cannot be opened, or there is no secret from which to derive certificates.
pub(super) async fn serve(
    settings: &Settings,
    commands: &Commands,
    estate: Option<&mut Estate>,
) -> Result<Vec<ControlServer>, NodeError> {
    let parts = &commands.front.parts;
    let sockets = parts.cluster.sockets().clone();
    let agent = parts.datasets.agent.clone();
    let control = Control::new(Arc::new(commands.clone()), agent, ServedPaths::of(settings));
    let failed = |source| NodeError::Control {
        path: sockets.owner.clone(),
        source,
    };
    let owner = ControlServer::for_owner(&sockets.owner, control.clone()).map_err(failed)?;
    let users = ControlServer::for_users(&sockets.users, control.clone(), admits(settings));
    let mut servers = vec![owner, users.map_err(failed)?];
    if let Some(address) = settings.api_listen {
        let secret = settings.secret_file.as_ref().ok_or(NodeError::ApiSecret)?;
        let secret = Secret::read_file(secret)?;
        let bind = || std::net::TcpListener::bind(address);
        let bound = match estate {
            Some(estate) => estate.socket(Role::Api, bind),
            None => bind(),
        };
        let bound = bound.map_err(|source| TlsError::Socket { address, source })?;
        let listener = TlsListener::on(bound, address, &secret)?;
        servers.push(ControlServer::on_tls(listener, control));
    }
    Ok(servers)
}
