//! Trees that lose nodes and heal: the rules alone, whole nodes on loopback, and whole nodes in a simulated network.

mod cable;
mod corrupt;
mod direct;
mod forests;
mod guests;
mod homes;
mod idle;
mod keeper;
mod parents;
mod seeds;
mod simulated;
