//! Records the accesses of programs to a mount, as the FUSE front sees them, in a [`Profile`].
//!
//! The kernel sends no requests for what it has cached. So the start of a recording also drops the kernel's
//! caches of the mount (`src/node/front.rs`). This node's own caches are kept.
//!
//! A recorder that is off costs one relaxed load per request. A recording is bounded by `RECORD_BYTES_MAX`;
//! later accesses are dropped, and the recording is marked as full. Each access is recorded once: another
//! look-up of a name adds nothing, and a read that continues the last read of the file extends it.

use crate::profile::{ACCESSES_MAX, Access, Profile};
use copperfs_overlay::ItemPath;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory that a recording may take, by estimate.
const RECORD_BYTES_MAX: usize = 128 << 20;
/// The memory of an access without its path, in bytes.
const ACCESS_BYTES: usize = 160;

/// Records the accesses to a mount while a recording runs.
#[derive(Debug, Default)]
pub struct Recorder {
    on: AtomicBool,
    /// The lock is held for a few map operations. No other lock is taken under it.
    log: Mutex<Option<Log>>,
    /// The number of recordings started.
    begun: AtomicU64,
}

/// Identifies one recording of a recorder, so that its owner ends that one and no later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingId(u64);

/// A finished recording.
#[derive(Debug)]
pub struct Recording {
    /// The accesses, in order.
    pub profile: Profile,
    /// The bound was reached: later accesses are missing.
    pub full: bool,
}

impl Recording {
    /// The number of accesses, and whether some are missing.
    #[must_use]
    pub fn head(&self) -> serde_json::Value {
        serde_json::json!({ "accesses": self.profile.accesses.len(), "full": self.full })
    }
}

#[derive(Debug, Default)]
struct Log {
    id: u64,
    accesses: Vec<Access>,
    listed: HashSet<ItemPath>,
    /// Names that were looked up, found or not.
    named: HashSet<ItemPath>,
    /// Paths whose extended attributes were read.
    attributed: HashSet<ItemPath>,
    /// The index of the latest read of each file in `accesses`.
    reads: HashMap<ItemPath, usize>,
    bytes: usize,
    full: bool,
}

impl Recorder {
    /// Whether a recording runs.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Starts a recording. Returns `None` if there is one already.
    pub fn start(&self) -> Option<RecordingId> {
        let mut log = self.log.lock();
        if log.is_some() {
            return None;
        }
        let id = self.begun.fetch_add(1, Ordering::Relaxed);
        *log = Some(Log {
            id,
            ..Log::default()
        });
        // Relaxed: the flag is only a hint. The log under the lock decides whether an access is recorded.
        self.on.store(true, Ordering::Relaxed);
        Some(RecordingId(id))
    }

    /// Stops the recording, if one runs.
    pub fn stop(&self) -> Option<Recording> {
        self.end(|_| true)
    }

    /// Stops the recording `own`, if it is still running.
    pub fn stop_own(&self, own: RecordingId) -> Option<Recording> {
        self.end(|log| log.id == own.0)
    }

    fn end(&self, wanted: impl FnOnce(&Log) -> bool) -> Option<Recording> {
        let mut log = self.log.lock();
        if !log.as_ref().is_some_and(wanted) {
            return None;
        }
        self.on.store(false, Ordering::Relaxed);
        let log = log.take()?;
        Some(Recording {
            profile: Profile {
                accesses: log.accesses,
            },
            full: log.full,
        })
    }

    /// Records a look-up of a name.
    pub fn looked_up(&self, path: &ItemPath, found: bool) {
        let access = |path| match found {
            true => Access::Stat { path },
            false => Access::Absent { path },
        };
        self.note_once(|log| &mut log.named, path, access);
    }

    /// Records a read of extended attributes.
    pub fn xattrs(&self, path: &ItemPath) {
        let access = |path| Access::Xattrs { path };
        self.note_once(|log| &mut log.attributed, path, access);
    }

    /// Records a listing of a directory with this number of entries.
    pub fn listed(&self, path: &ItemPath, entries: usize) {
        let entries = Some(entries as u64);
        let access = |path| Access::List { path, entries };
        self.note_once(|log| &mut log.listed, path, access);
    }

    /// Records a read of a file of `size` bytes.
    pub fn read(&self, path: &ItemPath, size: u64, offset: u64, wanted: u64) {
        let offset = offset.min(size);
        let end = offset.saturating_add(wanted).min(size);
        if offset == end {
            return;
        }
        self.note(|log| {
            // A read that begins within or directly after the last one extends it.
            let last = log.reads.get(path).copied();
            if let Some(Access::Read {
                offset: first, len, ..
            }) = last.and_then(|at| log.accesses.get_mut(at))
                && (*first..=*first + *len).contains(&offset)
            {
                *len = (*len).max(end - *first);
                return;
            }
            if log.reserve(path) {
                log.reads.insert(path.clone(), log.accesses.len());
                log.accesses.push(Access::Read {
                    path: path.clone(),
                    size,
                    offset,
                    len: end - offset,
                });
            }
        });
    }

    /// Records `access` if `path` is not in the set `seen`.
    fn note_once(
        &self,
        seen: fn(&mut Log) -> &mut HashSet<ItemPath>,
        path: &ItemPath,
        access: impl FnOnce(ItemPath) -> Access,
    ) {
        self.note(|log| {
            if !seen(log).contains(path) && log.reserve(path) {
                seen(log).insert(path.clone());
                log.accesses.push(access(path.clone()));
            }
        });
    }

    fn note(&self, add: impl FnOnce(&mut Log)) {
        if self.is_on()
            && let Some(log) = self.log.lock().as_mut()
        {
            add(log);
        }
    }
}

impl Log {
    /// Reserves memory for one more access. Returns `false` if the recording is full.
    fn reserve(&mut self, path: &ItemPath) -> bool {
        let bytes = self.bytes + ACCESS_BYTES + path.as_bytes().len();
        if bytes > RECORD_BYTES_MAX || self.accesses.len() >= ACCESSES_MAX {
            self.full = true;
            return false;
        }
        self.bytes = bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn nothing_is_recorded_unasked() {
        let recorder = Recorder::default();
        recorder.looked_up(&path("a"), true);
        assert!(recorder.stop().is_none());
        assert!(recorder.start().is_some() && recorder.start().is_none());
        let recording = recorder.stop().unwrap();
        assert!(recording.profile.accesses.is_empty() && !recording.full);
    }

    #[test]
    fn a_recording_is_ended_by_its_own_name_only() {
        let recorder = Recorder::default();
        let first = recorder.start().unwrap();
        assert!(recorder.stop().is_some());
        let second = recorder.start().unwrap();
        assert!(recorder.stop_own(first).is_none());
        assert!(recorder.is_on());
        assert!(recorder.stop_own(second).is_some());
        assert!(!recorder.is_on());
    }

    #[test]
    fn each_thing_is_recorded_once_and_in_order() {
        let recorder = Recorder::default();
        recorder.start();
        for _ in 0..2 {
            recorder.looked_up(&path("d"), true);
            recorder.listed(&path("d"), 3);
            recorder.looked_up(&path("d/none"), false);
            recorder.xattrs(&path("d/none"));
            recorder.read(&path("d/f"), 300, 0, 128);
            recorder.read(&path("d/f"), 300, 128, 4096);
        }
        recorder.read(&path("d/g"), 300, 200, 10);
        recorder.read(&path("d/g"), 300, 0, 10);
        recorder.read(&path("d/g"), 300, 300, 10);
        let read = |name: &str, offset, len| Access::Read {
            path: path(name),
            size: 300,
            offset,
            len,
        };
        let expected = vec![
            Access::Stat { path: path("d") },
            Access::List {
                path: path("d"),
                entries: Some(3),
            },
            Access::Absent {
                path: path("d/none"),
            },
            Access::Xattrs {
                path: path("d/none"),
            },
            read("d/f", 0, 300),
            read("d/g", 200, 10),
            read("d/g", 0, 10),
        ];
        assert_eq!(recorder.stop().unwrap().profile.accesses, expected);
    }

    #[test]
    fn a_recording_has_an_end() {
        let recorder = Recorder::default();
        recorder.start();
        let long = "x".repeat(250);
        let deep = [long.as_str(); 15].join("/");
        for number in 0..40_000 {
            recorder.looked_up(&path(&format!("{number}/{deep}")), true);
        }
        let recording = recorder.stop().unwrap();
        assert!(recording.full);
        assert!(recording.profile.accesses.len() > 30_000);
    }
}
