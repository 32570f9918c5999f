//! Maps errnos and HTTP statuses to failures. Two tables hold every decision.
//!
//! The kind of a failure tells the caller how to react, and its hint tells the user. An errno or status that
//! is missing from the tables is `Io` without a hint.

use copperfs_overlay::{Failure, FailureKind};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use FailureKind::{
    Io, IsADirectory, NameTooLong, NotADirectory, NotFound, PermissionDenied, Stale, SymlinkLoop,
    Unavailable, Unsupported,
};

const OWN_USER: &str =
    "the daemon reads as its own user: check the mode bits and that user's groups";
const POLICY: &str = "a security policy refuses the daemon's user";
const IS_LINK: &str = "a component of the path is a symbolic link now; look the path up again";
const LEADS_OUT: &str = "the path leads out of the origin";
const SERVERS: &str =
    "the storage does not answer: check its servers and the network, then try again";
const DAEMON_FILES: &str = "raise the daemon's limit of open files (ulimit -n)";
const NODE_FILES: &str = "raise the node's limit of open files (fs.file-max)";
const NODE_MEMORY: &str = "the node is out of memory";
const FAULT: &str = "the storage reports a fault: see the kernel's log";

/// The kind and the hint of each known errno. A hint may be empty.
const ERRNO: &[(Errno, FailureKind, &str)] = &[
    // An answer rather than a fault, and cacheable.
    (Errno::NOENT, NotFound, ""),
    (Errno::NOTDIR, NotADirectory, ""),
    (Errno::ISDIR, IsADirectory, ""),
    // The daemon's user is refused. A retry does not help.
    (Errno::ACCESS, PermissionDenied, OWN_USER),
    (Errno::PERM, PermissionDenied, POLICY),
    // A component became a link after the kernel resolved the path, or the links form a loop.
    (Errno::LOOP, SymlinkLoop, IS_LINK),
    // openat2 returns this for a path that leads out of the origin.
    (Errno::XDEV, SymlinkLoop, LEADS_OUT),
    (Errno::NAMETOOLONG, NameTooLong, ""),
    // A handle of NFS or Lustre whose file was replaced. New attributes help.
    (Errno::STALE, Stale, ""),
    (Errno::OPNOTSUPP, Unsupported, ""),
    (Errno::NOSYS, Unsupported, ""),
    // open returns these for a socket and for a device without a driver.
    (Errno::NXIO, Unsupported, ""),
    (Errno::NODEV, Unsupported, ""),
    // The storage's servers or the network. A later retry may help.
    (Errno::TIMEDOUT, Unavailable, SERVERS),
    (Errno::HOSTDOWN, Unavailable, SERVERS),
    (Errno::HOSTUNREACH, Unavailable, SERVERS),
    (Errno::NETDOWN, Unavailable, SERVERS),
    (Errno::NETUNREACH, Unavailable, SERVERS),
    (Errno::CONNREFUSED, Unavailable, SERVERS),
    (Errno::CONNRESET, Unavailable, SERVERS),
    (Errno::CONNABORTED, Unavailable, SERVERS),
    // A FUSE filesystem without its daemon, and Lustre during an eviction.
    (Errno::NOTCONN, Unavailable, SERVERS),
    (Errno::SHUTDOWN, Unavailable, SERVERS),
    // A temporary shortage on this node.
    (Errno::MFILE, Unavailable, DAEMON_FILES),
    (Errno::NFILE, Unavailable, NODE_FILES),
    (Errno::NOMEM, Unavailable, NODE_MEMORY),
    (Errno::AGAIN, Unavailable, ""),
    (Errno::INTR, Unavailable, ""),
    (Errno::BUSY, Unavailable, ""),
    (Errno::IO, Io, FAULT),
];

const REJECTED: &str = "the server rejects the request: check region and endpoint";
const NO_CREDENTIALS: &str = "no valid credentials: set the store's environment variables, its profile or the origin's options, or skip_signature for public data";
const NOT_GRANTED: &str = "the credentials do not grant this: reading needs get and list permission (S3: s3:GetObject, s3:ListBucket)";
const NOT_OFFERED: &str = "the server does not offer this operation";
const SLOW: &str = "the server is overloaded; try again later, or raise the retries";
const SERVER_FAULT: &str = "the server fails; try again later";

/// The kind and the hint of each known HTTP status, after the retries of `object_store`. A hint may be empty.
const STATUS: &[(u16, FailureKind, &str)] = &[
    (400, Io, REJECTED),
    (401, PermissionDenied, NO_CREDENTIALS),
    // Some stores also return 403 for a missing object if the credentials do not grant listing.
    (403, PermissionDenied, NOT_GRANTED),
    (404, NotFound, ""),
    (405, Unsupported, NOT_OFFERED),
    (408, Unavailable, SLOW),
    (410, NotFound, ""),
    // If-Match failed, because the object was replaced.
    (412, Stale, ""),
    // The object became shorter than the range.
    (416, Stale, ""),
    (414, NameTooLong, ""),
    (429, Unavailable, SLOW),
    (500, Unavailable, SERVER_FAULT),
    (501, Unsupported, NOT_OFFERED),
    (502, Unavailable, SERVER_FAULT),
    (503, Unavailable, SLOW),
    (504, Unavailable, SLOW),
];

/// Separates the cause from the hint in the detail of a failure.
const HINT_SEPARATOR: &str = "; ";

/// Why a request failed, before the origin, the action and the path are added.
pub(super) struct Cause {
    pub(super) kind: FailureKind,
    pub(super) text: Cow<'static, str>,
    /// May be empty.
    pub(super) hint: Cow<'static, str>,
}

impl Cause {
    /// A cause without a hint.
    pub(super) fn new(kind: FailureKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            text: text.into(),
            hint: Cow::Borrowed(""),
        }
    }

    pub(super) fn with_hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self {
            hint: hint.into(),
            ..self
        }
    }

    /// The file is of another version than the requested one.
    pub(super) fn stale(text: &'static str) -> Self {
        Self::new(Stale, text)
    }

    /// There was no answer within `timeout`.
    pub(super) fn timed_out(timeout: Duration) -> Self {
        let text = format!("no answer within {timeout:?}");
        Self::new(Unavailable, text).with_hint(STORAGE_HANGS)
    }

    /// A server answered with an HTTP status that is no success.
    pub(super) fn of_status(status: u16) -> Self {
        let rule = STATUS.iter().find(|rule| rule.0 == status);
        let (_, kind, hint) = rule.copied().unwrap_or((status, Io, ""));
        Self::new(kind, format!("the server answered {status}")).with_hint(hint)
    }

    /// The failure of `action` on `path` at `origin`: `origin ORIGIN: ACTION PATH: TEXT; HINT`.
    pub(super) fn failure(&self, origin: &str, action: &str, path: &dyn Display) -> Failure {
        let Self { kind, text, hint } = self;
        let separator = if hint.is_empty() { "" } else { HINT_SEPARATOR };
        let detail = format!("origin {origin}: {action} {path}: {text}{separator}{hint}");
        Failure::new(*kind, detail)
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        let rule = ERRNO.iter().find(|rule| rule.0 == errno);
        let (_, kind, hint) = rule.copied().unwrap_or((errno, Io, ""));
        Self::new(kind, errno.to_string()).with_hint(hint)
    }
}

/// Splits the detail of a failure into its cause and its hint, if it has one.
pub(super) fn split_hint(detail: &str) -> (&str, Option<&str>) {
    let split = detail.split_once(HINT_SEPARATOR);
    split.map_or((detail, None), |(cause, hint)| (cause, Some(hint)))
}

/// The hint for storage that does not answer.
pub(super) const STORAGE_HANGS: &str = "the storage hangs: check its servers and the network";

#[cfg(test)]
mod tests {
    use super::*;

    /// The errnos and statuses that readers depend on.
    #[test]
    fn errnos_and_statuses_have_their_kinds() {
        for (errno, kind) in [
            (Errno::NOENT, NotFound),
            (Errno::NOTDIR, NotADirectory),
            (Errno::ISDIR, IsADirectory),
            (Errno::ACCESS, PermissionDenied),
            (Errno::PERM, PermissionDenied),
            (Errno::LOOP, SymlinkLoop),
            (Errno::XDEV, SymlinkLoop),
            (Errno::NAMETOOLONG, NameTooLong),
            (Errno::STALE, Stale),
            (Errno::OPNOTSUPP, Unsupported),
            (Errno::NXIO, Unsupported),
            (Errno::TIMEDOUT, Unavailable),
            (Errno::NOTCONN, Unavailable),
            (Errno::MFILE, Unavailable),
            (Errno::IO, Io),
            (Errno::INVAL, Io),
        ] {
            assert_eq!(Cause::from(errno).kind, kind, "{errno:?}");
        }
        for (status, kind) in [
            (401, PermissionDenied),
            (403, PermissionDenied),
            (404, NotFound),
            (405, Unsupported),
            (412, Stale),
            (416, Stale),
            (429, Unavailable),
            (500, Unavailable),
            (503, Unavailable),
            (418, Io),
        ] {
            assert_eq!(Cause::of_status(status).kind, kind, "{status}");
        }
    }

    #[test]
    fn no_errno_or_status_appears_twice() {
        for (i, rule) in ERRNO.iter().enumerate() {
            assert!(ERRNO[..i].iter().all(|other| other.0 != rule.0), "{rule:?}");
        }
        for (i, rule) in STATUS.iter().enumerate() {
            assert!(
                STATUS[..i].iter().all(|other| other.0 != rule.0),
                "{rule:?}"
            );
        }
    }

    #[test]
    fn details_name_origin_path_cause_and_remedy() {
        let failure = Cause::from(Errno::ACCESS).failure("file:///lus", "list", &"/a/b");
        assert_eq!(
            failure.detail,
            "origin file:///lus: list /a/b: Permission denied (os error 13); the daemon reads as \
             its own user: check the mode bits and that user's groups"
        );
    }
}
