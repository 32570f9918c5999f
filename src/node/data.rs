//! The open files of the data mount, and the source of their bytes.
//!
//! Datasets are read through a mount of their own, where the daemon sees every open and close. At each open, [`Items`]
//! returns an open item if the file belongs to a dataset. That item then answers each READ of that open. Any other file
//! is read through the node's read path, as on the software mount. So nothing is prefetched or pushed for a
//! dataset's file. The kernel's own read-ahead still sends READs, which are answered like any others.

use crate::namespace::handles::HandleTable;
use crate::read::FileRef;
use copperfs_fuse as fuse;
use copperfs_metrics::{Counter, Kind, Scope, Unit};
use copperfs_overlay::ItemPath;
use dashmap::DashMap;
use fuse::{Answer, Opened};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of open files that are tracked: far more than the loaders of a node have. Beyond it a file is read
/// through the read path, and is not counted as opened or cached.
const OPEN_MAX: usize = 1 << 16;

/// Knows which files belong to datasets.
pub(super) trait Items: Send + Sync + 'static {
    /// An open file of a dataset. Dropped when it is closed, and with the mount.
    type Item: Clone + Send + Sync + 'static;

    /// Opens the file at `path` for thread `pid` (in this node's pid namespace; 0 if it is outside). Called
    /// on a FUSE thread, so it does no I/O.
    fn open(&self, pid: u32, path: &ItemPath, file: &FileRef) -> ItemOpening<Self::Item>;

    /// Returns whether every read of this open must reach the daemon.
    fn is_uncached(item: &Self::Item) -> bool {
        let _cached = item;
        false
    }
}

/// How a dataset answers an open.
pub(super) enum ItemOpening<T> {
    /// The file is in no dataset.
    None,
    /// The open is complete.
    Ready(T),
    /// The reader must be looked up first. Dropped (cancelled) when the reader is killed.
    Later(BoxFuture<'static, T>),
}

/// One open file.
struct OpenFile<T> {
    item: Option<T>,
    /// A READ has arrived.
    read: AtomicBool,
}

/// The data mount's part of a front: see the module.
pub(super) struct DataFiles<I: Items> {
    items: Arc<I>,
    /// Every read must reach the daemon.
    direct: bool,
    /// By handle; 0 is no handle.
    open: DashMap<u64, OpenFile<I::Item>>,
    handles: HandleTable,
    /// Closed without a READ.
    unread: Counter,
    /// Opens of files that belong to a dataset.
    of_datasets: Counter,
    /// Another process unmounted it.
    lost: AtomicBool,
}

impl<I: Items> DataFiles<I> {
    /// `items` knows the datasets; without `page_cache` every read reaches the daemon. `handles` has the open files of an
    /// earlier daemon.
    pub(super) fn new(items: Arc<I>, page_cache: bool, handles: HandleTable) -> Self {
        Self {
            items,
            direct: !page_cache,
            open: DashMap::new(),
            handles,
            unread: Counter::default(),
            of_datasets: Counter::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// Called when the mount is gone: forgets the open files.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.open.clear();
    }

    /// Declares the metrics in `data_mount`. `counters` are the mount's.
    pub(super) fn declare(self: &Arc<Self>, data_mount: &Scope) {
        let read = |number: fn(&Self) -> u64| {
            let files = Arc::clone(self);
            move || number(&files)
        };
        let help = "1 if the data mount is mounted, 0 if it is not.";
        let mounted = read(|files| u64::from(!files.lost.load(Ordering::Relaxed)));
        data_mount.computed("mounted", Kind::Gauge, Unit::Count, help, mounted);
        let help = "1 if the data mount was unmounted while the daemon runs.";
        let lost = read(|files| u64::from(files.lost.load(Ordering::Relaxed)));
        data_mount.computed("lost", Kind::Gauge, Unit::Count, help, lost);
        let help = "OPEN requests of files that belong to a dataset.";
        data_mount.counter("dataset_opens", Unit::Count, help, &self.of_datasets);
        let help = "Opens that were closed without any READ: the page cache answered.";
        data_mount.counter("cached_opens", Unit::Count, help, &self.unread);
    }

    pub(super) fn open(self: &Arc<Self>, thread: u32, file: &FileRef) -> Answer<Opened> {
        if self.open.len() >= OPEN_MAX {
            tracing::debug!(path = %file.path, "too many open files; read without being tracked");
            return Answer::Ready(Opened {
                handle: 0,
                direct: self.direct,
            });
        }
        match self.items.open(thread, &file.path, file) {
            ItemOpening::None => Answer::Ready(self.opened(thread, None)),
            ItemOpening::Ready(item) => Answer::Ready(self.opened(thread, Some(item))),
            ItemOpening::Later(item) => {
                let this = Arc::clone(self);
                Answer::Pending(Box::pin(async move {
                    Ok(this.opened(thread, Some(item.await)))
                }))
            }
        }
    }

    fn opened(&self, thread: u32, item: Option<I::Item>) -> Opened {
        if item.is_some() {
            self.of_datasets.increment();
        }
        let direct = self.direct || item.as_ref().is_some_and(I::is_uncached);
        let handle = self.handles.open(thread);
        self.insert(handle, item);
        Opened { handle, direct }
    }

    fn insert(&self, handle: u64, item: Option<I::Item>) {
        let read = AtomicBool::new(false);
        drop(self.open.insert(handle, OpenFile { item, read }));
    }

    /// Returns a future that opens `file` again for the reader that has opened it as `handle` at an earlier daemon; `None`
    /// if there is nothing to do. Does it once: other reads meanwhile are answered by the read path.
    pub(super) fn reopen(
        self: &Arc<Self>,
        handle: u64,
        file: &FileRef,
    ) -> Option<BoxFuture<'static, ()>> {
        let thread = self.handles.take_inherited(handle)?;
        let opening = self.items.open(thread, &file.path, file);
        let this = Arc::clone(self);
        Some(Box::pin(async move {
            let item = match opening {
                ItemOpening::None => None,
                ItemOpening::Ready(item) => Some(item),
                ItemOpening::Later(item) => Some(item.await),
            };
            this.insert(handle, item);
        }))
    }

    /// The numbers of the open files.
    pub(super) fn handles(&self) -> &HandleTable {
        &self.handles
    }

    pub(super) fn release(&self, handle: u64) {
        self.handles.close(handle);
        if let Some((_, file)) = self.open.remove(&handle)
            && !file.read.load(Ordering::Relaxed)
        {
            self.unread.increment();
        }
    }

    /// Called when a READ of `handle` arrives. Returns the item that answers it; `None`: the read path does.
    pub(super) fn item(&self, handle: u64) -> Option<I::Item> {
        let file = self.open.get(&handle)?;
        file.read.store(true, Ordering::Relaxed);
        file.item.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copperfs_metrics::Registry;
    use copperfs_overlay::Version;
    use futures_util::FutureExt;

    #[derive(Clone)]
    struct One {
        is_uncached: bool,
    }

    const ONE: One = One { is_uncached: false };

    /// Knows the files whose names begin with `item`, and remembers the threads that asked.
    #[derive(Default)]
    struct Known(parking_lot::Mutex<Vec<u32>>);

    impl Items for Known {
        type Item = One;

        fn open(&self, pid: u32, path: &ItemPath, _file: &FileRef) -> ItemOpening<One> {
            self.0.lock().push(pid);
            match path.as_bytes() {
                b"item-of-a-probed-job" => ItemOpening::Ready(One { is_uncached: true }),
                name if name.starts_with(b"item") => ItemOpening::Ready(ONE),
                name if name.starts_with(b"later") => ItemOpening::Later(
                    async {
                        tokio::task::yield_now().await;
                        ONE
                    }
                    .boxed(),
                ),
                _ => ItemOpening::None,
            }
        }

        fn is_uncached(item: &One) -> bool {
            item.is_uncached
        }
    }

    fn opened(files: &Arc<DataFiles<Known>>, file: &FileRef) -> Opened {
        match files.open(READER, file) {
            Answer::Ready(opened) => opened,
            _ => panic!("it is known"),
        }
    }

    fn file(name: &str) -> FileRef {
        let path = ItemPath::parse(name.as_bytes()).unwrap();
        FileRef::new(path, Version::from_data([1; 16]), 100, None)
    }

    const READER: u32 = 42;

    fn numbers(files: &Arc<DataFiles<Known>>) -> [u64; 4] {
        let registry = Registry::default();
        files.declare(&registry.scope("data_mount"));
        let json = registry.snapshot().to_json();
        ["mounted", "lost", "dataset_opens", "cached_opens"]
            .map(|name| json["data_mount"][name].as_u64().unwrap())
    }

    #[test]
    fn files_of_datasets_are_theirs_from_open_to_release() {
        let known = Arc::new(Known::default());
        let files = Arc::new(DataFiles::new(
            Arc::clone(&known),
            true,
            HandleTable::default(),
        ));
        let item = opened(&files, &file("item1"));
        let other = opened(&files, &file("other"));
        assert_eq!(*known.0.lock(), [42, 42]);
        assert_ne!(item.handle, other.handle);
        assert!(!item.direct && item.handle > 0 && other.handle > 0);
        assert!(files.item(item.handle).is_some());
        assert!(files.item(other.handle).is_none(), "the read path answers");
        assert!(files.item(0).is_none());
        files.release(item.handle);
        files.release(other.handle);
        assert!(files.item(item.handle).is_none());
        assert_eq!(numbers(&files), [1, 0, 1, 0]);
        let unread = opened(&files, &file("item2"));
        files.release(unread.handle);
        files.release(unread.handle);
        assert_eq!(numbers(&files), [1, 0, 2, 1]);
    }

    /// The kernel's pages would answer, too, and the job would not be measured without a cache.
    #[test]
    fn every_read_of_a_probed_job_reaches_the_daemon() {
        let files = Arc::new(DataFiles::new(
            Arc::new(Known::default()),
            true,
            HandleTable::default(),
        ));
        assert!(opened(&files, &file("item-of-a-probed-job")).direct);
        assert!(!opened(&files, &file("item-of-another")).direct);
    }

    /// An open that waits for its reader's look-up occupies no thread, and a cancelled one opens nothing.
    #[tokio::test]
    async fn an_open_may_wait_for_its_reader() {
        let files = Arc::new(DataFiles::new(
            Arc::new(Known::default()),
            true,
            HandleTable::default(),
        ));
        let later = || match files.open(READER, &file("later")) {
            Answer::Pending(opening) => opening,
            _ => panic!("nothing is known of it yet"),
        };
        drop(later());
        assert_eq!(files.open.len(), 0);
        let opened = later().await.unwrap();
        assert!(files.item(opened.handle).is_some());
        assert_eq!(numbers(&files), [1, 0, 1, 0]);
    }

    #[test]
    fn open_files_are_forgotten_with_the_mount() {
        let files = Arc::new(DataFiles::new(
            Arc::new(Known::default()),
            false,
            HandleTable::default(),
        ));
        let item = opened(&files, &file("item"));
        assert!(item.direct);
        files.lose();
        assert!(files.item(item.handle).is_none());
        assert_eq!(numbers(&files), [0, 1, 1, 0]);
    }

    #[test]
    fn a_full_table_leaves_files_to_the_read_path() {
        let files = Arc::new(DataFiles::new(
            Arc::new(Known::default()),
            true,
            HandleTable::default(),
        ));
        let file = file("item");
        let first = opened(&files, &file);
        for _ in 1..OPEN_MAX {
            opened(&files, &file);
        }
        assert_eq!(opened(&files, &file).handle, 0);
        files.release(first.handle);
        assert!(opened(&files, &file).handle > 0);
    }
}
