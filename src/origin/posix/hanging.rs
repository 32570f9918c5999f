//! The hanging calls of an origin: their number, their paths, and their filesystems.
//!
//! A call hangs when it takes much longer than calls of this origin do on average, or when its caller was
//! cancelled before it returned. From then on it counts here and no longer among the concurrent calls, so that it
//! delays no other call. It still keeps its thread. Two rules bound these threads:
//! - A further request about the same path waits without a thread until the call returns. So does a request
//!   about any path below one whose `stat` hangs.
//! - While [`HangingBound`] calls hang, requests to the filesystems in which they hang fail at once. Other
//!   filesystems are not affected.

use crate::origin::hanging_bound::HangingBound;
use copperfs_fuse::mountinfo::{self, MountEntry};
use copperfs_overlay::ItemPath;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The maximum age of the cached mount table.
const MOUNTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The action that also blocks all paths below its own while it hangs.
pub(super) const STAT: &str = "stat";

/// A report about the hanging calls of an origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HangingCalls {
    /// The number of calls.
    pub calls: usize,
    /// The path of the oldest one.
    pub path: ItemPath,
    /// Its action, a verb.
    pub action: &'static str,
    /// How long it has taken so far.
    pub since: Duration,
}

/// The device number of a filesystem, as in the mount table.
type Device = (u32, u32);

/// The table of hanging calls. See the module.
pub(super) struct HangingTable {
    bound: Arc<HangingBound>,
    /// The number of calls in `table`, readable without its lock.
    count: AtomicUsize,
    /// Locked for map operations. Taken after the lock of a call or a batch.
    table: Mutex<Table>,
    /// Notified whenever a hanging call returns.
    pub(super) returned: Notify,
    /// The origin's directory on this host.
    root: PathBuf,
    /// The mounts of this host and when they were read, which happens when a call hangs. Locked at most for a read of
    /// `/proc/self/mountinfo`.
    mounts: Mutex<Option<(Instant, Vec<MountEntry>)>>,
}

#[derive(Default)]
struct Table {
    next_id: u64,
    /// By id, so in the order in which they were added.
    calls: BTreeMap<u64, HangingCall>,
    /// The hanging actions of each path.
    paths: HashMap<Box<[u8]>, Vec<&'static str>>,
}

struct HangingCall {
    action: &'static str,
    path: ItemPath,
    begun: Instant,
    device: Device,
}

impl HangingTable {
    /// Creates an empty table for the origin at the host directory `root`.
    pub(super) fn new(bound: Arc<HangingBound>, root: PathBuf) -> Self {
        Self {
            bound,
            count: AtomicUsize::new(0),
            table: Mutex::default(),
            returned: Notify::new(),
            root,
            mounts: Mutex::new(None),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Adds a call that has been running since `begun`. Returns its id for [`HangingTable::remove`].
    pub(super) fn add(&self, action: &'static str, path: &ItemPath, begun: Instant) -> u64 {
        let device = self.device(path);
        let mut table = self.table.lock();
        let id = table.next_id;
        table.next_id += 1;
        let call = HangingCall {
            action,
            path: path.clone(),
            begun,
            device,
        };
        table.calls.insert(id, call);
        let actions = table.paths.entry(path.as_bytes().into()).or_default();
        actions.push(action);
        let first = table.calls.len() == 1;
        self.count.store(table.calls.len(), Ordering::Release);
        drop(table);
        self.bound.add();
        if first {
            tracing::debug!(action, %path, "a call into storage hangs");
        }
        id
    }

    /// Removes a call that has returned.
    pub(super) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
        let Some(call) = table.calls.remove(&id) else {
            return;
        };
        if let Some(actions) = table.paths.get_mut(call.path.as_bytes()) {
            if let Some(at) = actions.iter().position(|action| *action == call.action) {
                actions.swap_remove(at);
            }
            if actions.is_empty() {
                table.paths.remove(call.path.as_bytes());
            }
        }
        self.count.store(table.calls.len(), Ordering::Release);
        drop(table);
        self.bound.remove();
        self.returned.notify_waiters();
    }

    /// Whether a call hangs in `action` on `path`, or in `stat` on the path or one of its parent directories.
    /// Costs one look-up per component, however many calls hang.
    pub(super) fn blocks(&self, action: &str, path: &ItemPath) -> bool {
        // The usual case takes no lock.
        if self.count() == 0 {
            return false;
        }
        let table = self.table.lock();
        let hangs = |path: &[u8], action: &str| {
            let actions = table.paths.get(path);
            actions.is_some_and(|actions| actions.contains(&action))
        };
        let path = path.as_bytes();
        let slashes = (path.iter().enumerate()).filter(|(_, byte)| **byte == b'/');
        let mut parents = slashes.map(|(at, _)| &path[..at]);
        hangs(path, action)
            || (!path.is_empty() && hangs(path, STAT))
            || parents.any(|parent| hangs(parent, STAT))
    }

    /// If no further calls may hang, and some hang in the filesystem of `path`, returns their number. Further
    /// calls into that filesystem are then refused.
    pub(super) fn refuses(&self, path: &ItemPath) -> Option<usize> {
        if self.bound.has_room() {
            return None;
        }
        let device = self.device(path);
        let table = self.table.lock();
        // Rare, and bounded by the number of hanging calls.
        let calls = table.calls.values().filter(|call| call.device == device);
        Some(calls.count()).filter(|calls| *calls > 0)
    }

    /// The hanging calls, if there are any.
    pub(super) fn report(&self) -> Option<HangingCalls> {
        let table = self.table.lock();
        let (_, oldest) = table.calls.first_key_value()?;
        Some(HangingCalls {
            calls: table.calls.len(),
            path: oldest.path.clone(),
            action: oldest.action,
            since: oldest.begun.elapsed(),
        })
    }

    /// The filesystem that holds `path`. Makes no call into a filesystem. If the mount table cannot be read, all paths
    /// count as one filesystem.
    fn device(&self, path: &ItemPath) -> Device {
        let mut mounts = self.mounts.lock();
        let is_old = |(read, _): &(Instant, _)| read.elapsed() >= MOUNTS_AGE_MAX;
        if mounts.as_ref().is_none_or(is_old) {
            *mounts = Some((Instant::now(), mountinfo::read().unwrap_or_default()));
        }
        let full = self.root.join(OsStr::from_bytes(path.as_bytes()));
        device_of(mounts.iter().flat_map(|(_, mounts)| mounts), &full)
    }
}

/// The device of the deepest mount above `path`, and of the last one of several at the same point.
fn device_of<'a>(mounts: impl Iterator<Item = &'a MountEntry>, path: &Path) -> Device {
    let holding = mounts.filter(|mount| path.starts_with(&mount.mountpoint));
    holding
        .max_by_key(|mount| mount.mountpoint.as_os_str().len())
        .map_or((0, 0), |mount| mount.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    fn hanging(max: usize) -> HangingTable {
        HangingTable::new(Arc::new(HangingBound::new(max)), PathBuf::from("/"))
    }

    #[test]
    fn a_path_hangs_with_its_own_action_and_with_a_stat_above_it() {
        let hanging = hanging(9);
        let now = Instant::now();
        assert!(!hanging.blocks("read", &path("a/b")));
        let read = hanging.add("read", &path("a/b"), now);
        assert!(hanging.blocks("read", &path("a/b")));
        assert!(!hanging.blocks(STAT, &path("a/b")), "another action");
        assert!(
            !hanging.blocks("read", &path("a/b/c")),
            "only a stat goes down"
        );
        assert!(!hanging.blocks("read", &path("a/bc")));
        let stat = hanging.add(STAT, &path("a"), now);
        for below in ["a", "a/b", "a/b/c"] {
            assert!(
                hanging.blocks("list", &path(below)) || below == "a",
                "{below}"
            );
            assert!(hanging.blocks(STAT, &path(below)), "{below}");
        }
        assert!(!hanging.blocks(STAT, &path("ab")));
        hanging.remove(stat);
        hanging.remove(read);
        assert!(!hanging.blocks("read", &path("a/b")));
        assert_eq!(hanging.report(), None);
    }

    /// Two calls about one path may hang: the path is free when both have returned.
    #[test]
    fn a_path_hangs_until_its_last_call_returns() {
        let hanging = hanging(9);
        let first = hanging.add("read", &path("a"), Instant::now());
        let second = hanging.add("read", &path("a"), Instant::now());
        hanging.remove(first);
        assert!(hanging.blocks("read", &path("a")));
        hanging.remove(second);
        hanging.remove(second);
        assert!(!hanging.blocks("read", &path("a")));
        assert_eq!(hanging.count(), 0);
    }

    #[test]
    fn a_full_table_refuses_only_filesystems_with_hanging_calls() {
        let hanging = hanging(2);
        // Two filesystems of any Linux host.
        let (first, other) = (path("proc/a"), path("sys/b"));
        hanging.add("read", &first, Instant::now());
        assert_eq!(hanging.refuses(&first), None, "not full");
        hanging.add("read", &path("proc/c"), Instant::now());
        assert_eq!(hanging.refuses(&first), Some(2));
        assert_eq!(hanging.refuses(&other), None);
        let report = hanging.report().unwrap();
        assert_eq!((report.calls, report.path), (2, first));
    }

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let text = b"22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            23 22 0:50 / /a/b rw - tmpfs t rw\n\
            24 22 0:51 / /a/b rw - tmpfs t rw\n\
            25 22 0:52 / /a/bc rw - tmpfs t rw\n";
        let mounts = mountinfo::parse(text);
        let device = |path: &str| device_of(mounts.iter(), Path::new(path));
        assert_eq!(device("/a/b/c"), (0, 51));
        assert_eq!(device("/a/bc"), (0, 52));
        assert_eq!(device("/a/bcd"), (8, 1));
    }
}
