//! Refusals, as HTTP and JSON express them: `{"error": "...", "try": "..."}`.

use super::Answer;
use crate::model::{CommandError, ErrorKind};

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ControlError {
    status: u16,
    error: String,
    advice: String,
}

impl ControlError {
    pub(super) fn new(status: u16, error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            status,
            error: error.into(),
            advice: advice.into(),
        }
    }

    /// The request has another form than the route expects.
    pub(super) fn malformed(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(400, error, advice)
    }

    /// The request is well-formed, but one of its values cannot be used.
    pub(super) fn invalid(error: &impl ToString, advice: impl Into<String>) -> Self {
        Self::new(422, error.to_string(), advice)
    }

    /// There is no dataset or job of this name.
    pub(super) fn missing(kind: &str, name: &str) -> Self {
        let advice = format!("GET /v1/{kind}s lists them; copperfs {kind} list");
        Self::new(404, format!("there is no {kind} {name:?}"), advice)
    }

    pub(super) fn into_answer(self) -> Answer {
        Answer {
            status: self.status,
            body: serde_json::json!({ "error": self.error, "try": self.advice }),
        }
    }
}

impl From<CommandError> for ControlError {
    fn from(error: CommandError) -> Self {
        let status = match error.kind {
            ErrorKind::Invalid => 422,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict => 409,
            ErrorKind::Unavailable => 503,
        };
        Self::new(status, error.message, error.advice)
    }
}
