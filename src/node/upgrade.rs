//! Replacing this daemon by that of another program, on request.
//!
//! The other program is asked first whether it could take over, with all that it would get. Then the watchdog kills this
//! daemon, as at any death, and starts the other program ([`crate::watchdog`]).

use super::watchdog::WatchdogLine;
use crate::config::Settings;
use crate::failpoint;
use crate::takeover::successor::{self, Fit};
use crate::takeover::suspects::Suspects;
use crate::takeover::upgrade::{Incarnation, UpgradeError};
use crate::takeover::{Estate, Legacy};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Upgrader(Arc<Inner>);

struct Inner {
    mountpoint: PathBuf,
    /// Whether other nodes depend on its messages.
    has_peers: bool,
    legacy: Arc<Legacy>,
    line: WatchdogLine,
    suspects: Suspects,
    incarnation: Incarnation,
    is_busy: Mutex<bool>,
}

impl Upgrader {
    pub(super) fn new(
        settings: &Settings,
        legacy: Arc<Legacy>,
        estate: &Estate,
        line: WatchdogLine,
    ) -> Self {
        Self(Arc::new(Inner {
            mountpoint: settings.mountpoint.clone(),
            has_peers: settings.members.len() > 1,
            legacy,
            line,
            suspects: estate.suspects().clone(),
            incarnation: Incarnation {
                version: Fit::own().version,
                pid: std::process::id(),
                generation: estate.generation(),
                refused: estate.refused().map(str::to_owned),
            },
            is_busy: Mutex::new(false),
        }))
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.0.incarnation.clone()
    }

    /// Replaces this daemon by that of `program`, an absolute path. With `dry_run` it only checks whether it could.
    /// Returns what the program says of itself; this daemon may die before its reader has the answer.
    pub(super) async fn upgrade(
        self,
        program: PathBuf,
        dry_run: bool,
    ) -> Result<Fit, UpgradeError> {
        let inner = &*self.0;
        if std::mem::replace(&mut *inner.is_busy.lock(), true) {
            return Err(UpgradeError::Busy);
        }
        let fit = self.check(&program).await;
        if dry_run || fit.is_err() {
            *inner.is_busy.lock() = false;
            return fit;
        }
        tracing::info!(program = %program.display(), "another program takes over");
        failpoint::hit("upgrade.checked");
        // The watchdog will kill this daemon, which is no fault of the requests in hand.
        inner.suspects.clear();
        inner.line.upgrade(program).await;
        failpoint::hit("upgrade.told");
        fit
    }

    async fn check(&self, program: &Path) -> Result<Fit, UpgradeError> {
        let inner = &*self.0;
        let fit = successor::ask(program, &inner.mountpoint, &inner.legacy).await;
        let fit = fit.map_err(|reason| UpgradeError::Unfit {
            program: program.to_owned(),
            reason,
        })?;
        let own = Fit::own().wire;
        if inner.has_peers && fit.wire != own {
            return Err(UpgradeError::Wire {
                program: program.to_owned(),
                own,
                new: fit.wire,
            });
        }
        Ok(fit)
    }
}
