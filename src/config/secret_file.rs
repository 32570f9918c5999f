//! The file with the job's secret.

use super::ConfigError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Checks that the secret file exists and that only its owner can read it.
///
/// # Errors
/// The file is missing, not a regular file, empty, owned by another user, or readable by others.
pub fn check_secret_file(path: &Path, uid: u32) -> Result<(), ConfigError> {
    let refused = |reason: String| ConfigError::SecretFile {
        path: path.to_owned(),
        reason,
    };
    let meta = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => refused("there is no such file".into()),
        _ => refused(error.to_string()),
    })?;
    if !meta.is_file() {
        return Err(refused("it is not a regular file".into()));
    }
    if meta.uid() != uid && meta.uid() != 0 {
        return Err(refused(format!(
            "it belongs to user {}, not to this one",
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(refused(format!(
            "others may read it (mode {mode:04o}), and who has it may read all that the job reads; \
             chmod 600 {}, or better make a new one",
            path.display()
        )));
    }
    if meta.len() == 0 {
        return Err(refused("it is empty".into()));
    }
    Ok(())
}
