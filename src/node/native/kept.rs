//! Keeps the tables of images in the runtime directory, for a successor of the daemon: their data files are in use.

use super::files::Number;
use copperfs_overlay::ItemPath;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What the names of the files begin with; the number of the image follows.
const NAME: &str = "image-";

fn path_of(dir: &Path, number: Number) -> PathBuf {
    dir.join(format!("{NAME}{number}"))
}

/// Keeps the table `extents` of image `number`, which shows `path`.
pub(super) fn write(dir: &Path, number: Number, path: &ItemPath, extents: &[u8]) -> io::Result<()> {
    let head = postcard::to_stdvec(path).map_err(io::Error::other)?;
    let new = dir.join("new-image");
    let mut file = File::create(&new)?;
    file.write_all(&head)?;
    file.write_all(extents)?;
    fs::rename(&new, path_of(dir, number))
}

/// All tables that an earlier daemon has kept, each with the number and the directory of its image.
pub(super) fn read_all(dir: &Path) -> Vec<(Number, ItemPath, Vec<u8>)> {
    let mut all: Vec<_> = numbers(dir)
        .into_iter()
        .filter_map(|number| {
            let bytes = fs::read(path_of(dir, number)).ok()?;
            let (path, extents) = postcard::take_from_bytes::<ItemPath>(&bytes).ok()?;
            Some((number, path, extents.to_vec()))
        })
        .collect();
    all.sort_by_key(|(number, ..)| *number);
    all
}

/// Removes the table of image `number`.
pub(super) fn remove(dir: &Path, number: Number) {
    let removed = fs::remove_file(path_of(dir, number));
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(%error, number, "the table of an image stays");
    }
}

/// Removes all tables.
pub(super) fn remove_all(dir: &Path) {
    for number in numbers(dir) {
        remove(dir, number);
    }
}

fn numbers(dir: &Path) -> Vec<Number> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix(NAME)?.parse().ok());
    numbers.collect()
}
