//! The ioctl ABI: what `copperfs stats` and `copperfs clear` ask of a mount, usable from any language.

/// Counters of one node, or of the cluster summed, in the order of the ABI.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatsBody {}
