//! The hanging calls of an origin: their number, their paths, and their filesystems.
//!
//! A call hangs when it takes longer than calls of this origin usually do, or when its caller was cancelled
//! before it returned. From then on it counts here and no longer among the concurrent calls, so that it
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
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// The maximum age of the cached mount table.
const MOUNTS_AGE_MAX: Duration = Duration::from_secs(1);

/// The action whose hanging means that nothing below the path can be reached either.
pub(super) const STAT: &str = "stat";

/// The hanging calls of an origin, for people.
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

/// See the module.
#[derive(Debug)]
pub(super) struct Hanging {
    bound: Arc<HangingBound>,
    /// The number of calls in `table`, readable without its lock.
    count: AtomicUsize,
    /// Locked for map operations. Taken after the lock of a call or a batch.
    table: Mutex<Table>,
    /// Notified whenever a call returns.
    released: Notify,
    mounts: Mounts,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// In the order in which they were added.
    calls: BTreeMap<u64, Hung>,
    /// By path: the actions that hang on it.
    paths: HashMap<ItemPathBytes, Vec<&'static str>>,
    filesystems: HashMap<Device, usize>,
}

type ItemPathBytes = Box<[u8]>;

#[derive(Debug)]
struct Hung {
    action: &'static str,
    path: ItemPath,
    begun: Instant,
    device: Device,
}

impl Hanging {
    /// Creates an empty table for the origin at the host directory `root`.
    pub(super) fn new(bound: Arc<HangingBound>, root: PathBuf) -> Self {
        Self {
            bound,
            count: AtomicUsize::new(0),
            table: Mutex::default(),
            released: Notify::new(),
            mounts: Mounts::new(root),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Adds a call that has been running since `begun`. Returns its id for [`Hanging::remove`].
    pub(super) fn add(&self, action: &'static str, path: &ItemPath, begun: Instant) -> u64 {
        let device = self.mounts.device(path);
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        let hung = Hung {
            action,
            path: path.clone(),
            begun,
            device,
        };
        table.calls.insert(id, hung);
        let actions = table.paths.entry(path.as_bytes().into()).or_default();
        actions.push(action);
        *table.filesystems.entry(device).or_default() += 1;
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
        let Some(hung) = table.calls.remove(&id) else {
            return;
        };
        if let Some(actions) = table.paths.get_mut(hung.path.as_bytes()) {
            if let Some(at) = actions.iter().position(|action| *action == hung.action) {
                actions.swap_remove(at);
            }
            if actions.is_empty() {
                table.paths.remove(hung.path.as_bytes());
            }
        }
        if let Some(calls) = table.filesystems.get_mut(&hung.device) {
            *calls -= 1;
            if *calls == 0 {
                table.filesystems.remove(&hung.device);
            }
        }
        self.count.store(table.calls.len(), Ordering::Release);
        drop(table);
        self.bound.remove();
        self.released.notify_waiters();
    }

    /// Resolves when a call returns after this future was created.
    pub(super) fn released(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// Whether a call hangs in `action` on `path`, or in `stat` on one of its parent directories. Costs one
    /// look-up per component, however many calls hang.
    pub(super) fn holds(&self, action: &str, path: &ItemPath) -> bool {
        if self.count() == 0 {
            return false;
        }
        let table = self.table.lock();
        let hangs = |path: &[u8], action: &str| {
            let actions = table.paths.get(path);
            actions.is_some_and(|actions| actions.contains(&action))
        };
        let whole = path.as_bytes();
        let slashes = (whole.iter().enumerate()).filter(|(_, byte)| **byte == b'/');
        let above = slashes.map(|(at, _)| &whole[..at]);
        let way = above.chain((!whole.is_empty()).then_some(whole));
        hangs(whole, action) || way.into_iter().any(|path| hangs(path, STAT))
    }

    /// If no further calls may hang and some hang in the filesystem of `path`, returns their number.
    pub(super) fn full(&self, path: &ItemPath) -> Option<usize> {
        if self.bound.has_room() {
            return None;
        }
        let device = self.mounts.device(path);
        self.table.lock().filesystems.get(&device).copied()
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
}

/// The mounts of this host, read when a call hangs. No filesystem is asked.
#[derive(Debug)]
struct Mounts {
    root: PathBuf,
    /// When the table was read, and its entries. Locked at most for a read of `/proc/self/mountinfo`.
    table: Mutex<Option<(Instant, Vec<MountEntry>)>>,
}

impl Mounts {
    fn new(root: PathBuf) -> Self {
        let table = Mutex::new(None);
        Self { root, table }
    }

    /// The filesystem that holds `path`. If the mount table cannot be read, all paths count as one
    /// filesystem.
    fn device(&self, path: &ItemPath) -> Device {
        let mut table = self.table.lock();
        let fresh = |read: &Instant| read.elapsed() < MOUNTS_AGE_MAX;
        if !table.as_ref().is_some_and(|(read, _)| fresh(read)) {
            let mounts = mountinfo::read().unwrap_or_default();
            *table = Some((Instant::now(), mounts));
        }
        let full = self.root.join(OsStr::from_bytes(path.as_bytes()));
        let mounts = table.iter().flat_map(|(_, mounts)| mounts);
        device_of(mounts, &full)
    }
}

/// The device of the deepest mount above `path`; of several at one point, the last one.
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

    fn hanging(max: usize) -> Hanging {
        Hanging::new(Arc::new(HangingBound::new(max)), PathBuf::from("/"))
    }

    #[test]
    fn a_path_hangs_with_its_own_action_and_with_a_stat_above_it() {
        let hanging = hanging(9);
        let now = Instant::now();
        assert!(!hanging.holds("read", &path("a/b")));
        let read = hanging.add("read", &path("a/b"), now);
        assert!(hanging.holds("read", &path("a/b")));
        assert!(!hanging.holds(STAT, &path("a/b")), "another action");
        assert!(
            !hanging.holds("read", &path("a/b/c")),
            "only a stat goes down"
        );
        assert!(!hanging.holds("read", &path("a/bc")));
        let stat = hanging.add(STAT, &path("a"), now);
        for below in ["a", "a/b", "a/b/c"] {
            assert!(
                hanging.holds("list", &path(below)) || below == "a",
                "{below}"
            );
            assert!(hanging.holds(STAT, &path(below)), "{below}");
        }
        assert!(!hanging.holds(STAT, &path("ab")));
        hanging.remove(stat);
        hanging.remove(read);
        assert!(!hanging.holds("read", &path("a/b")));
        assert_eq!(hanging.report(), None);
    }

    /// Two calls about one path may hang: the path is free when both have returned.
    #[test]
    fn a_path_hangs_until_its_last_call_returns() {
        let hanging = hanging(9);
        let first = hanging.add("read", &path("a"), Instant::now());
        let second = hanging.add("read", &path("a"), Instant::now());
        hanging.remove(first);
        assert!(hanging.holds("read", &path("a")));
        hanging.remove(second);
        hanging.remove(second);
        assert!(!hanging.holds("read", &path("a")));
        assert_eq!(hanging.count(), 0);
    }

    #[test]
    fn a_full_table_refuses_the_filesystems_that_hang_only() {
        let hanging = hanging(2);
        // Two filesystems of any Linux host.
        let (first, other) = (path("proc/a"), path("sys/b"));
        hanging.add("read", &first, Instant::now());
        assert_eq!(hanging.full(&first), None, "not full");
        hanging.add("read", &path("proc/c"), Instant::now());
        assert_eq!(hanging.full(&first), Some(2));
        assert_eq!(hanging.full(&other), None);
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
