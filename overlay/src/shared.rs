//! What the parts of a running node share.

use crate::children::Children;
use crate::counters::Meters;
use crate::membership::Membership;
use crate::peer::Liveness;
use crate::plan::PLANS_MAX;
use crate::readers::Readers;
use crate::refusals::Refusals;
use crate::service::Service;
use crate::steering::{COMMANDS_AT_ONCE, Steered};
use crate::upstream::Upstream;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tokio::sync::Semaphore;

/// See the module.
pub(crate) struct Shared {
    pub(crate) membership: Arc<Membership>,
    pub(crate) request_timeout: Duration,
    pub(crate) liveness: Liveness,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) upstream: Upstream,
    pub(crate) meters: Arc<Meters>,
    pub(crate) refusals: Refusals,
    /// Places for plans that lie on this node.
    pub(crate) plans: Semaphore,
    /// This node is going: what fails from now on says nothing about what was asked.
    pub(crate) leaving: AtomicBool,
    /// Who reads items from this node.
    pub(crate) readers: Readers,
    /// Streams of steering from children.
    pub(crate) steered: Steered,
    /// Turns of children's commands.
    pub(crate) commands: Semaphore,
    pub(crate) children: Children,
}

impl Shared {
    pub(crate) fn new(
        membership: Arc<Membership>,
        (request_timeout, liveness): (Duration, Liveness),
        service: Arc<dyn Service>,
        upstream: Upstream,
        meters: Arc<Meters>,
    ) -> Self {
        let children = Children::new(Arc::clone(&membership));
        Self {
            membership,
            request_timeout,
            liveness,
            service,
            upstream,
            meters,
            refusals: Refusals::default(),
            plans: Semaphore::new(PLANS_MAX),
            leaving: AtomicBool::new(false),
            readers: Readers::default(),
            steered: Steered::default(),
            commands: Semaphore::new(COMMANDS_AT_ONCE),
            children,
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("node", &self.membership.id())
            .finish_non_exhaustive()
    }
}
