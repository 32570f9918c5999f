//! The ioctl ABI of a mount, for `copperfs stats`, `copperfs clear` and programs in any language.
//!
//! Four commands, on any directory or file of the mount. Each command number contains the size of its struct
//! (below 16 KiB). `include/copperfs_ioctl.h` declares the same for C, and a test compiles a program with it.
//! Integers are in the machine's byte order, because an ioctl never leaves the machine.
//!
//! Counters are lines of name and value, with the names of `copperfs stats --json` joined by dots, so a new
//! counter does not change the ABI. A change of a struct changes its size, and with it the command number: an
//! old program gets ENOTTY, and never a struct that it cannot read.

pub mod client;

use rustix::ioctl::opcode;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Version of the structs.
pub const ABI: u32 = 2;
/// The ioctl group.
pub const GROUP: u8 = 0xC7;
/// Bytes of the path in `struct copperfs_clear`.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest text of `struct copperfs_stats` in bytes.
pub const STATS_TEXT_BYTES_MAX: usize = 16_368;
/// Bytes of `struct copperfs_stats`. An ioctl's number has room for less than 16 KiB.
pub const STATS_BYTES: usize = 8 + STATS_TEXT_BYTES_MAX;
/// Bytes of `struct copperfs_clear`.
pub const CLEAR_BYTES: usize = 16 + PATH_BYTES_MAX;
/// Bytes of an address of a socket, the last of them NUL.
pub const SOCKET_BYTES_MAX: usize = 112;
/// Bytes of `struct copperfs_sockets`.
pub const SOCKETS_BYTES: usize = 8 + 2 * SOCKET_BYTES_MAX;
/// `flags` of `struct copperfs_clear`: clear on all nodes, not only on this one.
pub const CLEAR_CLUSTER: u32 = 1;

/// Reads this node's counters.
pub const NODE_STATS: u32 = opcode::read::<[u8; STATS_BYTES]>(GROUP, 1);
/// Reads the counters of all nodes, summed.
pub const CLUSTER_STATS: u32 = opcode::read::<[u8; STATS_BYTES]>(GROUP, 2);
/// Drops cached data; only for the mount's owner and root. Returns 1 if anything of the path was cached and 0
/// if not, and fails with ENOENT if no origin covers the path.
pub const CLEAR: u32 = opcode::write::<[u8; CLEAR_BYTES]>(GROUP, 3);
/// Reads the addresses of the daemon's sockets.
pub const SOCKETS: u32 = opcode::read::<[u8; SOCKETS_BYTES]>(GROUP, 4);

/// The addresses at which a daemon accepts HTTP requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// The Unix socket for its owner.
    pub owner: PathBuf,
    /// The name, without the leading NUL byte, of the abstract Unix socket for the users of its mounts.
    pub users: String,
}

/// Why a struct of the ABI cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AbiError {
    /// The struct has another version than [`ABI`].
    #[error(
        "ioctl ABI version {0} where {ABI} is spoken: the daemon and this program are of different releases"
    )]
    Version(u32),
    /// The length does not fit the version.
    #[error("a struct of {got} bytes where {expected} are needed")]
    Length {
        /// Length in bytes.
        got: usize,
        /// Required length in bytes.
        expected: usize,
    },
}

/// Encodes `struct copperfs_stats`. A text that is too long is cut after a complete line.
pub(crate) fn encode_stats(text: &str) -> Vec<u8> {
    let mut text = text;
    while text.len() > STATS_TEXT_BYTES_MAX {
        let end = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
        text = &text[..end];
    }
    let mut out = vec![0; STATS_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_ne_bytes());
    out[8..8 + text.len()].copy_from_slice(text.as_bytes());
    out
}

fn decode_stats(bytes: &[u8]) -> Result<String, AbiError> {
    let length = check_version(bytes, STATS_BYTES)?;
    let text = read_u32(bytes, 4)
        .and_then(|count| bytes.get(8..)?.get(..usize::try_from(count).ok()?))
        .ok_or(length)?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Encodes `struct copperfs_clear` for `path`, relative to the mount; empty for all.
fn encode_clear(path: &[u8], cluster: bool) -> Result<[u8; CLEAR_BYTES], AbiError> {
    let length = u32::try_from(path.len())
        .ok()
        .filter(|_| path.len() <= PATH_BYTES_MAX)
        .ok_or(AbiError::Length {
            got: path.len(),
            expected: PATH_BYTES_MAX,
        })?;
    let flags = if cluster { CLEAR_CLUSTER } else { 0 };
    let mut out = [0; CLEAR_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&flags.to_ne_bytes());
    out[8..12].copy_from_slice(&length.to_ne_bytes());
    out[16..16 + path.len()].copy_from_slice(path);
    Ok(out)
}

/// Decodes path and `cluster` of a `struct copperfs_clear`, without slashes at both ends of the path.
pub(crate) fn decode_clear(bytes: &[u8]) -> Option<(&[u8], bool)> {
    if bytes.len() != CLEAR_BYTES || read_u32(bytes, 0)? != ABI {
        return None;
    }
    let flags = read_u32(bytes, 4)?;
    let length = usize::try_from(read_u32(bytes, 8)?).ok()?;
    if flags & !CLEAR_CLUSTER != 0 || read_u32(bytes, 12)? != 0 {
        return None;
    }
    let mut path = bytes[16..].get(..length)?;
    while let [b'/', rest @ ..] | [rest @ .., b'/'] = path {
        path = rest;
    }
    Some((path, flags & CLEAR_CLUSTER != 0))
}

/// Encodes `struct copperfs_sockets`. Returns `None` if an address is too long or contains a NUL byte.
pub(crate) fn encode_sockets(sockets: &Sockets) -> Option<Vec<u8>> {
    let mut out = vec![0; SOCKETS_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    let addresses = [
        sockets.owner.as_os_str().as_bytes(),
        sockets.users.as_bytes(),
    ];
    for (field, address) in out[8..].chunks_exact_mut(SOCKET_BYTES_MAX).zip(addresses) {
        // The last byte stays NUL, for C.
        if address.len() >= SOCKET_BYTES_MAX || address.contains(&0) {
            return None;
        }
        field[..address.len()].copy_from_slice(address);
    }
    Some(out)
}

fn decode_sockets(bytes: &[u8]) -> Result<Sockets, AbiError> {
    let length = check_version(bytes, SOCKETS_BYTES)?;
    let mut fields = bytes[8..].chunks_exact(SOCKET_BYTES_MAX);
    let mut address = || {
        let field = fields.next().ok_or(length)?;
        Ok(field.split(|&byte| byte == 0).next().unwrap_or_default())
    };
    Ok(Sockets {
        owner: PathBuf::from(OsStr::from_bytes(address()?)),
        users: String::from_utf8_lossy(address()?).into_owned(),
    })
}

/// Checks the version of a struct. Returns the error for a length other than `expected`.
fn check_version(bytes: &[u8], expected: usize) -> Result<AbiError, AbiError> {
    let length = AbiError::Length {
        got: bytes.len(),
        expected,
    };
    match read_u32(bytes, 0).ok_or(length)? {
        ABI if bytes.len() >= 8 => Ok(length),
        ABI => Err(length),
        other => Err(AbiError::Version(other)),
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let (number, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u32::from_ne_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_decoded_as_they_were_encoded() {
        let text = "node n1\norigin.opens 5\n";
        let bytes = encode_stats(text);
        assert_eq!(bytes.len(), STATS_BYTES);
        assert_eq!(decode_stats(&bytes).unwrap(), text);
        let long = "origin.opens 123456\n".repeat(2000);
        let cut = decode_stats(&encode_stats(&long)).unwrap();
        assert!(long.starts_with(&cut) && cut.ends_with('\n'));
        assert!(cut.len() + 20 > STATS_TEXT_BYTES_MAX, "{}", cut.len());
        assert_eq!(
            decode_stats(&encode_stats(&"x".repeat(20_000))).unwrap(),
            ""
        );
    }

    #[test]
    fn an_invalid_struct_is_refused() {
        let mut bytes = encode_stats("a 1\n");
        assert!(decode_stats(&[]).is_err());
        bytes[5] = 0xff;
        assert!(matches!(decode_stats(&bytes), Err(AbiError::Length { .. })));
        bytes[0] = 9;
        assert_eq!(decode_stats(&bytes), Err(AbiError::Version(9)));
    }

    #[test]
    fn clear_and_sockets_are_decoded_as_they_were_encoded() {
        let bytes = encode_clear(b"/lus/a\xff/", true).unwrap();
        assert_eq!(decode_clear(&bytes), Some((&b"lus/a\xff"[..], true)));
        assert_eq!(
            decode_clear(&encode_clear(b"", false).unwrap()),
            Some((&b""[..], false))
        );
        assert!(encode_clear(&[b'x'; PATH_BYTES_MAX + 1], false).is_err());
        let sockets = Sockets {
            owner: "/run/x.sock".into(),
            users: "copperfs-1".into(),
        };
        let bytes = encode_sockets(&sockets).unwrap();
        assert_eq!(decode_sockets(&bytes), Ok(sockets.clone()));
        let users = "x".repeat(SOCKET_BYTES_MAX);
        assert_eq!(encode_sockets(&Sockets { users, ..sockets }), None);
        assert!(decode_sockets(&bytes[..SOCKETS_BYTES - 1]).is_err());
    }

    #[test]
    fn a_bad_clear_is_refused() {
        let good = encode_clear(b"a", false).unwrap();
        for (at, value) in [(0, 7), (4, 2), (9, 0x20), (12, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(decode_clear(&bad), None, "byte {at}");
        }
        assert_eq!(decode_clear(&good[1..]), None);
    }
}
