//! copperfs: the domain of the daemon. The binary is a thin front to this library, so that tests and
//! tools can use its parts.

pub mod origin;
