//! The errors of opening an origin, for the user that configured it.

use copperfs_overlay::Failure;
use std::io;

/// Why an origin cannot be served. The message has the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The URI cannot be understood.
    #[error(
        "origin {uri}: {reason}; write file:///dir, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or https://host/base"
    )]
    Uri {
        /// The URI, without credentials.
        uri: String,
        /// The problem.
        reason: String,
    },
    /// The path is missing, unreadable or no directory.
    #[error("origin {uri}: cannot open the directory: {source}; {hint}")]
    Directory {
        /// The URI.
        uri: String,
        /// The error of the operating system.
        source: io::Error,
        /// The remedy.
        hint: &'static str,
    },
    /// Two origins have the same prefix.
    #[error(
        "two origins are to be served under {prefix}: {first} and {second}; give each a prefix of its own"
    )]
    Duplicate {
        /// The prefix.
        prefix: String,
        /// One URI.
        first: String,
        /// The other.
        second: String,
    },
    /// No origin is configured.
    #[error("no origin is named; add --origin /data=file:///data (or an s3:// URI)")]
    None,
    /// The store does not know an option.
    #[error(
        "origin {uri}: unknown option {key:?}; options are owner and mode, and those of the object_store crate, such as region, endpoint, allow_http, skip_signature"
    )]
    Option {
        /// The URI.
        uri: String,
        /// The key.
        key: String,
    },
    /// The store's client cannot be built.
    #[error("origin {uri}: {reason}; check the origin's options and its environment variables")]
    Store {
        /// The URI, without credentials.
        uri: String,
        /// The error of the client.
        reason: String,
    },
    /// Its options now lead to another store, whose files the node must not take for those of this one.
    #[error(
        "origin {uri}: these options and variables lead to another store (endpoint or account): unmount, and mount with them"
    )]
    Elsewhere {
        /// The URI, without credentials.
        uri: String,
    },
    /// The store does not answer, or refuses. The failure names it.
    #[error("{}", .0.detail)]
    Unreachable(Failure),
    /// The kernel lacks a feature that safe path resolution needs.
    #[error("this kernel cannot confine paths to an origin ({call}: {source}); {hint}")]
    Kernel {
        /// The failed call.
        call: &'static str,
        /// The error of the kernel.
        source: io::Error,
        /// The remedy.
        hint: &'static str,
    },
}

/// `uri` without user information, query and fragment, because each may contain a credential.
#[must_use]
pub fn redacted(uri: &str) -> String {
    let end = uri.find(['?', '#']).unwrap_or(uri.len());
    let uri = &uri[..end];
    let Some((scheme, rest)) = uri.split_once("://") else {
        return uri.to_owned();
    };
    let authority_end = rest.find('/').unwrap_or(rest.len());
    match rest[..authority_end].rfind('@') {
        // `abfss://container@account.host/…` names no credential there.
        Some(_) if scheme.starts_with("abfs") => uri.to_owned(),
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => uri.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::redacted;

    #[test]
    fn redaction_keeps_the_name_of_the_origin() {
        for (uri, shown) in [
            ("s3://bucket/a", "s3://bucket/a"),
            ("https://user:secret@host/a?sig=x#y", "https://host/a"),
            ("https://host/a@b", "https://host/a@b"),
            ("az://container/a?sv=1&sig=abc", "az://container/a"),
            (
                "abfss://fs@account.dfs.core.windows.net/a",
                "abfss://fs@account.dfs.core.windows.net/a",
            ),
            ("/lus", "/lus"),
        ] {
            assert_eq!(redacted(uri), shown);
        }
    }
}
