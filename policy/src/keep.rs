//! What a home keeps of a dataset: the rules, and the cache that follows them. Pure.
//!
//! A dataset has one rule at a time ([`Keep`]), which may change while jobs read. The homes of its
//! items and the simulator run the same code.

pub mod cache;

pub use cache::{Admission, ItemCache, ItemCacheStats, Reserved};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The declared rule of a dataset.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// The policy chooses.
    #[default]
    Auto,
    /// Items up to the budget, and none of them is evicted until the budget shrinks (`SiloD`, section
    /// 2.2).
    Uniform,
    /// At most two chunks, which change as the jobs that substitute exhaust them (Quiver, section 5.1).
    Chunks,
    /// The items with the most references of submitted pipelines (LRC, section III-A).
    References,
    /// Nothing: every read goes to storage, once for all concurrent readers.
    None,
}

impl Keep {
    /// All rules, the default first.
    pub const ALL: [Self; 5] = [
        Self::Auto,
        Self::Uniform,
        Self::Chunks,
        Self::References,
        Self::None,
    ];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uniform => "uniform",
            Self::Chunks => "chunks",
            Self::References => "references",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no rule of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a rule of what is kept. The rules: auto (the default), uniform, chunks, references, none"
)]
pub struct UnknownKeep {
    name: String,
}

impl FromStr for Keep {
    type Err = UnknownKeep;

    fn from_str(name: &str) -> Result<Self, UnknownKeep> {
        let mut all = Self::ALL.into_iter();
        all.find(|keep| keep.name() == name)
            .ok_or_else(|| UnknownKeep { name: name.into() })
    }
}

/// An item of a dataset, in one version.
pub trait Item: Copy + Eq + fmt::Debug {
    /// Returns the key that all versions of the item share.
    fn key(&self) -> u64;
}

/// Which items of a dataset a home keeps. The share limits how many of them it keeps.
pub trait Rule<I>: fmt::Debug + Send {
    /// Returns whether the item is kept if the share has room for it. An item that the rule does not
    /// keep any more is evicted at once.
    fn keeps(&self, item: &I) -> bool;
}

/// Keeps every item: [`Keep::Uniform`].
#[derive(Clone, Copy, Debug)]
pub struct Everything;

impl<I> Rule<I> for Everything {
    fn keeps(&self, _item: &I) -> bool {
        true
    }
}

/// Keeps no item: [`Keep::None`].
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl<I> Rule<I> for Nothing {
    fn keeps(&self, _item: &I) -> bool {
        false
    }
}
