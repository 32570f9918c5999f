//! The private directory of a run: its socket, and the files of its adapter.

use crate::daemon::runtime_dir;
use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Directories of killed runs that are removed at a time.
const SWEPT_MAX: usize = 100;

/// A directory that only its user may access. Its drop removes it.
#[derive(Debug)]
pub(super) struct PrivateDir {
    path: PathBuf,
    /// Locked while the run lives. A directory without a lock is that of a killed run.
    _lock: File,
}

impl PrivateDir {
    /// Makes a directory below `base`, and removes those of killed runs.
    ///
    /// # Errors
    /// It cannot be made, or `base` belongs to another user.
    pub(super) fn new(base: &Path) -> anyhow::Result<Self> {
        let parent = base.join("lrc");
        runtime_dir::prepare(&parent)?;
        sweep(&parent);
        // The hasher is seeded with random bits. The name is short, because it is part of the path of a socket.
        let random = RandomState::new().build_hasher().finish();
        let path = parent.join(format!("{random:016x}"));
        let cannot = || format!("cannot make the directory {}", path.display());
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(cannot)?;
        let lock = File::open(&path).with_context(cannot)?;
        // Waits for a run that is just looking whether this one lives.
        flock(&lock, FlockOperation::LockExclusive).with_context(cannot)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::debug!(%error, "the directory of the run stays behind");
        }
    }
}

fn sweep(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.take(SWEPT_MAX) {
        let path = entry.path();
        let Ok(dir) = File::open(&path) else { continue };
        if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // A run that has just made it has not locked it yet: it is empty then.
            let has_files = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
            if has_files {
                let _stays_if_it_fails = fs::remove_dir_all(&path);
            }
        }
    }
}
