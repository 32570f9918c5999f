//! `copperfs reload`: applies other options to a running node.
//!
//! [`crate::config::reload`] decides which options change, and refuses those that cannot. Here the others are applied.
//! Everything that can fail comes first, so a reload is applied as a whole or not at all.

use super::datasets::Datasets;
use super::front::Front;
use super::memory::NodeMemory;
use super::{mounts, origins};
use crate::config::reload::{Change, Options, Request, ShownOption, check};
use crate::config::{Machine, Settings};
use crate::control::{ReloadError, Reloaded};
use crate::failpoint;
use crate::logging::{self, Log};
use crate::origin::{Origins, Renewal};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Mutex;

/// What a reload changes outside of the node, and the options that it begins with.
pub struct Reloadable {
    /// The options of this daemon.
    pub options: Options,
    /// Its log.
    pub log: Log,
}

impl Reloadable {
    /// The options in the form in which a daemon reads them.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        encoded(&self.options)
    }
}

fn encoded(options: &Options) -> Vec<u8> {
    // Maps with text keys, which JSON has.
    serde_json::to_vec(options).unwrap_or_default()
}

/// Keeps options for a successor of the daemon.
type Keep = Box<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

/// See the module.
pub(super) struct Reloader {
    /// Held during a reload: a second one waits for the first.
    current: Mutex<Current>,
    log: Log,
    keep: Option<Keep>,
    memory: NodeMemory,
    /// Storage, where this node reads it.
    storage: Storage,
    front: Front,
}

struct Current {
    options: Options,
    settings: Settings,
}

/// The ways of a node to storage.
pub(super) struct Storage {
    origins: Option<Arc<Origins>>,
    /// Whether this node reads it by itself, so that it must be reachable.
    is_needed: bool,
}

impl Storage {
    pub(super) fn new(is_needed: bool, origins: Option<Arc<Origins>>) -> Self {
        Self { is_needed, origins }
    }
}

/// The options that a reload leads to, with what they mean on this machine.
struct Next {
    options: Options,
    settings: Settings,
    changes: Vec<Change>,
}

impl Reloader {
    /// `keep`: keeps options for a successor of the daemon.
    pub(super) fn new(
        reloadable: Reloadable,
        settings: &Settings,
        keep: Option<impl Fn(&[u8]) -> io::Result<()> + Send + Sync + 'static>,
        (memory, front, storage): (NodeMemory, Front, Storage),
    ) -> Self {
        let Reloadable { options, log } = reloadable;
        let settings = settings.clone();
        Self {
            current: Mutex::new(Current { options, settings }),
            log,
            keep: keep.map(|keep| Box::new(keep) as Keep),
            memory,
            storage,
            front,
        }
    }

    /// The present options. Waits for a reload that is in progress.
    pub(super) async fn options(&self) -> Vec<ShownOption> {
        self.current.lock().await.options.shown()
    }

    /// Applies the options of `request`. Must not be cancelled.
    ///
    /// # Errors
    /// They cannot be applied: nothing has changed.
    pub(super) async fn reload(&self, request: Request) -> Result<Reloaded, ReloadError> {
        let mut current = self.current.lock().await;
        let (options, before) = (current.options.clone(), current.settings.clone());
        let (again, dry_run) = (request.again, request.dry_run);
        // The configuration file may lie on a slow filesystem.
        let deciding = tokio::task::spawn_blocking(move || next(&options, &before, &request));
        let next = deciding.await??;
        check(&next.changes)?;
        let mut reloaded = Reloaded {
            changed: next.changes,
            renewed: Vec::new(),
            config: next.options.config.clone(),
        };
        if dry_run {
            return Ok(reloaded);
        }
        let (before, after) = (&current.settings, &next.settings);
        let renewal = self.renewal(before, after, again).await?;
        let log = self.opened_log(before, after)?;
        failpoint::hit("reload.unkept");
        self.keep(&next.options)?;
        failpoint::hit("reload.kept");
        if let Err(error) = self.apply_fallible(before, after).await {
            self.keep(&current.options)?;
            return Err(error);
        }
        failpoint::hit("reload.half");
        self.apply(after, renewal.as_ref(), log);
        failpoint::hit("reload.applied");
        let stores = renewal.iter().flat_map(Renewal::stores);
        reloaded.renewed = stores.map(str::to_owned).collect();
        tracing::debug!(changes = reloaded.changed.len(), "reloaded");
        for change in &reloaded.changed {
            tracing::info!("reloaded: {change}");
        }
        *current = Current {
            options: next.options,
            settings: next.settings,
        };
        Ok(reloaded)
    }

    /// New clients of the stores, checked, if credentials or options may differ.
    async fn renewal(
        &self,
        before: &Settings,
        after: &Settings,
        again: bool,
    ) -> Result<Option<Renewal>, ReloadError> {
        let options = |settings: &Settings| -> Vec<BTreeMap<String, String>> {
            let origins = settings.origins.iter();
            origins.map(|origin| origin.options.clone()).collect()
        };
        let differ = options(before) != options(after) || before.environment != after.environment;
        let Some(origins) = self.storage.origins.as_ref().filter(|_| again || differ) else {
            return Ok(None);
        };
        let renewal = origins.renew(&after.origins, &origins::options(after))?;
        if self.storage.is_needed {
            renewal.check().await?;
        }
        Ok(Some(renewal))
    }

    /// The new file of the log, if it changes.
    fn opened_log(
        &self,
        before: &Settings,
        after: &Settings,
    ) -> Result<Option<(File, PathBuf)>, ReloadError> {
        let changed = before.log.file != after.log.file;
        let Some(path) = after.log.file.clone().filter(|_| changed) else {
            return Ok(None);
        };
        match logging::open(&path) {
            Ok(file) => Ok(Some((file, path))),
            Err(source) => Err(ReloadError::Log { path, source }),
        }
    }

    fn keep(&self, options: &Options) -> Result<(), ReloadError> {
        match &self.keep {
            Some(keep) => keep(&encoded(options)).map_err(ReloadError::Keep),
            None => Ok(()),
        }
    }

    /// Applies the changes that may fail. If one does, the others are undone.
    async fn apply_fallible(&self, before: &Settings, after: &Settings) -> Result<(), ReloadError> {
        self.resize_store(before, after).await?;
        let datasets: &Datasets = &self.front.parts.datasets;
        if let Err(error) = datasets.reconfigure(before, after).await {
            self.resize_store(after, before).await?;
            return Err(ReloadError::Allocator(error));
        }
        // Last, because it fails only when the node ends.
        if before.cache != after.cache {
            self.memory.configure(after.cache.memory_bytes).await?;
        }
        Ok(())
    }

    async fn resize_store(&self, before: &Settings, after: &Settings) -> Result<(), ReloadError> {
        let (Some(store), Some(disk)) = (self.front.parts.store.clone(), after.disk.clone()) else {
            return Ok(());
        };
        if before.disk == after.disk {
            return Ok(());
        }
        let capacity = super::ladder::shared_part(after, disk.size);
        let resizing =
            tokio::task::spawn_blocking(move || store.resize(capacity, disk.reserve_percent));
        Ok(resizing.await??)
    }

    /// Applies the changes that cannot fail.
    fn apply(&self, after: &Settings, renewal: Option<&Renewal>, log: Option<(File, PathBuf)>) {
        if let Some(renewal) = renewal {
            renewal.apply();
        }
        // Without another file, the present one is opened again, because it may have been renamed.
        let logging = match log {
            Some((file, path)) => self.log.redirect(file, path),
            None => self.log.reopen(),
        };
        let logging = logging.and_then(|()| self.log.set_filter(&after.log.level));
        if let Err(error) = logging {
            tracing::warn!(%error, "the log stays as it was");
        }
        self.front.set_promises(&mounts::promises(after));
        let data = self.front.parts.read.data();
        data.set_whole_file_max(after.whole_file_max);
    }
}

/// The options after `request`, and the changes from the present ones.
fn next(options: &Options, before: &Settings, request: &Request) -> Result<Next, ReloadError> {
    let machine = Machine::inspect();
    let own = machine.storage_environment();
    let present = options.environment.as_ref().unwrap_or(&own);
    let next = options.after(request, present)?;
    let settings = next.settings(&machine)?;
    let asked = next.environment.as_ref().unwrap_or(&own);
    let mut changes = options.changes(&next, present, asked);
    // The homes of datasets have a part of the disk, which they cannot give up.
    if before.data_mount.is_some() {
        let of_disk =
            |change: &&mut Change| ["disk", "disk_reserve"].contains(&change.key.as_str());
        for change in changes.iter_mut().filter(of_disk) {
            change.refused = Some("its size and its reserve, on a node without a data mount");
        }
    }
    Ok(Next {
        options: next,
        settings,
        changes,
    })
}
