//! Compares a store's directory with its index, once after the store is opened.
//!
//! Content that is missing from the index (its last records were lost, or all of it) is adopted under the
//! origin that is stored with it, or removed. Content of the index that is not in the directory is forgotten.

use super::Shared;
use super::content::{origin_of, size_of};
use super::directory::{FANS, fan};
use super::job::Job;
use super::record::{ContentId, WHOLE};
use copperfs_overlay::ContentHash;
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

/// See the module. Ends early when the store is closed. Returns `None` if the writer's thread has ended.
pub(super) fn sweep(shared: &Shared, jobs: &SyncSender<Job>) -> Option<()> {
    let Shared {
        catalog, directory, ..
    } = shared;
    // Content that is written from here on is never reported as missing. Adopting it once more has no effect.
    let known = catalog.content_ids();
    let mut found = HashSet::with_capacity(known.len());
    for number in 0..FANS {
        if shared.closing.load(Ordering::Acquire) {
            return jobs.send(Job::Swept).ok();
        }
        for hash in hashes(&format!("{number:02x}"), &directory.path.join(fan(number))) {
            let content = ContentId::block(hash);
            if !catalog.contents.contains(&content)
                && let Ok(file) = directory.open_file(&content.path())
                && let Ok(len) = size_of(&file)
            {
                jobs.send(Job::Adopt(content, len, origin_of(&file))).ok()?;
            }
            found.insert(content);
        }
    }
    for hash in hashes("", &directory.path.join(WHOLE)) {
        let content = ContentId::whole(hash);
        if !catalog.contents.contains(&content) {
            jobs.send(Job::Adopt(content, 0, None)).ok()?;
        }
        found.insert(content);
    }
    for content in known {
        if !found.contains(&content) {
            jobs.send(Job::Missing(content)).ok()?;
        }
    }
    jobs.send(Job::Swept).ok()
}

/// The hashes whose hexadecimal form is `prefix` and a name in `directory`.
fn hashes(prefix: &str, directory: &Path) -> impl Iterator<Item = ContentHash> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = OsString::into_string(entry.file_name()).ok()?;
        let hash = blake3::Hash::from_hex(format!("{prefix}{name}")).ok()?;
        Some(ContentHash(*hash.as_bytes()))
    })
}
