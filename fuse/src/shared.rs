//! State that one mount's request handlers share.

use crate::backend::Backend;
use crate::counters::Counters;
use crate::device::Device;
use crate::push::PushQueue;
use std::sync::Arc;

/// Shared by the FUSE threads and the tasks that send replies later.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) device: Arc<Device>,
    pub(crate) push: Arc<PushQueue>,
    /// The user that mounted.
    pub(crate) owner: u32,
}
