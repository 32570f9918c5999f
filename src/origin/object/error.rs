//! From `object_store`'s errors to failures.
//!
//! Server bodies and request URLs are left out on purpose: both may carry access keys or signatures.
//! Of a body, a well-known error code is taken (`codes`).

use super::codes;
use super::credentials::CredentialService;
use crate::origin::failure::{failure_of_status, worded};
use copperfs_overlay::{Failure, FailureKind};
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error;
use std::fmt::Display;

/// The failure for `error`, the result of `action` on `path` at `origin` after all retries. If `error` is
/// about a request to `service`, the store was never asked.
pub(super) fn failure(
    origin: &str,
    action: &str,
    path: &dyn Display,
    error: &object_store::Error,
    service: &CredentialService,
) -> Failure {
    use object_store::Error as E;
    if chain(error).any(|source| service.is_asked_in(&source.to_string())) {
        return no_credentials(origin, action, path, error, service);
    }
    if let Some(code) = chain(error).find_map(|source| codes::find(&source.to_string())) {
        let status = status(error).map_or_else(String::new, |status| format!("{status} "));
        let cause = format!("the server answered {status}{}", code.name);
        return worded(code.kind, origin, action, path, &cause, code.hint);
    }
    match error {
        E::NotFound { .. } => failure_of_status(origin, action, path, 404),
        E::PermissionDenied { .. } => failure_of_status(origin, action, path, 403),
        E::Unauthenticated { .. } => failure_of_status(origin, action, path, 401),
        // 304 answers a precondition that we did not make, 412 one that the client made for a retry.
        E::Precondition { .. } | E::NotModified { .. } => {
            failure_of_status(origin, action, path, 412)
        }
        // No key can have such a name.
        E::InvalidPath { .. } => {
            let cause = "not a name that an object can have here";
            worded(FailureKind::NotFound, origin, action, path, &cause, "")
        }
        E::NotSupported { .. } | E::NotImplemented { .. } => {
            let cause = "the store does not support this";
            worded(FailureKind::Unsupported, origin, action, path, &cause, "")
        }
        other => generic(origin, action, path, other),
    }
}

/// The failure for `error`, the answer of `service` to a request for credentials.
fn no_credentials(
    origin: &str,
    action: &str,
    path: &dyn Display,
    error: &object_store::Error,
    service: &CredentialService,
) -> Failure {
    let (kind, answer) = match status(error) {
        // The service exists, but has no credentials for this machine. A retry does not help.
        Some(status @ 400..500) => (FailureKind::PermissionDenied, format!("answered {status}")),
        Some(status) => (FailureKind::Unavailable, format!("answered {status}")),
        None => {
            let answer = format!("does not answer ({})", root_cause(error));
            (FailureKind::Unavailable, answer)
        }
    };
    let cause = format!(
        "{}, and the cloud's metadata service {answer}",
        service.missing
    );
    worded(kind, origin, action, path, &cause, &service.advice)
}

fn generic(origin: &str, action: &str, path: &dyn Display, error: &object_store::Error) -> Failure {
    if let Some(status) = status(error) {
        return failure_of_status(origin, action, path, status);
    }
    if is_shorter(error) {
        let cause = "the object is shorter than it was";
        return worded(FailureKind::Stale, origin, action, path, &cause, "");
    }
    let cause = root_cause(error);
    if cause == NOT_ALLOWED {
        let cause = "plain HTTP is not allowed";
        let hint = "use an https:// endpoint, or set allow_http (AWS_ALLOW_HTTP, AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP) to true";
        return worded(FailureKind::Io, origin, action, path, &cause, hint);
    }
    let Some(http) = chain(error).find_map(|source| source.downcast_ref::<HttpError>()) else {
        return worded(FailureKind::Io, origin, action, path, &cause, "");
    };
    let (kind, what, hint) = match http.kind() {
        HttpErrorKind::Connect if cause.contains("failed to lookup address") => (
            FailureKind::Unavailable,
            "cannot connect",
            "no such host: check the endpoint (the account, bucket and region in it) and this machine's DNS",
        ),
        HttpErrorKind::Connect if says_no_tls(&cause) => (
            FailureKind::Unavailable,
            "cannot connect",
            "the server does not speak TLS there: check the port, or write http:// where that is meant",
        ),
        HttpErrorKind::Connect if cause.contains("certificate") => (
            FailureKind::Unavailable,
            "cannot connect",
            "the server's certificate is not trusted here: check the endpoint's name and this machine's CA certificates",
        ),
        HttpErrorKind::Connect => (
            FailureKind::Unavailable,
            "cannot connect",
            "check the endpoint, the network and proxies, then try again",
        ),
        HttpErrorKind::Timeout => (
            FailureKind::Unavailable,
            "no answer in time",
            "the server is slow or gone: try again, or raise the timeouts",
        ),
        HttpErrorKind::Request | HttpErrorKind::Interrupted => (
            FailureKind::Unavailable,
            "the connection broke",
            "try again",
        ),
        _ => (FailureKind::Io, "the answer cannot be understood", ""),
    };
    let cause = format!("{what} ({cause})");
    worded(kind, origin, action, path, &cause, hint)
}

fn chain<'a>(error: &'a object_store::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error as &(dyn Error + 'static));
    std::iter::from_fn(move || {
        let this = next?;
        next = this.source();
        Some(this)
    })
}

/// The innermost error: "Connection refused (os error 111)".
fn root_cause(error: &object_store::Error) -> String {
    chain(error)
        .last()
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// The HTTP status, which `object_store` gives in its text only. Its wording is held by a test with a
/// real server.
fn status(error: &object_store::Error) -> Option<u16> {
    const BEFORE: &str = "Server returned non-2xx status code: ";
    chain(error).find_map(|source| {
        let text = source.to_string();
        let at = text.find(BEFORE)? + BEFORE.len();
        text.get(at..at + 3)?.parse().ok()
    })
}

/// Whether a handshake failed as it does with a server that speaks plain HTTP.
fn says_no_tls(cause: &str) -> bool {
    cause.contains("received corrupt message") || cause.contains("tls handshake eof")
}

/// What the HTTP client says of `http://` where only `https://` is allowed.
const NOT_ALLOWED: &str = "URL scheme is not allowed";

/// Whether the object ends before the range. Held by the conformance suite.
fn is_shorter(error: &object_store::Error) -> bool {
    chain(error).any(|source| source.to_string().starts_with("Wanted range starting at "))
}

/// Whether the failure is that the server sent everything when a range was asked for.
pub(super) fn is_without_ranges(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotSupported { .. })
        || chain(error).any(|source| {
            source
                .to_string()
                .starts_with("Received non-partial response")
        })
}
