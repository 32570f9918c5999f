//! The log of a run: each relayed line with its time and its answer, as JSON lines.

use crate::cli::fail;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The file. It is written line by line, so it is complete up to the last line when the run is killed.
#[derive(Debug)]
pub(super) struct RunLog {
    file: Option<File>,
    path: PathBuf,
}

impl RunLog {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path);
        let file = file.with_context(|| format!("cannot write the log {}", path.display()))?;
        Ok(Self {
            file: Some(file),
            path: path.to_owned(),
        })
    }

    /// Adds a line that was answered. After a failure the run goes on without the log.
    pub(super) fn write(&mut self, line: &impl Serialize, answer: &[u8], is_expected: bool) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = write(file, line, answer, is_expected) {
            let path = self.path.display();
            fail(format_args!("warning: the log {path} ends here: {error}"));
            self.file = None;
        }
    }
}

fn write(
    file: &mut File,
    line: &impl Serialize,
    answer: &[u8],
    is_expected: bool,
) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut text = format!("{{\"ms\":{}", now.unwrap_or_default().as_millis()).into_bytes();
    if is_expected {
        text.extend_from_slice(b",\"expected\":true");
    }
    text.extend_from_slice(b",\"line\":");
    serde_json::to_writer(&mut text, line)?;
    text.extend_from_slice(b",\"answer\":");
    text.extend_from_slice(answer);
    text.extend_from_slice(b"}\n");
    file.write_all(&text)
}
