//! The files of a dataset with their sizes, by listings.

use bytes::Bytes;
use copperfs_overlay::{Failure, FailureKind, FileKind, Files, ItemPath, LISTING_ENTRIES_MAX};

/// Names in one request for attributes.
pub(crate) const NAMES_AT_A_TIME: usize = 1000;

/// The entries of one directory.
#[derive(Default)]
pub(crate) struct DirectoryFiles {
    /// Each with its size in bytes.
    pub(crate) files: Vec<(ItemPath, u64)>,
    pub(crate) directories: Vec<ItemPath>,
}

/// Lists the directory at `path`. Links and special files are left out.
///
/// # Errors
/// The failures of the source.
pub(crate) async fn list(files: &dyn Files, path: &ItemPath) -> Result<DirectoryFiles, Failure> {
    let mut found = DirectoryFiles::default();
    let sized = |name: &[u8], size| path.join(name).ok().map(|file| (file, size));
    let mut cursor = None;
    loop {
        let page = files
            .list_page(path.clone(), cursor, LISTING_ENTRIES_MAX)
            .await?;
        let mut unknown: Vec<Bytes> = Vec::new();
        for entry in page.entries {
            match (entry.kind, entry.attributes) {
                (FileKind::Directory, _) => found.directories.extend(path.join(&entry.name)),
                (FileKind::File, Some(known)) => found.files.extend(sized(&entry.name, known.size)),
                (FileKind::File, None) => unknown.push(entry.name),
                _ => {}
            }
        }
        // Long listings come without attributes.
        for names in unknown.chunks(NAMES_AT_A_TIME) {
            let answers = files.stat_names(path.clone(), names.to_vec()).await?.value;
            for (name, answer) in names.iter().zip(answers) {
                match answer {
                    Ok(known) if known.kind == FileKind::File => {
                        found.files.extend(sized(name, known.size));
                    }
                    Ok(_) => {}
                    // The file was removed after it was listed.
                    Err(failure) if failure.kind == FailureKind::NotFound => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}
