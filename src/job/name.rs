//! Names of jobs, and the numbers that stand for them on the wire.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name: longer than any scheduler's, short enough for a message of a thousand jobs.
const NAME_BYTES_MAX: usize = 160;

/// A job's name, with who gave it in front: `slurm:1234`, `pbs:77[3]`, `k8s:<uid of the pod>`,
/// `torchrun:<run id>`, `run:<name>`. Printable ASCII without blanks, at most 160 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// A text that cannot be a job's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} cannot name a job: {why}. Write up to 160 letters, digits and punctuation marks, \
     without blanks, after its kind: run:resnet-7, slurm:1234"
)]
pub struct JobNameError {
    text: String,
    why: &'static str,
}

/// What a job is called on the wire: the first 16 bytes of its name's BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId(pub u128);

impl JobName {
    /// The kinds of names, in the order in which a process is asked for them.
    pub const KINDS: [&'static str; 5] = ["run", "slurm", "pbs", "k8s", "torchrun"];

    /// A name of a kind, out of what an environment or a cgroup says. `None` if that is no name.
    #[must_use]
    pub fn of_kind(kind: &str, name: &str) -> Option<Self> {
        if name.is_empty() {
            return None;
        }
        format!("{kind}:{name}").parse().ok()
    }

    /// The whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands for it on the wire.
    #[must_use]
    pub fn id(&self) -> JobId {
        let hash = blake3::hash(self.0.as_bytes());
        let (first, _) = hash.as_bytes().split_at(16);
        JobId(first.iter().fold(0, |id, byte| id << 8 | u128::from(*byte)))
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

impl TryFrom<String> for JobName {
    type Error = JobNameError;

    fn try_from(text: String) -> Result<Self, JobNameError> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_printable_and_say_who_gave_them() {
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
    fn an_id_is_the_beginning_of_the_hash() {
        let name: JobName = "slurm:1234".parse().unwrap();
        let hash = blake3::hash(b"slurm:1234").to_hex();
        assert_eq!(name.id().to_string(), hash.as_str()[..32]);
    }

    proptest! {
        #[test]
        fn a_name_survives_its_text(text in "(run|slurm):[!-~]{1,100}") {
            let name: JobName = text.parse().unwrap();
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<JobName>(&json).unwrap(), name);
        }
    }
}
