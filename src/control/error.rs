//! What is refused, as HTTP and JSON say it: `{"error": "...", "try": "..."}`.

use super::Answer;
use crate::model::{CommandError, ErrorKind};
use copperfs_overlay::ItemPath;

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

    /// The request is not what it should be.
    pub(super) fn malformed(error: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(400, error, advice)
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            404,
            "there is no such thing",
            "GET /openapi.json tells what there is",
        )
    }

    /// That `what` was not found, by its name.
    pub(super) fn named(self, what: &str, name: &str) -> Self {
        match self.status {
            404 => Self::new(
                404,
                format!("there is no {what} {name:?}"),
                format!("GET /v1/{what}s lists them; copperfs {what} list"),
            ),
            _ => self,
        }
    }

    pub(super) fn empty(name: &str, path: &ItemPath) -> Self {
        Self::new(
            422,
            format!(
                "dataset {name:?} has size zero: no file with any byte lies at {path} or below it"
            ),
            "Check the path: what is served there shows ls in the mount",
        )
    }

    pub(super) fn nothing_there(name: &str, path: &ItemPath) -> Self {
        Self::new(
            422,
            format!("there is nothing at {path}, so dataset {name:?} is not declared"),
            "Check the path: ls in the mount shows what is served; newer files show after \
             copperfs clear",
        )
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
