//! How a process that keeps a FUSE connection passes it to a daemon that serves it.
//!
//! The keeper connects to a socket of the daemon and sends the connection, and the handshake if an earlier daemon has made
//! it. The daemon answers with the handshake when it serves the connection. Then both hold the socket: its end tells the
//! keeper that the daemon does not serve the connection any more, so that another one must get it.

use crate::{Handshake, descriptors};
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The version of these messages, which the connection is sent with.
const VERSION: u8 = 1;

/// INIT and its answer are far shorter than this.
const HANDSHAKE_BYTES_MAX: u32 = 4096;

/// Sends a connection, and its handshake if it has been made.
///
/// # Errors
/// The daemon is gone.
pub fn send(
    mut stream: &UnixStream,
    connection: BorrowedFd<'_>,
    made: Option<&Handshake>,
) -> io::Result<()> {
    descriptors::send(stream, VERSION, connection)?;
    write(&mut stream, made)
}

/// Receives what [`send`] has sent. Blocks as long as the timeout of `stream` allows.
///
/// # Errors
/// The keeper is gone, or of another version.
pub fn receive(mut stream: &UnixStream) -> io::Result<(OwnedFd, Option<Handshake>)> {
    let (version, connection) = descriptors::receive(stream)?.ok_or_else(other_version)?;
    if version != VERSION {
        return Err(other_version());
    }
    Ok((connection, read(&mut stream)?))
}

/// Tells the keeper the handshake of the connection, which is served from now on.
///
/// # Errors
/// The keeper is gone.
pub fn confirm(mut stream: &UnixStream, made: &Handshake) -> io::Result<()> {
    write(&mut stream, Some(made))
}

/// Waits for [`confirm`].
///
/// # Errors
/// The daemon is gone, or of another version.
pub fn confirmed(mut stream: &UnixStream) -> io::Result<Handshake> {
    read(&mut stream)?.ok_or_else(other_version)
}

/// Waits until the daemon does not serve the connection any more.
pub fn until_gone(mut stream: &UnixStream) {
    // Nothing more is sent.
    let _gone = stream.read(&mut [0]);
}

fn other_version() -> io::Error {
    let what = "the other process is of another version";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes the lengths of INIT and of its answer, and both; without a handshake zeros.
fn write(stream: &mut impl Write, made: Option<&Handshake>) -> io::Result<()> {
    let parts = made.map_or([&[][..]; 2], |made| [&made.init, &made.answer]);
    let mut message = Vec::new();
    for part in parts {
        let len = u32::try_from(part.len()).map_err(io::Error::other)?;
        message.extend(len.to_le_bytes());
    }
    message.extend(parts.concat());
    stream.write_all(&message)
}

fn read(stream: &mut impl Read) -> io::Result<Option<Handshake>> {
    let mut lens = [[0; 4]; 2];
    stream.read_exact(lens.as_flattened_mut())?;
    let mut part = |len: [u8; 4]| {
        let len = u32::from_le_bytes(len);
        if len > HANDSHAKE_BYTES_MAX {
            return Err(other_version());
        }
        let mut bytes = vec![0; len as usize];
        stream.read_exact(&mut bytes)?;
        Ok(bytes)
    };
    let [init, answer] = [part(lens[0])?, part(lens[1])?];
    Ok((!init.is_empty()).then_some(Handshake { init, answer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    fn made() -> Handshake {
        Handshake {
            init: vec![1; 104],
            answer: vec![2; 80],
        }
    }

    #[test]
    fn a_connection_and_its_handshake_arrive() {
        let (keeper, daemon) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        for before in [None, Some(made())] {
            send(&keeper, file.as_fd(), before.as_ref()).unwrap();
            let (_connection, agreed) = receive(&daemon).unwrap();
            assert_eq!(agreed, before);
            confirm(&daemon, &made()).unwrap();
            assert_eq!(confirmed(&keeper).unwrap(), made());
        }
        drop(daemon);
        until_gone(&keeper);
        assert!(confirmed(&keeper).is_err());
    }

    #[test]
    fn other_messages_are_refused() {
        let file = File::open("/dev/null").unwrap();
        for (version, rest) in [
            (VERSION + 1, &[0; 8][..]),
            // One that is too long, and two that are cut off.
            (VERSION, &[0xff; 8]),
            (VERSION, &[5, 0, 0, 0, 1, 0, 0, 0, 1]),
            (VERSION, &[0; 7]),
        ] {
            let (mut keeper, daemon) = UnixStream::pair().unwrap();
            descriptors::send(&keeper, version, file.as_fd()).unwrap();
            keeper.write_all(rest).unwrap();
            drop(keeper);
            assert!(receive(&daemon).is_err(), "{rest:?}");
        }
        let (mut keeper, daemon) = UnixStream::pair().unwrap();
        keeper.write_all(&[VERSION]).unwrap();
        assert!(receive(&daemon).is_err(), "no descriptor");
    }
}
