//! Compares what lies in a store's directory with its index, once after it is opened.
//!
//! Content that the index does not know (its last records were lost, or all of it) is adopted by the
//! label that it carries, or removed; content that it knows and that is not there is forgotten.

use super::content;
use super::directory::FANS;
use super::job::Job;
use super::unit::Unit;
use super::{Shared, content::Origin};
use copperfs_overlay::ContentHash;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// See the module. Ends early when the store is closed.
pub(super) fn sweep(shared: &Shared, jobs: &mpsc::SyncSender<Job>) {
    compare(shared, jobs);
    // Behind what was found.
    drop(jobs.send(Job::Swept));
}

fn compare(shared: &Shared, jobs: &mpsc::SyncSender<Job>) {
    // What is written from here on is known anyway.
    let known = shared.catalog.units();
    let mut found = HashSet::with_capacity(known.len());
    for fan in 0..FANS {
        if shared.closing.load(Ordering::Acquire) {
            return;
        }
        let prefix = format!("{fan:02x}");
        for name in names(&shared.directory.content_fan(fan)) {
            let Some(hash) = hash_of(&prefix, &name) else {
                continue;
            };
            let unit = Unit::block(hash);
            if !shared.catalog.holds_unit(&unit)
                && let Some((len, origin)) = inspect(shared, &unit)
                && jobs.send(Job::Adopt(unit, len, origin)).is_err()
            {
                return;
            }
            found.insert(unit);
        }
    }
    for name in names(&shared.directory.wholes()) {
        let Some(hash) = hash_of("", &name) else {
            continue;
        };
        let unit = Unit::whole(hash);
        if !shared.catalog.holds_unit(&unit) && jobs.send(Job::Adopt(unit, 0, None)).is_err() {
            return;
        }
        found.insert(unit);
    }
    for unit in known {
        if !found.contains(&unit) && jobs.send(Job::Missing(unit)).is_err() {
            return;
        }
    }
}

fn names(directory: &Path) -> impl Iterator<Item = std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name()))
}

fn inspect(shared: &Shared, unit: &Unit) -> Option<(u64, Option<Origin>)> {
    let file = shared.directory.open_content(unit).ok()?;
    content::inspect(&file).ok()
}

/// The hash whose hexadecimal form is `prefix` and `name`.
fn hash_of(prefix: &str, name: &OsStr) -> Option<ContentHash> {
    let text = format!("{prefix}{}", name.to_str()?);
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(ContentHash(hash))
}
