//! The FUSE front's questions, answered from the read path.
//!
//! A hit is answered on the FUSE thread itself; everything else becomes a future. This module turns
//! paths and attributes into inodes and back; it holds no data of its own.

mod arrivals;
mod continued;
mod directory;
mod opened;

use super::clearing;
use super::data::{DataFiles, Opening};
use super::errors::fs_error;
use super::sweeps::Wanted;
use super::watchdog::Lister;
use crate::namespace::{Inode, InodeTable, ROOT};
use crate::read::{Directory, LookupOutcome, Noted, ReadPath};
use crate::record::Recorder;
use crate::store::Store;
use arrivals::PushArrivals;
use bytes::Bytes;
use continued::{Continuing, Source};
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

/// What the front may promise the kernel.
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

pub(super) struct FrontInner {
    pub(super) read: ReadPath,
    pub(super) inodes: Arc<InodeTable>,
    pub(super) promises: Promises,
    backings: super::backing::Backings,
    opened: OpenDirectories,
    store: Option<Store>,
    /// Names at the top of the mount that the kernel was told do not exist, for kernels before 6.16:
    /// below, such names go with their directory when that is invalidated; the root cannot be.
    absent_at_root: dashmap::DashSet<Bytes>,
    pub(super) notifier: OnceLock<fuse::Notifier>,
    pub(super) recorder: Recorder,
    pub(super) cluster: OnceLock<super::cluster::Cluster>,
    /// Of the data mount only.
    pub(super) data: Option<Arc<DataFiles>>,
    pub(super) datasets: OnceLock<super::datasets::Datasets>,
    /// The front of the node's other mount, if there are two. Weak: each knows the other.
    other: OnceLock<Weak<Self>>,
    continuing: Continuing,
}

/// More absent names at the top than this are promised to the kernel for no time at all.
const ABSENT_AT_ROOT_MAX: usize = 4096;

impl std::ops::Deref for Front {
    type Target = FrontInner;

    fn deref(&self) -> &FrontInner {
        &self.0
    }
}

impl Front {
    pub(super) fn new(
        read: ReadPath,
        root: Attributes,
        promises: Promises,
        backings: super::backing::Backings,
        store: Option<Store>,
    ) -> Self {
        Self(Arc::new(FrontInner {
            read,
            inodes: Arc::new(InodeTable::new(root, promises.inodes_bytes_max)),
            promises,
            backings,
            opened: OpenDirectories::default(),
            store,
            absent_at_root: dashmap::DashSet::new(),
            notifier: OnceLock::new(),
            recorder: Recorder::default(),
            cluster: OnceLock::new(),
            data: None,
            datasets: OnceLock::new(),
            other: OnceLock::new(),
            continuing: Continuing::default(),
        }))
    }

    /// The front of the data mount beside this one: the same files from the same caches, with inodes
    /// and a kernel's view of their own. Nothing is pushed there.
    pub(super) fn beside(&self, root: Attributes, data: Arc<DataFiles>) -> Self {
        let promises = Promises {
            push_file_max: 0,
            ..self.promises
        };
        let beside = Self(Arc::new(FrontInner {
            read: self.read.clone(),
            inodes: Arc::new(InodeTable::new(root, promises.inodes_bytes_max)),
            promises,
            backings: self.backings.clone(),
            opened: OpenDirectories::default(),
            store: self.store.clone(),
            absent_at_root: dashmap::DashSet::new(),
            notifier: OnceLock::new(),
            recorder: Recorder::default(),
            cluster: OnceLock::new(),
            data: Some(data),
            datasets: self.datasets.clone(),
            other: OnceLock::new(),
            continuing: Continuing::default(),
        }));
        drop(beside.other.set(Arc::downgrade(&self.0)));
        drop(self.other.set(Arc::downgrade(&beside.0)));
        beside
    }

    /// Tells the kernel things unasked from now on, with a `lister` also of what is not known there.
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

    /// Drops the cached state of `path` and below on this node and in its kernel, on both mounts. Returns
    /// after the kernel has dropped it, and returns whether anything was cached.
    pub(super) async fn clear(&self, path: &ItemPath) -> bool {
        let held = self.clear_caches(path).await;
        self.forget_in_kernels(path).await;
        held
    }

    /// The first part of [`Front::clear`]: drops what this node caches. Returns whether this node or its
    /// kernel had anything.
    pub(super) async fn clear_caches(&self, path: &ItemPath) -> bool {
        let known = |front: &Self| !front.inodes.below(path).is_empty();
        let known = known(self) || self.other_mount().as_ref().is_some_and(known);
        let datasets = self.datasets.get();
        let held = clearing::clear(&self.read, self.store.as_ref(), datasets, path).await;
        self.backings.clear(path);
        known || held
    }

    /// The second part of [`Front::clear`]: drops what the kernel has, on both mounts. It waits for reads
    /// under way, which hold pages.
    pub(super) async fn forget_in_kernels(&self, path: &ItemPath) {
        match self.other_mount() {
            Some(other) => {
                tokio::join!(self.forget_in_kernel(path), other.forget_in_kernel(path));
            }
            None => self.forget_in_kernel(path).await,
        }
    }

    fn other_mount(&self) -> Option<Self> {
        self.other.get().and_then(Weak::upgrade).map(Self)
    }

    /// Drops what the kernel holds of `path` and below on this mount. Returns when it has; what this node caches
    /// stays.
    pub(super) async fn forget_in_kernel(&self, path: &ItemPath) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        for number in self.inodes.below(path) {
            notifier.invalidate_inode(Ino(number)).await;
            self.inodes.invalidated(number);
            if !path.is_root() {
                self.invalidate_entry_of(notifier, number).await;
            }
        }
        if path.is_root() {
            self.invalidate_top(notifier).await;
        } else {
            // A directory takes the names below it along, present or absent, but for those in use (an
            // open file, a working directory): these have been taken above.
            self.invalidate_place(notifier, path).await;
        }
        notifier.flush().await;
    }

    /// Makes the kernel forget the name of an inode.
    async fn invalidate_entry_of(&self, notifier: &fuse::Notifier, number: u64) {
        if let Some((parent, name)) = self.inodes.entry(number)
            && let Some(parent) = self.inodes.number_at(&parent)
        {
            notifier.invalidate_entry(Ino(parent), name).await;
        }
    }

    /// Lets the kernel forget what `path` is, if it holds the directory.
    async fn invalidate_name(&self, notifier: &fuse::Notifier, path: &ItemPath) {
        if let Some((parent, name)) = path.split()
            && let Some(parent) = self.inodes.number_at(&parent)
        {
            let name = Bytes::copy_from_slice(name);
            notifier.invalidate_entry(Ino(parent), name).await;
        }
    }

    /// Lets the kernel forget what `path` is, and the listing that it stands in.
    async fn invalidate_place(&self, notifier: &fuse::Notifier, path: &ItemPath) {
        self.invalidate_name(notifier, path).await;
        if let Some((parent, _)) = path.split()
            && let Some(parent) = self.inodes.number_at(&parent)
        {
            notifier.invalidate_inode(Ino(parent)).await;
        }
    }

    /// Lets the kernel forget every name of the mount.
    async fn invalidate_top(&self, notifier: &fuse::Notifier) {
        let expired = notifier.expire_all_entries().await;
        let absent: Vec<Bytes> = self
            .absent_at_root
            .iter()
            .map(|name| name.clone())
            .collect();
        self.absent_at_root.clear();
        if expired {
            return;
        }
        for number in self.inodes.below(&ItemPath::root()) {
            self.invalidate_entry_of(notifier, number).await;
        }
        for name in absent {
            notifier.invalidate_entry(Ino::ROOT, name).await;
        }
    }

    /// What to tell a reader after `failure`. A file that is no longer what the kernel believes has
    /// its name invalidated first, so that the next look-up finds what is there now.
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

/// Logs what an application is about to see as an error, where that says more than the errno.
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
        if self.data.is_none()
            && let Some(datasets) = self.datasets.get()
        {
            let left = inode.file.size.saturating_sub(offset);
            let bytes = left.min(size.into());
            datasets.reader.unattributed(inode.path(), bytes);
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
        let cluster = self.cluster.get();
        cluster.map_or_else(String::new, |cluster| cluster.own_report().to_lines())
    }

    fn cluster_stats(&self, age: fuse::StatsAge) -> Answer<String> {
        let Some(cluster) = self.cluster.get().cloned() else {
            return Answer::Ready(Err(FsError::Unsupported));
        };
        let wanted = Wanted::recent(age == fuse::StatsAge::Recent);
        pending(async move { Ok(cluster.sum(wanted).await.to_lines()) })
    }

    fn sockets(&self) -> Option<fuse::Sockets> {
        self.cluster.get().map(|cluster| cluster.sockets().clone())
    }

    fn clear(&self, path: Bytes, cluster: bool) -> Answer<bool> {
        let Ok(path) = ItemPath::parse(&path) else {
            return Answer::Ready(Err(FsError::InvalidArgument));
        };
        if !self.cluster.get().is_none_or(|node| node.serves(&path)) {
            return Answer::Ready(Err(FsError::NotFound));
        }
        let this = self.clone();
        pending(async move {
            if cluster && let Some(all) = this.cluster.get() {
                return all
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
