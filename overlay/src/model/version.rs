//! Versions of files: the identity under which bytes are cached, requested and served.
//!
//! A version has three parts, and two versions are equal only if all three are:
//! - *data* stands for the bytes, as far as the origin's own records tell: the origin, the filesystem that
//!   holds the file, its inode number, size and modification time; for an object its tag.
//! - *change* is the time of the last status change. `chmod`, `chown` and `ln` move it and do not touch the
//!   bytes, but so does a tool that rewrites a file and restores its modification time. Only a comparison
//!   of the bytes tells these cases apart.
//! - *standing* says how far the origin's records can be trusted to tell one state from the next.
//!
//! Plain values: no I/O, no clock. Their serde form is part of the wire format (`docs/wire.md`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// The identity of a state of a file; see the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    data: [u8; 16],
    change: [u8; 8],
    standing: Standing,
}

/// How reliably a [`Version`] distinguishes its state from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// No other state of the file has this version, in this launch or in a later one.
    Lasting,
    /// No other state of the file has this version while the origin's roots run. Data cached under it does
    /// not outlive the launch, because the origin's records would not show a change between two launches.
    Launch,
    /// A further write might not show in the origin's times yet. The number identifies one look at the
    /// file, so that bytes read under it are never found under the settled version, even if all other parts
    /// are equal.
    Unsettled(u64),
}

impl Version {
    /// Bytes of [`Version::to_bytes`].
    pub const BYTES: usize = 33;

    /// A lasting version made from `identity` alone, such as an object's tag.
    #[must_use]
    pub fn of(identity: &[u8]) -> Self {
        Self {
            data: truncated(identity),
            change: [0; 8],
            standing: Standing::Lasting,
        }
    }

    /// This version after the status change at `time`, in any encoding that differs for different times.
    #[must_use]
    pub fn changed_at(self, time: &[u8]) -> Self {
        Self {
            change: truncated(time),
            ..self
        }
    }

    /// This version with another standing.
    #[must_use]
    pub fn standing_as(self, standing: Standing) -> Self {
        Self { standing, ..self }
    }

    /// How far the version can be trusted.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Whether every later write changes the version.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !matches!(self.standing, Standing::Unsettled(_))
    }

    /// Whether data cached under it may be used in a later launch.
    #[must_use]
    pub fn outlives_launch(&self) -> bool {
        self.standing == Standing::Lasting
    }

    /// Whether the data parts are equal. The time of the last status change and the standing may differ.
    /// The bytes are probably the same, but must be compared before they are treated as the same.
    #[must_use]
    pub fn has_data_of(&self, other: &Self) -> bool {
        self.data == other.data
    }

    /// Whether both have the same data and change, with any standing.
    #[must_use]
    pub fn is_state_of(&self, other: &Self) -> bool {
        self.data == other.data && self.change == other.change
    }

    /// An encoding that differs for different versions, for hashes and for files on disk.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let (tag, look) = match self.standing {
            Standing::Lasting => (0, 0),
            Standing::Launch => (1, 0),
            Standing::Unsettled(look) => (2, look),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.data);
        bytes[16..24].copy_from_slice(&self.change);
        bytes[24] = tag;
        bytes[25..].copy_from_slice(&look.to_le_bytes());
        bytes
    }

    /// Decodes the output of [`Version::to_bytes`]. Returns `None` for any other bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (data, rest) = bytes.split_first_chunk::<16>()?;
        let (change, rest) = rest.split_first_chunk::<8>()?;
        let (tag, rest) = rest.split_first()?;
        let look = u64::from_le_bytes(*rest.first_chunk::<8>()?);
        let standing = match (tag, look) {
            (0, 0) => Standing::Lasting,
            (1, 0) => Standing::Launch,
            (2, look) => Standing::Unsettled(look),
            _ => return None,
        };
        Some(Self {
            data: *data,
            change: *change,
            standing,
        })
    }

    /// The part that stands for the bytes.
    #[must_use]
    pub fn data(&self) -> &[u8; 16] {
        &self.data
    }

    /// The part that tells status changes apart; zeros if the origin has no such time.
    #[must_use]
    pub fn change(&self) -> &[u8; 8] {
        &self.change
    }

    /// This version with the `change` of another one.
    #[must_use]
    pub fn with_change(self, change: [u8; 8]) -> Self {
        Self { change, ..self }
    }

    /// A lasting version with this data and no time of a status change.
    #[must_use]
    pub const fn from_data(data: [u8; 16]) -> Self {
        Self {
            data,
            change: [0; 8],
            standing: Standing::Lasting,
        }
    }
}

fn truncated<const N: usize>(identity: &[u8]) -> [u8; N] {
    let mut short = [0; N];
    short.copy_from_slice(&blake3::hash(identity).as_bytes()[..N]);
    short
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hex = |bytes: &[u8]| bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"));
        hex(&self.data[..6])?;
        hex(&self.change[..2])?;
        match self.standing {
            Standing::Lasting => Ok(()),
            Standing::Launch => f.write_str("~"),
            Standing::Unsettled(look) => write!(f, "?{look:x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unsettled_version_equals_no_other_look_and_not_the_settled_one() {
        let settled = Version::of(b"file").changed_at(b"noon");
        let first = settled.standing_as(Standing::Unsettled(1));
        let second = settled.standing_as(Standing::Unsettled(2));
        assert_ne!(first, settled);
        assert_ne!(first, second);
        assert!(first.is_state_of(&settled) && !first.is_settled());
        assert!(settled.outlives_launch());
        assert!(!settled.standing_as(Standing::Launch).outlives_launch());
    }

    #[test]
    fn a_status_change_alone_leaves_the_data() {
        let before = Version::of(b"file").changed_at(b"noon");
        let after = Version::of(b"file").changed_at(b"one");
        assert_ne!(before, after);
        assert!(before.has_data_of(&after) && !before.is_state_of(&after));
        assert!(!before.has_data_of(&Version::of(b"other").changed_at(b"noon")));
    }

    proptest! {
        #[test]
        fn versions_round_trip_through_bytes(data: [u8; 16], change: [u8; 8], look: Option<Option<u64>>) {
            let standing = match look {
                None => Standing::Lasting,
                Some(None) => Standing::Launch,
                Some(Some(look)) => Standing::Unsettled(look),
            };
            let version = Version { data, change, standing };
            prop_assert_eq!(Version::from_bytes(&version.to_bytes()), Some(version));
        }

        #[test]
        fn bytes_with_another_tag_are_no_version(bytes in prop::array::uniform32(any::<u8>()), tag in 3u8..) {
            let mut all = [0; Version::BYTES];
            all[..32].copy_from_slice(&bytes);
            all[24] = tag;
            prop_assert_eq!(Version::from_bytes(&all), None);
        }
    }
}
