//! A filesystem in memory whose requests can hang and whose listings can lack attributes.

use bytes::Bytes;
use copperfs_fuse::Sockets;
use copperfs_fuse::{
    Answer, Attr, Backend, Backing, Counters, DirEntry, DirPage, FileKind, FsError, Ino, Lookup,
    Opened, Response, StatsAge, Timestamp, Usage,
};
use copperfs_metrics::Registry;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Entries in one page: small, so that large directories need several.
const PAGE_ENTRIES: usize = 700;
pub(crate) const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone)]
pub(crate) enum Content {
    File(Bytes),
    Directory(Vec<(Bytes, Ino)>),
    Symlink(Bytes),
    Special,
}

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) attr: Attr,
    pub(crate) content: Content,
    pub(crate) xattrs: Vec<(Bytes, Bytes)>,
    /// Whether listings carry its attributes.
    pub(crate) plus: bool,
    pub(crate) hang_read: bool,
    pub(crate) hang_readdir: bool,
    pub(crate) backing: Option<Backing>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) nodes: HashMap<Ino, Node>,
    next: u64,
    pub(crate) references: HashMap<Ino, u64>,
    /// Names whose look-up waits until `release`.
    pub(crate) hanging_names: HashSet<Bytes>,
    pub(crate) pushed: HashSet<Ino>,
    pub(crate) opened: Vec<Ino>,
    pub(crate) released: Vec<Ino>,
    /// The handles of `released`, in the same order.
    pub(crate) released_handles: Vec<u64>,
    /// The handle of each READ.
    pub(crate) read_handles: Vec<u64>,
    /// Whether opens bypass the page cache.
    pub(crate) direct: bool,
    pub(crate) cleared: Vec<(Bytes, bool)>,
    pub(crate) push: bool,
    /// Inodes that the kernel should drop.
    pub(crate) prunable: Vec<Ino>,
    /// Number of requests that hang or hung.
    pub(crate) hung: u64,
}

/// The backend of all tests.
pub(crate) struct Memory {
    /// Counters of the mount.
    pub(crate) counters: Arc<Counters>,
    state: Mutex<State>,
    released: watch::Sender<bool>,
    this: Weak<Self>,
}

impl Memory {
    pub(crate) fn new() -> Arc<Self> {
        let memory = Arc::new_cyclic(|this| Self {
            counters: Arc::default(),
            state: Mutex::default(),
            released: watch::Sender::new(false),
            this: Weak::clone(this),
        });
        {
            let mut state = memory.state();
            state.next = 2;
            state.push = true;
            let root = node(
                Ino::ROOT,
                FileKind::Directory,
                Content::Directory(Vec::new()),
            );
            state.nodes.insert(Ino::ROOT, root);
        }
        memory
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Makes all hanging requests fail.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }

    pub(crate) fn add(
        &self,
        parent: Ino,
        name: impl AsRef<[u8]>,
        kind: FileKind,
        content: Content,
    ) -> Ino {
        let mut state = self.state();
        let ino = Ino(state.next);
        state.next += 1;
        state.nodes.insert(ino, node(ino, kind, content));
        let name = Bytes::copy_from_slice(name.as_ref());
        if let Content::Directory(entries) = &mut state.nodes.get_mut(&parent).unwrap().content {
            entries.retain(|(old, _)| *old != name);
            entries.push((name, ino));
        }
        ino
    }

    pub(crate) fn file(&self, parent: Ino, name: impl AsRef<[u8]>, bytes: impl Into<Bytes>) -> Ino {
        self.add(parent, name, FileKind::File, Content::File(bytes.into()))
    }

    pub(crate) fn directory(&self, parent: Ino, name: impl AsRef<[u8]>) -> Ino {
        self.add(
            parent,
            name,
            FileKind::Directory,
            Content::Directory(Vec::new()),
        )
    }

    pub(crate) fn change<T>(&self, ino: Ino, change: impl FnOnce(&mut Node) -> T) -> T {
        change(self.state().nodes.get_mut(&ino).unwrap())
    }

    fn with<T>(
        &self,
        ino: Ino,
        get: impl FnOnce(&Node) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.state()
            .nodes
            .get(&ino)
            .ok_or(FsError::Stale)
            .and_then(get)
    }

    fn hang<T: Send + 'static>(&self) -> Response<T> {
        self.state().hung += 1;
        let mut released = self.released.subscribe();
        Ok(Answer::Pending(Box::pin(async move {
            released.wait_for(|&released| released).await.unwrap();
            Err(FsError::Io)
        })))
    }
}

fn node(ino: Ino, kind: FileKind, content: Content) -> Node {
    let size = match &content {
        Content::File(bytes) | Content::Symlink(bytes) => bytes.len() as u64,
        _ => 0,
    };
    let mode = match kind {
        FileKind::Directory => 0o755,
        FileKind::Symlink => 0o777,
        _ => 0o644,
    };
    let time = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 123_456_789,
    };
    Node {
        attr: Attr {
            ino,
            kind,
            mode,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            links: 1,
            device: 0,
            size,
            blocks: size.div_ceil(512),
            block_size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            ttl: LONG,
        },
        content,
        xattrs: Vec::new(),
        plus: true,
        hang_read: false,
        hang_readdir: false,
        backing: None,
    }
}

struct Page {
    memory: Arc<Memory>,
    entries: Vec<DirEntry>,
}

impl DirPage for Page {
    fn entry(&self, index: usize) -> Option<DirEntry> {
        self.entries.get(index).cloned()
    }

    fn look_up(&self, index: usize) -> Option<Attr> {
        let ino = self.entries.get(index)?.ino;
        let mut state = self.memory.state();
        let attr = state.nodes.get(&ino)?.attr;
        *state.references.entry(ino).or_default() += 1;
        Some(attr)
    }
}

impl Backend for Memory {
    fn lookup(&self, parent: Ino, name: &OsStr) -> Response<Lookup> {
        let name = name.as_bytes();
        if self.state().hanging_names.contains(name) {
            return self.hang();
        }
        let found = self.with(parent, |node| match &node.content {
            Content::Directory(entries) => Ok(entries
                .iter()
                .find(|(candidate, _)| candidate == name)
                .map(|(_, ino)| *ino)),
            _ => Err(FsError::NotADirectory),
        });
        found
            .and_then(|ino| match ino {
                None => Ok(Lookup::Absent { ttl: LONG }),
                Some(ino) => {
                    let attr = self.with(ino, |node| Ok(node.attr))?;
                    *self.state().references.entry(ino).or_default() += 1;
                    Ok(Lookup::Found(attr))
                }
            })
            .map(Answer::Ready)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.state();
        if let Some(references) = state.references.get_mut(&ino) {
            *references = references.checked_sub(count).expect("forgot too much");
            if *references == 0 {
                state.references.remove(&ino);
                state.pushed.remove(&ino);
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Response<Attr> {
        self.with(ino, |node| Ok(node.attr)).map(Answer::Ready)
    }

    fn readlink(&self, ino: Ino) -> Response<Bytes> {
        self.with(ino, |node| match &node.content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::InvalidArgument),
        })
        .map(Answer::Ready)
    }

    fn open(&self, _thread: u32, ino: Ino) -> Response<Opened> {
        let mut state = self.state();
        state.opened.push(ino);
        Ok(Answer::Ready(Opened {
            handle: state.opened.len() as u64,
            direct: state.direct,
        }))
    }

    fn release(&self, ino: Ino, handle: u64) {
        let mut state = self.state();
        state.released.push(ino);
        state.released_handles.push(handle);
    }

    fn backing(&self, ino: Ino) -> Response<Option<Backing>> {
        self.with(ino, |node| Ok(node.backing.clone()))
            .map(Answer::Ready)
    }

    fn read(&self, ino: Ino, handle: u64, offset: u64, size: u32) -> Response<Bytes> {
        self.state().read_handles.push(handle);
        if self.with(ino, |node| Ok(node.hang_read)) == Ok(true) {
            return self.hang();
        }
        self.with(ino, |node| match &node.content {
            Content::File(bytes) => {
                let from = usize::try_from(offset).unwrap().min(bytes.len());
                let to = (from + size as usize).min(bytes.len());
                Ok(bytes.slice(from..to))
            }
            _ => Err(FsError::IsADirectory),
        })
        .map(Answer::Ready)
    }

    fn readdir(&self, ino: Ino, _handle: u64, offset: u64) -> Response<Arc<dyn DirPage>> {
        if self.with(ino, |node| Ok(node.hang_readdir)) == Ok(true) {
            return self.hang();
        }
        let state = self.state();
        let Some(Content::Directory(children)) = state.nodes.get(&ino).map(|node| &node.content)
        else {
            return Err(FsError::NotADirectory);
        };
        let dots = [".", ".."].map(|name| DirEntry {
            name: Bytes::from_static(name.as_bytes()),
            kind: FileKind::Directory,
            ino,
            plus: false,
        });
        let entries = children.iter().map(|(name, child)| DirEntry {
            name: name.clone(),
            kind: state.nodes[child].attr.kind,
            ino: *child,
            plus: state.nodes[child].plus,
        });
        let entries = dots
            .into_iter()
            .chain(entries)
            .skip(usize::try_from(offset).unwrap())
            .take(PAGE_ENTRIES)
            .collect();
        Ok(Answer::Ready(Arc::new(Page {
            memory: self.this.upgrade().unwrap(),
            entries,
        })))
    }

    fn statfs(&self, _ino: Ino) -> Response<Usage> {
        Ok(Answer::Ready(Usage {
            blocks: 1000,
            blocks_free: 500,
            blocks_available: 400,
            files: 77,
            files_free: 7,
            block_size: 4096,
            name_max: 255,
        }))
    }

    fn getxattr(&self, ino: Ino, name: &OsStr) -> Response<Bytes> {
        let name = name.as_bytes();
        self.with(ino, |node| {
            let found = node.xattrs.iter().find(|(candidate, _)| candidate == name);
            found
                .map(|(_, value)| value.clone())
                .ok_or(FsError::NoAttribute)
        })
        .map(Answer::Ready)
    }

    fn listxattr(&self, ino: Ino) -> Response<Bytes> {
        self.with(ino, |node| {
            let names = node.xattrs.iter().flat_map(|(name, _)| [&name[..], b"\0"]);
            Ok(names.collect::<Vec<_>>().concat().into())
        })
        .map(Answer::Ready)
    }

    /// The first half of every file is data, the second half is a hole.
    fn lseek(&self, ino: Ino, offset: u64, hole: bool) -> Response<u64> {
        self.with(ino, |node| {
            let (size, middle) = (node.attr.size, node.attr.size / 2);
            match (offset >= size, hole) {
                (true, _) => Err(FsError::BeyondEnd),
                (false, true) => Ok(offset.max(middle)),
                (false, false) if offset < middle => Ok(offset),
                (false, false) => Err(FsError::BeyondEnd),
            }
        })
        .map(Answer::Ready)
    }

    fn pushable(&self, inos: &[Ino]) -> Vec<(Ino, Bytes)> {
        let mut state = self.state();
        let State {
            nodes,
            pushed,
            push,
            ..
        } = &mut *state;
        inos.iter()
            .filter(|_| *push)
            .filter_map(|ino| match &nodes.get(ino)?.content {
                Content::File(bytes) => Some((*ino, bytes.clone())),
                _ => None,
            })
            .filter(|(ino, _)| pushed.insert(*ino))
            .collect()
    }

    fn prunable(&self, count: usize) -> Vec<Ino> {
        let prunable = &mut self.state().prunable;
        let count = count.min(prunable.len());
        prunable.drain(..count).collect()
    }

    fn file_entry(&self, ino: Ino) -> Option<(Ino, Bytes)> {
        let state = self.state();
        state.nodes.iter().find_map(|(parent, node)| {
            let Content::Directory(entries) = &node.content else {
                return None;
            };
            let (name, _) = entries.iter().find(|(_, entry)| *entry == ino)?;
            Some((*parent, name.clone()))
        })
    }

    fn node_stats(&self) -> String {
        let registry = Registry::default();
        self.counters.declare(&registry, "software");
        let mut lines = "node memory\ncoalesced 4711\n".to_owned();
        let mut left: Vec<_> = registry.snapshot().to_json().into_iter().collect();
        while let Some((name, value)) = left.pop() {
            match value.as_object() {
                Some(object) => left.extend(
                    (object.iter()).map(|(key, below)| (format!("{name}.{key}"), below.clone())),
                ),
                None => lines += &format!("{name} {value}\n"),
            }
        }
        lines
    }

    fn cluster_stats(&self, _age: StatsAge) -> Response<String> {
        Ok(Answer::Pending(Box::pin(async {
            Ok("nodes 2\n".to_owned())
        })))
    }

    fn sockets(&self) -> Sockets {
        Sockets {
            owner: "/run/copperfs/control.sock".into(),
            users: "copperfs-17".into(),
        }
    }

    fn clear(&self, path: Bytes, cluster: bool) -> Response<bool> {
        let first = self.state().cleared.is_empty();
        self.state().cleared.push((path, cluster));
        Ok(Answer::Ready(first))
    }
}
