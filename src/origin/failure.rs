//! Every decision from an errno or an HTTP status to a [`FailureKind`], in two tables.
//!
//! The kind says what the asker can do; the hint what the person can. Whatever the tables do not name
//! is `Io`.

use copperfs_overlay::{Failure, FailureKind};
use rustix::io::Errno;
use std::fmt::Display;
use std::time::Duration;

/// What an errno means: kind, and what to try (empty: nothing to add).
const ERRNO: &[(Errno, FailureKind, &str)] = &[
    // An answer, and cacheable.
    (Errno::NOENT, FailureKind::NotFound, ""),
    (Errno::NOTDIR, FailureKind::NotADirectory, ""),
    (Errno::ISDIR, FailureKind::IsADirectory, ""),
    // The daemon's user is refused; another user is not what a retry brings.
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
    // A component became a link since the kernel resolved the path, or links lead nowhere.
    (
        Errno::LOOP,
        FailureKind::SymlinkLoop,
        "a component of the path is a symbolic link now; look the path up again",
    ),
    // openat2's word for "this would leave the origin".
    (
        Errno::XDEV,
        FailureKind::SymlinkLoop,
        "the path leads out of the origin",
    ),
    (Errno::NAMETOOLONG, FailureKind::NameTooLong, ""),
    // An NFS or Lustre handle whose file was replaced: new attributes help.
    (Errno::STALE, FailureKind::Stale, ""),
    (Errno::OPNOTSUPP, FailureKind::Unsupported, ""),
    (Errno::NOSYS, FailureKind::Unsupported, ""),
    // What open says of a socket, and of a device without driver.
    (Errno::NXIO, FailureKind::Unsupported, ""),
    (Errno::NODEV, FailureKind::Unsupported, ""),
    // The storage's servers or the network: later may help.
    (Errno::TIMEDOUT, FailureKind::Unavailable, SERVERS),
    (Errno::HOSTDOWN, FailureKind::Unavailable, SERVERS),
    (Errno::HOSTUNREACH, FailureKind::Unavailable, SERVERS),
    (Errno::NETDOWN, FailureKind::Unavailable, SERVERS),
    (Errno::NETUNREACH, FailureKind::Unavailable, SERVERS),
    (Errno::CONNREFUSED, FailureKind::Unavailable, SERVERS),
    (Errno::CONNRESET, FailureKind::Unavailable, SERVERS),
    (Errno::CONNABORTED, FailureKind::Unavailable, SERVERS),
    // A FUSE filesystem whose daemon died, and Lustre during an eviction.
    (Errno::NOTCONN, FailureKind::Unavailable, SERVERS),
    (Errno::SHUTDOWN, FailureKind::Unavailable, SERVERS),
    // Shortage on this node: passes.
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

/// What an HTTP status means, after `object_store`'s retries: kind, and what to try.
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
    // Some stores also say 403 for what does not exist when listing is not granted.
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
    // If-Match failed: the object is another one now.
    (412, FailureKind::Stale, ""),
    // The object has become shorter than the range.
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

/// Kind and hint of an errno.
pub(super) fn errno_rule(errno: Errno) -> (FailureKind, &'static str) {
    ERRNO
        .iter()
        .find(|rule| rule.0 == errno)
        .map_or((FailureKind::Io, ""), |rule| (rule.1, rule.2))
}

/// Kind and hint of an HTTP status that is no success.
pub(super) fn status_rule(status: u16) -> (FailureKind, &'static str) {
    STATUS
        .iter()
        .find(|rule| rule.0 == status)
        .map_or((FailureKind::Io, ""), |rule| (rule.1, rule.2))
}

/// The failure for an errno of `action` on `path` at `origin`.
#[must_use]
pub fn failure_of_errno(origin: &str, action: &str, path: &dyn Display, errno: Errno) -> Failure {
    let (kind, hint) = errno_rule(errno);
    worded(kind, origin, action, path, &errno, hint)
}

/// The failure for an HTTP status that answered `action` on `path` at `origin`.
#[must_use]
pub fn failure_of_status(origin: &str, action: &str, path: &dyn Display, status: u16) -> Failure {
    let (kind, hint) = status_rule(status);
    let cause = format_args!("the server answered {status}").to_string();
    worded(kind, origin, action, path, &cause, hint)
}

/// `origin: action path: cause; hint`.
pub(super) fn worded(
    kind: FailureKind,
    origin: &str,
    action: &str,
    path: &dyn Display,
    cause: &dyn Display,
    hint: &str,
) -> Failure {
    let separator = if hint.is_empty() { "" } else { "; " };
    Failure::new(
        kind,
        format!("origin {origin}: {action} {path}: {cause}{separator}{hint}"),
    )
}

/// The failure for a request without an answer within `patience`.
pub(super) fn too_slow(
    origin: &str,
    action: &str,
    path: &dyn Display,
    patience: Duration,
) -> Failure {
    worded(
        FailureKind::Unavailable,
        origin,
        action,
        path,
        &format_args!("no answer within {patience:?}").to_string(),
        STORAGE_HANGS,
    )
}

/// The hint for storage that does not answer.
pub(super) const STORAGE_HANGS: &str = "the storage hangs: check its servers and the network";

/// `path` is of another version than the one asked for.
pub(super) fn stale(origin: &str, path: &dyn Display, cause: &str) -> Failure {
    worded(FailureKind::Stale, origin, "read", path, &cause, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each errno and status that readers depend on, by what the asker can do.
    #[test]
    fn kinds_are_what_the_asker_can_do() {
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
            assert_eq!(errno_rule(errno).0, kind, "{errno:?}");
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
            assert_eq!(status_rule(status).0, kind, "{status}");
        }
    }

    #[test]
    fn no_errno_or_status_is_named_twice() {
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
        let failure = failure_of_errno("file:///lus", "list", &"/a/b", Errno::ACCESS);
        assert_eq!(
            failure.detail,
            "origin file:///lus: list /a/b: Permission denied (os error 13); the daemon reads as \
             its own user: check the mode bits and that user's groups"
        );
    }
}
