//! The owner and the permission bits of a store's files, which stores do not have.
//!
//! The options `owner` and `mode` of an origin set them. The kernel enforces them, so a mount that is open
//! to other users keeps a bucket to one of them: content is shared in the caches, and access is not.

use crate::origin::error::{OriginError, redacted};
use crate::origin::options::OriginSpec;
use std::collections::BTreeMap;

/// The options that are not those of the store's client.
pub(super) const OPTIONS: [&str; 2] = ["owner", "mode"];

/// The values of `owner` and `mode` among an origin's `options`. They make attributes, which kernels keep.
#[must_use]
pub fn permission_options(options: &BTreeMap<String, String>) -> [Option<&String>; 2] {
    OPTIONS.map(|name| options.get(name))
}

/// The bits of a file that reading needs. Nothing can be written.
const MODE_BITS: u16 = 0o555;
/// The permission bits of files by default.
const FILE_MODE: u16 = 0o444;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Permissions {
    /// The ids of user and group. `None`: those of the daemon.
    pub(super) owner: Option<(u32, u32)>,
    /// The permission bits of files.
    pub(super) files: u16,
    /// Those of directories. `None`: those of the daemon's own directories.
    pub(super) directories: Option<u16>,
}

impl Default for Permissions {
    fn default() -> Self {
        Self {
            owner: None,
            files: FILE_MODE,
            directories: None,
        }
    }
}

impl Permissions {
    /// Reads the options of an origin.
    ///
    /// # Errors
    /// A value is no pair of ids, or no octal number of permission bits.
    pub(super) fn of(spec: &OriginSpec) -> Result<Self, OriginError> {
        let [owner, mode] = OPTIONS.map(|name| spec.options.get(name).map(String::as_str));
        let wrong = |reason: String| OriginError::Store {
            uri: redacted(&spec.uri),
            reason,
        };
        let owner = owner.map(|text| ids(text).ok_or_else(|| wrong(no_owner(text))));
        let mode = mode.map(|text| bits(text).ok_or_else(|| wrong(no_mode(text))));
        let (owner, mode) = (owner.transpose()?, mode.transpose()?);
        Ok(Self {
            owner,
            files: mode.unwrap_or(FILE_MODE),
            // Users that may read files may enter directories.
            directories: mode.map(|mode| mode | (mode & 0o444) >> 2),
        })
    }
}

/// Parses `UID:GID`, or `UID` with the group of the same number.
fn ids(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':').unwrap_or((text, text));
    Some((user.parse().ok()?, group.parse().ok()?))
}

/// Parses octal digits, such as `0440`.
fn bits(text: &str) -> Option<u16> {
    let mode = u16::from_str_radix(text, 8).ok()?;
    (mode <= 0o777).then_some(mode & MODE_BITS)
}

fn no_owner(text: &str) -> String {
    format!(
        "owner {text:?} is not UID:GID; write numbers, as in \"1000:100\" (id -u and id -g tell them)"
    )
}

fn no_mode(text: &str) -> String {
    format!("mode {text:?} is not a number of permission bits; write octal digits, as in \"0440\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    fn of(options: &[(&str, &str)]) -> Result<Permissions, OriginError> {
        let options = options.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        Permissions::of(&OriginSpec {
            prefix: path("/data"),
            uri: "s3://bucket/data".into(),
            options: options.collect(),
        })
    }

    #[test]
    fn owner_and_mode_are_those_of_the_options() {
        assert_eq!(of(&[]).unwrap(), Permissions::default());
        let both = of(&[("owner", "1000:100"), ("mode", "0640")]).unwrap();
        assert_eq!(both.owner, Some((1000, 100)));
        // Write bits are dropped, and directories can be entered where files can be read.
        assert_eq!((both.files, both.directories), (0o440, Some(0o550)));
        assert_eq!(of(&[("owner", "7")]).unwrap().owner, Some((7, 7)));
        assert_eq!(of(&[("mode", "755")]).unwrap().files, 0o555);
    }

    #[test]
    fn other_values_are_refused_with_advice() {
        for (option, hint) in [
            (("owner", "alice"), "id -u and id -g"),
            (("owner", "1:x"), "id -u and id -g"),
            (("owner", "-1"), "id -u and id -g"),
            (("mode", "r--"), "octal digits"),
            (("mode", "0999"), "octal digits"),
            (("mode", "1777"), "octal digits"),
        ] {
            let error = of(&[option]).unwrap_err().to_string();
            assert!(error.contains(hint), "{option:?}: {error}");
        }
    }
}
