//! Answers the kernel's requests from the read path.
//!
//! A hit is answered on the FUSE thread itself, and everything else becomes a future. This module translates between
//! inodes and paths. It has no data of its own.

mod arrivals;
mod continued;
mod directory;
mod kernel;
mod opened;

use super::backing::Backings;
use super::cluster::Cluster;
use super::data::{DataFiles, Opening};
use super::datasets::Datasets;
use super::errors::fs_error;
use super::items::OpenItem;
use super::sweeps::Wanted;
use super::watchdog::Lister;
use crate::namespace::{Inode, InodeTable, ROOT};
use crate::read::{Cut, Directory, LookupOutcome, Noted, ReadPath};
use crate::record::Recorder;
use crate::store::Store;
use arrivals::PushArrivals;
use bytes::Bytes;
use continued::{Continuing, ROUNDS_MAX, is_denied};
use copperfs_fuse as fuse;
use copperfs_overlay::{
    Attributes, Failure, FailureKind, FileKind, ItemPath, Leased, Timestamp, XattrList,
};
use directory::Page;
use fuse::{Answer, Attr, FsError, Ino, Lookup, Reader};
use opened::OpenDirectories;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The maximum time for which the kernel may use the attributes of an unsettled version, which will be
/// replaced soon.
const UNSETTLED_TTL: Duration = Duration::from_secs(1);

/// The promises to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promises {
    /// For names and attributes.
    pub(super) ttl: Duration,
    /// For names that do not exist.
    pub(super) negative_ttl: Duration,
    /// How long anything may be promised after storage was asked; `None`: until it is cleared.
    pub(super) lease: Option<Duration>,
    /// The largest file that is pushed, in bytes; 0: none is.
    pub(super) push_file_max: u64,
    /// The memory that names held by this mount's kernel may take, in bytes.
    pub(super) inodes_bytes_max: u64,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Front(Arc<FrontInner>);

/// The parts of a node that its front uses.
pub(super) struct Parts {
    pub(super) read: ReadPath,
    pub(super) promises: Promises,
    pub(super) backings: Backings,
    pub(super) store: Option<Store>,
    /// Answers the mounts' ioctls.
    pub(super) cluster: Cluster,
    pub(super) datasets: Datasets,
}

pub(super) struct FrontInner {
    pub(super) read: ReadPath,
    pub(super) inodes: Arc<InodeTable>,
    pub(super) promises: Promises,
    backings: Backings,
    opened: OpenDirectories,
    store: Option<Store>,
    /// Names at the top of the mount that the kernel was told do not exist, for kernels before 6.16. Such
    /// names in other directories are dropped when their directory is invalidated, but the root cannot be.
    absent_at_root: dashmap::DashSet<Bytes>,
    /// Set when the mount exists, which needs this front.
    pub(super) notifier: OnceLock<fuse::Notifier>,
    pub(super) recorder: Recorder,
    cluster: Cluster,
    /// Only on the data mount.
    pub(super) data: Option<Arc<DataFiles>>,
    datasets: Datasets,
    /// The front of the node's other mount, if there are two. Weak, because each refers to the other.
    other: OnceLock<Weak<Self>>,
    continuing: Continuing,
}

impl FrontInner {
    fn new(parts: Parts, root: Attributes, data: Option<Arc<DataFiles>>) -> Self {
        Self {
            read: parts.read,
            inodes: Arc::new(InodeTable::new(root, parts.promises.inodes_bytes_max)),
            promises: parts.promises,
            backings: parts.backings,
            opened: OpenDirectories::default(),
            store: parts.store,
            absent_at_root: dashmap::DashSet::new(),
            notifier: OnceLock::new(),
            recorder: Recorder::default(),
            cluster: parts.cluster,
            data,
            datasets: parts.datasets,
            other: OnceLock::new(),
            continuing: Continuing::default(),
        }
    }
}

/// The source of an open file's bytes.
#[derive(Clone)]
pub(super) enum Source {
    /// The node's read path.
    Path,
    /// The file's home, through this open file.
    Item(Arc<dyn OpenItem>),
}

/// The maximum number of absent names at the top. The kernel may not cache more than these.
const ABSENT_AT_ROOT_MAX: usize = 4096;

impl std::ops::Deref for Front {
    type Target = FrontInner;

    fn deref(&self) -> &FrontInner {
        &self.0
    }
}

impl Front {
    pub(super) fn new(parts: Parts, root: Attributes) -> Self {
        Self(Arc::new(FrontInner::new(parts, root, None)))
    }

    /// The front of the data mount beside this one: the same files from the same caches, with inodes
    /// of its own. Nothing is pushed there.
    pub(super) fn beside(&self, root: Attributes, data: Arc<DataFiles>) -> Self {
        let parts = Parts {
            read: self.read.clone(),
            promises: Promises {
                push_file_max: 0,
                ..self.promises
            },
            backings: self.backings.clone(),
            store: self.store.clone(),
            cluster: self.cluster.clone(),
            datasets: self.datasets.clone(),
        };
        let beside = Self(Arc::new(FrontInner::new(parts, root, Some(data))));
        drop(beside.other.set(Arc::downgrade(&self.0)));
        drop(self.other.set(Arc::downgrade(&beside.0)));
        beside
    }

    /// From now on the kernel can be notified, through `mount`. With a `lister`, prefetched files are pushed even if the
    /// kernel does not know them yet.
    pub(super) fn connect(&self, mount: &fuse::Mount, lister: Option<Lister>) {
        if self.notifier.set(mount.notifier()).is_err() {
            tracing::warn!("the mount was connected twice");
            return;
        }
        if self.promises.push_file_max > 0 {
            let arrivals = PushArrivals {
                front: Arc::downgrade(&self.0),
                push: mount.push(),
                lister,
            };
            self.read.connect(Arc::new(arrivals));
        }
    }

    /// The error for a reader after `failure`. If the file is not the one that the kernel knows, its name is invalidated
    /// first, so that the next look-up finds the present file.
    pub(super) async fn refuse(&self, inode: &Inode, failure: &Failure) -> FsError {
        if !matches!(failure.kind, FailureKind::Stale | FailureKind::NotFound) {
            return report(inode.path(), failure);
        }
        tracing::debug!(path = %inode.path(), %failure, "a reader gets ESTALE");
        self.stale(inode).await
    }

    /// Returns the error for a reader whose file was replaced, after invalidating its name in the kernel.
    pub(super) async fn stale(&self, inode: &Inode) -> FsError {
        if let Some(notifier) = self.notifier.get() {
            self.invalidate_place(notifier, inode.path()).await;
        }
        FsError::Stale
    }

    /// Answers a READ of an open file of a dataset.
    fn read_item(
        &self,
        item: Arc<dyn OpenItem>,
        inode: Arc<Inode>,
        offset: u64,
        size: u32,
    ) -> Answer<Bytes> {
        let left = inode.file.size.saturating_sub(offset);
        let size = size.min(u32::try_from(left).unwrap_or(u32::MAX));
        if size == 0 {
            return Answer::Ready(Ok(Bytes::new()));
        }
        self.read_from(Source::Item(item), inode, offset, size)
    }

    /// Answers a READ of `inode` from `source`, under the file's current version.
    fn read_from(
        &self,
        source: Source,
        inode: Arc<Inode>,
        offset: u64,
        size: u32,
    ) -> Answer<Bytes> {
        let cut = match &source {
            Source::Path => self.read.data().try_read(&inode.file, offset, size),
            Source::Item(item) => item.read_now(&inode.file, offset, size),
        };
        if let Some(cut) = cut
            && inode.given.note(cut.parts.iter()) == Noted::Yes
        {
            if matches!(source, Source::Path) {
                self.read.on_hit(&inode.file, &inode.ahead, offset, size);
            }
            return Answer::Ready(Ok(cut.bytes));
        }
        let (this, of_item) = (self.clone(), matches!(source, Source::Item(_)));
        let reading = Box::pin(async move { this.read_on(source, inode, offset, size).await });
        if of_item {
            // It may wait for its job's tokens without a limit. Every other step has its own time limit.
            Answer::Unbounded(reading)
        } else {
            Answer::Pending(reading)
        }
    }

    async fn read_on(
        &self,
        source: Source,
        mut inode: Arc<Inode>,
        offset: u64,
        size: u32,
    ) -> Result<Bytes, FsError> {
        for _ in 0..ROUNDS_MAX {
            if matches!(source, Source::Item(_)) && !inode.file.version.is_settled() {
                // Homes keep nothing of an unsettled version.
                inode = self.go_on(&inode, source.clone()).await?;
                continue;
            }
            let cut = match &source {
                Source::Path => {
                    let reading = self.read.read(&inode.file, &inode.ahead, offset, size);
                    reading.await
                }
                Source::Item(item) => item.read(&inode.file, offset, size).await,
            };
            match cut {
                Ok(Cut { bytes, parts }) => match inode.given.note(parts.iter()) {
                    Noted::Yes => return Ok(bytes),
                    Noted::Differs => {
                        let detail =
                            "the bytes differ from those returned before under the same version";
                        let failure = Failure::new(FailureKind::Stale, detail);
                        tracing::warn!(path = %inode.path(), %failure, "a file changed, but its version did not");
                        return Err(self.refuse(&inode, &failure).await);
                    }
                    Noted::Frozen => {}
                },
                Err(failure) if is_denied(&failure) => {}
                Err(failure) => return Err(self.refuse(&inode, &failure).await),
            }
            inode = self.go_on(&inode, source.clone()).await?;
        }
        Err(self.stale(&inode).await)
    }

    pub(super) fn inode(&self, ino: Ino) -> Result<Arc<Inode>, FsError> {
        self.inodes.get(ino.0).ok_or(FsError::Stale)
    }

    /// The attributes of an inode for the kernel, which may use them for what remains of `lease`.
    pub(super) fn attr(&self, inode: &Inode, lease: Option<Duration>) -> Attr {
        let ttl = self.ttl(&inode.attributes, lease);
        attr(inode.number, &inode.attributes, ttl)
    }

    fn ttl(&self, attributes: &Attributes, lease: Option<Duration>) -> Duration {
        let ttl = self.promises.ttl.min(lease.unwrap_or(Duration::MAX));
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
        parent: &ItemPath,
        name: &[u8],
        attributes: Leased<Attributes>,
    ) -> Option<(Attr, Duration)> {
        let path = parent.join(name).ok()?;
        let Leased { value, lease } = attributes;
        let ttl = self.ttl(&value, lease);
        let mut attr = attr(ROOT, &value, ttl);
        attr.ino = Ino(self.inodes.learn(&path, parent, name, value));
        if self.inodes.is_pruning_due()
            && let Some(notifier) = self.notifier.get()
        {
            notifier.prune();
        }
        Some((attr, ttl))
    }

    fn answer_lookup(
        &self,
        parent: &ItemPath,
        name: &[u8],
        found: Leased<LookupOutcome>,
    ) -> Result<Lookup, FsError> {
        let Leased {
            value: found,
            lease,
        } = found;
        if self.recorder.is_on()
            && let Ok(path) = parent.join(name)
        {
            let found = matches!(found, LookupOutcome::Attributes(_));
            self.recorder.looked_up(&path, found);
        }
        match found {
            LookupOutcome::Attributes(attributes) => {
                let attributes = Leased {
                    value: attributes,
                    lease,
                };
                let introduced = self.introduce(parent, name, attributes);
                let (attr, entry_ttl) = introduced.ok_or(FsError::NameTooLong)?;
                Ok(Lookup::Found { attr, entry_ttl })
            }
            LookupOutcome::Absent => Ok(Lookup::Absent {
                ttl: self
                    .absent_ttl(parent, name)
                    .min(lease.unwrap_or(Duration::MAX)),
            }),
        }
    }

    pub(super) fn recorder_sees(&self, inode: &Inode, directory: &Directory) {
        if self.recorder.is_on() {
            self.recorder.listed(inode.path(), directory.entries.len());
        }
    }

    fn absent_ttl(&self, parent: &ItemPath, name: &[u8]) -> Duration {
        if parent.is_root() {
            if self.absent_at_root.len() >= ABSENT_AT_ROOT_MAX {
                return Duration::ZERO;
            }
            self.absent_at_root.insert(Bytes::copy_from_slice(name));
        }
        self.promises.negative_ttl
    }

    fn xattrs(
        &self,
        ino: Ino,
        pick: impl Fn(&XattrList) -> Result<Bytes, FsError> + Send + 'static,
    ) -> Answer<Bytes> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        if self.recorder.is_on() {
            self.recorder.xattrs(inode.path());
        }
        if let Some(known) = self.read.metadata().try_xattrs(inode.path()) {
            return Answer::Ready(match known {
                Ok(list) => pick(&list),
                Err(failure) => Err(fs_error(failure.kind)),
            });
        }
        let this = self.clone();
        pending(async move {
            match this.read.metadata().xattrs(inode.path()).await {
                Ok(list) => pick(&list),
                Err(failure) if failure.kind == FailureKind::Unsupported => {
                    Err(FsError::Unsupported)
                }
                Err(failure) => Err(this.refuse(&inode, &failure).await),
            }
        })
    }
}

pub(super) fn pending<T>(
    future: impl Future<Output = Result<T, FsError>> + Send + 'static,
) -> Answer<T> {
    Answer::Pending(Box::pin(future))
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
    fn lookup(&self, _reader: Reader, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        let parent = match self.inode(parent) {
            Ok(parent) => parent,
            Err(error) => return Answer::Ready(Err(error)),
        };
        let name = name.as_bytes();
        if name.len() > ItemPath::NAME_BYTES_MAX {
            return Answer::Ready(Err(FsError::NameTooLong));
        }
        // While the inodes exceed their bound, a look-up waits briefly for others to be dropped.
        let full = self.inodes.is_full();
        if !full && let Some(found) = self.read.metadata().try_look_up(parent.path(), name) {
            return Answer::Ready(self.answer_lookup(parent.path(), name, found));
        }
        let (this, name) = (self.clone(), Bytes::copy_from_slice(name));
        pending(async move {
            if full {
                this.inodes.room().await;
            }
            match this.read.metadata().look_up(parent.path(), &name).await {
                Ok(found) => this.answer_lookup(parent.path(), &name, found),
                Err(failure) => Err(report(parent.path(), &failure)),
            }
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.inodes.forget(ino.0, count);
    }

    fn getattr(&self, ino: Ino) -> Answer<Attr> {
        if self.promises.lease.is_some() {
            return self.leased_attr(ino);
        }
        let inode = match self.inode(ino) {
            Ok(inode) if self.inodes.is_outdated(ino.0) => inode,
            known => return Answer::Ready(known.map(|inode| self.attr(&inode, None))),
        };
        let this = self.clone();
        pending(async move {
            match this.read.metadata().attributes_of(inode.path()).await {
                Ok(attributes) => {
                    let inode = this
                        .inodes
                        .renew(inode.number, attributes.value)
                        .unwrap_or(inode);
                    Ok(this.attr(&inode, None))
                }
                Err(failure) => Err(this.refuse(&inode, &failure).await),
            }
        })
    }

    fn readlink(&self, ino: Ino) -> Answer<Bytes> {
        Answer::Ready(self.inode(ino).and_then(|inode| {
            inode
                .attributes
                .link_target
                .clone()
                .ok_or(FsError::InvalidArgument)
        }))
    }

    fn open(&self, reader: Reader, ino: Ino) -> Answer<fuse::Opened> {
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        if let Err(error) = check_readable(&inode) {
            return Answer::Ready(Err(error));
        }
        match self
            .data
            .as_ref()
            .map(|data| data.open(reader, &inode.file))
        {
            None => Answer::Ready(Ok(fuse::Opened::default())),
            Some(Opening::Ready(opened)) => Answer::Ready(Ok(opened)),
            Some(Opening::Later(opening)) => pending(async move { Ok(opening.await) }),
        }
    }

    fn release(&self, _ino: Ino, handle: u64) {
        if let Some(data) = &self.data {
            data.release(handle);
        }
    }

    fn backing(&self, ino: Ino) -> Answer<Option<fuse::Backing>> {
        let inode = self.inodes.get_to_read(ino.0).ok_or(FsError::Stale);
        Answer::Ready(inode.map(|inode| {
            let whole = self.backings.of(&self.read, &inode)?;
            let noted = inode.given.note_whole(&whole.blocks);
            (noted == Noted::Yes).then_some(whole.file)
        }))
    }

    fn read(
        &self,
        _reader: Reader,
        ino: Ino,
        handle: u64,
        offset: u64,
        size: u32,
    ) -> Answer<Bytes> {
        let inode = self.inodes.get_to_read(ino.0).ok_or(FsError::Stale);
        let inode = match inode.and_then(|inode| check_readable(&inode).map(|()| inode)) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        if let Some(item) = self.data.as_ref().and_then(|data| data.item(handle)) {
            return self.read_item(item, inode, offset, size);
        }
        if self.data.is_none() {
            let left = inode.file.size.saturating_sub(offset);
            let bytes = left.min(size.into());
            self.datasets.reader.unattributed(inode.path(), bytes);
        }
        if self.recorder.is_on() {
            let (path, whole) = (inode.path(), inode.file.size);
            self.recorder.read(path, whole, offset, u64::from(size));
        }
        self.read_from(Source::Path, inode, offset, size)
    }

    fn opendir(&self, ino: Ino) -> Answer<fuse::OpenDir> {
        self.open_directory(ino)
    }

    fn releasedir(&self, handle: u64) {
        self.opened.close(handle);
    }

    fn readdir(
        &self,
        ino: Ino,
        handle: u64,
        offset: u64,
        _plus: bool,
    ) -> Answer<Arc<dyn fuse::DirPage>> {
        let inode = match self.directory_inode(ino) {
            Ok(inode) => inode,
            Err(error) => return Answer::Ready(Err(error)),
        };
        if self.promises.lease.is_some() {
            return self.list_opened(inode, handle, offset);
        }
        let wanted = Page::entry_at(offset);
        if let Some((first, directory)) = self.read.try_page_with(inode.path(), wanted) {
            self.recorder_sees(&inode, &directory);
            return Answer::Ready(Ok(Page::open(
                self.clone(),
                inode,
                directory,
                first,
                offset,
            )));
        }
        let this = self.clone();
        pending(async move {
            match this.read.page_with(inode.path(), wanted).await {
                Ok((first, directory)) => {
                    this.recorder_sees(&inode, &directory);
                    Ok(Page::open(this, inode, directory, first, offset))
                }
                Err(failure) => Err(report(inode.path(), &failure)),
            }
        })
    }

    fn statfs(&self, ino: Ino) -> Answer<fuse::Usage> {
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
            let usage = this
                .read
                .metadata()
                .usage(&path)
                .await
                .map_err(|failure| report(&path, &failure))?;
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

    fn getxattr(&self, ino: Ino, name: &OsStr) -> Answer<Bytes> {
        let name = Bytes::copy_from_slice(name.as_bytes());
        self.xattrs(ino, move |list| {
            let found = list.iter().find(|(candidate, _)| *candidate == name);
            found
                .map(|(_, value)| value.clone())
                .ok_or(FsError::NoAttribute)
        })
    }

    fn listxattr(&self, ino: Ino) -> Answer<Bytes> {
        self.xattrs(ino, |list| {
            let names = list.iter().flat_map(|(name, _)| [&name[..], b"\0"]);
            Ok(names.collect::<Vec<_>>().concat().into())
        })
    }

    fn lseek(&self, ino: Ino, offset: u64, hole: bool) -> Answer<u64> {
        Answer::Ready(self.inode(ino).and_then(|inode| {
            // Everything is data up to the one hole at the end: always true, though holes of the
            // origin are not told apart.
            let size = inode.attributes.size;
            if offset >= size {
                Err(FsError::BeyondEnd)
            } else {
                Ok(if hole { size } else { offset })
            }
        }))
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
            let small = (1..=self.promises.push_file_max).contains(&inode.file.size);
            if inode.attributes.kind == FileKind::File
                && inode.attributes.version.is_settled()
                && small
                && let Some(cut) = self.read.data().try_whole(&inode.file)
                && self.read.on_push(&inode.file)
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
        self.cluster.own_report().to_lines()
    }

    fn cluster_stats(&self, age: fuse::StatsAge) -> Answer<String> {
        let cluster = self.cluster.clone();
        let wanted = Wanted::recent(age == fuse::StatsAge::Recent);
        pending(async move { Ok(cluster.sum(wanted).await.to_lines()) })
    }

    fn sockets(&self) -> Option<fuse::Sockets> {
        Some(self.cluster.sockets().clone())
    }

    fn clear(&self, path: Bytes, cluster: bool) -> Answer<bool> {
        let Ok(path) = ItemPath::parse(&path) else {
            return Answer::Ready(Err(FsError::InvalidArgument));
        };
        if !self.cluster.serves(&path) {
            return Answer::Ready(Err(FsError::NotFound));
        }
        let this = self.clone();
        pending(async move {
            if cluster {
                return this
                    .cluster
                    .clear(path.clone())
                    .await
                    .map_err(|failure| report(&path, &failure));
            }
            Ok(this.clear(&path).await)
        })
    }
}

fn check_readable(inode: &Inode) -> Result<(), FsError> {
    match inode.attributes.kind {
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
