//! Why a configuration cannot be used.

use super::layer::Location;
use std::io;
use std::path::{Path, PathBuf};

/// A configuration that cannot be used: the problem, its location, and a valid alternative.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value of an option is invalid.
    #[error("{location}: {source}")]
    Value {
        /// The option, and the place where the value is set.
        location: Location,
        /// What is wrong with the value.
        source: ValueError,
    },
    /// A line of the configuration file is invalid.
    #[error("{}:{line}: {message}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A file that an option names cannot be read.
    #[error("cannot read the {kind} {}: {source}", path.display())]
    Unreadable {
        /// What the file is for.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// The failure of the read.
        source: io::Error,
    },
    /// Root must say what is served.
    #[error(
        "no --origin given: as root copperfs does not serve the whole file system unasked, since \
         whoever can use the mount would read with root's rights. Name what to serve, as in \
         --origin /lus=file:///lus"
    )]
    NoOrigin,
    /// Nodes that talk to each other need a secret.
    #[error(
        "nodes that talk to each other need a job secret: give --secret-file FILE (the same on all \
         nodes, mode 0600), or let copperfs launch make one"
    )]
    NoSecret,
    /// The secret file cannot be used.
    #[error("the secret file {}: {reason}", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a value of an option is invalid. The `Display` form also shows a valid value. No caller tells the reasons apart.
pub type ValueError = Box<dyn std::error::Error + Send + Sync>;

/// A part of a value, such as a file that it names, is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {source}")]
pub(super) struct InvalidPart {
    /// The part, as users know it.
    pub(super) part: String,
    /// Why it is invalid.
    pub(super) source: ValueError,
}

impl ConfigError {
    /// The value at `location` is invalid.
    pub(crate) fn value(location: Location, source: impl Into<ValueError>) -> Self {
        let source = source.into();
        Self::Value { location, source }
    }

    /// The file at `path`, which is for `kind`, cannot be read.
    pub(super) fn unreadable(kind: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Unreadable { kind, path, source }
    }
}
