//! Paths inside the served namespace.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A path inside the served namespace, as bytes, without a leading or trailing slash.
///
/// The root of the namespace is the empty path. Components are never empty, `.` or `..`, and never
/// hold a NUL byte; anything else, UTF-8 or not, is allowed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct ItemPath(Arc<[u8]>);

/// Why bytes are not an [`ItemPath`] or a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a path inside the namespace: {0}")]
pub struct InvalidPath(&'static str);

impl ItemPath {
    /// The longest path in bytes, as on Linux (`PATH_MAX`).
    pub const BYTES_MAX: usize = 4096;
    /// The longest name of one component in bytes (`NAME_MAX`).
    pub const NAME_BYTES_MAX: usize = 255;

    /// The root of the namespace.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from(&b""[..]))
    }

    /// Parses `bytes`, ignoring leading, trailing and doubled slashes.
    ///
    /// # Errors
    /// A `.` or `..` component, a NUL byte, a component or path that is too long.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidPath> {
        let mut path = Vec::with_capacity(bytes.len());
        for name in bytes.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            check_name(name)?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        if path.len() > Self::BYTES_MAX {
            return Err(InvalidPath("longer than 4096 bytes"));
        }
        Ok(Self(path.into()))
    }

    /// Returns this path with one more component.
    ///
    /// # Errors
    /// As [`ItemPath::parse`], and a slash inside `name`.
    pub fn join(&self, name: &[u8]) -> Result<Self, InvalidPath> {
        Self::check_name(name)?;
        if self.is_root() {
            return Ok(Self(name.into()));
        }
        if self.0.len() + 1 + name.len() > Self::BYTES_MAX {
            return Err(InvalidPath("longer than 4096 bytes"));
        }
        let mut path = Vec::with_capacity(self.0.len() + 1 + name.len());
        path.extend_from_slice(&self.0);
        path.push(b'/');
        path.extend_from_slice(name);
        Ok(Self(path.into()))
    }

    /// Returns the path `below` in this directory.
    ///
    /// # Errors
    /// The whole is too long.
    pub fn below(&self, below: &Self) -> Result<Self, InvalidPath> {
        let mut components = below.components();
        components.try_fold(self.clone(), |path, name| path.join(name))
    }

    /// Returns the parent directory of this path, and the name in it; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|&b| b == b'/') {
            Some(slash) => (Self(self.0[..slash].into()), &self.0[slash + 1..]),
            None => (Self::root(), &self.0[..]),
        })
    }

    /// Returns the rest of this path below `prefix`, if it is `prefix` or below it.
    #[must_use]
    pub fn strip_prefix(&self, prefix: &Self) -> Option<Self> {
        if prefix.is_root() {
            return Some(self.clone());
        }
        match self.0.strip_prefix(&prefix.0[..])? {
            [] => Some(Self::root()),
            [b'/', rest @ ..] => Some(Self(rest.into())),
            _ => None,
        }
    }

    /// Checks that `name` can be the name of one entry of a directory.
    ///
    /// # Errors
    /// As [`ItemPath::join`].
    pub fn check_name(name: &[u8]) -> Result<(), InvalidPath> {
        check_name(name)?;
        if name.contains(&b'/') {
            return Err(InvalidPath("a name holds a slash"));
        }
        Ok(())
    }

    /// Whether this path is `ancestor` or below it. `/mnt3x` is not below `/mnt3`.
    #[must_use]
    pub fn is_within(&self, ancestor: &Self) -> bool {
        ancestor.is_root() || matches!(self.0.strip_prefix(&ancestor.0[..]), Some([] | [b'/', ..]))
    }

    /// Whether this is the root of the namespace.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, without leading slash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The components from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|name| !name.is_empty())
    }
}

fn check_name(name: &[u8]) -> Result<(), InvalidPath> {
    match name {
        b"" => Err(InvalidPath("an empty name")),
        b"." | b".." => Err(InvalidPath("a . or .. component")),
        _ if name.contains(&0) => Err(InvalidPath("a NUL byte")),
        _ if name.len() > ItemPath::NAME_BYTES_MAX => {
            Err(InvalidPath("a name longer than 255 bytes"))
        }
        _ => Ok(()),
    }
}

impl TryFrom<Vec<u8>> for ItemPath {
    type Error = InvalidPath;

    fn try_from(bytes: Vec<u8>) -> Result<Self, InvalidPath> {
        Self::parse(&bytes)
    }
}

impl From<ItemPath> for Vec<u8> {
    fn from(path: ItemPath) -> Self {
        path.0.to_vec()
    }
}

impl fmt::Debug for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// With a leading slash; bytes that are not UTF-8 or not printable are escaped.
impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}
