//! Why a configuration cannot be used.

use super::hosts::HostsError;
use super::hosts::launcher::LauncherError;
use super::layer::Location;
use super::topology::TopologyError;
use crate::budgets::LocateError;
use crate::budgets::registry::RegistryError;
use copperfs_overlay::InvalidPath;
use copperfs_policy::amounts::AmountError;
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
        source: Box<ValueError>,
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

/// Why a value of an option is invalid. The `Display` form also shows a valid value.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// It is not a size, rate, duration, switch or list of CPUs.
    #[error(transparent)]
    Amount(#[from] AmountError),
    /// It is not a host list, or this host's position in it is unclear.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// It names a launcher whose host list is not available.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// It is not a topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It names a file that is not a topology.
    #[error("{path}: {source}")]
    TopologyFile {
        /// The file.
        path: String,
        /// What is wrong with its content.
        source: TopologyError,
    },
    /// Its prefix is not a path of the namespace.
    #[error("the prefix {prefix:?}: {source}")]
    Prefix {
        /// The prefix.
        prefix: String,
        /// What is wrong with it.
        source: InvalidPath,
    },
    /// It locates no dataset or index.
    #[error(transparent)]
    Locate(#[from] LocateError),
    /// A dataset or a policy that the registry refuses.
    #[error("{}. {}", .0, .0.advice())]
    Registry(#[from] RegistryError),
    /// It breaks a rule of its option. The text states the rule.
    #[error("{0}")]
    Rule(String),
}

impl From<String> for ValueError {
    fn from(rule: String) -> Self {
        Self::Rule(rule)
    }
}

impl From<&'static str> for ValueError {
    fn from(rule: &'static str) -> Self {
        Self::Rule(rule.to_owned())
    }
}

impl ConfigError {
    /// The value at `location` is invalid.
    pub(crate) fn value(location: Location, source: impl Into<ValueError>) -> Self {
        let source = Box::new(source.into());
        Self::Value { location, source }
    }

    /// The file at `path`, which is for `kind`, cannot be read.
    pub(super) fn unreadable(kind: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::Unreadable { kind, path, source }
    }
}
