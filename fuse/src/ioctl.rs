//! The ioctl ABI: what `copperfs stats` and `copperfs clear` ask of a mount, usable from any language.
//!
//! Four commands, all with the number's size field in use (a call carries below 16 KiB), on any
//! directory or file of the mount. `include/copperfs_ioctl.h` is the same for C; a test compiles a program
//! with it. Integers are in the machine's byte order: an ioctl never leaves the machine.
//!
//! Counters are lines of name and value, the names of `copperfs stats --json` with dots. So a new counter
//! does not change the ABI. A change of a struct changes its size, and with it the command number: an old
//! program gets ENOTTY, and never a struct that it cannot read.

pub mod client;

use rustix::ioctl::opcode;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Version of the structs below.
pub const ABI: u32 = 2;
/// The ioctl group.
pub const GROUP: u8 = 0xC7;
/// Longest path in [`encode_clear`], in bytes.
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
/// `flags` of `struct copperfs_clear`: on all nodes, not only on this one.
pub const CLEAR_CLUSTER: u32 = 1;

/// Reads this node's counters.
pub const NODE_STATS: u32 = opcode::read::<[u8; STATS_BYTES]>(GROUP, 1);
/// Reads the counters of all nodes, summed.
pub const CLUSTER_STATS: u32 = opcode::read::<[u8; STATS_BYTES]>(GROUP, 2);
/// Drops cached data; only for the mount's owner and root. Returns 1 if anything was cached, 0 if nothing
/// of the path was cached, and ENOENT if no origin covers the path.
pub const CLEAR: u32 = opcode::write::<[u8; CLEAR_BYTES]>(GROUP, 3);
/// Reads the addresses of the daemon's sockets.
pub const SOCKETS: u32 = opcode::read::<[u8; SOCKETS_BYTES]>(GROUP, 4);

/// Where a daemon takes commands, in HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// The Unix socket of its owner.
    pub owner: PathBuf,
    /// The name of the abstract Unix socket (without the leading NUL byte) of the users of its mounts.
    pub users: String,
}

/// A struct of the ABI that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AbiError {
    /// Another version than [`ABI`].
    #[error(
        "ioctl ABI version {0} where {ABI} is spoken: the daemon and this program are of different releases"
    )]
    Version(u32),
    /// A length that contradicts the version.
    #[error("a struct of {got} bytes where {expected} are needed")]
    Length {
        /// What was there.
        got: usize,
        /// What the ABI says.
        expected: usize,
    },
}

/// `struct copperfs_stats` for `text`, lines of name and value. A longer text is cut after a whole line.
pub(crate) fn encode_stats(text: &str) -> Vec<u8> {
    let mut kept = text;
    while kept.len() > STATS_TEXT_BYTES_MAX {
        let end = kept.trim_end().rfind('\n').map_or(0, |at| at + 1);
        kept = &kept[..end];
    }
    let mut out = vec![0; STATS_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&u32::try_from(kept.len()).unwrap_or(0).to_ne_bytes());
    out[8..8 + kept.len()].copy_from_slice(kept.as_bytes());
    out
}

fn decode_stats(bytes: &[u8]) -> Result<String, AbiError> {
    let length = AbiError::Length {
        got: bytes.len(),
        expected: STATS_BYTES,
    };
    let version = read_u32(bytes, 0).ok_or(length)?;
    if version != ABI {
        return Err(AbiError::Version(version));
    }
    let text = read_u32(bytes, 4)
        .and_then(|count| usize::try_from(count).ok())
        .and_then(|count| bytes.get(8..)?.get(..count));
    Ok(String::from_utf8_lossy(text.ok_or(length)?).into_owned())
}

/// `struct copperfs_clear` for `path`, relative to the mount; empty for all.
///
/// # Errors
/// A path longer than [`PATH_BYTES_MAX`].
pub fn encode_clear(path: &[u8], cluster: bool) -> Result<[u8; CLEAR_BYTES], AbiError> {
    let too_long = AbiError::Length {
        got: path.len(),
        expected: PATH_BYTES_MAX,
    };
    if path.len() > PATH_BYTES_MAX {
        return Err(too_long);
    }
    let length = u32::try_from(path.len()).or(Err(too_long))?;
    let flags = if cluster { CLEAR_CLUSTER } else { 0 };
    let mut out = [0; CLEAR_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    out[4..8].copy_from_slice(&flags.to_ne_bytes());
    out[8..12].copy_from_slice(&length.to_ne_bytes());
    out[16..16 + path.len()].copy_from_slice(path);
    Ok(out)
}

/// Path and `cluster` of a `struct copperfs_clear`; slashes at both ends of the path are dropped.
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
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    Some((path, flags & CLEAR_CLUSTER != 0))
}

/// `struct copperfs_sockets`; `None` if an address is too long, or holds a NUL byte.
pub(crate) fn encode_sockets(sockets: &Sockets) -> Option<Vec<u8>> {
    let mut out = vec![0; SOCKETS_BYTES];
    out[..4].copy_from_slice(&ABI.to_ne_bytes());
    let fields = [
        sockets.owner.as_os_str().as_bytes(),
        sockets.users.as_bytes(),
    ];
    for (field, address) in out[8..].chunks_exact_mut(SOCKET_BYTES_MAX).zip(fields) {
        // One byte stays NUL for C.
        if address.len() >= SOCKET_BYTES_MAX || address.contains(&0) {
            return None;
        }
        field[..address.len()].copy_from_slice(address);
    }
    Some(out)
}

fn decode_sockets(bytes: &[u8]) -> Result<Sockets, AbiError> {
    let length = AbiError::Length {
        got: bytes.len(),
        expected: SOCKETS_BYTES,
    };
    let version = read_u32(bytes, 0).ok_or(length)?;
    if version != ABI {
        return Err(AbiError::Version(version));
    }
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

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(raw.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_survive_the_trip() {
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
    fn a_foreign_struct_is_refused() {
        let mut bytes = encode_stats("a 1\n");
        assert!(decode_stats(&[]).is_err());
        bytes[5] = 0xff;
        assert!(matches!(decode_stats(&bytes), Err(AbiError::Length { .. })));
        bytes[0] = 9;
        assert_eq!(decode_stats(&bytes), Err(AbiError::Version(9)));
    }

    #[test]
    fn clear_and_sockets_survive_the_trip() {
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
