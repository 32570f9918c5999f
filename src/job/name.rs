//! Names of jobs, and their numbers on the wire.

use std::fmt;
use std::str::FromStr;

/// The maximum length of a name: longer than any scheduler's, and short enough for a message with a
/// thousand jobs.
const NAME_BYTES_MAX: usize = 160;

/// A job's name after its kind: `slurm:1234`, `pbs:77[3]`, `k8s:<uid of the pod>`, `torchrun:<run
/// id>`, `run:<name>`. Printable ASCII without blanks, at most 160 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobName(String);

/// A text is no job's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot name a job: {why}. Write up to 160 letters, digits and punctuation marks, \
     without blanks, after its kind: run:resnet-7, slurm:1234"
)]
pub struct JobNameError {
    text: String,
    why: &'static str,
}

impl JobName {
    /// The kinds of names, in order of preference.
    pub const KINDS: [&'static str; 5] = ["run", "slurm", "pbs", "k8s", "torchrun"];

    /// Creates a name of a kind from a value in an environment or a cgroup. `None` if it is
    /// invalid.
    #[must_use]
    pub fn of_kind(kind: &str, name: &str) -> Option<Self> {
        format!("{kind}:{name}").parse().ok()
    }

    /// Returns the whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns its number on the wire: the first 16 bytes of its BLAKE3 hash, big-endian.
    #[must_use]
    pub fn id(&self) -> u128 {
        let hash = blake3::hash(self.0.as_bytes());
        let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        u128::from_be_bytes(first)
    }
}

impl FromStr for JobName {
    type Err = JobNameError;

    fn from_str(text: &str) -> Result<Self, JobNameError> {
        let error = |why| JobNameError {
            text: text.chars().take(NAME_BYTES_MAX).collect(),
            why,
        };
        if text.len() > NAME_BYTES_MAX {
            return Err(error("it is too long"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(error(
                "it has a blank or a character that is not printable ASCII",
            ));
        }
        match text.split_once(':') {
            Some((kind, name)) if Self::KINDS.contains(&kind) && !name.is_empty() => {
                Ok(Self(text.to_owned()))
            }
            Some((_, "")) => Err(error("nothing follows its kind")),
            _ => Err(error(
                "it does not begin with run:, slurm:, pbs:, k8s: or torchrun:",
            )),
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_printable_and_begin_with_their_kind() {
        for good in [
            "slurm:1234",
            "pbs:77[3]",
            "run:a:b",
            "torchrun:x.y",
            "k8s:0-1",
        ] {
            assert_eq!(good.parse::<JobName>().unwrap().to_string(), good);
        }
        for wrong in ["", "1234", "slurm:", "lsf:1", "run:a b", "run:ä", "run:a\n"] {
            let error = wrong.parse::<JobName>().unwrap_err().to_string();
            assert!(error.contains("cannot name a job"), "{error}");
        }
        assert!(JobName::of_kind("run", &"x".repeat(200)).is_none());
        assert!(JobName::of_kind("run", "").is_none());
    }

    #[test]
    fn an_id_is_the_first_half_of_the_hash() {
        let name: JobName = "slurm:1234".parse().unwrap();
        let hash = blake3::hash(b"slurm:1234").to_hex();
        assert_eq!(format!("{:032x}", name.id()), hash.as_str()[..32]);
    }

    proptest! {
        #[test]
        fn names_survive_formatting(text in "(run|slurm):[!-~]{1,100}") {
            let name: JobName = text.parse().unwrap();
            prop_assert_eq!(name.to_string(), text);
        }
    }
}
