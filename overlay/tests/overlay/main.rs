//! The overlay as its users see it: real QUIC on loopback, whole trees in one process, and peers
//! that are dead, late, strange or hostile.

#[cfg(test)]
mod bundles;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod faults;
mod finds;
#[cfg(test)]
mod healing;
#[cfg(test)]
mod homes;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod log;
#[cfg(test)]
mod ranges;
#[cfg(test)]
mod steering;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tree;
#[cfg(test)]
mod trust;
#[cfg(test)]
#[path = "../../../tests/fixtures/waiting.rs"]
mod waiting;
