//! Answers the kernel's requests from the read path.
//!
//! A hit is answered on the FUSE thread itself, and everything else becomes a future. This module translates between
//! inodes and paths. It has no data of its own.

mod arrivals;
mod asleep;
mod continued;
mod directory;
mod images;
mod kernel;
mod opened;
mod reading;

use super::data::DataFiles;
use super::datasets::Datasets;
use super::errors::fs_error;
use super::parts::Parts;
use super::watchdog::WatchdogLine;
use crate::cache::Fill;
use crate::dataset::reader::OpenDatasetFile;
use crate::namespace::{Inode, InodeTable, ROOT};
use crate::read::{LookupOutcome, Metadata, Noted};
use crate::record::Recorder;
use crate::takeover::MountMemory;
use arrivals::PushArrivals;
use bytes::Bytes;
use continued::Continuing;
use copperfs_fuse as fuse;
use copperfs_overlay::{
    Attributes, Failure, FailureKind, FileKind, ItemPath, Leased, Timestamp, XattrList,
};
use fuse::{Answer, Attr, FsError, Ino, Lookup, Response, StatsAge};
pub(super) use images::Images;
use opened::OpenDirectories;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The maximum time for which the kernel may use the attributes of an unsettled version, which will be
/// replaced soon.
const UNSETTLED_TTL: Duration = Duration::from_secs(1);

/// The promises to the kernel, as a mount begins with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promises {
    /// For names and attributes.
    pub(super) ttl: Duration,
    /// For names that do not exist.
    pub(super) negative_ttl: Duration,
    /// How long anything may be promised after storage was asked; `None`: until it is cleared.
    pub(super) lease: Option<Duration>,
    /// Whether files are pushed.
    pub(super) pushes: bool,
    /// The largest file that is pushed, in bytes.
    pub(super) push_file_max: u64,
    /// The memory that names held by this mount's kernel may take, in bytes.
    pub(super) inodes_bytes_max: u64,
}

/// The promises that can change while the mount lasts. Each counts for the answers after the change. Relaxed, because an
/// answer that is made meanwhile may have the value before.
struct LivePromises {
    ttl_ns: AtomicU64,
    negative_ttl_ns: AtomicU64,
    /// 0 if no file is pushed.
    push_file_max: AtomicU64,
}

impl LivePromises {
    fn new(promises: &Promises) -> Self {
        let live = Self {
            ttl_ns: AtomicU64::new(0),
            negative_ttl_ns: AtomicU64::new(0),
            push_file_max: AtomicU64::new(0),
        };
        live.set(promises);
        live
    }

    fn set(&self, promises: &Promises) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let largest = if promises.pushes {
            promises.push_file_max
        } else {
            0
        };
        self.ttl_ns
            .store(nanoseconds(promises.ttl), Ordering::Relaxed);
        self.negative_ttl_ns
            .store(nanoseconds(promises.negative_ttl), Ordering::Relaxed);
        self.push_file_max.store(largest, Ordering::Relaxed);
    }

    fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns.load(Ordering::Relaxed))
    }

    fn negative_ttl(&self) -> Duration {
        Duration::from_nanos(self.negative_ttl_ns.load(Ordering::Relaxed))
    }
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Front(Arc<FrontInner>);

pub(super) struct FrontInner {
    pub(super) parts: Parts,
    pub(super) inodes: Arc<InodeTable>,
    pub(super) promises: Promises,
    live: LivePromises,
    opened: OpenDirectories,
    /// Names at the top of the mount that the kernel was told do not exist, for kernels before 6.16. Such
    /// names in other directories are dropped when their directory is invalidated, but the root cannot be.
    absent_at_root: dashmap::DashSet<Bytes>,
    /// Set when the mount exists, which needs this front.
    pub(super) notifier: OnceLock<fuse::Notifier>,
    pub(super) recorder: Recorder,
    /// Only on the data mount.
    data: Option<Arc<DataFiles<Datasets>>>,
    /// The front of the node's other mount, if there are two. Weak, because each refers to the other.
    other: OnceLock<Weak<Self>>,
    continuing: Continuing,
    /// The images over directories of the software mount, if there may be any.
    images: OnceLock<Arc<dyn Images>>,
}

/// The source of an open file's bytes: the file's home, through this open file, or the node's read path.
pub(super) type Source = Option<OpenDatasetFile>;

/// The maximum number of absent names at the top. The kernel may not cache more than these.
const ABSENT_AT_ROOT_MAX: usize = 4096;

impl std::ops::Deref for Front {
    type Target = FrontInner;

    fn deref(&self) -> &FrontInner {
        &self.0
    }
}

impl FrontInner {
    /// The largest file that is pushed, in bytes; 0: none is.
    pub(super) fn push_file_max(&self) -> u64 {
        self.live.push_file_max.load(Ordering::Relaxed)
    }
}

impl Front {
    /// The front of the software mount, or of the data mount with `data`. `memory`: what outlives
    /// the daemon.
    pub(super) fn new(
        parts: Parts,
        promises: Promises,
        root: Attributes,
        data: Option<Arc<DataFiles<Datasets>>>,
        memory: Option<MountMemory>,
    ) -> Self {
        let mut inodes = InodeTable::new(root, promises.inodes_bytes_max);
        let mut opened = OpenDirectories::default();
        if let Some(memory) = memory {
            inodes = inodes.journaled(memory.journal, memory.inodes);
            opened = OpenDirectories::after(memory.generation);
        }
        Self(Arc::new(FrontInner {
            parts,
            inodes: Arc::new(inodes),
            live: LivePromises::new(&promises),
            promises,
            opened,
            absent_at_root: dashmap::DashSet::new(),
            notifier: OnceLock::new(),
            recorder: Recorder::default(),
            data,
            other: OnceLock::new(),
            continuing: Continuing::default(),
            images: OnceLock::new(),
        }))
    }

    /// The front of the data mount beside this one: the same files from the same caches, with inodes
    /// of its own. Nothing is pushed there.
    pub(super) fn beside(
        &self,
        root: Attributes,
        data: Arc<DataFiles<Datasets>>,
        memory: Option<MountMemory>,
    ) -> Self {
        let promises = Promises {
            pushes: false,
            ..self.promises
        };
        let beside = Self::new(self.parts.clone(), promises, root, Some(data), memory);
        drop(beside.other.set(Arc::downgrade(&self.0)));
        drop(self.other.set(Arc::downgrade(&beside.0)));
        beside
    }

    /// Changes the memory for names that the kernels of the node's mounts hold, of each.
    pub(super) fn resize_inodes(&self, bytes_max: u64) {
        let other = self.other.get().and_then(Weak::upgrade).map(Self);
        for front in [Some(self), other.as_ref()].into_iter().flatten() {
            front.inodes.set_bytes_max(bytes_max);
            front.prune_if_due();
        }
    }

    /// How full the tables of names are.
    pub(super) fn fills(&self) -> Vec<Fill> {
        let other = self.other.get().and_then(Weak::upgrade);
        let other = other.map(|other| other.inodes.fill());
        std::iter::once(self.inodes.fill()).chain(other).collect()
    }

    /// Has the kernel drop inodes if enough of them are due.
    fn prune_if_due(&self) {
        if self.inodes.is_pruning_due()
            && let Some(notifier) = self.notifier.get()
        {
            notifier.prune();
        }
    }

    /// Makes other promises from now on, on both mounts of the node. Those that the kernel has been given stay.
    pub(super) fn set_promises(&self, promises: &Promises) {
        self.live.set(promises);
        if let Some(other) = self.other.get().and_then(Weak::upgrade) {
            let pushes = other.promises.pushes && promises.pushes;
            other.live.set(&Promises {
                pushes,
                ..*promises
            });
        }
    }

    /// From now on the kernel can be notified, through `mount`. With a `lister`, prefetched files are pushed even if the
    /// kernel does not know them yet.
    pub(super) fn connect(&self, mount: &fuse::Mount, lister: Option<WatchdogLine>) {
        drop(self.notifier.set(mount.notifier()));
        if self.promises.pushes {
            let arrivals = PushArrivals {
                front: Arc::downgrade(&self.0),
                push: mount.push(),
                lister,
            };
            self.parts.read.connect(Arc::new(arrivals));
        }
    }

    /// The error for a reader after `failure`. If the file is not the one that the kernel knows, its name is invalidated
    /// first, so that the next look-up finds the present file.
    pub(super) fn refuse(&self, inode: &Inode, failure: &Failure) -> FsError {
        if !matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound) {
            return report(inode.path(), failure);
        }
        tracing::debug!(path = %inode.path(), %failure, "a reader gets ESTALE");
        self.stale(inode)
    }

    /// Returns the error for a reader whose file was replaced, after invalidating its name in the kernel.
    pub(super) fn stale(&self, inode: &Inode) -> FsError {
        self.invalidate_place_soon(inode.path());
        FsError::Stale
    }

    /// From now on there may be images over directories of the mount.
    pub(super) fn set_images(&self, images: Arc<dyn Images>) {
        drop(self.images.set(images));
    }

    fn metadata(&self) -> &Metadata {
        self.parts.read.metadata()
    }

    pub(super) fn inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.inodes.get(ino.0).ok_or(FsError::Stale)
    }

    /// The attributes of an inode for the kernel, which may use them for what remains of `lease`.
    fn attr(&self, inode: &Inode, lease: Option<Duration>) -> Attr {
        let ttl = self.ttl(&inode.attributes, lease);
        attr(inode.number, &inode.attributes, ttl)
    }

    /// The same, after the attributes were requested again.
    fn renewed(&self, inode: &Arc<Inode>, now: Leased<Attributes>) -> Attr {
        let renewed = self.inodes.renew(inode.number, now.value);
        self.attr(renewed.as_ref().unwrap_or(inode), now.lease)
    }

    fn ttl(&self, attributes: &Attributes, lease: Option<Duration>) -> Duration {
        let ttl = self.live.ttl().min(lease.unwrap_or(Duration::MAX));
        if attributes.version.is_settled() {
            ttl
        } else {
            ttl.min(UNSETTLED_TTL).min(attributes.granularity())
        }
    }

    /// Takes a reference for the kernel on `name` in `parent`, and returns its attributes for the kernel.
    /// `None` if the path is too long.
    pub(super) fn introduce(
        &self,
        parent: &Inode,
        name: &[u8],
        attributes: Leased<Attributes>,
    ) -> Option<Attr> {
        let path = parent.path().join(name).ok()?;
        let Leased { value, lease } = attributes;
        let mut attr = attr(ROOT, &value, self.ttl(&value, lease));
        attr.ino = Ino(self.inodes.learn(&path, parent.into(), name, value));
        self.prune_if_due();
        Some(attr)
    }

    fn answer_lookup(
        &self,
        parent: &Inode,
        name: &[u8],
        found: Leased<LookupOutcome>,
    ) -> Result<Lookup, FsError> {
        let Leased { value, lease } = found;
        if self.recorder.is_on()
            && let Ok(path) = parent.path().join(name)
        {
            let found = matches!(value, LookupOutcome::Attributes(_));
            self.recorder.looked_up(&path, found);
        }
        match value {
            LookupOutcome::Attributes(value) => {
                let introduced = self.introduce(parent, name, Leased { value, lease });
                introduced.map(Lookup::Found).ok_or(FsError::NameTooLong)
            }
            LookupOutcome::Absent => {
                let ttl = self.absent_ttl(parent.path(), name);
                let ttl = ttl.min(lease.unwrap_or(Duration::MAX));
                Ok(Lookup::Absent { ttl })
            }
        }
    }

    fn absent_ttl(&self, parent: &ItemPath, name: &[u8]) -> Duration {
        if parent.is_root() {
            if self.absent_at_root.len() >= ABSENT_AT_ROOT_MAX {
                return Duration::ZERO;
            }
            self.absent_at_root.insert(Bytes::copy_from_slice(name));
        }
        self.live.negative_ttl()
    }

    fn xattrs(
        &self,
        ino: Ino,
        pick: impl Fn(&XattrList) -> Result<Bytes, FsError> + Send + 'static,
    ) -> Response<Bytes> {
        let inode = self.inode(ino)?;
        if self.recorder.is_on() {
            self.recorder.xattrs(inode.path());
        }
        if let Some(known) = self.metadata().try_xattrs(inode.path()) {
            let list = known.map_err(|failure| fs_error(failure.kind))?;
            return pick(&list).map(Answer::Ready);
        }
        let this = self.clone();
        pending(async move {
            match this.metadata().xattrs(inode.path()).await {
                Ok(list) => pick(&list),
                Err(failure) if failure.kind == FailureKind::Unsupported => {
                    Err(FsError::Unsupported)
                }
                Err(failure) => Err(this.refuse(&inode, &failure)),
            }
        })
    }
}

pub(super) fn pending<T>(
    future: impl Future<Output = Result<T, FsError>> + Send + 'static,
) -> Response<T> {
    Ok(Answer::Pending(Box::pin(future)))
}

/// Logs a failure if it says more than the errno that the application sees.
pub(super) fn report(path: &ItemPath, failure: &Failure) -> FsError {
    if matches!(
        failure.kind,
        FailureKind::Io | FailureKind::Unavailable | FailureKind::Corrupt
    ) {
        tracing::warn!(%path, kind = ?failure.kind, %failure, "a request failed");
    }
    fs_error(failure.kind)
}

impl fuse::Backend for Front {
    fn lookup(&self, parent: Ino, name: &OsStr) -> Response<Lookup> {
        if self.inodes.is_asleep(parent.0) {
            let name = name.to_owned();
            return self.when_awake(parent, move |this| this.lookup(parent, &name));
        }
        let (parent, name) = (self.inode(parent)?, name.as_bytes());
        if name.len() > ItemPath::NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        // While the inodes exceed their bound, a look-up waits briefly for others to be dropped.
        let full = self.inodes.is_full();
        if !full && let Some(found) = self.metadata().try_look_up(parent.path(), name) {
            let answer = self.answer_lookup(&parent, name, found);
            return answer.map(Answer::Ready);
        }
        let (this, name) = (self.clone(), Bytes::copy_from_slice(name));
        pending(async move {
            if full {
                this.inodes.room().await;
            }
            let found = this.metadata().look_up(parent.path(), &name).await;
            let found = found.map_err(|failure| report(parent.path(), &failure))?;
            this.answer_lookup(&parent, &name, found)
        })
    }

    fn commit(&self) {
        self.inodes.commit();
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.inodes.forget(ino.0, count);
    }

    fn getattr(&self, ino: Ino) -> Response<Attr> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.getattr(ino));
        }
        let inode = self.inode(ino)?;
        let leased = self.promises.lease.is_some();
        if !leased && !self.inodes.is_outdated(ino.0) {
            return Ok(Answer::Ready(self.attr(&inode, None)));
        }
        if leased && let Some(now) = self.metadata().try_attributes_of(inode.path()) {
            return Ok(Answer::Ready(self.renewed(&inode, now)));
        }
        let this = self.clone();
        pending(async move {
            match this.metadata().attributes_of(inode.path()).await {
                Ok(now) => Ok(this.renewed(&inode, now)),
                // The attributes of a version that no longer exists do not change.
                Err(Failure {
                    kind: FailureKind::NotFound | FailureKind::NotADirectory,
                    ..
                }) if leased && inode.attributes.kind != FileKind::Directory => {
                    Ok(this.attr(&inode, this.promises.lease))
                }
                Err(failure) => Err(this.refuse(&inode, &failure)),
            }
        })
    }

    fn readlink(&self, ino: Ino) -> Response<Bytes> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.readlink(ino));
        }
        let target = self.inode(ino)?.attributes.link_target.clone();
        target.map(Answer::Ready).ok_or(FsError::InvalidArgument)
    }

    fn open(&self, thread: u32, ino: Ino) -> Response<fuse::Opened> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.open(thread, ino));
        }
        let (kind, file) = self.inodes.file(ino.0).ok_or(FsError::Stale)?;
        check_readable(kind)?;
        Ok(match &self.data {
            None => Answer::Ready(fuse::Opened::default()),
            Some(data) => data.open(thread, &file),
        })
    }

    fn release(&self, _ino: Ino, handle: u64) {
        if let Some(data) = &self.data {
            data.release(handle);
        }
    }

    fn backing(&self, ino: Ino) -> Response<Option<fuse::Backing>> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.backing(ino));
        }
        let inode = self.inodes.get_to_read(ino.0).ok_or(FsError::Stale)?;
        let whole = self.parts.backings.of(&self.parts.read, &inode);
        let whole = whole.filter(|whole| inode.given.note_whole(&whole.blocks) == Noted::Yes);
        Ok(Answer::Ready(whole.map(|whole| whole.file)))
    }

    fn read(&self, ino: Ino, handle: u64, offset: u64, size: u32) -> Response<Bytes> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.read(ino, handle, offset, size));
        }
        let item = self.data.as_ref().and_then(|data| data.item(handle));
        if let Some(item) = &item
            && let Some(bytes) = self.try_item(ino, item, offset, size)
        {
            return Ok(Answer::Ready(bytes));
        }
        let inode = self.inodes.get_to_read(ino.0).ok_or(FsError::Stale)?;
        check_readable(inode.attributes.kind)?;
        let left = inode.file.size.saturating_sub(offset);
        if item.is_some() {
            let size = size.min(u32::try_from(left).unwrap_or(u32::MAX));
            return Ok(match size {
                0 => Answer::Ready(Bytes::new()),
                size => self.read_from(item, inode, offset, size),
            });
        }
        if let Some(data) = &self.data {
            if let Some(reopening) = data.reopen(handle, &inode.file) {
                let this = self.clone();
                // It may wait for tokens of the job, as any read of an item.
                return Ok(Answer::Unbounded(Box::pin(async move {
                    reopening.await;
                    this.read(ino, handle, offset, size)?.resolve().await
                })));
            }
        } else {
            let bytes = left.min(size.into());
            let reader = &self.parts.datasets.reader;
            reader.unattributed(inode.path(), bytes);
        }
        if self.recorder.is_on() {
            let (path, whole) = (inode.path(), inode.file.size);
            self.recorder.read(path, whole, offset, u64::from(size));
        }
        Ok(match self.try_data(&inode, offset, size) {
            Some(bytes) => Answer::Ready(bytes),
            None => self.read_from(None, inode, offset, size),
        })
    }

    fn opendir(&self, ino: Ino) -> Response<fuse::OpenDir> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.opendir(ino));
        }
        self.open_directory(ino)
    }

    fn releasedir(&self, handle: u64) {
        self.opened.close(handle);
    }

    fn readdir(&self, ino: Ino, handle: u64, offset: u64) -> Response<Arc<dyn fuse::DirPage>> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.readdir(ino, handle, offset));
        }
        self.list(ino, handle, offset)
    }

    fn statfs(&self, ino: Ino) -> Response<fuse::Usage> {
        let path = self.inode(ino).map_or_else(
            |_| ItemPath::root(),
            |inode| match inode.path().split() {
                // A file's usage is that of its directory, so one request serves all files there.
                Some((parent, _)) if inode.attributes.kind != FileKind::Directory => parent,
                _ => inode.path().clone(),
            },
        );
        let this = self.clone();
        pending(async move {
            let usage = this.metadata().usage(&path).await;
            let usage = usage.map_err(|failure| report(&path, &failure))?;
            Ok(fuse::Usage {
                blocks: usage.blocks,
                blocks_free: usage.blocks_free,
                blocks_available: usage.blocks_available,
                files: usage.files,
                files_free: usage.files_free,
                block_size: usage.block_size,
                name_max: usage.name_max,
            })
        })
    }

    fn getxattr(&self, ino: Ino, name: &OsStr) -> Response<Bytes> {
        if self.inodes.is_asleep(ino.0) {
            let name = name.to_owned();
            return self.when_awake(ino, move |this| this.getxattr(ino, &name));
        }
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.xattrs(ino, move |list| {
            let found = list.iter().find(|(candidate, _)| *candidate == name);
            found
                .map(|(_, value)| value.clone())
                .ok_or(FsError::NoAttribute)
        })
    }

    fn listxattr(&self, ino: Ino) -> Response<Bytes> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.listxattr(ino));
        }
        self.xattrs(ino, |list| {
            let names = list.iter().flat_map(|(name, _)| [&name[..], b"\0"]);
            Ok(names.collect::<Vec<_>>().concat().into())
        })
    }

    fn lseek(&self, ino: Ino, offset: u64, hole: bool) -> Response<u64> {
        if self.inodes.is_asleep(ino.0) {
            return self.when_awake(ino, move |this| this.lseek(ino, offset, hole));
        }
        // Everything is data up to the one hole at the end: always true, though holes of the
        // origin are not told apart.
        let size = self.inode(ino)?.attributes.size;
        if offset >= size {
            return Err(FsError::BeyondEnd);
        }
        Ok(Answer::Ready(if hole { size } else { offset }))
    }

    fn pushable(&self, inos: &[Ino]) -> Vec<(Ino, Bytes)> {
        let mut files = Vec::new();
        // What is pushed is never asked for: a recording would miss it.
        if self.recorder.is_on() {
            return files;
        }
        for &ino in inos {
            let Some(inode) = self.inodes.get(ino.0) else {
                continue;
            };
            let small = (1..=self.push_file_max()).contains(&inode.file.size);
            if inode.attributes.kind == FileKind::File
                && inode.attributes.version.is_settled()
                && small
                && let Some(cut) = self.parts.read.data().try_whole(&inode.file)
                && self.parts.read.on_push(&inode.file)
                && self.inodes.claim_push(ino.0)
                && let Some(now) = self.inodes.get_to_read(ino.0)
                && now.file.version == inode.file.version
                && now.given.note(cut.parts.iter()) == Noted::Yes
            {
                files.push((ino, cut.bytes));
            }
        }
        files
    }

    fn prunable(&self, count: usize) -> Vec<Ino> {
        let condemned = self.inodes.condemned(count);
        condemned.into_iter().map(Ino).collect()
    }

    fn file_entry(&self, ino: Ino) -> Option<(Ino, Bytes)> {
        let (parent, name) = self.inodes.file_entry(ino.0)?;
        Some((Ino(parent), name))
    }

    // The numbers of the node, whichever mount is asked.
    fn node_stats(&self) -> String {
        self.parts.cluster.own_report().to_lines()
    }

    fn cluster_stats(&self, age: StatsAge) -> Response<String> {
        let cluster = self.parts.cluster.clone();
        pending(async move { Ok(cluster.sum(age).await.to_lines()) })
    }

    fn sockets(&self) -> fuse::Sockets {
        self.parts.cluster.sockets().clone()
    }

    fn clear(&self, path: Bytes, cluster: bool) -> Response<bool> {
        let path = ItemPath::parse(&path).map_err(|_invalid| FsError::InvalidArgument)?;
        if !self.parts.cluster.serves(&path) {
            return Err(FsError::NotFound);
        }
        let this = self.clone();
        pending(async move {
            // The FUSE thread polls this once, and a look at a million names takes too long there.
            tokio::task::yield_now().await;
            if cluster {
                let cleared = this.parts.cluster.clear(path.clone()).await;
                return cleared.map_err(|failure| report(&path, &failure));
            }
            Ok(this.clear(&path).await)
        })
    }
}

fn check_readable(kind: FileKind) -> Result<(), FsError> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::IsADirectory),
        FileKind::Symlink => Err(FsError::InvalidArgument),
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
            Err(FsError::SpecialFile)
        }
    }
}

pub(super) fn kind(kind: FileKind) -> fuse::FileKind {
    match kind {
        FileKind::File => fuse::FileKind::File,
        FileKind::Directory => fuse::FileKind::Directory,
        FileKind::Symlink => fuse::FileKind::Symlink,
        FileKind::Fifo => fuse::FileKind::Fifo,
        FileKind::Socket => fuse::FileKind::Socket,
        FileKind::CharDevice => fuse::FileKind::CharDevice,
        FileKind::BlockDevice => fuse::FileKind::BlockDevice,
    }
}

fn attr(number: u64, attributes: &Attributes, ttl: Duration) -> Attr {
    debug_assert!(number >= ROOT);
    let time = |time: Timestamp| fuse::Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    };
    Attr {
        ino: Ino(number),
        kind: kind(attributes.kind),
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        links: attributes.links,
        device: kernel_device(attributes.device),
        size: attributes.size,
        blocks: attributes.blocks,
        block_size: attributes.block_size,
        atime: time(attributes.atime),
        mtime: time(attributes.mtime),
        ctime: time(attributes.ctime),
        ttl,
    }
}

/// The kernel's 32-bit form of a device number (`new_encode_dev`): 12 bits of major, 20 of minor.
fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}
