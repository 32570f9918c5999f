//! What a policy has the cache of a dataset hold. Pure.

use serde::{Deserialize, Serialize};

/// What the cache of a dataset holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// All of it.
    Whole,
    /// Two chunks.
    Chunks,
    /// A part, uniformly: each item with the same probability.
    Uniform,
    /// Nothing.
    None,
}

impl Choice {
    /// Returns the name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Chunks => "chunks",
            Self::Uniform => "uniform",
            Self::None => "none",
        }
    }
}
