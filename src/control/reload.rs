//! `POST /v1/reload`: other options for a running node.

use super::error::ControlError;
use super::request::RequestBody;
use super::{Answer, Control, ControlResult, requests};
use crate::config::ConfigError;
use crate::config::reload::{CannotChange, Change, Request};
use crate::model::CommandError;
use crate::origin::OriginError;
use crate::store::StoreError;
use axum::extract::State;
use serde::Serialize;
use serde_json::json;
use std::io;
use std::path::PathBuf;

/// The outcome of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// The options and variables that have changed.
    pub changed: Vec<Change>,
    /// The stores whose credentials were read again, by their names in messages.
    pub renewed: Vec<String>,
    /// The configuration file that the next reload reads.
    pub config: Option<PathBuf>,
}

/// Why a reload is refused. The node then has the settings that it had before.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// An option is invalid, or the configuration file cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Options cannot change.
    #[error(transparent)]
    CannotChange(#[from] CannotChange),
    /// A store does not accept its new options or credentials.
    #[error("the credentials and options before stay: {0}")]
    Origin(#[from] OriginError),
    /// The disk cannot be used in the new way.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log cannot be written.
    #[error("cannot open the log {}: {source}", path.display())]
    Log {
        /// Its path.
        path: PathBuf,
        /// The failure of the system call.
        source: io::Error,
    },
    /// The allocator refuses the change, or cannot be reached.
    #[error("{}", .0.message)]
    Allocator(CommandError),
    /// The options cannot be kept for a successor of the daemon.
    #[error("cannot keep the options for the daemon that takes over after this one: {0}")]
    Keep(io::Error),
    /// A part of the node died.
    #[error("a part of the node died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl From<ReloadError> for ControlError {
    fn from(error: ReloadError) -> Self {
        const STAY: &str = "Nothing has changed: correct it, and reload again";
        let text = error.to_string();
        match error {
            ReloadError::CannotChange(CannotChange(changes)) => {
                let keys: Vec<&String> = changes.iter().map(|change| &change.key).collect();
                let advice = "Leave it out, or unmount and mount with it";
                let mut refusal = Self::new(409, text, advice);
                refusal.0.body["keys"] = json!(keys);
                refusal
            }
            ReloadError::Allocator(error) => error.into(),
            ReloadError::Keep(_) | ReloadError::Task(_) => Self::new(503, text, STAY),
            ReloadError::Config(_)
            | ReloadError::Origin(_)
            | ReloadError::Store(_)
            | ReloadError::Log { .. } => Self::new(422, text, STAY),
        }
    }
}

/// `POST /v1/reload`.
pub(super) async fn reload(State(control): State<Control>, body: RequestBody) -> ControlResult {
    let request: Request = requests::parse(&body.bytes)?;
    let reloaded = control.node.reload(request).await?;
    Ok(Answer::of(json!(reloaded)))
}
