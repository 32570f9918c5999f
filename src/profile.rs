//! Profiles: the listings, look-ups and reads of a program's start, in order.
//!
//! A profile is a text file of JSON lines, a header and then one [`Access`] a line, so that it can be
//! cut, joined and read with usual tools:
//! ```text
//! {"copperfs_profile":1}
//! {"op":"list","path":"/lus/venv/lib","entries":64}
//! {"op":"stat","path":"/lus/venv/pyvenv.cfg"}
//! {"op":"absent","path":"/lus/venv/lib/os.so"}
//! {"op":"read","path":"/lus/venv/lib/os.py","size":39511,"offset":0,"len":39511}
//! ```
//! A name that is not UTF-8 is written as an array of byte values. Fields that this version does not
//! know are ignored, empty lines are allowed, and so are further headers (joined profiles) or none.
//! Parsing is bounded: a line by [`LINE_BYTES_MAX`], a profile by [`ACCESSES_MAX`]. Knows no node and
//! no origin: [`crate::record`] makes a profile, [`crate::warm`] carries one out. For people:
//! `docs/profiles.md`.

use copperfs_overlay::{InvalidPath, ItemPath};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

/// Longest line in bytes: a path of 4,096 bytes, each written as a number, fits.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most accesses in one profile.
pub const ACCESSES_MAX: usize = 4_000_000;
/// The version of the format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// How a header begins.
const HEADER: &[u8] = b"{\"copperfs_profile\"";

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    copperfs_profile: u32,
    /// The recording was full before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// One access of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Access {
    /// A listing of a directory, or a look-up in it.
    List {
        /// The directory.
        #[serde(with = "path_form")]
        path: ItemPath,
        /// The number of entries of the directory, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entries: Option<u64>,
    },
    /// A read of attributes.
    Stat {
        /// The path.
        #[serde(with = "path_form")]
        path: ItemPath,
    },
    /// A look-up of a name that does not exist.
    Absent {
        /// The path.
        #[serde(with = "path_form")]
        path: ItemPath,
    },
    /// A read of extended attributes, as the kernel makes for every program that is started.
    Xattrs {
        /// The path.
        #[serde(with = "path_form")]
        path: ItemPath,
    },
    /// A read of bytes of a file.
    Read {
        /// The file.
        #[serde(with = "path_form")]
        path: ItemPath,
        /// The file's size in bytes.
        size: u64,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
}

impl Access {
    /// The path of the access.
    #[must_use]
    pub fn path(&self) -> &ItemPath {
        match self {
            Self::List { path, .. }
            | Self::Stat { path }
            | Self::Absent { path }
            | Self::Xattrs { path }
            | Self::Read { path, .. } => path,
        }
    }
}

/// The accesses of a program's start, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// The accesses, first one first.
    pub accesses: Vec<Access>,
}

/// Why a profile cannot be read.
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
        /// The line, from 1.
        line: usize,
        /// The syntax error.
        source: serde_json::Error,
    },
    /// A line does not end.
    #[error("line {line} of the profile has more than {LINE_BYTES_MAX} bytes: is it a profile?")]
    LongLine {
        /// The line, from 1.
        line: usize,
    },
    /// The profile was written by a later version of the program.
    #[error(
        "line {line} of the profile: it is of version {version}, this program reads versions up to \
         {VERSION}: use a newer copperfs, or record it again"
    )]
    Newer {
        /// The line, from 1.
        line: usize,
        /// The version of the profile.
        version: u32,
    },
    /// The profile does not end.
    #[error("the profile has more than {ACCESSES_MAX} accesses: split it")]
    TooMany,
    /// A read beyond the end of the file.
    #[error("line {line} of the profile: a read beyond the end of the file (size {size})")]
    BeyondEnd {
        /// The line, from 1.
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
            let Some(access) = parse_line(&text, line)? else {
                continue;
            };
            if accesses.len() == ACCESSES_MAX {
                return Err(ProfileError::TooMany);
            }
            accesses.push(access);
        }
        Ok(Self { accesses })
    }

    /// Writes the profile: a header, which says whether the recording was `cut`, and one line an access.
    ///
    /// # Errors
    /// `target` cannot be written.
    pub fn write(&self, cut: bool, mut target: impl Write) -> io::Result<()> {
        let header = Header {
            copperfs_profile: VERSION,
            cut,
        };
        serde_json::to_writer(&mut target, &header)?;
        target.write_all(b"\n")?;
        for access in &self.accesses {
            serde_json::to_writer(&mut target, access)?;
            target.write_all(b"\n")?;
        }
        target.flush()
    }
}

/// The access in line number `line`, `None` in an empty line and in a header.
///
/// # Errors
/// See [`ProfileError`].
pub fn parse_line(text: &[u8], line: usize) -> Result<Option<Access>, ProfileError> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |source| ProfileError::Line { line, source };
    if text.starts_with(HEADER) {
        let header: Header = serde_json::from_slice(text).map_err(wrong)?;
        let version = header.copperfs_profile;
        if version > VERSION {
            return Err(ProfileError::Newer { line, version });
        }
        return Ok(None);
    }
    let access = serde_json::from_slice(text).map_err(wrong)?;
    if let Access::Read {
        size, offset, len, ..
    } = access
        && offset.checked_add(len).is_none_or(|end| end > size)
    {
        return Err(ProfileError::BeyondEnd { line, size });
    }
    Ok(Some(access))
}

/// A path as text with a leading slash, or as bytes where it is no text.
pub(crate) mod path_form {
    use super::{InvalidPath, ItemPath};
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(crate) fn serialize<S: Serializer>(path: &ItemPath, to: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(path.as_bytes()) {
            Ok(text) => to.collect_str(&format_args!("/{text}")),
            Err(_not_text) => to.collect_seq(path.as_bytes()),
        }
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<ItemPath, D::Error> {
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
    fn a_written_profile_is_read_back() {
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
        profile.write(false, &mut text).unwrap();
        assert_eq!(Profile::read(&text[..]).unwrap(), profile);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text.lines().nth(2),
            Some(r#"{"op":"list","path":"/a","entries":7}"#)
        );
        assert_eq!(
            text.lines().nth(3),
            Some(r#"{"op":"stat","path":[97,47,255,254]}"#)
        );
    }

    #[test]
    fn profiles_can_be_joined_and_say_when_they_were_cut() {
        let mut text = Vec::new();
        let profile = parse(r#"{"op":"absent","path":"/a"}"#).unwrap();
        profile.write(true, &mut text).unwrap();
        assert!(text.starts_with(b"{\"copperfs_profile\":1,\"cut\":true}\n"));
        profile.write(false, &mut text).unwrap();
        assert_eq!(Profile::read(&text[..]).unwrap().accesses.len(), 2);
    }

    #[test]
    fn empty_lines_and_new_fields_are_no_fault() {
        let text =
            "\n{\"op\":\"stat\",\"path\":\"a\",\"when\":3}\n\n{\"op\":\"list\",\"path\":\"/\"}";
        assert_eq!(parse(text).unwrap().accesses.len(), 2);
    }

    #[test]
    fn errors_name_the_line() {
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
        let newer = said("{\"copperfs_profile\":2}\n");
        assert!(newer.contains("version 2"), "{newer}");
    }

    fn access() -> impl Strategy<Value = Access> {
        let name = proptest::collection::vec(any::<u8>(), 1..12);
        let path = proptest::collection::vec(name, 0..5)
            .prop_filter_map("a path", |names| ItemPath::parse(&names.join(&b'/')).ok());
        (path, 0u8..5, any::<[u32; 3]>()).prop_map(|(path, kind, [a, b, c])| match kind {
            0 => Access::List {
                path,
                entries: (a % 2 == 0).then_some(u64::from(b)),
            },
            1 => Access::Stat { path },
            2 => Access::Absent { path },
            3 => Access::Xattrs { path },
            _ => Access::Read {
                path,
                size: u64::from(a) + u64::from(b) + u64::from(c),
                offset: u64::from(a),
                len: u64::from(b),
            },
        })
    }

    proptest! {
        #[test]
        fn any_profile_round_trips(accesses in proptest::collection::vec(access(), 0..20)) {
            let profile = Profile { accesses };
            let mut text = Vec::new();
            profile.write(false, &mut text).unwrap();
            prop_assert_eq!(Profile::read(&text[..]).unwrap(), profile);
        }

        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let _outcome = Profile::read(&bytes[..]);
        }
    }
}
