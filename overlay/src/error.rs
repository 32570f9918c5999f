//! Why a node cannot take its place.

use crate::identity::IdentityError;
use std::io;
use std::net::SocketAddr;

/// Why a node could not take its place.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// The address cannot be bound.
    #[error("cannot listen on {address} (UDP): {source}. {}", listen_hint(.source))]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The TLS library refuses its configuration.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "Another copperfs, or another program, holds the port: unmount the other one, or choose \
             another port with --listen"
        }
        io::ErrorKind::AddrNotAvailable => {
            "This machine has no such address: check --listen and --interface"
        }
        io::ErrorKind::PermissionDenied => {
            "Ports below 1024 are root's: choose another with --listen"
        }
        _ => "Check --listen and --interface",
    }
}
