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
    let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
    let reason = if !meta.is_file() {
        "it is not a regular file".to_owned()
    } else if owner != uid && owner != 0 {
        format!("it belongs to user {owner}, not to this one")
    } else if mode & 0o077 != 0 {
        format!(
            "others may read it (mode {mode:04o}), and who has it may read all that the job reads; \
             chmod 600 {}, or better make a new one",
            path.display()
        )
    } else if meta.len() == 0 {
        "it is empty".into()
    } else {
        return Ok(());
    };
    Err(refused(reason))
}
