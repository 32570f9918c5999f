//! Refusals, as HTTP and JSON express them: `{"error": "...", "try": "..."}`.

use super::Answer;
use crate::model::{CommandError, ErrorKind};
use serde_json::json;

/// A refusal, as it is answered.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ControlError(pub(super) Answer);

impl ControlError {
    pub(super) fn new(status: u16, error: impl Into<String>, advice: impl Into<String>) -> Self {
        let (error, advice) = (error.into(), advice.into());
        let body = json!({ "error": error, "try": advice });
        Self(Answer { status, body })
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
        let advice = format!("copperfs {kind} list shows them");
        Self::new(404, format!("there is no {kind} {name:?}"), advice)
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
