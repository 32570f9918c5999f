//! The Unix socket of clients: messages with boundaries (`SOCK_SEQPACKET`), and descriptors with the first one.

use super::access::Credentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, size_of, size_of_val};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How often a connection that has more to read is looked at for its end.
const END_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Listener(AsyncFd<OwnedFd>);

/// An accepted client, on no runtime yet.
#[derive(Debug)]
pub(super) struct Accepted(OwnedFd);

/// A connected client.
#[derive(Debug)]
pub(super) struct Connection(AsyncFd<OwnedFd>);

impl Listener {
    /// Listens at the abstract name `name`. Must be called within a runtime.
    pub(super) fn bind(name: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(Self(register(socket, Interest::READABLE)?))
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = |listener: &OwnedFd| Ok(rustix::net::accept_with(listener, flags)?);
        let socket = self.0.async_io(Interest::READABLE, accept).await?;
        Ok(Accepted(socket))
    }
}

impl Accepted {
    /// Converses on the current runtime.
    pub(super) fn connect(self) -> io::Result<Connection> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        Ok(Connection(register(self.0, interest)?))
    }

    /// The user that has connected.
    pub(super) fn credentials(&self) -> Result<Credentials, Errno> {
        let mut user = [libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        }];
        option(&self.0, libc::SO_PEERCRED, &mut user).map_err(|(errno, _)| errno)?;
        let [user] = user;
        let mut groups = vec![0_u32; 64];
        let bytes = match option(&self.0, libc::SO_PEERGROUPS, &mut groups) {
            Err((Errno::RANGE, bytes)) => {
                groups.resize(bytes / size_of::<u32>(), 0);
                option(&self.0, libc::SO_PEERGROUPS, &mut groups)
            }
            outcome => outcome,
        };
        let bytes = bytes.map_err(|(errno, _)| errno)?;
        groups.truncate(bytes / size_of::<u32>());
        Ok(Credentials {
            uid: user.uid,
            gid: user.gid,
            groups,
            pid: u32::try_from(user.pid).unwrap_or(0),
        })
    }
}

impl Connection {
    /// Receives a message of at most `buffer`'s length and exactly two descriptors. `None`: the client has sent
    /// something else, or is gone.
    pub(super) async fn receive_with_descriptors(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, [OwnedFd; 2])>> {
        let receive = |socket: &OwnedFd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut buffer = [IoSliceMut::new(buffer)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = rustix::net::recvmsg(socket, &mut buffer, &mut ancillary, flags)?;
            let mut descriptors = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
            Ok((received.bytes, descriptors))
        };
        let (len, descriptors) = self.0.async_io(Interest::READABLE, receive).await?;
        Ok(descriptors.try_into().ok().map(|both| (len, both)))
    }

    /// Receives a message; descriptors that come with it are closed. Returns its length, which is above `buffer`'s if
    /// it did not fit. `None`: the client is gone.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let receive = |socket: &OwnedFd| {
            let (_received, len) = rustix::net::recv(socket, &mut *buffer, RecvFlags::TRUNC)?;
            Ok(len)
        };
        let len = self.0.async_io(Interest::READABLE, receive).await?;
        // A message has at least one byte.
        Ok((len > 0).then_some(len))
    }

    pub(super) async fn send(&self, message: &[u8]) -> io::Result<()> {
        let send = |socket: &OwnedFd| Ok(rustix::net::send(socket, message, SendFlags::NOSIGNAL)?);
        self.0.async_io(Interest::WRITABLE, send).await.map(drop)
    }

    /// Waits until the client has closed its end.
    pub(super) async fn closed(&self) {
        loop {
            match self.0.ready(Interest::READABLE).await {
                Ok(ready) if !ready.ready().is_read_closed() => {}
                _ => return,
            }
            // It has sent its next request, and may end before it is read.
            sleep(END_INTERVAL).await;
        }
    }
}

#[expect(unsafe_code, reason = "tokio has no safe form")]
fn register(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `AsyncFd` owns the descriptor, which stays open and the same one until it is dropped.
    let registered = unsafe { AsyncFd::register_with_interest(socket, interest) };
    Ok(registered?)
}

/// Reads an option of the level `SOL_SOCKET` into `value`. Returns the number of bytes; beside the error it is the number
/// of bytes that are needed.
#[expect(
    unsafe_code,
    reason = "rustix has no peer groups, and no peer of another PID namespace"
)]
fn option<T: Copy>(
    socket: &OwnedFd,
    name: libc::c_int,
    value: &mut [T],
) -> Result<usize, (Errno, usize)> {
    let mut bytes = libc::socklen_t::try_from(size_of_val(value)).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which has them, and then their number to `bytes`. Both
    // callers pass plain integers, for which every value is valid.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let bytes = usize::try_from(bytes).unwrap_or(0);
    match outcome {
        0 => Ok(bytes),
        _ => {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Err((Errno::from_raw_os_error(errno), bytes))
        }
    }
}
