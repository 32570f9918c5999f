//! A limit to the bytes that a parser has to keep of a line while it arrives. Pure.
//!
//! `serde_json` keeps a text until its end, and a byte for each bracket that is open, also if the field is ignored.

use std::io::{self, Read};

/// The maximum number of bytes of a text, such as a comment in an ignored field. Names and paths are much shorter.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// The maximum number of brackets that are open at the same time. Each takes a byte, and only in ignored fields: others are
/// refused long before.
const DEPTH_MAX: usize = 1 << 20;

/// Fails where JSON that is read through it has a longer text or is nested deeper.
pub(super) struct Bounded<R> {
    json: R,
    depth: usize,
    /// The bytes so far of the text that is being read.
    text: Option<usize>,
    is_escaped: bool,
    /// The reason why the bytes that follow are not given out.
    fault: Option<io::Error>,
}

impl<R> Bounded<R> {
    pub(super) fn new(json: R) -> Self {
        Self {
            json,
            depth: 0,
            text: None,
            is_escaped: false,
            fault: None,
        }
    }

    fn follow(&mut self, byte: u8) -> io::Result<()> {
        let Some(len) = self.text else {
            match byte {
                b'"' => self.text = Some(0),
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            return match self.depth > DEPTH_MAX {
                true => Err(refused(format!("it is nested more than {DEPTH_MAX} deep"))),
                false => Ok(()),
            };
        };
        self.text = match byte {
            b'"' if !self.is_escaped => None,
            _ if len < TEXT_BYTES_MAX => Some(len + 1),
            _ => {
                let error = format!("a text has more than {TEXT_BYTES_MAX} bytes");
                return Err(refused(error));
            }
        };
        self.is_escaped = byte == b'\\' && !self.is_escaped;
        Ok(())
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let count = self.json.read(into)?;
        for (at, byte) in into[..count].iter().enumerate() {
            if let Err(fault) = self.follow(*byte) {
                // The parser may find a fault of its own in the bytes before.
                self.fault = Some(fault);
                return Ok(at + 1);
            }
        }
        Ok(count)
    }
}

fn refused(error: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> io::Result<usize> {
        Bounded::new(json.as_bytes()).read_to_end(&mut Vec::new())
    }

    #[test]
    fn long_texts_and_deep_nesting_are_refused() {
        let text = |len: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(len));
        assert!(read(&text(TEXT_BYTES_MAX)).is_ok());
        assert!(read(&text(TEXT_BYTES_MAX + 1)).is_err());
        let many = format!(
            "[{}\"\"]",
            text(1000).as_str().to_owned() + &",\"[[\\\"[\"".repeat(1_000_000)
        );
        assert_eq!(
            read(&many).unwrap(),
            many.len(),
            "brackets in texts, and many texts"
        );
        assert!(read(&"[]".repeat(1000)).is_ok());
        assert!(read(&"[".repeat(DEPTH_MAX)).is_ok());
        let deep = read(&"[{".repeat(DEPTH_MAX)).unwrap_err();
        assert!(deep.to_string().contains("nested"), "{deep}");
        // A text that ends with a backslash, which is escaped.
        assert!(read(&format!("\"\\\\\"{}", "[".repeat(DEPTH_MAX + 1))).is_err());
    }
}
