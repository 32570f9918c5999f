//! x
use super::*;
pub(super) fn run(_s: &Scenario, _w: &Workload) -> Result<Outcome, ClusterError> { todo!() }
