//! The state of one mount.

use crate::backend::Backend;
use crate::device::Device;
use crate::in_hand::InHand;
use crate::interrupt::Pending;
use crate::passthrough::PassthroughOpens;
use crate::policy::MountOptions;
use crate::push::Push;
use crate::repeats::TimedOutRequests;
use std::sync::Arc;

/// Shared by the FUSE threads, the notifier thread and the tasks that send replies later.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: MountOptions,
    pub(crate) device: Device,
    pub(crate) push: Arc<Push>,
    pub(crate) pending: Arc<Pending>,
    pub(crate) opens: PassthroughOpens,
    pub(crate) timed_out: TimedOutRequests,
    pub(crate) in_hand: Option<InHand>,
    /// The user that mounted.
    pub(crate) owner: u32,
}
