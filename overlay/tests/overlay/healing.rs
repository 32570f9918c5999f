//! Trees that lose nodes and mend: the rules alone, whole nodes on loopback, whole nodes in a
//! simulated network.

mod cable;
mod forests;
mod guests;
mod homes;
mod idle;
mod keeper;
mod liars;
mod parents;
mod seeds;
mod simulated;
