//! Why an origin cannot be opened, in words for the person who named it.

use copperfs_overlay::Failure;
use std::io;

/// An origin that cannot be served. Each says what failed, why, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// The URI cannot be understood.
    #[error(
        "origin {uri}: {reason}; write file:///dir, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix or https://host/base"
    )]
    Uri {
        /// The URI, without credentials.
        uri: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The directory is missing, unreadable or none.
    #[error("origin {uri}: cannot open the directory: {source}; {hint}")]
    Directory {
        /// The URI.
        uri: String,
        /// What the operating system said.
        source: io::Error,
        /// What to try.
        hint: &'static str,
    },
    /// Two origins under one prefix.
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
    /// No origin at all.
    #[error("no origin is named; add --origin /data=file:///data (or an s3:// URI)")]
    None,
    /// An option that the store does not know.
    #[error(
        "origin {uri}: unknown option {key:?}; options are those of the object_store crate, such as region, endpoint, allow_http, skip_signature"
    )]
    Option {
        /// The URI.
        uri: String,
        /// The key.
        key: String,
    },
    /// The store's client cannot be made.
    #[error("origin {uri}: {reason}; check the origin's options and its environment variables")]
    Store {
        /// The URI, without credentials.
        uri: String,
        /// What the client said.
        reason: String,
    },
    /// The store does not answer as it should. The failure names it.
    #[error("{}", .0.detail)]
    Unreachable(Failure),
    /// The kernel lacks what safe path resolution needs.
    #[error("this kernel cannot confine paths to an origin ({call}: {source}); {hint}")]
    Kernel {
        /// What failed.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to try.
        hint: &'static str,
    },
}

/// `uri` without user information, query and fragment: each may hold a credential.
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
    fn redaction_keeps_what_names_the_origin() {
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
