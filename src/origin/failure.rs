//! Maps errnos and HTTP statuses to failures. Two tables hold every decision.
//!
//! The kind of a failure tells the caller how to react, and its hint tells the user. An errno or status that
//! is missing from the tables is `Io` without a hint.

use copperfs_overlay::{Failure, FailureKind};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

/// The kind and the hint of each known errno. A hint may be empty.
const ERRNO: &[(Errno, FailureKind, &str)] = &[
    // An answer rather than a fault, and cacheable.
    (Errno::NOENT, FailureKind::NotFound, ""),
    (Errno::NOTDIR, FailureKind::NotADirectory, ""),
    (Errno::ISDIR, FailureKind::IsADirectory, ""),
    // The daemon's user is refused. A retry does not help.
    (
        Errno::ACCESS,
        FailureKind::PermissionDenied,
        "the daemon reads as its own user: check the mode bits and that user's groups",
    ),
    (
        Errno::PERM,
        FailureKind::PermissionDenied,
        "a security policy refuses the daemon's user",
    ),
    // A component became a link after the kernel resolved the path, or the links form a loop.
    (
        Errno::LOOP,
        FailureKind::SymlinkLoop,
        "a component of the path is a symbolic link now; look the path up again",
    ),
    // openat2 returns this for a path that leads out of the origin.
    (
        Errno::XDEV,
        FailureKind::SymlinkLoop,
        "the path leads out of the origin",
    ),
    (Errno::NAMETOOLONG, FailureKind::NameTooLong, ""),
    // A handle of NFS or Lustre whose file was replaced. New attributes help.
    (Errno::STALE, FailureKind::Stale, ""),
    (Errno::OPNOTSUPP, FailureKind::Unsupported, ""),
    (Errno::NOSYS, FailureKind::Unsupported, ""),
    // open returns these for a socket and for a device without a driver.
    (Errno::NXIO, FailureKind::Unsupported, ""),
    (Errno::NODEV, FailureKind::Unsupported, ""),
    // The storage's servers or the network. A later retry may help.
    (Errno::TIMEDOUT, FailureKind::Unavailable, SERVERS),
    (Errno::HOSTDOWN, FailureKind::Unavailable, SERVERS),
    (Errno::HOSTUNREACH, FailureKind::Unavailable, SERVERS),
    (Errno::NETDOWN, FailureKind::Unavailable, SERVERS),
    (Errno::NETUNREACH, FailureKind::Unavailable, SERVERS),
    (Errno::CONNREFUSED, FailureKind::Unavailable, SERVERS),
    (Errno::CONNRESET, FailureKind::Unavailable, SERVERS),
    (Errno::CONNABORTED, FailureKind::Unavailable, SERVERS),
    // A FUSE filesystem without its daemon, and Lustre during an eviction.
    (Errno::NOTCONN, FailureKind::Unavailable, SERVERS),
    (Errno::SHUTDOWN, FailureKind::Unavailable, SERVERS),
    // A temporary shortage on this node.
    (
        Errno::MFILE,
        FailureKind::Unavailable,
        "raise the daemon's limit of open files (ulimit -n)",
    ),
    (
        Errno::NFILE,
        FailureKind::Unavailable,
        "raise the node's limit of open files (fs.file-max)",
    ),
    (
        Errno::NOMEM,
        FailureKind::Unavailable,
        "the node is out of memory",
    ),
    (Errno::AGAIN, FailureKind::Unavailable, ""),
    (Errno::INTR, FailureKind::Unavailable, ""),
    (Errno::BUSY, FailureKind::Unavailable, ""),
    (
        Errno::IO,
        FailureKind::Io,
        "the storage reports a fault: see the kernel's log",
    ),
];

const SERVERS: &str =
    "the storage does not answer: check its servers and the network, then try again";

/// The kind and the hint of each known HTTP status, after the retries of `object_store`. A hint may be empty.
const STATUS: &[(u16, FailureKind, &str)] = &[
    (
        400,
        FailureKind::Io,
        "the server rejects the request: check region and endpoint",
    ),
    (
        401,
        FailureKind::PermissionDenied,
        "no valid credentials: set the origin's environment variables or options, or skip_signature for public data",
    ),
    // Some stores also return 403 for a missing object if the credentials do not grant listing.
    (
        403,
        FailureKind::PermissionDenied,
        "the credentials do not grant this: reading needs get and list permission (S3: s3:GetObject, s3:ListBucket)",
    ),
    (404, FailureKind::NotFound, ""),
    (
        405,
        FailureKind::Unsupported,
        "the server does not offer this operation",
    ),
    (408, FailureKind::Unavailable, SLOW),
    (410, FailureKind::NotFound, ""),
    // If-Match failed, because the object was replaced.
    (412, FailureKind::Stale, ""),
    // The object became shorter than the range.
    (416, FailureKind::Stale, ""),
    (414, FailureKind::NameTooLong, ""),
    (429, FailureKind::Unavailable, SLOW),
    (500, FailureKind::Unavailable, SERVER_FAULT),
    (
        501,
        FailureKind::Unsupported,
        "the server does not offer this operation",
    ),
    (502, FailureKind::Unavailable, SERVER_FAULT),
    (503, FailureKind::Unavailable, SLOW),
    (504, FailureKind::Unavailable, SLOW),
];

const SLOW: &str = "the server is overloaded; try again later, or raise the retries";
const SERVER_FAULT: &str = "the server fails; try again later";

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
        Self::new(FailureKind::Stale, text)
    }

    /// There was no answer within `timeout`.
    pub(super) fn timed_out(timeout: Duration) -> Self {
        let text = format!("no answer within {timeout:?}");
        Self::new(FailureKind::Unavailable, text).with_hint(STORAGE_HANGS)
    }

    /// A server answered with an HTTP status that is no success.
    pub(super) fn of_status(status: u16) -> Self {
        let rule = STATUS.iter().find(|rule| rule.0 == status);
        let (_, kind, hint) = rule.copied().unwrap_or((status, FailureKind::Io, ""));
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
        let (_, kind, hint) = rule.copied().unwrap_or((errno, FailureKind::Io, ""));
        Self::new(kind, errno.to_string()).with_hint(hint)
    }
}

/// Splits the detail of a failure into its cause and its hint, if it has one.
pub(super) fn split_hint(detail: &str) -> (&str, Option<&str>) {
    match detail.split_once(HINT_SEPARATOR) {
        Some((cause, hint)) => (cause, Some(hint)),
        None => (detail, None),
    }
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
            (Errno::NOENT, FailureKind::NotFound),
            (Errno::NOTDIR, FailureKind::NotADirectory),
            (Errno::ISDIR, FailureKind::IsADirectory),
            (Errno::ACCESS, FailureKind::PermissionDenied),
            (Errno::PERM, FailureKind::PermissionDenied),
            (Errno::LOOP, FailureKind::SymlinkLoop),
            (Errno::XDEV, FailureKind::SymlinkLoop),
            (Errno::NAMETOOLONG, FailureKind::NameTooLong),
            (Errno::STALE, FailureKind::Stale),
            (Errno::OPNOTSUPP, FailureKind::Unsupported),
            (Errno::NXIO, FailureKind::Unsupported),
            (Errno::TIMEDOUT, FailureKind::Unavailable),
            (Errno::NOTCONN, FailureKind::Unavailable),
            (Errno::MFILE, FailureKind::Unavailable),
            (Errno::IO, FailureKind::Io),
            (Errno::INVAL, FailureKind::Io),
        ] {
            assert_eq!(Cause::from(errno).kind, kind, "{errno:?}");
        }
        for (status, kind) in [
            (401, FailureKind::PermissionDenied),
            (403, FailureKind::PermissionDenied),
            (404, FailureKind::NotFound),
            (405, FailureKind::Unsupported),
            (412, FailureKind::Stale),
            (416, FailureKind::Stale),
            (429, FailureKind::Unavailable),
            (500, FailureKind::Unavailable),
            (503, FailureKind::Unavailable),
            (418, FailureKind::Io),
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
