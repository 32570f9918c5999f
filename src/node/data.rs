//! The open files of the data mount, and the source of their bytes.
//!
//! Datasets are read through a mount of their own, where the daemon sees every open and close. At each open, [`Items`]
//! returns an [`OpenItem`] if the file belongs to a dataset. That item then answers each READ of that open. Any other
//! file is read through the node's read path, as on the software mount. So nothing is prefetched or pushed for a
//! dataset's file. The kernel's own read-ahead still sends READs, which are answered like any others.

use super::items::{ItemOpening, Items, OpenItem};
use crate::read::FileRef;
use copperfs_fuse as fuse;
use copperfs_metrics::{Counter, Kind, Scope, Unit};
use dashmap::DashMap;
use fuse::{Opened, Reader};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum number of open files that are tracked: far more than the loaders of a node have. Beyond it a file is read
/// through the read path, and is not counted as opened or cached.
const OPEN_MAX: usize = 1 << 16;

/// The answer to an OPEN, possibly later.
pub(super) enum Opening {
    Ready(Opened),
    Later(BoxFuture<'static, Opened>),
}

/// One open file.
struct OpenFile {
    item: Option<Arc<dyn OpenItem>>,
    /// A READ has arrived.
    read: AtomicBool,
}

/// The data mount's part of a front: see the module.
pub(super) struct DataFiles {
    items: Option<Arc<dyn Items>>,
    /// Every read must reach the daemon.
    direct: bool,
    /// By handle; 0 is no handle.
    open: DashMap<u64, Arc<OpenFile>>,
    last: AtomicU64,
    /// Closed without a READ.
    unread: Counter,
    /// Opens of files that belong to a dataset.
    of_datasets: Counter,
    /// Another process unmounted it.
    lost: AtomicBool,
}

impl std::fmt::Debug for DataFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFiles")
            .field("open", &self.open.len())
            .finish_non_exhaustive()
    }
}

impl DataFiles {
    /// `items` knows the datasets; without `page_cache` every read reaches the daemon.
    pub(super) fn new(items: Option<Arc<dyn Items>>, page_cache: bool) -> Self {
        Self {
            items,
            direct: !page_cache,
            open: DashMap::new(),
            last: AtomicU64::new(0),
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

    pub(super) fn open(self: &Arc<Self>, reader: Reader, file: &FileRef) -> Opening {
        if self.open.len() >= OPEN_MAX {
            tracing::debug!(path = %file.path, "too many open files; read without being tracked");
            return Opening::Ready(Opened {
                handle: 0,
                direct: self.direct,
            });
        }
        let items = self.items.as_ref();
        let opening = items.map(|items| items.open(reader.pid, &file.path, file));
        match opening.unwrap_or(ItemOpening::None) {
            ItemOpening::None => Opening::Ready(self.opened(None)),
            ItemOpening::Ready(item) => Opening::Ready(self.opened(Some(item))),
            ItemOpening::Later(item) => {
                let this = Arc::clone(self);
                Opening::Later(Box::pin(async move { this.opened(Some(item.await)) }))
            }
        }
    }

    fn opened(&self, item: Option<Arc<dyn OpenItem>>) -> Opened {
        if item.is_some() {
            self.of_datasets.increment();
        }
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let read = AtomicBool::new(false);
        let open = Arc::new(OpenFile { item, read });
        drop(self.open.insert(handle, open));
        Opened {
            handle,
            direct: self.direct,
        }
    }

    pub(super) fn release(&self, handle: u64) {
        if let Some((_, file)) = self.open.remove(&handle)
            && !file.read.load(Ordering::Relaxed)
        {
            self.unread.increment();
        }
    }

    /// Called when a READ of `handle` arrives. Returns the item that answers it; `None`: the read path does.
    pub(super) fn item(&self, handle: u64) -> Option<Arc<dyn OpenItem>> {
        let file = self.open.get(&handle)?;
        file.read.store(true, Ordering::Relaxed);
        file.item.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Cut;
    use bytes::Bytes;
    use copperfs_metrics::Registry;
    use copperfs_overlay::{ContentHash, Failure, ItemPath, Version};
    use futures_util::FutureExt;

    struct One;

    impl OpenItem for One {
        fn read_now(&self, _file: &FileRef, _offset: u64, size: u32) -> Option<Cut> {
            Some(Cut {
                bytes: Bytes::from(vec![7; size as usize]),
                ..Cut::default()
            })
        }

        fn read(
            &self,
            _file: &FileRef,
            _offset: u64,
            _size: u32,
        ) -> BoxFuture<'static, Result<Cut, Failure>> {
            std::future::pending().boxed()
        }

        fn hash(
            &self,
            _file: &FileRef,
            _offset: u64,
            _len: u64,
        ) -> BoxFuture<'static, Result<ContentHash, Failure>> {
            std::future::pending().boxed()
        }
    }

    /// Knows the files whose names begin with `item`; remembers who asked.
    #[derive(Default)]
    struct Known(parking_lot::Mutex<Vec<u32>>);

    impl Items for Known {
        fn open(&self, pid: u32, path: &ItemPath, _file: &FileRef) -> ItemOpening {
            self.0.lock().push(pid);
            match path.as_bytes() {
                name if name.starts_with(b"item") => ItemOpening::Ready(Arc::new(One)),
                name if name.starts_with(b"later") => ItemOpening::Later(
                    async {
                        tokio::task::yield_now().await;
                        Arc::new(One) as Arc<dyn OpenItem>
                    }
                    .boxed(),
                ),
                _ => ItemOpening::None,
            }
        }
    }

    fn opened(files: &Arc<DataFiles>, file: &FileRef) -> Opened {
        match files.open(READER, file) {
            Opening::Ready(opened) => opened,
            Opening::Later(_) => panic!("it is known"),
        }
    }

    fn file(name: &str) -> FileRef {
        let path = ItemPath::parse(name.as_bytes()).unwrap();
        FileRef::new(path, Version::from_data([1; 16]), 100, None)
    }

    const READER: Reader = Reader {
        pid: 42,
        uid: 0,
        gid: 0,
    };

    fn numbers(files: &Arc<DataFiles>) -> [u64; 4] {
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
            Some(Arc::clone(&known) as Arc<dyn Items>),
            true,
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

    /// An open that waits for its reader's look-up occupies no thread, and a cancelled one opens nothing.
    #[tokio::test]
    async fn an_open_may_wait_for_its_reader() {
        let files = Arc::new(DataFiles::new(Some(Arc::new(Known::default())), true));
        let later = || match files.open(READER, &file("later")) {
            Opening::Later(opening) => opening,
            Opening::Ready(_) => panic!("nothing is known of it yet"),
        };
        drop(later());
        assert_eq!(files.open.len(), 0);
        let opened = later().await;
        assert!(files.item(opened.handle).is_some());
        assert_eq!(numbers(&files), [1, 0, 1, 0]);
    }

    #[test]
    fn open_files_are_forgotten_with_the_mount() {
        let files = Arc::new(DataFiles::new(Some(Arc::new(Known::default())), false));
        let item = opened(&files, &file("item"));
        assert!(item.direct);
        files.lose();
        assert!(files.item(item.handle).is_none());
        assert_eq!(numbers(&files), [0, 1, 1, 0]);
    }

    #[test]
    fn a_full_table_leaves_files_to_the_read_path() {
        let files = Arc::new(DataFiles::new(Some(Arc::new(Known::default())), true));
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
