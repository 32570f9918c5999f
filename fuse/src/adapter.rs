//! Translates between the kernel's requests and the backend's answers.
//!
//! A ready answer is sent on the FUSE thread itself. A pending answer moves to the runtime together with
//! its reply object ([`PendingRequests`]). No handler blocks, so two threads serve any number of readers.
//! Requests that would change the filesystem are answered EROFS here and never reach the backend.

use crate::attr::file_attr;
use crate::backend::{Answer, Backend, FsError, Ino, Response, StatsAge};
use crate::counters::{ActiveRequest, Counters, Op};
use crate::dirplus;
use crate::errno::READ_ONLY;
use crate::interrupt::{PendingRequests, within};
use crate::ioctl;
use crate::policy::OpenMode;
use crate::quarantine::{self, Admission, Subject};
use crate::repeats::RequestKey;
use crate::reply::{self, Reply, cached_file, cached_listing};
use crate::shared::Shared;
use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// `NAME_MAX` of Linux, in bytes.
const NAME_BYTES_MAX: usize = 255;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The [`Filesystem`] that fuser calls for one mount.
pub(crate) struct Adapter {
    pub(crate) shared: Arc<Shared>,
    /// Set by INIT. After ENOSYS the kernel sends no further OPEN with `FUSE_NO_OPEN_SUPPORT`, and no further
    /// OPENDIR with `FUSE_NO_OPENDIR_SUPPORT`.
    pub(crate) granted: InitFlags,
}

impl Adapter {
    fn backend(&self) -> &dyn Backend {
        &*self.shared.backend
    }

    fn counters(&self) -> &Counters {
        &self.shared.options.counters
    }

    /// Counts `request`, which is about `ino`, and returns the means to answer it.
    fn begin(&self, op: Op, request: &Request, ino: INodeNo) -> Call<'_> {
        let unique = request.unique().0;
        if let Some(in_hand) = &self.shared.in_hand {
            in_hand.begin(quarantine::number(unique), || self.shared.pending.oldest());
        }
        Call {
            shared: &self.shared,
            pending: self.shared.pending.all(),
            active: self.counters().begin(op),
            subject: Subject {
                op,
                ino: Ino(ino.0),
                name: Bytes::new(),
            },
            unique,
            thread: request.pid(),
        }
    }

    fn refuse_write(&self) -> Errno {
        self.counters().add(Op::Write, 1);
        READ_ONLY
    }
}

/// One request while a FUSE thread handles it.
struct Call<'a> {
    shared: &'a Arc<Shared>,
    /// Where it waits if its answer is not ready.
    pending: &'a Arc<PendingRequests>,
    active: ActiveRequest<'a>,
    subject: Subject,
    unique: u64,
    /// The id of the thread that sent it, in the daemon's pid namespace; 0 if it is outside that namespace. Used
    /// for attribution, and to detect that the thread was killed.
    thread: u32,
}

impl Call<'_> {
    /// Adds the name that the request is about.
    fn named(mut self, name: &Bytes) -> Self {
        self.subject.name = name.clone();
        self
    }

    /// Asks the backend, and passes the value to `send` or the error to the kernel: at once if the answer is ready,
    /// otherwise when it arrives or times out.
    fn ask<R: Reply, T: Send + 'static>(
        self,
        question: impl FnOnce(&dyn Backend) -> Response<T> + Send + 'static,
        reply: R,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let timeout = self.shared.options.request_timeout;
        self.ask_within(timeout, question, move |result| reply.answer(result, send));
    }

    /// Like [`ask`](Self::ask), for a request that the kernel repeats when it fails. The backend is
    /// not asked for a repetition.
    fn ask_once<R: Reply, T: Send + 'static>(
        self,
        key: RequestKey,
        question: impl FnOnce(&dyn Backend) -> Response<T> + Send + 'static,
        reply: R,
        send: impl FnOnce(R, T) + Send + 'static,
    ) {
        let (thread, start) = (self.thread, self.active.start());
        if let Some(error) = self.shared.timed_out.take_error(thread, &key, start) {
            return reply.refuse(error);
        }
        let (shared, timeout) = (Arc::clone(self.shared), self.shared.options.request_timeout);
        self.ask_within(timeout, question, move |result| {
            // A request that failed sooner is cheap to repeat, and may succeed then.
            if let Err(error @ FsError::Io) = &result
                && start.elapsed() >= timeout / 4
            {
                // Recorded before the reply, because the repetition may follow the reply at once.
                let now = Instant::now();
                shared.timed_out.record(thread, key, *error, now);
            }
            reply.answer(result, send);
        });
    }

    /// Asks the backend, and passes the result to `finish`, which replies. An answer that is not ready may take
    /// `timeout`.
    fn ask_within<T: Send + 'static>(
        self,
        timeout: Duration,
        question: impl FnOnce(&dyn Backend) -> Response<T> + Send + 'static,
        finish: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let Some(admission) = self.admission() else {
            let response = caught(|| question(&*self.shared.backend));
            return self.finish(timeout, response, finish);
        };
        let shared = Arc::clone(self.shared);
        let admitted = async move {
            let pass = admission.await?;
            let value = match caught(|| question(&*shared.backend))? {
                Answer::Ready(value) => value,
                Answer::Pending(future) => within(timeout, future).await?,
                Answer::Unbounded(future) => future.await?,
            };
            Ok((value, pass))
        };
        let response = Ok(Answer::Unbounded(Box::pin(admitted)));
        self.finish(timeout, response, |result| match result {
            Ok((value, pass)) => {
                finish(Ok(value));
                drop(pass);
            }
            Err(error) => finish(Err(error)),
        });
    }

    /// Returns when the request may be handled; `None`: now. Nearly every request may.
    fn admission(&self) -> Option<Admission> {
        let quarantine = self.shared.options.quarantine.as_ref()?;
        let resent = quarantine::resent(self.unique);
        if resent.is_none() && !quarantine.is_active() {
            return None;
        }
        quarantine.admit(self.subject.clone(), resent)
    }

    /// Passes the result of `response` to `finish`.
    fn finish<T: Send + 'static>(
        self,
        timeout: Duration,
        response: Response<T>,
        finish: impl FnOnce(Result<T, FsError>) + Send + 'static,
    ) {
        let (mut future, timeout) = match response {
            Err(error) => return finish(Err(error)),
            Ok(Answer::Ready(value)) => return finish(Ok(value)),
            Ok(Answer::Pending(future)) => (future, Some(timeout)),
            Ok(Answer::Unbounded(future)) => (future, None),
        };
        let pending = self.pending;
        // What is in memory needs no other thread, whose wake-up would cost more than the answer.
        let ready = caught(|| pending.try_now(&mut future).transpose());
        if let Some(result) = ready.transpose() {
            return finish(result);
        }
        let answered = self.active.answer_later();
        let number = quarantine::number(self.unique);
        pending.wait(number, self.thread, timeout, future, move |result| {
            finish(result);
            answered();
        });
    }
}

/// Returns the answer of `ask`. A panic fails this request alone: a FUSE thread that ended would be missed by all
/// others.
fn caught<T>(ask: impl FnOnce() -> Result<T, FsError>) -> Result<T, FsError> {
    catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_panic| {
        tracing::error!("a request failed by an error of this program: its reader gets EIO");
        Err(FsError::Io)
    })
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.granted = self.shared.options.negotiate(config)?;
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let call = self.begin(Op::Lookup, request, parent);
        // The kernel accepts names of 1,024 bytes on FUSE; programs expect NAME_MAX.
        if name.len() > NAME_BYTES_MAX {
            return reply.refuse(FsError::NameTooLong);
        }
        let (parent, name) = (Ino(parent.0), Bytes::copy_from_slice(name.as_bytes()));
        let shared = Arc::clone(&self.shared);
        call.named(&name).ask_once(
            RequestKey::Lookup(parent, name.clone()),
            move |backend| backend.lookup(parent, OsStr::from_bytes(&name)),
            reply,
            move |reply, found| {
                shared.backend.commit();
                reply::lookup(reply, found);
            },
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
        let call = self.begin(Op::Getattr, request, ino);
        let ino = Ino(ino.0);
        call.ask(
            move |backend| backend.getattr(ino),
            reply,
            |reply, attr| reply.attr(&attr.ttl, &file_attr(&attr)),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let call = self.begin(Op::Readlink, request, ino);
        let ino = Ino(ino.0);
        call.ask(
            move |backend| backend.readlink(ino),
            reply,
            |reply, target| reply.data(&target),
        );
    }

    fn open(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let call = self.begin(Op::Open, request, ino);
        let (ino, thread) = (Ino(ino.0), call.thread);
        match self.shared.options.open {
            // After ENOSYS the kernel opens files by itself, with KEEP_CACHE.
            OpenMode::ZeroMessage if self.granted.contains(InitFlags::FUSE_NO_OPEN_SUPPORT) => {
                reply.error(Errno::ENOSYS);
            }
            OpenMode::ZeroMessage => reply.opened(FileHandle(0), cached_file(false)),
            OpenMode::Tracked => {
                call.ask(
                    move |backend| backend.open(thread, ino),
                    reply,
                    |reply, open| {
                        reply.opened(FileHandle(open.handle), cached_file(open.direct));
                    },
                );
            }
            OpenMode::Passthrough => {
                let (opening, replying) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
                // A request that the kernel sends again is the same open.
                let handle = quarantine::number(request.unique().0);
                let question = move |backend: &dyn Backend| {
                    backend.open(thread, ino)?.and_then(move |_| {
                        // An inode that is open keeps its read path, so no backing file is needed. If its
                        // last release comes before the reply, this open reads through the daemon.
                        if opening.opens.is_open(ino) {
                            return Ok(Answer::Ready(None));
                        }
                        opening.backend.backing(ino)
                    })
                };
                call.ask(question, reply, move |reply, backing| {
                    replying.opens.open(ino, handle, backing, reply);
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
        if self.shared.options.open == OpenMode::Passthrough {
            let (opens, device) = (&self.shared.opens, &self.shared.device);
            opens.release(Ino(ino.0), handle.0, device);
        }
        if self.shared.options.open != OpenMode::ZeroMessage {
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
        let mut call = self.begin(Op::Read, request, ino);
        let (ino, handle) = (Ino(ino.0), handle.0);
        call.pending = self.shared.pending.reads(ino, offset);
        self.shared.push.was_read(ino);
        let key = RequestKey::Read(ino, offset..offset.saturating_add(size.into()));
        let counters = Arc::clone(&self.shared.options.counters);
        call.ask_once(
            key,
            move |backend| backend.read(ino, handle, offset, size),
            reply,
            move |reply, bytes| {
                counters.read_bytes.add_len(bytes.len());
                reply.data(&bytes);
            },
        );
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let call = self.begin(Op::Opendir, request, ino);
        if self.granted.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT) {
            reply.error(Errno::ENOSYS);
        } else if self.shared.options.track_opendir {
            let ino = Ino(ino.0);
            call.ask(
                move |backend| backend.opendir(ino),
                reply,
                |reply, open| {
                    reply.opened(FileHandle(open.handle), cached_listing(open.keep));
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
        let call = self.begin(Op::Readdir, request, ino);
        let (ino, handle) = (Ino(ino.0), handle.0);
        call.ask(
            move |backend| backend.readdir(ino, handle, offset),
            reply,
            move |reply, page| dirplus::reply(reply, &*page, offset),
        );
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let call = self.begin(Op::Readdirplus, request, ino);
        let (ino, handle) = (Ino(ino.0), handle.0);
        let (shared, unique) = (Arc::clone(&self.shared), call.unique);
        call.ask(
            move |backend| backend.readdir(ino, handle, offset),
            reply,
            move |reply, page| dirplus::reply_plus(&shared, unique, reply, &*page, offset),
        );
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
        if self.shared.options.track_opendir {
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
        let call = self.begin(Op::Statfs, request, ino);
        let ino = Ino(ino.0);
        call.ask(move |backend| backend.statfs(ino), reply, reply::usage);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let call = self.begin(Op::Getxattr, request, ino);
        let (ino, name) = (Ino(ino.0), Bytes::copy_from_slice(name.as_bytes()));
        call.named(&name).ask(
            move |backend| backend.getxattr(ino, OsStr::from_bytes(&name)),
            reply,
            move |reply, value| reply::xattr(reply, &value, size),
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let call = self.begin(Op::Listxattr, request, ino);
        let ino = Ino(ino.0);
        call.ask(
            move |backend| backend.listxattr(ino),
            reply,
            move |reply, value| reply::xattr(reply, &value, size),
        );
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
        let call = self.begin(Op::Lseek, request, ino);
        // The kernel answers every other `whence` itself.
        let hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.refuse(FsError::InvalidArgument),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.refuse(FsError::BeyondEnd);
        };
        let ino = Ino(ino.0);
        call.ask(
            move |backend| backend.lseek(ino, offset, hole),
            reply,
            reply::offset,
        );
    }

    // ACCESS is never sent with `default_permissions`. GETLK and SETLK are never sent either: the kernel
    // handles locks itself, because INIT requests neither POSIX_LOCKS nor FLOCK_LOCKS.

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        argument: &[u8],
        _room: u32,
        reply: ReplyIoctl,
    ) {
        let call = self.begin(Op::Ioctl, request, ino);
        let is_owner = [0, self.shared.owner].contains(&request.uid());
        // The daemon may ask every node of the cluster, which takes longer than one request.
        let cluster_timeout = self.shared.options.request_timeout * 2;
        match command {
            ioctl::NODE_STATS => reply.ioctl(0, &ioctl::encode_stats(&self.backend().node_stats())),
            ioctl::CLUSTER_STATS => {
                let age = if is_owner {
                    StatsAge::New
                } else {
                    StatsAge::Recent
                };
                let question = move |backend: &dyn Backend| backend.cluster_stats(age);
                call.ask_within(cluster_timeout, question, |result| {
                    reply.answer(result, |reply, text| {
                        reply.ioctl(0, &ioctl::encode_stats(&text));
                    });
                });
            }
            ioctl::CLEAR if !is_owner => reply.refuse(FsError::NotOwner),
            ioctl::CLEAR => {
                let Some((path, cluster)) = ioctl::decode_clear(argument) else {
                    return reply.refuse(FsError::InvalidArgument);
                };
                let path = Bytes::copy_from_slice(path);
                let question = move |backend: &dyn Backend| backend.clear(path, cluster);
                // ioctl(2) returns 1 if anything was cached, and 0 otherwise.
                call.ask_within(cluster_timeout, question, |result| {
                    reply.answer(result, |reply, cached| reply.ioctl(cached.into(), &[]));
                });
            }
            ioctl::SOCKETS => match ioctl::encode_sockets(&self.backend().sockets()) {
                Some(bytes) => reply.ioctl(0, &bytes),
                None => reply.refuse(FsError::NameTooLong),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_panics_fails_alone() {
        let panicking = || -> Response<u32> { panic!("as in a backend with an error") };
        assert!(matches!(caught(panicking), Err(FsError::Io)));
        assert!(matches!(
            caught(|| Ok(Answer::Ready(1))),
            Ok(Answer::Ready(1))
        ));
    }
}
