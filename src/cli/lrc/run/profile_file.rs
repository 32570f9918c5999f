//! Reads and writes the file of a profile.

use crate::pipeline::profile::{PROFILE_BYTES_MAX, Profile};
use anyhow::Context;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Reads the profile of the last run, if there is one, and checks that another can be written there.
///
/// # Errors
/// It is no profile, or the file cannot be written.
pub(super) fn read_last(path: &Path) -> anyhow::Result<Option<Profile>> {
    // Checked before the command runs, because it may run for days.
    drop(Draft::new(path)?);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => read(path).map(Some),
    }
}

/// Reads a profile.
///
/// # Errors
/// It cannot be read, or is no profile.
pub(in crate::cli::lrc) fn read(path: &Path) -> anyhow::Result<Profile> {
    let read = || -> anyhow::Result<Profile> {
        let mut json = Vec::new();
        File::open(path)?
            .take(PROFILE_BYTES_MAX + 1)
            .read_to_end(&mut json)?;
        Ok(Profile::from_json(&json)?)
    };
    read().with_context(|| format!("cannot use the profile {}", path.display()))
}

/// Writes a profile in place of the one before, or leaves that as it is.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(path: &Path, profile: &Profile) -> anyhow::Result<()> {
    let draft = Draft::new(path)?;
    let cannot = || format!("cannot write the profile {}", path.display());
    let mut file = &draft.file;
    file.write_all(&profile.to_json()?).with_context(cannot)?;
    file.sync_all().with_context(cannot)?;
    std::fs::rename(&draft.path, path).with_context(cannot)
}

/// A temporary file beside the profile. The drop removes it unless it was renamed.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn new(target: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("cannot write the profile {}", target.display());
        let name = target.file_name().with_context(cannot)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let path = target.with_file_name(hidden);
        let file = File::create(&path).with_context(cannot)?;
        Ok(Self { file, path })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Absent if it has been renamed.
        let _gone = std::fs::remove_file(&self.path);
    }
}
