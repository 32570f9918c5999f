//! The messages, as bytes. All numbers are little-endian. No reader of them panics or allocates more than the message
//! has bytes.

use bytes::{Buf, BufMut, TryGetError};
use copperfs_overlay::{InvalidPath, ItemPath};
use rustix::io::Errno;
use std::ops::Range;

/// The first bytes of a hello.
const MAGIC: &[u8; 8] = b"copperfs";
/// The version of the messages. A client of another version is refused.
const VERSION: u32 = 1;
/// The bytes of a hello.
pub(super) const HELLO_BYTES: usize = MAGIC.len() + 4;
/// The maximum number of files in a request.
pub const FILES_MAX: usize = 1024;
/// The maximum number of bytes in a request.
pub(super) const REQUEST_BYTES_MAX: usize = 128 << 10;

/// A request for files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Returned with the answer.
    id: u64,
    /// The part of the client's memory for the bytes.
    pub(super) region: Range<u64>,
    pub(super) files: Vec<WantedFile>,
}

/// A part of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WantedFile {
    pub(super) path: ItemPath,
    pub(super) offset: u64,
    /// [`u64::MAX`]: up to its end.
    pub(super) len: u64,
}

/// The result for one file: where its bytes are in the client's memory.
pub type Outcome = Result<Range<u64>, Errno>;

/// A message that is none.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum InvalidMessage {
    #[error("no hello of version {VERSION}")]
    Hello,
    #[error("a request that is cut off: {0}")]
    Short(#[from] TryGetError),
    #[error("a path that is cut off")]
    CutPath,
    #[error("bytes after the last file")]
    Long,
    #[error("more than {FILES_MAX} files")]
    Files,
    #[error("a region outside of the shared memory")]
    Region,
    #[error("a path that no file of the mount can have: {0}")]
    Path(#[from] InvalidPath),
}

/// Checks a hello.
pub(super) fn check_hello(mut hello: &[u8]) -> Result<(), InvalidMessage> {
    let magic = hello.split_off(..MAGIC.len());
    let version = hello.try_get_u32_le();
    match (magic, version, hello.is_empty()) {
        (Some(magic), Ok(VERSION), true) if magic == MAGIC => Ok(()),
        _ => Err(InvalidMessage::Hello),
    }
}

/// The answer to a hello: this version, and whether the client is served.
pub(super) fn hello_answer(outcome: Result<(), Errno>) -> Vec<u8> {
    let mut answer = Vec::with_capacity(8);
    answer.put_u32_le(VERSION);
    answer.put_i32_le(outcome.err().map_or(0, Errno::raw_os_error));
    answer
}

impl Request {
    /// Reads a request of a client with `memory_bytes` of shared memory.
    pub(super) fn parse(mut bytes: &[u8], memory_bytes: u64) -> Result<Self, InvalidMessage> {
        use InvalidMessage::{CutPath, Files, Long, Region};
        let from = &mut bytes;
        let id = from.try_get_u64_le()?;
        let start = from.try_get_u64_le()?;
        let len = from.try_get_u64_le()?;
        let end = start.checked_add(len).filter(|end| *end <= memory_bytes);
        let region = start..end.ok_or(Region)?;
        let count = from.try_get_u32_le()?;
        let count = usize::try_from(count).ok().filter(|n| *n <= FILES_MAX);
        let mut files = Vec::with_capacity(count.ok_or(Files)?);
        for _ in 0..files.capacity() {
            let offset = from.try_get_u64_le()?;
            let len = from.try_get_u64_le()?;
            let path_len = from.try_get_u16_le()?;
            let path = from.split_off(..usize::from(path_len)).ok_or(CutPath)?;
            let path = ItemPath::parse(path)?;
            files.push(WantedFile { path, offset, len });
        }
        if !from.is_empty() {
            return Err(Long);
        }
        Ok(Self { id, region, files })
    }

    /// The answer with the `outcomes` of the files, in their order.
    pub(super) fn answer(&self, outcomes: &[Outcome]) -> Vec<u8> {
        let mut answer = Vec::with_capacity(12 + 20 * outcomes.len());
        answer.put_u64_le(self.id);
        answer.put_u32_le(u32::try_from(outcomes.len()).unwrap_or(u32::MAX));
        for outcome in outcomes {
            let (errno, place) = match outcome {
                Ok(place) => (0, place.clone()),
                Err(errno) => (errno.raw_os_error(), 0..0),
            };
            answer.put_i32_le(errno);
            answer.put_u64_le(place.start);
            answer.put_u64_le(place.end - place.start);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(files: &[(u64, u64, &[u8])], region: (u64, u64)) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64_le(7);
        bytes.put_u64_le(region.0);
        bytes.put_u64_le(region.1);
        bytes.put_u32_le(u32::try_from(files.len()).unwrap());
        for (offset, len, path) in files {
            bytes.put_u64_le(*offset);
            bytes.put_u64_le(*len);
            bytes.put_u16_le(u16::try_from(path.len()).unwrap());
            bytes.put_slice(path);
        }
        bytes
    }

    #[test]
    fn a_request_is_read_and_answered() {
        let bytes = request(&[(0, u64::MAX, b"a/b"), (5, 6, b"c")], (10, 20));
        let parsed = Request::parse(&bytes, 30).unwrap();
        assert_eq!(parsed.region, 10..30);
        assert_eq!(parsed.files[1].path.as_bytes(), b"c");
        assert_eq!((parsed.files[1].offset, parsed.files[1].len), (5, 6));
        let answer = parsed.answer(&[Ok(10..13), Err(Errno::ACCESS)]);
        let mut due = Vec::new();
        due.put_u64_le(7);
        due.put_u32_le(2);
        for (errno, at, len) in [(0, 10, 3), (13, 0, 0)] {
            due.put_i32_le(errno);
            due.put_u64_le(at);
            due.put_u64_le(len);
        }
        assert_eq!(answer, due);
    }

    #[test]
    fn messages_that_are_none_are_refused() {
        use InvalidMessage::{CutPath, Files, Hello, Long, Path, Region, Short};
        let good = request(&[(0, 1, b"a")], (0, 8));
        assert_eq!(Request::parse(&good, 7), Err(Region));
        for cut in 0..good.len() - 1 {
            let parsed = Request::parse(&good[..cut], 8);
            assert!(matches!(parsed, Err(Short(_))), "{cut}: {parsed:?}");
        }
        let cut = Request::parse(&good[..good.len() - 1], 8);
        assert_eq!(cut, Err(CutPath));
        assert_eq!(Request::parse(&[&good[..], b"x"].concat(), 8), Err(Long));
        let wraps = request(&[], (u64::MAX, 2));
        assert_eq!(Request::parse(&wraps, u64::MAX), Err(Region));
        for path in [&b"../etc/passwd"[..], b"a/..", b"a/./b", b"a\0b"] {
            let outside = Request::parse(&request(&[(0, 1, path)], (0, 8)), 8);
            assert!(matches!(outside, Err(Path(_))), "{path:?}: {outside:?}");
        }
        let mut many = request(&[], (0, 8));
        many[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Request::parse(&many, 8), Err(Files));
        let mut hello = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        assert_eq!(check_hello(&hello), Ok(()));
        hello[8] += 1;
        assert_eq!(check_hello(&hello), Err(Hello));
        assert_eq!(check_hello(b"copperfs"), Err(Hello));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Request::parse(&bytes, 1 << 20));
            drop(check_hello(&bytes));
        }
    }
}
