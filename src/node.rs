//! Placeholder for the wiring of a node.

use crate::config::Settings;
use std::future::Future;

/// Why a node does not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Not wired yet.
    #[error("the node is not wired yet")]
    NotWired,
}

/// A node.
#[derive(Debug)]
pub struct Node {}

impl Node {
    /// Starts.
    ///
    /// # Errors
    /// Always.
    pub async fn start(
        _settings: Settings,
        _runtime: tokio::runtime::Handle,
    ) -> Result<Self, NodeError> {
        std::future::ready(()).await;
        Err(NodeError::NotWired)
    }

    /// Runs until `shutdown`.
    ///
    /// # Errors
    /// Never.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), NodeError> {
        shutdown.await;
        Ok(())
    }
}
