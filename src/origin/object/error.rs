//! Maps errors of `object_store` to failures.
//!
//! Server bodies and request URLs are left out on purpose: both may contain access keys or signatures. A
//! failure shows only the well-known error code in a body (`codes`).

use super::aws::CredentialError;
use super::chain::{chain, root_cause, status, texts};
use super::codes;
use super::credentials::CredentialService;
use crate::origin::failure::Cause;
use copperfs_overlay::FailureKind::{Io, NotFound, PermissionDenied, Unavailable, Unsupported};
use object_store::client::{HttpError, HttpErrorKind};

/// The cause of `error`, which a request returned after all retries. If `error` is about a request to
/// `service`, the store got no request.
pub(super) fn cause(error: &object_store::Error, service: &CredentialService) -> Cause {
    use object_store::Error as E;
    if let Some(error) = chain(error).find_map(|source| source.downcast_ref::<CredentialError>()) {
        return error.cause();
    }
    if texts(error).any(|text| service.is_requested_in(&text)) {
        return no_credentials(error, service);
    }
    if let Some(code) = texts(error).find_map(|text| codes::find(&text)) {
        let status = status(error).map_or_else(String::new, |status| format!("{status} "));
        let text = format!("the server answered {status}{}", code.name);
        return Cause::new(code.kind, text).with_hint(code.hint);
    }
    match error {
        E::NotFound { .. } => Cause::of_status(404),
        E::PermissionDenied { .. } => Cause::of_status(403),
        E::Unauthenticated { .. } => Cause::of_status(401),
        // 304 and 412 answer preconditions, which only the client adds, for a retry.
        E::Precondition { .. } | E::NotModified { .. } => Cause::of_status(412),
        // No key can have such a name.
        E::InvalidPath { .. } => Cause::new(NotFound, "not a name that an object can have here"),
        E::NotSupported { .. } | E::NotImplemented { .. } => {
            Cause::new(Unsupported, "the store does not support this")
        }
        other => generic(other),
    }
}

/// The cause of `error`, the answer of `service` to a request for credentials.
fn no_credentials(error: &object_store::Error, service: &CredentialService) -> Cause {
    let (kind, answer) = match status(error) {
        // The service exists, but has no credentials for this machine. A retry does not help.
        Some(status @ 400..500) => (PermissionDenied, format!("answered {status}")),
        Some(status) => (Unavailable, format!("answered {status}")),
        None => {
            let answer = format!("does not answer ({})", root_cause(error));
            (Unavailable, answer)
        }
    };
    let missing = service.missing;
    let text = format!("{missing}, and the cloud's metadata service {answer}");
    Cause::new(kind, text).with_hint(service.advice.clone())
}

fn generic(error: &object_store::Error) -> Cause {
    if let Some(status) = status(error) {
        return Cause::of_status(status);
    }
    // The object ends before the range. The conformance suite checks the wording.
    if texts(error).any(|text| text.starts_with("Wanted range starting at ")) {
        return Cause::stale("the object is shorter than it was");
    }
    let root = root_cause(error);
    if root == NOT_ALLOWED {
        let hint = "use an https:// endpoint, or set allow_http (AWS_ALLOW_HTTP, AZURE_ALLOW_HTTP, GOOGLE_ALLOW_HTTP) to true";
        return Cause::new(Io, "plain HTTP is not allowed").with_hint(hint);
    }
    let Some(http) = chain(error).find_map(|source| source.downcast_ref::<HttpError>()) else {
        return Cause::new(Io, root);
    };
    let (kind, text, hint) = match http.kind() {
        HttpErrorKind::Connect => (Unavailable, "cannot connect", connect_hint(&root)),
        HttpErrorKind::Timeout => (Unavailable, "no answer in time", SLOW),
        HttpErrorKind::Request | HttpErrorKind::Interrupted => {
            (Unavailable, "the connection broke", "try again")
        }
        _ => (Io, "the answer cannot be understood", ""),
    };
    Cause::new(kind, format!("{text} ({root})")).with_hint(hint)
}

/// The hint for a connection that failed with the innermost error `root`. The libraries below have no types
/// for these cases.
fn connect_hint(root: &str) -> &'static str {
    if root.contains("failed to lookup address") {
        "no such host: check the endpoint (the account, bucket and region in it) and this machine's DNS"
    } else if root.contains("received corrupt message") || root.contains("tls handshake eof") {
        // A TLS handshake fails like this with a server that speaks plain HTTP.
        "the server does not speak TLS there: check the port, or write http:// where that is meant"
    } else if root.contains("certificate") {
        "the server's certificate is not trusted here: check the endpoint's name and this machine's CA certificates"
    } else {
        "check the endpoint, the network and proxies, then try again"
    }
}

/// Whether a store answers like this to credentials that it does not accept, or no longer: with 400 if a session's token
/// has expired. It also answers so to credentials that do not grant a request.
pub(super) fn is_refusal(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    matches!(
        error,
        E::PermissionDenied { .. } | E::Unauthenticated { .. }
    ) || matches!(status(error), Some(400 | 401 | 403))
}

const SLOW: &str = "the server is slow or gone: try again, or raise the timeouts";

/// The text of the HTTP client's error for `http://` if only `https://` is allowed.
const NOT_ALLOWED: &str = "URL scheme is not allowed";

/// Whether the server sent the whole object in answer to a request for a range.
pub(super) fn is_without_ranges(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::NotSupported { .. })
        || texts(error).any(|text| text.starts_with("Received non-partial response"))
}
