//! The control plane: one HTTP server for all commands, and its client.
//!
//! All routes ([`router`]) are served to the owner of the daemon on a Unix socket beside the daemon's other
//! files (mode 0600), and on request over TCP under the cluster's mutual TLS. Routes that only read are
//! also served to users of the mount on a second socket, where the kernel identifies the user. The ioctl of
//! a mount returns the addresses of both sockets. `docs/openapi.json` describes the routes; a test keeps the two equal.
//!
//! Datasets, jobs and budgets: `SiloD`'s two calls (Table 3: `allocateCacheSize`, `allocateRemoteIO`), the
//! declarations that they need, and read-outs. Any node answers; commands go up to the allocator.
//! This module decides nothing: checks are the registry's ([`crate::budgets::registry`]).

use crate::budgets::BudgetAgent;
use crate::budgets::ServedPaths;
use error::ControlError;
use plan::Plans;
use serde_json::Value;
use std::sync::Arc;
use turns::Turns;

mod batches;
mod chunks;
pub mod client;
mod clients;
mod content;
pub mod conversation;
mod datasets;
mod entries;
mod error;
mod images;
mod items_body;
mod link;
mod node;
mod pipelines;
mod plan;
mod reload;
mod request;
pub mod requests;
pub mod router;
pub mod server;
#[cfg(test)]
mod tests;
mod turns;
pub mod views;

pub use conversation::Conversation;
pub use images::{Attendance, CoverState, FailedImage, NodeImages, WantedImages};
pub use node::NodeCommands;
pub use reload::{ReloadError, Reloaded};
pub use server::ControlServer;

/// Answers the commands to one node. Clones share their state.
#[derive(Clone)]
pub struct Control {
    node: Arc<dyn NodeCommands>,
    agent: BudgetAgent,
    served: Arc<ServedPaths>,
    plans: Plans,
    /// Turns of requests with large bodies.
    large_bodies: Turns,
    /// Turns of answers with items. A request may hold a turn of its body when it waits for one of these, and never
    /// the other way round.
    large_answers: Turns,
}

/// An answer to a request.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, as JSON.
    pub body: Value,
}

type ControlResult = Result<Answer, ControlError>;

impl Control {
    /// Commands are carried out by `node`, and those about datasets by `agent`. Datasets must lie in the
    /// namespace `served`.
    #[must_use]
    pub fn new(node: Arc<dyn NodeCommands>, agent: BudgetAgent, served: ServedPaths) -> Self {
        Self {
            node,
            agent,
            served: Arc::new(served),
            plans: Plans::default(),
            large_bodies: Turns::default(),
            large_answers: Turns::default(),
        }
    }
}

impl Answer {
    fn of(body: Value) -> Self {
        Self { status: 200, body }
    }

    fn created(self) -> Self {
        Self {
            status: 201,
            ..self
        }
    }
}
