//! Makes the directories of mount points where they are missing.

use crate::config::{Machine, Settings};
use crate::daemon::{DaemonError, mountpoint, runtime_dir};
use anyhow::Context;
use std::path::{Path, PathBuf};

/// The directories that were made for a mount. Removes them when it is dropped, unless the mount has succeeded.
#[must_use = "they are removed when this is dropped"]
#[derive(Debug, Default)]
pub(super) struct MadeDirectories(Vec<Made>);

#[derive(Debug)]
struct Made {
    point: PathBuf,
    topmost: PathBuf,
}

impl MadeDirectories {
    /// Makes the mount points of `settings`, and notes in the runtime directory which directories were made, for
    /// `copperfs unmount`.
    ///
    /// # Errors
    /// One cannot be made, or one is within the other.
    pub(super) fn make(settings: &Settings, machine: &Machine) -> anyhow::Result<Self> {
        let (mount, data_mount) = (&settings.mountpoint, settings.data_mount.as_ref());
        if let Some(data_mount) = data_mount
            && (data_mount.starts_with(mount) || mount.starts_with(data_mount))
        {
            let (mount, data_mount) = (mount.clone(), data_mount.clone());
            return Err(DaemonError::MountWithinMount { mount, data_mount }.into());
        }
        let mut all = Self::default();
        let points = [Some(mount), data_mount].into_iter();
        for (point, note) in points.zip(runtime_dir::MADE_FILES) {
            let Some(point) = point else { continue };
            let bases = &machine.runtime_bases;
            let is_base = |parent: &Path| bases.iter().any(|base| base == parent);
            if let Some(base) = point.parent().filter(|parent| is_base(parent)) {
                // Other users may write to the directory above it.
                runtime_dir::prepare(base)?;
            }
            let made = mountpoint::make(point);
            let made =
                made.with_context(|| format!("cannot make the mount point {}", point.display()))?;
            let Some(topmost) = made else { continue };
            let made = Made {
                point: point.clone(),
                topmost: topmost.clone(),
            };
            // First, so that it is removed if the note fails.
            all.0.push(made);
            runtime_dir::prepare(&settings.runtime_dir)?;
            runtime_dir::note(&settings.runtime_dir, note, Some(&topmost))?;
        }
        Ok(all)
    }

    /// Leaves them, because something is mounted on them.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        for made in &self.0 {
            mountpoint::remove_made(&made.point, &made.topmost);
        }
    }
}
