//! The state that the parts of a running node share.

use crate::connected::{ConnectedChildren, Readers};
use crate::counters::Counters;
use crate::membership::Membership;
use crate::plan::PLANS_MAX;
use crate::refusals::Refusals;
use crate::service::Service;
use crate::steering::{COMMANDS_MAX, SteeringStreams};
use crate::upstream::Upstream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Semaphore;

/// See the module.
pub(crate) struct Shared {
    pub(crate) membership: Arc<Membership>,
    pub(crate) request_timeout: Duration,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) upstream: Upstream,
    pub(crate) refusals: Refusals,
    /// Permits for plans in memory.
    pub(crate) plans: Semaphore,
    /// This node is shutting down: from now on a failure tells nothing about the request.
    pub(crate) leaving: AtomicBool,
    pub(crate) readers: Readers,
    pub(crate) steering: SteeringStreams,
    /// Permits for commands of children.
    pub(crate) commands: Semaphore,
    pub(crate) children: ConnectedChildren,
}

impl Shared {
    /// The counters of this node's traffic.
    pub(crate) fn counters(&self) -> &Counters {
        self.upstream.counters()
    }

    pub(crate) fn new(
        (request_timeout, lanes): (Duration, usize),
        service: Arc<dyn Service>,
        upstream: Upstream,
    ) -> Self {
        Self {
            membership: Arc::clone(upstream.membership()),
            request_timeout,
            service,
            upstream,
            refusals: Refusals::default(),
            plans: Semaphore::new(PLANS_MAX),
            leaving: AtomicBool::new(false),
            readers: Readers::new(lanes),
            steering: SteeringStreams::default(),
            commands: Semaphore::new(COMMANDS_MAX),
            children: ConnectedChildren::default(),
        }
    }
}
