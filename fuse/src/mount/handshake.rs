//! The INIT handshake, which the kernel makes once for a connection, and every daemon of the connection needs.
//!
//! fuser reads INIT from its descriptor before anything else. A daemon that takes a connection over gets no INIT, so
//! it gets the one that the first daemon received. For that fuser's descriptor is a socket during the handshake. Then
//! it is replaced by the connection itself, under the same number.

use super::MountError;
use crate::adapter::Adapter;
use fuser::SessionACL;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The kernel refuses a read with less room. INIT is far shorter.
const READ_BYTES: usize = 8192;
/// INIT and its answer are far shorter than this.
const HANDSHAKE_BYTES_MAX: usize = 4096;
/// `struct fuse_in_header`: the opcode is at this offset.
const OPCODE: std::ops::Range<usize> = 4..8;
/// The opcode of INIT.
const INIT: u32 = 26;
/// The major version of the protocol, after the header.
const MAJOR: std::ops::Range<usize> = 40..44;

/// What the kernel and the first daemon have agreed on, as messages of the kernel's ABI.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// INIT.
    pub init: Vec<u8>,
    /// The answer to it.
    pub answer: Vec<u8>,
}

/// Makes the handshake on a new connection. Returns the session on it.
pub(super) fn first(
    adapter: Adapter,
    connection: &OwnedFd,
    config: fuser::Config,
) -> Result<(fuser::Session<Adapter>, Handshake), MountError> {
    let mut init = vec![0; READ_BYTES];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(connection, &mut init[..]));
    init.truncate(length.map_err(|errno| MountError::Handshake(errno.into()))?);
    let (session, answer) = agree(adapter, connection, &init, config)?;
    // Nothing is served before the kernel has the answer.
    let sent = rustix::io::retry_on_intr(|| rustix::io::write(connection, &answer));
    sent.map_err(|errno| MountError::Handshake(errno.into()))?;
    Ok((session, Handshake { init, answer }))
}

/// Makes the session of a daemon that takes `connection` over, whose kernel has the first daemon's answer.
pub(super) fn again(
    adapter: Adapter,
    connection: &OwnedFd,
    config: fuser::Config,
    made: &Handshake,
) -> Result<fuser::Session<Adapter>, MountError> {
    let (session, answer) = agree(adapter, connection, &made.init, config)?;
    if answer != made.answer {
        return Err(MountError::OtherHandshake);
    }
    Ok(session)
}

/// Answers `init`. Returns the session on `connection`, and the answer, which is not sent.
fn agree(
    adapter: Adapter,
    connection: &OwnedFd,
    init: &[u8],
    config: fuser::Config,
) -> Result<(fuser::Session<Adapter>, Vec<u8>), MountError> {
    let number = |range: std::ops::Range<usize>| {
        let bytes = init.get(range)?.try_into().ok()?;
        Some(u32::from_ne_bytes(bytes))
    };
    // For another major version fuser would wait for a second INIT.
    if number(OPCODE) != Some(INIT) || number(MAJOR) != Some(7) {
        let error = io::Error::new(io::ErrorKind::Unsupported, "its FUSE is not version 7");
        return Err(MountError::Handshake(error));
    }
    let failed = |error: io::Error| MountError::Handshake(error);
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
    let (kernel, daemon) = pair.map_err(|errno| failed(errno.into()))?;
    rustix::io::write(&kernel, init).map_err(|errno| failed(errno.into()))?;
    let number = daemon.as_raw_fd();
    let session = fuser::Session::from_fd(adapter, daemon, SessionACL::All, config);
    let session = session.map_err(failed)?;
    let mut answer = vec![0; HANDSHAKE_BYTES_MAX];
    let length = rustix::io::read(&kernel, &mut answer[..]);
    answer.truncate(length.map_err(|errno| failed(errno.into()))?);
    // SAFETY: `session` owns the descriptor of this number, and lives beyond this function. The value is not dropped,
    // so the number is never closed here. From now on it refers to the connection.
    #[expect(unsafe_code, reason = "fuser has no session without a handshake")]
    let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    rustix::io::dup3(connection, &mut own, rustix::io::DupFlags::CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    Ok((session, answer))
}
