//! Translates between the kernel's requests and the backend's answers.
//!
//! A ready answer is sent on the FUSE thread itself. A pending answer moves to the runtime together with
//! its reply object ([`PendingRequests`]). No handler blocks, so two threads serve any number of readers.
//! Requests that would change the filesystem are answered EROFS here and never reach the backend.

use crate::backend::{Answer, Backend, FsError, Ino, Reader, StatsAge};
use crate::counters::{ActiveRequest, Counters, Op};
use crate::dirplus;
use crate::errno::{READ_ONLY, errno};
use crate::interrupt::PendingRequests;
use crate::ioctl;
use crate::passthrough::PassthroughOpens;
use crate::policy::{Granted, OpenMode, Policy};
use crate::repeats::{RequestKey, TimedOutRequests};
use crate::reply::{self, cached_file, cached_listing};
use crate::shared::Shared;
use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// `NAME_MAX` of Linux, in bytes.
const NAME_BYTES_MAX: usize = 255;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The [`Filesystem`] that fuser calls for one mount.
pub(crate) struct Adapter {
    shared: Arc<Shared>,
    pending: Arc<PendingRequests>,
    opens: Arc<PassthroughOpens>,
    policy: Policy,
    granted: Granted,
    /// How long a request may wait for its answer.
    request_timeout: Duration,
    timed_out: Arc<TimedOutRequests>,
}

impl Adapter {
    pub(crate) fn new(
        shared: Arc<Shared>,
        pending: Arc<PendingRequests>,
        policy: Policy,
        request_timeout: Duration,
    ) -> Self {
        Self {
            shared,
            pending,
            opens: Arc::default(),
            policy,
            granted: Granted::default(),
            request_timeout,
            timed_out: Arc::default(),
        }
    }

    fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Counts `request` and returns the means to answer it.
    fn begin(&self, op: Op, request: &Request) -> Call<'_> {
        Call {
            adapter: self,
            active: self.counters().begin(op),
            reader: Reader {
                pid: request.pid(),
                uid: request.uid(),
                gid: request.gid(),
            },
        }
    }

    fn refuse_write(&self) -> Errno {
        self.counters().add(Op::Write, 1);
        READ_ONLY
    }
}

/// One request while a FUSE thread handles it.
struct Call<'a> {
    adapter: &'a Adapter,
    active: ActiveRequest<'a>,
    reader: Reader,
}

impl Call<'_> {
    /// Passes the answer to `send`: at once if it is ready, otherwise when it arrives or times out.
    fn send<T: Send + 'static>(
        self,
        answer: Answer<T>,
        send: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let timeout = self.adapter.request_timeout;
        self.send_within(timeout, answer, send);
    }

    fn send_within<T: Send + 'static>(
        self,
        timeout: Duration,
        answer: Answer<T>,
        send: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let (future, timeout) = match answer {
            Answer::Ready(result) => return send(result),
            Answer::Pending(future) => (future, Some(timeout)),
            Answer::Unbounded(future) => (future, None),
        };
        let latency = self.active.answer_later();
        let pending = &self.adapter.pending;
        pending.wait(self.reader.pid, timeout, future, move |result| {
            send(result);
            latency.observe();
        });
    }

    /// Like [`send`](Self::send), for a request that the kernel repeats when it fails. The backend is
    /// not asked for a repetition.
    fn send_once<T: Send + 'static>(
        self,
        key: RequestKey,
        ask: impl FnOnce(&dyn Backend, Reader) -> Answer<T>,
        send: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let adapter = self.adapter;
        let (thread, start) = (self.reader.pid, Instant::now());
        if let Some(error) = adapter.timed_out.take_error(thread, &key, start) {
            return send(Err(error));
        }
        let answer = match ask(adapter.backend(), self.reader) {
            Answer::Ready(result) => return send(result),
            answer => answer,
        };
        let timed_out = Arc::clone(&adapter.timed_out);
        // A request that failed sooner is cheap to repeat, and may succeed then.
        let long_wait = adapter.request_timeout / 4;
        self.send(answer, move |result| {
            let now = Instant::now();
            if let Err(error @ FsError::Io) = &result
                && now.duration_since(start) >= long_wait
            {
                // Recorded before the reply, because the repetition may follow the reply at once.
                timed_out.record(thread, key, *error, now);
            }
            send(result);
        });
    }

    /// Whether the requesting user is the mount's owner or root.
    fn is_owner(&self) -> bool {
        self.reader.uid == 0 || self.reader.uid == self.adapter.shared.owner
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.granted = self.policy.negotiate(config)?;
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let call = self.begin(Op::Lookup, request);
        // The kernel accepts names of 1,024 bytes on FUSE; programs expect NAME_MAX.
        if name.len() > NAME_BYTES_MAX {
            return reply.error(errno(FsError::NameTooLong));
        }
        let parent = Ino(parent.0);
        let key = RequestKey::Lookup(parent, Bytes::copy_from_slice(name.as_bytes()));
        call.send_once(
            key,
            |backend, reader| backend.lookup(reader, parent, name),
            move |result| reply::lookup(reply, result),
        );
    }

    // fuser calls this for each inode of a BATCH_FORGET.
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
        let call = self.begin(Op::Getattr, request);
        let answer = self.backend().getattr(Ino(ino.0));
        call.send(answer, move |result| reply::attr(reply, result));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let call = self.begin(Op::Readlink, request);
        let answer = self.backend().readlink(Ino(ino.0));
        call.send(answer, move |result| reply::data(reply, result));
    }

    fn open(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let call = self.begin(Op::Open, request);
        let ino = Ino(ino.0);
        match self.policy.open {
            // After ENOSYS the kernel opens files by itself, with KEEP_CACHE.
            OpenMode::ZeroMessage if self.granted.zero_open => reply.error(Errno::ENOSYS),
            OpenMode::ZeroMessage => reply.opened(FileHandle(0), cached_file(false)),
            OpenMode::Tracked => {
                let answer = self.backend().open(call.reader, ino);
                call.send(answer, move |result| reply::open(reply, result));
            }
            OpenMode::Passthrough => {
                let (shared, opens) = (Arc::clone(&self.shared), Arc::clone(&self.opens));
                let opened = self.backend().open(call.reader, ino);
                let backing = opened.and_then(move |_| {
                    // An inode that is open keeps its read path, so no backing file is needed. If its
                    // last release comes before the reply, this open reads through the daemon.
                    if opens.is_open(ino) {
                        return Answer::Ready(Ok(None));
                    }
                    shared.backend.backing(ino)
                });
                let opens = Arc::clone(&self.opens);
                call.send(backing, move |backing| match backing {
                    Ok(backing) => opens.open(ino, backing, reply),
                    Err(error) => reply.error(errno(error)),
                });
            }
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
        let _active = self.counters().begin(Op::Release);
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
        let call = self.begin(Op::Read, request);
        let ino = Ino(ino.0);
        self.shared.push.was_read(ino);
        let key = RequestKey::Read(ino, offset..offset.saturating_add(size.into()));
        let counters = Arc::clone(&self.shared.counters);
        call.send_once(
            key,
            |backend, reader| backend.read(reader, ino, handle.0, offset, size),
            move |result| {
                if let Ok(bytes) = &result {
                    counters.read_bytes.add_len(bytes.len());
                }
                reply::data(reply, result);
            },
        );
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let call = self.begin(Op::Opendir, request);
        if self.granted.zero_opendir {
            reply.error(Errno::ENOSYS);
        } else if self.policy.track_opendir {
            let answer = self.backend().opendir(Ino(ino.0));
            call.send(answer, move |result| reply::opendir(reply, result));
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
        let call = self.begin(Op::Readdir, request);
        let answer = self.backend().readdir(Ino(ino.0), handle.0, offset, false);
        call.send(answer, move |page| dirplus::reply(reply, page, offset));
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let call = self.begin(Op::Readdirplus, request);
        let answer = self.backend().readdir(Ino(ino.0), handle.0, offset, true);
        let shared = Arc::clone(&self.shared);
        let unique = request.unique().0;
        call.send(answer, move |page| {
            dirplus::reply_plus(&shared, unique, reply, page, offset);
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
        let _active = self.counters().begin(Op::Releasedir);
        if self.policy.track_opendir {
            self.backend().releasedir(handle.0);
        }
        reply.ok();
    }

    // FLUSH, FSYNC, FSYNCDIR: there is never anything to write back. The kernel takes ENOSYS for success
    // and does not send the request again.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _active = self.counters().begin(Op::Flush);
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
        let _active = self.counters().begin(Op::Fsync);
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
        let _active = self.counters().begin(Op::Fsync);
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let call = self.begin(Op::Statfs, request);
        let answer = self.backend().statfs(Ino(ino.0));
        call.send(answer, move |result| reply::usage(reply, result));
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let call = self.begin(Op::Getxattr, request);
        let answer = self.backend().getxattr(Ino(ino.0), name);
        call.send(answer, move |result| reply::xattr(reply, result, size));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let call = self.begin(Op::Listxattr, request);
        let answer = self.backend().listxattr(Ino(ino.0));
        call.send(answer, move |result| reply::xattr(reply, result, size));
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
        let call = self.begin(Op::Lseek, request);
        // The kernel answers every other `whence` itself.
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(errno(FsError::InvalidArgument)),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(errno(FsError::BeyondEnd));
        };
        let answer = self.backend().lseek(Ino(ino.0), offset, hole);
        call.send(answer, move |result| reply::offset(reply, result));
    }

    // ACCESS is never sent with `default_permissions`. GETLK and SETLK are never sent either: the kernel
    // handles locks itself, because INIT requests neither POSIX_LOCKS nor FLOCK_LOCKS.

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
        let call = self.begin(Op::Ioctl, request);
        // The daemon may ask every node of the cluster, which takes longer than one request.
        let cluster_timeout = self.request_timeout * 2;
        match command {
            ioctl::NODE_STATS => reply::stats(reply, Ok(self.backend().node_stats())),
            ioctl::CLUSTER_STATS => {
                let age = if call.is_owner() {
                    StatsAge::New
                } else {
                    StatsAge::Recent
                };
                let answer = self.backend().cluster_stats(age);
                call.send_within(cluster_timeout, answer, move |result| {
                    reply::stats(reply, result);
                });
            }
            ioctl::CLEAR if !call.is_owner() => reply.error(errno(FsError::NotOwner)),
            ioctl::CLEAR => {
                let Some((path, cluster)) = ioctl::decode_clear(argument) else {
                    return reply.error(errno(FsError::InvalidArgument));
                };
                let answer = self.backend().clear(Bytes::copy_from_slice(path), cluster);
                call.send_within(cluster_timeout, answer, move |result| {
                    reply::effect(reply, result);
                });
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

    // Requests that write. The kernel refuses them on a read-only mount; they arrive only after root
    // has remounted it writable. For CREATE and COPY_FILE_RANGE fuser answers ENOSYS, and the kernel falls
    // back to MKNOD and WRITE.

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
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse_write());
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse_write());
    }

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &Path,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
    }

    fn link(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
    }

    fn removexattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(self.refuse_write());
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
        reply.error(self.refuse_write());
    }
}
