//! Sends open files to another process over a Unix socket, one with each byte. The byte says what the file is for.

use rustix::io::Result;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends `descriptor` with `byte`. It is in the socket when this returns, so the receiver may start later.
///
/// # Errors
/// The socket cannot be written.
pub fn send(socket: impl AsFd, byte: u8, descriptor: BorrowedFd<'_>) -> Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(&[byte])],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives an open file and its byte, blocking, with close-on-exec set. Returns `None` if the next byte has none, or at the end of
/// the stream.
///
/// # Errors
/// The socket cannot be read.
pub fn receive(socket: impl AsFd) -> Result<Option<(u8, OwnedFd)>> {
    receive_with(socket, RecvFlags::empty())
}

/// The same, with flags of the system call.
pub(crate) fn receive_with(socket: impl AsFd, flags: RecvFlags) -> Result<Option<(u8, OwnedFd)>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        flags | RecvFlags::CMSG_CLOEXEC,
    )?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(received.map(|descriptor| (byte[0], descriptor)))
}
