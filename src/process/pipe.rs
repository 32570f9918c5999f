//! Frames on a pipe between two processes: the length of the body as `u32` in little-endian, and the body.

use std::io::{self, ErrorKind, Read};

/// `body` as a frame. Bodies are far shorter than `u32::MAX`.
#[must_use]
pub fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes(), body].concat()
}

/// The body of the next frame; `None` at the end of `input`.
///
/// # Errors
/// The body has more than `bytes_max` bytes, or `input` cannot be read.
pub fn read_frame(mut input: impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, as a pipe may.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let room = buffer.len().min(1);
            self.0.read(&mut buffer[..room])
        }
    }

    #[test]
    fn frames_are_whole_and_bounded() {
        let frames = [frame(b"abc"), frame(b"")].concat();
        let mut input = Slow(&frames);
        assert_eq!(read_frame(&mut input, 3).unwrap().unwrap(), b"abc");
        assert_eq!(read_frame(&mut input, 3).unwrap().unwrap(), b"");
        assert_eq!(read_frame(&mut input, 3).unwrap(), None);
        let refused = |bytes: &[u8], max| read_frame(bytes, max).unwrap_err().kind();
        assert_eq!(refused(&frame(b"abc"), 2), ErrorKind::InvalidData);
        // The other process has died within a frame.
        assert_eq!(refused(&frames[..6], 3), ErrorKind::UnexpectedEof);
    }
}
