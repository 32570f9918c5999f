//! What is said of an upgrade: the daemon of another program takes over.

use serde::Serialize;
use std::io;
use std::path::PathBuf;

/// Why a daemon is not replaced.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// No other daemon can take over from this one.
    #[error("it was mounted without --takeover, so no other daemon can take it over")]
    NoTakeover,
    /// Another request has begun.
    #[error("another upgrade of this node is under way")]
    Busy,
    /// The program cannot take over.
    #[error("{} cannot take over: {reason}", program.display())]
    Unfit {
        /// The program.
        program: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// It would not understand the other nodes.
    #[error("{} speaks {new} to other nodes, and they speak {own}", program.display())]
    Wire {
        /// The program.
        program: PathBuf,
        /// The protocol of the other nodes.
        own: String,
        /// Its own protocol.
        new: String,
    },
}

impl UpgradeError {
    /// Returns advice for the user.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            Self::NoTakeover => "Unmount, and mount with the other version",
            Self::Busy => "Wait for its end",
            Self::Unfit { .. } => {
                "Nothing has changed. Is it a copperfs program for this machine, which this user may run?"
            }
            Self::Wire { .. } => {
                "Nothing has changed. Nodes of both versions cannot form a tree: unmount all, and mount \
                 with the other version"
            }
        }
    }
}

/// A daemon, as one of those that serve the same mounts one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Incarnation {
    /// Its version.
    pub version: String,
    /// Process id, in its own pid namespace.
    pub pid: u32,
    /// The number of daemons before it.
    pub generation: u32,
    /// Why another program did not take over, if the last upgrade failed.
    pub refused: Option<String>,
}
