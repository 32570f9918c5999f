//! Trees that lose nodes and mend: the rules alone, whole nodes on loopback, whole nodes in a
//! simulated network.

mod keeper;
mod seeds;
mod simulated;
