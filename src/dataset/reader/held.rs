//! Whole items in the memory of the node where they are read.
//!
//! An open file holds the item that it reads. In addition a small item that its home does not keep is held
//! until as many bytes as it has were returned, and for [`RECENT_FOR`] at most. It is for the next opens of
//! its file: programs open a file two or three times to read it once (for its footer, and then for its
//! data), and a small item is fetched whole for each of these reads. Without this, each of them would read
//! the item from storage. A second reader of all of it gets it from its home, as without this: no node is a
//! cache beside the homes.

use crate::num::to_usize;
use crate::read::{Cut, FileId, FileRef, Part};
use bytes::Bytes;
use copperfs_overlay::{Extent, Version};
use lru::LruCache;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of bytes of items that are held on this node: about thirty stripes, or more small
/// files than loaders have open. Readers without room read in ranges, which are not held.
const HELD_BYTES_MAX: u64 = 128 << 20;
/// How long an item is held after it was fetched, for further opens: longer than an engine takes from its
/// first open of a file to its last.
pub(super) const RECENT_FOR: Duration = Duration::from_secs(2);
/// The maximum number of bytes of such items.
const RECENT_BYTES_MAX: u64 = HELD_BYTES_MAX / 4;
/// The unit of the limit on bytes.
const UNIT: u64 = 4096;

/// A whole item in memory.
pub(super) struct HeldItem {
    pub(super) version: Version,
    pub(super) extent: Extent,
    /// Its blocks, in order.
    pub(super) blocks: Vec<HeldBlock>,
    /// How many bytes are still to be returned, for opens to come.
    pub(super) left: AtomicU64,
    /// Its part of the limit on bytes.
    pub(super) _room: OwnedSemaphorePermit,
}

/// A block of an item.
pub(super) struct HeldBlock {
    /// Its offset in the file.
    pub(super) start: u64,
    pub(super) bytes: Bytes,
    /// Its bytes as a part, with their hash.
    pub(super) part: Part,
}

/// Returns the bytes of `blocks` from `offset` of the file on, `len` of them, by block.
pub(super) fn cuts(blocks: &[HeldBlock], offset: u64, len: u64) -> impl Iterator<Item = Cut> {
    let end = offset + len;
    blocks.iter().filter_map(move |block| {
        let own_end = block.start + block.bytes.len() as u64;
        let (from, to) = (offset.max(block.start), end.min(own_end));
        (from < to).then(|| {
            let range = to_usize(from - block.start)..to_usize(to - block.start);
            Cut::of(block.bytes.slice(range), block.part)
        })
    })
}

impl HeldItem {
    /// Records that bytes were returned. Returns whether these were the last ones.
    pub(super) fn returned(&self, bytes: u64) -> bool {
        let less = |left: u64| Some(left.saturating_sub(bytes));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.is_ok_and(|before| (1..=bytes).contains(&before))
    }
}

/// A file in one version, and the offset at which the item begins.
type Key = (FileId, u64);

/// See the module.
pub(super) struct HeldItems {
    room: Arc<Semaphore>,
    /// The lock is held for a look-up only.
    recent: Mutex<Recent>,
}

/// Items with the times at which they were fetched, from the oldest to the newest.
struct Recent {
    items: LruCache<Key, (Instant, Arc<HeldItem>)>,
    bytes: u64,
}

impl HeldItems {
    pub(super) fn new() -> Self {
        Self {
            room: Arc::new(Semaphore::new(to_usize(HELD_BYTES_MAX / UNIT))),
            recent: Mutex::new(Recent {
                items: LruCache::unbounded(),
                bytes: 0,
            }),
        }
    }

    /// Takes room for `bytes`, also from recent items. Returns `None` if open files hold too many bytes.
    pub(super) fn room(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        loop {
            if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(units) {
                return Some(room);
            }
            self.recent.lock().drop_oldest()?;
        }
    }

    /// Holds an item of `file` for further opens.
    pub(super) fn keep(&self, file: &FileRef, item: Arc<HeldItem>, now: Instant) {
        let mut recent = self.recent.lock();
        recent.tidy(now);
        recent.bytes += item.extent.len;
        if let Some((_, (_, old))) = recent.items.push(key(file, item.extent), (now, item)) {
            recent.bytes -= old.extent.len;
        }
        while recent.bytes > RECENT_BYTES_MAX && recent.drop_oldest().is_some() {}
    }

    /// Returns an item of `file` that was fetched at most [`RECENT_FOR`] ago.
    pub(super) fn recent(
        &self,
        file: &FileRef,
        extent: Extent,
        now: Instant,
    ) -> Option<Arc<HeldItem>> {
        let recent = self.recent.lock();
        // The usual case: a key takes a hash of the path.
        if recent.items.is_empty() {
            return None;
        }
        let (fetched, item) = recent.items.peek(&key(file, extent))?;
        let is_recent = now.saturating_duration_since(*fetched) <= RECENT_FOR;
        let is_same = item.extent == extent && item.version == file.version;
        (is_recent && is_same).then(|| Arc::clone(item))
    }

    /// Drops an item of `file`, whose bytes were all returned.
    pub(super) fn forget(&self, file: &FileRef, extent: Extent) {
        let mut recent = self.recent.lock();
        if !recent.items.is_empty()
            && let Some((_, item)) = recent.items.pop(&key(file, extent))
        {
            recent.bytes -= item.extent.len;
        }
    }

    /// Drops the items that are not recent any more.
    pub(super) fn tidy(&self, now: Instant) {
        self.recent.lock().tidy(now);
    }

    /// Drops all items that no open file holds.
    pub(super) fn clear(&self) {
        let mut recent = self.recent.lock();
        recent.items.clear();
        recent.bytes = 0;
    }
}

impl Recent {
    fn tidy(&mut self, now: Instant) {
        let is_old = |(fetched, _): &(Instant, Arc<HeldItem>)| {
            now.saturating_duration_since(*fetched) > RECENT_FOR
        };
        while self.items.peek_lru().is_some_and(|(_, kept)| is_old(kept)) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> Option<()> {
        let (_, (_, item)) = self.items.pop_lru()?;
        self.bytes -= item.extent.len;
        Some(())
    }
}

fn key(file: &FileRef, extent: Extent) -> Key {
    (FileId::of_place(&file.path, file.version), extent.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    fn item(items: &HeldItems, file: &FileRef) -> Arc<HeldItem> {
        Arc::new(HeldItem {
            version: file.version,
            extent: Extent {
                start: 0,
                len: file.size,
            },
            blocks: Vec::new(),
            left: AtomicU64::new(file.size),
            _room: items.room(file.size).unwrap(),
        })
    }

    fn file(number: u64, size: u64) -> FileRef {
        let version = Version::from_data([7; 16]);
        FileRef::new(path(&format!("d/{number}")), version, size, None)
    }

    fn whole(file: &FileRef) -> Extent {
        Extent {
            start: 0,
            len: file.size,
        }
    }

    #[test]
    fn an_item_is_found_for_a_moment_and_in_its_version_only() {
        let (items, now) = (HeldItems::new(), Instant::now());
        let kept = file(1, 1000);
        items.keep(&kept, item(&items, &kept), now);
        let found = |file: &FileRef, at| items.recent(file, whole(file), at).is_some();
        assert!(found(&kept, now + RECENT_FOR));
        assert!(!found(&kept, now + RECENT_FOR + Duration::from_millis(1)));
        let changed = FileRef::new(
            kept.path.clone(),
            kept.version.with_change([1; 8]),
            1000,
            None,
        );
        assert!(!found(&changed, now));
        let part = Extent { start: 0, len: 999 };
        assert!(items.recent(&kept, part, now).is_none());
        items.tidy(now + RECENT_FOR);
        assert_eq!(items.recent.lock().bytes, 1000);
        items.tidy(now + 2 * RECENT_FOR);
        assert_eq!(items.recent.lock().bytes, 0);
        assert!(!found(&kept, now));
        let all = item(&items, &kept);
        assert!(!all.returned(400) && all.returned(700) && !all.returned(1));
        items.keep(&kept, all, now);
        items.forget(&kept, whole(&kept));
        assert!(!found(&kept, now));
        items.keep(&kept, item(&items, &kept), now);
        items.clear();
        assert!(!found(&kept, now));
        assert_eq!(items.recent.lock().bytes, 0);
    }

    #[test]
    fn recent_items_are_bounded_and_make_room_for_open_files() {
        let (items, now, size) = (HeldItems::new(), Instant::now(), 1 << 20);
        for number in 0..100 {
            let file = file(number, size);
            items.keep(&file, item(&items, &file), now);
            // Fetched twice at once.
            items.keep(&file, item(&items, &file), now);
        }
        let found = |number| {
            let file = file(number, size);
            items.recent(&file, whole(&file), now).is_some()
        };
        assert_eq!(items.recent.lock().bytes, RECENT_BYTES_MAX);
        let held: Vec<_> = (0..100).filter(|number| found(*number)).collect();
        assert_eq!(held, (68..100).collect::<Vec<_>>(), "the newest");
        let room = items.room(HELD_BYTES_MAX - 2 * size).unwrap();
        let held: Vec<_> = (0..100).filter(|number| found(*number)).collect();
        assert_eq!(held, [98, 99]);
        assert!(items.room(3 * size).is_none());
        assert_eq!(items.recent.lock().bytes, 0);
        drop(room);
        assert!(items.room(HELD_BYTES_MAX).is_some(), "nothing was lost");
    }
}
