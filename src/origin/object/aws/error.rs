//! Why there are no credentials.

use crate::origin::failure::Cause;
use copperfs_overlay::FailureKind;
use std::fmt;

/// The error of a search for credentials. Holds no secret. `object_store` passes it on as the source of its own error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct CredentialError {
    kind: FailureKind,
    text: String,
    hint: String,
}

impl CredentialError {
    /// A retry does not help: something is missing, has expired, or was refused.
    pub(super) fn refused(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::PermissionDenied,
            text: text.into(),
            hint: hint.into(),
        }
    }

    /// A later retry may help.
    pub(super) fn unavailable(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            kind: FailureKind::Unavailable,
            ..Self::refused(text, hint)
        }
    }

    /// The cause of a failure of a request to the store.
    pub(in super::super) fn cause(&self) -> Cause {
        Cause::new(self.kind, self.text.clone()).with_hint(self.hint.clone())
    }
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.text, self.hint)
    }
}

impl std::error::Error for CredentialError {}
