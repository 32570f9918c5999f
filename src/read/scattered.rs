//! Readers that take the files of a large directory in no order: a shuffled epoch, a loader's workers.
//!
//! Nothing says which file is next, and each costs a round trip to storage. But who has read a few
//! dozen files of one directory reads many more of it, so it is brought in steps that grow with the evidence:
//! [`STEPS`]. A program that picks a few dozen files and stops has wasted the steps that it came to;
//! bytes of which nobody knows whether they are of use are never more than [`UNPROVEN_BYTES`] and a
//! quarter of the data cache.

use super::ReadPath;
use super::directory::Directory;
use copperfs_overlay::ItemPath;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files read in no order, and bytes to bring then.
const STEPS: [(u32, u64); 3] = [(8, 8 << 20), (16, 32 << 20), (32, u64::MAX)];
/// Behind the last step, the next bytes of a directory that was too large are looked at after each so
/// many reads.
const MORE_EVERY: u32 = 64;
/// Bytes brought so and not known to be of use, at most: what eight requests of a bundle hold.
const UNPROVEN_BYTES: u64 = 128 << 20;

/// What was brought to readers in no order. Relaxed: for guesses.
#[derive(Debug, Default)]
pub(super) struct Account {
    brought: AtomicU64,
    useful: AtomicU64,
}

impl Account {
    /// Bytes that were brought and not asked for, so far.
    pub(super) fn unproven_bytes(&self) -> u64 {
        let brought = self.brought.load(Ordering::Relaxed);
        brought.saturating_sub(self.useful.load(Ordering::Relaxed))
    }

    /// So many bytes of a directory that was brought so were of use.
    pub(super) fn useful(&self, bytes: u64) {
        self.useful.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Bytes to bring when so many files were read.
fn due(reads: u32) -> Option<u64> {
    let step = STEPS.iter().find(|(at, _)| *at == reads);
    let (last, rest) = STEPS[STEPS.len() - 1];
    let more = reads > last && reads.is_multiple_of(MORE_EVERY);
    step.map(|(_, bytes)| *bytes).or(more.then_some(rest))
}

impl ReadPath {
    /// The file at `position` is the `reads`th that is read of a large directory, in no order.
    pub(super) fn bring_scattered(
        &self,
        path: &ItemPath,
        directory: &Directory,
        position: usize,
        reads: u32,
    ) {
        let Some(bytes) = due(reads) else { return };
        let account = &self.0.bundles;
        let bound = UNPROVEN_BYTES.min(self.0.data.capacity_bytes() / 4);
        let mut left = bytes.min(bound.saturating_sub(account.scattered.unproven_bytes()));
        if left == 0 || !account.has_room() {
            return;
        }
        let mut files = Vec::new();
        for at in directory.rest_from(position) {
            if at != position && directory.touched.is_known(at) {
                continue;
            }
            let Some(file) = self.small_file(path, directory, at) else {
                continue;
            };
            let Some(rest) = left.checked_sub(file.size) else {
                break;
            };
            left = rest;
            files.push((at, file));
        }
        if files.len() > 1 {
            directory.touched.set_scattered();
            let brought = self.bring_own(path, directory, files);
            account
                .scattered
                .brought
                .fetch_add(brought, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_with_what_was_read() {
        let steps: Vec<_> = (1..300)
            .filter_map(|reads| Some((reads, due(reads)?)))
            .collect();
        let rest = u64::MAX;
        let expected = [
            (8, 8 << 20),
            (16, 32 << 20),
            (32, rest),
            (64, rest),
            (128, rest),
            (192, rest),
            (256, rest),
        ];
        assert_eq!(steps, expected);
    }
}
