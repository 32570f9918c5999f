//! The file with the job's secret.

use super::ConfigError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Refuses a secret file that others could read, or that is not there.
///
/// # Errors
/// Missing, not a regular file, someone else's, readable by others, empty.
pub fn check_secret_file(path: &Path, uid: u32) -> Result<(), ConfigError> {
    let refused = |why: String| ConfigError::SecretFile {
        path: path.to_owned(),
        why,
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
