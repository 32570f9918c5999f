//! What a start-up touched: listings, look-ups and reads, in order.
//!
//! A profile is a text file of JSON lines, one [`Access`] a line, so that it can be cut, joined and
//! read with usual tools:
//! ```text
//! {"op":"list","path":"/lus/venv/lib","entries":64}
//! {"op":"stat","path":"/lus/venv/pyvenv.cfg"}
//! {"op":"read","path":"/lus/venv/lib/os.py","size":39511,"offset":0,"len":39511}
//! ```
//! A name that is not UTF-8 is written as an array of byte values. Fields that this version does not
//! know are ignored, empty lines are allowed. Parsing is bounded: a line by [`LINE_BYTES_MAX`], a
//! profile by [`ACCESSES_MAX`]. Knows no node and no origin: who records a profile and who plays it
//! back is elsewhere.

use copperfs_overlay::{InvalidPath, ItemPath};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// Longest line in bytes: a path of 4,096 bytes, each written as a number, fits.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most accesses in one profile.
pub const ACCESSES_MAX: usize = 4_000_000;

/// One thing that a program did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Access {
    /// It searched a directory: listed it, or looked a name up in it.
    List {
        /// The directory.
        #[serde(with = "path_form")]
        path: ItemPath,
        /// How many entries the directory has, where known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entries: Option<u64>,
    },
    /// It asked for attributes.
    Stat {
        /// Of what.
        #[serde(with = "path_form")]
        path: ItemPath,
    },
    /// It read bytes of a file.
    Read {
        /// The file.
        #[serde(with = "path_form")]
        path: ItemPath,
        /// The file's size in bytes.
        size: u64,
        /// Where the read began, in bytes.
        offset: u64,
        /// How many bytes were read.
        len: u64,
    },
}

impl Access {
    /// What was touched.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        match self {
            Self::List { path, .. } | Self::Stat { path } | Self::Read { path, .. } => path,
        }
    }
}

/// What a start-up touched, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// The accesses, first one first.
    pub accesses: Vec<Access>,
}

/// Why a profile could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile: {0}")]
    Io(#[from] io::Error),
    /// A line is no access.
    #[error(
        "line {line} of the profile: {source}. A line looks like \
         {{\"op\":\"read\",\"path\":\"/a/b.py\",\"size\":1234,\"offset\":0,\"len\":1234}}"
    )]
    Line {
        /// Which line; the first is 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A line does not end.
    #[error("line {line} of the profile has more than {LINE_BYTES_MAX} bytes: is it a profile?")]
    LongLine {
        /// Which line; the first is 1.
        line: usize,
    },
    /// The profile does not end.
    #[error("the profile has more than {ACCESSES_MAX} accesses: split it")]
    TooMany,
    /// A read that cannot have been.
    #[error("line {line} of the profile: a read beyond the end of the file (size {size})")]
    BeyondEnd {
        /// Which line; the first is 1.
        line: usize,
        /// The size that the line gives.
        size: u64,
    },
}

impl Profile {
    /// Reads the profile in the file at `path`.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        Self::read(BufReader::new(File::open(path)?))
    }

    /// Reads a profile to its end.
    ///
    /// # Errors
    /// See [`ProfileError`].
    pub fn read(mut source: impl BufRead) -> Result<Self, ProfileError> {
        let mut accesses = Vec::new();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let bound = u64::try_from(LINE_BYTES_MAX + 1).unwrap_or(u64::MAX);
            if source.by_ref().take(bound).read_until(b'\n', &mut text)? == 0 {
                break;
            }
            if text.len() > LINE_BYTES_MAX {
                return Err(ProfileError::LongLine { line });
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            if accesses.len() == ACCESSES_MAX {
                return Err(ProfileError::TooMany);
            }
            let access = serde_json::from_slice(&text)
                .map_err(|source| ProfileError::Line { line, source })?;
            if let Access::Read {
                size, offset, len, ..
            } = access
                && offset.checked_add(len).is_none_or(|end| end > size)
            {
                return Err(ProfileError::BeyondEnd { line, size });
            }
            accesses.push(access);
        }
        Ok(Self { accesses })
    }

    /// Writes the profile, one line an access.
    ///
    /// # Errors
    /// `target` cannot be written.
    pub fn write(&self, mut target: impl Write) -> io::Result<()> {
        for access in &self.accesses {
            serde_json::to_writer(&mut target, access)?;
            target.write_all(b"\n")?;
        }
        target.flush()
    }
}

/// A path as text with a leading slash, or as bytes where it is no text.
mod path_form {
    use super::{InvalidPath, ItemPath};
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(path: &ItemPath, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(path.as_bytes()) {
            Ok(text) => to.collect_str(&format_args!("/{text}")),
            Err(_not_text) => to.collect_seq(path.as_bytes()),
        }
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ItemPath, D::Error> {
        let parsed: Result<ItemPath, InvalidPath> = match Form::deserialize(from)? {
            Form::Text(text) => ItemPath::parse(text.as_bytes()),
            Form::Bytes(bytes) => ItemPath::parse(&bytes),
        };
        parsed.map_err(|error| de::Error::custom(format_args!("path: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Profile, ProfileError> {
        Profile::read(text.as_bytes())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let path = |bytes: &[u8]| ItemPath::parse(bytes).unwrap();
        let profile = Profile {
            accesses: vec![
                Access::List {
                    path: ItemPath::root(),
                    entries: None,
                },
                Access::List {
                    path: path(b"/a"),
                    entries: Some(7),
                },
                Access::Stat {
                    path: path(b"/a/\xff\xfe"),
                },
                Access::Read {
                    path: path("/a/ä\".py".as_bytes()),
                    size: 9,
                    offset: 1,
                    len: 8,
                },
            ],
        };
        let mut text = Vec::new();
        profile.write(&mut text).unwrap();
        assert_eq!(Profile::read(&text[..]).unwrap(), profile);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text.lines().nth(1),
            Some(r#"{"op":"list","path":"/a","entries":7}"#)
        );
        assert_eq!(
            text.lines().nth(2),
            Some(r#"{"op":"stat","path":[97,47,255,254]}"#)
        );
    }

    #[test]
    fn empty_lines_and_new_fields_are_no_fault() {
        let text =
            "\n{\"op\":\"stat\",\"path\":\"a\",\"when\":3}\n\n{\"op\":\"list\",\"path\":\"/\"}";
        assert_eq!(parse(text).unwrap().accesses.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        let two = said("\n{\"op\":\"fly\",\"path\":\"/\"}");
        assert!(two.contains("line 2") && two.contains("fly"), "{two}");
        let climbs = said(r#"{"op":"stat","path":"/a/../b"}"#);
        assert!(climbs.contains("a . or .. component"), "{climbs}");
        let beyond = said(r#"{"op":"read","path":"/a","size":4,"offset":2,"len":3}"#);
        assert!(beyond.contains("beyond the end"), "{beyond}");
        let huge = format!(
            r#"{{"op":"read","path":"/a","size":4,"offset":{},"len":3}}"#,
            u64::MAX
        );
        assert!(parse(&huge).is_err());
        let long = said(&"x".repeat(LINE_BYTES_MAX + 1));
        assert!(long.contains("line 1"), "{long}");
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let _outcome = Profile::read(&bytes[..]);
        }
    }
}
