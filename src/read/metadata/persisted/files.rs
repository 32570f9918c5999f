//! The files of one directory, bounded in bytes. Used by one thread.

use super::format;
use lru::LruCache;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The end of the name of a file that is being written.
const UNFINISHED: &str = ".tmp";

/// What is there, from the oldest to the newest.
#[derive(Debug)]
pub(super) struct ListingFiles {
    dir: PathBuf,
    bytes_max: u64,
    bytes: u64,
    /// The sizes by name, in the order in which the files were written.
    sizes: LruCache<String, u64>,
}

impl ListingFiles {
    /// Reads the names and sizes in `dir`. Unfinished files are removed, and files with other names are left alone.
    pub(super) fn scan(dir: PathBuf, bytes_max: u64) -> Self {
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let unfinished = name.as_bytes().strip_suffix(UNFINISHED.as_bytes());
            if unfinished.is_some_and(format::is_file_name) {
                remove(&entry.path());
            } else if format::is_file_name(name.as_bytes())
                && let Ok(meta) = entry.metadata()
                && let Some(name) = name.to_str()
            {
                found.push((meta.modified().ok(), name.to_owned(), meta.len()));
            }
        }
        found.sort();
        let mut directory = Self {
            dir,
            bytes_max,
            bytes: 0,
            sizes: LruCache::unbounded(),
        };
        for (_, name, size) in found {
            directory.add(name, size);
        }
        directory
    }

    /// Writes a whole file, in place of an older one of that name.
    ///
    /// # Errors
    /// Those of the disk; the older file then stays.
    pub(super) fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.dir.join(format!("{name}{UNFINISHED}"));
        let written = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&unfinished, self.dir.join(name)));
        if let Err(error) = written {
            remove(&unfinished);
            return Err(error);
        }
        self.add(name.to_owned(), bytes.len() as u64);
        Ok(())
    }

    /// Removes one file.
    pub(super) fn remove(&mut self, file: &Path) {
        remove(file);
        let name = file.file_name().and_then(OsStr::to_str);
        if let Some(size) = name.and_then(|name| self.sizes.pop(name)) {
            self.bytes -= size;
        }
    }

    /// Removes all files for which `condemned` returns `true`.
    pub(super) fn remove_where(&mut self, condemned: impl Fn(&Path) -> bool) {
        let files = self.sizes.iter().map(|(name, _)| self.dir.join(name));
        let files: Vec<PathBuf> = files.filter(|file| condemned(file)).collect();
        files.iter().for_each(|file| self.remove(file));
    }

    /// Counts a file that was written last, and removes the oldest ones until the others fit.
    fn add(&mut self, name: String, size: u64) {
        self.bytes = self.bytes + size - self.sizes.put(name, size).unwrap_or(0);
        while self.bytes > self.bytes_max
            && let Some((name, size)) = self.sizes.pop_lru()
        {
            self.bytes -= size;
            remove(&self.dir.join(name));
        }
    }
}

/// What cannot be removed stays, and is found again.
fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(file = %file.display(), %error, "not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u8) -> String {
        format!("{number:032x}")
    }

    #[test]
    fn a_full_directory_gives_up_the_oldest_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let there = |number| dir.path().join(name(number)).exists();
        let mut directory = ListingFiles::scan(dir.path().to_owned(), 30);
        for number in 0..3 {
            directory.write(&name(number), &[number; 10]).unwrap();
        }
        directory.write(&name(0), &[9; 10]).unwrap();
        assert!(there(0) && there(1) && there(2), "it fits");
        directory.write(&name(3), &[3; 10]).unwrap();
        assert!(there(0) && !there(1) && there(2) && there(3));
        fs::write(dir.path().join(name(7) + UNFINISHED), "torn").unwrap();
        fs::write(dir.path().join("of-somebody-else"), [0; 100]).unwrap();
        let mut directory = ListingFiles::scan(dir.path().to_owned(), 20);
        assert_eq!(directory.bytes, 20);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(dir.path().join("of-somebody-else").exists());
        directory.remove_where(|_| true);
        assert_eq!(directory.bytes, 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_refused_write_keeps_the_older_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = ListingFiles::scan(dir.path().to_owned(), 100);
        directory.write(&name(1), b"good").unwrap();
        fs::create_dir(dir.path().join(name(1) + UNFINISHED)).unwrap();
        assert!(directory.write(&name(1), b"not written").is_err());
        assert_eq!(fs::read(dir.path().join(name(1))).unwrap(), b"good");
    }
}
