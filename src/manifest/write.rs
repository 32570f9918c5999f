//! Writes a manifest entry by entry, in bounded memory, to a temporary file beside the target, which is renamed when
//! it is complete.

use super::format::{Counts, Encoder, Entry, Header};
use super::{ManifestError, beside, io_error};
use copperfs_overlay::Version;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A section's buffer is written at this size: with eleven sections, less than 1 MiB of memory.
const BUFFER_BYTES: usize = 64 << 10;

/// See the module. Dropping it before [`ManifestWriter::finish`] removes the temporary file.
pub struct ManifestWriter {
    encoder: Encoder,
    file: File,
    /// The temporary file, and the target.
    path: PathBuf,
    target: PathBuf,
    is_complete: bool,
}

impl ManifestWriter {
    /// Begins a manifest with exactly `counts` for the file `target`. `uri` is for messages.
    ///
    /// # Errors
    /// The counts exceed the limits, or the temporary file cannot be created.
    pub fn create(target: &Path, uri: &str, counts: &Counts) -> Result<Self, ManifestError> {
        let encoder = Encoder::new(counts).map_err(|source| ManifestError::TooLarge {
            uri: uri.to_owned(),
            source,
        })?;
        let path = beside(target, ".new");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).map_err(io_error("make", &path))?;
        Ok(Self {
            encoder,
            file,
            path,
            target: target.to_owned(),
            is_complete: false,
        })
    }

    /// Adds a file before its first entry. Returns its number.
    pub fn file(&mut self, path: &[u8], size: u64, version: &Version) -> u32 {
        self.encoder.file(path, size, version)
    }

    /// Adds the next entry in dataset order, with the hashes of its parts if it is long.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn entry(&mut self, entry: &Entry, parts: &[[u8; 32]]) -> Result<(), ManifestError> {
        self.encoder.entry(entry, parts);
        self.flush(BUFFER_BYTES)
    }

    /// Writes the buffers with at least `least` bytes.
    fn flush(&mut self, least: usize) -> Result<(), ManifestError> {
        for (at, bytes) in self.encoder.take(least) {
            let written = self.file.write_all_at(&bytes, at);
            written.map_err(io_error("write", &self.path))?;
        }
        Ok(())
    }

    /// Completes the manifest and renames it to its target, in one step. `made_at` is in seconds since 1970.
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub fn finish(mut self, made_at: i64) -> Result<Header, ManifestError> {
        self.flush(1)?;
        let (header, bytes) = self.encoder.header(made_at);
        let mut completing = || -> io::Result<()> {
            self.file.write_all_at(&bytes, 0)?;
            // The sections were written side by side, so only now can all bytes be hashed in order. The file ends
            // with the last path, the gaps before it are holes.
            self.file.rewind()?;
            let mut hasher = blake3::Hasher::new();
            let summed = hash_all(&mut self.file, &mut hasher)?;
            let trailer = hasher.finalize();
            self.file.write_all_at(trailer.as_bytes(), summed)?;
            self.file.sync_all()?;
            std::fs::rename(&self.path, &self.target)
        };
        completing().map_err(io_error("finish", &self.target))?;
        self.is_complete = true;
        // The parent of a relative path may be empty.
        let directory = self.target.parent().unwrap_or(Path::new("")).join(".");
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(io_error("finish", &self.target))?;
        Ok(header)
    }
}

impl Drop for ManifestWriter {
    fn drop(&mut self) {
        if !self.is_complete
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "this stays behind");
        }
    }
}

/// Hashes all bytes of `file` from its position on. Returns their number.
fn hash_all(file: &mut File, hasher: &mut blake3::Hasher) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut count = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(count),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                count += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
