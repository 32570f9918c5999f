//! The parts of one mount that answer its requests.

use crate::backend::Backend;
use crate::counters::Counters;
use crate::device::Device;
use crate::push::PushQueue;
use std::sync::Arc;

/// What replies need wherever they are sent from.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) device: Arc<Device>,
    pub(crate) push: Arc<PushQueue>,
    /// The user who mounted.
    pub(crate) owner: u32,
}
