//! From the kernel's requests to the backend's answers and back.
//!
//! An answer at hand is sent on the FUSE thread itself; one that must be waited for takes its reply
//! along to the runtime ([`Pending`]). No handler blocks, so two threads serve any number of readers.
//! What would change the filesystem is answered EROFS here and never reaches the backend.

use crate::backend::{Answer, Backend, FsError, Ino, Reader, StatsAge};
use crate::counters::{Counters, InHand, Op};
use crate::dirplus;
use crate::errno::{READ_ONLY, errno};
use crate::interrupt::Pending;
use crate::ioctl;
use crate::passthrough::Opens;
use crate::policy::{Granted, OpenMode, Policy};
use crate::repeats::{Repeats, What};
use crate::reply;
use crate::shared::Shared;
use bytes::Bytes;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// `l_type` of a range that nobody has locked.
const F_UNLCK: i32 = 2;
/// Longest name in bytes, as everywhere on Linux.
const NAME_BYTES_MAX: usize = 255;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// fuser's view of one mount.
pub(crate) struct Adapter {
    shared: Arc<Shared>,
    pending: Arc<Pending>,
    opens: Arc<Opens>,
    policy: Policy,
    granted: Granted,
    /// How long a request may wait for its answer.
    patience: Duration,
    repeats: Arc<Repeats>,
}

impl Adapter {
    pub(crate) fn new(
        shared: Arc<Shared>,
        pending: Arc<Pending>,
        policy: Policy,
        patience: Duration,
    ) -> Self {
        Self {
            shared,
            pending,
            patience,
            repeats: Arc::default(),
            opens: Arc::default(),
            policy,
            granted: Granted::default(),
        }
    }

    fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Sends an answer now, or when it is there.
    fn send<T, R>(
        &self,
        hand: &InHand<'_>,
        request: &Request,
        answer: Answer<T>,
        reply: R,
        send: impl FnOnce(R, Result<T, FsError>) + Send + 'static,
    ) where
        T: Send + 'static,
        R: Send + 'static,
    {
        let ceiling = Some(self.patience);
        self.send_within(ceiling, hand, request, answer, move |result| {
            send(reply, result);
        });
    }

    fn send_within<T: Send + 'static>(
        &self,
        ceiling: Option<Duration>,
        hand: &InHand<'_>,
        request: &Request,
        answer: Answer<T>,
        send: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let (future, ceiling) = match answer {
            Answer::Ready(result) => return send(result),
            Answer::Pending(future) => (future, ceiling),
            Answer::Unbounded(future) => (future, None),
        };
        let latency = hand.later();
        let reader = request.pid();
        self.pending.wait(reader, ceiling, future, move |result| {
            send(result);
            latency.observe();
        });
    }

    /// Like [`Adapter::send`], for a request that the kernel repeats when it fails.
    fn send_once<T: Send + 'static>(
        &self,
        hand: &InHand<'_>,
        request: &Request,
        what: What,
        ask: impl FnOnce() -> Answer<T>,
        send: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let (reader, begun) = (request.pid(), Instant::now());
        if let Some(error) = self.repeats.answer(reader, &what, begun) {
            return send(Err(error));
        }
        match ask() {
            Answer::Ready(result) => send(result),
            answer => {
                let (repeats, long) = (Arc::clone(&self.repeats), self.patience / 4);
                self.send_within(Some(self.patience), hand, request, answer, move |result| {
                    let now = Instant::now();
                    if let Err(error @ FsError::Io) = &result
                        && now.duration_since(begun) >= long
                    {
                        repeats.failed(reader, what, *error, now);
                    }
                    send(result);
                });
            }
        }
    }

    fn write_refused(&self) -> Errno {
        self.counters().add(Op::Write, 1);
        READ_ONLY
    }

    /// Opens for a passthrough mount, once the backend has agreed to the open.
    fn open_through(&self, hand: &InHand<'_>, request: &Request, ino: Ino, reply: ReplyOpen) {
        let Some(reply) = self.opens.join(ino, reply) else {
            return;
        };
        let opens = Arc::clone(&self.opens);
        let backing = self.backend().backing(ino);
        self.send(
            hand,
            request,
            backing,
            reply,
            move |reply, backing| match backing {
                Ok(backing) => opens.open(ino, backing.as_ref(), reply),
                Err(error) => reply.error(errno(error)),
            },
        );
    }
}

impl Adapter {
    /// Whether the requesting user is the mount's owner or root.
    fn is_owner(&self, request: &Request) -> bool {
        request.uid() == 0 || request.uid() == self.shared.owner
    }

    fn ioctl_answer(
        &self,
        hand: &InHand<'_>,
        request: &Request,
        command: u32,
        argument: &[u8],
        reply: ReplyIoctl,
    ) {
        match command {
            ioctl::NODE_STATS => {
                let stats = self.backend().node_stats();
                reply::stats(reply, Ok(stats));
            }
            ioctl::CLUSTER_STATS => {
                let age = match self.is_owner(request) {
                    true => StatsAge::New,
                    false => StatsAge::Recent,
                };
                let (answer, ceiling) = (self.backend().cluster_stats(age), self.patience * 2);
                let send = move |result| reply::stats(reply, result);
                self.send_within(Some(ceiling), hand, request, answer, send);
            }
            ioctl::CLEAR => {
                if !self.is_owner(request) {
                    return reply.error(errno(FsError::NotOwner));
                }
                let Some((path, cluster)) = ioctl::decode_clear(argument) else {
                    return reply.error(errno(FsError::InvalidArgument));
                };
                let answer = self.backend().clear(Bytes::copy_from_slice(path), cluster);
                let ceiling = Some(self.patience * 2);
                let send = move |result| reply::done(reply, result);
                self.send_within(ceiling, hand, request, answer, send);
            }
            ioctl::SOCKETS => match self.backend().sockets() {
                Some(sockets) => match ioctl::encode_sockets(&sockets) {
                    Some(bytes) => reply.ioctl(0, &bytes),
                    None => reply.error(errno(FsError::NameTooLong)),
                },
                None => reply.error(errno(FsError::Unsupported)),
            },
            _ => reply.error(Errno::ENOTTY),
        }
    }
}

fn reader(request: &Request) -> Reader {
    Reader {
        pid: request.pid(),
        uid: request.uid(),
        gid: request.gid(),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.granted = self.policy.negotiate(config)?;
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let hand = self.counters().begin(Op::Lookup);
        // The kernel lets FUSE have names of 1,024 bytes; what programs expect is NAME_MAX.
        if name.len() > NAME_BYTES_MAX {
            return reply.error(errno(FsError::NameTooLong));
        }
        let what = What::Lookup(Ino(parent.0), Bytes::copy_from_slice(name.as_bytes()));
        let ask = || self.backend().lookup(reader(request), Ino(parent.0), name);
        self.send_once(&hand, request, what, ask, move |result| {
            reply::lookup(reply, result);
        });
    }

    // fuser takes BATCH_FORGET apart and calls this for each.
    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.counters().add(Op::Forget, 1);
        self.shared.push.was_forgotten(Ino(ino.0));
        self.backend().forget(Ino(ino.0), count);
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let hand = self.counters().begin(Op::Getattr);
        let answer = self.backend().getattr(Ino(ino.0));
        self.send(&hand, request, answer, reply, reply::attr);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let hand = self.counters().begin(Op::Readlink);
        let answer = self.backend().readlink(Ino(ino.0));
        self.send(&hand, request, answer, reply, reply::data);
    }

    fn open(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let hand = self.counters().begin(Op::Open);
        let ino = Ino(ino.0);
        match self.policy.open {
            // The kernel opens by itself from now on, with KEEP_CACHE.
            OpenMode::ZeroMessage if self.granted.zero_open => reply.error(Errno::ENOSYS),
            OpenMode::ZeroMessage => reply.opened(FileHandle(0), cached_file(false)),
            OpenMode::Tracked => {
                let answer = self.backend().open(reader(request), ino);
                self.send(
                    &hand,
                    request,
                    answer,
                    reply,
                    |reply, result| match result {
                        Ok(open) => reply.opened(FileHandle(open.handle), cached_file(open.direct)),
                        Err(error) => reply.error(errno(error)),
                    },
                );
            }
            OpenMode::Passthrough => match self.backend().open(reader(request), ino) {
                Answer::Ready(Ok(_)) => self.open_through(&hand, request, ino, reply),
                Answer::Ready(Err(error)) => reply.error(errno(error)),
                Answer::Pending(future) | Answer::Unbounded(future) => {
                    let (opens, shared) = (Arc::clone(&self.opens), Arc::clone(&self.shared));
                    let both = Box::pin(async move {
                        future.await?;
                        match shared.backend.backing(ino) {
                            Answer::Ready(result) => result,
                            Answer::Pending(future) | Answer::Unbounded(future) => future.await,
                        }
                    });
                    let ceiling = Some(self.patience);
                    self.pending
                        .wait(request.pid(), ceiling, both, move |result| match result {
                            Ok(backing) => opens.open(ino, backing.as_ref(), reply),
                            Err(error) => reply.error(errno(error)),
                        });
                }
            },
        }
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Release);
        if self.policy.open == OpenMode::Passthrough {
            self.opens.release(Ino(ino.0));
        }
        if self.policy.open != OpenMode::ZeroMessage {
            self.backend().release(Ino(ino.0), handle.0);
        }
        reply.ok();
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let hand = self.counters().begin(Op::Read);
        let ino = Ino(ino.0);
        self.shared.push.was_read(ino);
        let what = What::Read(ino, offset..offset.saturating_add(size.into()));
        let ask = || {
            let backend = self.backend();
            backend.read(reader(request), ino, handle.0, offset, size)
        };
        let counters = Arc::clone(&self.shared.counters);
        self.send_once(&hand, request, what, ask, move |result| {
            if let Ok(bytes) = &result {
                counters.read_bytes.add_len(bytes.len());
            }
            reply::data(reply, result);
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let hand = self.counters().begin(Op::Opendir);
        if self.granted.zero_opendir {
            reply.error(Errno::ENOSYS);
        } else if self.policy.see_directories {
            let answer = self.backend().opendir(Ino(ino.0));
            self.send(
                &hand,
                request,
                answer,
                reply,
                |reply, result| match result {
                    Ok(open) => reply.opened(FileHandle(open.handle), cached_listing(open.keep)),
                    Err(error) => reply.error(errno(error)),
                },
            );
        } else {
            reply.opened(FileHandle(0), cached_listing(true));
        }
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let hand = self.counters().begin(Op::Readdir);
        let answer = self.backend().readdir(Ino(ino.0), handle.0, offset, false);
        self.send(&hand, request, answer, reply, move |reply, page| {
            dirplus::answer(reply, page, offset);
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let hand = self.counters().begin(Op::Readdirplus);
        let answer = self.backend().readdir(Ino(ino.0), handle.0, offset, true);
        let shared = Arc::clone(&self.shared);
        let unique = request.unique().0;
        self.send(&hand, request, answer, reply, move |reply, page| {
            dirplus::answer_plus(&shared, unique, reply, page, offset);
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Releasedir);
        if self.policy.see_directories {
            self.backend().releasedir(handle.0);
        }
        reply.ok();
    }

    // FLUSH, FSYNC, FSYNCDIR: there is never anything to write back. ENOSYS counts as success, and
    // the kernel does not ask again.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Fsync);
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Fsync);
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let hand = self.counters().begin(Op::Statfs);
        let answer = self.backend().statfs(Ino(ino.0));
        self.send(&hand, request, answer, reply, reply::usage);
    }

    // With `default_permissions` the kernel checks by itself and does not ask.
    fn access(&self, _request: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        let _in_hand = self.counters().begin(Op::Access);
        reply.ok();
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let hand = self.counters().begin(Op::Getxattr);
        let answer = self.backend().getxattr(Ino(ino.0), name);
        self.send(&hand, request, answer, reply, move |reply, result| {
            reply::xattr(reply, result, size);
        });
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let hand = self.counters().begin(Op::Listxattr);
        let answer = self.backend().listxattr(Ino(ino.0));
        self.send(&hand, request, answer, reply, move |reply, result| {
            reply::xattr(reply, result, size);
        });
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let hand = self.counters().begin(Op::Lseek);
        // The kernel answers the other kinds by itself.
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(errno(FsError::InvalidArgument)),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(errno(FsError::BeyondEnd));
        };
        let answer = self.backend().lseek(Ino(ino.0), offset, hole);
        self.send(&hand, request, answer, reply, reply::offset);
    }

    // The kernel grants locks by itself, since POSIX_LOCKS and FLOCK_LOCKS are not asked for.
    fn getlk(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        start: u64,
        end: u64,
        _kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let _in_hand = self.counters().begin(Op::Lock);
        reply.locked(start, end, F_UNLCK, 0);
    }

    fn setlk(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        _start: u64,
        _end: u64,
        _kind: i32,
        _pid: u32,
        _sleep: bool,
        reply: ReplyEmpty,
    ) {
        let _in_hand = self.counters().begin(Op::Lock);
        reply.ok();
    }

    fn ioctl(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        argument: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        let hand = self.counters().begin(Op::Ioctl);
        self.ioctl_answer(&hand, request, command, argument, reply);
    }

    // Everything that would write. The mount is read-only, so the kernel refuses most of it before
    // it gets here.

    fn setattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(self.write_refused());
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.write_refused());
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.write_refused());
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.write_refused());
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.write_refused());
    }

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &Path,
        reply: ReplyEntry,
    ) {
        reply.error(self.write_refused());
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(self.write_refused());
    }

    fn link(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply.error(self.write_refused());
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(self.write_refused());
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(self.write_refused());
    }

    fn setxattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.write_refused());
    }

    fn removexattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.write_refused());
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(self.write_refused());
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(self.write_refused());
    }
}

/// For a directory; `keep`: what the kernel has cached of it is still right.
fn cached_listing(keep: bool) -> FopenFlags {
    let keep = if keep {
        FopenFlags::FOPEN_KEEP_CACHE
    } else {
        FopenFlags::empty()
    };
    keep | FopenFlags::FOPEN_CACHE_DIR
}

/// For a file; `direct`: past the page cache.
fn cached_file(direct: bool) -> FopenFlags {
    let cache = if direct {
        FopenFlags::FOPEN_DIRECT_IO
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    };
    cache | FopenFlags::FOPEN_NOFLUSH
}
