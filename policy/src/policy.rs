//! The policies by name.

use super::baselines::{fixed, lru};
use super::benefit::benefit;
use super::greedy::greedy;
use super::max_min::max_min;
use super::problem::{Allocation, Problem};
use super::sjf::sjf;
use std::fmt;
use std::str::FromStr;

/// How cache and remote IO are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// The most efficient datasets first: [`greedy`].
    #[default]
    Greedy,
    /// Maximises the least gain of a job over an equal share: [`max_min`].
    MaxMin,
    /// The shortest job in all resources first: [`sjf`].
    Sjf,
    /// Whole datasets or two chunks, by benefit over cost: [`benefit()`].
    Benefit,
    /// One LRU for all: [`lru()`].
    Lru,
    /// A private cache for each job: [`fixed`].
    Static,
}

impl Policy {
    /// All policies, the default first.
    pub const ALL: [Self; 6] = [
        Self::Greedy,
        Self::MaxMin,
        Self::Sjf,
        Self::Benefit,
        Self::Lru,
        Self::Static,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::MaxMin => "max-min",
            Self::Sjf => "sjf",
            Self::Benefit => "benefit",
            Self::Lru => "lru",
            Self::Static => "static",
        }
    }

    /// Divides cache and remote IO. Every problem has an allocation; it is meaningful if
    /// [`Problem::check`] accepts the problem.
    #[must_use]
    pub fn allocate(self, problem: &Problem) -> Allocation {
        match self {
            Self::Greedy => greedy(problem),
            Self::MaxMin => max_min(problem),
            Self::Sjf => sjf(problem),
            Self::Benefit => benefit(problem),
            Self::Lru => lru(problem),
            Self::Static => fixed(problem),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no policy of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a policy. The policies: greedy (the default), max-min, sjf, benefit, lru, static"
)]
pub struct UnknownPolicy {
    name: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy { name: name.into() })
    }
}
